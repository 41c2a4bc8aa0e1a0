"""The broker's side of a simulated cluster: topics, transactions, and requests that get lost."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

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
