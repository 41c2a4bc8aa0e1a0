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


def is_one(column: pa.Array | pa.ChunkedArray) -> bool:
    """True if the values are all the same, as sources mostly are; told by a glance of most that are not."""
    n = len(column)
    if n < 2 or column.null_count or pa.types.is_nested(column.type) or not column[0].equals(column[n - 1]):
        return False
    return column[0].equals(column[n // 2]) and bool(pc.all(pc.equal(column, column[0])).as_py())
