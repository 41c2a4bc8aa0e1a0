"""A shard on Spark whose store is damaged where nobody looks before a step reads it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.checkpoint.test_resting import changes, commit_of, nothing
from windrow.checkpoint.layout import JobFolders
from windrow.checkpoint.shard import Shard, ShardSpec
from windrow.core.errors import CorruptState
from windrow.runners import tasks
from windrow.runners.answers import Answer
from windrow.runners.tasks import TaskPlan
from windrow.testing import damage_file


@pytest.mark.proves("Coming back: RocksDB damaged: found, moved aside, built anew")
@pytest.mark.parametrize("commit", [4, 5], ids=["only read", "opened"])
def test_a_store_whose_damage_shows_in_use_is_moved_aside_and_the_next_attempt_builds_it_anew(
    tmp_path: Path, commit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, found = JobFolders(str(tmp_path)), dict[bytes, bytes]()
    folders.make()
    spec = ShardSpec(folders, "job", 0, ("w", "aux"))
    shard = Shard.open(spec, 0, nothing)
    commits = [commit_of(n, shard, changes(n)) for n in range(1, commit)]
    shard.catch_up(commits)
    shard.close()

    def read(plan: TaskPlan, shard: Shard, tables: Iterable[pa.Table]) -> Answer:
        found.update(shard.kv.scan("w"))
        return Answer(tasks.ShardResult(shard=0))

    monkeypatch.setattr(tasks, "run_shard", read)
    columns = pa.schema([("k", pa.string())]).serialize().to_pybytes()
    plan = TaskPlan(
        replace(spec, shard=-1), (), commit, 0, {}, columns, None, tuple(commits), columns=columns
    )
    store = Path(spec.path)
    [windows] = (file for file in store.glob("*.sst") if b"-0" in file.read_bytes()[:40])
    damage_file(windows, 5)
    with pytest.raises(CorruptState):
        list(tasks.run(plan, iter([]), 0))
    assert not store.exists()
    assert [name for name in os.listdir(store.parent) if ".aside-" in name]
    found.clear()
    list(tasks.run(plan, iter([]), 0))
    assert len(found) == 5 * (commit - 1)
