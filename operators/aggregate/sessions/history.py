"""The messages behind sessions whose aggregations need them: read again session by session, when one fires.

They are filed by key and time (`history.py`), so that a session is one range of them: what lies between its start and its end
was taken by it, or by a part of it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.types import concat
from windrow.operators.aggregate.history import History, moments
from windrow.operators.aggregate.sessions.extents import holders
from windrow.operators.aggregate.sessions.rows import Rows, codes_of, extents
from windrow.operators.aggregations.calculation import Broken, Calculation
from windrow.operators.steps.columns import EMIT_STEP, END, START, STEP
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.stores.kv import KV, Batch
from windrow.stores.sessions import SessionStore


def values_of_sessions(
    history: History, kv: KV, sessions: pa.Table, panes: pa.Table | None, calculation: Calculation
) -> tuple[dict[str, pa.Array], list[Broken]]:
    """Values of sessions, from their messages; in a mode that discards, from those that no part of them has told."""
    rows, of = messages_of(history, kv, sessions, calculation)
    if rows is not None and panes is not None and len(panes) and history.definition.emit.mode == "discarding":
        fresh = np.flatnonzero(~_told_in_parts(rows, panes, history.definition.by))
        rows, of = rows.take(fresh), of[fresh]
    starts = combine(sessions.column(START)).to_numpy()[of]
    return history.evaluate(kv, sessions, rows, np.arange(len(of), dtype=np.int64), starts, calculation)


def messages_of(
    history: History, kv: KV, state: pa.Table, calculation: Calculation
) -> tuple[Slice | None, IntArray]:
    """(the messages of sessions, of which session each is): one session after the other, in order of time, or of numbers."""
    by = history.definition.by
    encoded = history.encode([state.column(b) for b in by]) if by else [None] * len(state)
    keys, values, found = list[bytes](), list[bytes](), list[int]()
    starts = combine(state.column(START)).to_numpy()
    ends = combine(state.column(END)).to_numpy()
    for key, start, end in zip(encoded, starts.tolist(), ends.tolist(), strict=True):
        some, theirs = history.store.scan_between(kv, (start, None), (end - 1, None), key)
        keys += some
        values += theirs
        found.append(len(some))
    of: IntArray = np.repeat(np.arange(len(state), dtype=np.int64), np.array(found, dtype=np.int64))
    return history.decode(kv, keys, values, calculation), of


def told_apart(rows: Rows, component: IntArray) -> Rows:
    """Sessions of which several become one, in a mode that discards: up to which step each was told is noted beside them."""
    joins = np.bincount(component)[component] > 1
    told = joins & combine(rows.sessions.column(EMIT_STEP)).is_valid().to_numpy(zero_copy_only=False)
    if not told.any():
        return rows
    parts = rows.sessions.filter(pa.array(told)).select(rows.panes.column_names)
    steps = pc.if_else(pa.array(joins), None, combine(rows.sessions.column(EMIT_STEP)))
    at = rows.sessions.column_names.index(EMIT_STEP)
    sessions, owner = rows.sessions.set_column(at, EMIT_STEP, steps), np.r_[rows.owner, np.flatnonzero(told)]
    return Rows(sessions, concat([rows.panes, parts]), owner)


def _told_in_parts(rows: Slice, parts: pa.Table, by: tuple[str, ...]) -> BoolArray:
    """True for messages that were told of a part of their session."""
    codes = codes_of([parts, rows.table], by)
    n = len(parts)
    holder = holders(extents(parts, codes[:n]), codes[n:], moments(rows))
    within = (holder >= 0) & (moments(rows) < combine(parts.column(END)).to_numpy()[np.maximum(holder, 0)])
    steps = combine(parts.column(EMIT_STEP)).fill_null(-1).to_numpy()[np.maximum(holder, 0)]
    told: BoolArray = within & (combine(rows.table.column(STEP)).to_numpy() <= steps)
    return told


def of_sessions(rows: Slice, sessions: pa.Table | None, by: tuple[str, ...]) -> Slice:
    """The messages that belong to one of these sessions."""
    if sessions is None or len(sessions) == 0:
        return rows.take(np.zeros(0, dtype=np.int64))
    codes = codes_of([sessions, rows.table], by)
    n = len(sessions)
    holder = holders(extents(sessions, codes[:n]), codes[n:], moments(rows))
    ends = combine(sessions.column(END)).to_numpy()[np.maximum(holder, 0)]
    return rows.take(np.flatnonzero((holder >= 0) & (moments(rows) < ends)))


def forget_messages(history: History, kv: KV, store: SessionStore, passed_us: int) -> None:
    """Forget what is older than all sessions that are kept. passed_us: those that end before it have been told as ended."""
    history.drop(kv, store.first_kept(kv, passed_us))


def forget_sessions(history: History, kv: KV, store: SessionStore, gone: pa.Table, passed_us: int) -> None:
    """Forget the messages of these sessions."""
    if history.fields != history.definition.by or not history.store.layout.fields_first:
        return forget_messages(history, kv, store, passed_us)  # they do not lie together
    keys = history.encode([gone.column(b) for b in history.fields])
    starts, ends = (combine(gone.column(column)).to_pylist() for column in (START, END))
    batch = Batch()
    for low, high in history.store.spans(keys, starts, ends):
        batch.delete_range(history.cf, low, high)
    kv.write(batch)
