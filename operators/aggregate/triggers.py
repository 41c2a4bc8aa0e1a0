"""Triggers of an emission, evaluated for many state rows at once: they select the rows that fire now.

An ingest judges the rows that it changed, an advance those whose time has come. In an advance a trigger by count or by value
decides only together with one by time (`wr.all_of`) that has come: alone it was judged when the messages came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import decode_i64, encode_i64
from windrow.core.emit import (
    AllOf,
    AnyOf,
    Delay,
    Emit,
    EveryBatch,
    EveryCount,
    EveryPeriod,
    PastEnd,
    Trigger,
    When,
    by_time,
    leaves,
)
from windrow.core.expressions import Expr
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.steps.columns import EMIT_STEP, END, PENDING, SINCE, START
from windrow.operators.steps.groups import combine
from windrow.stores.kv import KV, Batch
from windrow.stores.timers import TimerIndex

#: Due times of pending rows with a delay, by the start of their window, in the operator's auxiliary family.
DUE_KEY = b"\x00due"
#: The time of the timer of each window, by its start.
TIME_KEY = b"\x00dut"


@dataclass(frozen=True)
class Moment:
    """The moment at which rows are judged. before_us: `now` of the last advance; None in an ingest, in which no time passes.
    moved: the watermark before an advance, and in it; in an ingest it does not move.
    """

    step: int
    now_us: int
    before_us: int | None = None
    moved: tuple[int, int] = (START_OF_TIME_US, START_OF_TIME_US)

    def ends(self, leaf: EveryPeriod) -> bool:
        """True if `now`, or the watermark, has crossed a multiple of it; where the watermark begins it has crossed none."""
        if self.before_us is None:
            return False
        before_us, at_us = self.moved if leaf.event_time else (self.before_us, self.now_us)
        begins = leaf.event_time and before_us == START_OF_TIME_US
        return not begins and at_us // leaf.period_us > before_us // leaf.period_us

    def comes(self, trigger: Trigger) -> bool:
        """True if a period of it has ended."""
        return any(isinstance(leaf, EveryPeriod) and self.ends(leaf) for leaf in leaves(trigger))

    def insists(self, trigger: Trigger) -> bool:
        """True if a period of it has ended that asks for a pane even if no message is new."""
        return any(
            isinstance(leaf, EveryPeriod) and leaf.always and self.ends(leaf) for leaf in leaves(trigger)
        )


@dataclass(frozen=True)
class Judged:
    """State rows, merged, with a function for their values, should a trigger need them."""

    rows: pa.Table
    moment: Moment
    values: Callable[[], pa.Table]

    def fires(self, trigger: Trigger) -> BoolArray:
        """True for each row that fires now."""
        if isinstance(trigger, AnyOf):
            return np.asarray(np.logical_or.reduce([self.fires(t) for t in trigger.triggers]))
        if self.moment.before_us is None:
            return np.asarray(self._holds(trigger))
        come = [self._comes(leaf) for leaf in leaves(trigger) if by_time(leaf)]
        return np.asarray(
            np.logical_or.reduce([np.zeros(len(self.rows), dtype=bool), *come]) & self._holds(trigger)
        )

    def _comes(self, leaf: Trigger) -> Any:
        """True for each row for which time has come to a leaf in this advance."""
        if not isinstance(leaf, PastEnd):
            return self._holds(leaf)
        return self._holds(leaf) & (combine(self.rows.column(END)).to_numpy() > self.moment.moved[0])

    def _holds(self, trigger: Trigger) -> Any:
        pending = combine(self.rows.column(PENDING)).to_numpy()
        match trigger:
            case AnyOf(triggers=children):
                return np.logical_or.reduce([self._holds(t) for t in children])
            case AllOf(triggers=children):
                return np.logical_and.reduce([self._holds(t) for t in children])
            case EveryBatch():
                return pending > 0
            case EveryCount(n=n):
                return pending >= n
            case EveryPeriod():
                if not self.moment.ends(trigger):
                    return np.zeros(len(pending), dtype=bool)
                return (pending > 0) | self._silent() if trigger.always else pending > 0
            case Delay(delay_us=delay_us):
                if self.moment.before_us is None:
                    return np.zeros(len(pending), dtype=bool)
                return (pending > 0) & (since(self.rows) + delay_us <= self.moment.now_us)
            case PastEnd():
                return (pending > 0) & (combine(self.rows.column(END)).to_numpy() <= self.moment.moved[1])
            case When(condition=condition):
                return (pending > 0) & true_of(condition, self.values())
            case _:
                return np.zeros(len(pending), dtype=bool)

    def _silent(self) -> BoolArray:
        """True where no pane was emitted in this step."""
        emitted = combine(self.rows.column(EMIT_STEP)).fill_null(-1).to_numpy()
        return np.asarray(emitted != self.moment.step, dtype=bool)


def true_of(condition: Expr, values: pa.Table) -> BoolArray:
    """True where the condition is true; a row for which it raises counts as null."""
    if len(values) == 0:
        return np.zeros(0, dtype=bool)
    try:
        truth = pc.fill_null(combine(condition.evaluate(values)), False)
        return np.asarray(truth.to_numpy(zero_copy_only=False), dtype=bool)
    except pa.ArrowException:
        if len(values) == 1:
            return np.zeros(1, dtype=bool)
        half = len(values) // 2
        return np.concatenate(
            [true_of(condition, values.slice(0, half)), true_of(condition, values.slice(half))]
        )


def since(rows: pa.Table) -> IntArray:
    """Return `now` of the step of each row's first message that no pane has emitted; long ago where it was not recorded."""
    if SINCE not in rows.column_names:
        return np.full(len(rows), START_OF_TIME_US, dtype=np.int64)
    return np.asarray(combine(rows.column(SINCE)).fill_null(START_OF_TIME_US).to_numpy(), dtype=np.int64)


