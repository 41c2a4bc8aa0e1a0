"""Queries, each written for windrow, as Spark's SQL, as Flink's SQL, and as plain arithmetic over all events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa

NONE = "0 seconds"
WATERMARK = "4 seconds"
#: Columns of results that are times.
TIMES = ("window_end", "t", "bid_t", "expires")


@dataclass(frozen=True)
class Plan:
    """A query in windrow's words.

    inputs: what comes from outside, the kind of event and the columns that are read, by name
    rows: what the sink got, with the columns of the query's result
    renamed: columns of the events that the definition calls otherwise
    """

    definition: Any
    inputs: Mapping[str, tuple[int, list[str]]]
    rows: Callable[[pl.DataFrame], pl.DataFrame]
    shards: int = 1
    renamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Query:
    """One query of Nexmark's.

    published: events a second and core of Flink, by its guide (the second version of its runner)
    plans: of windrow, by the name that is put behind "windrow"
    columns: of the result
    expected: the result over all events
    spark: None where it cannot
    flink: Nexmark's own, that tells the window besides; others by the name that is put behind "Flink"
    closes: the column of the time, and how far behind it the watermark is, when Spark tells a row; None if at once
    """

    name: str
    published: float
    plans: Mapping[str, Plan]
    columns: tuple[str, ...]
    expected: Callable[[pl.LazyFrame], pl.LazyFrame]
    spark: str | None
    flink: Mapping[str, str]
    closes: tuple[str, str] | None = ("window_end", "0s")


def ends(panes: pl.DataFrame) -> pl.DataFrame:
    """Panes with the end of their window as a column."""
    return panes.with_columns(window_end=pl.col("window").struct.field("end"))


def result(query: Query, rows: pl.DataFrame) -> pl.DataFrame:
    """The columns of the result, as they are compared."""
    times = pl.selectors.temporal().cast(pl.Datetime("us", "UTC"))
    return rows.select(query.columns).with_columns(times).sort(query.columns)


def as_frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
