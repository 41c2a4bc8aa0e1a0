"""A shard whose store is damaged where nobody looks: a step reads it, or RocksDB comes upon it as it rewrites its files.

What RocksDB finds by itself, in a thread of its own, it tells whoever writes or closes next; in which call is chance, and here
it is said.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import windrow as wr
from tests.checkpoint.test_read_only_shard import changes, commit_of, nothing
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.shard import Shard, ShardSpec
from windrow.core.errors import CorruptState
from windrow.runners import tasks
from windrow.runners.task_result import Answer
from windrow.runners.tasks import TaskPlan
from windrow.stores.rocks import RocksKV
from windrow.testing import damage_file


@pytest.mark.parametrize("rests", [True, False], ids=["only read", "opened"])
def test_a_store_whose_damage_shows_in_use_is_moved_aside_and_the_next_attempt_builds_it_anew(
    tmp_path: Path, rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = 4
    folders, stored = JobFolders(str(tmp_path)), dict[bytes, bytes]()
    folders.make()
    spec = ShardSpec(folders, "job", 0, ("w", "aux"))
    shard = Shard.open(spec, 0, nothing)
    commits = [commit_of(n, shard, changes(n)) for n in range(1, commit)]
    shard.catch_up(commits)
    shard.close()

    def read(plan: TaskPlan, shard: Shard, tables: Iterable[pa.Table], shared: None) -> Answer:
        stored.update(shard.kv.scan("w"))
        return Answer(tasks.ShardResult(shard=0))

    monkeypatch.setattr(tasks, "run_shard", read)
    columns = pa.schema([("k", pa.string())]).serialize().to_pybytes()
    plan = TaskPlan(
        *(replace(spec, shard=-1), (), commit, 0, {}, columns, None, tuple(commits)),
        columns=columns,
        rests=rests,
    )
    store = Path(spec.path)
    [windows] = (file for file in store.glob("*.sst") if b"-0" in file.read_bytes()[:40])
    damage_file(windows, 5)
    with pytest.raises(CorruptState):
        list(tasks.run(plan, iter([]), 0))
    assert not store.exists()
    assert [name for name in os.listdir(store.parent) if ".aside-" in name]
    stored.clear()
    list(tasks.run(plan, iter([]), 0))
    assert len(stored) == 5 * (commit - 1)


def damaged_once(monkeypatch: pytest.MonkeyPatch, call: str) -> list[str]:
    """The next `call` of a store says what RocksDB has found; gets the store's folder."""
    hits, whole = list[str](), getattr(RocksKV, call)

    def damaged(self: RocksKV, *arguments: object) -> object:
        if not hits:
            hits.append(self.path)
            raise CorruptState("Corruption: block checksum mismatch")
        return whole(self, *arguments)

    monkeypatch.setattr(RocksKV, call, damaged)
    return hits


def asides(store: str) -> list[str]:
    return [name for name in os.listdir(os.path.dirname(store)) if ".aside-" in name]


@pytest.fixture
def spec(tmp_path: Path) -> ShardSpec:
    folders = JobFolders(str(tmp_path))
    folders.make()
    return ShardSpec(folders, "job", 0, ("w", "aux"))


@pytest.mark.parametrize("recent", [True, False], ids=["recent commits lead on", "commits of the log do"])
def test_a_store_that_is_found_damaged_as_it_takes_in_commits_is_built_anew_at_once(
    spec: ShardSpec, recent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = Shard.open(spec, 0, nothing)
    commits = [commit_of(n, shard, changes(n)) for n in range(1, 5)]
    shard.catch_up(commits[:3])
    shard.close()
    hits = damaged_once(monkeypatch, "write")
    shard = Shard.open(spec, 4, lambda: iter(commits), commits if recent else ())
    assert shard.applied == 4 and len(dict(shard.kv.scan("w"))) == 20
    shard.close()
    assert hits == [spec.path] and len(asides(spec.path)) == 1


def test_what_was_just_built_and_is_damaged_again_is_not_built_for_ever(
    spec: ShardSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(self: RocksKV, batch: object) -> None:
        raise CorruptState("Corruption: block checksum mismatch")

    monkeypatch.setattr(RocksKV, "write", damaged)
    with pytest.raises(CorruptState):
        Shard.open(spec, 0, nothing)
    assert len(asides(spec.path)) == 1


def test_a_task_whose_store_is_found_damaged_as_it_leaves_it_has_its_answer(
    spec: ShardSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the answer says was read whole, and the store is no part of it."""
    hits, columns = list[str](), pa.schema([("k", pa.string())]).serialize().to_pybytes()
    shard = Shard.open(spec, 0, nothing)
    commits = [commit_of(n, shard, changes(n)) for n in range(1, 5)]
    shard.close()

    def run_shard(plan: TaskPlan, shard: Shard, tables: Iterable[pa.Table], shared: None) -> Answer:
        hits.extend(damaged_once(monkeypatch, "flush"))
        return Answer(tasks.ShardResult(shard=0))

    monkeypatch.setattr(tasks, "run_shard", run_shard)
    plan = TaskPlan(
        *(replace(spec, shard=-1), (), 5, 0, {}, columns, None, tuple(commits)), columns=columns, rests=False
    )
    assert len(list(tasks.run(plan, iter([]), 0))) == 1
    assert not os.path.exists(spec.path) and len(asides(spec.path)) == 1
    shard = Shard.open(spec, 4, nothing, commits)
    assert len(dict(shard.kv.scan("w"))) == 20
    shard.close()


def test_who_finds_its_store_damaged_leaves_alone_one_that_was_built_in_its_place(spec: ShardSpec) -> None:
    damaged = Shard.open(spec, 0, nothing)
    os.rename(spec.path, spec.path + ".gone")
    other = Shard.open(spec, 0, nothing)
    damaged.set_aside()
    assert os.path.exists(spec.path) and not asides(spec.path)
    other.close()
    Shard.open(spec, 0, nothing).close()


def test_an_embedded_job_continues_where_its_store_is_found_damaged_as_it_takes_in_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_key = wr.Aggregate(
        by="k", event_time="t", window=wr.global_window(), agg={"n": wr.count()}, retention=wr.forever
    )
    rows = pa.table({"k": ["a", "b", "a"], "t": pa.array([1, 2, 3], pa.timestamp("us", "UTC"))})
    with by_key.open(str(tmp_path)) as op:
        op.add_messages(rows)
        op.flush()
        hits = damaged_once(monkeypatch, "write")
        op.add_messages(rows)
        op.flush()
        assert len(hits) == 1 and len(asides(hits[0])) == 1
        op.add_messages(rows)
        op.drain()
        assert {pane.key["k"]: pane["n"] for pane in op.get_result()} == {"a": 6, "b": 3}
