"""Join windows: two pure steps on a store. Seed 003 "Join Window Operator".

An aggregate (`windows.py`) defines the windows, and early, full and late. It collects the messages that each window has to
emit. This operator turns them into rows, and answers queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.errors import ReservedColumn, UnknownColumn
from windrow.operators.aggregate.output import window_column
from windrow.operators.join_window.definition import NEW, JoinWindowDefinition
from windrow.operators.join_window.windows import windows_of
from windrow.operators.operator import Logic, Refiling
from windrow.operators.steps.columns import END, START, TIMING
from windrow.operators.steps.groups import combine
from windrow.operators.steps.output_columns import TIME_WINDOW_TYPE, TUPLE_WINDOW_TYPE
from windrow.operators.steps.output_rows import output_rows, output_schema, without_labels
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.schema_inference import Needs, check_keys
from windrow.operators.steps.step import StepResult
from windrow.operators.view import View
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

    def rows(self, panes: Sequence[pa.Table], commit: int) -> pa.Table:
        return output_rows(panes, commit)

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

    def columns(self, kv: KV) -> list[str]:
        known = self.progress(kv).schema
        return [] if known is None else list(known.names)

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        from windrow.operators.join_window.views import JoinWindowView

        return JoinWindowView(self, stores, watermark_us)
