"""Time zones: local times and instants are those of `zoneinfo`, and calendar windows partition the time line.

Cases are half an hour either side of each transition from 1900 to 2100, of a sample of zones; WINDROW_DEEP=1 takes all zones of
the database. Each test prints how many cases it has seen.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import DEEP, usually
from windrow.core.arrays import IntArray
from windrow.core.errors import ConfigurationError
from windrow.core.time import HOUR_US, MINUTE_US, instant_us, to_datetime
from windrow.core.zones import DATABASE, check_zone, names, zone_of
from windrow.operators.oracle.times import zone_info
from windrow.operators.oracle.windows import windows_of
from windrow.operators.steps.assigners import assigner_of
from windrow.operators.steps.intake import event_times
from windrow.runners.rows import event_time_us

FIRST_US, LAST_US = (instant_us(f"{year}-01-01T00:00Z") for year in (1900, 2101))
#: Gaps and overlaps over midnight, days that were skipped or came twice, half hours, negative summer time, rules without end.
HARD = [
    "America/St_Johns", "America/Sao_Paulo", "Asia/Beirut", "Pacific/Apia", "Pacific/Kwajalein", "Asia/Manila",
    "Australia/Lord_Howe", "Europe/Dublin", "Africa/Casablanca", "Asia/Gaza", "America/Nuuk", "America/New_York", "UTC",
]  # fmt: skip
CHANCE = random.Random(11)
SOME = HARD + CHANCE.sample(sorted(names() - set(HARD)), 5)
ZONES = usually(SOME, deep=sorted(names()))
PARTS = usually(1, deep=10)
in_parts = pytest.mark.parametrize("zones", [ZONES[part::PARTS] for part in range(PARTS)], ids=range(PARTS))
EPOCH, US = datetime(1970, 1, 1), timedelta(microseconds=1)
WINDOWS: list[dict[str, Any]] = [
    {"size": "day"},
    {"size": "3 days"},
    {"size": "week"},
    {"size": "2 weeks", "week_start": "sunday"},
    {"size": "month"},
    {"size": "quarter", "offset": "-36 hours"},
    {"size": "year", "offset": "90 days"},
    {"size": "day", "offset": "6 hours"},
    {"size": "day", "offset": "-30 minutes"},
]


def transitions(name: str) -> list[int]:
    """Find the instants at which a zone's offset changes, from 1900 to 2100."""
    changes = zone_of(name).changes
    return [int(t) for t in changes[(changes >= FIRST_US) & (changes < LAST_US)]]


def offset_us(zone: ZoneInfo, instant: int) -> int:
    offset = to_datetime(instant).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // US


def near(time_us: int) -> Iterator[int]:
    for minutes in (-30, -15, 0, 15, 30):
        yield time_us + minutes * MINUTE_US
    yield time_us - 1


