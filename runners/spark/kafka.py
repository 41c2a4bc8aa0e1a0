"""`spark.readStream.format("windrow-kafka")` and `spark.read.format("windrow-kafka")`: Kafka without jars.

Columns and options are those of Spark's own connector; pip brings all of it. Offsets are planned in one process on the driver,
which Spark keeps for the query, and read in the workers, straight into Arrow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from windrow.connectors.kafka import offsets as kafka_offsets
from windrow.connectors.kafka.offsets import Extent, Loss, Range, Topic
from windrow.connectors.kafka.options import Bound, SourceOptions, parse
from windrow.connectors.kafka.reading import read
from windrow.connectors.kafka.source import KafkaSource
from windrow.connectors.kafka.source_metadata import Cluster
from windrow.connectors.kafka.start_offsets import begun, job_offsets, resumed
from windrow.connectors.kafka.stream import KafkaStream, refuse_losses
from windrow.core.errors import KafkaFailed, OffsetGap
from windrow.core.logs import get_logger
from windrow.core.positions import topic_source
from windrow.runners import ranges

logger = get_logger()

FORMAT = "windrow-kafka"


class KafkaDataSource(DataSource):
    """Options: those of Spark's Kafka source (docs/howto/kafka.md lists them), and

    resumeFrom: the location of a windrow job. A query without a Spark checkpoint begins where the job stopped
    includeTopicId: "true" (default) adds the column `topicId`, which makes a topic that is made anew another source
    kafka.*: properties of librdkafka
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> T.StructType:
        return columns(parse(dict(self.options)))

    def reader(self, schema: T.StructType) -> DataSourceReader:
        options = parse(dict(self.options))
        options.check_for(streaming=False)
        return KafkaReader(options, schema)

    def streamReader(self, schema: T.StructType) -> DataSourceStreamReader:
        options = parse(dict(self.options))
        options.check_for(streaming=True)
        return KafkaStreamReader(options, schema)


def columns(options: SourceOptions) -> T.StructType:
    """Return Spark's columns, and `topicId`."""
    schema = (
        T.StructType()
        .add("key", T.BinaryType())
        .add("value", T.BinaryType())
        .add("topic", T.StringType())
        .add("partition", T.IntegerType())
        .add("offset", T.LongType())
        .add("timestamp", T.TimestampType())
        .add("timestampType", T.IntegerType())
    )
    if options.headers:
        header = T.StructType().add("key", T.StringType()).add("value", T.BinaryType())
        schema = schema.add("headers", T.ArrayType(header))
    return schema.add("topicId", T.StringType()) if options.topic_id else schema


#: Option of a stream of ranges: all that a batch has come from one task of Spark's, since the shards read them.
TOGETHER = "together"


class KafkaRanges(KafkaDataSource):
    """The windrow-kafka source with one row a range, for tasks that read for themselves."""

    @classmethod
    def name(cls) -> str:
        return f"{FORMAT}-ranges"

    def schema(self) -> T.StructType:
        return from_arrow_schema(ranges.SCHEMA)

    def streamReader(self, schema: T.StructType) -> DataSourceStreamReader:
        raw = dict(self.options)
        together = raw.pop(TOGETHER) == "true"
        options = parse(raw)
        options.check_for(streaming=True)
        return RangesReader(options, schema, together)


def ranges_of(stream: KafkaStream, spark: SparkSession, resume_from: str | None) -> DataFrame:
    """Return a stream of ranges. It begins where the job at `resume_from` stopped; later that option has no effect.

    resume_from: None if the log of the job is no folder, and cannot be read.
    """
    spark.dataSource.register(KafkaRanges)
    reader = (
        spark.readStream.format(KafkaRanges.name())
        .option("kafka.bootstrap.servers", stream.kafka.servers)
        .option("subscribe", ",".join(stream.topics))
        .option("startingOffsets", stream.starting)
        .option("failOnDataLoss", str(stream.fail_on_data_loss).lower())
        .option(TOGETHER, str(stream.keyed).lower())
    )
    if resume_from is not None:
        reader = reader.option("resumeFrom", resume_from)
    for name, value in stream.kafka.config:
        reader = reader.option(f"kafka.{name}", value)
    if stream.max_offsets is not None:
        reader = reader.option("maxOffsetsPerTrigger", stream.max_offsets)
    return reader.load()


