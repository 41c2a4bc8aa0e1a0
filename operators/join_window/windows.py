"""Windows of a join window: those of an aggregate, which collect messages, each in the first window that takes it."""

from __future__ import annotations

import copy
from typing import Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.errors import CorruptState
from windrow.core.time import SECOND_US
from windrow.core.types import concat
from windrow.core.windows import Hopping, Session, Tumbling
from windrow.operators.aggregate.base import Steps
from windrow.operators.aggregate.kept_messages import NUMBERS, History
from windrow.operators.aggregate.logic import WindowAggregator
from windrow.operators.aggregate.sessions.logic import SessionAggregator
from windrow.operators.aggregate.sessions.tuples import TupleSessionAggregator
from windrow.operators.aggregate.state_rows import delta_rows, merge_rows
from windrow.operators.aggregate.tuples import TupleAggregator
from windrow.operators.aggregations.calculation import Broken, Calculation
from windrow.operators.join_window.definition import NEW, JoinWindowDefinition
from windrow.operators.one_input import WholeMessages, conformed
from windrow.operators.steps.columns import KEPT, MESSAGES, PENDING, UPSERT
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.step import StepResult
from windrow.stores.kv import KV
from windrow.stores.message_store import HOUR_US, Layout, MessageStore

# -- kept messages ----------------------------------------------------------------------------------------------------
# Kept messages of a join window: filed under the keys by which they are looked up, and read again by their place.
# Key, by seed 003's matrix: `<time><position>`; `<fields><time><position>` where there are join keys, or sessions of keys,
# the session keys first; tuple windows `<number>`, or `<fields><number>`. Values are as of every message store of an aggregate
# (`aggregate/kept_messages.py`). A window collects the keys of messages to emit and reads the messages when it emits
# them; those of the same step are in memory.

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


# -- windows ----------------------------------------------------------------------------------------------------------

Values = tuple[dict[str, pa.Array], list[Broken]]
Deltas = tuple[pa.Table, Groups, list[Broken]]


class _NamedMessages(Steps):
    """Windows whose messages have names, under which they are emitted."""

    def __init__(self, definition: JoinWindowDefinition) -> None:
        super().__init__(definition.windowing)
        self.history = self.filed = Kept(definition)
        self.needs = WholeMessages(definition)

    def seen_schema(self, schema: pa.Schema) -> pa.Schema:
        return with_names(super().seen_schema(schema))

    def noted(self, rows: Slice, step: int | IntArray, numbers: IntArray | None = None) -> Slice:
        return self.filed.noted(rows, step, numbers)


class TimeWindows(_NamedMessages, WindowAggregator):
    """Windows that depend on event time alone."""

    def ingest_table(self, kv: KV, table: pa.Table, now_us: int) -> StepResult:
        return WindowAggregator.ingest_table(of_one_step(self), kv, table, now_us)

    def deltas(self, rows: Slice, row_of: IntArray, starts: IntArray, ends: IntArray) -> Deltas:
        return first_deltas(self.calculation, rows, row_of, starts, ends)

    def _values(self, kv: KV, state: pa.Table) -> Values:
        return self.filed.gathered(kv, state, self.calculation)


class TupleWindows(_NamedMessages, TupleAggregator):
    """Windows of a number of messages."""

    def ingest_table(self, kv: KV, table: pa.Table, now_us: int) -> StepResult:
        return TupleAggregator.ingest_table(of_one_step(self), kv, table, now_us)

    def deltas(self, rows: Slice, row_of: IntArray, starts: IntArray, ends: IntArray) -> Deltas:
        return first_deltas(self.calculation, rows, row_of, starts, ends)

    def _values(self, kv: KV, state: pa.Table, *, emitted: bool = False) -> Values:
        return self.filed.gathered(kv, state, self.calculation)


class SessionWindows(_NamedMessages, SessionAggregator):
    """Sessions, of which each message is in one."""

    def ingest_table(self, kv: KV, table: pa.Table, now_us: int) -> StepResult:
        return SessionAggregator.ingest_table(of_one_step(self), kv, table, now_us)

    def values(self, kv: KV, state: pa.Table, panes: pa.Table | None = None) -> Values:
        return self.filed.gathered(kv, state, self.calculation)


class TupleSessionWindows(_NamedMessages, TupleSessionAggregator):
    """Sessions by messages of others."""

    def ingest_table(self, kv: KV, table: pa.Table, now_us: int) -> StepResult:
        return TupleSessionAggregator.ingest_table(of_one_step(self), kv, table, now_us)

    def values(self, kv: KV, state: pa.Table, panes: pa.Table | None = None) -> Values:
        return self.filed.gathered(kv, state, self.calculation)


AnyWindows = TimeWindows | TupleWindows | SessionWindows | TupleSessionWindows
W = TypeVar("W", TimeWindows, TupleWindows, SessionWindows, TupleSessionWindows)


def windows_of(definition: JoinWindowDefinition) -> AnyWindows:
    """Return the aggregator that files messages into the windows of a definition."""
    if definition.windowing.session:
        numbered = definition.windowing.numbered
        return TupleSessionWindows(definition) if numbered else SessionWindows(definition)
    return TupleWindows(definition) if definition.windowing.tuple_window else TimeWindows(definition)


def of_one_step(windows: W) -> W:
    """Return a copy with a cache of the messages of a step."""
    made = copy.copy(windows)
    made.history = made.filed = windows.filed.of_one_step()
    return made


def of_view(windows: W) -> W:
    """Return a copy for queries of windows, which reads no messages to emit."""
    made = copy.copy(windows)
    made.history = made.filed = windows.filed.of_windows()
    return made


def with_names(schema: pa.Schema) -> pa.Schema:
    """Return columns of messages, with one that names them."""
    return schema.append(pa.field(KEPT, pa.binary()))


def first_deltas(
    calculation: Calculation, rows: Slice, row_of: IntArray, starts: IntArray, ends: IntArray
) -> Deltas:
    """Return the deltas of messages to their windows: each window counts them, and the first one of each has it to emit."""
    first = _first(row_of, starts)
    if first.all():
        return delta_rows(calculation, rows, row_of, starts, ends)
    column = rows.table.column_names.index(KEPT)
    nameless = Slice(rows.table.set_column(column, KEPT, pa.nulls(len(rows), pa.binary())), rows.times)
    counted, _, _ = delta_rows(calculation, nameless, row_of, starts, ends)
    emitted, _, _ = delta_rows(calculation, rows, row_of[first], starts[first], ends[first])
    both = concat([_zeroed(counted, PENDING), _zeroed(emitted, MESSAGES)])
    both = both.append_column(UPSERT, pa.array(np.zeros(len(both), dtype=bool)))
    merged, broken = merge_rows(calculation, both)
    return merged, Groups.of_codes(np.arange(len(merged)), len(merged)), broken


def _first(row_of: IntArray, starts: IntArray) -> BoolArray:
    """True for the row of the earliest window of each message."""
    order = np.lexsort((starts, row_of))
    opens = np.ones(len(order), dtype=bool)
    opens[1:] = row_of[order][1:] != row_of[order][:-1]
    first = np.zeros(len(order), dtype=bool)
    first[order[opens]] = True
    return first


def _zeroed(deltas: pa.Table, name: str) -> pa.Table:
    zeros = pa.array(np.zeros(len(deltas), dtype=np.int64))
    return deltas.set_column(deltas.column_names.index(name), name, zeros)
