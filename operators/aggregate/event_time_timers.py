"""Event-time timers of stored windows: they are read, merged, fired, written back and purged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.emit import EveryBatch, EveryPeriod, Never
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate import external_sort
from windrow.operators.aggregate.assignment import bury_broken
from windrow.operators.aggregate.base import Steps
from windrow.operators.aggregate.count_retention import SizeLimits
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.emitter import fire
from windrow.operators.aggregate.kept_messages_by_key import KeyedHistory
from windrow.operators.aggregate.output import sorted_states
from windrow.operators.aggregate.state_rows import merge_rows
from windrow.operators.aggregate.triggers import Due, Judged, Moment
from windrow.operators.aggregations.calculation import Broken
from windrow.operators.steps.assigners import WindowAssigner, assigner_of
from windrow.operators.steps.columns import EARLY, END, IS_LAST, ON_TIME, START, UPSERT
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import combine, without
from windrow.operators.steps.ids import SeenIds
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import (
    StepResult,
    limit,
    passed,
)
from windrow.operators.view import one_key
from windrow.stores.delta_blocks import BlockWindows
from windrow.stores.kv import KV
from windrow.stores.spill import Away, Spill
from windrow.stores.spill_partitions import Chunk, grouped, of_keys_apart


class StoredWindows(Steps):
    """The stored time windows of one definition, as delta blocks."""

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
        kv: KV,
        result: StepResult,
        dead: DeadLetters,
        starts: Sequence[int],
        watermark_us: int,
        fire_rows: Callable[[StepResult, pa.Table], pa.Table],
    ) -> None:
        """Fire windows with all of their keys, in slices, so that memory is bounded by the slice, not by the window.

        fire_rows: fires merged rows, and returns the rows after
        """
        emitted = Away(result.panes, external_sort.SLICE_BYTES)
        # The messages of a window are read at once: where they are kept the window is not divided.
        most = external_sort.SLICE_BYTES if self.history is None else sys.maxsize
        for chunk in self.store.chunks(kv, starts, most):
            if chunk.shares is not None:
                self._fire_shares(kv, result, dead, chunk.starts[0], chunk.shares, watermark_us, fire_rows)
            elif chunk.rows is not None:
                rows = fire_rows(result, self._merge(chunk.rows, dead, notes=self._notes(False)))
                self._rewrite(kv, chunk.starts, rows, watermark_us)
            emitted.gathered()

    def _fire_shares(
        self,
        kv: KV,
        result: StepResult,
        dead: DeadLetters,
        start: int,
        shares: Spill,
        watermark_us: int,
        fire_rows: Callable[[StepResult, pa.Table], pa.Table],
    ) -> None:
        """Fire one large window, some partitions of its keys at a time."""
        by, most = self.definition.by, external_sort.SLICE_BYTES
        left = Spill() if start >= self._stored_from(watermark_us) else None

        def runs() -> Iterator[pa.Table]:
            for number, stored in enumerate(grouped(shares, most)):
                said = StepResult(ended=result.ended)
                if of_keys_apart(stored, self.store.by):
                    merged = without(stored, UPSERT)
                else:
                    merged = self._merge(stored, dead, notes=self._notes(False))
                rows = fire_rows(said, merged)
                if left is not None:
                    left.add(rows, number)
                yield from said.panes

        panes = external_sort.in_order(runs(), by, most)
        if panes is not None:
            result.panes.append(panes)
        if left is not None:
            self.store.replace_by_shares(kv, start, left)

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
        kv: KV,
        progress: Progress,
        result: StepResult,
        dead: DeadLetters,
        rows: pa.Table,
        timing: str,
        *,
        closing: bool = False,
        always: bool = False,
        not_emitted: Collection[str] = (),
    ) -> pa.Table:
        """Fire rows. not_emitted: aggregations that no pane has emitted yet."""
        emit, watermark_us = self.definition.emit, progress.watermark_us
        ends = combine(rows.column(END)).to_numpy()
        is_last = ends <= passed(watermark_us, self.definition.allowed_lateness_us)
        if timing == ON_TIME and not emit.emits_late:
            is_last = np.ones(len(rows), dtype=bool)
        if timing == EARLY:
            is_last = np.zeros(len(rows), dtype=bool)
        if closing:
            is_last = np.ones(len(rows), dtype=bool)

        def values_of(state: pa.Table) -> tuple[dict[str, pa.Array], list[Broken]]:
            return self._values(kv, state)

        def last_values(state: pa.Table) -> tuple[dict[str, pa.Array], list[Broken]]:
            assert self.history is not None
            emitted, broken = self.history.values(kv, state, self.calculation, self.assigner, emitted=True)
            return {
                a: pa.nulls(len(v), v.type) if a in not_emitted else v for a, v in emitted.items()
            }, broken

        fired = fire(
            self.definition,
            self.calculation,
            rows,
            values_of,
            timing=timing,
            is_last=is_last,
            closing=closing,
            step=progress.step,
            dead=dead,
            last_values=None if self.history is None else last_values,
            always=always,
        )
        if fired.panes is not None:
            result.panes.append(fired.panes)
            if self.definition.emit.closing_pane and not closing:
                last = fired.panes.filter(fired.panes.column(IS_LAST))
                result.ended.update(self._names(last))
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
        by, most = self.definition.by, external_sort.SLICE_BYTES if self.history is None else sys.maxsize
        starts = self.store.starts(kv, max(low_us, progress.purged_us), high_us)
        keys = None if key is None else one_key(by, key, self.seen_schema(progress.schema))
        if keys is not None:
            some = self.store.read(kv, starts, keys)
            chunks = iter([Chunk(starts, some, None)] if some is not None and len(some) else [])
        else:
            chunks = self.store.chunks(kv, starts, most)
        for chunk in chunks:
            if chunk.shares is None:
                if chunk.rows is not None:
                    yield self._valued(kv, chunk.rows)
                continue
            found = external_sort.in_order(
                (self._valued(kv, rows) for rows in grouped(chunk.shares, most)), by, most
            )
            if found is not None:
                yield found

    def _valued(self, kv: KV, stored: pa.Table) -> pa.Table:
        """Return stored rows, merged and sorted, with their values."""
        rows = without(self._merge(stored, DeadLetters(0), notes=self._notes(False)), UPSERT)
        return sorted_states(self.definition, rows, self._values(kv, rows)[0])
