"""`python -m benchmarks shards`: what a shard costs a commit of 2,000 rows on Spark's `local[2]`, all processes together.

Each number of shards runs in a process of its own (`python -m benchmarks.shards <shards>`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import windrow as wr

from .data import FIRST_US, SCHEMA
from .harness import Context, Row, median, scratch
from .spent import all_processes

SHARDS, COMMITS, ROWS, KEYS = (2, 32, 128, 256), 13, 2_000, 20_000
MOST_MS, MOST_S = 15.0, 2.0
_OF_COMMITS = ("changelog", "segments", "panes", "dead")


class Watch:
    """Processor time, seconds and files of each commit."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._cpu = folder, all_processes()
        self.cpu_s, self.seconds, self.files = list[float](), list[float](), list[int]()

    def __call__(self, progress: dict[str, Any]) -> None:
        cpu = all_processes()
        self.cpu_s.append(cpu - self._cpu)
        self._cpu = cpu
        self.seconds.append(progress["durationMs"] / 1000)
        begin = f"{progress['commit']:012d}-"
        self.files.append(sum(n.startswith(begin) for f in _OF_COMMITS for n in os.listdir(self._folder / f)))

    def figures(self) -> dict[str, float]:
        """Return the medians, without the first commits: they make stores and plans."""
        parts = {"cpu": self.cpu_s, "seconds": self.seconds, "files": self.files}
        return {name: median([float(n) for n in values[2:]]) for name, values in parts.items()}


def write_input(folder: Path) -> None:
    """Write a file for each commit; Spark takes files in the order of their times."""
    rng = np.random.default_rng(7)
    folder.mkdir()
    for n in range(COMMITS):
        times = pa.array(FIRST_US + n * 1_000_000 + np.arange(ROWS) * 500, pa.timestamp("us", "UTC"))
        keys = pa.array([f"key-{i:06d}" for i in rng.integers(0, KEYS, ROWS)])
        pq.write_table(
            pa.table([times, keys, pa.array(np.arange(ROWS))], schema=SCHEMA), folder / f"{n:04d}.parquet"
        )
        os.utime(folder / f"{n:04d}.parquet", (n + 1, n + 1))


def main(shards: int) -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with scratch() as name:
        folder = Path(name)
        write_input(folder / "input")
        settings = {
            "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.host": "127.0.0.1",
        }
        builder = SparkSession.builder.master("local[2]").config(map=settings)
        spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        count = wr.Aggregate(
            by="k",
            event_time="t",
            window=wr.tumbling("1 minute"),
            agg={"n": wr.count(), "s": wr.sum("v")},
            watermark="2 seconds",
            retention="1 hour",
            emit=wr.Emit.append(),
        )
        sink = wr.sinks.parquet(str(folder / "out"))
        function = count.foreach_batch(str(folder / "job"), sink=sink, shards=shards)
        watch = Watch(folder / "job")
        function.listeners.append(watch)
        schema = spark.createDataFrame(SCHEMA.empty_table()).schema
        stream = (
            spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "input"))
        )
        writer = stream.writeStream.foreachBatch(function).option("checkpointLocation", str(folder / "spark"))
        writer.trigger(availableNow=True).start().awaitTermination()
        function.close()
        spark.stop()
        print(json.dumps(watch.figures()))


def measured(number: int) -> dict[str, float]:
    """Return the figures of so many shards, from a process of its own."""
    arguments = [sys.executable, "-m", "benchmarks.shards", str(number)]
    ran = subprocess.run(arguments, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return figures


def shards(context: Context) -> list[Row]:
    """Processor time of a shard, seconds and files of a commit, by the number of shards."""
    rows = []
    for number in SHARDS[:2] if context.quick else SHARDS:
        context.step(f"{number} shards")
        figures = measured(number)
        each, name = 1000 * figures["cpu"] / number, f"{number} shards, {ROWS:,} rows a commit: "
        many = number >= 128
        rows += [
            Row(
                name + "CPU of a shard, all processes",
                "ms",
                each,
                bound=f"required <= {MOST_MS:g}" if many else "",
                meets=each <= MOST_MS if many else None,
            ),
            Row(
                name + "a commit",
                "s",
                figures["seconds"],
                bound=f"required <= {MOST_S:g}" if many else "",
                meets=figures["seconds"] <= MOST_S if many else None,
            ),
            Row(name + "files of a commit", "", figures["files"]),
        ]
    return rows


if __name__ == "__main__":
    main(int(sys.argv[1]))
