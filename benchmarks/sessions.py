"""Session windows: embedded beside tumbling windows over the same rows, and on Spark beside its own `session_window`.

Two streams. Of 1,000 keys each has a message a second of event time, about, and with a gap of 2 seconds a session of seven; of
100,000 keys each has one in 2 seconds, and with a gap of 5 seconds a session of twelve. Embedded is measured in CPU time. On
Spark every side runs once unmeasured, so that none pays for a JVM that has just started.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import windrow as wr

from .data import FIRST_US, JITTER_US, ROWS_PER_FILE, SCHEMA, files
from .firing import MOST_MIB, MOST_S, fired
from .harness import Context, Row, cost, fresh, median, rate, scratch
from .sparks import PROVIDERS, WINDROW, Window, definition, run_query, run_to_end, session
from .throughput import COLD_BATCHES, rate_of

SPARK, TUMBLING, LATE = "Spark, RocksDB", "tumbling windows", "5 % late"
LEAST, TIMES_SPARK, LATE_MOST, COMMIT_MOST = 1_000_000, 3.0, 1.5, 1.2
BATCH_ROWS, OPEN, FEW, COMMITS = 500_000, 1_000_000, 100, 40
ENDING = ("sessions: {keys:,} that end in one advance", "sessions")


@dataclass(frozen=True)
class Stream:
    """So many keys, rows a second of event time of them all, and a gap."""

    keys: int
    rows_per_second: int
    gap: str

    @property
    def window(self) -> Window:
        return Window(f"session {self.gap}", wr.session(self.gap), (self.gap,))

    @property
    def tumbling(self) -> Window:
        return Window(f"tumbling {self.gap}", wr.tumbling(self.gap), (self.gap,))

    def rows(self, first: int, n: int, late: float = 0.0) -> pa.Table:
        """late: that part of them is up to 5 seconds behind a watermark of 10 seconds."""
        rng = np.random.default_rng(first)
        times = FIRST_US + (np.arange(first, first + n) * 1_000_000) // self.rows_per_second
        times -= rng.integers(0, JITTER_US, n)
        times -= np.where(rng.random(n) < late, rng.integers(10_000_000, 15_000_000, n), 0)
        names = pa.array([f"key-{i:06d}" for i in range(self.keys)])
        keys = names.take(pa.array(rng.integers(0, self.keys, n)))
        values = pa.array(rng.integers(-1_000, 1_000_000, n))
        return pa.table([pa.array(times).cast(SCHEMA.field("t").type), keys, values], schema=SCHEMA)


STREAMS = (Stream(1_000, 1_000, "2 seconds"), Stream(100_000, 50_000, "5 seconds"))


def sessions(context: Context) -> list[Row]:
    """Embedded, what single commits cost, many that end at once, Spark."""
    rows = [row for stream in STREAMS for row in _embedded(context, stream)]
    rows += [_late(context), *_commits(context)]
    keys = OPEN // (20 if context.quick else 1)
    rows += [row for row in fired(context, keys, ENDING, MOST_S, MOST_MIB) if "(" not in row.name]
    for stream in STREAMS:
        for side in (WINDROW, SPARK):
            context.step(f"warming up {side}")
            # As many batches as are measured: after half of them the JVM still compiles for a third of the time.
            batches = _input(stream, BATCH_ROWS, COLD_BATCHES + (1 if context.quick else 5))
            (_windrow if side == WINDROW else _spark)(stream, *batches)
    for stream in STREAMS:
        for batch_rows in (BATCH_ROWS,) if context.quick else (BATCH_ROWS, 4 * BATCH_ROWS):
            rows.append(_against_spark(context, stream, batch_rows))
    return rows


# -- embedded ---------------------------------------------------------------------------------------------------------


def _embedded(context: Context, stream: Stream) -> list[Row]:
    """Rows a second of CPU time, durable; each sample is of a process of its own."""
    batches = 2 if context.quick else 5
    samples = context.interleave(
        {side: lambda s=side: fresh(_alone, stream, s, batches) for side in (WINDROW, TUMBLING)}  # type: ignore[misc]
    )
    ours, other = median(samples[WINDROW]), median(samples[TUMBLING])
    what = f"sessions: add_messages of {BATCH_ROWS:,} rows, {stream.keys:,} keys"
    bound, meets = f"required >= {LEAST:,}", ours >= LEAST
    return [
        Row(what, "rows/CPU s", ours, bound=bound, meets=meets, samples={WINDROW: samples[WINDROW]}),
        rate(f"{what}, beside {TUMBLING}", "rows/CPU s", ours, other, TUMBLING, samples=samples),
    ]


def _alone(stream: Stream, side: str, batches: int) -> float:
    """In a process that has done the same before: the first time, what it takes of memory is new."""
    aggregate = definition(stream.window if side == WINDROW else stream.tumbling)
    tables = [stream.rows(i * BATCH_ROWS, BATCH_ROWS) for i in range(batches)]
    _rate(aggregate, tables)
    return _rate(aggregate, tables)


def _rate(aggregate: wr.Aggregate, tables: list[pa.Table]) -> float:
    """Each table is a step and a commit; the first one is not measured."""
    with scratch() as folder, aggregate.open(folder) as operator:
        operator.add_messages(tables[0])
        begin = time.process_time()
        for table in tables[1:]:
            operator.add_messages(table)
        return sum(map(len, tables[1:])) / (time.process_time() - begin)


def _late(context: Context) -> Row:
    """A batch in which some rows are late, beside one without."""
    stream, n = STREAMS[1], 4 if context.quick else 6
    aggregate = wr.Aggregate(
        by="k",
        event_time="t",
        window=stream.window.spec,
        agg={"n": wr.count(), "s": wr.sum("v"), "lo": wr.min("v"), "hi": wr.max("v")},
        watermark="10 seconds",
        retention="1 minute",
        emit=wr.Emit(late=wr.every_batch),
    )
    sides: dict[str, Callable[[], float]] = {}
    for side, late in ((LATE, 0.05), ("none late", 0.0)):
        # Late ones come when there is something that they are late for.
        batches = [stream.rows(i * BATCH_ROWS, BATCH_ROWS, late if i > 2 else 0.0) for i in range(n)]
        sides[side] = lambda batches=batches: _batch_ms(aggregate, batches)  # type: ignore[misc]
    samples = context.interleave(sides)
    ours, other = (median(samples[side]) for side in sides)
    what = f"sessions: a batch of {BATCH_ROWS:,} rows, {stream.keys:,} keys, {LATE}"
    return cost(what, "ms CPU", ours, other, "none late", required=1 / LATE_MOST, samples=samples)


def _batch_ms(aggregate: wr.Aggregate, tables: list[pa.Table]) -> float:
    """Numbers of the batches after the third."""
    with scratch() as folder, aggregate.open(folder) as operator:
        for table in tables[:3]:
            operator.add_messages(table)
        return median([_measured(partial(operator.add_messages, table)) for table in tables[3:]])


def _measured(act: Callable[[], object]) -> float:
    gc.collect()
    begin = time.process_time()
    act()
    return 1_000 * (time.process_time() - begin)


# -- commits of few rows ----------------------------------------------------------------------------------------------


def _commits(context: Context) -> Iterator[Row]:
    """A commit of few rows where many sessions are open, beside one of as many keys in a tumbling window."""
    keys = OPEN // (50 if context.quick else 1)
    for name, emit in (("nothing early", wr.Emit()), ("Emit.update()", wr.Emit.update())):
        samples = context.interleave(
            {
                side: lambda window=window, emit=emit: _commit_ms(keys, window, emit)
                for side, window in ((WINDROW, wr.session("1 hour")), (TUMBLING, wr.tumbling("1 day")))
            }
        )
        what = f"sessions: commit of {FEW} rows, {name}, {keys:,} open sessions"
        ours, other = median(samples[WINDROW]), median(samples[TUMBLING])
        yield cost(what, "ms CPU", ours, other, TUMBLING, required=1 / COMMIT_MOST, samples=samples)


def _commit_ms(keys: int, window: Any, emit: wr.Emit) -> float:
    with _opened(keys, window, emit) as operator:
        chance = np.random.default_rng(keys)

        def commit(table: pa.Table) -> None:
            operator.add_messages(table)
            operator.timeout()

        tables = [_of_keys(chance.choice(keys, FEW, replace=False), i + 1) for i in range(COMMITS)]
        return median([_measured(partial(commit, table)) for table in tables])


@contextmanager
def _opened(keys: int, window: Any, emit: wr.Emit) -> Iterator[Any]:
    """A job with a session, or a row, of each key."""
    aggregate = wr.Aggregate(
        by="k",
        event_time="t",
        window=window,
        agg={"n": wr.count(), "s": wr.sum("v"), "hi": wr.max("v")},
        watermark="10 minutes",
        retention="10 days",
        emit=emit,
    )
    with scratch() as folder, aggregate.open(folder) as operator:
        for low in range(0, keys, BATCH_ROWS):
            operator.add_messages(_of_keys(np.arange(low, min(low + BATCH_ROWS, keys)), 0))
        operator.timeout()
        operator.flush()
        yield operator


def _of_keys(keys: Any, second: int) -> pa.Table:
    names = pa.array([f"key-{key:07d}" for key in keys.tolist()])
    times = pa.array(np.full(len(keys), FIRST_US + second * 1_000_000)).cast(SCHEMA.field("t").type)
    return pa.table([times, names, pa.array(keys)], schema=SCHEMA)


# -- Spark ------------------------------------------------------------------------------------------------------------


def _against_spark(context: Context, stream: Stream, batch_rows: int) -> Row:
    warm = 1 if context.quick else 4 * BATCH_ROWS // batch_rows + 1
    path, number = _input(stream, batch_rows, COLD_BATCHES + warm)
    label = f"{stream.keys:,} keys, {batch_rows / 1e6:g} M rows a batch"
    context.bar.set_description(label)
    samples = context.interleave(
        {WINDROW: lambda: _windrow(stream, path, number), SPARK: lambda: _spark(stream, path, number)}
    )
    ours, other = median(samples[WINDROW]), median(samples[SPARK])
    what = f"sessions: {label}, warm, beside Spark's session_window on RocksDB"
    return rate(what, "rows/s", ours, other, SPARK, required=TIMES_SPARK, samples=samples)


def _input(stream: Stream, batch_rows: int, batches: int) -> tuple[str, int]:
    """Return the path of the files of so many batches."""
    n = batches * batch_rows
    name = f"sessions-{stream.keys}-{stream.rows_per_second}-{n}"
    return files(name, stream.rows, n, ROWS_PER_FILE), batch_rows // ROWS_PER_FILE


def _windrow(stream: Stream, path: str, number: int) -> float:
    with scratch() as folder:
        return rate_of(run_query(WINDROW, stream.window, path, number, folder)[COLD_BATCHES:])


def _spark(stream: Stream, path: str, number: int) -> float:
    from pyspark.sql import functions as F

    spark = session()
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[SPARK])
    with scratch() as folder:
        rows: Any = spark.readStream.schema(spark.read.parquet(path).schema)
        query = (
            rows.option("maxFilesPerTrigger", number)
            .parquet(path)
            .withWatermark("t", "10 seconds")
            .groupBy(F.session_window("t", stream.gap), "k")
            .agg(
                F.count(F.lit(1)).alias("n"),
                F.sum("v").alias("s"),
                F.min("v").alias("lo"),
                F.max("v").alias("hi"),
            )
        )
        writer = query.writeStream.outputMode("append").format("parquet")
        return rate_of(
            run_to_end(writer.option("path", os.path.join(folder, "out")), None, folder)[COLD_BATCHES:]
        )
