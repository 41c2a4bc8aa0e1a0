"""What windows around messages need of the columns of their input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from windrow.core.errors import ReservedColumn
from windrow.operators.aggregations.needs import check_columns, expressions_of, mentioned, refusal_of
from windrow.operators.one_input import WholeMessages
from windrow.operators.over.definition import OverDefinition


class OverNeeds(WholeMessages):
    """Keys, event time, what is aggregated or filtered by, and the columns of the rows."""

    def __init__(self, definition: OverDefinition) -> None:
        super().__init__(definition)
        self.definition = definition
        self.required.update(definition.select or ())
        for aggregation in definition.agg.values():
            self.required.update(aggregation.columns)
        self._keys = set(definition.by)
        self.whole = _all_columns(definition)

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        names = list(names)
        if known is None:  # what comes later with such a column is one wrong message
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
        found = super().refused(names)
        for name in names if self.definition.select is None else ():
            if name in self.definition.agg:
                found[name] = (
                    f"column {name!r} of the input is told beside the aggregate {name!r} of {self.definition.name!r}: give the "
                    "aggregate another name, or name the columns that rows have, select=(...)"
                )
        return found

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        refusal = super().refusal(name, kind, known)
        return refusal if refusal is not None else refusal_of(self.definition, name, kind, known)


def kept_columns(definition: OverDefinition, schema: pa.Schema) -> list[str]:
    """The columns that are kept with a message, of those there are."""
    if _all_columns(definition):
        return list(schema.names)
    named = [*definition.by, definition.event_time, *(definition.select or ())]
    for aggregation in definition.agg.values():
        named += aggregation.columns
    return [n for n in dict.fromkeys(named) if n in schema.names]


def _all_columns(definition: OverDefinition) -> bool:
    return definition.select is None or any(
        a.kind == "table_function" or expressions_of(a) for a in definition.agg.values()
    )
