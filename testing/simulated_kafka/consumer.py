"""A consumer of the simulated cluster, and an admin client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windrow.connectors.kafka import client
from windrow.testing.simulated_kafka.broker import Broker, Place, Record, SimulatedMessage, kafka_error


class SimulatedConsumer:
    """A simulated `confluent_kafka.Consumer`, for assigned partitions. Offsets are never committed to the broker."""

    def __init__(self, cluster: Broker, config: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._committed = config.get("isolation_level", "read_committed") == "read_committed"
        self._reports_end = _truth(config.get("enable_partition_eof", False))
        self._from_end = config.get("auto_offset_reset") in ("latest", "end", "largest")
        self._at: dict[Place, int] = {}
        self._reported_end: dict[Place, int] = {}
        self._closed = False

    def assign(self, partitions: Sequence[Any]) -> None:
        self._alive()
        self._at = {(p.topic, p.partition): self._place(p) for p in partitions}
        self._reported_end.clear()

    def unassign(self) -> None:
        self.assign([])

    def assignment(self) -> list[Any]:
        return [client.TopicPartition(topic, number) for topic, number in self._at]

    def position(self, partitions: Sequence[Any]) -> list[Any]:
        self._alive()
        invalid = client.OFFSET_INVALID
        return [
            client.TopicPartition(p.topic, p.partition, self._at.get((p.topic, p.partition), invalid))
            for p in partitions
        ]

    def seek(self, partition: Any) -> None:
        self._alive()
        place = (partition.topic, partition.partition)
        if place not in self._at:
            raise client.KafkaException(kafka_error("_STATE", f"seek: {place} is not assigned"))
        self._at[place] = self._place(partition)
        self._reported_end.pop(place, None)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[SimulatedMessage]:
        self._alive()
        if self._cluster.step("consume") is not None:
            return []
        found: list[SimulatedMessage] = []
        for place in self._at:
            while len(found) < num_messages and (message := self._next(place)) is not None:
                found.append(message)
        return found

    def poll(self, timeout: float = -1) -> SimulatedMessage | None:
        return next(iter(self.consume(1, timeout)), None)

    def get_watermark_offsets(
        self, partition: Any, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        self._alive()
        if self._cluster.step("watermark offsets") is not None:
            raise client.KafkaException(kafka_error("_TIMED_OUT", "watermark offsets: no answer"))
        return 0, self._end((partition.topic, partition.partition))

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        return self._cluster.metadata(topic)

    def close(self) -> None:
        self._closed = True

    # -- inside -----------------------------------------------------------------------------------------------------

    def _next(self, place: Place) -> SimulatedMessage | None:
        log, end = self._cluster.log(*place), self._end(place)
        while self._at[place] < end:
            offset = self._at[place]
            record = log[offset]
            self._at[place] = offset + 1
            if not record.control and not (self._committed and record.aborted):
                return SimulatedMessage(place, offset, record)
        if self._reports_end and self._reported_end.get(place) != end:
            self._reported_end[place] = end
            error = kafka_error("_PARTITION_EOF", f"{place[0]} [{place[1]}] ends at {end}")
            return SimulatedMessage(place, end, Record(None, None, None, 0), error)
        return None

    def _end(self, place: Place) -> int:
        log = self._cluster.log(*place)
        return self._cluster.stable(log) if self._committed else len(log)

    def _place(self, partition: Any) -> int:
        offset = int(partition.offset)
        end = self._end((partition.topic, partition.partition))
        if offset == client.OFFSET_END or (offset == client.OFFSET_INVALID and self._from_end):
            return end
        return max(offset, 0)

    def _alive(self) -> None:
        if self._closed:
            raise RuntimeError("Consumer closed")


class SimulatedAdmin:
    """The part of `confluent_kafka.admin.AdminClient` that looks at topics."""

    def __init__(self, cluster: Broker) -> None:
        self._cluster = cluster

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Metadata: `.topics[name].partitions` by number; of one topic that is not there, with an `error`."""
        return self._cluster.metadata(topic)


def _truth(value: Any) -> bool:
    return str(value).lower() in ("true", "1")
