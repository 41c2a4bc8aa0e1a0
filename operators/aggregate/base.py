"""Base of aggregators over time and tuple windows: begin and end of a step, learning the input, duplicates by id."""

from __future__ import annotations

from abc import abstractmethod
from ast import literal_eval
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.keys import encode_columns
from windrow.core.time import START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.kept_messages import History
from windrow.operators.aggregate.output import pane_message_schema, pane_messages, pane_rows, pane_schema
from windrow.operators.aggregate.pane_order import in_window_order
from windrow.operators.aggregate.required_columns import AggregateNeeds
from windrow.operators.aggregate.state_rows import delta_rows
from windrow.operators.aggregations.calculation import Broken, Calculation
from windrow.operators.one_input import WholeMessages
from windrow.operators.operator import Logic
from windrow.operators.steps.columns import END, START
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.derived_columns import made_schema, raw, with_derived
from windrow.operators.steps.groups import Groups
from windrow.operators.steps.ids import SeenIds
from windrow.operators.steps.input_filter import divided
from windrow.operators.steps.intake import Slice, countable_rows, in_known_times
from windrow.operators.steps.progress import EMISSION, RECOMPUTED, Progress
from windrow.operators.steps.schema_inference import Needs, check_keys, in_learnt_types, learn
from windrow.operators.steps.step import StepResult
from windrow.operators.steps.work import Work, begin_step, save_progress
from windrow.operators.view import View
from windrow.stores.kv import KV, Batch


