"""Provenance of merges: the message that merged two sessions, for `explain()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray
from windrow.operators.aggregate.sessions.extents import Extents, holders
from windrow.operators.steps.groups import combine

#: Column of a state row: the encoded position of the message that merged two sessions into it; of several the last.
JOINED_BY = "__joined_by"


class Pieces(NamedTuple):
    """New messages, or groups of them, in the order of positions, with their start and end.

    positions: gives the last position of some of them, null where they have none. joins: of messages that came one after the
    other those that touched two separate sessions, where that is known
    """

    starts: IntArray
    ends: IntArray
    positions: Callable[[pa.Array], pa.Array]
    joins: IntArray | None = None


def with_bridges(
    merged: pa.Table, component: IntArray, parts: Extents | None, pieces: Pieces, piece: IntArray
) -> pa.Table:
    """Add to merged sessions the message that merged them. component: that of each session; parts: the former sessions, whose
    codes are their components; piece: the component of each of the pieces.
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
    """Return the pieces that lie between two of the former sessions."""
    if parts is None:
        return None
    several = np.bincount(parts.codes)[parts.codes] > 1
    if not several.any():
        return None
    codes, starts, ends = (column[several] for column in parts)
    order = np.lexsort((starts, codes))
    codes, starts, ends = codes[order], starts[order], ends[order]
    beside = np.flatnonzero(codes[1:] == codes[:-1])
    # Between two former sessions is a hole. Pieces that cover a part of it merged them, and the last of these completed it.
    holes = Extents(codes[beside], ends[beside], starts[beside + 1])
    has_holes = np.zeros(max(int(holes.codes.max()), int(piece.max())) + 1, dtype=bool)
    has_holes[holes.codes] = True
    few = np.flatnonzero(has_holes[piece])
    holder = holders(holes, piece[few], pieces.ends[few] - 1)
    covers: IntArray = few[(holder >= 0) & (holes.ends[np.maximum(holder, 0)] > pieces.starts[few])]
    return covers
