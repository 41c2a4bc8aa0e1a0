"""Which message made one session of two: who asks why a session is what it is hears of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray
from windrow.operators.aggregate.sessions.extents import Extents, holders
from windrow.operators.steps.groups import combine

#: Of a state row: the encoded position of the message that joined it, of what was two sessions; of several the last.
JOINED_BY = "__joined_by"


class Pieces(NamedTuple):
    """What came, in the order of positions: from where to where messages, or groups of them, reach.

    positions: gives the last position of some of them, null where they have none. joins: of messages that came one after the
    other those that touched two that were apart, where that is known
    """

    starts: IntArray
    ends: IntArray
    positions: Callable[[pa.Array], pa.Array]
    joins: IntArray | None = None


def with_bridges(
    merged: pa.Table, component: IntArray, parts: Extents | None, pieces: Pieces, piece: IntArray
) -> pa.Table:
    """Merged sessions, of these components, with what joined them. parts: the sessions that there were, whose codes are their
    components; piece: the component of each of the pieces.
    """
    covers = pieces.joins if pieces.joins is not None else _covers(parts, pieces, piece)
    if covers is None or len(covers) == 0:
        return merged
    last = np.full(max(int(component.max()), int(piece.max())) + 1, -1, dtype=np.int64)
    np.maximum.at(last, piece[covers], covers)
    of = last[component]
    positions = pieces.positions(pa.array(np.maximum(of, 0), mask=of < 0))
    if JOINED_BY not in merged.column_names:
        return merged.append_column(JOINED_BY, positions)
    before = combine(merged.column(JOINED_BY))
    return merged.set_column(merged.column_names.index(JOINED_BY), JOINED_BY, pc.coalesce(positions, before))


def _covers(parts: Extents | None, pieces: Pieces, piece: IntArray) -> IntArray | None:
    """The pieces that lie between two of the sessions that there were."""
    if parts is None:
        return None
    several = np.bincount(parts.codes)[parts.codes] > 1
    if not several.any():
        return None
    codes, starts, ends = (column[several] for column in parts)
    order = np.lexsort((starts, codes))
    codes, starts, ends = codes[order], starts[order], ends[order]
    beside = np.flatnonzero(codes[1:] == codes[:-1])
    # Between two sessions that were is a hole. What covers a part of it joined them, and the last of that completed it.
    holes = Extents(codes[beside], ends[beside], starts[beside + 1])
    has_holes = np.zeros(max(int(holes.codes.max()), int(piece.max())) + 1, dtype=bool)
    has_holes[holes.codes] = True
    few = np.flatnonzero(has_holes[piece])
    holder = holders(holes, piece[few], pieces.ends[few] - 1)
    covers: IntArray = few[(holder >= 0) & (holes.ends[np.maximum(holder, 0)] > pieces.starts[few])]
    return covers
