"""`python -m tests.drills.executors --batches 200`: executors of one job are killed in turn, and leave, while batches come.

The job runs on Spark's `local-cluster` under dynamic allocation and decommissioning. (A job refuses speculation.) In every
tenth batch an executor is killed or decommissioned, at a random moment; in every sixth of these batches all are killed. At the
end its panes are compared with pandas, and the bytes of all stores with those of the newest store of each shard.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import windrow as wr
from benchmarks.cluster import executors, stores

FIRST_US = 1_700_000_000_000_000
SCHEMA = pa.schema({"t": pa.timestamp("us", "UTC"), "k": pa.string(), "v": pa.int64()})
EXECUTORS, SHARDS, KEYS, ROWS = 3, 6, 60, 400
FAULT_EVERY, QUIET, MOST_STORES = 10, 15, 1.3
SETTINGS = {
    "spark.decommission.enabled": "true",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.initialExecutors": str(EXECUTORS),
    "spark.dynamicAllocation.maxExecutors": str(EXECUTORS),
    "spark.dynamicAllocation.executorIdleTimeout": "60s",
    "spark.locality.wait.node": "0s",
    "spark.executor.memory": "768m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


@dataclass
class Faults:
    """A listener of the job that ends executors, and notes how long commits take and how large all stores are."""

    disks: Path
    batches: int
    every: int
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)
    _timers: list[threading.Timer] = field(default_factory=list)

    def __call__(self, progress: dict[str, Any]) -> None:
        self.seconds.append(progress["durationMs"] / 1000)
        self.moved.append(progress["misplaced"])
        commits = len(self.seconds)
        if commits % self.every == 0:
            print(f"commit {commits}: {self.seconds[-1]:.1f} s, {dict(self.done)}", flush=True)
            self.settled.append(self.stores())
            if commits <= self.batches - QUIET:
                timer = threading.Timer(self.rng.uniform(0, 3), self._fault, [commits // self.every])
                self._timers.append(timer)
                timer.start()

    def stores(self) -> float:
        """Return the bytes of all stores as a multiple of those of the newest of each shard."""
        folders = stores(self.disks)
        return folders["bytes"] / folders["state"]

    def _fault(self, turn: int) -> None:
        alive = executors()
        if turn % 6 == 0:
            name, ended, number = "all killed", alive, signal.SIGKILL
        elif turn % 3 == 0:  # Spark's executors leave on this signal
            name, ended, number = "decommissioned", alive[:1], signal.SIGPWR
        else:
            name, ended, number = "killed", alive[turn % max(len(alive), 1) :][:1], signal.SIGKILL
        for pid in ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                self.done[name] += 1

    def join(self) -> None:
        """Wait for faults that are to come."""
        for timer in self._timers:
            timer.join()


def write_input(folder: Path, batches: int) -> pd.DataFrame:
    """Write a file for each batch, and return all rows. One row in ten is up to twenty seconds older than its batch."""
    rng, each = np.random.default_rng(3), []
    for n in range(batches):
        late = np.where(rng.random(ROWS) < 0.1, rng.integers(0, 20_000_000, ROWS), 0)
        times = FIRST_US + n * 2_000_000 + rng.integers(0, 2_000_000, ROWS) - late
        keys = pa.array([f"k{i:02d}" for i in rng.integers(0, KEYS, ROWS)])
        table = pa.table(
            [pa.array(times, SCHEMA.field("t").type), keys, rng.integers(0, 1000, ROWS)], schema=SCHEMA
        )
        path = folder / f"{n:04d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (n, n))
        each.append(table.to_pandas())
    return pd.concat(each)


def run_job(folder: Path, faults: Faults) -> None:
    """Read one file a batch until all are read, and drain."""
    from pyspark.sql import SparkSession

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "WINDROW_BENCH": str(os.getpid())}
    spark = (
        SparkSession.builder.master(f"local-cluster[{EXECUTORS},1,1024]")
        .config(map=SETTINGS)
        .config("spark.local.dir", str(faults.disks))
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
        .config("spark.executorEnv.WINDROW_BENCH", str(os.getpid()))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    schema = spark.createDataFrame(SCHEMA.empty_table()).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "input"))
    job = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "s": wr.sum("v"), "mid": wr.median("v")},
        watermark="5 seconds",
        retention="1 hour",
        emit=wr.Emit(early=wr.every_batch, late=wr.every_batch),
    )
    function = job.foreach_batch(
        str(folder / "job"), sink=wr.sinks.parquet(str(folder / "out")), shards=SHARDS
    )
    function.listeners.append(faults)
    writer = stream.writeStream.foreachBatch(function).option("checkpointLocation", str(folder / "spark"))
    writer.trigger(availableNow=True).start().awaitTermination()
    faults.join()
    function.drain(spark, stream)
    function.close()
    spark.stop()


def compare(out: Path, rows: pd.DataFrame) -> dict[str, int]:
    """Count windows that are lost, panes that came twice, and windows whose last pane differs from that of pandas."""
    panes = wr.read_panes(str(out))
    keys = ["start", "k"]
    named = panes.to_pandas()
    named = named.assign(start=[w["start"] for w in named.window], index=[p["index"] for p in named.pane])
    twice = int(named.duplicated([*keys, "index"]).sum())
    last = wr.latest(panes).to_pandas()
    last = last.assign(start=[w["start"] for w in last.window]).set_index(keys)[["n", "s", "mid"]]
    truth = rows.assign(start=rows.t.dt.floor("10s")).groupby(keys)
    truth = truth.agg(n=("v", "size"), s=("v", "sum"), mid=("v", "median"))
    both = truth.join(last, how="left", rsuffix="_ours")
    differ = sum((both[name] != both[f"{name}_ours"]) & both.n_ours.notna() for name in truth.columns)
    return {
        "windows": len(truth),
        "panes": len(named),
        "lost": int(both.n_ours.isna().sum()),
        "twice": twice,
        "wrong": int((differ > 0).sum()) + len(last.index.difference(truth.index)),
    }


def drill(batches: int, seed: int, fault_every: int = FAULT_EVERY) -> dict[str, Any]:
    """Run the drill, and return its figures."""
    with tempfile.TemporaryDirectory(prefix="windrow-executors-") as name:
        folder = Path(name)
        for part in ("input", "disks"):
            (folder / part).mkdir()
        rows = write_input(folder / "input", batches)
        faults = Faults(folder / "disks", batches, fault_every, random.Random(seed))
        run_job(folder, faults)
        return {
            **compare(folder / "out", rows),
            "commits": len(faults.seconds),
            "faults": dict(faults.done),
            "moved": sum(faults.moved),
            "slowest_s": max(faults.seconds[1:]),
            "median_s": float(np.median(faults.seconds)),
            "stores": [round(times, 2) for times in faults.settled],
        }


def ok(figures: dict[str, Any]) -> bool:
    """True if all is as by pandas, nothing came twice, and the stores take little more than the state at last."""
    same = not (figures["lost"] or figures["twice"] or figures["wrong"])
    return same and sum(figures["faults"].values()) > 0 and figures["stores"][-1] <= MOST_STORES


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drills.executors", description=__doc__)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault-every", type=int, default=FAULT_EVERY, metavar="N", help="batches")
    options = parser.parse_args(arguments)
    figures = drill(options.batches, options.seed, options.fault_every)
    print(json.dumps(figures))
    return 0 if ok(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
