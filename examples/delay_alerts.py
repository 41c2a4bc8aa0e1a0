"""Alerts on New York's flights in 2013: `make alerts`.

The mean departure delay of the last two hours at EWR, JFK and LGA, of ten flights or more: an alert opens above 45 minutes, and
is cancelled below 20, or as the last flight is out of the window. Mails arrive in a mailbox of this process. The job runs in
another process, which kills itself once within an incident, and is started again. Its incidents are compared with those of a
plain pandas program, and thresholds of 30, 45 and 60 minutes with each other by a backtest. Exit code 1: something was not
equal.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import flights_data as data
import pandas as pd
import pyarrow as pa

import windrow as wr

HOURS, FLIGHTS, OPENS, CANCELS = 2, 10, 45, 20
WIDTH = pd.Timedelta(hours=HOURS)
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("origin", pa.string()), ("dep_delay", pa.int64())])


def alert(opens: int = OPENS) -> wr.Alert:
    """The alert that opens above so many minutes."""
    return wr.Alert(
        name="delays",
        by="origin",
        event_time="at",
        frame=f"{HOURS} hours",
        agg={"mean": wr.avg("dep_delay"), "flights": wr.count()},
        when=(wr.col("mean") > opens) & (wr.col("flights") >= FLIGHTS),
        until=(wr.col("mean") < CANCELS) | (wr.col("flights") == 0),
        actions={"mail": wr.Action(), "log": wr.Action()},
        max_ahead=wr.forever,
    )


def departures(days: int) -> pd.DataFrame:
    """The flights that left, in the order in which they did."""
    flights = data.flights(min(days // 28 + 1, 12))
    flights = flights[flights.departure.notna()]
    flights = flights.assign(at=data.to_utc(flights.departure))[SCHEMA.names]
    flights = flights.sort_values("at", kind="stable", ignore_index=True)
    return flights[flights["at"] < flights["at"].min() + pd.Timedelta(days=days)]


def by_shift(flights: pd.DataFrame) -> list[pa.Table]:
    """The same, six hours in each table."""
    shifts = flights.groupby(flights["at"].dt.floor("6h"), sort=True)
    return [pa.Table.from_pandas(shift, SCHEMA, preserve_index=False) for _, shift in shifts]


# -- the job ----------------------------------------------------------------------------------------------------------


def run(folder: str, days: int, port: int, dies: bool) -> None:
    """Go on with the job where it stopped. dies: kill this process as soon as an incident is open at noon."""
    mail = wr.sinks.email(
        "ops@example.org", server="127.0.0.1", port=port, subject="{status} {origin}: {mean:.0f} minutes"
    )
    sink = wr.sinks.route("action", {"mail": mail, "log": wr.sinks.parquet(os.path.join(folder, "out"))})
    location = os.path.join(folder, "job")
    with alert().open(location, sink=sink, schema=SCHEMA) as op:
        for table in by_shift(departures(days))[op.last_commit :]:
            op.add_messages(table)
            op.next_offsets()
            if dies and is_open(location):
                os.kill(os.getpid(), signal.SIGKILL)


def is_open(location: str) -> bool:
    """True if an incident is open."""
    with wr.read_state(location) as state:
        return set(state.table("alerts").column("status").to_pylist()) > {"CANCEL"}


def in_a_process(folder: str, days: int, port: int, dies: bool) -> int:
    asked = ["--folder", folder, "--days", str(days), "--port", str(port), *(["--dies"] if dies else [])]
    return subprocess.run([sys.executable, __file__, *asked], check=False).returncode


# -- what pandas makes of it -----------------------------------------------------------------------------------------


class Airport:
    """The flights of the last two hours at one airport, and whether an incident is open."""

    def __init__(self) -> None:
        self.inside: deque[tuple[Any, int]] = deque()
        self.total, self.opened = 0, None
        self.incidents: list[tuple[Any, Any]] = []

    def judge(self, at: Any) -> None:
        n = len(self.inside)
        if self.opened is None:
            if n >= FLIGHTS and self.total / n > OPENS:
                self.opened = at
        elif n == 0 or self.total / n < CANCELS:
            self.incidents.append((self.opened, at))
            self.opened = None

    def leave(self, until: Any) -> None:
        while self.inside and self.inside[0][0] + WIDTH < until:
            gone = self.inside[0][0]
            while self.inside and self.inside[0][0] == gone:
                self.total -= self.inside.popleft()[1]
            self.judge(gone + WIDTH + pd.Timedelta(microseconds=1))


def incidents_by_pandas(flights: pd.DataFrame) -> pd.DataFrame:
    """Opening and end of each incident, by one loop over flights that leave, and leave the window."""
    rows = []
    for origin, part in flights.groupby("origin"):
        airport = Airport()
        for at, delay in zip(part["at"], part["dep_delay"].astype("int64"), strict=True):
            airport.leave(at)
            airport.inside.append((at, delay))
            airport.total += delay
            airport.judge(at)
        airport.leave(flights["at"].max())
        rows += [(origin, *one) for one in airport.incidents]
    return pd.DataFrame(rows, columns=["origin", "opened", "ended"])


def incidents(rows: pa.Table) -> pd.DataFrame:
    """Opening and end of each incident that has ended, of rows of an alert."""
    frame = rows.select(["origin", "action", "status", "time", "open_time"]).to_pandas()
    ended = frame[(frame.action == "log") & (frame.status == "CANCEL")]
    return ended.rename(columns={"open_time": "opened", "time": "ended"})[["origin", "opened", "ended"]]


def sorted_(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(frame.itertuples(index=False, name=None))


def draw(flights: pd.DataFrame, alerts: pd.DataFrame, path: str) -> None:
    """Delays of each airport, a mean for each hour, with the incidents shaded."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    first = flights["at"].min().floor("D")
    month = flights[flights["at"] < first + pd.Timedelta(days=31)]
    figure, axes = plt.subplots(3, 1, figsize=(12, 7), sharex=True)
    for axis, (origin, own) in zip(axes, month.groupby("origin"), strict=True):
        hourly = own.set_index("at").dep_delay.resample("1h").mean()
        axis.plot(hourly.index, hourly, linewidth=0.8)
        for one in alerts[(alerts.origin == origin) & (alerts.opened < month["at"].max())].itertuples():
            axis.axvspan(one.opened, one.ended, color="tab:red", alpha=0.3)
        axis.set_ylabel(f"{origin}, minutes")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="out/alerts")
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)  # of the process of the job
    parser.add_argument("--dies", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    logging.getLogger("windrow").setLevel(logging.ERROR)
    if options.port is not None:
        run(options.folder, options.days, options.port, options.dies)
        return 0
    from mailbox_of_process import Mailbox

    shutil.rmtree(options.folder, ignore_errors=True)
    os.makedirs(options.folder)
    flights = departures(options.days)
    with Mailbox() as box:
        died = in_a_process(options.folder, options.days, box.port, True)
        done = in_a_process(options.folder, options.days, box.port, False)
    rows = wr.read_panes(os.path.join(options.folder, "out"))
    actual, wanted = incidents(rows), incidents_by_pandas(flights)
    print(
        f"{len(flights):,} flights, {len(actual)} incidents; the job was killed within one ({died}) and went on ({done})"
    )
    print(
        f"{len(box.mails)} mails of {len(box.keys)} rows, {sum(actual.ended > actual.opened)} incidents have a length"
    )
    draw(flights, actual, os.path.join(options.folder, "incidents.png"))
    whole = pa.Table.from_pandas(flights, SCHEMA, preserve_index=False)
    for minutes in (30, 45, 60):
        other = incidents(alert(minutes).backtest(whole, commits="1 day"))
        length = (other.ended - other.opened).sum()
        print(
            f"opened above {minutes} minutes: {len(other)} incidents, {length.total_seconds() / 60:,.0f} minutes open"
        )
        if minutes == OPENS and sorted_(other) != sorted_(wanted):
            print("the backtest is not what pandas makes of it")
            return 1
    openings = rows.filter(pa.compute.equal(rows.column("action"), "mail")).num_rows
    same = sorted_(actual) == sorted_(wanted)
    print("incidents equal those of pandas" if same else "INCIDENTS DIFFER FROM THOSE OF PANDAS")
    return 0 if same and died == -signal.SIGKILL and done == 0 and len(box.keys) >= openings else 1


if __name__ == "__main__":
    sys.exit(main())
