"""Functions as sinks on Spark: of panes they get a DataFrame, of dead letters the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windrow.connectors.pane_files import PaneFiles, Sink
from windrow.connectors.sinks import CallbackSink, as_sink
from windrow.core.errors import SparkUnsupported
from windrow.core.messages import Token
from windrow.core.sql import quoted
from windrow.core.time import TIME_UNITS


def rows_of_files(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """Return the rows of pane files. Parquet has no durations: Spark would read their numbers."""
    rows = spark.read.parquet(*files)
    intervals = {}
    for field in pq.read_schema(files[0]):
        if pa.types.is_duration(field.type):
            many, each_us = TIME_UNITS[field.type.unit]
            us = f"timestamp_micros({quoted(field.name)} * {each_us} DIV {many})"
            intervals[field.name] = F.expr(f"{us} - timestamp_micros(0)")
    return rows.withColumns(intervals) if intervals else rows


class DataFrameSink:
    """A function of (DataFrame of committed panes, token). After a crash it may get the same token again."""

    def __init__(self, function: Callable[[DataFrame, Token], None]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return f"wr.sinks.callback({self.function!r})"

    def publish(self, token: Token, panes: PaneFiles) -> None:
        raise SparkUnsupported(
            "a DataFrame sink needs a Spark session: use it with foreach_batch or writeStream"
        )

    def publish_frame(self, spark: SparkSession, token: Token, panes: PaneFiles) -> None:
        self.function(rows_of_files(spark, panes.files), token)

    def last_commit(self, job: str, operator: str) -> int | None:
        return None


class LettersFunction:
    """A function of (token, Parquet files of dead letters). After a crash it may get the same token again."""

    def __init__(self, function: Callable[[Token, tuple[str, ...]], None]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return repr(self.function)

    def publish(self, token: Token, panes: PaneFiles) -> None:
        self.function(token, panes.files)

    def last_commit(self, job: str, operator: str) -> int | None:
        return None


def give(spark: SparkSession, sink: Sink, token: Token, panes: PaneFiles) -> None:
    """Publish panes to a sink; one that is a function of DataFrames gets a DataFrame."""
    if isinstance(sink, DataFrameSink):
        sink.publish_frame(spark, token, panes)
    else:
        sink.publish(token, panes)


def as_spark_sink(sink: Any) -> Sink:
    """Return a sink; on Spark a plain function gets a DataFrame."""
    plain = as_sink(sink)
    return DataFrameSink(plain.function) if isinstance(plain, CallbackSink) else plain


def as_letters_sink(sink: Any) -> Sink:
    """Return a sink of dead letters; a plain function gets their files."""
    plain = as_sink(sink)
    return LettersFunction(sink) if isinstance(plain, CallbackSink) and plain is not sink else plain
