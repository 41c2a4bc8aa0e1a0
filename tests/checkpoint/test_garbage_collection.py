"""Garbage collection costs a constant for each commit and shard, however old the job is and however many shards it has."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.checkpoint import job as jobs
from windrow.checkpoint.compaction import Changelog, compact
from windrow.checkpoint.files import ShardFiles
from windrow.checkpoint.job import Job
from windrow.checkpoint.records import ShardResult, Step
from windrow.stores.incremental_work import Slices, whole
from windrow.stores.kv import Batch
from windrow.stores.snapshots import SnapshotStore
from windrow.testing.clock import ManualClock

COUNTS = wr.Aggregate(
    by="k", event_time="t", window=wr.tumbling("1 hour"), agg={"n": wr.count()}, retention="1 day"
)


def opened(folder: Path, shards: int = 1) -> Job:
    return Job(str(folder), [COUNTS], shards=shards, clock=ManualClock())


def commit(job: Job, number: int, results: list[ShardResult], files: Iterable[str] = ()) -> None:
    taken = {(name, 0): 1 for name in files}
    step = Step(
        kind="ingest", now_us=0, watermark_us=0, first_offsets=dict.fromkeys(taken, 0), next_offsets=taken
    )
    marks: dict[str, Any] = {"marks": {}, "next_offsets": {}, "watermarks_us": {COUNTS.name: 0}, "now_us": 0}
    job.commit(number, [step], results, query_id="q", batch_id=number, **marks)
    job.mark_published(number)


def test_names_of_files_are_restated_in_fewer_commits_the_more_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_covered(folders: Any, shards: int) -> Slices[dict[int, int]]:
        yield
        return dict.fromkeys(range(shards), 1 << 40)

    monkeypatch.setattr(jobs, "covered", all_covered)
    monkeypatch.setattr(Changelog, "newest_base", lambda self, shard: 1 << 40)
    monkeypatch.setattr(jobs, "NAMES_A_COMMIT", 20)
    monkeypatch.setattr(jobs, "SLICE_COMMITS", 4)
    job, restated, claims = opened(tmp_path), 0, 0
    for number in range(1, 401):
        commit(job, number, [], [f"{number}-{i}" for i in range(5)])
        if number % 4 == 0:
            before = job.log.state.first_seq
            whole(job.tidy(keep=1))
            if job.log.state.first_seq > before:
                claims += 1
                restated += job.log.state.summary.size
    assert restated <= (20 + 5) * 400, "as many names as are allowed for each commit, and those that are new"
    assert 5 < claims < 60
    assert job.log.state.summary.size > 1000
    kept = sum(1 for _ in job.log.commits())
    assert kept <= 4 + 1 + 2000 // 20, "and the log is truncated all the same"


def test_shards_write_a_compact_changelog_in_turn_when_as_much_has_changed_as_all_of_them_hold(
    tmp_path: Path,
) -> None:
    job, turns = opened(tmp_path, shards=3), []
    for number in range(1, 13):
        results = []
        for shard in range(3):
            changes = Batch()
            if shard == 1 or number == 1:
                changes.put(f"{COUNTS.name}.windows", b"key", b"v" * 1000)
            results.append(ShardFiles(job.folders, shard).write(number, changes, Batch(), {}, None, {}))
        commit(job, number, results)
        whole(job.changelog.look(number))
        due = [shard for shard in range(3) if job.changelog.is_due(shard, number)]
        turns.append(due)
        if number == 1:
            assert due == [0, 1, 2], "there is none"
            for shard in range(3):
                pairs = {f"{COUNTS.name}.windows": iter([(b"key", os.urandom(2500))])}
                whole(compact(job.folders, shard, pairs, 1))
    first = [next(n for n, due in enumerate(turns) if n and shard in due) for shard in range(3)]
    assert first[0] >= first[1] >= first[2] > 4 and first[0] > first[2]


def test_snapshots_of_all_shards_are_listed_once_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    listing = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(str(path)) or listing(path))
    counts = []
    for shards in (2, 20):
        job = opened(tmp_path / str(shards), shards)
        store, copy = SnapshotStore(job.folders.snapshots), tmp_path / f"copy-{shards}"
        copy.mkdir()
        for number in range(1, 4):
            commit(job, number, [ShardResult(shard=shard) for shard in range(shards)])
            for shard in range(shards):
                (copy / "1.sst").write_text(f"{shard} {number}")
                whole(store.keep(str(copy), shard, number))
        listed.clear()
        whole(job.tidy(keep=1))
        counts.append(len(listed))
        assert job.compacts == frozenset(range(shards))
    assert counts[0] == counts[1]


def test_a_shard_without_a_compact_changelog_keeps_the_files_of_all_commits(tmp_path: Path) -> None:
    job = opened(tmp_path / "job")
    store, copy = SnapshotStore(job.folders.snapshots), tmp_path / "copy"
    copy.mkdir()
    for number in range(1, 5):
        changes = Batch()
        changes.put(f"{COUNTS.name}.windows", b"key", b"%d" % number)
        commit(job, number, [ShardFiles(job.folders, 0).write(number, changes, Batch(), {}, None, {})])
        (copy / "1.sst").write_text(f"{number}")
        whole(store.keep(str(copy), 0, number))
    whole(job.tidy(keep=1))
    assert len(os.listdir(job.folders.changelogs)) == 4
    whole(compact(job.folders, 0, {f"{COUNTS.name}.windows": iter([(b"key", b"4")])}, 4))
    whole(job.tidy(keep=1))
    left = [name for name in os.listdir(job.folders.changelogs) if not name.startswith("base")]
    assert [int(name.partition("-")[0]) for name in left] == [4]
