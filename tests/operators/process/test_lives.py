"""State and timers of a function in the next life of its job: kept, and evicted in time."""

from __future__ import annotations

from typing import Any

import windrow as wr
from tests.operators.process.cases import define, drawn
from windrow.testing import ManualClock, TestDriver


def message(t: int, k: str, i: int, v: int = 3) -> dict[str, Any]:
    """t: in half seconds; i: what `Everything` does."""
    return drawn({"t": t, "k": k, "i": i, "v": v}).payload


def test_a_timer_of_now_that_was_set_before_a_restart_fires_after_it() -> None:
    clock = ManualClock(0)
    with TestDriver(define(by="k", ttl=wr.forever), clock=clock) as driver:
        driver.feed([message(0, "a", 6), message(1, "a", 2)])
        driver.op.flush()
        driver.restart()
        clock.advance("5 seconds")
        driver.timeout()
        assert [row["n"] for row in driver.panes()] == [2]
        driver.check(dead_letters=True)


def test_a_key_of_before_a_restart_is_forgotten_when_its_time_comes() -> None:
    with TestDriver(define(by="k")) as driver:
        driver.feed([message(0, "a", 5)])
        driver.op.flush()
        driver.restart()
        assert state_of(driver) == {"a"}
        for t in (60, 62):
            driver.feed([message(t, "b", 5)])
        assert state_of(driver) == {"b"}
        driver.check(dead_letters=True)


def state_of(driver: TestDriver) -> set[str]:
    """The keys of which there is a state."""
    kv = driver.op.engine.staged.overlay
    [cf] = [name for name in kv.cfs if name.endswith(".state")]
    return {letter for letter in "ab" for key, _ in kv.scan(cf) if letter.encode() in key[:6]}
