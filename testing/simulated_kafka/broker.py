"""The broker's side of a simulated cluster: topics, transactions, and requests that get lost."""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

from windrow.connectors.kafka import client
from windrow.core.errors import KafkaFailed

Place = tuple[str, int]


class Outcome(enum.Enum):
    """The outcome of a request whose sender gets no answer."""

    LOST = "the request is lost"
    UNHEARD = "the answer is lost"
    LATE = "the request comes late"


Step = Callable[[str], Outcome | None]


def no_faults(what: str) -> Outcome | None:
    """Answer every request."""
    return None


@dataclass
class Record:
    """The record at an offset of a partition."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, Any]] | None
    timestamp_ms: int
    open_by: str | None = None  # the transactional id whose transaction is still open
    aborted: bool = False
    control: bool = False


@dataclass
class _Transactional:
    """The coordinator's state of a transactional.id."""

    epoch: int = -1
    written: dict[Place, int] = field(
        default_factory=dict
    )  # first offset, by partition; of the open transaction
    open: bool = False
    ended: bool | None = None  # how the last transaction ended: True is committed


class OldProducer(Exception):
    """The request is of an older producer."""


class WrongState(Exception):
    """The coordinator has no such transaction."""


class Broker:
    """A simulated cluster: its state, and its answers to requests. step: see `SimulatedKafka`."""

    servers = "simulated:9092"

    def __init__(self, step: Step = no_faults) -> None:
        self.step = step
        self._topics: dict[str, list[list[Record]]] = {}
        self._coordinator: dict[str, _Transactional] = {}
        self._late: list[Callable[[], None]] = []

    def partitions(self, topic: str) -> list[int]:
        if self.step("metadata") is not None:
            raise KafkaFailed(f"{self.servers} did not answer")
        return list(range(self.count(topic)))

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        """Create a topic, as `wr.Kafka.create_topic`. partitions: -1 for the brokers' own number, which is 1."""
        outcome = self.step("create topic")
        new = topic not in self._topics
        if new and outcome is not Outcome.LOST:
            self._topics[topic] = [[] for _ in range(max(partitions, 1))]
        if outcome is not None:
            raise KafkaFailed(f"topic {topic!r} cannot be created on {self.servers}: no answer")
        return new

    def metadata(self, topic: str | None = None) -> Any:
        """Return `.topics[name].partitions` by number; of one topic that does not exist, with an `error`."""
        if self.step("metadata") is not None:
            raise client.KafkaException(kafka_error("_TRANSPORT", "metadata: no answer"))
        topics = {}
        for name in sorted(self._topics) if topic is None else [topic]:
            n = self.count(name)
            topics[name] = SimpleNamespace(
                topic=name,
                partitions={i: SimpleNamespace(id=i, error=None) for i in range(n)},
                error=None if n else kafka_error("UNKNOWN_TOPIC_OR_PART", name),
            )
        return SimpleNamespace(topics=topics, brokers={})

    # -- what happens to it -----------------------------------------------------------------------------------------

    @property
    def late(self) -> int:
        """Return the number of requests that are still on their way."""
        return len(self._late)

    @property
    def open_transactions(self) -> int:
        return sum(known.open for known in self._coordinator.values())

    def deliver_late(self) -> None:
        """Deliver the requests that are on their way; their answers are lost."""
        late, self._late = self._late, []
        for request in late:
            try:
                request()
            except (OldProducer, WrongState):
                continue

    def expire_transactions(self) -> int:
        """Abort open transactions and fence their producers, as `transaction.timeout.ms` does. Returns how many."""
        expired = [known for known in self._coordinator.values() if known.open]
        for known in expired:
            self._finish(known, commit=False)
            known.epoch += 1
        return len(expired)

    def arrives_late(self, request: Callable[[], None]) -> None:
        """Hold a request back until `deliver_late`."""
        self._late.append(request)

    # -- what it is asked -------------------------------------------------------------------------------------------

    def count(self, topic: str) -> int:
        return len(self._topics.get(topic, ()))

    def log(self, topic: str, partition: int) -> list[Record]:
        found = self._topics.get(topic)
        if found is None or partition >= len(found):
            raise client.KafkaException(kafka_error("UNKNOWN_TOPIC_OR_PART", f"{topic} [{partition}]"))
        return found[partition]

    def stable(self, log: Sequence[Record]) -> int:
        """Return the last stable offset: from there on a transaction is still open."""
        return next((n for n, record in enumerate(log) if record.open_by is not None), len(log))

    def init(self, name: str) -> int:
        known = self._coordinator.setdefault(name, _Transactional())
        if known.open:
            self._finish(known, commit=False)
        known.epoch, known.ended = known.epoch + 1, None
        return known.epoch

    def _check(self, name: str, epoch: int) -> _Transactional:
        known = self._coordinator[name]
        if epoch != known.epoch:
            raise OldProducer
        return known

    def write(self, name: str | None, epoch: int, place: Place, record: Record) -> int:
        log = self.log(*place)
        if name is not None:
            known = self._check(name, epoch)
            known.open = True
            known.written.setdefault(place, len(log))
            record.open_by = name
        log.append(record)
        return len(log) - 1

    def end(self, name: str, epoch: int, commit: bool) -> None:
        known = self._check(name, epoch)
        if known.open:
            self._finish(known, commit=commit)
        elif known.ended is not None and known.ended is not commit:
            raise WrongState
        known.ended = commit

    def _finish(self, known: _Transactional, *, commit: bool) -> None:
        for place, first in sorted(known.written.items()):
            log = self.log(*place)
            name = next(r.open_by for r in log[first:] if r.open_by is not None and self._is(r, known))
            for record in log[first:]:
                if record.open_by == name:
                    record.open_by, record.aborted = None, not commit
            log.append(Record(None, None, None, 0, control=True))
        known.written.clear()
        known.open = False

    def _is(self, record: Record, known: _Transactional) -> bool:
        return record.open_by is not None and self._coordinator[record.open_by] is known


