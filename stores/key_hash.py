"""Keys spread evenly over small numbers, by columns: equal keys get one number, also where a column has widened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from windrow.core.arrays import FloatArray, IntArray
from windrow.core.keys import encode_equal

#: Numbers are below this.
NUMBERS = 1 << 15
Hashes: TypeAlias = npt.NDArray[np.uint64]
_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)
#: So many digits of a number are the same, however it became a double.
_DIGITS = 14
#: Floats below this have a decimal near them.
_MOST = 1e50


class KeyColumns(tuple[str, ...]):
    """Names of key columns. scales: of those that have widened since they were decimals with so many digits after the point, or
    binaries of so many bytes each: their keys have the numbers that they had then. It is a matter of the state that is read or
    written.
    """

    scales: Mapping[str, int] = MappingProxyType({})

    @classmethod
    def of(cls, names: Sequence[str]) -> KeyColumns:
        """The very ones, where they are such."""
        return names if isinstance(names, KeyColumns) else cls(names)


def numbers_of(hashes: Hashes) -> IntArray:
    """For each key with such a hash a number below `NUMBERS`. Persisted: it must never change."""
    return (hashes >> np.uint64(49)).astype(np.int64)


def hashes(
    columns: Sequence[pa.Array | pa.ChunkedArray], scales: Sequence[int | None] | None = None
) -> Hashes:
    """For each row of key columns a number of 64 bits. Persisted: it must never change. scales: see `KeyColumns`."""
    total = np.zeros(len(columns[0]), dtype=np.uint64)
    for column, scale in zip(columns, scales or [None] * len(columns), strict=True):
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        total = _mix(total * _FACTOR + _hashes(whole, scale))
    return total


def _hashes(column: pa.Array, scale: int | None = None) -> Hashes:
    kind, hashes = column.type, np.zeros(0, dtype=np.uint64)
    if column.null_count == len(column):
        return np.zeros(len(column), dtype=np.uint64)
    if (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    ):
        # All as doubles: integers and decimals may become these.
        numbers = _doubles(column) if scale is None else _former_doubles(column, scale)
        hashes = np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64)
    elif scale is None and (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        hashes = _of_bytes(column, np.int32)
    elif scale is None and (pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)):
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
    doubles: FloatArray = (
        column.cast(pa.float64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False) + 0.0
    )
    return doubles


def _former_doubles(column: pa.Array, scale: int) -> FloatArray:
    """The doubles that numbers were when they were decimals of this scale: under another one Arrow makes others of them."""
    numbers = _doubles(column)
    if pa.types.is_decimal(column.type):
        former = column.cast(pa.decimal256(76, scale), safe=False)
        wide = pa.decimal256(76, max(scale, column.type.scale))
        were = pc.equal(former.cast(wide), column.cast(wide)).fill_null(False)
        same = were.to_numpy(zero_copy_only=False)
    elif pa.types.is_floating(column.type):
        near = np.where(np.isfinite(numbers) & (np.abs(numbers) < _MOST), numbers, 0.0)
        former = pa.array(near).cast(pa.decimal256(76, scale), safe=False)
        same = np.isclose(_doubles(former), numbers, rtol=4e-16, atol=0)
    else:
        return numbers
    rough = np.array([float(f"{number:.{_DIGITS}g}") for number in numbers.tolist()])
    return np.where(same, _doubles(former), rough)


def _of_bytes(column: pa.Array, offset: Any) -> Hashes:
    """A polynomial in the bytes of each value, by sums that wrap."""
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
    """Each bit of the result depends on all bits of the value (the finalizer of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return values ^ (values >> np.uint64(31))
