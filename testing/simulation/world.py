"""World of a simulation: processes that take turns and die, and chance.

Processes are threads of which one runs at a time. Whenever real code reaches one of the simulated media it passes a *point*,
where the schedule may let another process run, or end this one. All choices come from one seed, so a schedule can be played
again.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from windrow.stores.quarantine import TURN
from windrow.testing.faults import SimulatedCrash
from windrow.testing.simulated_kafka import Outcome

#: The probability of a death, a pause and a lost answer at each point.
DIES, PARKS, UNANSWERED = 0.015, 0.025, 0.04

#: The time that passes between two looks at the clock of a waiting process.
PATIENCE_S = 5.0

READS = "reads the log"
SWEEPS, TRUNCATES = "6 sweep", "6 truncation"


class ProcessDied(SimulatedCrash):
    """The end of a process. Only the code that started the process may catch it."""

    def __init__(self, process: Process) -> None:
        super().__init__(f"{process.name} is dead")
        self.process = process


class Unanswered(OSError):
    """A request whose outcome is unknown."""


class Open(Protocol):
    """A store that a process has open."""

    @property
    def unflushed(self) -> int:
        """Return the number of last batches that may be lost with the process."""

    def die(self, survivors: int) -> None:
        """Kill its process: of these batches the first so many are kept as well."""


class Medium(Protocol):
    """A medium that survives a power cut."""

    def lose(self) -> None:
        """Cut the power: data that was not synced may be gone."""


class Process:
    """A process that can die: a driver, or an attempt at a task."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.stores: list[Open] = []

    def __repr__(self) -> str:
        return self.name


