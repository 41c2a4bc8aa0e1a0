"""Aggregations as values, named as in `pyspark.sql.functions`. What they do is in `operators/aggregations/`.

Semantics "Aggregates": nulls are skipped; `count()` counts rows and `count(column)` non-null values; NaN is larger than
any number; sum of nothing is 0; min and max of nothing are null; integer sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.errors import BadAggregate
from windrow.core.expressions import Expr
from windrow.core.show import Raw, call

Column: TypeAlias = str | pc.Expression

#: Kinds whose result needs every message of the window: they switch the operator to the full-state design.
FULL_STATE_KINDS = frozenset({"median", "percentile", "table_function"})


@dataclass(frozen=True)
class UserFunction:
    """A user's aggregate; its name and version are its identity, never its code."""

    name: str
    version: int
    returns: pa.DataType
    body: Any
    whole_table: bool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UserFunction) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def identity(self) -> tuple[str, int, str]:
        return (self.name, self.version, str(self.returns))

    def __call__(self, *columns: Column) -> Aggregation:
        """The aggregation of `columns` by this function."""
        kind = "table_function" if self.whole_table else "user"
        return Aggregation(kind, tuple(_argument(c) for c in columns), (), None, self)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Aggregation:
    """One aggregation of a definition: its kind, its columns or expressions, its parameters, its filter."""

    kind: str
    args: tuple[str | Expr, ...] = ()
    params: tuple[tuple[str, Any], ...] = ()
    condition: Expr | None = None
    function: UserFunction | None = None

    def where(self, condition: pc.Expression) -> Aggregation:
        """The same aggregation of only those rows for which `condition` is true."""
        if not isinstance(condition, pc.Expression):
            raise BadAggregate(f"where({condition!r}) on {self!r}: use an expression such as wr.col('x') > 0")
        both = condition if self.condition is None else self.condition.expression & condition
        return replace(self, condition=Expr(both))

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

    def describe(self) -> str:
        """What goes into the fingerprint."""
        text = repr(self)
        return (
            text if self.function is None else f"{text} v{self.function.version} -> {self.function.returns}"
        )

    def __repr__(self) -> str:
        params = {k: v for k, v in self.params if v is not None}
        if self.function is not None:
            text = f"{self.function.name}({', '.join(repr(a) for a in self.args)})"
        else:
            text = call(self.kind, *(Raw(a) if isinstance(a, Expr) else a for a in self.args), **params)
        return text if self.condition is None else f"{text}.where({self.condition!r})"


def _argument(column: Column) -> str | Expr:
    if isinstance(column, str):
        return column
    if isinstance(column, pc.Expression):
        return Expr(column)
    raise BadAggregate(f"{column!r} is not a column: use its name or an expression such as wr.col('x') * 2")


def _make(kind: str, *columns: Column, **params: Any) -> Aggregation:
    return Aggregation(kind, tuple(_argument(c) for c in columns), tuple(params.items()))


def count(column: Column | None = None) -> Aggregation:
    """The number of rows, or of rows where `column` is not null. int64."""
    return _make("count") if column is None else _make("count", column)


def sum(column: Column) -> Aggregation:
    """The sum: int64 of integers (exact; a sum beyond int64 is a dead letter), float64 of floats; 0 of nothing."""
    return _make("sum", column)


def min(column: Column) -> Aggregation:
    """The smallest value; null of nothing; NaN only if all values are NaN."""
    return _make("min", column)


def max(column: Column) -> Aggregation:
    """The largest value; null of nothing; NaN if any value is NaN."""
    return _make("max", column)


def avg(column: Column) -> Aggregation:
    """The mean as float64; null of nothing."""
    return _make("avg", column)


def variance(column: Column, *, ddof: int = 1) -> Aggregation:
    """Variance with `ddof` degrees of freedom taken off (1: sample); null where fewer values than `ddof` + 1."""
    return _make("variance", column, ddof=_ddof(ddof))


def stddev(column: Column, *, ddof: int = 1) -> Aggregation:
    """Standard deviation, the square root of `variance(column, ddof=ddof)`."""
    return _make("stddev", column, ddof=_ddof(ddof))


def _ddof(ddof: int) -> int:
    if ddof not in (0, 1):
        raise BadAggregate(f"ddof={ddof!r}: use 1 for sample or 0 for population")
    return ddof


def first(column: Column) -> Aggregation:
    """The non-null value at the smallest position."""
    return _make("first", column)


def last(column: Column) -> Aggregation:
    """The non-null value at the largest position."""
    return _make("last", column)


def earliest(column: Column) -> Aggregation:
    """The non-null value of the smallest event time; ties by position."""
    return _make("earliest", column)


