"""From a batch's DataFrame to rows on their shards, in one evaluation and as few shuffles as there can be.

Two routes. *Partials*: where every aggregation can be computed in part by Spark SQL, rows are assigned to slices, late and
malformed ones are set apart, and the rest is pre-aggregated in the JVM, so that only groups cross to Python. *Rows*:
everything else (full-state aggregations, filters, calendar and tuple windows, ids, several operators): the rows cross.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from windrow.checkpoint.job import Job
from windrow.core.errors import BadWatermark, DuplicateColumn, ReservedColumn, TypeClash, UnknownColumn
from windrow.core.faults import FIRST_US, LAST_US
from windrow.core.inputs import Input
from windrow.core.location import local_path
from windrow.core.policy import Watermark
from windrow.core.positions import TOPIC_ID, Positions
from windrow.core.sharding import Sharding
from windrow.core.sql import plain, quoted, text
from windrow.core.time import END_OF_TIME_US, TIME_UNITS, show_duration
from windrow.operators.operator import Definition
from windrow.operators.steps.columns import (
    DEAD_LETTER,
    FAULTS,
    MALFORMED_ROW,
    OFFSET,
    OFFSET_MAX,
    OFFSET_MIN,
    ORDINAL,
    PARTITION,
    RAW,
    REPLAYED,
    ROWS,
    SLICE,
    SOURCE,
    TIME_MAX,
    TIME_MIN,
)
from windrow.operators.steps.dead_letters import MALFORMED, NULL_KEY, OUT_OF_RETENTION, TOO_LATE
from windrow.operators.steps.intake import event_times, last_times
from windrow.operators.steps.pushdown import Pushdown
from windrow.operators.steps.schema_inference import check_keys
from windrow.operators.steps.step import limit, passed
from windrow.runners.spark import jvm_calls
from windrow.runners.spark.derived_keys import made_name, with_made_keys
from windrow.runners.wire import CONTROL, OLD, OPERATOR, PART, SHARD

#: Marks a row that only advances time and is no message.
HEARTBEAT = "__heartbeat"
#: Rows without positions are grouped in each partition where there are no more than so many partitions a shard.
FEW_TIMES = 2
#: The result columns of a task.
ANSWER = T.StructType([T.StructField("shard", T.IntegerType()), T.StructField("payload", T.BinaryType())])


def arrow_schema(df: DataFrame) -> pa.Schema:
    """Return the input's columns as the operators will see them."""
    return schema_of(f for f in df.schema.fields if not f.name.startswith("__"))


def schema_of(fields: Iterable[T.StructField]) -> pa.Schema:
    """Return the columns as Arrow has them. Raises `TypeClash` on a type that it has not."""
    columns = []
    for f in fields:
        try:
            columns += to_arrow_schema(T.StructType([f]), timezone="UTC")
        except PySparkTypeError:
            raise TypeClash(
                f"column {f.name!r} is of type {f.dataType.simpleString()}, which no column has here: drop or cast it"
            ) from None
    return pa.schema(columns)


def sharding_of(job: Job) -> Sharding:
    return Sharding(job.shards)


def shard_of(fields: Sequence[tuple[str, T.DataType]], sharding: Sharding) -> str:
    """SQL of the shard of a row with these key fields, which are SQL, too."""
    return sharding.sql([(sql, isinstance(kind, T.NumericType)) for sql, kind in fields])


def shard_of_row(df: DataFrame, by: Sequence[str], sharding: Sharding) -> str:
    """SQL of the shard of a row of `df`."""
    return shard_of([(quoted(b), df.schema[b].dataType) for b in by], sharding)


def event_micros(df: DataFrame, input: Input) -> str:
    """SQL of event time in microseconds; null where it is no time."""
    name = input.event_time
    if name not in df.columns:
        raise UnknownColumn.lacking(name, repr(input.name), df.columns)
    kind, column, zone = df.schema[name].dataType, quoted(name), input.time_zone
    if isinstance(kind, T.TimestampType):
        return f"unix_micros({column})"
    if isinstance(kind, (T.LongType, T.IntegerType)):
        many, each_us = TIME_UNITS[input.event_time_unit or "us"]
        whole = f"cast({column} as bigint)"
        if many > 1:
            whole = f"(({whole} - pmod({whole}, {many}L)) div {many}L)"
        return whole if each_us == 1 else f"try_multiply({whole}, {each_us}L)"
    raise TypeClash(
        f"event time {name!r} is of type {kind.simpleString()}: use a timestamp"
        + (f" of {zone}" if zone else "")
    )


