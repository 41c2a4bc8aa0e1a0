"""Aggregator over time windows: two pure steps on a store. Seed 003 "Windowed Aggregator".

`advance(watermark, now)` fires, times out and expires; `ingest(rows, now)` stores messages and fires windows they fill. Both
read and write only the store, so a step is a function of (state, input, now, watermark).

Incremental aggregations keep accumulators in the window metadata; if one needs the window's messages (a median), the
operator keeps a message store and computes every aggregation from it (the seed's full-state design).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from windrow.core.emit import EveryBatch, Never, Trigger, by_step
from windrow.core.keys import encode_equal
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregate.assignment import Filed, bury_broken, bury_failed, file_rows, without_failed
from windrow.operators.aggregate.base import together
from windrow.operators.aggregate.merge_failures import broken_where_they_meet
from windrow.operators.aggregate.message_replay import drop_expired, refile
from windrow.operators.aggregate.micro_batching.boundaries import WindowRuns
from windrow.operators.aggregate.partials import ingest_groups, pushdown
from windrow.operators.aggregate.processing_time_timers import Ticking, chunks
from windrow.operators.aggregate.state_rows import Windows, apart, merge_slices
from windrow.operators.aggregate.triggers import Moment
from windrow.operators.aggregations.calculation import Broken
from windrow.operators.operator import FileAgain, Grouping
from windrow.operators.steps.columns import EARLY, END, LATE, ON_TIME, PANES, PENDING, START, UPSERT
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import Groups, combine, without
from windrow.operators.steps.input_filter import further
from windrow.operators.steps.intake import Slice, countable_rows
from windrow.operators.steps.micro_batching import Runs
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.pushdown import Grouped, Pushdown
from windrow.operators.steps.step import StepResult, passed
from windrow.stores.kv import KV


class WindowAggregator(Ticking, Grouping):
    """The logic of one definition over time windows. Holds no state of its own: everything is in the store."""

    # -- steps ------------------------------------------------------------------------------------------------------

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Fire ON_TIME the windows that the watermark passed, then the periods that `now` crossed, then close and purge."""
        progress, result, dead = self._begin(kv)
        before_us, now_before_us = progress.watermark_us, progress.now_us
        watermark_us = max(watermark_us, before_us)
        if progress.schema is not None:
            if self._emission_changed(kv):
                progress.dirty = self._unsaid(kv, dead)
                self.due.begin(kv, progress.dirty)
            result.panes += self._corrections(kv, progress, dead)
            last_words = self._evict(kv, progress, dead, watermark_us) if self.limits.active else []
            ended = self._fire_on_time(kv, progress, result, dead, before_us, watermark_us)
            if now_before_us is not None:
                moment = Moment(progress.step, now_us, now_before_us, (before_us, watermark_us))
                self._tick(kv, progress, result, dead, moment, watermark_us, ended)
            emitted = len(result.panes)
            self._close(kv, progress, result, dead, before_us, watermark_us)
            if last_words:
                result.panes[emitted:] = together(result.panes[emitted:] + last_words, self.definition.by)
            self._purge(kv, progress, watermark_us)
        progress.watermark_us, progress.now_us = watermark_us, now_us
        return self._end(kv, progress, result, dead)

    def ingest_table(self, kv: KV, table: pa.Table, now_us: int) -> StepResult:
        """Process messages and fire the windows that they fill."""
        progress, result, dead = self._begin(kv)
        corrections = self._corrections(kv, progress, dead)
        table, others = self._passing(self._learnt(progress, table), now_us, dead)
        rows = countable_rows(self.definition, table, now_us, dead)
        if self.seen is not None:
            rows = self._without_duplicates(kv, rows, result, self._kept_from(progress))
        if len(rows):
            self._file(kv, progress, result, dead, rows, now_us)
        if others is not None:
            self._hear(kv, progress, result, others)
        result.panes[:0] = corrections
        progress.begin(now_us)
        return self._end(kv, progress, result, dead)

    def ingest_partials(
        self, kv: KV, slices: pa.Table, now_us: int, schema: pa.Schema, windows: Windows | None = None
    ) -> StepResult:
        """Ingest rows that were checked and pre-aggregated elsewhere (Spark) to state rows of slices.

        `windows`: the windows that they are part of; a (slice, key) may have several rows.
        """
        progress, result, dead = self._begin(kv)
        self._learn(progress, schema)
        if windows is not None and len(windows.row_of):
            merged, broken = merge_slices(self.calculation, slices, windows)
            bury_broken(merged, broken, self.definition, dead)
            self._add(kv, progress, result, dead, merged, now_us)
        progress.begin(now_us)
        return self._end(kv, progress, result, dead)

    # -- pushdown to SQL --------------------------------------------------------------------------------------------

    def pushdown(self, schema: pa.Schema) -> Pushdown | None:
        return pushdown(self.definition, schema)

    def ingest_groups(
        self, kv: KV, groups: pa.Table, schema: pa.Schema, watermark_us: int, now_us: int
    ) -> Grouped:
        return ingest_groups(self, kv, groups, schema, watermark_us, now_us)

    # -- replay of lost messages ------------------------------------------------------------------------------------

    def refiling(self) -> FileAgain | None:
        if self.history is None:
            return None
        return FileAgain(
            logic=self,
            kept_from=self.kept_from,
            begun=self.begun,
            file=partial(refile, self),
            drop_expired=partial(drop_expired, self),
            by_number=True,
        )

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
        return WindowRuns(self, kv, largest_us, seen_us, watermark_us, now_us)

    # -- ingest -----------------------------------------------------------------------------------------------------

    def _file(
        self, kv: KV, progress: Progress, result: StepResult, dead: DeadLetters, rows: Slice, now_us: int
    ) -> None:
        size_floor = self.limits.floors(kv, rows.table) if self.limits.active else None
        filed = file_rows(self.definition, self.assigner, rows, progress.watermark_us, size_floor, dead)
        result.marks = filed.marks
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
        self._add(kv, progress, result, dead, deltas, now_us)

    def _brought(self, kv: KV, filed: Filed) -> tuple[pa.Table, Groups, list[Broken]]:
        """Return the contributions of messages to windows, and the failures of user code on them, or on merging them."""
        deltas, groups, broken = self.deltas(filed.rows, filed.row_of, filed.starts, filed.ends)
        if self.calculation.runs_code:
            starts = np.unique(combine(deltas.column(START)).to_numpy()).tolist()
            near = self.store.near(kv, starts, deltas.select([START, *self.definition.by]))
            broken += broken_where_they_meet(self.calculation, near.rows, deltas)
        return deltas, groups, broken

    def _hear(self, kv: KV, progress: Progress, result: StepResult, others: Slice) -> None:
        """Advance the watermark by messages that did not pass the filter, as if they had."""
        floor = self.limits.floors(kv, others.table) if self.limits.active else None
        watermark_us, silent = progress.watermark_us, DeadLetters(0)
        filed = file_rows(self.definition, self.assigner, others, watermark_us, floor, silent)
        result.marks = further(result.marks, filed.marks)

    def _add(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        dead: DeadLetters,
        deltas: pa.Table,
        now_us: int,
    ) -> None:
        """Add deltas; (window, key)s whose trigger is evaluated in every step are judged now."""
        if self.limits.active:
            self.limits.note(kv, deltas)
        if self.due.active:
            deltas = self.due.waiting_since(kv, deltas, np.full(len(deltas), now_us))
        emit = self.definition.emit
        late = combine(deltas.column(END)).to_numpy() <= progress.watermark_us
        for timing, trigger, mask in ((EARLY, emit.early, ~late), (LATE, emit.late, late)):
            if not mask.any():
                continue
            part = deltas if mask.all() else deltas.filter(pa.array(mask))
            if by_step(trigger):
                self._judge(kv, progress, result, dead, part, timing, trigger, now_us)
            else:
                self._gather(kv, progress, part, timing, trigger)
        result.panes = together(result.panes, self.definition.by)

    def _gather(self, kv: KV, progress: Progress, deltas: pa.Table, timing: str, trigger: Trigger) -> None:
        """Add deltas that are not judged in this step."""
        self._append(kv, deltas)
        if self._waits(timing, trigger):
            progress.dirty.update(np.unique(combine(deltas.column(START)).to_numpy()).tolist())

    def _judge(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        dead: DeadLetters,
        deltas: pa.Table,
        timing: str,
        trigger: Trigger,
        now_us: int,
    ) -> None:
        starts = np.unique(combine(deltas.column(START)).to_numpy()).tolist()
        near = self.store.near(kv, starts, deltas.select([START, *self.definition.by]))
        rows = deltas.append_column(UPSERT, pa.array(np.zeros(len(deltas), dtype=bool)))
        parts, notes = list[pa.Table](), self._notes(not isinstance(trigger, EveryBatch))
        if near.rows is not None:
            rows, others = apart(self.calculation, concat([near.rows, rows]), len(near.rows))
            if len(others):
                mine = without(others, UPSERT) if near.merged else None
                parts = [self._merge(others, dead, notes=self._notes(True)) if mine is None else mine]
        rows = self._merge(rows, dead, notes=notes)
        moment = Moment(progress.step, now_us, moved=(progress.watermark_us, progress.watermark_us))
        fires = self._judged(kv, rows, moment).fires(trigger)
        if fires.any():
            chosen = rows if fires.all() else rows.filter(pa.array(fires))
            parts.append(self._fire(kv, progress, result, dead, chosen, timing))
        if not fires.all():
            parts.append(rows.filter(pa.array(~fires)))
            if self._waits(timing, trigger):
                progress.dirty.update(starts)
        self.store.put(kv, near, concat(parts))

    # -- advance ----------------------------------------------------------------------------------------------------

    def _fire_on_time(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        dead: DeadLetters,
        before_us: int,
        watermark_us: int,
    ) -> list[int]:
        """Fire the windows that the watermark passed; return the starts of those that stay pending."""
        emit = self.definition.emit
        starts = self._windows(kv, before_us, watermark_us)
        progress.watermark_us = watermark_us
        if not emit.on_time and emit.emits_late:
            self.due.end(kv, starts)
            return starts
        progress.dirty.difference_update(starts)
        if emit.on_time:

            def on_time(emitted: StepResult, rows: pa.Table) -> pa.Table:
                return self._fire(kv, progress, emitted, dead, rows, ON_TIME)

            self._fire_whole(kv, result, dead, starts, watermark_us, on_time)
            return []
        for chunk in chunks(starts):  # pending rows that no later pane would emit are emitted now
            self._emit_pending(kv, progress, result, dead, chunk, ON_TIME)
        return []

    def _emit_pending(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        dead: DeadLetters,
        starts: list[int],
        timing: str,
        *,
        closing: bool = False,
    ) -> None:
        """Fire rows that no pane has emitted yet; nothing else is read or written."""
        near = self.store.near(kv, starts, None)
        if near.rows is None:
            return
        rows = self._merge(near.rows, dead, notes=self._notes(False))
        waiting = combine(rows.column(PENDING)).to_numpy() > 0
        if waiting.any():
            after = self._fire(
                kv, progress, result, dead, rows.filter(pa.array(waiting)), timing, closing=closing
            )
            self.store.put(kv, near, concat([rows.filter(pa.array(~waiting)), after]))

    def _unsaid(self, kv: KV, dead: DeadLetters) -> set[int]:
        """Return the starts of all windows with messages that no pane has emitted."""
        found: set[int] = set()
        for chunk in chunks(self.store.starts(kv, START_OF_TIME_US, END_OF_TIME_US)):
            stored = self.store.near(kv, chunk, None).rows
            if stored is not None:
                rows = self._merge(stored, dead, notes=self._notes(False))
                waiting = combine(rows.column(PENDING)).to_numpy() > 0
                found.update(combine(rows.column(START)).to_numpy()[waiting].tolist())
        return found

    def _corrections(self, kv: KV, progress: Progress, dead: DeadLetters) -> list[pa.Table]:
        """Emit panes of windows that still take messages again, with the added aggregations."""
        if progress.schema is None or not self._owes(kv):
            return []
        said, recomputed = StepResult(), dict(self.definition.recomputed_us)
        watermark_us, emit = progress.watermark_us, self.definition.emit
        open_us = passed(watermark_us, self.definition.allowed_lateness_us)

        def again(emitted: StepResult, rows: pa.Table) -> pa.Table:
            ends = combine(rows.column(END)).to_numpy()
            early = ends > watermark_us
            fires = (
                (combine(rows.column(PANES)).to_numpy() > 0) & (ends > open_us) & (early | emit.emits_late)
            )
            parts = [rows.filter(pa.array(~fires))]
            for timing, mask in ((EARLY, early & fires), (LATE, ~early & fires)):
                chosen = rows.filter(pa.array(mask))
                parts.append(self._fire(kv, progress, emitted, dead, chosen, timing, not_emitted=recomputed))
            return concat([part for part in parts if len(part)])

        starts = self.store.starts(kv, progress.purged_us, max(recomputed.values()))
        self._fire_whole(kv, said, dead, starts, watermark_us, again)
        self._note_recomputed(kv)
        return together(said.panes, self.definition.by)

    def _close(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        dead: DeadLetters,
        before_us: int,
        watermark_us: int,
    ) -> None:
        """Close windows that pass their allowed lateness: emit pending rows, and the closing pane if asked for."""
        emit, lateness_us = self.definition.emit, self.definition.allowed_lateness_us
        if not emit.emits_late or not (self._closes or progress.dirty):
            return
        starts = self._windows(kv, passed(before_us, lateness_us), passed(watermark_us, lateness_us))
        if not self._closes:
            starts = [s for s in starts if s in progress.dirty]
        progress.dirty.difference_update(starts)
        if emit.closing_pane:

            def last(emitted: StepResult, rows: pa.Table) -> pa.Table:
                fires = ~self._ended(rows, result.ended)
                if not fires.any():
                    return rows
                fired = rows.filter(pa.array(fires))
                after = self._fire(kv, progress, emitted, dead, fired, LATE, closing=True)
                return concat([rows.filter(pa.array(~fires)), after])

            self._fire_whole(kv, result, dead, starts, watermark_us, last)
            return
        for chunk in chunks(starts):
            self._emit_pending(kv, progress, result, dead, chunk, LATE, closing=True)

    def _evict(self, kv: KV, progress: Progress, dead: DeadLetters, watermark_us: int) -> list[pa.Table]:
        """Evict the windows beyond the size limits; return their last panes."""
        by_start: dict[int, dict[bytes, int | None]] = {}
        for gone in self.limits.evict(kv, self._retention_floor(progress.watermark_us)):
            by_start.setdefault(gone.start, {})[gone.key] = gone.hashed
        if not by_start:
            return []
        emit = self.definition.emit
        said = StepResult()
        before_us, progress.watermark_us = progress.watermark_us, watermark_us
        closed_us = passed(before_us, self.definition.allowed_lateness_us)
        for start in sorted(by_start):
            known = [hashed for hashed in by_start[start].values() if hashed is not None]
            wanted = np.array(known, dtype=np.uint64) if len(known) == len(by_start[start]) else None
            near = self.store.near_hashes(kv, start, wanted)
            if near.rows is None:
                continue
            rows = self._merge(near.rows, dead, notes=self._notes(True))
            names = [rows.column(b) for b in self.limits.by]
            keys = encode_equal(names) if names else [b""] * len(rows)
            removed = np.array([k in by_start[start] for k in keys], dtype=bool)
            ends = combine(rows.column(END)).to_numpy()
            early, open_ = ends > watermark_us, ends > closed_us
            not_emitted = (ends > before_us) & self.definition.emits_evicted
            waiting = combine(rows.column(PENDING)).to_numpy() > 0
            for timing, trigger, mask in ((EARLY, emit.early, early), (LATE, emit.late, ~early)):
                emitted = (not isinstance(trigger, Never)) | not_emitted
                fires = waiting & emitted | open_ & emit.closing_pane
                fires &= removed & mask
                if fires.any():
                    self._fire(kv, progress, said, dead, rows.filter(pa.array(fires)), timing, closing=True)
            self.store.put(kv, near, rows.filter(pa.array(~removed)))
            if not self.store.starts(kv, start, start + 1):
                progress.dirty.discard(start)
        progress.watermark_us = before_us
        if self.history is not None:
            left = self.store.first_start(kv)
            if left is not None:
                self.history.drop(kv, left, exactly=True)
        return said.panes
