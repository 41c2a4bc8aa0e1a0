"""Log records in a topic of one partition: `RecordFiles` over Kafka.

A record is a message, alone in one transaction: its number (u64, big-endian) and 8 bytes that no other attempt has are the
key, its bytes the value. Exclusive creation
rests on the transactional id, which is the topic's name: `claim` begins it anew, which ends the older producer and aborts what
it had open; only then is the topic read to its end, and number n created if the topic ends at n-1. Nobody else can write in
between without ending us. So a number is there once; the first would count. Readers read what is committed, and end nobody.
"""

from __future__ import annotations

import random
import secrets
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

from windrow.checkpoint.storage import RecordFiles
from windrow.connectors.kafka.cluster import Kafka
from windrow.connectors.kafka.topics import (
    MAX_RECORD_BYTES,
    Claim,
    FencedOff,
    PartitionReader,
    delete_below,
    ensure_topic,
)
from windrow.core.errors import KafkaFailed

#: Offsets that are read back together.
_BLOCK = 8_192
_NUMBER = struct.Struct(">Q")
#: Bytes of records that are kept in memory; others are read again on access.
CACHE_BYTES = 64 << 20
#: A claimant that loses to another waits a random part of this, doubled each time up to 64-fold.
_BACK_OFF_S = 0.05


class KafkaRecords(RecordFiles):
    """The records of one log in `topic`."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self.kafka, self.topic = kafka, topic
        self._reader = PartitionReader(kafka, topic, 0)
        self._offsets: dict[int, int] = {}  # number -> offset, ascending in both
        self._data: dict[int, bytes] = {}  # the newest of them
        self._cached_bytes = 0
        self._next = 0  # the offset up to which the topic was read
        self._claim: Claim | None = None
        self._given_up: KafkaFailed | None = None
        self._admin: Any = None
        self._lost_claims = 0
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"KafkaRecords({self.kafka!r}, {self.topic!r})"

    def prepare(self) -> None:
        ensure_topic(
            self.kafka,
            self.topic,
            1,
            {"max.message.bytes": str(MAX_RECORD_BYTES)},
            must={"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
        )

    def claim(self) -> None:
        with self._lock:
            while self._claim is None:
                if self._lost_claims:
                    time.sleep(random.uniform(0, _BACK_OFF_S * 2 ** min(self._lost_claims, 6)))
                try:
                    self._claim = Claim(self.kafka, self.topic)
                except FencedOff:
                    self._lost_claims += 1

    def create(self, seq: int, data: bytes) -> bool:
        with self._lock:
            if self._given_up is not None:
                raise KafkaFailed(f"{self.topic} was given up: {self._given_up.message}") from self._given_up
            if self._claim is None:
                return False
            self._read_on(must_exist=True)  # a topic that a broker does not know for a moment is no empty log
            if seq != next(reversed(self._offsets), -1) + 1:
                return False
            key = _NUMBER.pack(seq) + secrets.token_bytes(8)
            try:
                [offset] = self._claim.write(self.topic, 0, [(key, data)])
            except FencedOff:
                # The commit may have been sent before we were fenced; the new holder has waited for its outcome.
                self._claim = None
                self._lost_claims += 1
                return self._is_there(seq, key)
            except KafkaFailed as error:
                # It is unknown what the producer will still do; a new claim would fence a driver that came after us.
                self._claim, self._given_up = None, error
                if self._is_there(seq, key):
                    return True
                raise
            if offset < self._next:
                raise KafkaFailed(
                    f"{self.topic} was made anew while the job ran: stop the job, and delete its other topics"
                )
            self._keep(seq, offset, data)
            self._next = offset + 1
            self._reader.wait_for(offset)
            return True

    def _is_there(self, seq: int, key: bytes) -> bool:
        """True if the record that was sent under this key is committed."""
        self._read_on()
        offset = self._offsets.get(seq)
        if offset is None:
            return False
        return any(message.key() == key for message in self._reader.read(offset, offset + 1))

    def read(self, seq: int) -> bytes | None:
        with self._lock:
            self._read_on()
            return self.recall(seq)

    def recall(self, seq: int) -> bytes | None:
        with self._lock:
            offset = self._offsets.get(seq)
            if offset is not None and seq not in self._data:
                self._read_back(offset)
            return self._data.get(seq)

    def exists(self, seq: int) -> bool:
        with self._lock:
            self._read_on()
            return seq in self._offsets

    def numbers(self) -> list[int]:
        with self._lock:
            self._read_on()
            return sorted(self._offsets)

    def remove(self, seq: int) -> None:
        with self._lock:
            offset = self._offsets.get(seq)
            if offset is not None:
                self._admin = self._admin or self.kafka.admin()
                delete_below(self._admin, self.topic, 0, offset + 1)

    def remove_all(self, seqs: Sequence[int]) -> None:
        with self._lock:
            there = [seq for seq in seqs if seq in self._offsets]
            if there:
                self.remove(there[-1])  # and all below

    def is_truncated(self) -> bool:
        with self._lock:
            low, _ = self._read_on()
            return low > 0 and 0 not in self._offsets

    # -- inside -------------------------------------------------------------------------------------------------------

    def _read_on(self, *, must_exist: bool = False) -> tuple[int, int]:
        """Know of every record up to now. Returns the topic's bounds."""
        low, stable = self._reader.bounds(must_exist=must_exist)
        while self._offsets:
            seq, offset = next(iter(self._offsets.items()))
            if offset >= low:
                break
            del self._offsets[seq]
            self._cached_bytes -= len(self._data.pop(seq, b""))
        # The last record is followed by the marker of its transaction. A copy of a topic has none: at first, read all.
        last = stable if self._next == 0 else stable - 1
        if last > self._next:
            for message in self._reader.read(max(self._next, low), stable):
                self._keep(_NUMBER.unpack_from(message.key())[0], message.offset(), message.value())
                if message.offset() + 1 >= last:
                    break
            self._next = last
        return low, stable

    def _keep(self, seq: int, offset: int, data: bytes) -> None:
        if self._offsets.setdefault(seq, offset) == offset:
            self._cache(seq, data)

    def _cache(self, seq: int, data: bytes) -> None:
        self._cached_bytes += len(data) - len(self._data.pop(seq, b""))
        self._data[seq] = data
        while self._cached_bytes > CACHE_BYTES and len(self._data) > 1:
            oldest = next(iter(self._data))
            self._cached_bytes -= len(self._data.pop(oldest))

    def _read_back(self, offset: int) -> None:
        """Read the bytes of a record that is no longer in memory, and of its neighbours: the caller reads on, up or down."""
        first, size = offset - offset % _BLOCK, 0
        for message in self._reader.read(first, min(first + _BLOCK, self._next)):
            seq = _NUMBER.unpack_from(message.key())[0]
            if self._offsets.get(seq) == message.offset():
                self._cache(seq, message.value())
            size += len(message.value())
            if message.offset() >= offset and size >= CACHE_BYTES // 2:
                break
