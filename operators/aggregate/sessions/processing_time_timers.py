"""Processing-time timers of sessions: periods, on one grid of `now` for the whole definition, and delays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from windrow.core.emit import Trigger
from windrow.operators.aggregate.sessions.merge_buffer import settled
from windrow.operators.aggregate.sessions.rows import Step, Stored
from windrow.operators.aggregate.triggers import delays
from windrow.operators.steps.columns import EARLY, END, LATE, PENDING, START
from windrow.operators.steps.groups import combine
from windrow.stores.key_hash import Hashes
from windrow.stores.page_format import hashes_of
from windrow.stores.sessions import HOME, HOT

if TYPE_CHECKING:
    from windrow.operators.aggregate.sessions.logic import SessionAggregator


def tick(logic: SessionAggregator, step: Step) -> None:
    """Fire the timers that are due."""
    emit, moment = logic.definition.emit, step.moment
    if moment.before_us is None:
        return
    over = logic.marks.overdue(step.kv, moment)
    for timing, trigger in ((EARLY, emit.early), (LATE, emit.late)):
        if moment.insists(trigger):
            _fire_all(logic, step, timing, trigger)
        elif moment.comes(trigger) or (len(over) and delays(trigger)):
            _fire_triggered(logic, step, timing, trigger, over)


def _fire_triggered(
    logic: SessionAggregator, step: Step, timing: str, trigger: Trigger, over: Hashes
) -> None:
    """Fire pending sessions. over: keys with an elapsed delay"""
    kv, early, period = step.kv, timing == EARLY, step.moment.comes(trigger)
    if early and not period:
        homes, hashes = np.full(len(over), HOT, dtype=np.int64), over
    else:
        homes, hashes = logic.marks.wait(kv, early=early)
        logic.marks.wait_no_more(kv, early=early)
        if not period:
            elapsed = np.isin(hashes, over)
            logic.marks.waiting.add(kv, homes[~elapsed], hashes[~elapsed], step.moment.step)
            homes, hashes = homes[elapsed], hashes[elapsed]
    stored = logic.near(step, homes, hashes)
    if stored is not None:
        _emit(logic, step, stored, timing, trigger, hashes)


def _fire_all(logic: SessionAggregator, step: Step, timing: str, trigger: Trigger) -> None:
    """Fire all sessions that still take messages, and other pending ones."""
    kv, by = step.kv, logic.definition.by
    logic.marks.wait_no_more(kv, early=timing == EARLY)
    if timing == EARLY:
        near = settled(logic, logic.store.whole(kv), step.emitted_us)
        if near.rows is not None:
            _emit(logic, step, Stored.of(near, by, step.emitted_us), timing, trigger, None)
        return
    for bucket in logic.store.buckets(kv, step.closed_us):
        rows = logic.read(kv, [bucket.home], step.emitted_us)
        if rows is not None:
            hashes = np.unique(hashes_of(rows.select([START, *by]), by))
            stored = logic.near(step, np.full(len(hashes), bucket.home, dtype=np.int64), hashes)
            if stored is not None:
                _emit(logic, step, stored, timing, trigger, None)


def _emit(
    logic: SessionAggregator,
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
        logic.marks.waits(step.kv, rows, homes, asked_rows, step.moment)
    logic.keep_fired(step, stored, fires, timing, always=asked is None)
