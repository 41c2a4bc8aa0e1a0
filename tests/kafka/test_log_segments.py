"""Files in a topic: in chunks, among those of other attempts, found by their offsets, or said to be gone."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import windrow as wr
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.shard import Shard, ShardSpec
from windrow.connectors.kafka import segments
from windrow.connectors.kafka.segments import SegmentTopic, encode_chunk
from windrow.connectors.kafka.topics import delete_below
from windrow.core import errors as e
from windrow.stores.kv import Batch, MemoryKV


@pytest.fixture
def topic(kafka: wr.Kafka, new_topic: Callable[..., str]) -> SegmentTopic:
    return SegmentTopic(kafka, new_topic(2))


def put(topic: SegmentTopic, *values: bytes) -> None:
    producer = topic.kafka.producer()
    for value in values:
        producer.produce(topic.topic, value, partition=1)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 35])
def test_a_file_comes_back_byte_for_byte(
    topic: SegmentTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(segments, "CHUNK_BYTES", 10)
    path = tmp_path / "segments" / "a.seg"
    path.parent.mkdir()
    path.write_bytes(bytes(range(size)))
    kept = topic.keep(1, {"segment": str(path)})
    assert kept == {"segment": (0, max(0, (size - 1) // 10))}
    path.unlink()
    topic.fetch(1, kept["segment"], str(path))
    assert path.read_bytes() == bytes(range(size))


def test_chunks_of_other_attempts_lie_in_between(topic: SegmentTopic, tmp_path: Path) -> None:
    put(
        topic,
        encode_chunk("segments/a.seg", 0, 2, b"one "),
        encode_chunk("segments/b.seg", 0, 3, b"not "),
        encode_chunk("segments/a.seg", 1, 2, b"two"),
    )
    topic.fetch(1, (0, 2), str(tmp_path / "segments" / "a.seg"))
    assert (tmp_path / "segments" / "a.seg").read_bytes() == b"one two"


def test_a_file_of_which_a_chunk_is_gone_is_lost(topic: SegmentTopic, tmp_path: Path) -> None:
    put(topic, *[encode_chunk("segments/a.seg", i, 2, b"x") for i in range(2)])
    assert topic.has(1, (0, 1))
    delete_below(topic.kafka.admin(), topic.topic, 1, 1)
    with pytest.raises(
        e.StateLost, match=r"of its 2 chunks at offsets 0 to 1 .* 1 are there.* set its retention\.ms"
    ):
        topic.fetch(1, (0, 1), str(tmp_path / "segments" / "a.seg"))
    assert not topic.has(1, (0, 1))
    assert not (tmp_path / "segments" / "a.seg").exists()


def test_a_damaged_chunk_is_refused(topic: SegmentTopic, tmp_path: Path) -> None:
    chunk = bytearray(encode_chunk("segments/a.seg", 0, 1, b"hay"))
    chunk[-1] ^= 1
    put(topic, bytes(chunk))
    with pytest.raises(e.CorruptState, match=r"at offset 0: a chunk is damaged"):
        topic.fetch(1, (0, 0), str(tmp_path / "segments" / "a.seg"))


def test_a_deleted_range_is_copied_to_the_changelog_key_by_key(kafka: wr.Kafka, tmp_path: Path) -> None:
    log, folders = wr.kafka_log(kafka, f"t-{uuid.uuid4().hex[:12]}"), JobFolders(str(tmp_path))
    log.prepare(folders, "job-1", 1)
    shard = Shard.open(ShardSpec(folders, "job-1", 0, ("w",), transport=log), 0, lambda: iter(()))
    first, second = Batch(), Batch()
    first.put_many("w", [b"a", b"b", b"c", b"d"], [b"1"] * 4)
    second.delete_range("w", b"a", b"d")
    second.put("w", b"b", b"2")
    shard.apply(1, first)
    shard.apply(2, second)
    kept = dict(shard.kv.scan("w"))
    shard.close()
    store = MemoryKV(["w"])
    assert log.restore("job-1", 0, store.write) == 2
    assert dict(store.scan("w")) == kept == {b"b": b"2", b"d": b"1"}
