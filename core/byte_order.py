"""Order-preserving encodings: integers, escaped bytes, and columns of them as matrices.

    escaped   = bytes with 00 written as 00 ff, closed by 00 01
    i64       = big-endian with the sign bit flipped; u32, u64 = big-endian

`keys.py` and `message_keys.py` are built on these.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.errors import CorruptState

_END: Final = b"\x00\x01"
_ESCAPED_ZERO: Final = b"\x00\xff"
SIGN: Final = 1 << 63
I64: Final = struct.Struct(">Q")
U32: Final = struct.Struct(">I")

Bytes2D: TypeAlias = npt.NDArray[np.uint8]


# -- integers ------------------------------------------------------------------------------------------------


def encode_i64(n: int) -> bytes:
    """Encode as 8 bytes; order of int64."""
    return I64.pack(n + SIGN)


def decode_i64(data: bytes, start: int = 0) -> int:
    return int(I64.unpack_from(data, start)[0]) - SIGN


def encode_u64(n: int) -> bytes:
    return I64.pack(n)


def decode_u64(data: bytes, start: int = 0) -> int:
    return int(I64.unpack_from(data, start)[0])


def encode_u32(n: int) -> bytes:
    return U32.pack(n)


def decode_u32(data: bytes, start: int = 0) -> int:
    return int(U32.unpack_from(data, start)[0])


def i64_array_to_bytes(values: IntArray) -> Bytes2D:
    """Return one row of 8 bytes for each value: `encode_i64`, vectorised."""
    flipped = np.asarray(values, dtype=np.int64).view(np.uint64) ^ np.uint64(SIGN)
    return flipped.astype(">u8").view(np.uint8).reshape(-1, 8)


def u32_array_to_bytes(values: npt.NDArray[Any]) -> Bytes2D:
    """Return one row of 4 bytes for each value: `encode_u32`, vectorised. Values outside u32 are refused."""
    wide = np.asarray(values, dtype=np.int64)
    if wide.size and (int(wide.min()) < 0 or int(wide.max()) > 0xFFFF_FFFF):
        raise ValueError(f"a partition or ordinal is outside 0..4294967295: {wide.min()}..{wide.max()}")
    return wide.astype(">u4").view(np.uint8).reshape(-1, 4)


def bytes_to_i64_array(rows: Bytes2D) -> IntArray:
    """Inverse of `i64_array_to_bytes`."""
    unsigned = np.ascontiguousarray(rows).view(">u8").ravel().astype(np.uint64)
    return (unsigned ^ np.uint64(SIGN)).view(np.int64)


# -- escaped bytes -------------------------------------------------------------------------------------------


def escape(data: bytes) -> bytes:
    """Self-delimiting form of `data` that sorts as `data` does."""
    if 0 in data:
        data = data.replace(b"\x00", _ESCAPED_ZERO)
    return data + _END


def unescape(data: bytes, start: int = 0) -> tuple[bytes, int]:
    """Return (value, index after it)."""
    i = start
    while True:
        i = data.find(0, i)
        if i < 0 or i + 1 >= len(data):
            raise CorruptState(f"key {data.hex()} ends inside an escaped field that starts at byte {start}")
        if data[i + 1] == 0x01:
            return data[start:i].replace(_ESCAPED_ZERO, b"\x00"), i + 2
        if data[i + 1] != 0xFF:
            raise CorruptState(f"key {data.hex()} has the unknown escape 00 {data[i + 1]:02x} at byte {i}")
        i += 2


# -- rows -----------------------------------------------------------------------------------------------------


def prefix_end(prefix: bytes) -> bytes | None:
    """Smallest key above every key that starts with `prefix`; None where there is none (all bytes ff)."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else None


def side_by_side(columns: Sequence[Bytes2D]) -> Bytes2D:
    """Byte columns as one matrix."""
    count, width = columns[0].shape[0], sum(column.shape[1] for column in columns)
    rows = np.empty((count, width), dtype=np.uint8)
    at = 0
    for column in columns:
        rows[:, at : at + column.shape[1]] = column
        at += column.shape[1]
    return rows


def rows_to_bytes(*columns: Bytes2D) -> list[bytes]:
    """Return one bytes object for each row of byte columns laid side by side."""
    rows = side_by_side(columns)
    if not rows.size:
        return [b""] * len(rows)
    return rows.view(f"V{rows.shape[1]}").ravel().tolist()


def bytes_to_rows(values: Sequence[bytes], width: int) -> Bytes2D:
    """Return bytes objects of one length as a matrix."""
    return np.frombuffer(b"".join(values), dtype=np.uint8).reshape(-1, width)


def binary_column(rows: Bytes2D) -> pa.Array:
    """Return the rows as an Arrow array: no object for each."""
    count, width = rows.shape
    if count * width >= 1 << 31:
        return pa.array(rows_to_bytes(rows), pa.binary())
    bounds = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(rows)])
