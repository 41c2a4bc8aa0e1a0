"""Time zones, embedded: calendar windows where clocks go back over midnight, and local times on every route."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from windrow.checkpoint import definition_check, warnings
from windrow.core.time import instant_us
from windrow.core.zones import zone_of
from windrow.testing import ManualClock, TestDriver

ST_JOHNS = wr.calendar("day", time_zone="America/St_Johns")
#: At 2006-10-29T02:31Z clocks in St John's went from 00:01 to 23:01 of the day before.
OVER_MIDNIGHT = [
    "2006-10-29T02:29:00Z",
    "2006-10-29T02:30:30Z",
    "2006-10-29T02:45:00Z",
    "2006-10-29T03:29:00Z",
    "2006-10-29T03:30:00Z",
    "2006-10-30T03:30:00Z",
]


def definition(window: Any, agg: Any, **options: Any) -> wr.Aggregate:
    return wr.Aggregate(
        event_time="t", window=window, agg=agg, retention="9 days", max_ahead=wr.forever, **options
    )


@pytest.mark.parametrize(
    "agg", [{"n": wr.count()}, {"n": wr.count(), "mid": wr.median("v")}], ids=["n", "median"]
)
@pytest.mark.parametrize("emit", [wr.Emit(), wr.Emit.append()], ids=["emit", "append"])
@pytest.mark.parametrize("together", [True, False], ids=["together", "one by one"])
def test_a_day_over_whose_midnight_clocks_go_back_is_one_window(agg: Any, emit: Any, together: bool) -> None:
    lateness = {} if emit == wr.Emit.append() else {"allowed_lateness": "2 days"}
    with TestDriver(definition(ST_JOHNS, agg, emit=emit, **lateness)) as driver:
        rows = [{"t": t, "v": i} for i, t in enumerate(OVER_MIDNIGHT)]
        for batch in [rows] if together else [[row] for row in rows]:
            driver.feed(batch)
        driver.drain()
        last = {pane.window: pane["n"] for pane in driver.committed_panes()}
        assert [last[window] for window in sorted(last)] == [1, 4, 1]
        assert driver.op.dead_letters() == []
        driver.check(dead_letters=True)


def test_sessions_that_are_cut_by_such_days_end_after_they_begin() -> None:
    window = wr.session("1 hour", cut=ST_JOHNS)
    with TestDriver(definition(window, {"n": wr.count()})) as driver:
        driver.feed([{"t": t} for t in OVER_MIDNIGHT])
        driver.drain()
        times = [instant_us(t) for t in OVER_MIDNIGHT]
        hour = 3_600_000_000
        midnight = instant_us("2006-10-29T02:30:00Z")
        assert [(p.window.start_us, p.window.end_us, p["n"]) for p in driver.committed_panes()] == [
            (times[0], midnight, 1),
            (times[1], times[4] + hour, 4),
            (times[5], times[5] + hour, 1),
        ]
        driver.check(dead_letters=True)


#: Zones, and years in which their clocks went forward or back at night.
NIGHTS = [
    ("America/St_Johns", 1988, 2011),
    ("America/St_Johns", 1988, 2011),
    ("America/Sao_Paulo", 1985, 2019),
    ("Pacific/Apia", 2009, 2021),
    ("Asia/Gaza", 2007, 2040),
]


def test_windows_and_sessions_around_any_transition_are_those_of_the_oracle() -> None:
    chance, hour = random.Random(4), 3_600_000_000
    for _ in range(usually(10, deep=300)):
        zone, first, last = chance.choice(NIGHTS)
        changes = zone_of(zone).changes
        years = (changes >= instant_us(f"{first}-01-01T00:00Z")) & (
            changes < instant_us(f"{last}-01-01T00:00Z")
        )
        change = int(chance.choice(changes[years]))
        size, offset = (
            chance.choice(["day", "day", "2 days", "week"]),
            chance.choice(["0 s", "0 s", "6 hours"]),
        )
        window: Any = wr.calendar(size, time_zone=zone, offset=offset)
        if chance.random() < 0.4:
            window = wr.session("1 hour", cut=window)
        agg = {"n": wr.count(), **({"mid": wr.median("v")} if chance.random() < 0.4 else {})}
        emit = chance.choice([wr.Emit(early=wr.every_batch, late=wr.every_batch), wr.Emit.append()])
        with TestDriver(definition(window, agg, emit=emit, watermark="2 hours")) as driver:
            for _ in range(6):
                reach = chance.choice([hour // 30, 2 * hour, 30 * hour])
                driver.feed([{"t": change + chance.randint(-reach, reach), "v": i} for i in range(4)])
            driver.drain()
            driver.check(dead_letters=True)


def test_a_day_after_2037_begins_as_the_rule_of_its_zone_says() -> None:
    with TestDriver(
        definition(wr.calendar("day", time_zone="America/New_York"), {"n": wr.count()})
    ) as driver:
        driver.feed([{"t": "2038-07-15T12:00:00Z"}])
        driver.drain()
        [pane] = driver.committed_panes()
        assert (pane.window.start, pane.window.end) == (
            datetime(2038, 7, 15, 4, tzinfo=UTC),
            datetime(2038, 7, 16, 4, tzinfo=UTC),
        )
        driver.check(dead_letters=True)


#: Local time in New York, its instant: in a gap, in an hour that comes twice, beyond what tables of transitions hold.
LOCAL = {
    datetime(2025, 3, 9, 2, 30): "2025-03-09T07:30:00Z",
    datetime(2025, 11, 2, 1, 30): "2025-11-02T05:30:00Z",
    datetime(2038, 7, 15, 8): "2038-07-15T12:00:00Z",
    datetime(2100, 12, 31, 23): "2101-01-01T04:00:00Z",
    datetime(1883, 11, 18, 12): "1883-11-18T16:56:02Z",
    datetime(1, 1, 1): "0001-01-01T04:56:02Z",
    datetime(9999, 7, 1): "9999-07-01T04:00:00Z",
}
ROUTES: dict[str, Any] = {
    "messages": lambda times: [{"t": t} for t in times],
    "texts of messages": lambda times: [{"t": t.isoformat()} for t in times],
    "table in us": lambda times: pa.table({"t": pa.array(times, pa.timestamp("us"))}),
    "table in s": lambda times: pa.table({"t": pa.array(times, pa.timestamp("s"))}),
    "table of texts": lambda times: pa.table({"t": [t.isoformat() for t in times]}),
    "pandas": lambda times: pd.DataFrame({"t": pd.array(times, "datetime64[us]")}),
    "polars": lambda times: pl.DataFrame({"t": pl.Series(times, dtype=pl.Datetime("us"))}),
}


def counted(rows: Any, zone: str, folder: Path) -> list[int]:
    """The event times of messages that are counted, sorted."""
    aggregate = definition(wr.tumbling("1 us"), {"n": wr.count()}, time_zone=zone, watermark=wr.explicit())
    with aggregate.open(str(folder), clock=ManualClock()) as op:
        op.add_messages(rows)
        op.flush()
        assert op.dead_letters() == []
        return sorted(window.window.start_us for window in op.get_windows())


@pytest.mark.parametrize("route", ROUTES)
def test_a_local_time_is_the_same_instant_on_every_route(route: str, tmp_path: Path) -> None:
    counts = counted(ROUTES[route](list(LOCAL)), "America/New_York", tmp_path)
    assert counts == sorted(instant_us(t) for t in LOCAL.values())


def test_a_date_without_a_time_is_its_first_moment_by_the_same_rule(tmp_path: Path) -> None:
    days = [date(2018, 11, 4), date(2040, 7, 1), date(1, 1, 1)]  # the first has no midnight
    wanted = ["0001-01-01T03:06:28Z", "2018-11-04T03:00:00Z", "2040-07-01T03:00:00Z"]
    for name, rows in (("dates", [{"t": day} for day in days]), ("table", pa.table({"t": days}))):
        assert counted(rows, "America/Sao_Paulo", tmp_path / name) == [instant_us(t) for t in wanted]


def test_an_event_time_that_no_64_bits_hold_is_malformed_by_its_year(tmp_path: Path) -> None:
    arrays = [
        pa.array([2**62, -(2**62), 2**40], pa.timestamp("s")),
        pa.array([2**63 - 1, -(2**63) + 1], pa.timestamp("us")),
        pa.array([2**61], pa.timestamp("s", "UTC")),
        pa.array([2**31 - 1, -(2**31), 2_932_897], pa.int32()).cast(pa.date32()),
        pa.array([86_400_000 * 10**10], pa.int64()).cast(pa.date64()),
        pa.array([2**63 + 5], pa.uint64()),
    ]
    for i, times in enumerate(arrays):
        aggregate = definition(wr.tumbling("1 us"), {"n": wr.count()}, time_zone="America/New_York")
        with aggregate.open(str(tmp_path / str(i)), clock=ManualClock()) as op:
            op.add_messages(pa.table({"t": times}))
            op.flush()
            letters = op.dead_letters()
        assert [letter.reason for letter in letters] == ["malformed"] * len(times)
        for letter in letters:
            assert "event time 't'" in letter.detail and "outside the years 1 to 9999" in letter.detail


def test_a_business_day_begins_at_its_hour_of_local_time() -> None:
    window = wr.calendar("day", time_zone="America/New_York", offset="6 hours")
    with TestDriver(definition(window, {"n": wr.count()})) as driver:
        driver.feed(
            [{"t": t} for t in ("2025-03-08T10:59:59Z", "2025-03-08T11:00:00Z", "2025-03-09T09:59:59Z")]
        )
        driver.feed([{"t": "2025-03-09T10:00:00Z"}])
        driver.drain()
        assert [
            (p.window.start.isoformat(), p.window.end - p.window.start, p["n"])
            for p in driver.committed_panes()
        ] == [
            ("2025-03-07T11:00:00+00:00", timedelta(hours=24), 1),
            ("2025-03-08T11:00:00+00:00", timedelta(hours=23), 2),
            ("2025-03-09T10:00:00+00:00", timedelta(hours=24), 1),
        ]
        driver.check(dead_letters=True)


def test_another_release_of_the_database_is_a_warning_as_the_job_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    zoned, plain = (
        definition(ST_JOHNS, {"n": wr.count()}),
        definition(wr.tumbling("1 day"), {"n": wr.count()}),
    )
    for database, warned in (("2020a", 0), ("2020a", 0), ("2026f", 1), ("2026f", 1)):
        for module in (definition_check, warnings):
            monkeypatch.setattr(module, "DATABASE", database)
        for name, aggregate in (("zoned", zoned), ("plain", plain)):
            with aggregate.open(str(tmp_path / name)) as op:
                op.add_messages([{"t": OVER_MIDNIGHT[0]}])
        changed = [text for text in caplog.messages if "time zone database is another" in text]
        assert len(changed) == warned, database
    assert "before='2020a' now='2026f'" in changed[0]
