"""Probe of a cluster: the brokers that answer."""

from __future__ import annotations

from windrow.connectors.kafka.cluster import Kafka


def brokers(kafka: Kafka, wait_s: float) -> list[int]:
    """Return the brokers that take requests, ascending; [] if none has answered within `wait_s`."""
    from confluent_kafka import KafkaException

    # A refused connection is an answer here, no news.
    admin = Kafka(kafka.servers, {**dict(kafka.config), "log_level": 0}).admin()
    try:
        return sorted(admin.list_topics(timeout=wait_s).brokers)
    except KafkaException:
        return []
