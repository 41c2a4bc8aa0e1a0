"""Session windows of a join on a store: an aggregate's sessions, which report the changes of each step (`windowing.py`).

They are stored next to the join's messages, under `<name>.sessions`, with a progress of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregate.sessions.assignment import file_sessions, sessions_near
from windrow.operators.aggregate.sessions.extents import Extents, holders
from windrow.operators.aggregate.sessions.logic import SessionAggregator
from windrow.operators.aggregate.sessions.rows import Step, codes_of, extents
from windrow.operators.aggregate.triggers import Moment
from windrow.operators.join.output import NOBODY
from windrow.operators.join.windowing import COUNT, KEY
from windrow.operators.steps.columns import END, INDEX, INSERT, KIND, LATE, START, TIMING
from windrow.operators.steps.dead_letters import DeadLetters, Detail
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.step import StepResult, limit
from windrow.stores.kv import KV, Batch

#: The index of a row's message in the step.
ROW = "__row"
_EXTENT = [KEY, START, END]


class Refused(DeadLetters):
    """The messages that no session accepts: (reason, detail, index in the step)."""

    def __init__(self) -> None:
        super().__init__(0)
        self.rows: list[tuple[str, str, IntArray]] = []

    def add_rows(
        self,
        reason: str,
        detail: str | Sequence[str] | Detail,
        table: pa.Table,
        rows: IntArray,
        times: pa.Array | None,
    ) -> None:
        of, places = combine(table.column(ROW)).to_numpy()[rows], pa.array(rows)
        if callable(detail):
            detail = detail(table.take(places), [] if times is None else times.take(places).to_pylist())
        if isinstance(detail, str):
            self.rows.append((reason, detail, of))
        else:
            self.rows += [(reason, why, of[i : i + 1]) for i, why in enumerate(detail)]


class Changed(NamedTuple):
    """Changed sessions (key, start, end) of a step's messages. late: the watermark has passed their end. parts: their state
    before; owner: the session of each part.
    """

    sessions: pa.Table
    late: BoolArray
    parts: pa.Table
    owner: IntArray

    def __len__(self) -> int:
        return len(self.sessions)

    def with_others(self, sessions: pa.Table, late: BoolArray) -> Changed:
        """Return these changes and further sessions that did not change."""
        owner = np.arange(len(self), len(self) + len(sessions), dtype=np.int64)
        both = (concat([own, sessions]) for own in (self.sessions, self.parts))
        return Changed(next(both), np.r_[self.late, late], next(both), np.r_[self.owner, owner])


class JoinSessions(SessionAggregator):
    """The sessions of one definition, whose messages come as rows of a key and a time."""

    keeps = True

    def enter(self, kv: KV, rows: Slice, now_us: int) -> tuple[Changed | None, Refused]:
        """Let messages enter their sessions."""
        work, refused = self._begin(kv, now_us), Refused()
        work.dead = refused
        progress, result = work.progress, work.result
        self._learn(progress, rows.table.schema)
        step = self._step(work, Moment(progress.step, now_us))
        self.keep_assigned(step, file_sessions(self, step, rows))
        progress.begin(now_us)
        self._end(work)
        return (_changed(concat(result.panes)) if result.panes else None), refused

    def closing(self, kv: KV, watermark_us: int, now_us: int) -> tuple[pa.Table | None, pa.Table | None]:
        """Return (sessions that close as the watermark advances, sessions beyond the count limit), open ones among both."""
        result = self.advance(kv, watermark_us, now_us)
        panes = result.panes
        if watermark_us == END_OF_TIME_US:  # though they may be kept for ever
            self.store.clear(kv)
            self.store.release()
        closed = concat(panes).select([*_EXTENT, COUNT]) if panes else None
        return closed, concat([gone.select(_EXTENT) for gone in result.evicted]) if result.evicted else None

    def at(self, kv: KV, keys: pa.Array, times: IntArray) -> tuple[pa.Table, IntArray]:
        """Return (sessions, the index of the one open at each of these times of these keys, or NOBODY)."""
        progress = self.progress(kv)
        if progress.schema is None or not len(times):
            return no_sessions(), np.full(len(times), NOBODY, dtype=np.int64)
        self._bind(progress.schema)
        watermark_us = progress.watermark_us
        moment, closed_us = Moment(progress.step, watermark_us), self.closed_before(watermark_us)
        step = Step(kv, progress, StepResult(), Refused(), [], moment, closed_us, watermark_us)
        near = sessions_near(self, step, pa.table({KEY: keys}), times, times)
        if not len(near.sessions.codes):
            return no_sessions(), np.full(len(times), NOBODY, dtype=np.int64)
        sessions = near.stored.rows((KEY,)).sessions.select(_EXTENT)
        return sessions, holding(near.sessions, near.codes, times)

    def between(self, kv: KV, low_us: int, high_us: int, key: bytes | None) -> pa.Table:
        """Return sessions in retention that end after `low` and begin before `high`, of a key or of all."""
        sessions = self.kept(kv, low_us, high_us, None if key is None else {KEY: key})
        if sessions is None:
            return no_sessions()
        kept = sessions.select(_EXTENT)
        return kept if key is None else kept.filter(pc.equal(kept.column(KEY), pa.scalar(key, pa.binary())))

    def forgets(self, before_us: int, watermark_us: int) -> bool:
        """True if sessions may expire as the watermark advances from `before_us`."""
        before, after = (limit(self.kept_from(us), self.gap_us) for us in (before_us, watermark_us))
        return after // self.store.width_us > before // self.store.width_us

    def first_kept(self, kv: KV) -> int:
        """Return the start of the oldest kept sessions."""
        return self.store.first_kept(kv, self.progress(kv).watermark_us)

    def set_back_to(self, kv: KV, watermark_us: int) -> None:
        """Expire closed sessions, and set the watermark to a former one."""
        progress, batch = self.progress(kv), Batch()
        if progress.schema is not None:
            self._bind(progress.schema)
            self._drop_closed(kv, self.closed_before(progress.watermark_us))
            self.set_back(kv, progress, watermark_us)
        else:
            progress.watermark_us = min(progress.watermark_us, watermark_us)
        progress.save(lambda key, value: batch.put(self.aux_cf, key, value))
        kv.write(batch)

    def _drop_closed(self, kv: KV, closed_us: int) -> None:
        edge = int(self.store.home(np.array([closed_us], dtype=np.int64))[0])
        self.store.drop(kv, edge)
        rows = self.store.read(kv, [edge])
        if rows is None or not len(rows):
            return
        home = pa.array(np.full(len(rows), edge, dtype=np.int64))
        near = self.store.near(kv, [edge], rows.select([KEY]).add_column(0, START, home))
        if near.rows is not None:
            open_ = near.rows.filter(pa.array(combine(near.rows.column(END)).to_numpy() >= closed_us))
            self.store.put(kv, near, open_, lambda some: some)


def _changed(panes: pa.Table) -> Changed:
    """Return the changes in panes: each session, and the ones it replaces, even with the same window."""
    emitted = _is(panes.column(KIND), INSERT)
    sessions, parts = panes.filter(pa.array(emitted)), panes.filter(pa.array(~emitted))
    owner = covering(sessions, combine(parts.column(KEY)), combine(parts.column(START)).to_numpy())
    grew = np.bincount(owner, minlength=len(sessions)) > 0
    same = np.flatnonzero(~grew & (combine(sessions.column(INDEX)).to_numpy() > 0))
    late = _is(sessions.column(TIMING), LATE)
    extent = sessions.select(_EXTENT)
    parts = concat([parts.select(_EXTENT), extent.take(pa.array(same))])
    return Changed(extent, late, parts, np.r_[owner, same])


def _is(column: pa.ChunkedArray, value: str) -> BoolArray:
    return np.asarray(combine(pc.equal(column, value)).to_numpy(zero_copy_only=False), dtype=bool)


def no_sessions() -> pa.Table:
    return pa.schema([(KEY, pa.binary()), (START, pa.int64()), (END, pa.int64())]).empty_table()


def covering(sessions: pa.Table, keys: pa.Array, times: IntArray) -> IntArray:
    """Return the index of the session open at each of these times of these keys, or NOBODY."""
    codes = codes_of([sessions, pa.table({KEY: keys})], (KEY,))
    n = len(sessions)
    return holding(extents(sessions, codes[:n]), codes[n:], times)


def holding(sessions: Extents, codes: IntArray, times: IntArray) -> IntArray:
    """Return the index of the range that covers each of these times of these codes, or NOBODY."""
    holder = holders(sessions, codes, times)
    if len(sessions.codes):
        holder[times >= sessions.ends[np.maximum(holder, 0)]] = NOBODY
    return holder
