"""Where `now` comes from. Only runners read a clock; operators are given `now_us`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Processing time, microseconds since the epoch."""

    def now_us(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def __repr__(self) -> str:
        return "SystemClock()"
