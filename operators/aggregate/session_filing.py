"""Which sessions take the messages of a step, and the messages that none takes: they are dead letters.

In this order: a message is out of retention by its own window, whatever it touches; one that touches a closed session is too
late, each by itself; the others are joined with each other and with the open sessions of their key, and where nothing in that
is open, all of it is too late.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import START_OF_TIME_US
from windrow.core.types import concat
from windrow.core.windows import LAST_END_US
from windrow.operators.aggregate.bridges import Pieces, with_bridges
from windrow.operators.aggregate.extents import Extents, Joined, by_code, holders, joined, reach_of, reached
from windrow.operators.aggregate.filing import bury_broken, bury_failed
from windrow.operators.aggregate.longest import REACH, divide
from windrow.operators.aggregate.own_gaps import GAP
from windrow.operators.aggregate.session_history import told_apart
from windrow.operators.aggregate.session_rows import Rows, Step, apart, chosen, codes_of, extents, unfolded
from windrow.operators.aggregate.state_rows import Windows, delta_rows, merge_slices
from windrow.operators.aggregate.wider_gap import floor_of
from windrow.operators.steps.columns import END, LAST, PANES, START
from windrow.operators.steps.dead import OUT_OF_RETENTION, TOO_LATE
from windrow.operators.steps.groups import Groups, combine, stable_order, without
from windrow.operators.steps.intake import Slice, event_time_marks
from windrow.stores.sessions import HOME, HOT, STANDS
from windrow.stores.windows import Near

if TYPE_CHECKING:
    from windrow.operators.aggregate.sessions import SessionAggregator

_COMPONENT = "__component"
#: Of a row that has a number, by which it is filed, and not by its time.
NUMBER = "__number"


class Filed(NamedTuple):
    """near: what was read, of which `others` stay as they are. rows: the sessions that took messages, merged, and what stands
    of them. fresh: those that may now end in a bucket in which they are not looked for.
    """

    near: Near
    others: pa.Table | None
    rows: Rows
    fresh: BoolArray


class Given(NamedTuple):
    """What a step brings, beside what is stored near it. codes: a number for the key of each row, or group of rows; stored: for
    that of each stored session. With `cut`, keys of two cells have two numbers: their sessions never meet.
    """

    near: Near
    sessions: pa.Table | None
    codes: IntArray
    stored: IntArray


class Parts(NamedTuple):
    """Ranges of messages and stored sessions, joined. piece: the component of each message, or group of them; stored: of each
    stored session that is open, -1 for others.
    """

    joined: Joined
    piece: IntArray
    stored: IntArray

    @property
    def size(self) -> int:
        return len(self.joined.starts)


def file_sessions(logic: SessionAggregator, step: Step, rows: Slice) -> Filed | None:
    """Find the sessions of these messages; None where none is taken."""
    rows = _in_retention(logic, step, rows)
    if len(rows) == 0:
        return None
    ends = _ends(logic, rows)
    if logic.longest_us is not None:  # one that is late may move the cuts of all that follows
        ends = np.full(len(rows), LAST_END_US, dtype=np.int64)
    return _file(logic, step, rows, _given(logic, step, rows.table, _moments(rows), ends))


def file_run(logic: SessionAggregator, step: Step, rows: Slice) -> Iterator[Filed | None]:
    """`file_sessions` of messages as they came one after the other, in as many parts as that takes: each has to be kept before
    the next one is read. What a message joins that was apart before is folded by start, so that one is a part of its own.
    """
    if len(rows) == 0:
        return
    given = _given(logic, step, rows.table, rows.times, _ends(logic, rows))
    free = logic.calculation.order_free
    joins = [] if free else _joining(logic, rows, given, _joined_rows(logic, step, rows, given))
    if not joins:
        yield _file(logic, step, rows, given)
        return
    for low, high in itertools.pairwise(sorted({0, len(rows), *joins, *(i + 1 for i in joins)})):
        yield file_sessions(logic, step, rows.take(np.arange(low, high)))


def _joining(logic: SessionAggregator, rows: Slice, given: Given, parts: Parts) -> list[int]:
    """The messages, in the order in which they came, that touch two that were apart."""
    times, ends, held = rows.times, _ends(logic, rows), np.zeros(0, dtype=bool)
    pieces, firsts, lasts = parts.piece, times, ends
    if given.sessions is not None:
        held, stored = parts.stored >= 0, extents(given.sessions, given.stored)
        pieces = np.r_[parts.stored[held], pieces]
        firsts, lasts = np.r_[stored.starts[held], firsts], np.r_[stored.ends[held], lasts]
    order = stable_order(pieces, parts.size)
    piece, first, last = pieces[order], firsts[order], lasts[order]
    from_, to = -reach_of(piece, -first), reach_of(piece, last)
    apart_ = (piece[1:] == piece[:-1]) & ((first[1:] > to[:-1]) | (last[1:] < from_[:-1]))
    if not apart_.any():
        return []
    found, several = list[int](), np.isin(pieces, piece[1:][apart_])
    there: dict[int, list[tuple[int, int]]] = {}
    for i in np.flatnonzero(several).tolist():
        low, high, others = int(firsts[i]), int(lasts[i]), there.setdefault(int(pieces[i]), [])
        touched = [(start, end) for start, end in others if start <= high and low <= end]
        if len(touched) > 1:
            found.append(i - int(held.sum()))
        low, high = min([low, *(s for s, _ in touched)]), max([high, *(e for _, e in touched)])
        others[:] = [*(one for one in others if one not in touched), (low, high)]
    return found


def _file(logic: SessionAggregator, step: Step, rows: Slice, given: Given) -> Filed | None:
    lost = _reach_closed(logic, step, rows, given)
    if lost.any():
        detail = "it reaches a session that is closed"
        if logic.longest_us is not None:
            detail = "it is in no session that is open"
        rows, given = _without(step, rows, given, lost, detail)
        if len(rows) == 0:
            return None
    rows = logic.noted(rows, step.progress.step)
    parts = _joined_rows(logic, step, rows, given)
    lost = parts.joined.ends[parts.piece] < step.closed_us
    if lost.any():
        logic.calculation.lift(rows)  # a message on which it raises joins nothing
        detail = "the session that it makes with others of its step is closed"
        rows, given = _without(step, rows, given, lost, detail)
        if len(rows) == 0:
            return None
        parts = _joined_rows(logic, step, rows, given)
    step.result.marks = dict(event_time_marks(rows))
    deltas = _deltas(logic, step, rows, parts)
    pieces = Pieces(_moments(rows), _ends(logic, rows), partial(_positions, rows))
    return None if len(deltas) == 0 else _merged(logic, step, deltas, given, parts, pieces)


def file_groups(
    logic: SessionAggregator, step: Step, groups: pa.Table, first_us: IntArray, last_us: IntArray
) -> Filed:
    """Find the sessions of groups of messages, of which none is as late as to reach a closed session.

    groups: state rows without a window. Messages of one group are less than a gap apart: from `first_us` to `last_us`.
    """
    ends = _own_ends(logic, last_us, logic.gap_us)
    given = _given(logic, step, groups, first_us, ends)
    ranges = Extents(given.codes, first_us, ends)
    each = np.arange(len(groups), dtype=np.int64)
    parts = _joined(step, ranges, each, given)
    starts, ends = parts.joined.starts[parts.piece], parts.joined.ends[parts.piece]
    deltas, broken = merge_slices(logic.calculation, groups, Windows(each, starts, ends))
    bury_broken(deltas, broken, logic.definition, step.dead)
    first = Groups.numbered(parts.piece, parts.size).first_rows
    deltas = deltas.append_column(_COMPONENT, pa.array(parts.piece[first]))
    pieces = Pieces(first_us, ends, combine(groups.column(LAST)).take)
    return _merged(logic, step, deltas, given, parts, pieces)


def _in_retention(logic: SessionAggregator, step: Step, rows: Slice) -> Slice:
    floor_us = max(logic.kept_from(step.progress.watermark_us), floor_of(logic, step.kv))
    gone = _moments(rows) < floor_us
    if not gone.any():
        return rows
    detail = "its own window is out of retention"
    step.dead.add_rows(OUT_OF_RETENTION, detail, rows.table, np.flatnonzero(gone), pa.array(rows.times))
    return rows.take(np.flatnonzero(~gone))


def _without(step: Step, rows: Slice, given: Given, lost: BoolArray, detail: str) -> tuple[Slice, Given]:
    """The messages that are not too late."""
    step.dead.add_rows(TOO_LATE, detail, rows.table, np.flatnonzero(lost), pa.array(rows.times))
    return rows.take(np.flatnonzero(~lost)), given._replace(codes=given.codes[~lost])


def _given(logic: SessionAggregator, step: Step, rows: pa.Table, first_us: IntArray, ends: IntArray) -> Given:
    """The sessions of the keys of these rows that may still grow, and those past ones that they may reach."""
    by = logic.definition.by
    groups = Groups([rows.column(b) for b in by], len(rows))
    keys = rows.select(list(by)).take(pa.array(groups.first_rows)) if by else None
    asked = [_keys(keys, np.arange(groups.size), HOT)]
    for bucket in logic.store.buckets(step.kv, int(first_us.min())):
        near = (first_us <= bucket.last_us) & (ends >= bucket.first_us)
        if near.any():
            mine = np.bincount(groups.codes[near], minlength=groups.size)
            asked.append(_keys(keys, np.flatnonzero(mine), bucket.home))
    homes = [home for home, _ in asked]
    found = logic.alive(step, logic.store.near(step.kv, homes, concat([table for _, table in asked])))
    codes, stored, sessions = groups.codes, np.zeros(0, dtype=np.int64), None
    if found.rows is not None:
        sessions = apart(found.rows, by).sessions
        numbers = codes_of([sessions] if keys is None else [keys, sessions], by)
        stored = numbers[len(numbers) - len(sessions) :]
        codes = codes if keys is None else numbers[codes]
    if logic.cells is not None:
        starts = [] if sessions is None else [combine(sessions.column(START)).to_numpy()]
        _, cells, _ = logic.cells.assign(np.concatenate([*starts, first_us]))
        codes = Groups([pa.array(np.r_[stored, codes]), pa.array(cells)], len(cells)).codes
        stored, codes = codes[: len(stored)], codes[len(stored) :]
    return Given(found, sessions, codes, stored)


def _keys(keys: pa.Table | None, some: IntArray, home: int) -> tuple[int, pa.Table]:
    """Some of the keys, at a home."""
    if keys is None:
        return home, pa.table({START: pa.array([home], pa.int64())})
    mine = keys if len(some) == len(keys) else keys.take(pa.array(some))
    return home, mine.add_column(0, START, pa.array(np.full(len(mine), home, dtype=np.int64)))


def _reach_closed(logic: SessionAggregator, step: Step, rows: Slice, given: Given) -> BoolArray:
    """True for messages that touch a closed session, or what keeps them out where sessions have a longest length."""
    lost = np.zeros(len(rows), dtype=bool)
    if int(_moments(rows).min()) >= step.closed_us:
        return lost
    if logic.longest_us is not None:
        return _outside_open(step, rows, given)
    if given.sessions is None:
        return lost
    stored = extents(given.sessions, given.stored)
    closed = stored.ends < step.closed_us
    if not closed.any():
        return lost
    own = Extents(given.codes, rows.times, _ends(logic, rows))
    return reached(Extents(*(column[closed] for column in stored)), own)


def _outside_open(step: Step, rows: Slice, given: Given) -> BoolArray:
    """True for messages that are later than allowed, and in no open session: no cut before the watermark moves."""
    late: BoolArray = rows.times < step.closed_us
    if given.sessions is None:
        return late
    stored = extents(given.sessions, given.stored)
    open_ = Extents(*(column[stored.ends >= step.closed_us] for column in stored))
    holder = holders(open_, given.codes, rows.times)
    ends = open_.ends[np.maximum(holder, 0)] if len(open_.ends) else rows.times
    return late & ((holder < 0) | (rows.times >= ends))


def _moments(rows: Slice) -> IntArray:
    """Where messages lie among sessions: their times, or their numbers."""
    numbered = NUMBER in rows.table.column_names
    moments: IntArray = combine(rows.table.column(NUMBER)).to_numpy() if numbered else rows.times
    return moments


def _positions(rows: Slice, at: pa.Array) -> pa.Array:
    return pa.nulls(len(at), pa.binary()) if rows.order is None else rows.order.take(at)


def _ends(logic: SessionAggregator, rows: Slice) -> IntArray:
    """The end of each message's own window."""
    own = logic.own_gap is not None
    gaps = combine(rows.table.column(GAP)).to_numpy() if own else logic.gap_us
    return _own_ends(logic, _moments(rows), gaps)


