"""The oracle of joins against cases worked out by hand: which pairs match, and what is emitted. Semantics "Joins"."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow as wr
from tests.oracle.joins import END, START, Play, S, join
from windrow.core.messages import Message, Position, Timing
from windrow.core.time import to_datetime
from windrow.operators.join.oracle import JoinOracle

NEAR = ("-10 seconds", "10 seconds")


def play(how: str = "inner", **options: Any) -> Play:
    return Play(join(how, **{"within": NEAR, **options}))


# -- the table of `how` ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "early", "on_time"),
    [
        ("inner", [("l1", "r1"), ("l1", "r2")], []),
        ("left", [("l1", "r1"), ("l1", "r2")], [("l2", None)]),
        ("right", [("l1", "r1"), ("l1", "r2")], [(None, "r3")]),
        ("full", [("l1", "r1"), ("l1", "r2")], [("l2", None), (None, "r3")]),
        ("semi", [("l1", None)], []),
        ("anti", [], [("l2", None)]),
    ],
)
def test_what_is_emitted_is_said_by_how(how: str, early: list[Any], on_time: list[Any]) -> None:
    made = play(how)
    rows = made.feed(left=[(1, "x", "l1"), (50, "x", "l2")], right=[(2, "x", "r1"), (3, "x", "r2")])
    assert rows == [("EARLY", *pair) for pair in early]
    assert made.right(70, "x", "r3") == []
    assert made.to(60) == []
    assert made.end() == [("ON_TIME", *pair) for pair in on_time]


def test_an_as_of_join_takes_the_newest_right_message_at_or_before() -> None:
    made = Play(join("asof", within=("-10 seconds", "0 seconds")))
    made.feed(right=[(1, "x", "r1"), (4, "x", "r4"), (6, "x", "r6"), (5, "y", "other")])
    assert made.left(5, "x", "l5") == []
    assert made.left(6, "x", "l6") == []
    assert made.to(15) == []  # the allowed lateness is the retention: right messages of 5 may still come
    assert made.right(5, "x", "r5") == []
    assert made.to(15.000001) == [("ON_TIME", "l5", "r5")]
    assert made.end() == [("ON_TIME", "l6", "r6")]


def test_of_equal_times_as_of_takes_the_last_position() -> None:
    made = Play(join("asof", within=("-10 seconds", "0 seconds")))
    made.feed(right=[(1, "x", "first"), (1, "x", "last")], left=[(5, "x", "l")])
    assert made.end() == [("ON_TIME", "l", "last")]


def test_as_of_looks_no_farther_back_than_within_allows() -> None:
    made = Play(join("asof", within=("-10 seconds", "-2 seconds"), closed="right"))
    made.feed(
        right=[(1, "x", "far"), (9, "x", "near")], left=[(10, "x", "l10"), (11, "x", "l11"), (12, "x", "l12")]
    )
    assert made.end() == [("ON_TIME", "l10", "far"), ("ON_TIME", "l11", "near"), ("ON_TIME", "l12", "near")]


def test_an_as_of_message_without_a_partner_comes_with_nulls() -> None:
    made = Play(join("asof", within=("-10 seconds", "0 seconds")))
    made.feed(left=[(5, "x", "l"), (5, None, "null")], right=[(5, "y", "r"), (5, None, "rn")])
    assert made.end() == [("ON_TIME", "l", None), ("ON_TIME", "null", None)]


def test_as_of_takes_the_newest_for_which_where_is_true() -> None:
    made = Play(join("asof", within=("-10 seconds", "0 seconds"), where=wr.col("r_a") < "r3"))
    made.feed(right=[(1, "x", "r1"), (2, "x", "r2"), (3, "x", "r3")], left=[(5, "x", "l")])
    assert made.end() == [("ON_TIME", "l", "r2")]


# -- which pairs match -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("closed", "matching"),
    [
        ("both", ["-10", "-9", "9", "10"]),
        ("left", ["-10", "-9", "9"]),
        ("right", ["-9", "9", "10"]),
        ("neither", ["-9", "9"]),
    ],
)
def test_closed_says_which_bounds_of_within_count(closed: str, matching: list[str]) -> None:
    made = play(closed=closed)
    made.feed(right=[(100 + n, "x", str(n)) for n in (-11, -10, -9, 9, 10, 11)])
    assert made.left(100, "x", "l") == [("EARLY", "l", name) for name in matching]


@pytest.mark.parametrize(
    ("closed", "matching"),
    [
        ("both", ["-5", "-4", "1", "2"]),
        ("left", ["-5", "-4", "1"]),
        ("right", ["-4", "1", "2"]),
        ("neither", ["-4", "1"]),
    ],
)
def test_closed_says_which_edges_of_a_sliding_window_count(closed: str, matching: list[str]) -> None:
    """The left window around a right message of 100 is [95, 102]; the right one is never larger than a moment."""
    made = Play(join(left=wr.sliding("5 seconds", "2 seconds", closed=closed), right=wr.sliding("0 seconds")))
    made.feed(left=[(100 + n, "x", str(n)) for n in (-6, -5, -4, 1, 2, 3)])
    assert made.right(100, "x", "r") == [("EARLY", name, "r") for name in matching]


def test_within_bounds_the_right_time_less_the_left_one() -> None:
    made = Play(join(within=("2 seconds", "4 seconds")))
    made.feed(right=[(n, "x", str(n)) for n in (7, 8, 9, 12, 13, 14, 15)])
    assert made.left(10, "x", "l") == [("EARLY", "l", "12"), ("EARLY", "l", "13"), ("EARLY", "l", "14")]


def test_windows_match_by_the_union_of_both_sides() -> None:
    """Left within 2 seconds before right, or right within 5 seconds before left."""
    made = Play(join(left=wr.sliding("2 seconds"), right=wr.sliding("5 seconds")))
    made.feed(right=[(n, "x", str(n)) for n in (4, 5, 10, 12, 13)])
    assert made.left(10, "x", "l") == [("EARLY", "l", "5"), ("EARLY", "l", "10"), ("EARLY", "l", "12")]


def test_the_order_of_arrival_does_not_decide_what_matches() -> None:
    windows = {"left": wr.sliding("2 seconds"), "right": wr.sliding("5 seconds")}
    left, right = [(t, "x", f"l{t}") for t in range(10)], [(t, "x", f"r{t}") for t in range(10)]
    one, two, together = (Play(join(**windows)) for _ in range(3))
    rows = [row for m in left for row in one.left(*m)] + [row for m in right for row in one.right(*m)]
    reversed_ = [row for m in right[::-1] for row in two.right(*m)] + [
        row for m in left[::-1] for row in two.left(*m)
    ]
    assert sorted(rows) == sorted(reversed_) == sorted(together.feed(left=left, right=right))


def test_an_input_without_a_window_is_unbounded_if_the_other_has_one() -> None:
    made = Play(join(left=wr.sliding("2 seconds"), retention="1 hour"))
    made.feed(right=[(n, "x", str(n)) for n in (0, 10, 12, 13)])
    assert made.left(10, "x", "l") == [("EARLY", "l", "0"), ("EARLY", "l", "10"), ("EARLY", "l", "12")]


def test_inputs_without_windows_are_bounded_by_the_retention_alone() -> None:
    made = Play(join(retention="5 seconds"))
    made.feed(right=[(n, "x", str(n)) for n in (4, 5, 15, 16)])
    assert made.left(10, "x", "l") == [("EARLY", "l", "5"), ("EARLY", "l", "15")]


def test_without_a_retention_it_is_as_long_as_the_windows_reach_in_the_longer_direction() -> None:
    made = Play(join(left=wr.sliding("2 seconds"), right=wr.sliding("5 seconds", "1 second")))
    assert made.oracle.definition.retention.time_us == 5 * S


def test_a_tumbling_window_around_a_moment_is_the_one_that_covers_it() -> None:
    made = Play(join(left=wr.tumbling("10 seconds", offset="3 seconds"), right=wr.sliding("0 seconds")))
    made.feed(left=[(n, "x", str(n)) for n in (2, 3, 12, 13)])
    assert made.right(7, "x", "r") == [("EARLY", "3", "r"), ("EARLY", "12", "r")]


def test_a_hopping_window_around_a_moment_is_the_hull_of_those_that_cover_it() -> None:
    """[-5, 5) and [0, 10) cover 4; [0, 10) and [5, 15) cover 7."""
    made = Play(join(left=wr.hopping("10 seconds", "5 seconds"), right=wr.sliding("0 seconds")))
    made.feed(left=[(n, "x", str(n)) for n in (-6, -5, 0, 9, 10, 14, 15)])
    assert made.right(4, "x", "r") == [("EARLY", name, "r") for name in ("-5", "0", "9")]
    assert made.right(7, "x", "r") == [("EARLY", name, "r") for name in ("0", "9", "10", "14")]


def test_within_bounds_what_windows_allow() -> None:
    made = Play(
        join(left=wr.sliding("5 seconds"), right=wr.sliding("5 seconds"), within=("-1 second", "2 seconds"))
    )
    made.feed(right=[(n, "x", str(n)) for n in range(5, 16)])
    assert made.left(10, "x", "l") == [("EARLY", "l", name) for name in ("9", "10", "11", "12")]


def test_keys_must_be_equal() -> None:
    made = play()
    made.feed(right=[(1, "x", "rx"), (1, "y", "ry")])
    assert made.left(1, "y", "l") == [("EARLY", "l", "ry")]


def test_without_keys_every_message_is_a_candidate() -> None:
    made = play(on=(), where=wr.col("l_k") < wr.col("r_k"))
    made.feed(right=[(1, "x", "rx"), (1, "z", "rz")])
    assert made.left(1, "y", "l") == [("EARLY", "l", "rz")]


def test_a_null_key_equals_nothing() -> None:
    made = play("full")
    assert made.feed(left=[(1, None, "l")], right=[(1, None, "r")]) == []
    assert made.end() == [("ON_TIME", "l", None), ("ON_TIME", None, "r")]


def test_a_message_with_a_null_key_waits_as_long_as_any_other() -> None:
    made = play("left", allowed_lateness="0 seconds")
    made.left(1, None, "l")
    assert made.to(11) == []
    assert made.to(11.000001) == [("ON_TIME", "l", None)]


def test_where_must_be_true_and_null_is_not() -> None:
    made = play("left", where=wr.col("l_a") < wr.col("r_a"))
    made.feed(right=[(1, "x", "a"), (1, "x", None), (1, "x", "z")])
    assert made.left(1, "x", "l") == [("EARLY", "l", "z")]
    assert made.left(1, "x", None) == []
    assert made.end() == [("ON_TIME", None, None)]


def test_where_may_be_a_function_of_two_tables() -> None:
    def less(left: pa.Table, right: pa.Table) -> Any:
        return pc.less(left.column("a"), right.column("a"))

    made = play(where=wr.pairs(less, name="less"))
    made.feed(right=[(1, "x", "a"), (1, "x", None), (1, "x", "z")])
    assert made.left(1, "x", "l") == [("EARLY", "l", "z")]


# -- columns ---------------------------------------------------------------------------------------------------------


def test_columns_are_keys_then_left_then_right_and_shared_names_are_prefixed() -> None:
    definition = join(on={"id": "order"}, within=NEAR)
    oracle = JoinOracle(definition)
    left = Message({"t": 1, "v": 2, "id": 7}, Position("l:s", 0, 0))
    right = Message({"order": 7, "t": 3, "w": 4}, Position("r:s", 0, 0))
    [row] = oracle.ingest({"l": [left], "r": [right]}, 0, START).rows
    assert list(row.values.items()) == [
        ("id", 7),
        ("l_t", to_datetime(1)),
        ("v", 2),
        ("r_t", to_datetime(3)),
        ("w", 4),
    ]


def test_an_unmatched_right_message_has_its_key_under_the_left_name() -> None:
    oracle = JoinOracle(
        join("right", on={"id": "order"}, within=NEAR),
        {"l": pa.schema({"id": pa.int64(), "t": pa.int64(), "v": pa.int64()})},
    )
    oracle.ingest({"r": [Message({"order": 7, "t": 3}, Position("r:s", 0, 0))]}, 0, START)
    [row] = oracle.advance(END, 0).rows
    assert row.values == {"id": 7, "l_t": None, "v": None, "r_t": to_datetime(3)}


def test_a_right_column_named_like_a_key_is_prefixed_and_no_left_one_is() -> None:
    oracle = JoinOracle(join(on={"id": "order"}, within=NEAR))
    left = Message({"t": 1, "id": 7, "order": "l"}, Position("l:s", 0, 0))
    right = Message({"t": 1, "order": 7, "id": "r"}, Position("r:s", 0, 0))
    [row] = oracle.ingest({"l": [left], "r": [right]}, 0, START).rows
    assert row.values == {"id": 7, "l_t": to_datetime(1), "order": "l", "r_t": to_datetime(1), "r_id": "r"}


def test_semi_and_anti_rows_have_the_left_columns_as_they_are() -> None:
    oracle = JoinOracle(join("semi", within=NEAR))
    left = Message({"t": 1, "k": 7, "v": 1}, Position("l:s", 0, 0))
    right = Message({"t": 1, "k": 7, "v": 2}, Position("r:s", 0, 0))
    [row] = oracle.ingest({"l": [left], "r": [right]}, 0, START).rows
    assert row.values == {"k": 7, "t": to_datetime(1), "v": 1}


def test_a_row_shows_its_timing_and_values() -> None:
    row = wr.JoinedRow({"id": 3, "cost": 0.5}, Timing.EARLY)
    assert (str(row), row["cost"]) == ("EARLY  id=3 cost=0.5", 0.5)
