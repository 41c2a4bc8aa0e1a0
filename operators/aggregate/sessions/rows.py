"""State rows of sessions and their current panes: separated, and combined again (`stores/sessions.py`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core import arrays
from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.emitter import choose
from windrow.operators.aggregate.sessions.extents import Extents, first_ending, holders
from windrow.operators.aggregate.triggers import Moment
from windrow.operators.aggregations.calculation import SEEN, Broken, Calculation, of_whole
from windrow.operators.steps.columns import (
    ACCUMULATOR,
    EMIT_STEP,
    EMITTED,
    END,
    MESSAGES,
    PANES,
    PENDING,
    START,
    with_column,
)
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import StepResult
from windrow.stores.kv import KV, Batch
from windrow.stores.page_format import hashes_of
from windrow.stores.sessions import CURRENT, HOME, HOT, PANE
from windrow.stores.window_state import Near

_NONE: IntArray = np.zeros(0, dtype=np.int64)


class Step(NamedTuple):
    """One step: its reads, its writes and its output.

    moment: its time. closed_us: sessions that end before it are closed already. emitted_us: those that end before it have been
    emitted as ended. of_run: it represents many steps of one message each.
    """

    kv: KV
    progress: Progress
    result: StepResult
    dead: DeadLetters
    emitted: list[pa.Table]
    moment: Moment
    closed_us: int
    emitted_us: int
    of_run: bool = False

    def drain(self) -> list[pa.Table]:
        """Return the panes emitted so far, and clear them."""
        emitted = list(self.emitted)
        self.emitted.clear()
        return emitted


class Rows(NamedTuple):
    """Sessions, and panes that were emitted and not retracted. owner: for each pane the session that holds it."""

    sessions: pa.Table
    panes: pa.Table
    owner: IntArray

    def where(self, which: BoolArray) -> Rows:
        """Return these sessions, with their current panes."""
        if which.all():
            return self
        kept = which[self.owner]
        owner = (np.cumsum(which) - 1)[self.owner[kept]]
        return Rows(self.sessions.filter(pa.array(which)), self.panes.filter(pa.array(kept)), owner)


class Stored(NamedTuple):
    """Stored rows: the indices of the sessions, and of their current panes.

    A session that was emitted as ended lies in another bucket, and its outdated rows are skipped. owner: for each of the
    panes the session that holds it.
    """

    near: Near
    sessions: IntArray
    panes: IntArray
    owner: IntArray

    @classmethod
    def of(cls, near: Near, by: Sequence[str], emitted_us: int, codes: IntArray | None = None) -> Stored:
        """Find sessions in stored rows. emitted_us: those that end before it were emitted as ended. codes: by key, if known"""
        rows = near.rows
        if rows is None:
            return cls(near, _NONE, _NONE, _NONE)
        if rows.column(END).num_chunks > 1:
            rows = pa.table([arrays.whole(column) for column in rows.columns], schema=rows.schema)
            near = Near(rows, near.held)
        pane, hot = flags(rows, PANE), rows.column(HOME).to_numpy() == HOT
        left = hot & (rows.column(END).to_numpy() < emitted_us)
        if not pane.any():
            return cls(near, np.flatnonzero(~left), _NONE, _NONE)
        sessions, panes = np.flatnonzero(~pane), np.flatnonzero(pane)
        # A session and its current panes lie together; outdated rows of them may be among them.
        few = _of_keys_with(pane, rows, by, codes)
        codes = 2 * codes_of([arrays.taken(rows.select([START, *by]), few)], by) + hot[few]
        starts, ends = (rows.column(name).to_numpy()[few] for name in (START, END))
        place = np.cumsum(~pane) - 1
        is_session = ~pane[few]
        held = Extents(codes[is_session], starts[is_session], ends[is_session])
        # A closed session has no pane that ends after it, and an open one that overlaps it none that ends before that.
        owner = place[few[is_session]][first_ending(held, codes[~is_session], ends[~is_session])]
        right = ~left[sessions]
        current = right[owner]
        return cls(near, sessions[right], panes[current], (np.cumsum(right) - 1)[owner[current]])

    def values(self, name: str) -> Any:
        """Return a column of the sessions, none of which has a null there."""
        column = combine(self._rows.column(name))
        if column.null_count:
            return column.take(pa.array(self.sessions)).to_numpy()
        return column.to_numpy()[self.sessions]

    def keys(self, which: BoolArray, by: Sequence[str]) -> pa.Table:
        """Return the keys of some of the sessions, and their starts."""
        return self._rows.select([START, *by]).take(pa.array(self.sessions[which]))

    def rows(self, by: Sequence[str], which: BoolArray | None = None) -> Rows:
        """Return some of the sessions, or all, with their current panes."""
        stored, sessions, panes, owner = self._rows, self.sessions, self.panes, self.owner
        if which is not None and not which.all():
            kept = which[owner]
            sessions, panes, owner = sessions[which], panes[kept], (np.cumsum(which) - 1)[owner[kept]]
        values = [n for n in stored.column_names if n.startswith(EMITTED)]
        emitted = [START, END, *by, PANES, EMIT_STEP, *values, *accumulator_columns(stored.column_names)]
        return Rows(
            taken(stored.drop_columns([PANE, *values]), sessions), taken(stored.select(emitted), panes), owner
        )

    def others(self, which: BoolArray) -> IntArray:
        """Return the indices of the other sessions, and of their current panes."""
        return np.sort(np.r_[self.sessions[~which], self.panes[~which[self.owner]]])

    @property
    def _rows(self) -> pa.Table:
        assert self.near.rows is not None
        return self.near.rows


def _of_keys_with(pane: BoolArray, rows: pa.Table, by: Sequence[str], codes: IntArray | None) -> IntArray:
    """Return the indices of the panes and of all rows of their keys, and some others; few have panes. codes: see `Stored.of`"""
    numbers = (
        (hashes_of(rows.select([START, *by]), by) >> np.uint64(48)).astype(np.int64)
        if codes is None
        else codes
    )
    wanted = np.zeros(int(numbers.max()) + 1, dtype=bool)
    wanted[numbers[pane]] = True
    return np.flatnonzero(wanted[numbers])


def live(rows: pa.Table, by: Sequence[str], emitted_us: int) -> pa.Table:
    """Return stored rows without outdated ones."""
    stored = Stored.of(Near(rows, {}), by, emitted_us)
    return taken(rows, np.sort(np.r_[stored.sessions, stored.panes]))


def taken(rows: pa.Table, places: IntArray) -> pa.Table:
    """Return the rows at ascending indices."""
    return rows if len(places) == len(rows) else arrays.taken(rows, places)


def together(rows: Rows) -> pa.Table:
    """Combine rows of both kinds, as they are stored: the sessions first."""
    sessions = rows.sessions.append_column(PANE, pa.array(np.zeros(len(rows.sessions), dtype=bool)))
    if len(rows.panes) == 0:
        return sessions
    n = len(rows.panes)
    panes = rows.panes
    for name in (MESSAGES, PENDING):
        panes = panes.append_column(name, pa.array(np.zeros(n, dtype=np.int64)))
    panes = panes.append_column(CURRENT, pa.array(np.zeros(n, dtype=bool)))
    return concat([sessions, panes.append_column(PANE, pa.array(np.ones(n, dtype=bool)))])


def unfolded(calculation: Calculation, spans: Spans, rows: Rows, which: BoolArray | None = None) -> Rows:
    """Add the last emitted values as panes, where only the accumulators hold them so far. which: only of these sessions"""
    rows = rows._replace(panes=with_restored_values(calculation, rows.panes))
    current = flags(rows.sessions, CURRENT)
    chosen = current if which is None else current & which
    if not chosen.any():
        return rows
    emitted = rows.sessions.filter(pa.array(chosen))
    values, broken = emitted_values(calculation, spans, emitted)
    names = [START, END, *calculation.definition.by, PANES]
    panes = pa.table([*(emitted.column(n) for n in names), *values.values()], names=[*names, *values])
    owner = np.flatnonzero(chosen)
    if broken:
        known = np.ones(len(emitted), dtype=bool)
        known[[b.group for b in broken]] = False
        panes, owner = panes.filter(pa.array(known)), owner[known]
    return Rows(
        with_current(rows.sessions, current & ~chosen),
        concat([rows.panes, panes]) if len(rows.panes) else panes,
        np.r_[rows.owner, owner],
    )


def after_firing(rows: Rows, which: BoolArray, fired: Rows) -> Rows:
    """Replace rows that fired by `fired`, in their order."""
    if which.all():
        return fired
    at, rest = np.flatnonzero(which), ~which[rows.owner]
    panes = [table for table in (fired.panes, rows.panes.filter(pa.array(rest))) if len(table)]
    owner = np.r_[at[fired.owner], rows.owner[rest]]
    names, sessions = fired.sessions.column_names, rows.sessions
    if any(name not in names for name in sessions.column_names):  # emitted values are no longer there
        order = np.argsort(np.r_[at, np.flatnonzero(~which)], kind="stable")
        sessions = concat([fired.sessions, sessions.filter(pa.array(~which))]).take(pa.array(order))
    else:
        place = np.arange(len(which))
        place[at] = len(which) + np.arange(len(at))
        for name in (PENDING, PANES, EMIT_STEP):
            both = pa.concat_arrays([combine(table.column(name)) for table in (sessions, fired.sessions)])
            sessions = sessions.set_column(
                sessions.column_names.index(name), name, both.take(pa.array(place))
            )
        if CURRENT in names:
            current = flags(sessions, CURRENT).copy()
            current[at] = flags(fired.sessions, CURRENT)
            sessions = with_current(sessions, current)
    return Rows(sessions, concat(panes) if panes else fired.panes, owner)


def with_current(sessions: pa.Table, current: BoolArray) -> pa.Table:
    """Mark the sessions whose last pane equals their accumulators."""
    return with_column(sessions, CURRENT, pa.array(current))


def owners(sessions: pa.Table, panes: pa.Table, by: tuple[str, ...]) -> IntArray:
    """Return for each pane the session that holds it."""
    n, m = len(sessions), len(panes)
    if m == 0:
        return _NONE
    codes = codes_of([sessions, panes], by)
    return holders(extents(sessions, codes[:n]), codes[n:], combine(panes.column(START)).to_numpy())


def extents(rows: pa.Table, codes: IntArray) -> Extents:
    return Extents(codes, combine(rows.column(START)).to_numpy(), combine(rows.column(END)).to_numpy())


def codes_of(tables: Sequence[pa.Table], by: Sequence[str]) -> IntArray:
    """Return a number for the key of each row, over all tables."""
    size = sum(map(len, tables))
    if not by:
        return np.zeros(size, dtype=np.int64)
    keys = concat([table.select(list(by)) for table in tables])
    return Groups([keys.column(b) for b in by], size).codes


def flags(rows: pa.Table, name: str) -> BoolArray:
    """Return a column of truth values; False where it is missing."""
    if name not in rows.column_names:
        return np.zeros(len(rows), dtype=bool)
    return np.asarray(combine(rows.column(name)).fill_null(False).to_numpy(zero_copy_only=False), dtype=bool)


_EMITTED = b"\x00emitted"


class Spans:
    """The history of a definition's aggregations: the steps from which each set applies."""

    def __init__(self, definition: AggregateDefinition, aux: str) -> None:
        self._aux = aux
        self._own = dict.fromkeys(definition.agg, START_OF_TIME_US) | dict(definition.since_us)
        self._noted = False
        self._spans: list[tuple[int, Mapping[str, int]]] = []

    def load(self, kv: KV) -> None:
        value = kv.get(self._aux, _EMITTED)
        self._spans = [] if value is None else json.loads(value)

    def note(self, kv: KV, step: int) -> None:
        """Record the aggregations of a definition in its first step."""
        if self._noted:
            return
        self.load(kv)
        self._noted = (
            bool(self._spans) and self._spans[-1][1] == self._own
        )  # not before it is stored for good
        if not self._noted:
            self._spans.append((step, self._own))
            batch = Batch()
            batch.put(self._aux, _EMITTED, json.dumps(self._spans).encode())
            kv.write(batch)

    @property
    def differ(self) -> bool:
        return len(self._spans) > 1

    def known_by_span(self, calculation: Calculation, emitted: pa.Table) -> dict[str, BoolArray]:
        """Return for each aggregation of the history the rows whose last pane had its value."""
        firsts = np.array([step for step, _ in self._spans])
        steps = combine(emitted.column(EMIT_STEP)).to_numpy()
        span = np.maximum(np.searchsorted(firsts, steps, side="right") - 1, 0)
        starts = combine(emitted.column(START)).to_numpy()
        known = {}
        for alias in {alias for _, since_of in self._spans for alias in since_of}:
            since = np.array([since_of.get(alias, END_OF_TIME_US) for _, since_of in self._spans])[span]
            if calculation.numbered:
                whole = calculation.saw_all(alias, {n: emitted.column(n) for n in emitted.column_names})
                known[alias] = (since == START_OF_TIME_US) | ((since < END_OF_TIME_US) & whole)
            else:
                known[alias] = starts >= since
        return known