class Actor:
    """A thread that runs in turn. `error`: the error that it ended with, if not with its process."""

    def __init__(self, world: World, process: Process, main: Callable[[], object]) -> None:
        self.process = process
        self.running: Process = process
        self.ended = False
        self.error: BaseException | None = None
        self._go = threading.Semaphore(0)
        self._world, self._main = world, main
        self._thread = threading.Thread(target=self._run, name=process.name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if self.process.alive:
                self._main()
        except ProcessDied:
            pass
        except BaseException as error:
            self.error = error
        self.ended = True
        self._world._back.release()

    def resume(self) -> None:
        """Give the turn, until it parks or ends."""
        self._world.actor = self
        self._go.release()
        self._world._back.acquire()
        self._world.actor = None
        if self.ended:
            self._thread.join()

    def park(self) -> None:
        """Give the turn back."""
        self._world._back.release()
        self._go.acquire()


class World:
    """The processes of one seed, and its faults.

    faults: the numbers of those that happen, of all that the seed would have; None: all. unit_us: the unit of its clock.
    calm: no fault happens.
    """

    def __init__(
        self,
        seed: int,
        folder: str,
        *,
        faults: Collection[int] | None = None,
        now_us: int = 0,
        unit_us: int = 1_000_000,
    ) -> None:
        self.seed, self.folder = seed, folder
        self.random = random.Random(seed)
        self.only = None if faults is None else frozenset(faults)
        #: The number of possible faults so far, and the numbers of those that happened.
        self.chances = 0
        self.faults: list[int] = []
        #: Events that may make a request fail: faults, their later effects, and other processes.
        self.trouble = 0
        self.calm = False
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        self.actors: list[Actor] = []
        self.actor: Actor | None = None
        self._back = threading.Semaphore(0)
        self.now_us, self.unit_us = now_us, unit_us
        self._waited_s = 0.0
        #: The media that a power cut takes from, in this order.
        self.media: list[Medium] = []
        #: The open store of each folder.
        self.open_stores: dict[str, Open] = {}
        self.copies = 0  # of stores, that snapshots were made from

    # -- chance -----------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.trace.append(text)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def inject_fault(self, kind: str, text: str) -> bool:
        """True if it does; noted, and counted by kind. False where the schedule has been cut."""
        if self.calm:
            return False
        self.chances += 1
        if self.only is not None and self.chances not in self.only:
            self.calm = self.chances > max(self.only, default=0)
            return False
        self.faults.append(self.chances)
        self.trouble += 1
        self.counts[kind] += 1
        self.say(f"{self.chances:3} {text}")
        return True

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Run the body without faults, and without a turn of another process."""
        before, self.calm = self.calm, True
        try:
            yield
        finally:
            self.calm = before

    def monotonic(self) -> float:
        """Return the time; a waiting process asks for it, and each call lets some time pass."""
        self._waited_s += PATIENCE_S
        return self._waited_s

    # -- processes --------------------------------------------------------------------------------------------------

    @property
    def process(self) -> Process | None:
        """Return the running process; None while the schedule itself runs."""
        return None if self.actor is None else self.actor.running

    def start(self, process: Process, main: Callable[[], object]) -> Actor:
        actor = Actor(self, process, main)
        self.actors.append(actor)
        return actor

    def point(self, step: str, what: str) -> None:
        """Real code is about to do something, or has done it."""
        actor = self.actor
        if actor is None:
            return
        process = actor.running
        if not (process.alive and actor.process.alive):
            raise ProcessDied(process if not process.alive else actor.process)
        if self.calm:
            return
        # The log is read often, and nothing changes by it; tidying comes seldom, and takes away.
        chosen = self.random.random() * {READS: 5.0, SWEEPS: 0.3, TRUNCATES: 0.3}.get(step, 1.0)
        if chosen < DIES:
            victim = process
            if process is not actor.process and self.chance(0.5):
                victim = actor.process
            if self.inject_fault(f"dies: {step}", f"{victim} dies: {what}"):
                self.kill(victim)
                raise ProcessDied(victim)
        elif chosen < DIES + PARKS:
            self.say(f"    {process} waits: {what}")
            self.park()

    def unanswered(self, step: str, what: str, times: int = 1) -> Outcome | None:
        """Draw the outcome of a request without an answer, so many times as often as usual; None for all others."""
        self.point(step, what)
        if self.actor is None or self.calm or not self.chance(times * UNANSWERED):
            return None
        outcome = self.random.choice(list(Outcome))
        if self.inject_fault("unknown outcome", f"{self.process} hears nothing: {what}, {outcome.value}"):
            return outcome
        return None

    def park(self) -> None:
        """Let others run, unless they would wait for a store that is being moved by this one."""
        if TURN._is_owned():  # type: ignore[attr-defined]
            return
        actor = self.actor
        assert actor is not None
        actor.park()
        for process in (actor.running, actor.process):
            if not process.alive:
                raise ProcessDied(process)

    def kill(self, process: Process) -> None:
        """Kill a process, and those that run inside it. Its stores keep flushed data, and perhaps more."""
        process.alive = False
        for actor in self.actors:
            if actor.process is process and actor.running is not process:
                self._abandon(actor.running)
        self._abandon(process)

    def _abandon(self, process: Process) -> None:
        process.alive = False
        for store in process.stores:
            store.die(self.random.randint(0, store.unflushed))
        process.stores.clear()

    @contextlib.contextmanager
    def inside(self, process: Process) -> Iterator[None]:
        """Run the body as another process on the same thread."""
        actor = self.actor
        assert actor is not None
        outer, actor.running = actor.running, process
        try:
            yield
        finally:
            actor.running = outer

    def lose_power(self) -> None:
        """Kill every process at once, and lose unsynced data of the disk."""
        for actor in self.actors:
            if not actor.ended:
                self.kill(actor.process)
        self.reap()
        for medium in self.media:
            medium.lose()

    def reap(self) -> None:
        """Let the threads of dead processes end."""
        for actor in self.actors:
            if not actor.ended and not actor.process.alive:
                actor.resume()

    def end(self) -> None:
        """End every process."""
        self.calm = True
        for actor in self.actors:
            if not actor.ended:
                self.kill(actor.process)
        self.reap()


class Clock:
    """The clock of one machine: the world's, and its own error."""

    def __init__(self, world: World, skew_us: int) -> None:
        self._world, self._skew_us = world, skew_us

    def now_us(self) -> int:
        return self._world.now_us + self._skew_us
