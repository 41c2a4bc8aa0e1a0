"""Compacted changelog of window metadata, one partition per shard.

Only committed changes come here, commit by commit. Key: u8 length of the column family's name, the name, the store's key;
value: the store's, none where the key is gone. Each commit is one transaction, and ends with the shard's marker: an empty key,
value msgpack [version, job, shard, commit]. So a reader sees whole commits only, and knows by the marker which.

Of several executors that apply one commit, only the holder of the shard's transactional id may write. It continues
after the marker that it finds when it takes the id, and omits what is there. Commits are in the order of offsets
then, each once, and what compaction keeps of a key is its newest committed value.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import msgpack

from windrow.connectors.kafka.cluster import Kafka
from windrow.connectors.kafka.topics import Claim, FencedOff, PartitionReader
from windrow.core.envelope import check_version
from windrow.core.errors import CorruptState, JobMismatch, KafkaFailed, StateLost
from windrow.stores.kv import Batch

VERSION = 1
MARKER = b""
_ATTEMPTS = 10
_WRITTEN_AT_ONCE = 10_000


class ShardChangelog:
    """The changelog of one shard, in a partition of `topic`."""

    def __init__(self, kafka: Kafka, topic: str, shard: int) -> None:
        self.kafka, self.topic, self.shard = kafka, topic, shard
        self._reader = PartitionReader(kafka, topic, shard)
        self._claim: Claim | None = None
        self._done = 0  # what the marker says, as long as we hold the claim

    def copied(self, job: str) -> int:
        """Return the commit of the newest marker; 0 if there is none."""
        low, stable = self._reader.bounds()
        back = 2  # the marker, and the control record that ends its transaction
        while stable > low:
            first, found = max(low, stable - back), None
            for message in self._reader.read(first, stable):
                if message.key() == MARKER:
                    found = self._commit_of(message.value(), job)
                    if message.offset() == stable - 2:
                        break
            if found is not None or first == low:
                return found or 0
            back *= 16
        return 0

    def copy(self, job: str, commit: int, changes: Callable[[], Batch]) -> None:
        """Write the changes of a commit, unless they are there."""
        for attempt in range(_ATTEMPTS):
            try:
                if self._claim is None or self._done < commit - 1:
                    # Others may have applied what we have not: what we know of the marker is old then.
                    self._claim = Claim(self.kafka, f"{self.topic}-{self.shard}")
                    self._done = self.copied(job)
                if self._done >= commit:
                    return
                self._refuse_gap(commit)
                marker = encode_marker(job, self.shard, commit)
                offsets = self._claim.write(self.topic, self.shard, [*_records(changes()), (MARKER, marker)])
                self._reader.wait_for(offsets[-1])
                self._done = commit
                return
            except FencedOff:
                # Another executor applies the shard too. Whatever it wrote is what we would have.
                self._claim = None
                time.sleep(random.uniform(0, 0.05 * 2 ** min(attempt, 5)))
            except KafkaFailed:
                self._claim = None  # the content is unknown: look again
                raise
        raise KafkaFailed(
            f"{self.topic}/{self.shard}: commit {commit} could not be copied in {_ATTEMPTS} attempts, another executor took "
            "the shard each time: is the job run by two drivers?"
        )

    def restore(self, job: str, write: Callable[[Batch], None]) -> int:
        """Write the content of the changelog. Returns its commit."""
        low, stable = self._reader.bounds()
        commit, batch = 0, Batch()
        for message in self._reader.read(low, stable):
            key, value = message.key(), message.value()
            if key == MARKER:
                commit = self._commit_of(value, job)
                continue
            cf, key = key[1 : 1 + key[0]].decode(), key[1 + key[0] :]
            if value is None:
                batch.delete(cf, key)
            else:
                batch.put(cf, key, value)
            if len(batch) >= _WRITTEN_AT_ONCE:
                write(batch)
                batch = Batch()
        write(batch)
        return commit

    def _refuse_gap(self, commit: int) -> None:
        if self._done != commit - 1:
            raise StateLost(
                f"{self.topic}/{self.shard} has window metadata up to commit {self._done}, and the store of shard {self.shard} "
                f"holds commit {commit - 1}: the topic has lost records. Delete the local stores, so that they are built again "
                "from the segments, which fills it"
            )

    def _commit_of(self, value: bytes, job: str) -> int:
        try:
            version, whose, shard, commit = msgpack.unpackb(value)
        except (ValueError, TypeError) as error:
            raise CorruptState(
                f"a marker of {self.topic}/{self.shard} cannot be read: {error}. Is it windrow's?"
            ) from error
        check_version(f"markers of {self.topic}", version, VERSION)
        if (whose, shard) != (job, self.shard):
            raise JobMismatch(
                f"{self.topic}/{self.shard} holds shard {shard} of {whose}, and the log holds {job}: the topics of a log "
                "belong together, delete all of them or none"
            )
        return int(commit)


def encode_key(cf: str, key: bytes) -> bytes:
    """Return the key of a record that holds a key of a store."""
    name = cf.encode()
    return bytes([len(name)]) + name + key


def encode_marker(job: str, shard: int, commit: int) -> bytes:
    """Return the value of the record that ends a commit."""
    packed: bytes = msgpack.packb([VERSION, job, shard, commit])
    return packed


def _records(changes: Batch) -> list[tuple[bytes, Any]]:
    found: list[tuple[bytes, Any]] = []
    for kind, cf, key, value in changes.ops:
        assert kind != "delete_range", "a compacted topic forgets keys, not ranges"
        found.append((encode_key(cf, key), None if kind == "delete" else value))
    return found
