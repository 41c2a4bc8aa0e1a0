"""Faults that the search against the oracle has found, each once more by hand."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

import windrow as wr
from windrow.core.messages import TupleWindow, Window
from windrow.operators.steps.intake import FIRST_US, LAST_US
from windrow.testing import ManualClock, TestDriver

S = 1_000_000
DAY = datetime(2020, 1, 1, tzinfo=UTC)


def test_a_message_too_late_for_one_hopping_window_is_not_counted_there_by_a_median() -> None:
    definition = wr.Aggregate(
        event_time="t",
        window=wr.hopping("10 seconds", "5 seconds"),
        agg={"middle": wr.median("v"), "n": wr.count()},
        retention="1 hour",
        allowed_lateness="0 seconds",
    )
    with TestDriver(definition) as driver:
        for t, v in ((7, 1.0), (12, 3.0), (8, 5.0)):  # at 12 the window [0, 10) is closed, [5, 15) is not
            driver.add({"t": t * S, "v": v})
        windows = {w.window: (w.values["n"], w.values["middle"]) for w in driver.windows()}
        assert windows[Window(0, 10 * S)] == (1, 1.0)
        assert windows[Window(5 * S, 15 * S)] == (3, 3.0)
        driver.check(dead_letters=True)


def test_a_period_that_ends_between_two_messages_ticks() -> None:
    definition = wr.Aggregate(
        event_time="t",
        window=wr.tumbling("1 hour"),
        agg={"n": wr.count()},
        retention="1 day",
        emit=wr.Emit(early=wr.every("10 seconds")),
    )
    with TestDriver(definition) as driver:
        for t in range(3):
            driver.add({"t": t * S})
            driver.advance_clock("10 seconds")
        assert [pane["n"] for pane in driver.panes()] == [2, 3]
        driver.check(dead_letters=True)


def test_a_closing_pane_comes_once_though_the_window_ends_and_closes_in_one_step() -> None:
    definition = wr.Aggregate(
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count()},
        retention="0 seconds",
        emit=wr.Emit(early=wr.every_batch, late=wr.never, on_time=False, closing_pane=True),
    )
    with TestDriver(definition) as driver:
        driver.add({"t": 0})
        driver.drain()
        assert [(pane.timing, pane.is_last) for pane in driver.panes()] == [("EARLY", False), ("LATE", True)]
        driver.check(dead_letters=True)


def test_early_and_late_panes_of_one_step_come_in_the_order_of_their_windows() -> None:
    definition = wr.Aggregate(
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count()},
        retention="1 hour",
        emit=wr.Emit(early=wr.every_batch, late=wr.every_batch),
    )
    with TestDriver(definition) as driver:
        driver.feed([{"t": 25 * S}])
        driver.panes()
        driver.feed([{"t": 26 * S}, {"t": 5 * S}])
        assert [pane.timing for pane in driver.panes()] == ["LATE", "EARLY"]
        driver.check(dead_letters=True)


@pytest.mark.parametrize("time_us", [FIRST_US, LAST_US])
@pytest.mark.parametrize(
    "window",
    [
        wr.tumbling("7 hours"),
        wr.hopping("1000 days", "300 days"),
        wr.calendar("week", time_zone="America/New_York"),
        wr.calendar("day", time_zone="Asia/Tokyo"),
        wr.calendar("year", time_zone="UTC"),
    ],
    ids=repr,
)
def test_windows_at_the_ends_of_time_are_the_same_in_panes_and_queries(window: Any, time_us: int) -> None:
    definition = wr.Aggregate(
        event_time="t",
        window=window,
        agg={"n": wr.count()},
        retention=wr.forever,
        watermark=wr.explicit(),
        emit=wr.Emit(early=wr.every_batch),
    )
    with TestDriver(definition, clock=ManualClock(0)) as driver:
        driver.feed([{"t": time_us}])
        windows = [pane.window for pane in driver.committed_panes()]
        driver.op.result_table().to_pylist()  # all times are of years that Python has
        assert windows == [info.window for info in driver.windows()] != []
        driver.drain()
        assert {pane.window for pane in driver.panes()} == set(windows)


@pytest.mark.parametrize("full", [False, True], ids=["small", "full"])
def test_a_key_that_widens_stays_the_same_key_of_a_tuple_window(full: bool) -> None:
    definition = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tuples(3),
        agg={"n": wr.count(), **({"middle": wr.median("t2")} if full else {})},
        retention=wr.Retain(windows=1),
        emit=wr.Emit(early=wr.every("5 seconds")),
    )
    with TestDriver(definition) as driver:
        for k in (1, 1.0, 2.5, 1, 2, 1.0, 2.0, 1, 1):
            driver.feed([{"t": S, "t2": 1, "k": k}])
            driver.advance_clock("5 seconds")
        driver.next_offsets()
        driver.restart()
        driver.feed([{"t": S, "t2": 1, "k": 1.0}])
        assert [(p.key["k"], p["n"], p.window) for p in driver.committed_panes() if p.is_last] == [
            (1, 3, TupleWindow(1, 3)),
            (1, 3, TupleWindow(4, 6)),
        ]
        driver.check(dead_letters=True)


@pytest.mark.parametrize(
    "keys", [(1, 1.0), (Decimal("1"), Decimal("1.00")), (DAY, DAY)], ids=["number", "decimal", "time"]
)
@pytest.mark.parametrize("window", [wr.tuples(2), wr.tumbling("10 seconds")], ids=["tuples", "time"])
def test_limits_by_size_hold_for_keys_of_any_type(window: Any, keys: tuple[Any, Any]) -> None:
    definition = wr.Aggregate(
        by="k",
        event_time="t",
        window=window,
        agg={"n": wr.count()},
        retention=wr.Retain(windows=1),
        emit=wr.Emit(early=wr.every("5 seconds")),
    )
    with TestDriver(definition) as driver:
        for i in range(7):
            driver.feed([{"t": i * 7 * S, "k": keys[i % 2]}])
            driver.advance_clock("5 seconds")
        driver.timeout()
        assert len(driver.windows()) <= 2
        driver.check(dead_letters=True)
