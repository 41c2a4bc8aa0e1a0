"""Windows around messages, durable, beside what computes them in memory and keeps nothing."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib.util import find_spec

import numpy as np
import polars as pl
import pyarrow as pa

import windrow as wr

from .harness import Context, Row, median, rate, scratch
from .sparks import SHARDS, session

ROWS, COMMIT = 1_000_000, 250_000
ROWS_PER_SECOND, JITTER_US, FIRST_US = 50_000, 2_000_000, 1_700_000_000_000_000
LEAST, SHARE_OF_POLARS, LEAST_MEDIANS = 1_000_000, 0.5, 50_000
LEAST_ANCHORS, LEAST_LONG = 300_000, 500_000
AGG = {"n": wr.count(), "s": wr.sum("v"), "lo": wr.min("v"), "hi": wr.max("v"), "f": wr.sum("x")}


def over(context: Context) -> list[Row]:
    """Rows a second of five aggregates around each row, of a thousand keys and of a hundred thousand."""
    found: list[Row] = []
    n = ROWS // (10 if context.quick else 1)
    for keys in (1_000, 100_000):
        tables = [_rows(first, min(COMMIT, n - first), keys) for first in range(0, n, COMMIT)]
        frames = {
            "the last 2 s": (wr.range_between("-2 seconds", 0), -2, 2),
            "2 s before to 1 s after": (wr.range_between("-2 seconds", "1 second"), -2, 3),
        }
        for name, (frame, start, long) in frames.items():
            sides: dict[str, Callable[[], float]] = {
                "windrow": lambda f=frame, t=tables: _told(_over(f), t),  # type: ignore[misc]
                "polars rolling": lambda s=start, p=long, t=tables: _polars(t, s, p),  # type: ignore[misc]
                "Spark's batch Window": lambda s=start, p=long, t=tables: _spark(t, s, p),  # type: ignore[misc]
            }
            if find_spec("duckdb") is not None:
                sides["DuckDB"] = lambda s=start, p=long, t=tables: _duckdb(t, s, p)  # type: ignore[misc]
            samples = context.interleave(sides)
            ours = median(samples["windrow"])
            what = f"over: five aggregates, {name}, {keys:,} keys"
            for side in list(sides)[1:]:
                aim = SHARE_OF_POLARS if side == "polars rolling" else None
                beside, other = f"{what}, beside {side}", median(samples[side])
                found.append(rate(beside, "rows/s", ours, other, side, aim=aim, samples=samples))
            if start == -long:
                meets = ours >= LEAST
                found.append(Row(what, "rows/s", ours, bound=f"required >= {LEAST:,}", meets=meets))
        counted = _over(wr.rows_between(-99, 0), ttl="1 hour")
        samples = context.interleave({"windrow": lambda o=counted, t=tables: _told(o, t)})  # type: ignore[misc]
        what = f"over: five aggregates, the last 100 rows, {keys:,} keys"
        found.append(Row(what, "rows/s", median(samples["windrow"]), samples=samples))
    found += _around_anchors(context, n)
    found.append(_long(context, n))
    tables = [_rows(first, COMMIT // 10, 100) for first in range(0, n // 10, COMMIT // 10)]
    middle = wr.Over(
        by="k", event_time="t", agg={"m": wr.median("v").over(100)}, ttl="1 hour", watermark="2 seconds"
    )
    samples = context.interleave({"windrow": lambda: _told(middle, tables)})
    ours = median(samples["windrow"])
    meets = ours >= LEAST_MEDIANS
    bound = f"required >= {LEAST_MEDIANS:,}"
    return [
        *found,
        Row("over: median of the last 100 rows", "rows/s", ours, bound=bound, meets=meets, samples=samples),
    ]


def _around_anchors(context: Context, n: int) -> list[Row]:
    """Anchors a second, with windows of two seconds that they say themselves, over so many rows."""
    found: list[Row] = []
    for keys in (1_000, 100_000):
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
        ours, what = median(samples["windrow"]), f"over: five aggregates around anchors, {keys:,} keys"
        bound, meets = f"required >= {LEAST_ANCHORS:,}", ours >= LEAST_ANCHORS
        found.append(Row(what, "anchors/s", ours, bound=bound, meets=meets, samples=samples))
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
    ours = median(samples["windrow"])
    what, meets = "over: five aggregates, the last 60 s, a commit each second, 1,000 keys", ours >= LEAST_LONG
    return Row(what, "rows/s", ours, bound=f"required >= {LEAST_LONG:,}", meets=meets, samples=samples)


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
    """Rows `first` to `first + n`, out of order by up to two seconds."""
    rng = np.random.default_rng(first)
    at = FIRST_US + (np.arange(first, first + n) * 1_000_000) // ROWS_PER_SECOND
    names = pa.array([f"key-{i:06d}" for i in range(keys)])
    return pa.table(
        {
            "t": pa.array(at - rng.integers(0, JITTER_US, n)).cast(pa.timestamp("us", "UTC")),
            "k": names.take(pa.array(rng.integers(0, keys, n))),
            "v": rng.integers(-1_000, 1_000_000, n),
            "x": rng.normal(0.0, 1.0, n),
        }
    )


def _told(definition: wr.Over, tables: Sequence[pa.Table | Mapping[str, pa.Table]], before: int = 0) -> float:
    """Each table is a commit, on disk before the next one comes, and its rows are with the sink. Of several inputs the first
    one's rows count. before: so many of them are not measured."""
    counted = [t if isinstance(t, pa.Table) else next(iter(t.values())) for t in tables[before:]]
    rows = sum(map(len, counted))
    with scratch() as folder, definition.open(folder, sink=wr.sinks.parquet(f"{folder}/told")) as operator:
        for i, table in enumerate(tables):
            if i == before:
                begin = time.perf_counter()
            operator.add_messages(table)
            operator.next_offsets()
        seconds = time.perf_counter() - begin
    return rows / seconds


