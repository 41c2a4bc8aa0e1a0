"""Where messages come from, where windrow reads them itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windrow.connectors.kafka.cluster import Kafka
    from windrow.connectors.kafka.stream import KafkaStream


def kafka(kafka: Kafka | str, topics: str | Sequence[str], **options: Any) -> KafkaStream:
    """Kafka topics. Options: those of `windrow.connectors.kafka.stream.kafka_stream`."""
    from windrow.connectors.kafka.stream import kafka_stream

    return kafka_stream(kafka, topics, **options)


__all__ = ["kafka"]
