"""Retractions of messages in sessions: each is matched with a kept message.

A row retracts the oldest message that equals it in all columns; a later equal message restores it. So a replacement at the same
time moves nothing, and a step leaves only the messages that are added and removed. Columns that the upstream operator no longer
emits are ignored.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.keys import encode_equal
from windrow.operators.aggregate.kept_messages import History, moments
from windrow.operators.aggregate.sessions.extents import Extents, holders
from windrow.operators.aggregate.sessions.merging import Incoming
from windrow.operators.aggregate.sessions.parts import Sessions
from windrow.operators.aggregate.sessions.rows import Step
from windrow.operators.steps.columns import PANES, SIGN, STEP
from windrow.operators.steps.dead_letters import TOO_LATE
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.stores.kv import KV, Batch
from windrow.stores.row_codec import pack_column


@dataclass(frozen=True)
class Going:
    """The retractions of a step. removed: true for its rows that retract a kept message. kept: the keys of these messages."""

    removed: BoolArray
    kept: list[bytes]

    def without(self, lost: BoolArray) -> Going:
        """Return the retractions without lost rows; no retracting row is lost."""
        return Going(self.removed[~lost], self.kept)

    def forget(self, history: History, kv: KV) -> None:
        """Delete the retracted messages."""
        batch = Batch()
        batch.delete_many(history.cf, self.kept)
        kv.write(batch)


def going(
    logic: Sessions, step: Step, rows: Slice, incoming: Incoming
) -> tuple[Slice, Incoming, Going | None]:
    """Return the rows that add or retract something in the end; None without retractions. A row that retracts a message that no
    open session holds is a dead letter.
    """
    sign = rows.sign
    assert sign is not None
    rows = Slice(rows.table.drop_columns([SIGN]), rows.times)
    if (sign > 0).all():
        return rows, incoming, None
    emitted = [name for name in logic.calculation.input_schema.names if name in rows.table.column_names]
    held, places = _kept(logic, step, rows, incoming, np.flatnonzero(sign < 0), emitted)
    current, gone = defaultdict[bytes, deque[int]](deque), defaultdict[bytes, deque[tuple[int, int]]](deque)
    for place, what in enumerate(held):
        current[what].append(place)
    comes, lost = dict[int, None](), list[int]()
    for row, (what, is_new) in enumerate(zip(_identities(rows, emitted), (sign > 0).tolist(), strict=True)):
        if is_new and gone[what]:
            current[what].appendleft(gone[what].popleft()[0])
        elif is_new:
            current[what].append(len(held) + row)
            comes[row] = None
        elif not current[what]:
            lost.append(row)
        elif (place := current[what].popleft()) < len(held):
            gone[what].append((place, row))
        else:
            del comes[place - len(held)]
    detail = "what it takes back is in no session that is open"
    step.dead.add_rows(TOO_LATE, detail, rows.table, np.array(lost, dtype=np.int64), pa.array(rows.times))
    removed = np.zeros(len(rows), dtype=bool)
    removed[[row for pairs in gone.values() for _, row in pairs]] = True
    stays = removed.copy()
    stays[list(comes)] = True
    kept = [places[place] for pairs in gone.values() for place, _ in pairs]
    change = Going(removed[stays], kept) if kept else None
    return rows.take(np.flatnonzero(stays)), incoming._replace(codes=incoming.codes[stays]), change


def counted_on(logic: Sessions, step: Step, sessions: pa.Table, lost: BoolArray) -> pa.Table:
    """Return sessions whose pane counts continue from those of their key where it lost messages before; record the counts of
    those that have lost some now.
    """
    kv, kept_us = step.kv, logic.retained_from(step.progress.watermark_us)
    panes = combine(sessions.column(PANES)).to_numpy()
    panes = np.maximum(panes, logic.numbers.counted(kv, sessions, kept_us))
    sessions = sessions.set_column(sessions.column_names.index(PANES), PANES, pa.array(panes))
    if lost.any():
        logic.numbers.note(kv, sessions.filter(pa.array(lost)), kept_us, step.progress.step)
    return sessions


def _kept(
    logic: Sessions,
    step: Step,
    rows: Slice,
    incoming: Incoming,
    back: IntArray,
    emitted: Sequence[str],
) -> tuple[list[bytes], list[bytes]]:
    """Return (the messages of open sessions at the times of these rows, the oldest first; their store keys)."""
    history, by, sessions = logic.history, logic.definition.by, incoming.sessions
    assert history is not None
    open_ = Extents(*(column[sessions.ends >= step.closed_us] for column in sessions))
    times = moments(rows)[back]
    holder = holders(open_, incoming.codes[back], times)
    inside = (holder >= 0) & (times < open_.ends[np.maximum(holder, 0)]) if len(open_.ends) else holder >= 0
    back, times = back[inside], times[inside]
    table = rows.table.take(pa.array(back))
    keys = encode_equal([table.column(b) for b in by]) if by else [None] * len(back)
    identified, values = list[bytes](), list[bytes]()
    for key, at in dict.fromkeys(zip(keys, times.tolist(), strict=True)):
        bodies, store_keys = history.store.scan_between(step.kv, (at, None), (at, None), key)
        identified += bodies
        values += store_keys
    kept = history.decode(step.kv, identified, values, logic.calculation)
    if kept is None:
        return [], []
    arrived = pa.table({"step": combine(kept.table.column(STEP)), "order": kept.order})
    order = pc.sort_indices(arrived, sort_keys=[("step", "ascending"), ("order", "ascending")]).to_numpy()
    return _identities(kept.take(order), emitted), [identified[place] for place in order]


def _identities(rows: Slice, emitted: Sequence[str]) -> list[bytes]:
    """Return equal bytes for messages that are equal in the emitted columns."""
    pack = msgpack.Packer(autoreset=True).pack
    nothing = pa.nulls(len(rows))
    there = set(rows.table.column_names)
    columns = [rows.table.column(name) if name in there else nothing for name in emitted]
    packed = [rows.times.tolist(), *(pack_column(column) for column in columns)]
    return [pack(values) for values in zip(*packed, strict=True)]
