"""Aggregation: a value with its kind, its columns, its parameters and its filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core import check
from windrow.core.errors import BadAggregate
from windrow.core.expressions import Expr
from windrow.core.frames import Frame, RowsBetween, make_frame
from windrow.core.show import Raw, call

Column: TypeAlias = str | pc.Expression

#: Kinds whose result needs every message of the window: they switch the operator to the full-state design.
FULL_STATE_KINDS = frozenset({"median", "percentile", "table_function"})


@dataclass(frozen=True)
class UserFunction:
    """A user's aggregate; its name and version are its identity, never its code.

    returns: the type of its values; None: that of its column
    adds: the inputs of which it has a method `add_<input>` each, in the place of `add`
    """

    name: str
    version: int
    returns: pa.DataType | None
    body: Any
    whole_table: bool
    envelope: bool = False
    adds: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UserFunction) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def identity(self) -> tuple[str, int, str]:
        return (self.name, self.version, str(self.returns))

    def __call__(self, *columns: Column, **of_inputs: Column | Sequence[Column]) -> Aggregation:
        """Return the aggregation of `columns` by this function; `of_inputs`: the columns of each input, for `add_<input>`."""
        if set(of_inputs) != set(self.adds) or (columns and self.adds):
            asked = (
                f"{', '.join(f'{name}=...' for name in self.adds)}"
                if self.adds
                else "its columns, and no others"
            )
            written = [*map(repr, columns), *(f"{name}={of!r}" for name, of in of_inputs.items())]
            raise BadAggregate(f"{self.name}({', '.join(written)}): give {asked}")
        if self.adds:
            shares = {n: of if isinstance(of, (tuple, list)) else (of,) for n, of in of_inputs.items()}
            taken = tuple((name, tuple(map(argument, shares[name]))) for name in sorted(shares))
            return Aggregation("user", function=self, shares=taken)
        kind = "table_function" if self.whole_table else "user"
        return Aggregation(kind, tuple(argument(c) for c in columns), (), None, self)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Aggregation:
    """One aggregation of a definition: its kind, its columns or expressions, its parameters, its filter; of `wr.Over` its
    frame, where it has one of its own; of `wr.CoGroup` its input, where it is not of all, or what it takes of each (`shares`).
    """

    kind: str
    args: tuple[str | Expr, ...] = ()
    params: tuple[tuple[str, Any], ...] = ()
    condition: Expr | None = None
    function: UserFunction | None = None
    frame: Frame | None = None
    input: str | None = None
    shares: tuple[tuple[str, tuple[str | Expr, ...]], ...] = ()

    def where(self, condition: pc.Expression) -> Aggregation:
        """Return the same aggregation of only those rows for which a condition is true; null counts as false.

        condition: an expression, e.g. `wr.col("delay") > 15`; a second one must be true besides

        Raises `BadAggregate` (WR109) where it is no expression.

        >>> import windrow as wr
        >>> wr.count().where(wr.col("delay") > 15)
        wr.count().where((delay > 15))
        """
        if not isinstance(condition, pc.Expression):
            raise BadAggregate(f"where({condition!r}) on {self!r}: use an expression such as wr.col('x') > 0")
        if self.shares:
            raise BadAggregate(
                f"where({condition!r}) on {self!r}, of several inputs: filter in its add_... methods"
            )
        both = condition if self.condition is None else self.condition.expression & condition
        return replace(self, condition=Expr(both))

    def over(self, frame: Any = None) -> Aggregation:
        """Return the same aggregation over a frame of its own, in `wr.Over`.

        frame: wr.rows_between(...), wr.range_between(...), a pair of their ends; a number of messages, or a duration, up to the
            message itself; without it a running result, of all messages so far

        Raises `BadWindow` (WR105), `BadDuration` (WR101).

        >>> import windrow as wr
        >>> wr.avg("x").over(10)
        wr.avg('x').over(wr.rows_between(-9, 0))
        """
        return replace(self, frame=RowsBetween(None, 0) if frame is None else make_frame(frame))

    def of(self, input: str) -> Aggregation:
        """Return the same aggregation of the messages of one input, in `wr.CoGroup`.

        input: its name

        Raises `ConfigurationError` (WR100) where that is no name.

        >>> import windrow as wr
        >>> wr.sum("amount").of("orders")
        wr.sum('amount').of('orders')
        """
        if self.shares:
            raise BadAggregate(f"of({input!r}) on {self!r}: it says already what it takes of which input")
        return replace(self, input=check.name(input, "of"))

    def part(self, input: str) -> Aggregation | None:
        """Return its part that applies to the messages of an input; None where it takes none of them."""
        if self.shares:
            args = dict(self.shares).get(input)
            return None if args is None else replace(self, args=args, shares=(), input=input)
        return self if self.input in (None, input) else None

    @property
    def of_all(self) -> bool:
        """True if it takes the same of the messages of every input."""
        return self.input is None and not self.shares

    def param(self, name: str) -> Any:
        return dict(self.params)[name]

    @property
    def full_state(self) -> bool:
        """True if the result needs every message of the window."""
        return self.kind in FULL_STATE_KINDS

    @property
    def columns(self) -> tuple[str, ...]:
        """The plain columns among the arguments."""
        return tuple(a for a in self.args if isinstance(a, str))

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Its arguments that are expressions, and its filter."""
        uses = tuple(a for a in self.args if isinstance(a, Expr))
        return uses if self.condition is None else (*uses, self.condition)

    def describe(self) -> str:
        """Return its part of the fingerprint."""
        text = repr(self)
        return (
            text if self.function is None else f"{text} v{self.function.version} -> {self.function.returns}"
        )

    def __repr__(self) -> str:
        params = {k: v for k, v in self.params if v is not None}
        if self.function is not None:
            taken = [repr(a) for a in self.args] + [f"{name}={of!r}" for name, of in self.shares]
            text = f"{self.function.name}({', '.join(taken)})"
        else:
            text = call(self.kind, *(Raw(a) if isinstance(a, Expr) else a for a in self.args), **params)
        if self.condition is not None:
            text = f"{text}.where({self.condition!r})"
        if self.input is not None:
            text = f"{text}.of({self.input!r})"
        return text if self.frame is None else f"{text}.over({self.frame!r})"


def argument(column: Column) -> str | Expr:
    """Return a column as users name it: by its name, or by an expression. Raises `BadAggregate` where it is neither."""
    if isinstance(column, str):
        return column
    if isinstance(column, pc.Expression):
        return Expr(column)
    raise BadAggregate(f"{column!r} is not a column: use its name or an expression such as wr.col('x') * 2")
