"""`pyarrow.compute` expressions as values: printable, comparable, part of the fingerprint.

`pc.Expression` overloads `==` to build another expression, so definitions hold it in an `Expr`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

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

    def evaluate(self, table: pa.Table) -> pa.ChunkedArray:
        """The value of the expression for each row of `table`."""
        try:
            return ds.InMemoryDataset(table).to_table(columns={"value": self.expression}).column("value")
        except pa.ArrowInvalid as error:
            raise UnknownColumn(
                f"expression {self} cannot be evaluated over {table.column_names}: {error}"
            ) from None


def col(name: str) -> pc.Expression:
    """The input column `name`, to build filters and arguments: `wr.col("delay") > 15`.

    Comparison, arithmetic, `&`, `|`, `~`, `.is_null()`, `.isin([...])` and `.cast(...)` as in `pyarrow.compute`.
    """
    return pc.field(name)


def lit(value: Any) -> pc.Expression:
    """A literal, where Python would otherwise see no expression."""
    return pc.scalar(value)
