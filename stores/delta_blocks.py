"""Append-only delta blocks of window metadata: per window and commit, one Arrow record batch of that commit's rows.

An append reads no rows; a window is merged when it fires or is read; expiry is one range. The size of a window is
known from its newest block, so that the writer can fold it in time. A large one is folded a few blocks at a time, the
oldest first, and divided where it has many keys (`stores/partitioned_windows.py`): no commit rewrites a whole window, and no
value holds one. The schedule of folds depends on numbers and bytes of blocks only, so that a repeated commit does the same.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray, taken
from windrow.core.byte_order import decode_i64, encode_i64, prefix_end
from windrow.core.errors import CorruptState
from windrow.core.types import concat
from windrow.stores import partitioned_windows
from windrow.stores.block_format import (
    BLOCKS,
    END_OF_CF,
    HEADER,
    NUMBER,
    PAGES,
    SINCE,
    Block,
    Codec,
    Kind,
    Newest,
    header_of,
    key_of,
    page_keys,
    record_batch,
)
from windrow.stores.key_hash import Hashes
from windrow.stores.kv import KV, Batch, Pair
from windrow.stores.page_format import (
    HASH,
    Head,
    among,
    hashes_of,
    is_page,
    page_of,
    rows_of,
    size_of,
    unpack,
)
from windrow.stores.page_store import RUN_BYTES, Pages, put_pairs
from windrow.stores.page_writer import narrow_rows
from windrow.stores.partitioned_windows import Directory, DividedWindows, Merge
from windrow.stores.row_codec import Schemas, pack_table, put_schema
from windrow.stores.spill import Chunk, Spill, dealt, tables_of
from windrow.stores.tombstones import takes_away
from windrow.stores.window_state import START, UPSERT, Near, bound, split_by_start

#: A window is looked at whenever so many blocks more have come, and folded when those after its first are as large as that
#: one: so each byte is rewritten about twice, however long the window, and a window takes about twice its folded size.
FOLD_AT = 16
#: One that is large already, when so many have come: most are over by then, and blocks of many rows cost little.
FOLD_LARGE_AT = 64
#: One of more bytes is looked at as soon as it has them, however few its blocks.
FOLD_BYTES = 128 << 20
#: Rows from which blocks of windows that are not soon merged are narrow: fewer take more time than bytes.
NARROW_FROM = 2_048
#: Of blocks of at least so many bytes a reader of one key keeps the rows of that key.
PARTED_BYTES = 4 << 10
#: Windows are read this many at a time.
WINDOWS_AT_ONCE = 64


class OfBlocks(NamedTuple):
    """Blocks of a window, oldest first, and the newest."""

    values: list[bytes]
    newest: Newest

    @property
    def nbytes(self) -> int:
        return sum(map(size_of, self.values))


class Changed(NamedTuple):
    """Rows of windows that a batch may have changed. spans: all of windows that start in `[low, high)`; hashes: by window, of
    keys; pages: by window, the number of its pages, and those that changed.
    """

    spans: list[tuple[int, int]]
    hashes: dict[int, Hashes]
    pages: dict[int, tuple[int, IntArray]]


class BlockWindows:
    """The columnar layout: `<start i64><number u64>` -> header, Arrow record batch. Schemas are in `aux`.

    by: key columns; without any a window has one row, and is never divided. pages: default if None. narrow: long-lived blocks
    of many rows are narrow
    """

    def __init__(
        self, cf: str, aux: str, by: Sequence[str] = (), pages: Pages | None = None, narrow: bool = False
    ) -> None:
        self.cf, self.aux, self.by, self._narrow = cf, aux, tuple(by), narrow
        self._pages = Pages(cf, aux, by) if pages is None else pages
        self._divided = DividedWindows(cf, aux, by)
        # A put writes pages, whatever the layout before.
        self.put, self.replace = self._pages.put, self._pages.replace
        self.replace_by_shares = self._pages.replace_by_shares

    # -- what every layout has ----------------------------------------------------------------------------------------

    def append(self, kv: KV, rows: pa.Table, *, upsert: bool, aside: bool = False) -> list[int]:
        """Add rows; `upsert` rows replace what is stored for their (window, key). Returns the starts of windows that should
        be folded: merged, and given to `replace`. aside: many bytes are buffered in a file until they are committed.
        """
        return self._append(kv, rows.append_column(UPSERT, pa.array(np.full(len(rows), upsert))), aside)

    def change(self, kv: KV, rows: pa.Table, known: Mapping[int, OfBlocks]) -> list[int]:
        """Append rows, or tombstones of keys (`stores/tombstones.py`), to windows of blocks, as `append` does aside.
        known: what some of the windows were when they were read
        """
        return self._append(kv, rows, True, known)

    def of_blocks(self, kv: KV, start: int) -> OfBlocks | None:
        """Return a window that is neither of pages nor divided; None of others."""
        prefix, pairs = encode_i64(start), list[Pair]()
        for key, value in kv.scan(self.cf, prefix, prefix_end(prefix)):
            if is_page(value) or int.from_bytes(key[8:], "big") >= SINCE:
                return None
            pairs.append((key, value))
        if not pairs:
            return None
        [*_, (key, value)] = pairs
        newest = Newest(int.from_bytes(key[8:], "big"), header_of(value), len(value) - HEADER.size)
        return OfBlocks([value for _, value in pairs], newest)

    def rows_of_keys(self, kv: KV, blocks: OfBlocks, wanted: Hashes) -> pa.Table | None:
        """Return the rows of blocks whose keys have such a hash, oldest first."""
        return self._rows(blocks.values, Schemas(kv, self.aux), wanted)

    def _append(
        self, kv: KV, rows: pa.Table, aside: bool, known: Mapping[int, OfBlocks] | None = None
    ) -> list[int]:
        batch, due, keys, values = Batch(), list[int](), list[bytes](), list[bytes]()
        schema = put_schema(kv, self.aux, batch, rows.schema)
        for start, part in split_by_start(rows):
            prefix, (codec, data) = encode_i64(start), self._data(part, schema)
            newest = self._known(kv, prefix, None if known is None else known.get(start))
            if newest is None:
                number, block = 0, Block(Kind.BLOCK, codec, len(part), schema, 0, len(data), 0)
            else:
                number, before = newest.number + 1, newest.block
                size = len(part) if before.kind == Kind.BESIDE else len(data)
                since = before.since + size
                block = before._replace(codec=codec, rows=len(part), schema=schema, since=since)
                if known is not None and before.kind == Kind.BLOCK and takes_away(part):
                    block = block._replace(kind=Kind.CHANGED)
                gathered = number - before.first
                if (
                    before.kind == Kind.DIVIDED
                    or self._is_due(block, gathered)
                    or self._overflows(before, block)
                ):
                    due.append(start)
            keys.append(prefix + number.to_bytes(8, "big"))
            values.append(block.before(data))
        put_pairs(kv, batch, self.cf, keys, values, sys.maxsize if not aside else RUN_BYTES)
        return due

    def _data(self, rows: pa.Table, schema: bytes) -> tuple[Codec, bytes]:
        """Return the codec of a block's rows, and their bytes."""
        if self._narrow and len(rows) >= NARROW_FROM:
            return Codec.NARROW, narrow_rows(rows, schema)
        return Codec.ARROW, record_batch(rows)

    def _is_due(self, block: Block, gathered: int) -> bool:
        """True if a window is to be folded that has so many blocks after its first, as the newest says."""
        if block.kind == Kind.BESIDE or not self._is_large(block):
            return gathered % FOLD_AT == 0 and block.whole <= block.since
        return gathered >= FOLD_LARGE_AT and (
            block.whole <= block.since or block.whole > partitioned_windows.PART_BYTES
        )

    def _overflows(self, before: Block, block: Block) -> bool:
        """True if a window has just gathered so many bytes that it is folded without more blocks."""
        held, holds = before.whole + before.since, block.whole + block.since
        return (
            bool(self.by)
            and block.kind in (Kind.BLOCK, Kind.CHANGED)
            and holds // FOLD_BYTES > held // FOLD_BYTES
        )

    def is_divided(self, kv: KV, start: int) -> bool:
        """True for a window in hash partitions, whose values hold rows of several commits."""
        return self._divided.directory(kv, encode_i64(start)) is not None

    def read(self, kv: KV, starts: Sequence[int], keys: pa.Table | None = None) -> pa.Table | None:
        """Return the rows of the windows that start at `starts`, oldest first, with `__upsert`; None where there are none.

        `keys`, a table of `__start` and the key columns, may narrow the answer to those (window, key).
        """
        wanted = None if keys is None or not self.by else np.unique(hashes_of(keys, self.by))
        values = [v for start in sorted(set(starts)) for v in self._each(kv, encode_i64(start), wanted)]
        one = None if keys is None or len(keys) != 1 or HASH in keys.column_names else keys
        return self._rows(values, Schemas(kv, self.aux), wanted, one)

    def part_of(self, one: pa.Table, kv: KV, changes: Batch) -> Batch:
        """Return a copy of the part of changes that reading one window of one key needs: its page, its rows of large blocks.

        one: its start and key, as `read` takes them; kv: a store that has the schemas
        """
        [prefix], part, points = (
            map(encode_i64, one.column(START).to_pylist()),
            Batch(),
            changes.points(self.cf),
        )
        low, high, since = prefix, prefix_end(prefix) or END_OF_CF, key_of(prefix, SINCE)
        for start, end in changes.ranges(self.cf):
            part.delete_range(self.cf, start, end)
        schemas, first = Schemas(kv, self.aux), key_of(prefix, PAGES)
        page, wanted = points.get(first), np.unique(hashes_of(one, self.by))
        pages = None if page is None else {first, *page_keys([prefix], page_of(wanted, Head.of(page).pages))}
        for name, value in points.items():
            if low <= name < high and (pages is None or name in pages or not first <= name < since):
                if value is None:
                    part.delete(self.cf, name)
                else:
                    part.put(self.cf, name, self._part(value, schemas, wanted, one))
        return part

    def _part(self, value: bytes, schemas: Schemas, wanted: Hashes, one: pa.Table) -> bytes:
        """Return a value that has, if it is a large block, only the rows of one key."""
        if value[2] not in BLOCKS or value[3] != Codec.ARROW or len(value) < PARTED_BYTES:
            return bytes(value)
        rows = self._rows([value], schemas, wanted, one)
        assert rows is not None
        return header_of(value)._replace(codec=Codec.STREAM, rows=len(rows)).before(pack_table(rows))

    def _rows(
        self,
        values: Sequence[bytes],
        schemas: Schemas,
        wanted: Hashes | None = None,
        key: pa.Table | None = None,
    ) -> pa.Table | None:
        """Return the rows of values; `wanted`: only those whose keys have such a hash. key: the one key that is wanted"""
        pages = [value for value in values if is_page(value)]
        blocks = (rows_of(value, schemas) for value in values if not is_page(value))
        tables: Iterable[pa.Table] = itertools.chain(unpack(pages, schemas), blocks)
        if key is not None:
            tables = (_with_texts(t, key, self.by) for t in tables)
        if wanted is not None:
            tables = (taken(t, np.flatnonzero(among(hashes_of(t, self.by), wanted))) for t in tables)
        parts = list(tables)
        return concat(parts) if parts else None

    def changed(self, kv: KV, batch: Batch) -> Changed:
        """Return the rows that differ, or may differ, from those before a batch. `kv` holds the batch."""
        changed, schemas = Changed([], {}, {}), Schemas(kv, self.aux)
        for low, high in batch.ranges(self.cf):
            after = decode_i64(high[:8].ljust(8, b"\0")) + (8 < len(high) < len(END_OF_CF))
            changed.spans.append((decode_i64(low[:8].ljust(8, b"\0")), after))
        by_window: dict[bytes, dict[int, bytes | None]] = {}
        for key, value in batch.points(self.cf).items():
            by_window.setdefault(key[:8], {})[int.from_bytes(key[8:], "big")] = value
        for prefix, values in by_window.items():
            start, page = decode_i64(prefix), kv.get(self.cf, key_of(prefix, PAGES))
            rows = self._rows(
                [v for v in values.values() if v is not None and v[2] != Kind.DIRECTORY], schemas
            )
            if rows is not None:
                changed.hashes[start] = np.unique(hashes_of(rows, self.by))
            if page is not None and is_page(page):
                numbers = [n & NUMBER for n in values if PAGES <= n < SINCE]
                changed.pages[start] = Head.of(page).pages, np.array(numbers, dtype=np.int64)
        return changed

    def chunks(self, kv: KV, starts: Sequence[int], most: int) -> Iterator[Chunk]:
        """Windows in their order, several at once as long as they are of `most` bytes; of a larger one shares of its keys."""
        schemas, chunk, held, size = Schemas(kv, self.aux), list[int](), list[bytes](), 0
        for start in starts:
            values = self._each(kv, encode_i64(start))
            gathered, more = list[bytes](), 0
            while more <= most and (value := next(values, None)) is not None:
                gathered.append(value)
                more += size_of(value)
            large = more > most and bool(self.by)
            if chunk and (large or size + more > most or len(chunk) == WINDOWS_AT_ONCE):
                yield Chunk(chunk, self._rows(held, schemas), None)
                chunk, held, size = [], [], 0
            if large:
                tables = tables_of(itertools.chain(gathered, values), schemas)
                yield Chunk([start], None, dealt(tables, self.by, Spill()))
                continue
            chunk.append(start)
            held += [*gathered, *values]
            size += more
        if chunk:
            yield Chunk(chunk, self._rows(held, schemas), None)

    def starts(self, kv: KV, low: int, high: int) -> list[int]:
        """Return the starts of stored windows with `low <= start < high`, sorted."""
        starts: list[int] = []
        at, end = encode_i64(low), bound(high)
        while True:
            entry = self._first(kv, at, end)
            if entry is None:
                return starts
            starts.append(decode_i64(entry[0][:8]))
            after = prefix_end(entry[0][:8])
            if after is None or (end is not None and after >= end):
                return starts
            at = after

    def pages(self, kv: KV, start: int) -> int:
        """Return the number of pages of the window at `start`; 0 where it has none."""
        return self._pages.count(kv, start)

    def first_start(self, kv: KV) -> int | None:
        """Return the start of the earliest stored window."""
        entry = self._first(kv, b"", None)
        return None if entry is None else decode_i64(entry[0][:8])

    def drop(self, kv: KV, low: int, high: int) -> None:
        """Delete all windows with `low <= start < high`."""
        batch = Batch()
        batch.delete_range(self.cf, encode_i64(low), bound(high) or END_OF_CF)
        kv.write(batch)

    def near(self, kv: KV, starts: Sequence[int], keys: pa.Table | None) -> Near:
        """Return rows of the windows that start at `starts`, all of a (window, key) if any: of `keys`, a table
        of `__start` and the key columns, and of keys in the same pages; without `keys`, of all that wait to be emitted.
        """
        return self._pages.near(kv, starts, keys, self._values)

    def near_hashes(self, kv: KV, start: int, wanted: Hashes | None) -> Near:
        """Read as `near` does, of one window and of the keys that have such hashes; None: of all."""
        return self._pages.near_hashes(kv, start, wanted, self._values)

    # -- folding ------------------------------------------------------------------------------------------------------

    def fold(self, kv: KV, start: int, merge: Merge) -> None:
        """Fold the due blocks of a window that `append` has returned."""
        prefix = encode_i64(start)
        newest = self._newest(kv, prefix)
        assert newest is not None
        if newest.block.kind == Kind.DIVIDED:
            self._divided.fold(kv, prefix, newest, merge)
        elif newest.block.kind == Kind.BESIDE:
            near = self.near(kv, [start], pa.table({name: pa.nulls(0) for name in (START, *self.by)}))
            merged = None if near.rows is None else merge(near.rows)
            if merged is not None:
                self.put(kv, near, merged)
        else:
            self._fold_blocks(kv, prefix, newest, merge)

    def _fold_blocks(self, kv: KV, prefix: bytes, newest: Newest, merge: Merge) -> None:
        """Fold the blocks of a window; of a large one the oldest, or divide it."""
        block, size, tables, schemas = newest.block, 0, list[pa.Table](), Schemas(kv, self.aux)
        enough = partitioned_windows.slice_bytes(block.whole) if self._is_large(block) else None
        for number in range(block.first, newest.number + 1):
            value = self._block(kv, prefix, number)
            tables.append(rows_of(value, schemas))
            size += len(value) - HEADER.size
            if enough is not None and size >= enough:
                break
        rows, newer = concat(tables), self._block(kv, prefix, newest.number)
        if enough is not None:
            total = block.whole + block.since
            parts = self._divided.parts_for(rows, rows_of(newer, schemas), size, total)
            if parts > 1:
                self._divided.divide(kv, prefix, parts, newest)
                return
        merged = merge(rows)
        if merged is not None:
            self._put_first(kv, prefix, newest, number, size, newer, merged)

    def _put_first(
        self,
        kv: KV,
        prefix: bytes,
        newest: Newest,
        number: int,
        size: int,
        newer: bytes,
        merged: pa.Table,
    ) -> None:
        """Put `merged` in place of the blocks up to `number`, of `size` bytes. newer: the newest block, which records this."""
        block, batch = newest.block, Batch()
        rows = merged.append_column(UPSERT, pa.array(np.ones(len(merged), dtype=bool)))
        schema = put_schema(kv, self.aux, batch, rows.schema)
        codec, data = self._data(rows, schema)
        batch.delete_range(self.cf, key_of(prefix, block.first), key_of(prefix, number + 1))
        first = Block(Kind.BLOCK, codec, len(rows), schema, number, len(data), 0)
        batch.put(self.cf, key_of(prefix, number), first.before(data))
        if number < newest.number:
            since = block.whole + block.since - size
            header = header_of(newer)._replace(first=number, whole=len(data), since=since)
            batch.put(self.cf, key_of(prefix, newest.number), header.before(newer[HEADER.size :]))
        kv.write(batch)

    def _block(self, kv: KV, prefix: bytes, number: int) -> bytes:
        value = kv.get(self.cf, key_of(prefix, number))
        if value is None:
            raise CorruptState(f"block {number} of the window {decode_i64(prefix)} is gone")
        return value

    def _is_large(self, block: Block) -> bool:
        return bool(self.by) and block.whole + block.since > partitioned_windows.PART_BYTES

    # -- looking ------------------------------------------------------------------------------------------------------

    def blocks(self, kv: KV, start: int) -> int:
        """Return the number of blocks of the window at `start`."""
        return len(self._values(kv, encode_i64(start)))

    def _first(self, kv: KV, low: bytes, high: bytes | None) -> Pair | None:
        return next(iter(kv.scan(self.cf, low, high)), None)

    def _known(self, kv: KV, prefix: bytes, known: OfBlocks | None) -> Newest | None:
        """Return the newest block, which is not read again where it is known and has none after it."""
        if known is not None and kv.get(self.cf, key_of(prefix, known.newest.number + 1)) is None:
            return known.newest
        return self._newest(kv, prefix)

    def _newest(self, kv: KV, prefix: bytes) -> Newest | None:
        """Return the newest block of a window."""
        newest = next(iter(kv.scan(self.cf, prefix, prefix_end(prefix), reverse=True)), None)
        if newest is None:
            return None
        key, value = newest
        number = int.from_bytes(key[8:], "big")
        if is_page(value):
            page = value if number == PAGES else kv.get(self.cf, key_of(prefix, PAGES))
            assert page is not None
            return Newest(SINCE, Block(Kind.BESIDE, Codec.ARROW, 0, b"", SINCE, Head.of(page).stored, 0), 0)
        directory = Directory.of(value) if number == SINCE else None
        if directory is not None:
            return Newest(directory.since - 1, Block(Kind.DIVIDED, Codec.ARROW, 0, b"", 0, 0, 0), 0)
        return Newest(number, header_of(value), len(value) - HEADER.size)

    def _values(self, kv: KV, prefix: bytes) -> list[bytes]:
        """Return the blocks of a window, oldest first."""
        return list(self._each(kv, prefix))

    def _each(self, kv: KV, prefix: bytes, wanted: Hashes | None = None) -> Iterator[bytes]:
        """Yield the blocks of a window, oldest first; `wanted`: without blocks that have only keys with other hashes."""
        low = prefix
        if (of_parts := self._divided.values(kv, prefix, wanted)) is not None:
            yield from of_parts
            return
        if wanted is not None and (pages := self._pages.of_hashes(kv, prefix, wanted)) is not None:
            yield from pages
            low = key_of(prefix, SINCE)
        yield from (value for _, value in kv.scan(self.cf, low, prefix_end(prefix)))


def _with_texts(rows: pa.Table, key: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return the rows whose texts are those of a key: texts are compared in less time than hashed."""
    for name in by:
        column, value = rows.column(name), key.column(name)[0]
        if (
            value.is_valid
            and value.type == column.type
            and (pa.types.is_string(value.type) or pa.types.is_binary(value.type))
        ):
            rows = taken(rows, np.flatnonzero(pc.fill_null(pc.equal(column, value), False)))
    return rows
