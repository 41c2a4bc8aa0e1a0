"""The manual clock, and the watermark oracle."""

from datetime import UTC, datetime, timedelta

import pytest

from windrow.core.clock import Clock
from windrow.core.errors import BadDuration, NaiveDatetime
from windrow.core.policy import (
    bounded,
    custom,
    explicit,
    fixed,
)
from windrow.core.time import SECOND_US, START_OF_TIME_US
from windrow.operators.oracle.watermark import WatermarkOracle
from windrow.testing.clock import ManualClock

S = SECOND_US


def test_the_clock_starts_in_2100_and_moves_only_by_hand() -> None:
    clock = ManualClock()
    as_clock: Clock = clock
    assert as_clock.now_us() == as_clock.now_us() == 4_102_444_800 * S
    clock.advance("1m30s")
    clock.advance(timedelta(microseconds=1))
    assert clock.now_us() == 4_102_444_890 * S + 1
    clock.set(datetime(2100, 1, 1, 1, tzinfo=UTC))
    assert clock.now_us() == 4_102_448_400 * S
    assert repr(clock) == "ManualClock(2100-01-01 01:00)"


def test_the_clock_can_stand_still() -> None:
    clock = ManualClock(5)
    clock.advance("0 seconds")
    clock.set(5)
    assert clock.now_us() == 5


def test_the_clock_does_not_go_back() -> None:
    clock = ManualClock(10 * S)
    with pytest.raises(ValueError, match="does not go back: advance by zero or more, not '-1 second'"):
        clock.advance("-1 second")
    with pytest.raises(ValueError, match="it is 1970-01-01 00:00:10, not 1970-01-01 00:00:09"):
        clock.set(9 * S)
    assert clock.now_us() == 10 * S


def test_the_clock_takes_no_time_without_zone_and_no_bare_number() -> None:
    with pytest.raises(NaiveDatetime):
        ManualClock(datetime(2020, 1, 1))
    with pytest.raises(BadDuration):
        ManualClock().advance(5)  # type: ignore[arg-type]


def test_before_the_first_message_the_watermark_is_before_all_time() -> None:
    assert WatermarkOracle(bounded()).advance(0) == START_OF_TIME_US


def test_the_watermark_is_the_largest_time_less_the_delay_and_never_moves_back() -> None:
    oracle = WatermarkOracle(bounded("2 seconds"))
    oracle.observe([("s", 0, 9 * S), ("s", 0, 4 * S)], 0)
    assert oracle.advance(0) == 7 * S
    oracle.observe([("s", 0, 5 * S), ("s", 1, 1 * S)], 0)
    assert oracle.advance(0) == 7 * S


def test_the_slowest_partition_decides() -> None:
    oracle = WatermarkOracle(bounded())
    oracle.observe([("s", 0, 9 * S), ("s", 1, 4 * S), ("r", 0, 6 * S)], 0)
    assert oracle.advance(0) == 4 * S
    oracle.observe([("s", 1, 8 * S)], 0)
    assert oracle.advance(0) == 6 * S


def test_a_declared_partition_is_awaited_until_it_is_seen_or_idle() -> None:
    oracle = WatermarkOracle(bounded(idle="10 seconds", partitions=[("s", 1)]))
    oracle.observe([("s", 0, 9 * S)], 0)
    assert oracle.advance(9 * S) == START_OF_TIME_US
    oracle.observe([("s", 0, 9 * S)], 9 * S)
    assert oracle.advance(10 * S) == 9 * S


def test_partitions_are_idle_by_now_and_come_back_with_a_row() -> None:
    oracle = WatermarkOracle(bounded(idle="10 seconds"))
    oracle.observe([("s", 0, 9 * S), ("s", 1, 1 * S)], 0)
    oracle.observe([("s", 0, 12 * S)], 5 * S)
    assert oracle.advance(10 * S - 1) == 1 * S
    assert oracle.advance(10 * S) == 12 * S
    oracle.observe([("s", 0, 20 * S), ("s", 1, 13 * S)], 11 * S)
    assert oracle.advance(11 * S) == 13 * S


def test_where_all_partitions_are_idle_the_watermark_stays() -> None:
    oracle = WatermarkOracle(bounded(idle="1 second"))
    oracle.observe([("s", 0, 9 * S), ("s", 1, 4 * S)], 0)
    assert oracle.advance(0) == 4 * S
    assert oracle.advance(100 * S) == 4 * S


def test_a_fixed_watermark_follows_now() -> None:
    oracle = WatermarkOracle(fixed("3 seconds"))
    oracle.observe([("s", 0, 900 * S)], 5 * S)
    assert oracle.advance(5 * S) == 2 * S


def test_an_explicit_watermark_moves_only_when_it_is_advanced() -> None:
    oracle = WatermarkOracle(explicit())
    oracle.observe([("s", 0, 900 * S)], 5 * S)
    assert oracle.advance(5 * S) == START_OF_TIME_US
    assert oracle.advance(5 * S, 7 * S) == 7 * S
    assert oracle.advance(5 * S, 6 * S) == 7 * S


def test_a_custom_watermark_is_a_function_of_marks_and_now() -> None:
    seen = []

    def half(marks: dict[tuple[str, int], int], now_us: int) -> int | None:
        seen.append((dict(marks), now_us))
        return sum(marks.values()) // 2 if marks else None

    oracle = WatermarkOracle(custom(half, name="half"))
    assert oracle.advance(1) == START_OF_TIME_US
    oracle.observe([("s", 0, 4 * S), ("s", 0, 8 * S)], 2)
    assert oracle.advance(3) == 4 * S
    assert seen == [({}, 1), ({("s", 0): 8 * S}, 3)]
