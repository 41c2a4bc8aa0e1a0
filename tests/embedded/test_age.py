"""A job of any age: what it keeps is bounded, leads back to its state, and answers what is asked of its past."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.checkpoint import job as jobs
from windrow.checkpoint.backup import backup
from windrow.checkpoint.job_admin import fork
from windrow.checkpoint.verify import verify
from windrow.core import errors as e
from windrow.runners.embedded import engine
from windrow.testing.clock import ManualClock

SECOND = 1_000_000
EVERY, KEEP = 8, 4
FOLDERS = ("log", "segments", "changelog", "panes", "dead", "snapshots")


def define(dead_letters: str | None = None, **agg: Any) -> wr.Aggregate:
    return wr.Aggregate(
        dead_letter_retention=dead_letters,
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg=agg or {"n": wr.count(), "middle": wr.median("x")},
        retention="1 minute",
    )


@pytest.fixture(autouse=True, scope="module")
def ages_fast() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "SNAPSHOT_EVERY", EVERY)
        patch.setattr("windrow.checkpoint.job.KEEP_COMMITS", KEEP)
        yield


def message(i: int) -> wr.Message:
    return wr.Message(
        {"k": "ab"[i % 2], "t": None if i % 10 == 9 else i * SECOND, "x": i}, wr.Position("s", 0, i)
    )


class Aging:
    """A job, and its commits: one message, and every tenth without a time, then `timeout()`."""

    def __init__(self, location: Path, definition: wr.Aggregate | None = None) -> None:
        self.location, self.definition = location, definition or define()
        self.clock, self.done = ManualClock(), 0

    def open(self) -> Any:
        return self.definition.open(str(self.location), clock=self.clock, sink=wr.sinks.memory())

    def live(self, op: Any, commits: int) -> None:
        for i in range(self.done, self.done + commits):
            op.add_message(message(i))
            self.clock.advance("1 second")
            op.timeout()
        self.done += commits

    def files(self) -> dict[str, int]:
        return {folder: sum(len(f) for _, _, f in os.walk(self.location / folder)) for folder in FOLDERS}


def answers(op: Any) -> Any:
    return op.get_windows(), op.get_messages(), op.next_offsets(), op.watermark, op.dead_letters()


#: More than is kept, by half.
OLD, KEPT = 140, 90


@pytest.fixture(scope="module")
def aged(ages_fast: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Aging, dict[str, int], Any]:
    """A job of so many commits, its files and its answers."""
    job = Aging(tmp_path_factory.mktemp("aged") / "job")
    with job.open() as op:
        job.live(op, OLD)
        return job, job.files(), answers(op)


@pytest.fixture
def old(aged: tuple[Aging, dict[str, int], Any], tmp_path: Path) -> Aging:
    """A copy of it."""
    job = Aging(tmp_path / "job")
    shutil.copytree(aged[0].location, job.location)
    job.clock.set(aged[0].clock.now_us())
    job.done = OLD
    return job


@pytest.mark.parametrize("lost", ["nothing", "store", "store and newest snapshot"])
def test_what_a_job_keeps_is_bounded_and_leads_back_to_its_state(
    old: Aging, aged: tuple[Aging, dict[str, int], Any], lost: str
) -> None:
    _, kept, said = aged
    assert max(kept.values()) < KEPT, kept
    if lost != "nothing":
        shutil.rmtree(old.location / "local")
    if lost.endswith("newest snapshot"):
        newest = max(
            (old.location / "snapshots" / "manifests").iterdir(), key=lambda p: int(p.name.split("-")[1])
        )
        newest.write_bytes(b"damaged")
    else:
        assert verify(str(old.location)).wrong == []
    with wr.read_state(str(old.location)) as state:
        assert state.get_windows() == said[0]
    with old.open() as op:
        assert answers(op) == said
        old.live(op, 20)


def test_what_a_job_without_messages_keeps_leads_back_without_store_and_snapshots(tmp_path: Path) -> None:
    job = Aging(tmp_path / "job", define(n=wr.count()))
    with job.open() as op:
        job.live(op, OLD)
        kept, said = job.files(), op.get_windows()
    assert max(kept.values()) < KEPT, kept
    for folder in ("local", "snapshots"):
        shutil.rmtree(job.location / folder)
    with wr.read_state(str(job.location)) as state:
        assert state.get_windows() == said
    with job.open() as op:
        assert op.get_windows() == said
        job.live(op, 20)


def test_many_short_runs_take_snapshots_and_stay_small(tmp_path: Path) -> None:
    job = Aging(tmp_path / "job")
    for _ in range(16):
        with job.open() as op:
            job.live(op, 6)
    assert len(list((job.location / "snapshots" / "manifests").iterdir())) == 2
    assert job.files()["log"] < 90


def test_an_old_job_is_forked_and_backed_up(
    tmp_path: Path, old: Aging, aged: tuple[Aging, dict[str, int], Any]
) -> None:
    job, said = old, aged[2]
    fork(str(job.location), str(tmp_path / "fork"), now_us=1, driver="d")
    backup(str(job.location), str(tmp_path / "backup"))
    for copy in ("fork", "backup"):
        with define().open(str(tmp_path / copy), clock=job.clock, sink=wr.sinks.memory()) as op:
            assert answers(op)[:-1] == said[:-1]
            assert op.dead_letters() == (said[-1] if copy == "backup" else [])
        assert verify(str(tmp_path / copy)).wrong == []


@pytest.mark.parametrize("slices", range(0, 40, 5))
def test_a_crash_between_two_slices_loses_nothing(tmp_path: Path, slices: int) -> None:
    job = Aging(tmp_path / "job")
    op = job.open()
    job.live(op, 3 * EVERY)
    chores = op.engine.shard.preserve(alone=True), op.engine.job.tidy(keeps_messages=True)
    for _, _ in zip(range(slices), (s for chore in chores for s in chore), strict=False):
        pass
    said = answers(op)
    for chore in chores:
        chore.close()
    op.abandon()
    shutil.rmtree(job.location / "local")
    with job.open() as op:
        assert answers(op) == said
    assert verify(str(job.location)).wrong == []


def test_a_slice_of_tidying_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has gathered: a slice deletes, reads and syncs little, and opens no second store."""
    job = Aging(tmp_path / "job")
    with job.open() as op:
        monkeypatch.setattr(engine, "SNAPSHOT_EVERY", 10_000)
        job.live(op, 200)
        done: list[str] = []

        def counted(name: str, of: Any) -> None:
            real = getattr(of, name)
            monkeypatch.setattr(of, name, lambda *a, **k: done.append(name) or real(*a, **k))

        gc.collect()  # not what stores do that earlier tests left
        for name in ("unlink", "fsync", "link", "rename"):
            counted(name, os)
        monkeypatch.setattr("windrow.checkpoint.shard.RecentKV", None)
        slices = []
        for chore in (
            op.engine.shard.preserve(alone=True),
            op.engine.shard.preserve(alone=True),
            op.engine.job.tidy(keeps_messages=True),
        ):
            job.live(op, 1)
            done.clear()
            for _ in chore:
                slices.append(list(done))
                done.clear()
    # Truncating by a few commits takes a claim and a few removals; the rest is less.
    assert max(map(len, slices)) <= 40
    assert sum(map(len, slices)) > 600, slices


