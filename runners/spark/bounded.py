"""The same definition on a bounded DataFrame: backfills and unit tests."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from windrow.core.clock import Clock
from windrow.core.errors import ConfigurationError
from windrow.operators.operator import Definition
from windrow.runners.spark.batch import BatchFunction
from windrow.runners.spark.inputs import check_one, frame_of, one_way, together
from windrow.runners.spark.sinks import rows_of_files
from windrow.stores.temp_dirs import make_scratch


def apply(
    definitions: Sequence[Definition],
    df: DataFrame | None,
    operator: str,
    dead_letters: Any = None,
    frames: Mapping[str, DataFrame] | None = None,
    clock: Clock | None = None,
) -> DataFrame:
    """Return an operator's rows for bounded frames: one commit of all rows, then the end of time. Lives as long as the process.

    df: the one input; frames: inputs by name.
    """
    if df is None or frames:
        df, _ = together(definitions, one_way(definitions, df, frames or {}))
    else:
        check_one(definitions)
    if frame_of(df, "what apply is given").isStreaming:
        raise ConfigurationError(
            "apply needs a bounded DataFrame, this one is streaming: use writeStream(df), or spark.read"
        )
    batch = BatchFunction(definitions, scratch_location(), dead_letters=dead_letters, clock=clock)
    return rows_of(batch, df, operator)


def scratch_location() -> str:
    """Return a location for a job that ends with this process."""
    return os.path.join(make_scratch("apply"), "windrow")


def rows_of(batch: BatchFunction, df: DataFrame, operator: str) -> DataFrame:
    """Return an operator's rows for all rows of `df` in one commit and for the end of time."""
    batch(df, 0)
    batch.input_schema = df.schema
    batch.drain(df.sparkSession)
    job = batch.job
    files = [f for record in job.commits() for f in job.pane_files(record).get(operator, [])]
    batch.close()
    if not files:
        return df.sparkSession.createDataFrame([], batch.pane_schema(df, operator))
    return rows_of_files(df.sparkSession, files)
