"""Environment of a simulated job: its input, a disk, a log, a cluster, executors, and the commits that drivers believe in."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Any

import pyarrow as pa
import xxhash

from windrow.checkpoint import log
from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.log import RecordLog
from windrow.checkpoint.read_only_shard import KeptStores
from windrow.checkpoint.records import Commit, Record, decode, decode_payload
from windrow.checkpoint.shard import Replay, ShardSpec
from windrow.checkpoint.shard_commits import PackedCommit
from windrow.checkpoint.storage import MemoryRecords
from windrow.connectors import manifests
from windrow.core.errors import CorruptState, StateError, StateLocked
from windrow.core.messages import Message, Position
from windrow.core.positions import Partition
from windrow.core.sharding import Sharding
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.runners import local_stores, wire
from windrow.runners.replay import replay_of
from windrow.runners.tasks import TaskPlan
from windrow.stores.files import inode_of, write_whole
from windrow.stores.kv import Batch, MemoryKV
from windrow.stores.quarantine import OPEN
from windrow.testing.faults import FaultyKV
from windrow.testing.scenario import Feed
from windrow.testing.simulated_kafka import Outcome, SimulatedKafka
from windrow.testing.simulation.disk import Disk
from windrow.testing.simulation.sinks import OUTLETS, PARTITIONS, LettersOutlet, Outlet, OutletOf
from windrow.testing.simulation.world import READS, TRUNCATES, Unanswered, World

# -- simulated store of a shard, in memory and in one file: unflushed data is lost with its process -------------------


class RestingStore(MemoryKV):
    """A shard's store as its file has it; it takes no lock."""

    def __init__(self, world: World, path: str, cfs: Sequence[str]) -> None:
        super().__init__(cfs)
        self.path = path
        world.point("3.1 store", "before a store is read")
        self.write(_flushed(path) or Batch())

    def checkpoint(self, path: str) -> None:
        raise StateError(f"the store {self.path} is read only")


def _flushed(path: str) -> Batch | None:
    """Return the content of a store's newest file, or of the copy that it was restored from; None where there is none."""
    files = [n for n in os.listdir(path) if n.endswith(".sst")] if os.path.isdir(path) else []
    if not files:
        return None
    with open(os.path.join(path, min(files)), "rb") as stored:
        data = stored.read()
    if xxhash.xxh3_64_digest(data[8:]) != data[:8]:
        raise CorruptState(f"the store {path} is damaged")
    return Batch.decode(data[8:])


class SimulatedStore(FaultyKV):
    """A shard's store: in memory, and in one file of its folder as of its last flush. One process at a time opens it."""

    def __init__(self, world: World, disk: Disk, path: str, cfs: Sequence[str]) -> None:
        super().__init__(cfs)
        self._world, self._disk = world, disk
        self.path = path
        world.point("3.1 store", "before a store is opened")
        if path in world.open_stores:
            raise StateLocked(f"the store {path} is open in {world.open_stores[path]}")
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "CURRENT"), "wb"):
            pass  # the name by which RocksDB, and readers of it, know that there is a store
        if (batch := _flushed(path)) is not None:
            self._alive().write(batch)
            self._durable.extend(batch)
        else:
            write_whole(os.path.join(path, "000001.sst"), [self._image()], fsync=False)
        world.open_stores[path] = self
        OPEN[self] = inode_of(path)  # who evicts stores looks there
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
        self._world.copies += 1  # no file of RocksDB's gets another content under its name
        write_whole(os.path.join(path, f"{self._world.copies + 1:06}.sst"), [self._image()], fsync=False)

    def close(self) -> None:
        if self._world.open_stores.get(self.path) is not self:
            self._world.point("3.1 store", "a store is closed")  # raises where its process is dead
            return
        self._world.point("3.1 store", "before a store is closed")
        super().close()
        write_whole(os.path.join(self.path, "000001.sst"), [self._image()], fsync=False)
        self._disk.keep(os.path.join(self.path, "000001.sst"))
        self._let_go()
        if self._process is not None and self in self._process.stores:
            self._process.stores.remove(self)

    def die(self, survivors: int) -> None:
        """Kill the process of the store: the first `survivors` of the unflushed batches are kept as well."""
        if self._world.open_stores.get(self.path) is not self:
            return
        for batch in self._unflushed[:survivors]:
            self._durable.extend(batch)
        self._live = None
        file = os.path.join(self.path, "000001.sst")
        if os.path.isdir(self.path):
            with open(file, "wb") as stored:
                stored.write(self._image())
            self._disk.keep(file)
        self._let_go()

    def _let_go(self) -> None:
        del self._world.open_stores[self.path]
        OPEN.pop(self, None)


# -- records ----------------------------------------------------------------------------------------------------------
# The records of a log, in memory: a creation without an answer leaves them there, not there, or torn.


