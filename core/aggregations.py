"""Aggregations as values, named as in `pyspark.sql.functions`. Their implementations are in `operators/aggregations/`.

Semantics "Aggregates": nulls are skipped; `count()` counts rows and `count(column)` non-null values; NaN is larger than
any number; sum of nothing is 0; min and max of nothing are null; integer sums are exact.
"""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from windrow.core import check
from windrow.core.aggregation import Aggregation, Column, argument
from windrow.core.deliver import MARK
from windrow.core.errors import BadAggregate
from windrow.core.functions import aggregate_function as aggregate_function
from windrow.core.functions import reduce as reduce


def _make(kind: str, *columns: Column, **params: Any) -> Aggregation:
    return Aggregation(kind, tuple(argument(c) for c in columns), tuple(params.items()))


def count(column: Column | None = None) -> Aggregation:
    """Count the rows; with a column, the rows where it is not null.

    column: a column's name or an expression, of any type; None counts rows

    Gives int64, 0 of nothing. Raises `BadAggregate` (WR109) where an argument is no column.

    >>> import windrow as wr
    >>> count().where(wr.col("delay") > 15)
    wr.count().where((delay > 15))
    """
    if isinstance(column, str) and column == "*":
        raise BadAggregate("count('*'): use wr.count(), the number of rows")
    return _make("count") if column is None else _make("count", column)


def skipped(mark: str = MARK) -> Aggregation:
    """Count the rows that a delivery policy skipped: that of the aggregate itself, `deliver=wr.deliver.latest().marked()`,
    or of a `wr.Delivery` before it that marks them.

    mark: the column that says so, as `marked(...)` or `wr.Delivery(mark=...)` names it

    Gives int64, 0 of nothing. Raises `BadAggregate` (WR109) where `mark` is no column.

    >>> skipped()
    wr.count().where(skipped)
    """
    name = check.of_type(mark, str, "mark", "name the column of wr.Delivery(mark=...)", BadAggregate)
    return count().where(pc.field(name))


def sum(column: Column) -> Aggregation:
    """Compute the sum.

    column: a column's name or an expression, of numbers or booleans

    Gives int64 of integers, exactly (a sum beyond int64 is a dead letter, or a decimal: `integer_overflow=`),
    float64 of floats, decimal(38, s) of decimals; 0 of nothing. Raises `BadAggregate` (WR109) where an argument is
    no column, `TypeClash` (WR111) where its type does not fit.

    >>> sum("delay")
    wr.sum('delay')
    """
    return _make("sum", column)


def min(column: Column) -> Aggregation:
    """Compute the smallest value.

    column: a column's name or an expression, of anything that has an order (no structs, lists, maps, intervals)

    Gives the column's type; null of nothing; NaN only if all values are NaN. Raises `BadAggregate` (WR109) where an
    argument is no column, `TypeClash` (WR111) where its type does not fit.

    >>> min("delay")
    wr.min('delay')
    """
    return _make("min", column)


def max(column: Column) -> Aggregation:
    """Compute the largest value.

    column: a column's name or an expression, of anything that has an order (no structs, lists, maps, intervals)

    Gives the column's type; null of nothing; NaN if any value is NaN. Raises `BadAggregate` (WR109) where an
    argument is no column, `TypeClash` (WR111) where its type does not fit.

    >>> max("delay")
    wr.max('delay')
    """
    return _make("max", column)


def avg(column: Column) -> Aggregation:
    """Compute the mean.

    column: a column's name or an expression, of numbers or booleans

    Gives float64; null of nothing. Raises `BadAggregate` (WR109) where an argument is no column, `TypeClash`
    (WR111) where its type does not fit.

    >>> avg("delay")
    wr.avg('delay')
    """
    return _make("avg", column)


def variance(column: Column, *, ddof: int = 1) -> Aggregation:
    """Compute the variance.

    column: a column's name or an expression, of numbers or booleans
    ddof: degrees of freedom that are taken off: 1 for a sample, 0 for a population

    Gives float64; null where there are fewer values than `ddof` + 1; NaN if a value is NaN or infinite. Raises
    `BadAggregate` (WR109) where an argument is no column, `TypeClash` (WR111) where its type does not fit.

    >>> variance("delay", ddof=0)
    wr.variance('delay', ddof=0)
    """
    return _make("variance", column, ddof=_ddof(ddof))


def stddev(column: Column, *, ddof: int = 1) -> Aggregation:
    """Compute the standard deviation: the square root of the variance.

    column: a column's name or an expression, of numbers or booleans
    ddof: as for `wr.variance`

    Gives float64; null where there are fewer values than `ddof` + 1. Raises `BadAggregate` (WR109) where an
    argument is no column, `TypeClash` (WR111) where its type does not fit.

    >>> stddev("delay")
    wr.stddev('delay', ddof=1)
    """
    return _make("stddev", column, ddof=_ddof(ddof))


def _ddof(ddof: int) -> int:
    if ddof not in (0, 1):
        raise BadAggregate(f"ddof={ddof!r}: use 1 for sample or 0 for population")
    return ddof


