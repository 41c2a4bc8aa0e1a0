"""A cluster as a value, and the few things that are asked of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import windrow as wr
from windrow.connectors.kafka.source_metadata import Cluster
from windrow.core.positions import topic_of, topic_source


def test_servers_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(wr.ConfigurationError, match="contradict"):
        wr.Kafka("a:9092", {"bootstrap.servers": "b:9092"})


def test_a_topic_is_created_once(kafka: wr.Kafka, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    assert kafka.partitions(topic) == [0, 1, 2]
    assert kafka.create_topic(topic, 5) is False
    assert kafka.partitions(topic) == [0, 1, 2]
    assert kafka.partitions("no-such-topic") == []


def test_topic_ids_are_distinguished_from_topics_whatever_bits_they_have(
    kafka: wr.Kafka, new_topic: Callable[..., str]
) -> None:
    """One id in three has a digit that librdkafka writes as `+` or `/`."""
    topics = [new_topic() for _ in range(12)]
    ids = Cluster(kafka).ids(topics)
    for topic in topics:
        topic_id = ids[topic][0]
        assert topic_of(topic_source(topic, topic_id)) == (topic, topic_id)
