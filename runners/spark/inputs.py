"""Inputs of a job in one `foreachBatch`.

One input without a name is the frame itself. Inputs with names are one frame together: `__input` names a row's input, a struct
of the input's name holds its columns, and the position columns are shared, sources beginning with the input's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from windrow.core.errors import (
    ConfigurationError,
    PositionsMissing,
    SparkUnsupported,
    StateLost,
    UnknownColumn,
)
from windrow.core.inputs import Input
from windrow.core.policy import Watermark
from windrow.core.positions import Partition
from windrow.core.sharding import Sharding
from windrow.core.sql import quoted, text
from windrow.operators.operator import Definition
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.runners.spark import jvm_calls, routes
from windrow.runners.spark.session import NO_CONNECT
from windrow.runners.wire import INPUT, OPERATOR, SHARD

_POSITION = (SOURCE, PARTITION, OFFSET, ORDINAL)


class Inputs(Protocol):
    """The inputs of a job's batch."""

    def honoured(self, df: DataFrame, definitions: Sequence[Definition]) -> tuple[Definition, ...]:
        """Return the definitions under the watermarks that `withWatermark` gave; raise for a frame that they cannot read."""
        ...

    def positioned(self, df: DataFrame, *, begun: bool) -> tuple[DataFrame, bool]:
        """Return the frame with position columns, where it has any. begun: the job has made a commit."""
        ...

    def schemas(self, df: DataFrame) -> dict[str, pa.Schema]:
        """Return the columns of each input as the operators will see them."""
        ...

    def alone(self, df: DataFrame) -> DataFrame:
        """Return the frame of the only input, under the names of its own columns."""
        ...

    def on_shards(self, df: DataFrame, sharding: Sharding) -> DataFrame:
        """Return each row once for each definition that takes it, with its shard."""
        ...

    def again(self, value: Any, *, of_files: bool) -> DataFrame:
        """Return the frame of `replay=` as a batch of the stream with positions; raise if it is no frame."""
        ...


def inputs_of(definitions: Sequence[Definition], static: Mapping[str, DataFrame] | None = None) -> Inputs:
    """Return the inputs of these definitions. static: bounded frames of inputs that are static, by name."""
    if not any(d.by_input for d in definitions):
        return OneFrame(definitions)
    return NamedFrames(definitions, static or {})


def named_inputs(definitions: Sequence[Definition]) -> dict[str, Input]:
    """Return the inputs of several definitions by name; raise if two of one name differ."""
    inputs: dict[str, Input] = {}
    for definition in definitions:
        for input in definition.inputs:
            if not definition.by_input:
                raise ConfigurationError(
                    f"{definition.name!r} does not say which of the inputs of the job it takes: give it "
                    f"input={next((n for n in inputs), 'name')!r}"
                )
            same = inputs.setdefault(input.name, input)
            if same.stream != input.stream:
                raise ConfigurationError(
                    f"input {input.name!r} is taken by several operators, as {same!r} and as {input!r}: it has one "
                    "event time and one watermark; make them equal but for window and keys, or give the inputs names "
                    "of their own"
                )
    return inputs


def watermark_partition(partition: Partition) -> Partition:
    """Return the partition of the watermark of files: all files of one input are one."""
    return partition[0].partition(":")[0] + ":files", 0


class OneFrame:
    """The frame of one input without a name, for all definitions."""

    def __init__(self, definitions: Sequence[Definition]) -> None:
        self._definitions = tuple(definitions)
        self._checked: T.StructType | None = None

    def honoured(self, df: DataFrame, definitions: Sequence[Definition]) -> tuple[Definition, ...]:
        return tuple(routes.honour_watermark(df, d) for d in definitions)

    def positioned(self, df: DataFrame, *, begun: bool) -> tuple[DataFrame, bool]:
        if df.schema != self._checked:
            routes.check_columns(df, self._definitions)
            self._checked = df.schema
        input = self._definitions[0].inputs[0]
        df, has = routes.positioned(df, input.positions)
        return (_prefixed(df, input) if has else df), has

    def schemas(self, df: DataFrame) -> dict[str, pa.Schema]:
        schema = routes.arrow_schema(df)
        return {d.inputs[0].name: schema for d in self._definitions}

    def alone(self, df: DataFrame) -> DataFrame:
        return df

    def on_shards(self, df: DataFrame, sharding: Sharding) -> DataFrame:
        return routes.prepare_rows(df, self._definitions, sharding)

    def again(self, value: Any, *, of_files: bool) -> DataFrame:
        input = self._definitions[0].inputs[0]
        return _prefixed(_again(value, input, of_files=of_files), input)


