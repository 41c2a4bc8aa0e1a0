"""From a batch's DataFrame to rows on their shards, in one evaluation and as few shuffles as there can be.

Two routes. *Partials*: where every aggregation can be computed in part by Spark SQL, rows are assigned to slices, late and
malformed ones are set apart, and the rest is pre-aggregated in the JVM, so that only groups cross to Python. *Rows*:
everything else (full-state aggregations, filters, calendar and tuple windows, several operators): the rows cross.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from windrow.core.definition import AggregateDefinition, Positions
from windrow.core.errors import ReservedColumn, TypeClash, UnknownColumn
from windrow.core.windows import Global, Hopping, Tumbling
from windrow.operators.aggregate import limit
from windrow.operators.calculation import Calculation
from windrow.operators.columns import ACCUMULATOR, OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.operators.dead import MALFORMED, NULL_KEY, OUT_OF_RETENTION, TOO_LATE
from windrow.operators.intake import FIRST_US, LAST_US
from windrow.runners.spark.tasks import (
    CONTROL,
    LETTER,
    OFFSET_MAX,
    OFFSET_MIN,
    OLD,
    OPERATOR,
    PART,
    REASON,
    REPLAYED,
    ROWS,
    SHARD,
    SLICE,
    TIME_MAX,
)

#: Marks a row that stands for the passing of time and is no message.
HEARTBEAT = "__heartbeat"
#: Keys go to shards through key groups, so that a state can be resharded without a replay.
KEY_GROUPS = 4096


def arrow_schema(df: DataFrame) -> pa.Schema:
    """The input's columns as the operators will see them."""
    fields = [f for f in df.schema.fields if not f.name.startswith("__")]
    schema: pa.Schema = to_arrow_schema(T.StructType(fields), timezone="UTC")
    return schema


def shard_of(by: Sequence[str], shards: int) -> Column:
    """The shard of a row: a stable hash of its key, through key groups."""
    if not by or shards == 1:
        return F.lit(0)
    group = F.pmod(F.xxhash64(*[F.col(_q(b)) for b in by]), F.lit(KEY_GROUPS))
    return F.floor(group * F.lit(shards) / F.lit(KEY_GROUPS)).cast("int")


def _q(name: str) -> str:
    return f"`{name}`"


def event_micros(df: DataFrame, definition: AggregateDefinition) -> Column:
    """Event time in microseconds; null where it is no time."""
    name = definition.event_time
    if name not in df.columns:
        raise UnknownColumn(
            f"event time {name!r} of {definition.name!r} is not in the input, which has {df.columns}"
        )
    kind = df.schema[name].dataType
    column = F.col(_q(name))
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, (T.LongType, T.IntegerType)):
        return column.cast("bigint")
    if isinstance(kind, (T.TimestampNTZType, T.DateType, T.StringType)):
        if definition.time_zone is None:
            raise TypeClash(
                f"event time {name!r} is of type {kind.simpleString()}, which has no time zone: declare it with "
                "time_zone='Europe/Berlin', or 'UTC'"
            )
        naive = (
            column.cast("timestamp_ntz")
            if not isinstance(kind, T.StringType)
            else F.expr(f"try_to_timestamp({_q(name)})")
        )
        if isinstance(kind, T.StringType):
            return F.unix_micros(
                F.to_utc_timestamp(F.date_format(naive, "yyyy-MM-dd HH:mm:ss.SSSSSS"), definition.time_zone)
            )
        return F.unix_micros(
            F.convert_timezone(F.lit(definition.time_zone), F.lit("UTC"), naive).cast("timestamp")
        )
    raise TypeClash(f"event time {name!r} is of type {kind.simpleString()}: use a timestamp")


def can_use_partials(definition: AggregateDefinition, calculation: Calculation, naive_time: bool) -> bool:
    """True if Spark SQL can compute every aggregation in part, with the same meaning."""
    if definition.retention.windows is not None or definition.retention.messages is not None:
        return False
    if definition.full_state or not isinstance(definition.window, (Tumbling, Hopping, Global)) or naive_time:
        return False
    return partial_columns(definition, calculation) is not None


def partial_columns(definition: AggregateDefinition, calculation: Calculation) -> dict[str, str] | None:
    """Accumulator column -> Spark SQL aggregate that computes it; None where an aggregation has none."""
    columns: dict[str, str] = {}
    for alias, aggregation in definition.agg.items():
        kernel = calculation.kernels[alias]
        plain = all(isinstance(a, str) for a in aggregation.args)
        if kernel is None or aggregation.condition is not None or not plain:
            return None
        parts = kernel.spark_partials([str(a) for a in aggregation.args])
        if parts is None:
            return None
        columns.update({f"{ACCUMULATOR}{alias}.{part}": sql for part, sql in parts.items()})
    return columns


