"""Emitted marks of messages whose rows may be updated: a row next to each message, the newest of which counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.types import as_type
from windrow.operators.aggregations.calculation import values_differ
from windrow.operators.steps.columns import EMITTED
from windrow.operators.steps.groups import combine
from windrow.stores.event_log import TIME, Events
from windrow.stores.kv import KV

#: The number of a message: that of the step that took it, in the upper half, and its place there.
ID = "__id"
STEP_BITS = 32
_ROWS, _DECIDED, _CURRENT, _DEAD, _AT = "__rows", "__decided", "__current", "__dead", "__at"
#: Sums of the same numbers in another order are the same.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Marks:
    """Marks of messages.

    rows: how many rows of each were emitted. decided: the watermark was past it. current: the last row is not retracted.
    buried: its row failed, and there is a dead letter. at: the step that emitted, or decided, last. values: of current rows
    """

    rows: IntArray
    decided: BoolArray
    current: BoolArray
    buried: BoolArray
    at: IntArray
    values: dict[str, pa.Array]

    def take(self, some: IntArray | BoolArray) -> Marks:
        picked = pa.array(np.arange(len(self.rows))[some])
        return Marks(
            self.rows[some],
            self.decided[some],
            self.current[some],
            self.buried[some],
            self.at[some],
            {alias: column.take(picked) for alias, column in self.values.items()},
        )

    def differ(self, columns: dict[str, pa.Array]) -> BoolArray:
        """Return True where no current row has the same values."""
        differ = ~self.current
        for alias, before in self.values.items():
            differ |= _differ(before, columns[alias])
        return differ


class MarkStore:
    """The marks of messages, by event time."""

    def __init__(self, cf: str, width_us: int) -> None:
        self.cf = cf
        self._events = Events(cf, width_us)

    def of(self, kv: KV, ids: IntArray, low_us: int, high_us: int, fields: Sequence[pa.Field]) -> Marks:
        """Return the marks of messages, whose times are in `[low_us, high_us)`. fields: of the aggregates."""
        n = len(ids)
        table = self._events.read(kv, low_us, high_us, tidy=True)
        if table is None:
            no = np.zeros(n, dtype=bool)
            none = {f.name: pa.nulls(n, f.type) for f in fields}
            return Marks(np.zeros(n, dtype=np.int64), no, no, no, np.full(n, -1), none)
        known = table.column(ID).to_numpy()
        order = np.argsort(known, kind="stable")
        at = np.searchsorted(known[order], ids, side="right") - 1
        rows = order[np.maximum(at, 0)]
        there = (at >= 0) & (known[rows] == ids)
        taken = pa.array(rows, mask=~there)

        def flag(name: str) -> BoolArray:
            return np.asarray(there & table.column(name).to_numpy()[rows], dtype=bool)

        def number(name: str, none: int) -> IntArray:
            return np.asarray(np.where(there, table.column(name).to_numpy()[rows], none))

        values = {
            f.name: as_type(combine(table.column(EMITTED + f.name)), f.type).take(taken) for f in fields
        }
        return Marks(number(_ROWS, 0), flag(_DECIDED), flag(_CURRENT), flag(_DEAD), number(_AT, -1), values)

    def put(self, kv: KV, ids: IntArray, times: IntArray, marks: Marks, number: int) -> None:
        """Save marks. number: of this writing, later ones have larger ones."""
        if not len(ids):
            return
        columns = {
            ID: pa.array(ids),
            TIME: pa.array(times),
            _ROWS: pa.array(marks.rows),
            _DECIDED: pa.array(marks.decided),
            _CURRENT: pa.array(marks.current),
            _DEAD: pa.array(marks.buried),
            _AT: pa.array(marks.at),
            **{EMITTED + alias: column for alias, column in marks.values.items()},
        }
        self._events.add(kv, pa.table(columns), number)

    def forget(self, kv: KV, below_us: int) -> None:
        """Delete the marks of messages before that time, which are not updated any more."""
        self._events.forget(kv, below_us)


def _differ(before: pa.Array, after: pa.Array) -> BoolArray:
    differ = values_differ(before, after)
    if pa.types.is_floating(after.type) and differ.any():
        a, b = (pc.fill_null(c.cast(pa.float64()), np.nan).to_numpy() for c in (before, after))
        with np.errstate(invalid="ignore"):
            largest = np.maximum(np.abs(a), np.abs(b))
            differ &= ~((np.abs(a - b) <= _ROUNDING * largest) & np.isfinite(largest))
    return differ
