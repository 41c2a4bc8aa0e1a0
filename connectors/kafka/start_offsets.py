"""Start offsets of a reader: those that were requested, or those where a windrow job stopped, by its log."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping

from windrow.checkpoint import job_admin
from windrow.connectors.kafka.cluster import Kafka, as_kafka
from windrow.connectors.kafka.offsets import Extents, Topic, losses, refuse
from windrow.connectors.kafka.options import EARLIEST, LATEST, Bound
from windrow.connectors.kafka.source_metadata import Cluster
from windrow.core.errors import ConfigurationError, SourceLost
from windrow.core.location import local_path
from windrow.core.logs import get_logger
from windrow.core.positions import Partition, topic_of
from windrow.stores.files import sync_directory

logger = get_logger()


def kafka_offsets(location: str, kafka: Kafka | str, topics: str | Collection[str]) -> str:
    """Return where a job stopped, as JSON for `startingOffsets` of either Kafka source of Spark.

    location: the job's. kafka: `wr.Kafka(...)`, or its servers. topics: a name or several

    It names every partition that the topics have now, as Spark wants; those that the job never saw begin at the earliest
    offset. Raises `SourceLost` (WR304) where a topic is gone, was recreated, or no longer holds what the job has not read.

    `stream.option("startingOffsets", wr.kafka_offsets("ckpt/delays", "localhost:9092", "flights"))` begins where it stopped.
    """
    names = [topics] if isinstance(topics, str) else sorted(topics)
    extents = Cluster(as_kafka(kafka)).extents(names)
    missing = [name for name in names if name not in extents]
    if missing:
        raise SourceLost(
            f"topic {missing[0]!r} is not on {as_kafka(kafka).servers}: see whether its name is right"
        )
    known = resumed(job_offsets(location), extents)
    refuse(losses(known, extents), fail=True)
    return json.dumps(
        {
            name: {
                str(p): known[name].next.get(p, EARLIEST) if name in known else EARLIEST
                for p in sorted(extents[name].high)
            }
            for name in names
        }
    )


def job_offsets(location: str) -> dict[Partition, int]:
    """Return the next offsets of a job's last commit; none where no job has begun at the location yet.

    location: where the job was opened, or the checkpointLocation of one begun with writeStream.
    """
    path = local_path(location)
    inner = os.path.join(path, "windrow")
    if not os.path.isdir(os.path.join(path, "log")) and os.path.isdir(os.path.join(inner, "log")):
        path = inner
    log = os.path.join(path, "log")
    if not os.path.isdir(log) or not os.listdir(log):
        logger.info("no job has begun here yet: nothing to resume from", location=path)
        return {}
    last = job_admin.look(path).last_commit
    # The caller must not know more than the log has after a power cut: its writer may not have synced it yet.
    sync_directory(log)
    return {} if last is None else dict(last.next_offsets)


def resumed(next_offsets: Mapping[Partition, int], extents: Extents) -> dict[str, Topic]:
    """Return the offsets that a job has read of topics, by their names.

    A topic is read under its present id, or without one where the frame had none. If only other ids were read, the last of them
    is returned: the topic was recreated.
    """
    found: dict[str, dict[str | None, dict[int, int]]] = {}
    for (source, partition), offset in sorted(next_offsets.items()):
        topic, topic_id = topic_of(source)
        if topic not in extents:
            continue
        parts = found.setdefault(topic, {}).setdefault(topic_id, {})
        # A join that reads one topic twice continues where the slower side stopped; the faster one drops what it has.
        parts[partition] = min(offset, parts.get(partition, offset))
    known = {}
    for topic, by_id in found.items():
        present = extents[topic].id
        if present in by_id or None in by_id:
            known[topic] = Topic(present, {**by_id.get(None, {}), **by_id.get(present, {})})
        else:
            last_id, parts = list(by_id.items())[-1]
            known[topic] = Topic(str(last_id), parts)
    return known


def begun(
    bound: Bound, extents: Extents, cluster: Cluster, option: str, strategy: str = "error"
) -> dict[str, Topic]:
    """Return the offsets of `bound` in all partitions of `extents`. Raises `ConfigurationError` where it names too few."""
    if bound.kind in ("timestamp", "timestamps"):
        return _at_times(bound, extents, cluster, option, strategy)
    begins = {}
    for name, extent in extents.items():
        ends = extent.stable
        if bound.kind == "offsets":
            assert isinstance(bound.value, Mapping)
            said = bound.value.get(name, {})
            _all_named(said, extent.high, name, option)
            special: dict[int, Mapping[int, int]] = {EARLIEST: extent.low, LATEST: ends}
            begins[name] = Topic(
                extent.id, {p: special[o][p] if (o := said[p]) in special else o for p in extent.high}
            )
        else:
            begins[name] = Topic(extent.id, dict(extent.low if bound.kind == "earliest" else ends))
    return begins


def _all_named(said: Collection[int], there: Collection[int], name: str, option: str) -> None:
    if set(said) != set(there):
        raise ConfigurationError(
            f"{option} names partitions {sorted(said)} of {name!r}, which has {sorted(there)}: name every one, -2 for the "
            "earliest, -1 for the latest offset"
        )


def _at_times(
    bound: Bound, extents: Extents, cluster: Cluster, option: str, strategy: str
) -> dict[str, Topic]:
    wanted: dict[tuple[str, int], int] = {}
    for name, extent in extents.items():
        if isinstance(bound.value, Mapping):
            said = bound.value.get(name, {})
            if set(said) != set(extent.high):
                raise ConfigurationError(
                    f"{option}ByTimestamp names partitions {sorted(said)} of {name!r}, which has {sorted(extent.high)}: name "
                    "every one"
                )
            wanted |= {(name, p): said[p] for p in extent.high}
        else:
            assert isinstance(bound.value, int)
            wanted |= {(name, p): bound.value for p in extent.high}
    found = cluster.at_times(wanted)
    none = sorted(tp for tp, offset in found.items() if offset is None)
    if none and strategy == "error":
        topic, partition = none[0]
        raise ConfigurationError(
            f"{topic}-{partition} has no record at or after {wanted[none[0]]} ms: begin earlier, or set "
            "startingOffsetsByTimestampStrategy to 'latest'"
        )
    offsets: dict[str, Topic] = {}
    for name, extent in extents.items():
        parts = {p: extent.stable[p] if (o := found[name, p]) is None else o for p in extent.high}
        offsets[name] = Topic(extent.id, parts)
    return offsets
