"""The log's contract over a topic, and what only a broker can get wrong: claims, transactions, outcomes that nobody knows."""

from __future__ import annotations

import pytest

import windrow as wr
from tests.checkpoint.log_contract import LogContract
from tests.checkpoint.log_truncation_contract import TruncationContract
from tests.kafka.log_place import KafkaPlace


@pytest.fixture
def place(kafka: wr.Kafka) -> KafkaPlace:
    return KafkaPlace(kafka)


class TestKafkaLog(LogContract, TruncationContract):
    """The contract."""
