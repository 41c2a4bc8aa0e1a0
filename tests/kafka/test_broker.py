"""The broker in a container: what users' tests do to one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import windrow as wr
from windrow.connectors.kafka.cluster import topic_partition
from windrow.connectors.kafka.connectivity_probe import brokers
from windrow.core.errors import KafkaFailed
from windrow.testing import KafkaBroker
from windrow.testing.broker import _OWNER, _is_leftover, _remove_leftovers, _variable


@pytest.fixture(scope="module")
def broker(kafka_image: str) -> Iterator[KafkaBroker]:
    with KafkaBroker(kafka_image, config={"message.max.bytes": "4096"}) as broker:
        broker.kafka.create_topic("kept")
        yield broker


def quiet(kafka: wr.Kafka) -> wr.Kafka:
    """Its clients do not say that the broker went away: that is what these tests are about."""
    return wr.Kafka(kafka.servers, {"log_level": 0})


def write(kafka: wr.Kafka, value: bytes) -> None:
    """One record in a transaction of its own."""
    producer = quiet(kafka).producer(transactional_id="writer")
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("kept", value)
    producer.commit_transaction(60)


def committed(kafka: wr.Kafka, count: int) -> list[bytes]:
    """The first `count` records that a reader of committed records sees."""
    consumer = quiet(kafka).consumer(auto_offset_reset="earliest")
    try:
        consumer.assign([topic_partition("kept", 0, 0)])
        records: list[Any] = []
        while len(records) < count:
            records += [
                m.value() for m in consumer.consume(count - len(records), timeout=1.0) if not m.error()
            ]
        return records
    finally:
        consumer.close()


def test_transactions_end_and_outlive_whatever_happens_to_the_broker(broker: KafkaBroker) -> None:
    where = broker.kafka
    write(where, b"first")
    assert committed(where, 1) == [b"first"]

    broker.restart()
    write(where, b"after restart")
    broker.kill()
    broker.start()
    write(where, b"after kill")
    broker.pause()
    assert brokers(where, wait_s=1.0) == []
    broker.unpause()
    write(where, b"after pause")

    assert broker.kafka is where
    assert committed(where, 4) == [b"first", b"after restart", b"after kill", b"after pause"]


def test_settings_reach_the_broker(broker: KafkaBroker) -> None:
    from confluent_kafka import KafkaException

    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        write(broker.kafka, bytes(8192))
    assert broker.kafka.partitions("not-created-by-asking") == []


def test_a_broker_that_does_not_come_up_says_why(kafka_image: str) -> None:
    with (
        pytest.raises(KafkaFailed, match=r"(?s)ended.*listener\.security\.protocol\.map"),
        KafkaBroker(kafka_image, config={"listener.security.protocol.map": "no-such-mechanism"}),
    ):
        pass


@pytest.mark.kafka
def test_an_image_that_is_not_to_be_had_is_named() -> None:
    with pytest.raises(KafkaFailed, match="windrow/no-such-image"), KafkaBroker("windrow/no-such-image"):
        pass


def test_a_broker_that_is_too_slow_says_how_far_it_has_come(kafka_image: str) -> None:
    with (
        pytest.raises(KafkaFailed, match=r"does not answer at 127.0.0.1:\d+ after 0 s, its last lines"),
        KafkaBroker(kafka_image, ready_s=0),
    ):
        pass


def test_without_an_engine_a_broker_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(KafkaFailed, match="no container engine answers"), KafkaBroker("any"):
        pass


def test_without_a_port_a_broker_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.testing.broker._free", lambda port: False)
    with pytest.raises(KafkaFailed, match="no free port"), KafkaBroker("any"):
        pass


def test_a_broker_is_there_only_inside_its_with() -> None:
    broker = KafkaBroker("any")
    with pytest.raises(KafkaFailed, match="with KafkaBroker"):
        _ = broker.kafka
    with pytest.raises(KafkaFailed, match="with KafkaBroker"):
        broker.stop()


def test_the_broker_of_a_run_that_was_killed_is_removed_by_the_next(kafka_image: str) -> None:
    """Nobody asks these two anything: whether they answer is not waited for."""
    import docker

    left = subprocess.run(
        [sys.executable, "-c", KILLED, kafka_image], stdout=subprocess.PIPE, text=True, env=os.environ
    ).stdout.strip()
    broker = KafkaBroker(kafka_image)
    client = docker.from_env()
    try:
        broker._run()
        there = client.containers.list(all=True, ignore_removed=True, filters={"label": _OWNER})
        names = {c.name for c in there}
        assert left and left not in names and broker.name in names
    finally:
        client.close()
        broker.close()


KILLED = """
import os, signal, sys
from windrow.testing import KafkaBroker
broker = KafkaBroker(sys.argv[1])
broker._run()
print(broker.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_broker_that_another_process_removes_while_leftovers_are_looked_for_is_none() -> None:
    import docker

    def gone(_: str) -> Any:
        raise docker.errors.NotFound("No such container")

    with closing(docker.DockerClient("tcp://127.0.0.1:1", version="1.41")) as client:
        client.api.containers = lambda **_: [{"Id": "its-id"}]
        client.api.inspect_container = gone
        _remove_leftovers(client)


def test_only_containers_of_ended_processes_of_this_machine_are_leftovers() -> None:
    import socket

    here = socket.gethostname()
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert _is_leftover(f"{here}/{ended.pid}")
    assert not _is_leftover(f"{here}/{os.getpid()}")
    assert not _is_leftover(f"another-machine/{ended.pid}")


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("log.dirs", "KAFKA_LOG_DIRS"),
        ("with_underscore", "KAFKA_WITH__UNDERSCORE"),
        ("with-dash", "KAFKA_WITH___DASH"),
    ],
)
def test_properties_are_spelt_as_apache_kafka_does(name: str, variable: str) -> None:
    assert _variable(name) == variable
