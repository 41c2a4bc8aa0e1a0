"""The drills: what is done to a running job, and how it is seen that it was done."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

import windrow as wr
from tests.deep import usually
from tests.drills import processes
from tests.drills.world import DrillFailed, World
from windrow.core.errors import Fenced
from windrow.testing import KafkaBroker, Report, damage_file, tear_file

#: Of the job's transactions, where the broker is to be away for longer.
TRANSACTION_S = 4.0
#: Room for a job whose disk is to be full.
DISK_BYTES = 48 << 20
#: Spark's word for two queries that wrote the same batch to its own checkpoint: whoever was later ends, fenced or not.
LOG_UPDATE = "CONCURRENT_STREAM_LOG_UPDATE"

Fault = Callable[[World, random.Random], None]


def kill_driver(world: World, rng: random.Random) -> None:
    """`kill -9` of the driver and of all that it has started."""
    world.job.kill()
    world.restart()


def _kill_one(world: World, rng: random.Random, names: Sequence[str]) -> None:
    """`kill -9` of one process below the job whose command names something."""

    def one_is_dead() -> bool:
        if world.job.ended:
            world.ends += 1
            world.restart()
        candidates = [p for p in processes.of_session(world.job.pid) if any(n in p.command for n in names)]
        return bool(candidates) and processes.kill(rng.choice(candidates).pid)

    world.wait_until(one_is_dead, f"a process of {names} there")


def kill_worker(world: World, rng: random.Random) -> None:
    """`kill -9` of a Python process that runs Spark's tasks."""
    _kill_one(world, rng, ("ready_workers",))


def kill_executor(world: World, rng: random.Random) -> None:
    """`kill -9` of an executor's JVM."""
    _kill_one(world, rng, ("CoarseGrainedExecutorBackend",))


def restart_broker(world: World, rng: random.Random) -> None:
    """The broker is stopped, is away for a while, and comes back."""
    assert world.broker is not None
    world.broker.stop()
    time.sleep(rng.uniform(0, 2))
    world.broker.start()


def kill_broker(world: World, rng: random.Random) -> None:
    """The broker is killed, is away for a while, and comes back."""
    assert world.broker is not None
    world.broker.kill()
    time.sleep(rng.uniform(0, 2))
    world.broker.start()


def pause_broker(world: World, rng: random.Random) -> None:
    """The broker is frozen for longer than a transaction of the job may be open, just when a commit is to go out."""
    assert world.broker is not None
    read = world.read
    world.wait_until(lambda: world.read > read, "a commit")
    time.sleep(rng.uniform(0, 0.05))
    world.broker.pause()
    time.sleep(TRANSACTION_S * rng.uniform(1.2, 1.6))
    world.broker.unpause()


def lose_store(world: World, rng: random.Random) -> None:
    """The local store of one shard is gone, of a driver that was killed or of one that goes on until it is."""
    dead = rng.random() < 1 / 2
    if dead:
        world.job.kill()
    lost = rng.choice(world.stores).rename(world.folder / "lost")
    shutil.rmtree(lost)
    if not dead:
        world.continues()
        world.job.kill()
    world.restart()


def damage_store(world: World, rng: random.Random) -> None:
    """The driver is killed, and one file of a local store has a wrong bit, or its end is missing."""
    world.job.kill()
    files = [f for store in world.stores for f in sorted(store.iterdir()) if f.is_file() and f.stat().st_size]
    file = rng.choice(files)
    at = rng.randrange(file.stat().st_size)
    if rng.random() < 1 / 2:
        damage_file(file, at)
    else:
        tear_file(file, at)
    world.restart()


def lose_checkpoint(world: World, rng: random.Random) -> None:
    """The driver is killed, and Spark's own checkpoint is gone."""
    world.job.kill()
    shutil.rmtree(Path(world.settings["location"]) / "spark")
    world.restart()


def start_second(world: World, rng: random.Random) -> None:
    """A second driver opens the running job: one has to end, and say why. Without Spark it is the first."""
    first, second = world.job, world.start()
    reasons = (Fenced.code,) if world.runner == "embedded" else (Fenced.code, LOG_UPDATE)
    world.job = second
    try:
        world.wait_until(lambda: first.ended or second.ended, "one of two drivers ended")
        loser, world.job = (first, second) if first.ended else (second, first)
        if not any(reason in loser.said for reason in reasons):
            raise DrillFailed(f"a driver ended and named none of {reasons}:\n{loser.said[-4000:]}")
        if loser is second and world.runner == "embedded":
            raise DrillFailed(f"the second driver ended and not the first:\n{second.said[-4000:]}")
    finally:
        for job in (first, second):
            if job is not world.job:
                job.kill()


