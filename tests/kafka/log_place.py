"""A log in a topic, for the contract: a topic cannot be damaged in the middle, so damage is what a copy of it would hold."""

from __future__ import annotations

import struct
import uuid

import windrow as wr
from windrow.checkpoint.log import RecordLog
from windrow.connectors.kafka.records import KafkaRecords
from windrow.connectors.kafka.topics import delete_below


class KafkaPlace:
    removes_at_once = True

    def __init__(self, kafka: wr.Kafka) -> None:
        self.kafka, self.topic = kafka, f"t-{uuid.uuid4().hex[:12]}-log"

    def files(self) -> KafkaRecords:
        return KafkaRecords(self.kafka, self.topic)

    def open(self) -> RecordLog:
        return RecordLog(self.files())

    def get(self, seq: int) -> bytes | None:
        return self.files().read(seq)

    def numbers(self) -> list[int]:
        return self.files().numbers()

    def put(self, seq: int, data: bytes) -> None:
        self._change(seq, data)

    def remove(self, seq: int) -> None:
        self._change(seq, None)

    def _change(self, seq: int, data: bytes | None) -> None:
        """The log with one record changed: everything is written anew, and what was there before removed."""
        files = self.files()
        files.prepare()
        records = {n: files.read(n) for n in files.numbers()}
        last = max(records, default=-1)
        if data is not None and seq > last:
            records = {seq: data}
        else:
            records[seq] = data
            end = files._reader.bounds()[1]
            if end:
                delete_below(self.kafka.admin(), self.topic, 0, end)
        # Under an id of its own: what holds the claim on the log is not ended by it.
        producer = self.kafka.producer(transactional_id=uuid.uuid4().hex)
        producer.init_transactions(30)
        producer.begin_transaction()
        offsets = [-1]
        for number, value in sorted(records.items()):
            if value is not None:
                producer.produce(
                    self.topic,
                    value,
                    key=struct.pack(">Q", number),
                    partition=0,
                    on_delivery=lambda error, message: offsets.append(message.offset()),
                )
        producer.commit_transaction(30)
        files._reader.wait_for(max(offsets))
