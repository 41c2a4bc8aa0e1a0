"""The embedded operator beside what it is made of: a plain group-by, and a plain RocksDB."""

from __future__ import annotations

import time

import msgpack
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import rocksdict

import windrow as wr
from windrow.core.message_keys import message_keys

from .data import medians, rows
from .harness import Context, Row, median, rate, scratch
from .sparks import TUMBLING, definition

BATCH_ROWS = 200_000
WINDOW_US = 10_000_000


def embedded(context: Context) -> list[Row]:
    """Rows a second of `add_messages`, durable, beside group-bys that keep nothing."""
    inputs = tables(context)
    sides = {
        "windrow": lambda: add(definition(TUMBLING), inputs),
        "pyarrow group_by": lambda: _timed(lambda t: _arrow(t), inputs),
        "polars group_by": lambda: _timed(lambda t: _polars(t), inputs),
    }
    samples = context.interleave(sides)
    return [
        rate(
            f"embedded: add_messages of {BATCH_ROWS:,} rows, beside a plain {side}",
            "rows/s",
            median(samples["windrow"]),
            median(samples[side]),
            side,
            samples={s: samples[s] for s in ("windrow", side)},
        )
        for side in list(sides)[1:]
    ]


def full_state(context: Context) -> list[Row]:
    """Ingest where every message is kept (a median), beside a WriteBatch of as many keys and values, made beforehand."""
    inputs = tables(context)
    median_of = medians(watermark="365 days")
    pairs = [_pairs(t, i * BATCH_ROWS) for i, t in enumerate(inputs)]
    samples = context.interleave(
        {"windrow": lambda: add(median_of, inputs), "RocksDB WriteBatch": lambda: _write(pairs)}
    )
    return [
        rate(
            "full state: ingest for a median, beside a raw RocksDB WriteBatch",
            "rows/s",
            median(samples["windrow"]),
            median(samples["RocksDB WriteBatch"]),
            "RocksDB WriteBatch",
            samples=samples,
        )
    ]


def tables(context: Context) -> list[pa.Table]:
    return [rows(i * BATCH_ROWS, BATCH_ROWS) for i in range(2 if context.quick else 6)]


def add(aggregate: wr.Aggregate, tables: list[pa.Table]) -> float:
    """Each table is a step and, as `BATCH_ROWS` says, a commit: on disk before the next one comes."""
    with scratch() as folder, aggregate.open(folder) as operator:
        begin = time.perf_counter()
        for table in tables:
            operator.add_messages(table)
        seconds = time.perf_counter() - begin
    return BATCH_ROWS * len(tables) / seconds


def _timed(function: object, tables: list[pa.Table]) -> float:
    begin = time.perf_counter()
    for table in tables:
        function(table)  # type: ignore[operator]
    return BATCH_ROWS * len(tables) / (time.perf_counter() - begin)


def _arrow(table: pa.Table) -> pa.Table:
    micros = table.column("t").cast(pa.int64())
    start = pc.multiply(pc.divide(micros, WINDOW_US), WINDOW_US)
    return (
        table.append_column("w", start)
        .group_by(["w", "k"], use_threads=False)
        .aggregate([("v", "count"), ("v", "sum"), ("v", "min"), ("v", "max")])
    )


def _polars(table: pa.Table) -> pl.DataFrame:
    v = pl.col("v")
    frame = pl.DataFrame(table)
    window = pl.col("t").dt.truncate("10s").alias("w")
    return frame.group_by(window, "k").agg(
        pl.len(), v.sum().alias("s"), v.min().alias("lo"), v.max().alias("hi")
    )


def _pairs(table: pa.Table, first: int) -> list[tuple[bytes, bytes]]:
    times = table.column("t").cast(pa.int64()).to_numpy()
    n = len(table)
    keys = message_keys(times, pa.array([""] * n), [0] * n, range(first, first + n), [0] * n)
    pack = msgpack.Packer(autoreset=True).pack
    values = [pack(v) for v in zip(times.tolist(), *(table.column(c).to_pylist() for c in "kv"), strict=True)]
    return list(zip(keys, values, strict=True))


def _write(batches: list[list[tuple[bytes, bytes]]]) -> float:
    with scratch() as folder:
        db = rocksdict.Rdict(f"{folder}/db", rocksdict.Options(raw_mode=True))
        no_log = rocksdict.WriteOptions()
        no_log.disable_wal = True  # type: ignore[method-assign, assignment]
        begin = time.perf_counter()
        for pairs in batches:
            batch = rocksdict.WriteBatch(raw_mode=True)
            for key, value in pairs:
                batch.put(key, value)
            db.write(batch, no_log)
        seconds = time.perf_counter() - begin
        db.close()
    return sum(map(len, batches)) / seconds
