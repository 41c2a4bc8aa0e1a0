"""Small tables with known results, what kinds refuse, and the numbers that go wrong elsewhere."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from windrow.core import aggregations as wr
from windrow.core.errors import BadAggregate, TypeClash
from windrow.operators.aggregations import Arguments, Kernel, Parts, concat_parts, lift_where, make_kernel
from windrow.operators.aggregations.base import KERNELS
from windrow.operators.steps.groups import Groups, stable_order

ONE = pa.int64()


def rows(*columns: pa.Array, times: list[int] | None = None, positions: list[Any] | None = None) -> Arguments:
    size = len(columns[0]) if columns else len(times or [])
    order = None
    if positions is not None:
        order = pa.array([None if p is None else bytes([p]) for p in positions], pa.binary())
    return Arguments(pa.array(times or [0] * size, pa.int64()), order, columns)


def one_group(kernel: Kernel, *pieces: Parts) -> Parts:
    """All the pieces merged, as states of one (key, window)."""
    sizes = [len(next(iter(p.values()))) for p in pieces]
    return kernel.merge(concat_parts(list(zip(pieces, sizes, strict=True))), Groups([], sum(sizes)), [])


def value(aggregation: wr.Aggregation, *columns: pa.Array, **how: Any) -> Any:
    """The result over one group of rows."""
    kernel = make_kernel(aggregation, [c.type for c in columns])
    values = kernel.finish(one_group(kernel, kernel.lift(rows(*columns, **how))), 1)
    assert values.type == kernel.output_type()
    return values[0].as_py()


def commits(aggregation: wr.Aggregation, *steps: Arguments) -> Any:
    """The result over one group that gets one step after the other."""
    kernel = make_kernel(aggregation, [v.type for v in steps[0].values])
    state: list[Parts] = []
    for step in steps:
        state = [one_group(kernel, *state, one_group(kernel, kernel.lift(step)))]
    return kernel.finish(state[0], 1)[0].as_py()


def test_flights_of_three_carriers_in_one_table() -> None:
    carrier = pa.array(["AA", "UA", "AA", "DL", "UA", "AA"])
    delay = pa.array([10, None, -4, 7, 30, 3])
    groups = Groups([carrier], 6)
    results: dict[str, list[Any]] = {}
    for aggregation in (wr.count(), wr.count("delay"), wr.sum("delay"), wr.avg("delay"), wr.max("delay"),
                        wr.variance("delay"), wr.first("delay"), wr.collect_list("delay"), wr.median("delay"),
                        wr.top_k("delay", 2)):  # fmt: skip
        columns = () if not aggregation.args else (delay,)
        kernel = make_kernel(aggregation, [c.type for c in columns])
        lifted = kernel.lift(rows(*columns, times=[0] * 6))
        results[repr(aggregation)] = kernel.finish(kernel.merge(lifted, groups, []), 3).to_pylist()
    assert results == {
        "wr.count()": [3, 2, 1],
        "wr.count('delay')": [3, 1, 1],
        "wr.sum('delay')": [9, 30, 7],
        "wr.avg('delay')": [3.0, 30.0, 7.0],
        "wr.max('delay')": [10, 30, 7],
        "wr.variance('delay', ddof=1)": [49.0, None, None],
        "wr.first('delay')": [10, 30, 7],
        "wr.collect_list('delay', order='position')": [[10, -4, 3], [30], [7]],
        "wr.median('delay')": [3.0, 30.0, 7.0],
        "wr.top_k('delay', k=2)": [[10, 3], [30], [7]],
    }


# -- sums -------------------------------------------------------------------------------------------------------------


def test_a_sum_that_passes_int64_on_the_way_comes_back_exact() -> None:
    numbers = [2**62, 2**62, 2**62, -(2**62), -(2**62), -(2**62), 5]
    assert value(wr.sum("x"), pa.array(numbers)) == 5
    assert commits(wr.sum("x"), *(rows(pa.array([n])) for n in numbers)) == 5


def test_a_sum_beyond_int64_is_null_and_an_overflow() -> None:
    kernel = make_kernel(wr.sum("x"), [ONE])
    totals = kernel.finish(one_group(kernel, kernel.lift(rows(pa.array([2**62, 2**62])))), 1)
    assert totals.to_pylist() == [None]
    assert kernel.overflowed(totals).to_pylist() == [True]
    assert make_kernel(wr.avg("x"), [ONE]).overflowed(pa.nulls(1, pa.float64())).to_pylist() == [False]


def test_a_sum_beyond_int64_is_a_decimal_on_request() -> None:
    kernel = make_kernel(wr.sum("x"), [ONE], {"integer_overflow": "decimal"})
    totals = kernel.finish(one_group(kernel, kernel.lift(rows(pa.array([2**62, 2**62])))), 1)
    assert totals.to_pylist() == [Decimal(2**63)]
    assert totals.type == pa.decimal128(38, 0)


def test_a_decimal_sum_beyond_38_digits_is_null_where_arrow_would_wrap() -> None:
    largest = Decimal("9" * 36 + ".99")
    column = pa.array([largest] * 3, pa.decimal128(38, 2))
    kernel = make_kernel(wr.sum("x"), [column.type])
    totals = kernel.finish(one_group(kernel, kernel.lift(rows(column))), 1)
    assert kernel.overflowed(totals).to_pylist() == [True]
    assert value(wr.sum("x"), pa.array([largest], column.type)) == largest
    assert value(wr.sum("x"), pa.array([largest, largest, largest.copy_negate()], column.type)) == largest


def test_partials_of_narrow_integers_may_lack_the_high_limb() -> None:
    kernel = make_kernel(wr.sum("x"), [pa.int32()])
    state = kernel.lift(rows(pa.array([2**31 - 1, -5], pa.int32())))
    total = one_group(kernel, state, {"lo": pa.array([-(2**40), None])})
    assert kernel.finish(total, 1).to_pylist() == [2**31 - 6 - 2**40]
    only = one_group(kernel, {"lo": pa.array([-7])})
    assert only["hi"].to_pylist() == [-1]
    assert kernel.finish(only, 1).to_pylist() == [-7]


# -- moments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1e9, -1e12, 2.0**45])
def test_variance_does_not_lose_its_digits_to_a_large_offset(offset: float) -> None:
    steps = [
        rows(pa.array([offset + 4, offset + 7])),
        rows(pa.array([offset + 13])),
        rows(pa.array([offset + 16])),
    ]
    assert commits(wr.variance("x"), *steps) == 30.0
    assert commits(wr.stddev("x", ddof=0), *steps) == math.sqrt(22.5)


def test_variance_of_too_few_values_is_null() -> None:
    nothing, one = pa.array([None], pa.float64()), pa.array([5.0])
    assert value(wr.variance("x"), nothing) is None
    assert value(wr.variance("x"), one) is None
    assert value(wr.variance("x", ddof=0), nothing) is None
    assert value(wr.variance("x", ddof=0), one) == 0.0
    assert value(wr.stddev("x"), one) is None


def test_variance_with_an_infinity_is_nan_not_an_error() -> None:
    assert math.isnan(value(wr.variance("x"), pa.array([1.0, math.inf])))
    assert math.isnan(value(wr.variance("x", ddof=0), pa.array([math.inf])))


def test_a_weighted_average_is_null_where_the_weights_cancel() -> None:
    assert value(wr.weighted_avg("x", "w"), pa.array([1.0, 3.0]), pa.array([1, 3])) == 2.5
    assert value(wr.weighted_avg("x", "w"), pa.array([1.0, 3.0]), pa.array([2, -2])) is None
    assert value(wr.weighted_avg("x", "w"), pa.array([1.0, None]), pa.array([None, 5])) is None
    assert value(wr.weighted_avg("x", "w"), pa.array([1.0, None]), pa.array([2, 5])) == 1.0


# -- order ------------------------------------------------------------------------------------------------------------


def test_min_and_max_take_nan_as_the_largest_number() -> None:
    column = pa.array([math.nan, 1.0, math.inf])
    assert value(wr.min("x"), column) == 1.0
    assert math.isnan(value(wr.max("x"), column))
    assert math.isnan(value(wr.min("x"), pa.array([math.nan, None])))
    top = value(wr.top_k("x", 2), column)
    assert math.isnan(top[0]) and top[1] == math.inf


def test_a_later_commit_may_bring_the_first_position() -> None:
    early, late = rows(pa.array(["c"]), positions=[1]), rows(pa.array(["a", "b"]), positions=[5, 9])
    assert commits(wr.first("x"), late, early) == "c"
    assert commits(wr.last("x"), late, early) == "b"
    assert commits(wr.any_value("x"), late, early) == "a"
    assert commits(wr.collect_list("x"), late, early) == ["c", "a", "b"]


def test_without_positions_first_and_last_go_by_arrival() -> None:
    steps = [rows(pa.array(["a", "b"])), rows(pa.array(["c"]))]
    assert commits(wr.first("x"), *steps) == "a"
    assert commits(wr.last("x"), *steps) == "c"
    assert commits(wr.collect_list("x"), *steps) == ["a", "b", "c"]


def test_rows_without_a_position_count_as_before_those_that_have_one() -> None:
    placed, unplaced = rows(pa.array(["p"]), positions=[1]), rows(pa.array(["u", "v"]))
    for steps in ((placed, unplaced), (unplaced, placed)):
        assert commits(wr.first("x"), *steps) == "u"
        assert commits(wr.last("x"), *steps) == "p"
        assert commits(wr.collect_list("x"), *steps) == ["u", "v", "p"]


def test_first_and_last_skip_nulls_but_max_by_keeps_them() -> None:
    column = pa.array([None, "a", None])
    assert value(wr.first("x"), column) == "a"
    assert value(wr.last("x"), column) == "a"
    assert value(wr.max_by("x", "y"), column, pa.array([1, 2, 3])) is None
    assert value(wr.max_by("x", "y"), column, pa.array([1, 2, None])) == "a"


def test_event_time_decides_and_position_breaks_the_tie() -> None:
    older = rows(pa.array(["late 9", "late 7"]), times=[5, 8], positions=[9, 7])
    newer = rows(pa.array(["early 2", "late 3"]), times=[5, 8], positions=[2, 3])
    assert commits(wr.earliest("x"), older, newer) == "early 2"
    assert commits(wr.latest("x"), older, newer) == "late 7"
    assert commits(wr.collect_list("x", order="event_time"), older, newer) == [
        "early 2",
        "late 9",
        "late 3",
        "late 7",
    ]


def test_without_positions_equal_event_times_go_by_arrival() -> None:
    steps = [rows(pa.array(["a", "b"]), times=[5, 5]), rows(pa.array(["c"]), times=[5])]
    assert commits(wr.earliest("x"), *steps) == "a"
    assert commits(wr.latest("x"), *steps) == "c"


def test_of_equal_maxima_the_first_position_wins() -> None:
    older = rows(pa.array(["b"]), pa.array([7]), positions=[4])
    newer = rows(pa.array(["a", "c"]), pa.array([7, 7]), positions=[2, 6])
    assert commits(wr.max_by("x", "y"), older, newer) == "a"
    assert commits(wr.min_by("x", "y"), older, newer) == "a"


def test_max_by_takes_nan_as_the_largest_and_the_zeros_as_equal() -> None:
    column = pa.array(["a", "b", "c"])
    assert value(wr.max_by("x", "y"), column, pa.array([math.inf, math.nan, 1.0])) == "b"
    assert value(wr.min_by("x", "y"), column, pa.array([0.0, -0.0, math.nan])) == "a"


# -- collections ------------------------------------------------------------------------------------------------------


def test_a_set_is_sorted_and_knows_one_nan_and_one_zero() -> None:
    column = pa.array([3.0, math.nan, -0.0, 0.0, None, math.nan, -5.0])
    values = value(wr.collect_set("x"), column)
    assert values[:3] == [-5.0, 0.0, 3.0] and math.isnan(values[3]) and len(values) == 4
    assert math.copysign(1, values[1]) == 1.0
    assert value(wr.count_distinct("x"), column) == 4


def test_collections_of_nothing_are_empty_not_null() -> None:
    nothing = pa.array([None], pa.int64())
    for aggregation in (wr.collect_list("x"), wr.collect_set("x"), wr.top_k("x", 3)):
        assert value(aggregation, nothing) == []
    assert value(wr.count_distinct("x"), nothing) == 0
    assert value(wr.approx_count_distinct("x"), nothing) == 0


def test_lists_of_structs_are_collected_whole() -> None:
    column = pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": []}])
    assert value(wr.collect_list("x"), column) == [{"a": 1, "b": ["x"]}, {"a": None, "b": []}]


# -- percentiles ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.0, 1.0), (0.25, 3.25), (0.5, 5.5), (0.95, 9.549999999999999), (1.0, 10.0)]
)
def test_percentiles_interpolate_as_spark_does(fraction: float, expected: float) -> None:
    assert value(wr.percentile("x", fraction), pa.array(range(10, 0, -1))) == expected


def test_a_percentile_between_equal_values_is_that_value() -> None:
    assert value(wr.percentile("x", 0.9), pa.array([7.7, 7.7, 7.7])) == 7.7  # 0.2 * 7.7 + 0.8 * 7.7 is not


def test_the_median_of_an_even_number_lies_in_the_middle() -> None:
    assert value(wr.median("x"), pa.array([4, None, 1])) == 2.5
    assert math.isnan(value(wr.median("x"), pa.array([1.0, math.nan, math.nan])))
    assert value(wr.median("x"), pa.array([math.inf, math.inf])) == math.inf
    assert value(wr.median("x"), pa.array([None], pa.int64())) is None


# -- filters ----------------------------------------------------------------------------------------------------------


def test_a_filter_leaves_the_identity_where_it_is_not_true() -> None:
    kernel = make_kernel(wr.sum("x"), [ONE])
    parts = lift_where(kernel, rows(pa.array([1, 2, 4])), pa.array([True, None, False]))
    assert parts["lo"].to_pylist() == [1, None, None]
    assert kernel.finish(one_group(kernel, parts), 1).to_pylist() == [1]


def test_a_filter_that_no_row_passes_counts_nothing() -> None:
    kernel = make_kernel(wr.count(), [])
    parts = lift_where(kernel, rows(times=[0, 0]), pa.array([False, None]))
    assert parts["n"].to_pylist() == [None, None]
    assert kernel.finish(one_group(kernel, parts), 1).to_pylist() == [0]


# -- widening ---------------------------------------------------------------------------------------------------------


def test_large_integers_meet_floats_where_arrow_refuses_to_promote_them() -> None:
    pieces: list[tuple[Parts, int]] = [({"v": pa.array([2**62 + 1])}, 1), ({"v": pa.array([1.5])}, 1)]
    assert concat_parts(pieces)["v"].to_pylist() == [2.0**62, 1.5]
    lists: list[tuple[Parts, int]] = [({"v": pa.array([[2**62 + 1]])}, 1), ({"v": pa.array([[1.5]])}, 1)]
    assert concat_parts(lists)["v"].to_pylist() == [[2.0**62], [1.5]]
    kernel = make_kernel(wr.max("x"), [pa.float64()])
    assert kernel.finish(pieces[0][0], 1).to_pylist() == [2.0**62]


def test_a_piece_that_lacks_a_part_is_filled_with_nulls() -> None:
    pieces: list[tuple[Parts, int]] = [({"a": pa.array([1])}, 1), ({"b": pa.array(["x"])}, 1), ({}, 2)]
    joined = concat_parts(pieces)
    assert joined["a"].to_pylist() == [1, None, None, None]
    assert joined["b"].to_pylist() == [None, "x", None, None]


# -- what is refused --------------------------------------------------------------------------------------------------

STRUCT = pa.struct([("a", ONE)])
REFUSED = [
    (wr.sum("x"), [pa.string()], "string cannot be summed: cast it to a number"),
    (wr.avg("x"), [pa.date32()], r"date32\[day\] cannot be summed: cast it to a number"),
    (wr.sum("x"), [pa.decimal256(76, 50)], r"decimal256\(76, 50\) cannot be summed"),
    (wr.min("x"), [STRUCT], "struct<a: int64> has no order: name one of its fields"),
    (wr.max("x"), [pa.list_(ONE)], "list<item: int64> has no order"),
    (wr.variance("x"), [pa.string()], "string has no variance: cast it to a number"),
    (wr.stddev("x"), [pa.timestamp("us")], r"timestamp\[us\] has no variance"),
    (wr.collect_set("x"), [STRUCT], "cannot be compared: name one of its fields"),
    (wr.count_distinct("x"), [STRUCT], "cannot be compared"),
    (wr.approx_count_distinct("x"), [STRUCT], "cannot be compared"),
    (wr.median("x"), [pa.string()], "string has no percentiles: cast it to a number"),
    (wr.percentile("x", 0.9), [pa.date32()], "has no percentiles"),
    (wr.approx_percentile("x", 0.9), [pa.string()], "string has no percentiles"),
    (wr.top_k("x", 3), [STRUCT], "has no order: name one of its fields"),
    (
        wr.top_k_by("x", "y", 3),
        [STRUCT, ONE],
        "'x' of type struct<a: int64> has no order: name one of its fields",
    ),
    (wr.top_k_by("x", "y", 3), [ONE, STRUCT], "'y' of type struct<a: int64> has no order"),
    (wr.sort_list("x"), [STRUCT], "'x' of type struct<a: int64> has no order"),
    (wr.sort_list("x", "y"), [ONE, STRUCT], "'y' of type struct<a: int64> has no order"),
    (wr.reduce(max, "x"), [pa.timestamp("us")], r"timestamp\[us\] cannot be reduced: cast them to numbers"),
    (wr.reduce(max, "x"), [pa.decimal128(5, 2)], "cannot be reduced"),
    (wr.max_by("x", "y"), [ONE, STRUCT], "'y' of type struct<a: int64> has no order"),
    (wr.min_by("x", "y"), [ONE, pa.month_day_nano_interval()], "has no order"),
    (wr.weighted_avg("x", "y"), [ONE, pa.string()], "the weight of type string is no number: cast it"),
    (wr.weighted_avg("x", "y"), [pa.string(), ONE], "the column of type string is no number"),
]


@pytest.mark.parametrize(("aggregation", "types", "message"), REFUSED, ids=str)
def test_a_column_of_the_wrong_type_is_refused_at_construction(
    aggregation: wr.Aggregation, types: list[pa.DataType], message: str
) -> None:
    with pytest.raises(TypeClash, match=message):
        make_kernel(aggregation, types)


def test_an_unknown_kind_is_refused_naming_the_known_ones() -> None:
    with pytest.raises(
        BadAggregate, match=r"wr\.mode\('x'\) is no incremental aggregation: known are any_value"
    ):
        make_kernel(wr.Aggregation("mode", ("x",)), [ONE])


@pytest.mark.parametrize("kind", sorted(set(KERNELS) - {"user"}))
def test_merging_hands_back_one_row_per_group_also_for_groups_without_rows(kind: str) -> None:
    params = {"ddof": 1, "order": "position", "lg_k": 12, "fraction": 0.5, "k": 8, "descending": True}
    kernel = make_kernel(wr.Aggregation(kind, ("x", "y"), tuple(params.items())), [ONE, ONE])
    lifted = kernel.lift(rows(pa.array([1, 2]), pa.array([3, 4])))
    merged = kernel.merge(lifted, Groups.of_codes(np.array([3, 1]), 5), [])
    assert {len(p) for p in merged.values()} == {5}
    values = kernel.finish(merged, 5).to_pylist()
    nothing = kernel.finish({}, 1).to_pylist()[0]
    assert [values[g] for g in (0, 2, 4)] == [nothing] * 3


# -- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1 << 16, (1 << 16) + 1, 3_000_000])
def test_stable_order_is_a_stable_sort_at_any_number_of_groups(size: int) -> None:
    codes = np.random.default_rng(size).integers(0, size, 5000)
    codes[:2] = size - 1, 0
    assert stable_order(codes, size).tolist() == np.argsort(codes, kind="stable").tolist()
    assert stable_order(np.sort(codes), size).tolist() == list(range(5000))
