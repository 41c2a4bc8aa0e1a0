"""Shards that share a task: each answers once, and as it would alone."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow as wr
from windrow.checkpoint.job import Job
from windrow.checkpoint.shard import ShardSpec
from windrow.runners import tasks
from windrow.runners.tasks import TaskPlan
from windrow.runners.wire import SHARD
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


def answers(replies: Iterator[pa.RecordBatch]) -> dict[int, tuple[int, dict[str, int]]]:
    found: dict[int, Any] = {}
    for reply in replies:
        [row] = reply.to_pylist()
        answer = pickle.loads(row["payload"])
        assert row["shard"] == answer.result.shard and row["shard"] not in found
        found[row["shard"]] = answer.rows, dict(answer.result.counters)
    return found


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
        mine = table.filter(pc.equal(table.column(SHARD), shard))
        alone |= answers(tasks.run(task, mine.to_batches(), shard))
    assert together == alone
    assert {shard: count for shard, (count, _) in together.items()} == {0: 10, 1: 0, 2: 20, 3: 10, 4: 0}


def test_a_task_without_rows_answers_for_its_shards_alone(tmp_path: Path) -> None:
    assert answers(tasks.run_several(plan(tmp_path), iter(()), range(1, SHARDS, 3))).keys() == {1, 4}
