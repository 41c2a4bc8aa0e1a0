"""The whole commit protocol under a schedule that one seed decides: faults everywhere, then an undisturbed end, then checks.

    python -m windrow.testing.simulation                     # 10,000 seeds
    python -m windrow.testing.simulation --seed 7            # one, its schedule told
    python -m windrow.testing.simulation --seed 7 --shrink   # with as few of its faults as it takes to fail

The code under test is the real one: the log, the job, shards, recovery, operators, segments, snapshots, sinks, and what the
driver decides (`runners.protocol`). Simulated are the media (`testing.simulated_world`, `testing.simulated_kafka`) and Spark:
a checkpoint that repeats a batch until it is noted, tasks that are tried again or twice. docs/simulation.md tells more.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import structlog
from tqdm import tqdm

import windrow as wr
from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.layout import JobFolders
from windrow.checkpoint.log import RecordLog
from windrow.checkpoint.offsets import Partition, merge
from windrow.checkpoint.records import Commit, Intent, R, decode
from windrow.checkpoint.recovery import BatchDecision
from windrow.checkpoint.shard import Shard, ShardSpec
from windrow.connectors import sinks
from windrow.connectors.kafka import client
from windrow.connectors.kafka.sink import KafkaSink, read_all
from windrow.connectors.sinks import PaneFiles, Sink
from windrow.core.definition import AggregateDefinition
from windrow.core.errors import CorruptState, Fenced, OffsetGap, SinkFailed, SourceBehind
from windrow.core.messages import Message, Pane, Position, Token
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate import WindowAggregator
from windrow.operators.chain import told_schema
from windrow.operators.output import to_panes
from windrow.operators.tuples import TupleAggregator
from windrow.runners.protocol import PUBLISH_ATTEMPTS, BatchProtocol
from windrow.runners.tasks import OLD, Answer, TaskPlan, run_shard
from windrow.stores.kv import MemoryKV, Overlay
from windrow.testing.ledger import panes_equal
from windrow.testing.oracle import AggregateOracle, WatermarkOracle
from windrow.testing.simulated_kafka import Outcome, SimulatedKafka
from windrow.testing.simulated_world import (
    Clock,
    Process,
    ProcessDied,
    SimulatedStore,
    World,
)

S = 1_000_000
INPUT, PARTITIONS, EXECUTORS = "input", 2, 2
#: What an undisturbed driver may need at most to finish; a job that needs more does not come to an end.
LAST_DRIVERS = 8
TASK_ATTEMPTS = 4
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("v", pa.int64())])

DEFINITIONS: dict[str, AggregateDefinition] = {
    "retracting": wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "total": wr.sum("v")},
        watermark="5 seconds",
        retention="30 seconds",
        emit=wr.Emit(early=wr.every(2), late=wr.every_batch, mode="retracting"),
        name="panes",
    ),
    "periodic": wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.hopping("10 seconds", "5 seconds"),
        agg={"n": wr.count(), "least": wr.min("v")},
        watermark=wr.bounded("2 seconds", idle="10 seconds"),
        retention="20 seconds",
        emit=wr.Emit(early=wr.every(timedelta(seconds=2)), late=wr.every(timedelta(seconds=1))),
        name="panes",
    ),
    "full state": wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"middle": wr.median("v")},
        watermark="3 seconds",
        retention="20 seconds",
        name="panes",
    ),
    "tuples": wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tuples(3),
        agg={"n": wr.count(), "values": wr.collect_list("v")},
        retention=wr.forever,
        emit=wr.Emit(early=wr.every_batch),
        name="panes",
    ),
}


class Broken(AssertionError):
    """The protocol has not kept what it promises."""


# -- where panes go -----------------------------------------------------------------------------------------------------


class Outlet(Protocol):
    """Where the panes of a simulated job go. `check_epoch` raises `Fenced` in a driver that has lost its job."""

    def open(self, check_epoch: Callable[[], None]) -> Sink:
        """The sink as one driver has it."""

    def read(self) -> list[Pane]:
        """All panes as a reader sees them, of committed transactions only; of one (key, window) in the order they were sent."""


class MemoryOutlet:
    """`wr.sinks.memory()`, shared by all drivers."""

    def __init__(self, simulation: Simulation) -> None:
        self.sink = sinks.memory()

    def open(self, check_epoch: Callable[[], None]) -> Sink:
        return self.sink

    def read(self) -> list[Pane]:
        return self.sink.panes


class ParquetOutlet:
    """`wr.sinks.parquet(...)` on the simulated disk."""

    def __init__(self, simulation: Simulation) -> None:
        self._definition = simulation.definition
        self._path = os.path.join(simulation.world.folder, "sink")

    def open(self, check_epoch: Callable[[], None]) -> Sink:
        return sinks.parquet(self._path)

    def read(self) -> list[Pane]:
        return list(to_panes(self._definition, sinks.read_panes(self._path), ""))


class KafkaOutlet:
    """`wr.sinks.kafka(...)` on the simulated cluster; each driver has a sink of its own."""

    topic = "panes"

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._kafka = simulation, simulation.kafka
        self._kafka.create_topic(self.topic, PARTITIONS)
        self._overtaken: list[str] = []

    def open(self, check_epoch: Callable[[], None]) -> Sink:
        cluster: Any = _Watched(self._simulation, check_epoch, self._overtaken)
        return KafkaSink(self.topic, cluster)

    def read(self) -> list[Pane]:
        if self._overtaken:
            raise Broken(self._overtaken[0])
        self._kafka.expire_transactions()
        cluster: Any = self._kafka
        rows = []
        for partition in self._kafka.partitions(self.topic):
            for record in read_all(cluster, self.topic, partition):
                row = json.loads(record.value())
                row["window"] = {name: _time_or_number(at) for name, at in row["window"].items()}
                rows.append(row)
        definition = self._simulation.definition
        table = pa.Table.from_pylist(rows, told_schema(definition, SCHEMA))
        return list(to_panes(definition, table, ""))


class _Watched:
    """The cluster as one driver's sink has it. Who finds, when it has fenced the others, that it was overtaken, has to stop."""

    def __init__(self, simulation: Simulation, check_epoch: Callable[[], None], overtaken: list[str]) -> None:
        self._simulation, self._check_epoch, self._overtaken = simulation, check_epoch, overtaken
        self._over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulation.kafka, name)

    def consumer(self, **config: Any) -> Any:
        self._use("reads")
        return self._simulation.kafka.consumer(**config)

    def producer(self, **config: Any) -> Any:
        made: Any = self._simulation.kafka.producer(**config)
        init, begin = made.init_transactions, made.begin_transaction

        def watched_init(timeout: float) -> None:
            init(timeout)
            with self._simulation.world.undisturbed():
                try:
                    self._check_epoch()
                except Fenced:
                    self._over = True
                    self._simulation.world.trouble += 1  # to who was fenced by this

        def watched_begin() -> None:
            self._use("sends")
            begin()

        made.init_transactions, made.begin_transaction = watched_init, watched_begin
        return made

    def _use(self, does: str) -> None:
        if self._over:
            self._overtaken.append(f"{self._simulation.world.process} was overtaken, and {does} all the same")


