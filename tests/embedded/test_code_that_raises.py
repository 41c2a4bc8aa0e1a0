"""Code of the user's that raises where what comes meets what was there: messages are dead letters, the state is as before."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

import windrow as wr
from tests.deep import usually
from windrow.testing import TestDriver

S = 1_000_000
WINDOWS = {
    "tumbling": wr.tumbling("10 seconds"),
    "hopping": wr.hopping("10 seconds", "4 seconds"),
    "session": wr.session("3 seconds"),
    "own gaps": wr.session(wr.col("gap")),
    "cut": wr.session("3 seconds", cut=wr.tumbling("10 seconds")),
    "tuples": wr.tuples(4, step=2),
    "session by messages": wr.session(messages=2),
    "global": wr.global_window(),
}
EMISSIONS = {
    "on time": wr.Emit(),
    "every batch": wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting"),
    "discarding": wr.Emit(early=wr.every(2), late=wr.every_batch, mode="discarding"),
    "period": wr.Emit(early=wr.every("2 seconds"), late=wr.every("2 seconds")),
}


def at_most(older: int, newer: int) -> int:
    if older + newer > 12:
        raise ValueError(f"{older} + {newer} are too many")
    return older + newer


def definition(window: str, emission: str, *, kept: bool = False, **more: Any) -> wr.Aggregate:
    middle = {"middle": wr.median("v")} if kept else {}
    options: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": WINDOWS[window],
        "agg": {"n": wr.count(), "few": wr.reduce(at_most, "v"), "high": wr.max("v"), **middle},
        "retention": wr.forever,
        "allowed_lateness": "1 hour",
        "watermark": "2 seconds",
        "emit": EMISSIONS[emission],
    }
    if window in ("tuples", "session by messages", "global"):
        options["allowed_lateness"] = None
    return wr.Aggregate(**options | more)


def row(t: float, v: int, k: str = "a", gap: int = 3 * S) -> dict[str, Any]:
    return {"t": round(t * S), "k": k, "v": v, "gap": gap}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_reduction_that_raises_leaves_what_was_there(window: str, kept: bool, tmp_path: Path) -> None:
    """Also where messages are kept: one that some window cannot take is in none then."""
    with TestDriver(definition(window, "every batch", kept=kept), tmp_path) as driver:
        for v in (7, 5, 4, 0):
            driver.feed([row(1, v)])
        panes = [(p["n"], p["few"]) for p in driver.panes()]
        assert (3, 12) in panes and max(panes) == (3, 12)
        letters = driver.dead_letters()
        assert {x.reason for x in letters} == {"aggregate_failed"}
        assert {x.position.offset for x in letters} == {2}
        assert all("ValueError: 12 + 4 are too many" in x.detail for x in letters)
        driver.check(dead_letters=True)


def test_a_message_that_would_make_one_session_of_two_does_not(tmp_path: Path) -> None:
    with TestDriver(definition("session", "every batch", watermark="1 minute"), tmp_path) as driver:
        driver.feed([row(0, 6), row(5, 6)])
        driver.feed([row(3, 1)])
        driver.feed([row(3, 0)])
        panes = [(p.kind.value, p.window.start_us // S, p["n"], p["few"]) for p in driver.panes()]
        assert panes == [
            ("INSERT", 0, 1, 6), ("INSERT", 5, 1, 6),
            ("RETRACT", 0, 1, 6), ("RETRACT", 5, 1, 6), ("INSERT", 0, 3, 12),
        ]  # fmt: skip
        assert [x.position.offset for x in driver.dead_letters()] == [2]
        driver.check(dead_letters=True)


@pytest.mark.parametrize("window", WINDOWS)
def test_any_job_with_such_code_is_as_the_oracle_says(window: str, tmp_path: Path) -> None:
    for seed in range(usually(2, deep=100)):
        chance = Random(f"{window}{seed}")
        emission = chance.choice([*EMISSIONS])
        with TestDriver(definition(window, emission, kept=seed % 2 == 1), tmp_path / str(seed)) as driver:
            for step in range(8):
                rows = [
                    row(
                        step + chance.randrange(-8, 4) / 2,
                        chance.randrange(5),
                        chance.choice("ab"),
                        chance.randrange(4) * S,
                    )
                    for _ in range(chance.randrange(1, 5))
                ]
                if chance.random() < 0.5:
                    driver.feed(rows)
                else:
                    for one in rows:
                        driver.add(one)
                driver.advance_clock(chance.randrange(3) * S)
                driver.timeout()
                if chance.random() < 0.2:
                    driver.next_offsets()
                    driver.restart()
            driver.drain()
            driver.check(dead_letters=True)
