"""The same definition on a bounded DataFrame: backfills and unit tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.graph.definition import ChainDefinition
from windrow.runners.spark.batch import BatchFunction
from windrow.stores.scratch import make_scratch


def apply(
    definitions: Sequence[AggregateDefinition | ChainDefinition],
    df: DataFrame,
    operator: str,
    dead_letters: Any = None,
) -> DataFrame:
    """Panes of a bounded frame: one commit of all rows, then the end of time. Lives as long as this process."""
    return rows_of(BatchFunction(definitions, scratch_location(), dead_letters=dead_letters), df, operator)


def scratch_location() -> str:
    """A place for a job that ends with this process."""
    return os.path.join(make_scratch("apply"), "windrow")


def rows_of(batch: BatchFunction, df: DataFrame, operator: str) -> DataFrame:
    """What an operator tells of all rows of `df` in one commit and of the end of time."""
    batch(df, 0)
    batch.input_schema = df.schema
    batch.drain(df.sparkSession)
    job = batch.job
    files = [f for record in job.commits() for f in job.pane_files(record).get(operator, [])]
    batch.close()
    if not files:
        return df.sparkSession.createDataFrame([], batch.pane_schema(df, operator))
    return df.sparkSession.read.parquet(*files)