def _own_ends(logic: SessionAggregator, times: IntArray, gaps: Any) -> IntArray:
    """The ends of the windows of messages of these times alone."""
    ends: IntArray = np.minimum(times, LAST_END_US - gaps) + gaps
    return ends if logic.cells is None else np.minimum(ends, logic.cells.assign(times)[2])


def _joined_rows(logic: SessionAggregator, step: Step, rows: Slice, given: Given) -> Parts:
    """Messages and open sessions, joined where they touch."""
    moments = _moments(rows)
    if logic.own_gap is not None:
        each = np.arange(len(rows), dtype=np.int64)
        return _joined(step, Extents(given.codes, moments, _ends(logic, rows)), each, given)
    of_row, runs = _runs(given.codes, moments, logic.gap_us)
    ranges = Extents(runs.codes, runs.starts, _own_ends(logic, runs.ends, logic.gap_us))
    return _joined(step, ranges, of_row, given)


def _joined(step: Step, ranges: Extents, of_piece: IntArray, given: Given) -> Parts:
    """Ranges, of which each piece is in one, and open sessions, joined where they touch."""
    if given.sessions is None:
        found = joined(ranges)
        return Parts(found, found.component[of_piece], np.zeros(0, dtype=np.int64))
    stored = extents(given.sessions, given.stored)
    open_ = stored.ends >= step.closed_us
    if REACH in given.sessions.column_names:
        stored = stored._replace(ends=combine(given.sessions.column(REACH)).to_numpy())
    found = joined(Extents(*(column[open_] for column in stored)).and_more(ranges))
    component = np.full(len(open_), -1, dtype=np.int64)
    component[open_] = found.component[: open_.sum()]
    return Parts(found, found.component[open_.sum() :][of_piece], component)