def test_tidying_that_fails_is_reported_and_done_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Aging(tmp_path / "job")
    with job.open() as op:
        blobs = job.location / "snapshots" / "blobs"
        blobs.rmdir()
        blobs.write_bytes(b"in the way")
        job.live(op, EVERY + 2)
        assert op.last_commit == EVERY + 2
        assert "could not be tidied" in caplog.text
        blobs.unlink()
        job.live(op, 3 * EVERY)
    assert len(list((job.location / "snapshots" / "manifests").iterdir())) == 2


@pytest.mark.parametrize("window", ["time", "tuples"])
def test_the_log_keeps_what_a_replay_of_the_retained_messages_needs(tmp_path: Path, window: str) -> None:
    definition = (
        define()
        if window == "time"
        else wr.Aggregate(
            by="k",
            event_time="t",
            window=wr.tuples(3),
            agg={"m": wr.median("x")},
            retention=wr.Retain(windows=5),
        )
    )

    def messages(ranges: Any) -> list[wr.Message]:
        logged = [message(i) for i in range(OLD)]
        return [
            m for m in logged if any(first <= m.position.offset < last for first, last in ranges.values())
        ]

    job = Aging(tmp_path / "job", definition)

    def opened() -> Any:
        return definition.open(str(job.location), clock=job.clock, sink=wr.sinks.memory(), replay=messages)

    with opened() as op:
        job.live(op, OLD)
        said = answers(op)
    assert (job.files()["log"] < KEPT) == (window == "time")
    for folder in ("local", "snapshots", "segments"):
        shutil.rmtree(job.location / folder)
    with opened() as op:
        assert answers(op) == said
    assert len(said[1]) > 10


