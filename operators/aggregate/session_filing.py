"""Which sessions take the messages of a step, and the messages that none takes: they are dead letters.

In this order: a message is out of retention by its own window, whatever it touches; one that touches a closed session is too
late, each by itself; the others are joined with each other and with the open sessions of their key, and where nothing in that
is open, all of it is too late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import START_OF_TIME_US
from windrow.core.types import concat
from windrow.core.windows import LAST_END_US
from windrow.operators.aggregate.extents import Extents, Joined, joined, reached
from windrow.operators.aggregate.filing import bury_broken, bury_failed
from windrow.operators.aggregate.session_rows import Rows, apart, chosen, codes_of, extents, unfolded
from windrow.operators.aggregate.state_rows import Windows, delta_rows, merge_slices
from windrow.operators.steps.columns import END, PANES, START
from windrow.operators.steps.dead import OUT_OF_RETENTION, TOO_LATE
from windrow.operators.steps.groups import Groups, combine, without
from windrow.operators.steps.intake import Slice, event_time_marks
from windrow.stores.sessions import HOME, HOT, STANDS
from windrow.stores.windows import Near

if TYPE_CHECKING:
    from windrow.operators.aggregate.sessions import SessionAggregator, Step

_COMPONENT = "__component"


class Filed(NamedTuple):
    """near: what was read, of which `others` stay as they are. rows: the sessions that took messages, merged, and what stands
    of them. fresh: those that may now end in a bucket in which they are not looked for.
    """

    near: Near
    others: pa.Table | None
    rows: Rows
    fresh: BoolArray


class Parts(NamedTuple):
    """Ranges of messages and stored sessions, joined. piece: the component of each message, or group of them; stored: of each
    stored session that is open, -1 for others.
    """

    joined: Joined
    piece: IntArray
    stored: IntArray


def file_sessions(logic: SessionAggregator, step: Step, rows: Slice) -> Filed | None:
    """Find the sessions of these messages; None where none is taken."""
    rows = _in_retention(logic, step, rows)
    if len(rows) == 0:
        return None
    near = _near(logic, step, rows.table, rows.times, rows.times)
    sessions = None if near.rows is None else apart(near.rows, logic.definition.by).sessions
    rows = _beyond_closed(logic, step, rows, sessions)
    if len(rows) == 0:
        return None
    parts = _joined_rows(logic, step, rows, sessions)
    lost = parts.joined.ends[parts.piece] < step.closed_us
    if lost.any():
        logic.calculation.lift(rows)  # a message on which it raises joins nothing
        detail = "the session that it makes with others of its step is closed"
        step.dead.add_rows(TOO_LATE, detail, rows.table, np.flatnonzero(lost), pa.array(rows.times))
        rows = rows.take(np.flatnonzero(~lost))
        if len(rows) == 0:
            return None
        parts = _joined_rows(logic, step, rows, sessions)
    step.result.marks = dict(event_time_marks(rows))
    deltas = _deltas(logic, step, rows, parts)
    return None if len(deltas) == 0 else _merged(logic, step, deltas, near, sessions, parts)


def file_groups(
    logic: SessionAggregator, step: Step, groups: pa.Table, first_us: IntArray, last_us: IntArray
) -> Filed:
    """Find the sessions of groups of messages, of which none is as late as to reach a closed session.

    groups: state rows without a window. Messages of one group are less than a gap apart: from `first_us` to `last_us`.
    """
    near = _near(logic, step, groups, first_us, last_us)
    sessions = None if near.rows is None else apart(near.rows, logic.definition.by).sessions
    codes = _codes(logic, sessions, groups, first_us)
    n = len(codes) - len(groups)
    ranges = Extents(codes[n:], first_us, _own_ends(logic, last_us))
    parts = _joined(step, ranges, np.arange(len(groups), dtype=np.int64), sessions, codes[:n])
    starts, ends = parts.joined.starts[parts.piece], parts.joined.ends[parts.piece]
    each = np.arange(len(groups), dtype=np.int64)
    deltas, broken = merge_slices(logic.calculation, groups, Windows(each, starts, ends))
    bury_broken(deltas, broken, logic.definition, step.dead)
    _, first = np.unique(parts.piece, return_index=True)
    deltas = deltas.append_column(_COMPONENT, pa.array(parts.piece[np.sort(first)]))
    return _merged(logic, step, deltas, near, sessions, parts)


def _in_retention(logic: SessionAggregator, step: Step, rows: Slice) -> Slice:
    gone = rows.times < logic.kept_from(step.progress.watermark_us)
    if not gone.any():
        return rows
    detail = "its own window is out of retention"
    step.dead.add_rows(OUT_OF_RETENTION, detail, rows.table, np.flatnonzero(gone), pa.array(rows.times))
    return rows.take(np.flatnonzero(~gone))


def _near(
    logic: SessionAggregator, step: Step, rows: pa.Table, first_us: IntArray, last_us: IntArray
) -> Near:
    """The sessions of their keys that may still grow, and those past ones that they may reach."""
    by = logic.definition.by
    keys = rows.select(list(by)) if by else None
    asked = [_keys(keys, np.arange(len(rows)), HOT)]
    for bucket in logic.store.buckets(step.kv, int(first_us.min())):
        near = (first_us <= bucket.last_us) & (last_us >= bucket.first_us - logic.gap_us)
        if near.any():
            asked.append(_keys(keys, np.flatnonzero(near), bucket.home))
    homes = [home for home, _ in asked]
    return logic.store.near(step.kv, homes, concat([table for _, table in asked]))


def _keys(keys: pa.Table | None, some: IntArray, home: int) -> tuple[int, pa.Table]:
    """The distinct keys of some rows, at a home."""
    if keys is None:
        return home, pa.table({START: pa.array([home], pa.int64())})
    mine = keys.take(pa.array(some))
    distinct = mine.take(pa.array(Groups(list(mine.columns), len(mine)).first_rows))
    homes = pa.array(np.full(len(distinct), home, dtype=np.int64))
    return home, distinct.add_column(0, START, homes)


def _beyond_closed(logic: SessionAggregator, step: Step, rows: Slice, sessions: pa.Table | None) -> Slice:
    """The messages that touch no closed session."""
    if sessions is None or int(rows.times.min()) >= step.closed_us:
        return rows
    codes = _codes(logic, sessions, rows.table, rows.times)
    stored = extents(sessions, codes[: len(sessions)])
    closed = stored.ends < step.closed_us
    if not closed.any():
        return rows
    own = Extents(codes[len(sessions) :], rows.times, _own_ends(logic, rows.times))
    lost = reached(Extents(*(column[closed] for column in stored)), own)
    if not lost.any():
        return rows
    detail = "it reaches a session that is closed"
    step.dead.add_rows(TOO_LATE, detail, rows.table, np.flatnonzero(lost), pa.array(rows.times))
    return rows.take(np.flatnonzero(~lost))


def _codes(logic: SessionAggregator, sessions: pa.Table | None, rows: pa.Table, times: IntArray) -> IntArray:
    """A number for the key of each stored session and of each row; sessions of two cells of `cut` never meet."""
    tables = [rows] if sessions is None else [sessions, rows]
    codes = codes_of(tables, logic.definition.by)
    if logic.cells is None:
        return codes
    starts = [] if sessions is None else [combine(sessions.column(START)).to_numpy()]
    _, cells, _ = logic.cells.assign(np.concatenate([*starts, times]))
    return Groups([pa.array(codes), pa.array(cells)], len(codes)).codes


def _own_ends(logic: SessionAggregator, times: IntArray) -> IntArray:
    """The end of each message's own window."""
    ends: IntArray = np.minimum(times, LAST_END_US - logic.gap_us) + logic.gap_us
    return ends if logic.cells is None else np.minimum(ends, logic.cells.assign(times)[2])


