"""One batch of a streaming query as one commit: the function that goes to `DataStreamWriter.foreachBatch`.

The numbers are those of docs/commit-protocol.md.
"""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.offsets import Partition, SliceRelation, merge, relation
from windrow.checkpoint.records import Commit, Step
from windrow.checkpoint.recovery import BatchAction, BatchDecision, BatchFacts, on_batch
from windrow.checkpoint.replay import FILING, filing, is_total
from windrow.checkpoint.shard import DEAD_FILE, PANES_OF, ShardSpec
from windrow.checkpoint.transport import FILES, Transport
from windrow.connectors.sinks import PaneFiles, Sink, as_sink
from windrow.core.chain import ChainDefinition, part_named, parts_of
from windrow.core.clock import Clock, SystemClock
from windrow.core.definition import AggregateDefinition
from windrow.core.errors import SinkFailed, SparkUnsupported, StateError
from windrow.core.join import JoinDefinition
from windrow.core.messages import Token
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, to_datetime
from windrow.operators.calculation import Calculation
from windrow.operators.chain import told_schema
from windrow.runners.embedded import operator_of
from windrow.runners.spark import plan as plans
from windrow.runners.spark import tasks
from windrow.runners.spark.replay import replay_messages
from windrow.runners.spark.session import FixedPlan, Tagged, check_session, run_on_partition

logger = structlog.get_logger("windrow")

PUBLISH_ATTEMPTS = 5
REDO_ATTEMPTS = 3
#: After late rows, so many batches are planned to bring them as dead letters at once.
LETTERS_FOR = 16


