"""State rows of sessions and the panes that stand: taken apart, and put together again (`stores/sessions.py`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.types import concat
from windrow.operators.aggregate.extents import Extents, holders
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.steps.columns import EMIT_STEP, EMITTED, END, MESSAGES, PANES, PENDING, START
from windrow.operators.steps.dead import DeadLetters
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import StepResult
from windrow.stores.kv import KV
from windrow.stores.sessions import HOME, HOT, PANE, STANDS


class Step(NamedTuple):
    """One step: what it reads and writes, and what it says.

    closed_us: sessions that end before it are closed already. told_us: those that end before it have been told as ended.
    of_run: it stands for many, of one message each.
    """

    kv: KV
    progress: Progress
    result: StepResult
    dead: DeadLetters
    told: list[pa.Table]
    closed_us: int
    told_us: int
    of_run: bool = False


class Rows(NamedTuple):
    """Sessions, and panes that were told and not taken back."""

    sessions: pa.Table
    panes: pa.Table

    def where(self, sessions: BoolArray, panes: BoolArray) -> Rows:
        return Rows(self.sessions.filter(pa.array(sessions)), self.panes.filter(pa.array(panes)))


def apart(rows: pa.Table, by: tuple[str, ...]) -> Rows:
    """Stored rows by their kinds."""
    pane = flags(rows, PANE)
    values = [n for n in rows.column_names if n.startswith(EMITTED)]
    told = [START, END, *by, PANES, EMIT_STEP, *values]
    sessions = rows if not pane.any() else rows.filter(pa.array(~pane))
    return Rows(sessions.drop_columns([PANE, *values]), rows.filter(pa.array(pane)).select(told))


def live(rows: pa.Table, by: tuple[str, ...], told_us: int) -> pa.Table:
    """Stored rows without what was left behind: a session that was told as ended lies elsewhere, and so does what stands of it.

    told_us: sessions that end before it have been told as ended
    """
    hot = rows.column(HOME).to_numpy() == HOT
    left = hot & (rows.column(END).to_numpy() < told_us)
    if not left.any():
        return rows
    pane = flags(rows, PANE)
    if (left & pane).any():  # a pane may have ended, and its session not
        mine = np.flatnonzero(hot)
        parts = apart(rows.take(pa.array(mine)), by)
        left[mine[pane[mine]]] = left[mine[~pane[mine]]][owners(parts, by)]
    return rows.filter(pa.array(~left))


def chosen(stored: pa.Table, by: tuple[str, ...], mine: BoolArray) -> tuple[pa.Table, Rows]:
    """(stored rows that are not meant, those that are). mine: which of the sessions, in their order; panes go with them."""
    rows = apart(stored, by)
    if mine.all():
        return stored.slice(0, 0), rows
    if len(rows.panes) == 0:
        return stored.filter(pa.array(~mine)), rows._replace(sessions=rows.sessions.filter(pa.array(mine)))
    pane, owned = flags(stored, PANE), mine[owners(rows, by)]
    meant = np.zeros(len(stored), dtype=bool)
    meant[np.flatnonzero(~pane)[mine]] = True
    meant[np.flatnonzero(pane)[owned]] = True
    return stored.filter(pa.array(~meant)), rows.where(mine, owned)


def together(rows: Rows) -> pa.Table:
    """Rows of both kinds, as they are stored: the sessions first."""
    sessions = rows.sessions.append_column(PANE, pa.array(np.zeros(len(rows.sessions), dtype=bool)))
    if len(rows.panes) == 0:
        return sessions
    n = len(rows.panes)
    panes = rows.panes
    for name in (MESSAGES, PENDING):
        panes = panes.append_column(name, pa.array(np.zeros(n, dtype=np.int64)))
    panes = panes.append_column(STANDS, pa.array(np.zeros(n, dtype=bool)))
    return concat([sessions, panes.append_column(PANE, pa.array(np.ones(n, dtype=bool)))])


def unfolded(calculation: Calculation, rows: Rows) -> Rows:
    """What the last panes said, as panes, where so far only the accumulators say it."""
    stands = flags(rows.sessions, STANDS)
    if not stands.any():
        return rows
    told = rows.sessions.filter(pa.array(stands))
    values, broken = calculation.finish({n: told.column(n) for n in told.column_names}, len(told))
    names = [START, END, *calculation.definition.by, PANES]
    panes = pa.table(
        [*(told.column(n) for n in names), *values.values()], names=[*names, *(EMITTED + a for a in values)]
    )
    if broken:
        known = np.ones(len(told), dtype=bool)
        known[[b.group for b in broken]] = False
        panes = panes.filter(pa.array(known))
    sessions = standing(rows.sessions, np.zeros(len(stands), dtype=bool))
    return Rows(sessions, concat([rows.panes, panes]) if len(rows.panes) else panes)


def standing(sessions: pa.Table, stands: BoolArray) -> pa.Table:
    """The sessions, of which these have told what their accumulators say."""
    mark = pa.array(stands)
    if STANDS not in sessions.column_names:
        return sessions.append_column(STANDS, mark)
    return sessions.set_column(sessions.column_names.index(STANDS), STANDS, mark)


def owners(rows: Rows, by: tuple[str, ...]) -> IntArray:
    """For each pane the session that holds it."""
    n, m = len(rows.sessions), len(rows.panes)
    if m == 0:
        return np.zeros(0, dtype=np.int64)
    codes = codes_of([rows.sessions, rows.panes], by)
    return holders(extents(rows.sessions, codes[:n]), codes[n:], combine(rows.panes.column(START)).to_numpy())


def extents(rows: pa.Table, codes: IntArray) -> Extents:
    return Extents(codes, combine(rows.column(START)).to_numpy(), combine(rows.column(END)).to_numpy())


def codes_of(tables: list[pa.Table], by: tuple[str, ...]) -> IntArray:
    """A number for the key of each row, over all tables."""
    size = sum(map(len, tables))
    if not by:
        return np.zeros(size, dtype=np.int64)
    keys = concat([table.select(list(by)) for table in tables])
    return Groups([keys.column(b) for b in by], size).codes


def flags(rows: pa.Table, name: str) -> BoolArray:
    """A column of truth values; what is not there is not true."""
    if name not in rows.column_names:
        return np.zeros(len(rows), dtype=bool)
    return np.asarray(combine(rows.column(name)).fill_null(False).to_numpy(zero_copy_only=False), dtype=bool)
