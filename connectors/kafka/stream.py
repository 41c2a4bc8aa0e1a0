"""Topics as a stream that windrow reads and decodes itself, in a consumer loop or in the tasks of a Spark job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.checkpoint.replay import REMEDY
from windrow.connectors.decoders import AvroDecoder, Decoder, FunctionDecoder, JsonDecoder, ProtobufDecoder
from windrow.connectors.kafka.cluster import Kafka, as_kafka
from windrow.connectors.kafka.offsets import Extent, Extents, Loss, Range, Topic, beyond_losses, losses
from windrow.connectors.kafka.options import Bound, SourceOptions
from windrow.connectors.kafka.reading import Fetched, cluster_of, fetch
from windrow.connectors.kafka.source_metadata import Cluster
from windrow.connectors.kafka.start_offsets import begun, resumed
from windrow.core.errors import ConfigurationError, KafkaFailed, SourceLost, StateLost
from windrow.core.logs import get_logger
from windrow.core.positions import Partition, shown_source, topic_of, topic_source
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE

logger = get_logger()

#: Attributes of a record other than its value, by the names that `columns` takes, and their types.
ATTRIBUTES: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
}


#: Decoders with columns of times.
_IN_ZONES = (AvroDecoder, FunctionDecoder, JsonDecoder, ProtobufDecoder)


@dataclass(frozen=True)
class KafkaStream:
    """See `wr.sources.kafka`. A value; picklable, it travels to the tasks."""

    kafka: Kafka
    topics: tuple[str, ...]
    value: Decoder
    columns: tuple[tuple[str, str], ...] = ()
    keyed: bool = False
    starting: str = "earliest"
    max_offsets: int | None = None
    fail_on_data_loss: bool = True

    def __repr__(self) -> str:
        topics = self.topics[0] if len(self.topics) == 1 else list(self.topics)
        more = "".join(
            f", {name}={value!r}"
            for name, value, default in (
                ("columns", dict(self.columns), {}),
                ("keyed", self.keyed, False),
                ("starting", self.starting, "earliest"),
                ("max_offsets", self.max_offsets, None),
                ("fail_on_data_loss", self.fail_on_data_loss, True),
            )
            if value != default
        )
        return f"wr.sources.kafka({self.kafka!r}, {topics!r}, value={self.value!r}{more})"

    @property
    def options(self) -> SourceOptions:
        """As the Spark source has them."""
        return SourceOptions(
            self.kafka,
            self.topics,
            starting=Bound(self.starting),  # type: ignore[arg-type]
            max_offsets=self.max_offsets,
            fail_on_data_loss=self.fail_on_data_loss,
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows. Raises `ConfigurationError` where the decoder learns them from the records."""
        values: pa.Schema | None = getattr(self.value, "schema", None)
        if values is None:
            raise ConfigurationError(
                f"{self.value!r} learns its columns from the records, and Spark asks for them first: give it schema=..."
            )
        return pa.schema([*values, *(pa.field(name, ATTRIBUTES[what]) for name, what in self.columns)])

    def in_zone(self, time_zone: str | None) -> KafkaStream:
        """Give the stream of an input whose times without a zone are in this one."""
        if time_zone is None or not isinstance(self.value, _IN_ZONES):
            return self
        return replace(self, value=replace(self.value, time_zone=time_zone))

    # -- where it begins ------------------------------------------------------------------------------------------------

    def extents(self, cluster: Cluster, known: Mapping[Partition, int]) -> dict[str, Extent]:
        """Return the topics' bounds. Raises `SourceLost` where one that was read is gone, `KafkaFailed` where one never was."""
        found = cluster.extents(self.topics)
        missing = [t for t in self.topics if t not in found]
        if missing:
            read = {f"{s}-{p}": o for (s, p), o in known.items() if topic_of(s)[0] == missing[0]}
            if read:
                raise SourceLost(
                    f"topic {missing[0]!r} was read up to {read} and is deleted: begin without it at another location, or "
                    "make it again, which makes it another source"
                )
            raise KafkaFailed(
                f"topic {missing[0]!r} is not on {self.kafka.servers}: create it, or see whether its name is right"
            )
        return found

    def begin(self, next_offsets: Mapping[Partition, int], cluster: Cluster) -> dict[str, Topic]:
        """Return where a job at `next_offsets` continues. Raises `SourceLost` where those offsets are no longer there."""
        extents = self.extents(cluster, next_offsets)
        start = begun(Bound(self.starting), extents, cluster, "starting")  # type: ignore[arg-type]
        known = resumed(next_offsets, extents)
        refuse_losses(losses(known, extents), extents, self.fail_on_data_loss)
        for name, topic in beyond_losses(known, extents).items():
            if topic.id == start[name].id:
                start[name] = Topic(topic.id, {**start[name].next, **topic.next})
        return start

    # -- rows -----------------------------------------------------------------------------------------------------------

    @property
    def attributes(self) -> frozenset[str]:
        """Return the attributes of a record that become part of a row."""
        return frozenset({"value"} | {what for _, what in self.columns})

    def rows(self, fetched: Fetched, topic: str, topic_id: str, partition: int) -> pa.Table:
        """Records of one partition as rows, with their positions."""
        n = len(fetched)
        table = self.value.decode(fetched["value"], topic)
        offsets = pa.array(fetched.offsets, pa.int64())
        for name, what in self.columns:
            table = table.append_column(name, _attribute(what, fetched, topic, partition, offsets))
        source = pa.repeat(pa.scalar(topic_source(topic, topic_id)), n)
        return (
            table.append_column(SOURCE, source)
            .append_column(PARTITION, pa.array(np.full(n, partition, dtype=np.int64)))
            .append_column(OFFSET, offsets)
            .append_column(ORDINAL, pa.array(np.zeros(n, dtype=np.int64)))
        )

    def read(self, ranges: Sequence[Range]) -> Iterator[pa.Table]:
        """Yield the rows of ranges of offsets, one after the other."""
        for wanted, fetched in fetch(self.options, ranges, self.attributes):
            yield self.rows(fetched, wanted.topic, wanted.id, wanted.partition)

    # -- rows that were counted, again ----------------------------------------------------------------------------------

    def ranges_again(self, ranges: Mapping[Partition, tuple[int, int]]) -> list[Range]:
        """Ranges that a job has counted, as the cluster has them. Raises `StateLost` where it no longer has them all."""
        extents = cluster_of(self.kafka).extents(sorted({topic_of(source)[0] for source, _ in ranges}))
        found, missing = [], []
        for (source, partition), (first, following) in sorted(ranges.items()):
            topic, topic_id = topic_of(source)
            has = _holds(extents.get(topic), topic_id, partition, first, following)
            if topic_id is None or has is not None:
                missing.append(
                    f"[{first}, {following}) of {shown_source(source)!r}/{partition} is needed, {has}"
                )
            else:
                found.append(Range(topic, topic_id, partition, first, following))
        if missing:
            more = f" and {len(missing) - 5} ranges more" if len(missing) > 5 else ""
            raise StateLost(
                f"messages are lost, and the topic no longer has them all: {'; '.join(missing[:5])}{more}. Going on without "
                "them would give windows that counted them wrong values, so that fail_on_data_loss=False does not help. "
                f"{REMEDY[0].upper()}{REMEDY[1:]}, which counts what the topic has, and emits its windows again"
            )
        return found

    def again(self, ranges: Mapping[Partition, tuple[int, int]]) -> pa.Table:
        """Read the counted rows of some ranges again: `replay=` of a job that reads this stream. Raises `StateLost`."""
        whole = replace(self, fail_on_data_loss=True)
        tables = list(whole.read(self.ranges_again(ranges)))
        return pa.concat_tables(tables or [_POSITIONS.empty_table()], promote_options="permissive")