class BatchFunction:
    """Callable `(DataFrame, batch id)`. Made by `Aggregate.foreach_batch` or `wr.foreach_batch`.

    The job is opened at the first batch, on the driver. Progress is `last_progress`; listeners get each one.
    """

    def __init__(
        self,
        definitions: Sequence[AggregateDefinition | JoinDefinition | ChainDefinition],
        location: str,
        *,
        sink: Any = None,
        dead_letters: Any = None,
        shards: int | None = None,
        clock: Clock | None = None,
        local_dir: str | None = None,
        fresh_start: bool = False,
        replay: Callable[[], DataFrame] | None = None,
        log: Transport = FILES,
    ) -> None:
        self.definitions: tuple[Any, ...] = tuple(definitions)
        self.location = os.path.abspath(location)
        self.sinks: dict[str, Sink] = {}
        if sink is not None:
            by_operator = sink if isinstance(sink, Mapping) else {d.name: sink for d in self.definitions}
            self.sinks = {name: as_spark_sink(s) for name, s in by_operator.items()}
        self.dead_letters = dead_letters
        self.shards = shards
        self.clock = clock or SystemClock()
        self.local_dir = local_dir
        self.fresh_start = fresh_start
        self.replay = replay
        self.log = log
        self.listeners: list[Callable[[dict[str, Any]], None]] = []
        self.last_progress: dict[str, Any] | None = None
        self.input_schema: StructType | None = None
        #: True where the position columns are (file, row): files are taken whole, and remembered by name.
        self.of_files = False
        self._files_taken: dict[str, list[str]] = {}
        self._letters_until = (
            0  # batches up to this commit are planned so that late rows come as dead letters
        )
        self._job: Job | None = None

    def __repr__(self) -> str:
        return f"<foreach_batch of {', '.join(repr(d) for d in self.definitions)} at {self.location}>"

    # -- what a join does otherwise -----------------------------------------------------------------------------------

    def _honour(self, df: DataFrame) -> None:
        """Take over what the first frame says of watermarks."""
        self.definitions = tuple(plans.honour_watermark(df, d) for d in self.definitions)

    def _positioned(self, df: DataFrame) -> tuple[DataFrame, bool]:
        """The frame with position columns, where it has any."""
        plans.check_columns(df, self.definitions)
        return plans.positioned(df, self.definitions[0].positions)

    def _watermark_partition(self, partition: Partition) -> Partition:
        """All files of one directory are one partition of the watermark."""
        return ("files", 0) if self.of_files else partition

    # -- the batch --------------------------------------------------------------------------------------------------

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        started = time.monotonic()
        spark = df.sparkSession
        if self._job is None:
            self._honour(df)
        job = self._open(spark)
        if plans.HEARTBEAT in df.columns:
            df = df.where(F.col(plans.HEARTBEAT).isNull()).drop(plans.HEARTBEAT)
        self.input_schema = df.schema
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "bounded"
        df, positioned = self._positioned(df)
        decision = self._decide(job, query_id, batch_id, positioned, SliceRelation.UNKNOWN)
        decision.raise_if_refused()
        self.publish(spark)
        if decision.action is BatchAction.SKIP_AND_PUBLISH:
            return
        plan = job.pending_plan() if decision.reuse_intent else None
        if plan is None:
            plan = job.plan(query_id=query_id, batch_id=batch_id)
            job.record_intent(plan)
        if decision.drop_old_rows and not self.of_files:
            df = plans.mark_replayed(df, job.progress.next_offsets)
        elif self.of_files and job.progress.commit:
            # All batches of a query, not its first alone: it may bring the files of others one by one.
            if query_id not in self._files_taken:
                self._files_taken[query_id] = job.files_taken(query_id)
            df = plans.drop_files(df, self._files_taken[query_id])
        answers = self._run(spark, df, plan, positioned)
        record = self._commit(job, plan, answers, query_id, batch_id, positioned)
        self.publish(spark)
        self._tell(record, batch_id, started)

    def drain(self, spark: SparkSession) -> None:
        """One more commit, with the watermark at the end of time: fires everything. Later data will be late."""
        job = self._open(spark)
        self.publish(spark)
        if all(job.progress.watermarks_us.get(d.name) == END_OF_TIME_US for d in self.definitions):
            return
        if self.input_schema is None:
            raise StateError("nothing to drain: no batch was seen and no stream is known")
        last = job.log.last_commit
        query_id, batch_id = (None, None) if last is None else (last.query_id, last.batch_id)
        plan = replace(
            job.plan(query_id=query_id, batch_id=batch_id),
            watermarks_us={d.name: END_OF_TIME_US for d in self.definitions},
        )
        job.record_intent(plan)
        started = time.monotonic()
        df = spark.createDataFrame([], self.input_schema)
        answers = self._run(spark, df, plan, False)
        record = self._commit(job, plan, answers, query_id, batch_id, False)
        self.publish(spark)
        self._tell(record, -1 if batch_id is None else batch_id, started)

    def close(self) -> None:
        """Let the job go; the next batch would open it again."""
        if self._job is not None:
            self._job.close()

    def pane_schema(self, df: DataFrame, operator: str) -> StructType:
        """Spark's schema of an operator's panes over such a frame."""
        definition = next(d for d in self.definitions if d.name == operator)
        return from_arrow_schema(told_schema(definition, plans.arrow_schema(df)))

    def _open(self, spark: SparkSession) -> Job:
        if self._job is None:
            check_session(spark)
            shards = self.shards or _default_shards(spark, self.definitions)
            limited = [p for d in self.definitions for p in parts_of(d) if _counts_the_job(p)]
            for definition in self.definitions:
                check_shared_keys(definition, shards)
            if shards > 1 and limited:
                raise SparkUnsupported(
                    f"{limited[0].retention!r} counts over the whole job, which {shards} shards cannot: "
                    "use shards=1 or per='key'"
                )
            known = Job.shards_at(self.location, self.log)
            self._job = Job(
                self.location,
                self.definitions,
                shards=known if known and self.shards is None else shards,
                clock=self.clock,
                driver=f"spark:{spark.sparkContext.applicationId}:{uuid.uuid4().hex[:8]}",
                transport=self.log,
            )
        return self._job

    @property
    def job(self) -> Job:
        if self._job is None:
            raise StateError(f"the job at {self.location} is not open yet: it is opened by its first batch")
        return self._job

    def _decide(
        self, job: Job, query_id: str, batch_id: int, positioned: bool, slice_relation: SliceRelation
    ) -> BatchDecision:
        state = job.log.tail()
        last, intent = state.last_commit, state.last_intent
        return on_batch(
            BatchFacts(
                own_epoch=job.epoch.epoch,
                log_epoch=state.epoch_number,
                commit=0 if last is None else last.commit,
                query_id=None if last is None else last.query_id,
                batch_id=None if last is None else last.batch_id,
                intent_query_id=None if intent is None else intent.query_id,
                intent_batch_id=None if intent is None else intent.batch_id,
                published=job.progress.published,
                new_query_id=query_id,
                new_batch_id=batch_id,
                has_positions=positioned,
                has_ids=all(d.ids is not None for d in self.definitions),
                relation=slice_relation,
                fresh_start=self.fresh_start,
            )
        )

    # -- step 3 -----------------------------------------------------------------------------------------------------

    def _run(self, spark: SparkSession, df: DataFrame, plan: Plan, positioned: bool) -> list[tasks.Answer]:
        """One action over the batch; every shard answers exactly once."""
        letters = plan.commit <= self._letters_until
        answers = self._act(spark, df, plan, positioned, letters)
        if any(a.late_rows for a in answers):
            # There are rows too late for all of their windows. Nothing of the attempt counts; the next one brings them as
            # dead letters, and so do the batches after it, as long as some come.
            letters = True
            answers = self._act(spark, df, plan, positioned, letters)
        if letters and any(
            c in a.result.counters for a in answers for c in ("dead.too_late", "dead.out_of_retention")
        ):
            self._letters_until = plan.commit + LETTERS_FOR
        return answers

    def _act(
        self,
        spark: SparkSession,
        df: DataFrame,
        plan: Plan,
        positioned: bool,
        letters: bool,
        *,
        messages_back: bool = False,
    ) -> list[tasks.Answer]:
        job = self.job
        schema = plans.arrow_schema(df)
        frame, parts = self._prepare(df, plan, positioned, schema, letters)
        metadata: list[str] = []
        messages: list[str] = []
        for definition in self.definitions:
            for cf in operator_of(definition).cfs():
                (messages if cf.endswith((".messages", ".message_index")) else metadata).append(cf)
        task = tasks.TaskPlan(
            ShardSpec(
                job.folders,
                job.job,
                -1,
                tuple(metadata),
                tuple(messages),
                self._local(spark),
                replayable=all(isinstance(d, AggregateDefinition) for d in self.definitions),
                transport=self.log,
            ),
            self.definitions,
            plan.commit,
            plan.now_us,
            dict(plan.watermarks_us),
            schema.serialize().to_pybytes(),
            parts,
            tuple(job.recent),
            can_replay=self.replay is not None,
            tell=tuple(self.sinks),
        )
        on_shards = plans.to_shards(frame, job.shards).mapInArrow(
            partial(run_on_partition, task), tasks.OUTPUT
        )
        for _ in range(REDO_ATTEMPTS):
            with Tagged(spark, f"windrow-{job.job}-{plan.commit}") as tagged, FixedPlan(df, job.shards):
                rows = on_shards.collect()
            if positioned or not tagged.second_attempts():
                break
            # A stage ran twice: without positions nobody can say that both runs saw the same rows. Redo.
            logger.warning("redoing a commit of which a stage ran twice", job=job.job, commit=plan.commit)
        else:
            raise StateError(
                f"commit {plan.commit}: in {REDO_ATTEMPTS} attempts a stage ran twice, and rows without positions cannot be "
                "told to be the same; see why tasks fail, and start the query again"
            )
        answers: list[tasks.Answer] = [pickle.loads(r["payload"]) for r in rows]
        lost = sorted(a.result.shard for a in answers if a.lost is not None)
        if lost:
            # Nothing of this attempt counts. The shards get their messages back, then the batch is done again.
            if not messages_back:
                replay_messages(self, spark, task, lost)
                return self._act(spark, df, plan, positioned, letters, messages_back=True)
            again = next(a.lost for a in answers if a.lost is not None)
            raise StateError(f"commit {plan.commit}: shards {lost} have lost their messages again: {again}")
        shards = sorted(a.result.shard for a in answers)
        if shards != list(range(job.shards)):
            raise StateError(
                f"commit {plan.commit}: shards {shards} answered, {job.shards} are expected, each once"
            )
        return answers

    def _prepare(
        self, df: DataFrame, plan: Plan, positioned: bool, schema: Any, letters: bool
    ) -> tuple[DataFrame, tuple[str, ...] | None]:
        if len(self.definitions) == 1 and isinstance(self.definitions[0], AggregateDefinition):
            [definition] = self.definitions
            calculation = Calculation(definition, schema)
            if plans.can_use_partials(df, definition, calculation):
                frame = plans.prepare_partials(
                    df,
                    definition,
                    calculation,
                    self.job.shards,
                    positions=positioned,
                    now_us=plan.now_us,
                    watermark_us=plan.watermarks_us[definition.name] if letters else None,
                )
                columns = plans.partial_columns(definition, calculation)
                assert columns is not None
                return frame, tuple(columns)
        return plans.prepare_rows(df, self.definitions, self.job.shards), None

    def _local(self, spark: SparkSession) -> str | None:
        """Where executors keep their stores: beside the job where all is one machine, else in their own temporary folder."""
        if self.local_dir is not None:
            return os.path.join(self.local_dir, self.job.job)
        if (spark.sparkContext.master or "").startswith("local["):
            return None
        return os.path.join("$TMPDIR" if "TMPDIR" in os.environ else "/tmp", "windrow", self.job.job)

    # -- step 4 -----------------------------------------------------------------------------------------------------

    def _commit(
        self,
        job: Job,
        plan: Plan,
        answers: Sequence[tasks.Answer],
        query_id: str | None,
        batch_id: int | None,
        positioned: bool,
    ) -> Commit:
        marks: dict[Partition, int] = {}
        first: dict[Partition, int] = {}
        following: dict[Partition, int] = {}
        counters: dict[str, int] = {}
        for answer in answers:
            for partition, largest in answer.marks.items():
                partition = self._watermark_partition(partition)
                marks[partition] = max(largest, marks.get(partition, largest))
            for partition, lowest in answer.first_offsets.items():
                first[partition] = min(lowest, first.get(partition, lowest))
            following = merge(following, answer.next_offsets)
            for name, n in answer.result.counters.items():
                if not name.startswith(PANES_OF) and name != DEAD_FILE and is_total(name):
                    counters[name] = counters.get(name, 0) + n
        last = job.log.last_commit
        another = last is not None and last.query_id != query_id
        # Spark's own checkpoint carries a query on without gaps (Kafka spends offsets on markers); another query may
        # begin anywhere.
        if another and positioned and not self.of_files and query_id is not None and batch_id is not None:
            slice_relation = relation(job.progress.next_offsets, first, following)
            self._decide(job, query_id, batch_id, positioned, slice_relation).raise_if_refused()
        rows = sum(a.rows for a in answers)
        watermark_us = min(plan.watermarks_us.values())
        steps = [
            Step(kind="advance", now_us=plan.now_us, watermark_us=watermark_us),
            Step(
                kind="ingest",
                now_us=plan.now_us,
                watermark_us=watermark_us,
                first_offsets=first,
                next_offsets=following,
                rows=rows,
            ),
        ]
        record = job.commit(
            plan.commit,
            steps,
            [a.result for a in sorted(answers, key=lambda a: a.result.shard)],
            marks=marks,
            next_offsets={} if self.of_files else following,
            watermarks_us=plan.watermarks_us,
            now_us=plan.now_us,
            counters=counters,
            query_id=query_id,
            batch_id=batch_id,
            meta={FILING: {d.name: filing(d) for d in self.definitions if getattr(d, "full_state", False)}},
        )
        covered = {a.result.shard: a.snapshot_at for a in answers if a.snapshot_at is not None}
        if len(covered) == job.shards:
            job.sweep({s: n for s, n in covered.items() if n is not None})
            if not any(
                cf.endswith((".messages", ".message_index"))
                for d in self.definitions
                for cf in operator_of(d).cfs()
            ):
                job.forget()
        return record

    # -- step 5 -----------------------------------------------------------------------------------------------------

    def publish(self, spark: SparkSession) -> None:
        """Give the sinks the panes of every commit that may not be out, in order, and retry what they refuse."""
        job = self.job
        if job.progress.published >= job.progress.commit:
            return
        known = [s.last_commit(job.job, name) for name, s in self.sinks.items()]
        least = (
            min((k for k in known if k is not None), default=None)
            if all(k is not None for k in known)
            else None
        )
        for record in job.unpublished(least):
            for operator, files in job.pane_files(record).items():
                sink = self.sinks.get(operator)
                if sink is None:
                    continue
                definition = next(
                    part_named(d, operator)
                    for d in self.definitions
                    if operator in [p.name for p in parts_of(d)]
                )
                rows = sum(pq.read_metadata(f).num_rows for f in files)
                panes = PaneFiles(tuple(files), rows, operator, definition, job.job)
                self._give(spark, sink, Token(job.job, record.commit), panes)
            if self.dead_letters is not None:
                self._give_dead(record)
            job.mark_published(record.commit)
        job.mark_published(job.progress.commit)

    def _give(self, spark: SparkSession, sink: Sink, token: Token, panes: PaneFiles) -> None:
        wait = 0.2
        for attempt in range(1, PUBLISH_ATTEMPTS + 1):
            try:
                if isinstance(sink, DataFrameSink):
                    sink.publish_frame(spark, token, panes)
                else:
                    sink.publish(token, panes)
                return
            except Exception as error:
                if attempt == PUBLISH_ATTEMPTS:
                    raise SinkFailed(
                        f"the sink {sink!r} refused the panes of commit {token.commit} {attempt} times: {error!r}. The commit "
                        "stands; its panes go out first when the query is started again"
                    ) from error
                logger.warning("sink refused, retrying", commit=token.commit, error=repr(error), wait_s=wait)
                time.sleep(wait)
                wait *= 2

    def _give_dead(self, record: Commit) -> None:
        files = self.job.dead_files(record)
        if not files:
            return
        token = Token(self.job.job, record.commit)
        if hasattr(self.dead_letters, "publish"):
            rows = sum(pq.read_metadata(f).num_rows for f in files)
            letters = PaneFiles(tuple(files), rows, "dead_letters", self.definitions[0], self.job.job)
            self.dead_letters.publish(token, letters)
        else:
            self.dead_letters(token, files)

    def _tell(self, record: Commit, batch_id: int, started: float) -> None:
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
        }
        logger.debug("commit", **self.last_progress)
        for listener in self.listeners:
            listener(self.last_progress)


