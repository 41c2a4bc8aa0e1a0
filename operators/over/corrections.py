"""Early and updated rows of OVER windows: the rows emitted for a message are marked, and corrected.

A message is kept as long as a late one may change a row that holds it; the history of keys (`keyed_history.py`) covers older
ones. A step looks at the keys of new messages, and at rows whose windows have changed since they were emitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgpack
import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import EveryBatch, Never, Trigger
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.one_input import Work
from windrow.operators.over import frame_kernels
from windrow.operators.over.definition import OverDefinition
from windrow.operators.over.due_rows import DueRows, Reached
from windrow.operators.over.emitted_marks import ID, STEP_BITS, Marks, MarkStore
from windrow.operators.over.frame_values import Values
from windrow.operators.over.keyed_history import Held
from windrow.operators.over.logic import Overs
from windrow.operators.over.partitions import Lines
from windrow.operators.over.required_columns import conformed
from windrow.operators.over.updates import emitted_rows, judged, ticks
from windrow.operators.steps.columns import EARLY, LATE, ON_TIME
from windrow.operators.steps.groups import Groups
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.step import limit
from windrow.stores.event_log import TIME
from windrow.stores.kv import KV, Batch

#: Key of the auxiliary family: by timing, the event times with changes that wait for the end of a period.
WAITING_KEY = b"\x00waiting"
#: Looks of one step, in the order in which they are made.
_LOOKS = (LATE, EARLY, ON_TIME)


class Span(NamedTuple):
    """Event times, both inclusive."""

    low_us: int
    high_us: int


@dataclass(frozen=True)
class Look:
    """Rows of one timing that a step may emit, and the range of messages around which they are.

    low_us, high_us: of their times, `high_us` is exclusive. named: of messages and their times, those that name the keys
    before_us, after_us: the watermark before the step and in it. fires: False if only closing rows are emitted
    """

    timing: str
    low_us: int
    high_us: int
    named: Callable[[pa.Table, IntArray], BoolArray]
    before_us: int
    after_us: int
    fires: bool = True


@dataclass(frozen=True)
class Levels:
    """Progress of event time before and after a step: on time, and less the allowed lateness."""

    before: Reached
    after: Reached
    open: Reached
    closed: Reached


class CorrectedOvers(Overs):
    """As `Overs`, with early or updated rows."""

    definition: OverDefinition

    def __init__(self, definition: OverDefinition) -> None:
        super().__init__(definition)
        self.marks = MarkStore(f"{definition.name}.emitted", self._width_us)
        emit = definition.emit
        self._triggers: dict[str, Trigger] = {EARLY: emit.early}
        if definition.late_us:
            self._triggers[LATE] = emit.late
        #: Messages that wait for others are at most so long before the settled time.
        self._pending_us = self._waits * (definition.ttl_us or 0)

    def cfs(self) -> tuple[str, ...]:
        return (*super().cfs(), self.marks.cf)

    def filed(self, schema: pa.Schema) -> pa.Schema:
        return super().filed(schema).append(pa.field(ID, pa.int64()))

    def marked(self, rows: pa.Table, step: int) -> pa.Table:
        return rows.append_column(ID, pa.array((step << STEP_BITS) + np.arange(len(rows), dtype=np.int64)))

    # -- steps ------------------------------------------------------------------------------------------------------

    def accept(self, work: Work, rows: Slice) -> Slice:
        rows = super().accept(work, rows)
        watermark_us, step = work.progress.watermark_us, work.progress.step
        waiting = _waiting(work.kv, self.aux_cf)
        for timing, trigger in sorted(self._triggers.items(), key=lambda one: _LOOKS.index(one[0])):
            # A message past the watermark changes no row on time, unless frames count following messages.
            times = rows.times if timing == EARLY or self._waits else rows.times[rows.times < watermark_us]
            if isinstance(trigger, Never) or not len(times):
                continue
            span = Span(int(times.min()), int(times.max()))
            if isinstance(trigger, EveryBatch):
                look = self._look_near(
                    timing, span, watermark_us, watermark_us, lambda t, _: _of_step(t, step)
                )
                self._emit_updates(work, look)
            else:
                waiting[timing] = _wider(waiting.get(timing), span)
        _wait(work.kv, self.aux_cf, waiting)
        return rows

    def pass_time(self, work: Work, watermark_us: int) -> None:
        progress = work.progress
        if progress.schema is None:
            return
        before_us, waiting = progress.watermark_us, _waiting(work.kv, self.aux_cf)
        moves, ends = watermark_us > before_us, watermark_us >= END_OF_TIME_US
        for timing in (LATE, EARLY):
            span, trigger = waiting.get(timing), self._triggers.get(timing)
            if span is None:
                continue
            ended = ticks(trigger, progress.now_us, work.now_us)
            closes = timing == LATE and moves and self._may_close(span, watermark_us)
            if ended or closes:
                look = self._look_near(timing, span, before_us, watermark_us, _within(span), fires=ended)
                self._emit_updates(work, look)
            if ended or ends:
                del waiting[timing]
        _wait(work.kv, self.aux_cf, waiting)
        if not moves:
            return
        self._settle(work, before_us, watermark_us)
        closed = self.closed(watermark_us)
        self.events(work.kv).forget(work.kv, self.floor(watermark_us))
        self.marks.forget(work.kv, END_OF_TIME_US if ends else limit(closed.settled_us, self._pending_us))
        self.remembered.forget(work.kv, closed)

    def _look_near(
        self,
        timing: str,
        span: Span,
        before_us: int,
        after_us: int,
        named: Callable[[pa.Table, IntArray], BoolArray],
        *,
        fires: bool = True,
    ) -> Look:
        """Return a look at the messages whose windows may hold those of a span."""
        low_us, high_us = START_OF_TIME_US, END_OF_TIME_US
        if not self.remembered.anything:
            low_us = limit(span.low_us, self._waits_us)
            high_us = span.high_us + self.reach_us + 1
        return Look(timing, low_us, high_us, named, before_us, after_us, fires)

    def _may_close(self, span: Span, watermark_us: int) -> bool:
        return self.closed(watermark_us).settled_us > limit(span.low_us, self._waits_us + self._pending_us)

    def _settle(self, work: Work, before_us: int, after_us: int) -> None:
        """Emit the rows that the watermark makes due, and add messages that can change no more to the history."""
        at = self._levels(before_us, after_us)
        if not self.remembered.anything:
            low_us, high_us = at.before.settled_us, at.after.settled_us
            look = Look(
                ON_TIME, low_us, high_us, lambda _, t: (t >= low_us) & (t < high_us), before_us, after_us
            )
            if self.events(work.kv).any_between(work.kv, low_us, high_us):
                self._emit_updates(work, look)
            return

        def named(_: pa.Table, times: IntArray) -> BoolArray:
            is_named = np.zeros(len(times), dtype=bool)
            for low, high in ((at.before, at.after), (at.open, at.closed)):
                is_named |= (times >= low.settled_us) & (times < high.settled_us)
                if self._waits:  # ended partitions
                    first, last = self.remembered.quiet_since(low), self.remembered.quiet_since(high)
                    is_named |= (times >= first) & (times < last)
            return is_named

        self._emit_updates(work, Look(ON_TIME, START_OF_TIME_US, END_OF_TIME_US, named, before_us, after_us))

    def _levels(self, before_us: int, after_us: int) -> Levels:
        before, after = self.reached(before_us), self.reached(after_us)
        return Levels(before, after, self.closed(before_us), self.closed(after_us))

    # -- one look ---------------------------------------------------------------------------------------------------

    def _emit_updates(self, work: Work, look: Look) -> None:
        at = self._levels(look.before_us, look.after_us)
        held = self._held(work, look, at)
        if held is None:
            return
        lines = Lines(
            held.rows, held.codes, held.keys, held.rows.column(TIME).to_numpy(), self.definition.ttl_us
        )
        due_rows = DueRows(lines, held.rows, self._calculations(work.schema), self._waits)
        places = np.flatnonzero(~due_rows.is_due(at.open))
        ran, sums = due_rows.run(places, held.reached, due_rows.is_due(at.closed)[places])
        remembers = look.timing == ON_TIME and self.remembered.anything
        if remembers and at.open != at.closed and at.closed.settled_us < END_OF_TIME_US:
            self.remembered.put(work.kv, held, lines, sums, at.closed)
        inside = (lines.times[places] >= look.low_us) & (
            (lines.times[places] < look.high_us) | (look.high_us >= END_OF_TIME_US)
        )
        self._say_again(work, look, due_rows, places[inside], ran, at)

    def _held(self, work: Work, look: Look, at: Levels) -> Held | None:
        """Return the messages of the keys that the step looks at."""
        kv, floor_us = work.kv, limit(at.open.settled_us, self.reach_us)
        schema, ended = self.filed(work.schema), None
        if self.remembered.anything:
            events = self.events(kv).read(kv, floor_us, END_OF_TIME_US, tidy=True)
            if look.timing == ON_TIME:
                levels = ((at.before, at.after), (at.open, at.closed))
                parts = [self.remembered.ended(kv, low, high) for low, high in levels]
                tables = [conformed(rows, schema) for rows in parts if rows is not None]
                ended = concat(tables) if tables else None
        else:
            low_us = max(limit(look.low_us, self.reach_us), floor_us)
            end = look.high_us >= END_OF_TIME_US
            high_us = END_OF_TIME_US if end else look.high_us + self._waits_us
            events = self.events(kv).read(kv, low_us, high_us, tidy=True)
        rows = schema.empty_table() if events is None else conformed(events, schema)
        times = rows.column(TIME).to_numpy()
        named = look.named(rows, times)
        if ended is None and not named.any():
            return None
        if not self.remembered.anything:
            groups = Groups([rows.column(b) for b in self.definition.by], len(rows))
            wanted = np.zeros(groups.size, dtype=bool)
            wanted[groups.codes[named]] = True
            in_named = wanted[groups.codes]
            rows = rows if in_named.all() else rows.filter(pa.array(in_named))
            return Held(rows, groups.codes[in_named], groups.size, None, None)
        closing = times < at.closed.settled_us
        found_ = self.remembered.near(kv, rows, named, closing, ended, floor_us, at.closed)
        return Held(conformed(found_.rows, schema), found_.codes, found_.keys, found_.tails, found_.sums)

    def _say_again(
        self,
        work: Work,
        look: Look,
        due_rows: DueRows,
        places: IntArray,
        ran: tuple[IntArray, Values] | None,
        at: Levels,
    ) -> None:
        """Emit the rows of the messages at these places that are due or changed, and save their marks."""
        if not len(places):
            return
        fields = [f for f in self.fields(work.schema) if f.name in self.definition.agg]
        ids, times = due_rows.numbers(ID)[places], due_rows.lines.times[places]
        marks = self.marks.of(work.kv, ids, *_between(times), fields)
        late = marks.decided | due_rows.is_due(at.before)[places]
        due, closed = due_rows.is_due(at.after)[places], due_rows.is_due(at.closed)[places]
        if look.timing == ON_TIME:
            of_timing = ~late & due
        else:
            of_timing = late if look.timing == LATE else ~late & ~due
            of_timing &= self._newest(due_rows, places) >> STEP_BITS > marks.at
            if not look.fires:
                of_timing &= closed
        chosen = np.flatnonzero(of_timing)
        if len(chosen):
            values = self._emit_due(
                work, look, due_rows, places[chosen], ran, marks.take(chosen), closed[chosen]
            )
            number = (work.progress.step << 2) + _LOOKS.index(look.timing)
            self.marks.put(work.kv, ids[chosen], times[chosen], values, number)

    def _newest(self, due_rows: DueRows, places: IntArray) -> IntArray:
        """Return the largest number of a message in, or between, each message and its windows."""
        frames = list(self.definition.frames.values())
        bounds = due_rows.lines.hull(frames, places)
        numbers = (due_rows.numbers(ID),)
        [newest] = frame_kernels.halves(numbers, lambda a, b: (np.maximum(a[0], b[0]),), (-1,), bounds)
        return newest

    def _emit_due(
        self,
        work: Work,
        look: Look,
        due_rows: DueRows,
        places: IntArray,
        ran: tuple[IntArray, Values] | None,
        marks: Marks,
        closed: BoolArray,
    ) -> Marks:
        """Emit the rows of messages at these places that are due. Returns their marks from now on."""
        emit, decides = self.definition.emit, look.timing != EARLY
        whole, size = due_rows.is_whole(places), len(places)
        if decides and (cut := int((~whole & ~marks.decided).sum())):
            work.result.counts["incomplete"] = work.result.counts.get("incomplete", 0) + cut
        values = due_rows.values(places, ran)
        broken = [b for b in values.broken if whole[b.group]]
        fails = np.zeros(size, dtype=bool)
        fails[[b.group for b in broken]] = True
        if decides:
            failures = [b for b in broken if not marks.buried[b.group]]
            due_rows.bury(work, places, failures, list(self.definition.agg))
        emits, back, after = judged(
            emit, look.timing, work.progress.step, whole & ~fails, fails, values.columns, marks
        )
        rank = np.empty(size, dtype=np.int64)
        rank[due_rows.in_order(places)] = np.arange(size)
        emitted = emitted_rows(
            self.fields(work.schema),
            look.timing,
            lambda some, names: due_rows.at(places[some], names),
            rank,
            values.columns,
            marks,
            emits,
            back,
            closed,
        )
        if emitted is not None:
            work.result.panes.append(emitted)
        return after


# -- period triggers ----------------------------------------------------------------------------------------------


def _waiting(kv: KV, cf: str) -> dict[str, Span]:
    value = kv.get(cf, WAITING_KEY)
    return {} if value is None else {timing: Span(*span) for timing, span in msgpack.unpackb(value).items()}


def _wait(kv: KV, cf: str, waiting: dict[str, Span]) -> None:
    batch = Batch()
    if waiting:
        batch.put(
            cf, WAITING_KEY, msgpack.packb({timing: list(span) for timing, span in sorted(waiting.items())})
        )
    elif kv.get(cf, WAITING_KEY) is not None:
        batch.delete_many(cf, [WAITING_KEY])
    if len(batch):
        kv.write(batch)


def _wider(span: Span | None, other: Span) -> Span:
    if span is None:
        return other
    return Span(min(span.low_us, other.low_us), max(span.high_us, other.high_us))


# -- small ------------------------------------------------------------------------------------------------------------


def _of_step(rows: pa.Table, step: int) -> BoolArray:
    of_step: BoolArray = rows.column(ID).to_numpy() >> STEP_BITS == step
    return of_step


def _within(span: Span) -> Callable[[pa.Table, IntArray], BoolArray]:
    return lambda _, times: (times >= span.low_us) & (times <= span.high_us)


def _between(times: IntArray) -> tuple[int, int]:
    """Return a range that holds these times."""
    return int(times.min()), int(times.max()) + 1
