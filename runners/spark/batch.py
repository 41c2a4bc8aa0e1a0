"""The function for `DataStreamWriter.foreachBatch`: it makes one batch of a streaming query one commit.

The numbers are those of docs/explanation/commit-protocol.md.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from windrow.checkpoint.batches import BatchDecision
from windrow.checkpoint.compaction import snapshots_from
from windrow.checkpoint.health import Health, alive_at, health_of
from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.offsets import gaps
from windrow.checkpoint.records import Commit
from windrow.checkpoint.transport import FILES, Transport
from windrow.connectors.kafka.reading import cluster_of
from windrow.connectors.kafka.source import KafkaSource
from windrow.connectors.kafka.stream import KafkaStream
from windrow.core import check
from windrow.core.clock import Clock, clock_of
from windrow.core.errors import SparkUnsupported, StateError
from windrow.core.location import local_path
from windrow.core.logs import get_logger
from windrow.core.positions import Partition, shown_source
from windrow.core.time import START_OF_TIME_US, to_datetime
from windrow.operators.operator import Definition
from windrow.runners import tasks
from windrow.runners.protocol import IDLE_BATCHES, BatchProtocol, itself, never_empty
from windrow.runners.publishing import Publisher, sinks_of
from windrow.runners.replay import read_unasked, replayable
from windrow.runners.spark import routes
from windrow.runners.spark.action import Action
from windrow.runners.spark.checkpoint import SparkCheckpoint
from windrow.runners.spark.graceful_stop import Gate
from windrow.runners.spark.inputs import inputs_of, watermark_partition
from windrow.runners.spark.kafka import rows_of
from windrow.runners.spark.replay import Source, replay_messages
from windrow.runners.spark.session import check_session
from windrow.runners.spark.shared_folder_check import Nonce
from windrow.runners.spark.sinks import as_letters_sink, as_spark_sink, give
from windrow.runners.task_result import Answer
from windrow.runners.telemetry import Stages, Telemetry
from windrow.stores.files import on_disk

# -- metadata of a source's partitions: offsets that nobody has read, and offsets without a record --------------------


class Asked:
    """A source, and its last answer; None where no source can be asked."""

    def __init__(self, source: KafkaSource | None) -> None:
        self.source = source
        self._newest: dict[Partition, int] = {}

    def unread(self, job: Job) -> set[Partition]:
        """Return the partitions of which the source has unread records."""
        if self.source is None:
            return set()
        before, marks = job.progress.next_offsets, job.progress.marks
        silent = {p for p in before if p not in marks or marks[p].seen_us != job.progress.now_us}
        self._newest = self.source.newest(before, silent)
        return {p for p, offset in self._newest.items() if offset > before[p]}

    def explained(self, job: Job, first: Mapping[Partition, int], *, resumed: bool) -> set[Partition]:
        """Return the partitions whose skipped offsets hold no record, or none that the stream lets through. resumed: it began
        where the job stopped.
        """
        left_out = gaps(job.progress.next_offsets, first)
        if resumed:
            return set(left_out)
        if self.source is None:
            return set()
        return {p for p, (start, end) in left_out.items() if self.source.is_empty(p, start, end)}

    def lag(self, job: Job) -> dict[str, dict[str, int]] | None:
        """Return how many offsets are unread of those the source last reported, by source and partition."""
        if self.source is None:
            return None
        following, lag = job.progress.next_offsets, dict[str, dict[str, int]]()
        for (source, partition), offset in sorted(self._newest.items()):
            behind = max(0, offset - following.get((source, partition), offset))
            lag.setdefault(shown_source(source), {})[str(partition)] = behind
        return lag


# -- batch ------------------------------------------------------------------------------------------------------------

logger = get_logger()


class BatchFunction:
    """The function of `foreachBatch`, `(DataFrame, batch id)`. Made by `Aggregate.foreach_batch` or `wr.foreach_batch`.

    The job is opened at the first batch, on the driver. Progress is `last_progress`; listeners get each one.
    """

    def __init__(
        self,
        definitions: Sequence[Definition],
        location: str,
        *,
        sink: Any = None,
        dead_letters: Any = None,
        shards: int | None = None,
        clock: Clock | None = None,
        local_dir: str | None = None,
        fresh_start: bool = False,
        replay: Callable[[], Any] | None = None,
        static: Mapping[str, DataFrame] | None = None,
        source: KafkaSource | None = None,
        reads: KafkaStream | None = None,
        log: Transport = FILES,
    ) -> None:
        self.definitions: tuple[Definition, ...] = tuple(definitions)
        for definition in self.definitions:
            definition.check_begins()
        self.inputs = inputs_of(self.definitions, static)
        self.location = local_path(location)
        self.sinks = sinks_of(self.definitions, sink, dead_letters, as_spark_sink)
        self.dead_letters = None if dead_letters is None else as_letters_sink(dead_letters)
        if shards is not None:
            check.number(shards, "shards", "use how many, 1 or more; fixed at the first commit", least=1)
            for definition in self.definitions:
                check_shards(definition, shards)
        self.shards = shards
        self.clock = clock_of(clock)
        if local_dir is not None:
            local_path(local_dir, "local_dir")  # a variable or `~` in it is the executors'
        self.local_dir = local_dir
        self.fresh_start = fresh_start
        self.replay = replay
        #: The stream that windrow reads itself: frames are then ranges of offsets.
        self.reads = reads
        self.source = KafkaSource(reads.kafka) if reads is not None and source is None else source
        #: True if the first batch of a new query resumes where the job stopped, by the stream's own source.
        self.resumes = False
        self._asked = Asked(self.source)
        self._partitions: dict[str, int] = {}
        self.log = log
        self.listeners: list[Callable[[dict[str, Any]], None]] = []
        self.last_progress: dict[str, Any] | None = None
        self.input_schema: StructType | None = None
        #: True where the position columns are (file, row): files are taken whole, and remembered by name.
        self.of_files = False
        self._files_taken: dict[str, list[str]] = {}
        self.gate = Gate()
        #: Spark's own checkpoint, if it can be read: batches that bring nothing, while nothing is due, then leave no record.
        self.checkpoint: SparkCheckpoint | None = None
        #: The first batch that came since the query was started, which Spark may have planned before.
        self.first_batch: int | None = None
        self._job: Job | None = None
        self._publisher: Publisher
        self._action: Action
        self._nonce = Nonce()

    def __repr__(self) -> str:
        return f"<foreach_batch of {', '.join(repr(d) for d in self.definitions)} at {self.location}>"

    def _positioned(self, df: DataFrame) -> tuple[DataFrame, bool]:
        """Return the frame with position columns, where it has any."""
        if self.reads is not None:
            return (df, True) if self.reads.keyed else (rows_of(df, self.reads), True)
        return self.inputs.positioned(df, begun=self.job.progress.commit > 0)

    def _honour(self, df: DataFrame) -> None:
        """Adopt the watermarks of the first frame."""
        self.definitions = self.inputs.honoured(df, self.definitions)

    # -- the batch --------------------------------------------------------------------------------------------------

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        with self.gate.batch():
            if self.first_batch is None:
                self.first_batch = batch_id
            self._batch(df, batch_id)

    def _batch(self, df: DataFrame, batch_id: int) -> None:
        started = time.monotonic()
        spark = df.sparkSession
        if self._job is None:
            self._honour(df)
        with on_disk(self.location):
            self._open(spark)
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "bounded"
        protocol = self._protocol(spark)
        if protocol.rests(query_id, batch_id):
            return
        received = df
        if routes.HEARTBEAT in df.columns:
            df = df.where(F.col(routes.HEARTBEAT).isNull()).drop(routes.HEARTBEAT)
        self.input_schema = df.schema
        df, positioned = self._positioned(df)

        def act(plan: Plan, decision: BatchDecision) -> list[Answer]:
            new = self._without_old(df, decision, query_id)
            alike = received if new is df and self.reads is None else None
            return self._action.run(spark, new, plan, positioned, alike)

        record = protocol.batch(query_id, batch_id, positioned, act)
        if record is not None:
            self._log(record, batch_id, started, protocol.stages)

    def _without_old(self, df: DataFrame, decision: BatchDecision, query_id: str) -> DataFrame:
        """Mark the rows of the frame that were counted before, or leave them out."""
        job = self.job
        if self.reads is not None and self.reads.keyed:
            return df  # the tasks leave them out
        if decision.drop_old_rows and not self.of_files:
            return routes.mark_replayed(df, job.progress.next_offsets)
        if self.of_files and job.progress.commit:
            # All batches of a query, not its first alone: it may bring the files of others one by one.
            if query_id not in self._files_taken:
                self._files_taken[query_id] = job.files_taken(query_id)
            return routes.drop_files(df, self._files_taken[query_id])
        return df

    def drain(self, spark: SparkSession, stream: DataFrame | None = None) -> None:
        """Make one more commit, with the watermark at the end of time: every window fires. Later data will be late.

        Call it when the query has read everything and has ended. stream: what it reads, needed where no batch has come in this
        process: the columns are taken from it.
        """
        self._without_input(spark, stream, BatchProtocol.drain)

    def advance(self, spark: SparkSession, stream: DataFrame | None = None) -> None:
        """Make one more commit, without input, that emits the windows that the last batch closed; none where it closed none.

        Call it when a query with `availableNow` has ended: Spark's own append mode ends so. The builder's `awaitTermination`
        does. stream: as in `drain`.
        """
        if self._job is not None or Job.shards_at(self.location, self.log) is not None:
            self._without_input(spark, stream, BatchProtocol.advance)

    def _without_input(
        self,
        spark: SparkSession,
        stream: DataFrame | None,
        commit: Callable[[BatchProtocol, Callable[[Plan], Sequence[Answer]]], Commit | None],
    ) -> None:
        if stream is not None and self.input_schema is None:
            if self._job is None:
                self._honour(stream)
            self.input_schema = stream.schema
        with on_disk(self.location):
            self._open(spark)
        started = time.monotonic()
        schema = self.input_schema

        def act(plan: Plan) -> list[Answer]:
            if schema is None:
                raise StateError(
                    "no batch has come yet, so that the columns of the input are not known: use "
                    f"{commit.__name__}(spark, stream)"
                )
            nothing = spark.createDataFrame([], schema)
            if self.reads is not None:
                nothing, _ = self._positioned(nothing)
            return self._action.run(spark, nothing, plan, False)

        protocol = self._protocol(spark)
        record = commit(protocol, act)
        if record is not None:
            self._log(record, -1 if record.batch_id is None else record.batch_id, started, protocol.stages)

    def open(self, spark: SparkSession) -> None:
        """Open the job before its first batch: an error is raised here, and fails no query. The definitions
        are those under the watermarks of the stream.
        """
        with on_disk(self.location):
            self._open(spark)

    def close(self) -> None:
        """Let the job go; the next batch would open it again."""
        if self._job is not None:
            self._nonce.forget()
            self._action.close()
            self._job.close()

    def pane_schema(self, df: DataFrame, operator: str) -> StructType:
        """Return Spark's schema of an operator's panes over such a frame."""
        definition = next(d for d in self.definitions if operator in [p.name for p in d.parts])
        return from_arrow_schema(definition.logic().schema(self.inputs.schemas(df)))

    def _open(self, spark: SparkSession) -> Job:
        if self._job is None:
            check_session(spark)
            shards = self.shards or _default_shards(spark, self.definitions)
            for definition in self.definitions:
                check_shards(definition, shards)
            self._check_reads(shards)
            known = Job.shards_at(self.location, self.log)
            self._job = Job(
                self.location,
                self.definitions,
                shards=known if known and self.shards is None else shards,
                clock=self.clock,
                sharding=self._partitions or None,
                driver=f"spark:{spark.sparkContext.applicationId}:{uuid.uuid4().hex[:8]}",
                transport=self.log,
            )
            self.definitions = tuple(self._job.definitions.values())
            if self.log.shares_location:  # elsewhere, the output of a task is in the log
                self._nonce.make(self.location)
            self._publisher = Publisher(self._job, self.definitions, self.sinks, self.dead_letters)
            self._telemetry = Telemetry(self._job, self.definitions)
            self._action = Action(
                self._job,
                self.definitions,
                self.inputs,
                self._nonce,
                reads=self.reads,
                local_dir=self.local_dir,
                outputs=tuple(self.sinks),
                replays=self._replays,
                bring_back=self._bring_back,
            )
        return self._job

    def _check_reads(self, shards: int) -> None:
        """Check a keyed source: partitions are shards, so keys have to be in them, and their number is fixed."""
        if self.reads is None or not self.reads.keyed:
            return
        unkeyed = [p.name for d in self.definitions for p in d.parts if not p.by or p.copied]
        if unkeyed and shards > 1:
            raise SparkUnsupported(
                f"{self.reads!r} is keyed, and {unkeyed[0]!r} has no key: its windows hold the records of all partitions, so "
                "use shards=1, or a source without keyed=True"
            )
        ids = cluster_of(self.reads.kafka).ids(self.reads.topics)
        self._partitions = {topic: len(numbers) for topic, (_, numbers) in ids.items()}

    @property
    def job(self) -> Job:
        if self._job is None:
            raise StateError(f"the job at {self.location} is not open yet: it is opened by its first batch")
        return self._job

    def health(self) -> Health:
        """Return the job's health."""
        job = self.job
        alive_us = alive_at(job.folders.alive)
        last, published = job.log.last_commit, job.progress.published
        snapshot = snapshots_from(job.folders, job.shards)
        return health_of(last, self.definitions, published, self.clock.now_us(), alive_us, snapshot)

    def _protocol(self, spark: SparkSession) -> BatchProtocol:
        """Return the commit protocol for this session."""
        return BatchProtocol(
            self.job,
            self.definitions,
            self._publisher,
            fresh_start=self.fresh_start,
            of_files=self.of_files,
            watermark_partition=watermark_partition if self.of_files else itself,
            unread=partial(self._asked.unread, self.job),
            explained=lambda first, batch_id: self._asked.explained(
                self.job, first, resumed=self.resumes and batch_id == 0
            ),
            nothing_came=never_empty if self.checkpoint is None else self.checkpoint.nothing_came,
            idle_batches=0 if self.checkpoint is None else min(IDLE_BATCHES, self.checkpoint.retained // 2),
            give=partial(give, spark),
            replays=self._replays,
        )

    @property
    def _replays(self) -> bool:
        """True if messages that are lost can be read from the source again."""
        if self.replay is None and (self.reads is None or not all(read_unasked(d) for d in self.definitions)):
            return False
        return all(replayable(d) for d in self.definitions)

    def publish(self, spark: SparkSession) -> None:
        """Give the sinks the panes of every commit that may not be out."""
        self._protocol(spark).publish()

    def _bring_back(self, spark: SparkSession, task: tasks.TaskPlan, lost: Sequence[int]) -> None:
        source = Source(self.inputs, self.reads, self.replay, self.input_schema, self.of_files)
        replay_messages(source, self.job, spark, task, lost)

    def _log(self, record: Commit, batch_id: int, started: float, stages: Stages) -> None:
        last = record.steps[-1]
        seconds = time.monotonic() - started
        watermark_us = START_OF_TIME_US if record.watermark_us is None else record.watermark_us
        self.last_progress = {
            "id": record.query_id,
            "job": self.job.job,
            "timestamp": to_datetime(last.now_us).isoformat(),
            "batchId": batch_id,
            "commit": record.commit,
            "durationMs": round(seconds * 1000),
            "numInputRows": last.rows,
            "processedRowsPerSecond": last.rows / seconds if seconds else 0.0,
            "eventTime": {"watermark": to_datetime(watermark_us).isoformat()},
            "panes": sum(r.panes_rows for r in record.shards),
            "counters": dict(record.counters),
            "misplaced": self._action.placement.misplaced,
        }
        lag = self._asked.lag(self.job)
        if lag is not None:
            self.last_progress["lag"] = lag
        self._telemetry.committed(record, stages, lambda: lag or {})
        logger.debug("commit", **self.last_progress)
        for listener in self.listeners:
            listener(self.last_progress)


def _default_shards(spark: SparkSession, definitions: Sequence[Definition]) -> int:
    if all(not d.by for d in definitions) or any(d.one_shard() for d in definitions):
        return 1
    return max(1, spark.sparkContext.defaultParallelism)


def check_shards(definition: Definition, shards: int) -> None:
    """Raise for more shards than the keys allow."""
    reason = definition.one_shard()
    if shards > 1 and reason is not None:
        raise SparkUnsupported(
            f"{definition.name!r} needs one shard, not {shards}, because {reason}: use shards=1"
        )
