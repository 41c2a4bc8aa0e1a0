"""Session timers: end of session, end of lateness, processing-time period, and trigger delay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import Emit, EveryPeriod, Never, by_time, leaves
from windrow.core.time import SECOND_US, START_OF_TIME_US
from windrow.operators.aggregate.sessions.rows import Stored
from windrow.operators.aggregate.triggers import Moment, delays, since
from windrow.operators.steps.columns import END, PENDING, START
from windrow.operators.steps.groups import combine
from windrow.stores.key_hash import Hashes
from windrow.stores.kv import KV
from windrow.stores.marks import Marks
from windrow.stores.page_format import among, hashes_of
from windrow.stores.sessions import HOT

#: Pending sessions, by bucket: those that may still grow, and all others.
HALF = 1 << 62


class SessionTimers:
    """The timers of one definition's sessions. width_us: of a bucket of ends.

    Sessions that may still grow are registered for the end of a period; one that is pending by a delay alone has a timer for
    that delay. The others are registered for either, so that their bucket is known.
    """

    def __init__(self, aux: str, emit: Emit, by: Sequence[str], width_us: int) -> None:
        self.emit, self.by, self.width_us = emit, tuple(by), width_us
        self.due = Marks(aux, b"de", width_us)
        self.closing = Marks(aux, b"dc", width_us)
        self.waiting = Marks(aux, b"dw", HALF)
        #: By the `now` at which a delay of a pending session is over.
        self.delayed = Marks(aux, b"da", SECOND_US)
        self.delays = sorted({*delays(emit.early), *delays(emit.late)})
        self._early_waits = any(isinstance(leaf, EveryPeriod) for leaf in leaves(emit.early))

    def set_ends(self, kv: KV, sessions: pa.Table, which: BoolArray, step: int) -> None:
        """Set timers for the ends of these sessions."""
        self._add(kv, self.due, sessions, combine(sessions.column(END)).to_numpy(), which, step)

    def set_for_messages(self, kv: KV, pieces: pa.Table, moment: Moment) -> None:
        """Set timers for messages that may grow a session each, or begin one, at the end of each message's own range."""
        hashes, ends = hashes_of(pieces, self.by), combine(pieces.column(END)).to_numpy()
        self.due.add(kv, ends, hashes, moment.step)
        if self._early_waits:
            self.waiting.add(kv, np.full(len(pieces), HOT, dtype=np.int64), hashes, moment.step)
        hashes = np.unique(hashes) if self.delays else hashes
        for delay_us in self.delays:
            over = np.full(len(hashes), moment.now_us + delay_us, dtype=np.int64)
            self.delayed.add(kv, over, hashes, moment.step)

    def set_later_ends(
        self, kv: KV, sessions: Stored, open_: BoolArray, hashes: Hashes, watermark_us: int, step: int
    ) -> None:
        """Set later timers for open sessions of these keys that have grown since, and may end in the same bucket."""
        ends = sessions.values(END)
        again = open_ & (ends // self.width_us == watermark_us // self.width_us)
        if again.any():
            own = hashes_of(sessions.keys(again, self.by), self.by)
            looked = among(own, hashes)
            self.due.add(kv, ends[again][looked], own[looked], step)

    def set_fires(
        self,
        kv: KV,
        sessions: pa.Table,
        homes: IntArray,
        closed_us: int,
        moment: Moment,
        *,
        anew: bool = False,
    ) -> None:
        """Set timers for sessions that have to fire by time or when they close, at least for those that are not closed.

        anew: no timer is set yet
        """
        emit, hot = self.emit, homes == HOT
        pending = combine(sessions.column(PENDING)).to_numpy() > 0
        self.set_pending(kv, sessions, homes, pending, moment, anew=anew)
        ends = combine(sessions.column(END)).to_numpy()
        closes = ~hot & (ends >= closed_us)
        if not emit.closing_pane:
            closes &= pending & (not isinstance(emit.late, Never))
        self._add(kv, self.closing, sessions, ends, closes, moment.step)

    def set_pending(
        self,
        kv: KV,
        sessions: pa.Table,
        homes: IntArray,
        pending: BoolArray,
        moment: Moment,
        *,
        anew: bool = False,
    ) -> None:
        """Register these sessions, which are pending until a time."""
        emit, hot, step = self.emit, homes == HOT, moment.step
        for waits, of_timing in ((self._early_waits, hot), (by_time(emit.late), ~hot)):
            if waits:
                self._add(kv, self.waiting, sessions, homes, of_timing & pending, step)
        if not self.delays:
            return
        began, now_us = since(sessions), np.full(len(sessions), moment.now_us, dtype=np.int64)
        fresh = pending & (anew | (began == moment.now_us))
        for delay_us in self.delays:
            later = fresh & (began + delay_us > moment.now_us)
            self._add(kv, self.delayed, sessions, began + delay_us, later, step)
        for trigger, of_timing in ((emit.early, hot), (emit.late, ~hot)):
            over = of_timing & pending & (began + min(delays(trigger), default=0) <= moment.now_us)
            self._add(kv, self.delayed, sessions, now_us, over & bool(delays(trigger)), step)

    def overdue(self, kv: KV, moment: Moment) -> Hashes:
        """Return and delete the keys whose delay ended since the last advance."""
        if not self.delays or moment.before_us is None:
            return np.zeros(0, dtype=np.uint64)
        _, hashes = self.delayed.between(kv, moment.before_us, moment.now_us)
        self.delayed.drop(kv, moment.now_us)
        return np.unique(hashes)

    def pending(self, kv: KV, *, early: bool) -> tuple[IntArray, Hashes]:
        """Return (buckets, numbers of keys) of pending sessions, of one half."""
        return self.waiting.between(kv, *_half(early))

    def drop_pending(self, kv: KV, *, early: bool) -> None:
        """Delete the pending sessions of one half."""
        self.waiting.drop_between(kv, *_half(early))

    def drop(self, kv: KV) -> None:
        """Delete all timers but those of ends."""
        for index in (self.waiting, self.closing, self.delayed):
            index.drop(kv)

    def _add(
        self, kv: KV, index: Marks, sessions: pa.Table, moments: IntArray, which: BoolArray, step: int
    ) -> None:
        if which.any():
            keys = sessions.select([START, *self.by])
            keys = keys if which.all() else keys.filter(pa.array(which))
            index.add(kv, moments[which], hashes_of(keys, self.by), step)


def _half(early: bool) -> tuple[int, int]:
    return (HOT, HOT) if early else (START_OF_TIME_US, HALF - 1)
