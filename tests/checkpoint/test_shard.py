"""The compacted changelog of a shard: written in parts, read whole, older ones cleared away."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from windrow.checkpoint import compaction
from windrow.checkpoint import shard as shards
from windrow.checkpoint.compaction import compact
from windrow.checkpoint.files import write_parquet
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.records import Commit
from windrow.checkpoint.shard import Shard, ShardSpec
from windrow.core.errors import CorruptState
from windrow.stores import snapshots
from windrow.stores.incremental_work import whole
from windrow.stores.kv import Batch, LocalStore
from windrow.stores.quarantine import destroy

COMMITS = 3


def commit_of(number: int, shard: Shard, batch: Batch) -> Commit:
    written = shard.write(number, batch, {}, None, {})
    return Commit(
        epoch=1,
        commit=number,
        steps=(),
        next_offsets={},
        shards=(written,),
        published=number,
        watermark_us=None,
    )


@pytest.fixture
def spec(tmp_path: Path) -> ShardSpec:
    folders = JobFolders(str(tmp_path))
    folders.make()
    return ShardSpec(folders, "job", 0, ("w", "aux"))


def fill(spec: ShardSpec, upto: int) -> tuple[Shard, list[Commit]]:
    """A shard after `upto` commits of 100 keys each, with a compacted changelog after every one."""
    shard = Shard.open(spec, 0, lambda: iter(()))
    commits: list[Commit] = []
    for number in range(1, upto + 1):
        batch = Batch()
        batch.put_many("w", [b"%d-%03d" % (number, i) for i in range(100)], [b"v" * 50] * 100)
        batch.put("aux", b"step", b"%d" % number)
        commits.append(commit_of(number, shard, batch))
        shard.catch_up([commits[-1]])
        scans = {cf: shard.kv.scan(cf) for cf in spec.metadata_cfs}
        whole(compact(spec.folders, 0, scans, number))
    return shard, commits


def contents(shard: Shard) -> dict[str, dict[bytes, bytes]]:
    return {cf: dict(shard.kv.scan(cf)) for cf in shard.spec.metadata_cfs}


def names(spec: ShardSpec, prefix: str) -> list[str]:
    folder = os.path.dirname(spec.folders.changelog("x"))
    return sorted(n for n in os.listdir(folder) if n.startswith(prefix))


def lose_all_but_the_base(spec: ShardSpec) -> None:
    destroy(spec.path)
    for name in names(spec, "0"):
        os.unlink(os.path.join(os.path.dirname(spec.folders.changelog("x")), name))


def test_a_compacted_changelog_is_written_in_parts_that_fit_memory(
    spec: ShardSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "BASE_PART_BYTES", 1_000)
    written: list[int] = []
    original = compaction.write_segment

    def counted(path: str, commit: int, shard: int, batch: Batch, *extra: object, **how: bool) -> str:
        written.append(sum(len(k) + len(v) for _, _, k, v in batch.ops))
        return original(path, commit, shard, batch, *extra, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(compaction, "write_segment", counted)
    shard, _ = fill(spec, 1)
    shard.close()
    [*parts, last] = written
    assert len(parts) >= 5, parts
    assert max(parts) < 1_100 and last == 0


def test_a_shard_comes_back_from_its_compacted_changelog_alone(
    spec: ShardSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "BASE_PART_BYTES", 1_000)
    shard, commits = fill(spec, COMMITS)
    before = contents(shard)
    shard.close()
    lose_all_but_the_base(spec)
    again = Shard.open(spec, COMMITS, lambda: iter(commits))
    assert contents(again) == before
    again.close()


def test_a_damaged_part_of_the_compacted_changelog_is_refused(
    spec: ShardSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "BASE_PART_BYTES", 1_000)
    shard, commits = fill(spec, 1)
    shard.close()
    lose_all_but_the_base(spec)
    part = names(spec, "base_part-")[2]
    path = Path(spec.folders.changelog("x")).with_name(part)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptState, match=part):
        Shard.open(spec, 1, lambda: iter(commits))


def test_the_newest_compacted_changelog_and_the_one_before_are_kept(spec: ShardSpec) -> None:
    shard, _ = fill(spec, COMMITS)
    shard.close()
    assert [int(n[10:22]) for n in names(spec, "base-")] == [COMMITS - 1, COMMITS]
    assert sorted({int(n[15:27]) for n in names(spec, "base_part-")}) == [COMMITS - 1, COMMITS]


def test_a_store_that_somebody_opens_after_the_look_is_left_to_him(
    spec: ShardSpec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A killed task's worker lives on and opens what this one has just found free: a private copy goes on."""
    shard, commits = fill(spec, COMMITS)
    expected = contents(shard)
    monkeypatch.setattr(shards, "LOCK_WAIT_S", 0.1)
    monkeypatch.setattr(shards, "look", lambda *_: (None, shards.StoreFound.ABSENT, None))
    own = Shard.open(spec, COMMITS, lambda: iter(commits))
    assert own.kv.path != shard.kv.path
    assert contents(own) == expected
    [warning] = [m for m in (record.getMessage() for record in caplog.records) if "a copy is built" in m]
    assert repr(own.kv.path) in warning and repr(shard.kv.path) in warning
    own.close()
    shard.close()


