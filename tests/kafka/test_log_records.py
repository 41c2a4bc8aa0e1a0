"""The log's contract over a topic, and what only a broker can get wrong: claims, transactions, outcomes that nobody knows."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from confluent_kafka import KafkaException

import windrow as wr
from tests.checkpoint.log_contract import LogContract, claim, commit
from tests.checkpoint.log_truncation_contract import TruncationContract
from tests.kafka.log_place import KafkaPlace
from windrow.checkpoint.log import RecordLog
from windrow.connectors.kafka import records, topics
from windrow.connectors.kafka.records import KafkaRecords
from windrow.connectors.kafka.topics import Claim, FencedOff, PartitionReader
from windrow.core.errors import Fenced, KafkaFailed, LogUnsupported


@pytest.fixture
def place(kafka: wr.Kafka) -> KafkaPlace:
    return KafkaPlace(kafka)


class TestKafkaLog(LogContract, TruncationContract):
    """The contract."""


class Answers:
    """A claim whose writes are made, and answered with an error."""

    def __init__(self, claim: Claim, error: Exception, *, write: bool = True) -> None:
        self.claim, self.error, self.known_schema = claim, error, write

    def write(self, *args: Any) -> list[int]:
        if self.known_schema:
            topic, partition, _ = args
            [offset] = self.claim.write(*args)
            PartitionReader(self.claim.kafka, topic, partition).wait_for(offset)
        raise self.error


@pytest.fixture
def files(place: KafkaPlace) -> KafkaRecords:
    listed = place.files()
    listed.prepare()
    return listed


def test_nobody_creates_without_a_claim(files: KafkaRecords) -> None:
    assert files.create(0, b"x") is False
    assert files.numbers() == []


def test_two_drivers_that_end_each_other_in_turn_create_one_record(
    place: KafkaPlace, files: KafkaRecords
) -> None:
    other = place.files()
    files.claim()
    other.claim()
    assert files.create(0, b"files") is False
    files.claim()
    assert other.create(0, b"other") is False
    assert files.create(0, b"files") is True
    other.claim()
    assert other.create(0, b"other") is False
    assert other.create(1, b"other") is True
    assert [place.get(n) for n in range(3)] == [b"files", b"other", None]


def test_what_an_older_driver_had_begun_is_aborted_by_a_claim(place: KafkaPlace, files: KafkaRecords) -> None:
    files.claim()
    assert files._claim is not None
    producer = files._claim._producer
    producer.begin_transaction()
    producer.produce(files.topic, b"open", key=struct.pack(">Q", 0), partition=0)
    producer.flush()
    reader, newer = place.files(), place.files()
    assert reader.numbers() == []
    newer.claim()
    assert newer.create(0, b"newer") is True
    assert reader.read(0) == b"newer"
    with pytest.raises(KafkaException, match="fenced"):
        producer.commit_transaction(30)
    assert reader.numbers() == [0]


def test_only_the_number_at_the_end_is_created(files: KafkaRecords) -> None:
    files.claim()
    assert files.create(1, b"x") is False
    assert files.create(0, b"x") is True
    assert files.create(0, b"y") is False
    assert files.read(0) == b"x"


def test_a_record_whose_commit_was_not_answered_is_found_by_reading(
    place: KafkaPlace, files: KafkaRecords
) -> None:
    files.claim()
    assert files._claim is not None
    files._claim = Answers(files._claim, KafkaFailed("timed out"))  # type: ignore[assignment]
    assert files.create(0, b"x") is True
    with pytest.raises(KafkaFailed, match="was given up: timed out"):
        files.create(1, b"y")
    assert place.numbers() == [0]


def test_a_record_that_is_not_there_after_a_failure_is_known_by_nobody(
    place: KafkaPlace, files: KafkaRecords
) -> None:
    log = RecordLog(files)
    claim(log)
    assert files._claim is not None
    files._claim = Answers(files._claim, KafkaFailed("timed out"), write=False)  # type: ignore[assignment]
    with pytest.raises(KafkaFailed, match="timed out"):
        log.append(commit(1, 1))
    with pytest.raises(Fenced, match=r"may exist or not: open the job again"):
        log.append(commit(1, 1))
    assert place.open().tail().commit_number == 0


@pytest.mark.parametrize("finished", [True, False])
def test_a_driver_that_was_ended_while_it_committed_looks_what_became_of_it(
    files: KafkaRecords, finished: bool
) -> None:
    files.claim()
    assert files._claim is not None
    files._claim = Answers(files._claim, FencedOff(), write=finished)  # type: ignore[assignment]
    assert files.create(0, b"x") is finished


def test_another_drivers_record_of_the_same_bytes_is_not_taken_for_ones_own(
    place: KafkaPlace, files: KafkaRecords
) -> None:
    files.claim()
    assert files._claim is not None
    files._claim = Answers(files._claim, FencedOff(), write=False)  # type: ignore[assignment]
    place.put(0, b"x")
    files._read_on = lambda **_: KafkaRecords._read_on(files) if files._claim is None else (0, 0)  # type: ignore[method-assign]
    assert files.create(0, b"x") is False


def test_records_that_are_not_in_memory_are_read_again(
    place: KafkaPlace, files: KafkaRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.claim()
    for n in range(10):
        assert files.create(n, b"%d" % n * 100)
    monkeypatch.setattr(records, "CACHE_BYTES", 250)
    reader = place.files()
    assert [reader.read(n) for n in (0, 5, 1, 9, 0)] == [b"%d" % n * 100 for n in (0, 5, 1, 9, 0)]
    assert len(reader._data) <= 3


def test_a_topic_with_several_partitions_is_refused(kafka: wr.Kafka, place: KafkaPlace) -> None:
    kafka.create_topic(place.topic, 2)
    with pytest.raises(LogUnsupported, match="has 2 partitions, the job needs 1"):
        claim(place.open())


def test_a_topic_that_the_broker_does_not_know_is_no_empty_log(
    place: KafkaPlace, files: KafkaRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.claim()
    assert files.create(0, b"x") is True
    newer = place.files()
    newer.claim()
    monkeypatch.setattr(topics, "TIMEOUT_S", 3.0)
    newer._reader.topic = f"{place.topic}-for-a-moment"
    assert newer.numbers() == []
    with pytest.raises(KafkaFailed, match="the ends of"):
        newer.create(0, b"y")
    newer._reader.topic = place.topic
    assert newer.create(0, b"y") is False
