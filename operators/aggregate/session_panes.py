"""From sessions that fire to panes, and what the rows are afterwards.

A session is told under the window that it has by now. What was told of it before, under other windows or under the same one,
is taken back directly before: what stands inside it, in every mode but discarding; a pane of the same window only where the
mode is retracting, since in the others the new one stands in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.types import as_type, concat
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.emission import bury, label
from windrow.operators.aggregate.session_rows import Rows, owners, standing
from windrow.operators.aggregate.state_rows import in_window_order
from windrow.operators.aggregate.told import Values, choose
from windrow.operators.aggregations.calculation import any_differ
from windrow.operators.steps.columns import (
    ACCUMULATOR,
    EMIT_STEP,
    EMITTED,
    END,
    INSERT,
    ON_TIME,
    PANES,
    PENDING,
    RETRACT,
    START,
)
from windrow.operators.steps.dead import DeadLetters
from windrow.operators.steps.groups import combine, without

#: Of a pane on its way: the window of the session on whose account it is told.
_FOR_START, _FOR_END = "__for_start", "__for_end"


class Fired(NamedTuple):
    """told: panes, not in order yet, or None. rows: the sessions after, in the order they came, and what stands of them.
    speaks: which of them were told.
    """

    told: pa.Table | None
    rows: Rows
    speaks: BoolArray


def fire(
    definition: AggregateDefinition,
    rows: Rows,
    values_of: Values,
    *,
    timing: str,
    is_last: BoolArray,
    closing: bool,
    step: int,
    dead: DeadLetters,
) -> Fired:
    """Fire every session of `rows`, whose panes are all that stand inside them."""
    sessions, panes = rows
    emit, size = definition.emit, len(sessions)
    values, broken = values_of(sessions)
    columns = [combine(values[a]) for a in definition.agg]
    speaks = np.ones(size, dtype=bool)
    for b in broken:
        if speaks[b.group]:
            bury(definition, sessions, b, dead)
        speaks[b.group] = False
    owner = owners(rows, definition.by)
    same = _same_window(rows, owner)
    asked = closing and emit.closing_pane
    if emit.mode == "discarding":
        if emit.only_if_changed and not asked:
            speaks &= combine(sessions.column(PENDING)).to_numpy() > 0
    elif emit.only_if_changed or emit.mode == "retracting":
        unchanged = _unchanged(definition, columns, panes, owner, same, size)
        if (emit.only_if_changed and not asked) or (
            emit.mode == "retracting" and timing != ON_TIME and not closing
        ):
            speaks &= ~unchanged
    retracts = speaks[owner] & (~same | (emit.mode == "retracting"))
    told = _told(definition, rows, columns, owner, retracts, speaks, timing, is_last)
    after = _after(definition, sessions, speaks, step)
    left = panes.filter(pa.array(~speaks[owner]))
    if emit.mode == "discarding":
        return Fired(told, Rows(after, left), speaks)
    if not definition.full_state:
        return Fired(told, Rows(standing(after, speaks), left), speaks)
    names = [START, END, *definition.by, PANES]
    new = pa.table(
        [*(after.column(n) for n in names), *columns], names=[*names, *(EMITTED + a for a in definition.agg)]
    ).filter(pa.array(speaks))
    return Fired(told, Rows(after, concat([left, new]) if len(left) else new), speaks)


def in_order(told: Sequence[pa.Table], by: tuple[str, ...]) -> list[pa.Table]:
    """What one part of a step told, as one: by the start and end of the session and its key, retractions first."""
    if not told:
        return []
    table = concat(list(told))
    places = pa.table(
        [table.column(_FOR_START), table.column(_FOR_END), *(table.column(b) for b in by)],
        names=[START, END, *by],
    )
    order = in_window_order(places, by)
    return [without(table, _FOR_START, _FOR_END).take(pa.array(order))]


def _same_window(rows: Rows, owner: IntArray) -> BoolArray:
    """True for panes of the very window that their session has."""
    equal = np.ones(len(owner), dtype=bool)
    for name in (START, END):
        mine = combine(rows.panes.column(name)).to_numpy()
        equal &= mine == combine(rows.sessions.column(name)).to_numpy()[owner]
    return equal


def _unchanged(
    definition: AggregateDefinition,
    columns: Sequence[pa.Array],
    panes: pa.Table,
    owner: IntArray,
    same: BoolArray,
    size: int,
) -> BoolArray:
    """True for sessions of which what stands is one pane, of the same window and the same values."""
    unchanged = np.zeros(size, dtype=bool)
    at = np.flatnonzero(same & (np.bincount(owner, minlength=size)[owner] == 1))
    if len(at) == 0:
        return unchanged
    index, of = pa.array(at), pa.array(owner[at])
    now = [column.take(of) for column in columns]
    names = [EMITTED + a for a in definition.agg]
    before = [
        as_type(combine(panes.column(name)).take(index), column.type)
        for name, column in zip(names, now, strict=True)
    ]
    unchanged[owner[at]] = ~any_differ(before, now, len(at))
    return unchanged


def _told(
    definition: AggregateDefinition,
    rows: Rows,
    columns: Sequence[pa.Array],
    owner: IntArray,
    retracts: BoolArray,
    speaks: BoolArray,
    timing: str,
    is_last: BoolArray,
) -> pa.Table | None:
    if not speaks.any():
        return None
    fixed, aliases = [START, END, *definition.by], list(definition.agg)
    sessions, panes = rows
    at = pa.array(np.flatnonzero(speaks))
    inserts = sessions.select(fixed).take(at)
    for alias, column in zip(aliases, columns, strict=True):
        inserts = inserts.append_column(alias, column.take(at))
    index = combine(sessions.column(PANES)).to_numpy()
    inserts = label(inserts, timing, index[speaks], is_last[speaks], INSERT)
    inserts = _on_account(inserts, sessions.take(at))
    if not retracts.any():
        return inserts
    back = np.flatnonzero(retracts)
    back = back[np.argsort(combine(panes.column(START)).to_numpy()[back], kind="stable")]
    taken = panes.take(pa.array(back))
    retractions = taken.select(fixed)
    for alias, column in zip(aliases, columns, strict=True):
        retractions = retractions.append_column(
            alias, as_type(combine(taken.column(EMITTED + alias)), column.type)
        )
    former = combine(taken.column(PANES)).to_numpy() - 1
    retractions = label(retractions, timing, former, np.zeros(len(back), dtype=bool), RETRACT)
    return concat([_on_account(retractions, sessions.take(pa.array(owner[back]))), inserts])


def _on_account(panes: pa.Table, sessions: pa.Table) -> pa.Table:
    panes = panes.append_column(_FOR_START, sessions.column(START))
    return panes.append_column(_FOR_END, sessions.column(END))


def _after(definition: AggregateDefinition, sessions: pa.Table, speaks: BoolArray, step: int) -> pa.Table:
    """The sessions after firing: nothing pending, one pane more where one was sent, accumulators dropped if discarding."""
    size, discarding = len(sessions), definition.emit.mode == "discarding"
    now = pa.array(np.full(size, step, dtype=np.int64))
    replaced = {
        PENDING: pa.array(np.zeros(size, dtype=np.int64)),
        PANES: pa.array(combine(sessions.column(PANES)).to_numpy() + speaks),
        EMIT_STEP: now if discarding else choose(speaks, now, combine(sessions.column(EMIT_STEP))),
    }
    names = [n for n in sessions.column_names if not (discarding and n.startswith(ACCUMULATOR))]
    return pa.table([replaced.get(n, sessions.column(n)) for n in names], names=names)