def first(column: Column) -> Aggregation:
    """Take the non-null value at the smallest position: the first in its source, whenever it came.

    column: a column's name or an expression, of any type

    Gives the column's type; null of nothing. Raises `BadAggregate` (WR109) where an argument is no column.

    >>> first("gate")
    wr.first('gate')
    """
    return _make("first", column)


def last(column: Column) -> Aggregation:
    """Take the non-null value at the largest position: the last in its source, whenever it came.

    column: a column's name or an expression, of any type

    Gives the column's type; null of nothing. Raises `BadAggregate` (WR109) where an argument is no column.

    >>> last("gate")
    wr.last('gate')
    """
    return _make("last", column)


def earliest(column: Column) -> Aggregation:
    """Take the non-null value of the smallest event time; ties by position.

    column: a column's name or an expression, of any type

    Gives the column's type; null of nothing. Raises `BadAggregate` (WR109) where an argument is no column.

    >>> earliest("gate")
    wr.earliest('gate')
    """
    return _make("earliest", column)


def latest(column: Column) -> Aggregation:
    """Take the non-null value of the largest event time; ties by position.

    column: a column's name or an expression, of any type

    Gives the column's type; null of nothing. Raises `BadAggregate` (WR109) where an argument is no column.

    >>> latest("gate")
    wr.latest('gate')
    """
    return _make("latest", column)


def any_value(column: Column) -> Aggregation:
    """Take some non-null value of the window: the first to arrive.

    column: a column's name or an expression, of any type

    Gives the column's type; null of nothing. Raises `BadAggregate` (WR109) where an argument is no column.

    >>> any_value("origin")
    wr.any_value('origin')
    """
    return _make("any_value", column)


def collect_list(column: Column, *, order: str = "position") -> Aggregation:
    """Collect all non-null values, in order.

    column: a column's name or an expression, of any type
    order: "position" (as in the source), or "event_time", ties by position

    Gives a list of the column's type, empty of nothing. Raises `BadAggregate` (WR109) where an argument is no
    column, or `order` is neither.

    >>> collect_list("flight", order="event_time")
    wr.collect_list('flight', order='event_time')
    """
    if order not in ("position", "event_time"):
        raise BadAggregate(f"collect_list(order={order!r}): use 'position' or 'event_time'")
    return _make("collect_list", column, order=order)


def sort_list(column: Column, by: Column | None = None, *, descending: bool = False) -> Aggregation:
    """Collect all non-null values, sorted: by themselves, or by another column. Equal ones are ordered by position.

    column: a column's name or an expression; of anything that has an order, unless `by` is given
    by: a column or expression of anything that has an order; rows where it is null are skipped
    descending: the largest first

    Gives a list of the type of `column`, empty of nothing; NaN counts as the largest. Raises `BadAggregate` (WR109) where an
    argument is no column, `TypeClash` (WR111) where its type does not fit.

    >>> sort_list("flight", "delay", descending=True)
    wr.sort_list('flight', 'delay', descending=True)
    """
    if not isinstance(descending, bool):
        raise BadAggregate(f"sort_list(descending={descending!r}): use True or False")
    columns = (column,) if by is None else (column, by)
    return _make("sort_list", *columns, descending=descending)


def collect_set(column: Column) -> Aggregation:
    """Collect the distinct non-null values, sorted.

    column: a column's name or an expression, of anything that has an order (no structs, lists, maps, intervals)

    Gives a list of the column's type, empty of nothing. Raises `BadAggregate` (WR109) where an argument is no
    column, `TypeClash` (WR111) where its type does not fit.

    >>> collect_set("carrier")
    wr.collect_set('carrier')
    """
    return _make("collect_set", column)


def count_distinct(column: Column) -> Aggregation:
    """Count the distinct non-null values, exactly. It keeps them all: for many see `wr.approx_count_distinct`.

    column: a column's name or an expression, of anything that has an order (no structs, lists, maps, intervals)

    Gives int64, 0 of nothing. Raises `BadAggregate` (WR109) where an argument is no column, `TypeClash` (WR111)
    where its type does not fit.

    >>> count_distinct("carrier")
    wr.count_distinct('carrier')
    """
    return _make("count_distinct", column)


def approx_count_distinct(column: Column, *, lg_k: int = 12) -> Aggregation:
    """Count the distinct non-null values, by a HyperLogLog sketch.

    column: a column's name or an expression, of anything that has an order (no structs, lists, maps, intervals)
    lg_k: the sketch has 2**`lg_k` buckets of a byte, from 4 to 21; the standard error is 1.04 / sqrt(2**`lg_k`),
        1.6 % at 12

    Gives int64, 0 of nothing. Raises `BadAggregate` (WR109) where an argument is no column, or `lg_k` out of its
    range.

    >>> approx_count_distinct("passenger")
    wr.approx_count_distinct('passenger', lg_k=12)
    """
    if not isinstance(lg_k, int) or not 4 <= lg_k <= 21:
        raise BadAggregate(f"approx_count_distinct(lg_k={lg_k!r}): use 4 to 21")
    return _make("approx_count_distinct", column, lg_k=lg_k)


