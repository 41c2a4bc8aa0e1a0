"""Faults that only a log of files can have: links, syncs, temporary files, processes, kills."""

from __future__ import annotations

import errno
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bare import BARE
from tests.checkpoint.log_contract import claim, commit, intent, numbers, run
from windrow.checkpoint import storage
from windrow.checkpoint.log import FileLog
from windrow.checkpoint.records import encode
from windrow.core.errors import BadLocation, CorruptState, Fenced, LogUnsupported

COMMITTER = """
import sys
from windrow.checkpoint.log import FileLog
from windrow.checkpoint.records import Commit
log = FileLog(sys.argv[1])
epoch = log.open_epoch(opened_us=1, driver=sys.argv[2], fingerprints={}, shards=1, job="j").epoch
while True:
    number = log.state.commit_number + 1
    log.append(Commit(epoch=epoch, commit=number, steps=(), next_offsets={}, shards=(), published=0, watermark_us=None))
    print(number, flush=True)
"""


def start_committer(path: Path, driver: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BARE + COMMITTER, str(path), driver]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_a_record_is_one_file_named_by_its_number(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    claim(log)
    run(log, 1, 1)
    assert names(tmp_path) == [f"{n:020d}.wrl" for n in range(3)]


def test_reading_creates_nothing(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "a" / "log")
    assert log.tail().epoch is None
    assert numbers(log) == []
    assert not (tmp_path / "a").exists()


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    for name in ("README", "1.wrl", f"{7:020d}.wrl.bak", "notes.tmp"):
        (tmp_path / name).write_text("x")
    log = FileLog(tmp_path)
    claim(log)
    run(log, 1, 3)
    log.truncate(3)
    assert {"README", "1.wrl", f"{7:020d}.wrl.bak", "notes.tmp"} <= set(names(tmp_path))
    assert numbers(FileLog(tmp_path)) == [3]


def test_a_log_travels_pickled_as_a_reader(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    claim(log)
    run(log, 1, 3)
    reader = pickle.loads(pickle.dumps(log))
    assert reader.tail() == log.state
    with pytest.raises(ValueError, match="open for reading"):
        reader.append(commit(1, 4))


def test_appending_does_not_list_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, follower = FileLog(tmp_path), FileLog(tmp_path)
    claim(log)
    follower.tail()

    def listdir(path: Any) -> list[str]:
        raise AssertionError(f"listed {path}")

    monkeypatch.setattr(storage.os, "listdir", listdir)
    run(log, 1, 5)
    assert follower.tail() == log.state


# --- what the file system must be able to do ---


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_folder_without_hard_links_is_refused_and_left_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(source: Any, target: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(storage.os, "link", link)
    with pytest.raises(LogUnsupported, match=r"no hard links there \(.+\)\. Put the log on a local disk or"):
        claim(FileLog(tmp_path))
    assert names(tmp_path) == []


def test_a_folder_whose_links_replace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.os, "link", lambda source, target: Path(target).write_bytes(b""))
    with pytest.raises(LogUnsupported, match="hard links replace files there"):
        claim(FileLog(tmp_path))
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_synced_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def fsync_files_only(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(handle)

    monkeypatch.setattr(storage.os, "fsync", fsync_files_only)
    with pytest.raises(LogUnsupported, match="this folder cannot be synced"):
        claim(FileLog(tmp_path))


def test_errors_that_are_not_about_links_stay_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage.os, "link", link)
    with pytest.raises(OSError, match="No space left"):
        claim(FileLog(tmp_path))


@pytest.mark.parametrize(
    "url", ["s3://bucket/log", "hdfs://host/log", "dbfs:/log", "gs://b/l", "abfss://c@a/l"]
)
def test_object_stores_are_refused_with_the_reason(url: str) -> None:
    with pytest.raises(BadLocation, match=re.escape(url) + ".*never in object stores"):
        FileLog(url)


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_file_urls_are_folders(tmp_path: Path, prefix: str) -> None:
    log = FileLog(f"{prefix}{tmp_path}/log")
    claim(log)
    assert FileLog(tmp_path / "log").tail() == log.state


# --- crashes inside the creation of a record: steps L1 to L4 ---


class Crash(BaseException):
    """The process ends here: no `finally` of the log may help."""


def crash_at(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Let the next creation stop right before a step, leaving its files as they are."""
    originals = {"_write": storage._write, "_link": storage._link, "_sync_folder": storage._sync_folder}

    def crash(*args: Any) -> None:
        monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        if step == "half of L1":
            args[0].write_bytes(args[1][:10])
        raise Crash

    name = {"L1": "_write", "half of L1": "_write", "L2": "_link", "L3": "_sync_folder"}[step]
    assert name in originals
    monkeypatch.setattr(storage, name, crash)


@pytest.mark.parametrize(
    ("step", "exists"), [("L1", False), ("half of L1", False), ("L2", False), ("L3", True)]
)
def test_a_crash_inside_a_creation_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, exists: bool
) -> None:
    log = FileLog(tmp_path)
    claim(log)
    run(log, 1, 1)
    with monkeypatch.context() as patch:
        crash_at(patch, step)
        with pytest.raises(Crash):
            log.append(commit(1, 2))
    assert any(name.endswith(".tmp") for name in names(tmp_path)) == (step != "L1")
    reader = FileLog(tmp_path)
    assert reader.tail().commit_number == (2 if exists else 1)
    successor = FileLog(tmp_path)
    claim(successor)
    run(successor, reader.state.commit_number + 1, 4)
    claim(FileLog(tmp_path))  # what a successor has not swept, the one after it does
    assert not any(name.endswith(".tmp") for name in names(tmp_path))


def test_a_failure_to_sync_the_folder_leaves_it_open_whether_the_record_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FileLog(tmp_path)
    claim(log)

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "_sync_folder", fail)
        with pytest.raises(OSError, match="Input/output error"):
            log.append(commit(1, 1))
    with pytest.raises(Fenced, match="open the job again"):
        log.append(commit(1, 1))
    assert FileLog(tmp_path).tail().commit_number == 1


def test_a_link_that_was_made_though_its_answer_got_lost_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FileLog(tmp_path)
    claim(log)
    link = os.link

    def link_and_repeat(source: Any, target: Any) -> None:
        link(source, target)
        link(source, target)  # as a network file system's client does when no answer came

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "link", link_and_repeat)
        assert log.append(commit(1, 1)).seq == 1
    run(log, 2, 2)


def test_a_driver_whose_temporary_file_was_swept_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FileLog(tmp_path)
    claim(log)
    write = storage._write

    def write_then_sleep(path: Path, data: bytes) -> None:
        write(path, data)
        monkeypatch.setattr(storage, "_write", write)
        claim(FileLog(tmp_path))  # takes number 1
        claim(FileLog(tmp_path))  # takes number 2 and sweeps what was for number 1

    monkeypatch.setattr(storage, "_write", write_then_sleep)
    with pytest.raises(Fenced, match="epoch 3"):
        log.append(intent(1, 1))


def test_a_temporary_file_that_vanishes_for_no_reason_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FileLog(tmp_path)
    claim(log)
    monkeypatch.setattr(storage, "_write", lambda path, data: None)
    with pytest.raises(FileNotFoundError):
        log.append(commit(1, 1))


def test_the_temporary_file_of_a_number_that_is_not_taken_is_not_swept(tmp_path: Path) -> None:
    temporary = f"{1:020d}.{'0' * 32}.tmp"
    (tmp_path / temporary).write_bytes(b"another driver is about to link this")
    claim(FileLog(tmp_path))
    claim(FileLog(tmp_path))
    assert temporary in names(tmp_path)
    claim(FileLog(tmp_path))
    assert temporary not in names(tmp_path)


def test_a_log_whose_folder_vanishes_says_so(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log")
    claim(log)
    for file in (tmp_path / "log").iterdir():
        file.unlink()
    (tmp_path / "log").rmdir()
    with pytest.raises(FileNotFoundError):
        log.append(commit(1, 1))


# --- processes ---


def test_kill_9_loses_no_commit_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged = 0
    for turn in range(4):
        process = start_committer(tmp_path, f"driver {turn}")
        assert process.stdout is not None and process.stderr is not None
        for _ in range(5 + turn):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()  # not communicate(): it would skip what readline has buffered
        process.wait()
        process.stdout.close()
        process.stderr.close()
        acknowledged = int(rest[-1]) if rest else acknowledged
        state = FileLog(tmp_path).tail()
        # The last one may have been made and not reported.
        assert acknowledged <= state.commit_number <= acknowledged + 1
        assert state.epoch_number == turn + 1
        acknowledged = state.commit_number
    assert numbers(FileLog(tmp_path)) == [*range(1, acknowledged + 1)]


def test_of_two_processes_the_later_continues_and_a_third_follows(tmp_path: Path) -> None:
    follower = FileLog(tmp_path)
    first = start_committer(tmp_path, "first")
    assert first.stdout is not None and first.stderr is not None
    first.stdout.readline()
    assert follower.tail().commit_number >= 1
    second = start_committer(tmp_path, "second")
    assert second.stdout is not None
    made = [int(second.stdout.readline()) for _ in range(3)]
    reported, complaint = first.stdout.read(), first.stderr.read()
    second.kill()
    for process in (first, second):
        process.communicate()
    assert "[WR205] driver 'second' has opened this job with epoch 2" in complaint
    assert all(int(number) < made[0] for number in reported.split())
    assert made == [made[0], made[0] + 1, made[0] + 2]
    state = follower.tail()
    assert (state.epoch_number, state) == (2, FileLog(tmp_path).tail())
    assert [c.epoch for c in follower.commits()] == sorted(c.epoch for c in follower.commits())


# --- drivers that open at the same time ---


def swept_before(
    monkeypatch: pytest.MonkeyPatch, name: str, times: int, files: storage.FolderRecords
) -> None:
    """Another driver, which has just claimed, sweeps the folder right before each of the next `times` calls."""
    original = getattr(storage, name)

    def call(*arguments: Any) -> Any:
        nonlocal times
        times -= 1
        if times >= 0:
            files.sweep(1)
        return original(*arguments)

    monkeypatch.setattr(storage, name, call)


@pytest.mark.parametrize("name", ["_link", "_sync_folder"])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_sweep_between_the_probes_of_a_folder_is_no_verdict_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, times: int
) -> None:
    claim(FileLog(tmp_path))
    swept_before(monkeypatch, name, times, storage.FolderRecords(tmp_path))
    assert claim(FileLog(tmp_path)).epoch == 2
    assert all(n.endswith(".wrl") for n in names(tmp_path))


def test_a_sweep_between_two_links_does_not_look_like_links_that_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, link, seen = storage.FolderRecords(tmp_path), storage._link, []

    def sweep_the_second(source: Path, target: Path) -> None:
        if target in seen and len(seen) == 1:
            target.unlink()
        seen.append(target)
        link(source, target)

    monkeypatch.setattr(storage, "_link", sweep_the_second)
    files.prepare()
    assert len(seen) == 4 and names(tmp_path) == []


@pytest.mark.parametrize("swept", ["before the link", "after the link"])
def test_a_driver_whose_file_is_swept_away_has_lost_the_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swept: str
) -> None:
    """Two others claim, and the second sweeps what the first was faster than: we read on, and claim after them."""
    original, links = storage._link, 0

    def link(source: Path, target: Path) -> None:
        nonlocal links
        links += 1
        if links != 3:  # the first two are probes
            return original(source, target)
        monkeypatch.setattr(storage, "_link", original)
        claim(FileLog(tmp_path), "first")
        if swept == "before the link":
            claim(FileLog(tmp_path), "second")
            assert not source.exists()
            return original(source, target)
        try:
            return original(source, target)
        finally:
            claim(FileLog(tmp_path), "second")
            assert not source.exists()

    monkeypatch.setattr(storage, "_link", link)
    assert claim(FileLog(tmp_path)).epoch == 3
    log = FileLog(tmp_path)
    log.tail()
    assert [getattr(log.read(n), "driver", None) for n in range(3)] == ["first", "second", "d"]


def test_many_openers_at_once_all_get_their_turn(tmp_path: Path) -> None:
    barrier, epochs = threading.Barrier(8), []

    def drive() -> None:
        barrier.wait(60)
        epochs.extend(claim(FileLog(tmp_path), "d").epoch for _ in range(6))

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(drive) for _ in range(8)]:
            done.result()
    assert sorted(epochs) == list(range(1, 49))


def test_a_number_beyond_all_others_is_a_gap_and_takes_no_time_to_see(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    claim(log)
    run(log, 1, 3)
    assert log.epoch is not None
    (tmp_path / f"{2**62}.wrl".zfill(24)).write_bytes(encode(replace(log.epoch, seq=2**62)))
    with pytest.raises(CorruptState, match="log record 7 is missing"):
        FileLog(tmp_path).tail()