def pushdown(definitions: Sequence[Definition], schemas: Mapping[str, pa.Schema]) -> Pushdown | None:
    """Return the work that Spark SQL may do before rows cross, with the same meaning. schemas: of the inputs, by name"""
    grouping = definitions[0].logic().grouping() if len(definitions) == 1 else None
    if grouping is None:
        return None
    [input] = definitions[0].inputs
    if any("time64" in str(kind) for kind in schemas[input.name].types):
        return None  # Spark groups no frame that has a time of day, not even in a struct
    pushed = grouping.pushdown(schemas[input.name])
    return None if pushed is None or naive_time(schemas[input.name], input) else pushed


def naive_time(schema: pa.Schema, input: Input) -> bool:
    """True if event time is of a type that Python has to read: without a zone, or text."""
    kind = schema.field(input.event_time).type
    of_zone = pa.types.is_timestamp(kind) and kind.tz is not None
    return not (of_zone or kind in (pa.int64(), pa.int32()))


def check_columns(df: DataFrame, definitions: Sequence[Definition]) -> None:
    """Raise for errors that are known before the query runs."""
    check_unique(df)
    check_names(df.columns, definitions)
    for definition in definitions:
        [input] = definition.inputs
        if not input.time_made:
            check_event_time(df, input)
        keys = [name for name in definition.columns_of(input) if name != input.event_time]
        check_keys(keys, schema_of(df.schema[k] for k in keys))


def check_unique(df: DataFrame) -> None:
    """Refuse two columns of one name, of which Spark would say no more than that they are ambiguous."""
    exact = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    known: dict[str, str] = {}
    for column in df.columns:
        name = column if exact else column.lower()
        if name in known:
            raise DuplicateColumn(
                f"the input has the columns {known[name]!r} and {column!r}, which are one name to Spark (all: {df.columns}): "
                "rename or drop one, e.g. of a join with df.drop(right.k)"
            )
        known[name] = column


def check_event_time(df: DataFrame, value: Input) -> None:
    """Refuse an event time of a type that is never one: all of its rows would be dead letters."""
    [kind] = schema_of([df.schema[value.event_time]]).types
    if pa.types.is_floating(kind):
        raise TypeClash(
            f"event time {value.event_time!r} of {value.called} is of type {kind}, which is no time: cast it to a timestamp "
            "(seconds as a number: F.timestamp_seconds(...)), or to integer microseconds since the epoch"
        )
    event_times(pa.chunked_array([], type=kind), value.event_time, value.time_zone)


def check_names(columns: Sequence[str], definitions: Sequence[Definition]) -> None:
    """Refuse an input of such columns that the definitions cannot read."""
    for definition in definitions:
        for name in definition.columns_of(definition.inputs[0]):
            if name not in columns:
                raise UnknownColumn.lacking(name, repr(definition.name), columns)
    clash = [c for c in columns if c.startswith("__") and c not in (SOURCE, PARTITION, OFFSET, ORDINAL)]
    if clash:
        raise ReservedColumn(
            f"column {clash[0]!r} begins with two underscores, as windrow's own do: rename it"
        )


WATERMARK_DELAY = "spark.watermarkDelayMs"


def honour_watermark(df: DataFrame, definition: Definition) -> Definition:
    """Return the definition with the watermark of the DataFrame's `withWatermark`, where it has one."""
    [input] = definition.inputs
    if input.time_made or input.event_time not in df.columns:
        return definition
    watermark = watermark_said(df.schema[input.event_time], input)
    return definition if watermark is None else definition.with_watermarks({input.name: watermark})