def slice_us(definition: AggregateDefinition) -> int:
    """The length of the slices that windows are made of; 0: all time is one."""
    match definition.window:
        case Tumbling(size_us=size):
            return size
        case Hopping(size_us=size, hop_us=hop):
            return math.gcd(size, hop)
        case _:
            return 0


def check_columns(df: DataFrame, definitions: Sequence[AggregateDefinition]) -> None:
    """Refuse what can be refused before the query runs."""
    for definition in definitions:
        for name in (definition.event_time, *definition.by):
            if name not in df.columns:
                raise UnknownColumn(
                    f"column {name!r} of {definition.name!r} is not in the input, which has {df.columns}"
                )
    clash = [c for c in df.columns if c.startswith("__") and c not in (SOURCE, PARTITION, OFFSET, ORDINAL)]
    if clash:
        raise ReservedColumn(
            f"column {clash[0]!r} begins with two underscores, as windrow's own do: rename it"
        )


def positioned(df: DataFrame, named: Positions | None) -> tuple[DataFrame, bool]:
    """The frame with the position columns `__source`, `__partition`, `__offset`, `__ordinal`, where it has positions."""
    if OFFSET in df.columns:
        return df, True
    kafka = {"topic", "partition", "offset", "timestampType"} <= set(df.columns)
    if named is None and kafka:
        named = Positions("offset", "partition", "topic")
    if named is None:
        return df, False
    return (
        df.withColumn(SOURCE, F.lit("") if named.source is None else F.col(_q(named.source)).cast("string"))
        .withColumn(
            PARTITION,
            F.lit(0).cast("bigint") if named.partition is None else F.col(_q(named.partition)).cast("bigint"),
        )
        .withColumn(OFFSET, F.col(_q(named.offset)).cast("bigint"))
        .withColumn(ORDINAL, F.lit(0).cast("bigint")),
        True,
    )


def mark_replayed(df: DataFrame, next_offsets: dict[tuple[str, int], int]) -> DataFrame:
    """`__old` is true for rows below our offsets: they are not counted again, but the slice's extent includes them."""
    old = F.lit(False)
    for (source, partition), offset in sorted(next_offsets.items()):
        here = (F.col(SOURCE) == F.lit(source)) & (F.col(PARTITION) == F.lit(partition))
        old = old | (here & (F.col(OFFSET) < F.lit(offset)))
    return df.withColumn(OLD, old)


def with_file_positions(stream: DataFrame) -> DataFrame | None:
    """The stream with (file, row) as positions, where it reads Parquet files; None where it does not."""
    try:
        return stream.select(
            "*",
            F.col("_metadata.file_path").alias(SOURCE),
            F.lit(0).cast("bigint").alias(PARTITION),
            F.col("_metadata.row_index").alias(OFFSET),
            F.lit(0).cast("bigint").alias(ORDINAL),
        )
    except AnalysisException:
        return None


def drop_files(df: DataFrame, taken: Sequence[str]) -> DataFrame:
    """Rows of files that were not taken before."""
    if not taken:
        return df
    names = df.sparkSession.createDataFrame([(name,) for name in taken], f"{SOURCE} string")
    return df.join(F.broadcast(names), SOURCE, "left_anti").select(*df.columns)


def prepare_rows(df: DataFrame, definitions: Sequence[AggregateDefinition], shards: int) -> DataFrame:
    """The rows route: each row once for each operator, with its shard."""
    targets = [
        F.struct(F.lit(i).alias(OPERATOR), shard_of(d.by, shards).cast("int").alias(SHARD))
        for i, d in enumerate(definitions)
    ]
    if len(targets) == 1:
        return df.withColumn(OPERATOR, F.lit(0)).withColumn(SHARD, shard_of(definitions[0].by, shards))
    return df.withColumn("__to", F.explode(F.array(*targets))).select(
        "__to.*", *[F.col(_q(c)) for c in df.columns]
    )


