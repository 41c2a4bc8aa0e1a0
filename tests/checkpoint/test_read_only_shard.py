"""A shard for who only reads its store: what it holds, when it is none, how often stores take in what was committed, and what
a process keeps open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from windrow.checkpoint import read_only_shard
from windrow.checkpoint.job import RECENT
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.marker import BEGUN, MARKER_CF, marker_of
from windrow.checkpoint.read_only_shard import KeptStores, open_resting
from windrow.checkpoint.records import Commit
from windrow.checkpoint.shard import Shard, ShardSpec, read_rocks
from windrow.core.errors import StateError
from windrow.runners.tasks import TaskPlan
from windrow.stores.kv import Batch
from windrow.stores.rocks import RocksKV

CFS = ("w", "aux")


@pytest.fixture
def spec(tmp_path: Path) -> ShardSpec:
    folders = JobFolders(str(tmp_path))
    folders.make()
    return ShardSpec(folders, "job", 0, CFS)


def nothing() -> Iterator[Commit]:
    return iter(())


def commit_of(number: int, shard: Shard, batch: Batch) -> Commit:
    written = shard.write(number, batch, {}, None, {})
    return Commit(
        epoch=1, commit=number, steps=(), next_offsets={}, shards=(written,), published=0, watermark_us=None
    )


def changes(number: int) -> Batch:
    batch = Batch()
    batch.put_many("w", [b"%d-%d" % (number, i) for i in range(5)], [b"v"] * 5)
    batch.put("aux", b"step", b"%d" % number)
    return batch


def committed(spec: ShardSpec, applied: int, upto: int) -> list[Commit]:
    """Commits up to `upto`, of which the store has taken in those up to `applied`."""
    shard = Shard.open(spec, 0, nothing)
    commits = [commit_of(n, shard, changes(n)) for n in range(1, upto + 1)]
    shard.catch_up(commits[:applied])
    shard.close()
    return commits


def contents(shard: Shard) -> dict[str, dict[bytes, bytes]]:
    return {cf: dict(shard.kv.scan(cf)) for cf in CFS}


def taken_in(spec: ShardSpec) -> int:
    kv = RocksKV(spec.path, spec.cfs, read_only=True)
    marker = marker_of(kv, spec.job, spec.shard)
    kv.close()
    assert marker is not None
    return marker.commit


KEYS = st.integers(0, 9).map(lambda n: b"%d" % n)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(CFS), KEYS, st.binary(max_size=3)),
        st.tuples(st.just("delete"), st.sampled_from(CFS), KEYS, st.just(b"")),
        st.tuples(st.just("delete_range"), st.sampled_from(CFS), KEYS, KEYS),
    ),
    max_size=8,
)


def batch_of(ops: list[tuple[str, str, bytes, bytes]]) -> Batch:
    batch = Batch()
    for kind, cf, key, value in ops:
        if kind == "put":
            batch.put(cf, key, value)
        elif kind == "delete":
            batch.delete(cf, key)
        else:
            batch.delete_range(cf, key, value)
    return batch


@given(st.lists(CHANGES, min_size=1, max_size=4), st.integers(0, 4))
@examples(15, deep=1_000)
def test_it_holds_what_a_store_that_took_in_each_commit_by_itself_holds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[tuple[str, str, bytes, bytes]]], applied: int
) -> None:
    folders = JobFolders(str(tmp_path_factory.mktemp("job")))
    folders.make()
    spec, applied = ShardSpec(folders, "job", 0, CFS), min(applied, len(steps))
    shard = Shard.open(spec, 0, nothing)
    commits = []
    for number, ops in enumerate(steps, 1):
        commits.append(commit_of(number, shard, batch_of(ops)))
        shard.catch_up([commits[-1]])
    wanted = contents(shard)
    shard.close()
    other = replace(spec, local=str(tmp_path_factory.mktemp("local")))
    Shard.open(other, applied, lambda: iter(commits)).close()
    rests = open_resting(other, len(steps), commits)
    assert rests is not None and rests.applied == len(steps)
    assert contents(rests) == wanted
    rests.close()
    assert taken_in(other) == applied  # nothing was written
    again = Shard.open(other, len(steps), nothing, commits)  # all of it at once
    assert contents(again) == wanted and again.applied == len(steps)
    again.close()


def test_it_needs_no_lock(spec: ShardSpec) -> None:
    commits = committed(spec, 2, 3)
    elsewhere = RocksKV(spec.path, spec.cfs)
    rests = open_resting(spec, 3, commits)
    assert rests is not None and contents(rests)["aux"] == {b"step": b"3"}
    with pytest.raises(StateError, match="read only"):
        rests.snapshot()
    rests.close()
    elsewhere.close()


def test_there_is_none_without_a_store(spec: ShardSpec) -> None:
    assert open_resting(spec, 0, []) is None
    assert not os.path.exists(spec.path)


@pytest.mark.parametrize(
    "wrong",
    ["ahead", "of another job", "of another history", "begun", "too far behind", "swept", "torn", "much"],
)
def test_there_is_none_where_the_store_does_not_lead_there(
    spec: ShardSpec, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, wanted = committed(spec, 2, 4), 4
    segment = spec.folders.changelog(str(commits[-1].shards[0].segment))
    if wrong == "ahead":
        wanted = 1
    elif wrong == "of another job":
        spec = replace(spec, job="other")
    elif wrong == "of another history":
        commits[1] = replace(commits[1], epoch=2)
    elif wrong == "begun":
        kv, part = RocksKV(spec.path, spec.cfs), Batch()
        part.put(MARKER_CF, BEGUN, Shard(spec, kv, 2).marker(3, commits[2]))
        kv.write(part)
        kv.close()
    elif wrong == "too far behind":
        del commits[2]
    elif wrong == "swept":
        os.unlink(segment)
    elif wrong == "torn":
        Path(segment).write_bytes(b"torn")
    else:
        monkeypatch.setattr(read_only_shard, "MOST_BYTES", 10)
    assert open_resting(spec, wanted, commits) is None
    RocksKV(spec.path, spec.cfs, lock_wait_s=0).close()  # and nobody has it open


def test_a_store_that_cannot_be_read_is_left_to_who_opens_it(spec: ShardSpec) -> None:
    commits = committed(spec, 2, 2)
    for name in os.listdir(spec.path):
        if name.startswith("MANIFEST-"):
            Path(spec.path, name).write_bytes(b"torn")
    assert open_resting(spec, 2, commits) is None


@pytest.mark.parametrize("note", [b"", b'{"raw_mode":tr'])
def test_a_note_that_a_killed_reader_left_half_written_does_no_harm(spec: ShardSpec, note: bytes) -> None:
    """rocksdict writes it whenever it opens a store, to read it, too, and others may open it just then."""
    commits = committed(spec, 2, 3)
    file = Path(spec.path, "rocksdict-config.json")
    whole = file.read_bytes()
    file.write_bytes(note)
    rests = open_resting(spec, 3, commits)
    assert rests is not None and contents(rests)["aux"] == {b"step": b"3"} and file.read_bytes() == whole
    rests.close()
    file.write_bytes(note)
    shard = Shard.open(spec, 3, nothing, commits)
    assert contents(shard)["aux"] == {b"step": b"3"}
    shard.close()


def test_commits_together_stay_below_what_is_written_at_once(
    spec: ShardSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, written = committed(spec, 0, 4), list[int]()
    size = changes(1).nbytes
    monkeypatch.setattr("windrow.checkpoint.shard.PART_BYTES", 2 * size)
    shard = Shard.open(spec, 0, nothing)
    write = shard.kv.write

    def counted(batch: Batch) -> None:
        written.append(batch.only(CFS).nbytes)
        write(batch)

    monkeypatch.setattr(shard.kv, "write", counted)
    shard.catch_up(commits)
    assert len(written) == 2 and max(written) <= 2 * size
    assert shard.applied == 4 and contents(shard)["aux"] == {b"step": b"4"}
    shard.close()


def test_tasks_write_a_store_where_a_snapshot_is_due(spec: ShardSpec) -> None:
    commits, reached = committed(spec, 0, 12), list[int]()
    for number in range(2, 14):
        plan = TaskPlan(
            spec,
            (),
            number,
            0,
            {},
            b"",
            None,
            tuple(commits[: number - 1][-RECENT:]),
            snapshot_every=10,
            commits=lambda: pytest.fail("the log is read"),
        )
        shard = plan.open(0)
        assert shard.applied == number - 1 and contents(shard)["aux"] == {b"step": b"%d" % (number - 1)}
        assert plan.takes_snapshot(0) == (number == 11)
        if plan.takes_snapshot(0):
            assert shard.snapshot()
        shard.close()
        reached.append(taken_in(spec))
    assert reached == [0] * 9 + [10] * 3


def test_a_process_opens_a_store_once_and_takes_in_what_was_committed_since(
    spec: ShardSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, opened, kept = committed(spec, 0, 6), list[str](), KeptStores()
    counting = replace(spec, read_store=lambda path, cfs: opened.append(path) or read_rocks(path, cfs))  # type: ignore[func-returns-value]
    for number in (2, 3, 6):
        shard = open_resting(counting, number, commits[: number + 1], kept)
        assert shard is not None and contents(shard)["aux"] == {b"step": b"%d" % number}
        kept.keep(shard)
    assert opened == [spec.path]
    Shard.open(
        spec, 6, nothing, commits
    ).close()  # another process: the store takes in all, and has other files
    shard = open_resting(counting, 6, commits, kept)
    assert shard is not None and contents(shard)["aux"] == {b"step": b"6"} and len(opened) == 1
    kept.keep(shard)
    kept.drop(spec.path)
    assert kept.take(spec.path) is None


def test_what_is_kept_of_another_history_is_read_anew(spec: ShardSpec) -> None:
    commits, kept = committed(spec, 0, 3), KeptStores()
    shard = open_resting(spec, 3, commits, kept)
    assert shard is not None
    kept.keep(shard)
    others = [*commits[:2], replace(commits[2], epoch=2)]
    again = open_resting(spec, 3, others, kept)
    assert again is not None and again is not shard
    kept.keep(again)
    assert open_resting(spec, 2, others[:2], kept) is not again, "it holds a commit that the log lacks"


def test_a_process_keeps_no_more_stores_than_it_may_and_none_for_good(
    spec: ShardSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, specs = KeptStores(), [replace(spec, shard=shard) for shard in range(3)]
    commits = [committed(of, 0, 2) for of in specs]
    monkeypatch.setattr(read_only_shard, "KEPT_STORES", 2)
    for of, own in zip(specs, commits, strict=True):
        shard = open_resting(of, 2, own, kept)
        assert shard is not None
        kept.keep(shard)
    assert [kept.take(of.path) is None for of in specs] == [False, False, True]
    kept = KeptStores()
    monkeypatch.setattr(read_only_shard, "TAKES_IN_EVERY", 0)
    for of, own in zip(specs, commits, strict=True):
        shard = open_resting(of, 1 + of.shard // 2, own, kept)
        assert shard is not None
        kept.keep(shard)
    assert [kept.take(of.path) is None for of in specs] == [True, True, False]


def test_what_is_kept_counts_as_lost_once_its_folder_is(spec: ShardSpec) -> None:
    """Every other process finds no store, and this one, too, when it has to write it: by then more may be lost."""
    commits, kept = committed(spec, 0, 3), KeptStores()
    for number, anew in ((2, False), (3, True)):
        shard = open_resting(spec, number, commits, kept)
        assert shard is not None
        kept.keep(shard)
        os.rename(spec.path, f"{spec.path}.aside-{number}")
        if anew:
            Shard.open(spec, 3, nothing, commits).close()
        opened = open_resting(spec, 3, commits, kept)
        assert opened is not shard and (opened is not None) == anew and kept.take(spec.path) is None
        Shard.open(spec, 3, nothing, commits).close()
    assert opened is not None
    opened.close()
