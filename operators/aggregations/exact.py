"""Kernels of median, percentile: over all values of the window at once (full-state design).

Part: v, the list of values as float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.aggregation import Aggregation
from windrow.core.errors import TypeClash
from windrow.core.types import as_type, plain_type
from windrow.operators.aggregations.arrays import (
    bounds,
    flatten,
    floats,
    group_lists,
    unit_lists,
    validity,
)
from windrow.operators.aggregations.base import (
    Arguments,
    Failure,
    Kernel,
    Parts,
    is_number,
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


class Percentile(Kernel):
    """Spark's `percentile`: place `fraction * (n - 1)` of the sorted values, linear between, NaN largest."""

    def __init__(
        self, aggregation: Aggregation, types: tuple[pa.DataType, ...], options: Mapping[str, Any]
    ) -> None:
        if not is_number(plain_type(types[0])):
            raise TypeClash(
                f"{aggregation!r}: column of type {types[0]} has no percentiles: cast it to a number first"
            )
        self._fraction: float = 0.5 if aggregation.kind == "median" else aggregation.param("fraction")

    def lift(self, rows: Arguments) -> Parts:
        return {"v": double_lists(plain(rows.values[0]))}

    def merge(self, parts: Mapping[str, pa.Array], groups: Groups, failures: list[Failure]) -> Parts:
        codes, values = flatten(parts["v"], groups.codes)
        order = stable_order(codes, groups.size)
        return {"v": group_lists(codes[order], groups.size, values.take(pa.array(order)))}

    def finish(
        self, parts: Mapping[str, pa.Array], size: int, failures: list[Failure] | None = None
    ) -> pa.Array:
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

    def output_type(self) -> pa.DataType:
        return pa.float64()


kernel("median")(Percentile)
kernel("percentile")(Percentile)
