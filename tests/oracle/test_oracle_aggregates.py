"""The oracle's aggregations, against the standard library and by hand."""

import math
import statistics
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core import aggregations as agg
from windrow.core.aggregation import Aggregation
from windrow.core.errors import UnknownColumn
from windrow.core.expressions import col
from windrow.core.messages import Position
from windrow.operators.oracle.aggregates import IntegerOverflow, Row, evaluate, same
from windrow.operators.oracle.arrow import Arguments
from windrow.testing.ledger import values_equal

NAN = float("nan")
INTEGERS = st.lists(st.integers(-1000, 1000), min_size=1, max_size=20)


def rows(*values: Any) -> list[Row]:
    """Rows in order of arrival, of position and of time."""
    return [
        Row(i, Position("s", 0, i), {"v": v}, v if isinstance(v, tuple) else (v,))
        for i, v in enumerate(values)
    ]


def result(aggregation: Aggregation, *values: Any) -> Any:
    return evaluate(aggregation, rows(*values))


@pytest.mark.parametrize(
    ("aggregation", "values", "expected"),
    [
        (agg.count(), (), 0),
        (agg.count(), (1, None), 2),
        (agg.count("v"), (1, None, NAN), 2),
        (agg.sum("v"), (), 0),
        (agg.sum("v"), (None,), 0),
        (agg.sum("v"), (1, None, 2), 3),
        (agg.sum("v"), (0.5, 0.25), 0.75),
        (agg.sum("v"), (True, True), 2),
        (agg.sum("v"), (Decimal("1.10"), Decimal("2.20")), Decimal("3.30")),
        (agg.sum("v"), (2**63 - 1, -1), 2**63 - 2),
        (agg.min("v"), (), None),
        (agg.min("v"), (3, None, 1), 1),
        (agg.min("v"), (NAN, 2.0), 2.0),
        (agg.min("v"), (NAN, NAN), NAN),
        (agg.max("v"), (NAN, 2.0), NAN),
        (agg.max("v"), ("a", "b"), "b"),
        (agg.avg("v"), (), None),
        (agg.avg("v"), (1, 2, None), 1.5),
        (agg.avg("v"), (2**63 - 1, 2**63 - 1), float(2**63)),
        (agg.variance("v"), (1,), None),
        (agg.variance("v"), (1, 3), 2.0),
        (agg.variance("v", ddof=0), (1, 3), 1.0),
        (agg.variance("v", ddof=0), (7,), 0.0),
        (agg.variance("v", ddof=0), (), None),
        (agg.variance("v"), (1e200, -1e200), math.inf),
        (agg.stddev("v", ddof=0), (1, 3), 1.0),
        (agg.stddev("v"), (1,), None),
        (agg.collect_set("v"), (3, 1, None, 3), [1, 3]),
        (agg.collect_set("v"), (NAN, 1.0, NAN), [1.0, NAN]),
        (agg.count_distinct("v"), (0.0, -0.0, NAN, NAN, None), 2),
        (agg.approx_count_distinct("v"), ("a", "b", "a"), 2),
        (agg.median("v"), (1, 2, 4, 9), 3.0),
        (agg.median("v"), (), None),
        (agg.percentile("v", 0.25), (1, 2, 3, 4), 1.75),
        (agg.percentile("v", 1.0), (1, 2, NAN), NAN),
        (agg.percentile("v", 0.5), (math.inf, math.inf), math.inf),
        (agg.approx_percentile("v", 0.5), (1, 2, 3, 4), 2.0),
        (agg.approx_percentile("v", 0.0), (5, 2), 2.0),
        (agg.approx_percentile("v", 0.5), (None,), None),
        (agg.top_k("v", 2), (1, 3, None, 2, 3), [3, 3]),
        (agg.top_k("v", 2), (1.0, NAN), [NAN, 1.0]),
        (agg.top_k("v", 2), (), []),
        (agg.sort_list("v"), (3, 1, None, 2), [1, 2, 3]),
        (agg.sort_list("v", descending=True), (1.0, NAN, 2.0), [NAN, 2.0, 1.0]),
        (agg.sort_list("a", "b"), (("x", 2), ("y", 1), ("z", 2), ("w", None), (None, 0)), ["y", "x", "z"]),
        (agg.sort_list("a", "b", descending=True), (("x", 2), ("y", 1), ("z", 2)), ["x", "z", "y"]),
        (agg.sort_list("v"), (), []),
        (
            agg.top_k_by("a", "b", 2),
            (("x", 9), ("y", 1), ("x", 3), ("z", 2)),
            [{"key": "x", "value": 3}, {"key": "z", "value": 2}],
        ),
        (
            agg.top_k_by("a", "b", 2),
            (("y", 1), ("x", 1), ("w", None), (None, 5)),
            [{"key": "x", "value": 1}, {"key": "y", "value": 1}],
        ),
        (
            agg.top_k_by("a", "b", 2),
            (("x", 1.0), ("y", NAN), (None, None)),
            [{"key": "y", "value": NAN}, {"key": "x", "value": 1.0}],
        ),
        (agg.reduce(lambda a, b: a + b, "v", name="joined"), ("a", None, "b"), "ab"),
        (agg.reduce(lambda a, b: a + b, "v", name="joined"), (None,), None),
        (agg.max_by("a", "b"), (("x", 1), ("y", 2), ("z", 2), ("w", None)), "y"),
        (agg.max_by("a", "b"), (("x", 1.0), ("y", NAN)), "y"),
        (agg.max_by("a", "b"), ((None, 2), ("y", 1)), None),
        (agg.min_by("a", "b"), (("x", 2), ("y", 1), ("z", 1)), "y"),
        (agg.min_by("a", "b"), (("x", None),), None),
        (agg.weighted_avg("a", "b"), ((1, 1), (4, 2), (None, 5), (9, None)), 3.0),
        (agg.weighted_avg("a", "b"), ((1, 1), (1, -1)), None),
        (agg.weighted_avg("a", "b"), (), None),
    ],
)
def test_aggregations_by_hand(aggregation: Aggregation, values: tuple[Any, ...], expected: Any) -> None:
    assert same(result(aggregation, *values), expected)


