"""Clocks: the source of `now`. Only runners read a clock; operators receive `now_us`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from windrow.core.errors import ConfigurationError
from windrow.core.logs import get_logger
from windrow.core.time import MINUTE_US, show_instant

logger = get_logger()

#: A step of the wall clock by more than this is not believed at once.
STEP_US = MINUTE_US
#: A step forward is believed when it has lasted so long.
LASTS_US = 10 * MINUTE_US


class Clock(Protocol):
    """Processing time, microseconds since the epoch."""

    def now_us(self) -> int: ...


def _steady_ns() -> int:
    """Return the time of a clock that nobody sets. Time in which the machine sleeps counts, where its system measures it."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if boot is None else time.clock_gettime_ns(boot)


def clock_of(clock: Clock | None) -> Clock:
    """Return the clock for `clock=`: by default the machine's."""
    if clock is not None and (isinstance(clock, type) or not hasattr(clock, "now_us")):
        raise ConfigurationError(
            f"clock={clock!r}: use a windrow.testing.ManualClock, or an object with now_us(), microseconds since the epoch"
        )
    return SystemClock() if clock is None else clock


class SystemClock:
    """The machine's clock, checked against a monotonic one.

    `now` never decreases, so a clock that is a year ahead for ten seconds would end all periods for a year. A step forward
    of more than a minute counts when it has lasted for ten; a step back never does. Until then time passes at its own pace.
    """

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = _steady_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        #: Difference between the two clocks.
        self._apart_us: int | None = None
        #: The step that is not believed, and when it was seen first.
        self._step_us: int | None = None
        self._since_us = 0

    def now_us(self) -> int:
        wall_us, steady_us = self._wall_ns() // 1000, self._steady_ns() // 1000
        if self._apart_us is None:
            self._apart_us = wall_us - steady_us
        step_us = wall_us - steady_us - self._apart_us
        if abs(step_us) > STEP_US:
            if self._step_us is None or abs(step_us - self._step_us) > STEP_US:
                self._step_us, self._since_us = step_us, steady_us
                self._warn("the clock stepped: now goes on as if it had not", steady_us, wall_us)
            if step_us < 0 or steady_us - self._since_us < LASTS_US:
                return steady_us + self._apart_us
            self._warn("the clock stepped and stays: it is believed", steady_us, wall_us)
        elif self._step_us is not None:
            self._warn("the clock is back", steady_us, wall_us)
        self._apart_us, self._step_us = wall_us - steady_us, None
        return wall_us

    def _warn(self, what: str, steady_us: int, wall_us: int) -> None:
        assert self._apart_us is not None
        logger.warning(what, clock=show_instant(wall_us), now=show_instant(steady_us + self._apart_us))

    def __repr__(self) -> str:
        return "SystemClock()"
