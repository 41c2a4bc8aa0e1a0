"""Pane emitter of sessions: makes panes of sessions that fire, and updates the rows.

A session is emitted under its present window. Panes that it emitted before, under other windows or the same one, are retracted
directly before: current panes inside it, in every mode but discarding; a pane of the same window only in retracting mode,
since in the others the new pane replaces it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray, taken
from windrow.core.byte_order import decode_i64, decode_u64, encode_i64, encode_u64
from windrow.core.time import START_OF_TIME_US
from windrow.core.types import as_type, concat
from windrow.operators.aggregate import pane_order
from windrow.operators.aggregate.emitter import Emitter, Firing, Values, suppressed
from windrow.operators.aggregate.pane_order import in_window_order
from windrow.operators.aggregate.sessions.rows import Rows, with_current
from windrow.operators.aggregations.calculation import Calculation, any_differ
from windrow.operators.steps.columns import ARRIVED, EMITTED, END, INSERT, PANES, PENDING, START
from windrow.operators.steps.groups import combine, without
from windrow.stores.kv import KV, Batch
from windrow.stores.marks import Marks
from windrow.stores.page_format import hashes_of

#: Columns of a pane before sorting: the window of the session that caused it.
_FOR_START, _FOR_END = "__for_start", "__for_end"
#: Column names while panes are sorted by that window, and afterwards.
_ACCOUNT = {_FOR_START: START, _FOR_END: END, START: _FOR_START, END: _FOR_END}
_OWN = {_FOR_START: START, _FOR_END: END}


class Fired(NamedTuple):
    """The result of firing sessions. emitted: panes, not sorted yet, or None. rows: the sessions after, in the order they came,
    with their current panes. fires: those that emitted.
    """

    emitted: pa.Table | None
    rows: Rows
    fires: BoolArray


def fire_sessions(emitter: Emitter, rows: Rows, firing: Firing, values_of: Values) -> Fired:
    """Fire every session of `rows`, whose panes are all current ones inside them."""
    definition, (sessions, panes, owner) = emitter.definition, rows
    emit, arrived = definition.emit, partial(_arrived, sessions)
    columns, fires = emitter.computed(sessions, values_of, arrived)
    same, changed = _same_window(rows), np.ones(len(sessions), dtype=bool)
    if emit.remembers:
        changed = ~_unchanged(columns, panes, owner, same, len(sessions))
    pending = combine(sessions.column(PENDING)).to_numpy() > 0
    fires &= ~suppressed(emit, changed, pending, firing)
    # In discarding mode, rows next to a session record the step up to which its parts were emitted.
    retracts = fires[owner] & (~same | definition.takes_back_panes) & (emit.mode != "discarding")
    emitted = _emitted(emitter, rows, columns, retracts, ~same, fires, firing)
    after, silent = emitter.after(sessions, fires), ~fires[owner]
    left, owner = panes.filter(pa.array(silent)), owner[silent]
    if emit.mode == "discarding":
        return Fired(emitted, Rows(after, left, owner), fires)
    if not definition.full_state:
        return Fired(emitted, Rows(with_current(after, fires), left, owner), fires)
    new = after.select([START, END, *definition.by, PANES])
    for alias, column in columns.items():
        new = new.append_column(EMITTED + alias, column)
    new, owner = new.filter(pa.array(fires)), np.r_[owner, np.flatnonzero(fires)]
    return Fired(emitted, Rows(after, concat([left, new]) if len(left) else new, owner), fires)


def retractions_alone(emitter: Emitter, calculation: Calculation, panes: pa.Table, timing: str) -> pa.Table:
    """Return retractions of current panes that no session caused: they come before all panes that begin there."""
    every = np.ones(len(panes), dtype=bool)
    values = {field.name: _emitted_column(panes, field.name, field.type) for field in calculation.output}
    table = _retractions(emitter, panes, values, every, Firing(timing, every))
    return _on_account(table, panes.set_column(panes.column_names.index(END), END, panes.column(START)))


def _retractions(
    emitter: Emitter, panes: pa.Table, values: Mapping[str, pa.Array], alone: BoolArray, firing: Firing
) -> pa.Table:
    """Return retractions of panes. alone: those that no pane of their window replaces"""
    index, every = combine(panes.column(PANES)).to_numpy() - 1, np.arange(len(panes), dtype=np.int64)
    return emitter.labelled(panes, values, every, firing, index, emitter.retraction_kinds(alone))


def in_order(emitted: Sequence[pa.Table], by: tuple[str, ...]) -> list[pa.Table]:
    """Merge the panes of one part of a step: by the start and end of the session and its key, retractions first; of a run
    message by message.
    """
    return [_own(run) for run in _sorted(emitted, by)]


def in_order_of_parts(parts: Iterable[Sequence[pa.Table]], by: tuple[str, ...]) -> list[pa.Table]:
    """Merge the panes of all parts as `in_order` does. Many of them, which share no session, are sorted in a file."""
    runs = (run for emitted in parts for run in _sorted(emitted, by))
    first = next(runs, None)
    second = next(runs, None)
    if first is None or second is None:
        return [] if first is None else [_own(first)]
    whole = pane_order.in_order(itertools.chain((first, second), runs), by, pane_order.SLICE_BYTES)
    return [] if whole is None else [_own(whole)]


def _sorted(emitted: Sequence[pa.Table], by: tuple[str, ...]) -> list[pa.Table]:
    """Return panes as one table, sorted by the sessions that caused them; these are in place of its windows."""
    if not emitted:
        return []
    table = concat(list(emitted))
    table = table.rename_columns([_ACCOUNT.get(n, n) for n in table.column_names])
    order = in_window_order(table, by)
    if ARRIVED in table.column_names:
        order = order[np.argsort(combine(table.column(ARRIVED)).to_numpy()[order], kind="stable")]
    return [taken(without(table, ARRIVED), order)]


def _own(run: pa.Table) -> pa.Table:
    """Return sorted panes with their own windows."""
    panes = run.drop_columns([START, END])
    return panes.rename_columns([_OWN.get(n, n) for n in panes.column_names])


def _same_window(rows: Rows) -> BoolArray:
    """True for panes of the very window that their session has."""
    equal = np.ones(len(rows.owner), dtype=bool)
    for name in (START, END):
        pane_edges = combine(rows.panes.column(name)).to_numpy()
        equal &= pane_edges == combine(rows.sessions.column(name)).to_numpy()[rows.owner]
    return equal


def _unchanged(
    columns: Mapping[str, pa.Array], panes: pa.Table, owner: IntArray, same: BoolArray, size: int
) -> BoolArray:
    """True for sessions with a single current pane, of the same window and the same values."""
    unchanged = np.zeros(size, dtype=bool)
    at = np.flatnonzero(same & (np.bincount(owner, minlength=size)[owner] == 1))
    if len(at) == 0:
        return unchanged
    of, single = pa.array(owner[at]), panes.take(pa.array(at))
    now = [column.take(of) for column in columns.values()]
    before = [_emitted_column(single, alias, column.type) for alias, column in columns.items()]
    unchanged[owner[at]] = ~any_differ(before, now, len(at))
    return unchanged


def _emitted(
    emitter: Emitter,
    rows: Rows,
    columns: Mapping[str, pa.Array],
    retracts: BoolArray,
    alone: BoolArray,
    fires: BoolArray,
    firing: Firing,
) -> pa.Table | None:
    if not fires.any():
        return None
    sessions, panes, owner = rows
    at = np.flatnonzero(fires)
    index = combine(sessions.column(PANES)).to_numpy()[at]
    inserts = emitter.labelled(sessions, columns, at, firing, index, INSERT)
    inserts = _on_account(inserts, sessions.take(pa.array(at)))
    if not retracts.any():
        return inserts
    back = np.flatnonzero(retracts)
    back = back[np.argsort(combine(panes.column(START)).to_numpy()[back], kind="stable")]
    retracted = panes.take(pa.array(back))
    values = {alias: _emitted_column(retracted, alias, column.type) for alias, column in columns.items()}
    retractions = _retractions(emitter, retracted, values, alone[back], firing)
    return concat([_on_account(retractions, sessions.take(pa.array(owner[back]))), inserts])


def _emitted_column(panes: pa.Table, alias: str, kind: pa.DataType) -> pa.Array:
    """Return the values of an aggregation in panes; null for one that was added since."""
    name = EMITTED + alias
    if name not in panes.column_names:
        return pa.nulls(len(panes), kind)
    return as_type(combine(panes.column(name)), kind)


def _on_account(panes: pa.Table, sessions: pa.Table) -> pa.Table:
    panes = panes.append_column(_FOR_START, sessions.column(START)).append_column(
        _FOR_END, sessions.column(END)
    )
    return (
        panes.append_column(ARRIVED, sessions.column(ARRIVED)) if ARRIVED in sessions.column_names else panes
    )


def _arrived(sessions: pa.Table, row: int) -> int:
    """Return the message of a run after which a session is emitted."""
    return int(sessions.column(ARRIVED)[row].as_py()) if ARRIVED in sessions.column_names else 0


_COUNTED = b"dn"


class SessionNumbers:
    """The pane index floors of one definition. width_us: of a bucket of ends."""

    def __init__(self, aux: str, by: Sequence[str], width_us: int) -> None:
        self._aux, self._by = aux, tuple(by)
        self._until = Marks(aux, b"dm", width_us)

    def counted(self, kv: KV, sessions: pa.Table, kept_us: int) -> IntArray:
        """Return the pane count of each session's key; 0 if the last recorded session of the key ended before `kept_us`."""
        values = kv.multi_get(self._aux, [_name(number) for number in self._keys(sessions)])
        known = [0 if v is None or decode_i64(v, 8) < kept_us else decode_u64(v) for v in values]
        return np.array(known, dtype=np.int64)

    def note(self, kv: KV, sessions: pa.Table, kept_us: int, step: int) -> None:
        """Record the pane counts of these sessions, which have lost messages."""
        panes, ends = (combine(sessions.column(c)).to_pylist() for c in (PANES, END))
        before = self.counted(kv, sessions, kept_us).tolist()
        counted: dict[int, tuple[int, int]] = {}
        for number, *bounds in zip(self._keys(sessions), map(max, panes, before), ends, strict=True):
            most, until_us = counted.get(number, (0, START_OF_TIME_US))
            counted[number] = (max(most, bounds[0]), max(until_us, bounds[1]))
        batch, names = Batch(), list(map(_name, counted))
        for name, value, (number, (most, until_us)) in zip(
            names, kv.multi_get(self._aux, names), counted.items(), strict=True
        ):
            until_us = until_us if value is None else max(until_us, decode_i64(value, 8))
            counted[number] = (most, until_us)
            batch.put(self._aux, name, encode_u64(most) + encode_i64(until_us))
        kv.write(batch)
        moments = np.array([until_us for _, until_us in counted.values()], dtype=np.int64)
        self._until.add(kv, moments, np.array(list(counted), dtype=np.uint64), step)

    def forget(self, kv: KV, before_us: int) -> None:
        """Forget keys none of whose sessions ends at that moment or after it."""
        _, numbers = self._until.between(kv, START_OF_TIME_US, before_us - 1)
        if len(numbers):
            names = [_name(number) for number in np.unique(numbers).tolist()]
            pairs = zip(names, kv.multi_get(self._aux, names), strict=True)
            batch = Batch()
            batch.delete_many(
                self._aux, [n for n, v in pairs if v is not None and decode_i64(v, 8) < before_us]
            )
            kv.write(batch)
        self._until.drop(kv, before_us)

    def _keys(self, sessions: pa.Table) -> list[int]:
        keys: list[int] = hashes_of(sessions.select([START, *self._by]), self._by).tolist()
        return keys


def _name(number: int) -> bytes:
    return _COUNTED + encode_u64(number)