def _runs(codes: IntArray, times: IntArray, gap_us: int) -> tuple[IntArray, Extents]:
    """(the run of each message, runs): messages of a key, none more than a gap from the next; their ends are the last times."""
    order = by_code(codes, times)
    codes, times = codes[order], times[order]
    opens = np.ones(len(times), dtype=bool)
    opens[1:] = (codes[1:] != codes[:-1]) | (times[1:] - times[:-1] > gap_us)
    first = np.flatnonzero(opens)
    of_row = np.empty(len(times), dtype=np.int64)
    of_row[order] = np.cumsum(opens) - 1
    last = np.r_[first[1:], len(times)] - 1
    return of_row, Extents(codes[first], times[first], times[last])


def _deltas(logic: SessionAggregator, step: Step, rows: Slice, parts: Parts) -> pa.Table:
    """What messages bring, a row a component; those on which the user's code raises bring nothing to theirs."""
    starts, ends = parts.joined.starts[parts.piece], parts.joined.ends[parts.piece]
    each, pieces = np.arange(len(rows), dtype=np.int64), Groups.numbered(parts.piece, parts.size)
    # Single messages would be folded in one by one, in the order in which they came.
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
    deltas = deltas.append_column(_COMPONENT, pa.array(parts.piece[groups.first_rows]))
    if broken:
        deltas = bury_failed(rows, each, groups, deltas, broken, step.dead)
    if logic.history is not None:
        taken = np.isin(parts.piece, combine(deltas.column(_COMPONENT)).to_numpy())
        logic.history.add(step.kv, rows.take(np.flatnonzero(taken)), step.progress.step, logic.calculation)
    return deltas


