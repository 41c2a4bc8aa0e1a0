"""A job's log, segments and changelog in Kafka: `wr.kafka_log`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.log import RecordLog
from windrow.checkpoint.transport import At, Transport
from windrow.connectors.kafka.changelog import ShardChangelog
from windrow.connectors.kafka.cluster import Kafka, as_kafka
from windrow.connectors.kafka.records import KafkaRecords
from windrow.connectors.kafka.segments import SegmentTopic
from windrow.connectors.kafka.topics import MAX_RECORD_BYTES, ensure_topic
from windrow.core.errors import ConfigurationError
from windrow.stores.kv import Batch


def kafka_log(kafka: Kafka | str, name: str) -> KafkaLog:
    """Keep a job's log, segments and changelog in Kafka: for `log=` of `open`, `run`, `foreach_batch` and `read_state`.

    kafka: `wr.Kafka(...)`, or its servers
    name: of the job. The topics are `<name>-log`, `<name>-segments` and `<name>-changelog`, made where they are not there, the
        latter two with a partition for each shard. One name is one job

    The job's location is then a cache of each machine: deleted, it comes back. Raises `ConfigurationError` (WR100), when it is
    used `KafkaFailed` (WR601).

    >>> kafka_log("localhost:9092", "delays")
    wr.kafka_log(wr.Kafka('localhost:9092'), 'delays')
    """
    if not name or not isinstance(name, str):
        raise ConfigurationError(f"name {name!r} of a log: give the beginning of its topics' names")
    return KafkaLog(as_kafka(kafka), name)


@dataclass(frozen=True)
class KafkaLog(Transport):
    """Transport over three topics. A value: it is compared, pickled, and connects where it is used."""

    kafka: Kafka
    name: str

    def __repr__(self) -> str:
        return f"wr.kafka_log({self.kafka!r}, {self.name!r})"

    def log(self, folders: JobFolders) -> RecordLog:
        return RecordLog(KafkaRecords(self.kafka, f"{self.name}-log"))

    def prepare(self, folders: JobFolders, job: str, shards: int) -> None:
        large = {"max.message.bytes": str(MAX_RECORD_BYTES)}
        kept = {"retention.ms": "-1", "retention.bytes": "-1"}
        plain, compacted = {"cleanup.policy": "delete"}, {"cleanup.policy": "compact"}
        ensure_topic(self.kafka, f"{self.name}-segments", shards, kept, must=plain)
        ensure_topic(self.kafka, f"{self.name}-changelog", shards, large, must=compacted)
        super().prepare(folders, job, shards)

    def keep(self, shard: int, files: Mapping[str, str]) -> Mapping[str, At]:
        if not files:
            return {}
        with _LOCK:
            return _segments(self).keep(shard, files)

    def has(self, shard: int, at: At) -> bool:
        with _LOCK:
            return _segments(self).has(shard, at)

    def fetch(self, shard: int, at: At, path: str) -> None:
        with _LOCK:
            _segments(self).fetch(shard, at, path)

    def forget(self, shard: int, below: int) -> None:
        with _LOCK:
            _segments(self).forget(shard, below)

    def copied(self, job: str, shard: int) -> int:
        with _LOCK:
            return _changelog(self, shard).copied(job)

    def copy(self, job: str, shard: int, commit: int, changes: Callable[[], Batch]) -> None:
        with _LOCK:
            _changelog(self, shard).copy(job, commit, changes)

    def restore(self, job: str, shard: int, write: Callable[[Batch], None]) -> int:
        with _LOCK:
            return _changelog(self, shard).restore(job, write)


# Connections of this process, by log: tasks of many commits share them. A forked process makes its own.
_LOCK = threading.RLock()
_SEGMENTS: dict[tuple[int, KafkaLog], SegmentTopic] = {}
_CHANGELOGS: dict[tuple[int, KafkaLog, int], ShardChangelog] = {}


def _segments(log: KafkaLog) -> SegmentTopic:
    key = os.getpid(), log
    if key not in _SEGMENTS:
        _SEGMENTS[key] = SegmentTopic(log.kafka, f"{log.name}-segments")
    return _SEGMENTS[key]


def _changelog(log: KafkaLog, shard: int) -> ShardChangelog:
    key = os.getpid(), log, shard
    if key not in _CHANGELOGS:
        _CHANGELOGS[key] = ShardChangelog(log.kafka, f"{log.name}-changelog", shard)
    return _CHANGELOGS[key]
