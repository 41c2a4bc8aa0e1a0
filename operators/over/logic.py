"""OVER windows: two pure steps on a store.

Column families: `events`, the messages that frames may still hold, by event time (`stores/event_log.py`); where messages are
counted, `tails`, the last ones of each key, and `sums`, the accumulators of running aggregations (`key_state.py`).

A message is settled when the watermark has passed it and its following frames of time. A settled message's row is emitted,
unless it waits for following messages. Earlier rows follow from the former watermark, so nothing is marked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.frames import Frame
from windrow.core.policy import UNBOUNDED_US
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregations.calculation import Calculation, try_all
from windrow.operators.one_input import OneInputLogic, Work
from windrow.operators.over.bucketed_frames import Middle
from windrow.operators.over.definition import OverDefinition, reach_rows, reach_us, waits_rows, waits_us
from windrow.operators.over.due_rows import DueRows, Reached
from windrow.operators.over.frame_buckets import Keys, Long, Slices
from windrow.operators.over.frame_values import Part, Values, columns_of, parts_of
from windrow.operators.over.keyed_history import Held, Remembered
from windrow.operators.over.partitions import Lines
from windrow.operators.over.required_columns import OverNeeds, conformed, kept_columns
from windrow.operators.steps.columns import ON_TIME, POSITION_COLUMNS
from windrow.operators.steps.groups import key_numbers
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.message_rows import POSITION_TYPES, with_positions
from windrow.operators.steps.output_rows import labelled, signed
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import limit, passed
from windrow.operators.view import View
from windrow.stores.event_log import TIME, Events, recorded_width
from windrow.stores.kv import KV

#: A frame of time is about so many buckets long; the least and the greatest width of a bucket.
_STRETCHES, _SHORTEST_US, _LONGEST_US = 8, 100_000, 3_600_000_000
#: A long frame is so many buckets long, whose width is at least this.
_OF_LONG, _SHORT_US = 64, 1_000_000
_WIDTH_KEY = b"\x00width"
#: About so many messages need no more than one bucket.
_IN_STRETCH = 4_096


class Overs(OneInputLogic):
    """The operator of one definition on one store. It is stateless: everything is in the store that it receives."""

    definition: OverDefinition
    needs: OverNeeds
    adds_columns = True

    def __init__(self, definition: OverDefinition) -> None:
        super().__init__(definition)
        self.needs = OverNeeds(definition)
        agg = definition.agg
        self._parts = parts_of(definition)
        self.reach_us, self._waits_us = reach_us(agg), waits_us(agg)
        self._waits = waits_rows(agg)
        span_us = self.reach_us + self._waits_us
        # Messages that wait for the watermark, or for late ones, are kept, too.
        span_us += definition.watermark.delay_us + (0 if definition.by_arrival else definition.late_us)
        stretch_us = max(span_us // _STRETCHES, _SHORTEST_US)
        self._width_us = min(stretch_us, max(span_us // _OF_LONG, _SHORT_US), _LONGEST_US)
        self.slices = Slices(
            f"{definition.name}.slices", self.aux_cf, definition.by, self._parts, self.reach_us
        )
        self._events_cf = f"{definition.name}.events"
        self.remembered = Remembered(
            definition.name,
            definition.by,
            definition.ttl_us,
            tail=reach_rows(agg) + self._waits,
            waits=self._waits,
            runs=any(part.running for part in self._parts),
        )
        self._calculated: tuple[pa.Schema, list[tuple[Part, Calculation]]] | None = None

    def cfs(self) -> tuple[str, ...]:
        own = (self.aux_cf, self._events_cf, self.remembered.tails.cf, self.remembered.sums.cf)
        return (*own, *self.slices.cfs) if self.slices.any else own

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        definition = self.definition
        emitted = definition.output_columns
        names = schema.names if emitted is None else emitted[: len(emitted) - len(definition.agg)]
        by_alias = {f.name: f for _, calculation in self._calculations(schema) for f in calculation.output}
        return [*(schema.field(n) for n in names), *(by_alias[alias] for alias in definition.agg)]

    def messages(self, panes: Sequence[pa.Table]) -> pa.Table:
        return signed(panes) if self.definition.emits_updates else super().messages(panes)

    def check_schemas(self, inputs: Mapping[str, pa.Schema]) -> None:
        for schema in inputs.values():
            self.needs.check_names(schema.names)

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        """Do nothing: emitted rows stay, their messages may be evicted, and late messages stay too late."""
        return None

    # -- steps ------------------------------------------------------------------------------------------------------

    def accept(self, work: Work, rows: Slice) -> Slice:
        self.check(rows)
        step, table = work.progress.step, self.kept_rows(work, rows)
        self._begin_events(work.kv, rows.times)
        self.events(work.kv).add(work.kv, self.marked(table, step), step)
        return rows

    def check(self, rows: Slice) -> None:
        """Raise where an expression raises on a message, which then does not count."""
        try_all(self.definition.agg, rows.table)

    def kept_rows(self, work: Work, rows: Slice) -> pa.Table:
        """Return the columns of kept messages."""
        table = with_positions(rows.table, work.progress.step)
        table = table.select([*kept_columns(self.definition, work.schema), *POSITION_COLUMNS])
        return table.append_column(TIME, pa.array(rows.times))

    def marked(self, rows: pa.Table, step: int) -> pa.Table:
        """Return messages of a step in the form in which they are kept."""
        return rows

    def events(self, kv: KV) -> Events:
        """Return the event log of kept messages."""
        return Events(self._events_cf, recorded_width(kv, self.aux_cf, _WIDTH_KEY, self._width_us))

    def _begin_events(self, kv: KV, times: IntArray) -> None:
        """Set the bucket width if it is not set yet: longer if the first messages are many, and sparse."""
        width_us, apart_us = self._width_us, int(times.max()) - int(times.min())
        if len(times) >= _IN_STRETCH:
            width_us = max(width_us, min(apart_us * _IN_STRETCH // len(times), _LONGEST_US))
        recorded_width(kv, self.aux_cf, _WIDTH_KEY, width_us, store=True)

    def pass_time(self, work: Work, watermark_us: int) -> None:
        before = self.reached(work.progress.watermark_us)
        if work.progress.schema is None or watermark_us <= before.watermark_us:
            return
        after = self.reached(watermark_us)
        self._advance(work, before, after)
        self.events(work.kv).forget(work.kv, self.floor(watermark_us))
        if self.slices.any:
            ends = after.settled_us >= END_OF_TIME_US
            self.slices.forget(work.kv, END_OF_TIME_US if ends else limit(after.settled_us, self.reach_us))
        self.remembered.forget(work.kv, after)

    def reached(self, watermark_us: int) -> Reached:
        """Return the progress of event time under that watermark."""
        if watermark_us >= END_OF_TIME_US:
            return Reached(watermark_us, END_OF_TIME_US)
        return Reached(watermark_us, limit(watermark_us, self._waits_us))

    def closed(self, watermark_us: int) -> Reached:
        """Return the progress less the allowed lateness: what is settled there changes no more."""
        return self.reached(passed(watermark_us, self.definition.late_us))

    def floor(self, watermark_us: int) -> int:
        """Return the event time before which messages expire, all but the last ones of each key."""
        settled_us, queried_us = self.closed(watermark_us).settled_us, self.definition.queried_us
        if settled_us >= END_OF_TIME_US:
            return START_OF_TIME_US if queried_us >= UNBOUNDED_US else END_OF_TIME_US
        return min(limit(settled_us, self.reach_us), limit(watermark_us, queried_us))

    def _advance(self, work: Work, before: Reached, after: Reached) -> None:
        kv, calculations = work.kv, self._calculations(work.schema)
        moved = (before.settled_us, after.settled_us)
        long = self.slices.long(kv, calculations, *moved)
        low_us = limit(before.settled_us, self.reach_us) if long is None else long.right_us
        stored, events = self.events(kv), None
        if stored.any_between(kv, *moved):
            exact = self.remembered.anything
            events = stored.read(kv, low_us, after.watermark_us, tidy=True, exact=exact)
        schema = self.filed(work.schema)
        rows = schema.empty_table() if events is None else conformed(events, schema)
        numbers: tuple[IntArray, int] | None = None
        if events is not None and self.slices.any and self.slices.worth(calculations, *moved):
            numbers = self._numbers(rows, gaps=long is None)
        self._emit_settled(work, rows, numbers, low_us, before, after, long)
        if events is not None and self.slices.any:
            # This is last, as it may delete the buckets of which windows were made.
            step, bucket_rows = work.progress.step, (rows, numbers, low_us, moved, after.watermark_us)
            self.slices.extend(kv, calculations, *bucket_rows, step)

    def _emit_settled(
        self,
        work: Work,
        rows: pa.Table,
        numbers: tuple[IntArray, int] | None,
        low_us: int,
        before: Reached,
        after: Reached,
        long: Long | None,
    ) -> None:
        """Emit rows that the watermark has settled. rows: all from `low_us` on; numbers: of the key of each, if known."""
        times = rows.column(TIME).to_numpy()
        settled = (times >= before.settled_us) & (
            (times < after.settled_us) | (after.settled_us >= END_OF_TIME_US)
        )
        ended = self.remembered.ended(work.kv, before, after)
        if ended is not None:
            ended = conformed(ended, rows.schema)
        elif not settled.any():
            return
        if not self.remembered.anything:
            codes, size = self._numbers(rows, gaps=True) if numbers is None else numbers
            at = None if long is None else np.flatnonzero((times >= low_us) & (times < after.watermark_us))
            self._emit(work, rows, codes, size, None, before, after, long, at)
            return
        held = self.remembered.near(work.kv, rows, settled, settled, ended, low_us, after)
        history = conformed(held.rows, rows.schema)
        self._emit(work, history, held.codes, held.keys, held, before, after, long)

    def _numbers(self, rows: pa.Table, *, gaps: bool) -> tuple[IntArray, int]:
        """Return a number of the key of each row, below the second."""
        return key_numbers([rows.column(b) for b in self.definition.by], len(rows), gaps=gaps)

    def _emit(
        self,
        work: Work,
        rows: pa.Table,
        codes: IntArray,
        keys: int,
        held: Held | None,
        before: Reached,
        after: Reached,
        long: Long | None,
        at: IntArray | None = None,
    ) -> None:
        """Emit due rows, and save the history that later rows need. at: the messages that windows may hold, None
        for all."""
        lines = Lines(rows, codes, keys, rows.column(TIME).to_numpy(), self.definition.ttl_us, at)
        calculations = self._calculations(work.schema)
        middles, right_us = dict[Frame, Middle](), START_OF_TIME_US
        if long is not None and len(lines):
            middles = self._middles(work, long, Keys(rows, codes, keys, self.definition.by))
            right_us = long.right_us
        due_rows = DueRows(lines, rows, calculations, self._waits, middles, right_us)
        due = due_rows.due(before, after)
        ran, sums = due_rows.run(due, None if held is None else held.reached)
        if held is not None and after.settled_us < END_OF_TIME_US:
            self.remembered.put(work.kv, held, lines, sums, after)
        if len(due):
            self._say(work, due_rows, due_rows.whole(due, work), ran)

    def _middles(self, work: Work, long: Long, keys: Keys) -> dict[Frame, Middle]:
        """Return the bucketed middles of the windows of long frames."""
        middles, filed = dict[Frame, Middle](), self.filed(work.schema)
        for part, calculation in self._calculations(work.schema):
            if part.frame in long.begins:
                read = {*self.definition.by, *columns_of(calculation), TIME}
                between, schema = (long.lefts[part.frame], long.begins[part.frame]), _only(filed, read)
                left = self.events(work.kv).read(work.kv, *between, columns=read)
                left = None if left is None else conformed(left, schema)
                middles[part.frame] = self.slices.middle(work.kv, long, part.frame, left, calculation, keys)
        return middles

    def _say(
        self, work: Work, due_rows: DueRows, places: IntArray, ran: tuple[IntArray, Values] | None
    ) -> None:
        """Emit the rows of messages at these places."""
        if len(places) == 0:
            return
        values = due_rows.values(places, ran)
        kept = due_rows.bury(work, places, values.broken, list(self.definition.agg))
        kept = kept[due_rows.in_order(places[kept])]
        fields, at = self.fields(work.schema), pa.array(kept)
        anchors = due_rows.at(places[kept], [f.name for f in fields if f.name not in self.definition.agg])
        columns = [
            values.columns[f.name].take(at) if f.name in self.definition.agg else anchors.column(f.name)
            for f in fields
        ]
        if len(kept):
            work.result.panes.append(labelled(pa.table(columns, schema=pa.schema(fields)), ON_TIME))

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        from windrow.operators.over.views import OverView

        return OverView(self, stores, watermark_us)

    # -- columns ----------------------------------------------------------------------------------------------------

    def _calculations(self, schema: pa.Schema) -> list[tuple[Part, Calculation]]:
        if self._calculated is None or not self._calculated[0].equals(schema):
            kept = pa.schema([schema.field(n) for n in kept_columns(self.definition, schema)])
            self._calculated = (schema, [(part, Calculation(part, kept)) for part in self._parts])
        return self._calculated[1]

    def in_types(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return kept messages in the current types of the input's columns."""
        return conformed(rows, self.filed(schema))

    def filed(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of kept messages."""
        kept = [schema.field(n) for n in kept_columns(self.definition, schema)]
        positions = [pa.field(n, t) for n, t in zip(POSITION_COLUMNS, POSITION_TYPES, strict=True)]
        return pa.schema([*kept, *positions, pa.field(TIME, pa.int64())])


def _only(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in names])
