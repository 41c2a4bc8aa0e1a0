"""Access to the log's three topics: reading one partition to its end, and producers of which one at a time may write."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from windrow.connectors.kafka.cluster import TIMEOUT_S, Kafka
from windrow.core.errors import KafkaFailed, LogUnsupported

#: librdkafka's own lines; important ones are raised as well.
LINES = logging.getLogger("windrow.kafka")
LINES.addHandler(logging.NullHandler())
#: A record may be so large. Kafka's own limit, 1 MB, is what a large commit or a large window comes close to.
MAX_RECORD_BYTES = 64 << 20
#: The broker aborts a producer's open transaction after this long.
_TRANSACTION_TIMEOUT_MS = 60_000
_FETCH_WAIT_MS = 10
_COMMIT_ATTEMPTS = 3


class PartitionReader:
    """Reader of the committed records of one partition, in the order of offsets. Not for several threads at once."""

    def __init__(self, kafka: Kafka, topic: str, partition: int) -> None:
        self.kafka, self.topic, self.partition = kafka, topic, partition
        self._consumer: Any = None

    def bounds(self, *, must_exist: bool = False) -> tuple[int, int]:
        """Return (first offset that is kept, offset after the last that is committed); (0, 0) if there is no such topic, unless
        it must exist.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        moving = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
        missing = (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                low, stable = self._open().get_watermark_offsets(
                    TopicPartition(self.topic, self.partition), timeout=TIMEOUT_S, cached=False
                )
                return low, stable
            except KafkaException as error:
                code = error.args[0].code()
                if code in missing and not must_exist and not self.kafka.partitions(self.topic):
                    return 0, 0
                if code not in (*moving, *missing) or time.monotonic() > deadline:
                    raise failed(self.kafka, f"the ends of {self.topic}/{self.partition}", error) from error
                time.sleep(0.05)  # the topic was made, or its leader has moved, just now

    def read(self, first: int, end: int) -> Iterator[Any]:
        """Messages of offsets in `[first, end)`; fewer where compaction, deletion or an abort left holes."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        consumer, place = self._open(), TopicPartition(self.topic, self.partition, first)
        consumer.assign([place])
        at = first
        try:
            while at < end:
                message = consumer.poll(TIMEOUT_S)
                if message is None:
                    raise KafkaFailed(
                        f"{self.topic}/{self.partition} gave nothing from offset {at} in {TIMEOUT_S} s, its end is {end}: "
                        f"is the broker {self.kafka.servers} running, and reachable from here?"
                    )
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    at = max(at, message.offset())
                elif error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                    # The requested records were deleted: continue with those that are kept.
                    low, _ = self.bounds(must_exist=True)
                    if low <= at:
                        raise failed(self.kafka, f"{self.topic}/{self.partition}", KafkaException(error))
                    at = low
                    consumer.assign([TopicPartition(self.topic, self.partition, at)])
                elif error is not None:
                    raise failed(self.kafka, f"{self.topic}/{self.partition}", KafkaException(error))
                else:
                    at = message.offset() + 1
                    if message.offset() < end:
                        yield message
        finally:
            consumer.unassign()  # an idle consumer must not fetch

    def wait_for(self, offset: int) -> None:
        """Return when a record that was committed is seen by all: that is a little later than its commit is answered."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.bounds()[1] <= offset:
            if time.monotonic() > deadline:
                raise KafkaFailed(
                    f"{self.topic}/{self.partition}: the record at offset {offset} is committed, and not visible after "
                    f"{TIMEOUT_S} s: does a transaction of somebody else hold the topic?"
                )
            time.sleep(0.001)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _open(self) -> Any:
        if self._consumer is None:
            self._consumer = self.kafka.consumer(
                enable_partition_eof=True, fetch_wait_max_ms=_FETCH_WAIT_MS, logger=LINES
            )
        return self._consumer


def ignore_error(error: Any) -> None:
    """Ignore an error, as `error_cb`: the next call raises a fatal one too. Without this, it is raised inside a callback."""


class FencedOff(Exception):
    """Error if another producer with our transactional id has begun since, or our transaction was aborted for it."""


class Claim:
    """The right to write under a transactional id. A new claim ends any transaction that an older holder had begun."""

    def __init__(self, kafka: Kafka, transactional_id: str) -> None:
        from confluent_kafka import KafkaException

        self.kafka = kafka
        self._producer = kafka.producer(
            transactional_id=transactional_id,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            linger_ms=0,
            compression_type="zstd",
            message_max_bytes=MAX_RECORD_BYTES,
            logger=LINES,
            error_cb=ignore_error,
        )
        try:
            self._producer.init_transactions(TIMEOUT_S)
        except KafkaException as error:
            if is_fenced(error):
                raise FencedOff from error
            raise failed(kafka, f"the claim {transactional_id!r}", error) from error

    def write(self, topic: str, partition: int, records: list[tuple[bytes, bytes | None]]) -> list[int]:
        """Write (key, value) pairs in one transaction. Returns their offsets. After `KafkaFailed` it is unknown whether they
        are there; after `FencedOff` they are not, unless `commit_transaction` had been sent.
        """
        from confluent_kafka import KafkaException

        offsets: list[int] = []

        def on_delivery(error: Any, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())

        producer = self._producer
        try:
            producer.begin_transaction()
            for key, value in records:
                while True:
                    try:
                        producer.produce(topic, value, key=key, partition=partition, on_delivery=on_delivery)
                        break
                    except BufferError:
                        producer.poll(1.0)
            _commit(producer)  # sends what is left, and fails where one record failed
        except KafkaException as error:
            if is_fenced(error) or self._is_ended(error):
                raise FencedOff from error
            raise failed(self.kafka, topic, error) from error
        return offsets

    def _is_ended(self, error: Any) -> bool:
        """True if a newer holder caused the broker's answer: a producer that is just being fenced gets "unknown". The next
        request gets the fencing error.
        """
        from confluent_kafka import KafkaError, KafkaException

        if error.args[0].code() != KafkaError.UNKNOWN:
            return False
        try:
            self._producer.abort_transaction(TIMEOUT_S)
        except KafkaException as answer:
            return is_fenced(answer)
        return False


def _commit(producer: Any) -> None:
    from confluent_kafka import KafkaException

    for attempt in range(_COMMIT_ATTEMPTS):
        try:
            return producer.commit_transaction(TIMEOUT_S)  # type: ignore[no-any-return]
        except KafkaException as error:
            if attempt == _COMMIT_ATTEMPTS - 1 or not error.args[0].retriable():
                raise


def is_fenced(error: Any) -> bool:
    """True if a newer producer of the same transactional id is why."""
    from confluent_kafka import KafkaError

    code = error.args[0].code()
    fenced = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
    return code in fenced


def failed(kafka: Kafka, what: str, error: Exception) -> KafkaFailed:
    return KafkaFailed(
        f"{what} on {kafka.servers}: {kafka.redacted(error)}. Is the broker running, reachable from here, and is the access "
        "granted?"
    )


def ensure_topic(
    kafka: Kafka, topic: str, partitions: int, config: Mapping[str, str], *, must: Mapping[str, str]
) -> None:
    """Create a topic, or refuse one that is there in another shape. `must`: settings that have to be as they are here."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

    if kafka.create_topic(topic, partitions, config={**config, **must}):
        return
    found = kafka.partitions(topic)
    if len(found) != partitions:
        raise LogUnsupported(
            f"topic {topic!r} has {len(found)} partitions, the job needs {partitions}: give another name to wr.kafka_log, or "
            "delete the topic if nothing needs it"
        )
    admin = kafka.admin()
    try:
        [answer] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        settings = {name: entry.value for name, entry in answer.result(TIMEOUT_S).items()}
    except KafkaException as error:
        raise failed(kafka, f"the settings of {topic!r}", error) from error
    for name, value in must.items():
        if settings.get(name) != value:
            raise LogUnsupported(
                f"topic {topic!r} has {name}={settings.get(name)}, which would lose records: set {name}={value}"
            )


def delete_below(admin: Any, topic: str, partition: int, offset: int) -> None:
    """Remove the records below `offset`."""
    from confluent_kafka import KafkaException, TopicPartition

    asked = [TopicPartition(topic, partition, offset)]
    try:
        [answer] = admin.delete_records(asked, request_timeout=TIMEOUT_S).values()
        answer.result()
    except KafkaException as error:
        raise KafkaFailed(
            f"records of {topic}/{partition} below offset {offset} cannot be deleted: {error}"
        ) from error
