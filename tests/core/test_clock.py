"""The machine's clock, which somebody may set."""

import logging

import pytest

from windrow.core.clock import LASTS_US, STEP_US, SystemClock, clock_of
from windrow.core.errors import ConfigurationError
from windrow.core.time import DAY_US, SECOND_US

YEAR_US = 365 * DAY_US


class Machine:
    """Two clocks: both pass, one can be set."""

    def __init__(self) -> None:
        self.passed_us, self.set_us = 0, 50 * YEAR_US
        self.clock = SystemClock(
            lambda: (self.passed_us + self.set_us) * 1000, lambda: (self.passed_us + 7) * 1000
        )
        self.begin_us = self.clock.now_us()

    def after(self, us: int, *, step: int = 0) -> int:
        """Return how far `now` has moved since the beginning."""
        self.passed_us += us
        self.set_us += step
        return self.clock.now_us() - self.begin_us


def test_a_clock_that_is_a_year_ahead_for_ten_seconds_moves_now_by_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    assert machine.after(SECOND_US) == SECOND_US
    assert machine.after(SECOND_US, step=YEAR_US) == 2 * SECOND_US
    assert machine.after(9 * SECOND_US) == 11 * SECOND_US
    assert machine.after(SECOND_US, step=-YEAR_US) == 12 * SECOND_US
    stepped, back = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "the clock stepped" in stepped and "clock='2020-" in stepped and "now='2019-" in stepped
    assert "the clock is back" in back


def test_a_step_forward_that_lasts_is_believed() -> None:
    machine = Machine()
    assert machine.after(0, step=YEAR_US) == 0
    assert machine.after(LASTS_US - 1) == LASTS_US - 1
    assert machine.after(1) == YEAR_US + LASTS_US
    assert machine.after(1) == YEAR_US + LASTS_US + 1


def test_after_a_step_back_time_continues_passing() -> None:
    machine = Machine()
    assert machine.after(0, step=-YEAR_US) == 0
    assert machine.after(2 * LASTS_US) == 2 * LASTS_US


def test_a_clock_that_is_set_right_by_less_than_a_minute_is_followed() -> None:
    machine = Machine()
    assert machine.after(SECOND_US, step=STEP_US) == SECOND_US + STEP_US
    assert machine.after(SECOND_US, step=-STEP_US) == 2 * SECOND_US


def test_the_machine_s_own_clock_passes() -> None:
    clock = SystemClock()
    assert clock.now_us() <= clock.now_us()
    assert repr(clock) == "SystemClock()"


@pytest.mark.parametrize("clock", [5, "now", SystemClock])
def test_what_is_no_clock_is_refused_with_the_value_and_the_remedy(clock: object) -> None:
    with pytest.raises(ConfigurationError, match=r"ManualClock, or an object with now_us\(\)") as refused:
        clock_of(clock)  # type: ignore[arg-type]
    assert repr(clock) in refused.value.message