def rows_of(frame: DataFrame, stream: KafkaStream) -> DataFrame:
    """Decode the rows of a frame of ranges where they are read, with their positions."""
    schema = from_arrow_schema(ranges.row_schema(stream))
    return frame.mapInArrow(partial(_read_rows, stream), schema)


def _read_rows(stream: KafkaStream, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    target = ranges.row_schema(stream)
    for batch in batches:
        for rows in ranges.of_unnamed_input(stream.read(ranges.from_table(batch))):
            yield from _as(rows, target).to_batches()


def _as(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        rows.column(f.name).cast(f.type) if f.name in rows.column_names else pa.nulls(len(rows), f.type)
        for f in schema
    ]
    return pa.table(columns, schema=schema)


class Piece(InputPartition):
    """A range for one task."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)


def _there(options: SourceOptions, cluster: Cluster, also: Sequence[str] = ()) -> dict[str, Extent]:
    """Return the cluster's extents of the topics that were asked for, and of some more."""
    if options.assigned is not None:
        extents = cluster.extents(sorted(options.assigned), options.assigned)
        for topic, wanted in options.assigned.items():
            lacking = sorted(set(wanted) - set(extents[topic].high)) if topic in extents else []
            if lacking:
                raise KafkaFailed(
                    f"assign names {topic}-{lacking[0]}, the topic has {len(cluster.ids([topic])[topic][1])} partitions: "
                    "take it out, or add partitions to the topic"
                )
        return extents
    names = cluster.topics_like(options.pattern) if options.pattern is not None else options.topics
    return cluster.extents(sorted({*names, *also}))


def _all_there(options: SourceOptions, cluster: Cluster) -> dict[str, Extent]:
    """Return `_there` at the begin of a query: every named topic must exist."""
    extents = _there(options, cluster)
    missing = [t for t in (*options.topics, *(options.assigned or ())) if t not in extents]
    if missing:
        raise KafkaFailed(
            f"topic {missing[0]!r} is not on {options.kafka.servers}: create it, or see whether its name is right"
        )
    return extents


def _readable(options: SourceOptions, extents: Mapping[str, Extent]) -> dict[str, Topic]:
    return kafka_offsets.newest(extents, committed=options.committed)


def _in_arrow(schema: T.StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


class KafkaReader(DataSourceReader):
    """A bounded read. Its ends are fixed when the query is planned."""

    def __init__(self, options: SourceOptions, schema: T.StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options, cluster = self.options, Cluster(self.options.kafka)
        extents = _all_there(options, cluster)
        start = begun(
            options.starting or Bound("earliest"), extents, cluster, "startingOffsets", options.strategy
        )
        losses = kafka_offsets.losses(start, extents)
        kafka_offsets.refuse(losses, options.fail_on_data_loss)
        start = kafka_offsets.beyond_losses(start, extents)
        end = _readable(options, extents)
        if options.ending is not None and options.ending.kind != "latest":
            end = begun(options.ending, extents, cluster, "endingOffsets", "latest")
        wanted = kafka_offsets.ranges(start, end, options.min_partitions)
        return [Piece(r) for r in wanted]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self.options, partition.value, _in_arrow(self.schema))


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Spark keeps one in a process of its own, and sends copies to the tasks."""

    def __init__(self, options: SourceOptions, schema: T.StructType) -> None:
        self.options = options
        self.schema = schema
        self._cluster = Cluster(options.kafka)
        self._target: dict[str, Topic] | None = None
        self._newest: dict[str, Topic] | None = None
        self._taken_at = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "schema": self.schema}  # a connection does not travel

    # -- planning, on the driver ------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        options = self.options
        extents = _all_there(options, self._cluster)
        known: dict[str, Topic] = {}
        if options.resume_from is not None:
            known = resumed(job_offsets(options.resume_from), extents)
            self._refuse(kafka_offsets.losses(known, extents), extents)
        start = begun(
            options.starting or Bound("latest"), extents, self._cluster, "startingOffsets", options.strategy
        )
        for name, topic in known.items():
            if topic.id == start[name].id:
                start[name] = Topic(topic.id, {**start[name].next, **topic.next})
        return kafka_offsets.dump(start)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self.options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.min_offsets is not None:
            return ReadMinRows(options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = _readable(self.options, _there(self.options, self._cluster))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        options = self.options
        before, extents = self._resume_offsets(kafka_offsets.load(start))
        self._newest = _readable(options, extents)
        target = self._newest if self._target is None else self._target
        begin = kafka_offsets.beyond_losses(before, extents)
        if not isinstance(limit, ReadAllAvailable) and self._waits(kafka_offsets.distance(begin, target)):
            return kafka_offsets.dump(begin)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        after = kafka_offsets.advanced(begin, target, extents, most)
        if after != before:
            self._taken_at = time.monotonic()
        return kafka_offsets.dump(after)

    def _waits(self, available: int) -> bool:
        """True if there is too little for a batch, and it has not waited for long."""
        options = self.options
        if options.min_offsets is None or self._target is not None or available >= options.min_offsets:
            return False
        return time.monotonic() - self._taken_at < options.max_delay_s

    def _resume_offsets(self, start: Mapping[str, Topic]) -> tuple[Mapping[str, Topic], dict[str, Extent]]:
        """Return the offsets to resume from, and the cluster's extents. Raises `SourceLost` where records are missing."""
        extents = _there(self.options, self._cluster, also=sorted(start))
        start = self._counted(start, extents)
        self._refuse(kafka_offsets.losses(start, extents), extents)
        return start, extents

    def _counted(self, start: Mapping[str, Topic], extents: Mapping[str, Extent]) -> Mapping[str, Topic]:
        """Return `start`, advanced to the offsets that the job is known to have counted."""
        return start

    def _refuse(self, found: list[Loss], extents: Mapping[str, Extent]) -> None:
        kafka_offsets.refuse(found, self.options.fail_on_data_loss)
        for loss in found:
            logger.warning("data loss", topic=loss.topic, lost=loss.lost, what=loss.text)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._newest is None else kafka_offsets.dump(self._newest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # A batch that a query left behind is planned without latestOffset.
        before, extents = self._resume_offsets(kafka_offsets.load(start))
        begin = kafka_offsets.beyond_losses(before, extents)
        wanted = kafka_offsets.ranges(begin, kafka_offsets.load(end), self.options.min_partitions)
        return [Piece(r) for r in wanted]

    # -- reading, in the workers ------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self.options, partition.value, _in_arrow(self.schema))


class RangesReader(KafkaStreamReader):
    """A stream of ranges. The job counts all of them, so its log knows the offsets of Spark's checkpoint."""

    def __init__(self, options: SourceOptions, schema: T.StructType, together: bool) -> None:
        super().__init__(options, schema)
        self._together = together
        self._compared = False

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_together": self._together}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        each = super().partitions(start, end)
        return [InputPartition([p.value for p in each])] if self._together and each else each

    def _refuse(self, found: list[Loss], extents: Mapping[str, Extent]) -> None:
        refuse_losses(found, extents, self.options.fail_on_data_loss)

    def _counted(self, start: Mapping[str, Topic], extents: Mapping[str, Extent]) -> Mapping[str, Topic]:
        """Advance `start` past records that expired after the job had counted them; an old checkpoint still names them."""
        lost = kafka_offsets.losses(start, extents)
        if self.options.resume_from is None or (self._compared and not lost):
            return start
        known = resumed(job_offsets(self.options.resume_from), extents)
        if not self._compared:
            self._not_ahead(start, known, extents)
            self._compared = True
        return kafka_offsets.further(start, known) if lost else start

    def _not_ahead(
        self, start: Mapping[str, Topic], known: Mapping[str, Topic], extents: Mapping[str, Extent]
    ) -> None:
        """Raise `OffsetGap` where Spark's checkpoint is past records that the job has not counted."""
        source = KafkaSource(self.options.kafka)
        for name, topic in sorted(start.items()):
            if name not in extents or extents[name].id != topic.id:
                continue
            counted = known[name].next if name in known and known[name].id == topic.id else {}
            for partition, offset in sorted(topic.next.items()):
                low = extents[name].low.get(partition, offset)
                if partition not in counted and self.options.starting != Bound("earliest"):
                    continue  # its first offset is recorded nowhere
                begin = max(low, counted.get(partition, low))
                at = (topic_source(name, topic.id), partition)
                if begin < offset and not source.is_empty(at, begin, offset):
                    raise OffsetGap(
                        f"Spark's checkpoint has {name}-{partition} up to {offset}, the log of the job has it up to "
                        f"{counted.get(partition, 'nowhere')}: the records between would never be counted. Restore the newest "
                        f"log folder of {self.options.resume_from}; or delete Spark's checkpoint, the folder spark beside "
                        "it: the query then begins where the job stopped"
                    )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield ranges.to_batch(partition.value if self._together else [partition.value])
