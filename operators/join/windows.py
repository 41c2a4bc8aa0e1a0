"""Window metadata of one input of a join, from the messages that are kept. Seed 003 "Get Windows".

Joins need no window metadata to match, so none is stored: it is computed from the messages.
"""

from __future__ import annotations

import numpy as np

from windrow.core.arrays import IntArray
from windrow.core.messages import Position, TupleWindow, Window, WindowInfo
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.windows import Hopping, JoinWindowSpec, Rows, Sliding, Tumbling
from windrow.operators.join.tables import ranks
from windrow.operators.steps.assigners import assigner_of
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.operators.steps.intake import Slice


def windows_of_input(
    window: JoinWindowSpec | None, rows: Slice, low_us: int, high_us: int, watermark_us: int
) -> list[WindowInfo]:
    """Return the windows that hold a message and overlap the closed range, sorted.

    Tumbling and hopping windows are those that cover a message. A sliding window ends at a message: `[t - before,
    t + after]`, one for each time of a message; an unbounded one, or none, holds all up to the newest. A window of rows is the
    newest `n` messages, numbered from the oldest that is kept.
    """
    if not len(rows):
        return []
    order = np.lexsort((ranks(rows), rows.times))
    rows = rows.take(order)
    place = ranks(rows)
    if isinstance(window, Rows):
        held = min(window.n, len(rows))
        newest = np.sort(np.argsort(place, kind="stable")[-held:])
        span = TupleWindow(len(rows) - held + 1, len(rows))
        return [_info(rows, place, newest, span, watermark_us)]
    starts, ends = _spans(window, rows.times)
    wanted = (starts <= high_us) & (ends > low_us)
    infos = []
    for start, end in zip(starts[wanted].tolist(), ends[wanted].tolist(), strict=True):
        first, last = np.searchsorted(rows.times, [start, end], "left")
        inside = np.arange(first, last, dtype=np.int64)
        if len(inside):
            infos.append(_info(rows, place, inside, Window(start, end), watermark_us))
    return infos


def _spans(window: JoinWindowSpec | None, times: IntArray) -> tuple[IntArray, IntArray]:
    """Return start and end of each window, sorted."""
    if isinstance(window, (Tumbling, Hopping)):
        _, starts, ends = assigner_of(window).assign(times)
        starts, first = np.unique(starts, return_index=True)
        return starts, ends[first]
    distinct = np.unique(times)
    if not isinstance(window, Sliding) or window.before_us is None:
        return np.array([START_OF_TIME_US]), distinct[-1:] + 1
    if window.after_us is None:
        return distinct[:1], np.array([END_OF_TIME_US])
    opened = int(window.closed in ("right", "neither"))
    shut = int(window.closed in ("left", "neither"))
    return distinct - window.before_us + opened, distinct + window.after_us + 1 - shut


def _info(
    rows: Slice, place: IntArray, inside: IntArray, window: Window | TupleWindow, watermark_us: int
) -> WindowInfo:
    by_position = inside[np.argsort(place[inside], kind="stable")]
    return WindowInfo(
        window=window,
        key={},
        messages=len(inside),
        first=position_of(rows, int(by_position[0])),
        last=position_of(rows, int(by_position[-1])),
        values={},
        panes=0,
        fired=isinstance(window, Window) and window.end_us <= watermark_us,
    )


def position_of(rows: Slice, i: int) -> Position:
    source, partition, offset, ordinal = (
        rows.table.column(c)[i].as_py() for c in (SOURCE, PARTITION, OFFSET, ORDINAL)
    )
    return Position(source, partition, offset, ordinal)
