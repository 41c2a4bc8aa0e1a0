"""What time will have to look at of sessions: those that may end, that close with something to say, that wait for a period."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import Emit, EveryPeriod, Never
from windrow.operators.aggregate.session_rows import Stored
from windrow.operators.steps.columns import END, PENDING, START
from windrow.operators.steps.groups import combine
from windrow.stores.kv import KV
from windrow.stores.marks import Marks
from windrow.stores.pages import hashes_of
from windrow.stores.sessions import HOT
from windrow.stores.spread import Hashes

#: What waits for a period, by home: those that may still grow, and all others.
HALF = 1 << 62


class SessionMarks:
    """The marks of one definition's sessions. width_us: of a bucket of ends."""

    def __init__(self, aux: str, emit: Emit, by: Sequence[str], width_us: int) -> None:
        self.emit, self.by, self.width_us = emit, tuple(by), width_us
        self.due = Marks(aux, b"de", width_us)
        self.closing = Marks(aux, b"dc", width_us)
        self.waiting = Marks(aux, b"dw", HALF)

    def ends(self, kv: KV, sessions: pa.Table, which: BoolArray, step: int) -> None:
        """These sessions have to be looked at when they end."""
        self._add(kv, self.due, sessions, combine(sessions.column(END)).to_numpy(), which, step)

    def come(self, kv: KV, pieces: pa.Table, step: int) -> None:
        """Messages that may grow a session each, or begin one, will have to be looked at where each ends by itself."""
        hashes, ends = hashes_of(pieces, self.by), combine(pieces.column(END)).to_numpy()
        self.due.add(kv, ends, hashes, step)
        if isinstance(self.emit.early, EveryPeriod):
            self.waiting.add(kv, np.full(len(pieces), HOT, dtype=np.int64), hashes, step)

    def ends_later(
        self, kv: KV, sessions: Stored, open_: BoolArray, hashes: Hashes, watermark_us: int, step: int
    ) -> None:
        """Open sessions of these keys were looked at, have grown since they were marked, and may end in the same bucket."""
        ends = sessions.values(END)
        again = open_ & (ends // self.width_us == watermark_us // self.width_us)
        if again.any():
            own = hashes_of(sessions.keys(again, self.by), self.by)
            looked = np.isin(own, hashes)
            self.due.add(kv, ends[again][looked], own[looked], step)

    def speaks(self, kv: KV, sessions: pa.Table, homes: IntArray, closed_us: int, step: int) -> None:
        """Of these sessions, with something to be told by a period or when they close, at least those that are not closed."""
        emit, hot = self.emit, homes == HOT
        pending = combine(sessions.column(PENDING)).to_numpy() > 0
        for trigger, mine in ((emit.early, hot), (emit.late, ~hot)):
            if isinstance(trigger, EveryPeriod):
                self._add(kv, self.waiting, sessions, homes, mine & pending, step)
        ends = combine(sessions.column(END)).to_numpy()
        closes = ~hot & (ends >= closed_us)
        if not emit.closing_pane:
            closes &= pending & (not isinstance(emit.late, Never))
        self._add(kv, self.closing, sessions, ends, closes, step)

    def _add(
        self, kv: KV, marks: Marks, sessions: pa.Table, moments: IntArray, which: BoolArray, step: int
    ) -> None:
        if which.any():
            keys = sessions.select([START, *self.by])
            keys = keys if which.all() else keys.filter(pa.array(which))
            marks.add(kv, moments[which], hashes_of(keys, self.by), step)