def watermark_said(column: T.StructField, input: Input) -> Watermark | None:
    """Return the watermark of `withWatermark` on an input's event time; None if the input sets the same one itself."""
    delay_ms = column.metadata.get(WATERMARK_DELAY)
    if delay_ms is None:
        return None
    watermark = Watermark("bounded", int(delay_ms) * 1000)
    if input.watermark == Watermark("bounded"):
        return watermark
    if input.watermark.kind != "bounded" or input.watermark.delay_us != watermark.delay_us:
        raise BadWatermark(
            f"the frame of {input.called} says withWatermark({input.event_time!r}, {show_duration(watermark.delay_us)!r}), the "
            f"definition says {input.watermark!r}: make them equal, or leave one of them out"
        )
    return None


def positioned(df: DataFrame, named: Positions | None) -> tuple[DataFrame, bool]:
    """Return the frame with the position columns `__source`, `__partition`, `__offset`, `__ordinal`, where it has positions.

    Rows made from one record of Kafka have a null ordinal here; the tasks number them.
    """
    if OFFSET in df.columns:
        return df, True
    ordinal = "0"
    if named is None and of_kafka(df):
        named, ordinal = Positions("offset", "partition", "topic"), "null"
    if named is None:
        return df, False
    positions = {
        SOURCE: _source(df, named.source),
        PARTITION: "0L" if named.partition is None else f"cast({quoted(named.partition)} as bigint)",
        OFFSET: f"cast({quoted(named.offset)} as bigint)",
        ORDINAL: f"cast({ordinal} as bigint)",
    }
    columns = [quoted(c) for c in df.columns if c not in positions]
    return jvm_calls.select(df, *columns, *[f"{sql} as {name}" for name, sql in positions.items()]), True


def of_kafka(df: DataFrame) -> bool:
    """True if the frame has the position columns of a Kafka source, under Kafka's names and of Kafka's types."""
    kinds = {f.name: f.dataType for f in df.schema.fields}
    wanted = {"topic": T.StringType(), "partition": T.IntegerType(), "offset": T.LongType()}
    return all(kinds.get(name) == kind for name, kind in wanted.items())


def _source(df: DataFrame, name: str | None) -> str:
    """SQL of the source of each row. A topic is known with its id, where the frame has it."""
    if name is None:
        return "''"
    if name == "topic" and "topicId" in df.columns:
        return f"concat_ws({text(TOPIC_ID)}, topic, topicId)"
    return f"cast({quoted(name)} as string)"


def resumes_from(stream: DataFrame, location: str) -> bool:
    """True if the stream reads Kafka by our source alone, which begins where the job of the builder at `location` stopped."""
    wanted = {location, os.path.join(location, "windrow")}
    leaves = stream._jdf.queryExecution().logical().collectLeaves()
    places = []
    for i in range(leaves.size()):
        leaf = leaves.apply(i)
        if leaf.getClass().getSimpleName() != "StreamingRelationV2":
            return False
        places.append(leaf.extraOptions().get("resumefrom"))
    return bool(places) and all(at is not None and local_path(at) in wanted for at in places)


def mark_replayed(df: DataFrame, next_offsets: dict[tuple[str, int], int]) -> DataFrame:
    """Mark rows below the job's offsets by `__old`: they are not counted again, but the slice's extent includes them."""
    old = F.lit(False)
    for (source, partition), offset in sorted(next_offsets.items()):
        here = (F.col(SOURCE) == F.lit(source)) & (F.col(PARTITION) == F.lit(partition))
        old = old | (here & (F.col(OFFSET) < F.lit(offset)))
    return df.withColumn(OLD, old)


def with_file_positions(stream: DataFrame) -> DataFrame | None:
    """Return the stream with (file, row) as positions, where it reads Parquet files; else None."""
    hidden = stream._jdf.queryExecution().analyzed().metadataOutput()
    about_files = [a for i in range(hidden.size()) if (a := hidden.apply(i)).name() == "_metadata"]
    # Spark would log an error if a missing column were selected.
    if not about_files or "row_index" not in list(about_files[0].dataType().fieldNames()):
        return None
    return stream.select(
        "*",
        F.col("_metadata.file_path").alias(SOURCE),
        F.lit(0).cast("bigint").alias(PARTITION),
        F.col("_metadata.row_index").alias(OFFSET),
        F.lit(0).cast("bigint").alias(ORDINAL),
    )


