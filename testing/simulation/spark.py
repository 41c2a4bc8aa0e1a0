"""Spark, simulated: a checkpoint that repeats a batch until it is noted, tasks that are tried again or twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from windrow.checkpoint.batches import BatchDecision
from windrow.checkpoint.files import CommitFiles
from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.log import RecordLog
from windrow.checkpoint.read_only_shard import Resting
from windrow.checkpoint.records import Commit, Intent, R, ShardResult
from windrow.checkpoint.shard import MessagesLost
from windrow.connectors.kafka import client
from windrow.core.errors import Fenced, StateError
from windrow.core.positions import Partition
from windrow.runners.protocol import BatchProtocol
from windrow.runners.publishing import Publisher
from windrow.runners.replay import rebuild, until_none_is_lost
from windrow.runners.task_result import Answer
from windrow.runners.tasks import TaskPlan, complete, files_of_task, run_shard
from windrow.testing.simulation.environment import EXECUTORS, Row, Stage
from windrow.testing.simulation.sinks import Pointed
from windrow.testing.simulation.world import Clock, Process, ProcessDied

TASK_ATTEMPTS = 4
#: An attempt at a task, over the rows of its shards.
Run = Callable[[TaskPlan, Mapping[int, pa.Table]], list[Answer]]


def short(offsets: Mapping[Partition, Any]) -> str:
    """Format offsets for the story."""
    return ", ".join(f"{source} {n}: {at}" for (source, n), at in sorted(offsets.items()))


@dataclass
class Checkpoint:
    """Spark's checkpoint of a query: the slices that it planned, and the last batch that it noted as done."""

    query_id: str
    start: dict[Partition, int]
    planned: dict[int, dict[Partition, tuple[int, int]]] = field(default_factory=dict)
    done: int = -1

    def offsets(self, batch_id: int) -> dict[Partition, int]:
        """Return the offsets at which a batch begins."""
        before = self.planned.get(batch_id - 1)
        return dict(self.start) if before is None else {p: end for p, (_, end) in before.items()}

    def nothing_came(self, after: int, until: int) -> bool:
        """True if the plans after one, up to another, are there and bring nothing."""
        plans = [self.planned.get(batch) for batch in range(after + 1, until + 1)]
        return all(p is not None and all(first == end for first, end in p.values()) for p in plans)


class TaskFailed(Exception):
    """A task was tried often enough; the query ends."""


