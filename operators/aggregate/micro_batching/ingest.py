"""Ingest of a run of single messages as one, over time windows and over tuples. It stores, emits and drops the same rows as the
steps would one after the other, but writes the state once.

Accumulators of a window are a left fold over its messages. If neighbours may be merged first without a change of bits, a
message does not cost a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray
from windrow.core.emit import EveryBatch, EveryPeriod, Trigger, by_step
from windrow.core.messages import Position
from windrow.core.policy import UNBOUNDED_US
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.core.windows import Hopping
from windrow.operators.aggregate.assignment import Filed, file_rows
from windrow.operators.aggregate.base import Steps
from windrow.operators.aggregate.logic import WindowAggregator
from windrow.operators.aggregate.micro_batching.entries import Entries
from windrow.operators.aggregate.prefix_firing import Judge, Judged, Rule, in_message_order
from windrow.operators.aggregate.state_rows import apart, delta_rows
from windrow.operators.aggregate.timing import by_timing, edges_at
from windrow.operators.aggregate.tuples import TupleAggregator
from windrow.operators.aggregations.calculation import Broken
from windrow.operators.steps.columns import ARRIVED, EARLY, MALFORMED_ROW, START, UPSERT
from windrow.operators.steps.groups import Groups, combine, without
from windrow.operators.steps.ids import SeenIds
from windrow.operators.steps.intake import Slice, countable, countable_rows, event_time_marks
from windrow.operators.steps.micro_batching import STEPS, Run, Runs
from windrow.operators.steps.step import StepResult, limit, passed
from windrow.operators.steps.watermarks import idle_partitions, watermark_of, watermark_us
from windrow.stores.kv import KV, Batch


class Taken:
    """The rows of a run that count, in order of arrival, and the message that each of them is."""

    def __init__(self, operator: Steps, kv: KV, table: pa.Table, run: Run) -> None:
        self.operator, self.kv, self.run = operator, kv, run
        self.work = work = operator._begin(kv, run.nows_us[0])
        self.progress, self.result, self.dead = work.progress, work.result, work.dead
        self.dead.of_run = True
        table = operator._learnt(self.progress, table)
        table = table.append_column(ARRIVED, pa.array(np.arange(len(table), dtype=np.int64)))
        nows_us = np.array(run.nows_us, dtype=np.int64)
        rows = countable_rows(operator.definition, table, nows_us, self.dead, sort=False)
        self.rows = rows if operator.seen is None else self._new(rows)

    def _new(self, rows: Slice) -> Slice:
        """Return rows without duplicates; the ids of the others are remembered."""
        seen, fresh = self.operator.seen, np.array(self.run.fresh, dtype=bool)[self.arrived(rows)]
        assert seen is not None
        if not fresh.all():
            self.result.counts["duplicates"] = int((~fresh).sum())
            rows = rows.take(np.flatnonzero(fresh))
        if len(rows):
            floor_us = self.operator._kept_from(self.progress)
            seen.remember(self.kv, seen.names(rows.table), rows.times.tolist(), floor_us)
        return rows

    def arrived(self, rows: Slice) -> IntArray:
        """Return the index in the run of the message of each row."""
        return np.asarray(combine(rows.table.column(ARRIVED)).to_numpy(), dtype=np.int64)

    def step_of(self, at: IntArray) -> IntArray:
        """Return the number of the step that processed each of these messages."""
        return self.progress.step + STEPS * at

    def nows_of(self, at: IntArray) -> IntArray:
        """Return `now` of the step that processed each of these messages."""
        return np.array(self.run.nows_us, dtype=np.int64)[at]

    def end(self) -> StepResult:
        """End the ingest. The advance of the last message is still to come."""
        self.progress.step += STEPS * (len(self.run) - 1)
        self.progress.begin(self.run.nows_us[0])
        return self.operator._end(self.work)


# -- time windows -----------------------------------------------------------------------------------------------------


def ingest_windows(operator: WindowAggregator, kv: KV, table: pa.Table, run: Run) -> StepResult:
    """Ingest a run over time windows."""
    taken = Taken(operator, kv, table, run)
    rows = taken.rows
    if len(rows):
        watermarks_us = np.array(run.watermarks_us, dtype=np.int64)[taken.arrived(rows)]
        filed = file_rows(operator.definition, operator.assigner, rows, watermarks_us, None, taken.dead)
        taken.result.marks = filed.marks
        if len(filed.row_of):
            _file(operator, taken, filed)
    return taken.end()


def _file(operator: WindowAggregator, taken: Taken, filed: Filed) -> None:
    emit, kv = operator.definition.emit, taken.kv
    edges = edges_at(operator.definition, taken.progress.watermark_us)
    at = taken.arrived(filed.rows)
    emitted: list[Judged] = []
    for timing, trigger, mask in by_timing(emit, filed.ends, edges):
        singly = by_step(trigger)
        row_of = filed.row_of[mask]
        deltas, groups, broken = delta_rows(
            operator.calculation,
            filed.rows,
            row_of,
            filed.starts[mask],
            filed.ends[mask],
            in_position_order=False,
            each=singly or not operator.calculation.regroups,
        )
        assert not broken, "code of the user's does not run in runs"
        if operator.due.active:
            # Of several messages the first is the one that is pending longest.
            nows_us = taken.nows_of(at[row_of[groups.first_rows]])
            deltas = operator.due.waiting_since(kv, deltas, nows_us)
        if singly:
            entries = Entries(deltas, at[row_of], taken.step_of(at[row_of]))
            emitted.append(_judge(operator, taken, entries, trigger, timing))
        else:
            operator._gather(taken.work, deltas, timing, trigger)
    if operator.history is not None:
        operator.history.add(kv, filed.rows, taken.step_of(at), operator.calculation, closed=filed.closed)
    taken.result.panes = in_message_order(emitted)


def _judge(
    operator: WindowAggregator, taken: Taken, entries: Entries, trigger: Trigger, timing: str
) -> Judged:
    """Judge each message as `_judge` would, with one read of the store."""
    kv, calculation, dead, deltas = taken.kv, operator.calculation, taken.dead, entries.rows
    by = operator.definition.by
    keys = _distinct(deltas, by)
    starts = np.unique(combine(deltas.column(START)).to_numpy()).tolist()
    near = operator.store.near(kv, starts, keys)
    rule = Rule(trigger, timing, operator._notes(not isinstance(trigger, EveryBatch)))
    parts, stored = list[pa.Table](), None
    if near.rows is not None:
        fresh = deltas.append_column(UPSERT, pa.array(np.zeros(len(deltas), dtype=bool)))
        touched, others = apart(calculation, concat([near.rows, fresh]), len(near.rows))
        if len(others):
            parts.append(operator._merge(others, dead, notes=operator._notes(True)))
        first = len(touched) - len(deltas)
        entries = Entries(without(touched.slice(first), UPSERT), entries.at, entries.steps)
        if first:
            stored = operator._merge(touched.slice(0, first), dead, notes=rule.notes)
    judge = Judge(
        operator.definition, calculation, stored, entries, rule, dead, lambda rows: _finished(operator, rows)
    )
    judged = judge.judged()
    operator.store.put(kv, near, concat([*parts, judged.rows]))
    if operator._waits(timing, trigger) and judged.waits.any():
        waiting = np.isin(entries.at, entries.at[judged.waits])
        taken.progress.dirty.update(np.unique(combine(deltas.column(START)).to_numpy()[waiting]).tolist())
    return judged


def _finished(operator: WindowAggregator, rows: pa.Table) -> tuple[dict[str, pa.Array], list[Broken]]:
    return operator.calculation.finish({n: rows.column(n) for n in rows.column_names}, len(rows))


def _distinct(deltas: pa.Table, by: tuple[str, ...]) -> pa.Table:
    """Return each (window, key) once."""
    keys = deltas.select([START, *by])
    first = Groups(keys.columns, len(keys)).first_rows
    return keys.take(pa.array(first))


# -- tuples -----------------------------------------------------------------------------------------------------------


def ingest_tuples(operator: TupleAggregator, kv: KV, table: pa.Table, run: Run) -> StepResult:
    """Ingest a run over tuples, which are numbered in order of arrival."""
    taken = Taken(operator, kv, table, run)
    taken.result.marks = dict(event_time_marks(taken.rows))
    if len(taken.rows):
        _file_tuples(operator, taken)
    return taken.end()


def _file_tuples(operator: TupleAggregator, taken: Taken) -> None:
    kv, rows, early = taken.kv, taken.rows, operator.definition.emit.early
    counted = Batch()
    numbers = operator._number(kv, rows, counted)
    kv.write(counted)
    row_of, firsts = operator._assign(numbers)
    deltas, _, broken = delta_rows(
        operator.calculation,
        rows,
        row_of,
        firsts,
        firsts + operator.size - 1,
        in_position_order=False,
        each=True,
    )
    assert not broken, "code of the user's does not run in runs"
    at = taken.arrived(rows)
    if operator.history is not None:
        operator.history.add(kv, rows, taken.step_of(at), operator.calculation, numbers)
    stored = operator.store.read(kv, _distinct(deltas, operator.definition.by))
    judge = Judge(
        operator.definition,
        operator.calculation,
        None if stored is None else without(stored, UPSERT),
        Entries(deltas, at[row_of], taken.step_of(at[row_of])),
        Rule(early, EARLY, operator._notes(not isinstance(early, EveryBatch)), operator.size),
        taken.dead,
        lambda state: operator._values(kv, state),
        None if operator.history is None else lambda state: operator._values(kv, state, emitted=True),
    )
    judged = judge.judged()
    operator.store.put(kv, judged.rows)
    if judged.waits.any():
        operator._note_waiting(kv, deltas.filter(pa.array(judged.waits)))
    taken.result.panes = in_message_order([judged])


S = TypeVar("S", bound="Steps")


class _Seen:
    """The duplicates of a run: messages whose ids were seen, and are not forgotten yet."""

    def __init__(self, seen: SeenIds, kv: KV, table: pa.Table, floor_us: int) -> None:
        self._names = seen.names(table)
        times = np.zeros(0, dtype=np.int64)
        known = seen.known(kv, self._names, times, floor_us)
        self._newest_us = {name: max(times_us) for name, times_us in known.items()}

    def is_new(self, row: int, time_us: int, floor_us: int) -> bool:
        """True for a message whose ids are new; they are remembered."""
        name = self._names[row]
        before_us = self._newest_us.get(name)
        if before_us is not None and before_us >= floor_us:
            return False
        if time_us >= floor_us:
            self._newest_us[name] = time_us
        return True


class AggregateRuns(Runs, Generic[S]):
    """The runs of an aggregate. Over tuples only a period of `now` ends a run."""

    def __init__(
        self,
        operator: S,
        kv: KV,
        largest_us: Mapping[Partition, int],
        seen_us: Mapping[Partition, int],
        watermark: int,
        now_us: int | None,
    ) -> None:
        self._operator, self.definition = operator, operator.definition
        self._kv, self._seen = kv, operator.seen
        #: A run is taken in position order, which must then be the order of arrival.
        self._by_arrival = any(a.kind == "any_value" for a in self.definition.agg.values())
        self.largest_us, self.seen_us = dict(largest_us), dict(seen_us)
        self.watermark_us = watermark
        self._now_us = now_us
        own = self.definition.watermark
        #: The watermark is unchanged while no partition has advanced since it was computed.
        self._steady = own.idle_us is None and own.kind in ("bounded", "explicit")
        self._looked = False
        leaves = self.definition.emit.leaves
        self._periods_us = sorted({leaf.period_us for leaf in leaves if isinstance(leaf, EveryPeriod)})
        self._purged_us = operator.progress(kv).purged_us
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Compute the watermark at which something happens next, and the event times that are too old by then."""
        self._next_event_us, self._open_from_us, self._floor_us = (
            END_OF_TIME_US + 1,
            START_OF_TIME_US,
            START_OF_TIME_US,
        )

    def cut(self, table: pa.Table, positions: Sequence[Position], nows_us: Sequence[int]) -> Iterator[Run]:
        seen = None if self._seen is None else _Seen(self._seen, self._kv, table, self._floor_us)
        run = Run(0)
        for i, (time_us, position, now_us) in enumerate(
            zip(self._times(table, nows_us), positions, nows_us, strict=True)
        ):
            if not run.positions:
                self._begin_run()
            alone = self._is_own_run(time_us)
            if run.positions and (alone or (self._by_arrival and position < run.positions[-1])):
                yield run
                run = Run(i)
                self._begin_run()
            run.uncertain = alone and self._is_uncertain(time_us)
            if seen is not None:
                new = time_us is None or seen.is_new(i, time_us, self._floor_us)
                run.fresh.append(new)
                time_us = time_us if new else None
            run.positions.append(position)
            run.watermarks_us.append(self.watermark_us)
            run.nows_us.append(now_us)
            acts = self._advance(time_us, position, now_us)
            run.after_us.append(self.watermark_us)
            if acts or alone:
                yield run
                run = Run(i + 1)
        if run.positions:
            yield run

    def _begin_run(self) -> None:
        """Prepare for the first message of a run: all before it have been processed."""

    def _is_own_run(self, time_us: int | None) -> bool:
        """True for a message that is a run of its own."""
        return False

    def _is_uncertain(self, time_us: int | None) -> bool:
        """True for such a message if it is unknown whether it counts."""
        return False

    def _times(self, table: pa.Table, nows_us: Sequence[int]) -> list[int | None]:
        """Return the event time of each row; None for rows that cannot be counted, and do not advance the watermark."""
        definition = self.definition
        times = combine(table.column(definition.event_time)).cast(pa.int64())
        counts = countable(times, np.array(nows_us, dtype=np.int64), definition.max_ahead_us)
        if MALFORMED_ROW in table.column_names:
            counts = pc.and_(counts, table.column(MALFORMED_ROW).is_null())
        for name in () if definition.ids is None else definition.ids.columns:
            counts = pc.and_(counts, pc.invert(combine(table.column(name)).is_null(nan_is_null=True)))
        if definition.null_keys == "dead_letter":
            for name in definition.by:
                counts = pc.and_(counts, combine(table.column(name)).is_valid())
        return pc.if_else(counts, times, pa.scalar(None, pa.int64())).to_pylist()  # type: ignore[no-any-return]

    def _advance(self, time_us: int | None, position: Position, now_us: int) -> bool:
        """Advance the watermark past one message; True if the advance after it may emit, close or expire something."""
        moved = not (self._steady and self._looked)
        if time_us is not None and (time_us >= self._open_from_us or self._in_gap(time_us)):
            partition = (position.source, position.partition)
            known = self.largest_us.get(partition)
            if known is None or time_us > known:
                self.largest_us[partition] = time_us
                moved = True
            self.seen_us[partition] = now_us
        ticks = self._ticks(now_us)
        self._now_us = now_us
        if moved:
            self.watermark_us, self._looked = self._watermark(now_us), True
        if self.watermark_us < self._next_event_us:
            return ticks
        self._look_ahead()
        return True

    def _in_gap(self, time_us: int) -> bool:
        """True for a time that no window has: it is never too late."""
        window = self.definition.window
        if not isinstance(window, Hopping) or window.hop_us <= window.size_us:
            return False
        return (time_us - window.offset_us) % window.hop_us >= window.size_us

    def _watermark(self, now_us: int) -> int:
        watermark = self.definition.watermark
        if watermark.kind != "bounded" or watermark.partitions:
            return watermark_of(self.definition, self.largest_us, self.seen_us, now_us, self.watermark_us)[0]
        # The same without the names of sources, for each message.
        idle = idle_partitions(watermark, self.seen_us, now_us)
        return watermark_us(watermark, self.largest_us, now_us, self.watermark_us, idle)

    def _ticks(self, now_us: int) -> bool:
        before = now_us if self._now_us is None else self._now_us
        if now_us == before:
            return False
        return any(now_us // period_us > before // period_us for period_us in self._periods_us)


class WindowRuns(AggregateRuns["WindowAggregator"]):
    """The runs of an aggregate over time windows."""

    _operator: WindowAggregator

    def ingest_run(self, kv: KV, table: pa.Table, run: Run) -> StepResult:
        return ingest_windows(self._operator, kv, table, run)

    def _begin_run(self) -> None:
        self._due_us = self._operator.due.first(self._kv)

    def _is_own_run(self, time_us: int | None) -> bool:
        # Its advance searches rows that are pending under another emission, and some may be due.
        return self._operator.due.active and not self._operator._emission_noted

    def _advance(self, time_us: int | None, position: Position, now_us: int) -> bool:
        acts, due_us = super()._advance(time_us, position, now_us), self._due_us
        if time_us is not None:
            self._due_us = min(due_us, self._operator.due.after(now_us))
        return acts or now_us >= due_us

    def _look_ahead(self) -> None:
        """Compute the first watermark at which a window ends, closes or expires, and the starts of open and kept windows."""
        definition, watermark = self.definition, self.watermark_us
        horizon = END_OF_TIME_US
        for reach_us in (0, definition.allowed_lateness_us, definition.retention.time_us):
            if reach_us is None or reach_us >= UNBOUNDED_US:
                continue
            start = self._operator.assigner.first_open(limit(watermark, reach_us))
            end = int(self._operator.assigner.ends(np.array([start], dtype=np.int64))[0])
            horizon = min(horizon, end + reach_us)
        self._next_event_us = horizon
        self._open_from_us = self._operator.assigner.first_open(
            passed(watermark, definition.allowed_lateness_us)
        )
        kept_us = definition.retention.time_us
        self._floor_us = (
            START_OF_TIME_US
            if kept_us is None
            else max(self._purged_us, self._operator.assigner.first_open(limit(watermark, kept_us)))
        )


class TupleRuns(AggregateRuns["TupleAggregator"]):
    """The runs of an aggregate over tuples."""

    _operator: TupleAggregator

    def ingest_run(self, kv: KV, table: pa.Table, run: Run) -> StepResult:
        return ingest_tuples(self._operator, kv, table, run)
