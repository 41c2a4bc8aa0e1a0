"""Kafka queries of a job about its topics: their newest offsets, and whether unread offsets hold any record."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from windrow.connectors.kafka.cluster import TIMEOUT_S, Kafka, as_kafka
from windrow.connectors.kafka.source_metadata import Cluster
from windrow.core.errors import KafkaFailed
from windrow.core.positions import Partition, topic_of


class KafkaSource:
    """Source that shows whether a silent partition has more: `.source(wr.KafkaSource("localhost:9092"))` of the builder.

    kafka: `wr.Kafka(...)`, or its servers

    A partition without rows for the idle time is idle only if the cluster holds no newer record than was read. Works with both
    Kafka sources of Spark. Raises `KafkaFailed` (WR601) where the cluster does not answer.

    >>> KafkaSource("localhost:9092")
    wr.KafkaSource(wr.Kafka('localhost:9092'))
    """

    def __init__(self, kafka: Kafka | str) -> None:
        self.kafka = as_kafka(kafka)
        self._cluster = Cluster(self.kafka)
        self._consumer: Any = None
        self._empty_to: dict[Partition, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"wr.KafkaSource({self.kafka!r})"

    def newest(
        self, next_offsets: Mapping[Partition, int], silent: Collection[Partition] = ()
    ) -> dict[Partition, int]:
        """Return, by partition, the offset below which its committed records lie.

        next_offsets: by (source, partition), where the job continues to read
        silent: partitions in which offsets above the next one may hold no record (transactions spend some); these are looked
            at. A topic that is gone, or was recreated, has nothing newer
        """
        extents = self._cluster.extents(sorted({topic_of(s)[0] for s, _ in next_offsets}))
        newest = {}
        for (source, partition), following in next_offsets.items():
            topic, topic_id = topic_of(source)
            extent = extents.get(topic)
            gone = extent is None or topic_id not in (None, extent.id) or partition not in extent.stable
            end = following if gone or extent is None else extent.stable[partition]
            if (
                end > following
                and (source, partition) in silent
                and self.is_empty((source, partition), following, end)
            ):
                end = following
            newest[source, partition] = max(end, following)
        return newest

    def is_empty(self, partition: Partition, start: int, end: int) -> bool:
        """True if no committed record lies in `[start, end)`.

        partition: (source, partition)
        """
        known_start, known_end = self._empty_to.get(partition, (start, start))
        begin = known_end if known_start <= start <= known_end else start
        if begin < end and self._first_record(partition, begin, end):
            return False
        self._empty_to[partition] = (
            min(start, known_start) if begin == known_end else start,
            max(begin, end),
        )
        return True

    def _first_record(self, partition: Partition, start: int, end: int) -> bool:
        """True if there is a record in `[start, end)`, `start < end`."""
        from confluent_kafka import KafkaError, TopicPartition

        if self._consumer is None:
            self._consumer = self.kafka.consumer(enable_partition_eof=True, queued_min_messages=1)
        topic = topic_of(partition[0])[0]
        self._consumer.assign([TopicPartition(topic, partition[1], start)])
        until = time.monotonic() + TIMEOUT_S
        try:
            while time.monotonic() < until:
                message = self._consumer.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    return bool(message.offset() < end)
                if error.code() == KafkaError._AUTO_OFFSET_RESET:
                    return True  # expired: it is unknown whether records were there
                if error.code() == KafkaError._PARTITION_EOF and message.offset() >= end:
                    return False
        finally:
            self._consumer.unassign()
        raise KafkaFailed(
            f"{topic}-{partition[1]} did not answer in {TIMEOUT_S:g} s whether it holds records from {start} to {end}: see "
            "whether its leader is up"
        )
