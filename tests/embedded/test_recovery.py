"""Section 6 of the design, row by row, in the embedded runner: what is lost, and how the job comes back."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core import errors as e
from windrow.stores.rocks import RocksKV
from windrow.testing.clock import ManualClock

SECOND = 1_000_000
INCREMENTAL = {"n": wr.count(), "total": wr.sum("x")}
FULL_STATE = {"n": wr.count(), "middle": wr.median("x")}


def define(agg: dict[str, Any]) -> wr.Aggregate:
    return wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg=agg,
        watermark="5 seconds",
        retention="1 minute",
    )


def feed(op: Any, numbers: range) -> None:
    for i in numbers:
        op.add_message(wr.Message({"k": "ab"[i % 2], "t": i * SECOND, "x": i}, wr.Position("topic", 0, i)))


def begun(location: Path, agg: dict[str, Any], numbers: range, commits_of: int = 10) -> None:
    """A job that was closed after `numbers`; panes acknowledged."""
    with define(agg).open(str(location), clock=ManualClock()) as op:
        for at in range(numbers.start, numbers.stop, commits_of):
            feed(op, range(at, min(at + commits_of, numbers.stop)))
            op.timeout()
        op.get_result()
        op.flush()


def continues(location: Path, agg: dict[str, Any], tmp_path: Path) -> None:
    """The job at `location`, begun with 40 messages, ends as one that nothing happened to."""
    undisturbed = tmp_path / "undisturbed"
    begun(undisturbed, agg, range(40))
    ended = []
    for path in (location, undisturbed):
        with define(agg).open(str(path), clock=ManualClock()) as op:
            feed(op, range(30, 70))  # some are replays
            panes = [replace(p, commit=0) for p in op.get_result()]
            kept = op.get_messages() if define(agg).full_state else []
            ended.append((panes, op.get_windows(), kept, op.next_offsets(), op.watermark))
    assert ended[0] == ended[1]
    assert ended[0][0] != []


@pytest.mark.parametrize("agg", [INCREMENTAL, FULL_STATE], ids=["incremental", "full state"])
def test_the_local_disk_is_lost(tmp_path: Path, agg: dict[str, Any]) -> None:
    begun(tmp_path / "job", agg, range(40))
    shutil.rmtree(tmp_path / "job" / "local")
    continues(tmp_path / "job", agg, tmp_path)


@pytest.mark.parametrize("agg", [INCREMENTAL, FULL_STATE], ids=["incremental", "full state"])
def test_a_store_that_could_not_be_written_whole_is_not_taken_for_whole(
    tmp_path: Path, agg: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path / "job", agg, range(30))
    op = define(agg).open(str(tmp_path / "job"), clock=ManualClock())
    feed(op, range(30, 40))
    op.get_result()
    op.flush()
    with monkeypatch.context() as full:
        full.setattr(RocksKV, "checkpoint", _no_room)
        with pytest.raises(e.StateError, match="No space left"):
            op.close()
    continues(tmp_path / "job", agg, tmp_path)


def _no_room(*_: Any) -> None:
    raise e.StateError("No space left on device")


@pytest.mark.parametrize("agg", [INCREMENTAL, FULL_STATE], ids=["incremental", "full state"])
def test_the_local_disk_is_lost_and_old_segments_are_swept(
    tmp_path: Path, agg: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1)
    begun(tmp_path / "job", agg, range(40))
    assert list((tmp_path / "job" / "changelog").glob("000000000001-*.seg")) == []
    shutil.rmtree(tmp_path / "job" / "local")
    continues(tmp_path / "job", agg, tmp_path)


def test_snapshots_are_lost_too_and_windows_come_from_the_changelog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1)
    begun(tmp_path / "job", INCREMENTAL, range(40))
    shutil.rmtree(tmp_path / "job" / "local")
    shutil.rmtree(tmp_path / "job" / "snapshots")
    continues(tmp_path / "job", INCREMENTAL, tmp_path)


def test_messages_that_are_lost_are_refused_not_forgotten(tmp_path: Path) -> None:
    begun(tmp_path / "job", FULL_STATE, range(40))
    shutil.rmtree(tmp_path / "job" / "local")
    shutil.rmtree(tmp_path / "job" / "segments")
    with pytest.raises(e.StateLost, match="messages are lost"):
        define(FULL_STATE).open(str(tmp_path / "job"), clock=ManualClock())


@pytest.mark.parametrize("agg", [INCREMENTAL, FULL_STATE], ids=["incremental", "full state"])
def test_a_damaged_store_is_moved_aside_and_built_anew(tmp_path: Path, agg: dict[str, Any]) -> None:
    begun(tmp_path / "job", agg, range(40))
    store = tmp_path / "job" / "local" / "shard-0000"
    (store / "CURRENT").write_bytes(b"nonsense\n")
    continues(tmp_path / "job", agg, tmp_path)
    assert [p for p in store.parent.iterdir() if ".aside-" in p.name] != []


def test_a_store_of_an_older_commit_gets_the_segments_it_lacks(tmp_path: Path) -> None:
    begun(tmp_path / "job", INCREMENTAL, range(20))
    shutil.copytree(tmp_path / "job" / "local", tmp_path / "older")
    begun(tmp_path / "job", INCREMENTAL, range(20, 40))
    shutil.rmtree(tmp_path / "job" / "local")
    shutil.copytree(tmp_path / "older", tmp_path / "job" / "local")
    continues(tmp_path / "job", INCREMENTAL, tmp_path)


def test_a_store_of_another_job_is_not_taken(tmp_path: Path) -> None:
    begun(tmp_path / "job", INCREMENTAL, range(40))
    begun(tmp_path / "other", INCREMENTAL, range(10))
    shutil.rmtree(tmp_path / "job" / "local")
    shutil.copytree(tmp_path / "other" / "local", tmp_path / "job" / "local")
    continues(tmp_path / "job", INCREMENTAL, tmp_path)


def test_a_torn_record_at_the_end_was_never_committed(tmp_path: Path) -> None:
    begun(tmp_path / "job", INCREMENTAL, range(40))
    log = tmp_path / "job" / "log"
    last = max(log.glob("*.wrl"))
    (log / f"{int(last.stem) + 1:020d}.wrl").write_bytes(last.read_bytes()[:20])
    continues(tmp_path / "job", INCREMENTAL, tmp_path)


def test_a_torn_record_in_the_middle_is_refused(tmp_path: Path) -> None:
    begun(tmp_path / "job", INCREMENTAL, range(40))
    records = sorted((tmp_path / "job" / "log").glob("*.wrl"))
    os.truncate(records[2], 20)
    with pytest.raises(e.CorruptState, match="in the middle"):
        define(INCREMENTAL).open(str(tmp_path / "job"), clock=ManualClock())


def test_leftovers_of_an_attempt_that_no_commit_names_count_for_nothing(tmp_path: Path) -> None:
    begun(tmp_path / "job", INCREMENTAL, range(40))
    for folder in ("changelog", "segments"):
        (tmp_path / "job" / folder / "000000000009-0000-deadbeef.seg").write_bytes(b"half")
    continues(tmp_path / "job", INCREMENTAL, tmp_path)


def test_an_older_driver_stops_when_a_newer_one_has_opened_the_job(tmp_path: Path) -> None:
    from windrow.checkpoint.job import Job

    begun(tmp_path / "job", INCREMENTAL, range(40))
    older = Job(str(tmp_path / "job"), [define(INCREMENTAL)], shards=1, clock=ManualClock())
    newer = Job(str(tmp_path / "job"), [define(INCREMENTAL)], shards=1, clock=ManualClock())
    with pytest.raises(e.Fenced, match="stop one of the two"):
        older.record_intent(older.plan())
    newer.record_intent(newer.plan())
