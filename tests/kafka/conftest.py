"""A real Kafka broker for all tests below, and topics of their own.

It runs in a container, whose image docker/kafka-image.sh names. WINDROW_KAFKA=host:port takes a broker that runs already.
There is no third way: where neither is to be had, these tests fail.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import windrow as wr
from windrow.testing import KafkaBroker

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
    with KafkaBroker(request.getfixturevalue("kafka_image")) as broker:
        where = f"container {broker.name} of {broker.image}"
        request.config.stash[BROKER] = f"Kafka {broker.version} in {where}"
        yield broker.kafka


@pytest.fixture
def new_topic(kafka: wr.Kafka) -> Callable[..., str]:
    """Create a topic under a name that no other test has."""

    def create(partitions: int = 1, **config: str) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        kafka.create_topic(name, partitions, config={k.replace("_", "."): v for k, v in config.items()})
        return name

    return create


def pytest_runtest_call(item: pytest.Item) -> None:
    stash = item.config.stash
    if {"kafka", "kafka_image"} & set(getattr(item, "fixturenames", ())):
        stash[RAN] = stash.get(RAN, 0) + 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if BROKER in config.stash:
        terminalreporter.write_line(f"{config.stash.get(RAN, 0)} Kafka tests against {config.stash[BROKER]}")
