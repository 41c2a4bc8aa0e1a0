"""Nexmark, the benchmark that Flink is measured by: windrow beside Flink and Spark's own SQL, on one Parquet stream.

Results are compared before speed: a side of which a row is wrong has no figure, and the benchmark ends. Speed is events a
second and core, by the processor time of all processes of a side, as Nexmark counts it; all events count, also those that a
query leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product

import polars as pl

from ..flink import Flink, flink, lacking
from ..harness import Benchmark, Context, Row, median, rate, scratch
from ..spent import Spent
from . import events, sides
from .queries import QUERIES
from .query import Query, result

EVENTS, EVENTS_PER_SECOND = 5_000_000, 100_000
QUICK_EVENTS, QUICK_EVENTS_PER_SECOND = 500_000, 25_000
ON_SPARK, EMBEDDED = "windrow", "windrow embedded"
FLINK, PUBLISHED = "Flink, RocksDB", "Flink, as published"
#: Runs the query in a folder.
Run = Callable[[str], tuple[Spent, pl.DataFrame]]


def nexmark(context: Context, queries: Sequence[Query] = QUERIES) -> list[Row]:
    """Events a second and core of each query, by every side."""
    n, per_second = (QUICK_EVENTS, QUICK_EVENTS_PER_SECOND) if context.quick else (EVENTS, EVENTS_PER_SECOND)
    n = context.events or n
    context.step(f"writing {n:,} events")
    path = events.stream(n, per_second)
    with ExitStack() as stack:
        if absent := lacking():
            context.bar.write(f"nexmark runs without Flink: {', '.join(absent)} cannot be found")
        engine = None if absent else stack.enter_context(flink())
        return [row for query in queries for row in _compare(context, query, engine, path, n)]


#: Each query by itself.
NEXMARK: dict[str, Benchmark] = {
    f"nexmark-{query.name.partition(',')[0]}": partial(nexmark, queries=(query,)) for query in QUERIES
}


def _compare(context: Context, query: Query, engine: Flink | None, path: str, n: int) -> list[Row]:
    context.bar.set_description(f"nexmark: {query.name}")
    everything = pl.scan_parquet(f"{path}/*.parquet")
    expected = result(query, query.expected(everything).collect())
    [last] = everything.select(pl.col("t").max()).collect().to_series()
    seconds: dict[str, list[float]] = {}

    def run(side: str, once: Run) -> float:
        with scratch() as folder:
            spent, rows = once(folder)
        _check(query, side, rows, expected, last if side == sides.SPARK else None)
        seconds.setdefault(side, []).append(n / spent.seconds)
        return n / spent.cpu

    if not context.quick:
        few = events.stream(QUICK_EVENTS, QUICK_EVENTS_PER_SECOND)
        for side, once in _sides(query, engine, few).items():
            context.step(f"warming up {side}")
            with scratch() as folder:
                once(folder)
    runs = _sides(query, engine, path)
    samples = context.interleave({s: lambda s=s, r=r: run(s, r) for s, r in runs.items()})
    return _rows(query, n, samples, seconds)


def _sides(query: Query, engine: Flink | None, path: str) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    for name, plan in query.plans.items():
        runs[ON_SPARK + name] = lambda folder, plan=plan: sides.on_spark(query, plan, path, folder)
        runs[EMBEDDED + name] = lambda folder, plan=plan: sides.embedded(query, plan, path, folder)
    if (spark := query.spark) is not None:
        runs[sides.SPARK] = lambda folder: sides.by_spark(query, spark, path, folder)
    if engine is not None:
        for name, sql in query.flink.items():
            runs[FLINK + name] = lambda folder, sql=sql: sides.by_flink(engine, query, sql, path, folder)
    return runs


def _rows(query: Query, n: int, cores: dict[str, list[float]], seconds: dict[str, list[float]]) -> list[Row]:
    """By processor time, which is compared, and by the clock, which is told."""
    rows = []
    ours = [s for s in cores if s.startswith(ON_SPARK)]
    for side, other in product(ours, [s for s in cores if s not in ours]):
        for unit, samples in (("events/s a core", cores), ("events/s", seconds)):
            rows.append(
                rate(
                    f"nexmark: {query.name}, {n / 1e6:g} M events, {side}, beside {other}, {unit}",
                    unit,
                    median(samples[side]),
                    median(samples[other]),
                    other,
                    required=1.0 if samples is cores and other.startswith(FLINK) else None,
                    samples={s: samples[s] for s in (side, other)},
                )
            )
    for side in ours:
        name = f"nexmark: {query.name}, {n / 1e6:g} M events, {side}, beside {PUBLISHED}"
        rows.append(rate(name, "events/s a core", median(cores[side]), query.published, PUBLISHED))
    return rows


def _check(query: Query, side: str, actual: pl.DataFrame, expected: pl.DataFrame, last: object) -> None:
    """Every row is expected and comes once, and none lacks.

    last: the last event time, of a side that leaves open what the watermark has not passed; None of one that is drained
    """
    columns = list(query.columns)
    must = expected
    if last is not None and query.closes is not None:
        time, later = query.closes
        watermark = pl.lit(last).dt.offset_by(f"-{sides.WATERMARK_MS}ms").cast(pl.Datetime("us", "UTC"))
        must = expected.filter(pl.col(time).dt.offset_by(later) <= watermark)
    assert len(must), f"{query.name}: no row is due"
    faults = {
        "wrong": actual.join(expected, on=columns, how="anti"),
        "missing": must.join(actual, on=columns, how="anti"),
        "there twice": actual.filter(actual.is_duplicated()),
    }
    for fault, rows in faults.items():
        assert rows.is_empty(), f"{query.name}, {side}: {len(rows)} rows are {fault}, first {rows.row(0)}"
