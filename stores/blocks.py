"""Window metadata by columns: a value per window and commit, an Arrow record batch of the rows of that commit.

Appending reads no rows; a window is merged when it fires or is asked for; expiry is one range. What a window has gathered is
known from its newest block, so that whoever appends can fold it in time: no commit must pay for a whole window of many keys,
nor a value hold one. So a large window is divided, by a hash of the keys:

    <start i64><part u16><number u48>   part: where its range of hashes begins, 0 to 0x7fff; 0 where it is all of them
    <start i64><0xffff><number u48>     what has come since, dealt out to the parts when it is enough; number 0: the directory

From the parts to what has come since, the rows of a key are in the order in which they came. What is folded when depends on
numbers and bytes of blocks only, so that it is the same wherever a commit is done again. Blocks of a divided window are found
by the directory, not by a scan, which would have to pass all that were there since RocksDB last tidied up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgpack
import numpy as np
import pyarrow as pa

from windrow.core.byte_order import decode_i64, encode_i64, prefix_end
from windrow.core.errors import CorruptState
from windrow.core.types import concat
from windrow.stores.kv import KV, Batch, Overlay, Pair
from windrow.stores.paged import Pages
from windrow.stores.pages import PAGE, Head, hashes_of, unpack
from windrow.stores.shares import Chunk, dealt, tables_of
from windrow.stores.spill import Spill
from windrow.stores.spread import NUMBERS, Hashes, numbers_of, spread
from windrow.stores.values import (
    BESIDE,
    BLOCK_FORMAT,
    DIVIDED,
    END_OF_CF,
    HEADER,
    NUMBER,
    PAGES,
    SINCE,
    Block,
    first_block,
    header_of,
    key_of,
    record_batch,
    rows_of,
)
from windrow.stores.windows import START, UPSERT, Near, Schemas, bound, put_schema, split_by_start

#: Rows of one window, oldest first, to one row a key; None where they cannot be merged now.
Merge: TypeAlias = Callable[[pa.Table], pa.Table | None]


class _Newest(NamedTuple):
    """The newest block of a window: its number, what stands before its rows, and bytes of these."""

    number: int
    block: Block
    size: int


class _Part(NamedTuple):
    """A part: its blocks are numbered `[first, after)`, the first has `whole` bytes, the others `since`."""

    part: int
    first: int
    after: int
    whole: int
    since: int


class _Directory(NamedTuple):
    """The parts of a divided window, ascending; the number from which on there is what has come since, how much that may be."""

    since_from: int
    deal_bytes: int
    parts: list[_Part]

    def pack(self) -> bytes:
        packed: bytes = msgpack.packb(self)
        return bytes((DIVIDED,)) + packed


#: A window is looked at whenever so many blocks more have come, and folded when those after its first are as large as that
#: one: so each byte is rewritten about twice, however long the window, and a window takes about twice its folded size.
FOLD_AT = 16
#: One that is large already, when so many have come: most are over by then, and blocks of many rows cost little.
FOLD_LARGE_AT = 64
#: One of more bytes is folded at once: that is done in memory, where it then takes several times as many.
FOLD_BYTES = 128 << 20
#: A window that is larger when it is folded is divided, and so is a part.
PART_BYTES = 512 << 10
#: So much is gathered for each part before it is dealt out: a block costs half a kilobyte beside its rows.
DEAL_BYTES = 4 << 10
#: Windows are read this many at a time.
WINDOWS_AT_ONCE = 64
#: A commit looks at one of so many groups of parts, or at several where it brings much, and folds of those that have doubled
#: about so many times the bytes that it has brought.
_GROUPS, _FOLDED = 64, 4


class BlockWindows:
    """The columnar layout: `<start i64><number u64>` -> header, Arrow record batch. Schemas are in `aux`.

    by: key columns; without any a window has one row, and is never divided.
    """

    merges_on_read = True

    def __init__(self, cf: str, aux: str, by: Sequence[str] = ()) -> None:
        self.cf, self.aux, self.by = cf, aux, tuple(by)
        self._pages = Pages(cf, aux, by)

    # -- what every layout has ----------------------------------------------------------------------------------------

    def append(self, kv: KV, rows: pa.Table, *, upsert: bool) -> list[int]:
        batch, due = Batch(), []
        rows = rows.append_column(UPSERT, pa.array(np.full(len(rows), upsert)))
        schema = put_schema(kv, self.aux, batch, rows.schema)
        for start, part in split_by_start(rows):
            prefix, data = encode_i64(start), record_batch(part)
            newest = self._newest(kv, prefix)
            if newest is None:
                number, block = 0, Block(BLOCK_FORMAT, schema, 0, len(data), 0)
            else:
                number, before = newest.number + 1, newest.block
                size = len(part) if before.version == BESIDE else len(data)
                block = before._replace(schema=schema, since=before.since + size)
                gathered = number - before.first
                if (
                    before.version == DIVIDED
                    or self._is_due(block, gathered)
                    or self._overflows(before, block)
                ):
                    due.append(start)
            batch.put(self.cf, prefix + number.to_bytes(8, "big"), HEADER.pack(*block) + data)
        kv.write(batch)
        return due

    def _is_due(self, block: Block, gathered: int) -> bool:
        """True if a window is to be folded that has so many blocks after its first, as the newest says."""
        large = block.version != BESIDE and block.whole + block.since > PART_BYTES
        if gathered % (FOLD_LARGE_AT if large else FOLD_AT):
            return False
        return block.whole <= block.since or (large and bool(self.by))

    def _overflows(self, before: Block, block: Block) -> bool:
        """True if a window has just gathered so much that it could not be folded later, for memory."""
        held, holds = before.whole + before.since, block.whole + block.since
        return bool(self.by) and block.version == BLOCK_FORMAT and holds // FOLD_BYTES > held // FOLD_BYTES

    def read(self, kv: KV, starts: Sequence[int], keys: pa.Table | None = None) -> pa.Table | None:
        wanted = None if keys is None or not self.by else np.unique(hashes_of(keys, self.by))
        values = [v for start in sorted(set(starts)) for v in self._each(kv, encode_i64(start), wanted)]
        return self._rows(values, Schemas(kv, self.aux), wanted)

    def _rows(
        self, values: Sequence[bytes], schemas: Schemas, wanted: Hashes | None = None
    ) -> pa.Table | None:
        """The rows of values; `wanted`: only those whose keys have such a hash."""
        pages = [value for value in values if value[0] == PAGE]
        blocks = (rows_of(value, schemas) for value in values if value[0] != PAGE)
        tables: Iterable[pa.Table] = itertools.chain(unpack(pages, schemas), blocks)
        if wanted is not None:
            tables = (t.filter(pa.array(np.isin(hashes_of(t, self.by), wanted))) for t in tables)
        found = list(tables)
        return concat(found) if found else None

    def chunks(self, kv: KV, starts: Sequence[int], most: int) -> Iterator[Chunk]:
        """Windows in their order, several at once as long as they are of `most` bytes; of a larger one shares of its keys."""
        schemas, chunk, held, size = Schemas(kv, self.aux), list[int](), list[bytes](), 0
        for start in starts:
            values = self._each(kv, encode_i64(start))
            some, more = list[bytes](), 0
            while more <= most and (value := next(values, None)) is not None:
                some.append(value)
                more += len(value)
            large = more > most and bool(self.by)
            if chunk and (large or size + more > most or len(chunk) == WINDOWS_AT_ONCE):
                yield Chunk(chunk, self._rows(held, schemas), None)
                chunk, held, size = [], [], 0
            if large:
                tables = tables_of(itertools.chain(some, values), schemas)
                yield Chunk([start], None, dealt(tables, self.by, Spill()))
                continue
            chunk.append(start)
            held += [*some, *values]
            size += more
        if chunk:
            yield Chunk(chunk, self._rows(held, schemas), None)

    def starts(self, kv: KV, low: int, high: int) -> list[int]:
        found: list[int] = []
        at, end = encode_i64(low), bound(high)
        while True:
            entry = self._first(kv, at, end)
            if entry is None:
                return found
            found.append(decode_i64(entry[0][:8]))
            after = prefix_end(entry[0][:8])
            if after is None or (end is not None and after >= end):
                return found
            at = after

    def first_start(self, kv: KV) -> int | None:
        """The start of the earliest stored window."""
        entry = self._first(kv, b"", None)
        return None if entry is None else decode_i64(entry[0][:8])

    def drop(self, kv: KV, low: int, high: int) -> None:
        batch = Batch()
        batch.delete_range(self.cf, encode_i64(low), bound(high) or END_OF_CF)
        kv.write(batch)

    def near(self, kv: KV, starts: Sequence[int], keys: pa.Table | None) -> Near:
        return self._pages.near(kv, starts, keys, self._values)

    def near_hashes(self, kv: KV, start: int, wanted: Hashes | None) -> Near:
        """As `near` of one window, of the keys that have such hashes; None: of all."""
        return self._pages.near_hashes(kv, start, wanted, self._values)

    def put(self, kv: KV, near: Near, rows: pa.Table) -> None:
        self._pages.put(kv, near, rows)

    def replace(self, kv: KV, starts: Sequence[int], rows: pa.Table) -> None:
        self._pages.replace(kv, starts, rows)

    def replace_by_shares(self, kv: KV, start: int, groups: Spill) -> None:
        """As `replace` of one window, a group of shares after the other: those that `grouped` gave, numbered in their order."""
        self._pages.replace_by_shares(kv, start, groups)

    # -- folding ------------------------------------------------------------------------------------------------------

    def fold(self, kv: KV, start: int, merge: Merge) -> None:
        """Fold what is due of a window that `append` has named."""
        prefix = encode_i64(start)
        newest = self._newest(kv, prefix)
        assert newest is not None
        if newest.block.version == BESIDE:
            near = self.near(kv, [start], pa.table({name: pa.nulls(0) for name in (START, *self.by)}))
            merged = None if near.rows is None else merge(near.rows)
            if merged is not None:
                self.put(kv, near, merged)
            return
        if newest.block.version != DIVIDED:
            stored = self.read(kv, [start])
            merged = None if stored is None else merge(stored)
            if merged is not None and self.by and merged.nbytes > PART_BYTES:
                self._divide(kv, prefix, newest, _upserts(merged))
            elif merged is not None:
                self._fold_whole(kv, prefix, newest.number + 1, _upserts(merged))
            return
        directory, work = self._directory(kv, prefix), Overlay(kv)
        assert directory is not None
        if newest.block.since >= directory.deal_bytes:
            directory = self._deal(work, prefix, newest, directory)
        parts = self._fold_parts(work, prefix, newest, directory, merge)
        if len(work.batch):
            work.put(self.cf, key_of(prefix, SINCE), directory._replace(parts=parts).pack())
            kv.write(work.batch)

    def _fold_whole(self, kv: KV, prefix: bytes, number: int, rows: pa.Table) -> None:
        batch = Batch()
        batch.delete_range(self.cf, prefix, prefix_end(prefix) or END_OF_CF)
        schema = put_schema(kv, self.aux, batch, rows.schema)
        batch.put(self.cf, key_of(prefix, number), first_block(schema, number, record_batch(rows)))
        kv.write(batch)

    def _divide(self, kv: KV, prefix: bytes, newest: _Newest, rows: pa.Table) -> None:
        work, count = Overlay(kv), min(2 * rows.nbytes // PART_BYTES, NUMBERS)
        work.delete_range(self.cf, prefix, prefix_end(prefix) or END_OF_CF)
        parts = self._put_parts(work, prefix, rows, [(i * NUMBERS // count, 0) for i in range(count)])
        since_from = max(newest.number, SINCE) + 1
        work.put(self.cf, key_of(prefix, SINCE), _Directory(since_from, _deal_bytes(parts), parts).pack())
        kv.write(work.batch)

    def _deal(self, work: Overlay, prefix: bytes, newest: _Newest, directory: _Directory) -> _Directory:
        """Give to each part what has come since."""
        numbers = range(directory.since_from, newest.number + 1)
        rows = self._table(work, prefix, numbers)
        schema, parts = put_schema(work, self.aux, work.batch, rows.schema), list(directory.parts)
        for i, data in self._split(rows, [p.part for p in parts]):
            part = parts[i]
            block = Block(BLOCK_FORMAT, schema, part.first, part.whole, part.since + len(data))
            work.put(self.cf, key_of(prefix, part.after), HEADER.pack(*block) + data)
            parts[i] = part._replace(after=part.after + 1, since=block.since)
        work.batch.delete_many(self.cf, [key_of(prefix, n) for n in numbers])
        return _Directory(newest.number + 1, _deal_bytes(parts), parts)

    def _fold_parts(
        self, work: Overlay, prefix: bytes, newest: _Newest, directory: _Directory, merge: Merge
    ) -> list[_Part]:
        """Fold parts that have doubled, of the groups whose turn it is, and no more than goes with what has come. Those that
        have tripled are folded all the same.
        """
        groups = min(_GROUPS, 1 + _GROUPS * newest.size // directory.deal_bytes)
        turn, left = newest.number % _GROUPS * groups, _FOLDED * newest.size
        mine = {group % _GROUPS for group in range(turn, turn + groups)}
        parts: list[_Part] = []
        for i, part in enumerate(directory.parts):
            doubled = part.whole <= part.since and part.part * _GROUPS // NUMBERS in mine
            if doubled and (left > 0 or 2 * part.whole <= part.since):
                left -= part.whole + part.since
                numbers = range(part.first, part.after)
                merged = merge(self._table(work, prefix, numbers))
                if merged is not None:
                    work.batch.delete_many(self.cf, [key_of(prefix, n) for n in numbers])
                    above = directory.parts[i + 1].part if i + 1 < len(directory.parts) else NUMBERS
                    places = [(part.part, part.after & NUMBER)]
                    if merged.nbytes > PART_BYTES and above - part.part > 1:
                        places.append(((part.part + above) // 2, 0))
                    parts += self._put_parts(work, prefix, _upserts(merged), places)
                    continue
            parts.append(part)
        return parts

    def _put_parts(
        self, work: Overlay, prefix: bytes, rows: pa.Table, places: Sequence[tuple[int, int]]
    ) -> list[_Part]:
        """Rows as first blocks of parts, at (part, number)."""
        schema, parts = put_schema(work, self.aux, work.batch, rows.schema), list[_Part]()
        for i, data in self._split(rows, [part for part, _ in places]):
            part, number = places[i][0], places[i][0] << 48 | places[i][1]
            work.put(self.cf, key_of(prefix, number), first_block(schema, number, data))
            parts.append(_Part(part, number, number + 1, len(data), 0))
        return parts

    def _split(self, rows: pa.Table, parts: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """(index of a part, its rows), in the order in which they are. Parts without rows are left out; what would be theirs is
        then of the part before, or of the first.
        """
        of = np.searchsorted(parts, spread([rows.column(b) for b in self.by]), side="right") - 1
        of = np.maximum(of, 0)
        [batch] = rows.take(pa.array(np.argsort(of, kind="stable"))).combine_chunks().to_batches()
        bounds = np.r_[0, np.cumsum(np.bincount(of, minlength=len(parts)))]
        for i in range(len(parts)):
            if bounds[i] < bounds[i + 1]:
                yield i, batch.slice(bounds[i], bounds[i + 1] - bounds[i]).serialize().to_pybytes()

    # -- looking ------------------------------------------------------------------------------------------------------

    def blocks(self, kv: KV, start: int) -> int:
        """How many blocks the window at `start` has."""
        return len(self._values(kv, encode_i64(start)))

    def _first(self, kv: KV, low: bytes, high: bytes | None) -> Pair | None:
        return next(iter(kv.scan(self.cf, low, high)), None)

    def _directory(self, kv: KV, prefix: bytes) -> _Directory | None:
        """The directory of a window; None where it is not divided."""
        value = kv.get(self.cf, key_of(prefix, SINCE))
        if value is None or value[:1] != bytes((DIVIDED,)):
            return None
        since_from, deal_bytes, parts = msgpack.unpackb(value[1:])
        return _Directory(since_from, deal_bytes, [_Part(*part) for part in parts])

    def _newest(self, kv: KV, prefix: bytes) -> _Newest | None:
        """The newest block of a window."""
        newest = next(iter(kv.scan(self.cf, prefix, prefix_end(prefix), reverse=True)), None)
        if newest is None:
            return None
        key, value = newest
        number = int.from_bytes(key[8:], "big")
        if value[0] == PAGE:
            page = value if number == PAGES else kv.get(self.cf, key_of(prefix, PAGES))
            assert page is not None
            return _Newest(SINCE, Block(BESIDE, b"", SINCE, Head.of(page).stored, 0), 0)
        if number == SINCE and value[0] == DIVIDED:
            directory = self._directory(kv, prefix)
            assert directory is not None
            block = Block(DIVIDED, b"", directory.since_from, directory.deal_bytes, 0)
            return _Newest(directory.since_from - 1, block, 0)
        if value[:1] != b"\x01":
            return _Newest(number, header_of(value), len(value) - HEADER.size)
        # Of an older windrow: blocks did not say what came before them.
        scan = kv.scan(self.cf, prefix, prefix_end(prefix))
        (first, whole), *rest = [(int.from_bytes(k[8:], "big"), len(v)) for k, v in scan]
        block = Block(BLOCK_FORMAT, b"", first, whole, sum(size for _, size in rest))
        return _Newest(number, block, len(value))

    def _values(self, kv: KV, prefix: bytes) -> list[bytes]:
        """The blocks of a window, oldest first."""
        return list(self._each(kv, prefix))

    def _each(self, kv: KV, prefix: bytes, wanted: Hashes | None = None) -> Iterator[bytes]:
        """The blocks of a window, oldest first; `wanted`: of those that keys with other hashes have to themselves, none."""
        directory, low = self._directory(kv, prefix), prefix
        if directory is not None:
            parts = directory.parts
            if wanted is not None:
                begins = [part.part for part in parts]
                of = np.searchsorted(begins, numbers_of(wanted), side="right") - 1
                parts = [parts[i] for i in np.unique(np.maximum(of, 0)).tolist()]
            for part in parts:
                yield from self._get(kv, prefix, range(part.first, part.after))
            low = key_of(prefix, directory.since_from)
        elif wanted is not None and (pages := self._pages.of_hashes(kv, prefix, wanted)) is not None:
            yield from pages
            low = key_of(prefix, SINCE)
        yield from (value for _, value in kv.scan(self.cf, low, prefix_end(prefix)))

    def _get(self, kv: KV, prefix: bytes, numbers: Sequence[int]) -> list[bytes]:
        values = kv.multi_get(self.cf, [key_of(prefix, n) for n in numbers])
        if None in values:
            raise CorruptState(f"a block of the divided window {decode_i64(prefix)} is gone")
        return values  # type: ignore[return-value]

    def _table(self, kv: KV, prefix: bytes, numbers: Sequence[int]) -> pa.Table:
        schemas = Schemas(kv, self.aux)
        return concat([rows_of(value, schemas) for value in self._get(kv, prefix, numbers)])


def _deal_bytes(parts: Sequence[_Part]) -> int:
    return DEAL_BYTES * len(parts)


def _upserts(rows: pa.Table) -> pa.Table:
    return rows.append_column(UPSERT, pa.array(np.ones(len(rows), dtype=bool)))
