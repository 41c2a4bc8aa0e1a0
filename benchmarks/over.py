"""Windows around messages, durable, beside what computes them in memory and keeps nothing, and beside Flink."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import windrow as wr

from .data import files
from .flink import Flink, flink, lacking
from .harness import Context, Row, median, rate, scratch
from .rolling import Frame, by_duckdb, by_flink, by_polars, by_spark, check
from .sparks import SHARDS, run_to_end, session
from .spent import all_processes, measured

ROWS, COMMIT = 1_000_000, 250_000
SPARK_ROWS, SPARK_FILES = 4_000_000, 16
KEYS = (1_000, 100_000)
ROWS_PER_SECOND, JITTER_MS, FIRST_MS = 50_000, 2_000, 1_700_000_000_000
LEAST, LEAST_ON_SPARK, SHARE_OF_POLARS, LEAST_MEDIANS = 1_000_000, 400_000, 0.5, 50_000
LEAST_ANCHORS, LEAST_LONG = 300_000, 500_000
FRAMES = (Frame("the last 2 s", -2, 2), Frame("2 s before to 1 s after", -2, 3))
POLARS = "polars rolling"
AGG = {"n": wr.count(), "s": wr.sum("v"), "lo": wr.min("v"), "hi": wr.max("v"), "f": wr.sum("x")}


def over(context: Context) -> list[Row]:
    """Rows a second, of processor time but on Spark, of five aggregates around each row; of a thousand keys and of a hundred
    thousand."""
    n = ROWS // (10 if context.quick else 1)
    with ExitStack() as stack:
        if absent := lacking():
            context.bar.write(f"over runs without Flink: {', '.join(absent)} cannot be found")
        engine = None if absent else stack.enter_context(flink())
        found = [row for keys in KEYS for row in _beside_others(context, engine, keys, n)]
    found += [row for keys in KEYS for row in _on_spark(context, keys)]
    found += _around_anchors(context, n)
    found.append(_long(context, n))
    tables = [_rows(first, COMMIT // 10, 100) for first in range(0, n // 10, COMMIT // 10)]
    middle = wr.Over(
        by="k", event_time="t", agg={"m": wr.median("v").over(100)}, ttl="1 hour", watermark="2 seconds"
    )
    samples = context.interleave({"windrow": lambda: _told(middle, tables)})
    return [*found, _required("over: median of the last 100 rows", "rows/s", LEAST_MEDIANS, samples)]


def _beside_others(context: Context, engine: Flink | None, keys: int, n: int) -> Iterator[Row]:
    """windrow, which keeps everything on disk, beside those that are here; rows are compared after each run."""
    tables = [_rows(first, min(COMMIT, n - first), keys) for first in range(0, n, COMMIT)]
    for frame in FRAMES:
        _, expected = by_polars(tables, frame)
        others: dict[str, Callable[[Sequence[pa.Table], Frame], tuple[float, pl.DataFrame]]] = {
            POLARS: by_polars,
            "Spark's batch Window": by_spark,
        }
        if find_spec("duckdb") is not None:
            others["DuckDB"] = by_duckdb
        if engine is not None and frame.past:
            others["Flink's OVER, RocksDB"] = partial(by_flink, engine, watermark_ms=JITTER_MS)
            context.step("warming up Flink")
            by_flink(engine, tables[:1], frame, JITTER_MS)

        def run(side: str, once: Any, frame: Frame = frame, expected: pl.DataFrame = expected) -> float:
            speed, told = once(tables, frame)
            check(side, told, expected)
            return float(speed)

        sides = {side: lambda s=side, o=once: run(s, o) for side, once in others.items()}
        samples = context.interleave({"windrow": lambda f=frame, e=expected: _checked(f, tables, e), **sides})  # type: ignore[misc]
        what, ours = f"over: five aggregates, {frame.name}, {keys:,} keys", median(samples["windrow"])
        for side in others:
            aim = SHARE_OF_POLARS if side == POLARS else None
            yield rate(
                f"{what}, beside {side}",
                "rows/s",
                ours,
                median(samples[side]),
                side,
                aim=aim,
                samples=samples,
            )
        if frame.past:
            yield _required(what, "rows/s", LEAST, samples)
    counted = _over(wr.rows_between(-99, 0), ttl="1 hour")
    samples = context.interleave({"windrow": lambda: _told(counted, tables)})
    what = f"over: five aggregates, the last 100 rows, {keys:,} keys"
    yield Row(what, "rows/s", median(samples["windrow"]), samples=samples)


def _required(what: str, unit: str, least: int, samples: dict[str, list[float]]) -> Row:
    ours = median(samples["windrow"])
    return Row(what, unit, ours, bound=f"required >= {least:,}", meets=ours >= least, samples=samples)


def _on_spark(context: Context, keys: int) -> Iterator[Row]:
    """A stream of Parquet files through two shards: warm batches by Spark's own progress, and all by processor time."""
    frame, n = FRAMES[0], SPARK_ROWS // (10 if context.quick else 1)
    path = files(f"over-{keys}-{n}", lambda first, m: _rows(first, m, keys), n, n // SPARK_FILES)
    whole = pq.read_table(path)
    _, expected = by_polars([whole], frame)
    cores: list[float] = []

    def run() -> float:
        spark = session()
        stream = (
            spark.readStream.schema(spark.read.parquet(path).schema)
            .option("maxFilesPerTrigger", 2)
            .parquet(path)
        )
        with scratch() as folder:
            out = f"{folder}/told"
            function = _over(_around(frame)).foreach_batch(
                f"{folder}/windrow", sink=wr.sinks.parquet(out), shards=SHARDS
            )
            with measured(all_processes) as spent:
                batches = run_to_end(stream.writeStream.foreachBatch(function), function, folder)
            cores.append(n / spent.cpu)
            told = pl.DataFrame(wr.read_panes(out))
        until = told["t"].max()
        # A batch is told when the next one comes.
        behind = timedelta(milliseconds=JITTER_MS + 100, seconds=n * 2 / SPARK_FILES / ROWS_PER_SECOND)
        assert expected["t"].max() - until < behind, f"told until {until} only"  # type: ignore[operator]
        check("windrow on Spark", told, expected.filter(pl.col("t") <= until))
        return median([b.rows / (b.trigger_ms / 1_000) for b in batches[1:]])

    samples = context.interleave({"windrow": run})
    what = f"over: five aggregates, {frame.name}, {keys:,} keys, on Spark, batches of {n * 2 // SPARK_FILES:,} rows"
    yield _required(what, "rows/s", LEAST_ON_SPARK, samples)
    yield Row(f"{what}, by processor time", "rows/s a core", median(cores), samples={"windrow": cores})


def _around_anchors(context: Context, n: int) -> list[Row]:
    """Anchors a second, with windows of two seconds that they say themselves, over so many rows."""
    found: list[Row] = []
    for keys in KEYS:
        tables = [_rows(first, min(COMMIT, n - first), keys) for first in range(0, n, COMMIT)]
        spans = [_spans(table) for table in tables]
        definition = wr.Over(
            by="k",
            event_time="t",
            input="rows",
            anchors=wr.Input("anchors", event_time="at", watermark="2 seconds", max_ahead=wr.forever),
            frame=wr.between("since", "until", obsolete="promised"),
            agg=AGG,
            retention="1 minute",
            select=(),
            watermark="2 seconds",
            max_ahead=wr.forever,
        )
        both = [{"rows": table, "anchors": some} for table, some in zip(tables, spans, strict=True)]
        share = sum(map(len, spans)) / n
        samples = context.interleave({"windrow": lambda o=definition, b=both, s=share: _told(o, b) * s})  # type: ignore[misc]
        what = f"over: five aggregates around anchors, {keys:,} keys"
        found.append(_required(what, "anchors/s", LEAST_ANCHORS, samples))
    return found


def _spans(rows: pa.Table) -> pa.Table:
    """An anchor for each row, about its time, whose window begins up to two seconds before."""
    rng = np.random.default_rng(len(rows))
    at = rows["t"].cast(pa.int64()).to_numpy()
    since = at - rng.integers(0, 2_000_000, len(rows))
    moments = {"at": at, "since": since, "until": since + 2_000_000, "promised": at - 10_000_000}
    stamps = {name: pa.array(us).cast(pa.timestamp("us", "UTC")) for name, us in moments.items()}
    return pa.table({"k": rows["k"], **stamps})


def _long(context: Context, n: int) -> Row:
    """A minute around each row, and a commit each second: the minute before the rows that are measured is there by then."""
    tables = [_rows(first, ROWS_PER_SECOND, 1_000) for first in range(0, 4 * n, ROWS_PER_SECOND)]
    before = len(tables) - n // ROWS_PER_SECOND
    over = _over(wr.range_between("-60 seconds", 0))
    samples = context.interleave({"windrow": lambda: _told(over, tables, before)})
    what = "over: five aggregates, the last 60 s, a commit each second, 1,000 keys"
    return _required(what, "rows/s", LEAST_LONG, samples)


def _over(frame: object, **options: object) -> wr.Over:
    return wr.Over(
        by="k",
        event_time="t",
        frame=frame,
        agg=AGG,
        select=(),
        watermark="2 seconds",
        max_ahead=wr.forever,
        **options,  # type: ignore[arg-type]
    )


def _rows(first: int, n: int, keys: int) -> pa.Table:
    """Rows `first` to `first + n`, out of order by up to two seconds; times are whole milliseconds, as Flink has them."""
    rng = np.random.default_rng(first)
    at = FIRST_MS + (np.arange(first, first + n) * 1_000) // ROWS_PER_SECOND
    names = pa.array([f"key-{i:06d}" for i in range(keys)])
    return pa.table(
        {
            "t": pa.array((at - rng.integers(0, JITTER_MS, n)) * 1_000).cast(pa.timestamp("us", "UTC")),
            "k": names.take(pa.array(rng.integers(0, keys, n))),
            "v": rng.integers(-1_000, 1_000_000, n),
            "x": rng.normal(0.0, 1.0, n),
        }
    )


def _around(frame: Frame) -> Any:
    return wr.range_between(f"{frame.start} seconds", f"{frame.start + frame.seconds} seconds")


def _checked(frame: Frame, tables: Sequence[pa.Table], expected: pl.DataFrame) -> float:
    """Rows a second, where they are those that are expected."""
    with scratch() as told:
        speed = _told(_over(_around(frame)), tables, out=told)
        check("windrow", pl.DataFrame(wr.read_panes(told)), expected)
    return speed


def _told(
    definition: wr.Over,
    tables: Sequence[pa.Table | Mapping[str, pa.Table]],
    before: int = 0,
    out: str | None = None,
) -> float:
    """Rows a second of processor time. Each table is a commit, on disk before the next one comes, and its rows are with the
    sink. Of several inputs the first one's rows count. before: so many of them are not measured. out: where all rows are in
    the end."""
    counted = [t if isinstance(t, pa.Table) else next(iter(t.values())) for t in tables[before:]]
    rows = sum(map(len, counted))
    with scratch() as folder:
        sink = wr.sinks.parquet(out or f"{folder}/told")
        with definition.open(f"{folder}/windrow", sink=sink) as operator:
            for i, table in enumerate(tables):
                if i == before:
                    begin = time.process_time()
                operator.add_messages(table)
                operator.next_offsets()
            seconds = time.process_time() - begin
            if out is not None:
                operator.drain()
    return rows / seconds
