"""A real Kafka broker for all tests below, and topics of their own.

It runs in a container, whose image docker/kafka-image.sh names. WINDROW_KAFKA=host:port takes a broker that runs already.
There is no third way: where neither is to be had, these tests fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.conftest import RUN
from tests.deep import usually
from tests.kafka.shared_broker import describe, shared_broker
from tests.kafka.spark_jars import jars
from windrow.connectors.kafka.log import KafkaLog
from windrow.connectors.kafka.topics import PartitionReader
from windrow.testing import KafkaBroker

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

IMAGE_SCRIPT = Path(__file__).parents[2] / "docker" / "kafka-image.sh"
RAN = pytest.StashKey[int]()
BROKER = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def kafka_image(pytestconfig: pytest.Config) -> str:
    """The image of the tests' brokers, for a test that needs one of its own."""
    image = subprocess.run([IMAGE_SCRIPT], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    pytestconfig.stash.setdefault(BROKER, f"brokers of {image}")
    return image


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[wr.Kafka]:
    """The cluster that the tests talk to."""
    if running := os.environ.get("WINDROW_KAFKA"):
        request.config.stash[BROKER] = f"the broker that runs at {running}"
        yield wr.Kafka(running)
        return
    image = request.getfixturevalue("kafka_image")
    if hasattr(request.config, "workerinput"):
        servers, request.config.stash[BROKER] = shared_broker(image, Path(os.environ[RUN]))
        yield wr.Kafka(servers)
        return
    with KafkaBroker(image) as broker:
        request.config.stash[BROKER] = describe(broker)
        yield broker.kafka


@pytest.fixture
def new_topic(kafka: wr.Kafka) -> Callable[..., str]:
    """Create a topic under a name that no other test has. What is dated long ago stays, though a broker looks now and then."""

    def create(partitions: int = 1, **config: str) -> str:
        name, config = f"t-{uuid.uuid4().hex[:12]}", {"retention_ms": "-1", **config}
        kafka.create_topic(name, partitions, config={k.replace("_", "."): v for k, v in config.items()})
        return name

    return create


def keyed(usual: bool) -> pytest.MarkDecorator:
    """For tests of both ways to read a topic on Spark: as a rule in one of them, the deep ones in both."""
    ways = {False: pytest.param(False, id="any partition"), True: pytest.param(True, id="keyed")}
    return pytest.mark.parametrize("keyed", usually([ways[usual]], deep=list(ways.values())))


@pytest.fixture
def log(kafka: wr.Kafka) -> KafkaLog:
    """A log in Kafka under a name that no other test has."""
    return wr.kafka_log(kafka, f"t-{uuid.uuid4().hex[:12]}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Give the jars of Spark's own Kafka source to the JVM, which must start with them, whoever starts it."""
    here = os.path.dirname(__file__)
    if any(str(i.path).startswith(here) and "spark" in getattr(i, "fixturenames", ()) for i in session.items):
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(jars())} {os.environ['PYSPARK_SUBMIT_ARGS']}"


def wait_for(kafka: wr.Kafka, topic: str, offset: int, partition: int = 0) -> None:
    """Return when readers see a record that is committed or aborted: who ends a transaction is answered a little before."""
    reader = PartitionReader(kafka, topic, partition)
    try:
        reader.wait_for(offset)
    finally:
        reader.close()


def add_partition(kafka: wr.Kafka, topic: str, partitions: int) -> None:
    """Give a topic so many partitions; the broker knows of them when this returns."""
    from confluent_kafka.admin import NewPartitions

    admin = kafka.admin()  # held until the answer is there
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result()
    until = time.monotonic() + 30
    while len(kafka.partitions(topic)) != partitions:  # each look asks the broker
        assert time.monotonic() < until, f"{topic} was given {partitions} partitions, and they cannot be seen"


class Sender:
    """Writes records to topics; what was sent is there, and seen by all readers, when a method returns."""

    def __init__(self, kafka: wr.Kafka) -> None:
        self.kafka = kafka
        self._producer = kafka.producer()

    def send(self, topic: str, values: Iterable[str | bytes | None], partition: int = 0, **more: Any) -> None:
        """One record a value; `more` as `Producer.produce` takes it."""
        refused: list[Any] = []
        for value in values:
            self._producer.produce(
                topic,
                value=value,
                partition=partition,
                on_delivery=lambda error, _: refused.extend([error] if error else []),
                **more,
            )
        self._producer.flush()
        assert refused == []

    def send_rows(self, topic: str, rows: Iterable[Mapping[str, Any]], partition: int = 0) -> None:
        """One record of JSON a row."""
        self.send(topic, [json.dumps(row) for row in rows], partition)

    def transact(self, topic: str, values: Iterable[str], partition: int = 0, *, commit: bool = True) -> None:
        """One transaction, committed or aborted. Either way it spends one more offset for its end."""
        offsets: list[int] = []
        producer = self.kafka.producer(transactional_id=f"x-{uuid.uuid4().hex}")
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.produce(
                topic, value, partition=partition, on_delivery=lambda _, sent: offsets.append(sent.offset())
            )
        producer.flush()
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        wait_for(self.kafka, topic, max(offsets), partition)


@pytest.fixture
def sender(kafka: wr.Kafka) -> Sender:
    return Sender(kafka)


@pytest.fixture
def expire(kafka: wr.Kafka) -> Callable[[str, int, int], None]:
    """Delete the records of a partition below an offset, as retention would."""

    def delete(topic: str, partition: int, below: int) -> None:
        from confluent_kafka import TopicPartition

        admin = kafka.admin()
        [future] = admin.delete_records([TopicPartition(topic, partition, below)]).values()
        future.result()

    return delete


@pytest.fixture
def recreate(kafka: wr.Kafka) -> Callable[..., None]:
    """Delete a topic, and make it anew where `partitions` says so."""

    def again(topic: str, partitions: int = 0) -> None:
        admin = kafka.admin()
        admin.delete_topics([topic])[topic].result()
        while kafka.partitions(topic):
            time.sleep(0.05)
        while partitions and not kafka.create_topic(topic, partitions):
            time.sleep(0.05)

    return again


def pytest_runtest_call(item: pytest.Item) -> None:
    stash = item.config.stash
    if {"kafka", "kafka_image"} & set(getattr(item, "fixturenames", ())):
        stash[RAN] = stash.get(RAN, 0) + 1


def _summary(config: pytest.Config) -> str:
    return f"{config.stash.get(RAN, 0)} Kafka tests against {config.stash[BROKER]}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that shares the tests with others tells whoever writes the summary (tests/conftest.py)."""
    if BROKER in session.config.stash and hasattr(session.config, "workeroutput"):
        session.config.workeroutput["broker"] = _summary(session.config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if BROKER in config.stash:
        terminalreporter.write_line(_summary(config))
