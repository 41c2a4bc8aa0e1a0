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
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import Trigger, by_step
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, MINUTE_US, START_OF_TIME_US
from windrow.core.windows import Session, TupleSession
from windrow.operators.aggregate.assignment import bury_broken
from windrow.operators.aggregate.base import Steps
from windrow.operators.aggregate.count_retention import SizeLimits
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.emitter import Emitter, Firing
from windrow.operators.aggregate.output import sorted_states
from windrow.operators.aggregate.partials import pushdown_sessions, session_groups, slices_of
from windrow.operators.aggregate.sessions.advance import correct, count, evict, tick
from windrow.operators.aggregate.sessions.assignment import (
    Filed,
    file_groups,
    file_sessions,
    in_time,
    let_wait,
    may_wait,
)
from windrow.operators.aggregate.sessions.dynamic_gap import with_gaps
from windrow.operators.aggregate.sessions.gap_evolution import widen
from windrow.operators.aggregate.sessions.kept_messages import forget_messages, values_of_sessions
from windrow.operators.aggregate.sessions.merging import settled
from windrow.operators.aggregate.sessions.panes import (
    SessionNumbers,
    fire_sessions,
    in_order,
    in_order_of_parts,
)
from windrow.operators.aggregate.sessions.rows import (
    Rows,
    Spans,
    Step,
    Stored,
    after_firing,
    live,
    together,
    unfolded,
)
from windrow.operators.aggregate.sessions.timers import SessionTimers
from windrow.operators.aggregate.state_rows import merge_rows
from windrow.operators.aggregate.timing import Edges, by_timing, edges_at, fires_at_end, is_last
from windrow.operators.aggregate.triggers import Judged, Moment
from windrow.operators.aggregations.calculation import Broken
from windrow.operators.operator import Grouping, RunAgain
from windrow.operators.steps.assigners import WindowAssigner, assigner_of
from windrow.operators.steps.columns import (
    END,
    IS_LAST,
    LATE,
    MESSAGES,
    ON_TIME,
    PENDING,
    SINCE,
    START,
    TIME_MAX,
    TIME_MIN,
)
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import Groups, combine, without
from windrow.operators.steps.ids import SeenIds
from windrow.operators.steps.input_filter import further
from windrow.operators.steps.intake import countable_rows, event_time_marks
from windrow.operators.steps.micro_batching import Runs
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.pushdown import Grouped, Pushdown
from windrow.operators.steps.step import StepResult, limit, passed
from windrow.operators.steps.work import Work
from windrow.operators.view import one_key
from windrow.stores.key_hash import Hashes
from windrow.stores.kv import KV
from windrow.stores.page_format import HASH, hashes_of
from windrow.stores.sessions import CURRENT, HOME, HOT, SessionStore, homes_at_once
from windrow.stores.window_state import Near

#: About so many sessions are emitted at once; if there are more, half as many at a time.
SESSIONS_AT_ONCE = 1 << 18


