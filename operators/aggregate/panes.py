"""Rows of panes as Python values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from windrow.core.messages import Kind, Pane, Timing, Token, TupleWindow, Window
from windrow.core.policy import RESERVED_COLUMNS
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US

_TIMINGS, _KINDS = {one.value: one for one in Timing}, {one.value: one for one in Kind}


def to_panes(rows: pa.Table, by: Sequence[str], job: str, *, tuples: bool) -> Iterator[Pane]:
    """Yield rows of panes as values. by: columns of keys; tuples: windows are of messages, not of time.

    Results are all other columns: those that there were when the rows were emitted.
    """
    if len(rows) == 0:
        return
    aggregates = [name for name in rows.column_names if name not in by and name not in RESERVED_COLUMNS]
    raw, label = (rows.column(name).combine_chunks() for name in ("window", "pane"))
    starts, ends = (_bounds(raw.field(f)) for f in (("first", "last") if tuples else ("start", "end")))
    emitted = [label.field(f).to_pylist() for f in ("timing", "index", "is_last", "kind")]
    commits = rows.column("commit").to_pylist()
    tokens = {commit: Token(job, commit) for commit in set(commits)}
    windows = {span: make_window(*span, tuples=tuples) for span in set(zip(starts, ends, strict=True))}
    every = zip(
        zip(starts, ends, strict=True),
        dicts(rows, by, by),
        dicts(rows, aggregates, aggregates),
        *emitted,
        commits,
        strict=True,
    )
    for span, key, values, timing, index, is_last, kind, commit in every:
        yield Pane(
            windows[span],
            key,
            values,
            _TIMINGS[timing],
            index,
            is_last,
            _KINDS[kind],
            commit,
            tokens[commit],
        )


def dicts(rows: pa.Table, names: Iterable[str], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield some columns of each row, under such names."""
    if not columns:
        return ({} for _ in range(len(rows)))
    names, each = tuple(names), (rows.column(column).to_pylist() for column in columns)
    return (dict(zip(names, values, strict=True)) for values in zip(*each, strict=True))


def _bounds(column: pa.Array) -> list[int | None]:
    values: list[int | None] = column.cast(pa.int64()).to_pylist()
    return values


def make_window(start: int | None, end: int | None, *, tuples: bool) -> Window | TupleWindow:
    low = START_OF_TIME_US if start is None else start
    high = END_OF_TIME_US if end is None else end
    return TupleWindow(low, high) if tuples else Window(low, high)
