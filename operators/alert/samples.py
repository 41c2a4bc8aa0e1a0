"""The samples in the windows of keys: of windows of time in runs by a hash of the key, of counted ones in pages by key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.alert.definition import AlertDefinition
from windrow.operators.alert.evaluations import back
from windrow.operators.over.emitted_marks import ID
from windrow.operators.over.key_state import Found, Keyed
from windrow.operators.over.required_columns import conformed
from windrow.operators.steps.groups import combine
from windrow.operators.steps.step import limit
from windrow.stores.event_log import TIME, Stretches
from windrow.stores.keyed_event_store import HASH, KeyedEvents, hashes_of
from windrow.stores.kv import KV
from windrow.stores.window_state import START

#: The encoded key of a sample.
KEY = "__key"
#: A window of time is so many stretches long; how long one is at least.
_STRETCHES, _SHORTEST_US = 4, 1_000_000


class TimedSamples:
    """The samples of windows of time. They are forgotten by ranges of time."""

    def __init__(self, definition: AlertDefinition) -> None:
        assert definition.size_us is not None
        self._size_us = definition.size_us
        width_us = max(self._size_us // _STRETCHES, _SHORTEST_US)
        self._events = KeyedEvents(f"{definition.name}.samples", Stretches(width_us))

    @property
    def cfs(self) -> tuple[str, ...]:
        return (self._events.cf,)

    def near(
        self, kv: KV, keys: list[bytes], moments: IntArray, there: BoolArray
    ) -> tuple[pa.Table | None, Any]:
        """Return the samples of keys whose windows end at these moments, and the argument of `put`."""
        low_us = np.where(there, back(moments, self._size_us), END_OF_TIME_US)
        high_us = np.where(there, END_OF_TIME_US, START_OF_TIME_US)
        return self._events.read_keys(kv, hashes_of(keys), low_us, high_us), None

    def put(self, kv: KV, near: Any, rows: pa.Table, new: BoolArray, kept: BoolArray, step: int) -> None:
        """File those that are new."""
        fresh = rows.filter(pa.array(new))
        if len(fresh):
            keys = combine(fresh.column(KEY)).to_pylist()
            self._events.add(kv, fresh.append_column(HASH, pa.array(hashes_of(keys))), step)

    def forget(self, kv: KV, watermark_us: int) -> None:
        self._events.forget(kv, limit(watermark_us, self._size_us))


class CountedSamples:
    """The newest samples of each key."""

    def __init__(self, definition: AlertDefinition) -> None:
        self._keyed = Keyed(f"{definition.name}.tails", f"{definition.name}.aux", (KEY,), None)

    @property
    def cfs(self) -> tuple[str, ...]:
        return (self._keyed.cf,)

    def near(
        self, kv: KV, keys: list[bytes], moments: IntArray, there: BoolArray
    ) -> tuple[pa.Table | None, Any]:
        asked = pa.table({KEY: pa.array(keys, pa.binary())})
        zeros, every = np.zeros(len(keys), dtype=np.int64), np.ones(len(keys), dtype=bool)
        found = self._keyed.near(kv, asked, zeros, every, START_OF_TIME_US)
        if found.rows is None:
            return None, (found, None)
        mine = pc.is_in(found.rows.column(KEY), value_set=pa.array(keys, pa.binary()))
        rows = found.rows.drop_columns([START])
        return rows.filter(mine), (found, found.rows.filter(pc.invert(mine)))

    def put(self, kv: KV, near: Any, rows: pa.Table, new: BoolArray, kept: BoolArray, step: int) -> None:
        """Store these samples of the keys that were read, and no others."""
        found, beside = near
        assert isinstance(found, Found)
        fresh = rows.filter(pa.array(kept))
        fresh = fresh.append_column(START, pa.array(np.zeros(len(fresh), dtype=np.int64)))
        self._keyed.put(kv, found, [fresh] if beside is None else [beside, fresh])

    def forget(self, kv: KV, watermark_us: int) -> None:
        return None  # keys are evicted by their timers


def of_keys(
    stored: pa.Table | None, schema: pa.Schema, keys: list[bytes], there: BoolArray
) -> tuple[pa.Table, IntArray, IntArray]:
    """Return stored samples without those of other keys, the numbers of their keys, and the order in which they came."""
    if stored is None:
        none = np.zeros(0, dtype=np.int64)
        return schema.empty_table(), none, none
    found = pc.index_in(combine(stored.column(KEY)), value_set=pa.array(keys, pa.binary())).fill_null(-1)
    codes = found.to_numpy().astype(np.int64)
    known = (codes >= 0) & there[codes]
    if not known.all():
        stored, codes = stored.filter(pa.array(known)), codes[known]
    arrival = np.argsort(stored.column(ID).to_numpy(), kind="stable")
    return conformed(stored, schema), codes, arrival


def filed(schema: pa.Schema) -> pa.Schema:
    """Return the columns of samples as they are stored."""
    return pa.schema([*schema, (TIME, pa.int64()), (ID, pa.int64()), (KEY, pa.binary())])
