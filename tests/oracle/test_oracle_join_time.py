"""The oracle of joins in time: what is late, when a message goes, when rows are emitted. Semantics "Joins"."""

import math
from typing import Any

import pytest

import windrow as wr
from tests.oracle.joins import START, Play, S, join, self_join
from windrow.core.messages import Message, Position
from windrow.operators.join.oracle import JoinOracle

NEAR = ("-10 seconds", "10 seconds")


def play(how: str = "inner", **options: Any) -> Play:
    return Play(join(how, **{"within": NEAR, **options}))


# -- late ------------------------------------------------------------------------------------------------------------


def test_a_match_is_late_if_the_message_that_completes_it_came_below_the_watermark() -> None:
    made = play()
    made.feed(right=[(5, "x", "r")])
    made.to(6)
    assert made.left(5.999999, "x", "behind") == [("LATE", "behind", "r")]
    assert made.left(6, "x", "ahead") == [("EARLY", "ahead", "r")]


def test_completed_by_two_messages_of_one_step_a_match_is_late_if_both_are() -> None:
    made = play()
    made.to(6)
    assert made.feed(left=[(5, "x", "l5"), (6, "x", "l6")], right=[(5, "x", "r5"), (7, "x", "r7")]) == [
        ("LATE", "l5", "r5"),
        ("EARLY", "l5", "r7"),
        ("EARLY", "l6", "r5"),
        ("EARLY", "l6", "r7"),
    ]


def test_a_message_is_too_late_when_it_is_open_no_longer_than_the_lateness_allows() -> None:
    made = play("left", retention="30 seconds", allowed_lateness="10 seconds")
    made.to(50)
    for second in (19.999999, 20, 39.999999, 40):
        made.left(second, "x", str(second))
    assert made.dead == [
        ("out_of_retention", "19.999999"),
        ("too_late", "20"),
        ("too_late", "39.999999"),
    ]
    assert made.end() == [("ON_TIME", "40", None)]


def test_an_aligned_message_is_open_until_the_end_of_its_last_window() -> None:
    made = Play(
        join(
            left=wr.hopping("10 seconds", "5 seconds"),
            right=wr.sliding("0 seconds"),
            allowed_lateness="0 seconds",
        )
    )
    made.to(14)
    made.left(4, "x", "open until 10")
    made.left(5, "x", "open until 15")
    made.right(13, "x", "open until 13")
    assert made.dead == [("too_late", "open until 10"), ("too_late", "open until 13")]


def test_malformed_times_are_dead_letters() -> None:
    made = Play(self_join(within=NEAR))
    for value in (None, math.nan, "no time", 1e12, -1e12):
        made.left(value, "x", str(value))
    made.left("1970-01-01T00:00:05+00:00", "x", "a time")
    assert made.dead == [("malformed", str(v)) for v in (None, math.nan, "no time", 1e12, -1e12)]
    assert made.kept("l") == ["a time"]


def test_times_too_far_ahead_are_dead_letters() -> None:
    one = wr.Input("l", event_time="t", max_ahead="10 seconds")
    made = Play(wr.Join(left=one, right=one, on="k", within=NEAR))
    made.clock(5)
    made.left(15, "x", "in time")
    made.left(15.000001, "x", "too far ahead")
    assert made.dead == [("malformed", "too far ahead")]


def test_dead_letters_do_not_count_for_the_watermark() -> None:
    oracle = JoinOracle(join(within=NEAR))
    messages = [Message({"t": t, "k": 1}, Position("l:s", 0, i)) for i, t in enumerate((5, None, 7))]
    oracle.ingest({"l": messages}, 0, START)
    assert oracle.counted == [("l:s", 0, 5), ("l:s", 0, 7)]


# -- when a message goes ---------------------------------------------------------------------------------------------


def test_a_message_can_match_no_more_when_every_time_of_a_partner_would_be_too_late() -> None:
    made = Play(join("full", within=("-3 seconds", "5 seconds"), allowed_lateness="2 seconds"))
    made.feed(left=[(10, "x", "l")], right=[(10, "y", "r")])
    assert made.to(15) == []  # a left message of 13 is still open
    assert made.to(15.000001) == [("ON_TIME", None, "r")]
    assert made.to(17) == []
    assert made.to(17.000001) == [("ON_TIME", "l", None)]


def test_a_message_waits_for_partners_whose_own_window_is_open() -> None:
    made = Play(
        join(
            "left",
            within=NEAR,
            right=wr.tumbling("60 seconds"),
            left=wr.tumbling("60 seconds"),
            allowed_lateness="0 seconds",
        )
    )
    made.left(10, "x", "l")
    assert made.to(59) == []
    assert made.to(60) == [("ON_TIME", "l", None)]


def test_every_message_that_is_taken_meets_its_partners_however_late() -> None:
    made = play("left", allowed_lateness="1 minute", retention="1 minute")
    made.left(10, "x", "l")
    made.to(79)
    assert made.right(20, "x", "r") == [("LATE", "l", "r")]
    assert made.end() == []


