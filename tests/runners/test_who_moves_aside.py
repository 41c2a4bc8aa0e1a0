"""Only who holds the lock of a store moves it aside: who has it open goes on writing under its name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.bare import BARE
from tests.checkpoint.test_read_only_shard import changes, commit_of, nothing
from tests.runners.test_damaged_store import asides
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.records import Commit
from windrow.checkpoint.shard import Shard, ShardSpec
from windrow.core.errors import CorruptState
from windrow.runners import tasks
from windrow.runners.task_result import Answer
from windrow.runners.tasks import TaskPlan
from windrow.stores.files import inode_of
from windrow.stores.quarantine import move_aside
from windrow.testing import damage_file

#: Has the store of a folder open until it is told to go on; writes into it then, and closes it.
HOLDER = (
    BARE
    + """
from windrow.stores.kv import Batch
from windrow.stores.rocks import RocksKV

kv = RocksKV(sys.argv[1], ("windrow", "w", "aux"))
print("open", flush=True)
sys.stdin.readline()
batch = Batch()
batch.put("aux", b"late", b"1")
kv.write(batch)
kv.close()
print("closed", flush=True)
"""
)


@pytest.fixture
def laid(tmp_path: Path) -> tuple[ShardSpec, list[Commit]]:
    """A shard, closed, and its commits."""
    folders = JobFolders(str(tmp_path))
    folders.make()
    spec = ShardSpec(folders, "job", 0, ("w", "aux"))
    shard = Shard.open(spec, 0, nothing)
    commits = [commit_of(n, shard, changes(n)) for n in range(1, 4)]
    shard.catch_up(commits)
    shard.close()
    return spec, commits


@contextmanager
def held(path: str) -> Iterator[subprocess.Popen[str]]:
    """Another process has the store of a folder open."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "open\n"
        yield holder
        if holder.poll() is None:
            assert holder.communicate("go on\n", timeout=60)[0] == "closed\n"


def damage_manifest(path: str) -> None:
    (manifest,) = Path(path).glob("MANIFEST-*")
    damage_file(manifest, 5)


def test_a_store_that_is_open_elsewhere_is_not_moved_aside_by_who_finds_its_manifest_damaged(
    laid: tuple[ShardSpec, list[Commit]],
) -> None:
    spec, commits = laid
    with held(spec.path):
        before = inode_of(spec.path)
        damage_manifest(spec.path)
        shard = Shard.open(spec, 3, nothing, commits, lock_wait_s=0.0)
        assert inode_of(spec.path) == before and not asides(spec.path)
        assert ".private-" in shard.kv.path and len(dict(shard.kv.scan("w"))) == 15
        shard.close()
    Shard.open(spec, 3, nothing, commits).close()
    assert len(asides(spec.path)) == 1


def test_a_task_that_only_reads_a_damaged_store_leaves_it_to_who_has_it_open(
    laid: tuple[ShardSpec, list[Commit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, commits = laid

    def run_shard(plan: TaskPlan, shard: Shard, tables: Iterable[pa.Table], shared: None) -> Answer:
        pairs.extend(shard.kv.scan("w"))
        return Answer(tasks.ShardResult(shard=0))

    pairs: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(tasks, "run_shard", run_shard)
    columns = pa.schema([("k", pa.string())]).serialize().to_pybytes()
    plan = TaskPlan(
        *(replace(spec, shard=-1), (), 4, 0, {}, columns, None, tuple(commits)),
        columns=columns,
        lock_wait_s=0.0,
    )
    [windows] = (file for file in Path(spec.path).glob("*.sst") if b"-0" in file.read_bytes()[:40])
    damage_file(windows, 5)
    with held(spec.path):
        before = inode_of(spec.path)
        with pytest.raises(CorruptState):
            list(tasks.run(plan, iter([]), 0))
        pairs.clear()
        assert inode_of(spec.path) == before and not asides(spec.path)
        list(tasks.run(replace(plan, rests=False), iter([]), 0))  # as the next attempt does
        assert len(pairs) == 15 and not asides(spec.path)


def test_of_two_who_find_a_store_damaged_the_second_leaves_alone_what_the_first_has_built(
    laid: tuple[ShardSpec, list[Commit]],
) -> None:
    spec, commits = laid
    damaged = inode_of(spec.path)
    damage_manifest(spec.path)
    first = Shard.open(spec, 3, nothing, commits)
    target = spec.path + ".aside-1"
    assert not move_aside(spec.path, damaged, target)
    assert not move_aside(spec.path, inode_of(spec.path), target), "this process has it open"
    first.close()
    assert move_aside(spec.path, inode_of(spec.path), target) and len(asides(spec.path)) == 2
