"""A seed of the simulation: its schedule, played in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa

from windrow.checkpoint.log import RecordLog
from windrow.checkpoint.offsets import merge
from windrow.checkpoint.records import Commit, Intent, Step
from windrow.checkpoint.shard import Shard
from windrow.connectors.kafka import client
from windrow.core.errors import Fenced, OffsetGap, SinkFailed, SourceBehind
from windrow.core.extras import need
from windrow.core.messages import DeadLetter, Position
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US
from windrow.runners import tasks
from windrow.stores.kv import MemoryKV, Overlay
from windrow.testing.expected_output import Broken, ExpectedOutput, Judge, Letter, difference, letters_differ
from windrow.testing.generated_jobs import drawn
from windrow.testing.scenario import ONLY, Played, feed_of, load_name, scenario_of
from windrow.testing.seeds import Report, Summary, check, quiet, shrunk
from windrow.testing.simulated_kafka import Outcome
from windrow.testing.simulation.environment import EXECUTORS, Row, Stage
from windrow.testing.simulation.sinks import OUTLETS, PARTITIONS, OutletOf
from windrow.testing.simulation.spark import Checkpoint, Driver, TaskFailed, short
from windrow.testing.simulation.world import ProcessDied, World

# -- checks at the end of every schedule ------------------------------------------------------------------------------


class Checks:
    """The checks at the end of every schedule."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.world = stage, stage.world
        self.log = RecordLog(stage.records)
        self.log.tail()
        self.history = stage.records.history()
        self.commits = [record for record in self.history if isinstance(record, Commit)]
        #: The rows of each commit.
        self.slices: list[list[Row]] = []

    def all(self) -> None:
        self.one_history()
        self.intents_are_kept()
        emitted = self.oracles()
        self.published(emitted)
        self.dead_letters(emitted)
        self.state()
        for name, part in self.stage.feed.parts.items():
            n = sum(len(one.rows.get(name, ())) for one in emitted.values())
            self.world.counts[f"rows of {part.describe()['operator']}"] += n
        self.world.counts["dead letters"] += sum(len(one.dead_letters) for one in emitted.values())
        self.world.counts["commits"] += len(self.commits)

    def one_history(self) -> None:
        """Check that each commit was made by the driver that got its confirmation, and by no other."""
        by_number = {c.commit: c for c in self.commits}
        if sorted(by_number) != list(range(1, len(self.commits) + 1)):
            raise Broken(f"the log has the commits {sorted(by_number)}")
        makers: dict[int, str] = {}
        for driver, commit in self.stage.believed:
            if makers.setdefault(commit.commit, driver) != driver:
                raise Broken(f"commit {commit.commit} was made by {makers[commit.commit]} and by {driver}")
            if by_number.get(commit.commit) != commit:
                raise Broken(f"{driver} made {commit}, the log has {by_number.get(commit.commit)}")

    def intents_are_kept(self) -> None:
        """Check that a batch that is done again has the same `now` and watermark."""
        last: Intent | None = None
        for record in self.history:
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

    def oracles(self) -> dict[int, ExpectedOutput]:
        """Return the expected output of each commit, by the oracles over the recorded steps; every row is counted once."""
        judge = Judge(self.stage.definitions, self.stage.feed.schemas)
        reached: dict[Partition, int] = {}
        emitted: dict[int, ExpectedOutput] = {}
        for commit in self.commits:
            watermarks_us: Mapping[str, int] = commit.meta["watermarks"]
            advance, ingest = commit.steps
            rows = self._rows(commit, ingest, reached)
            self.slices.append(rows)
            done = judge.advance(watermarks_us, advance.now_us)
            done.join(judge.ingest([(row.input, row.message) for row in rows], watermarks_us, ingest.now_us))
            emitted[commit.commit] = done
            for now_us in sorted(now_us for last, now_us in self.stage.rests if last == commit.commit):
                due = judge.overdue(now_us)
                if any(due.rows.values()) or due.dead_letters:
                    raise Broken(
                        f"{due} was due at {now_us}, and no commit was made after commit {commit.commit}"
                    )
            if commit.commit in self.stage.ended_runs:
                due = judge.overdue(advance.now_us)
                if any(due.rows.values()) or due.dead_letters:
                    raise Broken(f"{due} was due when a run ended with commit {commit.commit}")
        ends = {partition: end for partition, end in self.stage.ends().items() if end}
        if reached != ends:
            raise Broken(f"rows up to {reached} are counted, there are rows up to {ends}")
        self._counters(emitted, judge.duplicates)
        return emitted

    def _counters(self, emitted: Mapping[int, ExpectedOutput], duplicates: int) -> None:
        counters = {} if not self.commits else self.commits[-1].counters
        found = {name: n for name, n in counters.items() if name.startswith("dead.") and n}
        dead = Counter(f"dead.{reason}" for one in emitted.values() for reason, _ in one.dead_letters)
        if found != dead:
            raise Broken(f"dead letters are {found}, the oracle has {dict(dead)}")
        if counters.get("duplicates", 0) != duplicates:
            raise Broken(
                f"{counters.get('duplicates', 0)} duplicates are counted, the oracle has {duplicates}"
            )

    def _rows(self, commit: Commit, step: Step, reached: dict[Partition, int]) -> list[Row]:
        rows: list[Row] = []
        for partition, first in sorted(step.first_offsets.items()):
            before, end = reached.get(partition, 0), step.next_offsets[partition]
            if first > before:
                raise Broken(
                    f"commit {commit.commit} begins at {first} of {partition}, rows from {before} on are lost"
                )
            rows += self.stage.rows[partition][before:end]
        reached.update(merge(reached, step.next_offsets))
        if dict(commit.next_offsets) != reached:
            raise Broken(f"commit {commit.commit} says {dict(commit.next_offsets)}, its steps {reached}")
        if len(rows) != step.rows:
            raise Broken(f"commit {commit.commit} counted {step.rows} rows, its slice has {len(rows)}")
        return rows

    def published(self, emitted: Mapping[int, ExpectedOutput]) -> None:
        """Check that a reader of each operator's sink sees the oracle's rows of every commit, once."""
        for name, outlet in self.stage.outlets.items():
            seen: dict[int, list[Any]] = defaultdict(list)
            for row in outlet.read():
                seen[row.commit].append(row)
            for commit in sorted({*seen, *emitted}):
                wanted = emitted[commit].rows.get(name, []) if commit in emitted else []
                how = difference(seen.get(commit, []), wanted)
                if how is not None:
                    raise Broken(f"the sink of {name!r}, commit {commit}: {how}")

    def dead_letters(self, emitted: Mapping[int, ExpectedOutput]) -> None:
        """Check the dead-letter sink: it has those of every commit, or some where a step has more than are kept whole."""
        received = self.stage.dead_letters.dead_letters
        limit = min(part.dead_letter_limit for part in self.stage.feed.parts.values())
        for commit in sorted({*received, *emitted}):
            found = [self._letter(letter) for letter in received.get(commit, [])]
            due = [self._placed(one) for one in emitted[commit].dead_letters] if commit in emitted else []
            how = letters_differ(found, due, at_least=limit)
            if how is not None:
                raise Broken(f"commit {commit}: {how}")

    def _letter(self, letter: DeadLetter) -> Letter:
        position, input = letter.position, self.stage.feed.inputs.get(letter.input or ONLY)
        if position is not None and input is not None:
            position = position._replace(source=input.source_prefix + position.source)
        return self._placed((letter.reason, position))

    def _placed(self, letter: Letter) -> Letter:
        """Return a dead letter with its position if that is of the input: rows inside a graph are numbered in each shard."""
        reason, position = letter
        outside = position is not None and position.source in self.stage.topics
        return reason, Position(*position) if outside and position is not None else None

    def state(self) -> None:
        """Check every shard, from any executor's store or from none, against an undisturbed run over the same steps."""
        stage = self.stage
        assert self.log.epoch is not None
        total = len(self.commits)
        for shard in range(stage.shards):
            wanted = self._undisturbed(shard)
            stores = [os.path.join(self.world.folder, f"executor-{n}") for n in range(EXECUTORS)]
            local = self.world.random.choice([*stores, os.path.join(self.world.folder, "nothing")])
            spec = replace(stage.spec(self.log.epoch.job, 0), shard=shard, local=local)
            replay = stage.replay(shard) if stage.losses else None
            opened = Shard.open(spec, total, self.log.commits, lock_wait_s=0.0, replay=replay)
            for cf in wanted.cfs:
                found, due = dict(opened.kv.scan(cf)), dict(wanted.scan(cf))
                if found != due:
                    odd = sorted(k for k in {*found, *due} if found.get(k) != due.get(k))
                    raise Broken(
                        f"{len(odd)} keys of {cf} of shard {shard} are not as undisturbed: {odd[:3]}"
                    )
            opened.close()

    def _undisturbed(self, shard: int) -> MemoryKV:
        definitions = self.stage.definitions
        kv = MemoryKV([cf for definition in definitions for cf in definition.logic().cfs()])
        for commit, rows in zip(self.commits, self.slices, strict=True):
            over, now_us = Overlay(kv), commit.steps[0].now_us
            for definition, input_rows in tasks.by_definition(definitions, self.stage.table(rows, shard)):
                watermark_us = commit.meta["watermarks"][definition.name]
                tasks.both_steps(definition.logic(), over, input_rows, watermark_us, now_us)
            kv.write(over.batch)
        return kv