def prepare_partials(
    df: DataFrame,
    definition: AggregateDefinition,
    calculation: Calculation,
    shards: int,
    *,
    positions: bool,
    now_us: int,
    watermark_us: int,
) -> DataFrame:
    """The partials route: groups of (shard, slice, key), and what cannot be counted as one group a row."""
    micros = event_micros(df, definition)
    wanted = [*definition.by, *{a for g in definition.agg.values() for a in g.columns}]
    extra = [SOURCE, PARTITION, OFFSET] if positions else []
    reason = _reason(definition, F.col("__t"), now_us, watermark_us)
    letter = F.to_json(F.struct(*[F.col(_q(c)) for c in df.columns if not c.startswith("__")]))
    if OLD in df.columns:
        # Replay is checked before retention: a replayed row is no dead letter.
        reason = F.when(F.col(OLD), F.lit(REPLAYED)).otherwise(reason)
    base = df.withColumn("__t", micros).withColumn(REASON, reason)
    length = slice_us(definition)
    offset = getattr(definition.window, "offset_us", 0)
    slices = (
        F.col("__t") - F.pmod(F.col("__t") - F.lit(offset), F.lit(length))
        if length
        else F.lit(0).cast("bigint")
    )
    good = F.col(REASON).isNull()
    # Rows that cannot be counted carry what a dead letter tells, which makes each a group of its own.
    letter_id = F.when(
        ~good & (F.col(REASON) != F.lit(REPLAYED)),
        F.to_json(
            F.struct(
                letter.alias("payload"),
                F.col("__t").alias("event_time_us"),
                *[F.col(c).alias(c.strip("_")) for c in extra],
                (F.lit(None).cast("bigint") if positions else F.monotonically_increasing_id()).alias("id"),
            )
        ),
    )
    base = base.select(
        shard_of(definition.by, shards).alias(SHARD),
        F.when(good, slices).alias(SLICE),
        F.col("__t"),
        F.col(REASON),
        letter_id.alias(LETTER),
        *[F.col(_q(c)) for c in dict.fromkeys([*wanted, *extra])],
    )
    keys = [SHARD, SLICE, REASON, LETTER, *definition.by, *([SOURCE, PARTITION] if positions else [])]
    columns = partial_columns(definition, calculation)
    assert columns is not None
    aggregates = [
        F.count(F.lit(1)).alias(ROWS),
        F.max("__t").alias(TIME_MAX),
        *([F.min(OFFSET).alias(OFFSET_MIN), F.max(OFFSET).alias(OFFSET_MAX)] if positions else []),
        # Spark reads a dot in a name as a field of a struct; the task puts the names back.
        *[F.expr(sql).alias(f"{PART}{i}") for i, sql in enumerate(columns.values())],
    ]
    return base.groupBy(*[F.col(_q(k)) for k in keys]).agg(*aggregates).withColumn(OPERATOR, F.lit(0))


def _reason(definition: AggregateDefinition, t: Column, now_us: int, watermark_us: int) -> Column:
    """Why a row cannot be counted; null if it can."""
    last_us = LAST_US if definition.max_ahead_us is None else min(LAST_US, now_us + definition.max_ahead_us)
    reason = F.when(t.isNull() | (t < F.lit(FIRST_US)) | (t > F.lit(last_us)), F.lit(MALFORMED))
    if definition.null_keys == "dead_letter" and definition.by:
        null_key = F.lit(False)
        for name in definition.by:
            null_key = null_key | F.col(_q(name)).isNull()
        reason = reason.when(null_key, F.lit(NULL_KEY))
    match definition.window:
        case Tumbling(size_us=size, offset_us=offset):
            newest_end = t - F.pmod(t - F.lit(offset), F.lit(size)) + F.lit(size)
        case Hopping(size_us=size, hop_us=hop, offset_us=offset):
            newest_end = t - F.pmod(t - F.lit(offset), F.lit(hop)) + F.lit(size)
        case _:
            return reason
    retention_us = definition.retention.time_us
    if retention_us is not None:
        gone = newest_end <= F.lit(limit(watermark_us, retention_us))
        if isinstance(definition.window, Hopping):
            gone = gone & (newest_end > t)  # a time in a gap is no late one
        reason = reason.when(gone, F.lit(OUT_OF_RETENTION))
    late = newest_end <= F.lit(limit(watermark_us, definition.allowed_lateness_us))
    if isinstance(definition.window, Hopping):
        late = late & (newest_end > t)
    return reason.when(late, F.lit(TOO_LATE))


def to_shards(frame: DataFrame, shards: int) -> DataFrame:
    """One partition a shard, in which a control row stands for "this shard must answer", whatever the batch holds."""
    spark = frame.sparkSession
    control = spark.range(shards).select(F.col("id").cast("int").alias(SHARD), F.lit(True).alias(CONTROL))
    united = frame.withColumn(CONTROL, F.lit(None).cast("boolean")).unionByName(
        control, allowMissingColumns=True
    )
    return united.repartitionById(shards, F.col(SHARD))
