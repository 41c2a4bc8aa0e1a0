"""`pyarrow.compute` expressions as values: printable, comparable, part of the fingerprint.

`pc.Expression` overloads `==` to build another expression, so definitions hold it in an `Expr`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.errors import UnknownColumn

#: Up to so many rows take less time than the threads and overhead of a data set.
FEW = 1 << 14


class Expression(Protocol):
    """Interface of a `pyarrow.compute` expression for type checkers, as pyarrow has no types."""

    def is_valid(self) -> Any: ...


class Expr:
    """An expression over the columns of the input; equal and hashed by its text."""

    __slots__ = ("_text", "_words", "expression")

    def __init__(self, expression: pc.Expression) -> None:
        self.expression = expression
        self._text: str | None = None
        self._words: frozenset[str] = frozenset()

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
        if self._text is None:
            self._text = str(self.expression)
            self._words = frozenset(_WORD.findall(self._text))
        if name in self._words:
            return True
        # A name that is one word would be among them.
        return name in self._text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", self._text) is not None

    def lacks(self, names: Iterable[str], *, unsure: bool = False) -> bool:
        """True if it takes a column that is none of these. unsure: what is said where their types decide that, as of fields of
        a struct."""
        names = list(names)
        schema = pa.schema([(name, pa.null()) for name in names])
        for changed in self._guesses(schema):
            try:
                self._over(changed(schema.empty_table()))
            except pa.ArrowException as error:
                said = str(error)
                if _NO_SUCH in said and not any(
                    f"{_NO_SUCH}.{_FIELD_OF.format(name)}" in said for name in names
                ):
                    return True
            else:
                return False
        return unsure  # of columns of other types than are guessed

    def evaluate(self, table: pa.Table, of: str | None = None) -> pa.ChunkedArray:
        """Evaluate the expression for each row of `table`. Raises what Arrow raises where only some values are to blame,
        with a note of what it was `of`, as the definition calls it."""
        try:
            return self._evaluated(table)
        except pa.ArrowException as error:
            if of is not None:
                note(error, f"{of}={self}")
            raise

    def _evaluated(self, table: pa.Table) -> pa.ChunkedArray:
        try:
            return self._over(table)
        except pa.ArrowException as error:
            refusal = error
        empty = table.slice(0, 0)
        for changed in self._guesses(table.schema):
            try:
                kind = self._over(changed(empty)).type
            except pa.ArrowException:
                continue
            if changed is not _with_floats or pa.types.is_boolean(kind):
                return self._over(changed(table))  # raises again where values are to blame
        decimals = any(pa.types.is_decimal(t) for t in table.schema.types)
        remedy = "; beside decimals write numbers as decimals, Decimal('2')" if decimals else ""
        unknown = _NO_COLUMN.match(str(refusal))
        if unknown is not None:
            raise UnknownColumn.lacking(unknown[1], repr(self), table.column_names) from None
        raise UnknownColumn(
            f"expression {self} cannot be evaluated over {table.column_names}: {refusal}{remedy}"
        ) from None

    def _guesses(self, schema: pa.Schema) -> Iterator[Callable[[pa.Table], pa.Table]]:
        """Tables as they are, and in types over which Arrow may evaluate where it does not over theirs."""
        # Arrow compares no columns without a type; each that had no value yet may be of any.
        untyped = [f.name for f in schema if pa.types.is_null(f.type) and self.mentions(f.name)]
        for kinds in itertools.product(_KINDS, repeat=min(len(untyped), _GUESSED)):
            yield partial(_typed, kinds=dict(itertools.zip_longest(untyped, kinds, fillvalue=_KINDS[0])))
        # Nor decimals with integer literals of the expression.
        yield _with_floats

    def _over(self, table: pa.Table) -> pa.ChunkedArray:
        # Both bring pandas, and double the time that windrow takes to import.
        import pyarrow.acero as ac
        import pyarrow.dataset as ds

        if len(table) > FEW:
            return ds.InMemoryDataset(table).to_table(columns={"value": self.expression}).column("value")
        rows = ac.Declaration("table_source", ac.TableSourceNodeOptions(_aligned(table)))
        value = ac.Declaration("project", ac.ProjectNodeOptions([self.expression], ["value"]), [rows])
        return value.to_table(use_threads=False).column("value")


def _aligned(table: pa.Table) -> pa.Table:
    """Copy columns that lie in read buffers: Arrow would warn the user of their poor alignment."""
    for i, column in enumerate(table.columns):
        if any(b is not None and b.address % 8 for chunk in column.chunks for b in chunk.buffers()):
            table = table.set_column(i, table.field(i), column.take(pa.array(range(len(column)))))
    return table


def note(error: Exception, place: str) -> None:
    """Note which place in the definition raised it, unless that is known."""
    if not hasattr(error, "__notes__"):
        error.add_note(f"in {place}")


def error_text(error: Exception) -> str:
    """Return an error as a dead letter's text: the error, and its place in the definition."""
    return ", ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


_WORD = re.compile(r"\w+")

#: Arrow's messages for a missing column, and for one with a plain name.
_NO_SUCH = "No match for FieldRef"
_NO_COLUMN = re.compile(rf"{_NO_SUCH}\.Name\((.+?)\) in ")
#: Arrow's notation of a column's field.
_FIELD_OF = "Nested(FieldRef.Name({}) "


def names_no_column(error: UnknownColumn) -> bool:
    """True if an expression could not be evaluated because it names neither a column nor a field of one."""
    return error.column is not None or _NO_SUCH in error.message


#: Types that an untyped column is tried as, in turn, and the number of such columns that are guessed one by one.
_KINDS = (
    pa.null(),
    pa.int64(),
    pa.string(),
    pa.timestamp("us", "UTC"),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("us"),
    pa.duration("us"),
    pa.binary(),
)
_GUESSED = 3


def _typed(table: pa.Table, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    for i, field in enumerate(table.schema):
        if field.name in kinds and field.type != kinds[field.name]:
            table = table.set_column(i, field.name, pa.nulls(len(table), kinds[field.name]))
    return table


def _with_floats(table: pa.Table) -> pa.Table:
    """Return the table with floats for decimals."""
    for i, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type):
            table = table.set_column(i, field.name, table.column(i).cast(pa.float64()))
    return table


def col(name: str) -> pc.Expression:
    """Name a column of the input, to build conditions and arguments: `wr.col("delay") > 15`.

    name: the column's name

    Gives an expression of `pyarrow.compute`: comparison, arithmetic, `&`, `|`, `~`, `.is_null()`, `.isin([...])`, `.cast(...)`.

    >>> col("delay") > 15
    <pyarrow.compute.Expression (delay > 15)>
    """
    return pc.field(name)


def lit(value: Any) -> pc.Expression:
    """Make a literal, where Python would otherwise see no expression.

    value: what `pyarrow.scalar` takes

    >>> lit(1)
    <pyarrow.compute.Expression 1>
    """
    return pc.scalar(value)
