"""Merging of sessions: stored and new parts of a key that overlap or touch are merged, stored ones first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core import arrays
from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregate.sessions.extents import Extents, Joined, holders, joined, reach_of
from windrow.operators.aggregate.sessions.kept_messages import note_emitted_parts
from windrow.operators.aggregate.sessions.parts import Sessions
from windrow.operators.aggregate.sessions.rows import (
    Rows,
    Stored,
    codes_of,
    extents,
    live,
    taken,
    together,
    unfolded,
)
from windrow.operators.steps.columns import END, LAST, MESSAGES_FROM, PANES, START
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import Groups, combine, stable_order, without
from windrow.stores.kv import KV
from windrow.stores.page_format import HASH
from windrow.stores.sessions import CURRENT, HOME, HOT, waits_for
from windrow.stores.window_state import Near

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


def by_cell(logic: Sessions, incoming: Incoming, first_us: IntArray) -> Incoming:
    """Return the rows with separate key numbers for separate cells."""
    if logic.cells is None:
        return incoming
    sessions, n = incoming.sessions, len(incoming.sessions.codes)
    _, cells, _ = logic.cells.assign(np.r_[sessions.starts, first_us])
    codes = Groups([pa.array(np.r_[sessions.codes, incoming.codes]), pa.array(cells)], len(cells)).codes
    return incoming._replace(codes=codes[n:], sessions=sessions._replace(codes=codes[:n]))


def merge_parts(
    logic: Sessions,
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
        if MESSAGES_FROM in deltas.column_names:
            stored = with_all_messages_from(stored)
        several = np.flatnonzero(np.bincount(before)[before] > 1)
        if len(several):  # a left fold over the parts of one session, by start; the others keep their order
            order, begin = np.arange(len(before)), combine(stored.column(START)).to_numpy()[several]
            order[several] = several[np.argsort(begin, kind="stable")]
            stored, before = arrays.taken(stored, order), before[order]
        deltas = concat([with_extents(stored, starts[before], ends[before]), deltas])
        component = np.r_[before, component]
    groups = Groups.numbered(component, parts.size)
    merged = logic.merged(deltas, groups, dead)
    if MESSAGES_FROM in merged.column_names:
        merged = with_some_messages_from(merged)
    component = component[groups.first_rows]
    merged = with_bridges(merged, component, were, pieces, parts.piece)
    row_of = np.zeros(parts.size, dtype=np.int64)
    row_of[component] = np.arange(len(component))
    return Merged(Rows(merged, panes, row_of[of_panes]), taking, held_to[component], row_of)


def with_messages_from(deltas: pa.Table, stamps: IntArray, groups: Groups) -> pa.Table:
    """Return new rows with the earliest stamp of their messages (`kept_messages.py`)."""
    earliest = np.full(groups.size, END_OF_TIME_US, dtype=np.int64)
    np.minimum.at(earliest, groups.codes, stamps)
    return deltas.append_column(MESSAGES_FROM, pa.array(earliest))


def with_all_messages_from(sessions: pa.Table) -> pa.Table:
    """Set `MESSAGES_FROM` of every session: the stored value, and at least the start of the session."""
    starts = combine(sessions.column(START))
    if MESSAGES_FROM not in sessions.column_names:
        return sessions.append_column(MESSAGES_FROM, starts)
    at = sessions.column_names.index(MESSAGES_FROM)
    return sessions.set_column(
        at, MESSAGES_FROM, pc.max_element_wise(combine(sessions.column(MESSAGES_FROM)), starts)
    )


def with_some_messages_from(sessions: pa.Table) -> pa.Table:
    """Clear `MESSAGES_FROM` of sessions where it is not after their start."""
    at, column = sessions.column_names.index(MESSAGES_FROM), combine(sessions.column(MESSAGES_FROM))
    apart = pc.greater(column, combine(sessions.column(START)))
    if not pc.any(apart).as_py():
        return sessions.remove_column(at)
    return sessions.set_column(at, MESSAGES_FROM, pc.if_else(apart, column, None))


def with_extents(sessions: pa.Table, starts: IntArray, ends: IntArray) -> pa.Table:
    """Return parts of sessions, under the window of their session."""
    for name, bounds in ((START, starts), (END, ends)):
        sessions = sessions.set_column(sessions.column_names.index(name), name, pa.array(bounds))
    return sessions


#: Column of a buffered row: the step in which it came.
INGEST_STEP = "__ingest_step"


def settled(logic: Sessions, near: Near, emitted_us: int) -> Near:
    """Return stored rows after buffered ones are merged into them. emitted_us: those that end before were emitted"""
    held = near.held.get(HOT)
    if held is None or held.buffered is None:
        return near
    pieces = held.buffered.where(waits_for(held, held.buffered)).rows
    if len(pieces) == 0:
        return near
    by, n = logic.definition.by, len(pieces)
    tables = [pieces] if near.rows is None else [pieces, near.rows]
    numbers = codes_of(tables, by)
    codes, others = numbers[:n], list[pa.Table]()
    stored = Stored.of(Near(None, {}), by, emitted_us)
    none = np.zeros(0, dtype=np.int64)
    incoming = Incoming(codes, stored, Extents(none, none, none))
    if near.rows is not None:
        hot = near.rows.column(HOME).to_numpy() == HOT
        met = hot & np.isin(numbers[n:], codes)
        others.append(taken(near.rows, np.flatnonzero(~met)))
        if met.any():
            # Rows that look out of date may continue in buffered ones: none is skipped yet.
            of_keys = Near(taken(near.rows, np.flatnonzero(met)), {})
            met_numbers = numbers[n:][met]
            stored = Stored.of(of_keys, by, START_OF_TIME_US, met_numbers)
            sessions = Extents(met_numbers[stored.sessions], stored.values(START), stored.values(END))
            incoming = Incoming(codes, stored, sessions)
    after, stay = _laid(
        logic, by_cell(logic, incoming, combine(pieces.column(START)).to_numpy()), pieces, emitted_us
    )
    if stored.near.rows is not None:
        others.append(taken(stored.near.rows, stay))
    return Near(concat([*others, after]), near.held)


def _laid(
    logic: Sessions, incoming: Incoming, pieces: pa.Table, emitted_us: int
) -> tuple[pa.Table, IntArray]:
    """Return (the sessions of the buffered rows, with their current panes; the stored rows that stay as they are)."""
    starts, ends = (combine(pieces.column(name)).to_numpy() for name in (START, END))
    came = combine(pieces.column(INGEST_STEP)).to_numpy()
    n = len(incoming.sessions.codes)
    extents = joined(incoming.sessions.and_more(Extents(incoming.codes, starts, ends)))
    parts = Parts(extents, extents.component[n:], extents.component[:n])
    deltas = with_extents(
        without(pieces, INGEST_STEP), extents.starts[parts.piece], extents.ends[parts.piece]
    )
    deltas = deltas.append_column(COMPONENT, pa.array(parts.piece))
    joins = _joins(parts, incoming.sessions, Extents(parts.piece, starts, ends), came)
    bridges = Pieces(starts, ends, combine(pieces.column(LAST)).take, joins)
    merged = merge_parts(logic, DeadLetters(0), deltas, incoming, parts, bridges)
    lives = combine(merged.rows.sessions.column(END)).to_numpy() >= emitted_us
    table = together(merged.rows.where(lives))
    after = table.append_column(HOME, pa.array(np.full(len(table), HOT, dtype=np.int64)))
    return after, incoming.stored.others(merged.of_stored)


def _joins(parts: Parts, sessions: Extents, pieces: Extents, came: IntArray) -> IntArray:
    """Return per component the last buffered row that merged two sessions which a step had found separate. pieces: by
    component, in order of arrival
    """
    n = len(sessions.codes)
    component = np.r_[parts.stored, pieces.codes]
    starts, ends = np.r_[sessions.starts, pieces.starts], np.r_[sessions.ends, pieces.ends]
    order = stable_order(component, parts.size)
    of, first, last = component[order], starts[order], ends[order]
    low, high = -reach_of(of, -first), reach_of(of, last)
    apart = (of[1:] == of[:-1]) & ((first[1:] > high[:-1]) | (last[1:] < low[:-1]))
    merged, steps = list[int](), np.r_[np.full(n, -1, dtype=np.int64), came]
    for number in np.unique(of[1:][apart]).tolist():
        members = order[np.searchsorted(of, number) : np.searchsorted(of, number, side="right")].tolist()
        at = _last_join([(int(steps[i]), int(starts[i]), int(ends[i]), i - n) for i in members])
        if at is not None:
            merged.append(at)
    return np.array(merged, dtype=np.int64)


def _last_join(rows: list[tuple[int, int, int, int]]) -> int | None:
    """Return the last of the ranges, which become one, that covered a part of a hole that was there before its step. rows:
    (step, start, end, name), step by step
    """
    last, there = None, list[tuple[int, int]]()
    steps = sorted({step for step, *_ in rows})
    for step in steps:
        of_step = [row for row in rows if row[0] == step]
        holes = [(end, start) for (_, end), (start, _) in pairwise(there)]
        there = _as_one([*there, *((start, end) for _, start, end, _ in of_step)])
        for end, start in holes:
            if step >= 0 and any(low <= end and start <= high for low, high in there):  # it is closed by now
                over = [name for _, low, high, name in of_step if low < start and end <= high - 1]
                last = max([*over, *([] if last is None else [last])])
    return last


def _as_one(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges that overlap or touch."""
    merged = list[tuple[int, int]]()
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def settle(logic: Sessions, kv: KV, emitted_us: int) -> None:
    """Merge all buffered rows into the pages."""
    hashes = logic.store.waiting(kv)
    if hashes is None:
        return
    keys = pa.table({START: pa.array(np.full(len(hashes), HOT, dtype=np.int64)), HASH: pa.array(hashes)})
    near, by = settled(logic, logic.store.near(kv, [HOT], keys), emitted_us), logic.definition.by
    assert near.rows is not None
    logic.store.put(kv, near, live(near.rows, by, emitted_us), lambda some: live(some, by, emitted_us))


