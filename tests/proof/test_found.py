"""What the search against the oracle has found, each once more by hand."""

import windrow as wr
from windrow.core.messages import Window
from windrow.testing import TestDriver

S = 1_000_000


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
        found = {w.window: (w.values["n"], w.values["middle"]) for w in driver.windows()}
        assert found[Window(0, 10 * S)] == (1, 1.0)
        assert found[Window(5 * S, 15 * S)] == (3, 3.0)
        driver.check()


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
        driver.check()


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
        driver.check()


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
        driver.check()
