"""A real Kafka broker for all tests below, and topics of their own.

WINDROW_KAFKA=host:port takes a broker that runs already.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

import windrow as wr


@pytest.fixture(scope="session")
def kafka() -> Iterator[wr.Kafka]:
    """The cluster that the tests talk to."""
    yield wr.Kafka(os.environ["WINDROW_KAFKA"])


@pytest.fixture
def new_topic(kafka: wr.Kafka) -> Callable[..., str]:
    """Create a topic under a name that no other test has."""

    def create(partitions: int = 1, **config: str) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        kafka.create_topic(name, partitions, config={k.replace("_", "."): v for k, v in config.items()})
        return name

    return create
