"""Kernels of median, percentile: over all values of the window at once (full-state design).

Part: v, the list of values as float64.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.types import as_type
from windrow.operators.aggregations.arrays import (
    bounds,
    flatten,
    floats,
    group_lists,
    unit_lists,
    validity,
)
from windrow.operators.aggregations.base import (
    Accumulators,
    Arguments,
    Failure,
    Kernel,
    Parts,
    Typed,
    kernel,
    plain,
    present,
)
from windrow.operators.steps.groups import Groups, stable_order

_LIST = pa.list_(pa.float64())


def double_lists(values: pa.Array) -> pa.Array:
    """Return a list of one float64 for each row, empty for null; -0.0 becomes 0.0."""
    numbers = pc.add(as_type(values, pa.float64()), 0.0)
    return unit_lists(numbers, validity(numbers))


@kernel("median", "percentile")
class Percentile(Kernel):
    """Spark's `percentile`: place `fraction * (n - 1)` of the sorted values, linear between, NaN largest."""

    _kind = pa.float64()

    def __init__(self, of: Typed) -> None:
        of.check_number("has no percentiles")
        self._fraction: float = 0.5 if of.aggregation.kind == "median" else of.aggregation.param("fraction")

    def lift(self, rows: Arguments) -> Parts:
        return {"v": double_lists(plain(rows.values[0]))}

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        codes, values = flatten(parts["v"], groups.codes)
        order = stable_order(codes, groups.size)
        return {"v": group_lists(codes[order], groups.size, values.take(pa.array(order)))}

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        codes, flat = flatten(present(parts, "v", size, _LIST), np.arange(size))
        values = floats(flat)
        order = np.argsort(values, kind="stable")  # NaN last
        values = values[order[stable_order(codes[order], size)]]
        ends = bounds(codes, size)
        counts = np.diff(ends)
        empty = counts == 0
        place = self._fraction * np.maximum(counts - 1, 0)
        low, high = np.floor(place).astype(np.int64), np.ceil(place).astype(np.int64)
        at = np.where(empty, len(values), ends[:-1])
        padded = np.append(values, np.nan)
        below, above = padded[at + low], padded[at + high]
        with np.errstate(invalid="ignore", over="ignore"):
            between = (high - place) * below + (place - low) * above
        exact = (low == high) | (below == above)
        return pa.array(np.where(exact, below, between), mask=empty)