def refuse_losses(found: Sequence[Loss], extents: Extents, fail: bool) -> None:
    """Raise `SourceLost` for a loss that is not allowed, with the options of a stream; log allowed ones."""
    for loss in found:
        if loss.lost is not None and not fail:
            logger.warning("data loss", topic=loss.topic, lost=loss.lost, what=loss.text)
            continue
        if loss.lost is None:
            remedy = loss.remedy
        elif loss.topic not in extents:
            remedy = "begin without it at another location, or make it again, which makes it another source"
        elif loss.lost:
            remedy = f"{loss.remedy}; or go on without them with fail_on_data_loss=False"
        else:
            remedy = "read it from its beginning, as another source, with fail_on_data_loss=False; or begin at another location"
        raise SourceLost(f"{loss.text}. {remedy[0].upper()}{remedy[1:]}")


#: An empty table of it is made where it is needed: the first of all tables brings pandas.
_POSITIONS = pa.schema(
    [(SOURCE, pa.string()), (PARTITION, pa.int64()), (OFFSET, pa.int64()), (ORDINAL, pa.int64())]
)


def _holds(
    extent: Extent | None, topic_id: str | None, partition: int, first: int, following: int
) -> str | None:
    """Return what the cluster has instead of `[first, following)` of a partition; None if it has that range."""
    if topic_id is None:
        return "and without the topic's id nobody knows whether it is still that one: open the job with replay= once"
    if extent is None:
        return "the topic is deleted"
    if extent.id != topic_id:
        return f"the topic was deleted and made anew under the id {extent.id}"
    if partition not in extent.high:
        return f"the topic has partitions {sorted(extent.high)}"
    low, high = extent.low[partition], extent.high[partition]
    return None if low <= first and following <= high else f"the broker has [{low}, {high})"


