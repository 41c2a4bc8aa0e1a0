"""Aggregations in the oracle, computed from the plain list of a window's messages. Semantics "Aggregates"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

from windrow.core.aggregation import Aggregation
from windrow.core.messages import Position
from windrow.operators.oracle.arrow import of_type, to_table

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class IntegerOverflow(Exception):
    """An integer sum that does not fit int64, where the definition does not ask for decimals."""


@dataclass(frozen=True)
class Row:
    """One message as one aggregation sees it: `values` are its arguments, evaluated."""

    time_us: int
    position: Position
    payload: dict[str, Any]
    values: tuple[Any, ...]


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def order(value: Any) -> tuple[int, Any]:
    """Sort key of a non-null value: NaN is larger than any number."""
    return (1, 0) if is_nan(value) else (0, value)


def same(a: Any, b: Any) -> bool:
    """True if values are exactly equal; NaN equals NaN, also inside lists and dicts."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return (is_nan(a) and is_nan(b)) or bool(a == b)


def evaluate(aggregation: Aggregation, rows: Sequence[Row], integer_overflow: str = "dead_letter") -> Any:
    """Return the result over `rows`, given in order of arrival; rows that its filter excludes are left out already.

    Raises `IntegerOverflow`, and whatever a user's function raises.
    """
    kind = aggregation.kind
    if kind in ("user", "table_function"):
        return _user(aggregation, rows)
    if kind in ("max_by", "min_by"):
        return _extreme_by(kind, rows)
    if kind == "weighted_avg":
        return _weighted_avg(rows)
    if kind == "sort_list":
        return _sort_list(aggregation, rows)
    if kind == "top_k_by":
        return _top_k_by(aggregation, rows)
    if kind == "count" and not aggregation.args:
        return len(rows)
    present = [row for row in rows if row.values[0] is not None]
    if kind == "sum":
        return _sum([row.values[0] for row in present], integer_overflow)
    if kind in ("collect_list", "first", "last", "earliest", "latest", "any_value"):
        return _by_place(aggregation, present)
    return _OF_VALUES[kind]([row.values[0] for row in present], dict(aggregation.params))


# -- of the non-null values alone ----------------------------------------------------------------------------


def _total(values: Sequence[Any]) -> Any:
    """Return the exact total; with a float among the values, all count as floats."""
    if any(isinstance(value, float) for value in values):
        values = [float(value) for value in values]
    total: Any = 0
    with localcontext(prec=200):
        for value in values:
            total += value
    return total


def _sum(values: list[Any], integer_overflow: str) -> Any:
    total = _total(values)
    if isinstance(total, int):
        if integer_overflow == "decimal" and all(isinstance(value, int) for value in values):
            return Decimal(total)
        if not INT64_MIN <= total <= INT64_MAX:
            raise IntegerOverflow(f"the sum {total} does not fit int64")
    return total


def _avg(values: list[Any], params: dict[str, Any]) -> float | None:
    return float(_total(values) / len(values)) if values else None


def _variance(values: list[Any], params: dict[str, Any]) -> float | None:
    if len(values) <= params["ddof"]:
        return None
    numbers = [float(value) for value in values]
    mean = _total(numbers) / len(numbers)
    squares = [(number - mean) * (number - mean) for number in numbers]
    return float(_total(squares) / (len(numbers) - params["ddof"]))


def _stddev(values: list[Any], params: dict[str, Any]) -> float | None:
    variance = _variance(values, params)
    return None if variance is None else math.sqrt(variance)


def _distinct(values: list[Any]) -> list[Any]:
    distinct: list[Any] = []
    for value in sorted(values, key=order):
        if not distinct or not same(distinct[-1], value):
            distinct.append(value)
    return distinct


def _percentile(values: list[Any], fraction: float) -> float | None:
    """Return the percentile, interpolated between the two nearest ranks, as Spark SQL's `percentile`."""
    if not values:
        return None
    ranked = [float(value) for value in sorted(values, key=order)]
    place = fraction * (len(ranked) - 1)
    low, high = math.floor(place), math.ceil(place)
    if low == high or ranked[low] == ranked[high]:
        return ranked[low]
    return (high - place) * ranked[low] + (place - low) * ranked[high]


def _nearest_rank(values: list[Any], fraction: float) -> float | None:
    """Return the answer of a quantile sketch that still holds every value."""
    numbers = [float(value) for value in sorted(values, key=order)]
    return numbers[max(math.ceil(fraction * len(numbers)) - 1, 0)] if numbers else None