class SessionAggregator(Steps, Grouping):
    """The logic of one definition of a session window."""

    #: True if messages of sessions are kept, whatever aggregations need.
    keeps = False

    def __init__(self, definition: AggregateDefinition) -> None:
        super().__init__(definition)
        definition = self.definition
        window, self.own_gap = definition.window, definition.own_gap
        assert isinstance(window, Session | TupleSession)
        #: How much longer than its time a message is in retention. With a dynamic gap it has no bound.
        self.gap_us = 0 if self.own_gap is not None else window.gap_us
        width_us = MINUTE_US if self.own_gap is not None else max(self.gap_us // BUCKETS_A_GAP, SECOND_US)
        self.longest_us: int | None = None
        self.cells: WindowAssigner | None = None
        if isinstance(window, TupleSession):
            width_us = max(self.gap_us // BUCKETS_A_GAP, NUMBERS)
        else:
            self.longest_us = window.max_length_us
            self.cells = None if window.cut is None else assigner_of(window.cut)
        keeps = self.keeps or definition.full_state
        self.store = SessionStore(self.windows_cf, self.aux_cf, definition.by, width_us, keeps=keeps)
        self.timers = SessionTimers(self.aux_cf, definition.emit, definition.by, width_us)
        self.spans = Spans(definition, self.aux_cf)
        self.numbers = SessionNumbers(self.aux_cf, definition.by, width_us)
        #: By number. For numbered messages only their numbers count.
        self.limits = SizeLimits(definition, self.aux_cf)
        self.limited = self.limits.active and not definition.numbered
        #: True where messages of sessions are found by their times alone: no two sessions of a key overlap.
        self.disjoint = self.keeps or definition.takes_back
        #: True if messages may be buffered next to the sessions that they touch: these are not read before they end.
        self.lets_wait = (
            bool(definition.by)
            and not (self.limited or definition.numbered or definition.full_state)
            and self.longest_us is None
            and self.own_gap is None
            and not by_step(definition.emit.early)
        )
        if definition.ids is not None:
            time_us = definition.retention.time_us
            self.seen = SeenIds(definition, self.aux_cf, None if time_us is None else time_us + self.gap_us)

    def _begin(self, kv: KV, now_us: int) -> Work:
        work = super()._begin(kv, now_us)
        self.spans.note(kv, work.progress.step)
        return work

    # -- time -------------------------------------------------------------------------------------------------------

    def edges(self, watermark_us: int) -> Edges:
        """Return the edges of sessions at a watermark."""
        return edges_at(self.definition, watermark_us)

    def has_passed(self, ends: IntArray, watermark_us: int) -> BoolArray:
        """True for sessions that have ended: they are emitted as ended."""
        return ends < self.edges(watermark_us).ended

    def closed_before(self, watermark_us: int) -> int:
        """Return the end before which sessions are closed."""
        return self.edges(watermark_us).closed

    def kept_from(self, watermark_us: int) -> int:
        """Return the time before which messages are out of retention by themselves."""
        floor_us = self.retained_from(watermark_us)
        first = limit(floor_us, self.gap_us)
        if self.cells is None or floor_us in (START_OF_TIME_US, END_OF_TIME_US):
            return first
        return max(first, self.cells.first_open(floor_us - 1))

    def retained_from(self, watermark_us: int) -> int:
        """Return the end at or before which sessions are out of retention."""
        time_us = self.definition.retention.time_us
        return START_OF_TIME_US if time_us is None else passed(watermark_us, time_us)

    def forgotten_before(self, watermark_us: int) -> int:
        """Return the end before which sessions are out of reach of all that is in retention."""
        floor_us = limit(self.kept_from(watermark_us), self.gap_us)
        return floor_us // self.store.width_us * self.store.width_us

    # -- reading ----------------------------------------------------------------------------------------------------

    def near(self, step: Step, homes: IntArray, hashes: Hashes) -> Stored | None:
        """Return the rows of these keys in these buckets, as far as they are still there."""
        kv = step.kv
        wanted = np.unique(homes).tolist()
        if wanted and wanted[0] != HOT:
            there = {HOT, *(bucket.home for bucket in self.store.buckets(kv, wanted[0]))}
            wanted = [home for home in wanted if home in there]
        if not wanted:
            return None
        in_buckets = np.isin(homes, np.array(wanted, dtype=np.int64))
        keys = pa.table({START: pa.array(homes[in_buckets]), HASH: pa.array(hashes[in_buckets])})
        near = settled(self, self.store.near(kv, wanted, keys), step.emitted_us)
        return None if near.rows is None else Stored.of(near, self.definition.by, step.emitted_us)

    def values(
        self, kv: KV, state: pa.Table, panes: pa.Table | None = None
    ) -> tuple[dict[str, pa.Array], list[Broken]]:
        """Return the values of sessions. panes: their current panes."""
        if self.history is not None:
            return values_of_sessions(self.history, kv, state, panes, self.calculation)
        return self.calculation.finish({n: state.column(n) for n in state.column_names}, len(state))

    def judged(self, step: Step, rows: Rows, trigger: Trigger) -> BoolArray:
        """True for sessions that fire now."""

        def values() -> pa.Table:
            columns, _ = self.values(step.kv, rows.sessions, rows.panes)
            return pa.table({**{b: rows.sessions.column(b) for b in self.definition.by}, **columns})

        return Judged(rows.sessions, step.moment, values).fires(trigger)

    def dated(self, deltas: pa.Table, step: Step) -> pa.Table:
        """Return new rows, with `now` where a trigger needs the time they are pending."""
        if not self.timers.delays:
            return deltas
        return deltas.append_column(SINCE, pa.array(np.full(len(deltas), step.moment.now_us)))

    def merged(self, rows: pa.Table, groups: Groups, dead: DeadLetters) -> pa.Table:
        """Merge parts of sessions and new rows to one row a session, stored ones first. groups: the rows by session."""
        merged, broken = merge_rows(self.calculation, rows, groups=groups)
        bury_broken(merged, broken, self.definition, dead)
        return merged

    # -- writing ----------------------------------------------------------------------------------------------------

    def keep(self, step: Step, near: Near, stay: IntArray, rows: Rows, homes: IntArray) -> None:
        """Store `rows` in the place of `near`, of whose rows some `stay` as they are. homes: buckets of the sessions."""
        self.timers.set_fires(step.kv, rows.sessions, homes, step.closed_us, step.moment)
        everything = without(together(rows), HOME)
        everything = everything.append_column(HOME, pa.array(np.r_[homes, homes[rows.owner]]))
        by, emitted_us = self.definition.by, step.emitted_us
        self.store.put(step.kv, near, everything, lambda some: live(some, by, emitted_us), stay)

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        by, emitted_us, near = self.definition.by, progress.watermark_us, self.store.whole(kv)
        self.spans.load(kv)
        if progress.schema is not None:
            self._bind(progress.schema)
            near = settled(self, near, emitted_us)
        if near.rows is not None:  # outdated rows would be emitted again
            self.store.put(kv, near, live(near.rows, by, emitted_us), lambda some: live(some, by, emitted_us))
        super().set_back(kv, progress, watermark_us)
        progress.purged_us = min(progress.purged_us, self.kept_from(progress.watermark_us))

    def states(
        self, kv: KV, low_us: int, high_us: int, key: Mapping[str, Any] | None = None
    ) -> Iterator[pa.Table]:
        """Yield `kept`, with the present values, sorted."""
        rows = self._kept(kv, low_us, high_us, key)
        if rows is not None and len(rows.sessions):
            values, _ = self.values(kv, rows.sessions, rows.panes)
            yield sorted_states(self.definition, rows.sessions, values)

    def kept(self, kv: KV, low_us: int, high_us: int, key: Mapping[str, Any] | None) -> pa.Table | None:
        """Return sessions in retention that end after `low` and begin before `high`; of a key at least, or of all."""
        rows = self._kept(kv, low_us, high_us, key)
        return None if rows is None else rows.sessions

    def _kept(self, kv: KV, low_us: int, high_us: int, key: Mapping[str, Any] | None) -> Rows | None:
        progress = Progress.load(kv, self.aux_cf)
        if progress.schema is None:
            return None
        self._bind(progress.schema)
        floor_us = self.retained_from(progress.watermark_us)
        homes = [b.home for b in self.store.buckets(kv, max(low_us, floor_us)) if b.first_us < high_us]
        stored = self._of_key(kv, [*homes, HOT], key, progress)
        if stored is None:
            return None
        rows = Stored.of(Near(stored, {}), self.definition.by, progress.watermark_us).rows(self.definition.by)
        kept = combine(rows.sessions.column(END)).to_numpy() > floor_us
        return rows._replace(sessions=without(rows.sessions, HOME, CURRENT)).where(kept)

    def _of_key(
        self, kv: KV, homes: list[int], key: Mapping[str, Any] | None, progress: Progress
    ) -> pa.Table | None:
        """Return the rows of a key, and others, if it is given whole; else all."""
        assert progress.schema is not None
        schema = self.seen_schema(progress.schema)
        keys = None if key is None else one_key(self.definition.by, key, schema)
        if keys is None:
            return self.read(kv, homes, progress.watermark_us)
        each = keys.take(pa.array(np.zeros(len(homes), dtype=np.int64)))
        near = self.store.near(kv, homes, each.append_column(START, pa.array(homes, pa.int64())))
        return settled(self, near, progress.watermark_us).rows

    def read(self, kv: KV, homes: Sequence[int], emitted_us: int) -> pa.Table | None:
        """Return all rows of these buckets. emitted_us: sessions that end before it were emitted as ended"""
        return settled(self, self.store.all_of(kv, homes), emitted_us).rows

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
        step = self._step(work, Moment(progress.step, now_us))
        self._evolve(step)
        if may_wait(self, step, rows):
            let_wait(self, step, rows)
        else:
            self.keep_assigned(step, file_sessions(self, step, rows))
        if others is not None:
            result.marks = further(result.marks, event_time_marks(in_time(self, step, others)))
        progress.begin(now_us)
        return self._end(work)

    def _kept_from(self, progress: Progress) -> int:
        return self.kept_from(progress.watermark_us)

    def _step(self, work: Work, moment: Moment, *, of_run: bool = False) -> Step:
        """Return the step that begins now."""
        watermark_us = work.progress.watermark_us
        closed_us = self.closed_before(watermark_us)
        return Step(
            work.kv, work.progress, work.result, work.dead, [], moment, closed_us, watermark_us, of_run
        )

    def _evolve(self, step: Step) -> None:
        """Carry out what a changed definition asks of the state: a larger gap, and aggregations of kept messages."""
        widen(self, step)
        if self._owes(step.kv):
            self._note_recomputed(step.kv)
            correct(self, step)

    def keep_assigned(self, step: Step, filed: Filed | None) -> None:
        """Judge and store the sessions that took messages."""
        if filed is not None:
            if self.limited:
                count(self, step, filed)
            rows = filed.rows
            if filed.owed is not None:
                rows = self.fire(step, rows, filed.owed & self.fires_in_time(rows), ON_TIME)
            after = self._fire_by_step(step, rows)
            if self.definition.takes_back:
                after = self._fire_closed(step, after)
            ends = combine(after.sessions.column(END)).to_numpy()
            homes = np.where(self.has_passed(ends, step.progress.watermark_us), self.store.home(ends), HOT)
            self.timers.set_ends(step.kv, after.sessions, filed.fresh & (homes == HOT), step.progress.step)
            self.keep(step, filed.stored.near, filed.stay, after, homes)
            self.emit(step)

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Fire the sessions that the watermark passed, then the periods that `now` crossed, then close and purge."""
        work = self._begin(kv, now_us)
        progress = work.progress
        before_us = progress.watermark_us
        watermark_us = max(watermark_us, before_us)
        moment = Moment(progress.step, now_us, progress.now_us, (before_us, watermark_us))
        if progress.schema is not None:
            step = self._step(work, moment)
            self._evolve(step)
            progress.watermark_us = watermark_us
            last_panes = evict(self, step, watermark_us) if self.limited else []
            changed = self._emission_changed(kv)
            if changed:
                self._look_again(step)
            if changed or watermark_us > before_us:
                self._fire_on_time(step, watermark_us)
            step = step._replace(emitted_us=watermark_us)
            tick(self, step)
            self.emit(step)
            self._close(step, last_panes)
            if before_us < watermark_us == END_OF_TIME_US:  # no period ends any more
                self.timers.drop_pending(kv, early=True)
            self._forget(step)
        self.store.release()
        progress.watermark_us, progress.now_us = watermark_us, now_us
        return self._end(work)

    def emit(self, step: Step) -> None:
        """Emit the panes of one part of a step, in order."""
        step.result.panes += in_order(step.drain(), self.definition.by)

    def _fire_on_time(self, step: Step, watermark_us: int) -> None:
        """Fire the sessions that the watermark passed, in slices, so that memory is bounded."""
        # A session that ends exactly at the former watermark may have been pending.
        _, hashes, older = self.timers.due.passed(step.kv, step.emitted_us, watermark_us, watermark_us)
        if len(hashes):
            parts = self.store.parts(step.kv, hashes, SESSIONS_AT_ONCE)
            step.result.panes += in_order_of_parts(
                (self._fire_ended(step, part, watermark_us) for part in parts), self.definition.by
            )
        if older:
            self.timers.due.drop(step.kv, watermark_us)

    def _fire_ended(self, step: Step, hashes: Hashes, watermark_us: int) -> list[pa.Table]:
        """Return the panes of those of these keys that the watermark passed; their sessions move to the bucket of their end."""
        by, kv = self.definition.by, step.kv
        stored = self.near(step, np.full(len(hashes), HOT, dtype=np.int64), hashes)
        if stored is None:
            return []
        ends = stored.values(END)
        passed_ = self.has_passed(ends, watermark_us)
        self.timers.set_later_ends(kv, stored, ~passed_, hashes, watermark_us, step.progress.step)
        if not passed_.any():
            return []
        near, stay, rows = stored.near, stored.others(passed_), stored.rows(by, passed_)
        rows = self.fire(step, rows, self.fires_in_time(rows), ON_TIME)
        if self.history is None:
            there = stored.keys(passed_ & (ends >= watermark_us), by)
            near, stay = self.store.without(near, stay, hashes_of(there, by))
        kept = self._stays(rows, watermark_us)
        self.keep(step, near, stay, rows.where(kept), self.store.home(ends[passed_][kept]))
        return step.drain()

    def _stays(self, rows: Rows, watermark_us: int) -> BoolArray:
        """True for ended sessions that this step does not purge, or that may emit more."""
        if self.history is not None or self.limited or self.definition.emit.closing_pane:
            return np.ones(len(rows.sessions), dtype=bool)
        ends, pending = (combine(rows.sessions.column(name)).to_numpy() for name in (END, PENDING))
        stays: BoolArray = (ends >= self.forgotten_before(watermark_us)) | (pending > 0)
        return stays

    def fires_in_time(self, rows: Rows) -> BoolArray:
        """True for sessions that fire when they end."""
        pending = combine(rows.sessions.column(PENDING)).to_numpy() > 0
        return fires_at_end(self.definition.emit, pending) | self.definition.numbered

    def fire_stored(
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
        rows = self.fire(step, rows, every, timing, closing=closing, always=always)
        self.keep(step, stored.near, stored.others(which), rows, homes)

    def _close(self, step: Step, last_panes: list[pa.Table]) -> None:
        """Close sessions: emit pending rows, and the closing pane if asked for. In slices, as `_fire_on_time`."""
        low, high = step.closed_us, self.closed_before(step.progress.watermark_us)
        parts: Iterator[list[pa.Table]] = iter([last_panes] if last_panes else [])
        closing, older = 0, False
        if low < high:
            ends, hashes, older = self.timers.closing.passed(step.kv, low, high - 1, high)
            closing = len(hashes)
        if closing:
            homes = self.store.home(ends)
            each = homes_at_once(homes, SESSIONS_AT_ONCE // 2)
            closed = (self._fire_closing(step, homes[places], hashes[places], low, high) for places in each)
            parts = itertools.chain(parts, closed)
        if closing or last_panes:
            step.result.panes += in_order_of_parts(parts, self.definition.by)
        if closing or older:
            self.timers.closing.drop(step.kv, high)

    def _fire_closing(
        self, step: Step, homes: IntArray, hashes: Hashes, low: int, high: int
    ) -> list[pa.Table]:
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
        self.fire_stored(step, stored, closes, LATE, closing=True)
        return step.drain()

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
        self.timers.drop(step.kv)
        homes = [HOT, *(bucket.home for bucket in self.store.buckets(step.kv))]
        rows = self.read(step.kv, homes, step.emitted_us)
        if rows is not None:
            by = self.definition.by
            sessions = Stored.of(Near(rows, {}), by, step.emitted_us).rows(by).sessions
            homes = combine(sessions.column(HOME)).to_numpy()
            self.timers.set_fires(step.kv, sessions, homes, step.closed_us, step.moment, anew=True)

    def runs(
        self,
        kv: KV,
        largest_us: Mapping[Partition, int],
        seen_us: Mapping[Partition, int],
        watermark_us: int,
        now_us: int | None,
    ) -> Runs:
        from windrow.operators.aggregate.sessions.micro_batching import SessionRuns

        return SessionRuns(self, kv, largest_us, seen_us, watermark_us, now_us)

    # -- pushdown to SQL ----------------------------------------------------------------------------------------------

    def pushdown(self, schema: pa.Schema) -> Pushdown | None:
        return pushdown_sessions(self.definition, schema)

    def ingest_groups(
        self, kv: KV, groups: pa.Table, schema: pa.Schema, watermark_us: int, now_us: int
    ) -> Grouped:
        open_from_us = self.closed_before(watermark_us) - self.gap_us
        grouped, groups, schema = session_groups(self, kv, groups, schema, open_from_us, now_us)
        work = self._begin(kv, now_us)
        progress, result = work.progress, work.result
        self._learn(progress, schema)
        step = self._step(work, Moment(progress.step, now_us))
        self._evolve(step)
        if len(groups):
            result.groups = len(groups)
            times = (combine(groups.column(name)).to_numpy() for name in (TIME_MIN, TIME_MAX))
            self.keep_assigned(step, file_groups(self, step, slices_of(self.definition, groups), *times))
        progress.begin(now_us)
        grouped.step = grouped.step.then(self._end(work))
        return grouped

    # -- sessions of a step -------------------------------------------------------------------------------------------

    def _fire_by_step(self, step: Step, rows: Rows) -> Rows:
        """Fire sessions that took messages by the trigger that is evaluated in every step."""
        ends, edges = combine(rows.sessions.column(END)).to_numpy(), self.edges(step.progress.watermark_us)
        for timing, trigger, of_timing in by_timing(self.definition.emit, ends, edges):
            if by_step(trigger):
                fires = np.zeros(len(of_timing), dtype=bool)
                fires[of_timing] = self.judged(step, rows.where(of_timing), trigger)
                rows = self.fire(step, rows, fires, timing)
        return rows

    def _fire_closed(self, step: Step, rows: Rows) -> Rows:
        """Fire closed sessions: their pending rows, and the closing pane if asked for. Return all sessions."""
        emit, closed = self.definition.emit, combine(rows.sessions.column(END)).to_numpy() < step.closed_us
        if not emit.closing_pane:
            closed = closed & (combine(rows.sessions.column(PENDING)).to_numpy() > 0) & emit.emits_late
        elif step.result.ended:
            closed = closed & ~self._ended(rows.sessions, step.result.ended)
        return self.fire(step, rows, closed, LATE, closing=True)

    def fire(
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
        last = is_last(self.definition, ends, timing, self.edges(step.progress.watermark_us)) | closing
        firing = Firing(timing, last, closing, always)
        emitter = Emitter(self.definition, step.dead, step.progress.step)
        fired = fire_sessions(emitter, chosen, firing, partial(self.values, step.kv, panes=chosen.panes))
        if fired.emitted is not None:
            step.emitted.append(fired.emitted)
            if self.definition.emit.closing_pane and not closing:
                last = fired.emitted.filter(fired.emitted.column(IS_LAST))
                step.result.ended.update(self._names(last))
        return after_firing(rows, which, fired.rows)


#: A bucket of ends is this part of a gap, and no less than a second; a minute with a dynamic gap.
BUCKETS_A_GAP, SECOND_US = 4, 1_000_000
#: Where messages are numbered, no less than so many of them.
NUMBERS = 1000
