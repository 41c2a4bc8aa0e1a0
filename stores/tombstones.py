"""Tombstone blocks. A change to a window of blocks is appended as a delta, and the window is not rewritten.

A tombstone is a row whose `__upsert` is false. Its block, and all later ones, are of kind 2. It deletes the earlier rows
of this window whose keys have the same hash. Rows of such keys that stay are appended again after it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray, taken
from windrow.core.types import concat
from windrow.stores.key_hash import Hashes
from windrow.stores.page_format import among, hashes_of
from windrow.stores.window_state import START, UPSERT


def takes_away(rows: pa.Table) -> bool:
    """True if some row is a tombstone."""
    return not bool(_upserts(rows).all())


def live_rows(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return the rows that no tombstone deletes, oldest first."""
    upserts = _upserts(rows)
    if upserts.all():
        return rows
    own = hashes_of(rows, by)
    few = np.flatnonzero(among(own, own[~upserts]))
    codes = _codes(rows.column(START).to_numpy()[few], own[few])
    last, says = np.full(len(few), -1, dtype=np.int64), ~upserts[few]
    np.maximum.at(last, codes[says], few[says])
    there = np.ones(len(rows), dtype=bool)
    there[few[few <= last[codes]]] = False
    return taken(rows, np.flatnonzero(there))


def changes(rows: pa.Table, stays: BoolArray, by: Sequence[str]) -> pa.Table:
    """Return the delta after which only some of `rows` stay. `rows` are all rows of their keys in their windows."""
    codes = _codes(rows.column(START).to_numpy(), hashes_of(rows, by))
    gone = np.flatnonzero(~stays)
    _, first = np.unique(codes[gone], return_index=True)
    changed = np.zeros(len(rows), dtype=bool)
    changed[codes[gone]] = True
    again = np.flatnonzero(stays & changed[codes])
    parts = [
        taken(rows, places).append_column(UPSERT, pa.array(np.full(len(places), upsert)))
        for places, upsert in ((gone[first], False), (again, True))
    ]
    return concat(parts)


def _upserts(rows: pa.Table) -> BoolArray:
    return np.asarray(rows.column(UPSERT).to_numpy(), dtype=bool)


def _codes(starts: IntArray, hashes: Hashes) -> IntArray:
    """Return a number below that of the rows for each (window, hash)."""
    order = np.lexsort((hashes, starts))
    starts, hashes, codes = starts[order], hashes[order], np.zeros(len(order), dtype=np.int64)
    codes[order[1:]] = np.cumsum((starts[1:] != starts[:-1]) | (hashes[1:] != hashes[:-1]))
    return codes