class NamedFrames:
    """One frame of several inputs, each under its name."""

    def __init__(self, definitions: Sequence[Definition], static: Mapping[str, DataFrame]) -> None:
        self._definitions, self._static = tuple(definitions), dict(static)
        self._inputs = named_inputs(definitions)

    def honoured(self, df: DataFrame, definitions: Sequence[Definition]) -> tuple[Definition, ...]:
        missing = [c for c in (INPUT, *self._inputs) if c not in df.columns]
        if missing:
            names = "".join(f"{n}=df, " for n in self._inputs)[:-2]
            raise UnknownColumn(
                f"column {missing[0]!r} is not in the batch, which has {df.columns}: write the stream that "
                f"together({names}) gives"
            )
        watermarks: dict[str, Watermark] = {}
        for input in (i for i in self._inputs.values() if not i.time_made):
            watermark = routes.watermark_said(_struct(df, input)[input.event_time], input)
            if watermark is not None:
                watermarks[input.name] = watermark
        return tuple(d.with_watermarks(watermarks) if watermarks else d for d in definitions)

    def positioned(self, df: DataFrame, *, begun: bool) -> tuple[DataFrame, bool]:
        if self._static and not begun:
            df = self._with_static(df)
        return df, OFFSET in df.columns

    def _with_static(self, df: DataFrame) -> DataFrame:
        """Add the rows of static inputs to a batch; they are numbered on arrival."""
        for name, frame in self._static.items():
            input = self._inputs[name]
            _check_columns(self._definitions, input, frame)
            user = [F.col(quoted(c)) for c in frame.columns if not c.startswith("__")]
            columns = [F.lit(input.name).alias(INPUT), F.struct(*user).alias(input.name)]
            if OFFSET in df.columns:
                columns += [
                    F.lit(input.source_prefix + "static").alias(SOURCE),
                    F.lit(0).cast("bigint").alias(PARTITION),
                    F.monotonically_increasing_id().alias(OFFSET),
                    F.lit(0).cast("bigint").alias(ORDINAL),
                ]
            df = df.unionByName(frame.select(*columns), allowMissingColumns=True)
        return df

    def schemas(self, df: DataFrame) -> dict[str, pa.Schema]:
        return {name: routes.schema_of(_struct(df, i)) for name, i in self._inputs.items()}

    def alone(self, df: DataFrame) -> DataFrame:
        [name] = self._inputs
        internal = [c for c in df.columns if c.startswith("__") and c != INPUT]
        return jvm_calls.select(df, f"{quoted(name)}.*", *internal)

    def on_shards(self, df: DataFrame, sharding: Sharding) -> DataFrame:
        schemas = self.schemas(df)
        if len(self._definitions) == 1:
            [definition] = self._definitions
            if sharding.shards > 1 and definition.copied:
                return jvm_calls.select(
                    df, f"explode({_copies(definition, schemas, df, sharding)}) as {SHARD}", "*"
                )
            return jvm_calls.select(df, f"{_shard(definition, schemas, df, sharding)} as {SHARD}", "*")
        targets = []
        for i, definition in enumerate(self._definitions):
            takes = ", ".join(text(g.name) for g in definition.inputs)
            shards = _copies(definition, schemas, df, sharding)
            copies = f"transform({shards}, s -> named_struct('{OPERATOR}', {i}, '{SHARD}', s))"
            targets.append(f"case when {INPUT} in ({takes}) then {copies} else array() end")
        columns = [quoted(c) for c in df.columns]
        each = jvm_calls.select(df, f"explode(concat({', '.join(targets)})) as __to", *columns)
        return jvm_calls.select(each, "__to.*", *columns)

    def again(self, value: Any, *, of_files: bool) -> DataFrame:
        streams = [name for name in self._inputs if name not in self._static]
        if not isinstance(value, Mapping) or set(value) != set(streams):
            shown = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise StateLost(
                f"replay= gave {shown}: give a bounded DataFrame of each of the inputs {streams}, by name"
            )
        parts = [
            _carried(i, _again(value[i.name], i, of_files=of_files))
            for i in self._inputs.values()
            if i.name in value
        ]
        frame = parts[0]
        for part in parts[1:]:
            frame = frame.unionByName(part, allowMissingColumns=True)
        for name, static in self._static.items():
            user = [f for f in static.schema.fields if not f.name.startswith("__")]
            frame = frame.withColumn(name, F.lit(None).cast(T.StructType(user)))
        return self._with_static(frame)


