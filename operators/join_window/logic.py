"""Join windows: two pure steps on a store. Seed 003 "Join Window Operator".

An aggregate (`windows.py`) defines the windows, and early, full and late. It collects the messages that each window has to
emit. This operator turns them into rows, and answers queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.errors import ReservedColumn, UnknownColumn
from windrow.core.keys import encode_equal
from windrow.core.messages import WindowInfo
from windrow.operators.aggregate.output import window_column
from windrow.operators.aggregate.views import view_of
from windrow.operators.join_window.definition import NEW, JoinWindowDefinition
from windrow.operators.join_window.windows import of_view, windows_of
from windrow.operators.operator import Logic, Refiling
from windrow.operators.steps.columns import END, START, TIMING
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.output_columns import TIME_WINDOW_TYPE, TUPLE_WINDOW_TYPE
from windrow.operators.steps.output_rows import output_schema, without_labels
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.schema_inference import Needs, check_keys
from windrow.operators.steps.step import StepResult
from windrow.operators.view import (
    Query,
    View,
    key_of,
    merged,
    message_columns,
    of_key,
    one_key,
    rows_without_prefix,
)
from windrow.stores.kv import KV

WINDOW = "window"


class JoinWindows(Logic):
    """The operator of one definition on one store. It is stateless: everything is in the store that it receives."""

    definition: JoinWindowDefinition

    def __init__(self, definition: JoinWindowDefinition) -> None:
        self.definition = definition
        self.windows = windows_of(definition)
        self.aux_cf = self.windows.aux_cf

    def cfs(self) -> tuple[str, ...]:
        return self.windows.cfs()

    def stays(self, key: bytes, value: bytes) -> bool:
        return self.windows.stays(key, value)

    # -- steps ------------------------------------------------------------------------------------------------------

    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        for table in tables.values():
            self.message_schema({self.definition.inputs[0].name: table.schema})  # checks its columns
        return self._emitted(self.windows.ingest(kv, tables, now_us))

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        return self._emitted(self.windows.advance(kv, watermark_us, now_us))

    def learn(self, kv: KV, input: str, schema: pa.Schema) -> None:
        self._check(schema)
        self.windows.learn(kv, input, schema)

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        self.windows.set_back(kv, progress, watermark_us)

    def refiling(self) -> Refiling | None:
        again = self.windows.refiling()
        return None if again is None else replace(again, logic=self)

    def _emitted(self, result: StepResult) -> StepResult:
        result.panes = [rows for pane in result.panes if len(rows := self._rows(pane))]
        return result

    def _rows(self, pane: pa.Table) -> pa.Table:
        """Return the messages that each window emits, a row for each, with its window."""
        lists = combine(pane.column(NEW))
        at = pa.array(np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy()))
        window = window_column(
            self.windows.definition, combine(pane.column(START)), combine(pane.column(END))
        )
        messages = lists.flatten()
        names = [field.name for field in messages.type]
        columns = [window.take(at), *messages.flatten(), combine(pane.column(TIMING)).take(at)]
        return pa.table(columns, names=[WINDOW, *names, TIMING])

    def _check(self, schema: pa.Schema) -> None:
        """Reject columns that no message can have."""
        check_keys(self.windows.needs.keys, schema)
        for why in self.windows.needs.refused(schema.names).values():
            raise ReservedColumn(why)

    # -- the seam ---------------------------------------------------------------------------------------------------

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns of its rows over an input of these columns."""
        kind = TUPLE_WINDOW_TYPE if self.windows.definition.numbered else TIME_WINDOW_TYPE
        return [pa.field(WINDOW, kind), *schema]

    def schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        return output_schema(self.fields(self.message_schema(inputs)))

    def messages(self, panes: Sequence[pa.Table]) -> pa.Table:
        return without_labels(panes).drop_columns([WINDOW])

    def message_schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        schema = inputs[self.definition.inputs[0].name]
        self._check(schema)
        for column in self.definition.columns_of(self.definition.inputs[0]):
            if column not in schema.names:
                raise UnknownColumn.lacking(column, repr(self.definition.name), schema.names)
        return schema

    def known_schema(self, kv: KV) -> pa.Schema | None:
        return self.progress(kv).schema

    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        return self.progress(kv).schema

    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table]) -> Needs:
        return self.windows.needs

    def called(self, input: str, column: str) -> tuple[str, ...]:
        return (column,)

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        return JoinWindowView(self, stores, watermark_us)


# -- views ------------------------------------------------------------------------------------------------------------
# Views of a join window: its windows, and the kept messages. Seed 003 "Get Windows", "Get Messages".


class JoinWindowView(View):
    """A view of windows, as of an aggregate but without values, and of messages by session keys and join keys."""

    logic: JoinWindows

    def __init__(self, logic: Any, stores: Sequence[KV], watermark_us: int) -> None:
        super().__init__(logic, stores, watermark_us)
        windowing = logic.windows.definition
        self._windows = view_of(windowing)(of_view(logic.windows), stores, watermark_us)
        self._windows.definition = windowing._changed(agg={})

    def schema(self) -> pa.Schema:
        known = self.known()
        return pa.schema([]) if known is None else output_schema(self.logic.fields(known))

    def key_types(self, input: str | None = None) -> dict[str, pa.DataType]:
        known = self.known() or pa.schema([])
        return {
            name: known.field(name).type if name in known.names else pa.null()
            for name in self.definition.fields
        }

    def timed(self, table: str) -> str | None:
        return self._windows.timed(table)

    def windows(self, query: Query) -> Sequence[WindowInfo]:
        return self._windows.windows(query)

    def windows_table(self, query: Query) -> pa.Table:
        return self._windows.windows_table(query)

    def messages(self, query: Query) -> list[Slice]:
        self.input(query.input)
        finds, wanted = self._windows.asked(query), self._wanted(query.key)
        tables = []
        for kv in self.stores:
            known = self._windows._known(kv)
            rows = None if known is None else finds(kv, **self._lookup(known, wanted))
            if rows is not None:
                tables.append(rows.take(np.flatnonzero(of_key(rows.table, wanted))))
        kept = self.logic.windows.filed
        layout = kept.store.layout
        by = kept.fields if layout.has_fields else ()
        return [
            rows_without_prefix(rows, self.prefix)
            for rows in merged(tables, by, fields_first=layout.fields_first)
        ]

    def message_schema(self, input: str | None = None) -> pa.Schema:
        self.input(input)
        return message_columns([self.logic.progress(kv).schema for kv in self.stores])

    def _wanted(self, key: Any) -> dict[str, Any] | None:
        """Return the requested keys: by name any of them; else as many leading ones as there are values."""
        names = self.definition.fields
        if not isinstance(key, Mapping):
            names = names[: len(key) if isinstance(key, (tuple, list)) else 1] or names
        return key_of(names, key)

    def _lookup(self, schema: pa.Schema, wanted: Mapping[str, Any] | None) -> dict[str, bytes]:
        """Return the key fields under which messages of these keys are adjacent in the store; empty if they are not."""
        kept = self.logic.windows.filed
        if wanted is None or not kept.store.layout.has_fields:
            return {}
        leading = []
        for name in kept.fields:
            if name not in wanted:
                break
            leading.append(name)
        key_row = one_key(leading, {name: wanted[name] for name in leading}, schema)
        if key_row is None:
            return {}
        encoded = encode_equal([key_row.column(name) for name in leading])[0]
        return {"key" if len(leading) == len(kept.fields) else "key_prefix": encoded}