class SimulatedMessage:
    """A simulated `confluent_kafka.Message`."""

    def __init__(self, place: Place, offset: int, record: Record, error: Any = None) -> None:
        self._place, self._offset, self._record, self._error = place, offset, record, error

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> Any:
        """None where the record was not written."""
        return None if self._offset < 0 else self._offset

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> list[tuple[str, Any]] | None:
        return self._record.headers

    def timestamp(self) -> tuple[int, int]:
        return 1, self._record.timestamp_ms

    def error(self) -> Any:
        return self._error


def kafka_error(name: str, text: str, **flags: bool) -> Any:
    """Return the client's error. name: that of the code in `KafkaError`."""
    return client.KafkaError(getattr(client.KafkaError, name), text, **flags)


# -- A consumer of the simulated cluster, and an admin client ---------------------------------------------------------


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


# -- A producer of the simulated cluster, with transactions -----------------------------------------------------------


class SimulatedProducer:
    """A simulated `confluent_kafka.Producer`. At its process's end queued records are lost, open transactions stay open."""

    def __init__(self, cluster: Broker, config: Mapping[str, Any]) -> None:
        self._cluster = cluster
        transactional_id = config.get("transactional_id")
        self._name: str | None = None if transactional_id is None else str(transactional_id)
        self._epoch = -1
        #: "new", "ready", "open", "committing" and "aborting" (requested, and not answered), "fatal"
        self._state = "new"
        self._queue: list[tuple[Place, Record, Any]] = []
        self._reports: list[tuple[Any, Any, SimulatedMessage]] = []

    # -- transactions -----------------------------------------------------------------------------------------------

    def init_transactions(self, timeout: float = -1) -> None:
        name = self._transactional("init_transactions", "new", "ready")
        self._epoch = self._ask("init_transactions", lambda: self._cluster.init(name))
        self._state = "ready"

    def begin_transaction(self) -> None:
        self._transactional("begin_transaction", "ready")
        self._state = "open"

    def commit_transaction(self, timeout: float = -1) -> None:
        name = self._transactional("commit_transaction", "open", "committing")
        if self._state == "open":
            self._cluster.step(
                "produce"
            )  # whatever becomes of it: the client sends them until they are there
            self._send()
        self._state = "committing"
        epoch = self._epoch
        self._ask("commit_transaction", lambda: self._cluster.end(name, epoch, True))
        self._report()
        self._state = "ready"

    def abort_transaction(self, timeout: float = -1) -> None:
        name = self._transactional("abort_transaction", "open", "aborting")
        self.purge()
        self._state = "aborting"
        epoch = self._epoch
        self._ask("abort_transaction", lambda: self._cluster.end(name, epoch, False))
        self._report()
        self._state = "ready"

    # -- records ----------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        if self._state == "fatal":
            raise client.KafkaException(kafka_error("_FATAL", "this producer was fenced"))
        if self._name is not None and self._state != "open":
            self._wrong("produce")
        raw_key = key.encode() if isinstance(key, str) else key
        raw_value = value.encode() if isinstance(value, str) else value
        count = self._cluster.count(topic)
        if partition < 0:
            partition = zlib.crc32(raw_key or b"") % max(count, 1)
        listed = list(headers.items()) if isinstance(headers, Mapping) else headers
        record = Record(raw_key, raw_value, listed, timestamp)
        self._queue.append(((topic, partition), record, on_delivery or callback))

    def produce_batch(
        self, topic: str, messages: Sequence[dict[str, Any]], partition: int = -1, on_delivery: Any = None
    ) -> int:
        """Produce messages and return how many were accepted; the others get an `_error`."""
        taken = 0
        for message in messages:
            arguments = {"partition": partition, "callback": on_delivery, **message}
            try:
                self.produce(topic, **arguments)
            except client.KafkaException as refused:
                message["_error"] = refused.args[0]
            else:
                taken += 1
        return taken

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Drop the queued messages."""
        for place, record, report in self._queue:
            purged = kafka_error("_PURGE_QUEUE", "dropped before it was sent")
            self._reports.append((report, purged, SimulatedMessage(place, -1, record, purged)))
        self._queue.clear()

    def poll(self, timeout: float = -1) -> int:
        """Send queued records, and report. Returns how many reports there were."""
        fenced = False
        if self._cluster.step("produce") is None and self._state != "fatal":
            self._send()
            fenced = self._state == "fatal"
        emitted = self._report()
        if fenced:
            self._fenced()  # as the client does without an `error_cb`
        return emitted

    def flush(self, timeout: float = -1) -> int:
        """Send queued records as `poll`, and return how many are still queued."""
        self.poll(timeout)
        return len(self)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        return self._cluster.metadata(topic)

    def __len__(self) -> int:
        return len(self._queue) + len(self._reports)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        while self._queue:
            place, record, report = self._queue.pop(0)
            error = None
            offset = -1
            try:
                offset = self._cluster.write(self._name, self._epoch, place, record)
            except client.KafkaException as failed:
                error = failed.args[0]
            except OldProducer:
                self._state = "fatal"
                error = kafka_error("INVALID_PRODUCER_EPOCH", "a newer producer has this transactional.id")
            self._reports.append((report, error, SimulatedMessage(place, offset, record, error)))

    def _report(self) -> int:
        emitted = 0
        while self._reports:
            report, error, message = self._reports.pop(0)
            if report is not None:
                report(error, message)
            emitted += 1
        return emitted

    def _transactional(self, call: str, *states: str) -> str:
        if self._name is None:
            raise client.KafkaException(kafka_error("_NOT_CONFIGURED", f"{call}: no transactional.id"))
        if self._state == "fatal":
            self._fenced()
        if self._state in ("committing", "aborting") and self._state not in states:
            raise client.KafkaException(
                kafka_error("_CONFLICT", f"{call}: {self._state} is not answered yet, call that again")
            )
        if self._state not in states:
            self._wrong(call)
        return self._name

    def _ask(self, what: str, request: Callable[[], Any]) -> Any:
        if self._state == "fatal":
            self._fenced()
        outcome = self._cluster.step(what)
        try:
            if outcome is Outcome.LATE:
                self._cluster.arrives_late(request)
            elif outcome is not Outcome.LOST:
                answer = request()
        except OldProducer:
            self._state = "fatal"
            self._fenced()
        except WrongState:
            raise client.KafkaException(kafka_error("INVALID_TXN_STATE", what)) from None
        if outcome is not None:
            raise client.KafkaException(kafka_error("_TIMED_OUT", f"{what}: no answer", retriable=True))
        return answer

    def _fenced(self) -> NoReturn:
        text = f"a newer producer has the transactional.id {self._name!r}"
        raise client.KafkaException(kafka_error("_FENCED", text, fatal=True))

    def _wrong(self, call: str) -> NoReturn:
        raise client.KafkaException(kafka_error("_STATE", f"{call} is not allowed in state {self._state!r}"))
