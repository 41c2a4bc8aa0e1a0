"""Delivery policies: what is passed on, and that what is not was heard all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core.errors import BadDuration, ConfigurationError
from windrow.testing import ManualClock, TestDriver

S = 1_000_000


def delivery(policy: Any, **options: Any) -> wr.Delivery:
    return wr.Delivery(event_time="t", policy=policy, max_ahead=wr.forever, **options)


@pytest.mark.proves("Operators: delivery policies, which skip the same messages when a step is done again")
def test_the_latest_of_each_key_is_passed_on_and_the_others_were_heard(tmp_path: Path) -> None:
    some = [{"k": "a", "t": 5 * S, "x": 1}, {"k": "a", "t": 1 * S, "x": 2}, {"k": "b", "t": 2 * S, "x": 1}]
    with TestDriver(delivery(wr.deliver.latest(), by="k"), tmp_path) as driver:
        driver.feed(some)
        driver.next_offsets()
        assert [(row.values["k"], row.values["x"]) for row in driver.committed_panes()] == [
            ("a", 2),
            ("b", 1),
        ]
        assert driver.op.counters["skipped"] == 1
        assert driver.op.watermark == 5 * S
        driver.check()


@pytest.mark.proves("Operators: delivery policies, which skip the same messages when a step is done again")
def test_what_is_too_old_when_the_step_is_made_is_skipped_to_the_microsecond(tmp_path: Path) -> None:
    with TestDriver(delivery(wr.deliver.within("2 seconds")), tmp_path, clock=ManualClock(10 * S)) as driver:
        driver.feed([{"t": 8 * S, "x": 1}, {"t": 8 * S - 1, "x": 2}])
        driver.advance_clock("1 second")
        driver.next_offsets()
        assert [row.values["x"] for row in driver.committed_panes()] == [1]
        driver.check()


KINDS = ["alarm", "beat", "alarm", "alarm", "beat", "beat"]


@pytest.mark.parametrize(
    ("n", "wanted"), [(1, [0, 2, 3]), (3, [0, 2, 3]), (4, [0, 2, 3, 5]), (9, list(range(6)))]
)
def test_what_is_guaranteed_always_passes_and_fills_places(n: int, wanted: list[int], tmp_path: Path) -> None:
    definition = delivery(wr.deliver.newest(n), guarantee=wr.col("kind") == "alarm")
    with TestDriver(definition, tmp_path) as driver:
        driver.feed([{"t": i, "kind": kind, "x": i} for i, kind in enumerate(KINDS)])
        driver.next_offsets()
        assert [row.values["x"] for row in driver.committed_panes()] == wanted
        driver.check()


@pytest.mark.proves("Operators: delivery policies, before any input of any other operator")
def test_a_delivery_stands_before_one_input_of_a_join(tmp_path: Path) -> None:
    quotes = delivery(wr.deliver.latest(), by="k", input="everything", name="quotes")
    joined = wr.Join(
        left=wr.Input("trades", event_time="at", max_ahead=wr.forever),
        right=wr.Input("quotes", event_time="t"),
        on="k",
        within=("-5 seconds", "5 seconds"),
    )
    with TestDriver(quotes.then(joined), tmp_path) as driver:
        driver.feed([{"k": "a", "t": 1 * S, "x": 1}, {"k": "a", "t": 2 * S, "x": 2}], "everything")
        driver.feed([{"k": "a", "at": 3 * S}], "trades")
        driver.drain()
        driver.check()
        assert [row.values["x"] for row in driver.committed_panes()] == [2]


def test_policies_that_cannot_be_are_refused() -> None:
    for error, make in (
        (ConfigurationError, lambda: wr.deliver.newest(0)),
        (BadDuration, lambda: wr.deliver.within("-1 second")),
        (ConfigurationError, lambda: delivery("latest")),
        (ConfigurationError, lambda: delivery(wr.deliver.latest(), guarantee="x")),
    ):
        with pytest.raises(error):
            make()
