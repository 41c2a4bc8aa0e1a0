"""The whole commit protocol under a schedule that one seed decides: faults everywhere, then an undisturbed end, then checks.

    python -m windrow.testing.simulation                     # 10,000 seeds
    python -m windrow.testing.simulation --seed 7            # one, its schedule told
    python -m windrow.testing.simulation --seed 7 --shrink   # with as few of its faults as it takes to fail

The code under test is the real one: the log, the job, shards, recovery, operators, segments, snapshots, sinks, and what the
driver decides (`runners.protocol`). Simulated are the media (`testing.simulated_world`, `testing.simulated_kafka`) and Spark:
a checkpoint that repeats a batch until it is noted, tasks that are tried again or twice. More:
docs/explanation/simulation.md.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import structlog
from tqdm import tqdm

from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.layout import JobFolders
from windrow.checkpoint.log import RecordLog
from windrow.checkpoint.records import Commit
from windrow.checkpoint.shard import ShardSpec
from windrow.connectors.kafka import client
from windrow.core.errors import Fenced, OffsetGap, SinkFailed, SourceBehind
from windrow.core.positions import Partition
from windrow.operators.operator import Logic
from windrow.runners.tasks import TaskPlan
from windrow.testing.simulated_checks import Checks
from windrow.testing.simulated_job import (
    DEFINITIONS,
    EXECUTORS,
    INPUT,
    PARTITIONS,
    SCHEMA,
    Broken,
    S,
    short,
)
from windrow.testing.simulated_kafka import Outcome, SimulatedKafka
from windrow.testing.simulated_sinks import (
    OUTLETS,
    Outlet,
    OutletOf,
)
from windrow.testing.simulated_spark import Checkpoint, Driver, TaskFailed
from windrow.testing.simulated_world import (
    ProcessDied,
    SimulatedStore,
    World,
)

#: What an undisturbed driver may need at most to finish; a job that needs more does not come to an end.
LAST_DRIVERS = 8


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
        inner = os.path.join(folder, "world")  # the disk has a folder beside it
        os.mkdir(inner)
        simulation = Simulation(seed, inner, outlet=outlet, faults=faults)
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
        self.snapshot_every = chance.choice([1, 1, 2])  # so that files and records go within few commits
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
        #: (last commit, now) of every batch that left no record.
        self.rests: list[tuple[int, int]] = []
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
                Checks(self).all()
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
            if another and not world.goes_wrong(
                "zombie drivers", f"another driver beside {', '.join(str(d.process) for d in drivers)}"
            ):
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
        self.world.records.settle()  # as `job_offsets` does
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
        self.world.say(f"    {name} begins at {short(start)}")
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
    def operator(self) -> Logic:
        return self.definition.logic()

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
            snapshot_every=self.snapshot_every,
            commits=self.commits,
        )

    def on_executor(self, plan: TaskPlan, executor: int) -> TaskPlan:
        return replace(plan, spec=self.spec(plan.spec.job, executor))


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