def _joined_rows(logic: SessionAggregator, step: Step, rows: Slice, sessions: pa.Table | None) -> Parts:
    """Messages and open sessions, joined where they touch."""
    codes = _codes(logic, sessions, rows.table, rows.times)
    n = len(codes) - len(rows)
    of_row, runs = _runs(codes[n:], rows.times, logic.gap_us)
    ranges = Extents(runs.codes, runs.starts, _own_ends(logic, runs.ends))
    return _joined(step, ranges, of_row, sessions, codes[:n])


def _joined(
    step: Step, ranges: Extents, of_piece: IntArray, sessions: pa.Table | None, codes: IntArray
) -> Parts:
    """Ranges, of which each piece is in one, and open sessions, joined where they touch."""
    if sessions is None:
        found = joined(ranges)
        return Parts(found, found.component[of_piece], np.zeros(0, dtype=np.int64))
    stored = extents(sessions, codes)
    open_ = stored.ends >= step.closed_us
    found = joined(Extents(*(column[open_] for column in stored)).and_more(ranges))
    component = np.full(len(codes), -1, dtype=np.int64)
    component[open_] = found.component[: open_.sum()]
    return Parts(found, found.component[open_.sum() :][of_piece], component)


def _runs(codes: IntArray, times: IntArray, gap_us: int) -> tuple[IntArray, Extents]:
    """(the run of each message, runs): messages of a key, none more than a gap from the next; their ends are the last times."""
    order = np.lexsort((times, codes))
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
    each = np.arange(len(rows), dtype=np.int64)
    deltas, groups, broken = delta_rows(logic.calculation, rows, each, starts, ends)
    deltas = deltas.append_column(_COMPONENT, pa.array(parts.piece[groups.first_rows]))
    if broken:
        deltas = bury_failed(rows, each, groups, deltas, broken, step.dead)
    if logic.history is not None:
        taken = np.isin(parts.piece, combine(deltas.column(_COMPONENT)).to_numpy())
        logic.history.add(step.kv, rows.take(np.flatnonzero(taken)), step.progress.step, logic.calculation)
    return deltas


