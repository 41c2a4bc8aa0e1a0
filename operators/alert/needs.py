"""Required columns of an alert, and the types that its conditions see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from windrow.operators.aggregations.required_columns import check_columns, mentioned, refusal_of
from windrow.operators.alert.definition import AlertDefinition
from windrow.operators.one_input import WholeMessages
from windrow.operators.steps.groups import combine
from windrow.operators.steps.output_columns import STAMP
from windrow.operators.steps.schema_inference import check_filter, expression_refusal

#: The types of window fields.
FIELD_TYPES: Mapping[str, pa.DataType] = {
    "samples": pa.int64(),
    "before_status": pa.string(),
    "count": pa.int64(),
    "open_time": STAMP,
    "change_time": STAMP,
    "first_time": STAMP,
    "last_time": STAMP,
    "now": STAMP,
    "leaving": pa.bool_(),
}


def condition_table(definition: AlertDefinition, schema: pa.Schema, outputs: Sequence[pa.Field]) -> pa.Table:
    """Return an empty table of the columns that conditions see. outputs: the aggregates"""
    types = {} if definition.frame is not None else {f.name: f.type for f in schema}
    types |= {b: schema.field(b).type if b in schema.names else pa.null() for b in definition.by}
    types |= {**{f.name: f.type for f in outputs}, **FIELD_TYPES}
    return pa.schema(list(types.items())).empty_table()


def field_types(
    definition: AlertDefinition, schema: pa.Schema, outputs: Sequence[pa.Field]
) -> dict[str, pa.DataType]:
    """Return the types of aggregates and variables."""
    table = condition_table(definition, schema, outputs)
    for name, expression in definition.variables.items():
        table = table.append_column(name, combine(expression.evaluate(table)))
    return {f.name: f.type for f in table.schema}


class AlertNeeds(WholeMessages):
    """The required columns of an alert: keys, event time and aggregated columns; without a window those of its conditions."""

    def __init__(self, definition: AlertDefinition) -> None:
        super().__init__(definition)
        self.definition = definition
        for aggregation in definition.agg.values():
            self.required.update(aggregation.columns)
        self.keys = definition.by
        self.whole = definition.frame is None or any(
            a.kind == "table_function" or a.expressions for a in definition.agg.values()
        )
        self._forwards = False

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        names = list(names)
        super().check(known, names)
        columns = {f.name: f.type for f in known or () if not f.name.startswith("__")}
        for name in names:
            columns.setdefault(name, pa.null())
        check_columns(self.definition, columns)
        if self.definition.frame is None:
            seen = {**columns, **FIELD_TYPES}
            for name, expression in self.definition.variables.items():
                check_filter(expression, pa.schema(list(seen.items())), seen)
                seen[name] = pa.null()

    def named(self, names: Iterable[str]) -> set[str]:
        names = list(names)
        found = super().named(names) | mentioned(self.definition.agg.values(), names)
        if self.definition.frame is None:
            found |= {n for n in names if any(e.mentions(n) for e in self.definition.conditions)}
        return found

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        refusal = super().refusal(name, kind, known) or refusal_of(self.definition, name, kind, known)
        if refusal is not None or self.definition.frame is not None or name in FIELD_TYPES:
            return refusal
        return expression_refusal(
            list(self.definition.conditions), name, {**known, **FIELD_TYPES, name: kind}
        )
