"""A producer of the simulated cluster, with transactions."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from windrow.connectors.kafka import client
from windrow.testing.simulated_kafka.broker import (
    Broker,
    OldProducer,
    Outcome,
    Place,
    Record,
    SimulatedMessage,
    WrongState,
    kafka_error,
)


class SimulatedProducer:
    """A simulated `confluent_kafka.Producer`. At its process's end queued records are lost, open transactions stay open."""

    def __init__(self, cluster: Broker, config: Mapping[str, Any]) -> None:
        self._cluster = cluster
        given = config.get("transactional_id")
        self._name: str | None = None if given is None else str(given)
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
            given = {"partition": partition, "callback": on_delivery, **message}
            try:
                self.produce(topic, **given)
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
