"""Shards that share a task: each answers once, and as it would alone."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow as wr
from windrow.checkpoint.files import CommitFiles, ShardFiles, bring_panes, pane_files
from windrow.checkpoint.job import Job
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.records import Commit, ShardResult
from windrow.checkpoint.shard import Shard, ShardSpec
from windrow.checkpoint.shard_commits import PackedCommit, ShardCommit
from windrow.checkpoint.transport import FILES
from windrow.connectors.manifests import read_file
from windrow.core.errors import CorruptState
from windrow.runners import tasks
from windrow.runners.task_result import Answer
from windrow.runners.tasks import TaskPlan
from windrow.runners.wire import SHARD
from windrow.stores.kv import Batch
from windrow.testing import damage_file
from windrow.testing.clock import ManualClock

SHARDS = 5
COLUMNS = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC"))])


def plan(folder: Path) -> TaskPlan:
    counts = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("1 hour"), agg={"n": wr.count()}, retention="1 day"
    )
    job, logic = Job(str(folder), [counts], shards=SHARDS, clock=ManualClock()), counts.logic()
    now = job.plan()
    return TaskPlan(
        ShardSpec(job.folders, job.job, -1, logic.metadata_cfs, logic.message_cfs),
        (counts,),
        1,
        now.now_us,
        dict(now.watermarks_us),
        COLUMNS.serialize().to_pybytes(),
        None,
        (),
        columns=COLUMNS.serialize().to_pybytes(),
        commits=lambda: iter(()),
    )


def rows(n: int) -> pa.Table:
    """Rows of three of the shards, one between the others, and none of shards 1 and 4."""
    numbers = [(0, 2, 3, 2)[i % 4] for i in range(n)]
    columns = [pa.array([f"k{s}" for s in numbers]), pa.array([i * 1000 for i in range(n)], COLUMNS[1].type)]
    return pa.table(
        [*columns, pa.array(numbers, pa.int32())], schema=COLUMNS.append(pa.field(SHARD, pa.int32()))
    )


def results(replies: Iterator[pa.RecordBatch]) -> dict[int, Answer]:
    answers: dict[int, Answer] = {}
    for reply in replies:
        [row] = reply.to_pylist()
        answer = pickle.loads(row["payload"])
        assert row["shard"] == answer.result.shard and row["shard"] not in answers
        answers[row["shard"]] = answer
    return answers


def answers(replies: Iterator[pa.RecordBatch]) -> dict[int, tuple[int, dict[str, int]]]:
    return {shard: (a.rows, dict(a.result.counters)) for shard, a in results(replies).items()}


def of_shard(task: TaskPlan, shard: int) -> ShardFiles:
    return ShardFiles(task.spec.folders, shard)


def commit_of(shards: list[ShardResult], number: int = 1) -> Commit:
    return Commit(
        epoch=1,
        commit=number,
        steps=(),
        next_offsets={},
        shards=tuple(shards),
        published=0,
        watermark_us=None,
    )


@pytest.mark.parametrize("most_bytes", [1 << 20, 100], ids=["in memory", "spilled"])
def test_shards_that_share_a_task_answer_as_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(tasks, "SLICE_BYTES", most_bytes)
    table = rows(40)
    together = answers(
        tasks.run_several(plan(tmp_path / "a"), table.to_batches(max_chunksize=7), range(SHARDS))
    )
    task, alone = plan(tmp_path / "b"), {}
    for shard in range(SHARDS):
        own = table.filter(pc.equal(table.column(SHARD), shard))
        alone |= answers(tasks.run(task, own.to_batches(), shard))
    assert together == alone
    assert {shard: count for shard, (count, _) in together.items()} == {0: 10, 1: 0, 2: 20, 3: 10, 4: 0}


def test_a_task_without_rows_answers_for_its_shards_alone(tmp_path: Path) -> None:
    assert answers(tasks.run_several(plan(tmp_path), iter(()), range(1, SHARDS, 3))).keys() == {1, 4}


def test_a_task_writes_one_file_in_which_each_shard_reads_the_bytes_that_it_would_write_alone(
    tmp_path: Path,
) -> None:
    task, other, table = plan(tmp_path / "a"), plan(tmp_path / "b"), rows(40)
    together = results(tasks.run_several(task, table.to_batches(), range(SHARDS)))
    assert [len(names) for _, _, names in os.walk(tmp_path / "a" / "changelog")] == [1]
    for shard, answer in together.items():
        own = table.filter(pc.equal(table.column(SHARD), shard))
        [alone] = results(tasks.run(other, own.to_batches(), shard)).values()
        assert answer.result.digest == alone.result.digest and not alone.result.ranges
        commit = PackedCommit.of(commit_of([a.result for a in together.values()]), SHARDS)
        [here] = of_shard(task, shard).read(commit)
        [there] = of_shard(other, shard).read(ShardCommit(1, "", alone.result))
        assert here == there
        [named] = of_shard(task, shard).named(commit)
        damage_file(Path(named.path), answer.result.ranges["changelog"][0] + 20)
        with pytest.raises(CorruptState, match="digest"):
            list(of_shard(task, shard).read(commit))
        damage_file(Path(named.path), answer.result.ranges["changelog"][0] + 20)


def test_a_task_names_no_file_before_all_of_its_shards_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, run, ran = plan(tmp_path), tasks.run_shard, list[int]()

    def run_shard(plan: TaskPlan, shard: Shard, *more: Any) -> Answer:
        answer = run(plan, shard, *more)
        ran.append(shard.spec.shard)
        assert all(name.endswith(".tmp") for name in os.listdir(tmp_path / "changelog"))
        if len(ran) == 3:
            raise OSError("no more")
        return answer

    monkeypatch.setattr(tasks, "run_shard", run_shard)
    with pytest.raises(OSError, match="no more"):
        list(tasks.run_several(task, rows(40).to_batches(), range(SHARDS)))
    assert os.listdir(tmp_path / "changelog") == [] and ran == [0, 1, 2]


def test_shards_of_a_task_share_files_of_panes_and_one_of_them_names_each(tmp_path: Path) -> None:
    folders = JobFolders(str(tmp_path))
    folders.make()
    tables = {n: pa.table({"k": [n] * (n + 1)}) for n in range(3)} | {
        3: pa.table({"k": pa.array([], pa.int64())})
    }
    with CommitFiles(folders, 7, 0) as shared:
        made = [
            ShardFiles(folders, n).write(
                7, Batch(), Batch(), {"o": table}, table if n == 2 else None, {}, shared=shared
            )
            for n, table in tables.items()
        ]
        made = shared.finished(made)
    record = commit_of(made, 7)
    assert [r.panes_rows for r in made] == [1, 2, 3, 0]
    assert [r.counters for r in made] == [{"panes_file.o": 6}, {}, {"dead_file": 3}, {}]
    [[path]] = pane_files(folders, record).values()
    assert read_file(path).column("k").to_pylist() == [0, 1, 1, 2, 2, 2]
    bring_panes(folders, FILES, record)
    damage_file(Path(path), 5)
    with pytest.raises(CorruptState, match="damaged"):
        bring_panes(folders, FILES, record)
