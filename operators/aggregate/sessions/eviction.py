"""Eviction of sessions by size limits: those that end first are evicted, after their last panes.

An `advance` evicts at its beginning, by the counts that the steps before left, as for other windows (`count_retention.py`). A
message at or before the end of an evicted session, of its key or of any, is out of retention: no session ever touches an
emitted one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import Never
from windrow.core.keys import encode_equal
from windrow.core.types import concat
from windrow.operators.aggregate.count_retention import Gone
from windrow.operators.aggregate.sessions.assignment import Filed
from windrow.operators.aggregate.sessions.kept_messages import forget_sessions
from windrow.operators.aggregate.sessions.rows import Step, Stored, live, taken
from windrow.operators.steps.columns import EARLY, END, LATE, MESSAGES, PENDING, START
from windrow.operators.steps.groups import combine
from windrow.stores.key_hash import Hashes
from windrow.stores.kv import KV
from windrow.stores.page_format import hashes_of
from windrow.stores.sessions import HOME, HOT
from windrow.stores.window_state import Near

if TYPE_CHECKING:
    from windrow.operators.aggregate.sessions.logic import SessionAggregator

NONE = np.zeros(0, dtype=bool)


def count(logic: SessionAggregator, step: Step, filed: Filed) -> None:
    """Count the sessions that took messages, in place of those that they absorbed."""
    stored, names = filed.stored, [START, END, MESSAGES, *logic.definition.by]
    before, after = None, [filed.rows.sessions.select(names)]
    if stored.near.rows is not None:
        rows = stored.near.rows.select(names)
        before = taken(rows, stored.sessions)
        after.append(taken(rows, np.intersect1d(filed.stay, stored.sessions)))
    logic.limits.change(step.kv, before, concat(after))


def evict(logic: SessionAggregator, step: Step, watermark_us: int) -> list[pa.Table]:
    """Evict the sessions beyond the limits; return their last panes."""
    by, emit = logic.definition.by, logic.definition.emit
    excess = list(logic.limits.evict(step.kv, logic.retained_from(step.emitted_us)))
    if not excess:
        return []
    stored, removed = _stored(logic, step, excess)
    if stored is None:
        return []
    rows = stored.rows(by, removed)
    ends, pending = (combine(rows.sessions.column(c)).to_numpy() for c in (END, PENDING))
    early, open_ = ~logic.has_passed(ends, watermark_us), ends >= step.closed_us
    not_emitted = ~logic.has_passed(ends, step.emitted_us) & logic.definition.emits_evicted
    for timing, trigger, of_timing in ((EARLY, emit.early, early), (LATE, emit.late, ~early)):
        emitted = (not isinstance(trigger, Never)) | not_emitted
        fires = (pending > 0) & emitted | open_ & emit.closing_pane
        rows = logic._fired(step, rows, fires & of_timing, timing, closing=True)
    panes = list(step.emitted)
    step.emitted.clear()
    assert stored.near.rows is not None
    others = taken(stored.near.rows, stored.others(removed))
    logic.store.put(step.kv, stored.near, others, lambda some: live(some, by, step.emitted_us))
    step.result.evicted.append(rows.sessions)
    if logic.history is not None:
        gone = rows.sessions
        forget_sessions(logic.history, step.kv, logic.store, gone, step.emitted_us, logic.calculation)
    return panes


def _stored(logic: SessionAggregator, step: Step, found: Sequence[Gone]) -> tuple[Stored | None, BoolArray]:
    """Return (rows of keys whose sessions are evicted, true for those sessions)."""
    gone = {(session.key, session.start, session.end) for session in found}
    listed = _listed(logic, step.kv, found)
    if listed is not None:
        stored = logic.near(step, *_places(logic, listed))
        removed = (
            NONE if stored is None else _is_evicted(logic, stored.rows(logic.definition.by).sessions, gone)
        )
        # The keys of sessions that began before the limits may not be listed.
        if logic.limits.by or _messages(stored, removed) == sum(session.messages for session in found):
            return stored, removed
    there = {bucket.home for bucket in logic.store.buckets(step.kv)}
    homes = set(logic.store.home(np.array([session.end for session in found], dtype=np.int64)).tolist())
    rows = logic.read(step.kv, [HOT, *sorted(there & homes)], step.emitted_us)
    if rows is None:
        return None, NONE
    by = logic.definition.by
    sessions = Stored.of(Near(rows, {}), by, step.emitted_us).rows(by).sessions
    sessions = sessions.filter(pa.array(_is_evicted(logic, sessions, gone)))
    places = combine(sessions.column(HOME)).to_numpy(), hashes_of(sessions.select([START, *by]), by)
    stored = logic.near(step, *places)
    return stored, NONE if stored is None else _is_evicted(logic, stored.rows(by).sessions, gone)


def _listed(logic: SessionAggregator, kv: KV, found: Sequence[Gone]) -> list[tuple[int, int]] | None:
    """Return (end, number of the key) of evicted sessions; None where their keys are not known."""
    if logic.limits.keys:
        return [(g.end, key) for g in found for key in logic.limits.keys_of(kv, g.start, g.end)]
    known = [(session.end, session.hashed) for session in found if session.hashed is not None]
    return known if len(known) == len(found) else None


def _places(logic: SessionAggregator, listed: Sequence[tuple[int, int]]) -> tuple[IntArray, Hashes]:
    """Return (buckets, numbers of keys) in which sessions may be: that of their end, or that of open sessions."""
    homes = logic.store.home(np.array([end for end, _ in listed], dtype=np.int64))
    of_keys = np.array([key for _, key in listed], dtype=np.uint64)
    homes, of_keys = np.r_[homes, np.full(len(homes), HOT, dtype=np.int64)], np.r_[of_keys, of_keys]
    order = np.lexsort((of_keys, homes))
    homes, of_keys = homes[order], of_keys[order]
    first = np.ones(len(homes), dtype=bool)
    first[1:] = (homes[1:] != homes[:-1]) | (of_keys[1:] != of_keys[:-1])
    return homes[first], of_keys[first]


def _messages(stored: Stored | None, which: BoolArray) -> int:
    """Return the number of messages of these sessions."""
    return 0 if stored is None else int(stored.values(MESSAGES)[which].sum())


def _is_evicted(
    logic: SessionAggregator, sessions: pa.Table, gone: Collection[tuple[bytes, int, int]]
) -> BoolArray:
    """True for sessions that are among the evicted ones."""
    fields = [sessions.column(b) for b in logic.limits.by]
    keys = encode_equal(fields) if fields else [b""] * len(sessions)
    windows = zip(keys, sessions.column(START).to_pylist(), sessions.column(END).to_pylist(), strict=True)
    return np.array([window in gone for window in windows], dtype=bool)
