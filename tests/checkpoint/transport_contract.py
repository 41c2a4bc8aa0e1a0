"""Contract of every transport of a job's log and files. Subclass `TransportContract`, or `CarrierContract` where the transport
does not share the location, and give it a `log` that is empty. `LogContract` has the rules of the log itself.

class TestKafka(CarrierContract):
    @pytest.fixture
    def log(self, kafka): return wr.kafka_log(kafka, "a new name")
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.transport import Transport
from windrow.core import errors as e
from windrow.stores.kv import Batch, MemoryKV
from windrow.testing.clock import ManualClock

JOB = "job-1"
SECOND = 1_000_000
INCREMENTAL = {"n": wr.count(), "total": wr.sum("x")}
FULL_STATE = {"n": wr.count(), "middle": wr.median("x")}
BOTH = pytest.mark.parametrize("agg", [INCREMENTAL, FULL_STATE], ids=["incremental", "full state"])


def define(agg: dict[str, Any]) -> wr.Aggregate:
    return wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg=agg,
        watermark="5 seconds",
        retention="30 seconds",
    )


def feed(op: Any, numbers: range) -> None:
    for i in numbers:
        op.add_message(message(i))


def message(i: int) -> wr.Message:
    return wr.Message({"k": "ab"[i % 2], "t": i * SECOND, "x": i}, wr.Position("topic", 0, i))


def begun(location: Path, agg: dict[str, Any], numbers: range, **options: Any) -> None:
    """A job of commits of ten messages each, closed; panes acknowledged."""
    with define(agg).open(str(location), clock=ManualClock(), **options) as op:
        for at in range(numbers.start, numbers.stop, 10):
            feed(op, range(at, min(at + 10, numbers.stop)))
            op.timeout()
        op.get_result()
        op.flush()


def continues(location: Path, agg: dict[str, Any], tmp_path: Path, log: Transport, **options: Any) -> None:
    """The job, begun with 70 messages, ends as one in files that nothing happened to."""
    undisturbed = tmp_path / "undisturbed"
    begun(undisturbed, agg, range(70))
    ended = []
    for path, more in ((location, {"log": log, **options}), (undisturbed, {})):
        with define(agg).open(str(path), clock=ManualClock(), **more) as op:
            feed(op, range(60, 100))  # some are replays
            panes = [replace(p, commit=0) for p in op.get_result()]
            kept = op.get_messages() if define(agg).full_state else []
            ended.append((panes, op.get_windows(), kept, op.next_offsets(), op.watermark))
    assert ended[0] == ended[1]
    assert ended[0][0] != []


def changed(puts: dict[str, str], deletes: tuple[str, ...] = ()) -> Callable[[], Batch]:
    batch = Batch()
    for key, value in puts.items():
        batch.put("w", key.encode(), value.encode())
    batch.delete_many("w", [key.encode() for key in deletes])
    return lambda: batch


def never() -> Batch:
    raise AssertionError("the changelog has the commit: its changes are not computed again")


def restored(log: Transport, shard: int) -> tuple[int, dict[str, str]]:
    kv = MemoryKV(["w"])
    commit = log.restore(JOB, shard, kv.write)
    return commit, {k.decode(): v.decode() for k, v in kv.scan("w")}


class TransportContract:
    """Rules of every transport."""

    def test_a_transport_is_a_value(self, log: Transport) -> None:
        assert pickle.loads(pickle.dumps(log)) == log

    def test_a_place_without_a_job_is_refused_by_readers(self, tmp_path: Path, log: Transport) -> None:
        with pytest.raises(e.JobMismatch, match=r"holds no job|is no windrow location"):
            wr.read_state(str(tmp_path / "job"), log=log)

    @BOTH
    def test_a_job_continues_after_its_last_commit(
        self, tmp_path: Path, agg: dict[str, Any], log: Transport
    ) -> None:
        begun(tmp_path / "job", agg, range(70), log=log)
        continues(tmp_path / "job", agg, tmp_path, log)

    def test_a_reader_follows_a_running_job(self, tmp_path: Path, log: Transport) -> None:
        with define(INCREMENTAL).open(str(tmp_path / "job"), clock=ManualClock(), log=log) as op:
            feed(op, range(10))
            op.timeout()
            with wr.read_state(str(tmp_path / "job"), log=log) as state:
                assert state.get_windows() == op.get_windows() != []
                feed(op, range(10, 20))
                op.timeout()
                state.refresh()
                assert state.get_windows() == op.get_windows()

    def test_of_two_drivers_the_older_stops(self, tmp_path: Path, log: Transport) -> None:
        places = ["job", "job" if log.shares_location else "elsewhere"]
        first, second = (tmp_path / place for place in places)
        older = define(INCREMENTAL).open(str(first), clock=ManualClock(), log=log)
        feed(older, range(10))
        older.timeout()
        if log.shares_location:
            older.abandon()  # it holds the store of this location
        with define(INCREMENTAL).open(str(second), clock=ManualClock(), log=log) as newer:
            assert newer.next_offsets() == {("topic", 0): 10}
            if not log.shares_location:
                feed(older, range(10, 20))
                with pytest.raises(e.Fenced, match="has opened this job with epoch 2"):
                    older.timeout()
                older.abandon()
            feed(newer, range(10, 20))
            newer.timeout()


class CarrierContract(TransportContract):
    """Rules of a transport that carries copies: the location is a cache."""

    def kept(self, log: Transport, folder: Path, data: bytes, shard: int = 0) -> tuple[str, tuple[int, int]]:
        """Keep a file of a shard's attempt, and delete it."""
        path = folder / "segments" / f"{shard}-{len(data)}.seg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        [at] = log.keep(shard, {"segment": str(path)}).values()
        path.unlink()
        return str(path), at

    @pytest.fixture
    def prepared(self, tmp_path: Path, log: Transport) -> Transport:
        """Return the transport after a driver of two shards has prepared the place."""
        log.prepare(JobFolders(str(tmp_path / "cache")), JOB, 2)
        return log

    # -- files --------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [0, 1, 3 << 20])
    def test_a_file_comes_back_byte_for_byte(self, tmp_path: Path, prepared: Transport, size: int) -> None:
        data = os.urandom(size)
        path, at = self.kept(prepared, tmp_path, data)
        assert prepared.has(0, at)
        prepared.fetch(0, at, path)
        assert Path(path).read_bytes() == data

    def test_files_of_attempts_and_shards_are_apart_and_their_places_grow(
        self, tmp_path: Path, prepared: Transport
    ) -> None:
        files = [
            self.kept(prepared, tmp_path, bytes(n), shard) for n, shard in ((1, 0), (2, 1), (3, 0), (4, 1))
        ]
        assert files[0][1][1] < files[2][1][0] and files[1][1][1] < files[3][1][0]
        for n, (path, at) in enumerate(files, start=1):
            prepared.fetch((n - 1) % 2, at, path)
            assert Path(path).read_bytes() == bytes(n)
        assert prepared.keep(0, {}) == {}

    def test_a_forgotten_file_is_lost_and_no_other(self, tmp_path: Path, prepared: Transport) -> None:
        files = [self.kept(prepared, tmp_path, bytes(n), shard) for n, shard in ((1, 0), (2, 1), (3, 0))]
        prepared.forget(0, files[2][1][0])
        assert [prepared.has(shard, files[n][1]) for n, shard in enumerate((0, 1, 0))] == [False, True, True]
        with pytest.raises(e.StateLost):
            prepared.fetch(0, files[0][1], files[0][0])
        assert not Path(files[0][0]).exists()

    # -- changelog ----------------------------------------------------------------------------------------------------

    def test_the_changelog_is_restored_as_of_its_last_commit(self, prepared: Transport) -> None:
        assert (prepared.copied(JOB, 1), restored(prepared, 1)) == (0, (0, {}))
        prepared.copy(JOB, 1, 1, changed({"a": "1", "b": "1"}))
        prepared.copy(JOB, 1, 2, changed({}))
        prepared.copy(JOB, 1, 3, changed({"a": "3"}, ("b",)))
        for commit in (1, 3):
            prepared.copy(JOB, 1, commit, never)
        prepared = pickle.loads(pickle.dumps(prepared))
        assert (prepared.copied(JOB, 1), restored(prepared, 1)) == (3, (3, {"a": "3"}))
        assert prepared.copied(JOB, 0) == 0

    # -- a job whose location is lost ---------------------------------------------------------------------------------

    @BOTH
    def test_the_location_is_deleted_and_everything_is_back(
        self, tmp_path: Path, agg: dict[str, Any], log: Transport
    ) -> None:
        begun(tmp_path / "job", agg, range(70), log=log)
        shutil.rmtree(tmp_path / "job")
        continues(tmp_path / "job", agg, tmp_path, log)

    def test_panes_that_nobody_has_acknowledged_come_back_too(self, tmp_path: Path, log: Transport) -> None:
        with define(INCREMENTAL).open(str(tmp_path / "job"), clock=ManualClock(), log=log) as op:
            feed(op, range(40))
            panes = op.get_result()
        shutil.rmtree(tmp_path / "job")
        with define(INCREMENTAL).open(str(tmp_path / "job"), clock=ManualClock(), log=log) as op:
            assert op.get_result() == panes != []

    def test_dead_letters_come_back_too(self, tmp_path: Path, log: Transport) -> None:
        with define(INCREMENTAL).open(str(tmp_path / "job"), clock=ManualClock(), log=log) as op:
            feed(op, range(70))
            op.add_message(replace(message(0), position=wr.Position("topic", 0, 70)))
            op.timeout()
            dead = op.dead_letters()
        assert len(dead) == 1
        shutil.rmtree(tmp_path / "job")
        with define(INCREMENTAL).open(str(tmp_path / "job"), clock=ManualClock(), log=log) as op:
            assert op.dead_letters() == dead

    def test_a_reader_needs_no_location(self, tmp_path: Path, log: Transport) -> None:
        begun(tmp_path / "job", INCREMENTAL, range(30), log=log)
        with wr.read_state(str(tmp_path / "job"), log=log) as here, wr.read_state(log=log) as away:
            assert here.get_windows() == away.get_windows() != []

    def test_files_that_the_changelog_covers_are_forgotten_and_not_missed(
        self, tmp_path: Path, log: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
        monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1)
        forgotten: list[int] = []
        forget = type(log).forget
        monkeypatch.setattr(
            type(log), "forget", lambda self, *at: (forgotten.append(at[1]), forget(self, *at))[1]
        )
        begun(tmp_path / "job", INCREMENTAL, range(30), log=log)
        begun(tmp_path / "job", INCREMENTAL, range(30, 70), log=log)
        assert forgotten
        shutil.rmtree(tmp_path / "job")
        continues(tmp_path / "job", INCREMENTAL, tmp_path, log)

    # -- one location, one job ----------------------------------------------------------------------------------------

    def test_a_cache_is_not_opened_as_a_job_in_files(self, tmp_path: Path, log: Transport) -> None:
        begun(tmp_path / "job", INCREMENTAL, range(10), log=log)
        with pytest.raises(e.JobMismatch, match=r"is a cache of job-.+give log="):
            begun(tmp_path / "job", INCREMENTAL, range(10))
        with pytest.raises(e.JobMismatch, match="verify, fork and reset work on logs in files only"):
            wr.read_state(str(tmp_path / "job"))

    def test_a_job_in_files_is_not_opened_as_a_cache(self, tmp_path: Path, log: Transport) -> None:
        begun(tmp_path / "job", INCREMENTAL, range(10))
        with pytest.raises(e.JobMismatch, match="holds the log of a job in files"):
            begun(tmp_path / "job", INCREMENTAL, range(10), log=log)

    def test_the_cache_of_another_job_is_refused(self, tmp_path: Path, log: Any) -> None:
        begun(tmp_path / "job", INCREMENTAL, range(10), log=log)
        other = replace(log, name=log.name + "-b")
        with pytest.raises(e.JobMismatch, match="is a cache of job-"):
            begun(tmp_path / "job", INCREMENTAL, range(10), log=other)
