"""Lateness of messages of sessions: by their own windows, unless an open session accepts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.windows import LAST_END_US
from windrow.operators.aggregate.kept_messages import moments
from windrow.operators.aggregate.sessions.dynamic_gap import GAP
from windrow.operators.aggregate.sessions.extents import Extents, holders, reached
from windrow.operators.aggregate.sessions.gap_evolution import floor_of
from windrow.operators.aggregate.sessions.merging import Incoming
from windrow.operators.aggregate.sessions.rows import Step
from windrow.operators.steps.dead_letters import OUT_OF_RETENTION, TOO_LATE
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice

if TYPE_CHECKING:
    from windrow.operators.aggregate.sessions.logic import SessionAggregator


def in_time(logic: SessionAggregator, step: Step, others: Slice) -> Slice:
    """Return messages that did not pass the filter, and would be in time by themselves."""
    ends = own_ends(logic, others.times, max(logic.gap_us, 1))
    return others.take(np.flatnonzero(~is_gone(logic, step, others) & (ends >= step.closed_us)))


def is_gone(logic: SessionAggregator, step: Step, rows: Slice) -> BoolArray:
    """True for messages out of retention whatever session would take them: it is no longer known which ids were seen, which
    sessions were evicted, or with which closed ones such a message would share its time.
    """
    floor_us = floor_of(logic, step.kv)
    if logic.disjoint or logic.limited or logic.seen is not None:
        floor_us = max(floor_us, logic.kept_from(step.progress.watermark_us))
    gone: BoolArray = moments(rows) < floor_us
    return gone | (rows.times <= logic.limits.floors(step.kv, rows.table)) if logic.limited else gone


def in_retention(logic: SessionAggregator, step: Step, rows: Slice) -> Slice:
    gone = is_gone(logic, step, rows)
    if not gone.any():
        return rows
    detail = "its own window is out of retention"
    step.dead.add_rows(OUT_OF_RETENTION, detail, rows.table, np.flatnonzero(gone), pa.array(rows.times))
    return rows.take(np.flatnonzero(~gone))


def without_late(
    logic: SessionAggregator, step: Step, rows: Slice, incoming: Incoming, lost: BoolArray, detail: str
) -> tuple[Slice, Incoming]:
    """Return the messages that are not too late."""
    gone = lost & (ends_of(logic, rows) < logic.retained_from(step.progress.watermark_us))
    times = pa.array(rows.times)
    for reason, dropped in ((OUT_OF_RETENTION, gone), (TOO_LATE, lost & ~gone)):
        step.dead.add_rows(reason, detail, rows.table, np.flatnonzero(dropped), times)
    return rows.take(np.flatnonzero(~lost)), incoming._replace(codes=incoming.codes[~lost])


def shut_out(logic: SessionAggregator, step: Step, rows: Slice, incoming: Incoming) -> BoolArray:
    """True for messages that no session may accept: late ones in no open session where sessions have a maximum length; else
    those that touch a closed session where sessions are disjoint.
    """
    lost = np.zeros(len(rows), dtype=bool)
    if int(moments(rows).min()) >= step.closed_us:
        return lost
    if logic.longest_us is not None:
        ends = (
            rows.times if logic.disjoint else np.minimum(ends_of(logic, rows), rows.times + logic.longest_us)
        )
        return (ends < step.closed_us) & _outside_open(step, rows, incoming)
    if not logic.disjoint:
        return lost
    closed = incoming.sessions.ends < step.closed_us
    if not closed.any():
        return lost
    own = Extents(incoming.codes, rows.times, ends_of(logic, rows))
    return reached(Extents(*(column[closed] for column in incoming.sessions)), own)


def _outside_open(step: Step, rows: Slice, incoming: Incoming) -> BoolArray:
    """True for messages in no open session. A late one enters only these, so that no cut before the watermark moves."""
    sessions = incoming.sessions
    open_ = Extents(*(column[sessions.ends >= step.closed_us] for column in sessions))
    holder = holders(open_, incoming.codes, rows.times)
    ends = open_.ends[np.maximum(holder, 0)] if len(open_.ends) else rows.times
    outside: BoolArray = (holder < 0) | (rows.times >= ends)
    return outside


def ends_of(logic: SessionAggregator, rows: Slice) -> IntArray:
    """Return the end of each message's own window."""
    own = logic.own_gap is not None
    gaps = combine(rows.table.column(GAP)).to_numpy() if own else logic.gap_us
    return own_ends(logic, moments(rows), gaps)


def own_ends(logic: SessionAggregator, times: IntArray, gaps: Any) -> IntArray:
    """Return the ends of the windows of messages of these times alone."""
    ends: IntArray = np.minimum(times, LAST_END_US - gaps) + gaps
    return ends if logic.cells is None else np.minimum(ends, logic.cells.assign(times)[2])
