"""Kafka sink, exactly once: the panes of a commit and the record of its token are one transaction.

Step 5 of docs/explanation/commit-protocol.md. The transactional id is stable per (job, operator): a driver that begins fences
the one before it, which aborts what that had open. Only then does it look whether it still owns the job, and which commit the
topic holds, so no other producer can publish unseen. The answer to a commit that was lost on the way is in the same place.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.connectors.kafka.cluster import TIMEOUT_S, Kafka, as_kafka
from windrow.connectors.kafka.encoding import json_keys, json_rows, plain_kind
from windrow.connectors.pane_files import PaneFiles
from windrow.core.errors import ConfigurationError, KafkaFailed
from windrow.core.logs import get_logger
from windrow.core.messages import Token
from windrow.operators.operator import Definition
from windrow.operators.steps.groups import Groups

logger = get_logger()

#: Records that are handed over at once, and how many bytes of them may wait for the broker.
CHUNK_RECORDS, WAITING_BYTES = 20_000, 64 << 20
#: Headers of a dead letter's record.
LETTER_HEADERS = ("reason", "detail", "operator", "input", "source", "partition", "offset", "ordinal")

#: Types whose values are keys as they are.
_BINARIES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
)

Record = dict[str, Any]
Encode = Callable[[pa.Table], Sequence[str | bytes]]


@dataclass(frozen=True)
class KafkaSink:
    """See `wr.sinks.kafka`."""

    topic: str
    kafka: Kafka
    mode: str = "append"
    key: str | None = None
    encode: Encode | None = None
    partitions: int = -1
    tokens: str = ""
    _sessions: dict[tuple[str, str], _Session] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _seen: dict[tuple[str, str], int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode not in ("append", "upsert"):
            raise ConfigurationError(f"mode {self.mode!r} is neither 'append' nor 'upsert'")
        if self.mode == "upsert" and self.key is not None:
            raise ConfigurationError(
                f"mode 'upsert' and key {self.key!r}: a compacted topic is keyed by window and key fields; leave key= out"
            )
        object.__setattr__(self, "tokens", self.tokens or f"{self.topic}-commits")

    def __repr__(self) -> str:
        more = "".join(
            f", {name}={value!r}"
            for name, value, default in (
                ("mode", self.mode, "append"),
                ("key", self.key, None),
                ("encode", self.encode, None),
                ("partitions", self.partitions, -1),
                ("tokens", self.tokens, f"{self.topic}-commits"),
            )
            if value != default
        )
        return f"wr.sinks.kafka({self.topic!r}, {self.kafka!r}{more})"

    def __reduce__(self) -> tuple[Any, ...]:
        values = (self.topic, self.kafka, self.mode, self.key, self.encode, self.partitions, self.tokens)
        return KafkaSink, values

    def check(self, definition: Definition) -> None:
        """Refuse an operator whose rows this topic cannot take."""
        if self.mode == "upsert" and definition.known_by is None:
            raise ConfigurationError(
                f"mode 'upsert' and the rows of {definition.name!r}, which have no window to be known by: use mode='append'"
            )
        if definition.output_columns is None:
            return
        columns = [*definition.output_columns, "commit"]
        if self.key is not None and self.key not in columns:
            raise ConfigurationError(
                f"key {self.key!r} is none of the columns {columns} of {definition.name!r}"
            )

    # -- the protocol of sinks ------------------------------------------------------------------------------------------

    def publish(self, token: Token, panes: PaneFiles) -> None:
        """Write the panes and the record of this commit in one transaction. Raises `KafkaFailed`, `Fenced`."""
        whose = (token.job, panes.operator)
        session = self._sessions.get(whose)
        try:
            if session is not None and session.epoch != panes.epoch:
                # Another driver, in this process: it has to fence the one before it as it would any other.
                self._sessions.pop(whose).drop()
                session = None
            if session is None:
                session = self._open(token.job, panes)
                self._sessions[whose] = session
            if token.commit <= session.commit:
                return
            session.send(
                self.topic, self.records(panes), self.tokens, _token_record(token, panes.operator, panes.rows)
            )
            session.commit = token.commit
        except BaseException as error:
            # The topic shows the outcome of the transaction, to a session that has fenced this one.
            session = self._sessions.pop(whose, session)
            if session is not None:
                session.drop()
            panes.check_epoch()
            if _is_kafka(error):
                raise KafkaFailed(f"commit {token.commit} to topic {self.topic!r}: {error}") from error
            raise

    def last_commit(self, job: str, operator: str) -> int | None:
        """Return the highest commit that the topic holds; None where it holds none, or the cluster does not answer."""
        session = self._sessions.get((job, operator))
        if session is not None:
            return session.commit or None
        whose = (job, operator)
        try:
            if whose not in self._seen:  # once: it is a lower bound, and publishing looks again
                self._seen[whose] = (
                    self._read_token(job, operator) if self.kafka.partitions(self.tokens) else 0
                )
            return self._seen[whose] or None
        except Exception as error:
            if isinstance(error, KafkaFailed) or _is_kafka(error):
                logger.warning("no word of what a topic holds", topic=self.tokens, error=str(error))
                return None
            raise

    def close(self) -> None:
        """Release the producers."""
        while self._sessions:
            self._sessions.popitem()[1].drop()

    # -- inside ---------------------------------------------------------------------------------------------------------

    def _open(self, job: str, panes: PaneFiles) -> _Session:
        self._make_topics()
        producer = self.kafka.producer(
            transactional_id=f"windrow-{job}-{panes.operator}-{self.topic}",
            transaction_timeout_ms=60_000,
            partitioner="murmur2_random",  # as Java's producers do
            batch_size=1 << 20,
            queue_buffering_max_messages=10 * CHUNK_RECORDS,
        )
        producer.init_transactions(TIMEOUT_S)
        panes.check_epoch()
        return _Session(producer, panes.epoch, self._read_token(job, panes.operator))

    def _make_topics(self) -> None:
        compact = {"cleanup.policy": "compact"}
        if not self.kafka.partitions(self.topic):
            self.kafka.create_topic(
                self.topic, self.partitions, config=compact if self.mode == "upsert" else {}
            )
        if not self.kafka.partitions(self.tokens):
            self.kafka.create_topic(self.tokens, 1, config=compact)

    def _read_token(self, job: str, operator: str) -> int:
        """Return the newest commit of this job's operator among the tokens; 0 if there is none.

        Other jobs may have a transaction open on the topic, which hides later committed tokens of ours: it is
        waited for.
        """
        key, newest = _token_key(job, operator), 0
        for record in read_all(self.kafka, self.tokens, 0):
            if record.key() == key and record.value() is not None:
                newest = max(newest, int(json.loads(record.value())["commit"]))
        return newest

    def records(self, panes: PaneFiles) -> Iterator[list[Record]]:
        """Yield the records for the topic, in order, in portions."""
        if panes.letters_of is not None:
            for table_slice in panes.tables():
                made = [_letter(row) for row in table_slice.to_pylist()]
                yield from (made[i : i + CHUNK_RECORDS] for i in range(0, len(made), CHUNK_RECORDS))
            return
        by = list(panes.key_columns)
        # The newest row of a (window, key) is known only from all rows of its shard.
        upsert = self.mode == "upsert"
        tables = (newest_of(rows, by) for rows in panes.by_shard()) if upsert else panes.tables()
        for table_slice in (
            t.slice(n, CHUNK_RECORDS) for t in tables for n in range(0, len(t), CHUNK_RECORDS)
        ):
            keys = self._keys(table_slice, by)
            values: Sequence[Any] = (
                json_rows(table_slice) if self.encode is None else self.encode(table_slice)
            )
            if len(values) != len(table_slice):
                raise ConfigurationError(
                    f"encode gave {len(values)} values for {len(table_slice)} rows: give one each"
                )
            if self.mode == "upsert":
                kinds = table_slice.column("pane").combine_chunks().field("kind").to_pylist()
                values = [
                    None if kind == "RETRACT" else value for kind, value in zip(kinds, values, strict=True)
                ]
            yield [{"key": k, "value": v} for k, v in zip(keys, values, strict=True)]

    def _keys(self, table: pa.Table, by: list[str]) -> Sequence[Any]:
        if self.mode == "upsert":
            return json_keys(table, ["window", *by])
        if self.key is None:
            return json_keys(table, by) if by else [None] * len(table)
        if self.key not in table.column_names:  # of a join, whose columns are known no earlier
            raise ConfigurationError(f"key {self.key!r} is none of the columns {table.column_names}")
        column = table.column(self.key)
        if pa.types.is_nested(column.type) or pa.types.is_duration(column.type):
            return json_keys(table, [self.key])
        is_text = not any(is_one(column.type) for is_one in _BINARIES)
        texts = column.cast(plain_kind(column.type)).cast(pa.string()) if is_text else column
        keys: list[Any] = texts.to_pylist()
        return keys


def newest_of(table: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return the last row of a commit per (window, key); a pane that another replaces is left out."""
    if len(table) == 0 or "pane" not in table.column_names:
        return table
    window = table.column("window").combine_chunks()
    groups = Groups([*window.flatten(), *(table.column(b) for b in by)], len(table))
    last = np.zeros(groups.size, dtype=np.int64)
    last[groups.codes] = np.arange(len(table))
    return table.take(pa.array(np.sort(last)))


