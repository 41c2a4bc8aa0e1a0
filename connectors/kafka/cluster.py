"""Kafka cluster as a value: its address and its connection settings."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windrow.connectors.kafka import client
from windrow.core.errors import ConfigurationError, InputError, KafkaFailed
from windrow.core.extras import need
from windrow.core.logs import get_logger
from windrow.core.positions import Partition, topic_of

# -- redaction of settings: only the values of the keys listed here are shown -----------------------------------------

#: Settings that are no secret on any cluster. An unknown key may be one, so this is no list of secrets.
SHOWN = frozenset(
    """
    allow.auto.create.topics api.version.request api.version.request.timeout.ms auto.commit.interval.ms auto.offset.reset
    batch.num.messages batch.size broker.address.family broker.address.ttl check.crcs client.dns.lookup client.id client.rack
    compression.codec compression.level compression.type connections.max.idle.ms debug delivery.timeout.ms
    enable.auto.commit enable.auto.offset.store enable.gapless.guarantee enable.idempotence enable.partition.eof
    enable.ssl.certificate.verification fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes
    fetch.queue.backoff.ms fetch.wait.max.ms group.id group.instance.id group.protocol heartbeat.interval.ms isolation.level
    linger.ms log.connection.close log_level max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes
    max.poll.interval.ms message.copy.max.bytes message.max.bytes message.send.max.retries message.timeout.ms
    metadata.max.age.ms partition.assignment.strategy partitioner queue.buffering.max.kbytes queue.buffering.max.messages
    queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages receive.message.max.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms request.required.acks acks request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    sasl.mechanism sasl.mechanisms security.protocol session.timeout.ms socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
    ssl.ca.location ssl.certificate.location ssl.endpoint.identification.algorithm statistics.interval.ms
    sticky.partitioning.linger.ms topic.metadata.refresh.interval.ms transaction.timeout.ms transactional.id
    """.split()  # noqa: SIM905
)
HIDDEN = "***"
#: Shorter values are hidden only as whole words, not inside other words.
_LONG = 4


def shown(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as people may read them."""
    return {k: str(v) if k in SHOWN else HIDDEN for k, v in settings.items()}


def redacted(text: str, settings: Mapping[str, Any]) -> str:
    """Hide in `text` the values of settings that are not shown, and the words of these values."""
    values = {str(v) for k, v in settings.items() if k not in SHOWN}
    words = {word for value in values for word in re.split(r"[\s=;,:@/\"']+", value) if len(word) >= _LONG}
    for hidden in sorted((values | words) - {""}, key=len, reverse=True):
        exact = re.escape(hidden)
        text = re.sub(exact if len(hidden) >= _LONG else rf"(?<!\w){exact}(?!\w)", HIDDEN, text)
    return text


class Discreet:
    """Redacting logger for librdkafka, whose lines may quote settings."""

    def __init__(self, logger: Any, settings: Mapping[str, Any]) -> None:
        self.logger, self._settings = logger, settings

    def log(self, level: int, message: str, *arguments: Any) -> None:
        said = (redacted(a, self._settings) if isinstance(a, str) else a for a in arguments)
        self.logger.log(level, redacted(message, self._settings), *said)


# -- cluster ----------------------------------------------------------------------------------------------------------

#: librdkafka logs through this one too.
logger = get_logger("windrow.kafka")

#: The longest wait for the cluster, in seconds.
TIMEOUT_S = 30.0
#: Settings of Java's clients that librdkafka lacks, with its own settings for them.
_JAVA = {"sasl.jaas.config": "; in place of sasl.jaas.config give sasl.username and sasl.password"}


