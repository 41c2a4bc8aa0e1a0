"""A query of Spark's without Spark: plans in files as Spark writes them, batches that come again until they are noted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import windrow as wr
from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.log import MemoryLog
from windrow.checkpoint.records import Commit
from windrow.checkpoint.shard import ShardSpec
from windrow.checkpoint.storage import MemoryRecords
from windrow.connectors.sinks import PaneFiles
from windrow.runners.protocol import BatchProtocol
from windrow.runners.publishing import Publisher
from windrow.runners.spark.checkpoint import SparkCheckpoint
from windrow.runners.task_result import Answer
from windrow.runners.tasks import TaskPlan, run_shard
from windrow.stores.kv import MemoryKV
from windrow.testing import ManualClock

SCHEMA = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC"))])
POSITIONS = {
    "__source": pa.string(),
    "__partition": pa.int64(),
    "__offset": pa.int64(),
    "__ordinal": pa.int64(),
}


class Killed(BaseException):
    """The process is gone, wherever it was."""


class Store(MemoryKV):
    """A store in memory: of one task, where the next one finds none and applies all segments, or of a query."""

    path = "nowhere"


class Query:
    """One query on one job, whose input is a list of event times in seconds.

    positioned: its rows carry positions. keeps: all tasks have one store, where many batches come
    """

    def __init__(
        self, folder: Path, definition: wr.Aggregate, *, positioned: bool = False, keeps: bool = False
    ) -> None:
        self.folder, self.definition, self.positioned = folder, definition, positioned
        self._store = self._keep if keeps else lambda path, cfs, wait_s: Store(cfs)
        self._kept: Store | None = None
        self.clock = ManualClock(0)
        self.records = MemoryRecords()
        self.emitted: dict[int, list[wr.Pane]] = {}
        self.input: list[int] = []
        self.noted = -1
        self.acted = 0
        self._cfs = definition.logic().cfs()
        #: The process is killed when it comes to this point, the points counted from 1.
        self.points = self.kill_at = 0
        os.makedirs(folder / "spark" / "offsets")

    def open(self) -> BatchProtocol:
        """Another life of the driver."""
        log = MemoryLog(self.records)
        append = log.append

        def appended(record: Any) -> Any:
            self.point()
            made = append(record)
            self.point()
            return made

        log.append = appended  # type: ignore[method-assign]
        job = Job(str(self.folder / "windrow"), [self.definition], shards=1, clock=self.clock, log=log)
        self.protocol = BatchProtocol(
            job,
            (self.definition,),
            Publisher(job, (self.definition,), {self.definition.name: self}),
            nothing_came=SparkCheckpoint(str(self.folder / "spark"), beats=True).nothing_came,
        )
        return self.protocol

    def _keep(self, path: str, cfs: Sequence[str], wait_s: float) -> Store:
        if self._kept is None:
            self._kept = Store(cfs)
            os.makedirs(path)
            Path(path, "CURRENT").touch()  # a store is there
        return self._kept

    def point(self) -> None:
        self.points += 1
        if self.points == self.kill_at:
            raise Killed

    # -- the sink ---------------------------------------------------------------------------------------------------

    def publish(self, token: wr.Token, panes: PaneFiles) -> None:
        self.point()
        self.emitted.setdefault(token.commit, panes.panes())
        self.point()

    def last_commit(self, job: str, operator: str) -> int | None:
        return max(self.emitted, default=0)

    # -- Spark ------------------------------------------------------------------------------------------------------

    def plan(self, batch_id: int) -> tuple[int, int]:
        """Return the rows that a batch reads: as planned, or all that have come."""
        path = self.folder / "spark" / "offsets" / str(batch_id)
        if not path.exists():
            self.point()
            path.write_text(f'v1\n{{"batchTimestampMs":0}}\n{{"logOffset":{len(self.input)}}}\n{batch_id}')
        before = path.with_name(str(batch_id - 1))
        return (int(p.read_text().split(":")[-1].split("}")[0]) if p.exists() else 0 for p in (before, path))  # type: ignore[return-value]

    def batch(self) -> Commit | None:
        """The next batch that is not noted."""
        batch_id = self.noted + 1
        start, end = self.plan(batch_id)
        self.point()
        made = None
        if not self.protocol.rests("q", batch_id):
            made = self.protocol.batch(
                "q", batch_id, self.positioned, lambda plan, _: self.act(plan, start, end)
            )
        self.point()
        self.noted = batch_id
        return made

    def act(self, plan: Plan, start: int, end: int) -> Sequence[Answer]:
        self.acted += 1
        self.point()
        job, n = self.protocol.job, end - start
        times = pa.array([s * 1_000_000 for s in self.input[start:end]], pa.timestamp("us", "UTC"))
        table = pa.table([pa.array(["a"] * n), times], schema=SCHEMA)
        if self.positioned:
            where = ([":s"] * n, [0] * n, list(range(start, end)), [0] * n)
            for (name, kind), values in zip(POSITIONS.items(), where, strict=True):
                table = table.append_column(name, pa.array(values, kind))
        task = TaskPlan(
            ShardSpec(job.folders, job.job, -1, self._cfs, open_store=self._store),
            (self.definition,),
            plan.commit,
            plan.now_us,
            dict(plan.watermarks_us),
            SCHEMA.serialize().to_pybytes(),
            None,
            tuple(job.recent),
            snapshot_every=1_000,
            commits=job.commits,
        )
        shard = task.open(0)
        try:
            return [run_shard(task, shard, [table])]
        finally:
            shard.close()
            self.point()

    def drain(self) -> None:
        self.protocol.drain(lambda plan: self.act(plan, 0, 0))