def _polars(tables: list[pa.Table], start: int, long: int) -> float:
    """All at once, sorted by time first as it wants it."""
    frame = pl.from_arrow(pa.concat_tables(tables))
    v, x = pl.col("v"), pl.col("x")
    values = [
        pl.len().alias("n"),
        v.sum().alias("s"),
        v.min().alias("lo"),
        v.max().alias("hi"),
        x.sum().alias("f"),
    ]
    begin = time.perf_counter()
    rolled = frame.sort("t").rolling(  # type: ignore[union-attr]
        "t", period=timedelta(seconds=long), offset=timedelta(seconds=start), closed="both", group_by="k"
    )
    assert len(rolled.agg(values)) == len(frame)
    return len(frame) / (time.perf_counter() - begin)


_SQL = "count(*) {w} n, sum(v) {w} s, min(v) {w} lo, max(v) {w} hi, sum(x) {w} f"


def _duckdb(tables: list[pa.Table], start: int, long: int) -> float:
    """All at once, on one thread, as we are; into Arrow."""
    duckdb = importlib.import_module("duckdb")
    rows = pa.concat_tables(tables)
    frame = f"RANGE BETWEEN INTERVAL {-start} SECOND PRECEDING AND INTERVAL {start + long} SECOND FOLLOWING"
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        connection.register("rows", rows)
        begin = time.perf_counter()
        told = connection.sql(
            f"SELECT k, t, {_SQL.format(w='OVER w')} FROM rows WINDOW w AS (PARTITION BY k ORDER BY t {frame})"
        ).to_arrow_table()
        assert len(told) == len(rows)
        return len(rows) / (time.perf_counter() - begin)


def _spark(tables: list[pa.Table], start: int, long: int) -> float:
    """A batch of files with two cores, written to nowhere: `Window.rangeBetween` is not for streams. Rows a second a core."""
    import pyarrow.parquet as pq

    spark, rows = session(), sum(map(len, tables))
    frame = f"RANGE BETWEEN {-start * 1_000_000} PRECEDING AND {(start + long) * 1_000_000} FOLLOWING"
    with scratch() as folder:
        for i, table in enumerate(tables):
            pq.write_table(table, f"{folder}/{i}.parquet")
        frames = spark.read.parquet(folder).selectExpr("*", "unix_micros(t) AS us")
        frames.createOrReplaceTempView("over_rows")
        begin = time.perf_counter()
        over = f"OVER (PARTITION BY k ORDER BY us {frame})"
        spark.sql(f"SELECT k, t, {_SQL.format(w=over)} FROM over_rows").write.format("noop").mode(
            "overwrite"
        ).save()
        return rows / (time.perf_counter() - begin) / SHARDS