def emitted_values(
    calculation: Calculation, spans: Spans, emitted: pa.Table
) -> tuple[dict[str, Any], list[Broken]]:
    """Return the columns of panes with the values of these rows' accumulators; some of them as accumulators."""
    if not spans.differ:
        values, broken = calculation.finish(
            {n: emitted.column(n) for n in emitted.column_names}, len(emitted)
        )
        return {EMITTED + a: column for a, column in values.items()}, broken
    known = spans.known_by_span(calculation, emitted)
    values, broken = calculation.finish(_accumulators(emitted), len(emitted))
    values, broken = of_whole(values, broken, {a: known[a] for a in values})
    columns: dict[str, Any] = {EMITTED + a: column for a, column in values.items()}
    for alias in known.keys() - calculation.definition.agg.keys():
        parts = calculation.parts_of(alias, _accumulators(emitted))
        if parts and known[alias].any():
            columns |= {f"{ACCUMULATOR}{alias}.{part}": column for part, column in parts.items()}
            columns[_mark(alias)] = pa.array(np.ones(len(emitted), dtype=np.int64), mask=~known[alias])
    return columns, broken


def accumulator_columns(names: list[str]) -> list[str]:
    """Return those columns of stored rows that are accumulators of panes."""
    marks = tuple(n[: -len(SEEN)] for n in names if n.startswith(ACCUMULATOR) and n.endswith("." + SEEN))
    return [n for n in names if n.startswith(marks)] if marks else []


