"""Spark, simulated: a checkpoint that repeats a batch until it is noted, tasks that are tried again or twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.checkpoint.batches import BatchDecision
from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.log import RecordLog
from windrow.checkpoint.records import Commit, Intent, R
from windrow.connectors.kafka import client
from windrow.core.errors import Fenced
from windrow.core.positions import Partition
from windrow.runners.answers import Answer
from windrow.runners.protocol import BatchProtocol
from windrow.runners.publishing import Publisher
from windrow.runners.tasks import TaskPlan, run_shard
from windrow.testing.simulated_job import (
    EXECUTORS,
    INPUT,
    S,
    short,
    table_of,
)
from windrow.testing.simulated_sinks import Pointed
from windrow.testing.simulated_world import (
    Clock,
    Process,
    ProcessDied,
)

if TYPE_CHECKING:
    from windrow.testing.simulation import Simulation

TASK_ATTEMPTS = 4


@dataclass
class Checkpoint:
    """What Spark remembers of a query: the slices that it planned, and the last batch that it noted as done."""

    query_id: str
    start: dict[Partition, int]
    planned: dict[int, dict[Partition, tuple[int, int]]] = field(default_factory=dict)
    done: int = -1

    def offsets(self, batch_id: int) -> dict[Partition, int]:
        """Where a batch begins."""
        before = self.planned.get(batch_id - 1)
        return dict(self.start) if before is None else {p: end for p, (_, end) in before.items()}

    def nothing_came(self, after: int, until: int) -> bool:
        """True if the plans after one, up to another, are there and bring nothing."""
        plans = [self.planned.get(batch) for batch in range(after + 1, until + 1)]
        return all(p is not None and all(first == end for first, end in p.values()) for p in plans)


class TaskFailed(Exception):
    """A task was tried often enough; the query ends."""


class Driver:
    """One driver of the job: opens it, and brings batches as Spark does, until it dies or stops."""

    def __init__(self, simulation: Simulation, checkpoint: Checkpoint, number: int) -> None:
        self.simulation, self.checkpoint = simulation, checkpoint
        self.world = simulation.world
        self.process = Process(f"driver {number}")
        self.protocol: BatchProtocol | None = None
        self.log: SimulatedLog | None = None

    def main(self) -> None:
        """The life of the process."""
        protocol = self.open()
        batch_id = self.checkpoint.done + 1
        while True:
            ranges = self._plan(batch_id)
            if ranges is None:
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
        self.simulation.rests.append((commit, now_us))

    def open(self) -> BatchProtocol:
        world, simulation = self.world, self.simulation
        self.log = SimulatedLog(simulation, self)
        job = Job(
            simulation.location,
            [simulation.definition],
            shards=simulation.shards,
            clock=Clock(world, world.random.choice([0, 0, -3, 4]) * S),
            driver=self.process.name,
            log=self.log,
        )
        sink = Pointed(world, simulation.outlet.open(self.check_epoch))
        self.protocol = BatchProtocol(
            job,
            (simulation.definition,),
            Publisher(job, (simulation.definition,), {simulation.definition.name: sink}),
            sleep=lambda seconds: world.point("5 publish", "before a refused sink is asked again"),
            nothing_came=self.checkpoint.nothing_came,
            keep_commits=1,
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
        """The slice of a batch: what was planned, or what has come since. None: nothing to do now."""
        checkpoint = self.checkpoint
        if batch_id not in checkpoint.planned:
            begin = checkpoint.offsets(batch_id)
            ends = {(INPUT, n): len(rows) for n, rows in enumerate(self.simulation.rows)}
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
            [offset < reached.get((INPUT, p), 0) for p, offset, _ in rows] if decision.drop_old_rows else None
        )
        return self._run(plan, rows, old)

    def _read(
        self, ranges: Mapping[Partition, tuple[int, int]]
    ) -> list[tuple[int, int, tuple[str, int, int]]]:
        """(partition, offset, row) of a slice, from the broker."""
        rows = []
        for (topic, partition), (first, end) in ranges.items():
            if end == first:
                continue
            consumer = self.simulation.kafka.consumer()
            consumer.assign([client.TopicPartition(topic, partition, first)])
            at = first
            while at < end:
                for message in consumer.consume(end - at):
                    rows.append(
                        (partition, message.offset(), self.simulation.rows[partition][message.offset()])
                    )
                    at = message.offset() + 1
            consumer.close()
        return rows

    # -- tasks ----------------------------------------------------------------------------------------------------

    def _run(
        self,
        plan: Plan,
        rows: Sequence[tuple[int, int, tuple[str, int, int]]],
        old: Sequence[bool] | None = None,
    ) -> list[Answer]:
        """Every shard once, in any order; each task may be tried again, or twice."""
        simulation = self.simulation
        assert self.protocol is not None
        job = self.protocol.job
        answers = []
        for shard in self.world.random.sample(range(simulation.shards), simulation.shards):
            mine = [i for i, (_, _, row) in enumerate(rows) if simulation.shard_of(row[0]) == shard]
            table = table_of([rows[i] for i in mine], None if old is None else [old[i] for i in mine])
            answers.append(self._task(simulation.task_plan(job, plan), shard, table))
        return answers

    def _task(self, plan: TaskPlan, shard: int, table: pa.Table) -> Answer:
        world = self.world
        failed: Exception = TaskFailed(f"shard {shard} of commit {plan.commit}: every attempt died")
        for attempt in range(TASK_ATTEMPTS):
            name = f"attempt {attempt} at shard {shard} of commit {plan.commit} of {self.process}"
            if (
                not world.calm
                and world.chance(0.06)
                and world.goes_wrong("attempts doubled", f"{name} is doubled")
            ):
                twin = Process(f"zombie {name}")
                there = self._executor(plan)
                world.start(twin, partial(self._attempt, there, shard, table))
                if world.chance(0.5):
                    world.park()
            process = Process(name)
            try:
                with world.inside(process):
                    return self._attempt(self._executor(plan), shard, table)
            except ProcessDied as died:
                if died.process is not process:
                    raise
            except Exception as error:
                if world.calm:
                    raise
                failed = error
        raise failed

    def _executor(self, plan: TaskPlan) -> TaskPlan:
        """The plan, where any executor may have got it."""
        return self.simulation.on_executor(plan, self.world.random.randrange(EXECUTORS))

    def _attempt(self, plan: TaskPlan, number: int, table: pa.Table) -> Answer:
        self.world.point("3.1 store", f"a task of shard {number} begins")
        shard = plan.open(number)
        try:
            answer = run_shard(plan, shard, table)
        finally:
            shard.close()
        self.world.point("3.3 answer", f"before shard {number} answers")
        return answer


class SimulatedLog(RecordLog):
    """The log as one driver has it; what it was told that it made is kept for the checks."""

    def __init__(self, simulation: Simulation, driver: Driver) -> None:
        super().__init__(simulation.world.records)
        self._simulation, self._driver = simulation, driver

    def open_epoch(self, **claim: Any) -> Any:
        self._simulation.world.records.writes = "0.2 claim"
        return super().open_epoch(**claim)

    def append(self, record: R) -> R:
        steps = {Intent: "2 intent", Commit: "4.2 commit"}
        self._simulation.world.records.writes = steps.get(type(record), "6 truncation")
        made = super().append(record)
        if isinstance(made, Commit):
            self._simulation.believed.append((self._driver.process.name, made))
        return made
