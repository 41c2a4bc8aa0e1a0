"""An embedded job whose log is in Kafka: its folder is a cache, and comes back from the topics exactly."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.connectors.kafka import segments
from windrow.connectors.kafka.log import KafkaLog
from windrow.connectors.kafka.topics import PartitionReader, delete_below
from windrow.core import errors as e
from windrow.testing.clock import ManualClock

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


def continues(location: Path, agg: dict[str, Any], tmp_path: Path, log: KafkaLog, **options: Any) -> None:
    """The job, begun with 70 messages, ends as one in files that nothing happened to."""
    undisturbed = tmp_path / "undisturbed"
    begun(undisturbed, agg, range(70))
    ended = []
    for path, given in ((location, {"log": log, **options}), (undisturbed, {})):
        with define(agg).open(str(path), clock=ManualClock(), **given) as op:
            feed(op, range(60, 100))  # some are replays
            panes = [replace(p, commit=0) for p in op.get_result()]
            kept = op.get_messages() if define(agg).full_state else []
            ended.append((panes, op.get_windows(), kept, op.next_offsets(), op.watermark))
    assert ended[0] == ended[1]
    assert ended[0][0] != []


@BOTH
def test_the_whole_folder_is_deleted_and_everything_is_back(
    tmp_path: Path, agg: dict[str, Any], log: KafkaLog
) -> None:
    begun(tmp_path / "job", agg, range(70), log=log)
    shutil.rmtree(tmp_path / "job")
    continues(tmp_path / "job", agg, tmp_path, log)


def test_nothing_is_copied_twice_by_a_store_that_is_built_again(tmp_path: Path, log: KafkaLog) -> None:
    begun(tmp_path / "job", INCREMENTAL, range(70), log=log)
    reader = PartitionReader(log.kafka, f"{log.name}-changelog", 0)
    before = reader.bounds()
    begun(tmp_path / "another", INCREMENTAL, range(0), log=log)
    assert before[1] > 0
    assert reader.bounds()[1] - before[1] <= 2 * 2  # a commit without changes: its marker, and Kafka's


def test_panes_that_nobody_has_acknowledged_come_back_too(tmp_path: Path, log: KafkaLog) -> None:
    with define(INCREMENTAL).open(str(tmp_path / "job"), clock=ManualClock(), log=log) as op:
        feed(op, range(40))
        told = op.get_result()
    shutil.rmtree(tmp_path / "job")
    with define(INCREMENTAL).open(str(tmp_path / "job"), clock=ManualClock(), log=log) as op:
        assert op.get_result() == told != []


def test_dead_letters_come_back_too(tmp_path: Path, log: KafkaLog) -> None:
    with define(INCREMENTAL).open(str(tmp_path / "job"), clock=ManualClock(), log=log) as op:
        feed(op, range(70))
        op.add_message(replace(message(0), position=wr.Position("topic", 0, 70)))
        op.timeout()
        told = op.dead_letters()
    assert len(told) == 1
    shutil.rmtree(tmp_path / "job")
    with define(INCREMENTAL).open(str(tmp_path / "job"), clock=ManualClock(), log=log) as op:
        assert op.dead_letters() == told


def test_a_join_is_back_too(tmp_path: Path, log: KafkaLog) -> None:
    pairs = wr.Join(
        left=wr.Input("a", event_time="t"),
        right=wr.Input("b", event_time="t"),
        on="k",
        within=("-5 seconds", "5 seconds"),
    )
    with pairs.open(str(tmp_path / "job"), clock=ManualClock(), log=log) as op:
        op.add_message(wr.Message({"k": 1, "t": SECOND, "x": 1}, wr.Position("a", 0, 0)), "a")
        op.timeout()
        op.get_result()
        op.flush()
    shutil.rmtree(tmp_path / "job")
    with pairs.open(str(tmp_path / "job"), clock=ManualClock(), log=log) as op:
        op.add_message(wr.Message({"k": 1, "t": 2 * SECOND, "x": 2}, wr.Position("b", 0, 0)), "b")
        op.timeout()
        assert len(op.get_result()) == 1


@pytest.mark.parametrize("bytes_each", [100, 1000])
def test_a_file_is_written_in_chunks_and_is_the_same_file_again(
    tmp_path: Path, log: KafkaLog, monkeypatch: pytest.MonkeyPatch, bytes_each: int
) -> None:
    monkeypatch.setattr(segments, "CHUNK_BYTES", bytes_each)
    begun(tmp_path / "job", FULL_STATE, range(70), log=log)
    before = {p.name: p.read_bytes() for p in (tmp_path / "job" / "segments").iterdir()}
    assert max(map(len, before.values())) > 3 * 100
    shutil.rmtree(tmp_path / "job")
    begun(tmp_path / "job", FULL_STATE, range(0), log=log)
    after = {p.name: p.read_bytes() for p in (tmp_path / "job" / "segments").iterdir()}
    assert after.items() >= before.items()


def test_chunks_of_an_attempt_that_was_not_committed_lie_between_and_are_not_read(
    tmp_path: Path, log: KafkaLog
) -> None:
    begun(tmp_path / "job", FULL_STATE, range(30), log=log)
    stray = tmp_path / "segments" / "000000000005-0000-deadbeef.seg"
    stray.parent.mkdir()
    stray.write_bytes(b"never named")
    log.keep(0, {"segment": str(stray)})
    begun(tmp_path / "job", FULL_STATE, range(30, 70), log=log)
    shutil.rmtree(tmp_path / "job")
    continues(tmp_path / "job", FULL_STATE, tmp_path, log)
    assert not (tmp_path / "job" / "segments" / stray.name).exists()


# -- the segments are lost -------------------------------------------------------------------------------------------


def lose_segments(log: KafkaLog) -> None:
    """Delete everything in the topic of segments, as retention does."""
    topic = f"{log.name}-segments"
    delete_below(log.kafka.admin(), topic, 0, PartitionReader(log.kafka, topic, 0).bounds()[1])


def test_segments_that_expired_are_not_needed_by_a_job_without_messages(
    tmp_path: Path, log: KafkaLog
) -> None:
    begun(tmp_path / "job", INCREMENTAL, range(70), log=log)
    lose_segments(log)
    shutil.rmtree(tmp_path / "job")
    continues(tmp_path / "job", INCREMENTAL, tmp_path, log)


def test_messages_whose_segments_expired_are_replayed_from_the_source(tmp_path: Path, log: KafkaLog) -> None:
    begun(tmp_path / "job", FULL_STATE, range(70), log=log)
    lose_segments(log)
    shutil.rmtree(tmp_path / "job")

    def again(ranges: Any) -> list[wr.Message]:
        [(first, following)] = ranges.values()
        return [message(i) for i in range(first, following)]

    continues(tmp_path / "job", FULL_STATE, tmp_path, log, replay=again)


def test_messages_whose_segments_expired_are_refused_without_a_source(tmp_path: Path, log: KafkaLog) -> None:
    begun(tmp_path / "job", FULL_STATE, range(70), log=log)
    lose_segments(log)
    shutil.rmtree(tmp_path / "job")
    with pytest.raises(e.StateLost, match=r"messages are lost\. Give replay="):
        begun(tmp_path / "job", FULL_STATE, range(70), log=log)


def test_covered_segments_are_deleted_from_the_topic_and_not_missed(
    tmp_path: Path, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1)
    begun(tmp_path / "job", INCREMENTAL, range(30), log=log)
    begun(tmp_path / "job", INCREMENTAL, range(30, 70), log=log)
    assert PartitionReader(log.kafka, f"{log.name}-segments", 0).bounds()[0] > 0
    shutil.rmtree(tmp_path / "job")
    continues(tmp_path / "job", INCREMENTAL, tmp_path, log)


def test_segments_of_a_job_that_keeps_messages_stay(
    tmp_path: Path, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1)
    begun(tmp_path / "job", FULL_STATE, range(30), log=log)
    begun(tmp_path / "job", FULL_STATE, range(30, 70), log=log)
    assert PartitionReader(log.kafka, f"{log.name}-segments", 0).bounds()[0] == 0
    shutil.rmtree(tmp_path / "job")
    continues(tmp_path / "job", FULL_STATE, tmp_path, log)


# -- one location, one job -------------------------------------------------------------------------------------------


def test_a_cache_is_not_opened_as_a_job_in_files(tmp_path: Path, log: KafkaLog) -> None:
    begun(tmp_path / "job", INCREMENTAL, range(10), log=log)
    with pytest.raises(e.JobMismatch, match=r"is a cache of job-.+give log=wr\.kafka_log\("):
        begun(tmp_path / "job", INCREMENTAL, range(10))
    with pytest.raises(e.JobMismatch, match="verify, fork and reset work on logs in files only"):
        wr.read_state(str(tmp_path / "job"))


def test_a_job_in_files_is_not_opened_as_a_cache(tmp_path: Path, log: KafkaLog) -> None:
    begun(tmp_path / "job", INCREMENTAL, range(10))
    with pytest.raises(e.JobMismatch, match="holds the log of a job in files"):
        begun(tmp_path / "job", INCREMENTAL, range(10), log=log)


def test_the_cache_of_another_job_is_refused(tmp_path: Path, log: KafkaLog) -> None:
    begun(tmp_path / "job", INCREMENTAL, range(10), log=log)
    other = replace(log, name=log.name + "-b")
    with pytest.raises(e.JobMismatch, match="is a cache of job-"):
        begun(tmp_path / "job", INCREMENTAL, range(10), log=other)


def test_of_two_drivers_at_two_places_the_older_stops(tmp_path: Path, log: KafkaLog) -> None:
    first = define(INCREMENTAL).open(str(tmp_path / "a"), clock=ManualClock(), log=log)
    feed(first, range(10))
    first.timeout()
    with define(INCREMENTAL).open(str(tmp_path / "b"), clock=ManualClock(), log=log) as second:
        assert second.next_offsets() == {("topic", 0): 10}
        feed(first, range(10, 20))
        with pytest.raises(e.Fenced, match="has opened this job with epoch 2"):
            first.timeout()
        first.abandon()
        feed(second, range(10, 20))
        second.timeout()


def test_a_log_is_a_value(log: KafkaLog) -> None:
    assert pickle.loads(pickle.dumps(log)) == log
    assert eval(repr(log), {"wr": wr}) == log
    with pytest.raises(e.ConfigurationError, match="beginning of its topics' names"):
        wr.kafka_log(log.kafka, "")


def test_a_topic_that_would_lose_records_is_refused(tmp_path: Path, log: KafkaLog) -> None:
    log.kafka.create_topic(f"{log.name}-log", config={"retention.ms": "1000"})
    with pytest.raises(e.LogUnsupported, match=r"retention\.ms=1000, which would lose records"):
        begun(tmp_path / "job", INCREMENTAL, range(10), log=log)
