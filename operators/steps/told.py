"""Rows that are told once and for good: how they are labelled, and what they are to users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from windrow.core.messages import JoinedRow, Timing, Token
from windrow.core.types import concat
from windrow.operators.steps.columns import TIMING
from windrow.operators.steps.groups import combine
from windrow.operators.steps.labels import PANE_TYPE


def labelled(rows: pa.Table, timing: str) -> pa.Table:
    """Rows with the timing of their emission."""
    return rows.append_column(TIMING, pa.repeat(pa.scalar(timing, pa.string()), len(rows)))


def without_labels(told: Sequence[pa.Table]) -> pa.Table:
    """The rows themselves, as the next operator sees them."""
    return concat([rows.drop_columns([TIMING]) for rows in told])


def told_rows(told: Sequence[pa.Table], commit: int) -> pa.Table:
    """Rows of the steps of a commit, with the columns of a pane: each is told once, and for good."""
    tables = []
    for rows in told:
        n = len(rows)
        timings = combine(rows.column(TIMING))
        labels = [
            timings,
            pa.array(np.zeros(n, dtype=np.int32)),
            pa.repeat(pa.scalar(True), n),
            pa.repeat(pa.scalar("INSERT"), n),
        ]
        tables.append(
            rows.drop_columns([TIMING])
            .append_column("pane", pa.StructArray.from_arrays(labels, fields=list(PANE_TYPE)))
            .append_column("commit", pa.array(np.full(n, commit, dtype=np.int64)))
        )
    return concat(tables)


def told_schema(fields: Iterable[pa.Field]) -> pa.Schema:
    """The schema of `told_rows` of rows with these fields."""
    return pa.schema([*fields, pa.field("pane", PANE_TYPE), pa.field("commit", pa.int64())])


def to_rows(rows: pa.Table, job: str) -> Iterator[JoinedRow]:
    """Told rows as Python values."""
    for row in rows.to_pylist():
        label, commit = row.pop("pane"), row.pop("commit")
        yield JoinedRow(row, Timing(label["timing"]), commit, Token(job, commit))