class SimulatedRecords(MemoryRecords):
    """The records of a log. A creation may fail with the record there, not there, or torn; the last one may not be synced."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._unsynced: set[int] = set()
        #: The truncated records: the whole history, for the checks.
        self.removed: dict[int, bytes] = {}
        self.writes = "log"  # the current write, for the points

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
            # Not a record that an ended writer has put there when the number was free again.
            self.removed.setdefault(seq, self.records[seq])
        super().remove(seq)

    def mark_truncated(self) -> None:
        self._world.point(TRUNCATES, "before the log is marked as truncated")
        super().mark_truncated()

    def history(self) -> list[Record]:
        """Return all records that were ever part of the log, in order."""
        found = []
        for _, data in sorted({**self.records, **self.removed}.items()):
            with contextlib.suppress(CorruptState):  # torn, and declared void
                found.append(decode(data))
        return found

    def read(self, seq: int) -> bytes | None:
        self._world.point(READS, READS)
        return super().read(seq)

    def settle(self) -> None:
        """Mark all records as synced: a reader that depends on them has synced them."""
        self._unsynced.clear()

    def lose(self) -> None:
        """Cut the power: unsynced records may be gone or torn, and removed ones may be there again."""
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


# -- environment ------------------------------------------------------------------------------------------------------

EXECUTORS = 2


@dataclass(frozen=True)
class Row:
    """A row of the input, and its position."""

    input: str
    position: Position
    payload: Mapping[str, Any] = field(compare=False)

    @property
    def partition(self) -> Partition:
        return self.position[:2]

    @property
    def message(self) -> Message:
        return Message(self.payload, self.position)


class Stage:
    """The environment of one job. rows: all of the input so far, by partition and offset."""

    def __init__(self, world: World, feed: Feed, outlet: OutletOf | None = None) -> None:
        self.world, self.feed = world, feed
        self.definitions = feed.definitions
        chance = world.random
        alone = any(d.one_shard() is not None or d.copied for d in self.definitions)
        self.shards = 1 if alone else chance.choice([2, 2, 2, 2, 3])
        self.snapshot_every = chance.choice([1, 1, 2])  # so that files and records go within few commits
        self.disk, self.records = Disk(world), SimulatedRecords(world)
        world.media += [self.disk, self.records]
        self.location = os.path.join(world.folder, "job")
        os.makedirs(self.location)
        for n in range(EXECUTORS):
            os.makedirs(os.path.join(world.folder, f"executor-{n}"))
        self.kafka = SimulatedKafka()
        for name in feed.inputs:
            self.kafka.create_topic(name, PARTITIONS)
        self.topics = {feed.source(name): name for name in feed.inputs}
        self.rows: dict[Partition, list[Row]] = {
            (source, n): [] for source in self.topics for n in range(PARTITIONS)
        }
        made = outlet or OUTLETS[chance.choice(sorted(OUTLETS))]
        self.outlets: dict[str, Outlet] = {name: made(self, part) for name, part in feed.parts.items()}
        self.dead_letters = LettersOutlet()
        #: The commits that drivers got confirmed, with their names.
        self.believed: list[tuple[str, Commit]] = []
        #: (last commit, now) of every batch that left no record.
        self.rests: list[tuple[int, int]] = []
        #: True if drivers end a run, as with `availableNow`, where nothing has come; and the last commit of each run.
        self.replays = feed.replays
        #: How often messages were lost.
        self.losses = 0
        self.runs_end = Random(f"runs of {world.seed}").random() < 0.3
        self.ended_runs: list[int] = []
        self._shards: dict[tuple[int, Position], int | None] = {}
        #: The executor that had each shard last.
        self.owners: dict[int, int] = {}
        #: The stores that the worker of each executor has open, by the executor's folder.
        self.kept = defaultdict[str | None, KeptStores](KeptStores)

    # -- the input --------------------------------------------------------------------------------------------------

    def produce(self, name: str, partition: int, payload: Mapping[str, Any]) -> None:
        """Add a row to an input."""
        source = self.feed.source(name)
        rows = self.rows[source, partition]
        rows.append(Row(name, Position(source, partition, len(rows)), payload))
        producer = self.kafka.producer()
        producer.produce(name, b"row", partition=partition)
        producer.flush()

    def ends(self) -> dict[Partition, int]:
        """Return the end of each partition."""
        return {partition: len(rows) for partition, rows in self.rows.items()}

    def reached(self) -> dict[Partition, int]:
        """Up to where the last commit has read."""
        last = RecordLog(self.records).tail().last_commit
        return {} if last is None else dict(last.next_offsets)

    # -- shards -----------------------------------------------------------------------------------------------------

    def shard_of(self, number: int, row: Row) -> int | None:
        """Return the shard of a row for the definition of that number; None where it does not take the row."""
        at = (number, row.position)
        if at not in self._shards:
            self._shards[at] = self._shard_of(number, row)
        return self._shards[at]

    def _shard_of(self, number: int, row: Row) -> int | None:
        definition = self.definitions[number]
        name = row.input if definition.by_input else definition.inputs[0].name
        if name not in [i.name for i in definition.inputs]:
            return None
        keys = definition.keys(definition.input(name))
        if self.shards == 1 or not definition.by or not keys:
            return 0
        schema = self.feed.schemas[row.input]
        columns = [pa.array([row.payload[key]], schema.field(key).type) for key in keys]
        return int(Sharding(self.shards).of(columns)[0])

    def table(self, rows: Sequence[Row], shard: int, old: Sequence[bool] | None = None) -> pa.Table:
        """Return rows as a shard gets them: each once for every definition that takes it."""
        several = len(self.definitions) > 1
        shard_rows = [
            (number, i)
            for i, row in enumerate(rows)
            for number in range(len(self.definitions))
            if self.shard_of(number, row) == shard
        ]
        chosen = [rows[i] for _, i in shard_rows]
        columns: dict[str, pa.Array] = {}
        if self.feed.by_input:
            columns[wire.INPUT] = pa.array([row.input for row in chosen], pa.string())
            for name, schema in self.feed.schemas.items():
                values = [dict(row.payload) if row.input == name else None for row in chosen]
                columns[name] = pa.array(values, pa.struct(list(schema)))
        else:
            [schema] = self.feed.schemas.values()
            columns = {f.name: pa.array([r.payload[f.name] for r in chosen], f.type) for f in schema}
        columns[SOURCE] = pa.array([row.position.source for row in chosen], pa.string())
        columns[PARTITION] = pa.array([row.position.partition for row in chosen], pa.int64())
        columns[OFFSET] = pa.array([row.position.offset for row in chosen], pa.int64())
        columns[ORDINAL] = pa.array([0] * len(chosen), pa.int64())
        if several:
            columns[wire.OPERATOR] = pa.array([number for number, _ in shard_rows], pa.int32())
        if old is not None:
            columns[wire.OLD] = pa.array([old[i] for _, i in shard_rows], pa.bool_())
        return pa.table(columns)

    def replay(self, shard: int) -> Replay:
        """Return the replay of a shard from all rows that came."""
        rows = [row for partition in sorted(self.rows) for row in self.rows[partition]]
        return replay_of(self.definitions, self.table(rows, shard))

    def spec(self, job: str, executor: int) -> ShardSpec:
        logics = [d.logic() for d in self.definitions]
        return ShardSpec(
            JobFolders(self.location),
            job,
            -1,
            tuple(cf for logic in logics for cf in logic.metadata_cfs),
            tuple(cf for logic in logics for cf in logic.message_cfs),
            os.path.join(self.world.folder, f"executor-{executor}"),
            open_store=lambda path, cfs, wait_s: SimulatedStore(self.world, self.disk, path, cfs),
            read_store=lambda path, cfs: RestingStore(self.world, path, cfs),
        )

    @property
    def snapshots(self) -> str:
        return JobFolders(self.location).snapshots

    def stores(self) -> list[str]:
        """Return the local stores that no process has open."""
        folders = [
            os.path.join(self.world.folder, f"executor-{n}", f"shard-{shard:04d}")
            for n in range(EXECUTORS)
            for shard in range(self.shards)
        ]
        there = [path for path in folders if os.path.exists(os.path.join(path, "000001.sst"))]
        return [path for path in there if path not in self.world.open_stores]

    def commits(self) -> Iterator[Commit]:
        made = RecordLog(self.records)
        made.tail()
        return made.commits()

    def task_plan(self, job: Job, plan: Plan) -> TaskPlan:
        return TaskPlan(
            self.spec(job.job, 0),
            self.definitions,
            plan.commit,
            plan.now_us,
            dict(plan.watermarks_us),
            self.table([], 0).schema.serialize().to_pybytes(),
            None,
            tuple(PackedCommit.of(commit, job.shards) for commit in job.recent),
            lock_wait_s=0.0,
            can_replay=self.replays,
            outputs=tuple(self.outlets),
            snapshot_every=self.snapshot_every,
            compacts=job.compacts,
            commits=self.commits,
        )

    def on_executor(self, plan: TaskPlan, shards: Iterable[int], executor: int) -> TaskPlan:
        """Return the plan for a task there; it takes the shards from their former owners."""
        for shard in shards:
            self.world.counts["shards that changed owner"] += self.owners.get(shard, executor) != executor
            self.owners[shard] = executor
        return replace(plan, spec=self.spec(plan.spec.job, executor))

    # -- patches ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """Patch the operating system inside the body: calls that sync and name files, waiting, and random names."""
        names = Random(self.world.seed + 1)
        ours: list[tuple[Any, str, Any]] = [
            (log, "decode_payload", lru_cache(None)(decode_payload)),  # a schedule reads its log very often
            (os, "fsync", self.disk.fsync),
            (os, "link", self.disk.link),
            (os, "mkdir", self.disk.mkdir),
            (os, "rename", self.disk.rename),
            (os, "unlink", self.disk.unlink),
            (manifests, "RECORDS", 3),  # few commits are many here
            (local_stores, "EVICT_AFTER", 4),
            (secrets, "token_hex", lambda n=32: names.randbytes(n).hex()),
            (time, "monotonic", self.world.monotonic),
            (uuid, "uuid4", lambda: uuid.UUID(bytes=names.randbytes(16), version=4)),
        ]
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in ours]
        for owner, name, value in ours:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)
