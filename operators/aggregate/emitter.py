"""Pane emitter: makes panes of state rows that fire, and updates the rows. Semantics "Emission", "Retractions".

Panes are tables: `__start`, `__end`, the keys, the aggregates, `__timing`, `__index`, `__is_last`, `__kind`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray, taken
from windrow.core.types import as_type
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.pane_order import in_window_order
from windrow.operators.aggregations.base import SumOverflow
from windrow.operators.aggregations.calculation import Broken, Calculation, any_differ
from windrow.operators.steps.columns import (
    ACCUMULATOR,
    EMIT_STEP,
    EMITTED,
    EMITTED_KNOWN,
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
    names = [n for n in rows.column_names if not n.startswith(gone) and n not in (EMITTED_KNOWN, SINCE)]
    table = pa.table([replaced.get(n, rows.column(n)) for n in names], names=names)
    lost = (before > 0) & ~fires & ~known
    if definition.remembers:
        silent = pa.array(np.arange(size), mask=fires)
        gone_said = {a: column.take(silent) for a, column in of_gone(rows, emitted).items()}
        return note(table, {**emitted, **gone_said}, marks(fires | known, lost))
    # Nothing is pending, and yet the accumulators differ from the emitted values.
    return (
        table.append_column(EMITTED_KNOWN, marks(np.zeros(size, dtype=bool), lost)) if lost.any() else table
    )


#: Values of state rows: (values by alias, failures).
Values = Callable[[pa.Table], tuple[dict[str, pa.Array], list[Broken]]]


class EmittedValues(NamedTuple):
    """Last emitted values of rows, by alias, where `known`. open: a pane was emitted, but its values were not recorded."""

    values: dict[str, pa.Array]
    known: BoolArray
    open: BoolArray


def noted(rows: pa.Table, kinds: Mapping[str, pa.DataType]) -> EmittedValues:
    """Return the values that the rows themselves record."""
    size = len(rows)
    had = combine(rows.column(PANES)).to_numpy() > 0
    values = {
        a: as_type(combine(rows.column(EMITTED + a)), kind)
        if EMITTED + a in rows.column_names
        else pa.nulls(size, kind)
        for a, kind in kinds.items()
    }
    mark = (
        combine(rows.column(EMITTED_KNOWN))
        if EMITTED_KNOWN in rows.column_names
        else pa.nulls(size, pa.bool_())
    )
    unmarked = mark.is_null().to_numpy(zero_copy_only=False)
    known = had & mark.fill_null(False).to_numpy(zero_copy_only=False)
    return EmittedValues(values, known, had & unmarked)


def of_gone(rows: pa.Table, aliases: Collection[str]) -> dict[str, pa.Array]:
    """Return the last emitted values of removed aggregations: one may be added again before another pane is emitted."""
    columns = {n.removeprefix(EMITTED): n for n in rows.column_names if n.startswith(EMITTED)}
    return {alias: combine(rows.column(n)) for alias, n in columns.items() if alias not in aliases}


def note(rows: pa.Table, values: Mapping[str, pa.Array], mark: pa.Array) -> pa.Table:
    """Return the rows with their last emitted values, and the mark that says if these are known."""
    names = [n for n in rows.column_names if not n.startswith(EMITTED) and n != EMITTED_KNOWN]
    columns = [rows.column(n) for n in names]
    names += [*(EMITTED + a for a in values), EMITTED_KNOWN]
    return pa.table([*columns, *values.values(), mark], names=names)


def last_emitted(
    rows: pa.Table, now: Mapping[str, pa.Array], computed: BoolArray, read: Values | None
) -> tuple[dict[str, pa.Array], BoolArray]:
    """Return (last emitted values, where they are known) of merged rows with present values `now` where `computed`.

    `read` computes them from kept messages, those up to the last pane.
    """
    emitted = noted(rows, {a: column.type for a, column in now.items()})
    if not emitted.open.any():
        return emitted.values, emitted.known
    if read is None:
        current: Mapping[str, pa.Array] = now
        fresh = emitted.open & computed & (combine(rows.column(PENDING)).to_numpy() == 0)
    else:
        current, broken = read(rows)
        fresh = emitted.open.copy()
        fresh[[b.group for b in broken]] = False
    values = {a: choose(fresh, combine(current[a]), old) for a, old in emitted.values.items()}
    return values, emitted.known | fresh


def note_before_merge(calculation: Calculation, head: pa.Table, merged: pa.Table) -> pa.Table:
    """Record the last emitted values in `merged` rows where the accumulators move away from them; `head`: the stored rows."""
    unmoved = combine(head.column(PENDING)).to_numpy() == 0
    if not unmoved.any():
        return merged
    kinds = {f.name: f.type for f in calculation.output}
    before = noted(head, kinds)
    moves = before.open & unmoved & (combine(merged.column(PENDING)).to_numpy() > 0)
    if not moves.any():
        return merged
    at = np.flatnonzero(moves)
    emitted = head.take(pa.array(at))
    current, broken = calculation.finish({n: emitted.column(n) for n in emitted.column_names}, len(emitted))
    lost = np.zeros(len(head), dtype=bool)
    lost[[at[b.group] for b in broken]] = True
    place = np.zeros(len(head), dtype=np.int64)
    place[at] = np.arange(len(at))
    values = {
        a: choose(moves, combine(current[a]).take(pa.array(place)), old) for a, old in before.values.items()
    }
    return note(
        merged, values | of_gone(head, values), marks(before.known | (moves & ~lost), lost | _lost(head))
    )


def marks(known: BoolArray, lost: BoolArray) -> pa.Array:
    """Return the mark of each row."""
    return pa.array(known & ~lost, mask=~(known | lost))


def _lost(rows: pa.Table) -> BoolArray:
    if EMITTED_KNOWN not in rows.column_names:
        return np.zeros(len(rows), dtype=bool)
    return np.asarray(
        ~combine(rows.column(EMITTED_KNOWN)).fill_null(True).to_numpy(zero_copy_only=False), dtype=bool
    )


def choose(mask: BoolArray, yes: pa.Array, no: pa.Array) -> pa.Array:
    """Return row by row `yes` or `no`, for any type."""
    size = len(mask)
    if mask.all():
        return yes
    picks = np.where(mask, np.arange(size), np.arange(size) + size)
    return pa.concat_arrays([yes, as_type(no, yes.type)]).take(pa.array(picks))
