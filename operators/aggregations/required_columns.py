"""Required columns of the aggregations of a definition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import pyarrow as pa

from windrow.core.aggregation import Aggregation
from windrow.core.errors import TypeClash, UnknownColumn
from windrow.core.expressions import Expr
from windrow.operators.aggregations import KERNELS, make_kernel
from windrow.operators.aggregations.calculation import Aggregating, Calculation
from windrow.operators.steps.groups import combine
from windrow.operators.steps.schema_inference import check_types, condition_refusal, expression_refusal


def check_columns(definition: Aggregating, columns: Mapping[str, pa.DataType]) -> None:
    """Raise `UnknownColumn` where an aggregation is of a column that is none of these."""
    with suppress(TypeClash):  # a column has no type
        check_types(lambda seen: Calculation(definition, pa.schema(seen.items())), columns)


def refusal_of(
    definition: Aggregating, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]
) -> str | None:
    """Return the reason why a column cannot be of that type, where the others are of the `known` ones; None where it can."""
    types = {**known, name: kind}
    options = {"integer_overflow": definition.integer_overflow}
    for aggregation in definition.agg.values():
        uses = aggregation.expressions
        if name not in aggregation.columns and not any(u.mentions(name) for u in uses):
            continue
        conditions = () if aggregation.condition is None else (aggregation.condition,)
        refusal = condition_refusal(conditions, name, types) or expression_refusal(uses, name, types)
        if refusal is not None:
            return refusal
        if any(pa.types.is_null(k) and any(u.mentions(n) for u in uses) for n, k in types.items()):
            continue  # the columns of the expression are not known yet
        empty = pa.schema(list(types.items())).empty_table()
        try:
            for condition in uses:
                condition.evaluate(empty)
            if aggregation.kind in KERNELS:
                kinds = tuple(
                    combine(a.evaluate(empty)).type if isinstance(a, Expr) else types.get(a, pa.null())
                    for a in aggregation.args
                )
                make_kernel(aggregation, kinds, options)
        except (TypeClash, UnknownColumn) as error:
            return error.message
    return None


def mentioned(aggregations: Iterable[Aggregation], names: Iterable[str]) -> set[str]:
    """Return those of the names that an expression mentions."""
    uses = [u for a in aggregations for u in a.expressions]
    return {n for n in names if any(u.mentions(n) for u in uses)}


def keeps_whole(aggregation: Aggregation) -> bool:
    """True if messages are kept with all of their columns for it, where messages are kept."""
    return aggregation.kind == "table_function" or bool(aggregation.expressions)
