"""Sessions by messages of others: runs of one key with at most so many messages of other keys between two of its own.

All messages that count are numbered, in position order, from 1. Their numbers replace the times of sessions of event time:
with at most n others between two, they are at most n + 1 apart, and the number of the last message replaces the watermark.
So nothing is ever late, and a session is emitted, for good, when n + 1 others have come after it. Ends in the state are
`last + n + 1`; emitted windows are `[first, last]`, both ends included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.time import START_OF_TIME_US
from windrow.operators.aggregate.sessions.advance import tick
from windrow.operators.aggregate.sessions.assignment import file_sessions
from windrow.operators.aggregate.sessions.logic import SessionAggregator
from windrow.operators.aggregate.sessions.rows import Rows, Step
from windrow.operators.aggregate.triggers import Moment
from windrow.operators.steps.columns import END, NUMBER, ON_TIME
from windrow.operators.steps.groups import combine
from windrow.operators.steps.input_filter import further
from windrow.operators.steps.intake import Slice, countable_rows, event_time_marks
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.pushdown import Pushdown
from windrow.operators.steps.step import StepResult
from windrow.operators.steps.work import Work
from windrow.stores.kv import KV


class TupleSessionAggregator(SessionAggregator):
    """The logic of one definition of a tuple session. Its watermark is the number of the last message."""

    # -- numbers in the place of times ------------------------------------------------------------------------------

    def retained_from(self, watermark_us: int) -> int:
        messages = self.definition.retention.messages
        return START_OF_TIME_US if messages is None else max(watermark_us - messages, 0)

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        """Do nothing to event time, which has no part in it."""

    # -- steps ------------------------------------------------------------------------------------------------------

    def ingest_table(self, kv: KV, table: pa.Table, now_us: int) -> StepResult:
        """Number the messages and store them; sessions that are over are emitted, open ones by the early trigger."""
        work = self._begin(kv, now_us)
        progress, result, dead = work.progress, work.result, work.dead
        table, others = self._passing(self._learnt(progress, table), now_us, dead)
        rows = countable_rows(self.definition, table, now_us, dead)
        rows = self._without_duplicates(kv, rows, result, START_OF_TIME_US)
        before = max(progress.watermark_us, 0)
        after = before + len(rows)
        if len(rows):
            numbers = pa.array(np.arange(before + 1, after + 1, dtype=np.int64))
            step = self._step(work, Moment(progress.step, now_us))
            filed = file_sessions(self, step, Slice(rows.table.append_column(NUMBER, numbers), rows.times))
            progress.watermark_us = after
            self.keep_assigned(step, filed)
            self._fire_on_time(step, after)
            self._forget(step)
            self.timers.closing.drop(kv)  # a session emitted at its end needs no last pane
        if others is not None:
            result.marks = further(result.marks, event_time_marks(others))
        progress.begin(now_us)
        return self._end(work)

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Fire the timers of processing time."""
        work = self._begin(kv, now_us)
        progress = work.progress
        if progress.schema is not None:
            step = self._step(work, Moment(progress.step, now_us, progress.now_us))
            if self._emission_changed(kv):
                self._look_again(step)
            tick(self, step)
            self.emit(step)
        progress.now_us = now_us
        return self._end(work)

    def _end(self, work: Work) -> StepResult:
        work.result.panes = [self._shown(panes) for panes in work.result.panes]
        return super()._end(work)

    def _fire_by_step(self, step: Step, rows: Rows) -> Rows:
        over = self.has_passed(combine(rows.sessions.column(END)).to_numpy(), step.progress.watermark_us)
        return super()._fire_by_step(step, self.fire(step, rows, over, ON_TIME))

    def _shown(self, rows: pa.Table) -> pa.Table:
        """Return rows with the last number that is in a session in the place of its end."""
        ends = combine(rows.column(END)).to_numpy() - self.gap_us
        return rows.set_column(rows.column_names.index(END), END, pa.array(ends))

    def pushdown(self, schema: pa.Schema) -> Pushdown | None:
        return None

    def states(
        self, kv: KV, low_us: int, high_us: int, key: Mapping[str, Any] | None = None
    ) -> Iterator[pa.Table]:
        for rows in super().states(kv, low_us, high_us, key):
            yield self._shown(rows)
