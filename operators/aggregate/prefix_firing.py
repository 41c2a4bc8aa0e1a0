"""Panes that fire inside a run of single messages: every (window, key) wherever its trigger fires, all at once.

Single steps would read, merge, fire and write a row for each message. Here accumulators are folded up to every place that
fires (`micro_batching/entries.py`), and all places are finished at once. A retraction takes back the values emitted by the last
place before it, or the stored ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import AllOf, AnyOf, EveryCount, Trigger, When, by_value, leaves, when_messages_come
from windrow.core.types import as_type, concat
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.emitter import (
    Back,
    Emitter,
    Firing,
    Values,
    last_emitted,
    note_before_merge,
    suppressed,
    values_of_removed,
)
from windrow.operators.aggregate.micro_batching.entries import Entries, Laid
from windrow.operators.aggregate.triggers import true_of
from windrow.operators.aggregations.base import take_or_null
from windrow.operators.aggregations.calculation import Calculation, any_differ
from windrow.operators.steps.columns import (
    EMIT_STEP,
    EMITTED,
    EMITTED_KNOWN,
    FIRST,
    LAST,
    MESSAGES,
    ON_TIME,
    PANES,
    PENDING,
    SINCE,
    START,
)
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import combine


@dataclass(frozen=True)
class Rule:
    """The condition on which an entry fires.

    trigger: judged at each; timing: of its panes. size: number of messages that fill a window, which then fires on time. notes:
    last emitted values are recorded if messages follow
    """

    trigger: Trigger
    timing: str
    notes: bool
    size: int | None = None


@dataclass(frozen=True)
class Judged:
    """The result of a run. panes: by message and window, `at` has the message of each. rows: the state rows after, touched ones
    last. waits: True for the entries, as they came, that fired nothing.
    """

    panes: pa.Table | None
    at: IntArray
    rows: pa.Table
    waits: BoolArray


def in_message_order(judged: list[Judged]) -> list[pa.Table]:
    """Merge panes of several judgements into one table: in the order of single messages, and inside a message by window."""
    emitted: list[pa.Table] = [j.panes for j in judged if j.panes is not None]
    if len(emitted) < 2:
        return emitted
    table = concat(emitted)
    order = np.lexsort((combine(table.column(START)).to_numpy(), np.concatenate([j.at for j in judged])))
    return [table.take(pa.array(order))]


class _Places:
    """The places of a run that fire, in the order in which entries are laid out: their values, and if each emits a pane."""

    def __init__(
        self, judge: Judge, fires: BoolArray, full: BoolArray, accumulators: pa.Table | None
    ) -> None:
        self.judge, laid = judge, judge.laid
        self.where = np.flatnonzero(fires)
        self.group, self.at, self.full = laid.group[self.where], laid.at[self.where], full[self.where]
        self.names = laid.names(self.group)
        self.kinds = {f.name: f.type for f in judge.calculation.output}
        self._finish(accumulators)
        self._compare(fires)

    def __len__(self) -> int:
        return len(self.where)

    def _finish(self, accumulators: pa.Table | None) -> None:
        state = self.judge.state(self.group, accumulators)
        values: Mapping[str, pa.Array] = {a: pa.nulls(0, kind) for a, kind in self.kinds.items()}
        self.right = np.ones(0, dtype=bool)
        if len(self):
            emitter, values_of = self.judge.emitter, self.judge.values_of
            values, self.right = emitter.computed(state, values_of, lambda place: int(self.at[place]))
        self.values = {a: as_type(values[a], kind) for a, kind in self.kinds.items()}

    def _compare(self, fires: BoolArray) -> None:
        """Decide if a place emits, if the values emitted before it are known, and their row: of places, then of stored rows."""
        judge, laid, emit = self.judge, self.judge.laid, self.judge.definition.emit
        timing = np.where(self.full, ON_TIME, judge.rule.timing)
        self.firing = Firing(timing, self.full)
        number = np.cumsum(fires) - 1  # of the place of an entry

        def newest(chosen: BoolArray) -> IntArray:
            spread = np.zeros(len(fires), dtype=bool)
            spread[self.where] = chosen
            newest = laid.newest(spread)[self.where]
            return np.where(newest >= 0, number[newest], -1)

        self.emits = self.right.copy()
        self.known = np.zeros(len(self), dtype=bool)
        if emit.remembers:
            before = newest(self.right)
            self.known = (before >= 0) | judge.stored_known[self.group]
            rows = np.where(before >= 0, before, np.where(self.known, len(self) + self.group, -1))
            emitted = self.emitted_values(rows)
            changed = any_differ(
                [emitted[a] for a in self.kinds], [self.values[a] for a in self.kinds], len(self)
            )
            self.emits &= ~suppressed(emit, changed | ~self.known, self.right, self.firing)
        before = newest(self.emits)
        self.emitted = np.where(before >= 0, before, np.where(self.known, len(self) + self.group, -1))
        self.retracts = self.emits & self.known & (emit.mode == "retracting")
        fired: IntArray = np.cumsum(self.emits) - self.emits
        first = np.searchsorted(self.group, self.group)
        self.panes = judge.laid.before(PANES)[self.group] + fired - fired[first]
        #: Panes were sent, and the values of the last one are no longer known.
        self.lost = (self.panes > 0) & ~self.emits & ~self.known

    def emitted_values(self, rows: IntArray) -> dict[str, pa.Array]:
        """Return the values emitted at places, or in stored rows, which are numbered after them."""
        stored = self.judge.stored_values
        return {a: take_or_null(pa.concat_arrays([self.values[a], stored[a]]), rows) for a in self.kinds}

    def emitted_panes(self) -> tuple[pa.Table | None, IntArray]:
        """Return panes in the order of messages and windows, and the message of each."""
        order = np.lexsort((combine(self.names.column(START)).to_numpy(), self.at))
        emitted = (
            self.emitted_values(np.where(self.retracts, self.emitted, -1)) if self.retracts.any() else {}
        )
        back = Back(emitted, self.retracts, np.zeros(len(self), dtype=bool))
        panes, places = self.judge.emitter.panes(
            self.names, self.values, self.panes, self.emits, back, self.firing, order
        )
        return panes, self.at[places]


class Judge:
    """The judge of the entries of a run, one after the other, as their steps would do it.

    stored: the state rows of their (window, key), merged, a row each. values_of: of state rows; last_values: the last emitted
    values
    """

    def __init__(
        self,
        definition: AggregateDefinition,
        calculation: Calculation,
        stored: pa.Table | None,
        entries: Entries,
        rule: Rule,
        dead: DeadLetters,
        values_of: Values,
        last_values: Values | None = None,
    ) -> None:
        self.calculation, self.rule, self.values_of = calculation, rule, values_of
        self.definition, self.emitter = definition, Emitter(definition, dead, 0)
        kinds = {f.name: f.type for f in calculation.output}
        if stored is not None:
            stored = self._noted(stored)
        self.laid = Laid(self.definition.by, stored, entries)
        self.stored_known = np.zeros(self.laid.size, dtype=bool)
        self.stored_values: Mapping[str, pa.Array] = {a: pa.nulls(0, kind) for a, kind in kinds.items()}
        if stored is not None:
            nothing = {a: pa.nulls(len(stored), kind) for a, kind in kinds.items()}
            read = last_values if self.definition.emit.remembers else None
            values, known = last_emitted(stored, nothing, np.zeros(len(stored), dtype=bool), read)
            self.stored_values = {a: as_type(combine(v), kinds[a]) for a, v in values.items()}
            self.stored_known[: len(stored)] = known

    def _noted(self, stored: pa.Table) -> pa.Table:
        """Record emitted values, for the accumulators continue from there."""
        if not self.rule.notes:
            return stored
        where = stored.column_names.index(PENDING)
        more = pa.array(combine(stored.column(PENDING)).to_numpy() + 1)
        noted = note_before_merge(self.calculation, stored, stored.set_column(where, PENDING, more))
        return noted.set_column(noted.column_names.index(PENDING), PENDING, stored.column(PENDING))

    def judged(self) -> Judged:
        laid = self.laid
        trigger = when_messages_come(self.rule.trigger)
        if by_value(trigger):
            places = np.ones(len(laid.place), dtype=bool)
            accumulators = laid.folded(self.calculation, places)
            fires, full = self._fires(trigger, accumulators)
        else:
            fires, full = self._fires(trigger)
            places = fires.copy()
            places[laid.last] = True
            fold = laid.parted if self.definition.emit.mode == "discarding" else laid.folded
            accumulators = fold(self.calculation, places)
        emitted = _Places(
            self, fires, full, None if accumulators is None else accumulators.filter(pa.array(fires[places]))
        )
        panes, at = emitted.emitted_panes()
        waits = np.empty(len(fires), dtype=bool)
        waits[laid.order] = ~fires
        return Judged(panes, at, self._after(emitted, fires, places, accumulators), waits)

    def _fires(self, trigger: Trigger, accumulators: pa.Table | None = None) -> tuple[BoolArray, BoolArray]:
        """Return (entries that fire, those of them that fill their window). accumulators: at each, for a trigger by value."""
        laid = self.laid
        nth = laid.place + 1
        full = np.zeros(len(nth), dtype=bool)
        if self.rule.size is not None:
            full = laid.before(MESSAGES)[laid.group] + nth >= self.rule.size
        if by_value(trigger):
            return full | self._triggered(trigger, self._values(accumulators)), full
        if isinstance(trigger, EveryCount):
            first = np.maximum(trigger.n - laid.before(PENDING), 1)[laid.group]
            return full | ((nth >= first) & ((nth - first) % trigger.n == 0)), full
        return full, full

    def state(self, groups: IntArray, accumulators: pa.Table | None) -> pa.Table:
        """Return state rows of these groups at some of their entries."""
        laid = self.laid
        steps = laid.table.column(EMIT_STEP).take(pa.array(laid.first[groups]))
        state = laid.names(groups).append_column(EMIT_STEP, steps)
        if accumulators is not None:
            for name in accumulators.column_names:
                state = state.append_column(name, accumulators.column(name))
        return state

    def _values(self, accumulators: pa.Table | None) -> pa.Table:
        """Return the values of each entry's window after it, and its key."""
        state = self.state(self.laid.group, accumulators)
        by = self.definition.by
        return pa.table({**{b: state.column(b) for b in by}, **self.values_of(state)[0]})

    def _triggered(self, trigger: Trigger, values: pa.Table) -> BoolArray:
        """True for the entries at which a trigger by value fires: a pane is where the next one counts from."""
        truth = {leaf: true_of(leaf.condition, values) for leaf in leaves(trigger) if isinstance(leaf, When)}
        if isinstance(trigger, When):
            return truth[trigger]
        laid = self.laid
        emitted, pending, before = np.zeros(len(values), dtype=bool), 0, laid.before(PENDING).tolist()

        def holds(part: Trigger, at: int) -> bool:
            match part:
                case AnyOf(triggers=children):
                    return any(holds(child, at) for child in children)
                case AllOf(triggers=children):
                    return all(holds(child, at) for child in children)
                case EveryCount(n=n):
                    return pending >= n
                case When():
                    return bool(truth[part][at])
            raise AssertionError(part)

        for i, (group, place) in enumerate(zip(laid.group.tolist(), laid.place.tolist(), strict=True)):
            pending = before[group] + 1 if place == 0 else pending + 1
            if holds(trigger, i):
                emitted[i], pending = True, 0
        return emitted

    def _after(
        self, emitted: _Places, fires: BoolArray, places: BoolArray, accumulators: pa.Table | None
    ) -> pa.Table:
        """Return the state rows after the run."""
        laid, discarding = self.laid, self.definition.emit.mode == "discarding"
        count = np.diff(laid.bounds)
        newest = np.full(laid.size, -1, dtype=np.int64)  # the last place of each group that fired
        newest[emitted.group] = np.arange(len(emitted))
        spoke = np.full(laid.size, -1, dtype=np.int64)
        spoke[emitted.group[emitted.emits]] = np.flatnonzero(emitted.emits)
        since = np.where(
            newest >= 0,
            laid.last - emitted.where[newest] if len(emitted) else 0,
            laid.before(PENDING) + count,
        )
        stepped = newest if discarding else spoke
        steps = laid.steps[emitted.where[stepped]] if len(emitted) else np.zeros(laid.size, dtype=np.int64)
        before = combine(laid.table.column(EMIT_STEP).take(pa.array(laid.first)))
        emit_step = np.where(stepped >= 0, steps, before.fill_null(0).to_numpy())
        unset = (stepped < 0) & before.is_null().to_numpy(zero_copy_only=False)
        first, last = laid.groups.aggregate(
            [(laid.table.column(FIRST), "min"), (laid.table.column(LAST), "max")]
        )
        rows = laid.names(np.arange(laid.size))
        for name, column in (
            (MESSAGES, pa.array(laid.before(MESSAGES) + count)),
            (PENDING, pa.array(since)),
            (
                PANES,
                pa.array(laid.before(PANES) + np.bincount(emitted.group[emitted.emits], minlength=laid.size)),
            ),
            (EMIT_STEP, pa.array(emit_step, mask=unset)),
            (FIRST, first),
            (LAST, last),
        ):
            rows = rows.append_column(name, column)
        if SINCE in laid.table.column_names:
            rows = rows.append_column(SINCE, self._since(emitted.where, newest))
        if accumulators is not None:
            at = (np.cumsum(places) - 1)[laid.last]
            gone = fires[laid.last] & discarding
            for name in accumulators.column_names:
                part = take_or_null(combine(accumulators.column(name)), np.where(gone, -1, at))
                rows = rows.append_column(name, part)
        rows = self._with_emitted(rows, emitted, newest, spoke, fires[laid.last])
        start = combine(rows.column(START)).to_numpy()
        return rows.take(pa.array(np.lexsort((start, laid.at[laid.last]))))

    def _since(self, where: IntArray, newest: IntArray) -> pa.Array:
        """Return `now` of each group's first message that no pane has emitted: stored, or of the entry after the last place."""
        laid = self.laid
        column = combine(laid.table.column(SINCE))
        first = laid.bounds[:-1].copy()
        first[newest >= 0] = where[newest[newest >= 0]] + 1
        waits = first < laid.bounds[1:]
        came = column.take(pa.array(laid.stored + laid.order[np.minimum(first, len(laid.order) - 1)]))
        came = pc.if_else(pa.array(waits), came, pa.scalar(None, pa.int64()))
        old = np.where((newest < 0) & (np.arange(laid.size) < laid.stored), np.arange(laid.size), -1)
        return pc.min_element_wise(came, take_or_null(column, old))

    def _with_emitted(
        self, rows: pa.Table, emitted: _Places, newest: IntArray, spoke: IntArray, fired: BoolArray
    ) -> pa.Table:
        """Add last emitted values where the accumulators differ: of the last place of each group, or as stored."""
        laid, emit, placed = self.laid, self.definition.emit, newest >= 0
        stored = np.arange(laid.size) < laid.stored
        mark = np.full(laid.size, -1, dtype=np.int8)
        if EMITTED_KNOWN in laid.table.column_names:
            column = combine(laid.table.column(EMITTED_KNOWN).slice(0, laid.stored)).cast(pa.int8())
            mark[: laid.stored] = column.fill_null(-1).to_numpy(zero_copy_only=False)
        source = np.where(stored & ~placed, len(emitted) + np.arange(laid.size), -1)
        if len(emitted):
            known, lost = emitted.known[newest] | emitted.emits[newest], emitted.lost[newest]
            mark[placed] = -1
            if not emit.remembers:
                # Recorded where more messages have come since; else they equal the accumulators.
                known = emitted.emits[newest] & ~fired & self.rule.notes
            else:
                source = np.where(placed & (spoke < 0) & stored, len(emitted) + np.arange(laid.size), source)
            mark[placed & lost] = 0
            mark[placed & known] = 1
            source = np.where(placed & known & (spoke >= 0), spoke, source)
        silent = np.where(stored & (spoke < 0), np.arange(laid.size), -1)
        for alias, column in values_of_removed(laid.table, self.definition.agg).items():
            rows = rows.append_column(EMITTED + alias, take_or_null(column, silent))
        values = emitted.emitted_values(source)
        if any(v.null_count < len(v) for v in values.values()) or (mark == 1).any():
            for alias, value in values.items():
                rows = rows.append_column(EMITTED + alias, value)
        elif (mark < 0).all():
            return rows
        return rows.append_column(EMITTED_KNOWN, pa.array(mark.astype(bool), mask=mark < 0))
