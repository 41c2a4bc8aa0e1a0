"""Several streams in one query: how the inputs of a join, or of a chain with joins in it, travel through one `foreachBatch`.

All inputs are one DataFrame: `__input` says whose row it is, a struct of the input's name holds its columns, and the position
columns are shared, sources beginning with the input's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema

from windrow.checkpoint.job import Plan
from windrow.checkpoint.offsets import Partition
from windrow.core.errors import ConfigurationError, UnknownColumn
from windrow.core.inputs import Input
from windrow.core.policy import Watermark
from windrow.core.sql import quoted, text
from windrow.operators.operator import Definition
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.runners.spark import plan as plans
from windrow.runners.spark.batch import BatchFunction
from windrow.runners.spark.bounded import rows_of, scratch_location
from windrow.runners.spark.stream import WindowStreamWriter
from windrow.runners.tasks import INPUT, SHARD

_POSITION = (SOURCE, PARTITION, OFFSET, ORDINAL)


def together(
    definition: Definition, frames: Mapping[str, DataFrame], *, of_files: bool = False
) -> tuple[DataFrame, bool]:
    """(one frame of the inputs, by name; True if its positions are of files). `of_files`: give files positions."""
    names = [i.name for i in definition.inputs]
    if set(frames) != set(names):
        raise ConfigurationError(
            f"{definition.name!r} takes the inputs {names}, given are {sorted(frames)}: give each by its name, e.g. "
            + ", ".join(f"{n}=df" for n in names)
        )
    streaming = any(frame.isStreaming for frame in frames.values())
    parts, kinds, absent = [], set(), []
    for given in definition.inputs:
        frame = frames[given.name]
        _check_columns(definition, given, frame)
        if streaming and not frame.isStreaming:
            if not given.static:
                raise ConfigurationError(
                    f"the frame of input {given.name!r} is bounded and another is a stream: declare it with static=True, or "
                    "give a stream"
                )
            absent.append(given)
            continue
        part, kind = _part(given, frame, of_files=of_files)
        parts.append(part)
        kinds.add(kind)
    if len(kinds) > 1:
        raise ConfigurationError(
            f"the inputs of {definition.name!r} have positions of different kinds ({', '.join(sorted(kinds))}): replays could "
            "be told of some only; name position columns on all with positions=wr.positions(...)"
        )
    frame = parts[0]
    for part in parts[1:]:
        frame = frame.unionByName(part, allowMissingColumns=True)
    for given in absent:
        user = [f for f in frames[given.name].schema.fields if not f.name.startswith("__")]
        frame = frame.withColumn(given.name, F.lit(None).cast(T.StructType(user)))
    return frame, kinds == {"files"}


def _part(given: Input, frame: DataFrame, *, of_files: bool) -> tuple[DataFrame, str]:
    """The rows of one input as they travel, and what kind of positions they have."""
    frame, has = plans.positioned(frame, given.positions)
    kind = "columns" if has else "none"
    if not has and of_files and frame.isStreaming:
        with_files = plans.with_file_positions(frame)
        if with_files is not None:
            frame, kind = with_files, "files"
    user = [F.col(quoted(c)) for c in frame.columns if not c.startswith("__")]
    where = [
        F.concat(F.lit(given.source_prefix), F.col(SOURCE)).alias(SOURCE),
        *[F.col(c) for c in _POSITION[1:]],
    ]
    part = frame.select(
        F.lit(given.name).alias(INPUT),
        *(where if kind != "none" else []),
        F.struct(*user).alias(given.name),
    )
    return part, kind


def with_static(df: DataFrame, definition: Definition, static: Mapping[str, DataFrame]) -> DataFrame:
    """A batch, and the rows of static inputs, which are numbered as they come."""
    for given in definition.inputs:
        if given.name not in static:
            continue
        frame = static[given.name]
        _check_columns(definition, given, frame)
        user = [F.col(quoted(c)) for c in frame.columns if not c.startswith("__")]
        columns = [F.lit(given.name).alias(INPUT), F.struct(*user).alias(given.name)]
        if OFFSET in df.columns:
            columns += [
                F.lit(given.source_prefix + "static").alias(SOURCE),
                F.lit(0).cast("bigint").alias(PARTITION),
                F.monotonically_increasing_id().alias(OFFSET),
                F.lit(0).cast("bigint").alias(ORDINAL),
            ]
        df = df.unionByName(frame.select(*columns), allowMissingColumns=True)
    return df


def _check_columns(definition: Definition, given: Input, frame: DataFrame) -> None:
    plans.check_unique(frame)
    for name in definition.columns_of(given):
        if name not in frame.columns:
            raise UnknownColumn(
                f"column {name!r} of input {given.name!r} is not in its frame, which has {frame.columns}"
            )
    plans.check_event_time(frame, given)


def honour_watermarks(definition: Definition, frame: DataFrame) -> Definition:
    """The definition under the watermarks that `withWatermark` gave its inputs, where they have none of their own accord."""
    found: dict[str, Watermark] = {}
    for given in definition.inputs:
        kind = frame.schema[given.name].dataType
        assert isinstance(kind, T.StructType)
        theirs = plans.watermark_said(kind[given.event_time], given)
        if theirs is not None:
            found[given.name] = theirs
    return definition.with_watermarks(found) if found else definition


def schemas(definition: Definition, frame: DataFrame) -> dict[str, pa.Schema]:
    """The columns of the inputs as the operators will see them."""
    found = {}
    for given in definition.inputs:
        kind = frame.schema[given.name].dataType
        assert isinstance(kind, T.StructType)
        found[given.name] = to_arrow_schema(kind, timezone="UTC")
    return found


def prepare(frame: DataFrame, definition: Definition, sharding: plans.Sharding) -> DataFrame:
    """Each row with the shard of its key; in a chain, of those of its fields that all operators share."""
    if sharding.shards == 1 or not definition.by:
        return frame.selectExpr(f"0 as {SHARD}", "*")
    logic, columns = definition.logic(), schemas(definition, frame)
    cases = []
    for given in definition.inputs:
        shard = sharding.shard(_keys(logic.key_types(given.name, columns), given, frame))
        cases.append(f"when {INPUT} = {text(given.name)} then {shard}")
    return frame.selectExpr(f"case {' '.join(cases)} end as {SHARD}", "*")


def _keys(
    keys: Sequence[tuple[str, tuple[pa.DataType, ...]]], given: Input, frame: DataFrame
) -> list[tuple[str, T.DataType]]:
    """SQL of the key fields of an input's rows, each in the type in which operators compare it, one after the other."""
    struct = frame.schema[given.name].dataType
    assert isinstance(struct, T.StructType)
    found = []
    for column, types in keys:
        sql, kind = f"{quoted(given.name)}.{quoted(column)}", struct[column].dataType
        for one in types:
            kind = from_arrow_type(one)
            sql = f"cast({sql} as {kind.simpleString()})"
        found.append((sql, kind))
    return found