class Steps(Logic):
    """The base of aggregators over time windows, sessions and tuple windows. Has no state but the store."""

    def __init__(self, definition: AggregateDefinition) -> None:
        #: They know how the keys of this state are numbered.
        self.definition: AggregateDefinition = definition
        self.windows_cf = f"{definition.name}.windows"
        self.aux_cf = f"{definition.name}.aux"
        self.history = History(definition) if definition.full_state else None
        self.seen: SeenIds | None = None
        self.needs: AggregateNeeds | WholeMessages = AggregateNeeds(definition)
        self._calculation: Calculation | None = None
        self._emission_noted = False

    def cfs(self) -> tuple[str, ...]:
        ids = () if self.seen is None else (self.seen.cf,)
        return (self.windows_cf, self.aux_cf, *ids, *(() if self.history is None else self.history.cfs))

    def _begin(self, kv: KV, now_us: int) -> Work:
        work = begin_step(kv, self.aux_cf, self.definition.dead_letter_limit, now_us)
        if work.progress.schema is not None:
            self._bind(work.progress.schema)
        if self.history is not None and self.definition.numbered and self.definition.since_us:
            self.history.note_come(kv, work.progress.step)
        work.dead.input = self.definition.inputs[0].shown
        return work

    def _end(self, work: Work) -> StepResult:
        result = work.end(self.aux_cf)
        if work.progress.schema is not None:
            self._note_emission(work.kv)
        prefix = self.definition.inputs[0].source_prefix
        result.marks = {(s or prefix, p): t for (s, p), t in result.marks.items()}
        return result

    def _emission_changed(self, kv: KV) -> bool:
        """True in the first `advance` under another emission than the last one: pending rows have to be searched."""
        if self._emission_noted:
            return False
        stored, own = kv.get(self.aux_cf, EMISSION), repr(self.definition.emit).encode()
        self._emission_noted = stored == own  # not before it is stored for good
        if not self._emission_noted:
            batch = Batch()
            batch.put(self.aux_cf, EMISSION, own)
            kv.write(batch)
        return stored is not None and not self._emission_noted

    def _note_emission(self, kv: KV) -> None:
        """Record the emission under which the first messages came, if no `advance` has recorded one."""
        if not self._emission_noted and kv.get(self.aux_cf, EMISSION) is None:
            batch = Batch()
            batch.put(self.aux_cf, EMISSION, repr(self.definition.emit).encode())
            kv.write(batch)

    def _owes(self, kv: KV) -> bool:
        """True until the first step in which newly added aggregations of kept messages are there."""
        own = self.definition.recomputed_us
        if not own:
            return False
        noted = kv.get(self.aux_cf, RECOMPUTED)
        # If one was removed since, nothing is owed for the others.
        return noted is None or not set(own) <= set(literal_eval(noted.decode()))

    def _note_recomputed(self, kv: KV) -> None:
        batch = Batch()
        batch.put(self.aux_cf, RECOMPUTED, repr(self.definition.recomputed_us).encode())
        kv.write(batch)

    def _notes(self, unsaid: bool) -> bool:
        """True if a merge has to record last emitted values: rows hold more than that (`unsaid`), or are emitted again."""
        emit = self.definition.emit
        return (
            not self.definition.full_state
            and emit.mode != "discarding"
            and (unsaid or self.definition.remembers)
        )

    def _ended(self, rows: pa.Table, ended: set[tuple[int, int, bytes]]) -> BoolArray:
        """True for rows whose last pane was sent in this step."""
        if not ended:
            return np.zeros(len(rows), dtype=bool)
        return np.array([row in ended for row in self._names(rows)], dtype=bool)

    def _names(self, rows: pa.Table) -> list[tuple[int, int, bytes]]:
        by = self.definition.by
        keys = encode_columns([rows.column(b) for b in by]) if by else [b""] * len(rows)
        return list(zip(*(rows.column(c).to_pylist() for c in (START, END)), keys, strict=True))

    def _learn(self, progress: Progress, schema: pa.Schema) -> None:
        check_keys(raw(self.needs.keys, self.definition.makes), schema)
        time = None if self.definition.inputs[0].time_made else self.definition.event_time
        progress.schema = learn(progress.schema, schema, self.needs, time)
        self._bind(progress.schema)
        check_keys(dict(self.definition.makes).keys() & set(self.needs.keys), self.calculation.schema)

    def _learnt(self, progress: Progress, table: pa.Table) -> pa.Table:
        """Return the input in the current types of the stream."""
        time = self.definition.event_time
        if progress.schema is not None and time in raw(progress.schema.names, self.definition.makes):
            known = progress.schema.field(time).type
            table = in_known_times(
                table, time, self.definition.time_zone, known, self.definition.event_time_unit
            )
        self._learn(progress, table.schema)
        assert progress.schema is not None
        known_times = "" if self.definition.inputs[0].time_made else time
        return with_derived(self.definition.makes, in_learnt_types(table, progress.schema, known_times))

    def _bind(self, schema: pa.Schema) -> None:
        schema = self.seen_schema(schema)
        if self._calculation is None or not self._calculation.input_schema.equals(schema):
            self._calculation = Calculation(self.definition, schema)

    def _kept_from(self, progress: Progress) -> int:
        """Return the event time below which ids are forgotten."""
        return START_OF_TIME_US

    def seen_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the input with those that are derived from them."""
        return made_schema(self.definition.makes, schema)

    def _passing(self, table: pa.Table, now_us: int, dead: DeadLetters) -> tuple[pa.Table, Slice | None]:
        """Return the rows that pass the filter of the input; and the others with a time, which only advance the watermark."""
        if self.definition.where is None:
            return table, None
        table, others = divided(self.definition.where, table)
        time_only = self.definition._changed(null_keys="group", ids=None)
        return table, countable_rows(time_only, others, now_us, dead)

    def _without_duplicates(self, kv: KV, rows: Slice, result: StepResult, floor_us: int) -> Slice:
        """Return rows whose ids were not seen before; ids of event times below the floor are forgotten."""
        if self.seen is None or len(rows) == 0:
            return rows
        fresh = self.seen.first_seen(kv, rows, floor_us)
        if len(fresh) == len(rows):
            return rows
        result.counts["duplicates"] = len(rows) - len(fresh)
        return rows.take(fresh)

    # -- as an operator ---------------------------------------------------------------------------------------------

    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        [table] = tables.values()
        return self.ingest_table(kv, table, now_us)

    @abstractmethod
    def ingest_table(self, kv: KV, table: pa.Table, now_us: int) -> StepResult:
        """Process the messages of a step, and fire the windows that they fill."""

    def learn(self, kv: KV, input: str, schema: pa.Schema) -> None:
        progress = self.progress(kv)
        self._learn(progress, schema)
        save_progress(kv, self.aux_cf, progress)

    def rows(self, panes: Sequence[pa.Table], commit: int) -> pa.Table:
        schema = pane_schema(self.definition, self.calculation)
        return pane_rows(self.definition, schema, panes, commit)

    def schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        return pane_schema(self.definition, self._over(inputs))

    def messages(self, panes: Sequence[pa.Table]) -> pa.Table:
        return pane_messages(self.definition, self.calculation, panes)

    def message_schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        return pane_message_schema(self.definition, self._over(inputs))

    def known_schema(self, kv: KV) -> pa.Schema | None:
        known = self.progress(kv).schema
        return (
            None
            if known is None
            else pane_message_schema(self.definition, Calculation(self.definition, self.seen_schema(known)))
        )

    def _over(self, inputs: Mapping[str, pa.Schema]) -> Calculation:
        return Calculation(self.definition, self.seen_schema(inputs[self.definition.inputs[0].name]))

    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        return self.progress(kv).schema

    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table]) -> Needs:
        return self.needs

    def begun(self, kv: KV) -> bool:
        """False if there cannot be messages yet."""
        return self.progress(kv).schema is not None

    def columns(self, kv: KV) -> list[str]:
        known = self.progress(kv).schema
        return [] if known is None else list(known.names)

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        from windrow.operators.aggregate.views import view_of

        return view_of(self.definition)(self, stores, watermark_us)

    def noted(self, rows: Slice, step: int | IntArray, numbers: IntArray | None = None) -> Slice:
        """Return messages to keep, with the other columns that aggregations use. numbers: of tuple windows."""
        return rows

    def deltas(
        self, rows: Slice, row_of: IntArray, starts: IntArray, ends: IntArray
    ) -> tuple[pa.Table, Groups, list[Broken]]:
        """Return the contributions of messages to their windows."""
        return delta_rows(self.calculation, rows, row_of, starts, ends)

    @property
    def calculation(self) -> Calculation:
        assert self._calculation is not None, "no input was seen yet"
        return self._calculation


def together(panes: list[pa.Table], by: tuple[str, ...]) -> list[pa.Table]:
    """Merge panes of several firings, by start, end and key; a retraction stays before its insertion."""
    if len(panes) < 2:
        return panes
    table = concat(panes)
    return [table.take(pa.array(in_window_order(table, by)))]
