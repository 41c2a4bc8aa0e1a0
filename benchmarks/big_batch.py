"""`python -m benchmarks big-batch`: all that has come in an outage as one batch, since nothing limits it; two shards.

Each route runs in a process of its own (`python -m benchmarks.big_batch <route> <rows>`), on a stream of Parquet files without
`maxFilesPerTrigger`: one batch takes all rows, then a drain fires what they have filled. Told is the highest resident memory of
any Python worker, after each of the two, beside how many rows a shard had to take.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import windrow as wr

from .data import ROWS_PER_FILE, SCHEMA, files, join_rows, medians, stream
from .harness import Context, Row, scratch
from .sparks import SHARDS, TUMBLING, definition, session

ROWS = 20_000_000
MOST_MIB = 1024


def updates() -> Any:
    """Every window that changed is told in every batch, from rows."""
    return wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "s": wr.sum("v").where(wr.col("v") > 0)},
        watermark="10 seconds",
        retention="1 minute",
        emit=wr.Emit.update(),
    )


def joined() -> Any:
    return wr.Join(
        left=wr.Input("a", event_time="t", watermark="10 seconds"),
        right=wr.Input("b", event_time="t", watermark="10 seconds"),
        on="k",
        within=("0 seconds", "2 seconds"),
        allowed_lateness="0 seconds",
        scale="small",
    )


#: What a batch goes through: groups that Spark has made, rows, rows that are kept, rows of two inputs.
ROUTES: dict[str, Callable[[], Any]] = {
    "groups": lambda: definition(TUMBLING),
    "rows": updates,
    "messages": lambda: medians(retention="1 minute"),
    "join": joined,
}


def big_batch(context: Context) -> list[Row]:
    """The peak of a worker, for each route."""
    rows, measures = 400_000 if context.quick else ROWS, list[Row]()
    for route in ROUTES:
        context.step(f"{rows:,} rows, {route}")
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.big_batch", route, str(rows)],
            check=True,
            capture_output=True,
            text=True,
        )
        peaks = json.loads(ran.stdout.splitlines()[-1])
        for what in ("took", "fired"):
            mib, seconds = peaks[what]
            measures.append(
                Row(
                    f"big batch: peak of a worker that {what} a half of {rows:,} rows in {seconds:.0f} s, {route}",
                    "MiB",
                    mib,
                    bound=f"required < {MOST_MIB} MiB",
                    meets=mib < MOST_MIB,
                )
            )
    return measures


def main(route: str, rows: int) -> None:
    spark, operator = session(), ROUTES[route]()
    with scratch() as folder:
        out = wr.sinks.parquet(os.path.join(folder, "out"))
        function = operator.foreach_batch(os.path.join(folder, "windrow"), sink=out, shards=SHARDS)
        came = _stream(spark, route, rows)
        figures = {}
        begun = time.perf_counter()
        writer = came.writeStream.foreachBatch(function).option("checkpointLocation", f"{folder}/spark")
        writer.trigger(availableNow=True).start().awaitTermination()
        assert function.last_progress is not None and function.last_progress["numInputRows"] == rows
        figures["took"] = peak_mib(), time.perf_counter() - begun
        begun = time.perf_counter()
        function.drain(spark)
        figures["fired"] = peak_mib(), time.perf_counter() - begun
        function.close()
    print(json.dumps(figures))


def _stream(spark: Any, route: str, rows: int) -> Any:
    schema = spark.createDataFrame(SCHEMA.empty_table()).schema
    reader = spark.readStream.schema(schema)
    if route != "join":
        return reader.parquet(stream(rows))
    sides = {}
    for side, name in enumerate(("a", "b")):
        path = files(
            f"big-join-{side}-{rows}", lambda i, n, side=side: join_rows(side, i, n), rows // 2, ROWS_PER_FILE
        )
        sides[name] = reader.parquet(path)
    return joined().together(**sides)


def peak_mib() -> float:
    """The highest resident memory so far of any of Spark's Python workers."""
    peaks = []
    for pid in _below(os.getpid()):
        with (
            open(f"/proc/{pid}/cmdline", encoding="utf-8") as line,
            open(f"/proc/{pid}/status", encoding="ascii") as status,
        ):
            if "pyspark.daemon" in line.read():  # not the JVM, whose line names pyspark too
                peaks += [int(x.split()[1]) / 1024 for x in status if x.startswith("VmHWM")]
    return round(max(peaks), 1)


def _below(pid: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield pid
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
            for child in children.read().split():
                yield from _below(int(child))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