def _time_or_number(value: str | int | None) -> datetime | int | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


OutletOf = Callable[["Simulation"], Outlet]
OUTLETS: dict[str, OutletOf] = {"kafka": KafkaOutlet, "memory": MemoryOutlet, "parquet": ParquetOutlet}


class _Pointed:
    """A sink at which a schedule can strike, and that refuses at times. It may not refuse for ever without as many faults."""

    def __init__(self, world: World, sink: Sink) -> None:
        self._world, self._sink = world, sink
        self._commit, self._attempts, self._faults = -1, 0, 0

    def publish(self, token: Token, panes: PaneFiles) -> None:
        if token.commit != self._commit:
            self._commit, self._attempts, self._faults = token.commit, 0, self._world.trouble
        self._attempts += 1
        try:
            self._publish(token, panes)
        except Fenced:
            raise
        except Exception as error:
            faults = self._world.trouble - self._faults
            if self._attempts == PUBLISH_ATTEMPTS and faults < self._attempts:
                raise Broken(
                    f"panes of commit {token.commit} were refused {self._attempts} times, after {faults} faults"
                ) from error
            raise

    def _publish(self, token: Token, panes: PaneFiles) -> None:
        self._world.point("5 publish", f"before panes of commit {token.commit} go out")
        if self._world.chance(0.02) and self._world.goes_wrong("sink refuses", "the sink refuses"):
            raise ConnectionError("the sink refuses")
        self._sink.publish(token, panes)
        self._world.point("5 publish", f"panes of commit {token.commit} are out")

    def last_commit(self, job: str, operator: str) -> int | None:
        self._world.point("5 publish", "before a sink is asked what it has")
        return self._sink.last_commit(job, operator)