class Driver:
    """A driver of the job: it opens the job, and brings batches as Spark does, until it dies or stops."""

    def __init__(self, stage: Stage, checkpoint: Checkpoint, number: int) -> None:
        self.stage, self.checkpoint = stage, checkpoint
        self.world = stage.world
        self.process = Process(f"driver {number}")
        self.protocol: BatchProtocol | None = None
        self.log: SimulatedLog | None = None

    def main(self) -> None:
        """Run the process."""
        protocol = self.open()
        batch_id = self.checkpoint.done + 1
        while True:
            ranges = self._plan(batch_id)
            if ranges is None:
                if self.stage.runs_end:
                    self._end_run(protocol)
                if self.world.calm:
                    return
                self.world.park()
                continue
            self.world.say(
                f"    {self.process} brings batch {batch_id} of {self.checkpoint.query_id}: {short(ranges)}"
            )
            if protocol.rests(self.checkpoint.query_id, batch_id):
                self._rest(protocol.job)
            else:
                act = partial(self._act, ranges)
                record = protocol.batch(self.checkpoint.query_id, batch_id, True, act)
                if record is not None:
                    self.world.say(f"    {self.process} has made commit {record.commit}")
            self.world.point("1 Spark", f"before batch {batch_id} is noted")
            self.checkpoint.done = max(self.checkpoint.done, batch_id)
            batch_id += 1

    def _rest(self, job: Job) -> None:
        """Note when no commit was made, to look afterwards whether nothing was due."""
        commit, now_us = job.progress.commit, job.plan().now_us
        self.world.say(f"    {self.process} makes no commit after {commit}")
        self.world.counts["batches without a record"] += 1
        self.stage.rests.append((commit, now_us))

    def _end_run(self, protocol: BatchProtocol) -> None:
        """Do the work of a run with `availableNow` at its end; note it, to check afterwards whether anything was left."""
        record = protocol.advance(lambda plan: self._run(plan, []))
        if record is not None:
            self.world.say(f"    {self.process} has made commit {record.commit} at the end of a run")
            self.world.counts["commits at the end of a run"] += 1
        self.stage.ended_runs.append(protocol.job.progress.commit)

    def open(self) -> BatchProtocol:
        world, stage = self.world, self.stage
        self.log = SimulatedLog(stage, self.process.name)
        job = Job(
            stage.location,
            stage.definitions,
            shards=stage.shards,
            clock=Clock(world, world.random.choice([0, 0, -3, 4]) * world.unit_us),
            driver=self.process.name,
            log=self.log,
        )
        sinks = {
            name: Pointed(world, outlet.open(self.check_epoch)) for name, outlet in stage.outlets.items()
        }
        self.protocol = BatchProtocol(
            job,
            stage.definitions,
            Publisher(job, stage.definitions, sinks, Pointed(world, stage.dead_letters)),
            sleep=lambda seconds: world.point("5 publish", "before a refused sink is asked again"),
            nothing_came=self.checkpoint.nothing_came,
            keep_commits=1,
            replays=stage.replays,
            tidy_every=1,
        )
        return self.protocol

    def check_epoch(self) -> None:
        """Raise `Fenced` if another driver has opened the job since."""
        assert self.log is not None and self.protocol is not None
        last = self.log.tail().epoch_number
        if last != self.protocol.job.epoch.epoch:
            raise Fenced(
                f"the log is at epoch {last}, this driver's is {self.protocol.job.epoch.epoch}: stop this one"
            )

    def drain(self) -> None:
        """Fire everything that is left."""
        protocol = self.open()
        protocol.drain(lambda plan: self._run(plan, []))

    # -- a batch --------------------------------------------------------------------------------------------------

    def _plan(self, batch_id: int) -> dict[Partition, tuple[int, int]] | None:
        """Return the slice of a batch: the planned one, or the rows that have come since. None: nothing to do now."""
        checkpoint = self.checkpoint
        if batch_id not in checkpoint.planned:
            begin = checkpoint.offsets(batch_id)
            ends = self.stage.ends()
            size = self.world.random.choice([5, 10, 30])
            ranges = {
                p: (begin.get(p, 0), max(begin.get(p, 0), min(e, begin.get(p, 0) + size)))
                for p, e in ends.items()
            }
            news = any(end > first for first, end in ranges.values())
            if not news and (
                self.world.calm or not self.world.chance(0.8 if self._still(batch_id - 1) else 0.1)
            ):
                return None
            checkpoint.planned[batch_id] = ranges
            self.world.point("1 Spark", f"batch {batch_id} is planned")
        return checkpoint.planned[batch_id]

    def _still(self, batch_id: int) -> bool:
        """True if a batch brought nothing: heartbeats come in rows."""
        return self.checkpoint.nothing_came(batch_id - 1, batch_id)

    def _act(
        self, ranges: Mapping[Partition, tuple[int, int]], plan: Plan, decision: BatchDecision
    ) -> list[Answer]:
        rows = self._read(ranges)
        assert self.protocol is not None
        reached = self.protocol.job.progress.next_offsets
        old = (
            [row.position.offset < reached.get(row.partition, 0) for row in rows]
            if decision.drop_old_rows
            else None
        )
        return self._run(plan, rows, old)

    def _read(self, ranges: Mapping[Partition, tuple[int, int]]) -> list[Row]:
        """Return the rows of a slice, from the broker."""
        rows = []
        for (source, number), (first, end) in ranges.items():
            if end == first:
                continue
            consumer = self.stage.kafka.consumer()
            consumer.assign([client.TopicPartition(self.stage.topics[source], number, first)])
            at = first
            while at < end:
                for message in consumer.consume(end - at):
                    rows.append(self.stage.rows[source, number][message.offset()])
                    at = message.offset() + 1
            consumer.close()
        return rows

    # -- tasks ----------------------------------------------------------------------------------------------------

    def _run(self, plan: Plan, rows: Sequence[Row], old: Sequence[bool] | None = None) -> list[Answer]:
        """Run attempts until no shard has lost its messages."""
        losses = self.stage.losses
        try:
            return until_none_is_lost(
                plan.commit, lambda: self._once(plan, rows, old), partial(self._replay, plan)
            )
        except StateError as error:
            if "have lost their messages again" in str(error) and self.stage.losses > losses:
                raise TaskFailed(str(error)) from error
            raise

    def _replay(self, plan: Plan, lost: Sequence[int]) -> None:
        """Give shards their messages back, each in a task of its own."""
        assert self.protocol is not None
        task = replace(self.stage.task_plan(self.protocol.job, plan), can_replay=False)
        for shard in self.world.random.sample(lost, len(lost)):
            self.world.say(f"    shard {shard} gets its messages back")
            self._task(task, {shard: self.stage.table([], shard)}, self._rebuild)
            self.world.counts["shards that got their messages back"] += 1

    def _rebuild(self, plan: TaskPlan, tables: Mapping[int, pa.Table]) -> list[Answer]:
        for shard in tables:
            rebuild(plan, shard, self.stage.replay(shard))
            self.world.point("3.3 answer", f"before the replay of shard {shard} answers")
        return []

    def _once(self, plan: Plan, rows: Sequence[Row], old: Sequence[bool] | None) -> list[Answer]:
        """Run every shard once, in any order, alone or several in a task; each task may be tried again, or twice."""
        stage, random = self.stage, self.world.random
        assert self.protocol is not None
        job, answers = self.protocol.job, list[Answer]()
        shards, each = random.sample(range(stage.shards), stage.shards), random.randint(1, stage.shards)
        for first in range(0, stage.shards, each):
            tables = {shard: stage.table(rows, shard, old) for shard in shards[first : first + each]}
            answers += self._task(stage.task_plan(job, plan), tables, self._attempt)
        return answers

    def _task(self, plan: TaskPlan, tables: Mapping[int, pa.Table], run: Run) -> list[Answer]:
        world, shown = self.world, ", ".join(map(str, tables))
        failed: Exception = TaskFailed(f"shard {shown} of commit {plan.commit}: every attempt died")
        for attempt in range(TASK_ATTEMPTS):
            name = f"attempt {attempt} at shard {shown} of commit {plan.commit} of {self.process}"
            if (
                not world.calm
                and world.chance(0.06)
                and world.inject_fault("attempts doubled", f"{name} is doubled")
            ):
                twin = Process(f"zombie {name}")
                there = self._executor(plan, tables)
                world.start(twin, partial(run, there, tables))
                if world.chance(0.5):
                    world.park()
            process, there = Process(name), self._executor(plan, tables)
            try:
                with world.inside(process):
                    return run(there, tables)
            except ProcessDied as died:
                if died.process is not process:
                    raise
                self.stage.kept.pop(there.spec.local, None)
            except Exception as error:
                if world.calm:
                    raise
                failed = error
        raise failed

    def _executor(self, plan: TaskPlan, shards: Iterable[int]) -> TaskPlan:
        """Return the plan with the folder of any executor: owners are a cache, and change at will."""
        return self.stage.on_executor(plan, shards, self.world.random.randrange(EXECUTORS))

    def _attempt(self, plan: TaskPlan, tables: Mapping[int, pa.Table]) -> list[Answer]:
        with files_of_task(plan, [*tables]) as shared:
            answers = [self._shard(plan, number, table, shared) for number, table in tables.items()]
            complete(answers, shared)
        self.world.counts["tasks of several shards"] += shared is not None
        self.world.point("3.3 answer", f"before shard {', '.join(map(str, tables))} answers")
        return answers

    def _shard(self, plan: TaskPlan, number: int, table: pa.Table, shared: CommitFiles | None) -> Answer:
        self.world.point("3.1 store", f"a task of shard {number} begins")
        kept = self.stage.kept[plan.spec.local]
        try:
            shard = plan.open(number, kept=kept)
        except MessagesLost as error:
            if not plan.can_replay:
                raise
            return Answer(ShardResult(shard=number), lost=str(error))
        try:
            answer = run_shard(plan, shard, [table], shared)
        except BaseException:
            shard.close()
            raise
        self.world.counts["stores that stayed open"] += isinstance(shard.kv, Resting)
        kept.keep(shard)
        former = plan.spec.local != self.stage.spec(plan.spec.job, self.stage.owners[number]).local
        self.world.counts["late writers of former owners"] += former
        self.world.counts["evicted stores"] += len(plan.evict(number))
        return answer


class SimulatedLog(RecordLog):
    """The log as one driver sees it; its confirmed commits are kept for the checks."""

    def __init__(self, stage: Stage, driver: str) -> None:
        super().__init__(stage.records)
        self._stage, self._driver = stage, driver

    def open_epoch(self, **claim: Any) -> Any:
        self._stage.records.writes = "0.2 claim"
        return super().open_epoch(**claim)

    def append(self, record: R) -> R:
        steps = {Intent: "2 intent", Commit: "4.2 commit"}
        self._stage.records.writes = steps.get(type(record), "6 truncation")
        made = super().append(record)
        if isinstance(made, Commit):
            self._stage.believed.append((self._driver, made))
        return made