def _merged(
    logic: SessionAggregator,
    step: Step,
    deltas: pa.Table,
    near: Near,
    sessions: pa.Table | None,
    parts: Parts,
) -> Filed:
    """The sessions that took something, as one row each."""
    starts, ends = parts.joined.starts, parts.joined.ends
    takes = np.zeros(len(starts), dtype=bool)
    takes[combine(deltas.column(_COMPONENT)).to_numpy()] = True
    held_to = np.full(len(starts), START_OF_TIME_US, dtype=np.int64)
    others, panes = near.rows, None
    if sessions is not None and near.rows is not None:
        mine = (parts.stored >= 0) & takes[parts.stored]
        others, touched = chosen(near.rows, logic.definition.by, mine)
        component = parts.stored[mine]
        hot = combine(touched.sessions.column(HOME)).to_numpy() == HOT
        np.maximum.at(held_to, component[hot], combine(touched.sessions.column(END)).to_numpy()[hot])
        whole = unfolded(logic.calculation, touched)
        panes = whole.panes
        order = np.argsort(combine(whole.sessions.column(START)).to_numpy(), kind="stable")
        before = _with_extents(without(whole.sessions, HOME, STANDS), component, starts, ends)
        deltas = concat([before.take(pa.array(order)), deltas]) if len(before) else deltas
    merged = logic.merged(deltas, step.dead)
    component = combine(merged.column(_COMPONENT)).to_numpy()
    width = logic.due.width_us
    fresh = held_to[component] // width != ends[component] // width
    merged = merged.drop_columns([_COMPONENT])
    if panes is None:
        panes = merged.slice(0, 0).select([START, END, *logic.definition.by, PANES])
    return Filed(near, others, Rows(merged, panes), fresh)


def _with_extents(sessions: pa.Table, component: IntArray, starts: IntArray, ends: IntArray) -> pa.Table:
    """Parts of sessions, under the window of what they are parts of."""
    for name, bounds in ((START, starts), (END, ends)):
        at = sessions.column_names.index(name)
        sessions = sessions.set_column(at, name, pa.array(bounds[component]))
    return sessions.append_column(_COMPONENT, pa.array(component))
