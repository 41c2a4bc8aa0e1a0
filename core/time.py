"""Time as integers: event time is int64 microseconds since the epoch, UTC; a duration is int64 microseconds.

The public API takes `timedelta`, `datetime` (aware only) or text such as `"10 seconds"`; everything below the facade
uses integers with `_us` in their names.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal

from windrow.core.errors import BadDuration, BadInstant, NaiveDatetime

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US

#: As long as anything may be; sums of two still fit 64 bits.
LONGEST_US = 2**62 // DAY_US * DAY_US
#: The end of time: the end of the global window, and the watermark of a drained job.
END_OF_TIME_US = 2**63 - 1
#: Before all time: the watermark of a job that has seen nothing.
START_OF_TIME_US = -(2**63)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_US = {
    "us": 1, "microsecond": 1, "microseconds": 1,
    "ms": 1_000, "millisecond": 1_000, "milliseconds": 1_000,
    "s": SECOND_US, "sec": SECOND_US, "second": SECOND_US, "seconds": SECOND_US,
    "m": MINUTE_US, "min": MINUTE_US, "minute": MINUTE_US, "minutes": MINUTE_US,
    "h": HOUR_US, "hour": HOUR_US, "hours": HOUR_US,
    "d": DAY_US, "day": DAY_US, "days": DAY_US,
    "w": 7 * DAY_US, "week": 7 * DAY_US, "weeks": 7 * DAY_US,
}  # fmt: skip
_TERM = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")

#: Units of an integer event time; (units of one microsecond, microseconds of one unit).
TIME_UNITS: dict[str, tuple[int, int]] = {
    "s": (1, SECOND_US), "ms": (1, 1_000), "us": (1, 1), "ns": (1_000, 1),
}  # fmt: skip
TimeUnit = Literal["s", "ms", "us", "ns"]
Duration = timedelta | str
Instant = datetime | int | str


def duration_us(value: Duration, what: str = "duration") -> int:
    """Microseconds of a `timedelta` or of text such as `"10 seconds"`, `"1 hour 30 minutes"`, `"1h30m"`.

    A leading minus holds for all terms that have no sign of their own: `"-3m30s"` is 210 seconds back.

    Raises `BadDuration`, naming `what`, for anything else; months and years have no fixed length and belong to
    calendar windows.
    """
    if isinstance(value, timedelta):
        return _within_time(value // timedelta(microseconds=1), value, what)
    if not isinstance(value, str):
        raise BadDuration(f"{what} {value!r} is not a duration: use a timedelta or text such as '10 seconds'")
    text = value.strip().lower()
    text = text.removeprefix("interval ").strip()
    total, end = 0.0, 0
    exact = 0
    leading = -1 if text.startswith("-") else 1
    while end < len(text):
        term = _TERM.match(text, end)
        if term is None or term[2] not in _UNITS_US:
            raise BadDuration(
                f"{what} {value!r} is not a duration: use a timedelta or text such as '10 seconds' or '1h30m' "
                "(months and years are for wr.calendar)"
            )
        unit_us = _UNITS_US[term[2]] * (1 if term[1][0] in "+-" else leading)
        if "." in term[1]:
            total += float(term[1]) * unit_us
        else:
            exact += int(term[1]) * unit_us
        end = term.end()
    if not text:
        raise BadDuration(f"{what} is empty: use a timedelta or text such as '10 seconds'")
    return _within_time(exact + round(total), value, what)


def _within_time(us: int, value: Duration, what: str) -> int:
    if abs(us) > LONGEST_US:
        raise BadDuration(
            f"{what} {value!r} is longer than 64 bits of microseconds hold: use {show_duration(LONGEST_US)!r} or less, or "
            "wr.forever where something may be without end"
        )
    return us


def instant_us(value: Instant, what: str = "time", zone: tzinfo | None = None) -> int:
    """Microseconds since the epoch of a `datetime`, or of text in ISO 8601; a whole number is taken as such already.

    zone: of times that name none. Raises `NaiveDatetime` where there is none, `BadInstant` for what is no time, or fits no 64
    bits.
    """
    if isinstance(value, str):
        value = _written(value, what)
    if isinstance(value, datetime):
        if value.tzinfo is None and zone is not None:
            value = value.replace(tzinfo=zone)
        if value.tzinfo is None:
            raise NaiveDatetime(
                f"{what} {value!r} has no time zone: use an aware datetime, e.g. tzinfo=timezone.utc, or text such as "
                "'2013-07-01 05:10Z'"
            )
        return (value - _EPOCH) // timedelta(microseconds=1)
    number = value.__index__() if hasattr(value, "__index__") and not isinstance(value, bool) else None
    if number is None or not START_OF_TIME_US <= number <= END_OF_TIME_US:
        raise BadInstant(
            f"{what} {value!r:.100} is no time: use an aware datetime, or microseconds since the epoch as a whole number "
            f"from {START_OF_TIME_US} to {END_OF_TIME_US}"
        )
    return number


def is_number(text: str) -> bool:
    """True for a whole number as people write it."""
    return text.isascii() and text.removeprefix("-").isdecimal()


def read_iso(text: str) -> datetime:
    """Read a time in ISO 8601; a lower-case z is Z. Raises `ValueError`."""
    return datetime.fromisoformat(text[:-1] + "Z" if text.endswith("z") else text)


def _written(text: str, what: str) -> datetime:
    try:
        return read_iso(text)
    except ValueError:
        raise BadInstant(
            f"{what} {text!r:.100} is no time: write it as '2013-07-01 05:10Z', or use an aware datetime, or microseconds "
            "since the epoch as a whole number"
        ) from None


def to_datetime(time_us: int) -> datetime:
    """Return the aware UTC datetime of `time_us`, clipped to what `datetime` can hold."""
    try:
        return _EPOCH + timedelta(microseconds=int(time_us))
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if time_us > 0 else datetime.min.replace(tzinfo=UTC)


def show_duration(us: int) -> str:
    """Return the shortest text that `duration_us` reads back to `us`."""
    if us == 0:
        return "0 seconds"
    for name, unit in (("day", DAY_US), ("hour", HOUR_US), ("minute", MINUTE_US), ("second", SECOND_US)):
        if us % unit == 0:
            n = us // unit
            return f"{n} {name}" + ("" if abs(n) == 1 else "s")
    if us % 1000 == 0:
        return f"{us // 1000} ms"
    return f"{us} us"


def show_instant(time_us: int) -> str:
    if time_us >= END_OF_TIME_US:
        return "end of time"
    if time_us <= START_OF_TIME_US:
        return "start of time"
    # Not by strftime, whose %Y has as few digits as a year before 1000 needs.
    t = to_datetime(time_us).replace(tzinfo=None)
    return t.isoformat(" ", "auto" if t.second or t.microsecond else "minutes")


def iso(time_us: int | None) -> str | None:
    """ISO 8601 with the zone, for programs; the ends of time by their names."""
    if time_us is None or time_us >= END_OF_TIME_US or time_us <= START_OF_TIME_US:
        return None if time_us is None else show_instant(time_us)
    return to_datetime(time_us).isoformat()
