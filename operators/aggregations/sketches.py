"""Kernels of approx_count_distinct and approx_percentile: state of bounded size.

Distinct counts are HyperLogLog sketches of Apache DataSketches. Its KLL sketch is not used for percentiles,
because it draws from a random generator seeded by the clock, out of Python's reach: the same step would not
give the same bits. `kll.py` is KLL with coins that are a function of the state.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from windrow.operators.aggregations import kll
from windrow.operators.aggregations.arrays import bounds, flatten, floats, group_lists, validity
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
from windrow.operators.aggregations.basic import extremes
from windrow.operators.aggregations.exact import double_lists
from windrow.operators.steps.groups import Groups, stable_order

_INT64_END = 2.0**63
#: The type in which values of a type that may widen are hashed.
_LONGER = {
    pa.date64().id: pa.date32(),
    pa.time32("s").id: pa.time64("us"),
    pa.duration("s").id: pa.duration("us"),
    pa.timestamp("s").id: pa.timestamp("us"),
}
_EXACT = Context(prec=76)


@kernel("approx_count_distinct")
class ApproxCountDistinct(Kernel):
    """The approximate distinct count. Parts: s, a serialised HLL_8 sketch of states; h, the hashes that rows add to it.

    Numbers are hashed by value, so that 1 and 1.0 are the same before and after a column widens. States have no h.
    """

    _kind = pa.int64()
    regroups = False  # a sketch of several values depends on their order, a union of sketches does not

    def __init__(self, of: Typed) -> None:
        of.check_order(lack="cannot be compared")
        self._lg_k: int = of.aggregation.param("lg_k")

    def lift(self, rows: Arguments) -> Parts:
        return {"h": hashable(plain(rows.values[0]))}

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        size = groups.size
        sketches, sketch_ends = _by_group(present(parts, "s", groups.rows, pa.binary()), groups)
        added, added_ends = _distinct_by_group(present(parts, "h", groups.rows, pa.int64()), groups)
        merged: list[bytes | None] = [None] * size
        for g in np.flatnonzero((np.diff(sketch_ends) > 0) | (np.diff(added_ends) > 0)).tolist():
            old = sketches[sketch_ends[g] : sketch_ends[g + 1]]
            new = added[added_ends[g] : added_ends[g + 1]]
            merged[g] = old[0] if len(old) == 1 and not new else self._union(old, new)
        return {"s": pa.array(merged, pa.binary())}

    def _union(self, sketches: list[bytes], values: list[Any]) -> bytes:
        if not sketches:
            target = datasketches.hll_sketch(self._lg_k, datasketches.tgt_hll_type.HLL_8)
        else:
            target = datasketches.hll_union(self._lg_k)
            for sketch in sketches:
                target.update(datasketches.hll_sketch.deserialize(sketch))
        update = target.update
        for value in values:
            update(value)
        result = target.get_result(datasketches.tgt_hll_type.HLL_8) if sketches else target
        return bytes(result.serialize_compact())

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        read = datasketches.hll_sketch.deserialize
        states = present(parts, "s", size, pa.binary()).to_pylist()
        return pa.array([0 if s is None else round(read(s).get_estimate()) for s in states], pa.int64())


def hashable(values: pa.Array) -> pa.Array:
    """Return int64 for the sketch to hash: numbers as they are, text and bytes by xxh3, other floats by bits.

    Days of dates, and microseconds of times in that unit or a longer one. Equal numbers and times give equal ones whatever
    their type. Part of the state's format: never change it.
    """
    if (longer := _LONGER.get(values.type.id)) is not None and getattr(values.type, "unit", "") != "ns":
        values = values.cast(longer)
    kind = values.type
    if kind == pa.uint64():
        bits = pc.fill_null(values, 0).to_numpy().view(np.int64)
        return pa.array(bits, mask=~validity(values))
    if pa.types.is_floating(kind):
        numbers = floats(values)
        whole = (np.floor(numbers) == numbers) & (numbers >= -_INT64_END) & (numbers < _INT64_END)
        numbers = np.where(np.isnan(numbers), np.nan, numbers)
        with np.errstate(invalid="ignore"):
            codes = np.where(whole, np.where(whole, numbers, 0.0).astype(np.int64), numbers.view(np.int64))
        return pa.array(codes, mask=~validity(values))
    if pa.types.is_decimal(kind) or not (pa.types.is_primitive(kind) or pa.types.is_null(kind)):
        encoded = pc.dictionary_encode(values)
        hashes = pa.array([_hash(v) for v in encoded.dictionary.to_pylist()], pa.int64())
        return hashes.take(encoded.indices)
    if pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    return values.cast(pa.int64())


def _hash(value: str | bytes | Decimal) -> int:
    if isinstance(value, Decimal):
        if value == value.to_integral_value() and -(2**63) <= value < 2**64:
            return int(value) - (2**64 if value >= 2**63 else 0)  # as of uint64
        value = f"{value.normalize(_EXACT):f}"
    data = value.encode() if isinstance(value, str) else value
    return xxhash.xxh3_64_intdigest(data) - 2**63


def _by_group(values: pa.Array, groups: Groups) -> tuple[list[Any], Any]:
    """Return (values that are not null, by group; their bounds)."""
    rows = np.flatnonzero(validity(values))
    order = rows[stable_order(groups.codes[rows], groups.size)]
    return values.take(pa.array(order)).to_pylist(), bounds(groups.codes[rows], groups.size)


def _distinct_by_group(values: pa.Array, groups: Groups) -> tuple[list[Any], Any]:
    if values.null_count == len(values):
        return [], np.zeros(groups.size + 1, dtype=np.int64)
    pairs = Groups([pa.array(groups.codes), values], groups.rows).first_rows
    return _by_group(values.take(pa.array(pairs)), Groups.of_codes(groups.codes[pairs], groups.size))


@kernel("approx_percentile")
class ApproxPercentile(Kernel):
    """The approximate percentile. Parts: v and l, lists of the retained values and their levels; lo, hi: exact extremes."""

    _kind = pa.float64()
    folds = regroups = False

    def __init__(self, of: Typed) -> None:
        of.check_number("has no percentiles")
        self._fraction: float = of.aggregation.param("fraction")
        self._k: int = of.aggregation.param("k")

    def lift(self, rows: Arguments) -> Parts:
        values = plain(rows.values[0])
        lists = double_lists(values)
        levels = pa.ListArray.from_arrays(
            lists.offsets, pa.array(np.zeros(len(lists.values), dtype=np.uint8))
        )
        numbers = pa.array(floats(values), mask=~validity(values))
        return {"v": lists, "l": levels, "lo": numbers, "hi": numbers}

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        codes, flat = flatten(parts["v"], groups.codes)
        levels = flatten(parts["l"], groups.codes)[1].to_numpy()
        sketch = kll.compress(kll.Items(codes, floats(flat), levels), groups.size, self._k)
        return {
            "v": group_lists(sketch.codes, groups.size, pa.array(sketch.values)),
            "l": group_lists(sketch.codes, groups.size, pa.array(sketch.levels)),
            "lo": extremes(parts["lo"], "min", groups),
            "hi": extremes(parts["hi"], "max", groups),
        }

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        if self._fraction in (0.0, 1.0):
            return present(parts, "lo" if self._fraction == 0.0 else "hi", size, pa.float64())
        if "v" not in parts:
            return pa.nulls(size, pa.float64())
        codes, flat = flatten(parts["v"], np.arange(size))
        levels = flatten(parts["l"], np.arange(size))[1].to_numpy()
        values, empty = kll.quantile(kll.Items(codes, floats(flat), levels), size, self._fraction)
        return pa.array(values, mask=empty)
