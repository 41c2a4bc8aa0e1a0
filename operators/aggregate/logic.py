"""Aggregator over time windows but sessions (`sessions/logic.py`) and windows of rows (`tuples.py`): two steps on a store.

`advance(watermark, now)` fires, times out and expires; `ingest(rows, now)` stores messages and fires windows they fill. Both
are deterministic: besides their arguments, the store is their only input and output.

Incremental aggregations keep accumulators in the window metadata; if one needs the window's messages (a median), the
operator keeps a message store and computes every aggregation from it (the full-state design).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.emit import EveryBatch, EveryPeriod, Never, Trigger, by_end, by_step, by_time
from windrow.core.keys import encode_equal
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregate import pane_order
from windrow.operators.aggregate.assignment import (
    Filed,
    bury_broken,
    bury_failed,
    file_rows,
    refile,
    without_failed,
)
from windrow.operators.aggregate.base import Steps, together
from windrow.operators.aggregate.count_retention import SizeLimits
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.emitter import Emitter, Firing
from windrow.operators.aggregate.kept_messages_by_key import KeyedHistory
from windrow.operators.aggregate.output import sorted_states
from windrow.operators.aggregate.partials import pushdown, window_groups
from windrow.operators.aggregate.state_rows import apart, broken_where_they_meet, merge_rows, merge_slices
from windrow.operators.aggregate.timing import Edges, by_timing, edges_at, fires_evicted, is_last
from windrow.operators.aggregate.triggers import Due, Judged, Moment, delays
from windrow.operators.aggregations.calculation import Broken
from windrow.operators.operator import FileAgain, Grouping
from windrow.operators.steps.assigners import WindowAssigner, assigner_of
from windrow.operators.steps.columns import EARLY, END, IS_LAST, LATE, ON_TIME, PANES, PENDING, START, UPSERT
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import Groups, combine, without
from windrow.operators.steps.ids import SeenIds
from windrow.operators.steps.input_filter import further
from windrow.operators.steps.intake import Slice, countable_rows
from windrow.operators.steps.micro_batching import Runs
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.pushdown import Grouped, Pushdown
from windrow.operators.steps.step import StepResult, limit, passed
from windrow.operators.steps.work import Work
from windrow.operators.view import one_key
from windrow.stores.delta_blocks import BlockWindows
from windrow.stores.kv import KV
from windrow.stores.spill import Away, Chunk, Spill, grouped, of_keys_apart

#: Windows are merged this many at a time, which bounds memory.
WINDOWS_AT_ONCE = 64


def chunks(starts: list[int]) -> list[list[int]]:
    return [starts[i : i + WINDOWS_AT_ONCE] for i in range(0, len(starts), WINDOWS_AT_ONCE)]


class WindowAggregator(Steps, Grouping):
    """The logic of one definition over time windows. Holds no state of its own: everything is in the store."""

    def __init__(self, definition: AggregateDefinition) -> None:
        super().__init__(definition)
        definition = self.definition
        self.assigner: WindowAssigner = assigner_of(definition.window)
        if definition.full_state:
            self.history = KeyedHistory(definition, self.assigner)
        self.store = BlockWindows(self.windows_cf, self.aux_cf, definition.by)
        self.limits = SizeLimits(definition, self.aux_cf)
        self.due = Due(definition.emit, self.aux_cf)
        if definition.ids is not None:
            self.seen = SeenIds(definition, self.aux_cf, self._span_us())

    def _edges(self, watermark_us: int) -> Edges:
        return edges_at(self.definition, watermark_us)

    def _windows(self, kv: KV, after_us: int, up_to_us: int) -> list[int]:
        """Return the starts of stored windows with `after < end <= up_to`."""
        if up_to_us <= after_us:
            return []
        return self.store.starts(kv, self.assigner.first_open(after_us), self.assigner.first_open(up_to_us))

    def _merge(self, stored: pa.Table, dead: DeadLetters, *, notes: bool) -> pa.Table:
        merged, broken = merge_rows(self.calculation, stored, notes=notes)
        bury_broken(merged, broken, self.definition, dead)
        return merged

    def _append(self, kv: KV, rows: pa.Table) -> None:
        """Append rows. Windows with enough deltas are compacted: a left fold in commit order, as reading is."""
        for start in self.store.append(kv, rows, upsert=False):
            self.store.fold(kv, start, self._folded)

    def _folded(self, stored: pa.Table) -> pa.Table | None:
        merged, broken = merge_rows(self.calculation, stored, notes=self._notes(True))
        return None if broken else merged  # the failure has to be reported when the window fires

    def _fire_whole(
        self,
        work: Work,
        starts: Sequence[int],
        watermark_us: int,
        fire_rows: Callable[[StepResult, pa.Table], pa.Table],
    ) -> None:
        """Fire windows with all of their keys, in slices, so that memory is bounded by the slice, not by the window.

        fire_rows: fires merged rows, and returns the rows after
        """
        kv, result, dead = work.kv, work.result, work.dead
        emitted = Away(result.panes, pane_order.SLICE_BYTES)
        # The messages of a window are read at once: where they are kept the window is not divided.
        most = pane_order.SLICE_BYTES if self.history is None else sys.maxsize
        for chunk in self.store.chunks(kv, starts, most):
            if chunk.shares is not None:
                self._fire_shares(work, chunk.starts[0], chunk.shares, watermark_us, fire_rows)
            elif chunk.rows is not None:
                rows = fire_rows(result, self._merge(chunk.rows, dead, notes=self._notes(False)))
                self._rewrite(kv, chunk.starts, rows, watermark_us)
            emitted.gathered()

    def _fire_shares(
        self,
        work: Work,
        start: int,
        shares: Spill,
        watermark_us: int,
        fire_rows: Callable[[StepResult, pa.Table], pa.Table],
    ) -> None:
        """Fire one large window, some partitions of its keys at a time."""
        result, by, most = work.result, self.definition.by, pane_order.SLICE_BYTES
        left = Spill() if start >= self._stored_from(watermark_us) else None

        def runs() -> Iterator[pa.Table]:
            for number, stored in enumerate(grouped(shares, most)):
                fired = StepResult(ended=result.ended)
                if of_keys_apart(stored, self.store.by):
                    merged = without(stored, UPSERT)
                else:
                    merged = self._merge(stored, work.dead, notes=self._notes(False))
                rows = fire_rows(fired, merged)
                if left is not None:
                    left.add(rows, number)
                yield from fired.panes

        panes = pane_order.in_order(runs(), by, most)
        if panes is not None:
            result.panes.append(panes)
        if left is not None:
            self.store.replace_by_shares(work.kv, start, left)

    def _stored_from(self, watermark_us: int) -> int:
        """Return the start below which fired windows are not stored again: nothing can query them, not even this step."""
        return START_OF_TIME_US if self._closes else self._in_retention_from(watermark_us)

    def _rewrite(self, kv: KV, starts: list[int], rows: pa.Table, watermark_us: int) -> None:
        """Store the rows of whole windows that have fired."""
        kept_from = self._stored_from(watermark_us)
        if not starts or starts[-1] < kept_from:
            return
        if starts[0] < kept_from:
            starts = [start for start in starts if start >= kept_from]
            rows = rows.filter(pc.greater_equal(rows.column(START), kept_from))
        self.store.replace(kv, starts, rows)

    def _fire(
        self,
        work: Work,
        rows: pa.Table,
        timing: str,
        *,
        closing: bool = False,
        always: bool = False,
        not_emitted: Collection[str] = (),
    ) -> pa.Table:
        """Fire rows. not_emitted: aggregations that no pane has emitted yet."""
        kv, ends = work.kv, combine(rows.column(END)).to_numpy()
        last = is_last(self.definition, ends, timing, self._edges(work.progress.watermark_us)) | closing

        def last_values(state: pa.Table) -> tuple[dict[str, pa.Array], list[Broken]]:
            assert self.history is not None
            emitted, broken = self.history.values(kv, state, self.calculation, self.assigner, emitted=True)
            return {
                a: pa.nulls(len(v), v.type) if a in not_emitted else v for a, v in emitted.items()
            }, broken

        emitter = Emitter(self.definition, work.dead, work.progress.step)
        firing = Firing(timing, last, closing, always)
        fired = emitter.fire(
            rows, firing, partial(self._values, kv), None if self.history is None else last_values
        )
        if fired.panes is not None:
            work.result.panes.append(fired.panes)
            if self.definition.emit.closing_pane and not closing:
                last = fired.panes.filter(fired.panes.column(IS_LAST))
                work.result.ended.update(self._names(last))
        return fired.rows

    def _values(self, kv: KV, state: pa.Table) -> tuple[dict[str, pa.Array], list[Broken]]:
        """Return the present values of merged rows."""
        if self.history is not None:
            return self.history.values(kv, state, self.calculation, self.assigner)
        return self.calculation.finish({n: state.column(n) for n in state.column_names}, len(state))

    def _judged(self, kv: KV, rows: pa.Table, moment: Moment) -> Judged:
        """Return merged rows, ready for a trigger."""
        by = self.definition.by
        return Judged(
            rows, moment, lambda: pa.table({**{b: rows.column(b) for b in by}, **self._values(kv, rows)[0]})
        )

    @property
    def _closes(self) -> bool:
        """True if a window may have to fire when it closes, though it waits for no period."""
        emit = self.definition.emit
        if isinstance(emit.late, EveryBatch):
            return emit.closing_pane or not emit.on_time
        return emit.closing_pane or not isinstance(emit.late, (Never, EveryPeriod))

    def _retention_floor(self, watermark_us: int) -> int:
        """Return the end at or below which windows are out of retention."""
        time_us = self.definition.retention.time_us
        return START_OF_TIME_US if time_us is None else limit(watermark_us, time_us)

    def _kept_from(self, progress: Progress) -> int:
        """Return the start below which windows are out of retention."""
        if self.definition.retention.time_us is None:
            return START_OF_TIME_US
        return max(progress.purged_us, self._in_retention_from(progress.watermark_us))

    def _in_retention_from(self, watermark_us: int) -> int:
        """Return the first start of windows that are in retention at a watermark."""
        return self.assigner.first_open(self._retention_floor(watermark_us))

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        if self.history is not None:  # windows that come back are new ones
            self.history.drop(kv, progress.purged_us, exactly=True)
        super().set_back(kv, progress, watermark_us)
        progress.purged_us = min(progress.purged_us, self._in_retention_from(progress.watermark_us))

    def kept_from(self, kv: KV) -> int:
        """Return the event time below which no message is kept."""
        return END_OF_TIME_US if self.history is None else self.progress(kv).purged_us

    def _span_us(self) -> int | None:
        """Return about how long a message can be in retention after its event time; None: forever."""
        time_us = self.definition.retention.time_us
        if time_us is None:
            return None
        start = self.assigner.first_open(0)
        return time_us + int(self.assigner.ends(np.array([start], dtype=np.int64))[0]) - start

    def _purge(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        kept_from = self.assigner.first_open(self._retention_floor(watermark_us))
        if kept_from <= progress.purged_us:
            return
        self.store.drop(kv, progress.purged_us, kept_from)
        if self.history is not None:
            self.history.drop(kv, kept_from)
        if self.seen is not None:
            self.seen.forget(kv, kept_from)
        if self.limits.active:
            self.limits.forget(kv, self._retention_floor(watermark_us))
        progress.dirty = {s for s in progress.dirty if s >= kept_from}
        progress.purged_us = kept_from

    def states(
        self, kv: KV, low_us: int, high_us: int, key: Mapping[str, Any] | None = None
    ) -> Iterator[pa.Table]:
        """Yield state rows of retained windows that start in `[low, high)`, merged, with their present values, sorted by start,
        end and key, some at a time. key: rows of other keys may be left out.
        """
        progress = Progress.load(kv, self.aux_cf)
        if progress.schema is None:
            return
        self._bind(progress.schema)
        by, most = self.definition.by, pane_order.SLICE_BYTES if self.history is None else sys.maxsize
        starts = self.store.starts(kv, max(low_us, progress.purged_us), high_us)
        keys = None if key is None else one_key(by, key, self.seen_schema(progress.schema))
        if keys is not None:
            read = self.store.read(kv, starts, keys)
            chunks = iter([Chunk(starts, read, None)] if read is not None and len(read) else [])
        else:
            chunks = self.store.chunks(kv, starts, most)
        for chunk in chunks:
            if chunk.shares is None:
                if chunk.rows is not None:
                    yield self._valued(kv, chunk.rows)
                continue
            ordered = pane_order.in_order(
                (self._valued(kv, rows) for rows in grouped(chunk.shares, most)), by, most
            )
            if ordered is not None:
                yield ordered

    def _valued(self, kv: KV, stored: pa.Table) -> pa.Table:
        """Return stored rows, merged and sorted, with their values."""
        rows = without(self._merge(stored, DeadLetters(0), notes=self._notes(False)), UPSERT)
        return sorted_states(self.definition, rows, self._values(kv, rows)[0])

    def _waits(self, timing: str, trigger: Trigger) -> bool:
        """True if rows that are not emitted at once are emitted later, even if no message comes."""
        return by_time(trigger) or (timing == EARLY and not self.definition.emit.on_time)

    def _tick(
        self,
        work: Work,
        moment: Moment,
        watermark_us: int,
        ended: list[int],
    ) -> None:
        """Fire by processing time. Periods tick on one grid of `now` for the whole definition, delays for each (key, window).

        ended: starts of windows that the watermark has passed, and that emitted no pane for that
        """
        kv, progress, result = work.kv, work.progress, work.result
        emit, emitted, waiting = self.definition.emit, len(result.panes), list[pa.Table]()
        due, looked_at = self.due.passed(kv, moment.now_us), set[int]()
        for timing, trigger in ((EARLY, emit.early), (LATE, emit.late)):
            starts = set(due) if delays(trigger) else set()
            if by_end(trigger):
                starts.update(ended)
            if moment.comes(trigger):
                starts |= progress.dirty
            if moment.insists(trigger):
                starts.update(self._taking(kv, watermark_us))
            if not starts:
                continue
            ordered = np.array(sorted(starts), dtype=np.int64)
            early = self.assigner.ends(ordered) > watermark_us
            for chunk in chunks(ordered[early if timing == EARLY else ~early].tolist()):
                left = self._fire_triggered(work, chunk, timing, trigger, moment)
                looked_at.update(chunk)
                progress.dirty.difference_update(chunk)
                if left is not None:
                    progress.dirty.update(combine(left.column(START)).to_numpy().tolist())
                    waiting.append(left)
        if due - looked_at and not delays(emit.late):
            # A row that was due early, and was emitted when its window ended, is no longer pending.
            rest = np.array(sorted(due - looked_at), dtype=np.int64)
            looked_at.update(rest[self.assigner.ends(rest) <= watermark_us].tolist())
        self.due.note(kv, due & looked_at, waiting, moment.now_us)
        result.panes[emitted:] = together(result.panes[emitted:], self.definition.by)

    def _taking(self, kv: KV, watermark_us: int) -> list[int]:
        """Return the starts of windows that still take messages."""
        return self.store.starts(kv, self._first_open(watermark_us), END_OF_TIME_US)

    def _first_open(self, watermark_us: int) -> int:
        """Return the start of the first window that still takes messages."""
        return self.assigner.first_open(passed(watermark_us, self.definition.allowed_lateness_us))

    def _fire_triggered(
        self,
        work: Work,
        starts: list[int],
        timing: str,
        trigger: Trigger,
        moment: Moment,
    ) -> pa.Table | None:
        """Fire the rows that the trigger selects; return the rows that stay pending."""
        kv, always = work.kv, moment.insists(trigger)

        def emit_fired(emitted: StepResult, rows: pa.Table) -> pa.Table:
            fires = self._judged(kv, rows, moment).fires(trigger)
            if always:  # of a closed window only keys with new messages
                takes = combine(rows.column(START)).to_numpy() >= self._first_open(moment.moved[1])
                fires &= takes | (combine(rows.column(PENDING)).to_numpy() > 0)
            if not fires.any():
                return rows
            fired = self._fire(work.into(emitted), rows.filter(pa.array(fires)), timing, always=always)
            return concat([rows.filter(pa.array(~fires)), fired])

        if always:  # it emits whole windows, and leaves no row pending
            self._fire_whole(work, starts, work.progress.watermark_us, emit_fired)
            return None
        near = self.store.near(kv, starts, None)
        if near.rows is None:
            return None
        rows = self._merge(near.rows, work.dead, notes=self._notes(True))
        after = emit_fired(work.result, rows)
        if after is not rows:
            self.store.put(kv, near, after)
        waiting = combine(after.column(PENDING)).to_numpy() > 0
        return after.filter(pa.array(waiting)) if waiting.any() else None

    # -- steps ------------------------------------------------------------------------------------------------------

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Fire ON_TIME the windows that the watermark passed, then the periods that `now` crossed, then close and purge."""
        work = self._begin(kv, now_us)
        progress, result, dead = work.progress, work.result, work.dead
        before_us, now_before_us = progress.watermark_us, progress.now_us
        watermark_us = max(watermark_us, before_us)
        if progress.schema is not None:
            if self._emission_changed(kv):
                progress.dirty = self._starts_not_emitted(kv, dead)
                self.due.begin(kv, progress.dirty)
            result.panes += self._corrections(work)
            last_words = self._evict(work, watermark_us) if self.limits.active else []
            ended = self._fire_on_time(work, before_us, watermark_us)
            if now_before_us is not None:
                moment = Moment(progress.step, now_us, now_before_us, (before_us, watermark_us))
                self._tick(work, moment, watermark_us, ended)
            emitted = len(result.panes)
            self._close(work, before_us, watermark_us)
            if last_words:
                result.panes[emitted:] = together(result.panes[emitted:] + last_words, self.definition.by)
            self._purge(kv, progress, watermark_us)
        progress.watermark_us, progress.now_us = watermark_us, now_us
        return self._end(work)

    def ingest_table(self, kv: KV, table: pa.Table, now_us: int) -> StepResult:
        """Process messages and fire the windows that they fill."""
        work = self._begin(kv, now_us)
        progress, result, dead = work.progress, work.result, work.dead
        corrections = self._corrections(work)
        table, others = self._passing(self._learnt(progress, table), now_us, dead)
        rows = countable_rows(self.definition, table, now_us, dead)
        if self.seen is not None:
            rows = self._without_duplicates(kv, rows, result, self._kept_from(progress))
        if len(rows):
            self._file(work, rows)
        if others is not None:
            self._hear(work, others)
        result.panes[:0] = corrections
        progress.begin(now_us)
        return self._end(work)

    # -- pushdown to SQL --------------------------------------------------------------------------------------------

    def pushdown(self, schema: pa.Schema) -> Pushdown | None:
        return pushdown(self.definition, schema)

    def ingest_groups(
        self, kv: KV, groups: pa.Table, schema: pa.Schema, watermark_us: int, now_us: int
    ) -> Grouped:
        grouped, slices, schema, windows = window_groups(self, kv, groups, schema, watermark_us, now_us)
        work = self._begin(kv, now_us)
        self._learn(work.progress, schema)
        if windows is not None and len(windows.row_of):
            merged, broken = merge_slices(self.calculation, slices, windows)
            bury_broken(merged, broken, self.definition, work.dead)
            self._add(work, merged)
        work.progress.begin(now_us)
        grouped.step = grouped.step.then(self._end(work))
        return grouped

    # -- replay of lost messages ------------------------------------------------------------------------------------

    def refiling(self) -> FileAgain | None:
        if self.history is None:
            return None
        return FileAgain(
            logic=self,
            kept_from=self.kept_from,
            begun=self.begun,
            file=partial(refile, self, self.assigner, self.limits),
            drop_expired=self._drop_expired,
            by_number=True,
        )

    def _drop_expired(self, kv: KV) -> None:
        """Delete replayed messages that no retained window needs."""
        assert self.history is not None
        floor, limited = self.progress(kv).purged_us, self.limits.active
        if limited:
            floor = max(floor, self.store.first_start(kv) or floor)
        self.history.drop(kv, floor, exactly=limited)

    def runs(
        self,
        kv: KV,
        largest_us: Mapping[Partition, int],
        seen_us: Mapping[Partition, int],
        watermark_us: int,
        now_us: int | None,
    ) -> Runs | None:
        if self._owes(kv):
            return None
        from windrow.operators.aggregate.micro_batching.ingest import WindowRuns

        return WindowRuns(self, kv, largest_us, seen_us, watermark_us, now_us)

    # -- ingest -----------------------------------------------------------------------------------------------------

    def _file(self, work: Work, rows: Slice) -> None:
        kv, progress, dead = work.kv, work.progress, work.dead
        size_floor = self.limits.floors(kv, rows.table) if self.limits.active else None
        filed = file_rows(self.definition, self.assigner, rows, progress.watermark_us, size_floor, dead)
        work.result.marks = filed.marks
        if len(filed.row_of) == 0:
            return
        filed = replace(filed, rows=self.noted(filed.rows, progress.step))
        deltas, groups, broken = self._brought(kv, filed)
        while broken and self.history is not None:
            filed = without_failed(filed, groups, broken, dead)
            if len(filed.row_of) == 0:
                return
            deltas, groups, broken = self._brought(kv, filed)
        if broken:
            deltas = bury_failed(filed.rows, filed.row_of, groups, deltas, broken, dead)
        if self.history is not None:
            self.history.add(kv, filed.rows, progress.step, self.calculation, closed=filed.closed)
        self._add(work, deltas)

    def _brought(self, kv: KV, filed: Filed) -> tuple[pa.Table, Groups, list[Broken]]:
        """Return the contributions of messages to windows, and the failures of user code on them, or on merging them."""
        deltas, groups, broken = self.deltas(filed.rows, filed.row_of, filed.starts, filed.ends)
        if self.calculation.runs_code:
            starts = np.unique(combine(deltas.column(START)).to_numpy()).tolist()
            near = self.store.near(kv, starts, deltas.select([START, *self.definition.by]))
            broken += broken_where_they_meet(self.calculation, near.rows, deltas)
        return deltas, groups, broken

    def _hear(self, work: Work, others: Slice) -> None:
        """Advance the watermark by messages that did not pass the filter, as if they had."""
        floor = self.limits.floors(work.kv, others.table) if self.limits.active else None
        watermark_us, silent = work.progress.watermark_us, DeadLetters(0)
        filed = file_rows(self.definition, self.assigner, others, watermark_us, floor, silent)
        work.result.marks = further(work.result.marks, filed.marks)

    def _add(
        self,
        work: Work,
        deltas: pa.Table,
    ) -> None:
        """Add deltas; (window, key)s whose trigger is evaluated in every step are judged now."""
        if self.limits.active:
            self.limits.note(work.kv, deltas)
        if self.due.active:
            deltas = self.due.waiting_since(work.kv, deltas, np.full(len(deltas), work.now_us))
        ends, edges = combine(deltas.column(END)).to_numpy(), self._edges(work.progress.watermark_us)
        for timing, trigger, mask in by_timing(self.definition.emit, ends, edges):
            part = deltas if mask.all() else deltas.filter(pa.array(mask))
            if by_step(trigger):
                self._judge(work, part, timing, trigger)
            else:
                self._gather(work, part, timing, trigger)
        work.result.panes = together(work.result.panes, self.definition.by)

    def _gather(self, work: Work, deltas: pa.Table, timing: str, trigger: Trigger) -> None:
        """Add deltas that are not judged in this step."""
        self._append(work.kv, deltas)
        if self._waits(timing, trigger):
            work.progress.dirty.update(np.unique(combine(deltas.column(START)).to_numpy()).tolist())

    def _judge(
        self,
        work: Work,
        deltas: pa.Table,
        timing: str,
        trigger: Trigger,
    ) -> None:
        kv, progress, dead = work.kv, work.progress, work.dead
        starts = np.unique(combine(deltas.column(START)).to_numpy()).tolist()
        near = self.store.near(kv, starts, deltas.select([START, *self.definition.by]))
        rows = deltas.append_column(UPSERT, pa.array(np.zeros(len(deltas), dtype=bool)))
        parts, notes = list[pa.Table](), self._notes(not isinstance(trigger, EveryBatch))
        if near.rows is not None:
            rows, others = apart(self.calculation, concat([near.rows, rows]), len(near.rows))
            if len(others):
                merged = without(others, UPSERT) if near.merged else None
                parts = [self._merge(others, dead, notes=self._notes(True)) if merged is None else merged]
        rows = self._merge(rows, dead, notes=notes)
        moment = Moment(progress.step, work.now_us, moved=(progress.watermark_us, progress.watermark_us))
        fires = self._judged(kv, rows, moment).fires(trigger)
        if fires.any():
            chosen = rows if fires.all() else rows.filter(pa.array(fires))
            parts.append(self._fire(work, chosen, timing))
        if not fires.all():
            parts.append(rows.filter(pa.array(~fires)))
            if self._waits(timing, trigger):
                progress.dirty.update(starts)
        self.store.put(kv, near, concat(parts))

    # -- advance ----------------------------------------------------------------------------------------------------

    def _fire_on_time(
        self,
        work: Work,
        before_us: int,
        watermark_us: int,
    ) -> list[int]:
        """Fire the windows that the watermark passed; return the starts of those that stay pending."""
        kv, progress, emit = work.kv, work.progress, self.definition.emit
        starts = self._windows(kv, before_us, watermark_us)
        progress.watermark_us = watermark_us
        if not emit.on_time and emit.emits_late:
            self.due.end(kv, starts)
            return starts
        progress.dirty.difference_update(starts)
        if emit.on_time:

            def on_time(emitted: StepResult, rows: pa.Table) -> pa.Table:
                return self._fire(work.into(emitted), rows, ON_TIME)

            self._fire_whole(work, starts, watermark_us, on_time)
            return []
        for chunk in chunks(starts):  # pending rows that no later pane would emit are emitted now
            self._emit_pending(work, chunk, ON_TIME)
        return []

    def _emit_pending(
        self,
        work: Work,
        starts: list[int],
        timing: str,
        *,
        closing: bool = False,
    ) -> None:
        """Fire rows that no pane has emitted yet; nothing else is read or written."""
        kv = work.kv
        near = self.store.near(kv, starts, None)
        if near.rows is None:
            return
        rows = self._merge(near.rows, work.dead, notes=self._notes(False))
        waiting = combine(rows.column(PENDING)).to_numpy() > 0
        if waiting.any():
            after = self._fire(work, rows.filter(pa.array(waiting)), timing, closing=closing)
            self.store.put(kv, near, concat([rows.filter(pa.array(~waiting)), after]))

    def _starts_not_emitted(self, kv: KV, dead: DeadLetters) -> set[int]:
        """Return the starts of all windows with messages that no pane has emitted."""
        starts: set[int] = set()
        for chunk in chunks(self.store.starts(kv, START_OF_TIME_US, END_OF_TIME_US)):
            stored = self.store.near(kv, chunk, None).rows
            if stored is not None:
                rows = self._merge(stored, dead, notes=self._notes(False))
                waiting = combine(rows.column(PENDING)).to_numpy() > 0
                starts.update(combine(rows.column(START)).to_numpy()[waiting].tolist())
        return starts

    def _corrections(self, work: Work) -> list[pa.Table]:
        """Emit panes of windows that still take messages again, with the added aggregations."""
        kv, progress = work.kv, work.progress
        if progress.schema is None or not self._owes(kv):
            return []
        corrected, recomputed = StepResult(), dict(self.definition.recomputed_us)
        emit, edges = self.definition.emit, self._edges(progress.watermark_us)

        def again(emitted: StepResult, rows: pa.Table) -> pa.Table:
            ends = combine(rows.column(END)).to_numpy()
            fires = (combine(rows.column(PANES)).to_numpy() > 0) & (ends >= edges.closed)
            fires &= emit.emits_late | (ends >= edges.ended)
            parts = [rows.filter(pa.array(~fires))]
            for timing, _, mask in by_timing(emit, ends, edges):
                chosen = rows.filter(pa.array(mask & fires))
                parts.append(self._fire(work.into(emitted), chosen, timing, not_emitted=recomputed))
            return concat([part for part in parts if len(part)])

        starts = self.store.starts(kv, progress.purged_us, max(recomputed.values()))
        self._fire_whole(work.into(corrected), starts, progress.watermark_us, again)
        self._note_recomputed(kv)
        return together(corrected.panes, self.definition.by)

    def _close(
        self,
        work: Work,
        before_us: int,
        watermark_us: int,
    ) -> None:
        """Close windows that pass their allowed lateness: emit pending rows, and the closing pane if asked for."""
        kv, progress = work.kv, work.progress
        emit, lateness_us = self.definition.emit, self.definition.allowed_lateness_us
        if not emit.emits_late or not (self._closes or progress.dirty):
            return
        starts = self._windows(kv, passed(before_us, lateness_us), passed(watermark_us, lateness_us))
        if not self._closes:
            starts = [s for s in starts if s in progress.dirty]
        progress.dirty.difference_update(starts)
        if emit.closing_pane:

            def last(emitted: StepResult, rows: pa.Table) -> pa.Table:
                fires = ~self._ended(rows, work.result.ended)
                if not fires.any():
                    return rows
                fired = rows.filter(pa.array(fires))
                after = self._fire(work.into(emitted), fired, LATE, closing=True)
                return concat([rows.filter(pa.array(~fires)), after])

            self._fire_whole(work, starts, watermark_us, last)
            return
        for chunk in chunks(starts):
            self._emit_pending(work, chunk, LATE, closing=True)

    def _evict(self, work: Work, watermark_us: int) -> list[pa.Table]:
        """Evict the windows beyond the size limits; return their last panes."""
        kv, progress = work.kv, work.progress
        by_start: dict[int, dict[bytes, int | None]] = {}
        for gone in self.limits.evict(kv, self._retention_floor(progress.watermark_us)):
            by_start.setdefault(gone.start, {})[gone.key] = gone.hashed
        if not by_start:
            return []
        definition, evicted = self.definition, StepResult()
        before_us, progress.watermark_us = progress.watermark_us, watermark_us
        before, edges = self._edges(before_us), self._edges(watermark_us)
        for start in sorted(by_start):
            known = [hashed for hashed in by_start[start].values() if hashed is not None]
            wanted = np.array(known, dtype=np.uint64) if len(known) == len(by_start[start]) else None
            near = self.store.near_hashes(kv, start, wanted)
            if near.rows is None:
                continue
            rows = self._merge(near.rows, work.dead, notes=self._notes(True))
            names = [rows.column(b) for b in self.limits.by]
            keys = encode_equal(names) if names else [b""] * len(rows)
            removed = np.array([k in by_start[start] for k in keys], dtype=bool)
            ends = combine(rows.column(END)).to_numpy()
            waiting = combine(rows.column(PENDING)).to_numpy() > 0
            for timing, trigger, mask in by_timing(definition.emit, ends, edges):
                fires = fires_evicted(
                    definition, trigger, waiting, ends >= before.closed, ends < before.ended
                )
                fires &= removed & mask
                if fires.any():
                    self._fire(work.into(evicted), rows.filter(pa.array(fires)), timing, closing=True)
            self.store.put(kv, near, rows.filter(pa.array(~removed)))
            if not self.store.starts(kv, start, start + 1):
                progress.dirty.discard(start)
        progress.watermark_us = before_us
        if self.history is not None:
            left = self.store.first_start(kv)
            if left is not None:
                self.history.drop(kv, left, exactly=True)
        return evicted.panes
