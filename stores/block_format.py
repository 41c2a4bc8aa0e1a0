"""Blocks of rows as values: `<start i64><number u64>` -> header, Arrow record batch or narrow page (`stores/page_format.py`).

Numbers, where a window is more than blocks in a row: `SINCE` and on is what has come since it was folded, below are its parts
(`stores/partitioned_windows.py`) or pages (`stores/page_store.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.errors import CorruptState, NewerFormat

#: A block; one of a window of pages (`PAGE` is what comes between); one of a divided window.
BLOCK_FORMAT, BESIDE, DIVIDED = 2, 5, 6
#: A block of a window of which some block says what there is no more (`stores/tombstones.py`).
CHANGED = 9
#: Added to the version of a block whose rows are a narrow page (`stores/bit_packing.py`), which begins with this.
NARROW_ROWS, NARROW = 0x40, 8
SINCE, PAGES = 0xFFFF << 48, 0xFFFD << 48
NUMBER = (1 << 48) - 1
END_OF_CF = b"\xff" * 17

HEADER = struct.Struct(">B7x8sQQQ")


class Block(NamedTuple):
    """What stands before the rows of a block.

    first: number of the window's first block, which has `whole` bytes. since: bytes of those after it, this one included. In
    a divided window, where the version is `DIVIDED`, there is only `since`, from where it was divided.
    """

    version: int
    schema: bytes
    first: int
    whole: int
    since: int

    def before(self, data: bytes) -> bytes:
        """The value of a block of these rows."""
        version = self.version | (NARROW_ROWS if data[0] == NARROW else 0)
        return HEADER.pack(version, *self[1:]) + data


class Newest(NamedTuple):
    """The newest block of a window: its number, what stands before its rows, and bytes of these."""

    number: int
    block: Block
    size: int


def key_of(prefix: bytes, number: int) -> bytes:
    return prefix + number.to_bytes(8, "big")


def page_keys(prefixes: Iterable[bytes], pages: Sequence[int] | IntArray) -> list[bytes]:
    """The key of each page, of the window that its prefix says."""
    data = (np.asarray(pages, dtype=np.uint64) | np.uint64(PAGES)).astype(">u8").tobytes()
    return [prefix + data[at : at + 8] for prefix, at in zip(prefixes, range(0, len(data), 8), strict=False)]


def first_block(schema: bytes, number: int, data: bytes) -> bytes:
    """The first block of a window or a part."""
    return Block(BLOCK_FORMAT, schema, number, len(data), 0).before(data)


def record_batch(rows: pa.Table) -> bytes:
    [batch] = rows.combine_chunks().to_batches()
    data: bytes = batch.serialize().to_pybytes()
    return data


def header_of(value: bytes) -> Block:
    version = value[0] & ~NARROW_ROWS if value else 0
    if value and version not in (BLOCK_FORMAT, BESIDE, DIVIDED, CHANGED):
        raise NewerFormat(
            f"window block of format {value[0]}, this windrow reads up to {NARROW_ROWS | CHANGED}: upgrade windrow"
        )
    try:
        return Block(*HEADER.unpack_from(value))._replace(version=version)
    except struct.error as error:
        raise CorruptState(f"window block of {len(value)} bytes cannot be read: {error}") from error