def median(column: Column) -> Aggregation:
    """Compute the exact median. It keeps every message of the window (full-state design).

    column: a column's name or an expression, of numbers or booleans

    Gives float64, linear between the two middle values; null of nothing. Raises `BadAggregate` (WR109) where an
    argument is no column, `TypeClash` (WR111) where its type does not fit.

    >>> median("delay").full_state
    True
    """
    return _make("median", column)


def percentile(column: Column, fraction: float) -> Aggregation:
    """Compute an exact percentile, as in Spark SQL. It keeps every message of the window (full-state design).

    column: a column's name or an expression, of numbers or booleans
    fraction: which one, from 0 to 1

    Gives float64: place `fraction * (n - 1)` of the sorted values, linear between neighbours; null of nothing.
    Raises `BadAggregate` (WR109) where an argument is no column or `fraction` none of 0 to 1, `TypeClash` (WR111)
    where its type does not fit.

    >>> percentile("delay", 0.95)
    wr.percentile('delay', fraction=0.95)
    """
    return _make("percentile", column, fraction=_fraction(fraction))


def approx_percentile(column: Column, fraction: float, *, k: int = 200) -> Aggregation:
    """Compute a percentile by a KLL sketch. It keeps no messages.

    column: a column's name or an expression, of numbers or booleans
    fraction: which one, from 0 to 1
    k: the size of the sketch; at 200 the rank is off by about 1.3 %

    Gives float64: a value that occurs; null of nothing. Raises `BadAggregate` (WR109) where an argument is no
    column or `fraction` none of 0 to 1, `TypeClash` (WR111) where its type does not fit.

    >>> approx_percentile("delay", 0.95)
    wr.approx_percentile('delay', fraction=0.95, k=200)
    """
    return _make("approx_percentile", column, fraction=_fraction(fraction), k=k)


def _fraction(fraction: float) -> float:
    if not isinstance(fraction, (int, float)) or not 0.0 <= fraction <= 1.0:
        raise BadAggregate(f"percentile fraction {fraction!r}: use a number from 0 to 1, e.g. 0.95")
    return float(fraction)


def top_k(column: Column, k: int) -> Aggregation:
    """Collect the largest non-null values.

    column: a column's name or an expression, of anything that has an order (no structs, lists, maps, intervals)
    k: how many

    Gives a list of the column's type, largest first. Raises `BadAggregate` (WR109) where an argument is no column,
    or `k` no positive whole number.

    >>> top_k("delay", 3)
    wr.top_k('delay', k=3)
    """
    return _make("top_k", column, k=_how_many("top_k", k))


def _how_many(kind: str, k: int) -> int:
    if not isinstance(k, int) or k <= 0:
        raise BadAggregate(f"{kind}(k={k!r}): use a whole number, 1 or more")
    return k


def top_k_by(key: Column, value: Column, k: int) -> Aggregation:
    """Collect the keys inside the group whose latest values are largest. Rows where either is null are skipped.

    key: a column's name or an expression, of anything that has an order (no structs, lists, maps, intervals)
    value: the same; of each key only the value of the largest event time counts, ties by position
    k: how many

    Gives a list of structs `key`, `value`, the largest value first, of equal ones the smaller key. Raises `BadAggregate`
    (WR109) where an argument is no column, or `k` no positive whole number, `TypeClash` (WR111) where a type does not fit.

    >>> top_k_by("airport", "queue", 3)
    wr.top_k_by('airport', 'queue', k=3)
    """
    return _make("top_k_by", key, value, k=_how_many("top_k_by", k))


def max_by(column: Column, by: Column) -> Aggregation:
    """Take the value of one column where another is largest. Rows where `by` is null are skipped.

    column: a column's name or an expression, of any type
    by: a column or expression of anything that has an order; of equal ones the first position wins

    Gives the type of `column`, maybe null. Raises `BadAggregate` (WR109) where an argument is no column,
    `TypeClash` (WR111) where its type does not fit.

    >>> max_by("flight", "delay")
    wr.max_by('flight', 'delay')
    """
    return _make("max_by", column, by)


def min_by(column: Column, by: Column) -> Aggregation:
    """Take the value of one column where another is smallest. Rows where `by` is null are skipped.

    column: a column's name or an expression, of any type
    by: a column or expression of anything that has an order; of equal ones the first position wins

    Gives the type of `column`, maybe null. Raises `BadAggregate` (WR109) where an argument is no column,
    `TypeClash` (WR111) where its type does not fit.

    >>> min_by("flight", "delay")
    wr.min_by('flight', 'delay')
    """
    return _make("min_by", column, by)


def weighted_avg(column: Column, weight: Column) -> Aggregation:
    """Compute the mean under weights, `sum(column * weight) / sum(weight)`, over rows where both are not null.

    column: a column's name or an expression, of numbers or booleans
    weight: the same, for the weights

    Gives float64; null where the weights sum to 0. Raises `BadAggregate` (WR109) where an argument is no column,
    `TypeClash` (WR111) where its type does not fit.

    >>> weighted_avg("delay", "seats")
    wr.weighted_avg('delay', 'seats')
    """
    return _make("weighted_avg", column, weight)
