"""Merge buffer: unmerged messages next to open sessions, merged into those that they touch when these are read.

A step of few messages writes them as they are: each is the session that it would be by itself, with the number of its step. The
result is the same as of an immediate merge. Only messages beyond the watermark are buffered, which touch nothing that was
emitted as ended, and only where accumulators may be merged in any order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.time import START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregate.sessions.extents import Extents, joined, reach_of
from windrow.operators.aggregate.sessions.merge_provenance import Pieces
from windrow.operators.aggregate.sessions.merging import (
    COMPONENT,
    Incoming,
    Parts,
    by_cell,
    merge_parts,
    with_extents,
)
from windrow.operators.aggregate.sessions.rows import Stored, codes_of, live, taken, together
from windrow.operators.steps.columns import END, LAST, START
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import combine, stable_order, without
from windrow.stores.kv import KV
from windrow.stores.page_format import HASH
from windrow.stores.sessions import HOME, HOT, waits_for
from windrow.stores.window_state import Near

if TYPE_CHECKING:
    from windrow.operators.aggregate.sessions.session_state import StoredSessions

#: Column of a buffered row: the step in which it came.
CAME = "__came"


def settled(logic: StoredSessions, near: Near, emitted_us: int) -> Near:
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
    logic: StoredSessions, incoming: Incoming, pieces: pa.Table, emitted_us: int
) -> tuple[pa.Table, IntArray]:
    """Return (the sessions of the buffered rows, with their current panes; the stored rows that stay as they are)."""
    starts, ends = (combine(pieces.column(name)).to_numpy() for name in (START, END))
    came = combine(pieces.column(CAME)).to_numpy()
    n = len(incoming.sessions.codes)
    extents = joined(incoming.sessions.and_more(Extents(incoming.codes, starts, ends)))
    parts = Parts(extents, extents.component[n:], extents.component[:n])
    deltas = with_extents(without(pieces, CAME), extents.starts[parts.piece], extents.ends[parts.piece])
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


def settle(logic: StoredSessions, kv: KV, emitted_us: int) -> None:
    """Merge all buffered rows into the pages."""
    hashes = logic.store.waiting(kv)
    if hashes is None:
        return
    keys = pa.table({START: pa.array(np.full(len(hashes), HOT, dtype=np.int64)), HASH: pa.array(hashes)})
    near, by = settled(logic, logic.store.near(kv, [HOT], keys), emitted_us), logic.definition.by
    assert near.rows is not None
    logic.store.put(kv, near, live(near.rows, by, emitted_us), lambda some: live(some, by, emitted_us))
