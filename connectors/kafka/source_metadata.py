"""Metadata of topics, read from a cluster: their names, ids and bounds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from windrow.connectors.kafka.cluster import TIMEOUT_S, Kafka
from windrow.connectors.kafka.offsets import Extent
from windrow.core.errors import KafkaFailed

T = TypeVar("T")
_INTERNAL = ("__consumer_offsets", "__transaction_state")
#: A cluster that does not answer yet is asked again after so long.
PAUSE_S = 0.2


class Cluster:
    """One connection to a cluster. Waits for brokers that come back, at most `TIMEOUT_S`; raises `KafkaFailed`."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self._admin: Any = None
        self._last_error = ""

    @property
    def admin(self) -> Any:
        if self._admin is None:
            self._admin = self.kafka.admin(error_cb=self._hear)
        return self._admin

    def _hear(self, error: Any) -> None:
        """Keep the last error. librdkafka reports a refusal to this callback, and requests only time out."""
        from confluent_kafka import KafkaError

        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # it follows from an earlier error
            self._last_error = self.kafka.redacted(error.str())

    def topics_like(self, pattern: str) -> list[str]:
        """Topics whose whole name matches, but Kafka's own."""
        found = self._patiently(lambda: self.admin.list_topics(timeout=TIMEOUT_S)).topics
        return sorted(t for t in found if t not in _INTERNAL and re.fullmatch(pattern, t))

    def ids(self, topics: Collection[str]) -> dict[str, tuple[str, list[int]]]:
        """Topic -> (id, partitions); without those that do not exist."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        if not topics:
            return {}

        def ask() -> dict[str, tuple[str, list[int]]]:
            found = {}
            asked = self.admin.describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT_S)
            for topic, future in asked.items():
                try:
                    emitted = future.result()
                except KafkaException as error:
                    if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                        continue
                    raise
                found[topic] = (_shown(emitted.topic_id), sorted(p.id for p in emitted.partitions))
            return found

        return self._patiently(ask)

    def extents(
        self, topics: Collection[str], partitions: Mapping[str, Collection[int]] | None = None
    ) -> dict[str, Extent]:
        """Return the bounds of topics, or of some of their partitions; topics that do not exist are left out."""
        ids = self.ids(topics)
        wanted = {
            name: [p for p in there if partitions is None or p in partitions[name]]
            for name, (_, there) in ids.items()
        }
        low, high, stable = self._patiently(lambda: self._ends(wanted))
        return {
            name: Extent(ids[name][0], low.get(name, {}), high.get(name, {}), stable.get(name, {}))
            for name in wanted
        }

    def _ends(self, wanted: Mapping[str, Collection[int]]) -> list[dict[str, dict[int, int]]]:
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        if not any(wanted.values()):
            return [{}, {}, {}]
        spec: Any = OffsetSpec
        asked = [
            self.admin.list_offsets(
                {TopicPartition(t, p): at for t, ps in wanted.items() for p in ps},
                isolation_level=level,
                request_timeout=TIMEOUT_S,
            )
            for at, level in (
                (spec.earliest(), IsolationLevel.READ_UNCOMMITTED),
                (spec.latest(), IsolationLevel.READ_UNCOMMITTED),
                (spec.latest(), IsolationLevel.READ_COMMITTED),
            )
        ]
        return [_by_topic(futures) for futures in asked]

    def at_times(self, times_ms: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int | None]:
        """Return the first offset at or after a time, by partition; None where all records are older."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        def ask() -> dict[str, dict[int, int]]:
            specs = {TopicPartition(t, p): OffsetSpec.for_timestamp(ms) for (t, p), ms in times_ms.items()}
            return _by_topic(
                self.admin.list_offsets(
                    specs, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=TIMEOUT_S
                )
            )

        found = self._patiently(ask) if times_ms else {}
        return {(t, p): None if (o := found[t][p]) < 0 else o for t, p in times_ms}

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask until there is an answer: leaders move, brokers come back."""
        from confluent_kafka import KafkaException

        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                answer = ask()
                self._last_error = ""
                return answer
            except KafkaException as error:
                self.admin.poll(0)  # for `_hear`, and for what librdkafka logs
                if time.monotonic() > until or not _may_pass(error.args[0]):
                    last_error = f" (last error: {self._last_error})" if self._last_error else ""
                    raise KafkaFailed(
                        f"{self.kafka.servers} did not answer: {error.args[0].str()}{last_error}. Is the broker running, "
                        f"reachable from here, and is {self.kafka!r} how it is reached?"
                    ) from error
                time.sleep(PAUSE_S)


def _may_pass(error: Any) -> bool:
    """True if asking again may help."""
    from confluent_kafka import KafkaError

    passing = (
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._WAIT_COORD,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
    )
    return bool(error.retriable()) or error.code() in passing


def _shown(topic_id: Any) -> str:
    """Return a topic's id as Kafka's own tools show it; librdkafka uses the alphabet that has a slash."""
    return str(topic_id).replace("+", "-").replace("/", "_")


def _by_topic(futures: Mapping[Any, Any]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for tp, future in futures.items():
        found.setdefault(tp.topic, {})[tp.partition] = future.result().offset
    return found
