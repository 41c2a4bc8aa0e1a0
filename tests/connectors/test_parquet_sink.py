"""A Parquet sink has each commit once, wherever a driver dies or sleeps; and a glob sees no row twice."""

from __future__ import annotations

import gc
import os
import re
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
from windrow.core.envelope import Kind, seal
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

    def glob(self) -> list[int]:
        """The commit of each row that a reader finds that knows nothing of windrow."""
        files = sorted(Path(self.sink).glob("*.parquet"))
        return sorted(n for file in files for n in pq.read_table(file).column("commit").to_pylist())


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


def publish(commits: Commits, numbers: range) -> None:
    sink = wr.sinks.parquet(commits.sink)
    last = sink.last_commit("job-1", "n") or 0
    for number in numbers:
        if number > last:
            try:
                commits.publish(sink, number)
            except FileNotFoundError:  # another driver swept what was being written: a runner tries again
                commits.publish(sink, number)


def test_a_driver_may_die_anywhere(tmp_path: Path) -> None:
    """Whatever it was at, a reader sees whole commits, the newest or the one before, and the next driver goes on."""
    at, done = 0, False
    while not done:
        at += 1
        commits = Commits(tmp_path, at)
        publish(commits, range(1, 4))

        def die(n: int, at: int = at) -> None:
            if n == at:
                raise Died

        with watched(die):
            try:
                publish(commits, range(4, 9))
                done = True
            except Died:
                pass
        committed = commits.read()
        assert committed in [of(range(1, last + 1)) for last in range(3, 9)]
        publish(commits, range(1, 12))
        assert commits.read() == commits.glob() == of(range(1, 12))
    assert at > 60


def test_an_older_driver_may_sleep_anywhere_and_publish_late(tmp_path: Path) -> None:
    """Others publish and remove records meanwhile, so that even the number that it was about to take is free again."""
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
        assert commits.read() == commits.glob() == of(range(1, 11))
    assert at > 40


def test_a_reader_sees_whole_commits_at_any_moment(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    seen: list[int] = []

    def look(n: int) -> None:
        committed = commits.read()
        assert committed == of(range(1, len(committed) // 4 + 1))
        seen.append(len(committed) // 4)
        globbed = commits.glob()
        assert globbed[: len(committed)] == committed  # and files of the commit that is being published
        assert all(globbed.count(n) in (2, 4) for n in globbed[len(committed) :])

    with watched(look):
        publish(commits, range(1, 12))
    assert seen == sorted(seen)
    assert set(seen) == set(range(12))


def test_a_reader_is_overtaken_anywhere(tmp_path: Path) -> None:
    """The record that it is about to read was removed."""
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
            committed = commits.read()
        assert committed in [of(range(1, last + 1)) for last in range(5, 16)]
        done = not overtaken
    assert at > 5


def test_records_are_few_however_many_commits_there_were(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    publish(commits, range(1, 101))
    assert commits.read() == commits.glob() == of(range(1, 101))
    assert len(list(Path(commits.sink, "_manifests", "job-1~n").iterdir())) <= manifests.RECORDS


def test_a_file_that_cannot_be_linked_is_copied_out_of_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is not whole yet is seen by no reader, of the folder or of its Parquet files, and is swept."""
    link = os.link
    monkeypatch.setattr(os, "link", lambda a, b: refuse() if str(b).endswith(".parquet") else link(a, b))

    def refuse() -> None:
        raise OSError(18, "Invalid cross-device link")

    commits = Commits(tmp_path)
    publish(commits, range(1, 3))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda a, b: (_ for _ in ()).throw(Died))
        with pytest.raises(Died):
            publish(commits, range(3, 4))
    assert commits.read() == commits.glob() == of(range(1, 3))
    assert [name for name in os.listdir(commits.sink) if not name.startswith("part-")] == ["_manifests"]
    publish(commits, range(3, 5))
    assert commits.read() == commits.glob() == of(range(1, 5))
    publish(commits, range(5, 5))
    wr.sinks.parquet(commits.sink).publish(Token("job-1", 4), PaneFiles((), 0, "n", DEFINITION, "job-1"))
    assert not list(Path(commits.sink).rglob("*.tmp"))


def test_files_of_a_commit_that_are_removed_or_damaged_are_named(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    publish(commits, range(1, 4))
    first = Path(pane_files(commits.sink)[0])
    data = first.read_bytes()
    first.unlink()
    with pytest.raises(
        CorruptState, match=r"has 5 files of operator 'n' of job-1 up to commit 3, and 6 were published"
    ):
        commits.read()
    first.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    with pytest.raises(CorruptState, match=re.escape(f"{first} is damaged")):
        commits.read()


def test_names_are_found_whatever_operators_and_jobs_are_called(tmp_path: Path) -> None:
    """The longest operator's name, and names that are the beginning of others."""
    file = tmp_path / "p.parquet"
    pq.write_table(pa.table({"x": [1]}), file)
    sink = wr.sinks.parquet(str(tmp_path / "out"))
    names = ["n", "n-1", "_n", ".n", "n.parquet", "\u754c" * 64]
    for name in names:
        for job in ("job-0123456789ab", "job-0123456789abc"[:15]):
            sink.publish(Token(job, 7), PaneFiles((str(file),) * 2, 2, name, DEFINITION, job))
    for name in names:
        assert wr.read_panes(sink.path, name).num_rows == 4
    assert len(list(Path(sink.path).glob("*.parquet"))) == wr.read_panes(sink.path).num_rows == 4 * len(names)


def test_a_record_that_is_damaged_is_named(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    publish(commits, range(1, 3))
    second = Path(Manifest(commits.sink, "job-1", "n").records.path) / f"{2:020d}.wrl"
    kept = second.read_bytes()
    for at in range(len(kept)):
        second.write_bytes(kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :])
        with pytest.raises(CorruptState, match=r"record 2 of .* cannot be read"):
            commits.read()
    second.write_bytes(seal(Kind.SINK_MANIFEST, b"", 9))
    with pytest.raises(NewerFormat, match="of version 9, this windrow reads version 1"):
        commits.read()
    second.rename(second.with_name(f"{3:020d}.wrl"))
    (second.with_name(f"{3:020d}.wrl")).write_bytes(kept)
    with pytest.raises(CorruptState, match=r"record 3 of .* \(it is of commit 2 of 'n' of job-1\)"):
        commits.read()