# -- Spark ------------------------------------------------------------------------------------------------------------


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
                f"    {self.process} brings batch {batch_id} of {self.checkpoint.query_id}: {_short(ranges)}"
            )
            act = partial(self._act, ranges)
            record = protocol.batch(self.checkpoint.query_id, batch_id, True, act)
            if record is not None:
                self.world.say(f"    {self.process} has made commit {record.commit}")
            self.world.point("1 Spark", f"before batch {batch_id} is noted")
            self.checkpoint.done = max(self.checkpoint.done, batch_id)
            batch_id += 1

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
        sink = _Pointed(world, simulation.outlet.open(self.check_epoch))
        self.protocol = BatchProtocol(
            job,
            (simulation.definition,),
            {simulation.definition.name: sink},
            sleep=lambda seconds: world.point("5 publish", "before a refused sink is asked again"),
            keep_commits=1,
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
            if not news and (self.world.calm or not self.world.chance(0.06)):
                return None
            checkpoint.planned[batch_id] = ranges
            self.world.point("1 Spark", f"batch {batch_id} is planned")
        return checkpoint.planned[batch_id]

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
        self._simulation.world.records.writes = "2 intent" if isinstance(record, Intent) else "4.2 commit"
        made = super().append(record)
        if isinstance(made, Commit):
            self._simulation.believed.append((self._driver.process.name, made))
        return made


def table_of(
    rows: Sequence[tuple[int, int, tuple[str, int, int]]], old: Sequence[bool] | None = None
) -> pa.Table:
    """Rows as a task gets them."""
    n = len(rows)
    columns = {
        "k": pa.array([row[0] for _, _, row in rows], pa.string()),
        "t": pa.array([row[1] for _, _, row in rows], pa.timestamp("us", "UTC")),
        "v": pa.array([row[2] for _, _, row in rows], pa.int64()),
        "__source": pa.array([INPUT] * n, pa.string()),
        "__partition": pa.array([p for p, _, _ in rows], pa.int64()),
        "__offset": pa.array([o for _, o, _ in rows], pa.int64()),
        "__ordinal": pa.array([0] * n, pa.int64()),
    }
    if old is not None:
        columns[OLD] = pa.array(old, pa.bool_())
    return pa.table(columns)


# -- a schedule ---------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What one schedule was. failure: what is not as promised; None if all is."""

    seed: int
    faults: int
    trace: list[str]
    counts: Counter[str]
    failure: BaseException | None


def play(seed: int, *, outlet: OutletOf | None = None, faults: int | None = None) -> Report:
    """Play the schedule of a seed, with the first so many of its faults (default: all)."""
    shared = "/dev/shm"
    with (
        tempfile.TemporaryDirectory(
            prefix="windrow-", dir=shared if os.path.isdir(shared) else None
        ) as folder,
        _one_core(),
    ):
        simulation = Simulation(seed, folder, outlet=outlet, faults=faults)
        failure: BaseException | None = None
        try:
            simulation.run()
        except (Exception, ProcessDied) as error:
            failure = error
        world = simulation.world
        return Report(seed, world.faults, world.trace, world.counts, failure)


def shrink(seed: int, *, outlet: OutletOf | None = None) -> Report:
    """The schedule of a failing seed with as few of its faults as it takes to fail: its tail is cut."""
    report = play(seed, outlet=outlet)
    for faults in range(report.faults):
        shorter = play(seed, outlet=outlet, faults=faults)
        if shorter.failure is not None:
            return shorter
    return report


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Tables of a few rows: more threads only cost."""
    before = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        yield
    finally:
        pa.set_cpu_count(before)


class Simulation:
    """One schedule. `run` plays it and checks what is left."""

    def __init__(
        self, seed: int, folder: str, *, outlet: OutletOf | None = None, faults: int | None = None
    ) -> None:
        self.world = world = World(seed, folder, faults)
        chance = world.random
        self.kind = chance.choice(sorted(DEFINITIONS))
        self.definition = DEFINITIONS[self.kind]
        self.shards = chance.choice([2, 2, 2, 2, 3])
        self.location = os.path.join(folder, "job")
        os.makedirs(self.location)
        for n in range(EXECUTORS):
            os.makedirs(os.path.join(folder, f"executor-{n}"))
        self.kafka = SimulatedKafka(self._kafka_step)
        self.kafka.create_topic(INPUT, PARTITIONS)
        self._source = self.kafka.producer()
        #: All rows of the input, by partition and offset.
        self.rows: list[list[tuple[str, int, int]]] = [[] for _ in range(PARTITIONS)]
        self._to_come = chance.randint(14, 36)
        self._came = 0
        self.believed: list[tuple[str, Commit]] = []
        self._queries = 0
        self._gaps = 0  # queries that began above our offsets, which has to be refused
        self._drivers = 0
        name = chance.choice(sorted(OUTLETS))
        self.outlet: Outlet = (outlet or OUTLETS[name])(self)
        world.say(f"    seed {seed}: {self.kind}, {self.shards} shards, {self._to_come} rows")

    def run(self) -> None:
        """Faults, an undisturbed end, checks. Raises `Broken`, or what went wrong where nothing may."""
        world = self.world
        with world.patched():
            try:
                self._disturbed()
                self._undisturbed()
                _Checks(self).all()
            finally:
                world.end()

    # -- faults ---------------------------------------------------------------------------------------------------

    def _disturbed(self) -> None:
        world = self.world
        self._checkpoint = self._new_query(None)
        for _ in range(world.random.randint(8, 26)):
            world.now_us += 0 if world.chance(0.2) else world.random.randrange(3 * S)
            if self._came < self._to_come and world.chance(0.4):
                self._produce(world.random.randint(3, 12))
            self._event()
            waiting = [a for a in world.actors if not a.ended]
            drivers = [a for a in waiting if a.process.name.startswith("driver")]
            another = drivers and len(waiting) < 5 and world.chance(0.06)
            if another and not world.goes_wrong("zombie drivers", f"another driver beside {drivers}"):
                another = False
            if another or not drivers:
                self._start()
                continue
            turn = waiting[-1] if world.chance(0.4) else world.random.choice(waiting)
            turn.resume()
            self._look(turn)

    def _event(self) -> None:
        """Something may happen to the machines."""
        world = self.world
        chosen = world.random.random()
        if chosen < 0.03:
            if world.goes_wrong("power lost", "the power is cut"):
                world.lose_power()
                if world.chance(0.5):
                    self._forget_plan()
        elif chosen < 0.05:
            if world.goes_wrong("clock stepped back", "the clock steps back"):
                world.now_us -= world.random.randrange(30 * S)
        elif chosen < 0.09:
            self._harm_store()
        elif chosen < 0.12:
            if world.goes_wrong("checkpoints lost", "Spark's checkpoint is lost"):
                self._checkpoint = self._new_query(self._checkpoint)
        elif chosen < 0.22 and self.kafka.late:
            self._deliver_late()
        elif (
            chosen > 0.97
            and self.kafka.open_transactions
            and world.goes_wrong("transactions expired", "open transactions expire")
        ):
            self.kafka.expire_transactions()

    def _harm_store(self) -> None:
        """Lose or damage a local store that nobody has open."""
        world = self.world
        found = [
            path
            for n in range(EXECUTORS)
            for shard in range(self.shards)
            if os.path.exists(
                os.path.join(
                    path := os.path.join(world.folder, f"executor-{n}", f"shard-{shard:04d}"), "000001.sst"
                )
            )
            and path not in world.open_stores
        ]
        if not found:
            return
        path = world.random.choice(found)
        if world.chance(0.5):
            if world.goes_wrong("stores lost", f"the store {os.path.basename(path)} is lost"):
                shutil.rmtree(path)
        elif world.goes_wrong("stores damaged", f"the store {os.path.basename(path)} is damaged"):
            with open(os.path.join(path, "000001.sst"), "r+b") as file:
                file.write(b"damaged!")

    def _forget_plan(self) -> None:
        """Spark's last plans were not on the disk yet; these batches come again with other slices, committed or not."""
        checkpoint = self._checkpoint
        last = max(checkpoint.planned, default=-1)
        first = max(last - self.world.random.choice([0, 0, 1]), 0)
        for batch_id in range(first, last + 1):
            self.world.say(f"    the plan of batch {batch_id} is lost")
            self.world.counts["plans lost"] += 1
            del checkpoint.planned[batch_id]
        checkpoint.done = min(checkpoint.done, first - 1)

    def _new_query(self, before: Checkpoint | None, *, obedient: bool = False) -> Checkpoint:
        """A query that begins anew: at our offsets, or somewhere near (obedient: exactly there)."""
        self._queries += 1
        name = f"query {self._queries}"
        if before is None:
            return Checkpoint(name, {(INPUT, n): 0 for n in range(PARTITIONS)})
        reached = self._reached()
        start = {(INPUT, n): reached.get((INPUT, n), 0) for n in range(PARTITIONS)}
        chosen = 1.0 if obedient else self.world.random.random()
        gap = False
        if chosen < 0.3:
            start = {p: max(0, at - self.world.random.randrange(6)) for p, at in start.items()}
        elif chosen < 0.4:
            start = dict.fromkeys(start, 0)
        elif chosen < 0.5:
            partition = self.world.random.choice(sorted(start))
            if partition in reached:
                start[partition] += 1
                gap = True
        self.world.say(f"    {name} begins at {_short(start)}")
        self._gaps += gap
        return Checkpoint(name, start)

    def _reached(self) -> dict[Partition, int]:
        last = RecordLog(self.world.records).tail().last_commit
        return {} if last is None else dict(last.next_offsets)

    def _produce(self, n: int) -> None:
        """Rows come to the input: mostly in order, some late, some too late."""
        chance = self.world.random
        for _ in range(min(n, self._to_come - self._came)):
            time_us = self._came * S + chance.choice([0, 0, 0, 1, -4, -15, -60]) * S + 1_000_000_000 * S
            partition = chance.randrange(PARTITIONS)
            self.rows[partition].append((chance.choice("abcde"), time_us, self._came))
            self._source.produce(INPUT, b"row", partition=partition)
            self._came += 1
        self._source.flush()

    # -- drivers --------------------------------------------------------------------------------------------------

    def _kafka_step(self, what: str) -> Outcome | None:
        if self.kafka.late and self.world.chance(0.3):
            self._deliver_late()
        step = "1 source" if what == "consume" else "5 broker"
        return self.world.unanswered(step, f"before {what}", 5 if what == "commit_transaction" else 1)

    def _deliver_late(self) -> None:
        self.world.say("    a late request arrives at the broker")
        self.world.trouble += self.kafka.late
        self.kafka.deliver_late()

    def _start(self) -> Driver:
        self._drivers += 1
        driver = Driver(self, self._checkpoint, self._drivers)
        self.world.say(f"    {driver.process} starts with {self._checkpoint.query_id}")
        actor = self.world.start(driver.process, driver.main)
        actor.resume()
        self._look(actor)
        return driver

    def _look(self, actor: Any) -> None:
        """What a process ended with has to be something that may happen."""
        error = actor.error
        if error is None:
            return
        actor.error = None
        if not isinstance(error, ProcessDied):
            self.world.say(f"    {actor.process} ends: {type(error).__name__}: {str(error)[:160]}")
        if actor.process.name.startswith("zombie"):
            return  # it computes what nobody asks for any more, from files that may be gone
        if isinstance(error, SinkFailed) and isinstance(error.__cause__, Broken):
            raise error.__cause__
        if isinstance(error, OffsetGap):
            if not self._gaps:
                raise error
            self._checkpoint = self._new_query(self._checkpoint, obedient=True)
        elif isinstance(error, SourceBehind):
            self._checkpoint = self._new_query(self._checkpoint, obedient=True)
        elif not isinstance(error, Fenced | OSError | TaskFailed | SinkFailed | client.KafkaException) or (
            isinstance(error, FileNotFoundError)
        ):
            raise error

    def _undisturbed(self) -> None:
        """All rows come, processes that wait end one after the other, and a last driver finishes the job."""
        world = self.world
        world.calm = True
        world.say("    from here on nothing goes wrong")
        self._produce(self._to_come)
        if self._gaps:  # which are of one row, and show once another follows it
            for partition in [*range(PARTITIONS)] * 2:
                self.rows[partition].append(("a", self._came * S + 1_000_000_000 * S, self._came))
                self._source.produce(INPUT, b"row", partition=partition)
                self._came += 1
            self._source.flush()
        waiting = [a for a in world.actors if not a.ended]
        world.random.shuffle(waiting)
        later = len(waiting) // 2
        for actor in waiting[later:]:
            actor.resume()
            self._look(actor)
        if world.chance(0.5):
            self.kafka.deliver_late()
        for _ in range(LAST_DRIVERS):
            world.now_us += S
            last = self._start()
            if not self._left() and last.process.alive:
                break
        else:
            raise Broken(
                f"{LAST_DRIVERS} undisturbed drivers have not finished the job; the last: {world.trace[-1]}"
            )
        self._drivers += 1
        driver = Driver(self, self._checkpoint, self._drivers)
        ending = world.start(driver.process, driver.drain)
        ending.resume()
        if ending.error is not None:
            raise ending.error
        self.kafka.deliver_late()
        for actor in waiting[:later]:
            world.say(f"    {actor.process} goes on, late")
            actor.resume()
            self._look(actor)

    def _left(self) -> bool:
        """True if there are rows that no commit has taken, or a commit that is not out."""
        reached = self._reached()
        return any(reached.get((INPUT, n), 0) < len(rows) for n, rows in enumerate(self.rows))

    # -- shards ---------------------------------------------------------------------------------------------------

    def shard_of(self, key: str) -> int:
        return zlib.crc32(key.encode()) % self.shards

    @property
    def operator(self) -> WindowAggregator | TupleAggregator:
        return (TupleAggregator if self.definition.tuple_window else WindowAggregator)(self.definition)

    def spec(self, job: str, executor: int) -> ShardSpec:
        cfs = self.operator.cfs()
        messages = tuple(c for c in cfs if c.endswith((".messages", ".message_index")))
        return ShardSpec(
            JobFolders(self.location),
            job,
            -1,
            tuple(c for c in cfs if c not in messages),
            messages,
            os.path.join(self.world.folder, f"executor-{executor}"),
            open_store=lambda path, cfs, wait_s: SimulatedStore(self.world, path, cfs),
        )

    def commits(self) -> Iterator[Commit]:
        log = RecordLog(self.world.records)
        log.tail()
        return log.commits()

    def task_plan(self, job: Job, plan: Plan) -> TaskPlan:
        return TaskPlan(
            self.spec(job.job, 0),
            (self.definition,),
            plan.commit,
            plan.now_us,
            dict(plan.watermarks_us),
            SCHEMA.serialize().to_pybytes(),
            None,
            tuple(job.recent),
            lock_wait_s=0.0,
            snapshot_every=3,
            commits=self.commits,
        )

    def on_executor(self, plan: TaskPlan, executor: int) -> TaskPlan:
        return replace(plan, spec=self.spec(plan.spec.job, executor))


# -- checks -------------------------------------------------------------------------------------------------------------


class _Checks:
    """What holds at the end of every schedule."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.log = RecordLog(self.world.records)
        self.log.tail()
        self.commits = list(self.log.commits())

    def all(self) -> None:
        self.one_history()
        self.intents_are_kept()
        panes = self.oracle()
        self.published(panes)
        self.state()
        self.world.counts["panes checked"] += sum(map(len, panes.values()))
        self.world.counts["commits"] += len(self.commits)

    def one_history(self) -> None:
        """Whoever was told that it made a commit made it, and nobody else made it too."""
        by_number = {c.commit: c for c in self.commits}
        if sorted(by_number) != list(range(1, len(self.commits) + 1)):
            raise Broken(f"the log has the commits {sorted(by_number)}")
        makers: dict[int, str] = {}
        for driver, commit in self.simulation.believed:
            if makers.setdefault(commit.commit, driver) != driver:
                raise Broken(f"commit {commit.commit} was made by {makers[commit.commit]} and by {driver}")
            if by_number.get(commit.commit) != commit:
                raise Broken(f"{driver} made {commit}, the log has {by_number.get(commit.commit)}")

    def intents_are_kept(self) -> None:
        """A batch that is done again is done with the same `now` and watermark."""
        last: Intent | None = None
        for _, data in sorted(self.world.records.records.items()):
            try:
                record = decode(data)
            except CorruptState:
                continue  # torn, and declared void
            if isinstance(record, Intent):
                again = last is not None and _batch(last) == _batch(record)
                drained = END_OF_TIME_US in (record.watermark_us, last.watermark_us if last else None)
                if again and not drained:
                    raise Broken(f"the intent {record} follows {last}, which should have been kept")
                last = record
            elif isinstance(record, Commit):
                kept = last is not None and last.commit == record.commit
                due = None if last is None else (last.now_us, last.watermark_us)
                kept = kept and all((step.now_us, step.watermark_us) == due for step in record.steps)
                if not kept:
                    raise Broken(f"commit {record} was not computed from its intent {last}")

    def oracle(self) -> dict[int, list[Pane]]:
        """The panes of each commit, as the oracle makes them of the recorded steps; every row is counted once."""
        simulation = self.simulation
        oracle = AggregateOracle(simulation.definition)
        marks = WatermarkOracle(simulation.definition.watermark)
        reached: dict[Partition, int] = {}
        panes: dict[int, list[Pane]] = defaultdict(list)
        dead: Counter[str] = Counter()
        self.slices: list[list[tuple[int, int, tuple[str, int, int]]]] = []
        for commit in self.commits:
            for step in commit.steps:
                watermark_us = START_OF_TIME_US if step.watermark_us is None else step.watermark_us
                if step.kind == "advance":
                    explicit = END_OF_TIME_US if watermark_us == END_OF_TIME_US else None
                    due = marks.advance(step.now_us, explicit)
                    if due != watermark_us:
                        raise Broken(f"commit {commit.commit}: the watermark is {watermark_us}, due is {due}")
                    done = oracle.advance(watermark_us, step.now_us)
                else:
                    rows = self._rows(commit, step, reached)
                    self.slices.append(rows)
                    messages = [
                        Message({"k": k, "t": t, "v": v}, Position(INPUT, p, o)) for p, o, (k, t, v) in rows
                    ]
                    done = oracle.ingest(messages, step.now_us, watermark_us)
                    marks.observe(oracle.counted, step.now_us)
                panes[commit.commit] += done.panes
                dead.update(f"dead.{letter.reason}" for letter in done.dead_letters)
        ends = {(INPUT, n): len(rows) for n, rows in enumerate(simulation.rows) if rows}
        if reached != ends:
            raise Broken(f"rows up to {reached} are counted, there are rows up to {ends}")
        counters = {} if not self.commits else self.commits[-1].counters
        told = {name: n for name, n in counters.items() if name.startswith("dead.") and n}
        if told != dead:
            raise Broken(f"dead letters are {told}, the oracle has {dict(dead)}")
        return panes

    def _rows(
        self, commit: Commit, step: Any, reached: dict[Partition, int]
    ) -> list[tuple[int, int, tuple[str, int, int]]]:
        rows = []
        for partition, first in sorted(step.first_offsets.items()):
            before, end = reached.get(partition, 0), step.next_offsets[partition]
            if first > before:
                raise Broken(
                    f"commit {commit.commit} begins at {first} of {partition}, rows from {before} on are lost"
                )
            number = partition[1]
            rows += [(number, o, self.simulation.rows[number][o]) for o in range(before, end)]
        reached.update(merge(reached, step.next_offsets))
        if dict(commit.next_offsets) != reached:
            raise Broken(f"commit {commit.commit} says {dict(commit.next_offsets)}, its steps {reached}")
        if len(rows) != step.rows:
            raise Broken(f"commit {commit.commit} counted {step.rows} rows, its slice has {len(rows)}")
        return rows

    def published(self, panes: Mapping[int, Sequence[Pane]]) -> None:
        """A reader of the sink sees the oracle's panes of every commit, once."""
        seen: dict[int, list[Pane]] = defaultdict(list)
        for pane in self.simulation.outlet.read():
            assert pane.commit is not None
            seen[pane.commit].append(pane)
        for commit in sorted({*seen, *panes}):
            found, wanted = (sorted(some.get(commit, ()), key=_place) for some in (seen, panes))
            for a, b in zip(found, wanted, strict=False):
                if not panes_equal(a, b):
                    raise Broken(f"a published pane of commit {commit} is {a}, the oracle has {b}")
            if len(found) != len(wanted):
                raise Broken(
                    f"commit {commit} has {len(found)} panes in the sink, the oracle has {len(wanted)}"
                )

    def state(self) -> None:
        """Every shard, from any executor's store or from none, is what an undisturbed run over the same steps gives."""
        simulation = self.simulation
        assert self.log.epoch is not None
        total = len(self.commits)
        for shard in range(simulation.shards):
            wanted = self._undisturbed(shard)
            stores = [os.path.join(self.world.folder, f"executor-{n}") for n in range(EXECUTORS)]
            local = self.world.random.choice([*stores, os.path.join(self.world.folder, "nothing")])
            spec = replace(simulation.spec(self.log.epoch.job, 0), shard=shard, local=local)
            opened = Shard.open(spec, total, lambda: iter(self.commits), lock_wait_s=0.0)
            for cf in wanted.cfs:
                found, due = dict(opened.kv.scan(cf)), dict(wanted.scan(cf))
                if found != due:
                    odd = sorted(k for k in {*found, *due} if found.get(k) != due.get(k))
                    raise Broken(
                        f"{len(odd)} keys of {cf} of shard {shard} are not as undisturbed: {odd[:3]}"
                    )
            opened.close()

    def _undisturbed(self, shard: int) -> MemoryKV:
        simulation, operator = self.simulation, self.simulation.operator
        kv = MemoryKV(operator.cfs())
        for commit, rows in zip(self.commits, self.slices, strict=True):
            advance, ingest = commit.steps
            over = Overlay(kv)
            watermark_us = START_OF_TIME_US if advance.watermark_us is None else advance.watermark_us
            operator.advance(over, watermark_us, advance.now_us)
            mine = [row for row in rows if simulation.shard_of(row[2][0]) == shard]
            if mine:
                operator.ingest(over, table_of(mine), ingest.now_us)
            kv.write(over.batch)
        return kv


def _place(pane: Pane) -> tuple[Any, ...]:
    window = tuple(vars(pane.window).values()) if hasattr(pane.window, "__dict__") else repr(pane.window)
    return (repr(pane.key), window)


def _batch(intent: Intent) -> tuple[Any, ...]:
    return intent.commit, intent.query_id, intent.batch_id


def _short(offsets: Mapping[Partition, Any]) -> dict[int, Any]:
    return {partition: value for (_, partition), value in sorted(offsets.items())}


# -- command ------------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns how many seeds have failed, at most 100."""
    parser = argparse.ArgumentParser(
        prog="python -m windrow.testing.simulation", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--seed", type=int, help="play this seed and print its schedule")
    parser.add_argument("--faults", type=int, help="with --seed: only its first so many faults happen")
    parser.add_argument(
        "--shrink", action="store_true", help="with --seed: with as few of its faults as it takes to fail"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many (default: 10,000)")
    parser.add_argument(
        "--sink", help=f"one of {', '.join(sorted(OUTLETS))}, or module:factory (default: any)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="in so many processes (default: 1)")
    given = parser.parse_args(arguments)
    _quiet()
    if given.seed is not None:
        outlet = _outlet(given.sink)
        report = (
            shrink(given.seed, outlet=outlet)
            if given.shrink
            else play(given.seed, outlet=outlet, faults=given.faults)
        )
        print("\n".join(report.trace))
        print("all is as promised" if report.failure is None else _told(report, given.sink))
        return int(report.failure is not None)
    totals: Counter[str] = Counter()
    failed = 0
    with contextlib.ExitStack() as stack:
        each = partial(_play_and_tell, sink=given.sink)
        seeds = range(given.first, given.first + given.seeds)
        told: Iterator[tuple[Counter[str], str | None]] = map(each, seeds)
        if given.jobs > 1:
            # Not forked: Arrow has threads.
            pool = multiprocessing.get_context("spawn").Pool(given.jobs, _quiet)
            told = stack.enter_context(pool).imap(each, seeds, chunksize=8)
        progress = tqdm(told, total=given.seeds, unit="schedule", disable=None)
        for counts, failure in progress:
            totals += counts
            if failure is not None:
                failed += 1
                progress.write(failure)
    print(_summary(given.seeds, totals, failed))
    return min(failed, 100)


def _quiet() -> None:
    """Drivers of thousands of schedules have nothing to say."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _play_and_tell(seed: int, sink: str | None) -> tuple[Counter[str], str | None]:
    """What was counted in a schedule, and how it failed, if it did."""
    report = play(seed, outlet=_outlet(sink))
    return report.counts, None if report.failure is None else _told(report, sink)


def _outlet(name: str | None) -> OutletOf | None:
    if name is None or name in OUTLETS:
        return None if name is None else OUTLETS[name]
    module, _, attribute = name.partition(":")
    made: OutletOf = getattr(importlib.import_module(module), attribute)
    return made


def _told(report: Report, sink: str | None) -> str:
    again = f"python -m windrow.testing.simulation --seed {report.seed}" + (f" --sink {sink}" if sink else "")
    return f"seed {report.seed}, {report.faults} faults: {type(report.failure).__name__}: {report.failure}\n  {again} --shrink"


def _summary(schedules: int, counts: Counter[str], failed: int) -> str:
    deaths = {k.removeprefix("dies: "): n for k, n in counts.items() if k.startswith("dies: ")}
    others = {k: n for k, n in counts.items() if not k.startswith("dies: ")}
    lines = [f"{schedules:,} schedules, {failed} failed"]
    for title, some in (("processes died at", deaths), ("besides", others)):
        lines.append(f"{title}:")
        lines += [f"  {name:<24}{n:>10,}" for name, n in sorted(some.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