PLACED = [
    Row(30, Position("s", 1, 0), {}, ("arrived first",)),
    Row(10, Position("s", 1, 1), {}, (None,)),
    Row(20, Position("s", 0, 9), {}, ("smallest position",)),
    Row(20, Position("s", 1, 2), {}, ("largest position",)),
    Row(40, Position("s", 1, 1, 1), {}, ("latest",)),
]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (agg.any_value("v"), "arrived first"),
        (agg.first("v"), "smallest position"),
        (agg.last("v"), "largest position"),
        (agg.earliest("v"), "smallest position"),
        (agg.latest("v"), "latest"),
        (
            agg.collect_list("v"),
            ["smallest position", "arrived first", "latest", "largest position"],
        ),
        (
            agg.collect_list("v", order="event_time"),
            ["smallest position", "largest position", "arrived first", "latest"],
        ),
    ],
)
def test_what_depends_on_position_time_and_arrival(aggregation: Aggregation, expected: Any) -> None:
    assert evaluate(aggregation, PLACED) == expected


@pytest.mark.parametrize("kind", ["first", "last", "earliest", "latest", "any_value"])
def test_one_value_of_none_is_null(kind: str) -> None:
    assert result(Aggregation(kind, ("v",)), None) is None


@given(values=INTEGERS)
def test_moments_and_quantiles_agree_with_the_standard_library(values: list[int]) -> None:
    assert result(agg.sum("v"), *values) == sum(values)
    assert values_equal(result(agg.avg("v"), *values), statistics.fmean(values))
    assert values_equal(result(agg.variance("v", ddof=0), *values), float(statistics.pvariance(values)))
    assert result(agg.median("v"), *values) == statistics.median(values)
    if len(values) > 1:
        assert values_equal(result(agg.stddev("v"), *values), statistics.stdev(values))
        quartiles = statistics.quantiles(values, n=4, method="inclusive")
        assert values_equal(result(agg.percentile("v", 0.25), *values), float(quartiles[0]))


def test_a_sum_beyond_int64_is_an_overflow_or_a_decimal() -> None:
    with pytest.raises(IntegerOverflow, match="9223372036854775808 does not fit"):
        result(agg.sum("v"), 2**63 - 1, 1)
    assert evaluate(agg.sum("v"), rows(2**63 - 1, 1), "decimal") == Decimal(2**63)
    assert isinstance(evaluate(agg.sum("v"), rows(1), "decimal"), Decimal)
    assert evaluate(agg.sum("v"), rows(0.5), "decimal") == 0.5


class Longest:
    def initial(self) -> int:
        return 0

    def add(self, state: int, text: str | None) -> int:
        return max(state, len(text or "none"))

    def merge(self, a: int, b: int) -> int:
        return max(a, b)

    def finish(self, state: int) -> int:
        return state * 10


def test_a_users_class_takes_each_message_nulls_too() -> None:
    longest = agg.aggregate_function(name="longest", returns=pa.int64())(Longest)("v")
    assert result(longest, "a", None, "bb") == 40
    assert result(longest) == 0


def test_a_users_function_takes_the_table_in_order_of_event_time() -> None:
    @agg.aggregate_function(name="listed", returns=pa.list_(pa.int64()))
    def listed(messages: pa.Table) -> Any:
        assert messages.column_names == ["v", "w"]
        return messages["v"].to_pylist()

    late_first = [
        Row(9, Position("s", 0, 0), {"v": 1}, ()),
        Row(3, Position("s", 0, 1), {"v": 2, "w": 7}, ()),
    ]
    assert evaluate(listed(), late_first) == [2, 1]
    assert evaluate(listed(), []) is None


def test_a_result_is_cast_to_what_the_function_says_it_returns() -> None:
    half = agg.aggregate_function(name="half", returns=pa.float64())(lambda messages: 1)
    assert isinstance(result(half("v"), 5), float)
    text = agg.aggregate_function(name="text", returns=pa.int64())(lambda messages: "five")
    with pytest.raises(ValueError, match="'five' is no int64"):
        result(text("v"), 5)


def test_expressions_and_filters_are_evaluated_message_by_message() -> None:
    arguments = Arguments(
        {"double": agg.sum(col("v") * 2), "large": agg.count().where(col("v") > 5), "plain": agg.max("w")}
    )
    payloads: list[dict[str, Any]] = [{"v": 3}, {"v": 7, "w": 1}, {"v": None}]
    arguments.learn(payloads)
    assert [arguments.of(payload) for payload in payloads] == [
        {"double": (6,), "large": None, "plain": (None,)},
        {"double": (14,), "large": (), "plain": (1,)},
        {"double": (None,), "large": None, "plain": (None,)},
    ]


def test_a_column_remembers_its_type_where_it_is_null_for_a_while() -> None:
    arguments = Arguments({"double": agg.sum(col("v") * 2)})
    for payload, expected in (({"v": None}, None), ({"v": 2}, 4), ({"v": None}, None), ({"v": 1.5}, 3.0)):
        arguments.learn([payload])
        assert arguments.of(payload) == {"double": (expected,)}


def test_an_expression_over_a_column_that_nobody_has_is_refused() -> None:
    arguments = Arguments({"double": agg.sum(col("nothing") * 2)})
    arguments.learn([{"v": 1}])
    with pytest.raises(UnknownColumn):
        arguments.of({"v": 1})
