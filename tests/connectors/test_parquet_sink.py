"""What a Parquet sink has counts once, whoever dies or sleeps wherever; and its files are few after however many commits."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow as wr
from windrow.checkpoint.storage import FolderRecords
from windrow.connectors import manifests
from windrow.connectors.manifests import Manifest
from windrow.connectors.sinks import PaneFiles, ParquetSink, pane_files
from windrow.core.errors import CorruptState, NewerFormat
from windrow.core.messages import Token

DEFINITION: Any = None


class Died(BaseException):
    """The driver did, at this very operation."""


class Commits:
    """Panes of commits as tasks write them: a file a shard, the same whoever publishes."""

    def __init__(self, folder: Path, name: str | int = "sink") -> None:
        self.panes, self.sink = folder / "panes", str(folder / str(name))
        self.panes.mkdir(exist_ok=True)

    def publish(self, sink: ParquetSink, commit: int) -> None:
        files = []
        for shard in range(2):
            path = self.panes / f"{commit:012d}-{shard}-aa.parquet"
            if not path.exists():
                pq.write_table(pa.table({"commit": [commit] * 2, "x": [shard, 7]}), path)
            files.append(str(path))
        sink.publish(Token("job-1", commit), PaneFiles(tuple(files), 4, "n", DEFINITION, "job-1"))

    def read(self) -> list[int]:
        """The commit of each pane that counts."""
        table = wr.read_panes(self.sink) if os.path.isdir(self.sink) else pa.table({})
        return table.column("commit").to_pylist() if table.num_columns else []


def of(commits: range) -> list[int]:
    return [c for c in commits for _ in range(4)]


@contextmanager
def watched(call: Callable[[int], None]) -> Iterator[None]:
    """`call(n)` before the nth thing that is done to the disk. What earlier tests left is collected later: stores flush."""
    n = 0
    busy = False

    def before(function: Any) -> Any:
        def done(*args: Any, **more: Any) -> Any:
            nonlocal n, busy
            if not busy:
                busy, n = True, n + 1
                try:
                    call(n)
                finally:
                    busy = False
            return function(*args, **more)

        return done

    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in (
                (os, "link"),
                (os, "unlink"),
                (os, "rename"),
                (os, "fsync"),
                (os, "listdir"),
                (FolderRecords, "read"),
            ):
                patch.setattr(owner, name, before(getattr(owner, name)))
            yield
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few records are many, and no disk is waited for."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(manifests, "RECORDS", 2)
    monkeypatch.setattr(manifests, "RUN_LEAST", 4)


def publish(commits: Commits, numbers: range) -> None:
    sink = wr.sinks.parquet(commits.sink)
    last = sink.last_commit("job-1", "n") or 0
    for number in numbers:
        if number > last:
            try:
                commits.publish(sink, number)
            except FileNotFoundError:  # another driver swept what was being written: a runner tries again
                commits.publish(sink, number)


@pytest.mark.parametrize("by_an_older_windrow", [False, True])
def test_a_driver_may_die_anywhere(tmp_path: Path, by_an_older_windrow: bool) -> None:
    """Whatever it was at, a reader sees whole commits, the newest or the one before, and the next driver goes on."""
    at, done = 0, False
    while not done:
        at += 1
        commits = Commits(tmp_path, at)
        (older if by_an_older_windrow else publish)(commits, range(1, 4))

        def die(n: int, at: int = at) -> None:
            if n == at:
                raise Died

        with watched(die):
            try:
                publish(commits, range(4, 9))
                done = True
            except Died:
                pass
        found = commits.read()
        assert found in [of(range(1, last + 1)) for last in range(3, 9)]
        publish(commits, range(1, 12))
        assert commits.read() == of(range(1, 12))
    assert at > 60


def test_an_older_driver_may_sleep_anywhere_and_publish_late(tmp_path: Path) -> None:
    """Others publish, merge and remove meanwhile, so that even the number that it was about to take is free again."""
    at, done = 0, False
    while not done:
        at += 1
        commits = Commits(tmp_path, at)
        slept = False

        def sleep(n: int, at: int = at, commits: Commits = commits) -> None:
            nonlocal slept
            if n == at:
                slept = True
                publish(commits, range(1, 7))

        with watched(sleep):
            publish(commits, range(1, 9))
        done = not slept
        assert commits.read() == of(range(1, 9))
        publish(commits, range(1, 11))
        assert commits.read() == of(range(1, 11))
    assert at > 40


def test_a_reader_sees_whole_commits_at_any_moment(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    seen: list[int] = []

    def look(n: int) -> None:
        found = commits.read()
        assert found == of(range(1, len(found) // 4 + 1))
        seen.append(len(found) // 4)

    with watched(look):
        publish(commits, range(1, 20))
    assert seen == sorted(seen)
    assert set(seen) == set(range(20))


def test_a_reader_is_overtaken_anywhere(tmp_path: Path) -> None:
    """What it is about to read was merged and removed, twice over."""
    at, done = 0, False
    while not done:
        at += 1
        commits = Commits(tmp_path, at)
        publish(commits, range(1, 6))
        overtaken = False

        def overtake(n: int, at: int = at, commits: Commits = commits) -> None:
            nonlocal overtaken
            if n == at:
                overtaken = True
                publish(commits, range(6, 16))

        with watched(overtake):
            found = commits.read()
        assert found in [of(range(1, last + 1)) for last in range(5, 16)]
        done = not overtaken
    assert at > 5


@pytest.mark.proves("Sinks: Parquet, small files merged")
def test_files_and_records_are_few_however_many_commits_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "RECORDS", 16)
    monkeypatch.setattr(manifests, "RUN_LEAST", 16)
    commits = Commits(tmp_path)
    sink = wr.sinks.parquet(commits.sink)
    for number in range(1, 301):
        commits.publish(sink, number)
    assert commits.read() == of(range(1, 301))
    assert len(pane_files(commits.sink)) < 90  # some are being merged
    there = [name for _, _, names in os.walk(commits.sink) for name in names]
    assert len(there) < 190


def test_large_files_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "LARGE_BYTES", 100)
    commits = Commits(tmp_path)
    publish(commits, range(1, 30))
    assert len(pane_files(commits.sink)) == 2 * 29
    assert commits.read() == of(range(1, 30))


def test_columns_that_do_not_go_together_are_left_apart(tmp_path: Path) -> None:
    sink = wr.sinks.parquet(str(tmp_path / "out"))
    for commit in range(1, 12):
        path = tmp_path / f"{commit}.parquet"
        pq.write_table(pa.table({"x": [commit] if commit % 2 else [str(commit)]}), path)
        sink.publish(Token("job-1", commit), PaneFiles((str(path),), 1, "n", DEFINITION, "job-1"))
    assert [pq.read_table(f).column("x").to_pylist()[0] for f in pane_files(sink.path)] == [
        n if n % 2 else str(n) for n in range(1, 12)
    ]


def older(commits: Commits, numbers: range) -> None:
    """As windrow before it merged anything."""
    folder = Path(commits.sink, "_manifests")
    folder.mkdir(parents=True, exist_ok=True)
    for commit in numbers:
        name = f"part-{commit:012d}.parquet"
        pq.write_table(pa.table({"commit": [commit] * 4, "x": [0, 7, 1, 7]}), Path(commits.sink, name))
        body = {"format": 1, "job": "job-1", "operator": "n", "commit": commit, "rows": 4, "files": [name]}
        (folder / f"job-1-n-{commit:012d}.manifest").write_text(json.dumps(body))


def test_what_an_older_windrow_published_is_read_and_merged(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    older(commits, range(1, 12))
    assert commits.read() == of(range(1, 12))
    assert wr.sinks.parquet(commits.sink).last_commit("job-1", "n") == 11
    for last in range(12, 26):
        publish(commits, range(last, last + 1))
        assert commits.read() == of(range(1, last + 1))
    assert not list(Path(commits.sink, "_manifests").glob("*.manifest"))


def test_the_next_driver_removes_what_one_that_died_was_merging(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    publish(commits, range(1, 4))
    orphan = Path(commits.sink, f"merged-job-1-n-{0:020d}-{1:012d}-{3:012d}-0123abcd.parquet")
    mine = Path(commits.sink, f"merged-job-1-n-{99:020d}-{1:012d}-{3:012d}-0123abcd.parquet")
    others = Path(commits.sink, f"merged-job-1-n-x-{0:020d}-{1:012d}-{3:012d}-0123abcd.parquet")
    unfinished = Path(commits.sink, f"merged-job-1-n-{1:012d}-{3:012d}-0123abcd.parquet.tmp")
    for path in (orphan, mine, others, unfinished):
        path.touch()
    publish(commits, range(4, 5))
    assert [path.exists() for path in (orphan, mine, others, unfinished)] == [False, True, True, False]


def test_merging_is_spread_over_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No commit pays for all of it: few files are read in each."""
    monkeypatch.setattr(manifests, "RECORDS", 16)
    monkeypatch.setattr(manifests, "RUN_LEAST", 16)
    read: list[str] = []
    read_file = manifests.read_file
    monkeypatch.setattr(manifests, "read_file", lambda path: read.append(path) or read_file(path))
    commits = Commits(tmp_path)
    sink = wr.sinks.parquet(commits.sink)
    most = 0
    for number in range(1, 101):
        commits.publish(sink, number)
        most, _ = max(most, len(read)), read.clear()
    assert 0 < most <= 8  # of two files a commit
    assert len(pane_files(commits.sink)) < 90  # some are being merged
    assert commits.read() == of(range(1, 101))