def test_for_queries_messages_are_kept_as_long_as_the_retention_says() -> None:
    made = Play(
        join("left", within=("-1 second", "0 seconds"), retention="1 minute", allowed_lateness="0 seconds")
    )
    made.feed(left=[(10, "x", "l")], right=[(10, "y", "r")])
    assert made.to(20) == [("ON_TIME", "l", None)]
    assert made.to(70) == []
    assert (made.kept("l"), made.kept("r")) == (["l"], ["r"])
    made.to(70.000001)
    assert made.oracle.is_empty


def test_messages_that_can_match_are_kept_beyond_the_retention() -> None:
    made = Play(join(within=NEAR, allowed_lateness="5 seconds"))
    made.left(10, "x", "l")
    made.to(25)
    assert made.kept("l") == ["l"]
    made.to(25.000001)
    assert made.oracle.is_empty


def test_for_ever_ends_with_the_end_of_time() -> None:
    made = Play(join("full", retention=wr.forever))
    made.feed(left=[(1, "x", "l")], right=[(1, "y", "r")])
    assert made.to(10**9) == []
    assert made.end() == [("ON_TIME", "l", None), ("ON_TIME", None, "r")]
    made.left(10**9, "x", "after the end")
    assert made.dead == [("too_late", "after the end")]


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
@pytest.mark.parametrize("window", [None, wr.sliding("5 seconds"), wr.rows(2), wr.tumbling("5 seconds")])
def test_nothing_is_kept_after_the_end_of_time(how: str, window: Any) -> None:
    emit = wr.Emit(early=wr.every("1 hour"), late=wr.every("1 hour"))
    made = Play(join(how, left=window, right=window, retention="1 hour", emit=emit))
    made.feed(left=[(1, "x", "l"), (1, None, "l")], right=[(1, "x", "r"), (2, "y", "r")])
    assert not made.oracle.is_empty
    made.end()


# -- what is emitted, when -------------------------------------------------------------------------------------------


def test_matches_wait_for_a_period_of_now() -> None:
    made = play("left", emit=wr.Emit(early=wr.every("10 seconds"), late=wr.every_batch))
    assert made.feed(left=[(5, "x", "l")], right=[(5, "x", "r")]) == []
    assert made.clock(9) == []
    assert made.clock(10) == [("EARLY", "l", "r")]
    assert made.clock(20) == []


def test_each_timing_has_a_period_of_its_own() -> None:
    made = play(emit=wr.Emit(early=wr.every("10 seconds"), late=wr.every("15 seconds")))
    made.to(6)
    made.right(6, "x", "r")
    made.left(5, "x", "l5")
    made.left(6, "x", "l6")
    assert made.clock(10) == [("EARLY", "l6", "r")]
    assert made.clock(15) == [("LATE", "l5", "r")]


def test_an_ingest_ticks_nothing() -> None:
    made = play(emit=wr.Emit(early=wr.every("10 seconds"), late=wr.every("10 seconds")))
    made.right(5, "x", "r")
    made.now_us = 11 * S
    assert made.left(5, "x", "l") == []
    assert made.clock(11) == [("EARLY", "l", "r")]


def test_what_waits_is_released_at_the_end_of_time_after_what_the_watermark_decides() -> None:
    made = play("left", emit=wr.Emit(early=wr.every("10 seconds"), late=wr.every("10 seconds")))
    made.feed(left=[(5, "x", "l"), (6, "y", "never")], right=[(5, "x", "r")])
    assert made.end() == [("ON_TIME", "never", None), ("EARLY", "l", "r")]


def test_rows_that_waited_come_in_the_order_of_the_steps() -> None:
    made = play(emit=wr.Emit(early=wr.every("10 seconds"), late=wr.every("10 seconds")))
    made.to(6)
    made.feed(left=[(6, "x", "l1"), (5, "x", "l2")])
    made.right(6, "x", "r1")
    made.right(5, "x", "r2")
    assert made.clock(10) == [
        ("EARLY", "l1", "r1"),
        ("EARLY", "l2", "r1"),
        ("LATE", "l1", "r2"),
        ("LATE", "l2", "r2"),
    ]


def test_rows_of_a_step_are_sorted_by_the_left_position_then_the_right_one() -> None:
    oracle = JoinOracle(join(within=NEAR))
    left = [Message({"t": 0, "k": 1, "a": n}, Position("l:s", p, n)) for p, n in ((1, 0), (0, 9), (0, 3))]
    right = [Message({"t": 0, "k": 1, "b": n}, Position("r:s", p, n)) for p, n in ((1, 1), (0, 5))]
    rows = oracle.ingest({"l": left, "r": right}, 0, START).rows
    assert [(row["a"], row["b"]) for row in rows] == [(3, 5), (3, 1), (9, 5), (9, 1), (0, 5), (0, 1)]


def test_unmatched_rows_are_sorted_left_before_right_then_by_time_and_position() -> None:
    made = play("full")
    made.feed(right=[(3, "q", "r3"), (1, "q", "r1")])
    made.feed(left=[(4, "x", "l4"), (2, "x", "first"), (2, "x", "second")])
    rows = made.end()
    assert [left or right for _, left, right in rows] == ["first", "second", "l4", "r1", "r3"]


def test_a_semi_join_emits_the_timing_of_the_first_match() -> None:
    made = play("semi")
    made.left(9, "x", "l")
    made.to(9.5)
    assert made.feed(right=[(9, "x", "late"), (10, "x", "early")]) == [("LATE", "l", None)]
    assert made.right(10, "x", "again") == []
