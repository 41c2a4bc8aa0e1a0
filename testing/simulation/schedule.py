"""One schedule: faults that a seed decides, then an undisturbed end, then checks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from random import Random
from typing import Any

from windrow.connectors.kafka import client
from windrow.core.errors import Fenced, OffsetGap, SinkFailed, SourceBehind
from windrow.testing.expected_output import Broken
from windrow.testing.scenario import Played, feed_of
from windrow.testing.simulated_kafka import Outcome
from windrow.testing.simulation.checks import Checks
from windrow.testing.simulation.environment import Stage
from windrow.testing.simulation.sinks import PARTITIONS, OutletOf
from windrow.testing.simulation.spark import Checkpoint, Driver, TaskFailed, short
from windrow.testing.simulation.world import ProcessDied, World

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
