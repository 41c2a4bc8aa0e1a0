"""An alert: two pure steps on a store.

A step loads the statuses of the keys that it touches, and the samples in their windows, and lays these out in lines
(`over/partitions.py`). An evaluation is a range of places in a line, at a moment. The windows of all evaluations are
aggregated at once (`over/frame_values.py`), the conditions evaluated as columns, and the statuses composed (`status.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.keys import decode_key, encode_equal
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, to_datetime
from windrow.operators.aggregations.base import SumOverflow
from windrow.operators.aggregations.calculation import try_all
from windrow.operators.alert import evaluations as events
from windrow.operators.alert.conditions import (
    Carried,
    Conditions,
    check_condition,
    judge,
    nothing_judged,
)
from windrow.operators.alert.definition import FIELDS, ROW, AlertDefinition
from windrow.operators.alert.evaluations import Clock, Evaluations, bounds_of
from windrow.operators.alert.identity import halves, number_of, seeds
from windrow.operators.alert.needs import AlertNeeds, condition_table, field_types
from windrow.operators.alert.rows import Emitted, KeyColumns, Step, Values, emit, repeated, to_table
from windrow.operators.alert.samples import Layout, Samples, Window, distinct
from windrow.operators.alert.states import NEVER, States, StateStore
from windrow.operators.alert.status import CANCEL, OPEN, Transitions
from windrow.operators.one_input import OneInputLogic, Work
from windrow.operators.over.frame_values import anchors_of, over_frame, read_by
from windrow.operators.over.partitions import Lines
from windrow.operators.over.required_columns import conformed
from windrow.operators.steps.arrivals import without_late
from windrow.operators.steps.columns import (
    ACCUMULATOR,
    EARLY,
    ON_TIME,
)
from windrow.operators.steps.dead_letters import AGGREGATE_FAILED, FUNCTION_FAILED, INTEGER_OVERFLOW, TOO_LATE
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.message_rows import pack_rows, unpack_rows, with_positions
from windrow.operators.steps.output_columns import STAMP
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import StepResult
from windrow.operators.view import View
from windrow.stores.kv import KV, Batch

#: Under it lies the version of the definition.
_VERSION = b"\x00version"


@dataclass(frozen=True)
class Incoming:
    """Evaluations, and the columns that conditions see.

    columns: aggregates, window fields, columns of messages. sizes: of the windows. late: true for those of samples that came
    late. grid_us: the moment of a timer
    """

    of: Evaluations
    columns: dict[str, pa.Array]
    sizes: IntArray
    late: BoolArray
    grid_us: int | None


@dataclass(frozen=True)
class Judged:
    """Evaluations that were judged. table: the columns that conditions saw; carried: the state before each."""

    incoming: Incoming
    table: pa.Table | None
    known_schema: Transitions
    carried: Carried


class Alerting(OneInputLogic):
    """The logic of an alert: one definition on one store. It holds no state of its own: everything is in the store."""

    definition: AlertDefinition
    needs: AlertNeeds

    def __init__(self, definition: AlertDefinition) -> None:
        super().__init__(definition)
        self.needs = AlertNeeds(definition)
        self.states = StateStore(definition)
        self.conditions = Conditions(definition)
        self.samples = Samples(definition)

    def cfs(self) -> tuple[str, ...]:
        return (self.aux_cf, *self.states.cfs, *self.samples.cfs)

    # -- columns ----------------------------------------------------------------------------------------------------

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        types = field_types(self.definition, schema, self.outputs(schema))
        keys = [pa.field(b, schema.field(b).type) for b in self.definition.by]
        own = {"count": pa.int64(), "time": STAMP, "open_time": STAMP}
        return [
            *keys,
            *(pa.field(name, own.get(name, pa.string())) for name in ROW),
            *self._value_fields(types),
        ]

    def _value_fields(self, types: Mapping[str, pa.DataType]) -> list[pa.Field]:
        return [pa.field(name, types[name]) for name in (*self.definition.agg, *self.definition.variables)]

    def outputs(self, schema: pa.Schema) -> list[pa.Field]:
        return [f for _, calculation in self.samples.calculations(schema) for f in calculation.output]

    def check_schemas(self, inputs: Mapping[str, pa.Schema]) -> None:
        for schema in inputs.values():
            self._check_conditions(schema)

    def _learn(self, progress: Progress, schema: pa.Schema) -> None:
        began = progress.schema is not None
        super()._learn(progress, schema)
        if not began and progress.schema is not None:
            self._check_conditions(progress.schema)

    def _check_conditions(self, schema: pa.Schema) -> None:
        """Raise where an expression is no condition over columns of these types."""
        if self.needs.required <= set(schema.names):
            self.conditions.check(condition_table(self.definition, schema, self.outputs(schema)))
            rows = pa.schema(self.fields(schema)).empty_table()
            for name, action in self.definition.actions.items():
                if action.where is not None:
                    check_condition(action.where, f"actions[{name!r}]: where", rows)

    # -- steps ------------------------------------------------------------------------------------------------------

    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        past = self.definition.history
        if past is None or past not in tables:
            return super().ingest(kv, tables, now_us)
        work = self._begin(kv, now_us)
        self._ingest(work, self.readings[1], tables[past], self._load)
        work.progress.step += 1  # samples of history come before those of messages
        for name, table in tables.items():
            if name != past:
                self._ingest(work, self.readings[0], table, self.accept)
        return self._end(work)

    def _states(self, work: Work, rows: Slice) -> tuple[States, IntArray, Layout | None]:
        """Return the states of the keys of rows, and the numbers of these keys by row; and the layout of samples."""
        by = self.definition.by
        encoded = encode_equal([combine(rows.table.column(b)) for b in by]) if by else [b""] * len(rows)
        sorted_, codes = distinct(pa.array(encoded, pa.binary()))
        keys = sorted_.to_pylist()
        layout = self.samples.layout(work, len(keys))
        if layout is not None:
            layout, keys, places = layout.ordered(keys)
            codes = places[codes]
        return self.states.load(work.kv, keys), codes, layout

    def _load(self, work: Work, rows: Slice) -> Slice:
        """Fill the windows of keys whose first message has not come, without an evaluation."""
        self._follow_version(work)
        try_all(self.definition.agg, rows.table)
        states, codes, _ = self._states(work, rows)
        begun = (states.there & ~states.loading)[codes]
        if begun.any():
            detail = f"the first message of its key has come to {self.definition.name!r}, whose history it is"
            rows = without_late(rows, begun, work.dead, detail)
            if not len(rows):
                return rows
            states, codes, _ = self._states(work, rows)
        seen = states.seen
        np.maximum.at(seen, codes, rows.times)
        states.records["seen"], states.records["change"] = seen, NEVER
        watermark_us = work.progress.watermark_us
        window = self.samples.window(
            work, states, self.moments(watermark_us, states, work.now_us), rows, codes
        )
        self._write(work, states, window, np.zeros(len(states), dtype=np.int64), watermark_us)
        return rows

    def accept(self, work: Work, rows: Slice) -> Slice:
        self._follow_version(work)
        try_all(self.definition.agg, rows.table)
        by = self.definition.by
        states, codes, layout = self._states(work, rows)
        firsts = np.empty(len(states), dtype=np.int64)
        firsts[codes[::-1]] = np.arange(len(rows))[::-1]
        named = rows.table.select(list(by))

        def keys(numbers: IntArray) -> pa.Table:
            return named.take(pa.array(firsts[numbers]))

        moments = self.moments(work.progress.watermark_us, states, work.now_us)
        clock = Clock(moments, states.seen, None, work.progress.watermark_us, states.loading)
        if self.definition.frame is None:
            self._judge_messages(work, rows, codes, keys, states, clock)
            return rows
        size_us = self.definition.size_us
        if size_us is not None:
            over = rows.times < events.back(moments, size_us)[codes]
            if over.any():
                detail = f"it is older than the window of its key in {self.definition.name!r}"
                work.dead.add_rows(TOO_LATE, detail, rows.table, np.flatnonzero(over), pa.array(rows.times))
                fitting = np.flatnonzero(~over)
                rows, codes = rows.take(fitting), codes[fitting]
                if not len(rows):
                    return rows
        states.begin(codes)
        self._judge_samples(work, rows, codes, keys, states, clock, layout)
        return rows

    def pass_time(self, work: Work, watermark_us: int) -> None:
        if work.progress.schema is None or watermark_us >= END_OF_TIME_US:
            return
        self._follow_version(work)
        self._pass_event_time(work, watermark_us)
        period_us, before_us = self.definition.evaluate_us, work.progress.now_us
        if (
            period_us is not None
            and before_us is not None
            and work.now_us // period_us > before_us // period_us
        ):
            self._evaluate(work, watermark_us, work.now_us // period_us * period_us)
        self._repeat(work, watermark_us)
        self.samples.forget(work, watermark_us)

    def _follow_version(self, work: Work) -> None:
        """Drop windows and statuses of another version."""
        version = self.definition.version.encode()
        stored = work.kv.get(self.aux_cf, _VERSION)
        if stored == version:
            return
        batch = Batch()
        batch.put(self.aux_cf, _VERSION, version)
        work.kv.write(batch)
        if stored is not None:
            self.states.drop(work.kv)
            for cf in self.samples.cfs:
                batch = Batch()
                batch.delete_range(cf, b"", b"\xff" * 32)
                work.kv.write(batch)

    def moments(self, watermark_us: int, states: States, now_us: int) -> IntArray:
        """Return the moments at which the windows of keys end."""
        if self.definition.clocked:
            begins = watermark_us == START_OF_TIME_US  # no advance has been
            return np.full(
                len(states), now_us - self.definition.watermark.delay_us if begins else watermark_us
            )
        return np.maximum(states.seen, watermark_us)

    # -- what comes -------------------------------------------------------------------------------------------------

    def _judge_messages(
        self, work: Work, rows: Slice, codes: IntArray, keys: KeyColumns, states: States, clock: Clock
    ) -> None:
        """Judge messages by themselves."""
        of = events.of_messages(self.definition, codes, rows.times, clock)
        table = with_positions(rows.table, work.progress.step)
        at = np.maximum(of.places, 0)  # of a key that expires nothing is judged
        times, row_numbers = rows.times[at], pa.array(at)
        columns = {
            n: combine(table.column(n).take(row_numbers)) for n in work.schema.names if n not in FIELDS
        }
        once = np.ones(len(of), dtype=np.int64)
        columns |= window_fields(self.conditions.fields, of, once, times, times, work.now_us)
        late = (times < work.progress.watermark_us) & (of.causes == events.SAMPLE)
        incoming = Incoming(of, columns, once, late, None)
        self._settle(work, incoming, keys, states, self._upto(of, clock), EARLY, None)

    def _upto(self, of: Evaluations, clock: Clock) -> IntArray:
        """Up to when the keys of a step are judged as samples come."""
        upto = clock.moments.copy()
        np.maximum.at(upto, of.codes, of.moments)
        return upto

    def _judge_samples(
        self,
        work: Work,
        rows: Slice,
        codes: IntArray,
        keys: KeyColumns,
        states: States,
        clock: Clock,
        layout: Layout | None,
    ) -> None:
        """File samples, and evaluate the windows that they change."""
        window = self.samples.window(work, states, clock.moments, rows, codes, layout)
        lines, places = window.lines, np.flatnonzero(window.new)
        limits = clock.moments
        if self.definition.clocked:
            limits = np.full(len(states), START_OF_TIME_US)
            np.maximum.at(limits, lines.codes[~window.new], lines.times[~window.new])
        newer = lines.times[places] >= limits[lines.codes[places]]
        old = ~newer
        if self.definition.rows is not None:
            old &= self._changing(lines, window.new)[places]
        late = np.zeros(len(states), dtype=bool)
        late[lines.codes[places[old]]] = True
        clock = replace(clock, seen=np.where(late, clock.moments, clock.seen))
        of = events.of_samples(self.definition, lines, places[newer], late, clock)
        incoming = self.aggregated(work, window, of, None)
        self._settle(work, incoming, keys, states, self._upto(of, clock), EARLY, window)

    def _changing(self, lines: Lines, new: BoolArray) -> BoolArray:
        """True for samples that are not older than all of a full window of counted ones."""
        stored = np.flatnonzero(~new)
        many = np.bincount(lines.codes[stored], minlength=lines.size)
        oldest = np.full(lines.size, START_OF_TIME_US)
        first = stored[np.r_[True, np.diff(lines.codes[stored]) > 0][: len(stored)]]
        oldest[lines.codes[first]] = lines.times[first]
        changing: BoolArray = (many[lines.codes] < (self.definition.rows or 0)) | (
            lines.times >= oldest[lines.codes]
        )
        return changing

    # -- what time makes due ----------------------------------------------------------------------------------------

    def _pass_event_time(self, work: Work, watermark_us: int) -> None:
        timers = self.states.event_timers
        due = timers.due(work.kv, watermark_us)
        if not len(due):
            return
        batch = Batch()
        timers.drop(batch, watermark_us)
        work.kv.write(batch)
        keys = sorted(set(due.keys))
        layout = self.samples.layout(work, len(keys))
        if layout is not None:
            layout, keys, _ = layout.ordered(keys)
        states = self.states.load(work.kv, keys)
        states.records["wake"] = NEVER
        before = self.moments(work.progress.watermark_us, states, work.now_us)
        clock = Clock(before, states.seen, watermark_us, watermark_us, states.loading)
        window = self.samples.window(work, states, before, layout=layout)
        of = events.of_time(self.definition, window.lines, clock)
        incoming, upto = self.aggregated(work, window, of, None), np.full(len(states), watermark_us)
        framed = None if self.definition.frame is None else window
        self._settle(
            work,
            incoming,
            partial(self.named_keys, work, states),
            states,
            upto,
            ON_TIME,
            framed,
            watermark_us,
        )

    def _evaluate(self, work: Work, watermark_us: int, grid_us: int) -> None:
        """Evaluate every key that has a window."""
        keys = self.states.all_keys(work.kv)
        if not self.definition.by and watermark_us > START_OF_TIME_US:
            keys = keys or [b""]
        states = self.states.load(work.kv, keys)
        if self.definition.history is not None and self.definition.by and states.loading.any():
            keys = [key for key, loading in zip(keys, states.loading.tolist(), strict=True) if not loading]
            states = self.states.load(work.kv, keys)
        if not keys:
            return
        states.begin(np.arange(len(states)))
        moments = self.moments(watermark_us, states, work.now_us)
        window = self.samples.window(work, states, moments)
        of = events.of_keys(window.lines, moments)
        incoming, keyed = self.aggregated(work, window, of, grid_us), partial(self.named_keys, work, states)
        self._settle(work, incoming, keyed, states, moments, ON_TIME, window, watermark_us)

    def _repeat(self, work: Work, watermark_us: int) -> None:
        """Emit the repeats that `now` makes due."""
        due = self.states.now_timers.due(work.kv, work.now_us)
        if not len(due):
            return
        batch = Batch()
        self.states.now_timers.drop(batch, work.now_us)
        work.kv.write(batch)
        states = self.states.load(work.kv, sorted(set(due.keys)))
        states.records["wake_now"] = NEVER
        emitted = repeated(
            self.definition, states, self.moments(watermark_us, states, work.now_us), work.now_us
        )
        none = np.zeros(0, dtype=np.int64)
        self._emit(
            work,
            emitted,
            partial(self.named_keys, work, states),
            None,
            [],
            none,
            states,
            states.records,
            ON_TIME,
        )
        self.states.save(work.kv, states, states.there, np.array(states.records["wake"], dtype=np.int64))

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        from windrow.operators.alert.views import AlertView

        return AlertView(self, stores, watermark_us)

    # -- what is judged ---------------------------------------------------------------------------------------------

    def aggregated(self, work: Work, window: Window, of: Evaluations, grid_us: int | None) -> Incoming:
        """Aggregate the windows of evaluations; those of which an aggregate cannot be made are left out."""
        definition, lines = self.definition, window.lines
        columns: dict[str, pa.Array] = {}
        if definition.frame is None:  # keys expire, and nothing is judged
            columns = {f.name: pa.nulls(len(of), f.type) for f in work.schema if f.name not in FIELDS}
        whole = bounds_of(definition, definition.frame, lines, of)
        broken, lifted, lifts = [], dict[str, pa.Array](), self.samples.lifts(work.schema)
        if lifts:
            names = [name for name in window.rows.column_names if name.startswith(ACCUMULATOR)]
            lifted = {name: combine(window.rows.column(name)) for name in names}
        for part, calculation in self.samples.calculations(work.schema) if len(of) else ():
            rows = Slice(window.rows if lifts else window.rows.select(read_by(calculation)), lines.times)
            same = part.frame == definition.frame
            bounds = whole if same else bounds_of(definition, part.frame, lines, of)
            of_rows = lifted if lifts else calculation.lift(rows)
            values = over_frame(calculation, rows, of_rows, bounds, "emit")
            columns.update(values.columns)
            broken += values.broken
        filled, times = whole.sizes > 0, np.r_[lines.times, 0]
        first, last = (times[np.where(filled, place, -1)] for place in (whole.low, whole.high - 1))
        now_us = work.now_us if grid_us is None else grid_us
        columns |= window_fields(self.conditions.fields, of, whole.sizes, first, last, now_us)
        incoming = Incoming(of, columns, whole.sizes, of.causes == events.LATE, grid_us)
        if not broken:
            return incoming
        kept = np.ones(len(of), dtype=bool)
        for number, one in anchors_of(broken, list(definition.agg)):
            if of.causes[number] != events.EXPIRED:
                kept[number] = False
                overflow = isinstance(one.error, SumOverflow)
                reason = INTEGER_OVERFLOW if overflow else AGGREGATE_FAILED
                remedy = ": use integer_overflow='decimal' for sums beyond int64" if overflow else ""
                detail = f"{one.alias}: {one.error}{remedy}"
                self._bury(work, reason, detail, int(of.causes[number]), int(of.moments[number]))
        return taken_of(incoming, kept)

    def _bury(self, work: Work, reason: str, detail: str, cause: int, time_us: int) -> None:
        work.dead.add(reason, detail, {"cause": events.CAUSES[cause], "time": to_datetime(time_us)})

    def _settle(
        self,
        work: Work,
        incoming: Incoming,
        keys: KeyColumns,
        states: States,
        upto: IntArray,
        timing: str,
        window: Window | None,
        watermark_us: int | None = None,
    ) -> None:
        """Judge evaluations, emit their transitions, and write the new states."""
        seen, floors = _left(incoming.of, states, window)
        former = states.records.copy()
        judged = self._judged(work, incoming, keys, states)
        of, made, carried = judged.incoming.of, judged.known_schema, judged.carried
        ids = self._identify(judged.incoming, made, states)
        opened_us = np.where(made.after == OPEN, of.moments, carried.open_us)
        lasts = np.flatnonzero(np.r_[of.codes[1:] != of.codes[:-1], True][: len(of)])
        records, at = states.records, of.codes[lasts]
        left = carried.after(made, of.moments).take(lasts)
        records["status"][at], records["count"][at] = left.status, left.count
        records["open"][at], records["change"][at] = left.open_us, left.change_us
        records["id"][at], records["seen"] = ids[lasts], seen
        step = Step(of, made, upto, opened_us, judged.incoming.late, work.now_us)
        emitted = emit(self.definition, step, states)
        values = None
        if judged.table is not None and (emitted.any or self.states.keeps_rows):
            table = judged.table
            for name, column in carried.columns(self.conditions.fields).items():
                table = table.append_column(name, column)
            table = self.conditions.with_variables(table)
            values = table.select([*self.definition.agg, *self.definition.variables])
        self._emit(work, emitted, keys, values, ids, opened_us, states, former, timing)
        if values is not None and self.states.keeps_rows:
            self._keep_rows(work, step, lasts, values, states)
        self._write(
            work, states, window, floors, work.progress.watermark_us if watermark_us is None else watermark_us
        )

    def _judged(self, work: Work, incoming: Incoming, keys: KeyColumns, states: States) -> Judged:
        """Judge evaluations; those on which a condition raises are left out."""
        of = incoming.of
        if not len(of):
            return Judged(incoming, None, *nothing_judged())
        columns = dict(incoming.columns)
        if self.conditions.mention(self.definition.by):
            named = keys(of.codes)
            columns |= {b: combine(named.column(b)) for b in named.column_names}
        table = pa.table(columns)
        brought = states.carried(of.codes[of.heads])
        expired = of.causes == events.EXPIRED
        kept, made, carried, raised = judge(self.conditions, table, of.heads, of.moments, brought, expired)
        for number, why in raised.items():
            self._bury(work, FUNCTION_FAILED, why, int(of.causes[number]), int(of.moments[number]))
        table = table if kept.all() else table.filter(pa.array(kept))
        return Judged(taken_of(incoming, kept), table, made, carried)

    def _identify(self, incoming: Incoming, derived: Transitions, states: States) -> Any:
        """Return the identity of the incident of each evaluation."""
        of = incoming.of
        ids = np.where(derived.opening >= 0, np.zeros(len(of), "V16"), states.records["id"][of.codes])
        opens = np.flatnonzero(derived.after == OPEN)
        if not len(opens):
            return ids
        codes, places = np.unique(of.codes[opens], return_inverse=True)
        begin = np.array(
            [seeds(self.definition.name, states.keys[c]) for c in codes.tolist()], dtype=np.uint64
        )
        causes = np.array([number_of(cause) for cause in events.CAUSES])
        numbers = (
            of.moments[opens],
            causes[of.causes[opens]],
            incoming.sizes[opens],
            np.full(len(opens), incoming.grid_us or 0),
        )
        columns = [column.astype(np.uint64) for column in numbers]
        both = np.column_stack(halves(begin[places, 0], begin[places, 1], columns)).astype(">u8")
        ids[opens] = np.ascontiguousarray(both).view("V16").reshape(-1)
        inside = derived.opening >= 0
        ids[inside] = ids[derived.opening[inside]]
        return ids

    def _emit(
        self,
        work: Work,
        emitted: Emitted,
        keys: KeyColumns,
        values: pa.Table | None,
        ids: Any,
        opened_us: IntArray,
        states: States,
        records: Any,
        timing: str,
    ) -> None:
        """Emit rows. records: of the keys before the step, of which stored rows are."""
        if not emitted.any:
            return
        schema = pa.schema(self.fields(work.schema))
        names = [*self.definition.agg, *self.definition.variables]
        own = pa.schema([schema.field(n) for n in names])
        sources = sorted({s for of_rows in emitted.sources for s in of_rows[of_rows < 0].tolist()})
        rows = [(states.openings if s % 2 else states.lasts).get((-1 - s) // 2) for s in sources]
        packed = [row for row in rows if row is not None]
        stored = unpack_rows(work.kv, self.aux_cf, packed, [("", 0, 0, 0)] * len(packed), own).select(names)
        numbers = np.cumsum([row is not None for row in rows]) - 1
        of_stored = {s: int(n) for s, n, row in zip(sources, numbers, rows, strict=True) if row is not None}
        own_values = own.empty_table() if values is None else conformed(values, own)
        whole = Values(keys, own_values, stored, of_stored)
        table, raised = to_table(
            self.definition, emitted, whole, ids, opened_us, states.keys, records, schema, timing
        )
        for cause, time_us, why in raised:
            self._bury(work, FUNCTION_FAILED, why, cause, time_us)
        if table is not None:
            work.result.panes.append(table)

    def _keep_rows(self, work: Work, step: Step, lasts: IntArray, values: pa.Table, states: States) -> None:
        """Keep the values of openings whose delays have not ended, and of the last evaluations of open keys."""
        batch, of, made = Batch(), step.evaluations, step.known_schema
        open_ = states.records["status"][of.codes[lasts]] != CANCEL
        if self.states.keeps_lasts:
            chosen = lasts[open_]
            packed = pack_rows(work.kv, batch, self.aux_cf, values.take(pa.array(chosen)))
            states.lasts.update(zip(of.codes[chosen].tolist(), packed, strict=True))
        if self.states.keeps_openings:
            waits = states.due_us(states.pending) != NEVER
            chosen = np.flatnonzero(made.after == OPEN)
            current = np.full(len(states), -1)
            current[of.codes[chosen]] = chosen
            chosen = current[waits & (current >= 0)]
            packed = pack_rows(work.kv, batch, self.aux_cf, values.take(pa.array(chosen)))
            states.openings.update(zip(of.codes[chosen].tolist(), packed, strict=True))
            for code in np.flatnonzero(~waits).tolist():
                states.openings.pop(code, None)
        work.kv.write(batch)

    def _write(
        self, work: Work, states: States, window: Window | None, floors: IntArray, watermark_us: int
    ) -> None:
        """Write the statuses and samples of keys, and when time next makes something of them due."""
        definition, n = self.definition, len(states)
        moments, open_ = self.moments(watermark_us, states, work.now_us), states.records["status"] != CANCEL
        wake_us = states.due_us(states.pending)
        if definition.ttl_us is not None:
            ttl_us = np.where(states.seen > START_OF_TIME_US, states.seen + definition.ttl_us + 1, NEVER)
            wake_us = np.minimum(wake_us, ttl_us)
        if window is None:
            self.states.save(work.kv, states, open_, wake_us)
            return
        lines, size_us = window.lines, definition.size_us
        if size_us is not None:
            first, ends = lines.first_from(np.arange(n), events.back(moments, size_us)), lines.starts[1:]
            filled = first < ends
            leaves = (
                lines.times[np.where(filled, first if definition.leaving else ends - 1, 0)]
                if len(lines)
                else moments
            )
            wake_us = np.where(filled, np.minimum(wake_us, leaves + size_us + 1), wake_us)
            self.samples.file(work, states, window, moments)
        else:
            filled = self.samples.count(work, window, floors, open_)
        self.states.save(work.kv, states, filled | open_, wake_us)

    def named_keys(self, work: Work, states: States, numbers: IntArray) -> pa.Table:
        """Return the key columns of keys by their numbers."""
        by, (codes, places) = self.definition.by, np.unique(numbers, return_inverse=True)
        if not by:
            return pa.table({})
        values = [decode_key(states.keys[code]) for code in codes.tolist()]
        columns = [pa.array([v[i] for v in values], work.schema.field(b).type) for i, b in enumerate(by)]
        return pa.table(columns, names=list(by)).take(pa.array(places))


def taken_of(incoming: Incoming, kept: BoolArray) -> Incoming:
    """Return the evaluations that are kept."""
    if kept.all():
        return incoming
    mask = pa.array(kept)
    columns = {name: column.filter(mask) for name, column in incoming.columns.items()}
    return Incoming(
        incoming.of.take(kept),
        columns,
        incoming.sizes[kept],
        incoming.late[kept],
        incoming.grid_us,
    )


def window_fields(
    names: Collection[str],
    of: Evaluations,
    sizes: IntArray,
    first_us: IntArray,
    last_us: IntArray,
    now_us: int,
) -> dict[str, pa.Array]:
    """Return those of the window fields that do not depend on other evaluations; the number of samples always."""
    empty = sizes == 0
    fields: dict[str, Callable[[], pa.Array]] = {
        "first_time": lambda: pa.array(first_us, mask=empty).cast(STAMP),
        "last_time": lambda: pa.array(last_us, mask=empty).cast(STAMP),
        "now": lambda: pa.repeat(pa.scalar(now_us, pa.int64()).cast(STAMP), len(of)),
        "leaving": lambda: pa.array(of.causes == events.LEAVING),
    }
    return {"samples": pa.array(sizes), **{name: field() for name, field in fields.items() if name in names}}


def _left(of: Evaluations, states: States, window: Window | None) -> tuple[IntArray, IntArray]:
    """Return the moment of the last sample of each key, and the place before which samples are of a window that has expired."""
    seen, n = states.seen, len(states)
    floors = np.zeros(n, dtype=np.int64)
    marks = (of.causes == events.LATE) | (of.causes == events.SAMPLE) | (of.causes == events.EXPIRED)
    marked = np.flatnonzero(marks)
    np.maximum.at(seen, of.codes[marked], of.seen[marked])
    ends = np.flatnonzero(np.r_[of.codes[marked][1:] != of.codes[marked][:-1], True][: len(marked)])
    last = marked[ends]
    seen[of.codes[last[of.causes[last] == events.EXPIRED]]] = START_OF_TIME_US
    if window is not None:
        floors[of.codes] = of.floors
        over = marked[(of.causes[marked] == events.EXPIRED)]
        gone = over[seen[of.codes[over]] == START_OF_TIME_US]
        floors[of.codes[gone]] = len(window.lines)
    return seen, floors
