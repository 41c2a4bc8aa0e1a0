"""Sessions that limits by size put out of retention: those that end first go, and have their last words.

Decided at the beginning of an `advance` from what the steps before left, as of other windows (`size_limits.py`). What comes at
or before the end of one that went, of its key or of any, is out of retention: so no session ever touches one that was told.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import Never
from windrow.core.types import concat
from windrow.operators.aggregate.session_filing import Filed
from windrow.operators.aggregate.session_history import forget_messages
from windrow.operators.aggregate.session_rows import Step, Stored, live, taken
from windrow.operators.steps.columns import EARLY, END, LATE, MESSAGES, PENDING, START
from windrow.operators.steps.groups import combine
from windrow.stores.pages import hashes_of
from windrow.stores.sessions import HOME, HOT
from windrow.stores.spread import Hashes
from windrow.stores.windows import Near

if TYPE_CHECKING:
    from windrow.operators.aggregate.sessions import SessionAggregator

#: Of each that goes: its encoded key where limits are per key, its start, its end.
Gone = Collection[tuple[bytes, int, int]]


def count(logic: SessionAggregator, step: Step, filed: Filed) -> None:
    """Sessions that took messages, in the place of those that are in them."""
    stored, names = filed.stored, [START, END, MESSAGES, *logic.definition.by]
    before, after = None, [filed.rows.sessions.select(names)]
    if stored.near.rows is not None:
        rows = stored.near.rows.select(names)
        before = taken(rows, stored.sessions)
        after.append(taken(rows, np.intersect1d(filed.stay, stored.sessions)))
    logic.limits.change(step.kv, before, concat(after))


def evict(logic: SessionAggregator, step: Step, watermark_us: int) -> list[pa.Table]:
    """Drop what is beyond the limits; returns what it had still to say."""
    by, emit = logic.definition.by, logic.definition.emit
    found = list(logic.limits.evict(step.kv, logic.told_from(step.told_us)))
    if not found:
        return []
    windows = [(key, start, end) for key, start, end, _ in found]
    gone = set(windows)
    stored = logic.near(step, *_places(logic, step, windows, [hashed for *_, hashed in found]))
    if stored is None:
        return []
    goes = _goes(logic, stored.rows(by).sessions, gone)
    rows = stored.rows(by, goes)
    ends, pending = (combine(rows.sessions.column(c)).to_numpy() for c in (END, PENDING))
    early, open_ = ~logic.has_passed(ends, watermark_us), ends >= step.closed_us
    for timing, trigger, mine in ((EARLY, emit.early, early), (LATE, emit.late, ~early)):
        speaks = (pending > 0) & (not isinstance(trigger, Never)) | open_ & emit.closing_pane
        rows = logic._fired(step, rows, speaks & mine, timing, closing=True)
    said = list(step.told)
    step.told.clear()
    assert stored.near.rows is not None
    others = taken(stored.near.rows, stored.others(goes))
    logic.store.put(step.kv, stored.near, others, lambda some: live(some, by, step.told_us))
    if logic.history is not None:
        forget_messages(logic.history, step.kv, logic.store)
    return said


def _places(
    logic: SessionAggregator, step: Step, gone: Gone, hashes: list[int | None]
) -> tuple[IntArray, Hashes]:
    """(homes, numbers of keys) where these sessions may lie. hashes: of the key of each, in their order"""
    homes = logic.store.home(np.array([end for *_, end in gone], dtype=np.int64))
    known = [hashed for hashed in hashes if hashed is not None]
    if len(known) == len(hashes):
        of_keys = np.array(known, dtype=np.uint64)
        # Each where it ended, or where those are that may still grow: not every key at every home.
        homes, of_keys = np.r_[homes, np.full(len(homes), HOT, dtype=np.int64)], np.r_[of_keys, of_keys]
        order = np.lexsort((of_keys, homes))
        homes, of_keys = homes[order], of_keys[order]
        first = np.r_[True, (homes[1:] != homes[:-1]) | (of_keys[1:] != of_keys[:-1])]
        return homes[first], of_keys[first]
    there = {bucket.home for bucket in logic.store.buckets(step.kv)}
    stored = logic.read(step.kv, [HOT, *sorted(there & set(homes.tolist()))], step.told_us)
    if stored is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64)
    by = logic.definition.by
    sessions = Stored.of(Near(stored, {}), by, step.told_us).rows(by).sessions
    sessions = sessions.filter(pa.array(_goes(logic, sessions, gone)))
    return combine(sessions.column(HOME)).to_numpy(), hashes_of(sessions.select([START, *by]), by)


def _goes(logic: SessionAggregator, sessions: pa.Table, gone: Gone) -> BoolArray:
    """True for sessions that are among those."""
    fields = [sessions.column(b) for b in logic.limits.by]
    keys = logic.limits.encode(fields) if fields else [b""] * len(sessions)
    windows = zip(keys, sessions.column(START).to_pylist(), sessions.column(END).to_pylist(), strict=True)
    return np.array([window in gone for window in windows], dtype=bool)