_OF_VALUES: dict[str, Callable[[list[Any], dict[str, Any]], Any]] = {
    "count": lambda values, params: len(values),
    "min": lambda values, params: min(values, key=order, default=None),
    "max": lambda values, params: max(values, key=order, default=None),
    "avg": _avg,
    "variance": _variance,
    "stddev": _stddev,
    "collect_set": lambda values, params: _distinct(values),
    "count_distinct": lambda values, params: len(_distinct(values)),
    "approx_count_distinct": lambda values, params: len(_distinct(values)),
    "median": lambda values, params: _percentile(values, 0.5),
    "percentile": lambda values, params: _percentile(values, params["fraction"]),
    "approx_percentile": lambda values, params: _nearest_rank(values, params["fraction"]),
    "top_k": lambda values, params: sorted(values, key=order, reverse=True)[: params["k"]],
}


# -- of values and their positions ---------------------------------------------------------------------------


def _by_place(aggregation: Aggregation, present: list[Row]) -> Any:
    by_position = sorted(present, key=lambda row: row.position)
    by_time = sorted(present, key=lambda row: (row.time_us, row.position))
    match aggregation.kind:
        case "collect_list":
            ordered = by_time if aggregation.param("order") == "event_time" else by_position
            return [row.values[0] for row in ordered]
        case "any_value":
            return present[0].values[0] if present else None
        case "first" | "earliest" as kind:
            ordered = by_position if kind == "first" else by_time
            return ordered[0].values[0] if ordered else None
        case kind:
            ordered = by_position if kind == "last" else by_time
            return ordered[-1].values[0] if ordered else None


def _extreme_by(kind: str, rows: Sequence[Row]) -> Any:
    """Return the extreme value by another column; of equal ones the first by position wins."""
    best: Row | None = None
    for row in sorted(rows, key=lambda row: row.position):
        if row.values[1] is None:
            continue
        if best is None:
            best = row
            continue
        here, there = order(row.values[1]), order(best.values[1])
        if here > there if kind == "max_by" else here < there:
            best = row
    return None if best is None else best.values[0]


def _sort_list(aggregation: Aggregation, rows: Sequence[Row]) -> list[Any]:
    """Return values sorted by the last argument, which may be the only one; ties by position, also if descending."""
    whole = [row for row in sorted(rows, key=lambda row: row.position) if None not in row.values]
    descending = aggregation.param("descending")
    return [row.values[0] for row in sorted(whole, key=lambda row: order(row.values[-1]), reverse=descending)]


def _top_k_by(aggregation: Aggregation, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the latest value of each key; of equal values the smaller key first."""
    newest: dict[Any, tuple[Any, ...]] = {}
    for row in sorted(rows, key=lambda row: (row.time_us, row.position)):
        if None not in row.values:
            newest[order(row.values[0])] = row.values
    by_key = [newest[key] for key in sorted(newest)]
    by_value = sorted(by_key, key=lambda pair: order(pair[1]), reverse=True)
    return [{"key": key, "value": value} for key, value in by_value[: aggregation.param("k")]]


def _weighted_avg(rows: Sequence[Row]) -> float | None:
    pairs = [row.values for row in rows if row.values[0] is not None and row.values[1] is not None]
    weight = _total([w for _, w in pairs])
    return None if weight == 0 else float(_total([value * w for value, w in pairs]) / weight)


# -- the user's own ------------------------------------------------------------------------------------------


def _user(aggregation: Aggregation, rows: Sequence[Row]) -> Any:
    function = aggregation.function
    assert function is not None
    if function.whole_table:
        if not rows:
            return None
        ordered = sorted(rows, key=lambda row: (row.time_us, row.position))
        result = function.body(
            to_table([_with_envelope(row) if function.envelope else row.payload for row in ordered])
        )
    else:
        result = function.body.finish(added(aggregation, rows))
    return result if function.returns is None else of_type(result, function.returns)


def added(aggregation: Aggregation, rows: Sequence[Row], integer_overflow: str = "dead_letter") -> Any:
    """Return the accumulator of a user's class after these rows, before it is finished for a pane."""
    if aggregation.kind != "user":
        return None
    assert aggregation.function is not None
    state = aggregation.function.body.initial()
    for row in rows:
        state = _add_of(aggregation, row)(state, *row.values)
    return state


def _add_of(aggregation: Aggregation, row: Row) -> Any:
    """Return the method that adds the message: for several inputs, that of its input, whose name its source begins with."""
    assert aggregation.function is not None
    inputs = [name for name, _ in aggregation.shares]
    if not inputs:
        return aggregation.function.body.add
    of = inputs[0] if len(inputs) == 1 else row.position.source.partition(":")[0]
    return getattr(aggregation.function.body, f"add_{of}")


def _with_envelope(row: Row) -> dict[str, Any]:
    names = ("__source", "__partition", "__offset", "__ordinal")
    return {**row.payload, **dict(zip(names, row.position, strict=True))}
