"""Stores of executors: where they lie, and which of them are evicted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windrow.core.errors import BadLocation
from windrow.runners.local_stores import EVICT_AFTER, evict, folder_of, note_use
from windrow.stores.kv import Batch
from windrow.stores.rocks import RocksKV


def store(folder: Path, shard: int, used: int, size: int) -> str:
    path = folder / f"shard-{shard:04d}"
    path.mkdir()
    (path / "000001.sst").write_bytes(b"x" * size)
    note_use(str(path), used)
    return str(path)


def there(folder: Path) -> list[int]:
    return sorted(int(name[-4:]) for name in os.listdir(folder))


def test_stores_lie_where_the_executor_s_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/a,/b")
    monkeypatch.setenv("DISK", "/c")
    said = "$SPARK_LOCAL_DIRS/windrow/job"
    assert [folder_of(said, shard) for shard in range(3)] == [f"/{d}/windrow/job" for d in "aba"]
    assert folder_of("${SPARK_LOCAL_DIRS}/w", 1) == "/b/w" and folder_of("$DISK/w", 1) == "/c/w"
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    for missing in (said, "${NOWHERE}/w"):
        with pytest.raises(BadLocation, match="no such variable"):
            folder_of(missing, 0)


def test_a_store_is_evicted_after_so_many_commits_without_it(tmp_path: Path) -> None:
    commit = 500
    store(tmp_path, 0, commit, 1000)
    store(tmp_path, 1, commit - 1, 100)  # its task of this commit has not begun yet
    store(tmp_path, 2, commit - EVICT_AFTER + 1, 100)
    store(tmp_path, 3, commit - EVICT_AFTER, 100)
    assert [os.path.basename(path) for path in evict(str(tmp_path), commit)] == ["shard-0003"]
    assert there(tmp_path) == [0, 1, 2]


def test_stores_that_moved_away_take_a_quarter_of_the_bytes_in_use(tmp_path: Path) -> None:
    commit = 500
    store(tmp_path, 0, commit, 1000)
    for shard, used in ((1, commit - 9), (2, commit - 3), (3, commit - 2)):
        store(tmp_path, shard, used, 200)
    evict(str(tmp_path), commit)
    assert there(tmp_path) == [0, 3]  # the oldest went first


def test_stores_of_executors_that_are_gone_are_evicted(tmp_path: Path) -> None:
    commit, folders = 500, {}
    for executor in ("executor-1/blockmgr-a", "executor-1/blockmgr-b", "executor-2/blockmgr-c"):
        folders[executor[-1]] = tmp_path / executor / "windrow" / "job"
        folders[executor[-1]].mkdir(parents=True)
    store(folders["a"], 0, commit - 9, 100)
    store(folders["b"], 0, commit, 100)
    store(folders["b"], 1, commit, 100)
    store(folders["c"], 1, commit - 9, 100)  # of another worker, which has its own executors
    evict(str(folders["b"]), commit)
    assert {name: there(folder) for name, folder in folders.items()} == {"a": [], "b": [0, 1], "c": [1]}


def test_a_store_that_somebody_has_open_for_writing_is_not_evicted(tmp_path: Path) -> None:
    path = str(tmp_path / "shard-0001")
    with RocksKV(path, ("w",)) as kv:
        note_use(path, 1)
        assert evict(str(tmp_path), 500) == [] and os.path.isdir(path)
        batch = Batch()
        batch.put("w", b"k", b"v")
        kv.write(batch)
    assert evict(str(tmp_path), 500) == [path] and there(tmp_path) == []
