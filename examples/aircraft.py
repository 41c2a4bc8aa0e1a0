"""The working days of aircraft, as they were heard of: `make sessions`.

An aircraft's working day is a session: flights out of New York of one tail number, none more than six hours after the one
before. Flights are heard of when they land, six hours of landings a commit, out of order. So a working day is told early,
grows, becomes one with another, and what was told of it before is taken back. At the end pandas computes everything again.

docs/tutorial/sessions.md walks through it; flights_data.py says where the data comes from. Neither Spark nor Java is needed.
Exit code 1: something was not equal.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import Any

import aircraft_plot
import flights_data as data
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from tqdm import tqdm

import windrow as wr

DAYS = wr.Aggregate(
    name="days",
    by="tailnum",
    event_time="departure",
    time_zone=data.ZONE,
    window=wr.session("6 hours"),
    agg={"flights": wr.count(), "miles": wr.sum("distance"), "worst": wr.max("dep_delay")},
    # As in flights.py: most flights are down within two hours after the last departure that was heard of.
    watermark="2 hours",
    retention="2 days",
    emit=wr.Emit(early=wr.every_batch, late=wr.every_batch),
)
GAP = pd.Timedelta(hours=6)
COLUMNS = ("departure", "tailnum", "distance", "dep_delay")
TIMINGS = ("EARLY", "ON_TIME", "LATE")
KEYS = ["tailnum", "start", "end"]


def tables(frame: pd.DataFrame) -> list[pa.Table]:
    """The flights by the quarter of a day in which they landed."""
    fields = {"departure": pa.timestamp("us"), "tailnum": pa.string(), "distance": pa.int64()}
    schema = pa.schema(fields | {"dep_delay": pa.int64()})
    landed = frame.landed.dt.floor("6h")
    return [
        pa.Table.from_pandas(part[list(COLUMNS)], schema, preserve_index=False)
        for _, part in frame.groupby(landed)
    ]


def run(tables: list[pa.Table], out: str) -> int:
    """Feed what landed within six hours a commit, then drain. How many flights were set aside."""
    shown = sys.stderr.isatty()
    with DAYS.open(os.path.join(out, "job"), sink=wr.sinks.parquet(os.path.join(out, "panes"))) as op:
        for table in tqdm(tables, unit="commit", ncols=100, disable=not shown):
            op.add_messages(table)
            op.timeout()
        op.drain()
        letters = len(op.dead_letters())
    print(f"{sum(map(len, tables)):,} flights in {len(tables):,} commits")
    return letters


def emitted_rows(out: str) -> pa.Table:
    return wr.read_panes(os.path.join(out, "panes"), operator="days")


def flat(panes: pa.Table) -> pd.DataFrame:
    """Panes with the columns `start`, `end` and those of the pane."""
    for struct in ("window", "pane"):
        column = panes.column(struct)
        for field in column.type:
            panes = panes.append_column(field.name, pc.struct_field(column, field.name))
    frame = panes.drop_columns(["window", "pane"]).to_pandas()
    return frame.astype({"start": "datetime64[ns, UTC]", "end": "datetime64[ns, UTC]"})


# -- the check ------------------------------------------------------------------------------------------------------


def days_by_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    """Compute the rows as a batch job would."""
    flown = frame[frame.departure.notna()]
    flown = flown.assign(left=data.to_utc(flown.departure).astype("datetime64[ns, UTC]"))
    flown = flown.sort_values(["tailnum", "left"], kind="stable")
    begins = (flown.tailnum != flown.tailnum.shift()) | (flown.left.diff() > GAP)
    days = flown.groupby(begins.cumsum()).agg(
        tailnum=("tailnum", "first"),
        start=("left", "min"),
        last=("left", "max"),
        flights=("left", "size"),
        miles=("distance", "sum"),
        worst=("dep_delay", "max"),
    )
    return days.assign(end=days["last"] + GAP).drop(columns="last").reset_index(drop=True)


def compare(ours: pd.DataFrame, truth: pd.DataFrame) -> bool:
    """Print how the working days compare with pandas; True if they are equal."""
    both = truth.merge(ours, on=KEYS, how="outer", suffixes=("_pandas", ""), indicator=True)
    matched = both[both._merge == "both"]
    unequal = sum(int((matched[c] != matched[f"{c}_pandas"]).sum()) for c in ("flights", "miles", "worst"))
    equal = len(matched) == len(both) and unequal == 0
    print("\nChecked against pandas")
    print(
        f"  {len(matched):,} of {len(truth):,} working days matched, {len(both) - len(matched):,} unmatched"
    )
    print(f"  {unequal:,} unequal values of {3 * len(matched):,}")
    return equal


# -- for people -----------------------------------------------------------------------------------------------------


def summarise(panes: pd.DataFrame, days: pd.DataFrame) -> None:
    print(f"\n{'Panes':10}{''.join(f'{t:>12}' for t in TIMINGS)}{'all':>12}")
    for kind in ("INSERT", "RETRACT"):
        counts = panes[panes.kind == kind].timing.value_counts()
        print(f"{kind:10}{''.join(f'{counts.get(t, 0):>12,}' for t in TIMINGS)}{counts.sum():>12,}")
    print(f"\n{len(days):,} working days of {days.tailnum.nunique():,} aircraft")
    print("\nThe busiest")
    print(f"  {'aircraft':10}{'from':18}{'to':18}{'flights':>8}{'miles':>9}{'worst delay':>13}")
    for day in (
        days.sort_values(["flights", "miles", "start"], ascending=[False, False, True]).head(5).itertuples()
    ):
        start, last = (t.tz_convert(data.ZONE) for t in (day.start, day.end - GAP))
        print(
            f"  {day.tailnum:10}{start:%a %d %b %H:%M}  {last:%a %d %b %H:%M}  "
            f"{day.flights:>8}{day.miles:>9,}{day.worst:>13}"
        )


def most_corrected(panes: pd.DataFrame, days: int = 3) -> pd.DataFrame:
    """The panes of one aircraft, of the days within which most was taken back."""
    at = panes.start.dt.floor(f"{days}D")
    tail, begin = panes[panes.kind == "RETRACT"].groupby(["tailnum", at]).size().idxmax()
    near = (panes.start >= begin) & (panes.start < begin + pd.Timedelta(days=days))
    return panes[near & (panes.tailnum == tail)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only January and February")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth flight")
    parser.add_argument("--out", help="output directory (default out/aircraft)")
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    out = chosen.out or os.path.join("out", "aircraft-quick" if chosen.quick else "aircraft")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    frame = data.flights(2 if chosen.quick else 12, chosen.every)
    cancelled = int(frame.departure.isna().sum())
    letters = run(tables(frame), out)
    panes: Any = emitted_rows(out)
    days = flat(wr.latest(panes))
    panes = flat(panes)
    summarise(panes, days)
    equal = compare(days, days_by_pandas(frame))
    print(f"  {letters:,} dead letters of {cancelled:,} cancelled flights")
    equal &= letters == cancelled
    print(f"  pandas equality: {'EQUAL' if equal else 'NOT EQUAL'}")
    picture = os.path.join(out, "days.png")
    aircraft_plot.draw(most_corrected(panes), data.ZONE, picture)
    print(f"\nThe days of one aircraft, as they were emitted: {picture}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