def _merged(
    logic: SessionAggregator, step: Step, deltas: pa.Table, given: Given, parts: Parts, pieces: Pieces
) -> Filed:
    """The sessions that took something, as one row each."""
    starts, ends = parts.joined.starts, parts.joined.ends
    component = combine(deltas.column(_COMPONENT)).to_numpy()
    deltas = without(deltas, _COMPONENT)
    takes = np.zeros(parts.size, dtype=bool)
    takes[component] = True
    held_to = np.full(parts.size, START_OF_TIME_US, dtype=np.int64)
    others, panes = given.near.rows, deltas.slice(0, 0).select([START, END, *logic.definition.by, PANES])
    mine, were = (parts.stored >= 0) & takes[parts.stored], None
    if mine.any() and others is not None:
        others, touched = chosen(others, logic.definition.by, mine)
        before = parts.stored[mine]
        hot = combine(touched.sessions.column(HOME)).to_numpy() == HOT
        np.maximum.at(held_to, before[hot], combine(touched.sessions.column(END)).to_numpy()[hot])
        whole = unfolded(logic.calculation, touched)
        if logic.definition.full_state and logic.definition.emit.mode == "discarding":
            whole = told_apart(whole, before)
        panes = whole.panes
        were = extents(whole.sessions, before)
        stored = without(whole.sessions, HOME, STANDS)
        if np.bincount(before).max() > 1:  # a left fold over what becomes one, by start
            order = np.argsort(combine(stored.column(START)).to_numpy(), kind="stable")
            stored, before = stored.take(pa.array(order)), before[order]
        deltas = concat([_with_extents(stored, starts[before], ends[before]), deltas])
        component = np.r_[before, component]
    groups = Groups.numbered(component, parts.size)
    merged = logic.merged(deltas, groups, step.dead)
    component = component[groups.first_rows]
    if were is not None:
        merged = with_bridges(merged, component, were, pieces, parts.piece)
    if logic.longest_us is not None:
        others, after = divide(logic, step, given.near, mine, merged)
        return Filed(given.near, others, after, np.ones(len(after.sessions), dtype=bool))
    width = logic.marks.width_us
    fresh = held_to[component] // width != ends[component] // width
    return Filed(given.near, others, Rows(merged, panes), fresh)


def _with_extents(sessions: pa.Table, starts: IntArray, ends: IntArray) -> pa.Table:
    """Parts of sessions, under the window of what they are parts of."""
    for name, bounds in ((START, starts), (END, ends)):
        sessions = sessions.set_column(sessions.column_names.index(name), name, pa.array(bounds))
    return sessions
