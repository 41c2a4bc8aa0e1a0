"""The door to confluent_kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def topic_partitions(topic: str, next_offsets: Mapping[tuple[str, int], int]) -> list[Any]:
    """What `Consumer.assign` takes: the partitions of `topic` at the offsets where a job goes on reading."""
    from confluent_kafka import TopicPartition

    return [
        TopicPartition(topic, partition, offset)
        for (source, partition), offset in sorted(next_offsets.items())
        if source == topic
    ]
