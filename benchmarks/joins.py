"""windrow's interval join beside Spark's own stream-stream join, on the same two Parquet streams.

1 M + 1 M rows, 100,000 keys, within 10 seconds of each other, watermark 10 seconds. The first batch is cold; rows a second are
of those after it, by `triggerExecution` of Spark's own progress, on both sides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

import windrow as wr

from .data import JOIN_ROWS_PER_SECOND, SCHEMA, join_rows, join_stream
from .harness import Context, Row, median, rate, scratch
from .sparks import PROVIDERS, SHARDS, WINDROW, Batch, run_to_end, session

ROWS = 1_000_000
ROWS_PER_FILE = 50_000
FILES_PER_BATCH = 4
SPARK = next(iter(PROVIDERS))
OUTER = "windrow, left outer"
#: Rows of each side in a commit; a small one has so many of both in reach, and is to be done in so many milliseconds.
SMALL, LARGE, IN_REACH, MOST_MS = 500, 10_000, 10_000, 60


def joins(context: Context) -> list[Row]:
    """Rows a second of an inner interval join, and of a left outer one."""
    rows = 400_000 if context.quick else ROWS
    sides = (WINDROW, SPARK, OUTER)
    for side in sides:
        context.step(f"warming up {side}")
        with scratch() as folder:
            run_join(side, 400_000, folder)

    def run(side: str) -> float:
        with scratch() as folder:
            batches = run_join(side, rows, folder)
        return median([b.rows / (b.trigger_ms / 1000) for b in batches[1:]])

    samples = context.interleave({s: lambda s=s: run(s) for s in sides})
    ours, spark, outer = (median(samples[s]) for s in sides)
    label = f"join: {rows / 1e6:g} M + {rows / 1e6:g} M rows, 100 k keys, within 10 s"
    return [
        rate(f"{label}, inner, beside {SPARK}", "rows/s", ours, spark, SPARK, required=8, samples=samples),
        rate(f"{label}, left outer, beside our inner", "rows/s", outer, ours, "windrow, inner", required=0.9),
        *_embedded(context),
    ]


def _embedded(context: Context) -> list[Row]:
    """Cost of a commit of few messages when many are in reach, and rows a second of larger ones."""
    reach = f"{IN_REACH / 2 / JOIN_ROWS_PER_SECOND:g} seconds"
    sides = {}
    for how in ("inner", "left"):
        sides[f"{how}, small"] = lambda h=how: 1000 * median(_commits(h, reach, SMALL, 160))
        sides[f"{how}, large"] = lambda h=how: (
            2 * LARGE / median(_commits(h, "10 seconds", LARGE, 6 if context.quick else 15))
        )
        sides[f"{how}, by key"] = lambda h=how: (
            2 * LARGE / median(_commits(h, "10 seconds", LARGE, 6 if context.quick else 15, "large"))
        )
    samples = context.interleave(sides)
    measures = []
    for how in ("inner", "left"):
        label, ours = f"join, embedded, {how}", median(samples[f"{how}, small"])
        few = f"{label}: a commit of {2 * SMALL:,} messages, {IN_REACH:,} in reach"
        bound = f"required <= {MOST_MS}"
        measures.append(Row(few, "ms", ours, bound=bound, meets=ours <= MOST_MS, samples=samples))
        many = f"{label}: commits of {2 * LARGE:,} messages"
        measures.append(Row(many, "rows/s", median(samples[f"{how}, large"]), samples=samples))
        by_key = f"{label}, scale='large': commits of {2 * LARGE:,} messages"
        measures.append(Row(by_key, "rows/s", median(samples[f"{how}, by key"]), samples=samples))
    return measures


def _commits(how: str, reach: str, rows: int, commits: int, scale: str = "small") -> Sequence[float]:
    """Seconds of each commit of the second half."""
    steps = list(_tables(rows, commits))
    seconds = []
    with scratch() as folder, definition(how, reach, scale).open(folder) as operator:
        for a, b in steps:
            begin = time.perf_counter()
            operator.add_messages({"a": a, "b": b})
            operator.timeout()
            operator.next_offsets()
            seconds.append(time.perf_counter() - begin)
            operator.get_result()
            operator.flush()
    return seconds[len(seconds) // 2 :]


def _tables(rows: int, commits: int) -> Iterator[tuple[pa.Table, pa.Table]]:
    for i in range(commits):
        yield join_rows(0, i * rows, rows), join_rows(1, i * rows, rows)


def definition(how: str, reach: str = "10 seconds", scale: str = "small") -> wr.Join:
    """The join of both sides."""
    return wr.Join(
        left=wr.Input("a", event_time="t", watermark="10 seconds"),
        right=wr.Input("b", event_time="t", watermark="10 seconds"),
        on="k",
        within=(f"-{reach}", reach),
        allowed_lateness="0 seconds",
        how=how,
        scale=scale,
    )


def run_join(side: str, rows: int, scratch: str) -> list[Batch]:
    """Run both streams through one side, into a Parquet sink; the batches that had rows."""
    spark = session()
    schema = spark.createDataFrame(SCHEMA.empty_table()).schema
    a, b = (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .parquet(join_stream(i, rows, ROWS_PER_FILE))
        for i in (0, 1)
    )
    out, function = os.path.join(scratch, "out"), None
    if side == SPARK:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[SPARK])
        writer = spark_join(a, b).writeStream.outputMode("append").format("parquet").option("path", out)
    else:
        join = definition("left" if side == OUTER else "inner")
        function = join.foreach_batch(
            os.path.join(scratch, "windrow"), sink=wr.sinks.parquet(out), shards=SHARDS
        )
        writer = join.together(a=a, b=b).writeStream.foreachBatch(function)
    return run_to_end(writer, function, scratch)


def spark_join(a: Any, b: Any) -> Any:
    """Spark's own stream-stream join."""
    from pyspark.sql import functions as F

    left = a.withWatermark("t", "10 seconds")
    right = b.selectExpr("t as t2", "k as k2", "v as v2").withWatermark("t2", "10 seconds")
    return left.join(
        right,
        F.expr("k = k2 and t2 >= t - interval 10 seconds and t2 <= t + interval 10 seconds"),
    )
