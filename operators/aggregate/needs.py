"""What an aggregate needs of the columns of its input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from windrow.core.aggregation import Aggregation
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregations.needs import check_columns, expressions_of, mentioned, refusal_of
from windrow.operators.steps.learning import key_refusal, missing


class AggregateNeeds:
    """Of an aggregate: keys, event time, ids, what is aggregated or filtered by."""

    def __init__(self, definition: AggregateDefinition) -> None:
        self.definition = definition
        self.whole = definition.full_state and any(_whole(a) for a in definition.agg.values())
        ids = () if definition.ids is None else definition.ids.columns
        self.keys = (*definition.by, *ids)
        self._names = {definition.event_time, *self.keys}
        for aggregation in definition.agg.values():
            self._names.update(aggregation.columns)

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        columns = {f.name: f.type for f in known or () if not f.name.startswith("__")}
        for name in names:
            columns.setdefault(name, pa.null())
        for needed in self.definition.needs:
            if needed not in columns:
                raise missing(f"column {needed!r} of {self.definition.name!r}", columns)
        check_columns(self.definition, columns)

    def named(self, names: Iterable[str]) -> set[str]:
        names = list(names)
        return self._names.intersection(names) | mentioned(self.definition.agg.values(), names)

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        return {}

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        refusal = key_refusal(name, kind) if name in self.keys else None
        if refusal is not None:
            return refusal
        return refusal_of(self.definition, name, kind, known)


def _whole(aggregation: Aggregation) -> bool:
    """True if messages are kept with all of their columns for it."""
    return aggregation.kind == "table_function" or bool(expressions_of(aggregation))
