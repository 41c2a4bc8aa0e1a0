"""OVER windows in the order of arrival, `order="position"`: each row is emitted for good in the step that completes its frames.

Column families: `tails`, the last messages of each key, some of which may wait for others, and `sums`, as in event-time order
(`key_state.py`). A partition ends when the watermark is more than the ttl past its latest message, and past the watermark at
the arrival of that message: nothing is too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.one_input import Work
from windrow.operators.over.definition import OverDefinition, reach_rows
from windrow.operators.over.due_rows import DueRows, Reached, Sums
from windrow.operators.over.emitted_marks import ID, STEP_BITS
from windrow.operators.over.keyed_history import Held, Remembered
from windrow.operators.over.logic import Overs
from windrow.operators.over.partitions import Lines
from windrow.operators.over.required_columns import conformed
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.step import limit
from windrow.operators.view import View
from windrow.stores.event_log import TIME
from windrow.stores.kv import KV
from windrow.stores.window_state import START

#: The latest event time of a partition, or the later watermark at which that message came.
LATEST = "__latest"


class ArrivalOvers(Overs):
    """As `Overs`, with frames that count messages in the order of arrival."""

    definition: OverDefinition

    def __init__(self, definition: OverDefinition) -> None:
        super().__init__(definition)
        self._tail = max(reach_rows(definition.agg) + self._waits, 1)
        self.remembered = Remembered(
            definition.name,
            definition.by,
            definition.ttl_us,
            tail=self._tail,
            waits=self._waits,
            runs=any(part.running for part in self._parts),
        )

    def cfs(self) -> tuple[str, ...]:
        return (self.aux_cf, self.remembered.tails.cf, self.remembered.sums.cf)

    def filed(self, schema: pa.Schema) -> pa.Schema:
        return super().filed(schema).append(pa.field(ID, pa.int64())).append(pa.field(LATEST, pa.int64()))

    # -- steps ------------------------------------------------------------------------------------------------------

    def accept(self, work: Work, rows: Slice) -> Slice:
        self.check(rows)
        numbers = (work.progress.step << STEP_BITS) + np.arange(len(rows), dtype=np.int64)
        table = self.kept_rows(work, rows).append_column(ID, pa.array(numbers))
        at_us = work.progress.watermark_us
        new = table.append_column(LATEST, pa.array(np.maximum(rows.times, at_us)))
        every = np.ones(len(new), dtype=bool)
        at = Reached(at_us, at_us)
        held = self.remembered.near(work.kv, new, every, every, None, END_OF_TIME_US, at, LATEST)
        held, before = self._going_on(work, held, len(new), at_us)
        lines = Lines(held.rows, held.codes, held.keys, held.rows.column(ID).to_numpy(), None)
        places = np.arange(len(lines))
        behind = lines.ends - 1 - places
        of_before = np.bincount(held.codes[:before], minlength=held.keys)  # first in their partitions
        emitted = lines.begins + of_before[lines.codes] - 1 - places >= self._waits
        due = np.flatnonzero((behind >= self._waits) & ~emitted)
        sums = self._emit_due(work, held, lines, due)
        self._remember(work.kv, held, lines, sums, at)
        return rows

    def pass_time(self, work: Work, watermark_us: int) -> None:
        if work.progress.schema is None or watermark_us <= work.progress.watermark_us:
            return
        before, after = (Reached(us, us) for us in (work.progress.watermark_us, watermark_us))
        low_us, high_us = self.remembered.quiet_since(before), self.remembered.quiet_since(after)
        if self._waits and low_us < high_us:
            self._end_lines(work, low_us, high_us, after)
        self.remembered.forget(work.kv, after)

    def _end_lines(self, work: Work, low_us: int, high_us: int, at: Reached) -> None:
        """Emit rows of messages that waited for others in partitions whose latest time is in this range: no more will come."""
        schema = self.filed(work.schema)
        ended = self.remembered.tails.last_between(work.kv, low_us, high_us)
        if ended is None:
            return
        none, empty = np.zeros(0, dtype=bool), schema.empty_table()
        held = self.remembered.near(work.kv, empty, none, none, conformed(ended, schema), END_OF_TIME_US, at)
        held = replace(held, rows=conformed(held.rows, schema))
        lines = Lines(held.rows, held.codes, held.keys, held.rows.column(ID).to_numpy(), None)
        latest = held.rows.column(LATEST).to_numpy()[lines.order]
        waiting = lines.ends - 1 - np.arange(len(lines)) < self._waits
        self._emit_due(work, held, lines, np.flatnonzero(waiting & (latest >= low_us) & (latest < high_us)))

    def _going_on(self, work: Work, held: Held, new: int, watermark_us: int) -> tuple[Held, int]:
        """Return the history without ended partitions, with the latest time of each; and the number of earlier rows."""
        rows = conformed(held.rows, self.filed(work.schema))
        latest, codes, stored = rows.column(LATEST).to_numpy(), held.codes, len(rows) - new
        former = np.full(held.keys, START_OF_TIME_US)
        np.maximum.at(former, codes[:stored], latest[:stored])
        ttl_us = self.definition.ttl_us
        over = former < (START_OF_TIME_US if ttl_us is None else limit(watermark_us, ttl_us))
        kept: BoolArray = np.ones(len(rows), dtype=bool)
        kept[:stored] = ~over[codes[:stored]]
        rows, codes = rows.filter(pa.array(kept)), codes[kept]
        newest = np.full(held.keys, START_OF_TIME_US)
        np.maximum.at(newest, codes, latest[kept])
        at = rows.column_names.index(LATEST)
        rows = rows.set_column(at, LATEST, pa.array(newest[codes]))
        sums = held.sums
        if sums is not None and len(sums.rows):
            same = ~over[sums.codes]
            sums = replace(sums, rows=sums.rows.filter(pa.array(same)), codes=sums.codes[same])
        return replace(held, rows=rows, codes=codes, sums=sums), len(rows) - new

    def _emit_due(self, work: Work, held: Held, lines: Lines, due: IntArray) -> Sums | None:
        """Emit the rows of the messages at these places. Returns the accumulators of running aggregations."""
        if not len(due):
            return None
        calculations = self._calculations(work.schema)
        times = held.rows.column(TIME).to_numpy()[lines.order]
        due_rows = DueRows(lines, held.rows, calculations, self._waits, times=times)
        ran, sums = due_rows.run(due, held.reached)
        self._say(work, due_rows, due_rows.whole(due, work), ran)
        return sums

    def _remember(self, kv: KV, held: Held, lines: Lines, sums: Sums | None, at: Reached) -> None:
        """Save the last messages of each key, and its accumulators."""
        tails = self.remembered.tails
        first = np.searchsorted(lines.codes, np.arange(held.keys))
        last = lines.order[lines.ends[first] - 1]
        stretches = tails.stretch(held.rows.column(LATEST).to_numpy()[last])
        lasts = tails.lasting(stretches, at.settled_us)
        newest = lines.ends - np.arange(len(lines)) <= self._tail
        chosen = np.flatnonzero(newest & lasts[lines.codes])
        fresh = held.rows.take(pa.array(lines.order[chosen]))
        fresh = fresh.append_column(START, pa.array(stretches[lines.codes[chosen]]))
        assert held.tails is not None
        tails.put(kv, held.tails.found, [held.tails.same_pages, fresh])
        if held.sums is not None:
            rows = self.remembered.sum_rows(held, sums, last, stretches, lasts)
            self.remembered.sums.put(kv, held.sums.found, rows)

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        return View(self, stores, watermark_us)