def _struct(df: DataFrame, input: Input) -> T.StructType:
    kind = df.schema[input.name].dataType
    assert isinstance(kind, T.StructType)
    return kind


def _shard(
    definition: Definition, schemas: Mapping[str, pa.Schema], frame: DataFrame, sharding: Sharding
) -> str:
    """SQL of the shard of a row: that of its key; in a graph, of those of its fields that all operators share."""
    if sharding.shards == 1 or not definition.by:
        return "0"
    logic, cases = definition.logic(), []
    for input in definition.inputs:
        keys = _keys(logic.key_types(input.name, schemas), input, frame)
        cases.append(f"when {INPUT} = {text(input.name)} then {routes.shard_of(keys, sharding)}")
    return f"case {' '.join(cases)} end"


def _copies(
    definition: Definition, schemas: Mapping[str, pa.Schema], frame: DataFrame, sharding: Sharding
) -> str:
    """SQL of the shards of a row, an array: the shard of its key, or all of them."""
    one = f"array({_shard(definition, schemas, frame, sharding)})"
    if sharding.shards == 1 or not definition.copied:
        return one
    names = ", ".join(text(name) for name in sorted(definition.copied))
    return f"case when {INPUT} in ({names}) then sequence(0, {sharding.shards - 1}) else {one} end"


def _keys(
    keys: Sequence[tuple[str, tuple[pa.DataType, ...]]], input: Input, frame: DataFrame
) -> list[tuple[str, T.DataType]]:
    """SQL of the key fields of an input's rows, each in the type in which operators compare it, one after the other."""
    struct, typed = _struct(frame, input), []
    for column, types in keys:
        sql, kind = f"{quoted(input.name)}.{quoted(column)}", struct[column].dataType
        for kept_type in types:
            kind = from_arrow_type(kept_type)
            sql = f"cast({sql} as {kind.simpleString()})"
        typed.append((sql, kind))
    return typed


def check_one(definitions: Sequence[Definition]) -> None:
    """Refuse one frame where inputs have names."""
    for definition in definitions:
        if definition.by_input:
            names = [i.name for i in definition.inputs]
            raise ConfigurationError(
                f"{definition.name!r} takes the inputs {names}, and one DataFrame is given: give each by its name, e.g. "
                + ", ".join(f"{n}=df" for n in names)
            )


def frame_of(value: Any, what: str) -> DataFrame:
    """Return the value as a DataFrame; raise if it is none."""
    remedy = "give a DataFrame of Spark, such as spark.read... or spark.createDataFrame(...)"
    if not isinstance(value, DataFrame):
        raise ConfigurationError(f"{what} is a {type(value).__name__}: {remedy}")
    if "_jdf" not in vars(value):
        raise SparkUnsupported(f"{what} is a DataFrame of Spark Connect. {NO_CONNECT}")
    return value


def one_way(
    definitions: Sequence[Definition], df: Any, frames: Mapping[str, DataFrame]
) -> Mapping[str, DataFrame]:
    """Return frames by name; raise where the one input has no name, and for both kinds at once."""
    for definition in definitions:
        if not definition.by_input:
            raise ConfigurationError(
                f"{definition.name!r} has one input without a name, and inputs are given by name: give one DataFrame"
            )
    if df is not None:
        raise ConfigurationError(
            f"a DataFrame and the inputs {sorted(frames)} are given: give each by its name"
        )
    return {name: frame_of(frame, f"input {name!r}") for name, frame in frames.items()}


