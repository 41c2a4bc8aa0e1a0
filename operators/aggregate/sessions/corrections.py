"""Corrections of sessions: panes are emitted again when aggregations of kept messages were added (`evolution.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from windrow.core.arrays import BoolArray
from windrow.operators.aggregate.sessions.rows import Step, Stored
from windrow.operators.steps.columns import EARLY, END, LATE, PANES, START
from windrow.operators.steps.groups import combine
from windrow.stores.page_format import hashes_of
from windrow.stores.sessions import HOME, HOT
from windrow.stores.window_state import Near

if TYPE_CHECKING:
    from windrow.operators.aggregate.sessions.logic import SessionAggregator


def correct(logic: SessionAggregator, step: Step) -> None:
    """Emit panes of sessions that still take messages again, in the first step after aggregations were added."""
    kv, by = step.kv, logic.definition.by
    if not logic._owes(kv):
        return
    logic._note_recomputed(kv)
    stored = logic.read(kv, [HOT, *(bucket.home for bucket in logic.store.buckets(kv))], step.emitted_us)
    if stored is None:
        return
    sessions = Stored.of(Near(stored, {}), by, step.emitted_us).rows(by).sessions
    sessions = sessions.filter(pa.array(_owed(logic, step, sessions)))
    hashes = hashes_of(sessions.select([START, *by]), by)
    found = logic.near(step, combine(sessions.column(HOME)).to_numpy(), hashes)
    if found is None:
        return
    owed = _owed(logic, step, found.rows(by).sessions)
    rows, homes = found.rows(by, owed), found.values(HOME)[owed]
    early = _current(logic, step, rows.sessions)
    for timing, mine in ((EARLY, early), (LATE, ~early)):
        rows = logic._fired(step, rows, mine, timing)
    logic.keep(step, found.near, found.others(owed), rows, homes)
    logic._emit(step)


def _owed(logic: SessionAggregator, step: Step, sessions: pa.Table) -> BoolArray:
    """True for sessions with an emitted pane, perhaps without the added aggregations, that may still be corrected."""
    starts, ends, panes = (combine(sessions.column(c)).to_numpy() for c in (START, END, PANES))
    before_us = max(us for _, us in logic.definition.recomputed_us)
    emitted = (panes > 0) & (starts < before_us)
    owed: BoolArray = emitted & (ends >= step.closed_us)
    return owed if logic.definition.emit.emits_late else owed & _current(logic, step, sessions)


def _current(logic: SessionAggregator, step: Step, sessions: pa.Table) -> BoolArray:
    """True for sessions that the watermark has not passed."""
    current: BoolArray = ~logic.has_passed(combine(sessions.column(END)).to_numpy(), step.emitted_us)
    return current
