"""A cluster as a value, and the few things that are asked of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import windrow as wr


def test_repr_hides_secrets_and_names_the_rest() -> None:
    cluster = wr.Kafka("a:9092", {"kafka.sasl.password": "x", "kafka.security.protocol": "SASL_SSL"})
    assert repr(cluster) == "wr.Kafka('a:9092', {'sasl.password': '***', 'security.protocol': 'SASL_SSL'})"
    assert cluster.settings(group_id="g")["sasl.password"] == "x"


def test_servers_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(wr.ConfigurationError, match="contradict"):
        wr.Kafka("a:9092", {"bootstrap.servers": "b:9092"})


def test_a_topic_is_created_once(kafka: wr.Kafka, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    assert kafka.partitions(topic) == [0, 1, 2]
    assert kafka.create_topic(topic, 5) is False
    assert kafka.partitions(topic) == [0, 1, 2]
    assert kafka.partitions("no-such-topic") == []
