"""Kernels of first, last, earliest, latest, any_value, max_by, min_by, top_k, top_k_by.

Rows of one step come in position order, but steps need not: a later commit may bring a smaller position of
another partition. So the part that was chosen keeps its position (`o`, encoded) and, where it was chosen by
event time, its time (`t`, microseconds). A row without a position counts as before all that have one; among
themselves, they keep the order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.aggregation import Aggregation
from windrow.core.errors import TypeClash
from windrow.core.types import as_type, plain_type
from windrow.operators.aggregations.arrays import (
    Key,
    best_rows,
    fill_empty,
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
    Arguments,
    Failure,
    Kernel,
    Parts,
    is_ordered,
    kernel,
    plain,
    present,
    take_or_null,
)
from windrow.operators.aggregations.collections import positions_of
from windrow.operators.steps.groups import Groups, stable_order


class Choice(Kernel):
    """One value of the window. Parts: v (the value), o (its position), t (its time: earliest and latest)."""

    def __init__(
        self, aggregation: Aggregation, types: tuple[pa.DataType, ...], options: Mapping[str, Any]
    ) -> None:
        self._kind = plain_type(types[0])
        self._timed = aggregation.kind in ("earliest", "latest")
        self._placed = aggregation.kind != "any_value"
        self._largest = aggregation.kind in ("last", "latest")

    def lift(self, rows: Arguments) -> Parts:
        parts = {"v": plain(rows.values[0])}
        if self._timed:
            parts["t"] = rows.time_us.cast(pa.int64())
        if self._placed and rows.order is not None:
            parts["o"] = rows.order
        return parts

    def merge(self, parts: Mapping[str, pa.Array], groups: Groups, failures: list[Failure]) -> Parts:
        keys: list[Key] = [sort_key(parts["t"])] if self._timed else []
        keys += position_key(parts.get("o"), groups.rows)
        chosen = best_rows(groups.codes, groups.size, validity(parts["v"]), keys, largest=self._largest)
        return {name: take_or_null(part, chosen) for name, part in parts.items()}

    def finish(
        self, parts: Mapping[str, pa.Array], size: int, failures: list[Failure] | None = None
    ) -> pa.Array:
        return as_type(present(parts, "v", size, self._kind), self._kind)

    def output_type(self) -> pa.DataType:
        return self._kind


for _kind in ("first", "last", "earliest", "latest", "any_value"):
    kernel(_kind)(Choice)


class ChoiceBy(Kernel):
    """The choice of max_by and min_by. Parts: v (the value, may be null), b (the value it was chosen by), o (its position)."""

    def __init__(
        self, aggregation: Aggregation, types: tuple[pa.DataType, ...], options: Mapping[str, Any]
    ) -> None:
        if not is_ordered(types[1]):
            raise TypeClash(
                f"{aggregation!r}: {aggregation.args[1]!r} of type {types[1]} has no order: "
                "name one of its fields"
            )
        self._kind = plain_type(types[0])
        self._max = aggregation.kind == "max_by"

    def lift(self, rows: Arguments) -> Parts:
        parts = {"v": plain(rows.values[0]), "b": plain(rows.values[1])}
        if rows.order is not None:
            parts["o"] = rows.order
        return parts

    def merge(self, parts: Mapping[str, pa.Array], groups: Groups, failures: list[Failure]) -> Parts:
        by = sort_key(parts["b"])
        keys: list[Key] = [~by if self._max else by, *position_key(parts.get("o"), groups.rows)]
        chosen = best_rows(groups.codes, groups.size, validity(parts["b"]), keys)
        return {name: take_or_null(part, chosen) for name, part in parts.items()}

    def finish(
        self, parts: Mapping[str, pa.Array], size: int, failures: list[Failure] | None = None
    ) -> pa.Array:
        return as_type(present(parts, "v", size, self._kind), self._kind)

    def output_type(self) -> pa.DataType:
        return self._kind


kernel("max_by")(ChoiceBy)
kernel("min_by")(ChoiceBy)


class TopK(Kernel):
    """The largest values, largest first. Part: v, a list."""

    def __init__(
        self, aggregation: Aggregation, types: tuple[pa.DataType, ...], options: Mapping[str, Any]
    ) -> None:
        if not is_ordered(types[0]):
            raise TypeClash(
                f"{aggregation!r}: column of type {types[0]} has no order: name one of its fields"
            )
        self._kind = plain_type(types[0])
        self._k: int = aggregation.param("k")

    def lift(self, rows: Arguments) -> Parts:
        values = plain(rows.values[0])
        return {"v": unit_lists(values, validity(values))}

    def merge(self, parts: Mapping[str, pa.Array], groups: Groups, failures: list[Failure]) -> Parts:
        codes, values = flatten(parts["v"], groups.codes)
        order = sort_rows(codes, groups.size, [~sort_key(values)])
        order = order[places(codes[order], groups.size) < self._k]
        return {"v": group_lists(codes[order], groups.size, values.take(pa.array(order)))}

    def finish(
        self, parts: Mapping[str, pa.Array], size: int, failures: list[Failure] | None = None
    ) -> pa.Array:
        return as_type(fill_empty(present(parts, "v", size, self.output_type())), self.output_type())

    def output_type(self) -> pa.DataType:
        return pa.list_(self._kind)


kernel("top_k")(TopK)


class TopKBy(Kernel):
    """The keys whose latest values are largest. Parts, lists of equal length, in order of the keys' first arrival: k (keys),
    v (their latest values), t (the times of these), o (their positions, empty bytes for none).
    """

    def __init__(
        self, aggregation: Aggregation, types: tuple[pa.DataType, ...], options: Mapping[str, Any]
    ) -> None:
        for argument, kind in zip(aggregation.args, types, strict=True):
            if not is_ordered(kind):
                raise TypeClash(
                    f"{aggregation!r}: {argument!r} of type {kind} has no order: name one of its fields"
                )
        self._pair = pa.struct([("key", plain_type(types[0])), ("value", plain_type(types[1]))])
        self._k: int = aggregation.param("k")

    def lift(self, rows: Arguments) -> Parts:
        keys, values = (plain(v) for v in rows.values)
        keep = validity(keys) & validity(values)
        times = rows.time_us.cast(pa.int64())
        parts = {"k": keys, "v": values, "t": times, "o": positions_of(rows)}
        return {name: unit_lists(part, keep) for name, part in parts.items()}

    def merge(self, parts: Mapping[str, pa.Array], groups: Groups, failures: list[Failure]) -> Parts:
        codes, keys = flatten(parts["k"], groups.codes)
        columns = {n: flatten(p, groups.codes)[1] for n, p in parts.items()}
        pairs = Groups([pa.array(codes), pa.array(sort_key(keys))], len(keys))
        place: list[Key] = [sort_key(columns["t"]), *position_key(columns["o"], len(keys))]
        newest = best_rows(pairs.codes, pairs.size, np.ones(len(keys), dtype=bool), place, largest=True)
        newest = newest[stable_order(codes[pairs.first_rows], groups.size)]
        taken = pa.array(newest)
        return {n: group_lists(codes[newest], groups.size, c.take(taken)) for n, c in columns.items()}

    def finish(
        self, parts: Mapping[str, pa.Array], size: int, failures: list[Failure] | None = None
    ) -> pa.Array:
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


kernel("top_k_by")(TopKBy)