def fill_disk(world: World, rng: random.Random) -> None:
    """No room is left where the job is: it says so. Then there is room again."""
    filler = world.folder / "filler"
    no_room = os.strerror(errno.ENOSPC)
    said = len(world.job.said)
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    world.wait_until(lambda: world.job.ended or no_room in world.job.said[said:], f"said: {no_room}")
    if no_room not in world.job.said[said:]:
        raise DrillFailed(f"the job ended without {no_room!r}:\n{world.job.said[-4000:]}")
    time.sleep(rng.uniform(0, 1))
    filler.unlink()
    if world.job.ended:
        world.restart()


@dataclass(frozen=True)
class Drill:
    """Plan of a drill. own_broker, small_disk: the cluster, the file system is the drill's alone.

    job: what it does, one of `tests.drills.job`.
    """

    name: str
    runner: str
    fault: Fault
    own_broker: bool = False
    small_disk: bool = False
    job: str = "windows"


DRILLS = {
    drill.name: drill
    for drill in (
        Drill("kill-embedded", "embedded", kill_driver),
        Drill("kill-sessions", "embedded", kill_driver, job="sessions"),
        Drill("kill-over", "embedded", kill_driver, job="over"),
        Drill("kill-driver", "spark", kill_driver),
        Drill("kill-driver-sessions", "spark", kill_driver, job="sessions"),
        Drill("kill-worker-over", "spark", kill_worker, job="over"),
        Drill("kill-worker", "spark", kill_worker),
        Drill("kill-executor", "cluster", kill_executor),
        Drill("second-embedded", "embedded", start_second),
        Drill("second-driver", "spark", start_second),
        Drill("store-lost", "embedded", lose_store),
        Drill("store-damaged", "embedded", damage_store),
        Drill("store-lost-spark", "spark", lose_store),
        Drill("checkpoint-lost", "spark", lose_checkpoint),
        Drill("disk-full", "embedded", fill_disk, small_disk=True),
        Drill("disk-full-spark", "spark", fill_disk, small_disk=True),
        Drill("broker-restart", "embedded", restart_broker, own_broker=True),
        Drill("broker-kill", "embedded", kill_broker, own_broker=True),
        Drill("broker-pause", "embedded", pause_broker, own_broker=True),
        Drill("broker-kill-spark", "spark", kill_broker, own_broker=True),
    )
}


@dataclass(frozen=True)
class Outcome:
    """Result of a drill: the report of the topics, or the reason for its absence."""

    drill: Drill
    seeds: int
    faults: int
    ends: int
    seconds: float
    report: Report | None
    failed: str = ""

    @property
    def ok(self) -> bool:
        return self.report is not None and self.report.ok

    def __str__(self) -> str:
        verdict = self.failed if self.report is None else str(self.report)
        return f"{self.drill.name}: {self.faults} faults in {self.seconds:.0f} s, {self.ends} ends by itself; {verdict}"


def run(drill: Drill, seeds: Sequence[int], kafka: wr.Kafka | None, image: str | None) -> Outcome:
    """Fault after fault, one a seed, in one job; then the count. image: of the broker, where it is the drill's own."""
    began, faults, world = time.monotonic(), 0, None
    report, failed = None, ""
    with contextlib.ExitStack() as stack:
        whole = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="drill-", ignore_cleanup_errors=True))
        )
        folder = whole / "disk"  # what the job says lies beside it, where there is room
        folder.mkdir()
        if drill.small_disk:
            stack.enter_context(_small_disk(folder))
        broker = None
        if drill.own_broker:
            assert image is not None
            broker = stack.enter_context(KafkaBroker(image))
            kafka = _for_absences(broker.kafka)
        assert kafka is not None
        world = World(drill.name, drill.runner, kafka, folder, broker, drill.job)
        stack.callback(world.close)
        try:
            world.continues()
            for seed in tqdm(seeds, drill.name, unit="fault", disable=None):
                rng = random.Random(f"{drill.name}/{seed}")
                time.sleep(rng.uniform(0, 1))
                drill.fault(world, rng)
                faults += 1
                world.continues(rng.randint(1, usually(2, deep=6)))
            report = world.finish()
        except DrillFailed as error:
            failed = f"seed {seeds[min(faults, len(seeds) - 1)]}: {error}"
    return Outcome(drill, len(seeds), faults, world.ends, time.monotonic() - began, report, failed)


def _for_absences(kafka: wr.Kafka) -> wr.Kafka:
    """The cluster for a job that does without it at times, which librdkafka need not tell."""
    return wr.Kafka(
        kafka.servers, {"log_level": "0", "transaction.timeout.ms": str(round(TRANSACTION_S * 1000))}
    )


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """A file system of its own in memory. Mounting is for root, or for a sudo that asks nothing."""
    root = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
    options = f"size={DISK_BYTES},uid={os.geteuid()}"
    subprocess.run([*root, "mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run([*root, "umount", "--lazy", folder], check=True)
