"""Session windows: embedded beside tumbling windows over the same rows, and on Spark beside its own `session_window`.

Each of 1,000 keys has a message a second of event time, about; with a gap of 2 seconds a session has seven. Rows come by the
same batches, and are measured, as in `throughput`.
"""

from __future__ import annotations

import os
from typing import Any

import windrow as wr

from .data import ROWS_PER_FILE, stream
from .embedded import BATCH_ROWS, add, tables
from .harness import Context, Row, median, rate, scratch
from .sparks import PROVIDERS, TUMBLING, WINDROW, Window, definition, run_query, run_to_end, session
from .throughput import COLD_BATCHES, rate_of

SESSIONS = Window("session 2 s", wr.session("2 seconds"), ("2 seconds",))
SPARK, EMBEDDED = "Spark, RocksDB", "tumbling windows"


def sessions(context: Context) -> list[Row]:
    """Rows a second, durable."""
    some = tables(context)
    inside = context.interleave(
        {WINDROW: lambda: add(definition(SESSIONS), some), EMBEDDED: lambda: add(definition(TUMBLING), some)}
    )
    batch_rows = 500_000
    path = stream(COLD_BATCHES * batch_rows + batch_rows * (1 if context.quick else 4))
    files = batch_rows // ROWS_PER_FILE
    context.bar.set_description(SESSIONS.name)
    outside = context.interleave({WINDROW: lambda: _windrow(path, files), SPARK: lambda: _spark(path, files)})
    return [
        rate(
            f"sessions: add_messages of {BATCH_ROWS:,} rows, beside {EMBEDDED}",
            "rows/s",
            median(inside[WINDROW]),
            median(inside[EMBEDDED]),
            EMBEDDED,
            samples=inside,
        ),
        rate(
            "sessions: 0.5 M rows a batch, warm, beside Spark's session_window on RocksDB",
            "rows/s",
            median(outside[WINDROW]),
            median(outside[SPARK]),
            SPARK,
            samples=outside,
        ),
    ]


def _windrow(path: str, files: int) -> float:
    with scratch() as folder:
        return rate_of(run_query(WINDROW, SESSIONS, path, files, folder)[COLD_BATCHES:])


def _spark(path: str, files: int) -> float:
    from pyspark.sql import functions as F

    spark = session()
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[SPARK])
    with scratch() as folder:
        rows: Any = spark.readStream.schema(spark.read.parquet(path).schema)
        told = (
            rows.option("maxFilesPerTrigger", files)
            .parquet(path)
            .withWatermark("t", "10 seconds")
            .groupBy(F.session_window("t", SESSIONS.spark[0]), "k")
            .agg(
                F.count(F.lit(1)).alias("n"),
                F.sum("v").alias("s"),
                F.min("v").alias("lo"),
                F.max("v").alias("hi"),
            )
        )
        writer = told.writeStream.outputMode("append").format("parquet")
        return rate_of(
            run_to_end(writer.option("path", os.path.join(folder, "out")), None, folder)[COLD_BATCHES:]
        )
