"""Kept messages of sessions whose aggregations need them: read again session by session, when one fires.

They are keyed by key and time (`kept_messages.py`), so that a session is one range of them. The range may hold messages of
other sessions, where an open session has come to overlap closed ones. A late message has the last end of a session that was
closed to it, `__closed`. The later of that and its time is its stamp. A session's messages have stamps before its end and from
`MESSAGES_FROM` on. That is no earlier than the end of any session that was closed when this one came to overlap it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.keys import encode_equal
from windrow.core.time import START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregate.kept_messages import CLOSED, History, moments
from windrow.operators.aggregate.sessions.extents import first_ending, holders
from windrow.operators.aggregate.sessions.rows import Rows, codes_of, extents
from windrow.operators.aggregations.calculation import Broken, Calculation
from windrow.operators.steps.columns import EMIT_STEP, END, MESSAGES_FROM, START, STEP
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.stores.kv import KV, Batch, Pair
from windrow.stores.sessions import SessionStore


def values_of_sessions(
    history: History, kv: KV, sessions: pa.Table, panes: pa.Table | None, calculation: Calculation
) -> tuple[dict[str, pa.Array], list[Broken]]:
    """Return values of sessions, from their messages; in discarding mode, from those that no part of them has emitted."""
    rows, of = messages_of(history, kv, sessions, calculation)
    if rows is not None and panes is not None and len(panes) and history.definition.emit.mode == "discarding":
        fresh = np.flatnonzero(~_emitted_in_parts(rows, of, sessions, panes, history.definition.by))
        rows, of = rows.take(fresh), of[fresh]
    each = np.arange(len(of), dtype=np.int64)
    return history.evaluate_members(kv, sessions, rows, each, of, calculation)


def messages_of(
    history: History, kv: KV, state: pa.Table, calculation: Calculation, keys: list[bytes] | None = None
) -> tuple[Slice | None, IntArray]:
    """Return (the messages of sessions, the session of each), session after session, by times or numbers. keys: receives their
    store keys
    """
    by = history.definition.by
    encoded = encode_equal([state.column(b) for b in by]) if by else [None] * len(state)
    counts = list[int]()
    starts = combine(state.column(START)).to_numpy()
    ends = combine(state.column(END)).to_numpy()

    def pairs() -> Iterator[Pair]:
        for key, start, end in zip(encoded, starts.tolist(), ends.tolist(), strict=True):
            n = 0
            for pair in history.store.pairs_between(kv, (start, None), (end - 1, None), key):
                if keys is not None:
                    keys.append(pair[0])
                n += 1
                yield pair
            counts.append(n)

    rows = history.read(kv, pairs(), calculation)
    of: IntArray = np.repeat(np.arange(len(state), dtype=np.int64), np.array(counts, dtype=np.int64))
    if rows is None:
        return None, of
    closed = combine(rows.table.column(CLOSED)).to_numpy()
    inside = (closed < ends[of]) & (np.maximum(moments(rows), closed) >= _messages_from(state)[of])
    if inside.all():
        return rows, of
    if keys is not None:
        keys[:] = itertools.compress(keys, inside.tolist())
    places = np.flatnonzero(inside)
    return rows.take(places), of[places]


def closed_to(rows: Slice, closed_us: int) -> IntArray:
    """Return the last end of a session closed to each late message. closed_us: sessions that end before it are closed"""
    return np.where(moments(rows) < closed_us, max(closed_us - 1, START_OF_TIME_US), START_OF_TIME_US)


def _messages_from(sessions: pa.Table) -> IntArray:
    """Return the first stamp that a message of each session has, or one before it."""
    starts: IntArray = combine(sessions.column(START)).to_numpy()
    if MESSAGES_FROM not in sessions.column_names:
        return starts
    column = pc.max_element_wise(combine(sessions.column(MESSAGES_FROM)), combine(sessions.column(START)))
    return np.asarray(column.to_numpy(), dtype=np.int64)


def note_emitted_parts(rows: Rows, component: IntArray) -> Rows:
    """Record the emitted step of each part of sessions that merge, in discarding mode."""
    joins = np.bincount(component)[component] > 1
    emitted = joins & combine(rows.sessions.column(EMIT_STEP)).is_valid().to_numpy(zero_copy_only=False)
    if not emitted.any():
        return rows
    parts = rows.sessions.filter(pa.array(emitted)).select(rows.panes.column_names)
    steps = pc.if_else(pa.array(joins), None, combine(rows.sessions.column(EMIT_STEP)))
    at = rows.sessions.column_names.index(EMIT_STEP)
    sessions, owner = (
        rows.sessions.set_column(at, EMIT_STEP, steps),
        np.r_[rows.owner, np.flatnonzero(emitted)],
    )
    return Rows(sessions, concat([rows.panes, parts]), owner)


def _emitted_in_parts(
    rows: Slice, of: IntArray, sessions: pa.Table, parts: pa.Table, by: tuple[str, ...]
) -> BoolArray:
    """True for messages that were emitted in a part of their session. of: the session of each"""
    codes, n = codes_of([sessions, parts], by), len(sessions)
    ends = combine(parts.column(END)).to_numpy()
    owner = first_ending(extents(sessions, codes[:n]), codes[n:], ends)
    holder = holders(extents(parts, owner), of, moments(rows))
    within = (holder >= 0) & (moments(rows) < ends[np.maximum(holder, 0)])
    steps = combine(parts.column(EMIT_STEP)).fill_null(-1).to_numpy()[np.maximum(holder, 0)]
    emitted: BoolArray = within & (combine(rows.table.column(STEP)).to_numpy() <= steps)
    return emitted


def of_sessions(rows: Slice, sessions: pa.Table | None, by: tuple[str, ...]) -> Slice:
    """Return the messages that belong to one of these sessions."""
    if sessions is None or len(sessions) == 0:
        return rows.take(np.zeros(0, dtype=np.int64))
    codes = codes_of([sessions, rows.table], by)
    n, times = len(sessions), moments(rows)
    stamps = np.maximum(times, combine(rows.table.column(CLOSED)).to_numpy())
    # The first session that ends after the stamp, if any: those that end before it did not take the message.
    holder = first_ending(extents(sessions, codes[:n]), codes[n:], stamps + 1)
    starts, first = combine(sessions.column(START)).to_numpy(), _messages_from(sessions)
    held = (holder >= 0) & (times >= starts[holder]) & (stamps >= first[holder])
    return rows.take(np.flatnonzero(held))


def forget_messages(history: History, kv: KV, store: SessionStore, passed_us: int) -> None:
    """Delete messages older than all retained sessions. passed_us: those that end before it have been emitted as ended."""
    history.drop(kv, store.first_kept(kv, passed_us))


def forget_sessions(
    history: History, kv: KV, store: SessionStore, gone: pa.Table, passed_us: int, calculation: Calculation
) -> None:
    """Delete the messages of these sessions."""
    if history.fields != history.definition.by or not history.store.layout.fields_first:
        return forget_messages(history, kv, store, passed_us)  # they are not contiguous
    keys = list[bytes]()
    messages_of(history, kv, gone, calculation, keys)
    batch = Batch()
    batch.delete_many(history.cf, keys)
    kv.write(batch)
