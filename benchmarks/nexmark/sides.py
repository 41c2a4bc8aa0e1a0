"""Who runs the queries: windrow in this process, windrow on Spark, Spark's own SQL, Flink's."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import windrow as wr

from ..flink import Events, Flink
from ..sparks import PROVIDERS, run_to_end, session
from ..spent import Spent, all_processes, measured
from .events import AUCTION, BID, PERSON, SCHEMA
from .query import TIMES, Plan, Query, as_frame, result

FILES_PER_BATCH = 5
SPARK = next(iter(PROVIDERS))
WATERMARK_MS = 4_000
_VIEWS = (("person", PERSON), ("auction", AUCTION), ("bid", BID))
_SQL_TYPES = {
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.string(): "STRING",
    pa.timestamp("ms", "UTC"): "TIMESTAMP",
}


def embedded(query: Query, plan: Plan, path: str, folder: str) -> tuple[Spent, pl.DataFrame]:
    """windrow in this process; every batch of files is a commit."""
    files = sorted(str(f) for f in Path(path).glob("*.parquet"))
    out = os.path.join(folder, "out")
    with (
        measured(time.process_time) as spent,
        plan.definition.open(os.path.join(folder, "windrow"), sink=wr.sinks.parquet(out)) as operator,
    ):
        for i in range(0, len(files), FILES_PER_BATCH):
            tables = {
                name: pq.read_table(
                    files[i : i + FILES_PER_BATCH], columns=columns, filters=pc.field("kind") == kind
                ).rename_columns([plan.renamed.get(c, c) for c in columns])
                for name, (kind, columns) in plan.inputs.items()
            }
            operator.add_messages(tables)
        operator.drain()
    return spent, result(query, plan.rows(as_frame(wr.read_panes(out))))


def on_spark(query: Query, plan: Plan, path: str, folder: str) -> tuple[Spent, pl.DataFrame]:
    """windrow in a streaming query of Spark's, drained when all is read."""
    out = os.path.join(folder, "out")
    events = _events(path)
    inputs = {
        name: events.where(f"kind = {kind}").select(columns).withColumnsRenamed(plan.renamed)
        for name, (kind, columns) in plan.inputs.items()
    }
    with measured(all_processes) as spent:
        writer = plan.definition.writeStream(**inputs).sink(wr.sinks.parquet(out))
        writer = writer.option("checkpointLocation", folder).option("shards", plan.shards)
        running = writer.trigger(availableNow=True).start()
        running.drain()
        running.stop()
    return spent, result(query, plan.rows(as_frame(wr.read_panes(out))))


def by_spark(query: Query, sql: str, path: str, folder: str) -> tuple[Spent, pl.DataFrame]:
    """Spark's own SQL, its state in RocksDB."""
    spark = session()
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[SPARK])
    out = os.path.join(folder, "out")
    events = _events(path).withWatermark("t", "4 seconds")
    with measured(all_processes) as spent:
        for name, kind in _VIEWS:
            events.where(f"kind = {kind}").createOrReplaceTempView(name)
        writer = spark.sql(sql).writeStream.outputMode("append").format("parquet")
        run_to_end(writer.option("path", out), None, folder)
    return spent, result(query, pl.read_parquet(f"{out}/*.parquet"))


def by_flink(engine: Flink, query: Query, sql: str, path: str, folder: str) -> tuple[Spent, pl.DataFrame]:
    """Flink's SQL, its state in RocksDB."""
    inputs = next(iter(query.plans.values())).inputs.values()
    read = ["kind", *dict.fromkeys(c for _, columns in inputs for c in columns)]
    events = Events(path, {c: _SQL_TYPES[SCHEMA.field(c).type] for c in read}, WATERMARK_MS)
    views = [
        f"CREATE TEMPORARY VIEW {name} AS SELECT * FROM events WHERE kind = {kind}" for name, kind in _VIEWS
    ]
    spent, rows = engine.run(events, [*views, sql], query.columns, folder)
    times = [c for c in query.columns if c in TIMES]
    return spent, result(
        query, rows.with_columns(pl.col(times).cast(pl.Datetime("ms")).dt.replace_time_zone("UTC"))
    )


def _events(path: str) -> Any:
    spark = session()
    schema = spark.createDataFrame(SCHEMA.empty_table()).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(path)