def test_a_record_that_is_gone_or_damaged_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "RECORDS", 3)
    commits = Commits(tmp_path)
    publish(commits, range(1, 3))
    records = Path(Manifest(commits.sink, "job-1", "n").records.path)
    first, second = sorted(records.glob("*.wrl"))
    kept = second.read_text()
    second.write_text("{")
    with pytest.raises(CorruptState, match=r"record 1 of .* cannot be read"):
        commits.read()
    second.write_text(kept.replace('"format": 2', '"format": 9'))
    with pytest.raises(NewerFormat, match="has format 9, this windrow reads up to 2"):
        commits.read()
    second.write_text(kept)
    first.unlink()
    with pytest.raises(CorruptState, match=r"has records \[1\], of which one is missing"):
        commits.read()


def test_merged_panes_still_say_which_columns_are_keys(tmp_path: Path) -> None:
    sums = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("1 second"),
        agg={"n": wr.sum("v")},
        retention="1 minute",
    )
    sink = wr.sinks.parquet(str(tmp_path / "out"))
    with sums.open(str(tmp_path / "job"), sink=sink) as op:
        for second in range(20):
            value = 1 if second < 10 else 1.5
            op.add_message(wr.Message({"k": "a", "t": second * 1_000_000, "v": value}))
            op.timeout()
    assert len(pane_files(sink.path)) < 12
    assert wr.latest(wr.read_panes(sink.path)).column("n").to_pylist() == [1.0] * 10 + [1.5] * 9
