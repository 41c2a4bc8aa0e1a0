"""Rows of panes as Python values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from windrow.core.messages import Kind, Pane, Timing, Token, TupleWindow, Window
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US


def to_panes(
    rows: pa.Table, by: Sequence[str], aggregates: Sequence[str], job: str, *, tuples: bool
) -> Iterator[Pane]:
    """Rows of panes as values. by, aggregates: columns of keys and results; tuples: windows are of messages, not of time."""
    if len(rows) == 0:
        return
    raw = rows.column("window").combine_chunks()
    starts, ends = (_bounds(raw.field(f)) for f in (("first", "last") if tuples else ("start", "end")))
    keys = [rows.column(b).to_pylist() for b in by]
    values = [rows.column(a).to_pylist() for a in aggregates]
    labels = rows.column("pane").to_pylist()
    commits = rows.column("commit").to_pylist()
    for i, label in enumerate(labels):
        yield Pane(
            window=make_window(starts[i], ends[i], tuples=tuples),
            key={b: keys[j][i] for j, b in enumerate(by)},
            values={a: values[j][i] for j, a in enumerate(aggregates)},
            timing=Timing(label["timing"]),
            index=label["index"],
            is_last=label["is_last"],
            kind=Kind(label["kind"]),
            commit=commits[i],
            token=Token(job, commits[i]),
        )


def _bounds(column: pa.Array) -> list[int | None]:
    values: list[int | None] = column.cast(pa.int64()).to_pylist()
    return values


def make_window(start: int | None, end: int | None, *, tuples: bool) -> Window | TupleWindow:
    low = START_OF_TIME_US if start is None else start
    high = END_OF_TIME_US if end is None else end
    return TupleWindow(low, high) if tuples else Window(low, high)
