"""A clock that a test moves by hand."""

from __future__ import annotations

from datetime import UTC, datetime

from windrow.core.time import Duration, Instant, duration_us, instant_us, show_instant

#: No date that a test has today is ahead of it: under the default `max_ahead` that would be a dead letter.
DEFAULT_START = datetime(2100, 1, 1, tzinfo=UTC)


class ManualClock:
    """Processing time under the test's control: it starts at a moment, moves forward by hand, and never decreases.

    start: a moment, by default the beginning of 2100: event times of today are not ahead of it

    >>> clock = ManualClock()
    >>> clock.advance("10 seconds")
    >>> clock
    ManualClock(2100-01-01 00:00:10)
    """

    def __init__(self, start: Instant = DEFAULT_START) -> None:
        self._now_us = instant_us(start, "start of the clock")

    def now_us(self) -> int:
        """Return microseconds since the epoch."""
        return self._now_us

    def advance(self, duration: Duration) -> None:
        """Move forward by `duration` (zero is allowed). Raises `ValueError` for a negative one."""
        by_us = duration_us(duration, "clock advance")
        if by_us < 0:
            raise ValueError(f"a clock does not go back: advance by zero or more, not {duration!r}")
        self._now_us += by_us

    def set(self, instant: Instant) -> None:
        """Move to `instant`. Raises `ValueError` if that is before the present."""
        to_us = instant_us(instant, "clock setting")
        if to_us < self._now_us:
            raise ValueError(
                f"a clock does not go back: it is {show_instant(self._now_us)}, not {show_instant(to_us)}"
            )
        self._now_us = to_us

    def __repr__(self) -> str:
        return f"ManualClock({show_instant(self._now_us)})"
