"""Early and updated rows of OVER windows around anchors: each anchor is kept until nothing can change its window.

Column families as of `AnchoredOvers`: `waiting` holds all anchors, by the last moment of their windows, as long as a late
message can be in them, each with a number, `__id`; `emitted` holds their marks (`emitted_marks.py`), by the same time. Changes
that wait for the end of a period are noted as buckets of event time, under `waiting` in the auxiliary family:
msgpack {timing: [bucket numbers]}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgpack
import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import EveryBatch, EveryPeriod
from windrow.core.policy import UNBOUNDED_US
from windrow.core.time import END_OF_TIME_US
from windrow.operators.one_input import Work
from windrow.operators.over.anchors.logic import AnchoredOvers
from windrow.operators.over.anchors.pending_anchors import AT
from windrow.operators.over.anchors.spans import high_of, low_of
from windrow.operators.over.definition import OverDefinition, output_delay_us
from windrow.operators.over.due_rows import buried
from windrow.operators.over.emitted_marks import ID, STEP_BITS, MarkStore
from windrow.operators.over.partitions import Lines, ordered
from windrow.operators.over.updates import emitted_rows, judged, ticks
from windrow.operators.steps.columns import EARLY, END, LATE, ON_TIME, START
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.output_rows import signed
from windrow.operators.steps.step import limit, passed
from windrow.stores.event_log import TIME
from windrow.stores.kv import KV, Batch

#: Buckets with changes that are not emitted yet, because a period has not ended.
_WAITING = b"\x00waiting"


class CorrectedAnchors(AnchoredOvers):
    """As `AnchoredOvers`, with early or updated rows."""

    def __init__(self, definition: OverDefinition) -> None:
        super().__init__(definition)
        self.marks = MarkStore(f"{definition.name}.emitted", self.pending.width_us)
        self._triggers = {LATE: definition.emit.late, EARLY: definition.emit.early}

    def cfs(self) -> tuple[str, ...]:
        return (*super().cfs(), self.marks.cf)

    def messages(self, panes: Sequence[pa.Table]) -> pa.Table:
        return signed(panes)

    def closed_us(self, watermark_us: int) -> int:
        return passed(watermark_us, self.definition.late_us)

    def floor_us(self, kv: KV, watermark_us: int) -> int:
        """Return the floor as of `AnchoredOvers`, or a little before, over all kept anchors: those are many."""
        back_us, ahead_us = self.definition.back_us, output_delay_us(self.definition)
        if back_us is None or ahead_us >= UNBOUNDED_US:
            return super().floor_us(kv, watermark_us)
        return limit(watermark_us, max(back_us + ahead_us, self.definition.queried_us))

    def file_anchors(self, work: Work, anchors: pa.Table) -> None:
        step, times = work.progress.step, anchors.column(AT).to_numpy()
        over_us = np.maximum(times, high_of(self.span, anchors.column(END).to_numpy()))
        numbers = (step << STEP_BITS) + np.arange(len(anchors), dtype=np.int64)
        anchors = anchors.append_column(TIME, pa.array(over_us)).append_column(ID, pa.array(numbers))
        self.pending.wait(work.kv, anchors, step)

    # -- when -------------------------------------------------------------------------------------------------------

    def emit_immediately(self, work: Work, came: Mapping[int, Slice]) -> None:
        """Emit rows of the anchors of the step, and of those whose windows hold its messages."""
        moments = [rows.times for rows in came.values() if len(rows)]
        if not moments:
            return
        times = np.concatenate(moments)
        self._let_wait(work, times)
        now = any(isinstance(trigger, EveryBatch) for trigger in self._triggers.values())
        affected = self._near(work, times, times) if now else None
        if affected is None or not len(affected):
            return
        anchors = self.in_marker_types(work, affected)
        near = anchors.column(ID).to_numpy() >> STEP_BITS == work.progress.step
        if 0 in came and len(came[0]):
            near |= self._hold(anchors, came[0])
        is_over = anchors.column(TIME).to_numpy() < work.progress.watermark_us
        work.dead.input = self.definition.inputs[-1].name
        for timing, of_timing in ((LATE, is_over), (EARLY, ~is_over)):
            chosen = near & of_timing
            if isinstance(self._triggers[timing], EveryBatch) and chosen.any():
                self._emit_updates(work, timing, anchors.filter(pa.array(chosen)), work.progress.watermark_us)

    def _near(self, work: Work, low_us: IntArray, high_us: IntArray) -> pa.Table | None:
        """Return the anchors of the times from `low_us` to `high_us`, of such ranges, and those whose windows may hold such
        times; and some others."""
        reach_us = self._reach_us
        if reach_us is None:
            return self.pending.waiting.read(work.kv, int(low_us.min()), END_OF_TIME_US)
        return self.pending.waiting.read_near(work.kv, low_us, high_us + reach_us)

    @property
    def _reach_us(self) -> int | None:
        """Return how long after a moment a window that holds it may end; None: any time."""
        back_us, ahead_us = self.definition.back_us, output_delay_us(self.definition)
        return None if back_us is None or ahead_us >= UNBOUNDED_US else back_us + ahead_us

    def _hold(self, anchors: pa.Table, rows: Slice) -> BoolArray:
        """True for anchors whose windows hold any of these messages."""
        low, high = (
            of(self.span, anchors.column(name).to_numpy()) for of, name in ((low_of, START), (high_of, END))
        )
        codes, size = self.key_codes(rows.table, anchors)
        lines = Lines(rows.table, codes[: len(rows)], size, rows.times, None)
        holds: BoolArray = lines.between(codes[len(rows) :], low, high).sizes > 0
        return holds

    def pass_time(self, work: Work, watermark_us: int) -> None:
        kv, before_us = work.kv, work.progress.watermark_us
        ends = watermark_us >= END_OF_TIME_US
        work.dead.input = self.definition.inputs[-1].name
        self._end_periods(work, before_us, watermark_us)
        if watermark_us <= before_us:
            return
        if self.pending.waiting.any_between(kv, before_us, watermark_us):
            due = self.pending.waiting.read(kv, before_us, watermark_us, tidy=True)
            if due is not None:
                self._emit_updates(work, ON_TIME, self.in_marker_types(work, due), watermark_us)
        closed_us = END_OF_TIME_US if ends else self.closed_us(watermark_us)
        self.pending.forget(kv, closed_us)
        self.marks.forget(kv, closed_us)
        self.events.forget(kv, END_OF_TIME_US if ends else self.floor_us(kv, closed_us))

    # -- at the end of a period -------------------------------------------------------------------------------------

    def _let_wait(self, work: Work, times: IntArray) -> None:
        """Note the buckets of these times as changed, for triggers that fire at the end of a period."""
        waiting = self._waiting(work.kv)
        for timing, trigger in self._triggers.items():
            changed_us = times[times < work.progress.watermark_us] if timing == LATE else times
            if isinstance(trigger, EveryPeriod) and len(changed_us):
                stretches = np.unique(changed_us // self.pending.width_us).tolist()
                waiting[timing] = sorted({*waiting.get(timing, ()), *stretches})
        self._wait(work.kv, waiting)

    def _end_periods(self, work: Work, before_us: int, watermark_us: int) -> None:
        """Emit rows whose period has ended, and final corrections."""
        kv, ends, moves = work.kv, watermark_us >= END_OF_TIME_US, watermark_us > before_us
        waiting = self._waiting(kv)
        if not waiting:
            return
        closed_us = END_OF_TIME_US if ends else self.closed_us(watermark_us)
        for timing in (LATE, EARLY):
            ended = ticks(self._triggers[timing], work.progress.now_us, work.now_us)
            rows = None
            if timing in waiting and ended:
                begins = np.array(waiting[timing], dtype=np.int64) * self.pending.width_us
                rows = self._near(work, begins, begins + self.pending.width_us - 1)
            elif timing in waiting and timing == LATE and moves:
                closing = (self.closed_us(before_us), closed_us)
                if self.pending.waiting.any_between(kv, *closing):
                    rows = self.pending.waiting.read(kv, *closing)
            if rows is not None:
                over_us = rows.column(TIME).to_numpy()
                is_due = over_us < before_us if timing == LATE else over_us >= max(before_us, watermark_us)
                if is_due.any() and (timing == LATE or not ends):
                    anchors = self.in_marker_types(work, rows.filter(pa.array(is_due)))
                    self._emit_updates(work, timing, anchors, watermark_us)
            if ended or ends:
                waiting.pop(timing, None)
        self._wait(kv, {timing: self._open(stretches, closed_us) for timing, stretches in waiting.items()})

    def _open(self, stretches: list[int], closed_us: int) -> list[int]:
        """Return the buckets that windows hold which may still be updated."""
        reach_us, width_us = self._reach_us, self.pending.width_us
        return [n for n in stretches if reach_us is None or (n + 1) * width_us + reach_us >= closed_us]

    def _waiting(self, kv: KV) -> dict[str, list[int]]:
        packed = kv.get(self.aux_cf, _WAITING)
        return {} if packed is None else msgpack.unpackb(packed)

    def _wait(self, kv: KV, waiting: Mapping[str, list[int]]) -> None:
        batch, pending = Batch(), {timing: stretches for timing, stretches in waiting.items() if stretches}
        if pending:
            batch.put(self.aux_cf, _WAITING, msgpack.packb(pending))
        elif kv.get(self.aux_cf, _WAITING) is not None:
            batch.delete_many(self.aux_cf, [_WAITING])
        kv.write(batch)

    # -- emission ---------------------------------------------------------------------------------------------------

    def _emit_updates(self, work: Work, timing: str, anchors: pa.Table, watermark_us: int) -> None:
        """Emit the rows of these anchors that are due or changed, and save their marks."""
        anchors = anchors.take(pa.array(ordered(anchors.column(AT).to_numpy(), anchors)))
        over_us, ids = anchors.column(TIME).to_numpy(), anchors.column(ID).to_numpy()
        fields = self.output_fields(work)
        own = [f for f in fields if f.name in self.definition.agg]
        marks = self.marks.of(work.kv, ids, int(over_us.min()), int(over_us.max()) + 1, own)
        if timing == ON_TIME and marks.decided.any():
            open_ = np.flatnonzero(~marks.decided)
            if not len(open_):
                return
            anchors, over_us, ids = anchors.take(pa.array(open_)), over_us[open_], ids[open_]
            marks = marks.take(open_)
        size, (values, sizes) = len(anchors), self.values(work, anchors)
        fails = np.zeros(size, dtype=bool)
        fails[[b.group for b in values.broken]] = True
        if timing != EARLY:
            failures, stamps = [b for b in values.broken if not marks.buried[b.group]], anchors.column(AT)
            table, times = anchors.drop_columns([AT, TIME, ID]), stamps.to_numpy()
            buried(
                work,
                failures,
                list(self.definition.agg),
                lambda at: (table.take(pa.array(at)), times[at]),
                size,
            )
        has_row = ~fails & ((sizes > 0) | (self.definition.empty != "skip"))
        fires, back, after = judged(
            self.definition.emit, timing, work.progress.step, has_row, fails, values.columns, marks
        )
        closed = over_us < self.closed_us(watermark_us)
        emitted = emitted_rows(
            fields,
            timing,
            lambda some, names: anchors.select(names).take(pa.array(some)),
            np.arange(size),
            values.columns,
            marks,
            fires,
            back,
            closed if watermark_us < END_OF_TIME_US else np.ones(size, dtype=bool),
        )
        if emitted is not None:
            work.result.panes.append(emitted)
        self.marks.put(work.kv, ids, over_us, after, (work.progress.step << 2) + _LOOKS.index(timing))


#: Looks of one step, in the order in which they are made.
_LOOKS = (LATE, EARLY, ON_TIME)
