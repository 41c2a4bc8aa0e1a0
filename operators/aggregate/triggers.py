"""Which rows of state speak now: the triggers of an emission, judged for many rows at once.

An ingest judges what it changed, an advance what time has come to. In an advance a trigger by count or by value decides only
beside one by time (`wr.all_of`) that has come: alone it was judged when the messages came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
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

#: When what waits by a delay is due, by the start of its window, in the operator's auxiliary family.
DUE_KEY = b"\x00due"


@dataclass(frozen=True)
class Moment:
    """When rows are judged. before_us: `now` of the advance before; None in an ingest, in which no time passes. moved: the
    watermark before an advance, and in it; in an ingest it does not move.
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
        """True if a period of it has ended that asks for a pane though nothing is new."""
        return any(
            isinstance(leaf, EveryPeriod) and leaf.always and self.ends(leaf) for leaf in leaves(trigger)
        )


@dataclass(frozen=True)
class Judged:
    """State rows, merged, and how their values are found, should a trigger ask for them."""

    rows: pa.Table
    moment: Moment
    values: Callable[[], pa.Table]

    def speaks(self, trigger: Trigger) -> BoolArray:
        """True for each row that the trigger lets speak now."""
        if isinstance(trigger, AnyOf):
            return np.asarray(np.logical_or.reduce([self.speaks(t) for t in trigger.triggers]))
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
            case AnyOf(triggers=some):
                return np.logical_or.reduce([self._holds(t) for t in some])
            case AllOf(triggers=some):
                return np.logical_and.reduce([self._holds(t) for t in some])
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
        """True where no pane was told in this step."""
        told = combine(self.rows.column(EMIT_STEP)).fill_null(-1).to_numpy()
        return np.asarray(told != self.moment.step, dtype=bool)


def true_of(condition: Expr, values: pa.Table) -> BoolArray:
    """True where it is true; a row for which it raises is as one for which it is null."""
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
    """`now` of the step that took the first message of each row which no pane has told; where nobody noted it, long ago."""
    if SINCE not in rows.column_names:
        return np.full(len(rows), START_OF_TIME_US, dtype=np.int64)
    return np.asarray(combine(rows.column(SINCE)).fill_null(START_OF_TIME_US).to_numpy(), dtype=np.int64)


def delays(trigger: Trigger) -> tuple[int, ...]:
    """The delays that a trigger waits for, in microseconds."""
    return tuple(leaf.delay_us for leaf in leaves(trigger) if isinstance(leaf, Delay))


class Due:
    """Starts of windows with something that waits by a delay, each with the first moment at which some of it is due.

    Of no use, and no record, under an emission without `wr.delay`.
    """

    def __init__(self, emit: Emit, cf: str) -> None:
        self._delays, self._cf = delays(emit.early) + delays(emit.late), cf
        self.active = bool(self._delays)

    def load(self, kv: KV) -> dict[int, int]:
        packed = kv.get(self._cf, DUE_KEY) if self.active else None
        return {} if packed is None else dict(msgpack.unpackb(packed, strict_map_key=False))

    def save(self, kv: KV, due: Mapping[int, int]) -> None:
        batch = Batch()
        batch.put(self._cf, DUE_KEY, msgpack.packb(sorted(due.items())))
        kv.write(batch)

    def first(self, kv: KV) -> int:
        """The first moment at which something may be due."""
        return min(self.load(kv).values(), default=END_OF_TIME_US)

    def after(self, now_us: int) -> int:
        """The first moment at which something may be due that is new at `now_us`."""
        return now_us + min(self._delays) if self.active else END_OF_TIME_US

    def waiting_since(self, kv: KV, deltas: pa.Table, nows_us: IntArray) -> pa.Table:
        """Deltas that say at which `now` each of them came; their windows are looked at when the first of it is due."""
        due, starts = self.load(kv), combine(deltas.column(START)).to_numpy()
        came = np.stack([starts, nows_us], axis=1)
        for start, now_us in np.unique(came, axis=0).tolist():
            due[start] = min(due.get(start, END_OF_TIME_US), self.after(now_us))
        self.save(kv, due)
        return deltas.append_column(SINCE, pa.array(nows_us))

    def begin(self, kv: KV, starts: set[int]) -> None:
        """These windows have something that waits, and nobody knows since when."""
        if self.active:
            self.save(kv, dict.fromkeys(starts, START_OF_TIME_US))

    def end(self, kv: KV, starts: Sequence[int]) -> None:
        """These windows are late from now on, and what waits in them has no longer to wait than that: a delay may be over."""
        due = self.load(kv)
        waiting = [start for start in starts if start in due]
        if waiting:
            self.save(kv, {**due, **dict.fromkeys(waiting, START_OF_TIME_US)})

    def passed(self, kv: KV, now_us: int) -> set[int]:
        """Windows in which something may be due."""
        return {start for start, at_us in self.load(kv).items() if at_us <= now_us}

    def note(self, kv: KV, looked_at: set[int], waiting: Sequence[pa.Table], now_us: int) -> None:
        """Windows were looked at; `waiting`: rows with something that no pane has told."""
        if not looked_at:
            return
        due = {start: at_us for start, at_us in self.load(kv).items() if start not in looked_at}
        for rows in waiting:
            starts = combine(rows.column(START)).to_numpy().tolist()
            for start, began_us in zip(starts, since(rows).tolist(), strict=True):
                later = [began_us + d for d in self._delays if began_us + d > now_us]
                at_us = min(later, default=now_us)
                due[start] = min(due.get(start, at_us), at_us)
        self.save(kv, due)
