"""Hash of keys, by columns, to evenly distributed numbers: equal keys get one number, also where a column has widened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from windrow.core.arrays import FloatArray, IntArray
from windrow.core.keys import encode_equal
from windrow.core.types import nearest_floats

#: Numbers are below this.
NUMBERS = 1 << 15
Hashes: TypeAlias = npt.NDArray[np.uint64]
_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)


def numbers_of(hashes: Hashes) -> IntArray:
    """Return a number below `NUMBERS` for each key's hash. Persisted: it must never change."""
    return (hashes >> np.uint64(49)).astype(np.int64)


def hashes(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
    """Return a 64-bit hash of each row of key columns. Persisted: it must never change."""
    total = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        total = _mix(total * _FACTOR + _hashes(whole))
    return total


def _hashes(column: pa.Array) -> Hashes:
    types = pa.types
    if column.null_count == len(column):
        return np.zeros(len(column), dtype=np.uint64)
    if types.is_fixed_size_binary(column.type) and not types.is_decimal(column.type):
        column = column.cast(pa.binary())
    kind, hashes = column.type, np.zeros(0, dtype=np.uint64)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        # All as doubles: integers and decimals may become these.
        numbers = _doubles(column)
        hashes = np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64)
    elif types.is_string(kind) or types.is_binary(kind):
        hashes = _of_bytes(column, np.int32)
    elif types.is_large_string(kind) or types.is_large_binary(kind):
        hashes = _of_bytes(column, np.int64)
    else:
        coded = column.dictionary_encode()
        distinct = [xxhash.xxh3_64_intdigest(value) for value in encode_equal([coded.dictionary])]
        hashes = np.array(distinct, dtype=np.uint64)[coded.indices.fill_null(0).to_numpy()]
    hashes = _mix(hashes)
    return (
        hashes
        if not column.null_count
        else np.where(column.is_null().to_numpy(zero_copy_only=False), 0, hashes)
    )


def _doubles(column: pa.Array) -> FloatArray:
    decimal = pa.types.is_decimal(column.type)
    floats = nearest_floats(column) if decimal else column.cast(pa.float64(), safe=False)
    doubles: FloatArray = floats.fill_null(0).to_numpy(zero_copy_only=False) + 0.0
    return doubles


def _of_bytes(column: pa.Array, offset: Any) -> Hashes:
    """Return a polynomial in the bytes of each value, by sums that wrap."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=offset)[column.offset : column.offset + len(column) + 1].astype(
        np.int64
    )
    lengths = np.diff(ends)
    if data is None or ends[-1] == ends[0]:
        return np.zeros(len(column), dtype=np.uint64)
    content = np.frombuffer(data, dtype=np.uint8)[ends[0] : ends[-1]]
    powers = np.cumprod(np.full(int(lengths.max()), _FACTOR, dtype=np.uint64))
    if int(lengths.min()) == len(powers):  # all of one length
        whole: Hashes = np.einsum("ij,j->i", content.reshape(len(lengths), -1), powers)
        return whole + np.sum(powers, dtype=np.uint64)
    place = np.arange(len(content)) - np.repeat(ends[:-1] - ends[0], lengths)
    sums = np.zeros(len(content) + 1, dtype=np.uint64)
    np.cumsum((content.astype(np.uint64) + np.uint64(1)) * powers[place], out=sums[1:])
    values: Hashes = sums[ends[1:] - ends[0]] - sums[ends[:-1] - ends[0]]
    return values


def _mix(values: Hashes) -> Hashes:
    """Mix the bits: each bit of the result depends on all bits of the value (the finalizer of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return values ^ (values >> np.uint64(31))
