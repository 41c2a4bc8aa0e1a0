"""Splitting of sessions: by a maximum length, and after retractions.

So long after the first message of a part the next one begins; parts are sessions of their own, of messages that reach one
another. A new message may move every cut after it, and a retracted one may have held two parts together. So the messages of
all touched sessions are read again. Emitted panes that cross a cut are retracted at once; the rest with the next pane. The
column `__reach` of a state row has the end of the session without a maximum length: messages up to there may continue it, or
the session that follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import concat
from windrow.core.windows import LAST_END_US
from windrow.operators.aggregate.emitter import Emitter
from windrow.operators.aggregate.sessions.dynamic_gap import gaps_of
from windrow.operators.aggregate.sessions.extents import Extents, holders, reach_of
from windrow.operators.aggregate.sessions.kept_messages import messages_of
from windrow.operators.aggregate.sessions.panes import retractions_alone
from windrow.operators.aggregate.sessions.parts import Sessions
from windrow.operators.aggregate.sessions.rows import Rows, Step, Stored, codes_of, flags, owners
from windrow.operators.steps.columns import (
    EARLY,
    EMIT_STEP,
    END,
    FIRST,
    LAST,
    LATE,
    MESSAGES,
    MESSAGES_FROM,
    PANES,
    PENDING,
    SINCE,
    START,
    STEP,
    with_column,
)
from windrow.operators.steps.groups import Groups, combine, without
from windrow.stores.sessions import HOME, HOT

REACH = "__reach"
#: No moment.
NEVER_US = END_OF_TIME_US
#: Column of a part: the number of messages that were added or retracted in this step.
_CHANGES = "__changes"
#: Column of a part of a session that lost messages: not all sessions that it overlaps were emitted as ended.
_OPEN = "__open"


class Gone(NamedTuple):
    """Retracted messages: the merged session of each, and its time."""

    session: IntArray
    times: IntArray


class Divided(NamedTuple):
    """The result of a split. stay: the indices of rows that stay as they are. rows: the changed sessions and their panes.
    owed: those that the watermark has passed, and that had no ON_TIME pane.
    """

    stay: IntArray
    rows: Rows
    owed: BoolArray


NOTHING = Gone(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def divide(
    logic: Sessions,
    step: Step,
    stored: Stored,
    selected: BoolArray,
    merged: pa.Table,
    gone: Gone = NOTHING,
) -> Divided:
    """Split what is too long of `merged`, and what has lost messages: sessions that took messages, each with all that it
    touched. selected: the stored sessions in them.
    """
    by, longest_us = logic.definition.by, logic.longest_us
    starts, reach = (combine(merged.column(c)).to_numpy() for c in (START, END))
    ends = reach
    if longest_us is not None:
        ends = np.minimum(reach, starts + longest_us)
        merged = with_column(merged, REACH, pa.array(reach))
    sessions = with_column(merged, END, pa.array(ends))
    old = None if stored.near.rows is None else stored.rows(by, selected).sessions
    stays = np.zeros(0 if old is None else len(old), dtype=bool)
    owed, lost = np.zeros(len(merged), dtype=bool), np.zeros(len(merged), dtype=bool)
    lost[gone.session] = True
    cut = np.flatnonzero((ends < reach) | lost)
    if len(cut):
        of_cut = Gone(np.searchsorted(cut, gone.session), gone.times)
        parts, of = _parts(logic, step, merged.take(pa.array(cut)), of_cut)
        changes = lost[cut] | (np.bincount(of, minlength=len(cut)) > 1)
        parts = parts.filter(pa.array(changes[of]))
        if old is not None:
            parts, stays = _split_parts(old, parts, by)
        parts = _dated(logic, step, parts, old)
        whole = np.ones(len(merged), dtype=bool)
        whole[cut[changes]] = False
        sessions = concat([sessions.filter(pa.array(whole)), parts.drop_columns([_CHANGES, _OPEN])])
        owed = np.r_[np.zeros(int(whole.sum()), dtype=bool), flags(parts, _OPEN)]
        ends = combine(sessions.column(END)).to_numpy()
        owed &= logic.has_passed(ends, step.progress.watermark_us)
    none = np.zeros(0, dtype=np.int64)
    if old is None:
        return Divided(
            none, Rows(sessions, sessions.slice(0, 0).select([START, END, *by, PANES]), none), owed
        )
    selected = selected.copy()
    selected[np.flatnonzero(selected)[stays]] = False
    panes = stored.rows(by, selected).panes
    rows = Rows(sessions, panes, owners(sessions, panes, by))
    return Divided(stored.others(selected), _without_crossing(logic, step, rows), owed)


def _parts(logic: Sessions, step: Step, long: pa.Table, gone: Gone) -> tuple[pa.Table, IntArray]:
    """Return (the parts of these sessions as state rows, the session of each)."""
    assert logic.history is not None
    rows, of = messages_of(logic.history, step.kv, long, logic.calculation)
    if rows is None:
        none = pa.table({_CHANGES: pa.array([], pa.int64()), _OPEN: pa.array([], pa.bool_())})
        return concat([without(long.slice(0, 0), SINCE), none]), of
    gaps = logic.gap_us if logic.own_gap is None else gaps_of(logic.own_gap, rows)
    reach = np.minimum(rows.times, LAST_END_US - gaps) + gaps
    reach = np.minimum(reach, combine(long.column(END)).to_numpy()[of])
    begins = _begins(rows.times, reach, of, logic.longest_us)
    part = np.zeros(len(of), dtype=np.int64)
    part[begins[1:]] = 1
    groups = Groups.of_codes(np.cumsum(part), len(begins))
    order, whose = rows.order, pa.array(of[begins])
    positions = groups.aggregate([(order, "min"), (order, "max")])
    placed = combine(long.column(FIRST)).is_valid().take(whose)
    counts = np.bincount(groups.codes, minlength=groups.size).astype(np.int64)
    came = combine(rows.table.column(STEP)).to_numpy() == step.progress.step
    came = np.bincount(groups.codes, came, groups.size).astype(np.int64)
    starts, reach = rows.times[begins], np.asarray(np.maximum.reduceat(reach, begins), dtype=np.int64)
    longest_us = END_OF_TIME_US if logic.longest_us is None else logic.longest_us
    ends: IntArray = starts + np.minimum(reach - starts, longest_us)
    holder = holders(Extents(of[begins], starts, ends), gone.session, gone.times)
    left = holder[(holder >= 0) & (gone.times <= ends[np.maximum(holder, 0)])]
    falls = np.isin(of[begins], gone.session)
    columns = {
        START: pa.array(starts),
        END: pa.array(ends),
        **{b: combine(long.column(b)).take(whose) for b in logic.definition.by},
        MESSAGES: pa.array(counts),
        PENDING: pa.array(counts),
        PANES: pa.array(np.where(falls, combine(long.column(PANES)).to_numpy()[of[begins]], 0)),
        EMIT_STEP: pa.nulls(groups.size, pa.int64()),
        **{n: pc.if_else(placed, c, None) for n, c in zip((FIRST, LAST), positions, strict=True)},
        **({} if logic.longest_us is None else {REACH: pa.array(reach)}),
        **(
            {MESSAGES_FROM: combine(long.column(MESSAGES_FROM)).take(whose)}
            if MESSAGES_FROM in long.column_names
            else {}
        ),
        _CHANGES: pa.array(came + np.bincount(left, minlength=groups.size)),
        _OPEN: pa.array(falls),
    }
    return pa.table(columns), of[begins]


def _begins(times: IntArray, reach: IntArray, of: IntArray, longest_us: int | None) -> IntArray:
    """Return the messages that begin a part: none of the part before reaches them, or it has the maximum length. reach: the
    end of each message's range; of: the session of each, whose messages come one after the other, by time.
    """
    opens = np.ones(len(of), dtype=bool)
    opens[1:] = (of[1:] != of[:-1]) | (times[1:] > reach_of(of, reach)[:-1])
    begins, bounds = [], np.flatnonzero(opens)
    if longest_us is None:
        return bounds
    for first, end in pairwise([*bounds.tolist(), len(of)]):
        at = first
        while at < end:
            begins.append(at)
            over = at + int(np.searchsorted(times[at:end], times[at] + longest_us))
            # A part at its maximum length reaches nothing.
            at = over if at == first else _first_apart(times, reach, at, over)
    return np.array(begins, dtype=np.int64)


def _first_apart(times: IntArray, reach: IntArray, at: int, end: int) -> int:
    """Return the first message between these that none from `at` on reaches; else `end`."""
    far, low, size = reach[at : at + 1], at + 1, 64
    while low < end:
        high = min(low + size, end)
        until = np.maximum.accumulate(np.r_[far, reach[low:high]])
        apart = np.flatnonzero(times[low:high] > until[:-1])
        if len(apart):
            return low + int(apart[0])
        far, low, size = until[-1:], high, 2 * size
    return end


def _split_parts(old: pa.Table, parts: pa.Table, by: tuple[str, ...]) -> tuple[pa.Table, BoolArray]:
    """Return (the parts that are no old session, the old sessions that stay).

    A part continues the pane count of the sessions that it overlaps. One that begins at the start of one of them has the new
    messages pending, and those that were pending; another one all that it holds. It is due for an ON_TIME pane unless all
    of them were emitted as ended.
    """
    codes = codes_of([old, parts], by)
    keys, own = codes[: len(old)], codes[len(old) :]
    old_starts, old_ends, old_pending, old_panes = (
        combine(old.column(c)).to_numpy() for c in (START, END, PENDING, PANES)
    )
    starts, ends, came = (combine(parts.column(c)).to_numpy() for c in (START, END, _CHANGES))
    hot, current = combine(old.column(HOME)).to_numpy() == HOT, flags(parts, _OPEN).copy()
    pending, panes = (combine(parts.column(c)).to_numpy().copy() for c in (PENDING, PANES))
    changed, stays = np.ones(len(parts), dtype=bool), np.zeros(len(old), dtype=bool)
    for i, of_key in enumerate(_of_their_keys(keys, own)):
        meets = of_key[(old_starts[of_key] < ends[i]) & (starts[i] < old_ends[of_key])]
        same = meets[old_starts[meets] == starts[i]]
        if came[i] == 0 and (old_ends[same] == ends[i]).any():
            stays[same] = True
            changed[i] = False
            continue
        panes[i] = old_panes[meets].max(initial=panes[i])
        current[i] &= hot[meets].any() or not len(meets)
        if len(same):
            pending[i] = old_pending[meets[old_starts[meets] >= starts[i]]].sum() + came[i]
    for name, values in ((PENDING, pending), (PANES, panes), (_OPEN, current)):
        parts = with_column(parts, name, pa.array(values))
    return parts.filter(pa.array(changed)), stays


def _of_their_keys(keys: IntArray, own: IntArray) -> Iterator[IntArray]:
    """Yield for each of `own` its places among `keys`: a step may retract messages of many keys."""
    order = np.argsort(keys, kind="stable")
    bounds = (np.searchsorted(keys[order], own, side) for side in ("left", "right"))
    for low, high in zip(*(bound.tolist() for bound in bounds), strict=True):
        yield order[low:high]


def _dated(logic: Sessions, step: Step, parts: pa.Table, old: pa.Table | None) -> pa.Table:
    """Return the parts with the time since when they hold messages that no pane has emitted, where a trigger needs it: since
    the first pending one of the sessions that they overlap, or since now.
    """
    noted = old is not None and SINCE in old.column_names
    if not (noted or logic.timers.delays):
        return parts
    size = len(parts)
    since = np.full(size, NEVER_US, dtype=np.int64)
    starts, ends, came = (combine(parts.column(c)).to_numpy() for c in (START, END, _CHANGES))
    new = np.ones(size, dtype=bool)
    if old is not None:
        codes = codes_of([old, parts], logic.definition.by)
        keys, own = codes[: len(old)], codes[len(old) :]
        began, ended = (combine(old.column(c)).to_numpy() for c in (START, END))
        waits = combine(old.column(SINCE)).fill_null(NEVER_US).to_numpy() if noted else None
        for i, of_key in enumerate(_of_their_keys(keys, own)):
            meets = of_key[(began[of_key] < ends[i]) & (starts[i] < ended[of_key])]
            new[i] = not (began[meets] == starts[i]).any()
            if waits is not None:
                since[i] = waits[meets].min(initial=NEVER_US)
    if logic.timers.delays:
        more = new | (came > 0)
        since[more] = np.minimum(since[more], step.moment.now_us)
    return parts.append_column(SINCE, pa.array(since, mask=since == NEVER_US))


def _without_crossing(logic: Sessions, step: Step, rows: Rows) -> Rows:
    """Return the rows without the panes that no session holds whole: these are retracted."""
    if len(rows.panes) == 0:
        return rows
    ends = combine(rows.panes.column(END)).to_numpy()
    held = np.zeros(len(ends), dtype=np.int64)
    owned = rows.owner >= 0
    held[owned] = combine(rows.sessions.column(END)).to_numpy()[rows.owner[owned]]
    crosses = ~owned | (ends > held)
    emitter = Emitter(logic.definition, step.dead, step.progress.step)
    for timing, late in ((EARLY, False), (LATE, True)):
        of_timing = crosses & ((ends <= step.progress.watermark_us) == late)
        if of_timing.any():
            panes = rows.panes.filter(pa.array(of_timing))
            step.emitted.append(retractions_alone(emitter, logic.calculation, panes, timing))
    return Rows(rows.sessions, rows.panes.filter(pa.array(~crosses)), rows.owner[~crosses])
