"""Arrow code of users in an oracle: expressions and functions, called with one row, or one window, at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from windrow.core.aggregation import Aggregation
from windrow.core.border import fit
from windrow.core.errors import UnknownColumn
from windrow.core.expressions import Expr


class Raised(Exception):
    """The error of an expression that cannot take the values of a message, such as a division by zero."""


def of_type(value: Any, kind: pa.DataType) -> Any:
    """Return the result of a user's function in the type that it declares. Raises if it does not fit."""
    fitted = fit([value], kind)
    if fitted.misfits:
        raise ValueError(fitted.misfits[0])
    return fitted.array[0].as_py()


def is_true(answer: Any) -> bool:
    """True if an answer is true; null is not."""
    answer = answer.as_py() if isinstance(answer, pa.Scalar) else answer
    return answer is not None and bool(answer)


def holds(condition: Expr, values: Mapping[str, Any]) -> bool:
    """True if a condition of values is true; null, or one that cannot be computed, is not."""
    try:
        return is_true(condition.evaluate(pa.table({name: pa.array([v]) for name, v in values.items()}))[0])
    except pa.ArrowException:
        return False


def to_table(payloads: Sequence[dict[str, Any]]) -> pa.Table:
    """Return a table with all columns that any of the messages has; null where one lacks it."""
    names: list[str] = []
    for payload in payloads:
        names += [name for name in payload if name not in names]
    return pa.table({name: pa.array([payload.get(name) for payload in payloads]) for name in names})


class Columns:
    """The types of columns as seen, so that a null is a null of that type."""

    def __init__(self) -> None:
        self._types: dict[Any, pa.DataType] = {}

    def declare(self, column: Any, kind: pa.DataType) -> None:
        self._types[column] = kind

    def learn(self, column: Any, values: Sequence[Any]) -> None:
        """Learn the type of a column from values, which may be all null: whole numbers may become fractions."""
        seen, known = pa.array(values).type, self._types.setdefault(column, pa.null())
        if known == pa.null() or (pa.types.is_integer(known) and pa.types.is_floating(seen)):
            self._types[column] = seen
        elif pa.types.is_decimal(known) and pa.types.is_decimal(seen):
            # As many digits as any had, before the point and after it.
            whole = max(known.precision - known.scale, seen.precision - seen.scale)
            scale = max(known.scale, seen.scale)
            decimal = pa.decimal128 if whole + scale <= 38 else pa.decimal256
            self._types[column] = decimal(whole + scale, scale)

    def typed(self, payload: Mapping[str, Any]) -> pa.Table:
        """Return a table of one row, with all known columns."""
        return pa.table(
            {
                # A column of nulls alone has no type yet: this value says it.
                name: pa.array([payload.get(name)], None if pa.types.is_null(kind) else kind)
                for name, kind in self._types.items()
            }
        )

    def value(self, expression: Expr, payload: Mapping[str, Any]) -> Any:
        """Return the value of an expression for a message. Raises `Raised`."""
        try:
            return expression.evaluate(self.typed(payload))[0].as_py()
        except pa.ArrowException as error:
            raise Raised(str(error)) from error

    def of_values(self, expression: Expr, values: Mapping[str, Any]) -> Any:
        """Return the value of an expression for values, whose types are learnt as they come. Raises `Raised`."""
        mentioned = {name: value for name, value in values.items() if expression.mentions(name)}
        for name, value in mentioned.items():
            self.learn(name, [value])
        cells = {name: (name, value) for name, value in mentioned.items()} or {"": ("", None)}
        try:
            return expression.evaluate(self.row(cells))[0].as_py()
        except pa.ArrowException as error:
            raise Raised(str(error)) from error

    def row(self, cells: Mapping[str, tuple[Any, Any]]) -> pa.Table:
        """Return a table of one row: name -> (column, value)."""
        return pa.table(
            {
                name: pa.nulls(1, self._types.get(column, pa.null())) if value is None else pa.array([value])
                for name, (column, value) in cells.items()
            }
        )


class Arguments:
    """The arguments of each aggregation, message by message. `learn` remembers the types of columns."""

    def __init__(self, aggregations: dict[str, Aggregation]) -> None:
        self._aggregations = aggregations
        self._expressions = any(
            isinstance(a, Expr) or agg.condition is not None
            for agg in aggregations.values()
            for a in agg.args
        ) or any(agg.condition is not None for agg in aggregations.values())
        self._columns = Columns()
        self._names: dict[str, None] = {}

    def of_others(self, aggregations: dict[str, Aggregation]) -> Arguments:
        """Return the arguments of other aggregations, with the known columns."""
        others = Arguments(aggregations)
        others._columns, others._names = self._columns, self._names
        return others

    def learn(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Remember the types of the columns of one step."""
        if not self._expressions:
            return
        self._names.update(dict.fromkeys(name for payload in payloads for name in payload))
        for name in self._names:
            self._columns.learn(name, [payload.get(name) for payload in payloads])

    def of(self, payload: dict[str, Any]) -> dict[str, tuple[Any, ...] | None]:
        """Return by alias the arguments, or None if the filter of the aggregation excludes the message. Raises `Raised`."""
        try:
            return self._of(payload)
        except pa.ArrowException as error:
            raise Raised(str(error)) from error

    def of_kept(self, payload: dict[str, Any], aliases: Sequence[str]) -> dict[str, tuple[Any, ...] | None]:
        """Return the same, by some aliases, of a message accepted before: an expression that raises is null, or false."""
        table = self._columns.typed(payload) if self._expressions else None

        def value(argument: str | Expr) -> Any:
            try:
                return _value(argument, payload, table)
            except pa.ArrowException:
                return None

        return {
            alias: tuple(map(value, self._aggregations[alias].args))
            if (condition := self._aggregations[alias].condition) is None or value(condition) is True
            else None
            for alias in aliases
        }

    def _of(self, payload: dict[str, Any]) -> dict[str, tuple[Any, ...] | None]:
        table = self._columns.typed(payload) if self._expressions else None
        arguments: dict[str, tuple[Any, ...] | None] = {}
        for alias, aggregation in self._aggregations.items():
            if (
                aggregation.condition is not None
                and _value(aggregation.condition, payload, table) is not True
            ):
                arguments[alias] = None
            else:
                arguments[alias] = tuple(_value(a, payload, table) for a in aggregation.args)
        return arguments


class Filter(Arguments):
    """The filter of an input, message by message."""

    def __init__(self, where: Expr | None) -> None:
        super().__init__({} if where is None else {"": Aggregation("count", (), (), where)})

    def passes(self, payload: Mapping[str, Any]) -> bool:
        """True if a message passes. Raises `Raised`."""
        return all(argument is not None for argument in self.of(dict(payload)).values())


def _value(argument: str | Expr, payload: dict[str, Any], table: pa.Table | None) -> Any:
    if isinstance(argument, str):
        return payload.get(argument)
    if table is None:
        raise UnknownColumn(f"expression {argument} has no columns to be evaluated over")
    return argument.evaluate(table)[0].as_py()
