"""Replay of lost messages of shards: one bounded Spark job over the source, before the batch continues."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from windrow.checkpoint.job import Job
from windrow.checkpoint.records import Commit
from windrow.checkpoint.replay import KEPT_OF, Ranges, extent, steps_again
from windrow.checkpoint.shard import ShardSpec
from windrow.connectors.kafka.stream import KafkaStream
from windrow.core.errors import StateLost
from windrow.core.sql import quoted
from windrow.core.time import START_OF_TIME_US
from windrow.operators.operator import Definition
from windrow.operators.steps.columns import OFFSET, PARTITION, POSITION_COLUMNS, SOURCE
from windrow.runners import wire
from windrow.runners.ranges import SCHEMA, of_unnamed_input
from windrow.runners.replay import GivenByInput, bring_back, rebuild, replay_of, rows_inside
from windrow.runners.spark import routes
from windrow.runners.spark.inputs import Inputs
from windrow.runners.spark.kafka import rows_of
from windrow.runners.tasks import TaskPlan
from windrow.stores.kv import LocalStore


@dataclass(frozen=True)
class Source:
    """The source of a replay. read: `replay=` of the user. schema, of_files: of the stream's frames."""

    inputs: Inputs
    reads: KafkaStream | None
    read: Callable[[], Any] | None
    schema: T.StructType | None
    of_files: bool


def replay_messages(
    source: Source, job: Job, spark: SparkSession, task: TaskPlan, lost: Sequence[int]
) -> None:
    """Build the shards `lost` anew, as of the last commit. Each leaves a snapshot, which every executor finds."""
    ranges: Ranges = {}
    commits = [c for c in job.commits() if c.commit < task.commit]
    for definition in task.definitions:
        refiling = definition.logic().refiling()
        if refiling is None:
            continue
        for shard in lost:
            kept_from_us = _kept_from(definition, commits[-1], shard)
            redo = steps_again(commits, definition, shard, kept_from_us, refiling.why)
            ranges = _widest(ranges, extent(redo))
    if source.reads is None:
        rows = source.inputs.on_shards(_rows(source, ranges, spark), routes.sharding_of(job))
    elif task.reads is not None:
        rows = _nothing(spark, job.shards)
    else:
        rows = source.inputs.on_shards(_topic(source.reads, ranges, spark), routes.sharding_of(job))
    control = routes.control_rows(spark, job.shards)
    on_shards = routes.to_shards(rows, job.shards, control).where(F.col(wire.SHARD).isin(list(lost)))
    again = partial(run, replace(task, can_replay=False), job.shards)
    answers = on_shards.mapInArrow(again, routes.ANSWER).collect()
    back = sorted(pickle.loads(r["payload"]) for r in answers)
    if back != list(lost):
        raise StateLost(
            f"shards {list(lost)} have lost their messages, {back} were brought back: see the executors' logs"
        )


def _topic(stream: KafkaStream, ranges: Ranges, spark: SparkSession) -> DataFrame:
    """Return the rows of the stream that lie in the ranges, read in as many tasks as there are ranges."""
    wanted = stream.ranges_again(ranges)
    frame = spark.createDataFrame(
        [(r.topic, r.id, r.partition, r.start, r.end) for r in wanted], from_arrow_schema(SCHEMA)
    )
    return rows_of(frame.repartition(max(1, len(wanted))), replace(stream, fail_on_data_loss=True))


def _nothing(spark: SparkSession, shards: int) -> DataFrame:
    """Return no ranges: a shard of a keyed stream knows them from the log."""
    return routes.prepare_ranges(spark.createDataFrame([], from_arrow_schema(SCHEMA)), shards)


def _kept_from(definition: Definition, last: Commit, shard: int) -> int | None:
    """Return the time from which a shard kept messages after the last commit. None: all are needed."""
    again = definition.logic().refiling()
    if again is None or again.every_step:
        return None
    [counters] = [r.counters for r in last.shards if r.shard == shard]
    return counters.get(KEPT_OF + definition.name, START_OF_TIME_US)


def _widest(left: Ranges, right: Ranges) -> Ranges:
    widest = dict(left)
    for partition, (first, following) in right.items():
        known = widest.get(partition, (first, following))
        widest[partition] = (min(first, known[0]), max(following, known[1]))
    return widest


def _rows(source: Source, ranges: Ranges, spark: SparkSession) -> DataFrame:
    """Return the rows of the source that lie in the ranges, with the stream's columns and positions."""
    assert source.read is not None and source.schema is not None
    df = source.inputs.again(source.read(), of_files=source.of_files)
    wanted = [f for f in source.schema.fields if not f.name.startswith("__")]
    types = {f.name: f.dataType for f in df.schema.fields}
    other = [
        f"{f.name} is {kind.simpleString() if kind else 'missing'}, the stream has {f.dataType.simpleString()}"
        for f in wanted
        if (kind := types.get(f.name)) != f.dataType
    ]
    if other:
        raise StateLost(
            f"replay= gave a DataFrame that is not the stream's: {'; '.join(other)}. Give it the transform of the stream"
        )
    named = spark.createDataFrame(
        [(s, p, first, following) for (s, p), (first, following) in ranges.items()], _RANGES
    )
    inside = (
        (F.col(SOURCE) == F.col("__s"))
        & (F.col(PARTITION) == F.col("__p"))
        & (F.col(OFFSET) >= F.col("__first"))
        & (F.col(OFFSET) < F.col("__next"))
    )
    columns = [quoted(f.name) for f in wanted] + [
        c for c in (wire.INPUT, *POSITION_COLUMNS) if c in df.columns
    ]
    return df.join(F.broadcast(named), inside).select(*columns)


_RANGES = T.StructType(
    [
        T.StructField("__s", T.StringType()),
        T.StructField("__p", T.LongType()),
        T.StructField("__first", T.LongType()),
        T.StructField("__next", T.LongType()),
    ]
)


def run(task: TaskPlan, shards: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rebuild one shard from its rows, in `mapInArrow`, and leave it as a snapshot."""
    received = wire.rows_of_shard(batches)
    if received is None:
        return
    number, table = received

    def replay(spec: ShardSpec, kv: LocalStore, commits: Sequence[Commit]) -> None:
        assert task.reads is not None
        for definition in task.definitions:
            read = partial(_partitions, definition, task.reads, number, shards)
            bring_back(definition, spec, kv, commits, read, every_input=True)

    again = replay if task.reads is not None else replay_of(task.definitions, table)
    rebuild(task, number, again)
    yield wire.reply(number, number)


def _partitions(
    definition: Definition, stream: KafkaStream, shard: int, shards: int, ranges: Ranges
) -> GivenByInput:
    """Read the records of one shard's partitions, in its task."""
    of_shard = {partition: r for partition, r in ranges.items() if partition[1] % shards == shard}
    again = pa.concat_tables(of_unnamed_input([stream.again(of_shard)]))
    return rows_inside({definition.inputs[0].name: again}, of_shard)