def _batch(intent: Intent) -> tuple[Any, ...]:
    return intent.commit, intent.query_id, intent.batch_id


# -- one schedule: faults that a seed decides, then an undisturbed end, then checks -----------------------------------

#: The most undisturbed drivers that may be needed to finish; a job that needs more does not end.
LAST_DRIVERS = 8


class Simulation:
    """The schedule of one seed. `run` plays it and checks the result."""

    def __init__(
        self,
        seed: int,
        folder: str,
        played: Played,
        *,
        outlet: OutletOf | None = None,
        faults: Collection[int] | None = None,
    ) -> None:
        # A stream of its own: the job of a seed stays the same, whatever a schedule draws.
        feed = feed_of(played, Random(f"job of {seed}"))
        self.world = world = World(seed, folder, faults=faults, now_us=feed.start_us, unit_us=feed.unit_us)
        self.stage = stage = Stage(world, feed, outlet)
        self.kafka = stage.kafka
        self.kafka.step = self._kafka_step
        self._came = 0
        self._queries = 0
        self._gaps = 0  # queries that began above the job's offsets, which has to fail
        self._drivers = 0
        shown = ", ".join(repr(definition) for definition in feed.definitions)
        world.say(f"    seed {seed}: {shown}")
        world.say(f"    {stage.shards} shards, {len(feed.arrivals)} rows")

    def run(self) -> None:
        """Play faults, an undisturbed end, and checks. Raises `Broken`, or any error that may not happen."""
        world = self.world
        with self.stage.patched():
            try:
                self._disturbed()
                self._undisturbed()
                Checks(self.stage).all()
            finally:
                world.end()

    # -- faults ---------------------------------------------------------------------------------------------------

    def _disturbed(self) -> None:
        world = self.world
        self._checkpoint = self._new_query(None)
        for _ in range(world.random.randint(8, 26)):
            world.now_us += 0 if world.chance(0.2) else world.random.randrange(3 * world.unit_us)
            if world.chance(0.4):
                self._produce(world.random.randint(3, 12))
            self._event()
            waiting = [a for a in world.actors if not a.ended]
            drivers = [a for a in waiting if a.process.name.startswith("driver")]
            another = drivers and len(waiting) < 5 and world.chance(0.06)
            if another and not world.inject_fault(
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
        self._lose_messages()
        chosen = world.random.random()
        if chosen < 0.03:
            if world.inject_fault("power lost", "the power is cut"):
                world.lose_power()
                if world.chance(0.5):
                    self._forget_plan()
        elif chosen < 0.05:
            if world.inject_fault("clock stepped back", "the clock steps back"):
                world.now_us -= world.random.randrange(30 * world.unit_us)
        elif chosen < 0.09:
            self._harm_store()
        elif chosen < 0.12:
            if world.inject_fault("checkpoints lost", "Spark's checkpoint is lost"):
                self._checkpoint = self._new_query(self._checkpoint)
        elif chosen < 0.14:
            self._lose_snapshots()
        elif chosen < 0.24 and self.kafka.late:
            self._deliver_late()
        elif (
            chosen > 0.97
            and self.kafka.open_transactions
            and world.inject_fault("transactions expired", "open transactions expire")
        ):
            self.kafka.expire_transactions()

    def _harm_store(self) -> None:
        """Lose or damage a local store that no process has open."""
        world = self.world
        found = self.stage.stores()
        if not found:
            return
        path = world.random.choice(found)
        if world.chance(0.5):
            if world.inject_fault("stores lost", f"the store {os.path.basename(path)} is lost"):
                shutil.rmtree(path)
        elif world.inject_fault("stores damaged", f"the store {os.path.basename(path)} is damaged"):
            with open(os.path.join(path, "000001.sst"), "r+b") as file:
                file.write(b"damaged!")

    def _lose_snapshots(self) -> None:
        """Lose snapshots, and stores with them; without kept messages, window metadata comes back from its changelog."""
        stage, world = self.stage, self.world
        if any(d.logic().message_cfs for d in stage.definitions) or not os.path.isdir(stage.snapshots):
            return
        if world.inject_fault("snapshots lost", "all snapshots are lost, and stores that nobody has open"):
            shutil.rmtree(stage.snapshots)
            os.mkdir(stage.snapshots)
            for path in stage.stores():
                shutil.rmtree(path)

    def _lose_messages(self) -> None:
        """Lose snapshots, segments and some of the stores: one executor may have the store that another needs.

        Only jobs that read them again lose messages.
        """
        stage, world = self.stage, self.world
        if not stage.replays or not world.chance(0.08) or not os.path.isdir(stage.snapshots):
            return
        if not world.inject_fault("messages lost", "all snapshots and segments are lost, and some stores"):
            return
        stage.losses += 1
        for folder in (stage.snapshots, os.path.join(stage.location, "segments")):
            shutil.rmtree(folder)
            os.mkdir(folder)
        for path in stage.stores():
            if world.chance(0.7):
                world.say(f"    {os.path.relpath(path, world.folder)} is lost")
                shutil.rmtree(path)

    def _forget_plan(self) -> None:
        """Lose Spark's last plans, not yet on the disk; these batches come again with other slices, committed or not."""
        checkpoint = self._checkpoint
        last = max(checkpoint.planned, default=-1)
        first = max(last - self.world.random.choice([0, 0, 1]), 0)
        for batch_id in range(first, last + 1):
            self.world.say(f"    the plan of batch {batch_id} is lost")
            self.world.counts["plans lost"] += 1
            del checkpoint.planned[batch_id]
        checkpoint.done = min(checkpoint.done, first - 1)

    def _new_query(self, before: Checkpoint | None, *, obedient: bool = False) -> Checkpoint:
        """Begin a new query: at the job's offsets, or somewhere near (obedient: exactly there)."""
        self._queries += 1
        name = f"query {self._queries}"
        if before is None:
            return Checkpoint(name, dict.fromkeys(self.stage.rows, 0))
        reached = self.stage.reached()
        self.stage.records.settle()  # as `job_offsets` does
        start = {partition: reached.get(partition, 0) for partition in self.stage.rows}
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

    def _produce(self, n: int) -> None:
        """Add the next so many rows to the input."""
        arrivals = self.stage.feed.arrivals[self._came : self._came + n]
        for name, row in arrivals:
            self.stage.produce(name, self.world.random.randrange(PARTITIONS), row)
        self._came += len(arrivals)

    def _show_gaps(self) -> None:
        """Add further rows: a gap of one row shows only once another row follows it."""
        last = {name: row for name, row in self.stage.feed.arrivals}
        for name, row in last.items():
            for partition in [*range(PARTITIONS)] * 2:
                self.stage.produce(name, partition, row)

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
        driver = Driver(self.stage, self._checkpoint, self._drivers)
        self.world.say(f"    {driver.process} starts with {self._checkpoint.query_id}")
        actor = self.world.start(driver.process, driver.main)
        actor.resume()
        self._look(actor)
        return driver

    def _look(self, actor: Any) -> None:
        """Check that a process ended with an error that may happen."""
        error = actor.error
        if error is None:
            return
        actor.error = None
        if not isinstance(error, ProcessDied):
            self.world.say(f"    {actor.process} ends: {type(error).__name__}: {str(error)[:160]}")
        if actor.process.name.startswith("zombie"):
            return  # its results count no more, and its files may be gone
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
        """Add all rows, end the waiting processes one after the other, and let a last driver finish the job."""
        world = self.world
        world.calm = True
        world.say("    from here on nothing goes wrong")
        self._produce(len(self.stage.feed.arrivals))
        if self._gaps:
            self._show_gaps()
        waiting = [a for a in world.actors if not a.ended]
        world.random.shuffle(waiting)
        later = len(waiting) // 2
        for actor in waiting[later:]:
            actor.resume()
            self._look(actor)
        if world.chance(0.5):
            self.kafka.deliver_late()
        for _ in range(LAST_DRIVERS):
            world.now_us += world.unit_us
            last = self._start()
            if not self._left() and last.process.alive:
                break
        else:
            raise Broken(
                f"{LAST_DRIVERS} undisturbed drivers have not finished the job; the last: {world.trace[-1]}"
            )
        self._drivers += 1
        driver = Driver(self.stage, self._checkpoint, self._drivers)
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
        """True if there are rows that no commit has taken."""
        reached = self.stage.reached()
        return any(reached.get(partition, 0) < end for partition, end in self.stage.ends().items())


# -- runner -----------------------------------------------------------------------------------------------------------


def play(
    seed: int,
    *,
    job: Played = drawn,
    outlet: OutletOf | None = None,
    faults: Collection[int] | None = None,
) -> Report:
    """Play the schedule of a seed, with those of its faults alone (default: all)."""
    need(
        "confluent_kafka", "testing", "the simulation"
    )  # some seeds keep the log, or put rows, in a Kafka that is simulated
    shared = "/dev/shm"
    with (
        tempfile.TemporaryDirectory(
            prefix="windrow-", dir=shared if os.path.isdir(shared) else None
        ) as folder,
        _one_core(),
        quiet(),
    ):
        inner = os.path.join(folder, "world")  # the disk has a folder next to it
        os.mkdir(inner)
        simulation = Simulation(seed, inner, job, outlet=outlet, faults=faults)
        failure: BaseException | None = None
        try:
            simulation.run()
        except (Exception, ProcessDied) as error:
            failure = error
        world = simulation.world
        return Report(seed, tuple(world.faults), world.trace, world.counts, failure)


def shrink(seed: int, *, job: Played = drawn, outlet: OutletOf | None = None) -> Report:
    """Return the schedule of a failing seed with as few of its faults as it takes to fail."""
    again = partial(play, job=job, outlet=outlet)
    return shrunk(again, again(seed))


def simulate(
    operators: Any,
    messages: Any = None,
    *,
    seeds: int = 100,
    first: int = 0,
    processes: int = 1,
    sink: str | OutletOf | None = None,
) -> Summary:
    """Play a job of yours under kills, lost power, several drivers and lost answers, a schedule a seed.

    operators: a definition, several that are one job, or a `Scenario`; or a function of a `random.Random` that gives one, so
        that each seed has a job of its own
    messages: dicts, or a pyarrow Table, in the order in which they come; {input: these} where inputs have names; or a function
        of a `random.Random` that gives them
    seeds, first: how many, from which on
    processes: in so many processes; what is played has to be picklable
    sink: the kind of sink: "kafka", "memory" or "parquet"; by default any

    Real are checkpoint, shards, recovery and the driver's decisions; Spark, Kafka, disk and clocks are simulated. The rows and
    dead letters of every commit are compared with the oracle, and the state with that of an undisturbed run. Raises
    `SeedFailed` with the smallest schedule that shows the error. The same seeds play the same schedules everywhere. Needs the
    extra `testing`.

    >>> import windrow as wr
    >>> counts = wr.Aggregate(event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()})
    >>> summary = simulate(counts, [{"t": f"2013-07-01 05:{minute}Z"} for minute in range(10, 50)], seeds=3)
    >>> summary.failed
    0
    """
    job = scenario_of(operators, messages)
    outlet = outlet_of(sink) if isinstance(sink, str) else sink
    each = partial(play, job=job, outlet=outlet)
    return check(each, range(first, first + seeds), processes, "simulate(..., first={seed}, seeds=1)")


def outlet_of(name: str | None) -> OutletOf | None:
    """Return the sink of that name, or of module:factory; None for any."""
    if name is None or name in OUTLETS:
        return None if name is None else OUTLETS[name]
    made: Any = load_name(name)
    outlet: OutletOf = made
    return outlet


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Use one core: for tables of a few rows more threads only cost."""
    before = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        yield
    finally:
        pa.set_cpu_count(before)
