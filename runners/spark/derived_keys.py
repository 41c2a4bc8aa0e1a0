"""Derived keys on Spark: Arrow evaluates their expressions in Python before rows cross, with the same meaning everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from windrow.operators.operator import Definition
from windrow.operators.steps.derived_columns import Makes, with_derived
from windrow.operators.steps.groups import combine

_Batches = Iterable[pa.RecordBatch]


def made_name(number: int, key: str) -> str:
    """Return the column in which a key of a definition travels until its shard is known."""
    return f"__made_{number}_{key}"


def with_made_keys(df: DataFrame, definitions: Sequence[Definition], schema: pa.Schema) -> DataFrame:
    """Add the derived keys of definitions. A row on which an expression raises has null: its shard makes it a dead letter."""
    fields, tasks = [], []
    for number, definition in enumerate(definitions):
        input = definition.inputs[0]
        makes = tuple((n, e) for n, e in getattr(definition, "makes", ()) if n in definition.keys(input))
        if makes:
            kinds = with_derived(makes, schema.empty_table()).schema
            names = [(made_name(number, n), kinds.field(n).type) for n, _ in makes]
            fields += [T.StructField(n, from_arrow_type(kind)) for n, kind in names]
            tasks.append((makes, names))
    if not tasks:
        return df
    user = [n for n in schema.names if n in df.columns]
    return df.mapInArrow(_making(tasks, user), T.StructType([*df.schema.fields, *fields]))


def _making(
    tasks: list[tuple[Makes, list[tuple[str, pa.DataType]]]], user: list[str]
) -> Callable[[_Batches], Iterator[pa.RecordBatch]]:
    def make(batches: _Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            whole = pa.Table.from_batches([batch])
            table = whole.select(user)
            for makes, names in tasks:
                for (_, expression), (name, kind) in zip(makes, names, strict=True):
                    column = _evaluated((("value", expression),), table)
                    whole = whole.append_column(name, column.cast(kind))
            yield from whole.combine_chunks().to_batches()

    return make


def _evaluated(makes: Makes, table: pa.Table) -> pa.Array:
    """Return the values of an expression; null where it raises."""
    try:
        return combine(with_derived(makes, table).column("value"))
    except pa.ArrowException:
        if len(table) == 1:
            return pa.nulls(1)
        half = len(table) // 2
        parts = [_evaluated(makes, table.slice(0, half)), _evaluated(makes, table.slice(half))]
        kind = next((p.type for p in parts if not pa.types.is_null(p.type)), pa.null())
        return pa.concat_arrays([p.cast(kind) for p in parts])
