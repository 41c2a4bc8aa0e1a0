"""Step 3 of a batch on Spark: its rows go to shards, each of which runs its part of the commit, and answers exactly once."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.records import Commit
from windrow.checkpoint.replay import GROUPS_OF
from windrow.checkpoint.shard import ShardSpec
from windrow.checkpoint.shard_commits import Packed, PackedCommit
from windrow.connectors.kafka.stream import KafkaStream
from windrow.core.errors import StateError
from windrow.operators.operator import Definition
from windrow.operators.steps.pushdown import Pushdown
from windrow.runners.protocol import check_answers
from windrow.runners.replay import replayable, until_none_is_lost
from windrow.runners.spark import jvm_calls, routes
from windrow.runners.spark.inputs import Inputs
from windrow.runners.spark.placement import Placement
from windrow.runners.spark.plan_cache import Planned, are_there, planned
from windrow.runners.spark.session import (
    FixedStages,
    Tagged,
    of_stream,
    run_on_partition,
    run_several_on_partition,
)
from windrow.runners.spark.shared_folder_check import Nonce
from windrow.runners.spark.shipping import Shipping
from windrow.runners.task_result import Answer
from windrow.runners.tasks import TaskPlan

REDO_ATTEMPTS = 3
#: After late rows, so many batches are planned to bring them as dead letters at once.
LETTERS_FOR = 16
#: After a batch of so few rows the rows of the next one cross: to plan groups takes longer.
FEW_ROWS = 20_000
#: So do they after a batch with fewer rows for each group: a group is wider than a row, and costs SQL its making.
ROWS_A_GROUP = 4

#: The key of a cached plan: columns, whether the batch follows a commit, whether groups cross, the number of tasks.
Alike = tuple[StructType, bool, bool, int]
#: Runs the tasks of a plan, and returns their pickled answers.
PreparedTasks = Callable[[], list[bytes]]
#: Replays lost messages of shards: (session, the task plan, which shards).
BringBack = Callable[[SparkSession, TaskPlan, Sequence[int]], None]


@dataclass(frozen=True)
class BatchAttempt:
    """The input of one attempt at a batch.

    positioned: its rows have positions. rows: the frame that `df` was derived from, where all such rows are derived alike.
    dead_letters: rows that are too late are to come as dead letters
    """

    spark: SparkSession
    df: DataFrame
    plan: Plan
    positioned: bool
    rows: DataFrame | None
    dead_letters: bool
    #: Rows have to cross, for their values to be looked at.
    cross: bool = False


class Action:
    """The action of one opened job: it runs its batches."""

    def __init__(
        self,
        job: Job,
        definitions: tuple[Definition, ...],
        inputs: Inputs,
        nonce: Nonce,
        *,
        reads: KafkaStream | None,
        local_dir: str | None,
        outputs: Sequence[str],
        replays: bool,
        bring_back: BringBack,
    ) -> None:
        """outputs: operators whose panes have a sink. replays: messages that are lost can be read again."""
        self._job, self._definitions, self._inputs, self._nonce = job, definitions, inputs, nonce
        self._reads, self._local_dir, self._outputs = reads, local_dir, tuple(outputs)
        self._replays, self._bring_back = replays, bring_back
        self._shipping = Shipping()
        self._packed: tuple[PackedCommit, ...] = ()
        self.placement = Placement(job.shards)
        job.read_recent()
        self._control: DataFrame | None = None
        self._pushed: tuple[StructType, Pushdown | None] | None = None
        self._columns: dict[tuple[StructType, tuple[str, ...] | None], bytes] = {}
        #: Plans for rows that come alike.
        self._planned: dict[Alike, Planned | None] = {}
        #: Bytes a row, where rows that came last were the widest; None: unknown.
        self._width: int | None = None
        #: Batches up to this commit are planned so that late rows come as dead letters.
        self._letters_until = 0

    def run(
        self, spark: SparkSession, df: DataFrame, plan: Plan, positioned: bool, rows: DataFrame | None = None
    ) -> list[Answer]:
        """Run attempts until one counts, and return its results."""
        attempt = BatchAttempt(
            spark, df, plan, positioned, rows, dead_letters=plan.commit <= self._letters_until
        )
        answers = self._act(attempt)
        if any(a.faulty_rows for a in answers):
            # Nothing of the attempt counts; the next one finds the values that are none.
            attempt = replace(attempt, cross=True)
            answers = self._act(attempt)
        uncounted = any(a.uncounted_rows for a in answers)
        if uncounted:
            # There are rows too late for all of their windows, or too far ahead of now. Nothing of the attempt counts; the next
            # one brings them as dead letters, and so do the batches after it, as long as some come.
            attempt = replace(attempt, dead_letters=True)
            answers = self._act(attempt)
        if uncounted or (
            attempt.dead_letters
            and any(
                c in a.result.counters for a in answers for c in ("dead.too_late", "dead.out_of_retention")
            )
        ):
            self._letters_until = plan.commit + LETTERS_FOR
        return answers

    def _act(self, attempt: BatchAttempt) -> list[Answer]:
        """Run one attempt, again where shards have to get their messages back first."""

        def replay(lost: list[int]) -> None:
            self._bring_back(attempt.spark, self._task(attempt, None, b""), lost)

        answers = until_none_is_lost(attempt.plan.commit, partial(self._once, attempt), replay)
        check_answers(attempt.plan, answers, self._job.shards)
        self._width = max(a.width for a in answers) or self._width
        self.placement.ran(answers)
        self._nonce.forget()
        return answers

    def _once(self, attempt: BatchAttempt, *, may_be_nothing: bool = False) -> list[Answer]:
        """Run every shard once. may_be_nothing: Spark may know that no row comes, and then makes no partitions."""
        streams = of_stream(attempt.spark) and not may_be_nothing
        keyed = self._reads is not None and self._reads.keyed
        what = None if keyed or attempt.cross else self._groups(attempt, streams)
        alike = self._alike(attempt, what) if streams else None
        before = self._as_before(attempt, what, alike)
        emitted = before or self._anew(attempt, what, alike, streams)
        answers = self._collected(attempt, emitted, is_planned=before is not None)
        if streams and len(answers) < self._job.shards:
            return self._once(attempt, may_be_nothing=True)
        return answers

    def _as_before(
        self, attempt: BatchAttempt, what: Pushdown | None, alike: Alike | None
    ) -> PreparedTasks | None:
        """Return what runs the cached plan for rows alike; None where there is none."""
        rows, ready = attempt.rows, self._planned.get(alike) if alike is not None else None
        if ready is None or rows is None or not ready.is_of(rows):
            return None
        parts = None if what is None else tuple(what.parts)
        task = self._task(attempt, parts, self._columns[attempt.df.schema, parts])
        function = jvm_calls.function_of(rows, self._function(attempt, task), routes.ANSWER)
        if function is None:
            return None

        def answers() -> list[bytes]:
            return ready.answers(rows, function, self.placement.locations(rows, self._partitions(attempt)))

        return answers

    def _anew(
        self, attempt: BatchAttempt, what: Pushdown | None, alike: Alike | None, streams: bool
    ) -> PreparedTasks:
        """Plan this batch anew, and cache the plan for those that are alike."""
        job, control, columns, rows = self._job, None, b"", attempt.rows
        frame = self._prepare(attempt, what, streams)
        parts = None if what is None else tuple(what.parts)
        if streams:
            columns = self._travelling(attempt.df.schema, parts, frame)
        else:
            control = self._control = self._control or routes.control_rows(attempt.spark, job.shards)
        task = self._task(attempt, parts, columns)
        function, partitions = self._function(attempt, task), self._partitions(attempt)
        on_shards = routes.on_shards(frame, job.shards, control, function, partitions)

        def answers() -> list[bytes]:
            if alike is not None and rows is not None and self._planned.get(alike, True):
                self._planned[alike] = planned(rows, on_shards, grouped=what is not None)
            locations = self.placement.locations(on_shards, partitions) if streams else None
            if locations is not None:
                return jvm_calls.answers_of(on_shards, locations)
            return [bytes(row["payload"]) for row in on_shards.collect()]

        return answers

    def _travelling(self, attempt: StructType, parts: tuple[str, ...] | None, frame: DataFrame) -> bytes:
        """Return the columns of `frame`, which derives from the columns of the batch: the same in every batch of a query."""
        if (attempt, parts) not in self._columns:
            self._columns[attempt, parts] = routes.travelling_schema(frame).serialize().to_pybytes()
        return self._columns[attempt, parts]

    def _task(self, attempt: BatchAttempt, parts: tuple[str, ...] | None, columns: bytes) -> TaskPlan:
        """Return the task plan of the commit."""
        job, plan, keyed = self._job, attempt.plan, self._reads is not None and self._reads.keyed
        schema = self._reads.schema if self._reads is not None and keyed else routes.arrow_schema(attempt.df)
        logics = [d.logic() for d in self._definitions]
        task = TaskPlan(
            ShardSpec(
                job.folders,
                job.job,
                -1,
                tuple(cf for logic in logics for cf in logic.metadata_cfs),
                tuple(cf for logic in logics for cf in logic.message_cfs),
                self._local(attempt.spark),
                replayable=all(replayable(d) for d in self._definitions),
                transport=job.transport,
            ),
            self._definitions,
            plan.commit,
            plan.now_us,
            dict(plan.watermarks_us),
            schema.serialize().to_pybytes(),
            parts,
            self._recent(),
            can_replay=self._replays,
            outputs=self._outputs,
            reads=self._reads if keyed else None,
            taken=self._taken() if keyed else None,
            partitions=job.sharding,
            nonce=self._nonce.name,
            columns=columns,
        )
        return replace(task, compacts=frozenset(filter(task.takes_snapshot, job.compacts)))

    def _function(self, attempt: BatchAttempt, task: TaskPlan) -> jvm_calls.Mapped:
        """Return the function that runs a task. Unpickled, its argument is the plan."""
        shipped: Any = self._shipping.ship(attempt.spark.sparkContext, task)
        shards, partitions = self._job.shards, self._partitions(attempt)
        if partitions == shards:
            return partial(run_on_partition, shipped)
        return partial(run_several_on_partition, shipped, shards, partitions)

    def _partitions(self, attempt: BatchAttempt) -> int:
        """Return the number of tasks. Many shards share some where the last commit took few rows."""
        groups = self.placement.groups(attempt.spark.sparkContext.defaultParallelism)
        return groups if self._few else self._job.shards

    def _recent(self) -> tuple[PackedCommit, ...]:
        """Return the commits that a store may not have applied. Each is packed once."""
        job, packed = self._job, {commit.commit: commit for commit in self._packed}
        self._packed = tuple(packed.get(c.commit) or PackedCommit.of(c, job.shards) for c in job.recent)
        return self._packed

    def _taken(self) -> Packed:
        """Return the offsets that the job has reached, by the shard of their partition."""
        offsets: list[list[list[Any]]] = [[] for _ in range(self._job.shards)]
        for (source, partition), offset in self._job.progress.next_offsets.items():
            offsets[partition % self._job.shards].append([source, partition, offset])
        return Packed.of(offsets)

    def close(self) -> None:
        """Drop the broadcasts on executors."""
        self._shipping.close()

    def _collected(self, attempt: BatchAttempt, emitted: PreparedTasks, *, is_planned: bool) -> list[Answer]:
        """Run the plan and return the results of the shards."""
        df, commit = attempt.df, attempt.plan.commit
        width = None if self._few else self._width
        if width is not None and self._reads is None and jvm_calls.has_python(df):
            width = None  # unknown: the width of rows that enter the user's own functions
        for _ in range(REDO_ATTEMPTS):
            with (
                Tagged(attempt.spark, f"windrow-{self._job.job}-{commit}") as tagged,
                FixedStages(df, self._job.shards, width, is_planned=is_planned),
            ):
                answers = emitted()
            if attempt.positioned or not tagged.second_attempts():
                return [pickle.loads(answer) for answer in answers]
            # A stage ran twice: without positions it is unknown whether both runs saw the same rows. Redo.
            self._job.logger.warning("redoing a commit of which a stage ran twice", commit=commit)
        raise StateError(
            f"commit {commit}: in {REDO_ATTEMPTS} attempts a stage ran twice, and rows without positions cannot be "
            "told to be the same; see why tasks fail, and start the query again"
        )

    @property
    def _few(self) -> bool:
        """True if the last commit took few rows.

        It is state: a batch that is run again after a crash takes the same route.
        """
        return any(_rows_of(commit) <= FEW_ROWS for commit in self._job.recent[-1:])

    def _rows_cross(self) -> bool:
        """True if the last commit took few rows, or few for each group that there was, or would have been."""
        for commit in self._job.recent[-1:]:
            counts = (item for shard in commit.shards for item in shard.counters.items())
            groups = sum(n for name, n in counts if name.startswith(GROUPS_OF))
            return self._few or _rows_of(commit) < ROWS_A_GROUP * groups
        return False

    def _groups(self, attempt: BatchAttempt, streams: bool) -> Pushdown | None:
        """Return how rows are grouped before they cross to the tasks; None where the rows themselves cross."""
        what = None if streams and self._rows_cross() else self._pushdown(attempt.df)
        return what if what is not None and (what.late_rows or not attempt.dead_letters) else None

    def _prepare(self, attempt: BatchAttempt, what: Pushdown | None, streams: bool) -> DataFrame:
        if self._reads is not None and self._reads.keyed:
            return routes.prepare_ranges(attempt.df, self._job.shards)
        if what is None:
            return self._inputs.on_shards(attempt.df, routes.sharding_of(self._job))
        watermarks_us = attempt.plan.watermarks_us
        return routes.prepare_partials(
            self._inputs.alone(attempt.df),
            what,
            routes.sharding_of(self._job),
            positions=attempt.positioned,
            streams=streams,
            now_us=attempt.plan.now_us,
            watermark_us=watermarks_us[self._definitions[0].name] if attempt.dead_letters else None,
        )

    def _alike(self, attempt: BatchAttempt, what: Pushdown | None) -> Alike | None:
        """Return the cache key of batches that cross with one plan; None where the batch's plan is its own."""
        if attempt.rows is None:
            return None
        if what is not None and attempt.dead_letters:
            return None  # the numbers that decide which rows are late
        most = None if what is None or attempt.positioned else routes.FEW_TIMES * self._job.shards
        if not are_there(attempt.rows, most):
            return None
        after = self._job.progress.commit > 0
        return attempt.rows.schema, after, what is not None, self._partitions(attempt)

    def _pushdown(self, df: DataFrame) -> Pushdown | None:
        """Return the pushdown into Spark before rows cross; frames of one schema share it."""
        if self._pushed is None or self._pushed[0] != df.schema:
            self._pushed = df.schema, routes.pushdown(self._definitions, self._inputs.schemas(df))
        return self._pushed[1]

    def _local(self, spark: SparkSession) -> str | None:
        """Return the folder of executors' stores: None in local mode (next to the job), else below Spark's local directories.

        Spark sets that variable for the workers of each executor, wherever its cluster manager puts these directories, and
        removes them with the application.
        """
        if self._local_dir is not None:
            return os.path.join(self._local_dir, self._job.job)
        if jvm_calls.is_local(spark):
            return None
        return os.path.join("$SPARK_LOCAL_DIRS", "windrow", self._job.job)


def _rows_of(commit: Commit) -> int:
    return sum(step.rows for step in commit.steps)
