"""Key state that outlives the messages: rows in pages by key (`stores/page_format.py`), however old a key's last message is.

The rows of a key are in the bucket of event time of its last message. So keys that were quiet for too long expire by
one range delete. A bucket is a fraction of the ttl; without one there is a single bucket. A key is never in two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.steps.step import limit
from windrow.stores.delta_blocks import BlockWindows
from windrow.stores.kv import KV
from windrow.stores.window_state import START, UPSERT, Near

#: A ttl is about so many buckets long.
_STRETCHES = 4


class Found(NamedTuple):
    """near: for `put`. rows: those of the requested keys and of others in the same pages; None if there are none."""

    near: Near
    rows: pa.Table | None


class Keyed:
    """Rows of keys in one column family; `START` is the bucket of their key."""

    def __init__(self, cf: str, aux_cf: str, by: tuple[str, ...], ttl_us: int | None) -> None:
        self.cf, self.by, self.ttl_us = cf, by, ttl_us
        self._aux_cf, self._store = aux_cf, BlockWindows(cf, aux_cf, self.by)
        self._width_us = None if ttl_us is None else max(ttl_us // _STRETCHES, 1)

    def stretch(self, times: IntArray) -> IntArray:
        """Return the bucket of each time."""
        if self._width_us is None:
            return np.zeros(len(times), dtype=np.int64)
        return times // self._width_us * self._width_us

    def near(self, kv: KV, keys: pa.Table, stretches: IntArray, wanted: BoolArray, settled_us: int) -> Found:
        """Return the rows of keys. stretches: the buckets for their new rows, where `wanted` and not expired."""
        live = self._store.starts(kv, START_OF_TIME_US, END_OF_TIME_US)
        asked = [self._asked(keys, np.full(len(stretches), start)) for start in live]
        fresh = np.flatnonzero(wanted & self.lasting(stretches, settled_us) & ~np.isin(stretches, live))
        asked.append(self._asked(keys.take(pa.array(fresh)), stretches[fresh]))
        starts = np.union1d(np.array(live, dtype=np.int64), stretches[fresh]).tolist()
        near = self._store.near(kv, starts, concat(asked))
        return Found(near, None if near.rows is None else near.rows.drop_columns([UPSERT]))

    def _asked(self, keys: pa.Table, starts: IntArray) -> pa.Table:
        columns = {b: keys.column(b) for b in self.by}
        return pa.table({START: pa.array(starts, pa.int64()), **columns})

    def put(self, kv: KV, found: Found, tables: Sequence[pa.Table]) -> None:
        """Replace the rows of the requested keys, and of those in the same pages."""
        rows = [table for table in tables if table.num_columns]
        if found.near.held and rows:
            self._store.put(kv, found.near, concat(rows))

    def last_between(self, kv: KV, low_us: int, high_us: int) -> pa.Table | None:
        """Return the rows of keys in buckets that hold a time of `[low_us, high_us)`."""
        first = START_OF_TIME_US if low_us <= START_OF_TIME_US else int(self.stretch(np.array([low_us]))[0])
        starts = self._store.starts(kv, first, high_us)
        rows = self._store.read(kv, starts) if starts else None
        return None if rows is None else rows.drop_columns([UPSERT])

    def all(self, kv: KV) -> pa.Table | None:
        """Return the rows of all keys; None where there are none."""
        return self.last_between(kv, START_OF_TIME_US, END_OF_TIME_US)

    def lasting(self, stretches: IntArray, settled_us: int) -> BoolArray:
        """Return False for buckets whose keys have expired once messages up to `settled_us` are settled."""
        if settled_us >= END_OF_TIME_US:
            return np.zeros(len(stretches), dtype=bool)
        below_us = self._below_us(settled_us)
        kept: BoolArray = stretches >= below_us
        return kept

    def forget(self, kv: KV, settled_us: int) -> None:
        """Delete keys that no message can continue any more."""
        below_us = self._below_us(settled_us)
        if self._store.starts(kv, START_OF_TIME_US, below_us):
            self._store.drop(kv, START_OF_TIME_US, below_us)

    def _below_us(self, settled_us: int) -> int:
        """Return the time below which buckets have expired."""
        if settled_us >= END_OF_TIME_US:
            return END_OF_TIME_US
        if self.ttl_us is None or self._width_us is None:
            return START_OF_TIME_US
        over_us = limit(settled_us, self.ttl_us)
        if over_us <= START_OF_TIME_US:
            return START_OF_TIME_US
        return over_us // self._width_us * self._width_us
