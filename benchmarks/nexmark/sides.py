"""Who runs the queries: windrow in this process, windrow on Spark, Spark's own SQL."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.compute as pc
import pyarrow.parquet as pq

import windrow as wr

from ..sparks import PROVIDERS, run_to_end, session
from .events import AUCTION, BID, PERSON, SCHEMA
from .queries import Plan, Query, as_frame, result

FILES_PER_BATCH = 5
SPARK = next(iter(PROVIDERS))


@dataclass
class Spent:
    """What a run took, of all processes of a side."""

    cpu: float = 0.0
    seconds: float = 0.0


def embedded(query: Query, plan: Plan, path: str, folder: str) -> tuple[Spent, pl.DataFrame]:
    """windrow in this process; every batch of files is a commit."""
    files = sorted(str(f) for f in Path(path).glob("*.parquet"))
    out = os.path.join(folder, "out")
    with (
        measured(time.process_time) as spent,
        plan.definition.open(os.path.join(folder, "windrow"), sink=wr.sinks.parquet(out)) as operator,
    ):
        for i in range(0, len(files), FILES_PER_BATCH):
            tables = {
                name: pq.read_table(
                    files[i : i + FILES_PER_BATCH], columns=columns, filters=pc.field("kind") == kind
                )
                for name, (kind, columns) in plan.inputs.items()
            }
            operator.add_messages(tables)
        operator.drain()
    return spent, result(query, plan.rows(as_frame(wr.read_panes(out))))


def on_spark(query: Query, plan: Plan, path: str, folder: str) -> tuple[Spent, pl.DataFrame]:
    """windrow in a streaming query of Spark's, drained when all is read."""
    out = os.path.join(folder, "out")
    events = _events(path)
    inputs = {n: events.where(f"kind = {k}").select(columns) for n, (k, columns) in plan.inputs.items()}
    with measured(_all_processes) as spent:
        writer = plan.definition.writeStream(**inputs).sink(wr.sinks.parquet(out))
        writer = writer.option("checkpointLocation", folder).option("shards", plan.shards)
        running = writer.trigger(availableNow=True).start()
        running.drain()
        running.stop()
    return spent, result(query, plan.rows(as_frame(wr.read_panes(out))))


def by_spark(query: Query, path: str, folder: str) -> tuple[Spent, pl.DataFrame]:
    """Spark's own SQL, its state in RocksDB."""
    spark = session()
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[SPARK])
    out = os.path.join(folder, "out")
    events = _events(path).withWatermark("t", "4 seconds")
    with measured(_all_processes) as spent:
        for name, kind in (("person", PERSON), ("auction", AUCTION), ("bid", BID)):
            events.where(f"kind = {kind}").createOrReplaceTempView(name)
        writer = spark.sql(query.spark).writeStream.outputMode("append").format("parquet")
        run_to_end(writer.option("path", out), None, folder)
    return spent, result(query, pl.read_parquet(f"{out}/*.parquet"))


def _events(path: str) -> Any:
    spark = session()
    schema = spark.createDataFrame(SCHEMA.empty_table()).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(path)


@contextmanager
def measured(cpu: Callable[[], float]) -> Iterator[Spent]:
    """What the block takes, by a clock of processor time."""
    spent = Spent()
    begin, at = cpu(), time.perf_counter()
    yield spent
    spent.cpu, spent.seconds = cpu() - begin, time.perf_counter() - at


def _all_processes() -> float:
    return cpu_seconds([os.getpid()])


def cpu_seconds(pids: Iterable[int]) -> float:
    """What processes and all that came of them have computed, those of them that have ended included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    found = list(pids)
    for pid in found:
        found += children.get(pid, [])
    return sum(ticks.get(pid, 0) for pid in found) / os.sysconf("SC_CLK_TCK")
