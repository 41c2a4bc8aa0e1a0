"""What an aggregate needs of the columns of its input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from windrow.core.aggregation import Aggregation
from windrow.core.errors import TypeClash, UnknownColumn
from windrow.core.expressions import Expr
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregations import KERNELS
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.steps.groups import combine
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
        try:
            Calculation(self.definition, pa.schema(columns.items()))
        except UnknownColumn as error:
            raise missing(error.message, columns) from None
        except TypeClash:
            return  # of a column without a type

    def named(self, names: Iterable[str]) -> set[str]:
        uses = [u for a in self.definition.agg.values() for u in _expressions(a)]
        return {n for n in names if n in self._names or any(u.mentions(n) for u in uses)}

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        return {}

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        refusal = key_refusal(name, kind) if name in self.keys else None
        if refusal is not None:
            return refusal
        types = {**known, name: kind}
        options = {"integer_overflow": self.definition.integer_overflow}
        for aggregation in self.definition.agg.values():
            uses = _expressions(aggregation)
            if name not in aggregation.columns and not any(u.mentions(name) for u in uses):
                continue
            if any(pa.types.is_null(k) and any(u.mentions(n) for u in uses) for n, k in types.items()):
                continue  # what the expression is of is not known yet
            empty = pa.schema(list(types.items())).empty_table()
            try:
                for condition in uses:
                    condition.evaluate(empty)
                if aggregation.kind in KERNELS:
                    found = tuple(
                        combine(a.evaluate(empty)).type if isinstance(a, Expr) else types.get(a, pa.null())
                        for a in aggregation.args
                    )
                    KERNELS[aggregation.kind](aggregation, found, options)
            except (TypeClash, UnknownColumn) as error:
                return error.message
        return None


def _whole(aggregation: Aggregation) -> bool:
    """True if messages are kept with all of their columns for it."""
    return aggregation.kind == "table_function" or bool(_expressions(aggregation))


def _expressions(aggregation: Aggregation) -> list[Expr]:
    uses = [a for a in aggregation.args if isinstance(a, Expr)]
    return uses if aggregation.condition is None else [*uses, aggregation.condition]
