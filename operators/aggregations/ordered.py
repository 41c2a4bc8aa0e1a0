"""Kernels of first, last, earliest, latest, any_value, max_by, min_by, top_k, top_k_by.

Rows of one step come in position order, but steps need not: a later commit may bring a smaller position of
another partition. So the part that was chosen keeps its position (`o`, encoded) and, where it was chosen by
event time, its time (`t`, microseconds). A row without a position counts as before all that have one; among
themselves, they keep the order of arrival.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windrow.core.types import as_type, plain_type
from windrow.operators.aggregations.arrays import (
    Key,
    best_rows,
    flatten,
    group_lists,
    places,
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
    take_or_null,
)
from windrow.operators.aggregations.collections import Lists, positions_of
from windrow.operators.steps.groups import Groups, stable_order


@kernel("first", "last", "earliest", "latest", "any_value")
class Choice(Kernel):
    """One value of the window. Parts: v (the value), o (its position), t (its time: earliest and latest)."""

    def __init__(self, of: Typed) -> None:
        self._kind = of.kind
        self._timed = of.aggregation.kind in ("earliest", "latest")
        self._placed = of.aggregation.kind != "any_value"
        self._largest = of.aggregation.kind in ("last", "latest")

    def lift(self, rows: Arguments) -> Parts:
        parts = {"v": plain(rows.values[0])}
        if self._timed:
            parts["t"] = rows.time_us.cast(pa.int64())
        if self._placed and rows.order is not None:
            parts["o"] = rows.order
        return parts

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        keys: list[Key] = [sort_key(parts["t"])] if self._timed else []
        keys += position_key(parts.get("o"), groups.rows)
        chosen = best_rows(groups.codes, groups.size, validity(parts["v"]), keys, largest=self._largest)
        return {name: take_or_null(part, chosen) for name, part in parts.items()}


@kernel("max_by", "min_by")
class ChoiceBy(Kernel):
    """The choice of max_by and min_by. Parts: v (the value, may be null), b (the value it was chosen by), o (its position)."""

    def __init__(self, of: Typed) -> None:
        of.check_order()
        self._kind = of.kind
        self._max = of.aggregation.kind == "max_by"

    def lift(self, rows: Arguments) -> Parts:
        parts = {"v": plain(rows.values[0]), "b": plain(rows.values[1])}
        if rows.order is not None:
            parts["o"] = rows.order
        return parts

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        by = sort_key(parts["b"])
        keys: list[Key] = [~by if self._max else by, *position_key(parts.get("o"), groups.rows)]
        chosen = best_rows(groups.codes, groups.size, validity(parts["b"]), keys)
        return {name: take_or_null(part, chosen) for name, part in parts.items()}


@kernel("top_k")
class TopK(Lists):
    """The largest values, largest first. Part: v, a list."""

    def __init__(self, of: Typed) -> None:
        of.check_order()
        self._kind = of.kind
        self._k: int = of.aggregation.param("k")

    def lift(self, rows: Arguments) -> Parts:
        values = plain(rows.values[0])
        return {"v": unit_lists(values, validity(values))}

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        codes, values = flatten(parts["v"], groups.codes)
        order = sort_rows(codes, groups.size, [~sort_key(values)])
        order = order[places(codes[order], groups.size) < self._k]
        return {"v": group_lists(codes[order], groups.size, values.take(pa.array(order)))}


@kernel("top_k_by")
class TopKBy(Kernel):
    """The keys whose latest values are largest. Parts, lists of equal length, in order of the keys' first arrival: k (keys),
    v (their latest values), t (the times of these), o (their positions, empty bytes for none).
    """

    def __init__(self, of: Typed) -> None:
        of.check_order((0, 1))
        self._pair = pa.struct([("key", of.kind), ("value", plain_type(of.types[1]))])
        self._k: int = of.aggregation.param("k")

    def lift(self, rows: Arguments) -> Parts:
        keys, values = (plain(v) for v in rows.values)
        keep = validity(keys) & validity(values)
        times = rows.time_us.cast(pa.int64())
        parts = {"k": keys, "v": values, "t": times, "o": positions_of(rows)}
        return {name: unit_lists(part, keep) for name, part in parts.items()}

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        codes, keys = flatten(parts["k"], groups.codes)
        columns = {n: flatten(p, groups.codes)[1] for n, p in parts.items()}
        pairs = Groups([pa.array(codes), pa.array(sort_key(keys))], len(keys))
        place: list[Key] = [sort_key(columns["t"]), *position_key(columns["o"], len(keys))]
        newest = best_rows(pairs.codes, pairs.size, np.ones(len(keys), dtype=bool), place, largest=True)
        newest = newest[stable_order(codes[pairs.first_rows], groups.size)]
        taken = pa.array(newest)
        return {n: group_lists(codes[newest], groups.size, c.take(taken)) for n, c in columns.items()}

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        fields = [self._pair.field(name) for name in ("key", "value")]
        columns = [
            flatten(present(parts, part, size, pa.list_(f.type)), np.arange(size))
            for part, f in zip("kv", fields, strict=True)
        ]
        codes = columns[0][0]
        keys, values = (as_type(c, f.type) for (_, c), f in zip(columns, fields, strict=True))
        order = sort_rows(codes, size, [~sort_key(values), sort_key(keys)])
        order = order[places(codes[order], size) < self._k]
        chosen = [c.take(pa.array(order)) for c in (keys, values)]
        pairs = pa.StructArray.from_arrays(chosen, fields=fields)
        return group_lists(codes[order], size, pairs)

    def output_type(self) -> pa.DataType:
        return pa.list_(self._pair)
