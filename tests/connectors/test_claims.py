"""A claim whose commit the broker answers with "unknown": it does so to a producer that a newer one is just ending."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import windrow as wr
from windrow.connectors.kafka.topics import Claim, FencedOff
from windrow.core.errors import KafkaFailed


class Producer:
    """Commits fail with `commit`, aborts with `abort`, if there is one."""

    def __init__(self, commit: int, abort: int | None) -> None:
        self.commit, self.abort, self.asked = commit, abort, 0

    def begin_transaction(self) -> None:
        pass

    def produce(self, *args: Any, **options: Any) -> None:
        pass

    def commit_transaction(self, timeout: float) -> None:
        raise KafkaException(KafkaError(self.commit))

    def abort_transaction(self, timeout: float) -> None:
        self.asked += 1
        if self.abort is not None:
            raise KafkaException(KafkaError(self.abort))


@pytest.mark.parametrize(
    ("commit", "abort", "expected", "asked"),
    [
        (KafkaError.UNKNOWN, KafkaError._FENCED, FencedOff, 1),
        (KafkaError.UNKNOWN, KafkaError._STATE, KafkaFailed, 1),
        (KafkaError.UNKNOWN, None, KafkaFailed, 1),
        (KafkaError._ALL_BROKERS_DOWN, KafkaError._FENCED, KafkaFailed, 0),
        (KafkaError.PRODUCER_FENCED, None, FencedOff, 0),
    ],
)
def test_who_is_ended_while_it_commits_learns_it(
    commit: int, abort: int | None, expected: type[Exception], asked: int
) -> None:
    claim = Claim.__new__(Claim)
    producer = Producer(commit, abort)
    claim.kafka, claim._producer = wr.Kafka("localhost:9092"), producer  # type: ignore[assignment]
    with pytest.raises(expected):
        claim.write("log", 0, [(b"key", b"value")])
    assert producer.asked == asked
