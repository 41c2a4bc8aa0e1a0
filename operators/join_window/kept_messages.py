"""Kept messages of a join window: filed under the keys by which they are looked up, and read again by their place.

Key, by seed 003's matrix: `<time><position>`; `<fields><time><position>` where there are join keys, or sessions of keys,
the session keys first; tuple windows `<number>`, or `<fields><number>`. Values are as of every message store of an aggregate
(`aggregate/kept_messages.py`). A window collects the keys of messages to emit and reads the messages when it emits them; those
of the same step are in memory.
"""

from __future__ import annotations

import copy
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray
from windrow.core.errors import CorruptState
from windrow.core.time import SECOND_US
from windrow.core.types import concat
from windrow.core.windows import Hopping, Session, Tumbling
from windrow.operators.aggregate.kept_messages import NUMBERS, History
from windrow.operators.aggregations.calculation import Broken, Calculation
from windrow.operators.join_window.definition import NEW, JoinWindowDefinition
from windrow.operators.one_input import conformed
from windrow.operators.steps.columns import KEPT
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.stores.kv import KV
from windrow.stores.message_store import HOUR_US, Layout, MessageStore

#: If fields come first, messages are freed a part of a window at a time.
_PARTS = 8


class Kept(History):
    """The store of the messages of one definition."""

    def __init__(self, definition: JoinWindowDefinition) -> None:
        super().__init__(definition.windowing)
        # Windows of messages of a key are freed key by key.
        self.fields = definition.by if self.tuples and definition.by else definition.fields
        keyed = bool(definition.join_keys) or (
            bool(definition.by) and (self.tuples or definition.windowing.session)
        )
        if self.tuples:
            layout = Layout.FIELDS_OFFSET if keyed else Layout.OFFSET
        else:
            layout = Layout.FIELDS_TIME_OFFSET if keyed else Layout.TIME_OFFSET
        self.store = MessageStore(layout, self.cf, self.index_cf, self._bucket(definition))
        self.cfs = self.store.cfs
        #: The messages of the step, under their keys, if they are cached.
        self._came: Slice | None = None
        self._remembers = False
        #: False for queries of windows, which need no messages to emit.
        self._reads = True

    def _bucket(self, definition: JoinWindowDefinition) -> int:
        if self.by_number:
            return NUMBERS
        match definition.window:
            case Tumbling(size_us=span_us) | Hopping(size_us=span_us) | Session(gap=int(span_us)):
                return min(max(span_us // _PARTS, SECOND_US), HOUR_US)
            case _:
                return 1 if self.tuples else HOUR_US

    def of_one_step(self) -> Self:
        """Return a copy with a cache of the messages of a step."""
        made = copy.copy(self)
        made._remembers = True
        return made

    def of_windows(self) -> Self:
        """Return a copy for queries of windows, which reads no messages to emit."""
        made = copy.copy(self)
        made._reads = False
        return made

    def noted(self, rows: Slice, step: int | IntArray, numbers: IntArray | None) -> Slice:
        """Return messages with the keys that they get in the store."""
        keys = pa.array(self.store.row_keys(*self.places(rows, step, numbers)), pa.binary())
        rows = Slice(rows.table.append_column(KEPT, keys), rows.times)
        if self._remembers:
            self._came = rows
        return rows

    def gathered(
        self, kv: KV, state: pa.Table, calculation: Calculation
    ) -> tuple[dict[str, pa.Array], list[Broken]]:
        """Return the messages that windows have to emit, a list of them for each."""
        if not self._reads:
            return {NEW: pa.nulls(len(state))}, []
        finished, broken = calculation.finish({n: state.column(n) for n in state.column_names}, len(state))
        keys = combine(finished[NEW])
        lengths = pc.fill_null(pc.list_value_length(keys), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.r_[0, np.cumsum(lengths)].astype(np.int32))
        rows = self._rows(kv, keys.flatten(), calculation)
        columns = [combine(column) for column in rows.columns]
        return {
            NEW: pa.ListArray.from_arrays(
                offsets, pa.StructArray.from_arrays(columns, fields=list(rows.schema))
            )
        }, broken

    def _rows(self, kv: KV, keys: pa.Array, calculation: Calculation) -> pa.Table:
        """Return the messages under these keys, in their order, with the columns of the stream."""
        schema = pa.schema([f for f in calculation.schema if not f.name.startswith("__")])
        if self._came is None:
            return self._read(kv, keys, calculation, schema)
        came = self._came.table
        at = pc.index_in(keys, value_set=combine(came.column(KEPT)))
        if at.null_count == 0:
            return conformed(came.take(at), schema).select(schema.names)
        known = at.is_valid().to_numpy(zero_copy_only=False)
        known_rows = conformed(came.take(at.drop_null()), schema).select(schema.names)
        others = self._read(kv, keys.filter(pa.array(~known)), calculation, schema)
        order = np.argsort(np.r_[np.flatnonzero(known), np.flatnonzero(~known)], kind="stable")
        return concat([known_rows, others]).take(pa.array(order))

    def _read(self, kv: KV, keys: pa.Array, calculation: Calculation, schema: pa.Schema) -> pa.Table:
        wanted = keys.to_pylist()
        values = [value for value in kv.multi_get(self.cf, wanted) if value is not None]
        if len(values) < len(wanted):
            raise CorruptState(
                f"{len(wanted) - len(values)} messages that windows have to emit are not in {self.cf!r}: restore the job's "
                "folder"
            )
        rows = self.decode(kv, wanted, values, calculation)
        return schema.empty_table() if rows is None else conformed(rows.table, schema).select(schema.names)
