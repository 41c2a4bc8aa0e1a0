"""Time zones of the pinned database: local times to instants, and instants to the calendar, for whole columns.

The files are those of the PyPI package `tzdata`, never those of the host. `Zone` agrees with `zoneinfo` for each local time and
each `fold`; tests compare them at all transitions.

A file is TZif (RFC 9636): transitions, and a rule in the form of POSIX (`EST5EDT,M3.2.0,M11.1.0`) for what comes after them.
The rule's transitions up to the year 9999 are computed once, as a zone is first used.
"""

from __future__ import annotations

import re
import struct
from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import tzdata

from windrow.core.arrays import IntArray
from windrow.core.errors import ConfigurationError
from windrow.core.time import DAY_US, SECOND_US

#: The release of the database, e.g. "2026f".
DATABASE: str = tzdata.IANA_VERSION
_EPOCH = datetime(1970, 1, 1)
_US = timedelta(microseconds=1)
#: As far as microseconds in 64 bits go, with room for an offset: files begin with the Big Bang.
_FURTHEST_S = 9 * 10**12
_FIRST_YEAR, _LAST_YEAR = 1, 9999

_NAME, _TIME = r"(?:<[^>]+>|[A-Za-z]+)", r"[+-]?\d+(?::\d+(?::\d+)?)?"
_RULE = re.compile(rf"{_NAME}({_TIME})(?:{_NAME}({_TIME})?(?:,([^,]+),([^,]+))?)?")
#: Arrow's notation of zones that have no name.
_OFFSET = re.compile(r"[+-]\d\d:\d\d")


class Zone:
    """A time zone: the instants of its transitions, and its offset from UTC between them."""

    def __init__(self, changes: IntArray, offsets: IntArray) -> None:
        """changes: instants, ascending. offsets: microseconds before the first of them, and after each."""
        before, after = offsets[:-1], offsets[1:]
        self.changes, self._offsets = changes, offsets
        #: By `fold`, the local time from which on the offset after each transition counts (PEP 495).
        self._walls = (changes + np.maximum(before, after), changes + np.minimum(before, after))
        #: The furthest that clocks came before each transition, exclusive; before the first one, and without end at last.
        self._reached = np.r_[_BEGINNING, np.maximum.accumulate(changes + before), _END]

    def instants(self, local_us: IntArray) -> IntArray:
        """Convert local times. A time that comes twice is the first of both; one in a gap counts with the offset before it.
        What no 64 bits of microseconds could hold stays beyond all years that there are."""
        local_us = np.clip(local_us, _BEGINNING, _END)
        return local_us - self._offsets[_slots(self._walls[0], local_us)]

    def instant(self, local: datetime) -> int:
        """Convert a naive datetime, by its `fold`."""
        local_us = (local - _EPOCH) // _US
        return int(local_us - self._offsets[self._walls[local.fold].searchsorted(local_us, "right")])

    def local_times(self, instants_us: IntArray) -> IntArray:
        """Convert instants to local times."""
        local: IntArray = instants_us + self._offsets[_slots(self.changes, instants_us)]
        return local

    def furthest(self, instants_us: IntArray) -> IntArray:
        """Give the furthest local time that clocks have shown by each instant. Clocks are set back, this is not."""
        slots = _slots(self.changes, instants_us)
        furthest: IntArray = np.maximum(instants_us + self._offsets[slots], self._reached[slots] - 1)
        return furthest

    def first_instants(self, local_us: IntArray) -> IntArray:
        """Find the first instant at which clocks show each local time, or one after it."""
        slots = self._reached[1:-1].searchsorted(local_us, "right")
        first: IntArray = np.maximum(local_us - self._offsets[slots], np.r_[_BEGINNING, self.changes][slots])
        return first


_BEGINNING, _END = -(2**62), 2**62


def _slots(edges: IntArray, values: IntArray) -> IntArray:
    """Count the edges at or before each value. Most columns lie between two edges, or near few."""
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    low, high = edges.searchsorted([values.min(), values.max()], "right")
    if low == high:
        return np.full(len(values), low)
    return np.asarray(low + edges[low:high].searchsorted(values, "right"), dtype=np.int64)


@cache
def names() -> frozenset[str]:
    """List the names of all time zones, as the database writes them."""
    return frozenset((files("tzdata") / "zones").read_text().split())


def check_zone(name: Any, error: type[ConfigurationError] = ConfigurationError) -> None:
    """Raise for a value that is not a time zone's name."""
    if not isinstance(name, str) or name not in names():
        raise error(
            f"time zone {name!r} is not known to the time zone database {DATABASE}: use an IANA name such as 'Europe/Berlin'"
        )


