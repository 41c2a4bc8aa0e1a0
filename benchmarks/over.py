"""Windows around messages, durable, beside what computes them in memory and keeps nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta

import numpy as np
import polars as pl
import pyarrow as pa

import windrow as wr

from .harness import Context, Row, median, rate, scratch

ROWS, COMMIT = 1_000_000, 250_000
ROWS_PER_SECOND, JITTER_US, FIRST_US = 50_000, 2_000_000, 1_700_000_000_000_000
LEAST, SHARE_OF_POLARS, LEAST_MEDIANS, LEAST_ANCHORS = 1_000_000, 0.5, 50_000, 300_000
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
            samples = context.interleave(
                {
                    "windrow": lambda f=frame, t=tables: _told(_over(f), t),  # type: ignore[misc]
                    "polars rolling": lambda s=start, p=long, t=tables: _polars(t, s, p),  # type: ignore[misc]
                }
            )
            ours, other = (median(samples[side]) for side in ("windrow", "polars rolling"))
            what = f"over: five aggregates, {name}, {keys:,} keys"
            found.append(
                rate(
                    f"{what}, beside polars",
                    "rows/s",
                    ours,
                    other,
                    "polars rolling",
                    aim=SHARE_OF_POLARS,
                    samples=samples,
                )
            )
            if start == -long:
                meets = ours >= LEAST
                found.append(Row(what, "rows/s", ours, bound=f"required >= {LEAST:,}", meets=meets))
        counted = _over(wr.rows_between(-99, 0), ttl="1 hour")
        samples = context.interleave({"windrow": lambda o=counted, t=tables: _told(o, t)})  # type: ignore[misc]
        what = f"over: five aggregates, the last 100 rows, {keys:,} keys"
        found.append(Row(what, "rows/s", median(samples["windrow"]), samples=samples))
    found += _around_anchors(context, n)
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


def _told(definition: wr.Over, tables: Sequence[pa.Table | Mapping[str, pa.Table]]) -> float:
    """Each table is a commit, on disk before the next one comes, and its rows are with the sink. Of several inputs the first
    one's rows count."""
    rows = sum(len(t) if isinstance(t, pa.Table) else len(next(iter(t.values()))) for t in tables)
    with scratch() as folder, definition.open(folder, sink=wr.sinks.parquet(f"{folder}/told")) as operator:
        begin = time.perf_counter()
        for table in tables:
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
