"""Messages that are kept for a time and looked up by their keys, in columns: runs of rows in the order of a hash of the key.

    i <stretch i64><run u64>               what a run is: u8 format, u32 rows, u32 bytes, i64 first, i64 last event time,
                                           u32 blocks, u32 the first hash in each block, 16 bytes that say which bytes
                                           the run has (xxh3 of the schema and the blocks), then the schema
    b <stretch i64><run u64><block u32>    an Arrow record batch of its rows

stretch: the event time at which it begins, as in `stores/events.py`; a run is what a step filed for it, or several runs that
were merged; of format 1 a run does not say which bytes it has. Who looks for keys reads what runs there are of the stretches
in reach, and of each run the blocks in which the keys may lie, or all, which the process holds then (`stores/decoded.py`).
Runs of about one size are merged as soon as there are `FAN` of them: so each row is written a few times, and a stretch has few
runs. A run that is large already stays, so that no step merges much. What is over is forgotten by ranges.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import encode_i64, encode_u32, encode_u64
from windrow.core.errors import CorruptState, NewerFormat
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import concat
from windrow.stores.decoded import DECODED
from windrow.stores.events import TIME, Stretches, by_stretch
from windrow.stores.kv import KV, Batch

FORMAT = 2
#: The column of hashes of keys.
HASH = "__hash"
#: So many runs of a size become one; those of fewer rows than `SMALL` are all of one size.
FAN, SMALL = 4, 512
#: A run of more bytes stays as it is.
LARGE_BYTES = 32 << 20
#: Of a run of which a step looks at one block in so many, it reads all, and the process holds it for the next ones.
MUCH = 2
#: About so many bytes are a block.
BLOCK_BYTES = 16 << 10
_HEAD, _DIGEST_BYTES = struct.Struct(">BIIqqI"), 16
_RUNS, _RUNS_END, _BLOCKS, _BLOCKS_END = b"i", b"j", b"b", b"c"

Hashes: TypeAlias = npt.NDArray[np.uint32]


class _Run(NamedTuple):
    """A run of a stretch: its key without the letter, and what is known of it. fences: the first hash of each block.

    digest: of its bytes; empty where it does not say.
    """

    key: bytes
    rows: int
    nbytes: int
    first_us: int
    last_us: int
    fences: Hashes
    digest: bytes
    schema: pa.Schema


def hashes_of(keys: Sequence[bytes]) -> Hashes:
    """A number for each encoded key."""
    return np.fromiter(map(xxhash.xxh32_intdigest, keys), dtype=np.uint32, count=len(keys))


class KeyedEvents:
    """Rows with columns `TIME` and `HASH`. It holds no state of its own."""

    def __init__(self, cf: str, stretches: Stretches) -> None:
        self.cf, self._stretches = cf, stretches

    # -- writing ----------------------------------------------------------------------------------------------------

    def add(self, kv: KV, rows: pa.Table, number: int, *, width_us: int | None = None) -> None:
        """number: of these rows, no others have it. width_us: of their stretches, which `wide` tells from then on."""
        batch = Batch()
        for start_us, part in by_stretch(rows, self._stretches.width_us if width_us is None else width_us):
            head = encode_i64(start_us)
            merged = _to_merge(self._runs(kv, _RUNS + head, _RUNS + head + b"\xff" * 9), len(part))
            for run in merged:
                _delete(batch, self.cf, run)
            self._put(
                batch, head + encode_u64(number), concat([*self._read(kv, merged), part]) if merged else part
            )
        kv.write(batch)

    def forget(self, kv: KV, below_us: int) -> None:
        """Stretches that are over before that."""
        over = below_us >= END_OF_TIME_US
        end = b"" if over else encode_i64(self._stretches.begin(below_us))
        runs_end, blocks_end = (_RUNS_END, _BLOCKS_END) if over else (_RUNS + end, _BLOCKS + end)
        if next(iter(kv.scan(self.cf, _RUNS, runs_end)), None) is not None:
            batch = Batch()
            batch.delete_range(self.cf, _RUNS, runs_end)
            batch.delete_range(self.cf, _BLOCKS, blocks_end)
            kv.write(batch)

    def drop(self, kv: KV, below_us: int, gone: Callable[[pa.Table], BoolArray]) -> None:
        """Forget the rows of stretches that begin before that of which `gone` is true, and no others."""
        batch = Batch()
        for run in self._runs(kv, _RUNS, self._end(below_us)):
            [rows] = self._read(kv, [run])
            stay = ~gone(rows)
            if not stay.all():
                _delete(batch, self.cf, run)
            if stay.any() and not stay.all():
                self._put(batch, run.key, rows.filter(pa.array(stay)))
        kv.write(batch)

    def _put(self, batch: Batch, key: bytes, rows: pa.Table) -> None:
        """A run, in the order of its hashes."""
        hashes = rows.column(HASH).to_numpy()
        if not bool((hashes[1:] >= hashes[:-1]).all()):
            order = np.argsort(hashes, kind="stable")
            rows, hashes = rows.take(pa.array(order)), hashes[order]
        rows = rows.replace_schema_metadata(None).combine_chunks()
        n, nbytes = len(rows), max(rows.nbytes, 1)
        size = max(16, n * BLOCK_BYTES // nbytes)
        starts = range(0, n, size)
        times = rows.column(TIME).to_numpy()
        head = _HEAD.pack(
            FORMAT,
            n,
            min(nbytes, (1 << 32) - 1),
            int(times.min()),
            int(times.max()),
            len(starts),
        )
        fences, schema = hashes[::size].astype(">u4").tobytes(), rows.schema.serialize().to_pybytes()
        digest = xxhash.xxh3_128(schema)
        [whole] = rows.to_batches()
        for block, start in enumerate(starts):
            value: bytes = whole.slice(start, size).serialize().to_pybytes()
            digest.update(value)
            batch.put(self.cf, _BLOCKS + key + encode_u32(block), value)
        batch.put(self.cf, _RUNS + key, head + fences + digest.digest() + schema)

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(self, kv: KV, low_us: int, high_us: int) -> pa.Table | None:
        """The rows with `low_us <= time < high_us`, by stretch; None where there are none."""
        start = _RUNS + encode_i64(self._stretches.begin(low_us))
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

    def read_keys(self, kv: KV, hashes: Hashes, low_us: IntArray, high_us: IntArray) -> pa.Table | None:
        """The rows of these hashes, each from its `low_us` to its `high_us`, both included; of a hash that is asked for
        more than once from its first time to its last.
        """
        some = np.flatnonzero(high_us >= low_us)
        if not len(some):
            return None
        asked, low, high = _distinct(hashes[some], low_us[some], high_us[some])
        first_us, last_us = int(low.min()), int(high.max())
        start = _RUNS + encode_i64(self._stretches.begin(first_us))
        DECODED.begin()
        parts: list[tuple[_Run, IntArray, IntArray, pa.Table | None]] = []
        for run in self._runs(kv, start, self._end(last_us + 1)):
            here = np.flatnonzero((low <= run.last_us) & (high >= run.first_us))
            blocks = _blocks(run.fences, asked[here])
            if len(blocks):
                known = DECODED.get(run.digest)
                parts.append((run, here, blocks[:0] if known is not None else _more(run, blocks), known))
        names = [_BLOCKS + run.key + encode_u32(b) for run, _, blocks, _ in parts for b in blocks.tolist()]
        values, at = kv.multi_get(self.cf, names) if names else [], 0
        found = []
        for run, here, blocks, known in parts:
            rows = _table(self.cf, run, values[at : at + len(blocks)]) if known is None else known
            at += len(blocks)
            if len(blocks) == len(run.fences) and run.digest:
                DECODED.put(run.digest, rows)
            own = rows.column(HASH).to_numpy()
            first = np.searchsorted(own, asked[here], "left")
            n = np.searchsorted(own, asked[here], "right") - first
            of = np.repeat(here, n)
            places = np.arange(len(of)) + np.repeat(first - (np.cumsum(n) - n), n)
            times = rows.column(TIME).to_numpy()[places]
            places = places[(times >= low[of]) & (times <= high[of])]
            if len(places):
                found.append(rows.take(pa.array(places)))
        return concat(found) if found else None

    def _end(self, high_us: int) -> bytes:
        """The key behind the runs of all stretches that begin before that."""
        return _RUNS_END if high_us >= END_OF_TIME_US else _RUNS + encode_i64(high_us)

    def _runs(self, kv: KV, start: bytes, end: bytes) -> list[_Run]:
        return [_opened(key[1:], value) for key, value in kv.scan(self.cf, start, end)]

    def _read(self, kv: KV, runs: Sequence[_Run]) -> list[pa.Table]:
        """All rows of runs."""
        held = [DECODED.get(run.digest) for run in runs]
        names = [
            _BLOCKS + run.key + encode_u32(b)
            for run, known in zip(runs, held, strict=True)
            for b in range(len(run.fences) if known is None else 0)
        ]
        values, at, tables = kv.multi_get(self.cf, names) if names else [], 0, []
        for run, rows in zip(runs, held, strict=True):
            if rows is None:
                rows = _table(self.cf, run, values[at : at + len(run.fences)])
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
    """Those that become one with a new run of so many rows."""
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


def _delete(batch: Batch, cf: str, run: _Run) -> None:
    DECODED.forget(run.digest)
    batch.delete(cf, _RUNS + run.key)
    batch.delete_many(cf, [_BLOCKS + run.key + encode_u32(block) for block in range(len(run.fences))])


def _distinct(hashes: Hashes, low: IntArray, high: IntArray) -> tuple[Hashes, IntArray, IntArray]:
    """Each hash once, in order, with the first and the last of its times."""
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    starts = np.flatnonzero(np.r_[True, hashes[1:] != hashes[:-1]])
    return hashes[starts], np.minimum.reduceat(low[order], starts), np.maximum.reduceat(high[order], starts)


def _more(run: _Run, blocks: IntArray) -> IntArray:
    """These blocks, or all, where the run is held then."""
    much = run.digest and MUCH * len(blocks) >= len(run.fences) and DECODED.has_room(run.nbytes)
    return np.arange(len(run.fences)) if much else blocks


def _blocks(fences: Hashes, asked: Hashes) -> IntArray:
    """The blocks in which rows of these hashes may lie."""
    last = np.searchsorted(fences, asked, "right") - 1
    first = np.maximum(np.searchsorted(fences, asked, "left") - 1, 0)
    there = last >= 0
    edges = np.zeros(len(fences) + 1, dtype=np.int64)
    np.add.at(edges, first[there], 1)
    np.add.at(edges, last[there] + 1, -1)
    return np.flatnonzero(np.cumsum(edges[:-1]) > 0)


def _opened(key: bytes, value: bytes) -> _Run:
    if value[:1] > bytes((FORMAT,)):
        raise NewerFormat(
            f"kept messages of format {value[0]}, this windrow reads up to {FORMAT}: upgrade windrow"
        )
    try:
        version, rows, nbytes, first_us, last_us, blocks = _HEAD.unpack_from(value)
        end = _HEAD.size + 4 * blocks
        fences = np.frombuffer(value[_HEAD.size : end], dtype=">u4").astype(np.uint32)
        digest = value[end : end + _DIGEST_BYTES] if version > 1 else b""
        return _Run(key, rows, nbytes, first_us, last_us, fences, digest, _schema(value[end + len(digest) :]))
    except (pa.ArrowInvalid, OSError, struct.error, ValueError) as error:
        raise CorruptState(f"a run of {len(value)} bytes cannot be read: {error}") from error


@functools.lru_cache(maxsize=64)
def _schema(packed: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(packed))


def _table(cf: str, run: _Run, values: Sequence[Any]) -> pa.Table:
    """The rows of blocks, in one piece."""
    if any(value is None for value in values):
        raise CorruptState(f"{sum(v is None for v in values)} blocks of a run of {cf!r} are not there")
    try:
        batches = [pa.ipc.read_record_batch(pa.py_buffer(value), run.schema) for value in values]
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptState(f"a block of {cf!r} cannot be read: {error}") from error
    return pa.Table.from_batches(batches, run.schema).combine_chunks()
