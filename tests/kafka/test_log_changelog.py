"""The compacted changelog: whole commits, in order, each once, whoever applies them; and what the broker's cleaner leaves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import windrow as wr
from windrow.connectors.kafka.changelog import MARKER, ShardChangelog
from windrow.core import errors as e
from windrow.stores.kv import Batch, MemoryKV

JOB = "job-1"


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    return new_topic(
        2,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        delete_retention_ms="0",
    )


def changed(puts: dict[str, str], deletes: tuple[str, ...] = ()) -> Callable[[], Batch]:
    batch = Batch()
    for key, value in puts.items():
        batch.put("w", key.encode(), value.encode())
    batch.delete_many("w", [key.encode() for key in deletes])
    return lambda: batch


def restored(changelog: ShardChangelog) -> tuple[int, dict[str, str]]:
    kv = MemoryKV(["w"])
    commit = changelog.restore(JOB, kv.write)
    return commit, {k.decode(): v.decode() for k, v in kv.scan("w")}


def records(changelog: ShardChangelog) -> int:
    return sum(1 for _ in changelog._reader.read(*changelog._reader.bounds()))


def never() -> Batch:
    raise AssertionError("what is there is not asked for again")


def test_what_commits_changed_is_restored_as_of_the_last(kafka: wr.Kafka, topic: str) -> None:
    changelog = ShardChangelog(kafka, topic, 1)
    assert (changelog.copied(JOB), restored(changelog)) == (0, (0, {}))
    changelog.copy(JOB, 1, changed({"a": "1", "b": "1"}))
    changelog.copy(JOB, 2, changed({}))
    changelog.copy(JOB, 3, changed({"a": "3"}, ("b",)))
    reader = ShardChangelog(kafka, topic, 1)
    assert (reader.copied(JOB), restored(reader)) == (3, (3, {"a": "3"}))
    assert ShardChangelog(kafka, topic, 0).copied(JOB) == 0


def test_a_commit_is_copied_once_whoever_applies_it(kafka: wr.Kafka, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)  # in which the cleaner leaves what there is to count
    first, second = ShardChangelog(kafka, topic, 0), ShardChangelog(kafka, topic, 0)
    first.copy(JOB, 1, changed({"a": "1"}))
    second.copy(JOB, 1, never)
    second.copy(JOB, 2, changed({"a": "2"}))
    second.copy(JOB, 3, changed({"a": "3"}))
    first.copy(JOB, 2, changed({"a": "2"}))  # an older applier, which believes that it holds the claim
    assert restored(first) == (3, {"a": "3"})
    first.copy(JOB, 4, changed({"a": "4"}))
    second.copy(JOB, 4, changed({"a": "4"}))
    second.copy(JOB, 5, changed({"a": "5"}))
    assert restored(first) == (5, {"a": "5"})
    assert records(first) == 2 * 5


def test_an_applier_that_left_out_commits_of_others_continues_after_theirs(
    kafka: wr.Kafka, topic: str
) -> None:
    first, second = ShardChangelog(kafka, topic, 0), ShardChangelog(kafka, topic, 0)
    first.copy(JOB, 1, changed({"a": "1"}))
    second.copy(JOB, 2, changed({"a": "2"}))
    second.copy(JOB, 3, changed({"a": "3"}))
    first.copy(JOB, 4, changed({"b": "4"}))
    assert restored(second) == (4, {"a": "3", "b": "4"})


def test_half_of_a_commit_is_not_there(kafka: wr.Kafka, topic: str) -> None:
    first, second = ShardChangelog(kafka, topic, 0), ShardChangelog(kafka, topic, 0)
    first.copy(JOB, 1, changed({"a": "1"}))
    begin(first, "a", "2")
    assert (second.copied(JOB), restored(second)) == (1, (1, {"a": "1"}))
    second.copy(JOB, 2, changed({"b": "2"}))
    assert restored(second) == (2, {"a": "1", "b": "2"})


def begin(changelog: ShardChangelog, key: str, value: str) -> None:
    """A transaction that is never ended."""
    assert changelog._claim is not None
    producer = changelog._claim._producer
    producer.begin_transaction()
    producer.produce(changelog.topic, value.encode(), key=b"\x01w" + key.encode(), partition=changelog.shard)
    producer.flush()


def test_the_cleaner_never_takes_a_committed_value(kafka: wr.Kafka, topic: str) -> None:
    changelog = ShardChangelog(kafka, topic, 0)
    changelog.copy(JOB, 1, changed({"kept": "1", "often": "1", "gone": "1"}))
    for number in range(2, 30):
        if number == 10:
            # Newer than every committed value of its keys, and never committed.
            begin(changelog, "kept", "uncommitted")
            begin_again = ShardChangelog(kafka, topic, 0)
            begin_again.copy(JOB, number, changed({"often": str(number)}, ("gone",)))
            changelog = begin_again
            continue
        changelog.copy(JOB, number, changed({"often": str(number), f"n{number}": "x"}, (f"n{number - 1}",)))
    begin(changelog, "often", "uncommitted")
    changelog = ShardChangelog(kafka, topic, 0)
    changelog.copy(JOB, 30, changed({}, ("n29",)))
    assert restored(changelog) == (30, {"kept": "1", "often": "29", "n9": "x"})
    written, number = changelog._reader.bounds(), 30
    before = sum(1 for _ in changelog._reader.read(*written))
    # The cleaner takes closed segments only: records go on coming.
    while sum(1 for _ in changelog._reader.read(*written)) > before // 2:
        number += 1
        changelog.copy(JOB, number, changed({}))
        changelog._reader._open().poll(1.0)
    reader = ShardChangelog(kafka, topic, 0)
    assert restored(reader) == (number, {"kept": "1", "often": "29", "n9": "x"})
    assert reader.copied(JOB) == number


def test_a_topic_that_lost_commits_is_refused(kafka: wr.Kafka, topic: str) -> None:
    changelog = ShardChangelog(kafka, topic, 0)
    changelog.copy(JOB, 1, changed({"a": "1"}))
    with pytest.raises(e.StateLost, match="up to commit 1, and the store of shard 0 holds commit 2"):
        changelog.copy(JOB, 3, never)


def test_the_changelog_of_another_job_or_release_is_refused(kafka: wr.Kafka, topic: str) -> None:
    changelog = ShardChangelog(kafka, topic, 0)
    changelog.copy(JOB, 1, changed({"a": "1"}))
    with pytest.raises(e.JobMismatch, match="holds shard 0 of job-1, and the log holds job-2"):
        changelog.copied("job-2")
    assert changelog._claim is not None
    written = changelog._claim.write(topic, 0, [(MARKER, b"\x94\x02\xa5job-1\x00\x02")])
    changelog._reader.wait_for(written[-1])  # readers see a transaction a moment after it is answered
    with pytest.raises(e.NewerFormat, match="of version 2"):
        changelog.copied(JOB)
    written = changelog._claim.write(topic, 0, [(MARKER, b"\xc1")])
    changelog._reader.wait_for(written[-1])
    with pytest.raises(e.CorruptState, match="marker"):
        changelog.copied(JOB)