@dataclass(frozen=True, init=False, repr=False)
class Kafka:
    """A Kafka cluster: its address and its connection settings.

    servers: host:port, several with commas
    config: librdkafka's properties, which are mostly Kafka's own; a leading "kafka." is taken off

    A value; nothing connects until it is used. Only values that are known to be no secrets show in `repr`, errors and logs.
    Raises `ConfigurationError` (WR100).

    >>> Kafka("localhost:9092", {"security.protocol": "SASL_SSL", "sasl.password": "secret"})
    wr.Kafka('localhost:9092', {'sasl.password': '***', 'security.protocol': 'SASL_SSL'})
    """

    servers: str
    config: tuple[tuple[str, str], ...]

    def __init__(self, servers: str, config: Mapping[str, Any] | None = None) -> None:
        need("confluent_kafka", "kafka", "wr.Kafka")
        if not servers or not isinstance(servers, str):
            raise ConfigurationError(f"servers {servers!r}: give host:port, several with commas")
        settings = {str(k).removeprefix("kafka."): str(v) for k, v in (config or {}).items()}
        servers_too = settings.pop("bootstrap.servers", servers)
        if servers_too != servers:
            raise ConfigurationError(
                f"bootstrap.servers {servers_too!r} contradict servers {servers!r}: leave them out of config"
            )
        object.__setattr__(self, "servers", servers)
        object.__setattr__(self, "config", tuple(sorted(settings.items())))

    def __repr__(self) -> str:
        more = f", {shown(dict(self.config))!r}" if self.config else ""
        return f"wr.Kafka({self.servers!r}{more})"

    def redacted(self, text: Any) -> str:
        """Return a message of librdkafka or a broker without the values of hidden settings.

        text: the message
        """
        return redacted(str(text), dict(self.config))

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return settings for a confluent_kafka client; the user's override `more`, in Python's spelling (`group_id`)."""
        ours = {n if n.endswith("_cb") else n.replace("_", "."): value for n, value in more.items()}
        ours["logger"] = Discreet(ours.get("logger", logger), dict(self.config))
        return {"bootstrap.servers": self.servers, **ours, **dict(self.config)}

    def _client(self, kind: Any, settings: dict[str, Any]) -> Any:
        """Create a client. ConfigurationError where librdkafka does not know a property or its value, or cannot use it."""
        from confluent_kafka import KafkaException

        try:
            return kind(self.settings(**settings))
        except KafkaException as error:
            java = "".join(_JAVA.get(name, "") for name, _ in self.config)
            refused = ConfigurationError(
                f"{self!r}: {self.redacted(error.args[0].str())}. Properties are librdkafka's (its CONFIGURATION.md lists "
                f"them){java}"
            )
        raise refused  # not from librdkafka's error, which quotes values

    def consumer(self, **more: Any) -> Any:
        """Create a `confluent_kafka.Consumer`. It commits no offsets of its own and reads committed records only."""
        from confluent_kafka import Consumer

        defaults: dict[str, Any] = {
            "group_id": "windrow",
            "enable_auto_commit": False,
            "enable_auto_offset_store": False,
            "isolation_level": "read_committed",
            "auto_offset_reset": "error",
            "enable_partition_eof": False,
        }
        return self._client(Consumer, {**defaults, **more})

    def producer(self, **more: Any) -> Any:
        """Create a `confluent_kafka.Producer` that is idempotent."""
        from confluent_kafka import Producer

        return self._client(Producer, {"enable_idempotence": True, "linger_ms": 5, **more})

    def admin(self, **more: Any) -> Any:
        """Create a `confluent_kafka.admin.AdminClient`."""
        from confluent_kafka.admin import AdminClient

        return self._client(AdminClient, more)

    def check(self) -> None:
        """Raise `ConfigurationError` where librdkafka does not know a property, or its value. Nothing is connected."""
        self.consumer().close()

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic, ascending; [] if there is no such topic. Raises `KafkaFailed`."""
        from confluent_kafka import KafkaException

        try:
            found = self.admin().list_topics(topic, timeout=TIMEOUT_S).topics.get(topic)
        except KafkaException as error:
            raise KafkaFailed(
                f"{self.servers} did not answer: {self.redacted(error)}. Is the broker running, and reachable from here?"
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
        """Create a topic. False if it is there already, as it is.

        topic: its name. partitions: how many. replication: -1 for the brokers' default. config: of the topic, by name

        Raises `KafkaFailed` (WR601).
        """
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
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.partitions(topic)) < partitions and time.monotonic() < deadline:
            time.sleep(0.05)  # the cluster has it, and not every broker knows it yet
        return True


def as_kafka(kafka: Kafka | str) -> Kafka:
    """Return a `Kafka` for a cluster, or for its servers."""
    return kafka if isinstance(kafka, Kafka) else Kafka(kafka)


def topic_partition(topic: str, partition: int, offset: int | None = None) -> Any:
    """Return a `confluent_kafka.TopicPartition`."""
    from confluent_kafka import TopicPartition

    return TopicPartition(topic, partition) if offset is None else TopicPartition(topic, partition, offset)


def ended_at(message: Any) -> int | None:
    """Return the end offset of a partition if the message reports it, else None."""
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


def assigned(partitions: Any, next_offsets: Sequence[Mapping[Partition, int]]) -> list[Any]:
    """Give partitions of a consumer the offset where a job continues to read, the lowest of its inputs.

    An input that has taken messages of a topic reads a partition that it has not seen from the beginning, unless the partition
    comes with an offset.
    """
    listed = (
        list(partitions) if isinstance(partitions, Iterable) and not isinstance(partitions, str) else None
    )
    if listed is None or not all(hasattr(one, "topic") and hasattr(one, "offset") for one in listed):
        topic = partitions
        while isinstance(topic, (list, tuple)) and topic:
            topic = topic[0]
        topic = topic if isinstance(topic, str) else "orders"
        raise InputError(
            f"next_offsets({partitions!r}): a job knows only partitions that messages have come from. Give those of the "
            f"consumer: next_offsets([TopicPartition({topic!r}, n) for n in "
            f"consumer.list_topics({topic!r}).topics[{topic!r}].partitions])"
        )
    by_topic: list[dict[str, dict[int, int]]] = []
    for offsets in next_offsets:
        topics: dict[str, dict[int, int]] = {}
        by_topic.append(topics)
        for (source, partition), offset in offsets.items():
            topics.setdefault(topic_of(source)[0], {})[partition] = offset
    found = []
    for one in listed:
        begin = client.OFFSET_BEGINNING if one.offset == client.OFFSET_INVALID else one.offset
        reached = [seen[one.topic].get(one.partition) for seen in by_topic if one.topic in seen]
        known = [offset for offset in reached if offset is not None]
        if not known:
            offset = begin
        elif None in reached and begin != client.OFFSET_END:
            offset = min(
                begin, *known
            )  # the messages of an input that has not seen the partition have still to come
        else:
            offset = min(known)
        found.append(topic_partition(one.topic, one.partition, offset))
    return found
