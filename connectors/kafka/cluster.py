"""A Kafka cluster as a value: where it is and how to reach it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windrow.core.errors import ConfigurationError, KafkaFailed
from windrow.core.logs import get_logger
from windrow.core.positions import topic_of

#: librdkafka tells what it meets through this one too.
logger = get_logger("windrow.kafka")

#: Whoever waits for the cluster waits so long.
TIMEOUT_S = 30.0
_SECRET = ("password", "secret", "token", "key.pem")


@dataclass(frozen=True, init=False, repr=False)
class Kafka:
    """A cluster: `wr.Kafka("localhost:9092", {"security.protocol": "SASL_SSL", ...})`.

    servers: host:port, several with commas. config: librdkafka's properties, which are mostly Kafka's own; a leading
    "kafka." is taken off. Passwords do not show in `repr`. Raises `ConfigurationError`.
    """

    servers: str
    config: tuple[tuple[str, str], ...]

    def __init__(self, servers: str, config: Mapping[str, Any] | None = None) -> None:
        if not servers or not isinstance(servers, str):
            raise ConfigurationError(f"servers {servers!r}: give host:port, several with commas")
        given = {str(k).removeprefix("kafka."): str(v) for k, v in (config or {}).items()}
        if given.pop("bootstrap.servers", servers) != servers:
            raise ConfigurationError(
                f"bootstrap.servers {dict(config or {})} contradict servers {servers!r}: leave them out of config"
            )
        object.__setattr__(self, "servers", servers)
        object.__setattr__(self, "config", tuple(sorted(given.items())))

    def __repr__(self) -> str:
        shown = {k: "***" if any(s in k for s in _SECRET) else _short(v) for k, v in self.config}
        return f"wr.Kafka({self.servers!r}, {shown!r})" if shown else f"wr.Kafka({self.servers!r})"

    def settings(self, **more: Any) -> dict[str, Any]:
        """What a client of confluent_kafka takes; `more` in Python's spelling (`group_id`) goes before the user's."""
        ours = {n if n.endswith("_cb") else n.replace("_", "."): value for n, value in more.items()}
        return {"bootstrap.servers": self.servers, "logger": logger, **ours, **dict(self.config)}

    def consumer(self, **more: Any) -> Any:
        """A `confluent_kafka.Consumer`. It commits no offsets of its own and reads committed records only."""
        from confluent_kafka import Consumer

        defaults: dict[str, Any] = {
            "group_id": "windrow",
            "enable_auto_commit": False,
            "enable_auto_offset_store": False,
            "isolation_level": "read_committed",
            "auto_offset_reset": "error",
            "enable_partition_eof": False,
        }
        return Consumer(self.settings(**{**defaults, **more}))

    def producer(self, **more: Any) -> Any:
        """A `confluent_kafka.Producer` that is idempotent."""
        from confluent_kafka import Producer

        return Producer(self.settings(**{"enable_idempotence": True, "linger_ms": 5, **more}))

    def admin(self, **more: Any) -> Any:
        """A `confluent_kafka.admin.AdminClient`."""
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.settings(**more))

    def check(self) -> None:
        """Raise `ConfigurationError` where librdkafka does not know a property, or its value. Nothing is connected."""
        from confluent_kafka import KafkaException

        try:
            self.consumer().close()
        except KafkaException as error:
            raise ConfigurationError(
                f"{self!r}: {error.args[0].str()}. Properties are librdkafka's (its CONFIGURATION.md lists them)"
            ) from error

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic, ascending; [] if there is no such topic. Raises `KafkaFailed`."""
        from confluent_kafka import KafkaException

        try:
            found = self.admin().list_topics(topic, timeout=TIMEOUT_S).topics.get(topic)
        except KafkaException as error:
            raise KafkaFailed(
                f"{self.servers} did not answer: {error}. Is the broker running, and reachable from here?"
            ) from error
        return [] if found is None or found.error is not None else sorted(found.partitions)

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        """Create a topic. False if it is there already, as it is. replication: -1 for the brokers' default."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        new = NewTopic(
            topic, num_partitions=partitions, replication_factor=replication, config=dict(config or {})
        )
        admin = self.admin()  # held until the answer is there
        try:
            admin.create_topics([new], request_timeout=TIMEOUT_S)[topic].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise KafkaFailed(f"topic {topic!r} cannot be created on {self.servers}: {error}") from error
        return True


def _short(value: str) -> str:
    """A property as people read it: of a certificate its first line."""
    first, *more = value.splitlines() or [""]
    return f"{first}..." if more else value


def as_kafka(given: Kafka | str) -> Kafka:
    """A cluster, or its servers."""
    return given if isinstance(given, Kafka) else Kafka(given)


def place(topic: str, partition: int, offset: int | None = None) -> Any:
    """A `confluent_kafka.TopicPartition`."""
    from confluent_kafka import TopicPartition

    return TopicPartition(topic, partition) if offset is None else TopicPartition(topic, partition, offset)


def ended_at(message: Any) -> int | None:
    """The end of its partition, where that is what a message tells."""
    from confluent_kafka import KafkaError

    return int(message.offset()) if message.error().code() == KafkaError._PARTITION_EOF else None


def passes(error: Any) -> bool:
    """True for an error of a consumer that librdkafka mends by itself."""
    from confluent_kafka import KafkaError

    return bool(error.retriable()) or error.code() in (
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
    )


def topic_partitions(topic: str, next_offsets: Mapping[tuple[str, int], int]) -> list[Any]:
    """What `Consumer.assign` takes: the partitions of `topic` at the offsets where a job goes on reading."""
    return [
        place(topic, partition, offset)
        for (source, partition), offset in sorted(next_offsets.items())
        if topic_of(source)[0] == topic
    ]
