"""Micro-batching of sessions: many steps of one message each are run as few; the boundaries and the execution of a run.

A message beyond the watermark touches only sessions that may still grow. So the sessions of the messages of a run are known at
once, whichever ends meanwhile: a session that the watermark has passed is touched by no later message of the run. Its end shows
which advance passed it. A message below the watermark is a run of its own.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.messages import Position
from windrow.core.policy import UNBOUNDED_US
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate.emitter import Emitter, Firing
from windrow.operators.aggregate.micro_batching.ingest import AggregateRuns, Taken
from windrow.operators.aggregate.sessions.assignment import file_run
from windrow.operators.aggregate.sessions.logic import SessionAggregator
from windrow.operators.aggregate.sessions.panes import fire_sessions, in_order
from windrow.operators.aggregate.sessions.rows import Step, unfolded
from windrow.operators.aggregate.triggers import Moment
from windrow.operators.steps.columns import ARRIVED, END, ON_TIME
from windrow.operators.steps.groups import without
from windrow.operators.steps.intake import event_time_marks
from windrow.operators.steps.micro_batching import STEPS, Run
from windrow.operators.steps.step import StepResult
from windrow.stores.kv import KV
from windrow.stores.sessions import HOT


class SessionRuns(AggregateRuns["SessionAggregator"]):
    """The runs of an aggregate over sessions."""

    @property
    def _forgets(self) -> bool:
        """True if an advance forgets ids, or messages, where it purges sessions."""
        return self._operator.seen is not None or self._operator.history is not None

    def ingest_run(self, kv: KV, table: pa.Table, run: Run) -> StepResult:
        if len(run) == 1:
            return self._operator.ingest_table(kv, table, run.nows_us[0])
        return _advance(self._operator, kv, table, run)

    def _begin_run(self) -> None:
        self._look_ahead()

    def _is_own_run(self, time_us: int | None) -> bool:
        if not self._operator._emission_noted:
            return True  # its advance searches rows pending under another emission
        return time_us is not None and time_us <= self.watermark_us

    def _is_uncertain(self, time_us: int | None) -> bool:
        return time_us is not None and time_us < self._operator.closed_before(self.watermark_us)

    def _look_ahead(self) -> None:
        """Compute the first watermark at which a session fires when it closes."""
        first, lateness_us = (
            self._operator.timers.closing.first(self._kv),
            self.definition.allowed_lateness_us,
        )
        never = first is None or lateness_us >= UNBOUNDED_US
        self._next_event_us = END_OF_TIME_US + 1 if first is None or never else first + lateness_us + 1
        self._open_from_us = START_OF_TIME_US
        self._floor_us = self._operator.kept_from(self.watermark_us)

    def _advance(self, time_us: int | None, position: Position, now_us: int) -> bool:
        acts = super()._advance(time_us, position, now_us)
        if not self._forgets:
            return acts
        self._floor_us = self._operator.kept_from(self.watermark_us)
        before_us, self._purged_us = self._purged_us, self._operator.forgotten_before(self.watermark_us)
        return acts or self._purged_us > before_us


def _advance(operator: SessionAggregator, kv: KV, table: pa.Table, run: Run) -> StepResult:
    """Run the ingests of messages beyond the watermark, and all but the last of their advances."""
    taken = Taken(operator, kv, table, run)
    step = operator._step(taken.work, Moment(taken.progress.step, run.nows_us[0]), of_run=True)
    marks = dict(event_time_marks(taken.rows))
    for filed in file_run(operator, step, taken.rows):
        operator.keep_assigned(step, filed)
    taken.result.marks = marks
    _end(operator, step, np.array(run.after_us[:-1], dtype=np.int64))
    return taken.end()


def _end(operator: SessionAggregator, step: Step, after_us: IntArray) -> None:
    """Fire the sessions that these advances pass, each when its own does."""
    kv, by, watermark_us = step.kv, operator.definition.by, int(after_us[-1])
    _, hashes = operator.timers.due.between(kv, step.progress.watermark_us, watermark_us)
    stored = operator.near(step, np.full(len(hashes), HOT, dtype=np.int64), hashes)
    if stored is None:
        return
    ends = stored.values(END)
    passed = operator.has_passed(ends, watermark_us)
    if not passed.any():
        return
    rows = unfolded(operator.calculation, operator.spans, stored.rows(by, passed))
    ends = ends[passed]
    side = "left" if operator.has_passed(after_us[-1:], watermark_us).all() else "right"
    at: IntArray = np.searchsorted(after_us, ends, side=side)  # type: ignore[call-overload]
    closed_us = np.array([operator.closed_before(w) for w in after_us.tolist()], dtype=np.int64)
    emitter = Emitter(operator.definition, step.dead, step.progress.step + STEPS * at + 1)
    sessions = rows.sessions.append_column(ARRIVED, pa.array(at))
    values = partial(operator.values, kv, panes=rows.panes)
    fired = fire_sessions(
        emitter, rows._replace(sessions=sessions), Firing(ON_TIME, ends < closed_us[at]), values
    )
    step.result.panes += in_order([] if fired.emitted is None else [fired.emitted], by)
    after = fired.rows._replace(sessions=without(fired.rows.sessions, ARRIVED))
    operator.keep(step, stored.near, stored.others(passed), after, operator.store.home(ends))
