"""The Spark session and the two streaming queries: windrow's, and Spark's own window aggregation."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import windrow as wr

from .data import SCHEMA

SHARDS = 2
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
PROVIDERS = {
    "Spark, RocksDB": _PROVIDERS + "RocksDBStateStoreProvider",
    "Spark, in memory": _PROVIDERS + "HDFSBackedStateStoreProvider",
}
_BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
WINDROW = "windrow"
#: A JVM has those that it starts with: set before the first session.
JARS: list[str] = []


@cache
def session() -> Any:
    """One session for all queries of both sides: two cores, two shuffle partitions, two shards.

    Checkpoints lie on a local disk, where Spark would start a process, `readlink`, for each look at a file of theirs: on both
    sides it does not (windrow's `writeStream` asks for that by itself).
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    made = (
        SparkSession.builder.master(f"local[{SHARDS}]")
        .appName("windrow-benchmarks")
        .config("spark.driver.memory", "4g")
        .config("spark.jars", ",".join(JARS))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(SHARDS))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.checkpointFileManagerClass", _BY_FILE_SYSTEM)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def end_session() -> None:
    """Stop Spark, if it runs, and wait for its JVM to end."""
    if session.cache_info().currsize == 0:
        return
    context = session().sparkContext
    gateway = context._gateway
    session().stop()
    session.cache_clear()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    type(context)._gateway = type(context)._jvm = None  # the next session starts another


@dataclass(frozen=True)
class Window:
    """A kind of window, in windrow's words and in Spark's."""

    name: str
    spec: Any
    spark: tuple[str, ...]


TUMBLING = Window("tumbling 10 s", wr.tumbling("10 seconds"), ("10 seconds",))
HOPPING = Window("hopping 10 s / 2 s", wr.hopping("10 seconds", "2 seconds"), ("10 seconds", "2 seconds"))


def definition(window: Window) -> wr.Aggregate:
    """Count, sum, min and max, in append mode: what Spark's own aggregation does."""
    return wr.Aggregate(
        by="k",
        event_time="t",
        window=window.spec,
        agg={"n": wr.count(), "s": wr.sum("v"), "lo": wr.min("v"), "hi": wr.max("v")},
        watermark="10 seconds",
        retention="0 seconds",
        emit=wr.Emit.append(),
    )


@dataclass(frozen=True)
class Batch:
    """Spark's own progress report of one batch."""

    rows: int
    trigger_ms: int
    add_ms: int


def run_query(side: str, window: Window, path: str, files_per_batch: int, scratch: str) -> list[Batch]:
    """Run the whole stream through one side, into a Parquet sink; the batches that had rows."""
    spark = session()
    schema = spark.createDataFrame(SCHEMA.empty_table()).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch).parquet(path)
    out = os.path.join(scratch, "out")
    function = None
    if side == WINDROW:
        sink = wr.sinks.parquet(out)
        function = definition(window).foreach_batch(
            os.path.join(scratch, "windrow"), sink=sink, shards=SHARDS
        )
        writer = stream.writeStream.foreachBatch(function)
    else:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[side])
        writer = spark_aggregate(stream, window).writeStream.outputMode("append").format("parquet")
        writer = writer.option("path", out)
    return run_to_end(writer, function, scratch)


def run_to_end(writer: Any, function: Any, scratch: str) -> list[Batch]:
    """Run a query until its source is read; the batches that had rows. `function`: of windrow's side, None of Spark's."""
    query = (
        writer.option("checkpointLocation", os.path.join(scratch, "spark")).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    if function is not None:
        function.close()
    return [
        Batch(p["numInputRows"], p["durationMs"]["triggerExecution"], p["durationMs"]["addBatch"])
        for p in query.recentProgress
        if p["numInputRows"]
    ]


def spark_aggregate(stream: Any, window: Window) -> Any:
    """Spark's own window aggregation."""
    from pyspark.sql import functions as F

    return (
        stream.withWatermark("t", "10 seconds")
        .groupBy(F.window("t", *window.spark), "k")
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.sum("v").alias("s"),
            F.min("v").alias("lo"),
            F.max("v").alias("hi"),
        )
    )