class DataFrameSink:
    """A function of (DataFrame of committed panes, token). After a crash it may get the same token again."""

    def __init__(self, function: Callable[[DataFrame, Token], None]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return f"wr.sinks.callback({self.function!r})"

    def publish(self, token: Token, panes: PaneFiles) -> None:
        raise SparkUnsupported(
            "a DataFrame sink needs a Spark session: use it with foreach_batch or writeStream"
        )

    def publish_frame(self, spark: SparkSession, token: Token, panes: PaneFiles) -> None:
        self.function(spark.read.parquet(*panes.files), token)

    def last_commit(self, job: str, operator: str) -> int | None:
        return None


def as_spark_sink(sink: Any) -> Sink:
    """On Spark a plain function gets a DataFrame."""
    from windrow.connectors.sinks import CallbackSink

    if isinstance(sink, CallbackSink):
        return DataFrameSink(sink.function)
    if callable(sink) and not hasattr(sink, "publish"):
        return DataFrameSink(sink)
    return as_sink(sink)


def _default_shards(spark: SparkSession, definitions: Sequence[Any]) -> int:
    unkeyed = [d for d in definitions if not d.by]
    if len(unkeyed) == len(definitions) or any(isinstance(d, ChainDefinition) for d in unkeyed):
        return 1
    if any(_counts_the_job(p) for d in definitions for p in parts_of(d)):
        return 1
    return max(1, spark.sparkContext.defaultParallelism)


def check_shared_keys(definition: Any, shards: int) -> None:
    """Refuse more shards than the keys of a chain allow: its rows stay where those of its first operator are."""
    if shards > 1 and isinstance(definition, ChainDefinition) and not definition.by:
        keys = ", ".join(f"{p.name!r} by {list(p.by)}" for p in definition.parts)
        raise SparkUnsupported(
            f"the operators of {definition.name!r} share no key ({keys}), so that {shards} shards cannot hold what belongs "
            "together: use shards=1, or give all of them a key in common"
        )


def _counts_the_job(definition: Any) -> bool:
    """True if a size limit is of the whole job: then one shard has to see it all."""
    retention = definition.retention
    return retention.per == "job" and (retention.windows is not None or retention.messages is not None)
