"""Session assignment: the sessions that accept the messages of a step. Messages that none accepts are dead letters.

Messages are joined with each other and with the open sessions of their key. If none of that is open, all of it is too late, or
out of retention by its own window. Closed sessions take no part: an open one may overlap them, and the session of each message
is recorded (`kept_messages.py`). Where messages are found by their times alone (joins, and retractions), sessions stay
disjoint: a message out of retention by its own window is lost whatever it touches, and so is one that touches a closed
session.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray, taken
from windrow.core.time import START_OF_TIME_US
from windrow.core.types import concat
from windrow.core.windows import LAST_END_US
from windrow.operators.aggregate.assignment import bury_broken, bury_failed
from windrow.operators.aggregate.kept_messages import moments
from windrow.operators.aggregate.sessions.dynamic_gap import GAP
from windrow.operators.aggregate.sessions.extents import Extents, by_code, holders, joined, reach_of, reached
from windrow.operators.aggregate.sessions.gap_evolution import floor_of
from windrow.operators.aggregate.sessions.kept_messages import closed_to
from windrow.operators.aggregate.sessions.merging import (
    COMPONENT,
    INGEST_STEP,
    Incoming,
    Parts,
    Pieces,
    by_cell,
    merge_parts,
    settle,
    settled,
    with_messages_from,
)
from windrow.operators.aggregate.sessions.parts import Sessions
from windrow.operators.aggregate.sessions.retractions import Going, counted_on, going
from windrow.operators.aggregate.sessions.rows import Rows, Step, Stored, codes_of, unfolded
from windrow.operators.aggregate.sessions.splitting import NOTHING, REACH, Gone, divide
from windrow.operators.aggregate.state_rows import Windows, broken_where_they_meet, delta_rows, merge_slices
from windrow.operators.aggregations.calculation import Broken
from windrow.operators.steps.columns import ARRIVED, END, LAST, POSITION_COLUMNS, START
from windrow.operators.steps.dead_letters import OUT_OF_RETENTION, TOO_LATE, late_details
from windrow.operators.steps.groups import Groups, combine, stable_order, without
from windrow.operators.steps.intake import Slice, encoded_positions, event_time_marks
from windrow.operators.steps.micro_batching import STEPS
from windrow.stores.sessions import CURRENT, HOME, HOT

#: A step of more messages merges them into their sessions at once: many of them share a page.
MOST_WAITING = 1_000


class Filed(NamedTuple):
    """The sessions of a step. stored: the rows that were read, of which some `stay` as they are. rows: the sessions that took
    messages, merged, with their current panes. fresh: those that may now end in a bucket without a timer for them. owed: those
    due for an ON_TIME pane, though the watermark has passed them; None where there are none.
    """

    stored: Stored
    stay: IntArray
    rows: Rows
    fresh: BoolArray
    owed: BoolArray | None = None


def file_sessions(logic: Sessions, step: Step, rows: Slice) -> Filed | None:
    """Find the sessions of these messages; None where none is accepted."""
    rows = in_retention(logic, step, rows)
    if len(rows) == 0:
        return None
    ends = ends_of(logic, rows)
    if logic.longest_us is not None:  # a late one may move the cuts of all that follows
        ends = np.full(len(rows), LAST_END_US, dtype=np.int64)
    return _file(logic, step, rows, sessions_near(logic, step, rows.table, moments(rows), ends))


def may_wait(logic: Sessions, step: Step, rows: Slice) -> bool:
    """True for messages that need not be merged into their sessions now: few, and beyond the watermark."""
    if not logic.lets_wait or not 0 < len(rows) <= MOST_WAITING or rows.sign is not None:
        return False
    if int(rows.times.min()) <= step.emitted_us or not logic.calculation.order_free:
        return False
    return logic.store.lets_wait(step.kv, len(rows)) and not is_gone(logic, step, rows).any()


def let_wait(logic: Sessions, step: Step, rows: Slice) -> None:
    """Buffer messages with the sessions that they touch, each as the session that it would be by itself."""
    rows = logic.noted(rows, step.progress.step)
    each, ends, number = np.arange(len(rows), dtype=np.int64), ends_of(logic, rows), step.progress.step
    pieces, _, _ = delta_rows(logic.calculation, rows, each, rows.times, ends, each=True)
    pieces = logic.dated(pieces, step)
    step.result.marks = dict(event_time_marks(rows))
    logic.timers.set_for_messages(step.kv, pieces, step.moment)
    pieces = pieces.append_column(INGEST_STEP, pa.array(np.full(len(pieces), number, dtype=np.int64)))
    if logic.store.buffer_rows(step.kv, pieces):
        settle(logic, step.kv, step.emitted_us)


def file_run(logic: Sessions, step: Step, rows: Slice) -> Iterator[Filed | None]:
    """Process messages in order of arrival as `file_sessions` does, in as many parts as needed; each is kept before the next is
    read. A message that merges two sessions is folded by start, so that it is a part of its own.
    """
    if len(rows) == 0:
        return
    incoming = sessions_near(logic, step, rows.table, rows.times, ends_of(logic, rows))
    joins = _joining(logic, rows, incoming, _joined_rows(logic, step, rows, incoming))
    free = logic.calculation.order_free or logic.history is not None  # history is read in order of arrival
    if not joins or free:
        yield _file(logic, step, rows, incoming, np.array(joins, dtype=np.int64))
        return
    for low, high in itertools.pairwise(sorted({0, len(rows), *joins, *(i + 1 for i in joins)})):
        yield file_sessions(logic, step, rows.take(np.arange(low, high)))


def _joining(logic: Sessions, rows: Slice, incoming: Incoming, parts: Parts) -> list[int]:
    """Return the messages, in order of arrival, that touch two sessions that were separate."""
    held = parts.stored >= 0
    pieces = np.r_[parts.stored[held], parts.piece]
    firsts = np.r_[incoming.sessions.starts[held], rows.times]
    lasts = np.r_[incoming.sessions.ends[held], ends_of(logic, rows)]
    order = stable_order(pieces, parts.size)
    piece, first, last = pieces[order], firsts[order], lasts[order]
    from_, to = -reach_of(piece, -first), reach_of(piece, last)
    apart_ = (piece[1:] == piece[:-1]) & ((first[1:] > to[:-1]) | (last[1:] < from_[:-1]))
    if not apart_.any():
        return []
    joining, several = list[int](), np.isin(pieces, piece[1:][apart_])
    there: dict[int, list[tuple[int, int]]] = {}
    for i in np.flatnonzero(several).tolist():
        low, high, others = int(firsts[i]), int(lasts[i]), there.setdefault(int(pieces[i]), [])
        touched = [(start, end) for start, end in others if start <= high and low <= end]
        if len(touched) > 1:
            joining.append(i - int(held.sum()))
        low, high = min([low, *(s for s, _ in touched)]), max([high, *(e for _, e in touched)])
        others[:] = [*(extent for extent in others if extent not in touched), (low, high)]
    return joining


def _file(
    logic: Sessions, step: Step, rows: Slice, incoming: Incoming, joins: IntArray | None = None
) -> Filed | None:
    """Assign messages. joins: of messages one after the other, none late, those that touched two separate sessions"""
    lost = shut_out(logic, step, rows, incoming)
    if lost.any():
        detail = "it reaches a session that is closed"
        if logic.longest_us is not None:
            detail = "it is in no session that is open"
        rows, incoming = without_late(logic, step, rows, incoming, lost, detail)
    change = None
    if rows.sign is not None:
        logic.calculation.lift(rows)  # a message on which it raises retracts nothing, too
        rows, incoming, change = going(logic, step, rows, incoming)
    if len(rows) == 0:
        return None
    rows = logic.noted(rows, step.progress.step)
    parts = _joined_rows(logic, step, rows, incoming)
    lost = parts.joined.ends[parts.piece] < step.closed_us
    if lost.any():
        logic.calculation.lift(rows)  # a message on which it raises merges nothing
        detail = "its own window is closed, and no session that is open takes it"
        rows, incoming = without_late(logic, step, rows, incoming, lost, detail)
        change = None if change is None else change.without(lost)
        if len(rows) == 0:
            return None
        parts = _joined_rows(logic, step, rows, incoming)
    step.result.marks = dict(event_time_marks(rows))
    deltas = _deltas(logic, step, rows, incoming, parts, change)
    pieces = Pieces(moments(rows), ends_of(logic, rows), partial(_positions, rows), joins)
    return None if len(deltas) == 0 else _merged(logic, step, deltas, incoming, parts, pieces, change)


def file_groups(
    logic: Sessions, step: Step, groups: pa.Table, first_us: IntArray, last_us: IntArray
) -> Filed:
    """Find the sessions of groups of messages, of which none is as late as to reach a closed session.

    groups: state rows without a window. Messages of one group are less than a gap apart: from `first_us` to `last_us`.
    """
    ends = own_ends(logic, last_us, logic.gap_us)
    incoming = sessions_near(logic, step, groups, first_us, ends)
    ranges = Extents(incoming.codes, first_us, ends)
    each = np.arange(len(groups), dtype=np.int64)
    parts = _joined(step, ranges, each, incoming)
    starts, ends = parts.joined.starts[parts.piece], parts.joined.ends[parts.piece]
    of_sessions = Groups.numbered(parts.piece, parts.size)
    deltas, broken = merge_slices(logic.calculation, groups, Windows(each, starts, ends), of_sessions)
    bury_broken(deltas, broken, logic.definition, step.dead)
    deltas = logic.dated(deltas, step)
    deltas = deltas.append_column(COMPONENT, pa.array(parts.piece[of_sessions.first_rows]))
    pieces = Pieces(first_us, ends, combine(groups.column(LAST)).take)
    return _merged(logic, step, deltas, incoming, parts, pieces)


def sessions_near(
    logic: Sessions, step: Step, rows: pa.Table, first_us: IntArray, ends: IntArray
) -> Incoming:
    """Return the open sessions of the keys of these rows, and those past ones that may accept them, or reject them."""
    by = logic.definition.by
    groups = Groups([rows.column(b) for b in by], len(rows))
    keys = rows.select(list(by)).take(pa.array(groups.first_rows)) if by else None
    asked = [_keys(keys, np.arange(groups.size), HOT)]
    from_us = int(first_us.min())
    buckets = logic.store.buckets(step.kv, from_us if logic.disjoint else max(from_us, step.closed_us))
    late = np.flatnonzero(first_us <= max((bucket.last_us for bucket in buckets), default=START_OF_TIME_US))
    for bucket in buckets:
        near = late[(first_us[late] <= bucket.last_us) & (ends[late] >= bucket.first_us)]
        if len(near):
            counts = np.bincount(groups.codes[near], minlength=groups.size)
            asked.append(_keys(keys, np.flatnonzero(counts), bucket.home))
    homes = [home for home, _ in asked]
    stored_rows = logic.store.near(step.kv, homes, concat([table for _, table in asked]))
    stored_rows = settled(logic, stored_rows, step.emitted_us)
    if stored_rows.rows is None:
        stored, none = Stored.of(stored_rows, by, step.emitted_us), np.zeros(0, dtype=np.int64)
        return by_cell(logic, Incoming(groups.codes, stored, Extents(none, none, none)), first_us)
    numbers = codes_of([stored_rows.rows] if keys is None else [keys, stored_rows.rows], by)
    of_rows = numbers[len(numbers) - len(stored_rows.rows) :]
    codes = groups.codes if keys is None else numbers[groups.codes]
    stored = Stored.of(stored_rows, by, step.emitted_us, of_rows)
    sessions = Extents(of_rows[stored.sessions], stored.values(START), stored.values(END))
    return by_cell(logic, Incoming(codes, stored, sessions), first_us)


def _keys(keys: pa.Table | None, some: IntArray, home: int) -> tuple[int, pa.Table]:
    """Return some of the keys, in a bucket."""
    if keys is None:
        return home, pa.table({START: pa.array([home], pa.int64())})
    chosen = keys if len(some) == len(keys) else keys.take(pa.array(some))
    return home, chosen.add_column(0, START, pa.array(np.full(len(chosen), home, dtype=np.int64)))


def _positions(rows: Slice, at: pa.Array) -> pa.Array:
    """Return the positions of those few messages that merged sessions."""
    there = at.is_valid().to_numpy(zero_copy_only=False)
    where = rows.table.select([c for c in POSITION_COLUMNS if c in rows.table.column_names])
    few = encoded_positions(where.take(at.drop_null()))
    places = pa.array(np.cumsum(there) - 1, mask=~there)
    return pa.nulls(len(at), pa.binary()) if few is None else few.take(places)


def _joined_rows(logic: Sessions, step: Step, rows: Slice, incoming: Incoming) -> Parts:
    """Join messages and open sessions where they touch."""
    at = moments(rows)
    if logic.own_gap is not None:
        each = np.arange(len(rows), dtype=np.int64)
        return _joined(step, Extents(incoming.codes, at, ends_of(logic, rows)), each, incoming)
    of_row, runs, step.result.groups = _runs(incoming.codes, at, logic.gap_us)
    ranges = Extents(runs.codes, runs.starts, own_ends(logic, runs.ends, logic.gap_us))
    return _joined(step, ranges, of_row, incoming)


def _joined(step: Step, ranges: Extents, of_piece: IntArray, incoming: Incoming) -> Parts:
    """Join ranges and open sessions where they touch. of_piece: the range of each piece."""
    stored, near = incoming.sessions, incoming.stored.near.rows
    open_ = stored.ends >= step.closed_us
    if near is not None and REACH in near.column_names:
        stored = stored._replace(ends=incoming.stored.values(REACH))
    extents, n = joined(Extents(*(column[open_] for column in stored)).and_more(ranges)), int(open_.sum())
    component = np.full(len(open_), -1, dtype=np.int64)
    component[open_] = extents.component[:n]
    return Parts(extents, extents.component[n:][of_piece], component)


def _runs(codes: IntArray, times: IntArray, gap_us: int) -> tuple[IntArray, Extents, int]:
    """Return (the run of each message, runs, in how many slices of a gap their keys have messages).

    A run is of messages of a key, none more than a gap from the next; its end is the last time.
    """
    order = by_code(codes, times)
    codes, times = codes[order], times[order]
    opens, begins, slices = np.ones(len(times), dtype=bool), np.ones(len(times), dtype=bool), times // gap_us
    others = codes[1:] != codes[:-1]
    opens[1:] = others | (times[1:] - times[:-1] > gap_us)
    begins[1:] = others | (slices[1:] != slices[:-1])
    first = np.flatnonzero(opens)
    of_row = np.empty(len(times), dtype=np.int64)
    of_row[order] = np.cumsum(opens) - 1
    last = np.r_[first[1:], len(times)] - 1
    return of_row, Extents(codes[first], times[first], times[last]), int(np.count_nonzero(begins))


def _deltas(
    logic: Sessions, step: Step, rows: Slice, incoming: Incoming, parts: Parts, change: Going | None
) -> pa.Table:
    """Return the contributions of messages, a row a component; messages on which user code raised contribute nothing."""
    starts, ends = parts.joined.starts[parts.piece], parts.joined.ends[parts.piece]
    each, pieces = np.arange(len(rows), dtype=np.int64), Groups.numbered(parts.piece, parts.size)
    # Single messages would be folded in one by one, in order of arrival.
    deltas, groups, broken = delta_rows(
        logic.calculation,
        rows,
        each,
        starts,
        ends,
        in_position_order=not step.of_run,
        each=step.of_run and not logic.calculation.regroups,
        groups=pieces,
    )
    component = parts.piece[groups.first_rows]
    broken += _broken_where_they_meet(logic, incoming, parts, deltas, component)
    deltas = logic.dated(deltas, step)
    deltas = deltas.append_column(COMPONENT, pa.array(component))
    closed = closed_to(rows, step.closed_us)
    if logic.history is not None:
        deltas = with_messages_from(deltas, np.maximum(moments(rows), closed), groups)
    if broken:
        deltas = bury_failed(rows, each, groups, deltas, broken, step.dead)
    if logic.history is not None:
        taken = np.isin(parts.piece, combine(deltas.column(COMPONENT)).to_numpy())
        if change is not None:
            change.forget(logic.history, step.kv)
            taken &= ~change.removed
        kept = rows.take(np.flatnonzero(taken))
        late = (closed > START_OF_TIME_US).any()
        number = _number(step, kept)
        logic.history.add(step.kv, kept, number, logic.calculation, closed=closed[taken] if late else None)
    return deltas


def _broken_where_they_meet(
    logic: Sessions, incoming: Incoming, parts: Parts, deltas: pa.Table, component: IntArray
) -> list[Broken]:
    """Return the failures of user code on merging sessions, by row of `deltas`, each of a component."""
    is_stored = parts.stored >= 0
    if not (logic.calculation.runs_code and is_stored.any()):
        return []
    sessions = unfolded(
        logic.calculation, logic.spans, incoming.stored.rows(logic.definition.by, is_stored)
    ).sessions
    begins = combine(sessions.column(START)).to_numpy()
    order = np.lexsort((begins, parts.stored[is_stored]))
    stored = without(taken(sessions, order), HOME, CURRENT)
    codes = np.r_[parts.stored[is_stored][order], component]
    return broken_where_they_meet(logic.calculation, stored, deltas, codes)


def _number(step: Step, rows: Slice) -> int | IntArray:
    """Return the number of the step; of a run that of each message."""
    first = step.progress.step
    if not step.of_run:
        return first
    arrived: IntArray = combine(rows.table.column(ARRIVED)).to_numpy()
    return first + STEPS * arrived


def _merged(
    logic: Sessions,
    step: Step,
    deltas: pa.Table,
    incoming: Incoming,
    parts: Parts,
    pieces: Pieces,
    change: Going | None = None,
) -> Filed:
    """Return the sessions that took messages, as one row each; and the rest of those that lost messages."""
    merged = merge_parts(logic, step.dead, deltas, incoming, parts, pieces)
    rows, gone = merged.rows, NOTHING
    if logic.definition.takes_back:
        if change is not None:
            gone = Gone(merged.row_of[parts.piece[change.removed]], pieces.starts[change.removed])
        lost = np.isin(np.arange(len(rows.sessions)), gone.session)
        rows = rows._replace(sessions=counted_on(logic, step, rows.sessions, lost))
    if logic.longest_us is not None or change is not None:
        done = divide(logic, step, incoming.stored, merged.of_stored, rows.sessions, gone)
        fresh = np.ones(len(done.rows.sessions), dtype=bool)
        return Filed(incoming.stored, done.stay, done.rows, fresh, done.owed)
    width, ends = logic.timers.width_us, combine(rows.sessions.column(END)).to_numpy()
    fresh = merged.held_to // width != ends // width
    return Filed(incoming.stored, incoming.stored.others(merged.of_stored), rows, fresh)


def in_time(logic: Sessions, step: Step, others: Slice) -> Slice:
    """Return messages that did not pass the filter, and would be in time by themselves."""
    ends = own_ends(logic, others.times, max(logic.gap_us, 1))
    return others.take(np.flatnonzero(~is_gone(logic, step, others) & (ends >= step.closed_us)))


def is_gone(logic: Sessions, step: Step, rows: Slice) -> BoolArray:
    """True for messages out of retention whatever session would take them: it is no longer known which ids were seen, which
    sessions were evicted, or with which closed ones such a message would share its time.
    """
    floor_us = floor_of(logic, step.kv)
    if logic.disjoint or logic.limited or logic.seen is not None:
        floor_us = max(floor_us, logic.kept_from(step.progress.watermark_us))
    gone: BoolArray = moments(rows) < floor_us
    return gone | (rows.times <= logic.limits.floors(step.kv, rows.table)) if logic.limited else gone


def in_retention(logic: Sessions, step: Step, rows: Slice) -> Slice:
    gone = is_gone(logic, step, rows)
    if not gone.any():
        return rows
    late = np.flatnonzero(gone)
    detail = late_details("its own window is out of retention", step.progress.watermark_us, late)
    step.dead.add_rows(OUT_OF_RETENTION, detail, rows.table, late, pa.array(rows.times))
    return rows.take(np.flatnonzero(~gone))


def without_late(
    logic: Sessions, step: Step, rows: Slice, incoming: Incoming, lost: BoolArray, detail: str
) -> tuple[Slice, Incoming]:
    """Return the messages that are not too late."""
    gone = lost & (ends_of(logic, rows) < logic.retained_from(step.progress.watermark_us))
    times = pa.array(rows.times)
    for reason, dropped in ((OUT_OF_RETENTION, gone), (TOO_LATE, lost & ~gone)):
        late = np.flatnonzero(dropped)
        step.dead.add_rows(
            reason, late_details(detail, step.progress.watermark_us, late), rows.table, late, times
        )
    return rows.take(np.flatnonzero(~lost)), incoming._replace(codes=incoming.codes[~lost])


def shut_out(logic: Sessions, step: Step, rows: Slice, incoming: Incoming) -> BoolArray:
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


def ends_of(logic: Sessions, rows: Slice) -> IntArray:
    """Return the end of each message's own window."""
    own = logic.own_gap is not None
    gaps = combine(rows.table.column(GAP)).to_numpy() if own else logic.gap_us
    return own_ends(logic, moments(rows), gaps)


def own_ends(logic: Sessions, times: IntArray, gaps: Any) -> IntArray:
    """Return the ends of the windows of messages of these times alone."""
    ends: IntArray = np.minimum(times, LAST_END_US - gaps) + gaps
    return ends if logic.cells is None else np.minimum(ends, logic.cells.assign(times)[2])
