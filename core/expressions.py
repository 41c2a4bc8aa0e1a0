"""`pyarrow.compute` expressions as values: printable, comparable, part of the fingerprint.

`pc.Expression` overloads `==` to build another expression, so definitions hold it in an `Expr`.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.errors import UnknownColumn


class Expr:
    """An expression over the columns of the input; equal and hashed by its text."""

    __slots__ = ("expression",)

    def __init__(self, expression: pc.Expression) -> None:
        self.expression = expression

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.expression.equals(other.expression)

    def __hash__(self) -> int:
        return hash(str(self.expression))

    def __repr__(self) -> str:
        return str(self.expression)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Expr, (self.expression,))

    def mentions(self, name: str) -> bool:
        """True if the expression names the column; of odd names it may be so though it does not."""
        return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(self.expression)) is not None

    def evaluate(self, table: pa.Table) -> pa.ChunkedArray:
        """The value of the expression for each row of `table`. Raises what Arrow raises where only some values are to blame."""
        untyped = any(pa.types.is_null(t) for t in table.schema.types)
        decimals = any(pa.types.is_decimal(t) for t in table.schema.types)
        refusals = []
        # Arrow compares no columns without a type; one that had no value yet may be of any.
        for kind in (None, *(_KINDS if untyped else ())):
            try:
                return self._over(_typed(table, kind))
            except pa.ArrowException as error:
                refusals.append(error)
        if decimals:
            # Nor decimals with integers that stand in the expression.
            with contextlib.suppress(pa.ArrowException):
                value = self._over(_with_floats(table))
                if pa.types.is_boolean(value.type):
                    return value
        if len(table):
            self.evaluate(table.slice(0, 0))  # raises where the columns are to blame
            raise refusals[0]
        remedy = "; beside decimals write numbers as decimals, Decimal('2')" if decimals else ""
        raise UnknownColumn(
            f"expression {self} cannot be evaluated over {table.column_names}: {refusals[0]}{remedy}"
        ) from None

    def _over(self, table: pa.Table) -> pa.ChunkedArray:
        import pyarrow.dataset as ds  # brings pandas, and doubles the time that windrow takes to import

        return ds.InMemoryDataset(table).to_table(columns={"value": self.expression}).column("value")


#: What a column without a type is taken for, in turn.
_KINDS = (pa.int64(), pa.string(), pa.timestamp("us", "UTC"), pa.bool_())


def _typed(table: pa.Table, kind: pa.DataType | None) -> pa.Table:
    if kind is None:
        return table
    for i, field in enumerate(table.schema):
        if pa.types.is_null(field.type):
            table = table.set_column(i, field.name, pa.nulls(len(table), kind))
    return table


def _with_floats(table: pa.Table) -> pa.Table:
    """The table with floats for decimals."""
    for i, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type):
            table = table.set_column(i, field.name, table.column(i).cast(pa.float64()))
    return table


def col(name: str) -> pc.Expression:
    """The input column `name`, to build filters and arguments: `wr.col("delay") > 15`.

    Comparison, arithmetic, `&`, `|`, `~`, `.is_null()`, `.isin([...])` and `.cast(...)` as in `pyarrow.compute`.
    """
    return pc.field(name)


def lit(value: Any) -> pc.Expression:
    """A literal, where Python would otherwise see no expression."""
    return pc.scalar(value)
