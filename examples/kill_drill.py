"""The kill drill: `kill -9` of a running Spark job at random moments, again and again, then the count.

    python examples/kill_drill.py --kills 10

A child process runs a streaming query over files. This process kills the child with all that belongs to it, starts it again,
and at the end compares what was published with the plain oracle, fed with the recorded step log: nothing lost, nothing twice.
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
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import windrow as wr

SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64())])
START = datetime(2020, 1, 1, tzinfo=UTC)


def definition() -> wr.Aggregate:
    """Early panes for every commit that changed a window, late ones too, all retracted properly."""
    return wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "s": wr.sum("v"), "hi": wr.max("v"), "middle": wr.median("v")},
        watermark="5 seconds",
        retention="1 hour",
        emit=wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting"),
    )


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
        definition()
        .writeStream(stream)
        .sink(wr.sinks.parquet(str(folder / "out")))
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
    killed = 0
    at: list[int] = []
    while True:
        before = _commits(folder)
        child = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--child", str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if killed >= kills:
            code = child.wait()
            if code != 0:
                print(f"the job ended with code {code}")
                return 1
            break
        # Each run may make a commit or two before it dies, at any point of a commit.
        wanted = before + rng.randrange(1, max(2, files // kills))
        while child.poll() is None and _commits(folder) < wanted:
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 0.8))
        if child.poll() is not None:
            print("the job ended before it was killed often enough: use more files")
            return 1
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        killed += 1
        at.append(_commits(folder))
        print(f"killed {killed} of {kills} after commit {at[-1]}", flush=True)
    return check(folder, killed)


def _commits(folder: Path) -> int:
    """Records in the log: a cheap measure of how far the job is."""
    log = folder / "checkpoint" / "windrow" / "log"
    return len(list(log.glob("*.wrl"))) // 2 if log.is_dir() else 0


def check(folder: Path, killed: int) -> int:
    """Published panes against the oracle over the recorded step log, and against an undisturbed computation."""
    published = [_plain(p) for p in _panes(wr.read_panes(str(folder / "out")))]
    expected = [_plain(p) for p in oracle_panes(folder)]
    lost, twice = Counter(expected) - Counter(published), Counter(published) - Counter(expected)
    final = _final(folder)
    contents: dict[Any, list[int]] = {}
    for table in (pq.read_table(f) for f in sorted((folder / "input").glob("*.parquet"))):
        for row in table.to_pylist():
            second = int((row["t"] - START).total_seconds() // 10) * 10
            contents.setdefault((second, row["k"]), []).append(row["v"])
    undisturbed = {key: (len(v), sum(v), max(v)) for key, v in contents.items()}
    print(f"kills: {killed}")
    print(f"commits: {max((p[-1] for p in published), default=0)}")
    print(f"panes published: {len(published)}, by the oracle: {len(expected)}")
    print(f"panes lost: {sum(lost.values())}, published twice or wrong: {sum(twice.values())}")
    print(
        f"windows: {len(final)}, as in an undisturbed run: {sum(final.get(k) == v for k, v in undisturbed.items())}"
    )
    good = not lost and not twice and final == undisturbed
    print("nothing lost, nothing twice" if good else "THE DRILL FAILED")
    return 0 if good else 1


def oracle_panes(folder: Path) -> Iterator[wr.Pane]:
    """The panes of the plain oracle, fed with the recorded steps."""
    from windrow.checkpoint.log import FileLog
    from windrow.core.time import START_OF_TIME_US
    from windrow.testing import AggregateOracle

    log = FileLog(str(folder / "checkpoint" / "windrow" / "log"))
    log.tail()
    oracle = AggregateOracle(definition())
    for commit in log.commits():
        for step in commit.steps:
            watermark_us = START_OF_TIME_US if step.watermark_us is None else step.watermark_us
            if step.kind == "advance":
                panes, _ = oracle.advance(watermark_us, step.now_us)
            else:
                slice_ = list(_messages(step.first_offsets, step.next_offsets))
                panes, _ = oracle.ingest(slice_, step.now_us, watermark_us)
            for pane in panes:
                yield wr.Pane(
                    pane.window,
                    pane.key,
                    pane.values,
                    pane.timing,
                    pane.index,
                    pane.is_last,
                    pane.kind,
                    commit.commit,
                )


def _messages(first: Any, following: Any) -> Iterator[wr.Message]:
    """The rows of the files that a step took."""
    for (source, partition), end in sorted(following.items()):
        rows = pq.read_table(source.removeprefix("file://")).to_pylist()
        for offset in range(first[source, partition], end):
            yield wr.Message(rows[offset], wr.Position(source, partition, offset))


def _panes(table: pa.Table) -> Iterator[wr.Pane]:
    return definition().values(table, "drill")


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


def _final(folder: Path) -> dict[Any, tuple[int, int, int]]:
    rows = wr.latest(wr.read_panes(str(folder / "out"))).to_pylist()
    return {
        (int((r["window"]["start"] - START).total_seconds()), r["k"]): (r["n"], r["s"], r["hi"]) for r in rows
    }


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
