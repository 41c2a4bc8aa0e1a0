"""Parts of an advance of sessions: eviction by size limits, timers of processing time, and corrections.

An `advance` evicts at its beginning, by the counts that the steps before left, as for other windows (`count_retention.py`):
sessions that end first, after their last panes. A message at or before the end of an evicted session, of its key or of any, is
out of retention: no session ever touches an emitted one. Periods are on one grid of `now` for the whole definition.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import Trigger
from windrow.core.keys import encode_equal
from windrow.core.types import concat
from windrow.operators.aggregate.count_retention import Gone
from windrow.operators.aggregate.sessions.assignment import Filed
from windrow.operators.aggregate.sessions.kept_messages import forget_sessions
from windrow.operators.aggregate.sessions.merging import settled
from windrow.operators.aggregate.sessions.parts import Sessions
from windrow.operators.aggregate.sessions.rows import Step, Stored, live, taken
from windrow.operators.aggregate.timing import by_timing, fires_evicted
from windrow.operators.aggregate.triggers import delays
from windrow.operators.steps.columns import EARLY, END, LATE, MESSAGES, PANES, PENDING, START
from windrow.operators.steps.groups import combine
from windrow.stores.key_hash import Hashes
from windrow.stores.kv import KV
from windrow.stores.page_format import hashes_of
from windrow.stores.sessions import HOME, HOT
from windrow.stores.window_state import Near

NONE = np.zeros(0, dtype=bool)


def count(logic: Sessions, step: Step, filed: Filed) -> None:
    """Count the sessions that took messages, in place of those that they absorbed."""
    stored, names = filed.stored, [START, END, MESSAGES, *logic.definition.by]
    before, after = None, [filed.rows.sessions.select(names)]
    if stored.near.rows is not None:
        rows = stored.near.rows.select(names)
        before = taken(rows, stored.sessions)
        after.append(taken(rows, np.intersect1d(filed.stay, stored.sessions)))
    logic.limits.change(step.kv, before, concat(after))


def evict(logic: Sessions, step: Step, watermark_us: int) -> list[pa.Table]:
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
    definition, open_, ended = (
        logic.definition,
        ends >= step.closed_us,
        logic.has_passed(ends, step.emitted_us),
    )
    for timing, trigger, of_timing in by_timing(emit, ends, logic.edges(watermark_us)):
        fires = fires_evicted(definition, trigger, pending > 0, open_, ended)
        rows = logic.fire(step, rows, fires & of_timing, timing, closing=True)
    panes = step.drain()
    assert stored.near.rows is not None
    others = taken(stored.near.rows, stored.others(removed))
    logic.store.put(step.kv, stored.near, others, lambda some: live(some, by, step.emitted_us))
    step.result.evicted.append(rows.sessions)
    if logic.history is not None:
        gone = rows.sessions
        forget_sessions(logic.history, step.kv, logic.store, gone, step.emitted_us, logic.calculation)
    return panes


def _stored(logic: Sessions, step: Step, found: Sequence[Gone]) -> tuple[Stored | None, BoolArray]:
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


def _listed(logic: Sessions, kv: KV, found: Sequence[Gone]) -> list[tuple[int, int]] | None:
    """Return (end, number of the key) of evicted sessions; None where their keys are not known."""
    if logic.limits.keys:
        return [(g.end, key) for g in found for key in logic.limits.keys_of(kv, g.start, g.end)]
    known = [(session.end, session.hashed) for session in found if session.hashed is not None]
    return known if len(known) == len(found) else None


def _places(logic: Sessions, listed: Sequence[tuple[int, int]]) -> tuple[IntArray, Hashes]:
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


def _is_evicted(logic: Sessions, sessions: pa.Table, gone: Collection[tuple[bytes, int, int]]) -> BoolArray:
    """True for sessions that are among the evicted ones."""
    fields = [sessions.column(b) for b in logic.limits.by]
    keys = encode_equal(fields) if fields else [b""] * len(sessions)
    windows = zip(keys, sessions.column(START).to_pylist(), sessions.column(END).to_pylist(), strict=True)
    return np.array([window in gone for window in windows], dtype=bool)


def tick(logic: Sessions, step: Step) -> None:
    """Fire the timers that are due."""
    emit, moment = logic.definition.emit, step.moment
    if moment.before_us is None:
        return
    over = logic.timers.overdue(step.kv, moment)
    for timing, trigger in ((EARLY, emit.early), (LATE, emit.late)):
        if moment.insists(trigger):
            _fire_all(logic, step, timing, trigger)
        elif moment.comes(trigger) or (len(over) and delays(trigger)):
            _fire_triggered(logic, step, timing, trigger, over)


def _fire_triggered(logic: Sessions, step: Step, timing: str, trigger: Trigger, over: Hashes) -> None:
    """Fire pending sessions. over: keys with an elapsed delay"""
    kv, early, period = step.kv, timing == EARLY, step.moment.comes(trigger)
    if early and not period:
        homes, hashes = np.full(len(over), HOT, dtype=np.int64), over
    else:
        homes, hashes = logic.timers.pending(kv, early=early)
        logic.timers.drop_pending(kv, early=early)
        if not period:
            elapsed = np.isin(hashes, over)
            logic.timers.waiting.add(kv, homes[~elapsed], hashes[~elapsed], step.moment.step)
            homes, hashes = homes[elapsed], hashes[elapsed]
    stored = logic.near(step, homes, hashes)
    if stored is not None:
        _fire_selected(logic, step, stored, timing, trigger, hashes)


def _fire_all(logic: Sessions, step: Step, timing: str, trigger: Trigger) -> None:
    """Fire all sessions that still take messages, and other pending ones."""
    kv, by = step.kv, logic.definition.by
    logic.timers.drop_pending(kv, early=timing == EARLY)
    if timing == EARLY:
        near = settled(logic, logic.store.whole(kv), step.emitted_us)
        if near.rows is not None:
            _fire_selected(logic, step, Stored.of(near, by, step.emitted_us), timing, trigger, None)
        return
    for bucket in logic.store.buckets(kv, step.closed_us):
        rows = logic.read(kv, [bucket.home], step.emitted_us)
        if rows is not None:
            hashes = np.unique(hashes_of(rows.select([START, *by]), by))
            stored = logic.near(step, np.full(len(hashes), bucket.home, dtype=np.int64), hashes)
            if stored is not None:
                _fire_selected(logic, step, stored, timing, trigger, None)


def _fire_selected(
    logic: Sessions,
    step: Step,
    stored: Stored,
    timing: str,
    trigger: Trigger,
    asked: Hashes | None,
) -> None:
    """Fire the sessions that the trigger selects; pending ones that do not fire stay pending.

    asked: the keys to evaluate; None: all
    """
    by, pending = logic.definition.by, stored.values(PENDING) > 0
    judged = pending
    if asked is None:
        open_us = logic.closed_before(step.progress.watermark_us)
        judged = pending | (stored.values(END) >= open_us)
    if not judged.any():
        return
    fires = judged.copy()
    fires[judged] = logic.judged(step, stored.rows(by, judged), trigger)
    left = pending & ~fires
    if asked is not None and left.any():
        rows = stored.rows(by, left).sessions
        asked_rows = np.isin(hashes_of(rows.select([START, *by]), by), asked)
        homes = combine(rows.column(HOME)).to_numpy()
        logic.timers.set_pending(step.kv, rows, homes, asked_rows, step.moment)
    logic.fire_stored(step, stored, fires, timing, always=asked is None)


def correct(logic: Sessions, step: Step) -> None:
    """Emit panes of sessions that still take messages again, in the first step after aggregations were added."""
    kv, by = step.kv, logic.definition.by
    stored = logic.read(kv, [HOT, *(bucket.home for bucket in logic.store.buckets(kv))], step.emitted_us)
    if stored is None:
        return
    sessions = Stored.of(Near(stored, {}), by, step.emitted_us).rows(by).sessions
    sessions = sessions.filter(pa.array(_to_be_corrected(logic, step, sessions)))
    hashes = hashes_of(sessions.select([START, *by]), by)
    current = logic.near(step, combine(sessions.column(HOME)).to_numpy(), hashes)
    if current is None:
        return
    owed = _to_be_corrected(logic, step, current.rows(by).sessions)
    rows, homes = current.rows(by, owed), current.values(HOME)[owed]
    ends = combine(rows.sessions.column(END)).to_numpy()
    for timing, _, of_timing in by_timing(logic.definition.emit, ends, logic.edges(step.emitted_us)):
        rows = logic.fire(step, rows, of_timing, timing)
    logic.keep(step, current.near, current.others(owed), rows, homes)
    logic.emit(step)


def _to_be_corrected(logic: Sessions, step: Step, sessions: pa.Table) -> BoolArray:
    """True for sessions with an emitted pane, perhaps without the added aggregations, that may still be corrected."""
    starts, ends, panes = (combine(sessions.column(c)).to_numpy() for c in (START, END, PANES))
    before_us = max(us for _, us in logic.definition.recomputed_us)
    emitted = (panes > 0) & (starts < before_us)
    owed: BoolArray = emitted & (ends >= step.closed_us)
    return owed if logic.definition.emit.emits_late else owed & _current(logic, step, sessions)


def _current(logic: Sessions, step: Step, sessions: pa.Table) -> BoolArray:
    """True for sessions that the watermark has not passed."""
    current: BoolArray = ~logic.has_passed(combine(sessions.column(END)).to_numpy(), step.emitted_us)
    return current
