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
from .flink import flink, lacking
from .harness import Context, Row, fresh, median, rate, scratch
from .rolling import Frame, by_duckdb, by_flink, by_polars, by_spark, check
from .sparks import SHARDS, end_session, run_to_end, session
from .spent import all_processes, measured

ROWS, COMMIT = 1_000_000, 250_000
SPARK_ROWS, SPARK_FILES = 4_000_000, 16
KEYS = (1_000, 100_000)
ROWS_PER_SECOND, JITTER_MS, FIRST_MS = 50_000, 2_000, 1_700_000_000_000
#: What comes before windows of 60 s are full: of 64 s, as the watermark is behind.
FILLING = 64 * ROWS_PER_SECOND
LEAST, LEAST_ON_SPARK, SHARE_OF_POLARS, LEAST_MEDIANS = 1_000_000, 400_000, 0.5, 50_000
LEAST_ANCHORS, LEAST_LONG = 300_000, 500_000
FRAMES = (Frame("the last 2 s", -2, 2), Frame("2 s before to 1 s after", -2, 3))
POLARS, SPARK, DUCKDB, FLINK = "polars rolling", "Spark's batch Window", "DuckDB", "Flink's OVER, RocksDB"
AGG = {"n": wr.count(), "s": wr.sum("v"), "lo": wr.min("v"), "hi": wr.max("v"), "f": wr.sum("x")}
#: Rows a second of who computes windows of a frame, and what it makes.
Once = Callable[[Sequence[pa.Table], Frame], tuple[float, pl.DataFrame]]


