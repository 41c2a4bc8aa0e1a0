"""Session state of an aggregator: sessions that have ended or are near, their merge, write and query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import Trigger, by_step
from windrow.core.time import END_OF_TIME_US, MINUTE_US, START_OF_TIME_US
from windrow.core.windows import Session, TupleSession
from windrow.operators.aggregate.assignment import bury_broken
from windrow.operators.aggregate.base import Steps
from windrow.operators.aggregate.count_retention import SizeLimits
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.output import sorted_states
from windrow.operators.aggregate.sessions.emitted import Spans
from windrow.operators.aggregate.sessions.kept_messages import values_of_sessions
from windrow.operators.aggregate.sessions.merge_buffer import settled
from windrow.operators.aggregate.sessions.pane_index_floor import SessionNumbers
from windrow.operators.aggregate.sessions.rows import (
    Rows,
    Step,
    Stored,
    live,
    together,
)
from windrow.operators.aggregate.sessions.timers import SessionMarks
from windrow.operators.aggregate.state_rows import merge_rows
from windrow.operators.aggregate.triggers import Judged
from windrow.operators.aggregations.calculation import Broken
from windrow.operators.steps.assigners import WindowAssigner, assigner_of
from windrow.operators.steps.columns import END, SINCE, START
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import Groups, combine, without
from windrow.operators.steps.ids import SeenIds
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import limit, passed
from windrow.operators.steps.work import Work
from windrow.operators.view import one_key
from windrow.stores.key_hash import Hashes
from windrow.stores.kv import KV
from windrow.stores.page_format import HASH
from windrow.stores.sessions import CURRENT, HOME, HOT, SessionStore
from windrow.stores.window_state import Near

#: A bucket of ends is this part of a gap, and no less than a second; a minute with a dynamic gap.
BUCKETS_A_GAP, SECOND_US = 4, 1_000_000
#: Where messages are numbered, no less than so many of them.
NUMBERS = 1000


class StoredSessions(Steps):
    """The stored session windows of one definition."""

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
        #: True if every session is emitted when it ends.
        self.emits_all = definition.emit.on_time
        keeps = self.keeps or definition.full_state
        self.store = SessionStore(self.windows_cf, self.aux_cf, definition.by, width_us, keeps=keeps)
        self.marks = SessionMarks(self.aux_cf, definition.emit, definition.by, width_us)
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

    def has_passed(self, ends: IntArray, watermark_us: int) -> BoolArray:
        """True for sessions that are emitted as ended: without corrections only when no message on time may come."""
        waits = not self.definition.emit.emits_late
        ended: BoolArray = ends < watermark_us if waits else ends <= watermark_us
        return ended

    def closed_before(self, watermark_us: int) -> int:
        """Return the end before which sessions are closed."""
        return passed(watermark_us, self.definition.allowed_lateness_us)

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
        if not self.marks.delays:
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
        self.marks.fires(step.kv, rows.sessions, homes, step.closed_us, step.moment)
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
