"""What a simulated job lives in: processes that take turns and die, a disk, a log's records, stores and clocks that fail.

Processes are threads of which one runs at a time. Whenever real code reaches one of the media here it passes a *point*, where
the schedule may let another process run, or end this one. All choices come from one seed, so a schedule can be played again.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import stat
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import xxhash

from windrow.checkpoint import log
from windrow.checkpoint.records import Record, decode, decode_payload
from windrow.checkpoint.storage import MemoryRecords
from windrow.connectors import manifests
from windrow.core.errors import CorruptState, StateLocked
from windrow.stores.files import write_whole
from windrow.stores.kv import Batch
from windrow.testing.faults import FaultyKV, SimulatedCrash
from windrow.testing.simulated_kafka import Outcome

#: How often what happens where it can.
DIES, PARKS, UNANSWERED = 0.015, 0.025, 0.04

#: What passes between two looks at the clock of somebody who waits.
PATIENCE_S = 5.0

READS = "reads the log"
SWEEPS, TRUNCATES = "6 sweep", "6 truncation"

_STEP_OF = {
    "changelog": "3.2 files",
    "segments": "3.2 files",
    "panes": "3.2 files",
    "dead": "3.2 files",
    "snapshots": "6 snapshot",
    "executor-0": "3.1 store",
    "executor-1": "3.1 store",
    "sink": "5 sink",
}


class ProcessDied(SimulatedCrash):
    """This process is dead. Nobody but who started it may catch it."""

    def __init__(self, process: Process) -> None:
        super().__init__(f"{process.name} is dead")
        self.process = process


class Unanswered(OSError):
    """A request was sent, and what became of it is not known."""


class Process:
    """Something that can die: a driver, or an attempt at a task."""

    def __init__(self, name: str, parent: Process | None = None) -> None:
        self.name = name
        self.parent = parent
        self.alive = True
        self.stores: list[SimulatedStore] = []

    def __repr__(self) -> str:
        return self.name


class Actor:
    """A thread that runs when it is given the turn. `error`: what it ended with, if not with its process."""

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
    """One seed's processes and media.

    faults: so many things go wrong, and no more; what cuts the tail of a schedule. calm: nothing goes wrong.
    """

    def __init__(self, seed: int, folder: str, faults: int | None = None) -> None:
        self.seed, self.folder = seed, folder
        self.random = random.Random(seed)
        self._names = random.Random(seed + 1)
        self.limit = faults
        self.faults = 0
        #: What may make a request fail: faults, what came of them later, and what other processes do.
        self.trouble = 0
        self.calm = False
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        self.actors: list[Actor] = []
        self.actor: Actor | None = None
        self._back = threading.Semaphore(0)
        self.now_us = 1_000_000_000_000_000
        self._waited_s = 0.0
        self.disk = Disk(self)
        self.records = SimulatedRecords(self)
        self.open_stores: dict[str, SimulatedStore] = {}

    # -- chance -----------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.trace.append(text)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def goes_wrong(self, kind: str, text: str) -> bool:
        """True if it does; noted, and counted by kind. False where the schedule has been cut."""
        if self.calm:
            return False
        if self.limit is not None and self.faults >= self.limit:
            self.calm = True
            return False
        self.faults += 1
        self.trouble += 1
        self.counts[kind] += 1
        self.say(f"{self.faults:3} {text}")
        return True

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Nothing goes wrong inside, and nobody else gets the turn."""
        before, self.calm = self.calm, True
        try:
            yield
        finally:
            self.calm = before

    def monotonic(self) -> float:
        """Who waits asks for the time, and each time he does, some has passed."""
        self._waited_s += PATIENCE_S
        return self._waited_s

    # -- processes --------------------------------------------------------------------------------------------------

    @property
    def process(self) -> Process | None:
        """Who runs; None while the schedule itself does."""
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
            if self.goes_wrong(f"dies: {step}", f"{victim} dies: {what}"):
                self.kill(victim)
                raise ProcessDied(victim)
        elif chosen < DIES + PARKS:
            self.say(f"    {process} waits: {what}")
            self.park()

    def unanswered(self, step: str, what: str, times: int = 1) -> Outcome | None:
        """What becomes of a request whose sender hears nothing, so many times as often as usual; None for all others."""
        self.point(step, what)
        if self.actor is None or self.calm or not self.chance(times * UNANSWERED):
            return None
        outcome = self.random.choice(list(Outcome))
        if self.goes_wrong("unknown outcome", f"{self.process} hears nothing: {what}, {outcome.value}"):
            return outcome
        return None

    def park(self) -> None:
        """Let others run."""
        actor = self.actor
        assert actor is not None
        actor.park()
        for process in (actor.running, actor.process):
            if not process.alive:
                raise ProcessDied(process)

    def kill(self, process: Process) -> None:
        """End a process, and what runs inside it. Its stores keep what was flushed, and perhaps more."""
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
        """What runs inside is another process on the same thread."""
        actor = self.actor
        assert actor is not None
        outer, actor.running = actor.running, process
        try:
            yield
        finally:
            actor.running = outer

    def lose_power(self) -> None:
        """Every process dies at once, and the disk forgets what was not synced."""
        for actor in self.actors:
            if not actor.ended:
                self.kill(actor.process)
        self.reap()
        self.disk.lose()
        self.records.lose()

    def reap(self) -> None:
        """Let the threads of dead processes end."""
        for actor in self.actors:
            if not actor.ended and not actor.process.alive:
                actor.resume()

    def end(self) -> None:
        """No process is left."""
        self.calm = True
        for actor in self.actors:
            if not actor.ended:
                self.kill(actor.process)
        self.reap()

    # -- patches ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """The operating system is ours as long as this lasts: what syncs and names files, waiting, and random names."""
        ours: list[tuple[Any, str, Any]] = [
            (
                log,
                "decode_payload",
                lru_cache(None)(decode_payload),
            ),  # a schedule reads its log very often
            (os, "fsync", self.disk.fsync),
            (os, "link", self.disk.link),
            (os, "rename", self.disk.rename),
            (os, "unlink", self.disk.unlink),
            (manifests, "RECORDS", 3),  # few commits are many here
            (manifests, "RUN_LEAST", 2),
            (secrets, "token_hex", lambda n=32: self._names.randbytes(n).hex()),
            (time, "monotonic", self.monotonic),
            (uuid, "uuid4", lambda: uuid.UUID(bytes=self._names.randbytes(16), version=4)),
        ]
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in ours]
        for owner, name, value in ours:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)