def drop_files(df: DataFrame, taken: Sequence[str]) -> DataFrame:
    """Return the rows of files that were not read before."""
    if not taken:
        return df
    names = df.sparkSession.createDataFrame([(name,) for name in taken], f"{SOURCE} string")
    return df.join(F.broadcast(names), SOURCE, "left_anti").select(*[quoted(c) for c in df.columns])


def prepare_rows(df: DataFrame, definitions: Sequence[Definition], sharding: Sharding) -> DataFrame:
    """Prepare the rows route: each row once for each operator, with its shard."""
    columns = [quoted(c) for c in df.columns]
    df = with_made_keys(df, definitions, arrow_schema(df))
    keys = [
        [k if made_name(i, k) not in df.columns else made_name(i, k) for k in d.keys(d.inputs[0])]
        for i, d in enumerate(definitions)
    ]
    if len(definitions) == 1:
        return jvm_calls.select(df, f"{shard_of_row(df, keys[0], sharding)} as {SHARD}", *columns)
    targets = [
        f"named_struct('{OPERATOR}', {i}, '{SHARD}', {shard_of_row(df, k, sharding)})"
        for i, k in enumerate(keys)
    ]
    each = jvm_calls.select(df, f"explode(array({', '.join(targets)})) as __to", *columns)
    return jvm_calls.select(each, "__to.*", *columns)


def prepare_ranges(df: DataFrame, shards: int) -> DataFrame:
    """Prepare ranges of offsets, each with the shard of its partition."""
    return df.coalesce(1).selectExpr(f"cast(pmod(partition, {shards}) as int) as {SHARD}", "*")


def prepare_partials(
    df: DataFrame,
    what: Pushdown,
    sharding: Sharding,
    *,
    positions: bool,
    streams: bool,
    now_us: int,
    watermark_us: int | None,
) -> DataFrame:
    """Prepare the partials route: groups of (shard, slice, key), and one group for each row that cannot be counted.

    streams: of a streaming query each partition is grouped by itself, and groups of one key meet in the tasks: with positions,
    rows of one group come from one partition anyway.

    Without `watermark_us` rows that are late, or too far ahead of now, are not set apart: their groups report that there are
    some. That plan has no number that changes from batch to batch, so Spark compiles it once.
    """
    t = event_micros(df, what.input)
    extra = [SOURCE, PARTITION, OFFSET] if positions else []
    reason = _reason(what, t, now_us, watermark_us)
    payload = f"to_json(struct({', '.join(quoted(c) for c in df.columns if not c.startswith('__'))}))"
    emitted = ""
    if MALFORMED_ROW in df.columns:
        # A malformed record carries the reason, and its raw value.
        reason = f"case when {MALFORMED_ROW} is not null then '{MALFORMED}' else ({reason}) end"
        payload, emitted = f"coalesce({RAW}, {payload})", f"'detail', {MALFORMED_ROW}, "
    identity = [f"{c} as {c.strip('_')}" for c in extra] or ["monotonically_increasing_id() as id"]
    # A row that cannot be counted carries the content of its dead letter, which makes it a group of its own.
    lost = f"({reason}) is not null"
    letter = (
        f"case when {lost} then to_json(named_struct('reason', ({reason}), 'payload', "
        f"{payload}, {emitted}'event_time_us', {t}, 'at', struct({', '.join(identity)}))) end"
    )
    if OLD in df.columns:
        # Replay is checked before retention: a replayed row is no dead letter.
        lost, letter = f"{OLD} or {lost}", f"case when {OLD} then '{REPLAYED}' else {letter} end"
    slices = f"{t} - pmod({t} - {what.offset_us}L, {what.length_us}L)" if what.length_us else "0L"
    keys = {SLICE: f"case when {lost} then null else {slices} end", DEAD_LETTER: letter}
    where = {SOURCE: SOURCE, PARTITION: PARTITION} if positions else {}
    # Spark reads a dot in a name as a field of a struct; the task puts the accumulators' names back.
    parts = {f"{PART}{i}": sql for i, sql in enumerate(what.parts.values())}
    extents = {OFFSET_MIN: f"min({OFFSET})", OFFSET_MAX: f"max({OFFSET})"} if positions else {}
    times = {TIME_MIN: f"min({t})"} if what.first_times else {}
    faulty = {} if what.faults is None else {FAULTS: f"count_if({what.faults})"}
    aggregates = {ROWS: "count(1)", TIME_MAX: f"max({t})", **faulty, **times, **extents, **parts}
    by = {b: quoted(b) for b in what.by}
    if streams:
        each = jvm_calls.each_partition(df, None if positions else FEW_TIMES * sharding.shards)
        df = df if each is None else each
    groups = jvm_calls.grouped(df, _named(keys | by | where), _named(aggregates))
    return jvm_calls.select(groups, f"{shard_of_row(df, what.by, sharding)} as {SHARD}", "*")


