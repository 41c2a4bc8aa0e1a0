"""User-defined aggregations: by a class, a function of a window's messages, or a function of two values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from windrow.core.aggregation import Aggregation, Column, UserFunction, argument
from windrow.core.errors import BadAggregate
from windrow.core.faults import without_place
from windrow.core.types import declared_type


def aggregate_function(
    *, name: str | None = None, version: int = 1, returns: pa.DataType, envelope: bool = False
) -> Callable[[Any], UserFunction]:
    """Make an aggregation of your own, as a decorator.

    On a class with `initial() -> state`, `add(state, *values) -> state`, `merge(state, state) -> state` and
    `finish(state) -> value` it is incremental; states must be msgpack values. With `add_<input>` for each of several inputs in
    the place of `add` it makes one state of the messages of these, in `wr.CoGroup`. On a function of a `pyarrow.Table` of
    the window's messages (columns as in the input, in event-time order) it uses the full-state design.

    name: what it is called, also in the fingerprint; default: the name of the class or function
    version: raise it when the meaning of the state changes; state of another version is refused (WR204)
    returns: the type of its values, of pyarrow
    envelope: a function of a table gets each message's position, too: `__source`, `__partition`, `__offset`, `__ordinal`

    Gives what is called with columns to make an aggregation. Raises `BadAggregate` (WR109) where a method or a name is
    missing, or `returns` is no type. An error that your code raises makes dead letters `aggregate_failed` of the messages
    it was about.

    >>> @aggregate_function(name="span", returns=pa.float64())
    ... def span(messages):
    ...     return messages["x"].to_numpy().max() - messages["x"].to_numpy().min()
    >>> span().full_state
    True
    """

    if not isinstance(returns, pa.DataType):
        what = "aggregate_function" if name is None else f"aggregate {name!r}"
        raise BadAggregate(f"{what}: returns={returns!r}, use a type of pyarrow, such as pa.int64()")
    if (refused := without_place(returns)) is not None:
        raise BadAggregate(f"returns={returns!s}: no column is of type {refused} here; use another type")

    returns = declared_type(returns)

    def decorate(body: Any) -> UserFunction:
        called = getattr(body, "__name__", "") if name is None else name
        if isinstance(body, type):
            adds = _inputs_of(body, called, envelope)
            return UserFunction(called, version, returns, body(), False, adds=adds)
        if not callable(body):
            raise BadAggregate(f"aggregate {called!r}: {body!r} is neither a class nor a function")
        if name is None and not called.isidentifier():
            raise BadAggregate(f"aggregate_function: {body!r} has no name, give one as name='...'")
        return UserFunction(called, version, returns, body, True, envelope)

    return decorate


def _inputs_of(body: type, name: str, envelope: bool) -> tuple[str, ...]:
    """Return the inputs for which a class has an `add_<input>`; none where it has `add`."""
    adds = tuple(
        m.removeprefix("add_") for m in dir(body) if m.startswith("add_") and callable(getattr(body, m))
    )
    adds = () if callable(getattr(body, "add", None)) else adds
    needs = ("initial", *(() if adds else ("add",)), "merge", "finish")
    missing = [m for m in needs if not callable(getattr(body, m, None))]
    if missing:
        raise BadAggregate(f"aggregate {name!r}: class {body.__name__} lacks {', '.join(missing)}")
    if envelope:
        raise BadAggregate(
            f"aggregate {name!r}: envelope=True is for a function of a table, and {body.__name__} is a class: "
            "name the columns that it gets"
        )
    return adds


class Reduction:
    """A function of two values as an aggregate class, whose state is empty before the first value."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def initial(self) -> None:
        return None

    def add(self, state: Any, value: Any) -> Any:
        return self.merge(state, value)

    def merge(self, older: Any, newer: Any) -> Any:
        if older is None or newer is None:
            return newer if older is None else older
        return self._function(older, newer)

    def finish(self, state: Any) -> Any:
        return state


def reduce(
    function: Callable[[Any, Any], Any], column: Column, *, name: str | None = None, version: int = 1
) -> Aggregation:
    """Combine the non-null values by a function of two of them; one value alone is the result.

    function: of (older, newer), both values of the column, or what it gave; it has to be associative, because what two commits
        made of their messages meets in it
    column: a column's name or an expression, of numbers, booleans, text or bytes
    name: what it is called, also in the fingerprint; default: the name of the function
    version: raise it when its meaning changes; state of another version is refused (WR204)

    Gives the column's type; null of nothing. Raises `BadAggregate` (WR109) where the function is none, or has no name,
    `TypeClash` (WR111) where the column's type does not fit. An error that it raises makes dead letters `aggregate_failed`.

    >>> reduce(lambda older, newer: older * newer, "factor", name="product")
    product('factor')
    """
    if not callable(function):
        raise BadAggregate(f"reduce({function!r}): use a function of two values")
    called = getattr(function, "__name__", "") if name is None else name
    if not isinstance(called, str) or not called.isidentifier():
        raise BadAggregate(f"reduce(name={called!r}): give it a name, such as name='product'")
    body = UserFunction(called, version, None, Reduction(function), False)
    return Aggregation("user", (argument(column),), (), None, body)
