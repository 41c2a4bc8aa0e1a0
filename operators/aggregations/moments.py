"""Kernels of variance, stddev.

Parts: n (values), mean, m2 (sum of squared distances from the mean). Accumulators are merged as in Chan,
Golub, LeVeque, "Algorithms for computing the sample variance" (1983), in two passes: first the mean of the
group, then the distances from it. Means are taken relative to the first one of the group, so that an offset
common to all values costs no digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.core.sql import quoted
from windrow.operators.aggregations.arrays import floats, integers, validity
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
from windrow.operators.steps.groups import Groups

#: A power of two that makes squares of all numbers numbers.
_SCALE = 2.0**-512


@kernel("variance", "stddev")
class Variance(Kernel):
    """Variance, and its square root for stddev."""

    folds = regroups = False

    def __init__(self, of: Typed) -> None:
        of.check_number("has no variance")
        self._ddof: int = of.aggregation.param("ddof")
        self._root = of.aggregation.kind == "stddev"
        self._kind = of.kind

    def lift(self, rows: Arguments) -> Parts:
        values = plain(rows.values[0])
        valid = validity(values)
        numbers = floats(values)
        with np.errstate(invalid="ignore"):
            squares = numbers * 0.0  # NaN of NaN and of the infinities, else 0
        return {
            "n": pa.array(np.ones(len(values), dtype=np.int64), mask=~valid),
            "mean": pa.array(numbers, mask=~valid),
            "m2": pa.array(np.abs(squares), mask=~valid),
        }

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        counts = integers(parts["n"])
        kept = np.flatnonzero(counts > 0)
        codes, size = groups.codes[kept], groups.size
        n = counts[kept].astype(np.float64)
        means, m2 = floats(parts["mean"])[kept], floats(parts["m2"])[kept]
        first = np.zeros(size)
        first[codes[::-1]] = means[::-1]
        total = np.bincount(codes, weights=n, minlength=size)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            shift = np.bincount(codes, weights=n * (means - first[codes]), minlength=size) / total
            distances = (means - first[codes]) - shift[codes]
            rest = np.bincount(codes, weights=n * distances, minlength=size)  # 0 but for rounding
            squares = np.bincount(codes, weights=m2 + n * distances * distances, minlength=size)
            empty = total == 0
            return {
                "n": pa.array(total.astype(np.int64), mask=empty),
                "mean": pa.array(first + shift, mask=empty),
                "m2": pa.array(_without(squares, rest * rest / total), mask=empty),
            }

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        n = integers(present(parts, "n", size, pa.int64()))
        m2 = floats(present(parts, "m2", size, pa.float64()))
        short = n <= self._ddof
        variance = m2 / np.where(short, 1, n - self._ddof)
        return pa.array(np.sqrt(variance) if self._root else variance, mask=short)

    def output_type(self) -> pa.DataType:
        return pa.float64()

    def spark_partials(self, column_names: Sequence[str]) -> dict[str, str] | None:
        if pa.types.is_uint64(self._kind):
            return None
        name = quoted(column_names[0])
        number = f"cast({name} as double)"
        # Spark merges an empty buffer as 0 times a squared mean, which is NaN if that overflows: huge values are summed
        # separately, scaled down, and combined with the others here.
        huge = f"abs({number}) > 1e140"
        plain_ = f"case when not ({huge}) then {number} end"
        scaled = f"case when {huge} then {number} * {_SCALE!r}D end"
        low, high, n = f"count({plain_})", f"count({scaled})", f"count({name})"
        means = f"(avg({scaled}) - coalesce(avg({plain_}), 0D) * {_SCALE!r}D)"
        between = f"{means} * {means} * {low} * {high} / {n}"
        mean = f"(coalesce(avg({plain_}), 0D) * {_SCALE!r}D * {low} + avg({scaled}) * {high}) / {n} * {1 / _SCALE!r}D"
        squares = f"(var_pop({scaled}) * {high} + {between}) * {1 / _SCALE!r}D * {1 / _SCALE!r}D"
        return {
            "n": n,
            "mean": f"case when {high} = 0 then avg({plain_}) else {mean} end",
            "m2": f"case when {high} = 0 then var_pop({plain_}) * {n} "
            f"else {squares} + coalesce(var_pop({plain_}), 0D) * {low} end",
        }


def _without(squares: npt.NDArray[Any], rest: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Subtract `rest` from squares; infinite ones stay infinite."""
    return np.where(np.isinf(squares), squares, np.maximum(squares - rest, 0.0))
