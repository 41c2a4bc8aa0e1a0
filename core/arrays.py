"""Array types that functions take and return, and common helpers for columns."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
FloatArray: TypeAlias = npt.NDArray[np.float64]
#: Rows of a matrix that are compared as one.
_BESIDE = 64
#: Rows from which texts are checked for one common length, and the longest such length.
_MANY, _WIDEST = 1 << 12, 256
#: The most bytes of texts in an Arrow array.
_LARGEST = (1 << 31) - 1
#: Numpy's names for values of so many bits.
_ITEMS = {8: "u1", 16: "u2", 32: "u4", 64: "u8"}


def is_one(column: pa.Array | pa.ChunkedArray) -> bool:
    """True if the values are all the same, as sources mostly are. Most other columns are recognized by three values."""
    n = len(column)
    if n < 2 or column.null_count or pa.types.is_nested(column.type) or not column[0].equals(column[n - 1]):
        return False
    return column[0].equals(column[n // 2]) and bool(pc.all(pc.equal(column, column[0])).as_py())


def in_bits(kind: pa.DataType) -> bool:
    """True of values that may be equal and not the same, as 0.0 and -0.0, or that Arrow cannot compare, as intervals."""
    return not (
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind))
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
    )


def extremes(matrix: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the least and the most of each column: many rows side by side, as numpy is slow at short ones."""
    n, width = matrix.shape
    whole = n // _BESIDE * _BESIDE
    rest = matrix[whole:] if whole < n else matrix[:1]
    found = [np.minimum.reduce(rest, axis=0), np.maximum.reduce(rest, axis=0)]
    if whole:
        wide = matrix[:whole].reshape(-1, _BESIDE * width)
        for i, of in enumerate((np.minimum, np.maximum)):
            found[i] = of(found[i], of.reduce(of.reduce(wide, axis=0).reshape(_BESIDE, width), axis=0))
    return found[0], found[1]


def width_of(column: pa.Array) -> int | None:
    """Return the common length of a column's texts in bytes; None where they are of several lengths, long, or missing."""
    return None if column.null_count else _width(column, None)


def _width(column: pa.Array, valid: BoolArray | None) -> int | None:
    """Return the `width_of` the valid texts. valid: which are, None if all"""
    if len(column) == 0 or not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return None
    lengths = np.diff(np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset))
    width = int(lengths[0] if valid is None else lengths[np.argmax(valid)])
    if not 0 < width <= _WIDEST:
        return None
    return width if bool((lengths == (width if valid is None else valid * np.int32(width))).all()) else None


def letters_of(column: pa.Array, width: int, some: int | None = None) -> npt.NDArray[np.uint8]:
    """Return the bytes of texts of one length, a row for each. some: so many of them are not null"""
    _, offsets, data = column.buffers()
    [first] = np.frombuffer(offsets, np.int32, 1, 4 * column.offset)
    n = len(column) if some is None else some
    return np.frombuffer(data, np.uint8, n * width, int(first)).reshape(n, width)


def taken(rows: pa.Table, places: IntArray) -> pa.Table:
    """Return `rows.take(places)`, of many in a third of the time: numpy reuses memory, Arrow allocates it each time."""
    if len(places) < _MANY:
        return rows.take(pa.array(places))
    index = pa.array(places)
    columns = [_taken(column, places, index) for column in rows.columns]
    return pa.table(columns, schema=rows.schema)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return `column.combine_chunks()`, likewise."""
    if column.num_chunks == 1:
        return column.chunk(0)
    item = _item(column.type) if len(column) >= _MANY else None
    if item is None or column.null_count == len(column):
        return column.combine_chunks()
    return _filled(column.type, _values(column, item), _valid(column))


def _taken(column: pa.ChunkedArray, places: IntArray, index: pa.Array) -> pa.Array | pa.ChunkedArray:
    n, kind = len(places), column.type
    if column.null_count == len(column):
        return pa.nulls(n, kind)
    if n <= len(column) and not in_bits(kind) and is_one(column):
        return column.chunk(0).slice(0, n) if column.num_chunks == 1 else pa.repeat(column[0], n)
    item = _item(kind)
    if item is not None:
        return _filled(
            kind, _values(column, item)[places], None if (valid := _valid(column)) is None else valid[places]
        )
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    valid = _valid(column)
    width = _width(array, valid)
    if width is None or n * width > _LARGEST:
        return column.take(index)
    letters = letters_of(array, width, len(array) - array.null_count).view(f"V{width}")[:, 0]
    if valid is None:
        found, ends = letters[places], np.arange(0, (n + 1) * width, width, dtype=np.int32)
        return pa.Array.from_buffers(kind, n, [None, pa.py_buffer(ends), pa.py_buffer(found)])
    there, ends = valid[places], np.zeros(n + 1, dtype=np.int32)
    np.cumsum(there * np.int32(width), out=ends[1:])
    found = letters[(np.cumsum(valid) - 1)[places[there]]]
    return pa.Array.from_buffers(kind, n, [_bits(there), pa.py_buffer(ends), pa.py_buffer(found)])


def _item(kind: pa.DataType) -> str | None:
    """Return numpy's name for a type whose values are contiguous in memory; None for others."""
    return _ITEMS.get(kind.bit_width) if pa.types.is_primitive(kind) else None


def _values(column: pa.ChunkedArray, item: str) -> npt.NDArray[Any]:
    width, parts = int(item[1:]), list[npt.NDArray[Any]]()
    for chunk in column.chunks:
        data = chunk.buffers()[1]
        none = data is None or len(chunk) == 0
        parts.append(
            np.zeros(len(chunk), item)
            if none
            else np.frombuffer(data, item, len(chunk), chunk.offset * width)
        )
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, item), *parts])


def _valid(column: pa.ChunkedArray) -> BoolArray | None:
    """True where there is a value; None if there is one everywhere."""
    if not column.null_count:
        return None
    parts = list[BoolArray]()
    for chunk in column.chunks:
        if chunk.null_count:
            bits = np.frombuffer(chunk.buffers()[0], np.uint8)
            parts.append(
                np.unpackbits(bits, count=chunk.offset + len(chunk), bitorder="little")[chunk.offset :].view(
                    bool
                )
            )
        else:
            parts.append(np.ones(len(chunk), dtype=bool))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _filled(kind: pa.DataType, values: npt.NDArray[Any], valid: BoolArray | None) -> pa.Array:
    return pa.Array.from_buffers(
        kind, len(values), [None if valid is None else _bits(valid), pa.py_buffer(values)]
    )


def _bits(valid: BoolArray) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
