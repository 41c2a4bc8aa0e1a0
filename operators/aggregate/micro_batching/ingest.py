"""Ingest of a run of single messages as one, over time windows and over tuples. It stores, emits and drops the same rows as the
steps would one after the other, but writes the state once.

Accumulators of a window are a left fold over its messages. If neighbours may be merged first without a change of bits, a
message does not cost a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.emit import EveryBatch, Trigger, by_step
from windrow.core.types import concat
from windrow.operators.aggregate.assignment import Filed, file_rows
from windrow.operators.aggregate.micro_batching.entries import Entries
from windrow.operators.aggregate.prefix_firing import Judge, Judged, Rule, in_message_order
from windrow.operators.aggregate.state_rows import apart, delta_rows
from windrow.operators.aggregations.calculation import Broken
from windrow.operators.steps.columns import ARRIVED, EARLY, LATE, START, UPSERT
from windrow.operators.steps.groups import Groups, combine, without
from windrow.operators.steps.intake import Slice, countable_rows, event_time_marks
from windrow.operators.steps.micro_batching import Run
from windrow.operators.steps.step import StepResult
from windrow.stores.kv import KV, Batch

if TYPE_CHECKING:
    from windrow.operators.aggregate.base import Steps
    from windrow.operators.aggregate.logic import WindowAggregator
    from windrow.operators.aggregate.tuples import TupleAggregator

#: An ingest and an advance.
STEPS = 2


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
    late = filed.ends <= taken.progress.watermark_us
    at = taken.arrived(filed.rows)
    emitted: list[Judged] = []
    for timing, trigger, mask in ((EARLY, emit.early, ~late), (LATE, emit.late, late)):
        if not mask.any():
            continue
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
    stored = operator.store.read(kv, [], _distinct(deltas, operator.definition.by))
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
    operator.store.append(kv, judged.rows, upsert=True)
    if judged.waits.any():
        operator._note_waiting(kv, deltas.filter(pa.array(judged.waits)))
    taken.result.panes = in_message_order([judged])
