"""Keyed event store: messages that are kept for a time and looked up by key, in columns, as runs sorted by a hash of the key.

    i <stretch i64><run u64>               a run: u8 format, u32 rows, u32 bytes, i64 first, i64 last event time,
                                           u32 blocks, u32 the first hash in each block, 16 bytes that identify the bytes
                                           of the run (xxh3 of the schema and the blocks), u32 rows of a block, u8 if it
                                           has an index, then the schema
    h <stretch i64><run u64>               its index, where it has more than `INDEXED` blocks: u32 the hash of each row,
                                           lowest byte first
    b <stretch i64><run u64><block u32>    an Arrow record batch of its rows

stretch: the start of a time bucket, as in `stores/event_log.py`; a run is a step's rows for it, or several runs that
were merged. A lookup of keys reads the runs of the buckets in reach, and of each run the blocks in which the keys lie, by its
index, which the process caches (`stores/run_cache.py`). A run of which much is needed is read whole, and cached. Where there
is no room, the first hashes of the blocks show in which ones the keys may lie.
Runs of about one size are merged as soon as there are `FAN` of them: so each row is written a few times, and a bucket has few
runs. A large run is not merged, so that no step merges much. Expired runs are deleted by ranges.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import encode_i64, encode_u32, encode_u64
from windrow.core.envelope import check_version
from windrow.core.errors import CorruptState
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import concat
from windrow.stores.event_log import TIME, Stretches, by_stretch
from windrow.stores.kv import KV, Batch
from windrow.stores.run_cache import DECODED, Held, name_of

FORMAT = 1
#: The column of hashes of keys.
HASH = "__hash"
#: Runs of a size that are merged into one; those of fewer rows than `SMALL` are all of one size.
FAN, SMALL = 4, 512
#: A run of more bytes stays as it is.
LARGE_BYTES = 32 << 20
#: If a step needs one block in so many of a run, it reads the whole run, and the process caches it.
MUCH = 16
#: About so many bytes are a block; runs of more blocks than that have an index.
BLOCK_BYTES, INDEXED = 16 << 10, 4
_HEAD, _DIGEST_BYTES, _MORE = struct.Struct(">BIIqqI"), 16, struct.Struct(">IB")
_INDEX, _RUNS, _BLOCKS = b"h", b"i", b"b"
#: Behind all keys of a letter.
_END = {_INDEX: b"i", _RUNS: b"j", _BLOCKS: b"c"}

Hashes: TypeAlias = npt.NDArray[np.uint32]


class _Run(NamedTuple):
    """A run of a bucket: its key without the letter, and its metadata. fences: the first hash of each block.

    digest: of its bytes. size: rows of a block, 0 where it has no index.
    """

    key: bytes
    rows: int
    nbytes: int
    first_us: int
    last_us: int
    fences: Hashes
    digest: bytes
    size: int
    schema: pa.Schema


class _Part(NamedTuple):
    """Part of a run that a step reads for the keys `here`: these blocks, or rows that the process holds.

    found: the rows of each key in the run, the first and the one after the last; None where no index has them.
    """

    run: _Run
    here: IntArray
    blocks: IntArray
    held: pa.Table | None
    found: tuple[IntArray, IntArray] | None


def hashes_of(keys: Sequence[bytes]) -> Hashes:
    """Return a number for each encoded key."""
    return np.fromiter(map(xxhash.xxh32_intdigest, keys), dtype=np.uint32, count=len(keys))


class KeyedEvents:
    """Keyed event store of rows with columns `TIME` and `HASH`. It holds no state of its own."""

    def __init__(self, cf: str, width_us: int, record: tuple[str, bytes] | None = None) -> None:
        self.cf, self._stretches = cf, Stretches(width_us, record)

    # -- writing ----------------------------------------------------------------------------------------------------

    def add(self, kv: KV, rows: pa.Table, number: int) -> None:
        """number: of these rows, no others have it."""
        batch, times = Batch(), rows.column(TIME).to_numpy()
        for start_us, part in by_stretch(rows, self._stretches.width(kv, times), times):
            head = encode_i64(start_us)
            merged = _to_merge(self._runs(kv, _RUNS + head, _RUNS + head + b"\xff" * 9), len(part))
            for run in merged:
                self._delete(kv, batch, run)
            self._put(
                batch, head + encode_u64(number), concat([*self._read(kv, merged), part]) if merged else part
            )
        kv.write(batch)

    def forget(self, kv: KV, below_us: int) -> None:
        """Stretches that are over before that."""
        over = below_us >= END_OF_TIME_US
        head = b"" if over else encode_i64(self._stretches.begin(kv, below_us))
        ends = {letter: end if over else letter + head for letter, end in _END.items()}
        if next(iter(kv.scan(self.cf, _RUNS, ends[_RUNS])), None) is not None:
            batch = Batch()
            for letter, end in ends.items():
                batch.delete_range(self.cf, letter, end)
            kv.write(batch)

    def drop(self, kv: KV, below_us: int, gone: Callable[[pa.Table], BoolArray]) -> None:
        """Evict the rows from before that for which `gone` is true, and no others."""
        batch = Batch()
        for run in self._runs(kv, _RUNS, self._end(below_us)):
            if run.first_us >= below_us:
                continue
            [rows] = self._read(kv, [run])
            stay = ~(gone(rows) & (rows.column(TIME).to_numpy() < below_us))
            if not stay.all():
                self._delete(kv, batch, run)
            if stay.any() and not stay.all():
                self._put(batch, run.key, rows.filter(pa.array(stay)))
        kv.write(batch)

    def _put(self, batch: Batch, key: bytes, rows: pa.Table) -> None:
        """Put a run, in the order of its hashes."""
        hashes = rows.column(HASH).to_numpy()
        if not bool((hashes[1:] >= hashes[:-1]).all()):
            order = np.argsort(hashes, kind="stable")
            rows, hashes = rows.take(pa.array(order)), hashes[order]
        rows = rows.replace_schema_metadata(None).combine_chunks()
        [whole] = rows.to_batches()
        # As written: in memory a column without nulls may or may not have a bitmap of them.
        n, nbytes = len(rows), pa.ipc.get_record_batch_size(whole)
        size = max(16, n * BLOCK_BYTES // nbytes)
        starts = range(0, n, size)
        times = rows.column(TIME).to_numpy()
        first_us, last_us = int(times.min()), int(times.max())
        head = _HEAD.pack(FORMAT, n, min(nbytes, (1 << 32) - 1), first_us, last_us, len(starts))
        fences, schema = hashes[::size].astype(">u4").tobytes(), rows.schema.serialize().to_pybytes()
        digest = xxhash.xxh3_128(schema)
        for block, start in enumerate(starts):
            value: bytes = whole.slice(start, size).serialize().to_pybytes()
            digest.update(value)
            batch.put(self.cf, _BLOCKS + key + encode_u32(block), value)
        more = _MORE.pack(size, len(starts) > INDEXED)
        if len(starts) > INDEXED:
            batch.put(self.cf, _INDEX + key, hashes.astype("<u4").tobytes())
        batch.put(self.cf, _RUNS + key, head + fences + digest.digest() + more + schema)

    def _delete(self, kv: KV, batch: Batch, run: _Run) -> None:
        held = DECODED.of(name_of(kv))
        held.forget(run.digest)
        batch.delete(self.cf, _RUNS + run.key)
        if run.size:
            held.forget(_INDEX + run.digest)
            batch.delete(self.cf, _INDEX + run.key)
        batch.delete_many(
            self.cf, [_BLOCKS + run.key + encode_u32(block) for block in range(len(run.fences))]
        )

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(self, kv: KV, low_us: int, high_us: int) -> pa.Table | None:
        """Return the rows with `low_us <= time < high_us`, by bucket; None where there are none."""
        start = _RUNS + encode_i64(self._stretches.begin(kv, low_us))
        runs = [
            run
            for run in self._runs(kv, start, self._end(high_us))
            if run.last_us >= low_us and run.first_us < high_us
        ]
        if not runs:
            return None
        rows = concat(self._read(kv, runs))
        times = rows.column(TIME).to_numpy()
        inside = (times >= low_us) & (times < high_us)
        if not inside.all():
            rows = rows.filter(pa.array(inside))
        return rows if len(rows) else None

    def contents(self, kv: KV) -> tuple[bytes, int]:
        """Return a digest of all runs, and how many rows they have."""
        digest, rows = xxhash.xxh3_128(), 0
        for key, value in kv.scan(self.cf, _RUNS, _END[_RUNS]):
            digest.update(key + value)
            rows += int(_HEAD.unpack_from(value)[1])
        return digest.digest(), rows

    def read_keys(self, kv: KV, hashes: Hashes, low_us: IntArray, high_us: IntArray) -> pa.Table | None:
        """Return the rows of these hashes, each from its `low_us` to its `high_us`, both included; of a hash that is requested
        more than once from its first time to its last.
        """
        ranges = np.flatnonzero(high_us >= low_us)
        if not len(ranges):
            return None
        asked, low, high = _distinct(hashes[ranges], low_us[ranges], high_us[ranges])
        first_us, last_us = int(low.min()), int(high.max())
        start = _RUNS + encode_i64(self._stretches.begin(kv, first_us))
        held = DECODED.of(name_of(kv))
        held.begin()
        parts: list[_Part] = []
        for run in self._runs(kv, start, self._end(last_us + 1)):
            here = np.flatnonzero((low <= run.last_us) & (high >= run.first_us))
            if not len(here):
                continue
            part = self._part(kv, held, run, here, asked[here])
            if part.held is not None or len(part.blocks):
                parts.append(part)
        tables = []
        for those, rows in self._looked_at(kv, held, parts):
            of, places = self._places(those, rows, asked)
            times = _own(rows, TIME)[places]
            places = places[(times >= low[of]) & (times <= high[of])]
            if len(places):
                tables.append(rows.take(pa.array(places)))
        return concat(tables) if tables else None

    def _looked_at(
        self, kv: KV, held: Held, parts: Sequence[_Part]
    ) -> Iterator[tuple[list[_Part], pa.Table]]:
        """Yield the rows of parts: those of one schema together, but for what is held, or will be, which is by itself."""
        names = [_BLOCKS + p.run.key + encode_u32(b) for p in parts for b in p.blocks.tolist()]
        values, at = kv.multi_get(self.cf, names) if names else [], 0
        together: dict[pa.Schema, tuple[list[_Part], list[Any]]] = {}
        for part in parts:
            own = values[at : at + len(part.blocks)]
            at += len(own)
            if part.held is not None:
                yield [part], part.held
            elif len(own) == len(part.run.fences):
                rows = _table(self.cf, part.run.schema, own)
                held.put(part.run.digest, rows)
                yield [part], rows
            elif part.found is None:
                yield [part], _table(self.cf, part.run.schema, own)
            else:
                members, pieces = together.setdefault(part.run.schema, ([], []))
                members.append(part)
                pieces += own
        for schema, (members, pieces) in together.items():
            yield members, _table(self.cf, schema, pieces)

    def _part(self, kv: KV, held: Held, run: _Run, here: IntArray, asked: Hashes) -> _Part:
        """Return the part of a run to read for these hashes."""
        known = held.get(run.digest)
        if known is not None:
            return _Part(run, here, here[:0], known, _edges(_own(known, HASH), asked))
        index = self._index(kv, held, run)
        if index is None:
            return _Part(run, here, _more(held, run, _blocks(run.fences, asked)), None, None)
        first, behind = _edges(index, asked)
        there = behind > first
        blocks = _covered(first[there] // run.size, (behind[there] - 1) // run.size, len(run.fences))
        return _Part(run, here, _more(held, run, blocks), None, (first, behind))

    def _index(self, kv: KV, held: Held, run: _Run) -> Hashes | None:
        """Return the hash of each row of a run; None where it has none, or there is no room to hold it."""
        if not run.size:
            return None
        name = _INDEX + run.digest
        known = held.get(name)
        if known is None:
            if not held.has_room(4 * run.rows):
                return None
            value = kv.get(self.cf, _INDEX + run.key)
            if value is None or len(value) != 4 * run.rows:
                size = "missing" if value is None else f"{len(value)} bytes"
                raise CorruptState(f"the index of a run of {run.rows} rows of {self.cf!r} is {size}")
            known = pa.table({HASH: pa.array(np.frombuffer(value, dtype="<u4").astype(np.uint32))})
            held.put(name, known)
        return _own(known, HASH)

    def _places(self, parts: Sequence[_Part], rows: pa.Table, asked: Hashes) -> tuple[IntArray, IntArray]:
        """Return (key, its row among those read) of the rows of these hashes. rows: those of the parts, one after the other."""
        own, before, keys, places = _own(rows, HASH), 0, [], []
        for part in parts:
            first, behind = _edges(own, asked[part.here]) if part.found is None else part.found
            n = behind - first
            of = np.repeat(np.arange(len(n)), n)
            at = np.arange(len(of)) + np.repeat(first - (np.cumsum(n) - n), n)
            size, blocks = part.run.size, part.blocks
            if part.found is not None and part.held is None and len(blocks) < len(part.run.fences):
                at = np.searchsorted(blocks, at // size) * size + at % size
                # Only the last block of a run may have fewer rows.
                ends = blocks[-1] == len(part.run.fences) - 1
                short = len(part.run.fences) * size - part.run.rows if ends else 0
                at, before = at + before, before + len(blocks) * size - short
            keys.append(part.here[of])
            places.append(at)
        of, at = (np.concatenate(column) for column in (keys, places))
        if len(at) and (int(at.max()) >= len(own) or (own[at] != asked[of]).any()):
            raise CorruptState(f"runs of {self.cf!r} do not lie as their indexes say")
        return of, at

    def _end(self, high_us: int) -> bytes:
        """Return the key after the runs of all buckets that begin before that."""
        return _END[_RUNS] if high_us >= END_OF_TIME_US else _RUNS + encode_i64(high_us)

    def _runs(self, kv: KV, start: bytes, end: bytes) -> list[_Run]:
        return [_opened(key[1:], value) for key, value in kv.scan(self.cf, start, end)]

    def _read(self, kv: KV, runs: Sequence[_Run]) -> list[pa.Table]:
        """Return all rows of runs."""
        there = DECODED.of(name_of(kv))
        held = [there.get(run.digest) for run in runs]
        names = [
            _BLOCKS + run.key + encode_u32(b)
            for run, known in zip(runs, held, strict=True)
            for b in range(len(run.fences) if known is None else 0)
        ]
        values, at, tables = kv.multi_get(self.cf, names) if names else [], 0, []
        for run, rows in zip(runs, held, strict=True):
            if rows is None:
                rows = _table(self.cf, run.schema, values[at : at + len(run.fences)])
                at += len(run.fences)
            if len(rows) != run.rows:
                raise CorruptState(f"a run of {self.cf!r} has {len(rows)} rows, not {run.rows}")
            tables.append(rows)
        return tables


def _level(rows: int) -> int:
    """Runs of one level are about of a size."""
    level = 0
    while rows >= SMALL:
        rows //= FAN
        level += 1
    return level


def _to_merge(runs: Sequence[_Run], rows: int) -> list[_Run]:
    """Return the runs to merge with a new run of so many rows."""
    merged: list[_Run] = []
    rest = [run for run in runs if run.nbytes < LARGE_BYTES]
    while True:
        level = _level(rows)
        same = [run for run in rest if _level(run.rows) <= level]
        if len(same) < FAN - 1:
            return merged
        merged += same
        rest = [run for run in rest if _level(run.rows) > level]
        rows += sum(run.rows for run in same)


def _distinct(hashes: Hashes, low: IntArray, high: IntArray) -> tuple[Hashes, IntArray, IntArray]:
    """Return each hash once, in order, with the first and the last of its times."""
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    starts = np.flatnonzero(np.r_[True, hashes[1:] != hashes[:-1]])
    return hashes[starts], np.minimum.reduceat(low[order], starts), np.maximum.reduceat(high[order], starts)


def _more(held: Held, run: _Run, blocks: IntArray) -> IntArray:
    """These blocks, or all, where the run is held then."""
    much = MUCH * len(blocks) >= len(run.fences) and held.has_room(run.nbytes)
    return np.arange(len(run.fences)) if much else blocks


def _blocks(fences: Hashes, asked: Hashes) -> IntArray:
    """Return the blocks in which rows of these hashes may lie."""
    last = np.searchsorted(fences, asked, "right") - 1
    first = np.maximum(np.searchsorted(fences, asked, "left") - 1, 0)
    there = last >= 0
    return _covered(first[there], last[there], len(fences))


def _covered(first: IntArray, last: IntArray, n: int) -> IntArray:
    """Return those of `n` blocks that lie in one of these ranges, whose last ones are included."""
    edges = np.zeros(n + 1, dtype=np.int64)
    np.add.at(edges, first, 1)
    np.add.at(edges, last + 1, -1)
    return np.flatnonzero(np.cumsum(edges[:-1]) > 0)


def _own(rows: pa.Table, name: str) -> npt.NDArray[Any]:
    """Return a column without nulls, of a table in one piece: not copied."""
    column = rows.column(name)
    return np.asarray(column.chunk(0).to_numpy() if column.num_chunks == 1 else column.to_numpy())


def _edges(own: Hashes, asked: Hashes) -> tuple[IntArray, IntArray]:
    """Return the first row of each hash, and the one after its last."""
    return np.searchsorted(own, asked, "left"), np.searchsorted(own, asked, "right")


def _opened(key: bytes, value: bytes) -> _Run:
    check_version("kept messages", value[0] if value else 0, FORMAT)
    try:
        _, rows, nbytes, first_us, last_us, blocks = _HEAD.unpack_from(value)
        end = _HEAD.size + 4 * blocks
        fences = np.frombuffer(value[_HEAD.size : end], dtype=">u4").astype(np.uint32)
        digest = value[end : end + _DIGEST_BYTES]
        end += _DIGEST_BYTES
        size, indexed = _MORE.unpack_from(value, end)
        schema = _schema(value[end + _MORE.size :])
        return _Run(key, rows, nbytes, first_us, last_us, fences, digest, size if indexed else 0, schema)
    except (pa.ArrowInvalid, OSError, struct.error, ValueError) as error:
        raise CorruptState(f"a run of {len(value)} bytes cannot be read: {error}") from error


@functools.lru_cache(maxsize=64)
def _schema(packed: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(packed))


def _table(cf: str, schema: pa.Schema, values: Sequence[Any]) -> pa.Table:
    """Return the rows of blocks, in one piece."""
    if any(value is None for value in values):
        raise CorruptState(f"{sum(v is None for v in values)} blocks of runs of {cf!r} are not there")
    try:
        batches = [pa.ipc.read_record_batch(pa.py_buffer(value), schema) for value in values]
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptState(f"a block of {cf!r} cannot be read: {error}") from error
    return pa.Table.from_batches(batches, schema).combine_chunks()
