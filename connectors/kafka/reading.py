"""Reader of one range of offsets, as Arrow record batches.

Offsets have gaps: transactions end in invisible records, aborted ones leave nothing, compaction removes some. So a range
is read to its end by position: up to a record at or past the end, or to the partition's end, which librdkafka reports.

A worker process keeps its clients: Spark uses the process again for the next batch.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from windrow.connectors.kafka.cluster import Kafka
from windrow.connectors.kafka.offsets import Range
from windrow.connectors.kafka.options import SourceOptions
from windrow.connectors.kafka.source_metadata import Cluster
from windrow.core.errors import KafkaFailed, SourceLost
from windrow.core.logs import get_logger

logger = get_logger()

#: About so many records in one Arrow batch, and about so many bytes of them.
BATCH_ROWS = 16_384
BATCH_BYTES = 16 << 20
#: Messages that exist at a time, as objects: few, or the garbage collector scans them repeatedly, and the processor's
#: caches hold none of them (measured: 512 take half the time of 16,384).
CHUNK_ROWS = 512
#: Ranges that are requested from the broker at a time, each by a consumer of its own.
ASKED = 2
#: Wait before the next poll, in seconds, if fewer records came than were requested.
WAIT_S = 0.1
#: librdkafka is not to rest for its usual second after its queue was full, since a range is wanted at once; and what it fetches
#: beyond the end of the range is thrown away, so the queue is short.
FETCHING = {"fetch_queue_backoff_ms": 10, "queued_min_messages": 2 * BATCH_ROWS}

_idle: dict[Kafka, list[Any]] = {}
_clusters: dict[Kafka, Cluster] = {}


def cluster_of(kafka: Kafka) -> Cluster:
    """Return this process's connection to a cluster."""
    return _clusters.setdefault(kafka, Cluster(kafka))


class Fetched:
    """Records of one partition, in order of offsets, as a list per attribute: lists cost less memory than messages.

    columns: "key", "value", "timestamp" (kind, milliseconds) and "headers", those of them that were asked for.
    """

    def __init__(self, attributes: Iterable[str]) -> None:
        self.bytes = 0
        self.offsets: list[int] = []
        self.columns: dict[str, list[Any]] = {a: [] for a in attributes if a in _ATTRIBUTES}

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, attribute: str) -> list[Any]:
        return self.columns[attribute]

    def add(self, messages: list[Any]) -> None:
        """Append the attributes of messages."""
        self.bytes += sum(map(len, messages))
        self.offsets += [m.offset() for m in messages]
        for attribute, column in self.columns.items():
            column += _ATTRIBUTES[attribute](messages)


_ATTRIBUTES: Mapping[str, Callable[[list[Any]], list[Any]]] = {
    "key": lambda messages: [m.key() for m in messages],
    "value": lambda messages: [m.value() for m in messages],
    "timestamp": lambda messages: [m.timestamp() for m in messages],
    "headers": lambda messages: [m.headers() for m in messages],
}


