"""`python -m benchmarks cluster`: shards on four executors that own them; then executors are killed.

Beside each figure stands what it was before tasks had owners. `--keys`: those of the state. Local mode shows how much two
snapshots share where a shard has one store. Each side runs in a process of its own (`python -m benchmarks.cluster <side> <keys>
<shards> <executors>`; the side "no owners" too), on Spark's `local-cluster`. The job counts by key in windows of a day, so its
state is all keys: the first five commits bring each key once, each later one a fiftieth of them. A shard takes a snapshot every
six commits.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import windrow as wr
from windrow.runners.local_stores import bytes_of
from windrow.runners.spark.action import Action
from windrow.runners.spark.placement import Placement
from windrow.stores.snapshots import SnapshotStore

from . import driver
from . import shards as each_shard
from .data import FIRST_US, SCHEMA
from .harness import Context, Row, median, scratch

KEYS, SHARDS, EXECUTORS = 1_000_000, 24, 4
FILL, STEADY, AFTER = 5, 21, 3
SNAPSHOT_EVERY = 6
OWNERS, NOBODY, LOCAL = "owners", "no owners", "local mode"
MOST_STORES, LEAST_SHARED = 1.3, 0.5


@dataclass
class Watch:
    """Facts of a run, commit by commit."""

    folder: Path
    executors: int
    seconds: list[float] = field(default_factory=list)
    misplaced: list[int] = field(default_factory=list)
    snapshots: dict[str, dict[str, int]] = field(default_factory=dict)
    settled: dict[str, float] = field(default_factory=dict)
    plan_bytes: int = 0

    def __call__(self, progress: dict[str, Any]) -> None:
        """Look at the job after a commit, and kill executors where it is time to."""
        self.seconds.append(progress["durationMs"] / 1000)
        self.misplaced.append(progress["misplaced"])
        kept = SnapshotStore(self.folder / "job" / "snapshots")
        for name in kept.list():
            if name not in self.snapshots:
                self.snapshots[name] = kept.read(name).blobs
        if len(self.seconds) == FILL + STEADY:
            self.settled = stores(self.folder / ("disks" if self.executors else "job/local"))
            self._kill(1)
        elif len(self.seconds) == FILL + STEADY + AFTER:
            self._kill(self.executors)

    def _kill(self, many: int) -> None:
        for pid in executors()[:many]:
            os.kill(pid, signal.SIGKILL)

    def looked_at(self, function: Any) -> Any:
        """Note the bytes that travel with each task."""
        self.plan_bytes = len(pickle.dumps(function))
        return function

    def figures(self) -> dict[str, float]:
        """Return the figures of the run."""
        steady = range(FILL + SNAPSHOT_EVERY, FILL + STEADY)
        one, everyone = FILL + STEADY, FILL + STEADY + AFTER
        usual = median([self.seconds[i] for i in steady])
        new, shared = self._shared()
        return {
            **self.settled,
            "misplaced": sum(self.misplaced[i] for i in steady) / len(steady),
            "commit": usual,
            "first": self.seconds[0],
            "plan": self.plan_bytes,
            "new": new,
            "shared": shared,
            "moved_by_one": self.misplaced[one],
            "one": self.seconds[one] - usual,
            "moved_by_all": self.misplaced[everyone],
            "all": self.seconds[everyone] - usual,
        }

    def _shared(self) -> tuple[float, float]:
        """Return the bytes of the last snapshot of each shard that are new since the one before, and those that are not."""
        new = shared = 0
        by_shard: dict[str, list[tuple[int, str]]] = {}
        for name in self.snapshots:
            shard, commit, _ = name.split("-")
            if int(commit) <= FILL + STEADY:
                by_shard.setdefault(shard, []).append((int(commit), name))
        for taken in by_shard.values():
            (_, before), (_, last) = sorted(taken)[-2:]
            for digest, size in self.snapshots[last].items():
                if digest in self.snapshots[before]:
                    shared += size
                else:
                    new += size
        return new, shared


def stores(disks: Path) -> dict[str, float]:
    """Return the stores of all executors, their bytes, and the bytes of the newest of each shard."""
    folders = [path for path in disks.rglob("shard-*") if (path / "CURRENT").exists()]
    newest: dict[str, tuple[int, int]] = {}
    for path in folders:
        used = int((path / "windrow-used").read_bytes()), bytes_of(str(path))
        newest[path.name] = max(used, newest.get(path.name, used))
    return {
        "stores": len(folders),
        "bytes": sum(bytes_of(str(path)) for path in folders),
        "state": sum(size for _, size in newest.values()),
    }


def executors() -> list[int]:
    """Return the processes of the executors of this driver."""
    pids = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                line, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
            except OSError:
                continue
            if (
                b"CoarseGrainedExecutorBackend" in line
                and f"WINDROW_BENCH={os.getpid()}".encode() in environment
            ):
                pids.append(int(path.name))
    return sorted(pids)


def write_input(folder: Path, keys: int) -> None:
    """Write a file for each commit; Spark takes files in the order of their times."""
    rng = np.random.default_rng(7)
    each = rng.permutation(keys)
    for n in range(FILL + STEADY + 2 * AFTER):
        numbers = each[n::FILL] if n < FILL else rng.integers(0, keys, max(keys // 50, 1))
        times = pa.array(
            FIRST_US + n * 1_000_000 + np.arange(len(numbers)) % 1_000_000, pa.timestamp("us", "UTC")
        )
        names = pa.array([f"key-{i:09d}" for i in numbers])
        path = folder / f"{n:04d}.parquet"
        pq.write_table(pa.table([times, names, pa.array(numbers)], schema=SCHEMA), path)
        os.utime(path, (n, n))


def main(side: str, keys: int, shards: int, many: int) -> None:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "WINDROW_BENCH": str(os.getpid())}
    task = Action._task
    Action._task = lambda *a: replace(task(*a), snapshot_every=SNAPSHOT_EVERY)  # type: ignore[method-assign]
    if side == NOBODY:
        Placement.locations = lambda *_: None  # type: ignore[method-assign,assignment]
    with scratch() as name:
        folder = Path(name)
        for part in ("input", "disks"):
            (folder / part).mkdir()
        write_input(folder / "input", keys)
        watch, function = Watch(folder, 0 if side == LOCAL else many), Action._function
        Action._function = lambda *a: watch.looked_at(function(*a))  # type: ignore[method-assign]
        _run(watch, shards, f"local[{many}]" if side == LOCAL else f"local-cluster[{many},1,1024]")
        print(json.dumps(watch.figures()))


def _run(watch: Watch, shards: int, master: str) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.executor.memory", "768m")
        .config("spark.local.dir", str(watch.folder / "disks"))
        .config("spark.locality.wait.process", "10s")
        .config("spark.locality.wait.node", "0s")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
        .config("spark.executorEnv.WINDROW_BENCH", str(os.getpid()))
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "600s")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    count = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("1 day"),
        agg={"n": wr.count(), "s": wr.sum("v")},
        watermark="10 seconds",
        retention="1 day",
        emit=wr.Emit.append(),
    )
    function = count.foreach_batch(
        str(watch.folder / "job"), sink=wr.sinks.parquet(str(watch.folder / "out")), shards=shards
    )
    function.listeners.append(watch)
    schema = spark.createDataFrame(SCHEMA.empty_table()).schema
    stream = (
        spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(watch.folder / "input"))
    )
    writer = stream.writeStream.foreachBatch(function).option(
        "checkpointLocation", str(watch.folder / "spark")
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    function.close()
    spark.stop()


#: Figures of the version in which any executor took any shard, on the same two cores. Stores: 6 executors, 6 shards, and 4
#: executors whose stores took 301 MB where local mode's took 56. Misplaced: ADR 0023, 90 tasks. Snapshots of 67 MB: bytes that
#: two consecutive ones shared, on 4 executors and in local mode. Plan: 1,000 shards and partitions. A shard: commits of 2,000
#: rows with up to 128 shards.
BEFORE = {
    "stores a shard": 36 / 6,
    "stores": 301 / 56,
    "misplaced": 100 * 65 / 90,
    "shared": 100 * 0.3 / 39,
    "plan": 1_130_000.0,
    "shard": 84.0,
}
PLANS, COSTS = (8, 64, 256, 1_024), (8, 64, 256)
MOST_PLAN, MOST_SHARD_MS = 6_000, 15.0


def cluster(context: Context) -> list[Row]:
    """A row for each figure, beside what it was before tasks had owners."""
    keys, shards, many = (24_000, 6, 2) if context.quick else (context.keys or KEYS, SHARDS, EXECUTORS)
    figures = {}
    for side in (OWNERS, LOCAL):
        context.step(side)
        arguments = [sys.executable, "-m", "benchmarks.cluster", side, str(keys), str(shards), str(many)]
        ran = subprocess.run(arguments, check=True, capture_output=True, text=True)
        figures[side] = json.loads(ran.stdout.splitlines()[-1])
    ours, local = figures[OWNERS], figures[LOCAL]
    name = f"{many} executors, {shards} shards, {keys:,} keys: "

    def row(what: str, unit: str, value: float, before: str = "", **bounds: float) -> Row:
        [(word, limit)] = bounds.items() or [("", 0.0)]
        return Row(
            name + what,
            unit,
            value,
            BEFORE.get(before),
            "before" if before else "",
            bound=f"required {'<=' if word == 'most' else '>='} {limit:g}" if word else "",
            meets=(value <= limit if word == "most" else value >= limit) if word else None,
        )

    rows = [
        row("stores on disk for each shard", "", ours["stores"] / shards, "stores a shard"),
        row("stores on disk", "MiB", ours["bytes"] / (1 << 20)),
        row(
            "stores on disk as a multiple of the state",
            "x",
            ours["bytes"] / ours["state"],
            "stores",
            most=MOST_STORES,
        ),
        row("misplaced tasks of a batch", "%", 100 * ours["misplaced"] / shards, "misplaced"),
        row("a commit", "s", ours["commit"]),
        row("new snapshot bytes a commit", "MiB", ours["new"] / SNAPSHOT_EVERY / (1 << 20)),
        row("the same in local mode", "MiB", local["new"] / SNAPSHOT_EVERY / (1 << 20)),
        row(
            "bytes that snapshots share with those before, of those in local mode",
            "%",
            100 * ours["shared"] / local["shared"],
            "shared",
            least=100 * LEAST_SHARED,
        ),
        row("bytes of a task's plan", "B", ours["plan"], "plan", most=MOST_PLAN),
        row("the first commit, in which executors start", "s", ours["first"]),
        row("shards that restore as one executor is lost", "", ours["moved_by_one"]),
        row("a commit takes longer as one executor is lost", "s", ours["one"]),
        row("shards that restore as all executors are lost", "", ours["moved_by_all"]),
        row("a commit takes longer as all executors are lost", "s", ours["all"]),
    ]
    for number in PLANS[:1] if context.quick else PLANS:
        context.step(f"plan of {number} shards")
        name, (unit, nbytes) = f"{number:,} shards: ", driver.measured(number)[driver.PLAN_BYTES]
        rows.append(row(driver.PLAN_BYTES, unit, nbytes, "plan" if number > 1_000 else "", most=MOST_PLAN))
    for number in COSTS[:1] if context.quick else COSTS:
        context.step(f"cost of {number} shards")
        name, cpu_s = f"{number:,} shards: ", each_shard.measured(number)["cpu"]
        bounds = {"most": MOST_SHARD_MS} if number > 100 else {}
        rows.append(
            row("CPU of a shard, 2,000 rows a commit", "ms", 1000 * cpu_s / number, "shard", **bounds)
        )
    return rows


if __name__ == "__main__":
    main(sys.argv[1], *(int(number) for number in sys.argv[2:5]))