class Clock:
    """The clock of one machine: the world's, and its own error."""

    def __init__(self, world: World, skew_us: int) -> None:
        self._world, self._skew_us = world, skew_us

    def now_us(self) -> int:
        return self._world.now_us + self._skew_us


class Disk:
    """A folder of real files, of which is known what a power cut would leave.

    A file's content survives as of its last fsync, a name as of the last fsync of its folder. What was not synced may be there
    all the same, wholly, in part or not. A name that a rename has given to another file is one of the two.
    """

    _fsync, _link, _rename = staticmethod(os.fsync), staticmethod(os.link), staticmethod(os.rename)
    _unlink = staticmethod(os.unlink)

    def __init__(self, world: World) -> None:
        self._world = world
        self._contents: dict[int, int] = {}  # size, by inode
        self._names: dict[int, set[tuple[str, int]]] = {}  # (name, inode), by the folder's inode
        #: Links to what a synced name was of, by the folder's inode and the name.
        self._replaced: dict[tuple[int, str], str] = {}
        self._aside = f"{world.folder}-aside"

    def fsync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        folder = stat.S_ISDIR(status.st_mode)
        self._point(path, "folder is synced" if folder else "file is synced")
        if folder:
            with os.scandir(descriptor) as entries:
                self._names[status.st_ino] = {(e.name, e.inode()) for e in entries}
            self._let_go([r for r in self._replaced if r[0] == status.st_ino])
        else:
            self._contents[status.st_ino] = status.st_size

    def link(self, source: str, target: str, **more: Any) -> None:
        self._point(os.fspath(target), "file is linked")
        self._link(source, target, **more)

    def rename(self, source: str, target: str, **more: Any) -> None:
        self._point(os.fspath(target), "file is renamed")
        self._set_aside(os.fspath(target))
        self._rename(source, target, **more)

    def unlink(self, path: str, **more: Any) -> None:
        """Deleted at once: that a power cut brings it back harms nobody."""
        if not more and self._is_in_sink(path):
            self._point(os.fspath(path), "file is removed")
        elif not more and not os.fspath(path).endswith(".tmp"):
            self._world.point(SWEEPS, "before a file is deleted")
        self._unlink(path, **more)

    def _is_in_sink(self, path: str) -> bool:
        return os.path.relpath(path, self._world.folder).split(os.sep)[0] == "sink"

    def _set_aside(self, target: str) -> None:
        """Keep a file whose synced name is about to be another's."""
        folder, name = os.stat(os.path.dirname(target)).st_ino, os.path.basename(target)
        if (folder, name) in self._replaced:
            return  # what is there now was never synced, whatever its number
        if os.path.isfile(target) and (name, os.stat(target).st_ino) in self._names.get(folder, ()):
            os.makedirs(self._aside, exist_ok=True)
            kept = os.path.join(self._aside, f"{folder}-{name}")
            self._link(target, kept)
            self._replaced[folder, name] = kept

    def _point(self, path: str, what: str) -> None:
        parts = os.path.relpath(path, self._world.folder).split(os.sep)
        top = next((p for p in parts if p in _STEP_OF), parts[0])
        self._world.point(_STEP_OF.get(top, top), f"before a {what} in {top}")

    def keep(self, path: str) -> None:
        """As it is, this file survives."""
        status, folder = os.stat(path), os.stat(os.path.dirname(path))
        self._contents[status.st_ino] = status.st_size
        name = os.path.basename(path)
        before = {n for n in self._names.get(folder.st_ino, ()) if n[0] != name}
        self._names[folder.st_ino] = {*before, (name, status.st_ino)}
        self._let_go([(folder.st_ino, name)])

    def _let_go(self, replaced: Iterable[tuple[int, str]]) -> None:
        for folder, name in replaced:
            kept = self._replaced.pop((folder, name), None)
            if kept is not None:
                self._unlink(kept)

    def lose(self) -> None:
        """The power is cut."""
        self._lose(self._world.folder, True)
        for folder, _, files in os.walk(self._world.folder):  # what is there now is on the disk
            with os.scandir(folder) as entries:
                self._names[os.stat(folder).st_ino] = {(e.name, e.inode()) for e in entries}
            for status in (os.stat(os.path.join(folder, name)) for name in files):
                self._contents[status.st_ino] = status.st_size
        self._let_go(list(self._replaced))

    def _lose(self, folder: str, everything_here: bool) -> None:
        chance = self._world.random
        inode = os.stat(folder).st_ino
        synced = self._names.get(inode, set())
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda e: e.name)
        for entry in entries:
            kept = everything_here and entry.name in ("executor-0", "executor-1", "sink", "job")
            if not kept and (entry.name, entry.inode()) not in synced and chance.random() < 0.5:
                self._world.counts["lost: names"] += 1
                if entry.is_dir():
                    shutil.rmtree(entry.path)
                elif (inode, entry.name) in self._replaced:
                    self._rename(self._replaced.pop((inode, entry.name)), entry.path)
                else:
                    self._unlink(entry.path)
            elif entry.is_dir():
                self._lose(entry.path, False)
            else:
                size = entry.stat().st_size
                if size and self._contents.get(entry.inode()) != size and chance.random() < 0.7:
                    self._world.counts["torn: files"] += 1
                    os.truncate(entry.path, chance.randrange(size))


