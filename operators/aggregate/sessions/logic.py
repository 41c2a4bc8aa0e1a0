"""Aggregator over session windows: ranges of event time of one key between two pauses.

A message is the range `[t, t + gap]`; ranges of a key that overlap or touch are one session, so sessions are a function of the
set of messages: any order and any cut gives the same. A step joins its messages with each other and with the sessions that they
touch, as ranges; accumulators are merged along them. The layout of sessions and of their current panes:
`stores/sessions.py`.

A session is emitted when the watermark passes its end. It is *closed*, and never opens again, when the watermark less the
allowed lateness is beyond its end: a message at the very end, which touches it, is on time while the watermark is there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import by_step
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate.sessions.assignment import (
    Filed,
    file_groups,
    file_sessions,
    let_wait,
    may_wait,
)
from windrow.operators.aggregate.sessions.dynamic_gap import with_gaps
from windrow.operators.aggregate.sessions.eviction import count, evict
from windrow.operators.aggregate.sessions.gap_evolution import widen
from windrow.operators.aggregate.sessions.kept_messages import forget_messages
from windrow.operators.aggregate.sessions.lateness import in_time
from windrow.operators.aggregate.sessions.micro_batching import SessionRuns
from windrow.operators.aggregate.sessions.panes import fire, in_order, in_order_of_parts
from windrow.operators.aggregate.sessions.partials import ingest_groups_of_sessions, pushdown_sessions
from windrow.operators.aggregate.sessions.processing_time_timers import tick
from windrow.operators.aggregate.sessions.rows import (
    Rows,
    Step,
    Stored,
    after_firing,
    unfolded,
)
from windrow.operators.aggregate.sessions.session_state import StoredSessions
from windrow.operators.aggregate.triggers import Moment
from windrow.operators.operator import Grouping, RunAgain
from windrow.operators.steps.columns import (
    EARLY,
    END,
    IS_LAST,
    LATE,
    MESSAGES,
    ON_TIME,
    PANES,
    PENDING,
    START,
)
from windrow.operators.steps.groups import combine
from windrow.operators.steps.input_filter import further
from windrow.operators.steps.intake import countable_rows, event_time_marks
from windrow.operators.steps.micro_batching import Runs
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.pushdown import Grouped, Pushdown
from windrow.operators.steps.step import StepResult
from windrow.stores.key_hash import Hashes
from windrow.stores.kv import KV
from windrow.stores.page_format import hashes_of
from windrow.stores.sessions import HOME, HOT, homes_at_once
from windrow.stores.window_state import Near

#: About so many sessions are emitted at once; if there are more, half as many at a time.
SESSIONS_AT_ONCE = 1 << 18


class SessionAggregator(StoredSessions, Grouping):
    """The logic of one definition of a session window."""

    def refiling(self) -> RunAgain | None:
        if self.history is None:
            return None
        return RunAgain(
            logic=self,
            kept_from=lambda kv: START_OF_TIME_US,
            begun=self.begun,
            reached=self._reached,
            why=f"what a session of {self.definition.name!r} takes depends on all that came before",
        )

    def _reached(self, kv: KV) -> tuple[int, bytes]:
        """Return the number of steps, and the retained sessions. Their notes are left out: they depend on which steps ran
        together, and on versions.
        """
        step, sessions = self.progress(kv).step, self.kept(kv, START_OF_TIME_US, END_OF_TIME_US, None)
        if sessions is None:
            return step, b""
        keys = hashes_of(sessions, self.definition.by)
        columns = [combine(sessions.column(name)).to_numpy() for name in (START, END, MESSAGES)]
        order = np.lexsort([*columns, keys])
        return step, b"".join([column[order].tobytes() for column in (keys, *columns)])

    # -- steps --------------------------------------------------------------------------------------------------------

    def ingest_table(self, kv: KV, table: pa.Table, now_us: int) -> StepResult:
        """Process the messages, and fire the sessions that they complete."""
        work = self._begin(kv, now_us)
        progress, result, dead = work.progress, work.result, work.dead
        table, others = self._passing(self._learnt(progress, table), now_us, dead)
        rows = countable_rows(self.definition, table, now_us, dead)
        if self.own_gap is not None:
            rows = with_gaps(self.own_gap, rows, dead)
        if self.seen is not None:
            rows = self._without_duplicates(kv, rows, result, self.kept_from(progress.watermark_us))
        watermark_us = progress.watermark_us
        moment = Moment(progress.step, now_us)
        step = Step(kv, progress, result, dead, [], moment, self.closed_before(watermark_us), watermark_us)
        widen(self, step)
        correct(self, step)
        if may_wait(self, step, rows):
            let_wait(self, step, rows)
        else:
            self.keep_filed(step, file_sessions(self, step, rows))
        if others is not None:
            result.marks = further(result.marks, event_time_marks(in_time(self, step, others)))
        progress.begin(now_us)
        return self._end(work)

    def ingest_grouped(
        self, kv: KV, groups: pa.Table, first_us: IntArray, last_us: IntArray, now_us: int, schema: pa.Schema
    ) -> StepResult:
        """Process messages that were grouped and aggregated elsewhere: state rows without a window, first and last times."""
        work = self._begin(kv, now_us)
        progress, result, dead = work.progress, work.result, work.dead
        self._learn(progress, schema)
        watermark_us = progress.watermark_us
        moment = Moment(progress.step, now_us)
        step = Step(kv, progress, result, dead, [], moment, self.closed_before(watermark_us), watermark_us)
        widen(self, step)
        correct(self, step)
        if len(groups):
            result.groups = len(groups)
            self.keep_filed(step, file_groups(self, step, groups, first_us, last_us))
        progress.begin(now_us)
        return self._end(work)

    def _kept_from(self, progress: Progress) -> int:
        return self.kept_from(progress.watermark_us)

    def keep_filed(self, step: Step, filed: Filed | None) -> None:
        """Judge and store the sessions that took messages."""
        if filed is not None:
            if self.limited:
                count(self, step, filed)
            rows = filed.rows
            if filed.owed is not None:
                rows = self._fired(step, rows, filed.owed & self.fires_in_time(rows), ON_TIME)
            after = self._judged(step, rows)
            if self.definition.takes_back:
                after = self._last_words(step, after)
            ends = combine(after.sessions.column(END)).to_numpy()
            homes = np.where(self.has_passed(ends, step.progress.watermark_us), self.store.home(ends), HOT)
            self.marks.ends(step.kv, after.sessions, filed.fresh & (homes == HOT), step.progress.step)
            self.keep(step, filed.stored.near, filed.stay, after, homes)
            self._emit(step)

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Fire the sessions that the watermark passed, then the periods that `now` crossed, then close and purge."""
        work = self._begin(kv, now_us)
        progress, result, dead = work.progress, work.result, work.dead
        before_us = progress.watermark_us
        watermark_us = max(watermark_us, before_us)
        moment = Moment(progress.step, now_us, progress.now_us, (before_us, watermark_us))
        if progress.schema is not None:
            step = Step(kv, progress, result, dead, [], moment, self.closed_before(before_us), before_us)
            widen(self, step)
            correct(self, step)
            progress.watermark_us = watermark_us
            last_words = evict(self, step, watermark_us) if self.limited else []
            changed = self._emission_changed(kv)
            if changed:
                self._look_again(step)
            if changed or watermark_us > before_us:
                self._fire_on_time(step, watermark_us)
            step = step._replace(emitted_us=watermark_us)
            tick(self, step)
            self._emit(step)
            self._close(step, last_words)
            self._forget(step)
        self.store.release()
        progress.watermark_us, progress.now_us = watermark_us, now_us
        return self._end(work)

    def _emit(self, step: Step) -> None:
        """Emit the panes of one part of a step, in order."""
        step.result.panes += in_order(step.emitted, self.definition.by)
        step.emitted.clear()

    def _fire_on_time(self, step: Step, watermark_us: int) -> None:
        """Fire the sessions that the watermark passed, in slices, so that memory is bounded."""
        # A session that ends exactly at the former watermark may have been pending.
        _, hashes, older = self.marks.due.passed(step.kv, step.emitted_us, watermark_us, watermark_us)
        if len(hashes):
            parts = self.store.parts(step.kv, hashes, SESSIONS_AT_ONCE)
            step.result.panes += in_order_of_parts(
                (self._end_some(step, part, watermark_us) for part in parts), self.definition.by
            )
        if older:
            self.marks.due.drop(step.kv, watermark_us)

    def _end_some(self, step: Step, hashes: Hashes, watermark_us: int) -> list[pa.Table]:
        """Return the panes of those of these keys that the watermark passed; their sessions move to the bucket of their end."""
        by, kv = self.definition.by, step.kv
        stored = self.near(step, np.full(len(hashes), HOT, dtype=np.int64), hashes)
        if stored is None:
            return []
        ends = stored.values(END)
        passed_ = self.has_passed(ends, watermark_us)
        self.marks.ends_later(kv, stored, ~passed_, hashes, watermark_us, step.progress.step)
        if not passed_.any():
            return []
        near, stay, rows = stored.near, stored.others(passed_), stored.rows(by, passed_)
        rows = self._fired(step, rows, self.fires_in_time(rows), ON_TIME)
        if self.history is None:
            there = stored.keys(passed_ & (ends >= watermark_us), by)
            near, stay = self.store.without(near, stay, hashes_of(there, by))
        kept = self._stays(rows, watermark_us)
        self.keep(step, near, stay, rows.where(kept), self.store.home(ends[passed_][kept]))
        return self._taken(step)

    def _stays(self, rows: Rows, watermark_us: int) -> BoolArray:
        """True for ended sessions that this step does not purge, or that may emit more."""
        if self.history is not None or self.limited or self.definition.emit.closing_pane:
            return np.ones(len(rows.sessions), dtype=bool)
        ends, pending = (combine(rows.sessions.column(name)).to_numpy() for name in (END, PENDING))
        stays: BoolArray = (ends >= self.forgotten_before(watermark_us)) | (pending > 0)
        return stays

    def _taken(self, step: Step) -> list[pa.Table]:
        """Return the emitted panes, and clear them."""
        emitted = list(step.emitted)
        step.emitted.clear()
        return emitted

    def fires_in_time(self, rows: Rows) -> BoolArray:
        """True for sessions that fire when they end."""
        pending = combine(rows.sessions.column(PENDING)).to_numpy() > 0
        waiting: BoolArray = pending & (not self.definition.emit.emits_late)
        return waiting | self.emits_all

    def keep_fired(
        self,
        step: Step,
        stored: Stored,
        which: BoolArray,
        timing: str,
        *,
        closing: bool = False,
        always: bool = False,
    ) -> None:
        """Fire these of the stored sessions, and keep them in their buckets."""
        if not which.any():
            return
        rows, homes = stored.rows(self.definition.by, which), stored.values(HOME)[which]
        every = np.ones(len(homes), dtype=bool)
        rows = self._fired(step, rows, every, timing, closing=closing, always=always)
        self.keep(step, stored.near, stored.others(which), rows, homes)

    def _close(self, step: Step, last_words: list[pa.Table]) -> None:
        """Close sessions: emit pending rows, and the closing pane if asked for. In slices, as `_fire_on_time`."""
        low, high = step.closed_us, self.closed_before(step.progress.watermark_us)
        parts: Iterator[list[pa.Table]] = iter([last_words] if last_words else [])
        closing, older = 0, False
        if low < high:
            ends, hashes, older = self.marks.closing.passed(step.kv, low, high - 1, high)
            closing = len(hashes)
        if closing:
            homes = self.store.home(ends)
            each = homes_at_once(homes, SESSIONS_AT_ONCE // 2)
            closed = (self._close_some(step, homes[places], hashes[places], low, high) for places in each)
            parts = itertools.chain(parts, closed)
        if closing or last_words:
            step.result.panes += in_order_of_parts(parts, self.definition.by)
        if closing or older:
            self.marks.closing.drop(step.kv, high)

    def _close_some(self, step: Step, homes: IntArray, hashes: Hashes, low: int, high: int) -> list[pa.Table]:
        """Return the panes of those of these keys, in these buckets, whose sessions end in `[low, high)`."""
        stored = self.near(step, homes, hashes)
        if stored is None:
            return []
        ends = stored.values(END)
        closes = (ends >= low) & (ends < high)
        if not self.definition.emit.closing_pane:
            closes &= stored.values(PENDING) > 0
        elif step.result.ended:
            closes &= ~self._ended(stored.rows(self.definition.by).sessions, step.result.ended)
        self.keep_fired(step, stored, closes, LATE, closing=True)
        return self._taken(step)

    def _forget(self, step: Step) -> None:
        """Purge sessions that nothing in retention can reach any more."""
        kept_from = self.forgotten_before(step.progress.watermark_us)
        if kept_from <= step.progress.purged_us:
            return
        self.store.drop(step.kv, kept_from)
        if self.limited:
            self.limits.forget(step.kv, self._unreached(step.progress.watermark_us))
        if self.seen is not None:
            self.seen.forget(step.kv, self.kept_from(step.progress.watermark_us))
        if self.definition.takes_back:
            self.numbers.forget(step.kv, kept_from)
        if self.history is not None:
            forget_messages(self.history, step.kv, self.store, step.emitted_us)
        step.progress.purged_us = kept_from

    def _unreached(self, watermark_us: int) -> int:
        """Return the end at or before which sessions are touched by no message that is in retention by itself."""
        emitted_us = self.retained_from(watermark_us)
        return (
            emitted_us
            if emitted_us == END_OF_TIME_US
            else max(self.kept_from(watermark_us) - 1, START_OF_TIME_US)
        )

    def _look_again(self, step: Step) -> None:
        """Set timers for all rows pending under another emission than before."""
        self.marks.drop(step.kv)
        homes = [HOT, *(bucket.home for bucket in self.store.buckets(step.kv))]
        rows = self.read(step.kv, homes, step.emitted_us)
        if rows is not None:
            by = self.definition.by
            sessions = Stored.of(Near(rows, {}), by, step.emitted_us).rows(by).sessions
            homes = combine(sessions.column(HOME)).to_numpy()
            self.marks.fires(step.kv, sessions, homes, step.closed_us, step.moment, anew=True)

    def runs(
        self,
        kv: KV,
        largest_us: Mapping[Partition, int],
        seen_us: Mapping[Partition, int],
        watermark_us: int,
        now_us: int | None,
    ) -> Runs:
        return SessionRuns(self, kv, largest_us, seen_us, watermark_us, now_us)

    # -- pushdown to SQL ----------------------------------------------------------------------------------------------

    def pushdown(self, schema: pa.Schema) -> Pushdown | None:
        return pushdown_sessions(self.definition, schema)

    def ingest_groups(
        self, kv: KV, groups: pa.Table, schema: pa.Schema, watermark_us: int, now_us: int
    ) -> Grouped:
        return ingest_groups_of_sessions(self, kv, groups, schema, watermark_us, now_us)

    # -- sessions of a step -------------------------------------------------------------------------------------------

    def _judged(self, step: Step, rows: Rows) -> Rows:
        """Fire sessions that took messages by the trigger that is evaluated in every step."""
        emit = self.definition.emit
        ended = self.has_passed(combine(rows.sessions.column(END)).to_numpy(), step.progress.watermark_us)
        for timing, trigger, of_timing in ((EARLY, emit.early, ~ended), (LATE, emit.late, ended)):
            if by_step(trigger) and of_timing.any():
                fires = np.zeros(len(of_timing), dtype=bool)
                fires[of_timing] = self.judged(step, rows.where(of_timing), trigger)
                rows = self._fired(step, rows, fires, timing)
        return rows

    def _last_words(self, step: Step, rows: Rows) -> Rows:
        """Fire closed sessions: their pending rows, and the closing pane if asked for. Return all sessions."""
        emit, closed = self.definition.emit, combine(rows.sessions.column(END)).to_numpy() < step.closed_us
        if not emit.closing_pane:
            closed = closed & (combine(rows.sessions.column(PENDING)).to_numpy() > 0) & emit.emits_late
        elif step.result.ended:
            closed = closed & ~self._ended(rows.sessions, step.result.ended)
        return self._fired(step, rows, closed, LATE, closing=True)

    def _fired(
        self,
        step: Step,
        rows: Rows,
        which: BoolArray,
        timing: str,
        *,
        closing: bool = False,
        always: bool = False,
    ) -> Rows:
        """Fire these sessions; return all rows after, in the order in which they were."""
        if not which.any():
            return rows
        rows = unfolded(self.calculation, self.spans, rows, which)
        chosen = rows.where(which)
        ends = combine(chosen.sessions.column(END)).to_numpy()
        is_last = (ends < self.closed_before(step.progress.watermark_us)) & (timing != EARLY)
        fired = fire(
            self.definition,
            chosen,
            partial(self.values, step.kv, panes=chosen.panes),
            timing=timing,
            is_last=is_last | closing,
            closing=closing,
            step=step.progress.step,
            dead=step.dead,
            always=always,
        )
        if fired.emitted is not None:
            step.emitted.append(fired.emitted)
            if self.definition.emit.closing_pane and not closing:
                last = fired.emitted.filter(fired.emitted.column(IS_LAST))
                step.result.ended.update(self._names(last))
        return after_firing(rows, which, fired.rows)


def correct(logic: SessionAggregator, step: Step) -> None:
    """Emit panes of sessions that still take messages again, in the first step after aggregations were added."""
    kv, by = step.kv, logic.definition.by
    if not logic._owes(kv):
        return
    logic._note_recomputed(kv)
    stored = logic.read(kv, [HOT, *(bucket.home for bucket in logic.store.buckets(kv))], step.emitted_us)
    if stored is None:
        return
    sessions = Stored.of(Near(stored, {}), by, step.emitted_us).rows(by).sessions
    sessions = sessions.filter(pa.array(_owed(logic, step, sessions)))
    hashes = hashes_of(sessions.select([START, *by]), by)
    current = logic.near(step, combine(sessions.column(HOME)).to_numpy(), hashes)
    if current is None:
        return
    owed = _owed(logic, step, current.rows(by).sessions)
    rows, homes = current.rows(by, owed), current.values(HOME)[owed]
    early = _current(logic, step, rows.sessions)
    for timing, of_timing in ((EARLY, early), (LATE, ~early)):
        rows = logic._fired(step, rows, of_timing, timing)
    logic.keep(step, current.near, current.others(owed), rows, homes)
    logic._emit(step)


def _owed(logic: SessionAggregator, step: Step, sessions: pa.Table) -> BoolArray:
    """True for sessions with an emitted pane, perhaps without the added aggregations, that may still be corrected."""
    starts, ends, panes = (combine(sessions.column(c)).to_numpy() for c in (START, END, PANES))
    before_us = max(us for _, us in logic.definition.recomputed_us)
    emitted = (panes > 0) & (starts < before_us)
    owed: BoolArray = emitted & (ends >= step.closed_us)
    return owed if logic.definition.emit.emits_late else owed & _current(logic, step, sessions)


def _current(logic: SessionAggregator, step: Step, sessions: pa.Table) -> BoolArray:
    """True for sessions that the watermark has not passed."""
    current: BoolArray = ~logic.has_passed(combine(sessions.column(END)).to_numpy(), step.emitted_us)
    return current
