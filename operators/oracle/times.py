"""Event times in the oracle: values that are valid, and values that are malformed. Semantics "Dead letters"."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from io import BytesIO
from typing import Any
from zoneinfo import ZoneInfo

from windrow.core.messages import TupleWindow, Window
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, instant_us, read_iso
from windrow.core.zones import tzif

#: The first moment of year 1 and the last of year 9999.
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999


@cache
def zone_info(name: str) -> ZoneInfo:
    """Read a time zone of the pinned database as Python does."""
    return ZoneInfo.from_file(BytesIO(tzif(name)), key=name)


def shown(window: Window | TupleWindow) -> Window | TupleWindow:
    """Return a window as panes show it: open if it begins before the year 1 or ends after the year 9999."""
    if isinstance(window, TupleWindow):
        return window
    return Window(
        window.start_us if window.start_us >= FIRST_US else START_OF_TIME_US,
        window.end_us if window.end_us <= LAST_US else END_OF_TIME_US,
    )


def event_time_us(
    value: Any, time_zone: str | None, now_us: int, max_ahead_us: int | None, unit: str | None = None
) -> int | None:
    """Return microseconds, or None if the value is malformed."""
    if isinstance(value, str):
        try:
            value = read_iso(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            if time_zone is None:
                return None
            value = value.replace(tzinfo=zone_info(time_zone))
    elif not isinstance(value, int) or isinstance(value, bool):
        return None
    elif unit is not None:
        value = value // 1_000 if unit == "ns" else value * {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    time_us = value if isinstance(value, int) else instant_us(value)
    if not FIRST_US <= time_us <= LAST_US or (max_ahead_us is not None and time_us > now_us + max_ahead_us):
        return None
    return time_us
