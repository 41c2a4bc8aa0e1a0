"""Required columns of the input of OVER windows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from windrow.core.between import Between
from windrow.core.errors import ReservedColumn
from windrow.core.expressions import Expr
from windrow.core.types import as_type, widened
from windrow.operators.aggregations.required_columns import check_columns, mentioned, refusal_of
from windrow.operators.one_input import WholeMessages
from windrow.operators.over.definition import OverDefinition
from windrow.operators.steps.groups import combine
from windrow.operators.steps.schema_inference import Together, check_filter, expression_refusal


class OverNeeds(WholeMessages):
    """Keys, event time, columns that are aggregated or filtered by, and the columns of the rows."""

    def __init__(self, definition: OverDefinition) -> None:
        super().__init__(definition)
        self.definition = definition
        self.required.update(definition.select or ())
        for aggregation in definition.agg.values():
            self.required.update(aggregation.columns)
        self.keys = definition.by
        self.whole = _all_columns(definition)

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        names = list(names)
        if known is None:  # a later message with such a column is wrong by itself
            self.check_names(names)
        super().check(known, names)
        columns = {f.name: f.type for f in known or () if not f.name.startswith("__")}
        for name in names:
            columns.setdefault(name, pa.null())
        check_columns(self.definition, columns)

    def check_names(self, names: Iterable[str]) -> None:
        """Raise where the input has columns that rows cannot have."""
        for why in self.refused(names).values():
            raise ReservedColumn(why)

    def named(self, names: Iterable[str]) -> set[str]:
        names = list(names)
        return super().named(names) | mentioned(self.definition.agg.values(), names)

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        names = list(names)
        reasons = super().refused(names)
        for name in names if self.definition.select is None else ():
            if name in self.definition.agg:
                reasons[name] = (
                    f"column {name!r} of the input has the name of the aggregate {name!r} of {self.definition.name!r}: give "
                    "the aggregate another name, or name the columns that rows have, select=(...)"
                )
        return reasons

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        refusal = super().refusal(name, kind, known)
        return refusal if refusal is not None else refusal_of(self.definition, name, kind, known)


class MarkerNeeds(OverNeeds):
    """The columns that anchors require: keys, event time, the columns of their windows, and the columns of the rows."""

    def __init__(self, definition: OverDefinition) -> None:
        super().__init__(definition.markers)
        self._output = definition.agg if definition.select is None else {}
        span = definition.span
        self._moments = list(span.moments.values()) if isinstance(span, Between) else []
        self.times = frozenset(m for m in self._moments if isinstance(m, str))
        self.required.update(self.times)
        self._has_zone = definition.markers.time_zone is not None
        self.whole = self.whole or (isinstance(span, Between) and span.function is not None)

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        names = list(names)
        super().check(known, names)
        for moment in self._moments:
            if isinstance(moment, Expr):
                check_filter(moment, known, names)

    def named(self, names: Iterable[str]) -> set[str]:
        names = list(names)
        uses = [m for m in self._moments if isinstance(m, Expr)]
        return super().named(names) | {n for n in names if any(u.mentions(n) for u in uses)}

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        names = list(names)
        emitted = {
            name: f"column {name!r} of the anchors has the name of the aggregate {name!r} of {self.definition.name!r}: give "
            "the aggregate another name, or name the columns that rows have, select=(...)"
            for name in names
            if name in self._output
        }
        return super().refused(names) | emitted

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        refusal = self.uncomputable(name, kind, known)
        return refusal or super().refusal(name, kind, known)

    def uncomputable(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        if name in self.times and not self._may_be_times(kind):
            return f"column {name!r} of the anchors bounds windows and is {kind}: use timestamps, or integers as event times"
        uses = [m for m in self._moments if isinstance(m, Expr)]
        # Expressions get the event time as a timestamp, whatever type its column has.
        types = {**known, name: kind, self.definition.event_time: pa.timestamp("us", "UTC")}
        return expression_refusal(uses, name, types, self._may_be_times)

    def _may_be_times(self, kind: pa.DataType) -> bool:
        """True if values of that type may be event times."""
        if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
            return self._has_zone
        t = pa.types
        of = (t.is_null, t.is_timestamp, t.is_integer, t.is_string, t.is_large_string)
        return any(is_one(kind) for is_one in of)


class PartnerNeeds(Together):
    """The columns that an input requires whose keys are compared with the other one's. other: the known columns of that one."""

    def __init__(self, needs: OverNeeds, by: tuple[str, ...], other: pa.Schema | None) -> None:
        super().__init__([needs])
        self._by, self._other = by, other

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        other = self._other
        if name in self._by and other is not None and name in other.names:
            theirs = other.field(name).type
            if widened(kind, theirs) is None:
                return f"key {name!r} is {kind}, in the other input it is {theirs}, which cannot be compared"
        return super().refusal(name, kind, known)

    def compared_with(self, name: str) -> Sequence[pa.Field]:
        other = self._other
        return [other.field(name)] if other is not None and name in self._by and name in other.names else ()


def kept_columns(definition: OverDefinition, schema: pa.Schema) -> list[str]:
    """Return those of the columns that are kept with a message."""
    if _all_columns(definition):
        return list(schema.names)
    named = [*definition.by, definition.event_time, *(definition.select or ())]
    for aggregation in definition.agg.values():
        named += aggregation.columns
    return [n for n in dict.fromkeys(named) if n in schema.names]


def _all_columns(definition: OverDefinition) -> bool:
    return definition.select is None or any(
        a.kind == "table_function" or a.expressions for a in definition.agg.values()
    )


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return these columns in these types."""
    if rows.schema.equals(schema):
        return rows
    there = set(rows.column_names)
    columns = [
        as_type(combine(rows.column(f.name)), f.type) if f.name in there else pa.nulls(len(rows), f.type)
        for f in schema
    ]
    return pa.table(columns, schema=schema)