def local_times(name: str) -> list[int]:
    """Read clocks around each transition, by the offset before and after it, and some of all years."""
    zone, instants = zone_info(name), set[int]()
    for instant in transitions(name):
        for offset in {offset_us(zone, instant - 1), offset_us(zone, instant)}:
            instants.update(near(instant + offset))
    for year in (1, 1850, 2037, 2038, 2100, 2500, 9999):
        instants.update((datetime(year, month, 15, 12) - EPOCH) // US for month in (1, 7))
    return sorted(instants)


def by_zoneinfo(local_us: int, name: str, fold: int = 0) -> int:
    """Convert by Python's `zoneinfo`.

    It contradicts itself in one hour of the database, of America/Nuuk in 2023, where the last transition that the file lists
    and the rule for all years after it meet: the instant that it gives reads as another time there. The time is no gap, so
    there is an instant that reads so.
    """
    zone, local = zone_info(name), EPOCH + local_us * US
    instant = instant_us(local.replace(tzinfo=zone, fold=fold))
    if instant + offset_us(zone, instant) == local_us:
        return instant
    for hours in (-26, 26):
        other = local_us - offset_us(zone, instant + hours * HOUR_US)
        if other + offset_us(zone, other) == local_us:
            return other
    return instant


def column(kind: pa.DataType) -> Callable[[list[int], str], list[Any]]:
    def read(local: list[int], name: str) -> list[Any]:
        units = {"us": 1, "ms": 1_000, "ns": 0}[kind.unit]
        values = [t * 1_000 for t in local] if units == 0 else [t // units for t in local]
        return event_times(pa.chunked_array([pa.array(values, pa.int64()).cast(kind)]), "t", name).to_pylist()

    return read


def texts(local: list[int], name: str) -> list[Any]:
    column = pa.chunked_array([pa.array([(EPOCH + t * US).isoformat() for t in local])])
    return event_times(column, "t", name).to_pylist()


def messages(make: Callable[[datetime], Any]) -> Callable[[list[int], str], list[Any]]:
    def read(local: list[int], name: str) -> list[Any]:
        return [event_time_us(make(EPOCH + t * US), zone_of(name))[0] for t in local]

    return read


def dates(local: list[int], name: str) -> list[Any]:
    array = pa.array([(EPOCH + t * US).date() for t in local], pa.date32())
    return event_times(pa.chunked_array([array]), "t", name).to_pylist()


def json(local: list[int], name: str) -> list[Any]:
    decoder = wr.decoders.json({"t": pa.timestamp("us", name)})
    records = [b'{"t": "%s"}' % (EPOCH + t * US).isoformat().encode() for t in local]
    return decoder.decode(records, "topic").column("t").cast(pa.int64()).to_pylist()


#: How a local time comes, and to which of its units it is exact.
ROUTES: dict[str, tuple[Callable[[list[int], str], list[Any]], int]] = {
    "columns in us": (column(pa.timestamp("us")), 1),
    "columns in ms": (column(pa.timestamp("ms")), 1_000),
    "columns of text": (texts, 1),
    "columns of dates": (dates, 24 * HOUR_US),
    "messages": (messages(lambda t: t), 1),
    "text in messages": (messages(datetime.isoformat), 1),
    "numpy in messages": (messages(np.datetime64), 1),
    "records of JSON": (json, 1),
    "dates in messages": (messages(datetime.date), 24 * HOUR_US),
}


@in_parts
def test_local_times_are_the_instants_of_zoneinfo_on_every_route(zones: list[str]) -> None:
    cases = changes = 0
    for name in zones:
        local = local_times(name)
        changes += len(transitions(name))
        sample = local if DEEP else CHANCE.sample(local, min(len(local), 60))
        wanted = {
            t: by_zoneinfo(t, name) for t in {t // unit * unit for t in sample for _, unit in ROUTES.values()}
        }
        for route, (read, unit) in ROUTES.items():
            cases += len(sample)
            for t, instant in zip(sample, read(sample, name), strict=True):
                assert instant == wanted[t // unit * unit], (route, name, EPOCH + t * US)
    print(f"{len(zones)} zones, {changes} transitions, {len(ROUTES)} routes: {cases} local times")


def test_the_second_of_two_equal_local_times_is_had_by_fold() -> None:
    for name in HARD:
        zone, local = zone_of(name), CHANCE.sample(known := local_times(name), min(len(known), 100))
        for t in local:
            second = (EPOCH + t * US).replace(fold=1)
            assert zone.instant(second) == by_zoneinfo(t, name, fold=1), (name, second)


@in_parts
def test_a_zone_has_no_other_transitions_than_zoneinfo(zones: list[str]) -> None:
    """Between two transitions the offset is one: looked at every 11 days, and deep every 47 hours."""
    step, cases = usually(11 * 24 * HOUR_US, deep=47 * HOUR_US), 0
    for name in zones:
        zone, instants = zone_info(name), np.arange(FIRST_US, LAST_US, step)
        local = np.array([t + offset_us(zone, t) for t in instants.tolist()])
        cases += len(local)
        # Where clocks go back they are ahead of themselves for a while, which is not long.
        ahead = zone_of(name).furthest(instants) - local
        assert ((ahead == 0) | np.isin(instants, after(transitions(name), instants))).all(), name
    print(f"{len(zones)} zones: {cases} instants")


def after(changes: list[int], instants: IntArray) -> IntArray:
    """Pick instants less than 25 hours after a change."""
    if not changes:
        return instants[:0]
    last = np.array(changes)[np.maximum(np.searchsorted(changes, instants, "right") - 1, 0)]
    return instants[(instants >= last) & (instants - last < 25 * HOUR_US)]


@in_parts
def test_calendar_windows_partition_the_time_line(zones: list[str]) -> None:
    cases = 0
    for name in zones:
        around = sorted({t for change in transitions(name) for t in near(change)} | {FIRST_US, LAST_US})
        for options in WINDOWS:
            window = wr.calendar(time_zone=name, **options)
            assigner = assigner_of(window)
            times = np.array(around)
            rows, starts, ends = assigner.assign(times)
            assert (rows == np.arange(len(times))).all()
            assert ((starts <= times) & (times < ends)).all(), (name, window)
            for edges in (starts, ends):  # one window ends there, and the next begins
                assert (assigner.assign(edges)[1] == edges).all(), (name, window)
                assert (assigner.assign(edges - 1)[2] == edges).all(), (name, window)
            assert (assigner.ends(starts) == ends).all()
            cases += len(times)
            for i in CHANCE.sample(range(len(times)), min(len(times), usually(6, deep=60))):
                [by_oracle] = windows_of(window, around[i])
                assert (by_oracle.start_us, by_oracle.end_us) == (starts[i], ends[i]), (
                    name,
                    window,
                    around[i],
                )
                assert assigner.first_open(around[i]) == starts[i]
    print(f"{len(zones)} zones, {len(WINDOWS)} windows: {cases} instants")


def test_windows_reach_over_all_years() -> None:
    edges = np.array(
        [instant_us("0001-01-01T00:00Z"), instant_us("9999-12-31T23:59:59.999999Z"), 2**60, -(2**60)]
    )
    for name in ("America/New_York", "Asia/Tokyo"):
        for size in ("day", "week", "9999 years"):
            _, starts, ends = assigner_of(wr.calendar(size, time_zone=name)).assign(edges)
            assert ((starts <= edges) & (edges < ends)).all()


def test_no_other_arithmetic_of_time_zones_is_used() -> None:
    """Neither Arrow's, nor files of the host: oracles alone read zones with `zoneinfo`, from the same files."""
    others = re.compile(
        r"assume_timezone|local_timestamp|ZoneInfo\(|to_utc_timestamp|from_utc_timestamp|tz_localize|string_to_tzinfo"
    )
    root = Path(__file__).parents[2] / "src" / "windrow"
    sources = [
        file for folder in root.iterdir() if folder.is_dir() for file in folder.resolve().rglob("*.py")
    ]
    assert len(sources) > 100
    assert [file.name for file in sources if others.search(file.read_text())] == []


@pytest.mark.parametrize(
    "name", ["Mars", "../zoneinfo/UTC", "europe/berlin", "localtime", "", None, 1, "UTC\0"]
)
def test_what_is_no_name_of_the_database_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"is not known to the time zone database {DATABASE}"):
        check_zone(name)
    with pytest.raises(ConfigurationError):
        zone_of(str(name))