def test_a_store_that_cannot_catch_up_is_let_go(spec: ShardSpec) -> None:
    """The next attempt, in the same worker, finds it free."""
    shard, commits = fill(spec, COMMITS)
    last = commits[-1]
    shard.close()
    destroy(spec.path)
    shard = Shard.open(spec, COMMITS - 1, lambda: iter(commits[:-1]))
    shard.close()
    name = last.shards[0].segment
    assert name is not None
    with open(spec.folders.changelog(name), "r+b") as file:
        file.write(b"torn")
    with pytest.raises(CorruptState) as caught:
        Shard.open(spec, COMMITS, lambda: iter(commits), [last], lock_wait_s=0.1)
    assert caught.tb is not None  # the frames of the attempt are alive, and what they hold
    Shard.open(spec, COMMITS - 1, lambda: iter(commits[:-1]), lock_wait_s=0.1).close()


def test_a_restored_store_that_somebody_takes_away_before_it_is_opened_is_not_taken_for_whole(
    spec: ShardSpec,
) -> None:
    """An empty store was made in its place, and believed to hold the snapshot's commit."""
    shard, commits = fill(spec, COMMITS)
    wanted = contents(shard)
    shard.snapshot()
    shard.close()
    destroy(spec.path)
    taken: list[str] = []

    def open_late(path: str, cfs: Sequence[str], wait_s: float) -> LocalStore:
        if os.path.exists(path) and not taken:
            taken.append(path)
            shutil.rmtree(path)
        return shards.open_rocks(path, cfs, wait_s)

    late = replace(spec, open_store=open_late)
    again = Shard.open(late, COMMITS, lambda: iter(commits))
    assert taken == [spec.path]
    assert contents(again) == wanted
    again.close()


def test_columns_of_panes_that_repeat_have_dictionaries(tmp_path: Path) -> None:
    n, us = 4_000, pa.timestamp("us", "UTC")
    own, shared = pa.array(range(n)).cast(us), pa.array([i // 500 for i in range(n)]).cast(us)
    window = pa.StructArray.from_arrays([shared, own], names=["start", "end"])
    keys, numbers = pa.array([str(i % 7) for i in range(n)]), pa.array(range(n))
    table = pa.table(
        {"window": window, "k": keys, "seen": own, "day": shared, "n": numbers, "commit": pa.array([1] * n)}
    )
    path = str(tmp_path / "panes.parquet")
    write_parquet(table, path)
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    assert {c.path_in_schema for c in columns if c.has_dictionary_page} == {
        "window.start",
        "k",
        "day",
        "commit",
    }
    assert pq.read_table(path).equals(table)


def test_a_snapshot_hashes_only_files_that_are_new_since_the_last_one_of_the_store(
    spec: ShardSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    blocks = snapshots._blocks
    monkeypatch.setattr(
        snapshots, "_blocks", lambda path: read.append(os.path.basename(path)) or blocks(path)
    )
    shard, commits = fill(spec, 2)
    shard.snapshot()
    shard.close()

    def snapshot_of_another_process(number: int) -> set[str]:
        shard = Shard.open(spec, number, lambda: iter(commits))
        batch = Batch()
        batch.put("w", b"new", b"%d" % number)
        commits.append(commit_of(number + 1, shard, batch))
        shard.catch_up([commits[-1]])
        before = {n for n in os.listdir(spec.path) if n.endswith(".sst")}
        read.clear()
        shard.snapshot()
        shard.close()
        return {n for n in read if n in before}

    assert not snapshot_of_another_process(2)
    with open(os.path.join(spec.path, snapshots.DIGESTS), "r+b") as file:
        file.seek(30)
        file.write(b"?")
    assert snapshot_of_another_process(3)  # a damaged note is none
    assert not snapshot_of_another_process(4)
    destroy(spec.path)
    assert snapshot_of_another_process(5)  # a shard elsewhere begins a chain of its own
