"""Sources that windrow reads itself, or generates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from windrow.core.between import clock as clock

if TYPE_CHECKING:
    from windrow.connectors.kafka.cluster import Kafka
    from windrow.connectors.kafka.stream import KafkaStream


def kafka(kafka: Kafka | str, topics: str | Sequence[str], **options: Any) -> KafkaStream:
    """Read topics in this process (`run`) or in Spark's tasks (`writeStream`), without Spark's source.

    kafka: `wr.Kafka(...)`, or its servers
    topics: a name, or several
    options:
        value: how a record's value becomes a row, one of `wr.decoders`; it must be given
        columns: what else of a record becomes a column: {name: "key", "timestamp", "topic", "partition" or "offset"}
        keyed: equal keys lie in one partition, so that Spark reads without a shuffle; fixes the number of partitions
        starting: "earliest" or "latest", for partitions where the job has not been
        max_offsets: at most so many in one commit
        fail_on_data_loss: False continues, and logs it, where records expired unread

    The job's own log has the next offsets. Raises `ConfigurationError` (WR100); when it is read `KafkaFailed` (WR601) and
    `SourceLost` (WR304).
    """
    from windrow.connectors.kafka.stream import kafka_stream

    return kafka_stream(kafka, topics, **options)


__all__ = ["clock", "kafka"]
