"""The kill drill: `kill -9` of a running Spark job at random moments, again and again, then the count.

    python examples/kill_drill.py --kills 10

A child process runs a streaming query over files, of two operators: windows of ten seconds, and sessions. This process kills
the child with all that belongs to it, starts it again, and at the end compares what was published with the plain oracles, fed
with the recorded step log: nothing lost, nothing twice.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import windrow as wr

SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64())])
START = datetime(2020, 1, 1, tzinfo=UTC)
#: A key has about six rows a second, so that rows that come late join sessions that were told.
GAP = timedelta(milliseconds=500)


def definitions() -> list[wr.Aggregate]:
    """Early panes for every commit that changed a window, late ones too, all retracted properly."""
    shared: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "watermark": "5 seconds",
        "retention": "1 hour",
        "emit": wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting"),
    }
    sums = {"n": wr.count(), "s": wr.sum("v"), "hi": wr.max("v")}
    return [
        wr.Aggregate(
            name="windows",
            window=wr.tumbling("10 seconds"),
            agg={**sums, "middle": wr.median("v")},
            **shared,
        ),
        wr.Aggregate(name="sessions", window=wr.session(GAP), agg=sums, **shared),
    ]


def make_input(folder: Path, files: int, rows: int, seed: int) -> None:
    """Files of rows that come out of order, some of them late."""
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    for i in range(files):
        base = START + timedelta(seconds=4 * i)
        table = pa.Table.from_pylist(
            [
                {
                    "t": base + timedelta(seconds=rng.uniform(-30, 4)),
                    "k": rng.choice("abcdefgh"),
                    "v": rng.randrange(1000),
                }
                for _ in range(rows)
            ],
            SCHEMA,
        )
        path = folder / f"{i:05d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_600_000_000 + i, 1_600_000_000 + i))


def run_job(folder: Path) -> None:
    """The child: one streaming query, to the end of the input, then drained."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    schema = spark.createDataFrame(SCHEMA.empty_table()).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "input"))
    query = (
        wr.writeStream(definitions(), stream)
        .sink({d.name: wr.sinks.parquet(str(folder / d.name)) for d in definitions()})
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.drain()
    spark.stop()


def drill(folder: Path, kills: int, files: int, rows: int, seed: int) -> int:
    """Kill and restart until the input is read, then check. The exit code."""
    make_input(folder / "input", files, rows, seed)
    rng = random.Random(seed)
    for killed in range(1, kills + 1):
        # Each run may make a commit or two before it dies, at any point of a commit.
        if not killed_after(folder, _commits(folder) + rng.randrange(1, max(2, files // kills)), rng):
            print("the job ended before it was killed often enough: use more files")
            return 1
        print(f"killed {killed} of {kills} after commit {_commits(folder)}", flush=True)
    code = _child(folder).wait()
    if code != 0:
        print(f"the job ended with code {code}")
        return 1
    return check(folder, kills)


def killed_after(folder: Path, commits: int, rng: random.Random) -> bool:
    """One life of the child, killed some time after so many commits are made. False if it ended before."""
    child = _child(folder)
    while child.poll() is None and _commits(folder) < commits:
        time.sleep(0.02)
    time.sleep(rng.uniform(0.0, 0.8))
    if child.poll() is not None:
        return False
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    return True


def _child(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--child", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _commits(folder: Path) -> int:
    """Records in the log: a cheap measure of how far the job is."""
    log = folder / "checkpoint" / "windrow" / "log"
    return len(list(log.glob("*.wrl"))) // 2 if log.is_dir() else 0


def check(folder: Path, killed: int) -> int:
    """Published panes against the oracles over the recorded step log, and against an undisturbed computation."""
    good = True
    print(f"kills: {killed}")
    undisturbed: dict[str, dict[Any, tuple[int, int, int]]] = {"windows": {}, "sessions": {}}
    for key, rows in _rows_by_key(folder).items():
        for name, of_key in (("windows", _windows(rows)), ("sessions", _sessions(rows))):
            undisturbed[name] |= {(start, key): values for start, values in of_key.items()}
    for definition in definitions():
        name = definition.name
        published = [_plain(p) for p in definition.values(_panes(folder, name), "drill")]
        expected = [_plain(p) for p in oracle_panes(folder, definition)]
        lost, twice = Counter(expected) - Counter(published), Counter(published) - Counter(expected)
        final, wanted = _final(folder, name), undisturbed[name]
        print(f"{name}: commits: {max((p[-1] for p in published), default=0)}")
        print(f"{name}: panes published: {len(published)}, by the oracle: {len(expected)}")
        print(f"{name}: panes lost: {sum(lost.values())}, published twice or wrong: {sum(twice.values())}")
        print(
            f"{name}: {len(final)}, as in an undisturbed run: {sum(final.get(k) == v for k, v in wanted.items())}"
        )
        good &= not lost and not twice and final == wanted
    print("nothing lost, nothing twice" if good else "THE DRILL FAILED")
    return 0 if good else 1


def oracle_panes(folder: Path, definition: wr.Aggregate) -> Iterator[wr.Pane]:
    """The panes of the plain oracle, fed with the recorded steps."""
    from windrow.checkpoint.log import FileLog
    from windrow.core.time import START_OF_TIME_US

    log = FileLog(str(folder / "checkpoint" / "windrow" / "log"))
    log.tail()
    oracle = definition.oracle()
    for commit in log.commits():
        for step in commit.steps:
            watermark_us = START_OF_TIME_US if step.watermark_us is None else step.watermark_us
            if step.kind == "advance":
                emitted = oracle.advance(watermark_us, step.now_us)
            else:
                slice_ = list(_messages(step.first_offsets, step.next_offsets))
                emitted = oracle.ingest(slice_, step.now_us, watermark_us)
            for pane in emitted.rows:
                yield replace(pane, commit=commit.commit)


def _messages(first: Any, following: Any) -> Iterator[wr.Message]:
    """The rows of the files that a step took."""
    for (source, partition), end in sorted(following.items()):
        rows = pq.read_table(source.removeprefix(":").removeprefix("file://")).to_pylist()
        for offset in range(first[source, partition], end):
            yield wr.Message(rows[offset], wr.Position(source, partition, offset))


def _panes(folder: Path, name: str) -> pa.Table:
    return wr.read_panes(str(folder / name), operator=name)


def _rows_by_key(folder: Path) -> dict[str, list[tuple[datetime, int]]]:
    """The times and values of each key, sorted."""
    by_key: dict[str, list[tuple[datetime, int]]] = {}
    for file in sorted((folder / "input").glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            by_key.setdefault(row["k"], []).append((row["t"], row["v"]))
    return {key: sorted(rows) for key, rows in by_key.items()}


def _windows(rows: list[tuple[datetime, int]]) -> dict[datetime, tuple[int, int, int]]:
    """Compute the windows of ten seconds, by their start."""
    values: dict[datetime, list[int]] = {}
    for t, v in rows:
        values.setdefault(START + (t - START) // timedelta(seconds=10) * timedelta(seconds=10), []).append(v)
    return {start: (len(numbers), sum(numbers), max(numbers)) for start, numbers in values.items()}


def _sessions(rows: list[tuple[datetime, int]]) -> dict[datetime, tuple[int, int, int]]:
    """Compute the sessions, by their start."""
    values: dict[datetime, list[int]] = {}
    start = last = None
    for t, v in rows:
        if start is None or last is None or t - last > GAP:
            start = t
        values.setdefault(start, []).append(v)
        last = t
    return {start: (len(numbers), sum(numbers), max(numbers)) for start, numbers in values.items()}


def _plain(pane: wr.Pane) -> tuple[Any, ...]:
    values = tuple(sorted(pane.values.items()))
    return (
        pane.window,
        tuple(pane.key.items()),
        values,
        pane.timing.value,
        pane.index,
        pane.is_last,
        pane.kind.value,
        pane.commit,
    )


def _final(folder: Path, name: str) -> dict[Any, tuple[int, int, int]]:
    rows = wr.latest(_panes(folder, name)).to_pylist()
    return {(r["window"]["start"], r["k"]): (r["n"], r["s"], r["hi"]) for r in rows}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--files", type=int, default=30)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the folder and print its name")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.child is not None:
        run_job(chosen.child)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="windrow-drill-"))
    try:
        return drill(folder / "job", chosen.kills, chosen.files, chosen.rows, chosen.seed)
    finally:
        if chosen.keep:
            print(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