def together(
    definitions: Sequence[Definition], frames: Mapping[str, DataFrame], *, of_files: bool = False
) -> tuple[DataFrame, bool]:
    """Return (one frame of the inputs, by name; True if its positions are of files). `of_files`: give files positions."""
    inputs = named_inputs(definitions)
    if set(frames) != set(inputs):
        raise ConfigurationError(
            f"{', '.join(repr(d.name) for d in definitions)} takes the inputs {list(inputs)}, given are {sorted(frames)}: give "
            "each by its name, e.g. " + ", ".join(f"{n}=df" for n in inputs)
        )
    streaming = any(frame_of(frame, f"input {name!r}").isStreaming for name, frame in frames.items())
    parts, kinds, absent = [], set(), []
    for input in inputs.values():
        frame = frames[input.name]
        _check_columns(definitions, input, frame)
        if streaming and not frame.isStreaming:
            if not input.static:
                raise ConfigurationError(
                    f"the frame of input {input.name!r} is bounded and another is a stream: declare it with static=True, "
                    "or give a stream"
                )
            absent.append(input)
            continue
        part, kind = _part(input, frame, of_files=of_files)
        parts.append(part)
        kinds.add(kind)
    if len(kinds) > 1:
        raise ConfigurationError(
            f"the inputs of {', '.join(repr(d.name) for d in definitions)} have positions of different kinds "
            f"({', '.join(sorted(kinds))}): replays could be recognised on some only; name position columns on all with "
            "positions=wr.positions(...)"
        )
    frame = parts[0]
    for part in parts[1:]:
        frame = frame.unionByName(part, allowMissingColumns=True)
    for input in absent:
        user = [f for f in frames[input.name].schema.fields if not f.name.startswith("__")]
        frame = frame.withColumn(input.name, F.lit(None).cast(T.StructType(user)))
    return frame, kinds == {"files"}


def _part(input: Input, frame: DataFrame, *, of_files: bool) -> tuple[DataFrame, str]:
    """Return the rows of one input in the common columns, and the kind of their positions."""
    frame, has = routes.positioned(frame, input.positions)
    kind = "columns" if has else "none"
    if not has and of_files and frame.isStreaming:
        with_files = routes.with_file_positions(frame)
        if with_files is not None:
            frame, kind = with_files, "files"
    return _carried(input, frame, positions=kind != "none"), kind


def _carried(input: Input, frame: DataFrame, *, positions: bool = True) -> DataFrame:
    """Return the rows of an input in the common columns."""
    user = [F.col(quoted(c)) for c in frame.columns if not c.startswith("__")]
    where = [F.col(c) for c in _POSITION if positions]
    if positions:
        frame = _prefixed(frame, input)
    return frame.select(F.lit(input.name).alias(INPUT), *where, F.struct(*user).alias(input.name))


def _prefixed(frame: DataFrame, input: Input) -> DataFrame:
    """Return the rows of an input with its prefix before their sources."""
    source = f"concat({text(input.source_prefix)}, {SOURCE}) as {SOURCE}"
    return jvm_calls.select(frame, *(source if c == SOURCE else quoted(c) for c in frame.columns))


def _again(df: DataFrame, input: Input, *, of_files: bool) -> DataFrame:
    """Return an input's frame of `replay=`, with positions."""
    if df.isStreaming:
        raise SparkUnsupported(
            "replay= gave a streaming DataFrame: give a bounded one (spark.read, not spark.readStream)"
        )
    if of_files:
        with_files = routes.with_file_positions(df)
        if with_files is None:
            raise PositionsMissing(
                "replay= gave a DataFrame without the files of its rows, by which the stream distinguishes them: read the same "
                "Parquet files"
            )
        return with_files
    df, has = routes.positioned(df, input.positions)
    if not has:
        raise PositionsMissing(
            f"replay= gave a DataFrame without positions, of columns {df.columns}: keep the source's position columns"
        )
    return df


def _check_columns(definitions: Sequence[Definition], input: Input, frame: DataFrame) -> None:
    routes.check_unique(frame)
    for definition in definitions:
        if getattr(definition, "makes", ()):
            raise SparkUnsupported(
                f"keys or event time of {definition.name!r} by expressions, of an input with a name: make these columns in "
                f"the frame of {input.name!r}"
            )
        if input.name not in [i.name for i in definition.inputs]:
            continue
        for name in definition.columns_of(definition.input(input.name)):
            if name not in frame.columns:
                raise UnknownColumn(
                    f"column {name!r} of input {input.name!r} is not in its frame, which has {frame.columns}"
                )
    if not input.time_made:
        routes.check_event_time(frame, input)
