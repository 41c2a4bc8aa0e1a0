"""An embedded job whose log is in Kafka: its folder is a cache, and comes back from the topics exactly."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.checkpoint.transport_contract import (
    FULL_STATE,
    INCREMENTAL,
    SECOND,
    CarrierContract,
    begun,
    continues,
    message,
)
from windrow.connectors.kafka import segments
from windrow.connectors.kafka.log import KafkaLog
from windrow.connectors.kafka.topics import PartitionReader, delete_below
from windrow.core import errors as e
from windrow.testing.clock import ManualClock


class TestKafka(CarrierContract):
    """The fixture `log` is that of all tests of Kafka."""


def test_nothing_is_copied_twice_by_a_store_that_is_built_again(tmp_path: Path, log: KafkaLog) -> None:
    begun(tmp_path / "job", INCREMENTAL, range(70), log=log)
    reader = PartitionReader(log.kafka, f"{log.name}-changelog", 0)
    before = reader.bounds()
    begun(tmp_path / "another", INCREMENTAL, range(0), log=log)
    assert before[1] > 0
    assert reader.bounds()[1] - before[1] <= 2 * 2  # a commit without changes: its marker, and Kafka's


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


def test_a_log_is_a_value(log: KafkaLog) -> None:
    assert eval(repr(log), {"wr": wr}) == log
    with pytest.raises(e.ConfigurationError, match="beginning of its topics' names"):
        wr.kafka_log(log.kafka, "")


def test_a_topic_that_would_lose_records_is_refused(tmp_path: Path, log: KafkaLog) -> None:
    log.kafka.create_topic(f"{log.name}-log", config={"retention.ms": "1000"})
    with pytest.raises(e.LogUnsupported, match=r"retention\.ms=1000, which would lose records"):
        begun(tmp_path / "job", INCREMENTAL, range(10), log=log)
