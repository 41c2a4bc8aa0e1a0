"""Kernels of collect_list, sort_list, collect_set, count_distinct. Their state grows with the window's values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray
from windrow.core.types import as_type
from windrow.operators.aggregations.arrays import (
    Key,
    fill_empty,
    flatten,
    group_lists,
    integers,
    is_sorted,
    position_key,
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
    Parts,
    Typed,
    kernel,
    plain,
    present,
)
from windrow.operators.steps.groups import Groups, stable_order


class Lists(Kernel):
    """The base of kernels whose value is a list: the part v, empty for no values."""

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        return as_type(fill_empty(present(parts, "v", size, self.output_type())), self.output_type())

    def output_type(self) -> pa.DataType:
        return pa.list_(self._kind)


@kernel("collect_list")
class CollectList(Lists):
    """The list of values. Parts, lists of equal length: v (values), o (positions, or empty bytes), t (times, if needed)."""

    def __init__(self, of: Typed) -> None:
        self._kind = of.kind
        self._timed = of.aggregation.param("order") == "event_time"

    def lift(self, rows: Arguments) -> Parts:
        values = plain(rows.values[0])
        keep = validity(values)
        parts = {"v": unit_lists(values, keep), "o": unit_lists(positions_of(rows), keep)}
        if self._timed:
            parts["t"] = unit_lists(rows.time_us.cast(pa.int64()), keep)
        return parts

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        size = groups.size
        codes, positions = flatten(parts["o"], groups.codes)
        needs_positions = bool(position_key(positions, len(positions)))
        by_group = stable_order(codes, size)
        codes = codes[by_group]
        columns = {n: _take(flatten(p, groups.codes)[1], by_group) for n, p in parts.items()}
        keys: list[Key] = [sort_key(columns["t"])] if self._timed else []
        if needs_positions:
            keys.append(columns["o"])
        if not is_sorted(codes, keys):
            order = sort_rows(codes, size, keys)
            columns = {n: _take(c, order) for n, c in columns.items()}
        return {n: group_lists(codes, size, c) for n, c in columns.items()}


def positions_of(rows: Arguments) -> pa.Array:
    """Return encoded positions, empty bytes for none."""
    none = pa.scalar(b"", pa.binary())
    return pa.repeat(none, len(rows)) if rows.order is None else pc.fill_null(rows.order, none)


def _take(values: pa.Array, rows: IntArray) -> pa.Array:
    return values.take(pa.array(rows))


@kernel("sort_list")
class SortList(Lists):
    """The sorted list. Parts, sorted lists of equal length: v (values), o (positions, empty bytes for none), b (sort keys)."""

    def __init__(self, of: Typed) -> None:
        of.check_order()
        self._kind = of.kind
        self._descending: bool = of.aggregation.param("descending")

    def lift(self, rows: Arguments) -> Parts:
        columns = [plain(v) for v in rows.values]
        keep = np.logical_and.reduce([validity(c) for c in columns])
        parts = {"v": unit_lists(columns[0], keep), "o": unit_lists(positions_of(rows), keep)}
        if len(columns) > 1:
            parts["b"] = unit_lists(columns[1], keep)
        return parts

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        codes, positions = flatten(parts["o"], groups.codes)
        columns = {n: flatten(p, groups.codes)[1] for n, p in parts.items()}
        by = sort_key(columns.get("b", columns["v"]))
        keys: list[Key] = [~by if self._descending else by, *position_key(positions, len(positions))]
        order = sort_rows(codes, groups.size, keys)
        return {n: group_lists(codes[order], groups.size, _take(c, order)) for n, c in columns.items()}


@kernel("collect_set", "count_distinct")
class CollectSet(Kernel):
    """The set of values. Part: v, the distinct values in order of first arrival. 0.0 and -0.0 are one value, NaN is one."""

    def __init__(self, of: Typed) -> None:
        of.check_order(lack="cannot be compared")
        self._kind = of.kind
        self._count = of.aggregation.kind == "count_distinct"

    def lift(self, rows: Arguments) -> Parts:
        values = plain(rows.values[0])
        if pa.types.is_floating(values.type):
            wide = pa.float32() if pa.types.is_float16(values.type) else values.type
            values = pc.add(values.cast(wide), pa.scalar(0.0, wide))  # -0.0 becomes 0.0
        return {"v": unit_lists(values, validity(values))}

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        codes, values = flatten(parts["v"], groups.codes)
        if pa.types.is_null(values.type):
            return {"v": group_lists(codes, groups.size, values)}
        first = Groups([pa.array(codes), values], len(values)).first_rows
        first = first[stable_order(codes[first], groups.size)]
        return {"v": group_lists(codes[first], groups.size, _take(values, first))}

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        lists = present(parts, "v", size, pa.list_(self._kind))
        if self._count:
            return pa.array(integers(pc.list_value_length(lists)))
        codes, values = flatten(lists, np.arange(size))
        order = sort_rows(codes, size, [sort_key(values)])
        return as_type(group_lists(codes, size, _take(values, order)), self.output_type())

    def output_type(self) -> pa.DataType:
        return pa.int64() if self._count else pa.list_(self._kind)
