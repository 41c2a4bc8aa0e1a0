"""The oracle of joins where a window is of rows, or a stream meets itself. Semantics "Joins"."""

from typing import Any

import windrow as wr
from tests.oracle.joins import Play, S, join, self_join

NEAR = ("-10 seconds", "10 seconds")


def play(how: str = "inner", **options: Any) -> Play:
    return Play(join(how, **{"within": NEAR, **options}))


# -- windows of rows -------------------------------------------------------------------------------------------------


def test_a_left_message_meets_the_newest_rows_that_earlier_steps_brought() -> None:
    made = Play(join(right=wr.rows(2), retention="1 hour"))
    made.feed(right=[(n, "x", f"r{n}") for n in (1, 2, 3)])
    assert made.feed(left=[(9, "x", "l1"), (9, "x", "l2")]) == [
        ("EARLY", left, right) for left in ("l1", "l2") for right in ("r2", "r3")
    ]


def test_a_right_message_meets_the_newest_left_rows_this_steps_among_them() -> None:
    made = Play(join(left=wr.rows(2), retention="1 hour"))
    made.left(1, "x", "l1")
    assert made.feed(left=[(2, "x", "l2"), (3, "x", "l3")], right=[(4, "x", "r1"), (4, "x", "r2")]) == [
        ("EARLY", left, right) for left in ("l2", "l3") for right in ("r1", "r2")
    ]


def test_next_to_rows_the_other_side_is_all_that_is_kept_when_it_is_unbounded() -> None:
    for window in (None, wr.unbounded()):
        made = Play(join(left=wr.rows(1), right=window, retention="1 hour"))
        made.feed(right=[(1, "x", "before"), (100, "x", "after")])
        assert made.left(50, "x", "l") == [("EARLY", "l", "before"), ("EARLY", "l", "after")]
        assert made.right(1, "x", "late") == [("EARLY", "l", "late")]


def test_next_to_rows_within_holds() -> None:
    made = Play(join(left=wr.rows(1), within=("-2 seconds", "5 seconds")))
    made.feed(right=[(n, "x", f"r{n}") for n in (7, 8, 15, 16)])
    assert made.left(10, "x", "l") == [("EARLY", "l", "r8"), ("EARLY", "l", "r15")]


def test_next_to_rows_the_retention_holds() -> None:
    made = Play(join(left=wr.rows(1), retention="5 seconds"))
    made.feed(right=[(n, "x", f"r{n}") for n in (4, 5, 15, 16)])
    assert made.left(10, "x", "l") == [("EARLY", "l", "r5"), ("EARLY", "l", "r15")]


def test_newest_is_by_arrival_not_by_event_time() -> None:
    made = Play(join(left=wr.rows(1), retention="1 hour"))
    made.left(100, "x", "later in time")
    made.left(1, "x", "newer")
    assert made.right(50, "x", "r") == [("EARLY", "newer", "r")]


def test_rows_are_counted_for_each_key() -> None:
    made = Play(join(left=wr.rows(1), retention="1 hour"))
    made.feed(left=[(1, "x", "x1"), (1, "y", "y1"), (1, "x", "x2")])
    assert made.feed(right=[(1, "x", "rx"), (1, "y", "ry")]) == [("EARLY", "y1", "ry"), ("EARLY", "x2", "rx")]


def test_rows_per_input_are_counted_over_all_keys_nulls_among_them() -> None:
    made = Play(join(left=wr.rows(2, per="input"), retention="1 hour"))
    made.feed(left=[(1, "x", "x1"), (1, "y", "y1"), (1, None, "null")])
    assert made.feed(right=[(1, "x", "rx"), (1, "y", "ry")]) == [("EARLY", "y1", "ry")]


def test_a_displaced_message_is_judged_at_the_end_of_the_step() -> None:
    made = Play(join("left", left=wr.rows(1), retention="1 hour"))
    assert made.left(5, "x", "l5") == []
    assert made.right(5, "x", "r") == [("EARLY", "l5", "r")]
    assert made.left(6, "x", "l6") == [("EARLY", "l6", "r")]  # l5 matched once: nothing is said of it
    assert made.feed(left=[(4, "y", "y4"), (3, "y", "y3"), (2, "y", "y2")], right=[(4, "y", "r2")]) == [
        ("EARLY", "y2", "r2"),
        ("ON_TIME", "y3", None),
        ("ON_TIME", "y4", None),
    ]


def test_a_displaced_right_message_still_meets_the_left_messages_of_its_step_never() -> None:
    """Left messages are taken first; they see what earlier steps brought, before this step displaces it."""
    made = Play(join("full", right=wr.rows(1), retention="1 hour"))
    made.right(1, "x", "r1")
    assert made.feed(left=[(1, "x", "l")], right=[(1, "x", "r2"), (1, "x", "r3")]) == [
        ("EARLY", "l", "r1"),
        ("EARLY", "l", "r2"),
        ("EARLY", "l", "r3"),
    ]
    assert made.feed(right=[(1, "y", "r4"), (1, "y", "r5")]) == [("ON_TIME", None, "r4")]


def test_messages_that_come_too_late_displace_nothing() -> None:
    made = Play(join(left=wr.rows(1), retention="1 hour", allowed_lateness="0 seconds"))
    made.left(100, "x", "l")
    made.to(50)
    made.left(1, "x", "late")
    assert made.right(100, "x", "r") == [("EARLY", "l", "r")]
    assert made.dead == [("too_late", "late")]


# -- a join with itself ----------------------------------------------------------------------------------------------


def test_a_message_joined_with_its_stream_meets_itself_and_others_both_ways() -> None:
    made = Play(self_join(within=NEAR))
    assert made.left(1, "x", "a") == [("EARLY", "a", "a")]
    assert made.left(2, "x", "b") == [("EARLY", "a", "b"), ("EARLY", "b", "a"), ("EARLY", "b", "b")]


def test_within_keeps_a_message_from_matching_itself() -> None:
    made = Play(self_join("full", within=("0 seconds", "5 seconds"), closed="right"))
    assert made.feed(left=[(1, "x", "a"), (2, "x", "b")]) == [("EARLY", "a", "b")]
    assert made.kept("l") == ["a", "b"]
    assert made.end() == [("ON_TIME", "b", None), ("ON_TIME", None, "a")]


def test_a_stream_joined_with_its_newest_rows_takes_left_messages_first() -> None:
    made = Play(self_join(window=wr.rows(1)))
    assert made.left(1, "x", "a") == [("EARLY", "a", "a")]
    assert made.feed(left=[(2, "x", "b"), (3, "x", "c")]) == [
        ("EARLY", "b", "a"),
        ("EARLY", "c", "a"),
        ("EARLY", "c", "b"),
        ("EARLY", "c", "c"),
    ]


def test_a_message_of_a_join_with_itself_is_one_dead_letter_and_counts_once() -> None:
    made = Play(self_join(within=NEAR))
    made.to(100)
    made.left(1, "x", "late")
    made.left(100, "x", "taken")
    assert made.dead == [("out_of_retention", "late")]
    assert made.oracle.counted == [("l:s", 0, 100 * S)]