def _ahead(portions: Iterator[list[Record]]) -> Iterator[list[Record]]:
    """Yield the portions. A thread prepares the next while one is sent to the producer."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, portions, None)
        while (portion := following.result()) is not None:
            following = pool.submit(next, portions, None)
            yield portion


class _Session:
    """Producer that owns its transactional id, and the newest commit that the topic holds."""

    def __init__(self, producer: Any, epoch: int, commit: int) -> None:
        self.producer = producer
        self.epoch = epoch
        self.commit = commit

    def send(self, topic: str, portions: Iterator[list[Record]], tokens: str, token: Record) -> None:
        self.producer.begin_transaction()
        for portion in _ahead(portions):
            self._produce(topic, portion)
        self._produce(tokens, [token])
        self.producer.commit_transaction(TIMEOUT_S)

    def _produce(self, topic: str, portion: list[Record]) -> None:
        if not portion:
            return
        size = max(len(r["value"] or b"") for r in portion[:: max(1, len(portion) // 100)])
        room = max(1, min(CHUNK_RECORDS, WAITING_BYTES // max(size, 1)))
        for i in range(0, len(portion), room):
            self._wait_for_room(room)
            chunk = portion[i : i + room]
            if "headers" in chunk[0]:
                for record in chunk:
                    self.producer.produce(topic, **record)
            elif self.producer.produce_batch(topic, chunk) < len(chunk):
                errors = [r["_error"] for r in chunk if "_error" in r]
                raise KafkaFailed(f"{len(errors)} records were not taken: {errors[0]}")

    def _wait_for_room(self, room: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.producer) > 2 * room:
            before = len(self.producer)
            self.producer.poll(0.01)
            if len(self.producer) < before:
                deadline = time.monotonic() + TIMEOUT_S
            elif time.monotonic() > deadline:
                raise KafkaFailed(f"{before} records wait and the broker took none for {TIMEOUT_S:.0f} s")

    def drop(self) -> None:
        """Leave a transaction as it is: whoever has this transactional id next ends it."""
        self.producer.purge()


def read_all(kafka: Kafka, topic: str, partition: int) -> Iterator[Any]:
    """Yield every committed record that a partition holds now, oldest first. Waits for transactions that are open."""
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    consumer = kafka.consumer(enable_partition_eof=True)
    try:
        place = TopicPartition(topic, partition, OFFSET_BEGINNING)
        end = _end_of(kafka, topic, partition)
        consumer.assign([place])
        deadline = time.monotonic() + TIMEOUT_S
        low = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)[0]
        reached = low
        while reached < end:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                deadline = time.monotonic() + TIMEOUT_S
                yield message
            elif message is not None and not _is_end(message.error()):
                raise KafkaFailed(f"topic {topic!r} cannot be read: {message.error()}")
            position = consumer.position([place])[0].offset
            reached = max(reached, position)
            if reached < end and time.monotonic() > deadline:
                raise KafkaFailed(
                    f"topic {topic!r} shows records up to offset {reached} of {end}: a transaction of another producer has "
                    f"been open for {TIMEOUT_S:.0f} s"
                )
    finally:
        consumer.close()


def _end_of(kafka: Kafka, topic: str, partition: int) -> int:
    """Return the end of a partition, records of open transactions included."""
    from confluent_kafka import TopicPartition

    consumer = kafka.consumer(isolation_level="read_uncommitted")
    try:
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)
        return int(high)
    finally:
        consumer.close()


def _is_end(error: Any) -> bool:
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError._PARTITION_EOF)


def _is_kafka(error: BaseException) -> bool:
    from confluent_kafka import KafkaException

    return isinstance(error, (KafkaException, BufferError))


def _token_key(job: str, operator: str) -> bytes:
    return f"{job}/{operator}".encode()


def _token_record(token: Token, operator: str, rows: int) -> Record:
    body = {"format": 1, "job": token.job, "operator": operator, "commit": token.commit, "rows": rows}
    return {"key": _token_key(token.job, operator), "value": json.dumps(body)}


def _letter(row: dict[str, Any]) -> Record:
    headers = [
        (f"windrow.{name}", str(row[name]).encode()) for name in LETTER_HEADERS if row.get(name) is not None
    ]
    payload = row["payload"]
    return {"value": None if payload is None else payload.encode(), "headers": headers}


def kafka_sink(
    topic: str,
    kafka: Kafka | str,
    *,
    mode: str = "append",
    key: str | None = None,
    encode: Encode | None = None,
    partitions: int = -1,
    tokens: str | None = None,
) -> KafkaSink:
    """Write the panes of each commit to a topic once: a reader with isolation.level=read_committed sees all of a commit or
    nothing, and nothing twice. One transaction a commit, through a transactional id of the job's own.

    topic: made if it is not there, with `partitions` (default: the brokers' own number). kafka: `wr.Kafka`, or its servers.
    mode: "append": every row of the panes, retractions too; "upsert": the current pane of each (window, key) under that as its
    key, and a tombstone where a pane was retracted, for a compacted topic. key: the column whose text is the record's key; by
    default the key fields as a JSON object. encode: function (pyarrow Table) -> values, one for each row; by default each row
    as a JSON object. tokens: the topic that records the published commits; default `<topic>-commits`.

    Each dead letter (`dead_letters=wr.sinks.kafka(...)`) is a record of its payload, with the reason and its position in
    the source in headers `windrow.reason`, `windrow.detail`, `windrow.source`, `windrow.partition`, `windrow.offset`, ...
    """
    # A cluster is any object that makes clients: `windrow.testing.SimulatedKafka` does.
    cluster: Any = kafka if hasattr(kafka, "producer") else as_kafka(kafka)
    return KafkaSink(topic, cluster, mode, key, encode, partitions, tokens or "")


__all__ = ["KafkaSink", "kafka_sink", "newest_of", "read_all"]
