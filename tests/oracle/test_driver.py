"""`TestDriver` and `ManualClock` in a first test: dates of today, and dead letters that the test does not expect."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import windrow as wr
from windrow.testing import ManualClock, TestDriver

COUNTS = wr.Aggregate(
    by="k", event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()}
)  # fmt: skip
TODAY = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
BAD = {"k": "a", "t": "no time"}


@pytest.mark.parametrize("start", [TODAY, datetime(2013, 7, 1, tzinfo=UTC), datetime(2060, 1, 1, tzinfo=UTC)])
def test_dates_of_any_day_are_counted_and_no_message_moves_the_clock(start: datetime) -> None:
    with TestDriver(COUNTS) as driver:
        before = driver.clock.now_us()
        for hours in (0, 1, 72):
            driver.feed([{"k": "a", "t": start + timedelta(hours=hours)}])
        assert [pane["n"] for pane in driver.check().panes] == [1, 1]
        assert driver.clock.now_us() == before


def test_a_manual_clock_of_its_own_takes_dates_of_today(tmp_path: Any) -> None:
    with COUNTS.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_message({"k": "a", "t": TODAY})
        op.drain()
        assert [pane["n"] for pane in op.get_result()] == [1] and op.dead_letters() == []


def test_a_dead_letter_that_the_test_has_not_looked_at_fails_the_check() -> None:
    with TestDriver(COUNTS) as driver:
        driver.feed([{"k": "a", "t": TODAY}, BAD, BAD])
        with pytest.raises(
            AssertionError, match=r"(?s)\(2 malformed\), the first.*'no time'.*dead_letters=True"
        ):
            driver.check()
        driver.check(dead_letters=True)
        assert [letter.reason for letter in driver.dead_letters()] == ["malformed"] * 2
        driver.check()
        driver.feed([BAD])
        with pytest.raises(AssertionError, match=r"\(1 malformed\)"):
            driver.check()


@pytest.mark.parametrize(("first", "bad"), [(1, "x"), (1, True), (1, [1]), (1, 2**70), (None, "x")])
@pytest.mark.parametrize("aggregation", [wr.sum("v"), wr.median("v")])
def test_a_value_of_another_type_moves_no_watermark_and_the_check_passes(
    aggregation: Any, bad: Any, first: int | None
) -> None:
    sums = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"s": aggregation}
    )
    with TestDriver(sums) as driver:
        driver.feed([{"k": "a", "t": TODAY, "v": first}])
        driver.feed([{"k": "a", "t": TODAY + timedelta(hours=2), "v": bad}])
        assert driver.panes() == []
        assert [letter.reason for letter in driver.dead_letters()] == ["malformed"]
        driver.drain()
        driver.check()
