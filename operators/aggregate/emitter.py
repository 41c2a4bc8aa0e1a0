"""Emitter of panes, and the ledger of emitted values: of time and tuple windows, of runs of single messages, and of sessions.

Panes are tables: `__start`, `__end`, the keys, the aggregates, `__timing`, `__index`, `__is_last`, `__kind`. Semantics
"Emission", "Retractions".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray, taken
from windrow.core.emit import Emit
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

#: Values of state rows: (values by alias, failures).
Values = Callable[[pa.Table], tuple[dict[str, pa.Array], list[Broken]]]
#: A text for each row.
TextArray = npt.NDArray[np.str_]


@dataclass(frozen=True)
class Firing:
    """The occasion on which rows fire. timing: of all panes, or of each. closing: these are last panes; a requested one is sent
    though nothing changed. always: panes are sent again though nothing changed.
    """

    timing: str | TextArray
    is_last: BoolArray
    closing: bool = False
    always: bool = False

    @property
    def on_time(self) -> BoolArray:
        return np.asarray(self.timing == ON_TIME)


class Fired(NamedTuple):
    """The result of firing. panes: the emitted ones, or None. rows: the state rows after, in the order they came."""

    panes: pa.Table | None
    rows: pa.Table


class Back(NamedTuple):
    """The retractions of a firing. emitted: last emitted values; retracts: rows that retract; removed: those not replaced."""

    emitted: Mapping[str, pa.Array]
    retracts: BoolArray
    removed: BoolArray


def suppressed(emit: Emit, changed: BoolArray, pending: BoolArray, firing: Firing) -> BoolArray:
    """True for rows whose pane would repeat the last one. changed: values differ from the last emitted ones; pending: messages
    came since. A discarded pane is never repeated; a retraction and the same values again would say nothing.
    """
    if firing.closing and emit.closing_pane:
        return np.zeros(len(changed), dtype=bool)
    if emit.mode == "discarding":
        return ~pending & emit.only_if_changed
    retracting = emit.mode == "retracting" and not firing.always
    return ~changed & (emit.only_if_changed | (retracting & ~firing.on_time))


@dataclass(frozen=True)
class Emitter:
    """Emits the panes of rows that fire in a step: it computes their values, compares them with the last emitted ones, retracts
    these or suppresses the pane, and remembers what was emitted. step: of all rows, or of each.
    """

    definition: AggregateDefinition
    dead: DeadLetters
    step: int | IntArray

    def fire(
        self, rows: pa.Table, firing: Firing, values_of: Values, last_values: Values | None = None
    ) -> Fired:
        """Fire every row of `rows`. last_values: the last emitted values, from kept messages."""
        if len(rows) == 0:
            return Fired(None, rows)
        definition, emitted, known = self.definition, dict[str, pa.Array](), np.zeros(len(rows), dtype=bool)
        columns, fires = self.computed(rows, values_of)
        changed, empty = ~known, self._empty(rows)
        if definition.remembers:
            emitted, known = last_emitted(rows, columns, fires, last_values)
            changed = any_differ([emitted[a] for a in columns], [*columns.values()], len(rows))
            changed |= ~known | empty
        pending = combine(rows.column(PENDING)).to_numpy() > 0
        fires &= ~suppressed(definition.emit, changed, pending, firing)
        removed = fires & known & empty
        fires &= ~empty
        back = Back(emitted, removed | (fires & known & definition.takes_back_panes), removed)
        index, order = combine(rows.column(PANES)).to_numpy(), in_window_order(rows, definition.by)
        panes, _ = self.panes(rows, columns, index, fires, back, firing, order)
        for alias, column in columns.items():
            emitted[alias] = choose(fires, column, emitted[alias]) if alias in emitted else column
        return Fired(panes, self._remember(rows, emitted, known & ~removed, fires))

    def computed(
        self, rows: pa.Table, values_of: Values, arrived: Callable[[int], int] = lambda row: 0
    ) -> tuple[dict[str, pa.Array], BoolArray]:
        """Return (present values by alias, rows that have them); others become dead letters. arrived: the message of a run that
        would have emitted a row.
        """
        values, broken = values_of(rows)
        sound = np.ones(len(rows), dtype=bool)
        for b in broken:
            if sound[b.group]:
                bury(self.definition, rows, b, self.dead, arrived(b.group))
            sound[b.group] = False
        return {alias: combine(values[alias]) for alias in self.definition.agg}, sound

    def _empty(self, rows: pa.Table) -> BoolArray:
        """True where all messages were retracted: such a window is like one that never had a message."""
        if not self.definition.takes_back:
            return np.zeros(len(rows), dtype=bool)
        return np.asarray(combine(rows.column(MESSAGES)).to_numpy() <= 0, dtype=bool)

    def panes(
        self,
        rows: pa.Table,
        columns: Mapping[str, pa.Array],
        index: IntArray,
        fires: BoolArray,
        back: Back,
        firing: Firing,
        order: IntArray,
    ) -> tuple[pa.Table | None, IntArray]:
        """Return (panes, the row of each), in this order of rows; a retraction comes directly before its replacement."""
        at, gone = order[fires[order]], order[back.retracts[order]]
        inserts = self.labelled(rows, columns, at, firing, index[at], INSERT)
        if not len(gone):
            return (inserts if len(at) else None), at
        kinds = self.retraction_kinds(back.removed[gone])
        retractions = self.labelled(rows, back.emitted, gone, firing, index[gone] - 1, kinds)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        arranged = np.argsort(np.r_[2 * rank[at] + 1, 2 * rank[gone]], kind="stable")
        return pa.concat_tables([inserts, retractions]).take(pa.array(arranged)), np.r_[at, gone][arranged]

    def labelled(
        self,
        rows: pa.Table,
        columns: Mapping[str, pa.Array],
        at: IntArray,
        firing: Firing,
        index: IntArray,
        kind: str | pa.Array,
    ) -> pa.Table:
        """Return panes, or retractions, of the rows `at`. index: of each pane; kind: of all, or of each"""
        panes, n = rows.select([START, END, *self.definition.by]), len(at)
        for alias in self.definition.agg:
            panes = panes.append_column(alias, columns[alias])
        if n < len(rows) or (np.diff(at) < 0).any():
            panes = taken(panes, at)
        is_last = firing.is_last[at] if isinstance(kind, str) else np.zeros(n, dtype=bool)
        timing = firing.timing
        each = pa.repeat(timing, n) if isinstance(timing, str) else pa.array(timing[at].tolist(), pa.string())
        panes = panes.append_column(TIMING, each)
        panes = panes.append_column(INDEX, pa.array(index.astype(np.int32)))
        panes = panes.append_column(IS_LAST, pa.array(is_last))
        return panes.append_column(KIND, pa.repeat(kind, n) if isinstance(kind, str) else kind)

    def retraction_kinds(self, alone: BoolArray) -> pa.Array:
        """Return the kinds of retractions. alone: those that nothing replaces, which are emitted in every mode."""
        if self.definition.emit.mode == "retracting":
            alone = np.ones(len(alone), dtype=bool)
        return pc.if_else(pa.array(alone), RETRACT, REPLACED)

    def after(self, rows: pa.Table, fires: BoolArray) -> pa.Table:
        """Return rows after firing: nothing pending, a pane more where one was sent, accumulators dropped if discarding."""
        discarding = self.definition.emit.mode == "discarding"
        now = pa.array(np.full(len(rows), self.step, dtype=np.int64))
        # A discarded pane counts as emitted. Else the step is that of the last pane, which holds the messages up to it.
        replaced = {
            PENDING: pa.array(np.zeros(len(rows), dtype=np.int64)),
            PANES: pa.array(combine(rows.column(PANES)).to_numpy() + fires),
            EMIT_STEP: now if discarding else choose(fires, now, combine(rows.column(EMIT_STEP))),
        }
        gone = (EMITTED, ACCUMULATOR) if discarding else (EMITTED,)
        names = [n for n in rows.column_names if not n.startswith(gone) and n not in (EMITTED_KNOWN, SINCE)]
        return pa.table([replaced.get(n, rows.column(n)) for n in names], names=names)

    def _remember(
        self, rows: pa.Table, emitted: Mapping[str, pa.Array], known: BoolArray, fires: BoolArray
    ) -> pa.Table:
        """Return rows after firing with the values that were emitted last, where they have to be stored."""
        table = self.after(rows, fires)
        lost = (combine(rows.column(PANES)).to_numpy() > 0) & ~fires & ~known
        if self.definition.remembers:
            silent = pa.array(np.arange(len(rows)), mask=fires)
            removed = {a: column.take(silent) for a, column in values_of_removed(rows, emitted).items()}
            return note(table, {**emitted, **removed}, marks(fires | known, lost))
        # Nothing is pending, and yet the accumulators differ from the emitted values.
        return (
            table.append_column(EMITTED_KNOWN, marks(np.zeros(len(rows), dtype=bool), lost))
            if lost.any()
            else table
        )


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
    dead.add(AGGREGATE_FAILED, broken.detail, payload, arrived=arrived)


# -- the ledger of emitted values -------------------------------------------------------------------------------------
#
# Under an emission that remembers, rows store their last emitted values in columns. Other emissions do not: as long as no
# message came since, they equal the accumulators. If an emitted row is merged with later messages, and is not emitted at once,
# the merge stores them. So the emission may change between two runs, and the last emitted values are known. The exception is a
# pane after which the window could not be computed (an overflow): it may be unknown, and is then not retracted.


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


def values_of_removed(rows: pa.Table, aliases: Collection[str]) -> dict[str, pa.Array]:
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
        merged,
        values | values_of_removed(head, values),
        marks(before.known | (moves & ~lost), lost | _lost(head)),
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
