"""A job on two executors that have folders of their own, in a process: `python -m tests.spark.executors folder`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import windrow as wr
from windrow.testing.clock import ManualClock


def run(spark: Any, folder: Path, name: str, local: str | None = None, *, drain: bool = True) -> None:
    """Read the files of `input`, one a commit, and as a rule drain; panes go to `out<name>`."""
    schema = spark.read.parquet(str(folder / "input")).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "input"))
    definition = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "mid": wr.median("v")},
        watermark="5 seconds",
        retention="1 hour",
        emit=wr.Emit(early=wr.every_batch, late=wr.every_batch),
    )
    writer = (
        definition.writeStream(stream)
        .sink(wr.sinks.parquet(str(folder / f"out{name}")))
        .clock(ManualClock())
        .option("checkpointLocation", str(folder / f"checkpoint{name}"))
        .option("shards", 2)
    )
    if local is not None:
        writer = writer.option("localDir", local)
    query = writer.trigger(availableNow=True).start()
    query.query.awaitTermination()  # Spark's own: a run that is not drained leaves its end to the next one
    if drain:
        query.drain()
    query.stop()


def main(folder: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    run(spark, folder, "-two", "$SPARK_LOCAL_DIRS/windrow")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