def delays(trigger: Trigger) -> tuple[int, ...]:
    """Return the delays that a trigger waits for, in microseconds."""
    return tuple(leaf.delay_us for leaf in leaves(trigger) if isinstance(leaf, Delay))


class Due:
    """The timers of windows with rows pending by a delay, one each, at the first moment at which a row is due.

    Unused, and without a record, under an emission without `wr.delay`.
    """

    def __init__(self, emit: Emit, cf: str) -> None:
        self._delays, self._cf = delays(emit.early) + delays(emit.late), cf
        self.active = bool(self._delays)
        self.timers = TimerIndex(cf, DUE_KEY)

    def first(self, kv: KV) -> int:
        """Return the first moment at which something may be due."""
        first_us = self.timers.next(kv) if self.active else None
        return END_OF_TIME_US if first_us is None else first_us

    def after(self, now_us: int) -> int:
        """Return the first moment at which a row that is new at `now_us` may be due."""
        return now_us + min(self._delays) if self.active else END_OF_TIME_US

    def waiting_since(self, kv: KV, deltas: pa.Table, nows_us: IntArray) -> pa.Table:
        """Return deltas with the `now` at which each came; set timers of their windows for the first one that is due."""
        came = np.stack([combine(deltas.column(START)).to_numpy(), nows_us], axis=1)
        first = np.unique(came, axis=0).tolist()
        self._hasten(kv, {start: self.after(now_us) for start, now_us in reversed(first)}, set())
        return deltas.append_column(SINCE, pa.array(nows_us))

    def begin(self, kv: KV, starts: set[int]) -> None:
        """Set a timer for these windows alone, which have rows pending since an unknown moment."""
        if self.active:
            batch = Batch()
            self.timers.drop(batch)
            batch.delete_range(self._cf, TIME_KEY, TIME_KEY + b"\xff" * 9)
            kv.write(batch)
            self._move(kv, dict.fromkeys(starts, START_OF_TIME_US))

    def end(self, kv: KV, starts: Sequence[int]) -> None:
        """Make all pending rows due in windows that are late from now on: a late delay may be over."""
        if self.active:
            known = self._times(kv, starts)
            self._move(kv, dict.fromkeys(known, START_OF_TIME_US))

    def passed(self, kv: KV, now_us: int) -> set[int]:
        """Return windows in which a row may be due."""
        due = self.timers.due(kv, now_us) if self.active else ()
        return {decode_i64(name) for _, name, _, _ in due}

    def note(self, kv: KV, looked_at: set[int], waiting: Sequence[pa.Table], now_us: int) -> None:
        """Update the timers of evaluated windows; `waiting`: rows with messages that no pane has emitted."""
        if not looked_at:
            return
        times = dict[int, int]()
        for rows in waiting:
            starts = combine(rows.column(START)).to_numpy().tolist()
            for start, began_us in zip(starts, since(rows).tolist(), strict=True):
                later = [began_us + d for d in self._delays if began_us + d > now_us]
                at_us = min(later, default=now_us)
                times[start] = min(times.get(start, at_us), at_us)
        self._hasten(kv, times, looked_at)

    def _hasten(self, kv: KV, times: Mapping[int, int], looked_at: set[int]) -> None:
        """Set timers of windows, where they have none that is earlier. looked_at: windows whose timers have fired."""
        known = self._times(kv, [start for start in times if start not in looked_at])
        moved: dict[int, int | None] = dict.fromkeys(looked_at)
        self._move(kv, moved | {start: min(at_us, known.get(start, at_us)) for start, at_us in times.items()})

    def _times(self, kv: KV, starts: Sequence[int]) -> dict[int, int]:
        """Return the times of the timers that windows have."""
        packed = kv.multi_get(self._cf, [TIME_KEY + encode_i64(start) for start in starts])
        return {start: decode_i64(time) for start, time in zip(starts, packed, strict=True) if time}

    def _move(self, kv: KV, times: Mapping[int, int | None]) -> None:
        """Set the timers of windows to other times; None cancels one."""
        known, batch = self._times(kv, list(times)), Batch()
        for start, at_us in times.items():
            name, before_us = encode_i64(start), known.get(start)
            if before_us is not None and before_us != at_us:
                self.timers.cancel(batch, before_us, name)
                batch.delete(self._cf, TIME_KEY + name)
            if at_us is not None and before_us != at_us:
                self.timers.set(batch, at_us, name)
                batch.put(self._cf, TIME_KEY + name, encode_i64(at_us))
        kv.write(batch)
