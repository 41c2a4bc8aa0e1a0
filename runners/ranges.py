"""Ranges of offsets as rows, and reading of their records in a task. It imports no pyspark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.connectors.kafka.offsets import Range
from windrow.connectors.kafka.stream import KafkaStream
from windrow.core.errors import SourceLost
from windrow.core.inputs import UNNAMED
from windrow.core.positions import Partition, topic_source
from windrow.operators.steps.columns import MALFORMED_ROW, OFFSET, ORDINAL, PARTITION, RAW, SOURCE

TOPIC, ID, NUMBER, START, END = "topic", "topicId", "partition", "start", "end"
SCHEMA = pa.schema(
    [(TOPIC, pa.string()), (ID, pa.string()), (NUMBER, pa.int32()), (START, pa.int64()), (END, pa.int64())]
)
_POSITIONS = pa.schema(
    [(SOURCE, pa.string()), (PARTITION, pa.int64()), (OFFSET, pa.int64()), (ORDINAL, pa.int64())]
)


def to_batch(ranges: list[Range]) -> pa.RecordBatch:
    """Convert ranges to rows."""
    columns = [[getattr(r, name) for r in ranges] for name in ("topic", "id", "partition", "start", "end")]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def from_table(table: pa.Table | pa.RecordBatch) -> list[Range]:
    """Convert rows to ranges."""
    rows = table.select(SCHEMA.names).to_pylist()
    return [Range(r[TOPIC], r[ID], r[NUMBER], r[START], r[END]) for r in rows]


def partition_of(wanted: Range) -> Partition:
    """Return the partition of a range, of the unnamed input."""
    return f"{UNNAMED}:{topic_source(wanted.topic, wanted.id)}", wanted.partition


def row_schema(stream: KafkaStream) -> pa.Schema:
    """Return the columns of a stream's rows, of their positions, and of those that could not be read."""
    return pa.schema([*stream.schema, *_POSITIONS, (MALFORMED_ROW, pa.string()), (RAW, pa.string())])


def read_rows(
    stream: KafkaStream, ranges: list[Range], taken: Mapping[Partition, int]
) -> tuple[Iterator[pa.Table], dict[str, int]]:
    """Return the rows of ranges without those below the `taken` offsets, and how many were left out."""
    left: list[Range] = []
    replayed = 0
    for wanted in sorted(ranges, key=lambda r: (r.topic, r.id, r.partition, r.start)):
        begin = min(max(wanted.start, taken.get(partition_of(wanted), 0)), wanted.end)
        replayed += begin - wanted.start
        if begin < wanted.end:
            left.append(replace(wanted, start=begin))
    return _read(stream, left), {"replayed": replayed}


def _read(stream: KafkaStream, ranges: list[Range]) -> Iterator[pa.Table]:
    """Yield the rows; without rows, one table with all columns."""
    empty: Any = row_schema(stream).empty_table()
    yield empty
    for rows in of_unnamed_input(stream.read(ranges)):
        yield pa.concat_tables([empty, rows], promote_options="permissive")


def of_unnamed_input(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of a stream with the prefix of the unnamed input before their sources."""
    for rows in tables:
        sources = pc.binary_join_element_wise(f"{UNNAMED}:", rows.column(SOURCE), "")
        yield rows.set_column(rows.column_names.index(SOURCE), SOURCE, sources)


def check_partitions(ranges: list[Range], begun: Mapping[str, int]) -> None:
    """Refuse a partition that was added since: records of its keys lie in other shards' partitions already."""
    for wanted in ranges:
        if wanted.partition >= begun.get(wanted.topic, 0):
            raise SourceLost(
                f"topic {wanted.topic!r} had {begun.get(wanted.topic, 0)} partitions when the job was begun with keyed=True, "
                f"and partition {wanted.partition} has records now: keys have moved between partitions, and so between shards. "
                "Drain the job, and begin another at another location; or begin without keyed=True, where partitions may be "
                "added"
            )