#: Column of a state row: the encoded position of the message that merged two sessions into it; of several the last.
JOINED_BY = "__joined_by"


class Pieces(NamedTuple):
    """New messages, or groups of them, in the order of positions, with their start and end.

    positions: gives the last position of some of them, null where they have none. joins: of messages that came one after the
    other those that touched two separate sessions, where that is known
    """

    starts: IntArray
    ends: IntArray
    positions: Callable[[pa.Array], pa.Array]
    joins: IntArray | None = None


def with_bridges(
    merged: pa.Table, component: IntArray, parts: Extents | None, pieces: Pieces, piece: IntArray
) -> pa.Table:
    """Add to merged sessions the message that merged them. component: that of each session; parts: the former sessions, whose
    codes are their components; piece: the component of each of the pieces.
    """
    covers = pieces.joins if pieces.joins is not None else _covers(parts, pieces, piece)
    if covers is None or len(covers) == 0:
        return merged
    last = np.full(max(int(component.max()), int(piece.max())) + 1, -1, dtype=np.int64)
    np.maximum.at(last, piece[covers], covers)
    of = last[component]
    positions = pieces.positions(pa.array(np.maximum(of, 0), mask=of < 0))
    if JOINED_BY not in merged.column_names:
        return merged.append_column(JOINED_BY, positions)
    before = combine(merged.column(JOINED_BY))
    return merged.set_column(merged.column_names.index(JOINED_BY), JOINED_BY, pc.coalesce(positions, before))


def _covers(parts: Extents | None, pieces: Pieces, piece: IntArray) -> IntArray | None:
    """Return the pieces that lie between two of the former sessions."""
    if parts is None:
        return None
    several = np.bincount(parts.codes)[parts.codes] > 1
    if not several.any():
        return None
    codes, starts, ends = (column[several] for column in parts)
    order = np.lexsort((starts, codes))
    codes, starts, ends = codes[order], starts[order], ends[order]
    beside = np.flatnonzero(codes[1:] == codes[:-1])
    # Between two former sessions is a hole. Pieces that cover a part of it merged them, and the last of these completed it.
    holes = Extents(codes[beside], ends[beside], starts[beside + 1])
    has_holes = np.zeros(max(int(holes.codes.max()), int(piece.max())) + 1, dtype=bool)
    has_holes[holes.codes] = True
    few = np.flatnonzero(has_holes[piece])
    holder = holders(holes, piece[few], pieces.ends[few] - 1)
    covers: IntArray = few[(holder >= 0) & (holes.ends[np.maximum(holder, 0)] > pieces.starts[few])]
    return covers