def tzif(name: str) -> bytes:
    """Read the file of a time zone. Raises `ConfigurationError` where there is none."""
    check_zone(name)
    return files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


@cache
def zone_of(name: str) -> Zone:
    """Return the time zone of that name, or of an offset such as `+02:00`. Raises `ConfigurationError` where there is none."""
    if _OFFSET.fullmatch(name):
        return Zone(np.zeros(0, dtype=np.int64), np.array([_seconds(name) * SECOND_US]))
    instants, offsets, rule = _parsed(tzif(name))
    first = _FIRST_YEAR if not len(instants) else int(_years(instants[-1:])[0])
    later, offsets_later, standard = _expanded(rule, np.arange(first, _LAST_YEAR + 1))
    new = later > (instants[-1] if len(instants) else -_FURTHEST_S)
    if not len(instants):
        offsets = np.array([standard])
    changes = np.r_[instants, later[new]] * SECOND_US
    return Zone(changes, np.r_[offsets, offsets_later[new]] * SECOND_US)


def _parsed(content: bytes) -> tuple[IntArray, IntArray, str]:
    """Read transitions in seconds, the offset before the first and after each, and the rule for all that follows."""
    # The first block has times of 32 bits; readers of the second one skip it.
    universal, standard, leaps, times, types, letters = struct.unpack_from(">6l", content, 20)
    start = 44 + times * 5 + types * 6 + letters + leaps * 8 + standard + universal
    universal, standard, leaps, times, types, letters = struct.unpack_from(">6l", content, start + 20)
    start += 44
    instants = np.frombuffer(content, ">i8", times, start).astype(np.int64)
    kinds = np.frombuffer(content, "u1", times, start + times * 8)
    start += times * 9
    rows = [struct.unpack_from(">lbb", content, start + 6 * i) for i in range(types)]
    start += types * 6 + letters + leaps * 12 + standard + universal
    offsets = np.array([offset for offset, _, _ in rows], dtype=np.int64)
    before = next((offset for offset, saving, _ in rows if not saving), rows[0][0])
    instants = np.clip(instants, -_FURTHEST_S, _FURTHEST_S)
    return instants, np.r_[before, offsets[kinds]], content[start:].decode().strip()


def _expanded(rule: str, years: IntArray) -> tuple[IntArray, IntArray, int]:
    """Compute transitions of a rule in these years, the offset after each, and the standard offset; all in seconds."""
    found = _RULE.fullmatch(rule)
    if found is None:
        raise ConfigurationError(f"the time zone database {DATABASE} has a rule that is none: {rule!r}")
    standard = -_seconds(found[1])
    if found[3] is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), standard
    summer = standard + 3600 if found[2] is None else -_seconds(found[2])
    begins, ends = _moments(found[3], years) - standard, _moments(found[4], years) - summer
    instants = np.r_[begins, ends]
    offsets = np.r_[np.full(len(years), summer), np.full(len(years), standard)]
    order = np.argsort(instants, kind="stable")
    return instants[order], offsets[order], standard


def _moments(rule: str, years: IntArray) -> IntArray:
    """Compute the local times, in seconds, of a date of a rule in each year: `M3.2.0/2`, `J60`, `59`."""
    date, _, time = rule.partition("/")
    if date.startswith("M"):
        month, week, weekday = map(int, date[1:].split("."))
        first, after = _month(years, month), _month(years, month + 1)
        days = first + (weekday - (first + 4)) % 7 + 7 * (week - 1)  # 1970-01-01 was a Thursday
        days -= np.where(days >= after, 7, 0)
    else:
        first = _month(years, 1)
        leap = _month(years, 13) - first == 366
        days = first + (int(date[1:]) - 1 + (leap & (int(date[1:]) >= 60)) if date[0] == "J" else int(date))
    return np.asarray(days * (DAY_US // SECOND_US) + _seconds(time or "2"), dtype=np.int64)


def _month(years: IntArray, month: int) -> IntArray:
    """Find the day on which a month of each year begins."""
    months = ((years - 1970) * 12 + month - 1).astype("datetime64[M]")
    return months.astype("datetime64[D]").astype(np.int64)


def _years(instants_s: IntArray) -> IntArray:
    return instants_s.astype("datetime64[s]").astype("datetime64[Y]").astype(np.int64) + 1970


def _seconds(text: str) -> int:
    """Read `2`, `-1`, `5:30`, `00:19:32` as seconds."""
    sign = -1 if text.startswith("-") else 1
    parts = [int(part) for part in text.lstrip("+-").split(":")]
    return sign * sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
