"""Pane emitter: makes panes of state rows that fire, and updates the rows. Semantics "Emission", "Retractions".

Panes are tables: `__start`, `__end`, the keys, the aggregates, `__timing`, `__index`, `__is_last`, `__kind`.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray, taken
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.emitted_values import Values, choose, last_emitted, marks, note, of_gone
from windrow.operators.aggregate.state_rows import in_window_order
from windrow.operators.aggregations.base import SumOverflow
from windrow.operators.aggregations.calculation import Broken, Calculation, any_differ
from windrow.operators.steps.columns import (
    ACCUMULATOR,
    EMIT_STEP,
    EMITTED,
    END,
    INDEX,
    INSERT,
    IS_LAST,
    KIND,
    MESSAGES,
    ON_TIME,
    PANES,
    PENDING,
    REPLACED,
    RETRACT,
    SINCE,
    START,
    TIMING,
    TOLD,
)
from windrow.operators.steps.dead_letters import AGGREGATE_FAILED, INTEGER_OVERFLOW, DeadLetters
from windrow.operators.steps.groups import combine


@dataclass(frozen=True)
class Fired:
    """The result of firing. panes: the emitted ones, or None. rows: the state rows after, in the order they came."""

    panes: pa.Table | None
    rows: pa.Table


def fire(
    definition: AggregateDefinition,
    calculation: Calculation,
    rows: pa.Table,
    values_of: Values,
    *,
    timing: str,
    is_last: BoolArray,
    closing: bool,
    step: int,
    dead: DeadLetters,
    last_values: Values | None = None,
    always: bool = False,
) -> Fired:
    """Fire every row of `rows`. `closing`: these are last panes; a requested one is sent even if nothing changed.

    `always`: emitted panes are emitted again even if nothing changed.
    `last_values`: the last emitted values, from kept messages.
    """
    size = len(rows)
    if size == 0:
        return Fired(None, rows)
    emit = definition.emit
    values, broken = values_of(rows)
    aliases = list(definition.agg)
    columns = [combine(values[a]) for a in aliases]
    fires = np.ones(size, dtype=bool)
    for b in broken:
        if fires[b.group]:
            bury(definition, rows, b, dead)
        fires[b.group] = False

    empty, asked = _empty(definition, rows), closing and emit.closing_pane
    emitted: dict[str, pa.Array] = {}
    known = np.zeros(size, dtype=bool)
    if definition.remembers:
        emitted, known = last_emitted(rows, dict(zip(aliases, columns, strict=True)), fires, last_values)
        changed = any_differ([emitted[a] for a in aliases], columns, size) | ~known | empty
        if emit.only_if_changed and not asked:
            fires &= changed
        if emit.mode == "retracting" and timing != ON_TIME and not asked and not always:
            fires &= changed
    elif emit.only_if_changed and not asked:
        fires &= combine(rows.column(PENDING)).to_numpy() > 0

    removed = fires & known & empty
    fires &= ~empty
    back = _Back(emitted, removed | (fires & known & definition.takes_back_panes), removed)
    panes = _panes(definition, rows, columns, fires, back, timing, is_last)
    for alias, column in zip(aliases, columns, strict=True):
        emitted[alias] = choose(fires, column, emitted[alias]) if alias in emitted else column
    return Fired(panes, _after(definition, rows, emitted, known & ~removed, fires, step))


class _Back(NamedTuple):
    """The retractions of a firing. emitted: last emitted values; retracts: rows that retract; removed: those not replaced."""

    emitted: Mapping[str, pa.Array]
    retracts: BoolArray
    removed: BoolArray


def _empty(definition: AggregateDefinition, rows: pa.Table) -> BoolArray:
    """True where all messages were retracted: such a window is like one that never had a message."""
    if not definition.takes_back:
        return np.zeros(len(rows), dtype=bool)
    return np.asarray(combine(rows.column(MESSAGES)).to_numpy() <= 0, dtype=bool)


def bury(
    definition: AggregateDefinition, rows: pa.Table, broken: Broken, dead: DeadLetters, arrived: int = 0
) -> None:
    """Add the dead letter of a pane that cannot be computed. arrived: the message of a run that would have emitted it."""
    row = rows.slice(broken.group, 1)
    payload = {
        "window": [row.column(START)[0].as_py(), row.column(END)[0].as_py()],
        "key": {b: row.column(b)[0].as_py() for b in definition.by},
    }
    if isinstance(broken.error, SumOverflow):
        detail = f"{broken.error}: use integer_overflow='decimal' for sums beyond int64"
        dead.add(INTEGER_OVERFLOW, detail, payload, arrived=arrived)
        return
    text = "".join(traceback.format_exception(broken.error)[-6:])
    dead.add(AGGREGATE_FAILED, f"{broken.alias}: {text}", payload, arrived=arrived)


def _panes(
    definition: AggregateDefinition,
    rows: pa.Table,
    columns: list[pa.Array],
    fires: BoolArray,
    taken_back: _Back,
    timing: str,
    is_last: BoolArray,
) -> pa.Table | None:
    order = in_window_order(rows, definition.by)
    says, removed = np.flatnonzero(fires[order]), np.flatnonzero(taken_back.retracts[order])
    if not len(says) and not len(removed):
        return None
    index = combine(rows.column(PANES)).to_numpy()
    fixed = [START, END, *definition.by]
    at = order[says]
    inserts = rows.select(fixed)
    for alias, column in zip(definition.agg, columns, strict=True):
        inserts = inserts.append_column(alias, column)
    inserts = taken(inserts, at)
    inserts = label(inserts, timing, index[at], is_last[at], INSERT)
    if not len(removed):
        return inserts
    back = order[removed]
    retractions = rows.select(fixed).take(pa.array(back))
    for alias in definition.agg:
        retractions = retractions.append_column(alias, taken_back.emitted[alias].take(pa.array(back)))
    kinds = back_kinds(definition, taken_back.removed[back])
    retractions = label(retractions, timing, index[back] - 1, np.zeros(len(back), dtype=bool), kinds)
    # A retraction comes directly before the pane that replaces it.
    both = pa.concat_tables([inserts, retractions])
    positions = np.concatenate([2 * says + 1, 2 * removed])
    return both.take(pa.array(np.argsort(positions, kind="stable")))


def back_kinds(definition: AggregateDefinition, alone: BoolArray) -> pa.Array:
    """Return the kinds of retractions. alone: those that nothing replaces, which are emitted in every mode."""
    if definition.emit.mode == "retracting":
        alone = np.ones(len(alone), dtype=bool)
    return pc.if_else(pa.array(alone), RETRACT, REPLACED)


def label(
    panes: pa.Table, timing: str, index: IntArray, is_last: BoolArray, kind: str | pa.Array
) -> pa.Table:
    n = len(panes)
    panes = panes.append_column(TIMING, pa.repeat(timing, n))
    panes = panes.append_column(INDEX, pa.array(index.astype(np.int32)))
    panes = panes.append_column(IS_LAST, pa.array(is_last))
    kinds = pa.repeat(kind, n) if isinstance(kind, str) else kind
    return panes.append_column(KIND, kinds)


def _after(
    definition: AggregateDefinition,
    rows: pa.Table,
    emitted: Mapping[str, pa.Array],
    known: BoolArray,
    fires: BoolArray,
    step: int,
) -> pa.Table:
    """Return the rows after firing: nothing pending, one pane more where one was sent, accumulators dropped if discarding."""
    emit, size = definition.emit, len(rows)
    before = combine(rows.column(PANES)).to_numpy()
    pending = pa.array(np.zeros(size, dtype=np.int64))
    now = pa.array(np.full(size, step, dtype=np.int64))
    # A discarded pane counts as emitted. Else the step is that of the last pane, which holds the messages up to it.
    steps = now if emit.mode == "discarding" else choose(fires, now, combine(rows.column(EMIT_STEP)))
    replaced = {PENDING: pending, PANES: pa.array(before + fires), EMIT_STEP: steps}
    gone = (EMITTED, ACCUMULATOR) if emit.mode == "discarding" else (EMITTED,)
    names = [n for n in rows.column_names if not n.startswith(gone) and n not in (TOLD, SINCE)]
    table = pa.table([replaced.get(n, rows.column(n)) for n in names], names=names)
    lost = (before > 0) & ~fires & ~known
    if definition.remembers:
        silent = pa.array(np.arange(size), mask=fires)
        gone_said = {a: column.take(silent) for a, column in of_gone(rows, emitted).items()}
        return note(table, {**emitted, **gone_said}, marks(fires | known, lost))
    # Nothing is pending, and yet the accumulators differ from the emitted values.
    return table.append_column(TOLD, marks(np.zeros(size, dtype=bool), lost)) if lost.any() else table