def _named(columns: Mapping[str, str]) -> list[str]:
    return [f"{sql} as {quoted(name)}" for name, sql in columns.items()]


def _reason(what: Pushdown, t: str, now_us: int, watermark_us: int | None) -> str:
    """SQL of why a row cannot be counted; null if it can. Without `watermark_us` it has no number that changes."""
    last_us = LAST_US if watermark_us is None else last_times(what.input.max_ahead_us, now_us)
    cases = [f"when {t} is null or {t} < {FIRST_US}L or {t} > {last_us}L then '{MALFORMED}'"]
    if not what.nulls_count and what.by:
        nulls = " or ".join(f"{quoted(b)} is null" for b in what.by)
        cases.append(f"when {nulls} then '{NULL_KEY}'")
    newest_end = _long(END_OF_TIME_US)
    if what.window is not None:
        size, hop = what.window
        newest_end = f"({t} - pmod({t} - {what.offset_us}L, {hop}L) + {size}L)"
    if watermark_us is not None:
        if what.retention_us is not None:
            gone = f"{newest_end} <= {_long(limit(watermark_us, what.retention_us))}"
            cases.append(f"when {gone} and {newest_end} > {t} then '{OUT_OF_RETENTION}'")
        late = f"{newest_end} <= {_long(passed(watermark_us, what.lateness_us))}"
        # A time in a gap between hops is no late one.
        cases.append(f"when {late} and {newest_end} > {t} then '{TOO_LATE}'")
    return f"case {' '.join(cases)} end"


def _long(n: int) -> str:
    """Return a bigint literal; the smallest one cannot be written as a number."""
    return f"{n}L" if n > -(2**63) else f"(-{2**63 - 1}L - 1L)"


def control_rows(spark: SparkSession, shards: int) -> DataFrame:
    """Return a row for each shard that makes it answer, whatever the batch holds."""
    return spark.range(0, shards, 1, 1).selectExpr(f"cast(id as int) as {SHARD}", f"true as {CONTROL}")


def to_shards(
    frame: DataFrame, shards: int, control: DataFrame | None, partitions: int | None = None
) -> DataFrame:
    """Repartition to one partition a shard, or to fewer, and add the rows of `control` if these are given."""
    if any(plain(c) != c for c in frame.columns):
        frame = frame.toDF(*[plain(c) for c in frame.columns])
    if control is not None:
        frame = frame.unionByName(control, allowMissingColumns=True)
    if partitions is None or partitions == shards:
        return jvm_calls.repartitioned(frame, shards, SHARD)
    return jvm_calls.repartitioned(frame, partitions, f"pmod({SHARD}, {partitions})")


def on_shards(
    frame: DataFrame, shards: int, control: DataFrame | None, function: jvm_calls.Mapped, partitions: int
) -> DataFrame:
    """Run a function over the rows of each shard, in so many partitions, and return its results."""
    columns = [quoted(plain(c)) for c in frame.columns]
    if control is not None:
        columns.append(CONTROL)
    return jvm_calls.mapped(to_shards(frame, shards, control, partitions), columns, function, ANSWER)


def travelling_schema(frame: DataFrame) -> pa.Schema:
    """Return the columns in which rows come to their shard, for a shard without rows."""
    return schema_of(f for f in frame.schema.fields if f.name != SHARD)
