"""The messages behind sessions whose aggregations need them: read again session by session, when one fires.

They are filed by key and time (`history.py`), so that a session is one range of them: what lies between its start and its end
was taken by it, or by a part of it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.time import END_OF_TIME_US
from windrow.operators.aggregate.extents import holders
from windrow.operators.aggregate.history import History
from windrow.operators.aggregate.session_rows import apart, codes_of, extents
from windrow.operators.aggregations.calculation import Broken, Calculation
from windrow.operators.steps.columns import END, START
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.stores.kv import KV
from windrow.stores.sessions import HOT, SessionStore


def values_of_sessions(
    history: History, kv: KV, state: pa.Table, calculation: Calculation
) -> tuple[dict[str, pa.Array], list[Broken]]:
    """Values of sessions, from their messages."""
    by = history.definition.by
    encoded = history.encode([state.column(b) for b in by]) if by else [None] * len(state)
    keys, values, found = list[bytes](), list[bytes](), list[int]()
    starts = combine(state.column(START)).to_numpy()
    ends = combine(state.column(END)).to_numpy()
    for key, start, end in zip(encoded, starts.tolist(), ends.tolist(), strict=True):
        some, theirs = history.store.scan_between(kv, (start, None), (end - 1, None), key)
        keys += some
        values += theirs
        found.append(len(some))
    rows = history.decode(kv, keys, values, calculation)
    of: IntArray = np.repeat(starts, np.array(found, dtype=np.int64))
    return history.evaluate(state, rows, np.arange(len(of), dtype=np.int64), of, calculation)


def of_sessions(rows: Slice, sessions: pa.Table | None, by: tuple[str, ...]) -> Slice:
    """The messages that belong to one of these sessions."""
    if sessions is None or len(sessions) == 0:
        return rows.take(np.zeros(0, dtype=np.int64))
    codes = codes_of([sessions, rows.table], by)
    n = len(sessions)
    holder = holders(extents(sessions, codes[:n]), codes[n:], rows.times)
    ends = combine(sessions.column(END)).to_numpy()[np.maximum(holder, 0)]
    return rows.take(np.flatnonzero((holder >= 0) & (rows.times < ends)))


def forget_messages(history: History, kv: KV, store: SessionStore) -> None:
    """Forget what is older than all sessions that are kept."""
    firsts = [bucket.first_us for bucket in store.buckets(kv)]
    stored = store.read(kv, [HOT])
    if stored is not None and len(stored):
        sessions = apart(stored, history.definition.by).sessions
        firsts.append(int(combine(sessions.column(START)).to_numpy().min()))
    history.drop(kv, min(firsts, default=END_OF_TIME_US))
