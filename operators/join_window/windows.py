"""Windows of a join window: those of an aggregate, which collect messages, each in the first window that takes it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.types import concat
from windrow.operators.aggregate.base import Steps
from windrow.operators.aggregate.logic import WindowAggregator
from windrow.operators.aggregate.required_columns import AggregateNeeds
from windrow.operators.aggregate.sessions.logic import SessionAggregator
from windrow.operators.aggregate.sessions.tuples import TupleSessionAggregator
from windrow.operators.aggregate.state_rows import delta_rows, merge_rows
from windrow.operators.aggregate.tuples import TupleAggregator
from windrow.operators.aggregations.calculation import Broken, Calculation
from windrow.operators.join_window.definition import JoinWindowDefinition
from windrow.operators.join_window.kept_messages import Kept
from windrow.operators.one_input import WholeMessages
from windrow.operators.steps.columns import KEPT, MESSAGES, PENDING, UPSERT
from windrow.operators.steps.groups import Groups
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.step import StepResult
from windrow.stores.kv import KV

Values = tuple[dict[str, pa.Array], list[Broken]]
Deltas = tuple[pa.Table, Groups, list[Broken]]


class _NamedMessages(Steps):
    """Windows whose messages have names, under which they are emitted."""

    def __init__(self, definition: JoinWindowDefinition) -> None:
        super().__init__(definition.windowing)
        self.history = self.filed = Kept(definition)
        self.needs = JoinWindowNeeds(definition)

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


class JoinWindowNeeds(AggregateNeeds):
    """The required columns of a join window: event time and all keys. All messages are kept whole."""

    def __init__(self, definition: JoinWindowDefinition) -> None:
        super().__init__(definition.windowing)
        self.keys = (*self.keys, *definition.join_keys)
        self._messages = WholeMessages(definition)

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        self._messages.check(known, names)

    def named(self, names: Iterable[str]) -> set[str]:
        return self._messages.named(names)

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        return self._messages.refused(names)

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        return self._messages.refusal(name, kind, known)
