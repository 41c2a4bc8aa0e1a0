"""External merge sort of panes of many keys: sorted runs are kept in a file, and merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import taken as rows_taken
from windrow.core.types import concat
from windrow.operators.aggregate.state_rows import in_window_order
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