class SimulatedRecords(MemoryRecords):
    """The records of a log. A creation may fail with the record there, not there, or torn; the last one may not be synced."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._unsynced: set[int] = set()
        #: What was truncated: the whole history, for the checks.
        self.removed: dict[int, bytes] = {}
        self.writes = "log"  # what is being written, for the points

    def create(self, seq: int, data: bytes) -> bool:
        world, what = self._world, f"record {seq} ({self.writes})"
        outcome = world.unanswered(self.writes, f"before {what}")
        if outcome is Outcome.LOST:
            raise Unanswered(f"no answer to {what}")
        if seq in self.records:
            return False
        torn = outcome is Outcome.LATE and seq == max(self.records, default=-1) + 1
        self.records[seq] = data[: world.random.randrange(len(data))] if torn else data
        self._unsynced.add(seq)
        if outcome is not None:
            raise Unanswered(f"no answer to {what}")
        world.point(self.writes, f"{what} is there, not synced")
        self._unsynced.clear()
        world.point(self.writes, f"{what} is synced")
        return True

    def remove(self, seq: int) -> None:
        self._world.point(TRUNCATES, f"before record {seq} is removed")
        if seq in self.records:
            self._world.counts["records truncated"] += 1
            # Not what somebody who is over has put there when the number was free again.
            self.removed.setdefault(seq, self.records[seq])
        super().remove(seq)

    def mark_truncated(self) -> None:
        self._world.point(TRUNCATES, "before the log is marked as truncated")
        super().mark_truncated()

    def history(self) -> list[Record]:
        """All records that were ever part of the log, in order."""
        found = []
        for _, data in sorted({**self.records, **self.removed}.items()):
            with contextlib.suppress(CorruptState):  # torn, and declared void
                found.append(decode(data))
        return found

    def read(self, seq: int) -> bytes | None:
        self._world.point(READS, READS)
        return super().read(seq)

    def settle(self) -> None:
        """Somebody who keeps what was read has synced it."""
        self._unsynced.clear()

    def lose(self) -> None:
        """The power is cut: what was not synced may be gone or torn, and what was removed may be there again."""
        if self.is_truncated():
            back = [seq for seq in self.removed if seq not in self.records and self._world.chance(0.1)]
            self.records.update({seq: self.removed[seq] for seq in back})
        for seq in sorted(self._unsynced, reverse=True):
            chance = self._world.random.random()
            if chance < 0.4 and seq == max(self.records):
                del self.records[seq]
                self._world.counts["lost: records"] += 1
            elif chance < 0.7 and seq == max(self.records):
                self.records[seq] = self.records[seq][
                    : self._world.random.randrange(len(self.records[seq]) + 1)
                ]
                self._world.counts["torn: records"] += 1
        self._unsynced.clear()


class SimulatedStore(FaultyKV):
    """A shard's store: in memory, and in one file of its folder as of its last flush. Who has it open has it alone."""

    def __init__(self, world: World, path: str, cfs: Sequence[str]) -> None:
        super().__init__(cfs)
        self._world = world
        self.path = path
        world.point("3.1 store", "before a store is opened")
        if path in world.open_stores:
            raise StateLocked(f"the store {path} is open in {world.open_stores[path]}")
        os.makedirs(path, exist_ok=True)
        file = os.path.join(path, "000001.sst")
        if os.path.exists(file):
            with open(file, "rb") as stored:
                data = stored.read()
            if xxhash.xxh3_64_digest(data[8:]) != data[:8]:
                raise CorruptState(f"the store {path} is damaged")
            self._alive().write(batch := Batch.decode(data[8:]))
            self._durable.extend(batch)
        else:
            write_whole(file, [self._image()], fsync=False)
        world.open_stores[path] = self
        self._process = world.process
        if self._process is not None:
            self._process.stores.append(self)

    def __repr__(self) -> str:
        return f"<store of {self._process}>"

    def _image(self) -> bytes:
        data = self._durable.encode()
        return xxhash.xxh3_64_digest(data) + data

    def write(self, batch: Batch) -> None:
        self._world.point("3.1 store", "before a segment is applied")
        super().write(batch)

    def checkpoint(self, path: str) -> None:
        super().flush()
        os.makedirs(path)
        write_whole(os.path.join(path, "000001.sst"), [self._image()], fsync=False)

    def close(self) -> None:
        if self._world.open_stores.get(self.path) is not self:
            self._world.point("3.1 store", "a store is closed")  # raises where its process is dead
            return
        self._world.point("3.1 store", "before a store is closed")
        super().close()
        write_whole(os.path.join(self.path, "000001.sst"), [self._image()], fsync=False)
        self._world.disk.keep(os.path.join(self.path, "000001.sst"))
        self._let_go()
        if self._process is not None and self in self._process.stores:
            self._process.stores.remove(self)

    def die(self, survivors: int) -> None:
        """Its process died: the first `survivors` of the batches that were not flushed are there as well."""
        if self._world.open_stores.get(self.path) is not self:
            return
        for batch in self._unflushed[:survivors]:
            self._durable.extend(batch)
        self._live = None
        file = os.path.join(self.path, "000001.sst")
        if os.path.isdir(self.path):
            with open(file, "wb") as stored:
                stored.write(self._image())
            self._world.disk.keep(file)
        self._let_go()

    def _let_go(self) -> None:
        del self._world.open_stores[self.path]