def read(options: SourceOptions, wanted: Range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in `schema`. Raises as `fetch`."""
    attributes = {"timestamp" if name == "timestampType" else name for name in schema.names}
    for _, fetched in fetch(options, [wanted], attributes):
        yield to_batch(fetched, wanted, schema)


def fetch(
    options: SourceOptions, ranges: Sequence[Range], attributes: Iterable[str]
) -> Iterator[tuple[Range, Fetched]]:
    """Yield the records of ranges, in order, about `BATCH_ROWS` at a time. While one is read the broker is asked
    for the next.

    Raises `SourceLost` where they are gone, `KafkaFailed` where no broker answers.
    """
    idle, asked = _idle.setdefault(options.kafka, []), deque[Any]()
    waiting = deque(ranges)
    try:
        for wanted in ranges:
            while waiting and len(asked) < ASKED:
                consumer = (
                    idle.pop() if idle else options.kafka.consumer(enable_partition_eof=True, **FETCHING)
                )
                asked.append(consumer)
                _assign(consumer, waiting[0], waiting.popleft().start)
            for fetched in _fetch(asked[0], options, wanted, attributes):
                yield wanted, fetched
            asked[0].unassign()
            _check_id(options, wanted)
            idle.append(asked.popleft())
    except BaseException:
        for consumer in asked:
            consumer.close()
        raise


def _assign(consumer: Any, wanted: Range, offset: int) -> None:
    from confluent_kafka import TopicPartition

    consumer.assign([TopicPartition(wanted.topic, wanted.partition, offset)])


def _fetch(
    consumer: Any, options: SourceOptions, wanted: Range, attributes: Iterable[str]
) -> Iterator[Fetched]:
    """Yield the records of one range, which is assigned to the consumer."""
    from confluent_kafka import KafkaError

    position, fetched, chunk = wanted.start, Fetched(attributes), CHUNK_ROWS
    answered_s = time.monotonic()
    while position < wanted.end:
        got = consumer.consume(min(chunk, wanted.end - position), WAIT_S)
        errors = [e for e in [m.error() for m in got] if e is not None]
        messages = [m for m in got if m.error() is None] if errors else got
        if messages:
            position = messages[-1].offset() + 1
            if position > wanted.end:
                messages = messages[: bisect_left(messages, wanted.end, key=lambda m: m.offset())]
            fetched.add(messages)
            answered_s = time.monotonic()
        if len(fetched) >= BATCH_ROWS or fetched.bytes >= BATCH_BYTES:
            chunk = max(1, min(CHUNK_ROWS, BATCH_BYTES * len(fetched) // max(1, fetched.bytes)))
            yield fetched
            fetched = Fetched(attributes)
            answered_s = time.monotonic()
        for message in got if errors else ():
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                position = max(position, message.offset())
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                position = _after_expiry(options, wanted, position)
                _assign(consumer, wanted, position)
            else:
                raise _failed(error, wanted, position)
        if not messages and position < wanted.end and time.monotonic() - answered_s > options.poll_timeout_s:
            raise KafkaFailed(
                f"{wanted.topic}-{wanted.partition} gave nothing in {options.poll_timeout_s:g} s at offset {position}, to be "
                f"read up to {wanted.end}: see whether its leader is up, or raise kafkaConsumer.pollTimeoutMs"
            )
    if len(fetched):
        yield fetched


def _after_expiry(options: SourceOptions, wanted: Range, position: int) -> int:
    """Return the offset to continue at after the broker refused one. Raises `SourceLost` where reading must not continue."""
    name, partition = wanted.topic, wanted.partition
    extent = cluster_of(options.kafka).extents([name]).get(name)
    if extent is None or extent.id != wanted.id or partition not in extent.high:
        raise SourceLost(
            f"{name}-{partition} (topic id {wanted.id}) was deleted or made anew while offsets from {position} were read: "
            "start the query again, which says what can be done"
        )
    low, high = extent.low[partition], extent.high[partition]
    if position > high or position >= low:
        raise SourceLost(
            f"{name}-{partition} has offsets from {low} to {high}, and the broker refused to read at {position}: start "
            "the query again, which says what can be done"
        )
    if options.fail_on_data_loss:
        raise SourceLost(
            f"{name}-{partition} was to be read from {position}, and the broker holds it from {low} on: "
            f"{low - position} offsets expired before they were read. Raise the topic's retention.ms; or go on without "
            'them with option("failOnDataLoss", "false")'
        )
    logger.warning("records expired unread", topic=name, partition=partition, lost=low - position)
    return low


def _check_id(options: SourceOptions, wanted: Range) -> None:
    """Raise `SourceLost` if the topic is not the planned one: it was recreated meanwhile."""
    found = cluster_of(options.kafka).ids([wanted.topic]).get(wanted.topic)
    if found is None or found[0] != wanted.id:
        now = "deleted" if found is None else f"made anew under the id {found[0]}"
        raise SourceLost(
            f"topic {wanted.topic!r} (id {wanted.id}) was {now} while it was read: start the query again, which says what can "
            "be done"
        )


def _failed(error: Any, wanted: Range, position: int) -> Exception:
    from confluent_kafka import KafkaError

    where = f"{wanted.topic}-{wanted.partition} at offset {position}"
    if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
        return SourceLost(f"{where}: {error.str()}. Start the query again, which says what can be done")
    return KafkaFailed(
        f"{where}: {error.str()}. See the broker's log and the user's rights to read the topic"
    )


def to_batch(fetched: Fetched, wanted: Range, schema: pa.Schema) -> pa.RecordBatch:
    """Records of one partition as the columns that `schema` has."""
    n = len(fetched)
    arrays = []
    for field in schema:
        match field.name:
            case "key" | "value" as name:
                column = pa.array(fetched[name], field.type)
            case "topic":
                column = pa.repeat(pa.scalar(wanted.topic, field.type), n)
            case "partition":
                column = pa.repeat(pa.scalar(wanted.partition, field.type), n)
            case "offset":
                column = pa.array(fetched.offsets, field.type)
            case "timestamp":
                millis = pa.array([ms for _, ms in fetched["timestamp"]], pa.int64())
                column = millis.cast(pa.timestamp("ms", "UTC")).cast(field.type)
            case "timestampType":
                # librdkafka counts from 0, not available; Kafka and Spark from -1.
                column = pa.array([kind - 1 for kind, _ in fetched["timestamp"]], field.type)
            case "topicId":
                column = pa.repeat(pa.scalar(wanted.id, field.type), n)
            case _:
                column = pa.array([_headers(h) for h in fetched["headers"]], field.type)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _headers(found: Any) -> list[dict[str, Any]] | None:
    return [{"key": k, "value": v} for k, v in found] if found else None
