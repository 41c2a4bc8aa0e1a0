"""Names for the types of numpy arrays that functions take and give, and what is asked of columns everywhere."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
FloatArray: TypeAlias = npt.NDArray[np.float64]
#: So many rows of a matrix are looked at as one.
_BESIDE = 64
#: Of so many rows it is looked whether texts are of one length, and up to which.
_MANY, _WIDEST = 1 << 12, 256


def is_one(column: pa.Array | pa.ChunkedArray) -> bool:
    """True if the values are all the same, as sources mostly are; told by a glance of most that are not."""
    n = len(column)
    if n < 2 or column.null_count or pa.types.is_nested(column.type) or not column[0].equals(column[n - 1]):
        return False
    return column[0].equals(column[n // 2]) and bool(pc.all(pc.equal(column, column[0])).as_py())


def extremes(matrix: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The least and the most of each column: many rows side by side, as numpy is slow at short ones."""
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
    """So many bytes each text of a column has; None where they are of several lengths, long, or missing."""
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return None
    if len(column) == 0 or column.null_count:
        return None
    ends = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    width = int(ends[1]) - int(ends[0])
    return width if 0 < width <= _WIDEST and bool((np.diff(ends) == width).all()) else None


def letters_of(column: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    """The bytes of texts of one length, a row for each."""
    _, offsets, data = column.buffers()
    [first] = np.frombuffer(offsets, np.int32, 1, 4 * column.offset)
    return np.frombuffer(data, np.uint8, len(column) * width, int(first)).reshape(len(column), width)


def taken(rows: pa.Table, places: IntArray) -> pa.Table:
    """`rows.take`, in half the time where texts are of one length."""
    index, columns = pa.array(places), list[pa.Array | pa.ChunkedArray]()
    for column in rows.columns:
        if column.num_chunks != 1 or len(places) < _MANY:
            columns.append(column.take(index))
        elif (width := width_of(column.chunk(0))) is None:
            columns.append(column.chunk(0).take(index))
        else:
            found = letters_of(column.chunk(0), width).view(f"V{width}")[:, 0][places]
            ends = np.arange(0, (len(places) + 1) * width, width, dtype=np.int32)
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(found)]
            columns.append(pa.Array.from_buffers(column.type, len(places), buffers))
    return pa.table(columns, schema=rows.schema)
