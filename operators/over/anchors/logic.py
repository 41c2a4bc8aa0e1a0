"""OVER windows around the messages of another input, or of a clock: two pure steps on a store. Seed 002 section 3.

Column families: `events`, the messages that windows may still hold, by event time (`stores/event_log.py`); of anchors those of
`pending_anchors.py`.

The verdict on an anchor depends on earlier anchors of its key, in the order of event time and position. So an anchor is judged
when the watermark passes it, and its row is emitted when the watermark has passed its window as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.between import Ticks
from windrow.core.column_types import compared, noted
from windrow.core.errors import TypeClash
from windrow.core.frames import RangeBetween
from windrow.core.inputs import Input
from windrow.core.policy import UNBOUNDED_US
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, HOUR_US, MINUTE_US, show_instant
from windrow.core.types import as_type
from windrow.operators.aggregations.calculation import Calculation, try_all
from windrow.operators.one_input import OneInputLogic, Work
from windrow.operators.over.anchors.pending_anchors import AT, Pending, ticks
from windrow.operators.over.anchors.spans import found_spans, high_of, low_of, without_timeless
from windrow.operators.over.definition import OverDefinition
from windrow.operators.over.due_rows import buried
from windrow.operators.over.frame_values import Values, over_frame, parts_of, read_by
from windrow.operators.over.partitions import Lines, ordered
from windrow.operators.over.required_columns import (
    MarkerNeeds,
    OverNeeds,
    PartnerNeeds,
    conformed,
    kept_columns,
)
from windrow.operators.several_inputs import InputSchemas
from windrow.operators.steps.arrivals import check_inputs
from windrow.operators.steps.columns import END, ON_TIME, POSITION_COLUMNS, START
from windrow.operators.steps.dead_letters import OBSOLETE_WINDOW
from windrow.operators.steps.groups import combine, key_numbers
from windrow.operators.steps.input_filter import further
from windrow.operators.steps.intake import Slice, event_time_marks
from windrow.operators.steps.message_rows import empty_rows, with_positions
from windrow.operators.steps.output_rows import labelled
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.schema_inference import Needs, check_keys, learn
from windrow.operators.steps.step import StepResult, limit
from windrow.operators.steps.work import save_progress
from windrow.operators.view import View
from windrow.stores.event_log import TIME, Events
from windrow.stores.kv import KV

#: The slot of the columns of the anchors; those of the other input are in `Progress`.
_MARKERS = "1"
#: A window's reach back is about so many buckets long; the least width of a bucket.
_STRETCHES, _SHORTEST_US = 8, 100_000


class AnchoredOvers(OneInputLogic):
    """The operator of one definition on one store. It is stateless: everything is in the store that it receives."""

    definition: OverDefinition
    adds_columns = True

    def __init__(self, definition: OverDefinition) -> None:
        super().__init__(definition)
        clock = isinstance(definition.anchors, Ticks)
        #: Each input by itself.
        self.alone: list[OverDefinition] = [definition.source, *([] if clock else [definition.markers])]
        self._needs: list[OverNeeds] = [
            OverNeeds(definition.source),
            *([] if clock else [MarkerNeeds(definition)]),
        ]
        self.schemas = InputSchemas(self.aux_cf, (_MARKERS,))
        assert definition.span is not None
        self.span = definition.span
        width_us, longest_us, reach_us = MINUTE_US, MINUTE_US, definition.retention.time_us
        if isinstance(self.span, RangeBetween):  # the retention may be longer, for queries alone
            longest_us, reach_us = HOUR_US, max(-self.span.start_us, self.span.end_us, 0)
        if reach_us is not None:
            width_us = min(max(reach_us // _STRETCHES, _SHORTEST_US), longest_us)
        self.events = Events(f"{definition.name}.events", width_us)
        self.pending = Pending(definition, self.aux_cf, width_us)
        self._calculated: tuple[pa.Schema, Calculation] | None = None

    def cfs(self) -> tuple[str, ...]:
        return (self.aux_cf, self.events.cf, *self.pending.cfs)

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        """Do nothing: emitted rows stay, their messages may be evicted, and late messages stay too late."""
        return None

    # -- taking messages --------------------------------------------------------------------------------------------

    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        work, came = self._begin(kv, now_us), dict[int, Slice]()
        check_inputs(tables, self.definition.name, [input.name for input in self.definition.inputs])
        for side, input in enumerate(self.definition.inputs):
            table = tables.get(input.name)
            if table is not None:
                work.dead.input = input.shown
                marks, came[side] = self._admitted(work, side, input, table)
                work.result.marks.update(marks)
        self.emit_immediately(work, came)
        work.progress.begin(now_us)
        return self._end(work)

    def emit_immediately(self, work: Work, came: Mapping[int, Slice]) -> None:
        """Emit rows that the messages of a step allow at once; here none."""
        return None

    def _admitted(
        self, work: Work, side: int, input: Input, table: pa.Table
    ) -> tuple[Mapping[Partition, int], Slice]:
        """File an input's messages. Returns (the time that the input reaches, the countable messages)."""
        reading, known = self.readings[side], self._known(work.kv, work.progress, side)
        table = reading.in_known_times(table, known)
        if side:
            table = without_timeless(self.definition, table, known)
        schema = self._learned(work.kv, work.progress, side, table.schema)
        table = with_positions(table, work.progress.step, input.source_prefix)
        rows, marks = reading.arrivals(table, work.now_us, work.dead, partial(self._on_time, work, reading))
        if len(rows):
            rows = Slice(conformed(rows.table, empty_rows(schema).schema), rows.times)
            rows = self._accept_anchors(work, rows) if side else self.accept(work, rows)
        return further(event_time_marks(rows), marks), rows

    def accept(self, work: Work, rows: Slice) -> Slice:
        try_all(self.definition.agg, rows.table)
        kept = rows.table.select([*kept_columns(self.alone[0], work.schema), *POSITION_COLUMNS])
        self.events.add(work.kv, kept.append_column(TIME, pa.array(rows.times)), work.progress.step)
        self.pending.hear(work.kv, rows.times)
        return rows

    def _accept_anchors(self, work: Work, rows: Slice) -> Slice:
        """File anchors that have a window, and return them."""
        spans, good = found_spans(self.definition, rows, work.dead)
        rows, spans = rows.take(good), spans.take(pa.array(good))
        if len(rows):
            names = [*kept_columns(self.alone[1], rows.table.schema), *POSITION_COLUMNS]
            table = rows.table.select(list(dict.fromkeys(n for n in names)))
            for name in spans.column_names:
                table = table.append_column(name, spans.column(name))
            self.file_anchors(work, table.append_column(AT, pa.array(rows.times)))
        return rows

    def file_anchors(self, work: Work, anchors: pa.Table) -> None:
        """File the anchors of a step, with their times and windows."""
        self.pending.add(work.kv, anchors, work.progress.step)

    # -- time passes ------------------------------------------------------------------------------------------------

    def pass_time(self, work: Work, watermark_us: int) -> None:
        before_us = work.progress.watermark_us
        if watermark_us <= before_us:
            return
        ends = watermark_us >= END_OF_TIME_US
        work.dead.input = self.definition.inputs[-1].shown
        fresh = self._fresh(work, before_us, watermark_us)
        due, later = self.pending.due(work.kv, fresh, before_us, watermark_us)
        if due is not None and len(due):
            self._emit(work, self.in_marker_types(work, due))
        if later is not None and len(later):
            self.pending.wait(work.kv, later, work.progress.step)
        self.pending.forget(work.kv, watermark_us)
        floor_us = END_OF_TIME_US if ends else self.floor_us(work.kv, watermark_us)
        self.events.forget(work.kv, floor_us)

    def closed_us(self, watermark_us: int) -> int:
        """Return the time before which no row is emitted any more."""
        return watermark_us

    def floor_us(self, kv: KV, watermark_us: int) -> int:
        """Return the time before which no window begins whose row is still to be emitted."""
        return min(self.reached_us(kv, watermark_us), self.pending.lowest_us(kv))

    def reached_us(self, kv: KV, watermark_us: int) -> int:
        """Return the time before which no window begins of an anchor that the watermark has not passed."""
        back_us = self.definition.back_us
        back_us = UNBOUNDED_US if back_us is None else max(back_us, self.definition.queried_us)
        kept_us = limit(watermark_us, back_us)
        return max(kept_us, self.pending.promises.of_all_us(kv)) if self.pending.judges else kept_us

    def _fresh(self, work: Work, before_us: int, watermark_us: int) -> pa.Table | None:
        """Return the anchors that the watermark has passed and whose windows keep earlier promises."""
        if isinstance(self.definition.anchors, Ticks):
            times = self.pending.ticked(work.kv, watermark_us)
            return None if times is None else ticks(self.definition, times)
        rows = self.pending.passed(work.kv, before_us, watermark_us)
        if rows is None or not self.pending.judges:
            return rows
        rows = self.in_marker_types(work, rows)
        times = combine(rows.column(AT)).to_numpy()
        good, floors = self.pending.promises.judge(work.kv, rows, times, work.progress.step)
        bad = np.flatnonzero(~good)
        if len(bad):
            details = [
                f"an anchor before it has promised that no window begins before {show_instant(us)}"
                for us in floors[bad].tolist()
            ]
            work.dead.add_rows(
                OBSOLETE_WINDOW, details, rows.drop_columns([AT]), bad, combine(rows.column(AT))
            )
            rows = rows.filter(pa.array(good))
        return rows if len(rows) else None

    def in_marker_types(self, work: Work, rows: pa.Table) -> pa.Table:
        """Return anchors in the current types of their columns."""
        if isinstance(self.definition.anchors, Ticks):
            return rows
        known = self._known(work.kv, work.progress, 1)
        assert known is not None
        schema = pa.schema([known.field(n) for n in kept_columns(self.alone[1], known)])
        own = [f for f in rows.schema if f.name.startswith("__")]
        return conformed(rows, pa.schema([*schema, *own]))

    # -- telling ----------------------------------------------------------------------------------------------------

    def values(self, work: Work, anchors: pa.Table) -> tuple[Values, IntArray]:
        """Return the aggregates of the windows of anchors, and the number of messages in each."""
        low, high = (
            of(self.span, anchors.column(name).to_numpy()) for of, name in ((low_of, START), (high_of, END))
        )
        schema = self._source_schema(work.kv, work.progress)
        stored = self.events.read_near(work.kv, low, high)
        filed = empty_rows(schema).schema.append(pa.field(TIME, pa.int64()))
        rows = filed.empty_table() if stored is None else conformed(stored, filed)
        codes, size = self.key_codes(rows, anchors)
        of_anchors = codes[len(rows) :]
        near = np.zeros(size, dtype=bool)
        near[of_anchors] = True
        in_windows, of = near[codes[: len(rows)]], codes[: len(rows)]
        if not in_windows.all():  # most keys have messages alone
            rows, of = rows.filter(pa.array(in_windows)), of[in_windows]
        lines = Lines(rows, of, size, rows.column(TIME).to_numpy(), None)
        calculations = self._calculations(schema)
        names = dict.fromkeys(name for _, calculation in calculations for name in read_by(calculation))
        ordered_rows = Slice(rows.select(list(names)).take(pa.array(lines.order)), lines.times)
        values, sizes, at = Values({}, []), np.zeros(len(anchors), np.int64), anchors.column(AT).to_numpy()
        for frame, calculation in calculations:
            if frame is not None:
                low, high = at + frame.low_us, at + frame.high_us
            bounds = lines.between(of_anchors, low, high)
            values.extend(
                over_frame(calculation, ordered_rows, calculation.lift(ordered_rows), bounds, "emit")
            )
            sizes = np.maximum(sizes, bounds.sizes)
        if self.definition.empty == "skip":
            values.broken = [b for b in values.broken if sizes[b.group]]
        return values, sizes

    def _emit(self, work: Work, anchors: pa.Table) -> None:
        """Emit the rows of anchors."""
        anchors = anchors.take(pa.array(ordered(anchors.column(AT).to_numpy(), anchors)))
        values, sizes = self.values(work, anchors)
        stamps = anchors.column(AT).to_numpy()
        kept = buried(
            work,
            values.broken,
            list(self.definition.agg),
            lambda at: (anchors.drop_columns([AT]).take(pa.array(at)), stamps[at]),
            len(anchors),
        )
        if self.definition.empty == "skip":
            kept = kept[sizes[kept] > 0]
        if len(kept):
            at = None if len(kept) == len(anchors) else pa.array(kept)
            fields = self.output_fields(work)
            arrays = [
                values.columns[f.name] if f.name in self.definition.agg else anchors.column(f.name)
                for f in fields
            ]
            columns = arrays if at is None else [column.take(at) for column in arrays]
            work.result.panes.append(labelled(pa.table(columns, schema=pa.schema(fields)), ON_TIME))

    def output_fields(self, work: Work) -> list[pa.Field]:
        """Return the columns of its rows, by the known columns of its inputs."""
        kv, progress = work.kv, work.progress
        return self.fields(self._source_schema(kv, progress), self._known_markers(kv, progress))

    def key_codes(self, rows: pa.Table, anchors: pa.Table) -> tuple[IntArray, int]:
        """Return numbers of the keys of messages, then of anchors: equal keys have equal ones, even across types."""
        total = len(rows) + len(anchors)
        both = []
        for name in self.definition.by:
            sides = [combine(t.column(name)) for t in (rows, anchors)]
            kind = _comparable(*(noted(pa.field(name, side.type), [side]) for side in sides))
            both.append(pa.concat_arrays([as_type(side, kind) for side in sides]))
        if not both:
            return np.zeros(total, dtype=np.int64), 1
        return key_numbers(both, total)

    # -- columns ----------------------------------------------------------------------------------------------------

    def _known(self, kv: KV, progress: Progress, side: int) -> pa.Schema | None:
        if side == 0:
            return progress.schema
        return self.schemas.of(kv, _MARKERS)

    def _learned(self, kv: KV, progress: Progress, side: int, seen: pa.Schema) -> pa.Schema:
        """Return the known columns of an input, extended by those of a slice."""
        known = self._known(kv, progress, side)
        check_keys(self.definition.by, seen)
        self._needs[side].check_names(seen.names)
        schema = learn(known, seen, self._needs[side], self.readings[side].event_time)
        other = self._known(kv, progress, 1 - side) if len(self.alone) > 1 else None
        for name in self.definition.by:
            if other is not None and name in schema.names and name in other.names:
                _comparable(schema.field(name), other.field(name))
        if side == 0:
            progress.schema = schema
        else:
            self.schemas.save(kv, _MARKERS, known, schema)
        return schema

    def _source_schema(self, kv: KV, progress: Progress) -> pa.Schema:
        """Return the columns that are kept with a message; of no type yet, before the first."""
        known, named = progress.schema, [self.definition.event_time, *self.definition.by]
        if known is None:
            named += [c for a in self.definition.agg.values() for c in a.columns]
            known = pa.schema([pa.field(n, pa.null()) for n in dict.fromkeys(named)])
        return pa.schema([known.field(n) for n in kept_columns(self.definition.source, known)])

    def _known_markers(self, kv: KV, progress: Progress) -> pa.Schema | None:
        """Return the columns of the anchors; None of a clock's, and before the first."""
        return None if isinstance(self.definition.anchors, Ticks) else self._known(kv, progress, 1)

    def fields(self, schema: pa.Schema, markers: pa.Schema | None = None) -> list[pa.Field]:
        """Return the columns of its rows. schema: of kept messages; markers: the columns of anchors, None of a clock's."""
        emitted, own = self.definition.output_columns, self.definition.agg
        if markers is None:
            markers = pa.schema([pa.field(self.definition.output_time, pa.timestamp("us", "UTC"))])
        names = markers.names if emitted is None else emitted[: len(emitted) - len(own)]
        by_alias = {f.name: f for f in self._calculation(schema).output}
        return [*(markers.field(n) for n in names), *(by_alias[alias] for alias in own)]

    def _calculations(self, schema: pa.Schema) -> list[tuple[RangeBetween | None, Calculation]]:
        """Return the aggregations by frame, where they have one of their own."""
        if not self.definition.frames:
            return [(None, self._calculation(schema))]
        parts = [(part.frame, Calculation(part, schema)) for part in parts_of(self.definition)]
        return [(frame, calculation) for frame, calculation in parts if isinstance(frame, RangeBetween)]

    def _calculation(self, schema: pa.Schema) -> Calculation:
        if self._calculated is None or not self._calculated[0].equals(schema):
            self._calculated = (schema, Calculation(self.definition, schema))
        return self._calculated[1]

    # -- the seam ---------------------------------------------------------------------------------------------------

    def message_schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        for needs, input in zip(self._needs, self.definition.inputs, strict=True):
            needs.check(None, inputs[input.name].names)
        source, markers = inputs[self.definition.inputs[0].name], inputs[self.definition.inputs[-1].name]
        kept = pa.schema([source.field(n) for n in kept_columns(self.definition.source, source)])
        if isinstance(self.definition.anchors, Ticks):
            return pa.schema(self.fields(kept))
        for name in self.definition.by:
            _comparable(source.field(name), markers.field(name))
        return pa.schema(self.fields(kept, markers))

    def known_schema(self, kv: KV) -> pa.Schema | None:
        progress = self.progress(kv)
        markers = self._known_markers(kv, progress)
        if progress.schema is None or (markers is None and isinstance(self.definition.anchors, Input)):
            return None
        return pa.schema(self.fields(self._source_schema(kv, progress), markers))

    def learn(self, kv: KV, input: str, schema: pa.Schema) -> None:
        progress = self.progress(kv)
        self._learned(kv, progress, self._side(input), schema)
        save_progress(kv, self.aux_cf, progress)

    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        return self._known(kv, self.progress(kv), self._side(name))

    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table]) -> Needs:
        side = self._side(name)
        if len(self.alone) == 1:
            return self._needs[0]
        other = self.definition.inputs[1 - side].name
        known = self.schema_of(kv, other)
        if other in other_inputs:
            known = learn(known, other_inputs[other].schema)
        return PartnerNeeds(self._needs[side], self.definition.by, known)

    def _side(self, name: str) -> int:
        names = [input.name for input in self.definition.inputs]
        return names.index(name) if name in names else 0

    def called(self, input: str, column: str) -> tuple[str, ...]:
        return (column,) if self._side(input) == 1 and self.definition.output_columns is None else ()

    def key_types(
        self, name: str, inputs: Mapping[str, pa.Schema]
    ) -> list[tuple[str, tuple[pa.DataType, ...]]]:
        types: list[tuple[str, tuple[pa.DataType, ...]]] = []
        for key in self.definition.by:
            columns = [inputs[input.name].field(key) for input in self.definition.inputs]
            types.append((key, (_comparable(*columns),)))
        return types

    def check_schemas(self, inputs: Mapping[str, pa.Schema]) -> None:
        for needs, input in zip(self._needs, self.definition.inputs, strict=True):
            if input.name in inputs:
                needs.check_names(inputs[input.name].names)

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        from windrow.operators.over.anchors.views import AnchoredView

        return AnchoredView(self, stores, watermark_us)


def _comparable(one: pa.Field, other: pa.Field) -> pa.DataType:
    """Return the type in which keys of both inputs are compared."""
    common = compared(one, other)
    if common is None:
        raise TypeClash(
            f"key {one.name!r} is {one.type} in one input and {other.type} in the other, which cannot be compared: cast one of "
            "them"
        )
    return common.type
