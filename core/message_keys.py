"""Message keys as bytes: positions, and the keys by which message stores keep messages.

    position  = escaped source, u32 partition, i64 offset, u32 ordinal

The order of bytes is that of (source, partition, offset, ordinal). Where a time precedes the position, it is the first
criterion (`core/byte_order.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.byte_order import (
    SIGN,
    Bytes2D,
    binary_column,
    encode_i64,
    encode_u32,
    escape,
    i64_array_to_bytes,
    rows_to_bytes,
    side_by_side,
    u32_array_to_bytes,
    unescape,
)
from windrow.core.errors import CorruptState

_POSITION_TAIL: Final = struct.Struct(">IQI")
#: The same of many rows.
_TAILS: Final = np.dtype([("partition", ">u4"), ("offset", ">u8"), ("ordinal", ">u4")])

Position: TypeAlias = tuple[str, int, int, int]


def _encode_source(source: str) -> bytes:
    return escape(source.encode())


def position_prefix(parts: Sequence[Any]) -> bytes:
    """Return the common prefix of all positions that begin with these one to four parts; b"" for none. Four parts give the
    whole position, and sort as (source, partition, offset, ordinal) do."""
    encoders: tuple[Callable[[Any], bytes], ...] = (_encode_source, encode_u32, encode_i64, encode_u32)
    return b"".join([encode(part) for encode, part in zip(encoders, parts, strict=False)])


def decode_position(data: bytes, start: int = 0) -> tuple[Position, int]:
    """Return ((source, partition, offset, ordinal), index after it)."""
    source, i = unescape(data, start)
    if len(data) < i + _POSITION_TAIL.size:
        raise CorruptState(f"key {data.hex()} ends inside the position that starts at byte {start}")
    partition, offset, ordinal = _POSITION_TAIL.unpack_from(data, i)
    return (source.decode(), partition, offset - SIGN, ordinal), i + _POSITION_TAIL.size


def decode_positions(
    keys: Sequence[bytes], starts: Iterable[int]
) -> tuple[pa.Array, IntArray, IntArray, IntArray]:
    """Return (sources, partitions, offsets, ordinals) of the positions with which keys end: `decode_position` of each."""
    size = _POSITION_TAIL.size
    sources = [key[at:-size] for key, at in zip(keys, starts, strict=True)]
    names = {source: _decode_source(source) for source in dict.fromkeys(sources)}
    if len(names) == 1:
        [name] = names.values()
        column = pa.repeat(pa.scalar(name, pa.string()), len(keys))
    else:
        column = pa.array([names[source] for source in sources], pa.string())
    tails = np.frombuffer(b"".join([key[-size:] for key in keys]), _TAILS)
    offsets = (tails["offset"].astype(np.uint64) ^ np.uint64(SIGN)).view(np.int64)
    return column, tails["partition"].astype(np.int64), offsets, tails["ordinal"].astype(np.int64)


def _decode_source(data: bytes) -> str:
    source, end = unescape(data)
    if end != len(data):
        raise CorruptState(f"the source {data.hex()} of a position goes on after its end, at byte {end}")
    return source.decode()


def message_keys(
    time_us: IntArray | None,
    sources: Sequence[str] | pa.Array | pa.ChunkedArray,
    partitions: npt.ArrayLike,
    offsets: npt.ArrayLike,
    ordinals: npt.ArrayLike,
    prefix: Sequence[bytes] | None = None,
) -> list[bytes]:
    """Keys `<prefix><time i64><position>` in row order; without `time_us`, `<prefix><position>`.

    Rows are written as one matrix per length of source name, so a few distinct sources cost next to nothing.
    """
    matrices = _key_matrices(time_us, sources, partitions, offsets, ordinals)
    if len(matrices) == 1:
        keys = rows_to_bytes(matrices[0][1])
    else:
        keys = [b""] * sum(len(matrix) for _, matrix in matrices)
        for rows, matrix in matrices:
            for row, key in zip(rows.tolist(), rows_to_bytes(matrix), strict=True):
                keys[row] = key
    if prefix is None:
        return keys
    return [head + key for head, key in zip(prefix, keys, strict=True)]


def position_keys(
    sources: Sequence[str] | pa.Array | pa.ChunkedArray,
    partitions: npt.ArrayLike,
    offsets: npt.ArrayLike,
    ordinals: npt.ArrayLike,
) -> pa.Array:
    """Return `message_keys` of positions alone, as an Arrow array: no object for each row."""
    matrices = _key_matrices(None, sources, partitions, offsets, ordinals)
    arrays = [binary_column(matrix) for _, matrix in matrices]
    if len(arrays) == 1:
        return arrays[0]
    rows = np.concatenate([rows for rows, _ in matrices] or [np.zeros(0, dtype=np.int64)])
    place = np.empty(len(rows), dtype=np.int64)
    place[rows] = np.arange(len(rows))
    return pa.concat_arrays(arrays).take(pa.array(place)) if arrays else pa.array([], pa.binary())


def _key_matrices(
    time_us: IntArray | None,
    sources: Sequence[str] | pa.Array | pa.ChunkedArray,
    partitions: npt.ArrayLike,
    offsets: npt.ArrayLike,
    ordinals: npt.ArrayLike,
) -> list[tuple[IntArray, Bytes2D]]:
    """Return (rows, their keys) for each length of source name; one of all rows, in order, where there is one length."""
    offset = np.asarray(offsets, dtype=np.int64)
    count = len(offset)
    columns = [
        u32_array_to_bytes(np.broadcast_to(np.asarray(partitions), (count,))),
        i64_array_to_bytes(offset),
        u32_array_to_bytes(np.broadcast_to(np.asarray(ordinals), (count,))),
    ]
    heads = [] if time_us is None else [i64_array_to_bytes(np.asarray(time_us, dtype=np.int64))]
    names, codes = _escaped_sources(sources)
    if len(codes) != count:
        raise ValueError(f"{len(codes)} sources for {count} offsets")
    if len(names) == 1:  # of one source, as most steps are
        name = np.frombuffer(names[0], dtype=np.uint8)
        return [
            (np.arange(count), side_by_side([*heads, np.broadcast_to(name, (count, len(name))), *columns]))
        ]
    found = []
    lengths = np.array([len(name) for name in names], dtype=np.int64)
    for length in np.unique(lengths):
        table = np.zeros((len(names), int(length)), dtype=np.uint8)
        for i in np.flatnonzero(lengths == length):
            table[i] = np.frombuffer(names[i], dtype=np.uint8)
        if len(np.unique(lengths)) == 1:
            return [(np.arange(count), side_by_side([*heads, table[codes], *columns]))]
        rows = np.flatnonzero(lengths[codes] == length)
        parts = [*(h[rows] for h in heads), table[codes[rows]], *(c[rows] for c in columns)]
        found.append((rows, side_by_side(parts)))
    return found


def _escaped_sources(
    sources: Sequence[str] | pa.Array | pa.ChunkedArray,
) -> tuple[list[bytes], IntArray]:
    """Return (distinct escaped names, the code of each row)."""
    if not isinstance(sources, pa.Array | pa.ChunkedArray):
        code_of = {name: code for code, name in enumerate(dict.fromkeys(sources))}
        codes = np.array([code_of[name] for name in sources], dtype=np.int64)
        return [escape(name.encode()) for name in code_of], codes
    column = sources.combine_chunks() if isinstance(sources, pa.ChunkedArray) else sources
    coded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    if coded.null_count:
        raise ValueError("a position without a source")
    names = [escape(name.encode()) for name in coded.dictionary.to_pylist()]
    return names, coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
