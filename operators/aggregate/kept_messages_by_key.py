"""Kept messages of a full-state aggregate over time windows, in columns, by a hash of their keys
(`stores/keyed_event_store.py`).

A pane therefore reads only the messages of its windows and keys, not all messages of these windows.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import SECOND_US
from windrow.core.types import as_type
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.kept_messages import History, in_present_types
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.steps.assigners import WindowAssigner
from windrow.operators.steps.columns import END, START
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.message_rows import inside
from windrow.stores.event_log import TIME, recorded_width
from windrow.stores.key_hash import hashes
from windrow.stores.keyed_event_store import HASH, Hashes, KeyedEvents
from windrow.stores.kv import KV
from windrow.stores.message_store import Bound

#: Auxiliary keys: the usual width of a time bucket; the buckets that are wider.
WIDTH, WIDE = b"\x00width", b"\x00wide"
_LONGEST_US: Final = 1 << 62


class KeyedHistory(History):
    """The store of kept messages of one definition, by key hash."""

    def __init__(self, definition: AggregateDefinition, assigner: WindowAssigner) -> None:
        super().__init__(definition)
        start = assigner.first_open(0)
        span_us = int(assigner.ends(np.array([start], dtype=np.int64))[0]) - start
        self._usual_us = min(max(span_us, SECOND_US), _LONGEST_US)

    # -- writing ----------------------------------------------------------------------------------------------------

    def add(
        self,
        kv: KV,
        rows: Slice,
        step: int | IntArray,
        calculation: Calculation,
        numbers: IntArray | None = None,
        closed: IntArray | None = None,
    ) -> None:
        table = self._kept(rows, step, calculation, closed)
        table = table.append_column(TIME, pa.array(rows.times))
        table = table.append_column(HASH, pa.array(self._hashes(table, calculation)))
        self._events(kv, store=True).add(kv, table, int(np.max(step)))

    def _hashes(self, rows: pa.Table, calculation: Calculation) -> Hashes:
        """Return the hashes of the keys of rows, which they are stored by."""
        by, schema = self.definition.by, calculation.schema
        if not by:
            return np.zeros(len(rows), dtype=np.uint32)
        keys = [as_type(combine(rows.column(b)), schema.field(b).type) for b in by]
        return (hashes(keys) >> np.uint64(32)).astype(np.uint32)

    def _events(self, kv: KV, *, store: bool = False) -> KeyedEvents:
        """Return the messages, in time buckets as long as a window. store: record how long they are, in state that has none."""
        width_us = recorded_width(kv, self.aux_cf, WIDTH, self._usual_us, store=store)
        return KeyedEvents(self.cf, width_us, (self.aux_cf, WIDE))

    # -- deleting ---------------------------------------------------------------------------------------------------

    def drop(self, kv: KV, before_us: int, *, exactly: bool = False) -> None:
        """Delete messages from before a time, in whole buckets; exactly: all of them."""
        events = self._events(kv)
        events.forget(kv, before_us)
        if exactly:
            events.drop(kv, before_us, _all)

    # -- reading ----------------------------------------------------------------------------------------------------

    def between(
        self,
        kv: KV,
        start: Bound,
        end: Bound,
        calculation: Calculation,
        *,
        key: bytes | None = None,
        key_prefix: bytes | None = None,
    ) -> Slice | None:
        kept = self._rows(self._events(kv).read(kv, start[0], end[0] + 1), calculation)
        rows = None if kept is None else kept.take(np.flatnonzero(inside(kept, start, end)))
        if rows is None or not len(rows):
            return None
        if rows.order is None:
            return rows
        at = pa.table({"time": pa.array(rows.times), "order": rows.order})
        order = pc.sort_indices(at, sort_keys=[("time", "ascending"), ("order", "ascending")])
        return rows.take(order.to_numpy())

    def _of_windows(self, kv: KV, state: pa.Table, calculation: Calculation) -> Slice | None:
        """Return the messages of the keys of windows, of their times."""
        starts, ends = (combine(state.column(column)).to_numpy() for column in (START, END))
        events = self._events(kv)
        kept = events.read_keys(kv, self._hashes(state, calculation), starts, ends - 1)
        return self._rows(kept, calculation)

    def _rows(self, kept: pa.Table | None, calculation: Calculation) -> Slice | None:
        if kept is None or not len(kept):
            return None
        rows = in_present_types(kept.drop_columns([TIME, HASH]), calculation.schema)
        return Slice(rows, kept.column(TIME).to_numpy())


def _all(rows: pa.Table) -> BoolArray:
    return np.ones(len(rows), dtype=bool)
