"""The windowed aggregator over session windows: ranges of event time of one key between two pauses.

A message is the range `[t, t + gap]`; ranges of a key that overlap or touch are one session, so sessions are a function of the
set of messages: any order and any cut gives the same. A step joins its messages with each other and with the sessions that they
touch, as ranges; accumulators are merged along them. Where sessions lie, and what stands of what was told:
`stores/sessions.py`.

A session is told when the watermark passes its end. It is *closed*, and never opens again, when the watermark less the allowed
lateness is beyond its end: a message at the very end, which touches it, is on time as long as the watermark stands there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import EveryBatch, EveryCount, EveryPeriod, Never
from windrow.core.keys import Encode
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.core.windows import Session
from windrow.operators.aggregate.base import Steps
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.filing import bury_broken
from windrow.operators.aggregate.output import sorted_states
from windrow.operators.aggregate.session_filing import Filed, file_groups, file_sessions
from windrow.operators.aggregate.session_history import forget_messages, values_of_sessions
from windrow.operators.aggregate.session_panes import fire, in_order
from windrow.operators.aggregate.session_partials import ingest_groups_of_sessions, pushdown_sessions
from windrow.operators.aggregate.session_rows import Rows, apart, chosen, flags, owners, together, unfolded
from windrow.operators.aggregate.state_rows import merge_rows
from windrow.operators.aggregations.calculation import Broken
from windrow.operators.operator import Grouping, RunAgain, numbers_of
from windrow.operators.steps.assigners import assigner_of
from windrow.operators.steps.columns import EARLY, END, IS_LAST, LATE, ON_TIME, PENDING, START, UPSERT
from windrow.operators.steps.dead import DeadLetters
from windrow.operators.steps.groups import combine, without
from windrow.operators.steps.ids import SeenIds
from windrow.operators.steps.intake import take_in
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.pushdown import Grouped, Pushdown
from windrow.operators.steps.step import StepResult, limit, passed
from windrow.operators.view import one_key
from windrow.stores.kv import KV
from windrow.stores.marks import Marks
from windrow.stores.pages import HASH, hashes_of
from windrow.stores.sessions import HOME, HOT, STANDS, SessionStore
from windrow.stores.spread import Hashes
from windrow.stores.windows import Near

#: A bucket of ends is this part of a gap, and no less than a second.
BUCKETS_A_GAP, SECOND_US = 4, 1_000_000
#: What waits for a period, by home: those that may still grow, and all others.
_HALF = 1 << 62


class Step(NamedTuple):
    """One step: what it reads and writes, and what it says. closed_us: sessions that end before it are closed already."""

    kv: KV
    progress: Progress
    result: StepResult
    dead: DeadLetters
    told: list[pa.Table]
    closed_us: int


class SessionAggregator(Steps, Grouping):
    """One definition of a session window on one store."""

    def __init__(self, definition: AggregateDefinition) -> None:
        super().__init__(definition)
        assert isinstance(definition.window, Session)
        self.gap_us, self.cut = definition.window.gap_us, definition.window.cut
        self.cells = None if self.cut is None else assigner_of(self.cut)
        width_us = max(self.gap_us // BUCKETS_A_GAP, SECOND_US)
        self.store = SessionStore(self.windows_cf, self.aux_cf, definition.by, width_us)
        #: Sessions that may end, that may close with something to say, that wait for a period.
        self.due = Marks(self.aux_cf, b"de", width_us)
        self.closing = Marks(self.aux_cf, b"dc", width_us)
        self.waiting = Marks(self.aux_cf, b"dw", _HALF)
        self.writes_keys = self.history is not None and bool(definition.by)
        if definition.ids is not None:
            time_us = definition.retention.time_us
            self.seen = SeenIds(definition, self.aux_cf, None if time_us is None else time_us + self.gap_us)

    def _write_keys(self, encode: Encode) -> None:
        if self.history is not None:
            self.history.encode = encode

    def refiling(self) -> RunAgain | None:
        if self.history is None:
            return None
        return RunAgain(
            logic=self,
            kept_from=lambda kv: START_OF_TIME_US,
            begun=self.begun,
            prepare=self.prepare_keys,
            reached=numbers_of(self, b"d", b"e"),
            why=f"what a session of {self.definition.name!r} takes depends on all that came before",
        )

    # -- time -------------------------------------------------------------------------------------------------------

    def has_passed(self, ends: IntArray, watermark_us: int) -> BoolArray:
        """True for sessions that are told as ended: where nothing can be corrected, only when nothing on time may come."""
        waits = not self.definition.emit.tells_late
        ended: BoolArray = ends < watermark_us if waits else ends <= watermark_us
        return ended

    def closed_before(self, watermark_us: int) -> int:
        """Sessions that end before it are closed."""
        return passed(watermark_us, self.definition.allowed_lateness_us)

    def kept_from(self, watermark_us: int) -> int:
        """Messages before it are out of retention by themselves."""
        time_us = self.definition.retention.time_us
        if time_us is None:
            return START_OF_TIME_US
        floor_us = passed(watermark_us, time_us)
        first = limit(floor_us, self.gap_us)
        return (
            first
            if self.cells is None or floor_us >= END_OF_TIME_US
            else max(first, self._cell_from(floor_us))
        )

    def _cell_from(self, floor_us: int) -> int:
        """The start of the first window of `cut` that ends at or after it."""
        assert self.cells is not None
        return self.cells.first_open(floor_us - 1) if floor_us > START_OF_TIME_US else START_OF_TIME_US

    # -- steps ------------------------------------------------------------------------------------------------------

    def take(self, kv: KV, table: pa.Table, now_us: int) -> StepResult:
        """File the messages, and fire what they fill."""
        progress, result, dead = self._begin(kv)
        table = self._learnt(progress, table)
        rows = take_in(self.definition, table, now_us, dead)
        if self.seen is not None:
            rows = self._without_duplicates(kv, rows, result, self.kept_from(progress.watermark_us))
        step = Step(kv, progress, result, dead, [], self.closed_before(progress.watermark_us))
        self._take(step, file_sessions(self, step, rows))
        progress.begin(now_us)
        return self._end(kv, progress, result, dead)

    def take_groups(
        self, kv: KV, groups: pa.Table, first_us: IntArray, last_us: IntArray, now_us: int, schema: pa.Schema
    ) -> StepResult:
        """`take` of messages that were grouped and aggregated elsewhere: state rows without a window, first and last times."""
        progress, result, dead = self._begin(kv)
        self._learn(progress, schema)
        step = Step(kv, progress, result, dead, [], self.closed_before(progress.watermark_us))
        if len(groups):
            self._take(step, file_groups(self, step, groups, first_us, last_us))
        progress.begin(now_us)
        return self._end(kv, progress, result, dead)

    def _take(self, step: Step, filed: Filed | None) -> None:
        """Judge and keep what took messages."""
        if filed is not None:
            self._note_emission(step.kv)
            after = self._judged(step, filed.rows)
            ends = combine(after.sessions.column(END)).to_numpy()
            homes = np.where(self.has_passed(ends, step.progress.watermark_us), self.store.home(ends), HOT)
            fresh = filed.fresh & (homes == HOT)
            hashes = hashes_of(after.sessions, self.definition.by)
            self.due.add(step.kv, ends[fresh], hashes[fresh], step.progress.step)
            self._keep(step, filed.near, filed.others, after, homes)
            self._tell(step)

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Fire what the watermark passed, then the periods that `now` crossed, then close and forget."""
        progress, result, dead = self._begin(kv)
        before_us, now_before_us = progress.watermark_us, progress.now_us
        watermark_us = max(watermark_us, before_us)
        if progress.schema is not None:
            step = Step(kv, progress, result, dead, [], self.closed_before(before_us))
            progress.watermark_us = watermark_us
            changed = self._emission_changed(kv)
            if changed:
                self._look_again(step)
            if changed or watermark_us > before_us:
                self._fire_on_time(step, before_us, watermark_us)
            self._tell(step)
            if now_before_us is not None:
                self._tick(step, now_before_us, now_us)
                self._tell(step)
            self._close(step)
            self._tell(step)
            self._forget(step)
        progress.watermark_us, progress.now_us = watermark_us, now_us
        return self._end(kv, progress, result, dead)

    def _tell(self, step: Step) -> None:
        """What one part of a step fired, in order."""
        step.result.panes += in_order(step.told, self.definition.by)
        step.told.clear()

    def _fire_on_time(self, step: Step, before_us: int, watermark_us: int) -> None:
        """Tell the sessions that the watermark passed; they go to where they are looked for by their end."""
        emit, by, kv = self.definition.emit, self.definition.by, step.kv
        # What ends just where the watermark stood may have had to wait.
        _, hashes = self.due.between(kv, before_us, watermark_us)
        near = self._near(kv, np.full(len(hashes), HOT, dtype=np.int64), hashes)
        if near is not None and near.rows is not None:
            sessions = apart(near.rows, by).sessions
            passed_ = self.has_passed(combine(sessions.column(END)).to_numpy(), watermark_us)
            self._look_later(step, sessions.filter(pa.array(~passed_)), hashes)
            others, rows = chosen(near.rows, by, passed_)
            if len(rows.sessions):
                pending = combine(rows.sessions.column(PENDING)).to_numpy() > 0
                speaks = np.full(len(pending), emit.on_time) | (pending & (not emit.tells_late))
                rows = self._fired(step, rows, speaks, ON_TIME)
                homes = self.store.home(combine(rows.sessions.column(END)).to_numpy())
                self._keep(step, near, others, rows, homes)
        self.due.drop(kv, watermark_us)

    def _look_later(self, step: Step, sessions: pa.Table, hashes: Hashes) -> None:
        """Mark those that were looked at, have grown since they were marked, and end in the same bucket."""
        width, ends = self.due.width_us, combine(sessions.column(END)).to_numpy()
        own = hashes_of(sessions, self.definition.by)
        again = (ends // width == step.progress.watermark_us // width) & np.isin(own, hashes)
        self.due.add(step.kv, ends[again], own[again], step.progress.step)

    def _tick(self, step: Step, now_before_us: int, now_us: int) -> None:
        """Periods tick on one grid of `now` for the whole definition."""
        emit = self.definition.emit
        for timing, trigger, low, high in (
            (EARLY, emit.early, HOT, HOT),
            (LATE, emit.late, START_OF_TIME_US, _HALF - 1),
        ):
            if not isinstance(trigger, EveryPeriod):
                continue
            if now_us // trigger.period_us > now_before_us // trigger.period_us:
                homes, hashes = self.waiting.between(step.kv, low, high)
                self._fire_pending(step, homes, hashes, timing)
                self.waiting.drop_between(step.kv, low, high)

    def _fire_pending(self, step: Step, homes: IntArray, hashes: Hashes, timing: str) -> None:
        """Tell the sessions of these keys of which something was not told yet."""
        near = self._near(step.kv, homes, hashes)
        if near is None or near.rows is None:
            return
        sessions = apart(near.rows, self.definition.by).sessions
        others, rows = chosen(near.rows, self.definition.by, combine(sessions.column(PENDING)).to_numpy() > 0)
        own = combine(rows.sessions.column(HOME)).to_numpy()
        self._keep(step, near, others, self._fired(step, rows, np.ones(len(own), dtype=bool), timing), own)

    def _close(self, step: Step) -> None:
        """Sessions that close: what is pending is said, and the closing pane if asked for."""
        emit, by = self.definition.emit, self.definition.by
        low, high = step.closed_us, self.closed_before(step.progress.watermark_us)
        if low >= high:
            return
        ends, hashes = self.closing.between(step.kv, low, high - 1)
        near = self._near(step.kv, self.store.home(ends), hashes)
        if near is not None and near.rows is not None:
            sessions = apart(near.rows, by).sessions
            ends = combine(sessions.column(END)).to_numpy()
            closes = (ends >= low) & (ends < high) & ~self._ended(sessions, step.result.ended)
            if not emit.closing_pane:
                closes &= combine(sessions.column(PENDING)).to_numpy() > 0
            others, rows = chosen(near.rows, by, closes)
            own = combine(rows.sessions.column(HOME)).to_numpy()
            rows = self._fired(step, rows, np.ones(len(own), dtype=bool), LATE, closing=True)
            self._keep(step, near, others, rows, own)
        self.closing.drop(step.kv, high)

    def _forget(self, step: Step) -> None:
        """Sessions that nothing in retention can reach any more."""
        floor_us = limit(self.kept_from(step.progress.watermark_us), self.gap_us)
        kept_from = floor_us // self.store.width_us * self.store.width_us
        if kept_from <= step.progress.purged_us:
            return
        self.store.drop(step.kv, kept_from)
        if self.seen is not None:
            self.seen.forget(step.kv, self.kept_from(step.progress.watermark_us))
        if self.history is not None:
            forget_messages(self.history, step.kv, self.store)
        step.progress.purged_us = kept_from

    def _near(self, kv: KV, homes: IntArray, hashes: Hashes) -> Near | None:
        """The rows of these keys at these homes, as far as these are still there."""
        wanted = np.unique(homes).tolist()
        if wanted and wanted[0] != HOT:
            there = {HOT, *(bucket.home for bucket in self.store.buckets(kv, wanted[0]))}
            wanted = [home for home in wanted if home in there]
        if not wanted:
            return None
        mine = np.isin(homes, np.array(wanted, dtype=np.int64))
        keys = pa.table({START: pa.array(homes[mine]), HASH: pa.array(hashes[mine])})
        return self.store.near(kv, wanted, keys)

    def _look_again(self, step: Step) -> None:
        """Mark all that waits under another emission than before."""
        self.waiting.drop(step.kv)
        self.closing.drop(step.kv)
        rows = self.store.read(step.kv, [HOT, *(bucket.home for bucket in self.store.buckets(step.kv))])
        if rows is not None:
            sessions = apart(rows, self.definition.by).sessions
            self._mark(step, sessions, combine(sessions.column(HOME)).to_numpy())

    # -- what SQL does before -----------------------------------------------------------------------------------------

    def pushdown(self, schema: pa.Schema) -> Pushdown | None:
        return pushdown_sessions(self.definition, schema)

    def ingest_groups(
        self, kv: KV, groups: pa.Table, schema: pa.Schema, watermark_us: int, now_us: int
    ) -> Grouped:
        return ingest_groups_of_sessions(self, kv, groups, schema, watermark_us, now_us)

    # -- what a step touched ------------------------------------------------------------------------------------------

    def _judged(self, step: Step, rows: Rows) -> Rows:
        """Sessions that took messages, after the trigger that looks at every step."""
        emit = self.definition.emit
        ended = self.has_passed(combine(rows.sessions.column(END)).to_numpy(), step.progress.watermark_us)
        pending = combine(rows.sessions.column(PENDING)).to_numpy()
        for timing, trigger, mine in ((EARLY, emit.early, ~ended), (LATE, emit.late, ended)):
            if isinstance(trigger, EveryBatch | EveryCount):
                needed = trigger.n if isinstance(trigger, EveryCount) else 1
                rows = self._fired(step, rows, mine & (pending >= needed), timing)
        return rows

    def _fired(self, step: Step, rows: Rows, which: BoolArray, timing: str, *, closing: bool = False) -> Rows:
        """Fire these sessions; all rows after, in the order in which they were."""
        if not which.any():
            return rows
        rows = self._unfolded(rows, which)
        owner = owners(rows, self.definition.by)
        chosen = rows.where(which, which[owner])
        ends = combine(chosen.sessions.column(END)).to_numpy()
        is_last = (ends < self.closed_before(step.progress.watermark_us)) & (timing != EARLY)
        fired = fire(
            self.definition,
            chosen,
            partial(self._values, step.kv),
            timing=timing,
            is_last=is_last | closing,
            closing=closing,
            step=step.progress.step,
            dead=step.dead,
        )
        if fired.told is not None:
            step.told.append(fired.told)
            if self.definition.emit.closing_pane and not closing:
                last = fired.told.filter(fired.told.column(IS_LAST))
                step.result.ended.update(self._names(last))
        rest = rows.where(~which, ~which[owner])
        order = np.argsort(np.r_[np.flatnonzero(which), np.flatnonzero(~which)], kind="stable")
        sessions = concat([fired.rows.sessions, rest.sessions]).take(pa.array(order))
        panes = [p for p in (fired.rows.panes, rest.panes) if len(p)]
        return Rows(sessions, concat(panes) if panes else rest.panes)

    def _unfolded(self, rows: Rows, which: BoolArray) -> Rows:
        """What the last panes of these sessions said, as panes."""
        if not (flags(rows.sessions, STANDS) & which).any():
            return rows
        some = unfolded(self.calculation, Rows(rows.sessions.filter(pa.array(which)), rows.panes))
        order = np.argsort(np.r_[np.flatnonzero(which), np.flatnonzero(~which)], kind="stable")
        sessions = concat([some.sessions, rows.sessions.filter(pa.array(~which))]).take(pa.array(order))
        return Rows(sessions, some.panes)

    def _values(self, kv: KV, state: pa.Table) -> tuple[dict[str, pa.Array], list[Broken]]:
        if self.history is not None:
            return values_of_sessions(self.history, kv, state, self.calculation)
        return self.calculation.finish({n: state.column(n) for n in state.column_names}, len(state))

    def merged(self, rows: pa.Table, dead: DeadLetters) -> pa.Table:
        """One row a session of parts of sessions and of what came, stored ones first."""
        parts = rows.append_column(UPSERT, pa.array(np.zeros(len(rows), dtype=bool)))
        merged, broken = merge_rows(self.calculation, parts)
        bury_broken(merged, broken, self.definition, dead)
        return merged

    # -- what is kept -----------------------------------------------------------------------------------------------

    def _keep(self, step: Step, near: Near, others: pa.Table | None, rows: Rows, homes: IntArray) -> None:
        """Store `rows` in the place of `near`, of which `others` stay as they are. homes: of the sessions."""
        self._mark(step, rows.sessions, homes)
        everything = without(together(rows), HOME)
        of_panes = homes[owners(rows, self.definition.by)]
        everything = everything.append_column(HOME, pa.array(np.r_[homes, of_panes]))
        self.store.put(step.kv, near, everything if others is None else concat([others, everything]))

    def _mark(self, step: Step, sessions: pa.Table, homes: IntArray) -> None:
        """Mark sessions with something to be told by a period, or when they close."""
        emit, kv, number = self.definition.emit, step.kv, step.progress.step
        hashes, hot = hashes_of(sessions, self.definition.by), homes == HOT
        pending = combine(sessions.column(PENDING)).to_numpy() > 0
        for trigger, mine in ((emit.early, hot), (emit.late, ~hot)):
            if isinstance(trigger, EveryPeriod):
                waits = mine & pending
                self.waiting.add(kv, homes[waits], hashes[waits], number)
        ends = combine(sessions.column(END)).to_numpy()
        closes = ~hot & (ends >= step.closed_us)
        if not emit.closing_pane:
            closes &= pending & (not isinstance(emit.late, Never))
        self.closing.add(kv, ends[closes], hashes[closes], number)

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        super().set_back(kv, progress, watermark_us)
        progress.purged_us = min(progress.purged_us, self.kept_from(progress.watermark_us))

    def states(
        self, kv: KV, low_us: int, high_us: int, key: Mapping[str, Any] | None = None
    ) -> Iterator[pa.Table]:
        """`kept`, with the present values, sorted."""
        rows = self.kept(kv, low_us, high_us, key)
        if rows is not None and len(rows):
            yield sorted_states(self.definition, rows, self._values(kv, rows)[0])

    def kept(self, kv: KV, low_us: int, high_us: int, key: Mapping[str, Any] | None) -> pa.Table | None:
        """Sessions in retention that end after `low` and begin before `high`; of a key at least, or of all."""
        progress = Progress.load(kv, self.aux_cf)
        if progress.schema is None:
            return None
        self._bind(progress.schema)
        time_us = self.definition.retention.time_us
        floor_us = START_OF_TIME_US if time_us is None else passed(progress.watermark_us, time_us)
        homes = [b.home for b in self.store.buckets(kv, max(low_us, floor_us)) if b.first_us < high_us]
        stored = self._of_key(kv, [*homes, HOT], key, progress.schema)
        if stored is None:
            return None
        rows = without(apart(stored, self.definition.by).sessions, HOME, STANDS)
        return rows.filter(pc.greater(rows.column(END), floor_us))

    def _of_key(
        self, kv: KV, homes: list[int], key: Mapping[str, Any] | None, schema: pa.Schema
    ) -> pa.Table | None:
        """The rows of a key, and others, if it is given whole; else all."""
        keys = None if key is None else one_key(self.definition.by, key, schema)
        if keys is None:
            return self.store.read(kv, homes)
        each = keys.take(pa.array(np.zeros(len(homes), dtype=np.int64)))
        return self.store.near(kv, homes, each.append_column(START, pa.array(homes, pa.int64()))).rows