class JoinBatchFunction(BatchFunction):
    """`foreach_batch` of a join, or of a chain with one in it: its batches come from `together`."""

    def __init__(
        self,
        definition: Definition,
        location: str,
        *,
        static: Mapping[str, DataFrame] | None = None,
        **options: Any,
    ) -> None:
        self.static = dict(static or {})
        super().__init__([definition], location, **options)

    @property
    def joining(self) -> Definition:
        definition: Definition = self.definitions[0]
        return definition

    def _honour(self, df: DataFrame) -> None:
        missing = [c for c in (INPUT, *(i.name for i in self.joining.inputs)) if c not in df.columns]
        if missing:
            raise UnknownColumn(
                f"column {missing[0]!r} is not in the batch, which has {df.columns}: write the stream that "
                f"{self.joining.name}.together(...) gives"
            )
        self.definitions = (honour_watermarks(self.joining, df),)

    def _positioned(self, df: DataFrame) -> tuple[DataFrame, bool]:
        if self.static and self.job.progress.commit == 0:
            df = with_static(df, self.joining, self.static)
        return df, OFFSET in df.columns

    def _prepare(
        self, df: DataFrame, plan: Plan, positioned: bool, schema: Any, letters: bool
    ) -> tuple[DataFrame, tuple[str, ...] | None]:
        return prepare(df, self.joining, plans.Sharding.of(self.job)), None

    def _watermark_partition(self, partition: Partition) -> Partition:
        """All files of one input are one partition of its watermark."""
        return (partition[0].partition(":")[0] + ":files", 0) if self.of_files else partition

    def pane_schema(self, df: DataFrame, operator: str) -> T.StructType:
        return from_arrow_schema(self.joining.logic().schema(schemas(self.joining, df)))


class JoinStreamWriter(WindowStreamWriter):
    """Configures and starts a join of streams, or a chain with one in it. The verbs are Spark's."""

    def __init__(self, definition: Definition, frames: Mapping[str, DataFrame]) -> None:
        bounded = sorted(name for name, frame in frames.items() if not frame.isStreaming)
        if len(bounded) == len(frames):
            raise ConfigurationError(
                "writeStream needs streaming DataFrames, these are bounded: use apply(...)"
            )
        stream, self._of_files = together(definition, frames, of_files=True)
        self._static = {name: frame for name, frame in frames.items() if not frame.isStreaming}
        self._begin((honour_watermarks(definition, stream),), stream)

    def _batch_function(self, location: str, **options: Any) -> BatchFunction:
        [definition] = self._definitions
        return JoinBatchFunction(definition, location, static=self._static, **options)

    def _with_positions(self) -> tuple[DataFrame, bool]:
        assert self._stream is not None
        return self._stream, self._of_files


def apply(definition: Any, frames: Mapping[str, DataFrame], dead_letters: Any = None) -> DataFrame:
    """The rows of bounded frames: one commit of all of them, then the end of time. Lives as long as this process."""
    df, _ = together(definition, frames)
    return rows_of(
        JoinBatchFunction(definition, scratch_location(), dead_letters=dead_letters), df, definition.name
    )
