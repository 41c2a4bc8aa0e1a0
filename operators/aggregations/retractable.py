"""Kernels of retractable aggregations: each row is added, or retracted.

Whole numbers and decimals are added and subtracted, exactly. Floats are subtracted, too, but for NaN and the infinities, which
would never cancel: they are counted separately. A variance keeps added and retracted values apart, since there is no mean of a
negative number of values. Kernels that need single values keep each with its count.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray
from windrow.core.types import as_type
from windrow.operators.aggregations.arrays import (
    flatten,
    floats,
    group_lists,
    integers,
    sort_key,
    sort_rows,
    unit_lists,
    validity,
)
from windrow.operators.aggregations.base import (
    Accumulators,
    Arguments,
    Failure,
    Kernel,
    KernelFactory,
    Parts,
    plain,
    present,
)
from windrow.operators.aggregations.basic import Avg, Count, Extreme, Sum, extremes
from windrow.operators.aggregations.collections import CollectSet
from windrow.operators.aggregations.exact import Percentile
from windrow.operators.aggregations.moments import Variance
from windrow.operators.aggregations.ordered import TopK
from windrow.operators.steps.groups import Groups, stable_order

#: Parts that count the current values that are no finite numbers.
_NAN, _UP, _DOWN = "nan", "up", "down"
_ODD = (_NAN, _UP, _DOWN)
#: Suffix of parts of retracted values.
_GONE = "-"


def signs(rows: Arguments) -> IntArray:
    """Return 1 for an added row, -1 for a retracted one."""
    return np.ones(len(rows), dtype=np.int64) if rows.sign is None else rows.sign


def _times(values: pa.Array, sign: IntArray) -> pa.Array:
    return pc.multiply(values, pa.array(sign))


def _counts(parts: Accumulators, name: str, size: int) -> IntArray:
    return integers(present(parts, name, size, pa.int64()))


class NetCount(Count):
    """The net count. Part: n."""

    def lift(self, rows: Arguments) -> Parts:
        return {"n": _times(super().lift(rows)["n"], signs(rows))}


class NetSum(Sum):
    """The net sum. Parts of the sum; n: the count of values; of floats the counts of those that are no finite numbers."""

    def lift(self, rows: Arguments) -> Parts:
        parts, sign = super().lift(rows), signs(rows)
        n = {"n": _times(pc.is_valid(rows.values[0]).cast(pa.int64()), sign)}
        if "f" in parts:
            return {**_odd_apart(parts["f"], sign), **n}
        if "d" in parts:
            return {"d": pc.if_else(pa.array(sign < 0), pc.negate(parts["d"]), parts["d"]), **n}
        return {name: _times(part, sign) for name, part in parts.items()} | n

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        return {**super().merge(parts, groups, failures), **_summed(parts, groups, ("n", *_ODD))}

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        total = super().finish(parts, size)
        if "f" in parts:  # without values the sum is 0, not a rounding error
            nothing = _counts(parts, "n", size) == 0
            total = pc.if_else(pa.array(nothing), pa.scalar(0.0), total)
        return _with_odd(total, parts, size)


class NetAvg(Avg):
    """The net average. Parts of the sum, n among them."""

    _of_sums = NetSum

    def lift(self, rows: Arguments) -> Parts:
        return self._sum.lift(rows)

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        return _with_odd(super().finish(parts, size), parts, size)


def _odd_apart(values: pa.Array, sign: IntArray) -> Parts:
    """Return the parts of floats, those that are no finite numbers counted separately."""
    numbers, valid = floats(values), validity(values)
    finite = np.isfinite(numbers)
    kinds = zip(_ODD, (np.isnan(numbers), numbers == np.inf, numbers == -np.inf), strict=True)
    return {
        "f": pa.array(np.where(finite, numbers, 0.0) * sign, mask=~valid),
        **{name: pa.array(np.where(valid & odd, sign, 0)) for name, odd in kinds},
    }


def _summed(parts: Accumulators, groups: Groups, names: tuple[str, ...]) -> Parts:
    there = [name for name in names if name in parts]
    sums = groups.aggregate([(pc.fill_null(parts[name], 0), "sum") for name in there])
    return dict(zip(there, sums, strict=True))


def _with_odd(values: pa.Array, parts: Accumulators, size: int) -> pa.Array:
    """Apply the current values that are no finite numbers to a sum, or a mean, of floats."""
    if _NAN not in parts:
        return values
    nan, up, down = (_counts(parts, name, size) > 0 for name in _ODD)
    for current, value in ((up, np.inf), (down, -np.inf), (nan | (up & down), np.nan)):
        if current.any():
            values = pc.if_else(pa.array(current), pa.scalar(float(value)), values)
    return values


class NetVariance(Variance):
    """The net variance. Of whole numbers their sums and those of their squares, exactly: ni, s, q. Of others parts of added
    values; the same of retracted ones, with a minus; nan: the count of values that are no finite numbers.
    """

    def lift(self, rows: Arguments) -> Parts:
        sign = signs(rows)
        if pa.types.is_integer(self._kind) or pa.types.is_boolean(self._kind):
            return _whole_moments(plain(rows.values[0]), sign)
        parts = super().lift(rows)
        numbers = floats(plain(rows.values[0]))
        valid = validity(rows.values[0])
        finite = valid & np.isfinite(numbers)
        made: Parts = {}
        for mark, of_sign in (("", sign > 0), (_GONE, sign < 0)):
            keep = pa.array(finite & of_sign)
            for name, part in parts.items():
                made[name + mark] = pc.if_else(keep, part, pa.scalar(None, part.type))
        made[_NAN] = pa.array(np.where(valid & ~finite, sign, 0))
        return made

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        merged = _summed(parts, groups, ("ni", _NAN))
        whole = [name for name in ("s", "q") if name in parts]
        merged |= dict(zip(whole, groups.aggregate([(parts[n], "sum") for n in whole]), strict=True))
        for mark in ("", _GONE):
            if f"n{mark}" in parts:
                merged_parts = super().merge(_of(parts, mark), groups, failures)
                merged |= {name + mark: part for name, part in merged_parts.items()}
        return {n: p.cast(_SQUARES) if n in whole else p for n, p in merged.items()}

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        (n_came, mean_came, m2_came), (n_went, mean_went, m2_went) = (
            _moments(_of(parts, mark), size) for mark in ("", _GONE)
        )
        n = n_came - n_went
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            share = n_went / np.where(n > 0, n, 1)
            # The current mean is `apart` beyond the mean of added values, away from the mean of retracted ones.
            apart = (mean_came - mean_went) * share
            between = n * apart * apart + n_went * (mean_went - mean_came) ** 2
            m2 = m2_came - m2_went - between
            # A value within the rounding error counts as zero.
            m2 = np.where(m2 > _DUST * (m2_came + m2_went + between), m2, 0.0)
            m2 = np.where(n_went == 0, m2_came, m2)
            if "ni" in parts:  # whole numbers may precede the widening of the column
                n, m2 = _with_whole(parts, n, n_came * mean_came - n_went * mean_went, m2)
        odd = _counts(parts, _NAN, size)
        totals = {"n": pa.array(n + odd), "m2": pa.array(np.where(odd > 0, np.nan, m2))}
        return super().finish(totals, size, failures)


#: The type of sums of squares.
_SQUARES = pa.decimal256(75, 0)
#: A difference below this fraction of its operands is rounding.
_DUST = 1e-14


def _whole_moments(values: pa.Array, sign: IntArray) -> Parts:
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    numbers, gone = values.cast(pa.decimal256(20, 0)), pa.array(sign < 0)
    parts = {"s": numbers.cast(_SQUARES), "q": pc.multiply(numbers, numbers).cast(_SQUARES)}
    signed = {name: pc.if_else(gone, pc.negate(part), part) for name, part in parts.items()}
    return {"ni": _times(pc.is_valid(values).cast(pa.int64()), sign), **signed}


def _with_whole(parts: Accumulators, n: IntArray, total: Any, m2: Any) -> tuple[IntArray, Any]:
    """Return (number, squared distances) of these and of whole numbers, exactly where there are no others."""
    added = _counts(parts, "ni", len(n))
    sums, squares = ([int(v or 0) for v in parts[name].to_pylist()] for name in ("s", "q"))
    distances = np.array(m2, dtype=np.float64)
    for i, (a, s, q) in enumerate(zip(added.tolist(), sums, squares, strict=True)):
        if n[i] == 0 and total[i] == 0:
            distances[i] = (a * q - s * s) / a if a > 0 else 0.0
        elif (both := int(n[i]) + a) > 0:
            of_others = m2[i] + (total[i] * total[i] / n[i] if n[i] else 0.0)
            distances[i] = max(q + of_others - (s + total[i]) ** 2 / both, 0.0)
    return n + added, distances


def _of(parts: Accumulators, mark: str) -> Parts:
    return {name: parts[name + mark] for name in ("n", "mean", "m2") if name + mark in parts}


def _moments(parts: Accumulators, size: int) -> tuple[IntArray, Any, Any]:
    n = _counts(parts, "n", size)
    mean, m2 = (floats(present(parts, name, size, pa.float64())) for name in ("mean", "m2"))
    return n, np.where(n > 0, mean, 0.0), np.where(n > 0, m2, 0.0)


class _Present(Kernel):
    """The base of kernels on single values. Parts, lists of equal length: v, the distinct ones; c, the count of each."""

    @abstractmethod
    def _values(self, rows: Arguments) -> pa.Array:
        """Return the current values; null where there are none."""

    def lift(self, rows: Arguments) -> Parts:
        values = self._values(rows)
        keep = validity(values)
        return {"v": unit_lists(values, keep), "c": unit_lists(pa.array(signs(rows)), keep)}

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        codes, values = flatten(parts["v"], groups.codes)
        each = flatten(parts["c"], groups.codes)[1]
        known = [] if pa.types.is_null(values.type) else [values]
        same = Groups([pa.array(codes), *known], len(values))
        [counts] = same.aggregate([(each, "sum")])
        current = np.flatnonzero(integers(counts) != 0)
        first = same.first_rows[current]
        order = stable_order(codes[first], groups.size)
        first, counts = first[order], counts.take(pa.array(current[order]))
        return {
            "v": group_lists(codes[first], groups.size, values.take(pa.array(first))),
            "c": group_lists(codes[first], groups.size, counts),
        }

    def each(self, parts: Accumulators, size: int) -> pa.Array:
        """Return lists of the current values of each group, every value as often as it occurs."""
        codes, values = flatten(present(parts, "v", size, pa.list_(self._kind)), np.arange(size))
        counts = integers(flatten(present(parts, "c", size, pa.list_(pa.int64())), np.arange(size))[1])
        index = np.repeat(np.arange(len(codes)), np.maximum(counts, 0))
        return group_lists(codes[index], size, values.take(pa.array(index)))

    def present_values(self, parts: Accumulators, size: int) -> tuple[IntArray, pa.Array]:
        """Return (group, value) of each current value."""
        codes, values = flatten(present(parts, "v", size, pa.list_(self._kind)), np.arange(size))
        counts = integers(flatten(present(parts, "c", size, pa.list_(pa.int64())), np.arange(size))[1])
        current = np.flatnonzero(counts > 0)
        return codes[current], values.take(pa.array(current))


class NetExtreme(_Present, Extreme):
    """The net min, max."""

    def _values(self, rows: Arguments) -> pa.Array:
        return Extreme.lift(self, rows)["v"]

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        codes, values = self.present_values(parts, size)
        if len(values) == 0:
            return pa.nulls(size, self._kind)
        return as_type(extremes(values, self.fn, Groups.of_codes(codes, size)), self._kind)


class NetSet(_Present, CollectSet):
    """The net collect_set, count_distinct."""

    def _values(self, rows: Arguments) -> pa.Array:
        lists = CollectSet.lift(self, rows)["v"]
        codes, values = flatten(lists, np.arange(len(rows)))
        places = np.full(len(rows), -1, dtype=np.int64)
        places[codes] = np.arange(len(codes))
        return values.take(pa.array(places, mask=places < 0))

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        codes, values = self.present_values(parts, size)
        if self._count:
            return pa.array(np.bincount(codes, minlength=size).astype(np.int64))
        order = sort_rows(codes, size, [sort_key(values)])
        lists = group_lists(codes[order], size, values.take(pa.array(order)))
        return as_type(lists, self.output_type())


class NetPercentile(_Present, Percentile):
    """The net median, percentile: of values that are kept in the state row, and not of the window's messages."""

    def _values(self, rows: Arguments) -> pa.Array:
        return pc.add(as_type(plain(rows.values[0]), self._kind), 0.0)

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        return Percentile.finish(self, {"v": self.each(parts, size)}, size, failures)


class NetTopK(_Present, TopK):
    """The net top_k."""

    def _values(self, rows: Arguments) -> pa.Array:
        return plain(rows.values[0])

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        apart = Groups.of_codes(np.arange(size), size)
        return TopK.finish(self, TopK.merge(self, {"v": self.each(parts, size)}, apart, []), size)


#: Retractable kernels by kind. The other kinds cannot process retractions.
RETRACTABLE: dict[str, KernelFactory] = {
    "count": NetCount,
    "sum": NetSum,
    "avg": NetAvg,
    "variance": NetVariance,
    "stddev": NetVariance,
    "min": NetExtreme,
    "max": NetExtreme,
    "collect_set": NetSet,
    "count_distinct": NetSet,
    "median": NetPercentile,
    "percentile": NetPercentile,
    "top_k": NetTopK,
}
