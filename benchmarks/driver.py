"""Cost of a commit for the driver, by the number of shards: synthetic answers, no cluster."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import windrow as wr
from windrow.checkpoint.compaction import SNAPSHOTS
from windrow.checkpoint.files import CommitFiles, ShardFiles
from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.shard import ShardSpec
from windrow.checkpoint.shard_commits import PackedCommit
from windrow.connectors.pane_files import PaneFiles
from windrow.runners.protocol import BatchProtocol
from windrow.runners.publishing import Publisher
from windrow.runners.spark.shipping import Shipping
from windrow.runners.task_result import Answer
from windrow.runners.tasks import TaskPlan
from windrow.stores.files import make_folder
from windrow.stores.incremental_work import whole
from windrow.stores.kv import Batch
from windrow.stores.snapshots import SnapshotStore
from windrow.testing.clock import ManualClock

from .harness import Context, Row, scratch

SHARDS = (8, 64, 256, 1_024)
COMMITS = 40
#: As many as two cores have where rows are few.
TASKS = 4
PANES = pa.table({"k": ["a"], "n": [1]})


class _Dropped:
    """A sink that keeps nothing."""

    def publish(self, token: wr.Token, panes: PaneFiles) -> None:
        assert panes.rows

    def last_commit(self, job: str, operator: str) -> int | None:
        return None


class _Shipping(Shipping):
    """Counts the bytes of broadcasts instead of making them."""

    bytes = 0

    def _placed(self, value: Any, nbytes: int, most: int) -> Any:
        if nbytes <= most:
            return value
        self.bytes += len(pickle.dumps(value))
        return b"the number of a broadcast"


class _Job:
    """A job of so many shards, whose answers are made up, and CPU seconds of what its driver does."""

    def __init__(self, folder: str, shards: int) -> None:
        self.definition = wr.Aggregate(
            name="counts",
            by="k",
            event_time="t",
            window=wr.tumbling("1 hour"),
            retention="1 day",
            agg={"n": wr.count()},
        )
        self.job = Job(folder, [self.definition], shards=shards, clock=ManualClock(0))
        logic = self.definition.logic()
        self.spec = ShardSpec(self.job.folders, self.job.job, -1, logic.metadata_cfs, logic.message_cfs)
        publisher = Publisher(self.job, (self.definition,), {"counts": _Dropped()})
        self.protocol = BatchProtocol(self.job, (self.definition,), publisher, tidy_every=1 << 30)
        self.shipping = _Shipping()
        self._packed: tuple[PackedCommit, ...] = ()
        #: The bytes of the largest plan of a task.
        self.task_bytes = 0
        self.cpu_s, self._others_s = 0.0, 0.0

    def commit(self, batch_id: int) -> None:
        self._others_s = 0.0
        begin = time.process_time()
        self.protocol.batch("q", batch_id, False, lambda plan, _: self._act(plan))
        self.cpu_s += time.process_time() - begin - self._others_s

    def _act(self, plan: Plan) -> Sequence[Answer]:
        """Ship the plan, as to tasks, and read their answers."""
        task = TaskPlan(
            self.spec,
            (self.definition,),
            plan.commit,
            plan.now_us,
            dict(plan.watermarks_us),
            b"",
            None,
            self._recent(),
        )
        self.task_bytes = max(self.task_bytes, len(pickle.dumps(self.shipping.ship(None, task))))
        with self._elsewhere():
            came = [pickle.dumps(a) for task in range(TASKS) for a in self._answers(plan.commit, task)]
        return [pickle.loads(answer) for answer in came]

    def _recent(self) -> tuple[PackedCommit, ...]:
        known = {commit.commit: commit for commit in self._packed}
        self._packed = tuple(
            known.get(c.commit) or PackedCommit.of(c, self.job.shards) for c in self.job.recent
        )
        return self._packed

    def _answers(self, commit: int, task: int) -> list[Answer]:
        """Return the answers of a task, whose shards share its files."""
        changes, folders = Batch(), self.job.folders
        changes.put("counts.windows", b"key", commit.to_bytes(8, "big"))
        counters = {"rows": 2, "step.counts": commit, "windows": 1, "rows_of.counts": 2}
        with CommitFiles(folders, commit, task) as shared:
            written = [
                ShardFiles(folders, shard).write(
                    commit, changes, Batch(), {"counts": PANES}, None, counters, shared=shared
                )
                for shard in range(task, self.job.shards, TASKS)
            ]
            return [Answer(one, rows=2, width=16) for one in shared.finished(written)]

    @contextmanager
    def _elsewhere(self) -> Iterator[None]:
        """Tasks compute this, not the driver."""
        begin = time.process_time()
        yield
        self._others_s += time.process_time() - begin

    def snapshots(self, commit: int) -> float:
        """Make a snapshot of each shard; CPU seconds for one of them to drop the older ones."""
        store, copy = (
            SnapshotStore(self.job.folders.snapshots, fsync=False),
            self.job.folders.location + "-copy",
        )
        make_folder(copy)
        for shard in range(self.job.shards):
            with open(os.path.join(copy, "000001.sst"), "w") as file:
                file.write(f"{shard} {commit}")
            whole(store.keep(copy, shard, commit))
        begin = time.process_time()
        store.drop_manifests(store.list(0)[-SNAPSHOTS:], 0)
        return time.process_time() - begin

    def tidied(self) -> float:
        """CPU seconds of a round of garbage collection."""
        begin = time.process_time()
        whole(self.job.tidy(keep=COMMITS // 2))
        return time.process_time() - begin


def _files(folders: JobFolders) -> int:
    return sum(len(names) for _, _, names in os.walk(folders.location))


PLAN_BYTES = "bytes of a task's plan"


def measured(shards: int) -> dict[str, tuple[str, float]]:
    """Return the figures of so many shards, with their units."""
    with scratch() as folder:
        job = _Job(os.path.join(folder, "job"), shards)
        for n in range(COMMITS // 2):
            job.commit(n)
        job.snapshots(COMMITS // 4)
        dropped = job.snapshots(COMMITS // 2)
        job.cpu_s, job.shipping.bytes, before = 0.0, 0, _files(job.job.folders)
        for n in range(COMMITS // 2, COMMITS):
            job.commit(n)
        commits = COMMITS - COMMITS // 2
        files = (_files(job.job.folders) - before) / commits
        tidied = job.tidied()
        return {
            PLAN_BYTES: ("B", float(job.task_bytes)),
            "bytes to each executor, a commit": ("B", job.shipping.bytes / commits),
            "files of a commit": ("", files),
            "driver, CPU a commit": ("ms", 1000 * job.cpu_s / commits),
            "garbage collection, CPU a round": ("ms", 1000 * tidied),
            "a shard drops its old snapshots, CPU": ("ms", 1000 * dropped),
        }


def driver(context: Context) -> list[Row]:
    """Bytes of a task's plan, files, and the driver's CPU time of a commit; and of a round of garbage collection."""
    rows = []
    for shards in SHARDS[:2] if context.quick else SHARDS:
        context.step(f"{shards} shards")
        figures = measured(shards).items()
        rows += [Row(f"{shards} shards: {name}", unit, ours) for name, (unit, ours) in figures]
    return rows
