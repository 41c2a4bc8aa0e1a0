"""Who computes windows around messages beside windrow: all rows at once, and nothing kept, but for Flink's OVER.

Each side gives rows a second of processor time, and the rows.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from .flink import Events, Flink
from .harness import scratch
from .sparks import session
from .spent import all_processes, measured

_SQL = "count(*) {w} n, sum(v) {w} s, min(v) {w} lo, max(v) {w} hi, sum(x) {w} f"
_EXACT = ("n", "s", "lo", "hi")
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Frame:
    """A window from `start` seconds after its row on, `seconds` long, both ends in it."""

    name: str
    start: int
    seconds: int

    @property
    def past(self) -> bool:
        """True if it ends with its row."""
        return self.start == -self.seconds


def check(side: str, actual: pl.DataFrame, expected: pl.DataFrame) -> None:
    """Every row is there once, with its values."""
    ours, theirs = (
        rows.select("k", pl.col("t").cast(pl.Datetime("us", "UTC")), pl.col(_EXACT).cast(pl.Int64), "f").sort(
            "k", "t"
        )
        for rows in (actual, expected)
    )
    assert len(ours) == len(theirs), f"{side} has {len(ours):,} rows, and {len(theirs):,} are expected"
    wrong = (
        ours.drop("f").equals(theirs.drop("f")) is False or (ours["f"] - theirs["f"]).abs().max() > _ROUNDING
    )  # type: ignore[operator]
    assert not wrong, f"{side} has other values than are expected"


def by_polars(tables: Sequence[pa.Table], frame: Frame) -> tuple[float, pl.DataFrame]:
    """Sorted by time first as it wants it."""
    rows = pl.from_arrow(pa.concat_tables(tables))
    v, x = pl.col("v"), pl.col("x")
    values = [
        pl.len().alias("n"),
        v.sum().alias("s"),
        v.min().alias("lo"),
        v.max().alias("hi"),
        x.sum().alias("f"),
    ]
    period, offset = timedelta(seconds=frame.seconds), timedelta(seconds=frame.start)
    begin = time.process_time()
    rolled = (
        rows.sort("t").rolling("t", period=period, offset=offset, closed="both", group_by="k").agg(values)
    )  # type: ignore[union-attr]
    return len(rows) / (time.process_time() - begin), rolled


def by_duckdb(tables: Sequence[pa.Table], frame: Frame) -> tuple[float, pl.DataFrame]:
    """On one thread, as we are; into Arrow."""
    duckdb = importlib.import_module("duckdb")
    rows = pa.concat_tables(tables)
    ahead = frame.start + frame.seconds
    span = f"RANGE BETWEEN INTERVAL {-frame.start} SECOND PRECEDING AND INTERVAL {ahead} SECOND FOLLOWING"
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        connection.register("rows", rows)
        begin = time.process_time()
        relation = connection.sql(
            f"SELECT k, t, {_SQL.format(w='OVER w')} FROM rows WINDOW w AS (PARTITION BY k ORDER BY t {span})"
        ).to_arrow_table()
        return len(rows) / (time.process_time() - begin), pl.DataFrame(relation)


def by_spark(tables: Sequence[pa.Table], frame: Frame) -> tuple[float, pl.DataFrame]:
    """A batch of files with two cores, into Parquet: `Window.rangeBetween` is not for streams."""
    spark, rows = session(), sum(map(len, tables))
    ahead = frame.start + frame.seconds
    over = (
        f"OVER (PARTITION BY k ORDER BY us RANGE BETWEEN {-frame.start * 1_000_000} PRECEDING "
        f"AND {ahead * 1_000_000} FOLLOWING)"
    )
    with scratch() as folder:
        _write(tables, folder)
        read = spark.read.parquet(f"{folder}/*.parquet").selectExpr("*", "unix_micros(t) AS us")
        read.createOrReplaceTempView("over_rows")
        with measured(all_processes) as spent:
            windowed = spark.sql(f"SELECT k, t, {_SQL.format(w=over)} FROM over_rows")
            windowed.write.parquet(f"{folder}/rows")
        return rows / spent.cpu, pl.read_parquet(f"{folder}/rows/*.parquet")


def by_flink(
    engine: Flink, tables: Sequence[pa.Table], frame: Frame, watermark_ms: int
) -> tuple[float, pl.DataFrame]:
    """A stream with a watermark, as ours, its state in RocksDB."""
    assert frame.past, "Flink's OVER ends with its row"
    columns = {"t": "TIMESTAMP", "k": "STRING", "v": "BIGINT", "x": "DOUBLE"}
    span = f"RANGE BETWEEN INTERVAL '{-frame.start}' SECOND PRECEDING AND CURRENT ROW"
    query = (
        f"SELECT k, t, {_SQL.format(w='OVER w')} FROM events WINDOW w AS (PARTITION BY k ORDER BY t {span})"
    )
    with scratch() as folder:
        path = f"{folder}/rows"
        _write([t.set_column(0, "t", t["t"].cast(pa.timestamp("ms", "UTC"))) for t in tables], path)
        spent, rows = engine.run(
            Events(path, columns, watermark_ms), [query], ("k", "t", *_EXACT, "f"), folder
        )
    rate = sum(map(len, tables)) / spent.cpu
    return rate, rows.with_columns(pl.col("t").cast(pl.Datetime("ms")).dt.replace_time_zone("UTC"))


def _write(tables: Sequence[pa.Table], folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    for i, table in enumerate(tables):
        pq.write_table(table, f"{folder}/{i:05d}.parquet")