# -- dead letters -----------------------------------------------------------------------------------------------------


def test_dead_letters_outlive_the_records_of_their_commits(old: Aging) -> None:
    with old.open() as op:
        letters = op.dead_letters()
        assert len(letters) == OLD // 10 and op.dead_letters(10) == letters[:1]
    with wr.read_state(str(old.location)) as state:
        assert min(c.commit for c in state.commits()) > OLD - KEPT
        assert state.dead_letters() == letters
        assert state.dead_letters_table()["commit"].to_pylist() == [x.commit for x in letters]


@pytest.mark.parametrize("said", [True, False])
def test_dead_letters_go_when_their_retention_is_over_and_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bool
) -> None:
    monkeypatch.setattr(jobs, "LETTER_FILES", 2 if said else 4096)  # of what is said, all are kept
    if not said:
        monkeypatch.setattr(jobs, "LETTERS_US", 60 * SECOND)
    job = Aging(tmp_path / "job", define("1 minute") if said else None)
    with job.open() as op:
        job.live(op, OLD)
        kept = [x.commit for x in op.dead_letters()]
        assert kept[-1] == OLD and 10 < kept[0] <= 80
        with pytest.raises(e.StateLost, match="commit 10 are not kept any more"):
            op.dead_letters(10)
    assert job.files()["dead"] < 12
    assert verify(str(job.location)).wrong == []


def test_how_long_dead_letters_are_kept_may_change_and_is_recorded(tmp_path: Path) -> None:
    job = Aging(tmp_path / "job", define("1 minute"))
    with job.open() as op:
        job.live(op, 40)
        assert "dead_letter_retention='1 minute'" in repr(op)
    job.definition = define()
    assert job.definition.fingerprint == define("1 minute").fingerprint
    with job.open() as op:
        job.live(op, 80)
        assert len(op.dead_letters()) == 12
    with pytest.raises(e.BadDuration, match="dead_letter_retention '-1 minute' is negative"):
        define("-1 minute")


# -- what is left beside the store --------------------------------------------------------------------------------------


def test_stores_that_were_moved_aside_and_what_killed_attempts_left_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Aging(tmp_path / "job")
    with job.open() as op:
        job.live(op, 1)
    local = job.location / "local"
    left = [
        "shard-0000.aside-1",
        "shard-0000.0a1b.tmp",
        "snapshot-0-99999999-00ff",
        "shard-0000.private-99999999-1",
    ]
    for name in [*left, "shard-0000.aside-2", f"snapshot-0-{os.getpid()}-00ff"]:
        (local / name).mkdir()
        (local / name / "CURRENT").touch()
    (job.location / "segments" / "000000000001-0000-00ff.seg.1-00ff.tmp").touch()
    (job.location / "dead" / "000000000001-0000-00ff.parquet").touch()
    monkeypatch.setattr("windrow.checkpoint.compaction.SWEEP_GRACE_S", 0.0)
    with job.open() as op:
        job.live(op, 3 * EVERY)
    assert sorted(p.name for p in local.iterdir()) == ["shard-0000", f"snapshot-0-{os.getpid()}-00ff"]
    assert not list((job.location / "segments").glob("000000000001-*"))
    assert not list((job.location / "dead").glob("000000000001-*"))
