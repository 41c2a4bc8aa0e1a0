"""Window assigners: the windows of event times, for whole columns at once. Semantics "Assignment".

`assign(times)` gives one line per (row, window): the row's index, the window's start and end. `first_open(t)` is the
start of the earliest window that ends after `t`. Windows that start before it have ended by `t`. So one start divides closed
windows from open ones, and stores, which are sorted by start, can be asked for ranges.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from windrow.core.arrays import IntArray
from windrow.core.errors import BadWindow
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.windows import Calendar, Global, Hopping, Tumbling, WindowSpec
from windrow.core.zones import zone_of


class WindowAssigner(Protocol):
    """Windows of event times."""

    def assign(self, times_us: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return (row index, start, end), rows in order; a row may have none (gaps) or many (hopping)."""
        ...

    def ends(self, starts_us: IntArray) -> IntArray:
        """Return the end of the window that starts at each of `starts_us`."""
        ...

    def first_open(self, time_us: int) -> int:
        """Return the start of the earliest window with `end > time_us`."""
        ...


class FixedAssigner:
    """Tumbling and hopping windows."""

    def __init__(self, size_us: int, hop_us: int, offset_us: int) -> None:
        self._size, self._hop, self._offset = size_us, hop_us, offset_us
        self._copies = -(-size_us // hop_us)

    def assign(self, times_us: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        newest = (times_us - self._offset) // self._hop * self._hop + self._offset
        rows = np.arange(len(times_us), dtype=np.int64)
        if self._copies == 1 and self._hop == self._size:
            return rows, newest, newest + self._size
        back = np.arange(self._copies - 1, -1, -1, dtype=np.int64) * self._hop
        starts = (newest[:, None] - back[None, :]).ravel()
        rows = np.repeat(rows, self._copies)
        covers = starts + self._size > np.repeat(times_us, self._copies)
        if not covers.all():
            rows, starts = rows[covers], starts[covers]
        return rows, starts, starts + self._size

    def ends(self, starts_us: IntArray) -> IntArray:
        return starts_us + self._size

    def first_open(self, time_us: int) -> int:
        if time_us >= END_OF_TIME_US:
            return END_OF_TIME_US
        return max(
            ((time_us - self._size - self._offset) // self._hop + 1) * self._hop + self._offset,
            START_OF_TIME_US,
        )


class GlobalAssigner:
    """One window for all time."""

    def assign(self, times_us: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        n = len(times_us)
        rows = np.arange(n, dtype=np.int64)
        return rows, np.full(n, START_OF_TIME_US), np.full(n, END_OF_TIME_US)

    def ends(self, starts_us: IntArray) -> IntArray:
        return np.full(len(starts_us), END_OF_TIME_US)

    def first_open(self, time_us: int) -> int:
        return END_OF_TIME_US if time_us >= END_OF_TIME_US else START_OF_TIME_US


class CalendarAssigner:
    """Calendar units of a named zone. A window starts at the first instant at which clocks show its local start or more.
    So an instant is in the unit of the furthest local time by then, which never goes back."""

    _DAY_OFFSET: ClassVar = {
        "monday": 3,
        "tuesday": 2,
        "wednesday": 1,
        "thursday": 0,
        "friday": 6,
        "saturday": 5,
        "sunday": 4,
    }
    _MONTHS: ClassVar = {"month": 1, "quarter": 3, "year": 12}

    def __init__(self, spec: Calendar) -> None:
        self._zone, self._offset = zone_of(spec.time_zone), spec.offset_us
        self._months = self._MONTHS.get(spec.unit, 0) * spec.n
        self._days = (7 if spec.unit == "week" else 1) * spec.n
        self._phase = self._DAY_OFFSET[spec.week_start] if spec.unit == "week" else 0

    def _units(self, times_us: IntArray) -> IntArray:
        """Return the number of the unit that holds each instant."""
        local = (self._zone.furthest(times_us) - self._offset).astype("datetime64[us]")
        if self._months:
            return local.astype("datetime64[M]").astype(np.int64) // self._months
        return (local.astype("datetime64[D]").astype(np.int64) + self._phase) // self._days

    def _starts(self, units: IntArray) -> IntArray:
        days: npt.NDArray[np.datetime64]
        if self._months:
            days = (units * self._months).astype("datetime64[M]").astype("datetime64[D]")
        else:
            days = (units * self._days - self._phase).astype("datetime64[D]")
        return self._zone.first_instants(days.astype("datetime64[us]").astype(np.int64) + self._offset)

    def assign(self, times_us: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        units, inverse = np.unique(self._units(times_us), return_inverse=True)
        starts, ends = self._starts(units), self._starts(units + 1)
        return np.arange(len(times_us), dtype=np.int64), starts[inverse], ends[inverse]

    def ends(self, starts_us: IntArray) -> IntArray:
        return self.assign(np.minimum(starts_us, _LAST_US))[2]

    def first_open(self, time_us: int) -> int:
        if time_us > _LAST_US:
            return END_OF_TIME_US
        return int(self.assign(np.array([max(time_us, _FIRST_US)]))[1][0])


#: The first moment of the earliest possible event, and one beyond all windows.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 2**60


def assigner_of(window: WindowSpec) -> WindowAssigner:
    """Return the assigner of a time window; tuple windows are numbered in `operators/aggregate/tuples.py`."""
    match window:
        case Tumbling(size_us=size, offset_us=offset):
            return FixedAssigner(size, size, offset)
        case Hopping(size_us=size, hop_us=hop, offset_us=offset):
            return FixedAssigner(size, hop, offset)
        case Calendar():
            return CalendarAssigner(window)
        case Global():
            return GlobalAssigner()
        case _:
            raise BadWindow(f"{window!r} is not a window of event time")
