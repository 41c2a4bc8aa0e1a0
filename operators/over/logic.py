"""Windows around messages: two pure steps on a store.

Column families: `events`, the messages that frames may still hold, by event time (`stores/events.py`); where messages are
counted, `tails`, the last ones of each key, and `sums`, the accumulators of running aggregations (`keyed.py`).

A message is settled when the watermark is past it and past the frames of time behind it. What the watermark makes settled is
told, unless it waits for messages behind it. What was told before follows from the watermark before, so nothing is marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.time import END_OF_TIME_US
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.aggregations.needs import expressions_of
from windrow.operators.one_input import OneInputLogic, Work
from windrow.operators.over.definition import OverDefinition, reach_rows, reach_us, waits_rows, waits_us
from windrow.operators.over.lines import Lines
from windrow.operators.over.needs import OverNeeds, conformed, kept_columns
from windrow.operators.over.remembered import Held, Remembered
from windrow.operators.over.telling import Reached, Sums, Telling
from windrow.operators.over.values import Part, Values, parts_of
from windrow.operators.steps.columns import ON_TIME, POSITION_COLUMNS
from windrow.operators.steps.filed_rows import POSITION_TYPES, with_positions
from windrow.operators.steps.groups import Groups
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import limit
from windrow.operators.steps.told import labelled
from windrow.operators.view import View
from windrow.stores.events import TIME, Events
from windrow.stores.kv import KV

#: A frame of time is so many stretches long, about; and how long one is at least, and at most.
_STRETCHES, _SHORTEST_US, _LONGEST_US = 8, 100_000, 3_600_000_000


class Overs(OneInputLogic):
    """One definition on one store. Holds no state of its own: everything is in the store that it is given."""

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
        width_us = min(max(span_us // _STRETCHES, _SHORTEST_US), _LONGEST_US)
        self.events = Events(f"{definition.name}.events", width_us)
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
        return (self.aux_cf, self.events.cf, self.remembered.tails.cf, self.remembered.sums.cf)

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        definition = self.definition
        told = definition.told_columns
        names = schema.names if told is None else told[: len(told) - len(definition.agg)]
        made = {f.name: f for _, calculation in self._calculations(schema) for f in calculation.output}
        return [*(schema.field(n) for n in names), *(made[alias] for alias in definition.agg)]

    def check_schemas(self, inputs: Mapping[str, pa.Schema]) -> None:
        for schema in inputs.values():
            self.needs.check_names(schema.names)

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        """What was told stays told, and what it was told of may be forgotten: what is behind stays too late."""
        return None

    # -- steps ------------------------------------------------------------------------------------------------------

    def take(self, work: Work, rows: Slice) -> Slice:
        for aggregation in self.definition.agg.values():
            for expression in expressions_of(aggregation):
                expression.evaluate(rows.table)  # a message on which it raises does not count
        table = with_positions(rows.table, work.progress.step)
        table = table.select([*kept_columns(self.definition, work.schema), *POSITION_COLUMNS])
        self.events.add(work.kv, table.append_column(TIME, pa.array(rows.times)), work.progress.step)
        return rows

    def pass_time(self, work: Work, watermark_us: int) -> None:
        before = self.reached(work.progress.watermark_us)
        if work.progress.schema is None or watermark_us <= before.watermark_us:
            return
        after = self.reached(watermark_us)
        self._advance(work, before, after)
        ends = after.settled_us >= END_OF_TIME_US
        self.events.forget(work.kv, END_OF_TIME_US if ends else limit(after.settled_us, self.reach_us))
        self.remembered.forget(work.kv, after)

    def reached(self, watermark_us: int) -> Reached:
        """How far event time has come under that watermark."""
        if watermark_us >= END_OF_TIME_US:
            return Reached(watermark_us, END_OF_TIME_US)
        return Reached(watermark_us, limit(watermark_us, self._waits_us))

    def _advance(self, work: Work, before: Reached, after: Reached) -> None:
        kv, low_us = work.kv, limit(before.settled_us, self.reach_us)
        events = None
        if self.events.any_between(kv, before.settled_us, after.settled_us):
            events = self.events.read(kv, low_us, after.watermark_us, tidy=True)
        schema = self.filed(work.schema)
        rows = schema.empty_table() if events is None else conformed(events, schema)
        times = rows.column(TIME).to_numpy()
        settled = (times >= before.settled_us) & (
            (times < after.settled_us) | (after.settled_us >= END_OF_TIME_US)
        )
        ended = self.remembered.ended(kv, before, after)
        if ended is not None:
            ended = conformed(ended, schema)
        elif not settled.any():
            return
        if not self.remembered.anything:
            groups = Groups([rows.column(b) for b in self.definition.by], len(rows))
            self._tell(work, rows, groups.codes, groups.size, None, before, after)
            return
        held = self.remembered.near(kv, rows, settled, ended, low_us, after)
        self._tell(work, conformed(held.rows, schema), held.codes, held.keys, held, before, after)

    def _tell(
        self,
        work: Work,
        rows: pa.Table,
        codes: IntArray,
        keys: int,
        held: Held | None,
        before: Reached,
        after: Reached,
    ) -> None:
        """Tell what is due of some messages, and remember what is needed of them."""
        lines = Lines(rows, codes, keys, rows.column(TIME).to_numpy(), self.definition.ttl_us)
        calculations = self._calculations(work.schema)
        telling = Telling(lines, rows, calculations, self._waits)
        due = telling.due(before, after)
        ran: tuple[IntArray, Values] | None = None
        sums: Sums | None = None
        for part, calculation in calculations:
            if part.running and len(due):
                former = None if held is None or held.sums is None else held.sums
                known = None if former is None else Sums(former.rows, former.codes)
                values, sums = telling.run(calculation, due, known)
                ran = (due, values)
        if held is not None and after.settled_us < END_OF_TIME_US:
            self.remembered.put(work.kv, held, lines, sums, after)
        if len(due):
            self._say(work, telling, telling.whole(due, work), ran)

    def _say(
        self, work: Work, telling: Telling, places: IntArray, ran: tuple[IntArray, Values] | None
    ) -> None:
        """The rows of messages at these places."""
        if len(places) == 0:
            return
        values = telling.values(places, ran)
        kept = telling.bury(work, places, values.broken, list(self.definition.agg))
        kept = kept[telling.in_order(places[kept])]
        anchors, at = telling.at(places[kept]), pa.array(kept)
        fields = self.fields(work.schema)
        columns = [
            values.columns[f.name].take(at) if f.name in self.definition.agg else anchors.column(f.name)
            for f in fields
        ]
        if len(kept):
            work.result.panes.append(labelled(pa.table(columns, schema=pa.schema(fields)), ON_TIME))

    def view(self, stores: Sequence[KV], watermark_us: int, prefix: str = "") -> View:
        from windrow.operators.over.views import OverView

        return OverView(self, stores, watermark_us, prefix)

    # -- columns ----------------------------------------------------------------------------------------------------

    def _calculations(self, schema: pa.Schema) -> list[tuple[Part, Calculation]]:
        if self._calculated is None or not self._calculated[0].equals(schema):
            kept = pa.schema([schema.field(n) for n in kept_columns(self.definition, schema)])
            self._calculated = (schema, [(part, Calculation(part, kept)) for part in self._parts])
        return self._calculated[1]

    def in_types(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Kept messages in the types that the columns of the input have by now."""
        return conformed(rows, self.filed(schema))

    def filed(self, schema: pa.Schema) -> pa.Schema:
        """The columns of messages that are kept."""
        kept = [schema.field(n) for n in kept_columns(self.definition, schema)]
        positions = [pa.field(n, t) for n, t in zip(POSITION_COLUMNS, POSITION_TYPES, strict=True)]
        return pa.schema([*kept, *positions, pa.field(TIME, pa.int64())])
