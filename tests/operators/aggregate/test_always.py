"""Panes of triggers that tell also where nothing is new."""

from __future__ import annotations

from typing import Any

import pytest

import windrow as wr
from windrow.testing import ManualClock, TestDriver


@pytest.mark.parametrize("mode", ["accumulating", "discarding", "retracting"])
def test_a_sign_of_life_is_of_no_key_of_a_window_that_has_closed(mode: Any) -> None:
    """A key with something new as its window closes has a pane, and no other key."""
    signs = wr.every("5 seconds", always=True)
    definition = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={"n": wr.count()}, retention="30 seconds",
        watermark=wr.explicit(), emit=wr.Emit(early=signs, late=signs, on_time=False, mode=mode),
    )  # fmt: skip
    with TestDriver(definition, clock=ManualClock(0)) as driver:
        driver.feed([{"k": "a", "t": 1_000_000}])
        driver.advance_event_time(10_000_000)
        driver.advance_clock("5 seconds")
        driver.timeout()
        driver.feed([{"k": "b", "t": 2_000_000}])
        driver.advance_clock("5 seconds")
        driver.drain()
        assert [(pane.key["k"], pane.index) for pane in driver.committed_panes()] == [("a", 0), ("b", 0)]
        driver.check(dead_letters=True)