def _attribute(what: str, fetched: Fetched, topic: str, partition: int, offsets: pa.Array) -> Any:
    kind, n = ATTRIBUTES[what], len(fetched)
    match what:
        case "key":
            return pa.array(fetched["key"], kind)
        case "timestamp":
            return pa.array([ms * 1000 for _, ms in fetched["timestamp"]], pa.int64()).cast(kind)
        case "topic":
            return pa.repeat(pa.scalar(topic, kind), n)
        case "partition":
            return pa.repeat(pa.scalar(partition, kind), n)
        case _:
            return offsets


def kafka_stream(
    kafka: Kafka | str,
    topics: str | Sequence[str],
    *,
    value: Decoder,
    columns: Mapping[str, str] | None = None,
    keyed: bool = False,
    starting: str = "earliest",
    max_offsets: int | None = None,
    fail_on_data_loss: bool = True,
) -> KafkaStream:
    """Read topics without Spark's source: `op.run(source)` embedded, `delays.writeStream(source)` on Spark, without jars.

    Offsets are those of the job's own log: what a commit counted is never read again, and nothing is left out. Committed
    records only. A topic that was deleted and recreated is another source.

    kafka: `wr.Kafka`, or its servers. topics: one or several. value: how a record's value becomes a row (`wr.decoders`).
    columns: what else of a record becomes a column, {column: "key" | "timestamp" | "topic" | "partition" | "offset"}.
    keyed: all records with equal keys of the operator lie in one partition (the topic is written with that key), so that on
    Spark a shard reads its partitions alone, without a shuffle; the number of partitions is then fixed.
    starting: "earliest" or "latest", where the job has not been. max_offsets: at most so many offsets in one commit.
    fail_on_data_loss: False continues, and logs it, where records expired unread, and reads a topic that was recreated.
    """
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names or not all(names):
        raise ConfigurationError(f"topics {topics!r}: name one or more")
    if isinstance(value, (type, bytes)) or not callable(getattr(value, "decode", None)):
        raise ConfigurationError(
            f"value={value!r} is no decoder: use one of wr.decoders, such as wr.decoders.json({{'delay': pa.int64()}})"
        )
    if starting not in ("earliest", "latest"):
        raise ConfigurationError(f"starting {starting!r} is neither 'earliest' nor 'latest'")
    if max_offsets is not None and max_offsets < 1:
        raise ConfigurationError(
            f"max_offsets {max_offsets}: give a number above 0, or None for all there is"
        )
    for name, what in (columns or {}).items():
        if what not in ATTRIBUTES:
            raise ConfigurationError(
                f"column {name!r} is to be {what!r}, which is none of {sorted(ATTRIBUTES)}"
            )
    return KafkaStream(
        as_kafka(kafka),
        names,
        value,
        tuple((columns or {}).items()),
        keyed,
        starting,
        max_offsets,
        fail_on_data_loss,
    )
