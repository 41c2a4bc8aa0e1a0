"""One message with a wrong date: a dead letter, and no other is late for it. Semantics "Dead letters", "Watermark"."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.time import DAY_US, SECOND_US
from windrow.testing import ManualClock

YEAR_US = 365 * DAY_US
NOW_US = ManualClock().now_us()


def define(**changed: Any) -> wr.Aggregate:
    options = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count()},
        "retention": "1 day",
    }
    return wr.Aggregate(**{**options, **changed})


def message(time_us: int, i: int, key: str = "a") -> wr.Message:
    return wr.Message({"t": time_us, "k": key}, wr.Position("s", 0, i))


def one_by_one(op: Any, messages: list[wr.Message]) -> None:
    for one in messages:
        op.add_message(one)


def together(op: Any, messages: list[wr.Message]) -> None:
    op.add_messages(messages)


@pytest.mark.parametrize("feed", [one_by_one, together])
def test_a_message_ten_years_ahead_is_a_dead_letter_and_makes_no_other_late(
    feed: Callable[[Any, list[wr.Message]], None], tmp_path: Path
) -> None:
    with define().open(str(tmp_path), clock=ManualClock()) as op:
        feed(op, [message(NOW_US, 0), message(NOW_US + 10 * YEAR_US, 1), message(NOW_US + SECOND_US, 2)])
        feed(op, [message(NOW_US + 11 * SECOND_US, 3)])
        assert [(p["n"], p.timing) for p in op.get_result()] == [(2, wr.core.messages.Timing.ON_TIME)]
        [letter] = op.dead_letters()
        assert (letter.reason, letter.position.offset) == ("malformed", 1)
        assert "more than max_ahead='1 day' ahead of now" in letter.detail


@pytest.mark.parametrize("max_ahead", [None, "5 seconds"])
def test_each_message_is_judged_by_the_now_at_which_it_was_added(tmp_path: Path, max_ahead: Any) -> None:
    limit_us = DAY_US if max_ahead is None else 5 * SECOND_US
    counted = []
    for feed, place in ((one_by_one, "one by one"), (together, "together")):
        clock = ManualClock()
        with define(max_ahead=max_ahead).open(str(tmp_path / place), clock=clock) as op:
            for i, key in enumerate("abcd"):
                feed(
                    op, [message(NOW_US + limit_us + SECOND_US, i, key)]
                )  # the first is too early by a second
                clock.advance("1 second")
            counted.append([w.key["k"] for w in op.get_windows()])
            assert [d.position.offset for d in op.dead_letters()] == [0]
    assert counted == [["b", "c", "d"]] * 2


def test_whoever_asks_for_any_time_gets_it(tmp_path: Path) -> None:
    with define(max_ahead=wr.forever).open(str(tmp_path), clock=ManualClock()) as op:
        op.add_message(message(NOW_US + 10 * YEAR_US, 0))
        op.add_message(message(NOW_US, 1))
        assert [d.reason for d in op.dead_letters()] == ["out_of_retention"]


def test_rows_of_another_operator_are_not_judged_again(tmp_path: Path) -> None:
    """The end of time tells windows that end long after now, and the next operator takes them."""
    first = define(window=wr.tumbling("30 days"), retention="60 days", emit=wr.Emit.append(), name="first")
    last = define(event_time="window_time", agg={"n": wr.sum("n")}, name="last", retention="90 days")
    with first.then(last).open(str(tmp_path), clock=ManualClock()) as op:
        op.add_message(message(NOW_US, 0))
        op.drain()
        assert [p["n"] for p in op.get_result()] == [1]
        assert op.dead_letters() == []


UNITS = {"s": SECOND_US, "ms": 1_000, "us": 1, None: 1}


@pytest.mark.parametrize("unit", [*UNITS, "ns"])
def test_integers_are_times_in_the_unit_that_is_given_in_messages_and_in_tables(
    tmp_path: Path, unit: Any
) -> None:
    moments = [NOW_US, NOW_US - 15 * SECOND_US, -7 * SECOND_US]
    definition = define(event_time_unit=unit, retention=wr.forever)
    values = [t * 1_000 + 999 if unit == "ns" else t // UNITS[unit] for t in moments]
    for form in (messages_of, table_of):
        with definition.open(str(tmp_path / form.__name__), clock=ManualClock()) as op:
            op.add_messages(form([*values, 2**62]))
            assert [w.window.start_us for w in op.get_windows()] == sorted(
                t // (10 * SECOND_US) * 10 * SECOND_US for t in moments
            )
            assert [d.reason for d in op.dead_letters()] == ["malformed"]


def test_times_that_are_written_in_another_way_later_keep_their_unit(tmp_path: Path) -> None:
    """A column of integers, and then one of timestamps: both are filed as the first was, in seconds."""
    whole, stamps = [NOW_US // SECOND_US], pa.array([NOW_US + SECOND_US], pa.timestamp("us", "UTC"))
    agg = {"n": wr.count(), "mid": wr.median("x")}
    with define(event_time_unit="s", agg=agg).open(str(tmp_path), clock=ManualClock()) as op:
        for times in (whole, stamps):
            op.add_messages(pa.table({"t": times, "k": ["a"], "x": [1.0]}))
        assert [m.event_time_us for m in op.get_messages()] == [NOW_US, NOW_US + SECOND_US]
        assert [w.values["n"] for w in op.get_windows()] == [2]


def messages_of(times: list[int]) -> list[wr.Message]:
    return [message(t, i) for i, t in enumerate(times)]


def table_of(times: list[int]) -> pa.Table:
    return pa.table({"t": times, "k": ["a"] * len(times)})


def test_the_inputs_of_a_join_have_units_of_their_own(tmp_path: Path) -> None:
    pairs = wr.Join(
        left=wr.Input("l", event_time="t", event_time_unit="s"),
        right=wr.Input("r", event_time="t"),
        on="k",
        within=("0 seconds", "1 second"),
    )
    assert eval(repr(pairs), {"wr": wr}) == pairs
    with pairs.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages({"l": [message(NOW_US // SECOND_US, 0)], "r": [message(NOW_US, 0)]})
        op.timeout()
        assert len(op.get_result()) == 1
