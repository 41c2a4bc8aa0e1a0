"""Segment topic: files that commits name, in a plain topic with one partition per shard, in chunks, found by their offsets.

A chunk is an envelope of kind 11 around msgpack [file, index, chunks, bytes]; `file` is the file's folder and name, which no
other attempt has. Its key is that name, for people that inspect the topic. A file lies in [first, last] offset, perhaps with
chunks of other attempts in between. What no commit names is never read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import msgpack

from windrow.checkpoint.transport import At
from windrow.connectors.kafka.cluster import TIMEOUT_S, Kafka
from windrow.connectors.kafka.topics import LINES, PartitionReader, delete_below, ignore_error
from windrow.core.envelope import Kind, seal, unseal
from windrow.core.errors import CorruptState, KafkaFailed, StateLost
from windrow.stores.files import make_folder, write_whole

#: Below Kafka's usual limit of a record, 1 MB, with room for the envelope.
CHUNK_BYTES = 900_000
#: Seconds for which a topic's low end is cached.
_LOW_FOR_S = 1.0


class SegmentTopic:
    """The files of all shards, in `topic`."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self.kafka, self.topic = kafka, topic
        self._producer: Any = None
        self._readers: dict[int, PartitionReader] = {}
        self._lows: dict[int, tuple[float, int]] = {}

    def keep(self, shard: int, files: Mapping[str, str]) -> dict[str, At]:
        from confluent_kafka import KafkaError

        if self._producer is None:
            self._producer = self.kafka.producer(linger_ms=0, logger=LINES, error_cb=ignore_error)
        offsets: dict[str, list[int]] = {kind: [] for kind in files}
        errors: list[Any] = []
        asked = 0
        for kind, path in files.items():

            def on_delivery(error: KafkaError | None, message: Any, kind: str = kind) -> None:
                if error is None:
                    offsets[kind].append(message.offset())
                else:
                    errors.append(error)

            for chunk in _chunks(path):
                asked += 1
                while True:
                    try:
                        self._producer.produce(
                            self.topic,
                            chunk,
                            key=_name(path).encode(),
                            partition=shard,
                            on_delivery=on_delivery,
                        )
                        break
                    except BufferError:
                        self._producer.poll(1.0)
        self._producer.flush(TIMEOUT_S)
        if errors or sum(map(len, offsets.values())) != asked:
            why = errors[0] if errors else f"no answer in {TIMEOUT_S} s"
            self._producer = None
            raise KafkaFailed(f"{self.topic}/{shard} on {self.kafka.servers} did not take a segment: {why}")
        return {kind: (min(at), max(at)) for kind, at in offsets.items()}

    def has(self, shard: int, at: At) -> bool:
        known = self._lows.get(shard)
        if known is None or time.monotonic() - known[0] > _LOW_FOR_S:
            known = self._lows[shard] = time.monotonic(), self._reader(shard).bounds()[0]
        return at[0] >= known[1]

    def fetch(self, shard: int, at: At, path: str) -> None:
        name, parts, total = _name(path), dict[int, bytes](), None
        for message in self._reader(shard).read(at[0], at[1] + 1):
            try:
                file, index, chunks, data = msgpack.unpackb(unseal(Kind.CHUNK, message.value()))
            except (ValueError, CorruptState) as error:
                raise CorruptState(
                    f"{self.topic}/{shard} at offset {message.offset()}: a chunk is damaged: {error}"
                ) from error
            if file == name:  # others are of attempts that wrote at the same time
                parts[index], total = data, chunks
        if total is None or len(parts) != total:
            self._lows.pop(shard, None)
            raise StateLost(
                f"{name} is gone: of its {total or 'unknown'} chunks at offsets {at[0]} to {at[1]} of {self.topic}/{shard}, "
                f"{len(parts)} are there. The topic's retention removed them: set its retention.ms=-1, and give replay= if "
                "messages are kept, so that the job comes back from its changelog and the source"
            )
        make_folder(os.path.dirname(path))
        write_whole(path, [parts[i] for i in range(total)])

    def forget(self, shard: int, below: int) -> None:
        delete_below(self.kafka.admin(), self.topic, shard, below)

    def _reader(self, shard: int) -> PartitionReader:
        return self._readers.setdefault(shard, PartitionReader(self.kafka, self.topic, shard))


def _name(path: str) -> str:
    return "/".join(path.split(os.sep)[-2:])


def encode_chunk(file: str, index: int, chunks: int, data: bytes) -> bytes:
    """Return the value of a record: one chunk of a file."""
    return seal(Kind.CHUNK, msgpack.packb([file, index, chunks, data]))


def _chunks(path: str) -> list[bytes]:
    with open(path, "rb") as file:
        data = file.read()
    starts = range(0, max(len(data), 1), CHUNK_BYTES)
    return [
        encode_chunk(_name(path), i, len(starts), data[first : first + CHUNK_BYTES])
        for i, first in enumerate(starts)
    ]
