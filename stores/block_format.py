"""Format of windows' values. All begin with the same eight bytes: magic, version, kind, codec, u32 rows.

A block of rows: `<start i64><number u64>` -> header, Arrow record batch or narrow page (`stores/page_format.py`).

Numbers, where a window is more than blocks in a row: `SINCE` and on is what has come since it was folded, below are its parts
(`stores/partitioned_windows.py`) or pages (`stores/page_store.py`).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.envelope import check_version
from windrow.core.errors import CorruptState

MAGIC: Final = 0x57  # "W"
FORMAT: Final = 1


class Kind(enum.IntEnum):
    """Kind of a window's value. Numbers are persisted."""

    BLOCK = 1
    #: A block of a window that has tombstones (`stores/tombstones.py`).
    CHANGED = 2
    #: A block of a window that has pages.
    BESIDE = 3
    #: A block of a partitioned window.
    DIVIDED = 4
    DIRECTORY = 5
    #: A block of a write buffer (`stores/write_buffer.py`).
    WAITING = 6
    PAGE = 7


class Codec(enum.IntEnum):
    """Encoding of the rows in a value. Numbers are persisted."""

    #: An Arrow record batch.
    ARROW = 1
    #: A page: records column by column (`stores/page_format.py`).
    PACKED = 2
    #: A page of records of as few bytes as their values need (`stores/bit_packing.py`).
    NARROW = 3
    #: An Arrow stream: rows whose schema is not kept. It is passed in memory only, and not stored.
    STREAM = 4
    MSGPACK = 5


BLOCKS = (Kind.BLOCK, Kind.CHANGED, Kind.BESIDE, Kind.DIVIDED)
SINCE, PAGES = 0xFFFF << 48, 0xFFFD << 48
NUMBER = (1 << 48) - 1
END_OF_CF = b"\xff" * 17

#: The first bytes of every value.
HEAD = struct.Struct(">BBBBI")
HEADER = struct.Struct(">BBBBI8sQQQ")


class Block(NamedTuple):
    """Header of a block.

    first: number of the window's first block, which has `whole` bytes. since: bytes of those after it, this one included. In
    a partitioned window, where the kind is `DIVIDED`, there is only `since`, from where it was partitioned.
    """

    kind: int
    codec: int
    rows: int
    schema: bytes
    first: int
    whole: int
    since: int

    def before(self, data: bytes) -> bytes:
        """Return the value of a block of these rows."""
        return HEADER.pack(MAGIC, FORMAT, *self) + data


class Newest(NamedTuple):
    """Newest block of a window: its number, its header, and the bytes of its rows."""

    number: int
    block: Block
    size: int


def key_of(prefix: bytes, number: int) -> bytes:
    return prefix + number.to_bytes(8, "big")


def page_keys(prefixes: Iterable[bytes], pages: Sequence[int] | IntArray) -> list[bytes]:
    """Return the key of each page, of the window with its prefix."""
    data = (np.asarray(pages, dtype=np.uint64) | np.uint64(PAGES)).astype(">u8").tobytes()
    return [prefix + data[at : at + 8] for prefix, at in zip(prefixes, range(0, len(data), 8), strict=False)]


def record_batch(rows: pa.Table) -> bytes:
    [batch] = rows.combine_chunks().to_batches()
    data: bytes = batch.serialize().to_pybytes()
    return data


def check_head(value: bytes, kinds: Sequence[Kind], head: struct.Struct) -> None:
    """Refuse a value of a later windrow, one of other kinds, and one that has no whole head."""
    wrong = ""
    if len(value) < head.size:
        wrong = f"it has {len(value)} bytes, its head {head.size}"
    elif value[0] != MAGIC:
        wrong = f"it starts with {value[0]:02x}, ours start with {MAGIC:02x}"
    else:
        check_version("a window block", value[1], FORMAT)
        if value[2] not in kinds:
            wrong = f"it is of kind {value[2]}"
    if wrong:
        raise CorruptState(
            f"window {' or '.join(kind.name.lower() for kind in kinds)} cannot be read: {wrong}"
        )


def header_of(value: bytes) -> Block:
    check_head(value, BLOCKS, HEADER)
    return Block(*HEADER.unpack_from(value)[2:])
