"""Order of panes: by window and key; in memory, and by an external merge sort: sorted runs are kept in a file, and merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray
from windrow.core.arrays import taken as rows_taken
from windrow.core.types import concat
from windrow.operators.steps.columns import END, START
from windrow.operators.steps.groups import combine, value_order
from windrow.stores.spill import Spill

#: Size of state rows in memory at a time, in bytes, and of the emitted panes.
SLICE_BYTES = 16 << 20


def in_order(runs: Iterable[pa.Table], by: Sequence[str], most: int) -> pa.Table | None:
    """Merge sorted runs into one table in a file. The runs are sorted by (start, end, key), and share none of these.

    Return None if there are no rows."""
    waiting = Spill()
    for number, run in enumerate(runs):
        waiting.add(run, number)
    sorted_runs = list(waiting.mapped().values())
    if len(sorted_runs) < 2:
        return sorted_runs[0] if sorted_runs else None
    merged = Spill()
    for rows in _merged(sorted_runs, by, most):
        merged.add(rows)
    return merged.mapped()[0]


def _merged(runs: Sequence[pa.Table], by: Sequence[str], most: int) -> Iterator[pa.Table]:
    """Yield the rows in order, about so many bytes at a time.

    The next rows of each run are sorted together. Rows after the last one of any run that continues are left for the next
    time.
    """
    each = max(1, most * sum(map(len, runs)) // max(1, sum(run.nbytes for run in runs)) // len(runs))
    at = np.zeros(len(runs), dtype=np.int64)
    sizes = np.array([len(run) for run in runs], dtype=np.int64)
    while (at < sizes).any():
        taken = np.minimum(each, sizes - at)
        heads = concat([run.slice(a, n) for run, a, n in zip(runs, at.tolist(), taken.tolist(), strict=True)])
        order = in_window_order(heads, by)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        ends = np.cumsum(taken)
        continues = at + taken < sizes
        until = int(place[ends[continues] - 1].min()) + 1 if continues.any() else len(order)
        yield rows_taken(heads, order[:until])
        at += np.bincount(np.searchsorted(ends, order[:until], side="right"), minlength=len(runs))


#: From this number on, rows are sorted as numbers, where they can be.
_MANY = 1 << 12


def in_window_order(rows: pa.Table, by: Sequence[str]) -> IntArray:
    """Return indices that sort by (start, end, key), stably: the order of panes in a step. Null keys come first, NaN last."""
    if len(rows) < 2:
        return np.arange(len(rows), dtype=np.int64)
    starts = combine(rows.column(START)).to_numpy()
    if (fast := _numbers_order(rows, starts, by)) is not None:
        return fast
    if starts[0] != starts[-1]:
        order = np.argsort(starts, kind="stable")
        same = np.diff(starts[order]) == 0
        tied = np.flatnonzero(np.r_[False, same] | np.r_[same, False])
        if 2 * len(tied) < len(rows):  # the start decides for most, as of sessions
            ties = order[tied]
            order[tied] = ties[_in_whole_order(rows.select([START, END, *by]).take(pa.array(ties)), by)]
            return order
    return _in_whole_order(rows, by)


def _numbers_order(rows: pa.Table, starts: IntArray, by: Sequence[str]) -> IntArray | None:
    """Return `in_window_order` of many windows whose keys are near each other; None of others."""
    if len(rows) < _MANY:
        return None
    lengths = combine(rows.column(END)).to_numpy() - starts
    names = [START, *by] if bool((lengths == lengths[0]).all()) else [START, END, *by]
    return value_order([combine(rows.column(name)) for name in names])


def _in_whole_order(rows: pa.Table, by: Sequence[str]) -> IntArray:
    """Return `in_window_order`, comparing all columns of all rows."""
    columns: dict[str, pa.Array] = {}
    for name in (START, END, *by):
        column = combine(rows.column(name))
        if name in (START, END) and _is_constant(column):
            continue  # of one window
        if pa.types.is_floating(column.type):
            nan = pc.is_nan(column)
            columns[f"{len(columns)}"] = pc.fill_null(nan, False)
            column = pc.if_else(nan, pa.scalar(0.0, column.type), column)
        columns[f"{len(columns)}"] = column
    if len(columns) == 1:
        [column] = columns.values()
        order = pc.array_sort_indices(column, null_placement="at_start")  # it is stable
        return np.asarray(order.to_numpy(), dtype=np.int64)
    columns["row"] = pa.array(np.arange(len(rows)))
    sort_keys = [(name, "ascending", "at_start") for name in columns]
    return np.asarray(pc.sort_indices(pa.table(columns), sort_keys=sort_keys).to_numpy(), dtype=np.int64)


def _is_constant(column: pa.Array) -> bool:
    return len(column) == 0 or (column[0] == column[-1] and len(set(pc.min_max(column).values())) == 1)
