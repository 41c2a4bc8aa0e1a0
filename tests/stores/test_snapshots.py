"""Snapshots: only new files are copied, nothing is recorded or restored that is not whole."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from windrow.core.envelope import Kind, seal
from windrow.core.errors import CorruptState, NewerFormat, StateError
from windrow.stores import snapshots
from windrow.stores.incremental_work import whole
from windrow.stores.kv import Batch
from windrow.stores.rocks import RocksKV
from windrow.stores.snapshots import SnapshotStore
from windrow.testing.faults import damage_file, tear_file

CFS = ("data", "meta")


def fill(kv: RocksKV, low: int, high: int) -> None:
    batch = Batch()
    for i in range(low, high):
        batch.put("data", i.to_bytes(4), b"v%d" % i)
    batch.put("meta", b"applied", high.to_bytes(4))
    kv.write(batch)


def contents(kv: RocksKV) -> dict[str, list[tuple[bytes, bytes]]]:
    return {cf: list(kv.scan(cf)) for cf in CFS}


def inodes(directory: Path) -> dict[str, int]:
    return {name: os.stat(directory / name).st_ino for name in sorted(os.listdir(directory))}


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "snapshots", fsync=False)


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    return tmp_path / "snapshots" / "blobs"


@pytest.mark.parametrize("link", [False, True])
def test_a_restored_store_equals_the_one_that_was_taken(
    store: SnapshotStore, tmp_path: Path, link: bool
) -> None:
    with RocksKV(tmp_path / "db", CFS) as kv:
        fill(kv, 0, 1000)
        name = store.create(kv, 3, 7, tmp_path / "work")
        taken = contents(kv)
        fill(kv, 1000, 1010)
    snapshot = store.restore(name, tmp_path / "back", link=link)
    assert (snapshot.shard, snapshot.commit) == (3, 7)
    with RocksKV(tmp_path / "back", CFS) as back:
        assert contents(back) == taken
        fill(back, 5000, 5010)
        back.compact()
    assert store.verify(name) == snapshot
    assert os.listdir(tmp_path / "work") == []
    assert sorted(os.listdir(tmp_path)) == ["back", "db", "snapshots", "work"]


def test_only_tables_are_ever_linked(store: SnapshotStore, tmp_path: Path, blobs: Path) -> None:
    with RocksKV(tmp_path / "db", CFS) as kv:
        fill(kv, 0, 10)
        name = store.create(kv, 0, 1, tmp_path / "work")
        # the store's own files are never shared with the snapshot
        assert not set(inodes(blobs).values()) & set(inodes(tmp_path / "db").values())
    store.restore(name, tmp_path / "linked", link=True)
    store.restore(name, tmp_path / "copied")
    shared = set(inodes(blobs).values())
    for file, inode in inodes(tmp_path / "linked").items():
        assert (inode in shared) == file.endswith(".sst")
    assert not shared & set(inodes(tmp_path / "copied").values())


def test_only_files_that_no_snapshot_has_are_copied(
    store: SnapshotStore, tmp_path: Path, blobs: Path
) -> None:
    with RocksKV(tmp_path / "db", CFS) as kv:
        fill(kv, 0, 1000)
        first = store.create(kv, 0, 1, tmp_path / "work")
        before = inodes(blobs)
        fill(kv, 1000, 1100)
        second = store.create(kv, 0, 2, tmp_path / "work")
    after = inodes(blobs)
    assert before.items() < after.items()
    assert set(store.read(first).blobs) < set(store.read(second).blobs) == set(after)
    assert store.list(0) == [first, second]


def test_two_copies_of_a_shard_do_not_mix_their_files(store: SnapshotStore, tmp_path: Path) -> None:
    names = []
    for copy, high in (("one", 500), ("two", 900)):
        with RocksKV(tmp_path / copy, CFS) as kv:
            fill(kv, 0, high)
            names.append(store.create(kv, 0, 1, tmp_path / "work"))
    ssts = [{f.name for f in store.read(name).files if f.content is None} for name in names]
    assert ssts[0] == ssts[1]  # the same numbers, other contents
    for name, high in zip(names, (500, 900), strict=True):
        store.restore(name, tmp_path / name)
        with RocksKV(tmp_path / name, CFS) as kv:
            assert len(contents(kv)["data"]) == high


def test_taking_the_same_state_twice_is_one_snapshot(store: SnapshotStore, tmp_path: Path) -> None:
    with RocksKV(tmp_path / "db", CFS) as kv:
        fill(kv, 0, 10)
        name = store.create(kv, 0, 1, tmp_path / "work")
    store.restore(name, tmp_path / "one")
    store.restore(name, tmp_path / "two")
    assert store.list() == [name]


@pytest.mark.parametrize("break_file", [damage_file, tear_file])
def test_a_damaged_or_torn_blob_is_refused(
    store: SnapshotStore, tmp_path: Path, blobs: Path, break_file: object
) -> None:
    with RocksKV(tmp_path / "db", CFS) as kv:
        fill(kv, 0, 100)
        name = store.create(kv, 0, 1, tmp_path / "work")
    for blob in sorted(os.listdir(blobs)):
        whole = (blobs / blob).read_bytes()
        break_file(blobs / blob, len(whole) // 2)  # type: ignore[operator]
        for link in (False, True):
            with pytest.raises(CorruptState, match=f"is damaged: the file {blob}"):
                store.restore(name, tmp_path / "back", link=link)
        with pytest.raises(CorruptState, match=f"is damaged: the file {blob}"):
            store.verify(name)
        assert "back" not in str(os.listdir(tmp_path))
        (blobs / blob).write_bytes(whole)
    store.restore(name, tmp_path / "back")


def test_a_blob_that_is_gone_is_named(store: SnapshotStore, tmp_path: Path, blobs: Path) -> None:
    with RocksKV(tmp_path / "db", CFS) as kv:
        fill(kv, 0, 100)
        name = store.create(kv, 0, 1, tmp_path / "work")
    blob = sorted(os.listdir(blobs))[0]
    (blobs / blob).unlink()
    for link in (False, True):
        with pytest.raises(CorruptState, match=f"names the blob {blob}, which is gone"):
            store.restore(name, tmp_path / "back", link=link)


def test_a_torn_blob_is_replaced_by_the_next_snapshot(
    store: SnapshotStore, tmp_path: Path, blobs: Path
) -> None:
    with RocksKV(tmp_path / "db", CFS) as kv:
        fill(kv, 0, 100)
        store.create(kv, 0, 1, tmp_path / "work")
        tear_file(blobs / os.listdir(blobs)[0], 5)
        store.verify(store.create(kv, 0, 2, tmp_path / "work"))


def test_what_reads_back_otherwise_than_it_was_written_is_not_recorded(
    store: SnapshotStore, tmp_path: Path, blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = snapshots._blocks

    def failing_disk(path: str) -> object:
        for block in blocks(path):
            yield block if ".tmp" not in path else b"?" + block[1:]

    monkeypatch.setattr(snapshots, "_blocks", failing_disk)
    with RocksKV(tmp_path / "db", CFS) as kv:
        fill(kv, 0, 100)
        with pytest.raises(CorruptState, match="reads back as"):
            store.create(kv, 0, 1, tmp_path / "work")
    assert store.list() == os.listdir(blobs) == os.listdir(tmp_path / "work") == []


def test_a_damaged_manifest_is_refused_at_every_byte(store: SnapshotStore, tmp_path: Path) -> None:
    with RocksKV(tmp_path / "db", CFS) as kv:
        fill(kv, 0, 3)
        name = store.create(kv, 0, 1, tmp_path / "work")
    manifest = tmp_path / "snapshots" / "manifests" / name
    whole = manifest.read_bytes()
    for at in [*range(0, 200), len(whole) - 1]:
        damage_file(manifest, at)
        with pytest.raises(CorruptState, match=f"the snapshot manifest {name} is damaged"):
            store.read(name)
        manifest.write_bytes(whole)
    tear_file(manifest, 100)
    with pytest.raises(CorruptState):
        store.read(name)
    manifest.unlink()
    with pytest.raises(CorruptState, match=r"is gone from .*manifests"):
        store.read(name)
    with pytest.raises(CorruptState, match="no name of a snapshot manifest"):
        store.read("../secrets")


def test_a_manifest_of_a_newer_windrow_is_refused(store: SnapshotStore, tmp_path: Path) -> None:
    data = seal(Kind.SNAPSHOT_MANIFEST, b"?", version=2)
    name = f"0-1-{snapshots._digest(data)}.manifest"
    (tmp_path / "snapshots" / "manifests" / name).write_bytes(data)
    with pytest.raises(NewerFormat, match="upgrade windrow"):
        store.restore(name, tmp_path / "back")


def test_nothing_is_restored_over_files(store: SnapshotStore, tmp_path: Path) -> None:
    with RocksKV(tmp_path / "db", CFS) as kv:
        fill(kv, 0, 10)
        name = store.create(kv, 0, 1, tmp_path / "work")
        with pytest.raises(StateError, match="is not empty: move it aside"):
            store.restore(name, tmp_path / "db")
    (tmp_path / "empty").mkdir()
    store.restore(name, tmp_path / "empty")


def test_snapshots_are_listed_by_commit_and_by_shard(store: SnapshotStore, tmp_path: Path) -> None:
    with RocksKV(tmp_path / "db", CFS) as kv:
        made = {
            (shard, commit): store.create(kv, shard, commit, tmp_path / "work")
            for shard, commit in ((0, 10), (1, 9), (0, 9), (10, 100))
        }
    assert store.list(0) == [made[0, 9], made[0, 10]]
    assert store.list(1) == [made[1, 9]]
    assert store.list(2) == []
    assert store.list() == [made[0, 9], made[1, 9], made[0, 10], made[10, 100]]


def test_dropping_frees_what_no_other_snapshot_names(
    store: SnapshotStore, tmp_path: Path, blobs: Path
) -> None:
    with RocksKV(tmp_path / "db", CFS) as kv:
        names = []
        for commit in range(3):
            fill(kv, 0, 1000 * commit + 1000)
            if commit == 2:
                kv.compact()
            names.append(store.create(kv, 0, commit, tmp_path / "work"))
        other = store.create(kv, 1, 0, tmp_path / "work")
        last = contents(kv)
    only_old = set(store.read(names[0]).blobs) - set(store.read(names[2]).blobs)
    assert only_old
    assert store.drop(names[1:], 0, grace_s=0) == 0  # the second still names them
    assert store.list() == [other, names[1], names[2]]
    assert store.drop([names[2]], 0, grace_s=0) > 0
    assert not only_old & set(os.listdir(blobs))
    store.restore(names[2], tmp_path / "back")
    with RocksKV(tmp_path / "back", CFS) as back:
        assert contents(back) == last
    assert store.list() == [other, names[2]]
    store.drop([], grace_s=0)
    assert os.listdir(blobs) == store.list() == []


def test_a_young_blob_is_left_for_the_snapshot_that_may_be_about_to_name_it(
    store: SnapshotStore, tmp_path: Path, blobs: Path
) -> None:
    with RocksKV(tmp_path / "db", CFS) as kv:
        fill(kv, 0, 10)
        store.create(kv, 0, 1, tmp_path / "work")
        count = len(os.listdir(blobs))
        store.drop([])
        assert len(os.listdir(blobs)) == count
        for blob in blobs.iterdir():
            os.utime(blob, (0, 0))
        name = store.create(kv, 0, 2, tmp_path / "work")  # names them again, and makes them young
        (tmp_path / "snapshots" / "manifests" / name).rename(tmp_path / name)
        store.drop([])
        (tmp_path / name).rename(tmp_path / "snapshots" / "manifests" / name)
        store.verify(name)


def test_a_snapshot_whose_blob_was_swept_meanwhile_is_not_left_recorded(
    store: SnapshotStore, tmp_path: Path, blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole = snapshots.write_whole

    def sweep_then_write(*args: object, **options: object) -> None:
        next(blobs.iterdir()).unlink()
        write_whole(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshots, "write_whole", sweep_then_write)
    with RocksKV(tmp_path / "db", CFS) as kv:
        fill(kv, 0, 10)
        with pytest.raises(StateError, match="take the snapshot again"):
            store.create(kv, 0, 1, tmp_path / "work")
        assert store.list() == []
        monkeypatch.undo()
        store.verify(store.create(kv, 0, 1, tmp_path / "work"))


def test_leftovers_of_killed_attempts_are_swept(store: SnapshotStore, tmp_path: Path) -> None:
    left = [tmp_path / "snapshots" / part / "x.123-abc.tmp" for part in ("blobs", "manifests")]
    for path in left:
        path.write_bytes(b"half")
    store.drop([])
    assert all(path.exists() for path in left)
    assert store.drop([], grace_s=0) == 8
    assert not any(path.exists() for path in left)
    assert sorted(os.listdir(tmp_path / "snapshots")) == ["blobs", "manifests"]


def test_what_a_process_killed_as_it_asked_for_the_time_left_is_removed_and_what_is_young_stays(
    store: SnapshotStore,
) -> None:
    """By age: the number of a process says nothing where processes of several machines share a folder."""
    now_s = time.time()
    for name, age_s in (("now.1-0a1b.tmp", 1000), ("now.2-0a1b.tmp", 800), ("now.txt", 1000)):
        Path(store.directory, name).touch()
        os.utime(Path(store.directory, name), (now_s - age_s, now_s - age_s))
    store.drop([])
    assert sorted(n for n in os.listdir(store.directory) if n.startswith("now")) == [
        "now.2-0a1b.tmp",
        "now.txt",
    ]


def test_blobs_are_synced_before_the_manifest_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, int]] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            synced.append((os.path.basename(path), 0))
        else:
            synced.append((os.path.basename(os.path.dirname(path)), os.fstat(descriptor).st_size))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store = SnapshotStore(tmp_path / "snapshots")
    with RocksKV(tmp_path / "db", CFS) as kv:
        fill(kv, 0, 10)
        name = store.create(kv, 0, 1, tmp_path / "work")
    one, two = store.read(name).blobs.values()
    size = os.path.getsize(tmp_path / "snapshots" / "manifests" / name)
    folders = [("blobs", 0), ("snapshots", 0)]
    assert synced == [("blobs", one), ("blobs", two), *folders, ("manifests", size), ("manifests", 0)]


def test_files_that_did_not_change_are_not_read_again(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: snapshots.Digests = {}
    read: list[str] = []
    blocks = snapshots._blocks
    monkeypatch.setattr(
        snapshots, "_blocks", lambda path: read.append(os.path.basename(path)) or blocks(path)
    )
    with RocksKV(tmp_path / "db", CFS) as kv:
        for commit in (1, 2):
            fill(kv, 1000 * commit, 1000 * commit + 1000)
            read.clear()
            copy = tmp_path / f"copy-{commit}"
            kv.checkpoint(copy)
            new = {
                n for n in os.listdir(copy) if n.endswith(".sst") and not (tmp_path / "copy-1" / n).exists()
            }
            name = whole(store.keep(str(copy), 0, commit, known))
            if commit == 2:
                assert new and {n for n in read if n.endswith(".sst")} == new
        said = contents(kv)
    store.restore(name, tmp_path / "back")
    with RocksKV(tmp_path / "back", CFS) as back:
        assert contents(back) == said