def latest(column: Column) -> Aggregation:
    """The non-null value of the largest event time; ties by position."""
    return _make("latest", column)


def any_value(column: Column) -> Aggregation:
    """Some non-null value of the window (the first to arrive)."""
    return _make("any_value", column)


def collect_list(column: Column, *, order: str = "position") -> Aggregation:
    """All non-null values, in `order` of "position" or of "event_time"."""
    if order not in ("position", "event_time"):
        raise BadAggregate(f"collect_list(order={order!r}): use 'position' or 'event_time'")
    return _make("collect_list", column, order=order)


def collect_set(column: Column) -> Aggregation:
    """The distinct non-null values, sorted."""
    return _make("collect_set", column)


def count_distinct(column: Column) -> Aggregation:
    """The number of distinct non-null values, exactly."""
    return _make("count_distinct", column)


def approx_count_distinct(column: Column, *, lg_k: int = 12) -> Aggregation:
    """The number of distinct non-null values by a HyperLogLog sketch of 2**lg_k buckets (12: about 1.6 % error)."""
    if not isinstance(lg_k, int) or not 4 <= lg_k <= 21:
        raise BadAggregate(f"approx_count_distinct(lg_k={lg_k!r}): use 4 to 21")
    return _make("approx_count_distinct", column, lg_k=lg_k)


def median(column: Column) -> Aggregation:
    """The exact median, interpolated; keeps every message of the window (full-state design)."""
    return _make("median", column)


def percentile(column: Column, fraction: float) -> Aggregation:
    """The exact percentile at `fraction` of 0 to 1, interpolated as in Spark SQL; keeps every message."""
    return _make("percentile", column, fraction=_fraction(fraction))


def approx_percentile(column: Column, fraction: float, *, k: int = 200) -> Aggregation:
    """The percentile by a KLL sketch of size `k` (200: about 1.3 % rank error); keeps no messages."""
    return _make("approx_percentile", column, fraction=_fraction(fraction), k=k)


def _fraction(fraction: float) -> float:
    if not isinstance(fraction, (int, float)) or not 0.0 <= fraction <= 1.0:
        raise BadAggregate(f"percentile fraction {fraction!r}: use a number from 0 to 1, e.g. 0.95")
    return float(fraction)


def top_k(column: Column, k: int) -> Aggregation:
    """The `k` largest non-null values, largest first."""
    if not isinstance(k, int) or k <= 0:
        raise BadAggregate(f"top_k(k={k!r}): k must be positive, and whole")
    return _make("top_k", column, k=k)


def max_by(column: Column, by: Column) -> Aggregation:
    """The value of `column` where `by` is largest; ties by position, the first wins; rows with null `by` are skipped."""
    return _make("max_by", column, by)


def min_by(column: Column, by: Column) -> Aggregation:
    """The value of `column` where `by` is smallest; ties by position, the first wins."""
    return _make("min_by", column, by)


def weighted_avg(column: Column, weight: Column) -> Aggregation:
    """sum(column * weight) / sum(weight) over rows where both are not null; null where the weights sum to 0."""
    return _make("weighted_avg", column, weight)


def aggregate_function(*, name: str, version: int = 1, returns: pa.DataType) -> Callable[[Any], UserFunction]:
    """Make an aggregate of your own, as a decorator.

    On a class with `initial() -> state`, `add(state, *values) -> state`, `merge(state, state) -> state` and
    `finish(state) -> value` it is incremental; states must be msgpack values. On a function of a `pyarrow.Table` of
    the window's messages (columns as in the input, in event-time order) it uses the full-state design.
    Raise `version` when the meaning of the state changes: name and version are part of the fingerprint.

    >>> @aggregate_function(name="span", returns=pa.float64())
    ... def span(messages):
    ...     return messages["x"].to_numpy().max() - messages["x"].to_numpy().min()
    """

    if not isinstance(returns, pa.DataType):
        raise BadAggregate(
            f"aggregate {name!r}: returns={returns!r}, use a type of pyarrow, such as pa.int64()"
        )

    def decorate(body: Any) -> UserFunction:
        if isinstance(body, type):
            missing = [
                m for m in ("initial", "add", "merge", "finish") if not callable(getattr(body, m, None))
            ]
            if missing:
                raise BadAggregate(f"aggregate {name!r}: class {body.__name__} lacks {', '.join(missing)}")
            return UserFunction(name, version, returns, body(), False)
        if not callable(body):
            raise BadAggregate(f"aggregate {name!r}: {body!r} is neither a class nor a function")
        return UserFunction(name, version, returns, body, True)

    return decorate
