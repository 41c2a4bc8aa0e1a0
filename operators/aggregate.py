"""The windowed aggregator over time windows: two pure steps on a store. Seed 003 "Windowed Aggregator".

`advance(watermark, now)` fires, times out and expires; `ingest(rows, now)` files messages and fires what they fill. Both
read and write only the store they are given, so a step is a function of (state, input, now, watermark).

Incremental aggregations keep accumulators in the window metadata; if one needs the window's messages (a median), the
operator keeps a message store and computes every aggregation from it (the seed's full-state design).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.core.definition import UNBOUNDED_US, AggregateDefinition
from windrow.core.emit import EveryBatch, EveryCount, EveryPeriod, Never, Trigger
from windrow.core.keys import encode_columns
from windrow.core.time import START_OF_TIME_US
from windrow.operators.assigners import WindowAssigner, assigner_of
from windrow.operators.calculation import Broken, Calculation
from windrow.operators.columns import EARLY, END, IS_LAST, LATE, ON_TIME, PENDING, START, UPSERT
from windrow.operators.dead import AGGREGATE_FAILED, OUT_OF_RETENTION, TOO_LATE, DeadLetters
from windrow.operators.emission import fire
from windrow.operators.groups import combine
from windrow.operators.history import History
from windrow.operators.intake import Slice, event_time_marks, take_in
from windrow.operators.learning import learn
from windrow.operators.progress import Progress
from windrow.operators.size_limits import SizeLimits
from windrow.operators.state_rows import (
    Windows,
    delta_rows,
    in_window_order,
    merge_rows,
    merge_slices,
    without,
)
from windrow.stores.kv import KV, Batch
from windrow.stores.windows import BlockWindows, concat

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

#: A window with more blocks than this is folded when it is read.
FOLD_AT = 16
#: Windows are merged this many at a time, which bounds memory.
WINDOWS_AT_ONCE = 64


@dataclass
class StepResult:
    """What a step says to the world: panes, dead letters, event-time marks, counts."""

    panes: list[pa.Table] = field(default_factory=list)
    dead: pa.Table | None = None
    marks: dict[tuple[str, int], int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    #: (start, key) of windows whose last pane is among these, where a closing pane is asked for.
    ended: set[tuple[int, bytes]] = field(default_factory=set)

    def then(self, later: StepResult) -> StepResult:
        """This step and a later one, told together."""
        dead = [d for d in (self.dead, later.dead) if d is not None]
        counts = dict(self.counts)
        for name, n in later.counts.items():
            counts[name] = counts.get(name, 0) + n
        return StepResult(
            self.panes + later.panes,
            pa.concat_tables(dead) if dead else None,
            {**self.marks, **later.marks},
            counts,
            self.ended | later.ended,
        )


class Operator(Protocol):
    """The two pure steps, and what a store needs to know."""

    definition: Any

    def cfs(self) -> tuple[str, ...]:
        """The column families it keeps its state in."""
        ...

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult: ...

    def ingest(self, kv: KV, table: pa.Table, now_us: int) -> StepResult: ...


def limit(time_us: int, minus_us: int) -> int:
    """`time_us - minus_us` that stays an int64; what is unbounded reaches back to the start of time."""
    if minus_us >= UNBOUNDED_US:
        return START_OF_TIME_US
    return max(time_us - minus_us, START_OF_TIME_US)


class WindowAggregator:
    """One definition on one store. Holds no state of its own: everything is in the store it is given."""

    def __init__(self, definition: AggregateDefinition) -> None:
        self.definition = definition
        self.assigner: WindowAssigner = assigner_of(definition.window)
        self.windows_cf = f"{definition.name}.windows"
        self.aux_cf = f"{definition.name}.aux"
        self.history = History(definition) if definition.full_state else None
        self.store = BlockWindows(self.windows_cf)
        self.limits = SizeLimits(definition, self.aux_cf)
        self._calculation: Calculation | None = None

    def cfs(self) -> tuple[str, ...]:
        return (self.windows_cf, self.aux_cf, *(() if self.history is None else self.history.cfs))

    # -- steps ------------------------------------------------------------------------------------------------------

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Fire ON_TIME what the watermark passed, then the periods that `now` crossed, then close and purge."""
        progress, result, dead = self._begin(kv)
        before_us, now_before_us = progress.watermark_us, progress.now_us
        watermark_us = max(watermark_us, before_us)
        if progress.schema is not None:
            last_words = self._evict(kv, progress, dead, watermark_us) if self.limits.active else []
            self._fire_on_time(kv, progress, result, dead, before_us, watermark_us)
            if now_before_us is not None:
                self._tick(kv, progress, result, dead, now_before_us, now_us, watermark_us)
            told = len(result.panes)
            self._close(kv, progress, result, dead, before_us, watermark_us)
            if last_words:
                result.panes[told:] = together(result.panes[told:] + last_words, self.definition.by)
            self._purge(kv, progress, watermark_us)
        progress.watermark_us, progress.now_us = watermark_us, now_us
        return self._end(kv, progress, result, dead)

    def ingest(
        self, kv: KV, table: pa.Table, now_us: int, watermarks_us: IntArray | None = None
    ) -> StepResult:
        """File messages and fire what they fill.

        `watermarks_us`, one per row, stands for as many steps of one message each, between which nothing fires.
        """
        progress, result, dead = self._begin(kv)
        self._learn(progress, table.schema)
        rows = take_in(self.definition, table, now_us, dead) if watermarks_us is None else None
        if rows is None:
            rows, watermarks_us = self._take_in_run(table, now_us, dead, watermarks_us)
        if len(rows):
            self._file(
                kv,
                progress,
                result,
                dead,
                rows,
                progress.watermark_us if watermarks_us is None else watermarks_us,
            )
        progress.begin(now_us)
        return self._end(kv, progress, result, dead)

    def ingest_partials(
        self, kv: KV, slices: pa.Table, now_us: int, schema: pa.Schema, windows: Windows | None = None
    ) -> StepResult:
        """`ingest` of rows that were sorted out and pre-aggregated elsewhere (Spark) to state rows of slices.

        `windows` says which windows they are part of; a (slice, key) may have several rows.
        """
        progress, result, dead = self._begin(kv)
        self._learn(progress, schema)
        if windows is not None and len(windows.row_of):
            merged, broken = merge_slices(self.calculation, slices, windows)
            _bury_broken(merged, broken, self.definition, dead)
            self._add(kv, progress, result, dead, merged)
        progress.begin(now_us)
        return self._end(kv, progress, result, dead)

    def _begin(self, kv: KV) -> tuple[Progress, StepResult, DeadLetters]:
        progress = Progress.load(kv, self.aux_cf)
        progress.step += 1
        if progress.schema is not None:
            self._bind(progress.schema)
        return progress, StepResult(), DeadLetters(self.definition.dead_letter_limit)

    def _end(self, kv: KV, progress: Progress, result: StepResult, dead: DeadLetters) -> StepResult:
        batch = Batch()
        progress.save(lambda key, value: batch.put(self.aux_cf, key, value))
        kv.write(batch)
        result.dead = dead.table()
        for reason, n in dead.counts.items():
            result.counts[f"dead.{reason}"] = n
        return result

    def _learn(self, progress: Progress, schema: pa.Schema) -> None:
        progress.schema = learn(progress.schema, schema)
        self._bind(progress.schema)

    def _bind(self, schema: pa.Schema) -> None:
        if self._calculation is None or not self._calculation.schema.equals(schema):
            self._calculation = Calculation(self.definition, schema)

    @property
    def calculation(self) -> Calculation:
        assert self._calculation is not None, "no input was seen yet"
        return self._calculation

    # -- ingest -----------------------------------------------------------------------------------------------------

    def _take_in_run(
        self, table: pa.Table, now_us: int, dead: DeadLetters, watermarks_us: IntArray | None
    ) -> tuple[Slice, IntArray]:
        """As `take_in`, rows in order of arrival, each with its own watermark."""
        assert watermarks_us is not None
        marked = table.append_column("__watermark", pa.array(watermarks_us))
        rows = take_in(self.definition, marked, now_us, dead, sort=False)
        return rows, np.asarray(combine(rows.table.column("__watermark")).to_numpy(), dtype=np.int64)

    def _file(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        dead: DeadLetters,
        rows: Slice,
        watermark_us: int | IntArray,
    ) -> None:
        definition = self.definition
        row_of, starts, ends = self.assigner.assign(rows.times)
        floor = _limits(watermark_us, definition.allowed_lateness_us)
        open_ = ends > (floor if isinstance(floor, int) else floor[row_of])
        size_floor = self.limits.floors(kv, rows.table) if self.limits.active else None
        if size_floor is not None:
            open_ &= ends > size_floor[row_of]
        closed: IntArray | None = None
        if not open_.all():
            if self.history is not None:
                # The end up to which a message came too late for the windows that cover it.
                closed = np.full(len(rows), START_OF_TIME_US, dtype=np.int64)
                np.maximum.at(closed, row_of[~open_], ends[~open_])
            taken = np.bincount(row_of[open_], minlength=len(rows)) > 0
            covered = np.bincount(row_of, minlength=len(rows)) > 0
            lost = covered & ~taken
            if lost.any():
                self._bury_late(rows, np.flatnonzero(lost), row_of, ends, watermark_us, size_floor, dead)
            # What is a dead letter says nothing about how far its partition has come.
            result.marks = dict(event_time_marks(rows.take(np.flatnonzero(~lost))))
            row_of, starts, ends = row_of[open_], starts[open_], ends[open_]
        else:
            result.marks = dict(event_time_marks(rows))
        if len(row_of) == 0:
            return
        kept = np.bincount(row_of, minlength=len(rows)) > 0
        if not kept.all():
            chosen = np.flatnonzero(kept)
            rows = rows.take(chosen)
            row_of = (np.cumsum(kept) - 1)[row_of]
            closed = None if closed is None else closed[chosen]
        deltas, groups, broken = delta_rows(
            self.calculation, rows, row_of, starts, ends, in_position_order=isinstance(watermark_us, int)
        )
        if broken:
            deltas = self._bury_failed(rows, row_of, groups, deltas, broken, dead)
        if self.history is not None:
            self.history.add(kv, rows, progress.step, self.calculation, closed=closed)
        self._add(kv, progress, result, dead, deltas)

    def _bury_late(
        self,
        rows: Slice,
        lost: IntArray,
        row_of: IntArray,
        ends: IntArray,
        watermark_us: int | IntArray,
        size_floor: IntArray | None,
        dead: DeadLetters,
    ) -> None:
        retention_us = self.definition.retention.time_us
        newest = np.full(len(rows), START_OF_TIME_US, dtype=np.int64)
        np.maximum.at(newest, row_of, ends)
        gone = np.zeros(len(rows), dtype=bool)
        if retention_us is not None:
            gone = newest <= _limits(watermark_us, retention_us)
        if size_floor is not None:
            gone |= newest <= size_floor
        times = pa.array(rows.times)
        dead.add_rows(
            OUT_OF_RETENTION,
            "every window of its event time is out of retention",
            rows.table,
            lost[gone[lost]],
            times,
        )
        dead.add_rows(
            TOO_LATE,
            "every window of its event time is past its allowed lateness",
            rows.table,
            lost[~gone[lost]],
            times,
        )

    def _bury_failed(
        self,
        rows: Slice,
        row_of: IntArray,
        groups: Any,
        deltas: pa.Table,
        broken: list[Broken],
        dead: DeadLetters,
    ) -> pa.Table:
        """Messages of a (key, window) on which the user's code raised go to the dead letters; its state stays."""
        import traceback

        bad = np.zeros(groups.size, dtype=bool)
        for b in broken:
            if bad[b.group]:
                continue
            bad[b.group] = True
            text = "".join(traceback.format_exception(b.error)[-6:])
            members = np.unique(row_of[groups.codes == b.group])
            dead.add_rows(AGGREGATE_FAILED, f"{b.alias}: {text}", rows.table, members, pa.array(rows.times))
        return deltas.filter(pa.array(~bad))

    def _add(
        self, kv: KV, progress: Progress, result: StepResult, dead: DeadLetters, deltas: pa.Table
    ) -> None:
        """File deltas; (key, window)s whose trigger looks at every step are judged now."""
        if self.limits.active:
            self.limits.note(kv, deltas)
        emit = self.definition.emit
        late = combine(deltas.column(END)).to_numpy() <= progress.watermark_us
        for timing, trigger, mask in ((EARLY, emit.early, ~late), (LATE, emit.late, late)):
            if not mask.any():
                continue
            part = deltas if mask.all() else deltas.filter(pa.array(mask))
            if isinstance(trigger, (EveryBatch, EveryCount)):
                self._judge(kv, progress, result, dead, part, timing, trigger)
                continue
            self.store.append(kv, part, upsert=False)
            waits = isinstance(trigger, EveryPeriod) or (timing == EARLY and not emit.on_time)
            if waits:
                progress.dirty.update(np.unique(combine(part.column(START)).to_numpy()).tolist())
        result.panes = together(result.panes, self.definition.by)

    def _judge(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        dead: DeadLetters,
        deltas: pa.Table,
        timing: str,
        trigger: Trigger,
    ) -> None:
        starts = np.unique(combine(deltas.column(START)).to_numpy()).tolist()
        stored = self.store.read(kv, starts)
        fresh = deltas.append_column(UPSERT, pa.array(np.zeros(len(deltas), dtype=bool)))
        together = fresh if stored is None else concat([stored, fresh])
        merged, broken = merge_rows(self.calculation, together, 0 if stored is None else len(stored))
        _bury_broken(merged, broken, self.definition, dead)
        pending = combine(merged.column(PENDING)).to_numpy()
        fires = pending >= (trigger.n if isinstance(trigger, EveryCount) else 1)
        rows = merged
        if fires.any():
            chosen = merged if fires.all() else merged.filter(pa.array(fires))
            after = self._fire(kv, progress, result, dead, chosen, timing)
            rows = after if fires.all() else concat([after, merged.filter(pa.array(~fires))])
        if timing == EARLY and not fires.all() and not self.definition.emit.on_time:
            progress.dirty.update(starts)  # what waits is told after the end of its window
        self.store.append(kv, rows, upsert=True)
        self._fold(kv, starts)

    def _fold(self, kv: KV, starts: list[int]) -> None:
        """Windows of many blocks become one block: a left fold in commit order."""
        for start in starts:
            if self.store.blocks(kv, start) > FOLD_AT:
                stored = self.store.read(kv, [start])
                if stored is not None:
                    merged, _ = merge_rows(self.calculation, stored)
                    self.store.replace(kv, start, merged)

    # -- advance ----------------------------------------------------------------------------------------------------

    def _windows(self, kv: KV, after_us: int, up_to_us: int) -> list[int]:
        """Starts of stored windows with `after < end <= up_to`."""
        if up_to_us <= after_us:
            return []
        return self.store.starts(kv, self.assigner.first_open(after_us), self.assigner.first_open(up_to_us))

    def _merged(self, kv: KV, starts: list[int], dead: DeadLetters) -> pa.Table | None:
        stored = self.store.read(kv, starts)
        if stored is None:
            return None
        merged, broken = merge_rows(self.calculation, stored)
        _bury_broken(merged, broken, self.definition, dead)
        return merged

    def _fire_on_time(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        dead: DeadLetters,
        before_us: int,
        watermark_us: int,
    ) -> None:
        emit = self.definition.emit
        starts = self._windows(kv, before_us, watermark_us)
        progress.watermark_us = watermark_us
        if not emit.on_time and not isinstance(emit.late, Never):
            return
        for chunk in _chunks(starts):
            rows = self._merged(kv, chunk, dead)
            if rows is None:
                continue
            silent: pa.Table | None = None
            if not emit.on_time:
                # What is pending and will find nobody to say it later is said now.
                waiting = combine(rows.column(PENDING)).to_numpy() > 0
                if not waiting.any():
                    continue
                silent, rows = rows.filter(pa.array(~waiting)), rows.filter(pa.array(waiting))
            rows = self._fire(kv, progress, result, dead, rows, ON_TIME)
            if silent is not None and len(silent):
                rows = concat([silent, rows])
            self._rewrite(kv, progress, chunk, rows, watermark_us)
            progress.dirty.difference_update(chunk)

    def _rewrite(
        self, kv: KV, progress: Progress, starts: list[int], rows: pa.Table, watermark_us: int
    ) -> None:
        """Store the rows of whole windows, unless nothing can ask for them any more, not even this step."""
        kept_from = self.assigner.first_open(self._retention_floor(watermark_us))
        if self._closes:
            kept_from = START_OF_TIME_US
        if not starts or starts[-1] < kept_from:
            return
        column = combine(rows.column(START)).to_numpy()
        order = np.argsort(column, kind="stable")
        column = column[order]
        rows = rows.take(pa.array(order))
        for start in starts:
            if start < kept_from:
                continue
            low, high = np.searchsorted(column, [start, start + 1])
            self.store.replace(kv, start, rows.slice(int(low), int(high - low)))

    def _tick(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        dead: DeadLetters,
        now_before_us: int,
        now_us: int,
        watermark_us: int,
    ) -> None:
        """Periods tick on one grid of `now` for the whole definition."""
        emit = self.definition.emit
        early = _crossed(emit.early, now_before_us, now_us)
        late = _crossed(emit.late, now_before_us, now_us)
        if not (early or late) or not progress.dirty:
            return
        told = len(result.panes)
        starts = np.array(sorted(progress.dirty), dtype=np.int64)
        open_ = self.assigner.ends(starts) > watermark_us
        for timing, ticks, which in ((EARLY, early, open_), (LATE, late, ~open_)):
            if not ticks:
                continue
            due = starts[which].tolist()
            for chunk in _chunks(due):
                rows = self._merged(kv, chunk, dead)
                if rows is None:
                    continue
                waiting = combine(rows.column(PENDING)).to_numpy() > 0
                if waiting.any():
                    after = self._fire(kv, progress, result, dead, rows.filter(pa.array(waiting)), timing)
                    rows = concat([rows.filter(pa.array(~waiting)), after])
                    self._rewrite(kv, progress, chunk, rows, watermark_us)
            progress.dirty.difference_update(due)
        result.panes[told:] = together(result.panes[told:], self.definition.by)

    def _close(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        dead: DeadLetters,
        before_us: int,
        watermark_us: int,
    ) -> None:
        """Windows that pass their allowed lateness: what is pending is said, and the closing pane if asked for."""
        emit, lateness_us = self.definition.emit, self.definition.allowed_lateness_us
        if not (self._closes or isinstance(emit.late, EveryPeriod)) or lateness_us >= UNBOUNDED_US:
            return
        starts = self._windows(kv, limit(before_us, lateness_us), limit(watermark_us, lateness_us))
        if not self._closes:
            starts = [s for s in starts if s in progress.dirty]
        for chunk in _chunks(starts):
            rows = self._merged(kv, chunk, dead)
            if rows is None:
                continue
            waiting = combine(rows.column(PENDING)).to_numpy() > 0
            speaks = ~self._ended(rows, result.ended) if emit.closing_pane else waiting
            if speaks.any():
                fired = rows.filter(pa.array(speaks))
                after = self._fire(kv, progress, result, dead, fired, LATE, closing=True)
                rows = concat([rows.filter(pa.array(~speaks)), after])
            self._rewrite(kv, progress, chunk, rows, watermark_us)
            progress.dirty.difference_update(chunk)

    @property
    def _closes(self) -> bool:
        """True if a window may have to speak when it closes, though it waits for no period."""
        emit = self.definition.emit
        return (
            emit.closing_pane
            or isinstance(emit.late, EveryCount)
            or (isinstance(emit.late, EveryBatch) and not emit.on_time)
        )

    def _ended(self, rows: pa.Table, ended: set[tuple[int, bytes]]) -> BoolArray:
        """True for rows whose last pane was sent in this step."""
        if not ended:
            return np.zeros(len(rows), dtype=bool)
        return np.array([row in ended for row in self._names(rows)], dtype=bool)

    def _names(self, rows: pa.Table) -> list[tuple[int, bytes]]:
        by = self.definition.by
        keys = encode_columns([rows.column(b) for b in by]) if by else [b""] * len(rows)
        return list(zip(rows.column(START).to_pylist(), keys, strict=True))

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
    ) -> pa.Table:
        emit, watermark_us = self.definition.emit, progress.watermark_us
        ends = combine(rows.column(END)).to_numpy()
        is_last = ends <= limit(watermark_us, self.definition.allowed_lateness_us)
        if timing == ON_TIME and isinstance(emit.late, Never) and not emit.closing_pane:
            is_last = np.ones(len(rows), dtype=bool)
        if timing == EARLY:
            is_last = np.zeros(len(rows), dtype=bool)
        if closing:
            is_last = np.ones(len(rows), dtype=bool)

        def values_of(state: pa.Table) -> tuple[dict[str, pa.Array], list[Broken]]:
            if self.history is not None:
                return self.history.values(kv, state, self.calculation, self.assigner)
            return self.calculation.finish({n: state.column(n) for n in state.column_names}, len(state))

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
        )
        if fired.panes is not None:
            result.panes.append(fired.panes)
            if self.definition.emit.closing_pane and not closing:
                last = fired.panes.filter(fired.panes.column(IS_LAST))
                result.ended.update(self._names(last))
        return fired.rows

    def _evict(self, kv: KV, progress: Progress, dead: DeadLetters, watermark_us: int) -> list[pa.Table]:
        """Drop what the size limits put out of retention; returns what it had still to say."""
        by_start: dict[int, set[bytes]] = {}
        for key, start in self.limits.evict(kv, self._retention_floor(progress.watermark_us)):
            by_start.setdefault(start, set()).add(key)
        if not by_start:
            return []
        emit = self.definition.emit
        said = StepResult()
        before_us, progress.watermark_us = progress.watermark_us, watermark_us
        for start in sorted(by_start):
            rows = self._merged(kv, [start], dead)
            if rows is None:
                continue
            names = [rows.column(b) for b in self.limits.by]
            keys = encode_columns(names) if names else [b""] * len(rows)
            goes = np.array([k in by_start[start] for k in keys], dtype=bool)
            early = combine(rows.column(END)).to_numpy() > watermark_us
            waiting = goes & (combine(rows.column(PENDING)).to_numpy() > 0)
            for timing, trigger, mask in ((EARLY, emit.early, early), (LATE, emit.late, ~early)):
                speaks = waiting & mask
                if speaks.any() and not isinstance(trigger, Never):
                    self._fire(kv, progress, said, dead, rows.filter(pa.array(speaks)), timing, closing=True)
            self.store.replace(kv, start, rows.filter(pa.array(~goes)))
            if goes.all():
                progress.dirty.discard(start)
        progress.watermark_us = before_us
        if self.history is not None:
            left = self.store.first_start(kv)
            if left is not None:
                self.history.drop(kv, left)
        return said.panes

    # -- retention --------------------------------------------------------------------------------------------------

    def _retention_floor(self, watermark_us: int) -> int:
        """Windows that end at or before it are out of retention."""
        time_us = self.definition.retention.time_us
        return START_OF_TIME_US if time_us is None else limit(watermark_us, time_us)

    def _purge(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        kept_from = self.assigner.first_open(self._retention_floor(watermark_us))
        if kept_from <= progress.purged_us:
            return
        self.store.drop(kv, progress.purged_us, kept_from)
        if self.history is not None:
            self.history.drop(kv, kept_from)
        if self.limits.active:
            self.limits.forget(kv, self._retention_floor(watermark_us))
        progress.dirty = {s for s in progress.dirty if s >= kept_from}
        progress.purged_us = kept_from

    # -- queries ----------------------------------------------------------------------------------------------------

    def state(self, kv: KV, low_us: int, high_us: int) -> tuple[pa.Table | None, dict[str, pa.Array]]:
        """State rows of retained windows that start in `[low, high)`, merged, and their present values."""
        progress = Progress.load(kv, self.aux_cf)
        if progress.schema is None:
            return None, {}
        self._bind(progress.schema)
        dead = DeadLetters(0)
        low_us = max(low_us, progress.purged_us)
        rows = self._merged(kv, self.store.starts(kv, low_us, high_us), dead)
        if rows is None:
            return None, {}
        rows = without(rows, UPSERT)
        if self.history is not None:
            values, _ = self.history.values(kv, rows, self.calculation, self.assigner)
        else:
            values, _ = self.calculation.finish({n: rows.column(n) for n in rows.column_names}, len(rows))
        return rows, values


def _limits(watermark_us: int | IntArray, minus_us: int) -> Any:
    if isinstance(watermark_us, int):
        return limit(watermark_us, minus_us)
    if minus_us >= UNBOUNDED_US:
        return np.full(len(watermark_us), START_OF_TIME_US, dtype=np.int64)
    low = START_OF_TIME_US + minus_us
    return np.where(watermark_us < low, START_OF_TIME_US, np.maximum(watermark_us, low) - minus_us)


def together(panes: list[pa.Table], by: tuple[str, ...]) -> list[pa.Table]:
    """Panes of several firings as one, by start, end and key; a retraction stays before its insertion."""
    if len(panes) < 2:
        return panes
    table = concat(panes)
    return [table.take(pa.array(in_window_order(table, by)))]


def _crossed(trigger: Trigger, before_us: int, now_us: int) -> bool:
    """True if `now` crossed a multiple of the trigger's period."""
    return isinstance(trigger, EveryPeriod) and now_us // trigger.period_us > before_us // trigger.period_us


def _chunks(starts: list[int]) -> list[list[int]]:
    return [starts[i : i + WINDOWS_AT_ONCE] for i in range(0, len(starts), WINDOWS_AT_ONCE)]


def _bury_broken(
    rows: pa.Table, broken: list[Broken], definition: AggregateDefinition, dead: DeadLetters
) -> None:
    for b in broken:
        row = rows.slice(b.group, 1)
        payload = {
            "window": [row.column(START)[0].as_py(), row.column(END)[0].as_py()],
            "key": {k: row.column(k)[0].as_py() for k in definition.by},
        }
        dead.add(AGGREGATE_FAILED, f"{b.alias}: {b.error!r}", payload)
