"""Sessions that have a longest length: what makes one is cut from its first message on, wherever something came to it.

So long after the first message of a part the next one begins; parts are sessions of their own. One that comes between two
messages may move every cut after it, so the messages of what it touches are read again. What was told across a cut
is taken back at once; the rest with what is told next. The column `__reach` of a state row says where the session
would end if there were no longest length: messages up to there go on with it, or with what follows it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import concat
from windrow.core.windows import LAST_END_US
from windrow.operators.aggregate.own_gaps import gaps_of
from windrow.operators.aggregate.session_history import messages_of
from windrow.operators.aggregate.session_panes import taken_back
from windrow.operators.aggregate.session_rows import Rows, Step, Stored, codes_of, owners
from windrow.operators.steps.columns import (
    EARLY,
    EMIT_STEP,
    END,
    FIRST,
    LAST,
    LATE,
    MESSAGES,
    PANES,
    PENDING,
    SINCE,
    START,
    STEP,
)
from windrow.operators.steps.groups import Groups, combine

if TYPE_CHECKING:
    from windrow.operators.aggregate.sessions import SessionAggregator

REACH = "__reach"
#: No moment.
NEVER_US = END_OF_TIME_US
#: Of a part: how many of its messages came in this step.
_CAME = "__came"


def divide(
    logic: SessionAggregator, step: Step, stored: Stored, mine: BoolArray, merged: pa.Table
) -> tuple[IntArray, Rows]:
    """Cut what is too long of `merged`: sessions that took something, each with all that it touched, `mine` of what was read.

    Returns (where the rows lie that stay as they are, the sessions that changed and what stands of them).
    """
    assert logic.longest_us is not None
    by = logic.definition.by
    starts, reach = (combine(merged.column(c)).to_numpy() for c in (START, END))
    ends = np.minimum(reach, starts + logic.longest_us)
    sessions = _with(_with(merged, END, ends), REACH, reach)
    old = None if stored.near.rows is None else stored.rows(by, mine).sessions
    stays = np.zeros(0 if old is None else len(old), dtype=bool)
    long = np.flatnonzero(ends < reach)
    if len(long):
        parts, of = _parts(logic, step, merged.take(pa.array(long)))
        several = np.bincount(of, minlength=len(long)) > 1
        parts = parts.filter(pa.array(several[of]))
        if old is not None:
            parts, stays = _beside(old, parts, by)
        parts = _dated(logic, step, parts, old)
        one = np.ones(len(merged), dtype=bool)
        one[long[several]] = False
        sessions = concat([sessions.filter(pa.array(one)), parts.drop_columns([_CAME])])
    none = np.zeros(0, dtype=np.int64)
    if old is None:
        return none, Rows(sessions, sessions.slice(0, 0).select([START, END, *by, PANES]), none)
    mine = mine.copy()
    mine[np.flatnonzero(mine)[stays]] = False
    panes = stored.rows(by, mine).panes
    rows = Rows(sessions, panes, owners(sessions, panes, by))
    return stored.others(mine), _without_crossing(logic, step, rows)


def _parts(logic: SessionAggregator, step: Step, long: pa.Table) -> tuple[pa.Table, IntArray]:
    """(the parts of these sessions as state rows, which session each is of)."""
    assert logic.history is not None and logic.longest_us is not None
    rows, of = messages_of(logic.history, step.kv, long, logic.calculation)
    assert rows is not None
    begins = _begins(rows.times, of, logic.longest_us)
    part = np.zeros(len(of), dtype=np.int64)
    part[begins[1:]] = 1
    groups = Groups.of_codes(np.cumsum(part), len(begins))
    order, whose = rows.order, pa.array(of[begins])
    positions = groups.aggregate([(order, "min"), (order, "max")])
    placed = combine(long.column(FIRST)).is_valid().take(whose)
    counts = np.bincount(groups.codes, minlength=groups.size).astype(np.int64)
    came = combine(rows.table.column(STEP)).to_numpy() == step.progress.step
    starts, gaps = rows.times[begins], logic.gap_us if logic.own_gap is None else gaps_of(logic.own_gap, rows)
    reach = np.maximum.reduceat(np.minimum(rows.times, LAST_END_US - gaps) + gaps, begins)
    reach = np.minimum(reach, combine(long.column(END)).to_numpy()[of[begins]])
    columns = {
        START: pa.array(starts),
        END: pa.array(np.minimum(reach, starts + logic.longest_us)),
        **{b: combine(long.column(b)).take(whose) for b in logic.definition.by},
        MESSAGES: pa.array(counts),
        PENDING: pa.array(counts),
        PANES: pa.array(np.zeros(groups.size, dtype=np.int64)),
        EMIT_STEP: pa.nulls(groups.size, pa.int64()),
        **{n: pc.if_else(placed, c, None) for n, c in zip((FIRST, LAST), positions, strict=True)},
        REACH: pa.array(reach),
        _CAME: pa.array(np.bincount(groups.codes, came, groups.size).astype(np.int64)),
    }
    return pa.table(columns), of[begins]


def _begins(times: IntArray, of: IntArray, longest_us: int) -> IntArray:
    """The messages that begin a part. of: the session of each, whose messages come one after the other, by time."""
    found = []
    bounds = np.r_[0, np.flatnonzero(np.diff(of)) + 1, len(of)]
    for at, end in pairwise(bounds.tolist()):
        while at < end:
            found.append(at)
            at += int(np.searchsorted(times[at:end], times[at] + longest_us))
    return np.array(found, dtype=np.int64)


def _beside(old: pa.Table, parts: pa.Table, by: tuple[str, ...]) -> tuple[pa.Table, BoolArray]:
    """(the parts that are no old session, which of the old sessions stay).

    A part goes on counting panes where the sessions that it meets were. One that begins where one of them began has to tell
    what came, and what these had to tell; another one all that it holds.
    """
    codes = codes_of([old, parts], by)
    keys, own = codes[: len(old)], codes[len(old) :]
    old_starts, old_ends, old_pending, old_panes = (
        combine(old.column(c)).to_numpy() for c in (START, END, PENDING, PANES)
    )
    starts, ends, came = (combine(parts.column(c)).to_numpy() for c in (START, END, _CAME))
    pending, panes = combine(parts.column(PENDING)).to_numpy().copy(), np.zeros(len(parts), dtype=np.int64)
    changed, stays = np.ones(len(parts), dtype=bool), np.zeros(len(old), dtype=bool)
    for i in range(len(parts)):
        meets = (keys == own[i]) & (old_starts < ends[i]) & (starts[i] < old_ends)
        same = meets & (old_starts == starts[i])
        if came[i] == 0 and (same & (old_ends == ends[i])).any():
            stays |= same
            changed[i] = False
            continue
        panes[i] = old_panes[meets].max(initial=0)
        if same.any():
            pending[i] = old_pending[meets & (old_starts >= starts[i])].sum() + came[i]
    parts = _with(_with(parts, PENDING, pending), PANES, panes)
    return parts.filter(pa.array(changed)), stays


def _dated(logic: SessionAggregator, step: Step, parts: pa.Table, old: pa.Table | None) -> pa.Table:
    """The parts with since when some of what they hold is told by no pane, where a trigger asks for it: since the first of what
    they meet waits, or since now.
    """
    noted = old is not None and SINCE in old.column_names
    if not (noted or logic.marks.delays):
        return parts
    size = len(parts)
    found = np.full(size, NEVER_US, dtype=np.int64)
    starts, ends, came = (combine(parts.column(c)).to_numpy() for c in (START, END, _CAME))
    new = np.ones(size, dtype=bool)
    if old is not None:
        codes = codes_of([old, parts], logic.definition.by)
        keys, own = codes[: len(old)], codes[len(old) :]
        began, ended = (combine(old.column(c)).to_numpy() for c in (START, END))
        waits = combine(old.column(SINCE)).fill_null(NEVER_US).to_numpy() if noted else None
        for i in range(size):
            meets = (keys == own[i]) & (began < ends[i]) & (starts[i] < ended)
            new[i] = not (meets & (began == starts[i])).any()
            if waits is not None:
                found[i] = waits[meets].min(initial=NEVER_US)
    if logic.marks.delays:
        more = new | (came > 0)
        found[more] = np.minimum(found[more], step.moment.now_us)
    return parts.append_column(SINCE, pa.array(found, mask=found == NEVER_US))


def _without_crossing(logic: SessionAggregator, step: Step, rows: Rows) -> Rows:
    """The rows without the panes that no session holds whole: these are taken back."""
    if len(rows.panes) == 0:
        return rows
    ends = combine(rows.panes.column(END)).to_numpy()
    crosses = ends > combine(rows.sessions.column(END)).to_numpy()[rows.owner]
    for timing, late in ((EARLY, False), (LATE, True)):
        some = crosses & ((ends <= step.progress.watermark_us) == late)
        if some.any():
            panes = rows.panes.filter(pa.array(some))
            step.told.append(taken_back(logic.definition, logic.calculation, panes, timing))
    return Rows(rows.sessions, rows.panes.filter(pa.array(~crosses)), rows.owner[~crosses])


def _with(rows: pa.Table, name: str, values: IntArray) -> pa.Table:
    column = pa.array(values)
    if name not in rows.column_names:
        return rows.append_column(name, column)
    return rows.set_column(rows.column_names.index(name), name, column)