def with_restored_values(calculation: Calculation, panes: pa.Table) -> pa.Table:
    """Return panes in which the accumulators of aggregations that were added again are values."""
    for alias in calculation.definition.agg:
        if _mark(alias) not in panes.column_names:
            continue
        there = combine(panes.column(_mark(alias))).is_valid().to_numpy(zero_copy_only=False)
        if there.any():
            values, _ = calculation.finish(_accumulators(panes), len(panes))
            name, value = EMITTED + alias, values[alias]
            if name in panes.column_names:
                value = choose(there, value, combine(panes.column(name)))
                panes = panes.drop_columns([name])
            else:
                value = choose(there, value, pa.nulls(len(panes), value.type))
            panes = panes.append_column(name, value)
        parts = calculation.parts_of(alias, _accumulators(panes))
        panes = panes.drop_columns([_mark(alias), *(f"{ACCUMULATOR}{alias}.{part}" for part in parts)])
    return panes


def _accumulators(rows: pa.Table) -> dict[str, Any]:
    return {n: rows.column(n) for n in rows.column_names if n.startswith(ACCUMULATOR)}


def _mark(alias: str) -> str:
    """Return the name of a mark, which is no kernel's part: the accumulators of a pane equal its values."""
    return f"{ACCUMULATOR}{alias}.{SEEN}"
