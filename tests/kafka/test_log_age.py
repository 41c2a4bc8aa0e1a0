"""Cost of a long log in Kafka: opening reads it once, and a late commit asks the broker as often as the first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.checkpoint.log_contract import claim, run
from windrow.checkpoint.log import RecordLog
from windrow.connectors.kafka import records
from windrow.connectors.kafka.records import KafkaRecords
from windrow.testing import SimulatedKafka

COMMITS = 120


@pytest.fixture
def asked() -> Counter[str]:
    """Count the requests to the broker by kind."""
    return Counter()


@pytest.fixture
def kafka(asked: Counter[str], monkeypatch: pytest.MonkeyPatch) -> SimulatedKafka:
    def step(what: str) -> None:
        asked[what.split(" of ")[0]] += 1

    cluster = SimulatedKafka(step)
    cluster.create_topic("j-log", 1)
    monkeypatch.setattr(KafkaRecords, "prepare", lambda self: None)
    return cluster


def opened(kafka: Any) -> RecordLog:
    return RecordLog(KafkaRecords(kafka, "j-log"))


def test_a_long_log_is_opened_by_one_reading(kafka: SimulatedKafka, asked: Counter[str]) -> None:
    log = opened(kafka)
    claim(log)
    run(log, 1, COMMITS)
    asked.clear()
    assert opened(kafka).tail().commit_number == COMMITS
    assert asked["watermark offsets"] < 8
    assert asked["consume"] < 1.2 * len(log.files.numbers())


def test_a_log_larger_than_what_is_kept_in_memory_is_read_twice(
    kafka: SimulatedKafka, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the end down to the newest claim, and up again."""
    monkeypatch.setattr(records, "CACHE_BYTES", 4_000)
    monkeypatch.setattr(records, "_BLOCK", 32)
    log = opened(kafka)
    claim(log)
    run(log, 1, COMMITS)
    asked.clear()
    again = opened(kafka)
    assert again.tail() == log.tail()
    assert asked["consume"] < 4 * len(log.files.numbers())
    assert [c.commit for c in again.commits(COMMITS // 2)] == list(range(COMMITS // 2, COMMITS + 1))


def test_a_commit_asks_the_broker_no_oftener_as_the_log_grows(
    kafka: SimulatedKafka, asked: Counter[str]
) -> None:
    log = opened(kafka)
    claim(log)
    costs = []
    for number in range(1, 60):
        asked.clear()
        run(log, number, number)
        costs.append(asked.total())
    assert costs[-1] <= costs[1]
