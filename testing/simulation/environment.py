"""Environment of a simulated job: its input, a disk, a log, a cluster, executors, and the commits that drivers believe in."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Any

import pyarrow as pa

from windrow.checkpoint import log
from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.log import RecordLog
from windrow.checkpoint.records import Commit, decode_payload
from windrow.checkpoint.shard import ShardSpec
from windrow.checkpoint.shard_commits import PackedCommit
from windrow.connectors import manifests
from windrow.core.messages import Message, Position
from windrow.core.positions import Partition
from windrow.core.sharding import Sharding
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.runners import local_stores, wire
from windrow.runners.tasks import TaskPlan
from windrow.testing.scenario import Feed
from windrow.testing.simulated_kafka import SimulatedKafka
from windrow.testing.simulation.disk import Disk
from windrow.testing.simulation.records import SimulatedRecords
from windrow.testing.simulation.sinks import OUTLETS, PARTITIONS, LettersOutlet, Outlet, OutletOf
from windrow.testing.simulation.stores import RestingStore, SimulatedStore
from windrow.testing.simulation.world import World

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
        alone = any(d.one_shard() is not None for d in self.definitions)
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
        self.runs_end = Random(f"runs of {world.seed}").random() < 0.3
        self.ended_runs: list[int] = []
        self._shards: dict[tuple[int, Position], int | None] = {}
        #: The executor that had each shard last.
        self.owners: dict[int, int] = {}

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
        mine = [
            (number, i)
            for i, row in enumerate(rows)
            for number in range(len(self.definitions))
            if self.shard_of(number, row) == shard
        ]
        chosen = [rows[i] for _, i in mine]
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
            columns[wire.OPERATOR] = pa.array([number for number, _ in mine], pa.int32())
        if old is not None:
            columns[wire.OLD] = pa.array([old[i] for _, i in mine], pa.bool_())
        return pa.table(columns)

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
            outputs=tuple(self.outlets),
            snapshot_every=self.snapshot_every,
            compacts=job.compacts,
            commits=self.commits,
        )

    def on_executor(self, plan: TaskPlan, shard: int, executor: int) -> TaskPlan:
        """Return the plan for a task there; it takes the shard from its former owner."""
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
