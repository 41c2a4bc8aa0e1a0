"""Windows of a message in plain arithmetic: the oracle's counterpart of the assigners.

Seed 003 "Window advancement", seed 001 "Window Option"; semantics "Assignment", "Tuple windows".
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from windrow.core.messages import TupleWindow, Window
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, instant_us, to_datetime
from windrow.core.windows import (
    Calendar,
    Global,
    Hopping,
    Inherited,
    Session,
    Tumbling,
    Tuples,
    TupleSession,
    WindowSpec,
)
from windrow.operators.oracle.times import zone_info

_EPOCH_DAY = date(1970, 1, 1)
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def windows_of(spec: WindowSpec, time_us: int) -> list[Window]:
    """Return every window of event time that covers `time_us`, the oldest first; none in a gap between hops."""
    match spec:
        case Tumbling(size_us=size, offset_us=offset):
            start = (time_us - offset) // size * size + offset
            return [Window(start, start + size)]
        case Hopping(size_us=size, hop_us=hop, offset_us=offset):
            windows = []
            start = (time_us - offset) // hop * hop + offset
            while start + size > time_us:
                windows.append(Window(start, start + size))
                start -= hop
            return windows[::-1]
        case Calendar():
            return [_calendar_window(spec, time_us)]
        case Global():
            return [Window(START_OF_TIME_US, END_OF_TIME_US)]
        case Tuples():
            raise ValueError(f"{spec!r} counts messages: use tuple_windows_of")
        case Inherited():
            raise ValueError(f"{spec!r}: the message says it")
        case Session() | TupleSession():
            raise ValueError(f"{spec!r}: what belongs together depends on all messages of the key")


def tuple_windows_of(spec: Tuples, number: int) -> list[TupleWindow]:
    """Return every window that holds the `number`-th message of a key; the first message has number 1."""
    windows = []
    first = (number - 1) // spec.step * spec.step + 1
    while first >= 1 and first + spec.size > number:
        windows.append(TupleWindow(first, first + spec.size - 1))
        first -= spec.step
    return windows[::-1]


def _calendar_window(spec: Calendar, time_us: int) -> Window:
    """Return the unit of the calendar that holds the instant.

    Where clocks are set back across midnight a local date comes twice. Then instants decide, not dates: a window
    lasts from one first moment to the next.
    """
    local = to_datetime(time_us).astimezone(zone_info(spec.time_zone)) - timedelta(
        microseconds=spec.offset_us
    )
    unit = _unit_of(spec, local.date())
    while time_us < _first_moment(spec, unit):
        unit -= 1
    while time_us >= _first_moment(spec, unit + 1):
        unit += 1
    return Window(_first_moment(spec, unit), _first_moment(spec, unit + 1))


def _unit_of(spec: Calendar, day: date) -> int:
    """Return the number of the unit that holds a local day; unit 0 holds 1970-01-01."""
    if spec.unit in _MONTHS:
        return ((day.year - 1970) * 12 + day.month - 1) // (_MONTHS[spec.unit] * spec.n)
    days = (day - _EPOCH_DAY).days
    if spec.unit == "week":
        return (days + _days_into_week(spec)) // (7 * spec.n)
    return days // spec.n


def _days_into_week(spec: Calendar) -> int:
    """Return how many days into its week 1970-01-01 (a Thursday) is."""
    return (3 - _WEEKDAYS.index(spec.week_start)) % 7


def _first_day(spec: Calendar, unit: int) -> date:
    if spec.unit in _MONTHS:
        month = 1970 * 12 + unit * _MONTHS[spec.unit] * spec.n
        return date(month // 12, month % 12 + 1, 1)
    if spec.unit == "week":
        return _EPOCH_DAY + timedelta(days=unit * 7 * spec.n - _days_into_week(spec))
    return _EPOCH_DAY + timedelta(days=unit * spec.n)


def _first_moment(spec: Calendar, unit: int) -> int:
    """Return the instant at which clocks first show the unit's local start, or the first moment after a gap over it."""
    day, zone = _first_day(spec, unit), zone_info(spec.time_zone)
    begin = datetime(day.year, day.month, day.day, tzinfo=zone) + timedelta(microseconds=spec.offset_us)
    instant = begin.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == begin.replace(tzinfo=None):
        return instant_us(instant)
    after = begin.replace(fold=1)  # in a gap, fold 0 counts with the offset before it and fold 1 after it
    low, high = instant_us(after.astimezone(UTC)), instant_us(instant)
    while low < high:
        middle = (low + high) // 2
        if to_datetime(middle).astimezone(zone).utcoffset() == after.utcoffset():
            high = middle
        else:
            low = middle + 1
    return low
