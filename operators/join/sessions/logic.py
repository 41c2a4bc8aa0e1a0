"""The join over sessions: messages match all others of their session. Semantics "Joins", "Sessions"; seed 003 "Session Join
Window Op".

An aggregate holds the sessions (`windows.py`), of the messages of both inputs or of one. The sessions that a step changes
decide which stored messages it reads: partners of new ones, and all of a merged session. Rows of unmatched messages are emitted
when their session closes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import decode_i64, encode_i64
from windrow.core.keys import FIELDS_END
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregate.sessions.dynamic_gap import GAP, with_gaps
from windrow.operators.join.columns import JoinStep, SideRows
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.logic import OPEN, JoinOperator
from windrow.operators.join.output import NOBODY, Columns
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.join.sessions.pairs import (
    Members,
    extent,
    overlapping,
    parts_of,
    reached,
    several_parts,
)
from windrow.operators.join.sessions.windows import ROW, Changed, JoinSessions, covering, no_sessions
from windrow.operators.join.tables import stack
from windrow.operators.join.windowing import COUNT, KEY, TIME, windowing
from windrow.operators.operator import Refiling, RunAgain
from windrow.operators.steps.columns import POSITION_COLUMNS
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.output_columns import STAMP
from windrow.operators.steps.pairing import NO_KEY
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import limit
from windrow.operators.view import View
from windrow.stores.kv import KV, Batch, Pair
from windrow.stores.message_store import Bound

#: At most so many times the messages of closed sessions are scanned, to find the followed ones.
_BESIDE = 8
NO_GAPS = np.zeros(0, dtype=np.int64)


class SessionJoinOperator(JoinOperator):
    """A join whose messages match within sessions."""

    def __init__(self, definition: JoinDefinition) -> None:
        super().__init__(definition)
        self.sessions = JoinSessions(windowing(definition))
        self.making, self.own_gap = definition.session_sides, definition.own_gap
        assert definition.sessions is not None
        self.gap_us = definition.sessions.sure_us

    @property
    def common(self) -> bool:
        """True if both inputs make sessions together."""
        return len(self.making) > 1

    def cfs(self) -> tuple[str, ...]:
        return (*super().cfs(), *self.sessions.cfs())

    def refiling(self) -> Refiling:
        return RunAgain(
            logic=self,
            kept_from=lambda kv: START_OF_TIME_US,
            prepare=self.prepare,
            reached=lambda kv: self.progress(kv).step,
            why=f"what a session of {self.definition.name!r} takes depends on all that came before",
        )

    # -- ingest -----------------------------------------------------------------------------------------------------

    def _take(self, step: JoinStep, new: list[Slice]) -> None:
        gaps = self._gaps(new, step.dead)
        keys = [pa.array(self.keys(new[side], side, step.columns), pa.binary()) for side in (LEFT, RIGHT)]
        changed = self._enter(step, new, keys, gaps)
        if len(new[LEFT]) or len(new[RIGHT]):
            self._meet(step, changed, new, keys)

    def _on_time(self, side: int, watermark_us: int, rows: Slice, dead: DeadLetters) -> Slice:
        """Return the rows; if both inputs make sessions, these decide lateness."""
        return rows if self.common else super()._on_time(side, watermark_us, rows, dead)

    def _gaps(self, new: list[Slice], dead: DeadLetters) -> list[IntArray]:
        """Return the dynamic gaps of messages that make sessions, by side. Removes messages without a valid gap from `new`."""
        if self.own_gap is None:
            return []
        gaps = []
        for side in self.making:
            dead.input = self.definition.inputs[side].name
            rows = with_gaps(self.own_gap, new[side], dead) if len(new[side]) else None
            gaps.append(NO_GAPS if rows is None else combine(rows.table.column(GAP)).to_numpy())
            if rows is not None:
                new[side] = Slice(rows.table.drop_columns([GAP]), rows.times)
        return gaps

    def _enter(self, step: JoinStep, new: list[Slice], keys: list[pa.Array], gaps: list[IntArray]) -> Changed:
        """Add messages to their sessions, and remove rejected ones from `new` and `keys`. Returns the changes of the sessions
        that hold these messages.
        """
        changed, dead = None, step.dead
        if any(len(new[side]) for side in self.making):
            changed, refused = self.sessions.enter(step.kv, self._entering(new, keys, gaps), step.now_us)
            first = np.cumsum([0, *(len(new[side]) for side in self.making)])
            for at, side in enumerate(self.making):
                lost = np.zeros(len(new[side]), dtype=bool)
                dead.input = self.definition.inputs[side].name
                for reason, detail, rows in refused.rows:
                    of_side = rows[(rows >= first[at]) & (rows < first[at + 1])] - first[at]
                    dead.add_rows(reason, detail, new[side].table, of_side, pa.array(new[side].times))
                    lost[of_side] = True
                if lost.any():
                    new[side] = new[side].take(np.flatnonzero(~lost))
                    keys[side] = keys[side].filter(pa.array(~lost))
        if changed is None:
            nobody = np.zeros(0, dtype=np.int64)
            changed = Changed(no_sessions(), nobody.astype(bool), no_sessions(), nobody)
        return changed if self.common else self._with_visited(step, changed, new, keys)

    def _entering(self, new: Sequence[Slice], keys: Sequence[pa.Array], gaps: Sequence[IntArray]) -> Slice:
        """Return the messages that make sessions, in the form that these take."""
        parts = []
        for side in self.making:
            rows = new[side]
            entering = pa.table({KEY: keys[side], TIME: pa.array(rows.times).cast(STAMP)})
            for name in POSITION_COLUMNS:
                entering = entering.append_column(name, rows.table.column(name))
            parts.append(entering)
        times = np.concatenate([new[side].times for side in self.making])
        table = concat(parts)
        if gaps:
            table = table.append_column(GAP, pa.array(np.concatenate(gaps)))
        return Slice(table.append_column(ROW, pa.array(np.arange(len(times), dtype=np.int64))), times)

    def _with_visited(
        self, step: JoinStep, changed: Changed, new: Sequence[Slice], keys: Sequence[pa.Array]
    ) -> Changed:
        """Return `changed` with the sessions of one input that are open at the times of new messages of the other."""
        [making] = self.making
        own, times = keys[1 - making], new[1 - making].times
        apart = np.flatnonzero(covering(changed.sessions, own, times) == NOBODY)
        open_, holder = self.sessions.at(step.kv, own.take(pa.array(apart)), times[apart])
        visited = open_.take(pa.array(np.unique(holder[holder != NOBODY])))
        late = extent(visited)[1] <= step.progress.watermark_us
        return changed.with_others(visited, late)

    def _meet(self, step: JoinStep, changed: Changed, new: Sequence[Slice], keys: Sequence[pa.Array]) -> None:
        """Emit the pairs that messages of changed sessions form, and file the new ones."""
        columns = step.columns
        inside = [self._inside(changed, new[side], keys[side], side, columns) for side in (LEFT, RIGHT)]
        both, members = self._members(step, changed, new, inside)
        li, ri = self._matching(
            both, *overlapping(changed, (members[LEFT], members[RIGHT]), self.reach), columns
        )
        late = changed.late[members[LEFT].session[li]]
        emitted = self._already_matched(step, both[LEFT], len(new[LEFT]))
        self._emit_pairs(step, both, li, ri, late, emitted)
        batch = Batch()
        for side, rows in ((LEFT, li), (RIGHT, ri)):
            if side in self.followed:
                self._note_matches(step, side, both[side], rows, len(new[side]), len(new[1 - side]))
            matched = np.zeros(len(new[side]), dtype=bool)
            matched[rows[rows < len(new[side])]] = True
            self._file(step, batch, SideRows(side, new[side], keys[side].to_pylist()), matched)
        step.kv.write(batch)

    def _inside(self, changed: Changed, rows: Slice, keys: pa.Array, side: int, columns: Columns) -> IntArray:
        """Return the changed session of each new message; NO_KEY if it is in none, or a null in its key matches nothing."""
        session = covering(changed.sessions, keys, rows.times)
        for key in columns.keys:
            column = combine(rows.table.column(key[1 + side]))
            if column.null_count:
                session[column.is_null().to_numpy(zero_copy_only=False)] = NO_KEY
        return session

    def _members(
        self, step: JoinStep, changed: Changed, new: Sequence[Slice], inside: Sequence[IntArray]
    ) -> tuple[list[Slice], list[Members]]:
        """Return the messages of changed sessions: new ones, and stored ones that these may match."""
        size, several = len(changed), several_parts(changed)
        came = [_holds(size, session) for session in inside]
        # In sessions of one input the other side comes first: its messages in no part match all of it.
        first = RIGHT if self.common else 1 - self.making[0]
        meets = (came[LEFT] | came[RIGHT]) & several  # not where all have nulls in their keys
        near = reached(changed, inside, [rows.times for rows in new], self.reach.furthest_us)
        stored: dict[int, tuple[Slice, IntArray, IntArray]] = {}
        stored[first] = self._stored(step, changed, near, first, came[1 - first] | meets)
        rows, session, part = stored[first]
        there = came[first] | _holds(size, session)
        wanted = came[first] | meets | _holds(size, session[part == NO_KEY])
        stored[1 - first] = self._stored(step, changed, near, 1 - first, wanted & there)
        both, members = [], []
        for side in (LEFT, RIGHT):
            rows, session, part = stored[side]
            both.append(stack(new[side], rows))
            n = len(new[side])
            none = np.full(n, NO_KEY, dtype=np.int64)
            members.append(Members(np.r_[inside[side], session], np.r_[none, part], both[side].times, n))
        return both, members

    def _stored(
        self, step: JoinStep, changed: Changed, near: pa.Table, side: int, wanted: BoolArray
    ) -> tuple[Slice, IntArray, IntArray]:
        """Return (stored messages of a side in these sessions, cut to `near`, the session of each, the part that held it)."""
        if side in self.making:  # stored messages of a session are in a part of it
            wanted = wanted & _holds(len(changed), changed.owner)
        chosen = np.flatnonzero(wanted)
        stored, values, counts = self._spans(step.kv, side, near.take(pa.array(chosen)))
        session = np.repeat(chosen, counts)
        rows = self._decode(step.kv, side, stored, values, step.sides[side])
        return rows, session, parts_of(changed, session, rows.times)

    # -- advance ----------------------------------------------------------------------------------------------------

    def _going(self, step: JoinStep, watermark_us: int) -> Iterator[pa.Table | None]:
        """Yield the rows of unmatched messages whose session closes, or that no session can hold any more."""
        kv = step.kv
        closed, evicted = self.sessions.closing(kv, watermark_us, step.now_us)
        before_us, done_us = self.done(step.progress.watermark_us), self.done(watermark_us)
        for side in self.followed:
            gone = [] if closed is None else self._leaving(kv, side, closed)
            if side not in self.making:
                gone += self._never_in_one(kv, side, before_us, done_us)
            lonely = [stored for _, stored in sorted(gone)]
            yield self._last_words(step, side, lonely)
        if evicted is not None:
            starts, ends = (column.tolist() for column in extent(evicted))
            batch = Batch()
            for store in self.stores:
                for low, high in store.spans(evicted.column(KEY).to_pylist(), starts, ends):
                    batch.delete_range(store.cf, low, high)
            kv.write(batch)

    def _leaving(self, kv: KV, side: int, closed: pa.Table) -> list[tuple[bytes, bytes]]:
        """Return (place, key in the store) of the unmatched messages of closed sessions; they are followed no more."""
        entries = self._followed(kv, side, closed)
        batch = Batch()
        batch.delete_many(self.open_cfs[side], [place for place, _ in entries])
        kv.write(batch)
        return [(place, value[1:]) for place, value in entries if value[:1] == OPEN]

    def _followed(self, kv: KV, side: int, closed: pa.Table) -> list[Pair]:
        """Return the entries of messages of closed sessions: by one scan if their times are close, else session by session."""
        starts, ends = extent(closed)
        most = _BESIDE * int(combine(closed.column(COUNT)).to_numpy().sum()) + _BESIDE
        cf, low, high = self.open_cfs[side], encode_i64(int(starts.min())), encode_i64(int(ends.max()))
        entries = list(itertools.islice(kv.scan(cf, low, high), most))
        if len(entries) < most:
            times = np.array([decode_i64(place) for place, _ in entries], dtype=np.int64)
            keys = pa.array([_fields(place, value) for place, value in entries], pa.binary())
            covered = covering(closed, keys, times) != NOBODY
            return [entries[i] for i in np.flatnonzero(covered).tolist()]
        stored, _, counts = self._spans(kv, side, closed)
        lengths = [len(key) + len(FIELDS_END) for key in closed.column(KEY).to_pylist()]
        heads = np.repeat(lengths, counts).tolist()
        places = [name[head:] for name, head in zip(stored, heads, strict=True)]
        flags = kv.multi_get(cf, places)
        return [(place, flag) for place, flag in zip(places, flags, strict=True) if flag is not None]

    def _spans(self, kv: KV, side: int, sessions: pa.Table) -> tuple[list[bytes], list[bytes], list[int]]:
        """Return stored messages of sessions, one after the other: keys, values, number of each."""
        starts, ends = extent(sessions)
        keys = sessions.column(KEY).to_pylist()
        return self.stores[side].scan_spans(kv, keys, starts.tolist(), ends.tolist())

    def _never_in_one(self, kv: KV, side: int, before_us: int, done_us: int) -> list[tuple[bytes, bytes]]:
        """Return messages of the other input that no session can hold any more, as the watermark advances from `before_us`.
        Messages in an open session wait for it.
        """
        low, high = self.undecided_from(before_us), self.undecided_from(done_us)
        entries = list(kv.scan(self.open_cfs[side], encode_i64(low), encode_i64(high)))
        if not entries:
            return []
        keys = [_fields(place, value) for place, value in entries]
        times = np.array([decode_i64(place) for place, _ in entries], dtype=np.int64)
        _, holder = self.sessions.at(kv, pa.array(keys, pa.binary()), times)
        alone = [entries[i] for i in np.flatnonzero(holder == NOBODY).tolist()]
        batch = Batch()
        batch.delete_many(self.open_cfs[side], [place for place, _ in alone])
        kv.write(batch)
        return [(place, value[1:]) for place, value in alone if value[:1] == OPEN]

    def undecided_from(self, done_us: int) -> int:
        """Return the first time at which a session may still begin."""
        return END_OF_TIME_US if done_us == END_OF_TIME_US else limit(done_us, self.gap_us)

    # -- state ------------------------------------------------------------------------------------------------------

    def _forget(self, kv: KV, before_us: int, watermark_us: int, done_us: int) -> None:
        """Delete messages whose sessions have expired."""
        if watermark_us < END_OF_TIME_US and not self.sessions.forgets(before_us, watermark_us):
            return
        first_us = self.sessions.first_kept(kv)
        for side in (LEFT, RIGHT):
            batch = Batch()
            self.stores[side].expire(kv, batch, min(first_us, self._floor(side, watermark_us, done_us)))
            kv.write(batch)

    def _floor(self, side: int, watermark_us: int, done_us: int) -> int:
        """Return the event time below which messages of a side have expired that no kept session holds."""
        if side in self.making or watermark_us == END_OF_TIME_US:
            return END_OF_TIME_US
        kept_us = self.definition.retention.time_us
        floor_us = START_OF_TIME_US if kept_us is None else limit(watermark_us, kept_us)
        return min(floor_us, self.undecided_from(done_us))

    def kept(self, kv: KV, side: int, start: Bound, end: Bound, key: bytes | None) -> Slice:
        store, sides = self.stores[side], self.inputs.schemas(kv)
        stored, values = store.scan_between(kv, start, end, key)
        rows = self._decode(kv, side, stored, values, sides[side])
        sessions = self.sessions.between(kv, start[0] - 1, min(end[0], END_OF_TIME_US - 1) + 1, key)
        fields = pa.array([store.split(name).fields for name in stored], pa.binary())
        reached_us = self.progress(kv).watermark_us
        floor_us = self._floor(side, reached_us, self.done(reached_us))
        is_kept = (covering(sessions, fields, rows.times) != NOBODY) | (rows.times >= floor_us)
        return rows if is_kept.all() else rows.take(np.flatnonzero(is_kept))

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        """Expire closed sessions with their messages: no match may follow a row that said there was none."""
        done_us = self.done(progress.watermark_us)
        self.sessions.set_back_to(kv, watermark_us)
        for side in (LEFT, RIGHT):
            store, batch = self.stores[side], Batch()
            stored = [key for key, _ in kv.scan(store.cf)]
            parts = [store.split(key) for key in stored]
            times = np.array([p.time_us for p in parts], dtype=np.int64)
            keys = pa.array([p.fields for p in parts], pa.binary())
            _, holder = self.sessions.at(kv, keys, times)
            stays = holder != NOBODY
            if side not in self.making:
                stays |= times >= self.undecided_from(done_us)
            batch.delete_many(store.cf, [stored[i] for i in np.flatnonzero(~stays).tolist()])
            kv.write(batch)
        progress.watermark_us = min(progress.watermark_us, watermark_us)

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        from windrow.operators.join.sessions.views import SessionJoinView

        return SessionJoinView(self, stores, watermark_us)


def _fields(place: bytes, value: bytes) -> bytes:
    """Return the key of a message from its entry: a flag, then its key in the store, which ends with its place."""
    return value[1 : len(value) - len(place) - len(FIELDS_END)]


def _holds(size: int, sessions: IntArray) -> BoolArray:
    """True for the sessions that are named."""
    held = np.zeros(size, dtype=bool)
    held[sessions[sessions != NO_KEY]] = True
    return held