def over(context: Context) -> list[Row]:
    """Rows a second, of processor time but on Spark, of five aggregates around each row; of a thousand keys and of a hundred
    thousand. Each sample is of a process of its own, but on Spark."""
    n = ROWS // (10 if context.quick else 1)
    sides = ["windrow", POLARS, SPARK, *([DUCKDB] if find_spec("duckdb") is not None else [])]
    if absent := lacking():
        context.bar.write(f"over runs without Flink: {', '.join(absent)} cannot be found")
    else:
        sides.append(FLINK)
    measures = [row for keys in KEYS for row in _compared(context, sides, keys, n)]
    measures += [row for keys in KEYS for row in _on_spark(context, keys)]
    end_session()
    measures += _around_anchors(context, n)
    measures.append(_long(context, n))
    samples = context.interleave({"windrow": lambda: fresh(_medians, n // 10)})
    return [*measures, _required("over: median of the last 100 rows", "rows/s", LEAST_MEDIANS, samples)]


def _compared(context: Context, sides: Sequence[str], keys: int, n: int) -> Iterator[Row]:
    """windrow, which keeps everything on disk, beside those that are here."""
    for frame in FRAMES:
        runs = {
            side: lambda s=side, f=frame: fresh(_sample, s, f, keys, n)
            for side in sides
            if frame.past or side != FLINK
        }
        samples = context.interleave(runs)  # type: ignore[arg-type]
        what, ours = f"over: five aggregates, {frame.name}, {keys:,} keys", median(samples["windrow"])
        for side in list(runs)[1:]:
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
            asked = keys == KEYS[-1]
            yield _required(what, "rows/s", LEAST, samples) if asked else _measured(what, "rows/s", samples)
    samples = context.interleave({"windrow": lambda: fresh(_counted, keys, n)})
    yield _measured(f"over: five aggregates, the last 100 rows, {keys:,} keys", "rows/s", samples)


def _sample(side: str, frame: Frame, keys: int, n: int) -> float:
    """Rows a second of one side in this process, which has made the same before, Flink of the first table. Its rows are those
    that polars makes."""
    tables = _tables(keys, n)
    once: dict[str, Once] = {"windrow": _by_windrow, POLARS: by_polars, SPARK: by_spark, DUCKDB: by_duckdb}
    with ExitStack() as stack:
        if side == FLINK:
            engine = stack.enter_context(flink())
            once[FLINK] = partial(by_flink, engine, watermark_ms=JITTER_MS)
        once[side](tables[:1] if side == FLINK else tables, frame)
        speed, emitted = once[side](tables, frame)
    check(side, emitted, by_polars(tables, frame)[1])
    return speed


def _tables(keys: int, n: int) -> list[pa.Table]:
    return [_rows(first, min(COMMIT, n - first), keys) for first in range(0, n, COMMIT)]


def _counted(keys: int, n: int) -> float:
    return _again(_over(wr.rows_between(-99, 0), ttl="1 hour"), _tables(keys, n))


def _medians(n: int) -> float:
    over = wr.Over(
        by="k", event_time="t", agg={"m": wr.median("v").over(100)}, ttl="1 hour", watermark="2 seconds"
    )
    return _again(over, [_rows(first, COMMIT // 10, 100) for first in range(0, n, COMMIT // 10)])


def _measured(what: str, unit: str, samples: dict[str, list[float]]) -> Row:
    """A figure of which nothing is asked."""
    return Row(what, unit, median(samples["windrow"]), samples=samples)


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
            emitted = pl.DataFrame(wr.read_panes(out))
        until = emitted["t"].max()
        # A batch is told when the next one comes.
        behind = timedelta(milliseconds=JITTER_MS + 100, seconds=n * 2 / SPARK_FILES / ROWS_PER_SECOND)
        assert expected["t"].max() - until < behind, f"told until {until} only"  # type: ignore[operator]
        check("windrow on Spark", emitted, expected.filter(pl.col("t") <= until))
        return median([b.rows / (b.trigger_ms / 1_000) for b in batches[1:]])

    samples = context.interleave({"windrow": run})
    what = f"over: five aggregates, {frame.name}, {keys:,} keys, on Spark, batches of {n * 2 // SPARK_FILES:,} rows"
    yield _required(what, "rows/s", LEAST_ON_SPARK, samples)
    yield Row(f"{what}, by processor time", "rows/s a core", median(cores), samples={"windrow": cores})


def _around_anchors(context: Context, n: int) -> list[Row]:
    """Anchors a second, with windows of two seconds that they say themselves, over so many rows."""
    measures: list[Row] = []
    for keys in KEYS:
        samples = context.interleave({"windrow": lambda k=keys: fresh(_anchors, k, n)})  # type: ignore[misc]
        what = f"over: five aggregates around anchors, {keys:,} keys"
        measures.append(_required(what, "anchors/s", LEAST_ANCHORS, samples))
    return measures


def _anchors(keys: int, n: int) -> float:
    tables = _tables(keys, n)
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
    both = [{"rows": table, "anchors": anchors} for table, anchors in zip(tables, spans, strict=True)]
    return _again(definition, both) * sum(map(len, spans)) / n


def _spans(rows: pa.Table) -> pa.Table:
    """An anchor for each row, about its time, whose window begins up to two seconds before."""
    rng = np.random.default_rng(len(rows))
    at = rows["t"].cast(pa.int64()).to_numpy()
    since = at - rng.integers(0, 2_000_000, len(rows))
    moments = {"at": at, "since": since, "until": since + 2_000_000, "promised": at - 10_000_000}
    stamps = {name: pa.array(us).cast(pa.timestamp("us", "UTC")) for name, us in moments.items()}
    return pa.table({"k": rows["k"], **stamps})


def _long(context: Context, n: int) -> Row:
    """A minute around each row, and a commit each second."""
    samples = context.interleave({"windrow": lambda: fresh(_minutes, n)})
    what = "over: five aggregates, the last 60 s, a commit each second, 1,000 keys"
    return _required(what, "rows/s", LEAST_LONG, samples)


def _minutes(n: int) -> float:
    """The minute before the rows that are measured is there by then, however few these are: while it fills, a commit has
    nothing to read of what leaves the windows, and nothing to forget, and takes two thirds of the time."""
    tables = [_rows(first, ROWS_PER_SECOND, 1_000) for first in range(0, FILLING + n, ROWS_PER_SECOND)]
    return _windrow_speed(
        _over(wr.range_between("-60 seconds", 0)), tables, len(tables) - n // ROWS_PER_SECOND
    )


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


def _by_windrow(tables: Sequence[pa.Table], frame: Frame) -> tuple[float, pl.DataFrame]:
    with scratch() as folder:
        speed = _windrow_speed(_over(_around(frame)), tables, out=folder)
        return speed, pl.DataFrame(wr.read_panes(folder))


def _again(definition: wr.Over, tables: Sequence[pa.Table | Mapping[str, pa.Table]]) -> float:
    """Rows a second where the process has made the same before."""
    _windrow_speed(definition, tables)
    return _windrow_speed(definition, tables)


def _windrow_speed(
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
