"""Merging of sessions: stored and new parts of a key that overlap or touch are merged, stored ones first."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray, taken
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregate.sessions.extents import Extents, Joined
from windrow.operators.aggregate.sessions.kept_messages import note_emitted_parts
from windrow.operators.aggregate.sessions.merge_provenance import Pieces, with_bridges
from windrow.operators.aggregate.sessions.rows import Rows, Stored, extents, unfolded
from windrow.operators.steps.columns import END, PANES, START, TAKEN_FROM
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import Groups, combine, without
from windrow.stores.sessions import CURRENT, HOME, HOT

if TYPE_CHECKING:
    from windrow.operators.aggregate.sessions.session_state import StoredSessions

#: Column of a row: the component that it is of.
COMPONENT = "__component"


class Incoming(NamedTuple):
    """New rows of a step, with the stored rows near them. codes: a number for the key of each row, or group of rows. sessions:
    the stored ones, whose keys have such numbers too. With `cut`, keys of two cells have two numbers: their sessions never
    merge.
    """

    codes: IntArray
    stored: Stored
    sessions: Extents


class Parts(NamedTuple):
    """Ranges of messages and stored sessions, joined. piece: the component of each message, or group of them; stored: of each
    stored session that is open, -1 for others.
    """

    joined: Joined
    piece: IntArray
    stored: IntArray

    @property
    def size(self) -> int:
        return len(self.joined.starts)


class Merged(NamedTuple):
    """The merged sessions. rows: those that took messages; of_stored: the stored rows in them. held_to: the former end of each
    session that may still grow. row_of: the row of each component.
    """

    rows: Rows
    of_stored: BoolArray
    held_to: IntArray
    row_of: IntArray


def by_cell(logic: StoredSessions, incoming: Incoming, first_us: IntArray) -> Incoming:
    """Return the rows with separate key numbers for separate cells."""
    if logic.cells is None:
        return incoming
    sessions, n = incoming.sessions, len(incoming.sessions.codes)
    _, cells, _ = logic.cells.assign(np.r_[sessions.starts, first_us])
    codes = Groups([pa.array(np.r_[sessions.codes, incoming.codes]), pa.array(cells)], len(cells)).codes
    return incoming._replace(codes=codes[n:], sessions=sessions._replace(codes=codes[:n]))


def merge_parts(
    logic: StoredSessions,
    dead: DeadLetters,
    deltas: pa.Table,
    incoming: Incoming,
    parts: Parts,
    pieces: Pieces,
) -> Merged:
    """Merge new rows into sessions. deltas: the new rows, with the component of each."""
    starts, ends = parts.joined.starts, parts.joined.ends
    component = combine(deltas.column(COMPONENT)).to_numpy()
    deltas = without(deltas, COMPONENT)
    takes = np.zeros(parts.size, dtype=bool)
    takes[component] = True
    held_to = np.full(parts.size, START_OF_TIME_US, dtype=np.int64)
    panes = deltas.slice(0, 0).select([START, END, *logic.definition.by, PANES])
    taking, were = (parts.stored >= 0) & takes[parts.stored], None
    of_panes = np.zeros(0, dtype=np.int64)
    if taking.any():
        touched, before = incoming.stored.rows(logic.definition.by, taking), parts.stored[taking]
        hot = combine(touched.sessions.column(HOME)).to_numpy() == HOT
        np.maximum.at(held_to, before[hot], combine(touched.sessions.column(END)).to_numpy()[hot])
        whole = unfolded(logic.calculation, logic.spans, touched)
        if logic.definition.full_state and logic.definition.emit.mode == "discarding":
            whole = note_emitted_parts(whole, before)
        panes, of_panes = whole.panes, before[whole.owner]
        were = extents(whole.sessions, before)
        stored = without(whole.sessions, HOME, CURRENT)
        if TAKEN_FROM in deltas.column_names:
            stored = with_all_taken_from(stored)
        several = np.flatnonzero(np.bincount(before)[before] > 1)
        if len(several):  # a left fold over the parts of one session, by start; the others keep their order
            order, begin = np.arange(len(before)), combine(stored.column(START)).to_numpy()[several]
            order[several] = several[np.argsort(begin, kind="stable")]
            stored, before = taken(stored, order), before[order]
        deltas = concat([with_extents(stored, starts[before], ends[before]), deltas])
        component = np.r_[before, component]
    groups = Groups.numbered(component, parts.size)
    merged = logic.merged(deltas, groups, dead)
    if TAKEN_FROM in merged.column_names:
        merged = with_some_taken_from(merged)
    component = component[groups.first_rows]
    merged = with_bridges(merged, component, were, pieces, parts.piece)
    row_of = np.zeros(parts.size, dtype=np.int64)
    row_of[component] = np.arange(len(component))
    return Merged(Rows(merged, panes, row_of[of_panes]), taking, held_to[component], row_of)


def with_taken_from(deltas: pa.Table, stamps: IntArray, groups: Groups) -> pa.Table:
    """Return new rows with the earliest stamp of their messages (`kept_messages.py`)."""
    earliest = np.full(groups.size, END_OF_TIME_US, dtype=np.int64)
    np.minimum.at(earliest, groups.codes, stamps)
    return deltas.append_column(TAKEN_FROM, pa.array(earliest))


def with_all_taken_from(sessions: pa.Table) -> pa.Table:
    """Set `__taken_from` of every session: the stored value, and at least the start of the session."""
    starts = combine(sessions.column(START))
    if TAKEN_FROM not in sessions.column_names:
        return sessions.append_column(TAKEN_FROM, starts)
    at = sessions.column_names.index(TAKEN_FROM)
    return sessions.set_column(
        at, TAKEN_FROM, pc.max_element_wise(combine(sessions.column(TAKEN_FROM)), starts)
    )


def with_some_taken_from(sessions: pa.Table) -> pa.Table:
    """Clear `__taken_from` of sessions where it is not after their start."""
    at, column = sessions.column_names.index(TAKEN_FROM), combine(sessions.column(TAKEN_FROM))
    apart = pc.greater(column, combine(sessions.column(START)))
    if not pc.any(apart).as_py():
        return sessions.remove_column(at)
    return sessions.set_column(at, TAKEN_FROM, pc.if_else(apart, column, None))


def with_extents(sessions: pa.Table, starts: IntArray, ends: IntArray) -> pa.Table:
    """Return parts of sessions, under the window of their session."""
    for name, bounds in ((START, starts), (END, ends)):
        sessions = sessions.set_column(sessions.column_names.index(name), name, pa.array(bounds))
    return sessions
