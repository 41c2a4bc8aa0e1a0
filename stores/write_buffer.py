"""Write buffer: unmerged rows of a window with pages, one block per step, which are written without a read.

    <start i64><0xffff><number u48>   head, u32 blocks, u32 rows that are buffered with this one, a page of rows

A step that touches few rows of many pages would read and write each of these for one row. A reader of a page also reads its
buffered rows. A writer of it removes them from here, and the rest becomes one block. The buffer stays small.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray
from windrow.core.byte_order import encode_i64, prefix_end
from windrow.core.types import concat
from windrow.stores.block_format import FORMAT, MAGIC, NUMBER, SINCE, Codec, Kind, check_head, key_of
from windrow.stores.key_hash import Hashes
from windrow.stores.kv import KV, Batch, Pair
from windrow.stores.page_format import hashes_of, unpack
from windrow.stores.page_writer import Packed
from windrow.stores.row_codec import Schemas, put_schema
from windrow.stores.window_state import UPSERT

_HEAD = struct.Struct(">BBBBIII")
#: When so many blocks, rows, or rows of about so many pages are buffered, they are merged into the pages.
MOST_BLOCKS, MOST_ROWS, MOST_PAGES = 32, 2_048, 512


class Waiting(NamedTuple):
    """Buffered rows. keys: of their blocks. rows: in the order of arrival. hashes: of their keys."""

    keys: list[bytes]
    rows: pa.Table
    hashes: Hashes

    @classmethod
    def of(cls, blocks: Sequence[Pair], schemas: Schemas, by: Sequence[str]) -> Waiting:
        for _, value in blocks:
            _head(value)
        tables = unpack_in_order([value[_HEAD.size :] for _, value in blocks], schemas)
        rows = concat(tables).combine_chunks()
        return cls([key for key, _ in blocks], rows, hashes_of(rows, by))

    def where(self, selected: BoolArray) -> Waiting:
        """Return the selected rows alone; `keys` still are those of all blocks."""
        if selected.all():
            return self
        return Waiting(self.keys, self.rows.filter(pa.array(selected)), self.hashes[selected])


class WaitingRows:
    """Write buffer of one window of a column family."""

    def __init__(self, cf: str, aux: str, by: Sequence[str], start: int) -> None:
        self.cf, self.aux, self.by, self._prefix = cf, aux, tuple(by), encode_i64(start)

    def add(self, kv: KV, rows: pa.Table, pages: int) -> bool:
        """Add rows; returns True where so many are buffered that they are to be merged into the window's `pages`."""
        number, blocks, waiting = self._newest(kv)
        blocks, waiting = blocks + 1, waiting + len(rows)
        batch = Batch()
        self._put(kv, batch, number + 1, blocks, waiting, rows)
        kv.write(batch)
        return blocks >= MOST_BLOCKS or is_much(waiting, pages)

    def read(self, kv: KV) -> Waiting | None:
        pairs = list(kv.scan(self.cf, key_of(self._prefix, SINCE), prefix_end(self._prefix)))
        return Waiting.of(pairs, Schemas(kv, self.aux), self.by) if pairs else None

    def replace(self, kv: KV, there: Waiting, left: Waiting) -> None:
        """Replace the buffered rows `there` by those that are `left`."""
        batch = Batch()
        batch.delete_many(self.cf, there.keys)
        if len(left.rows):
            number = int.from_bytes(there.keys[-1][8:], "big") & NUMBER
            self._put(kv, batch, number + 1, 1, len(left.rows), left.rows)
        kv.write(batch)

    def _put(self, kv: KV, batch: Batch, number: int, blocks: int, waiting: int, rows: pa.Table) -> None:
        rows = rows.combine_chunks()
        schema = put_schema(kv, self.aux, batch, rows.schema)
        [page] = Packed(rows, schema, np.array([0, len(rows)], dtype=np.int64)).pages()
        head = _HEAD.pack(MAGIC, FORMAT, Kind.WAITING, Codec.PACKED, len(rows), blocks, waiting)
        batch.put(self.cf, key_of(self._prefix, SINCE | number), head + page)

    def _newest(self, kv: KV) -> tuple[int, int, int]:
        """Return (number, blocks, rows) of the newest block, zeros where none is."""
        scan = kv.scan(self.cf, key_of(self._prefix, SINCE), prefix_end(self._prefix), reverse=True)
        pair = next(iter(scan), None)
        if pair is None:
            return 0, 0, 0
        return int.from_bytes(pair[0][8:], "big") & NUMBER, *_head(pair[1])


def is_much(rows: int, pages: int) -> bool:
    """True if so many rows are too many to be buffered for so many pages."""
    # A little less than the pages in which they lie, by chance.
    touched = rows * pages // (rows + pages)
    return rows >= MOST_ROWS or touched >= MOST_PAGES


def unpack_in_order(pages: Sequence[bytes], schemas: Schemas) -> list[pa.Table]:
    """Return the rows of pages, in their order."""
    if len({page[8:16] for page in pages}) < 2:
        tables = unpack(pages, schemas)
    else:
        tables = [table for page in pages for table in unpack([page], schemas)]
    return [table.drop_columns([UPSERT]) for table in tables]


def _head(value: bytes) -> tuple[int, int]:
    """Return the numbers of buffered blocks and rows in a block's head."""
    check_head(value, (Kind.WAITING,), _HEAD)
    *_, blocks, rows = _HEAD.unpack_from(value)
    return blocks, rows
