"""Required columns of an aggregate's input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import pyarrow as pa

from windrow.core.aggregation import Aggregation
from windrow.core.errors import TypeClash, UnknownColumn
from windrow.core.expressions import names_no_column
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.sessions.dynamic_gap import gap_refused
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.aggregations.required_columns import keeps_whole, mentioned, refusal_of
from windrow.operators.steps.derived_columns import made_schema, raw
from windrow.operators.steps.schema_inference import Needs, check_types, key_refusal, missing


class AggregateNeeds(Needs):
    """The columns that an aggregate requires: keys, event time, ids, and those it aggregates or filters by."""

    def __init__(self, definition: AggregateDefinition) -> None:
        self.definition = definition
        self.whole = definition.full_state and (
            definition.takes_back or any(map(keeps_whole, definition.agg.values()))
        )
        ids = () if definition.ids is None else definition.ids.columns
        self.keys = (*definition.by, *ids)
        self._names = {definition.event_time, *self.keys}
        for aggregation in definition.agg.values():
            self._names.update(aggregation.columns)
        self._names.difference_update(dict(definition.makes))
        #: Expressions besides aggregations, checked as if an aggregation were filtered by them, or of them.
        self._extra: dict[str, Aggregation] = {}
        for n, asked in enumerate(definition.inputs[0].asked):
            self._extra[f"__asked {n}"] = Aggregation("count", (), (), asked)
        if definition.own_gap is not None:
            self._extra["__gap"] = Aggregation("any_value", (definition.own_gap,))

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        columns = {f.name: f.type for f in known or () if not f.name.startswith("__")}
        for name in names:
            columns.setdefault(name, pa.null())
        for needed in self.definition.needs:
            if needed not in columns:
                raise missing(needed, repr(self.definition.name), columns)
        makes, beside = self.definition.makes, [e for a in self._extra.values() for e in a.expressions]

        def asked(types: Mapping[str, pa.DataType]) -> None:
            seen = made_schema(makes, pa.schema(types.items()))
            for expression in beside:
                expression.evaluate(seen.empty_table())
            # Also of added aggregations, whose columns no message may have had yet.
            Calculation(self.definition._changed(since_us=()), seen)

        with suppress(TypeClash):  # a column has no type
            check_types(asked, columns)

    def named(self, names: Iterable[str]) -> set[str]:
        names = list(names)
        counts = [Aggregation("count", (expression,)) for _, expression in self.definition.makes]
        asked = mentioned([*counts, *self._extra.values(), *self.definition.agg.values()], names)
        return self._names.intersection(names) | asked

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        return {}

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        makes = self.definition.makes
        refusal = key_refusal(name, kind) if name in raw(self.keys, makes) else None
        if refusal is not None:
            return refusal
        types = {**known, name: kind}
        if makes:
            try:
                seen = made_schema(makes, pa.schema(list(types.items())))
            except (UnknownColumn, TypeClash) as error:
                uses = [e for _, e in makes if e.mentions(name)]
                of_others = any(
                    pa.types.is_null(k) and any(u.mentions(n) for u in uses) for n, k in types.items()
                )
                no_column = isinstance(error, UnknownColumn) and names_no_column(error)
                # A derived column may not be known yet.
                return None if of_others or not uses or no_column else error.message
            for key in dict(makes):
                refusal = key_refusal(key, seen.field(key).type) if key in self.keys else None
                if refusal is not None:
                    return refusal
            types = {f.name: f.type for f in seen}
        whole = self.definition._changed(agg={**self._extra, **self.definition.agg})
        return refusal_of(whole, name, types[name], types) or gap_refused(self.definition.own_gap, types)
