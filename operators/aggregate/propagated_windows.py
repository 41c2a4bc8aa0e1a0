"""Aggregate in a chain whose rows keep the windows that they came from.

The time of a row is the last moment of its window, and the start is a column. So the store holds a window of this operator as
the moment before its end, under a key with the start as a field: all rules for ends are those of any window of time. The
output shows the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from windrow.core.time import START_OF_TIME_US
from windrow.core.windows import Tumbling
from windrow.operators.aggregate.chaining import WINDOW_START
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.delegating import Delegating
from windrow.operators.aggregate.output import pane_message_schema, pane_messages, pane_rows, pane_schema
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.operator import Refiling
from windrow.operators.steps.columns import START
from windrow.operators.steps.groups import combine
from windrow.operators.steps.schema_inference import Needs
from windrow.operators.steps.step import StepResult
from windrow.operators.view import View
from windrow.stores.kv import KV


class InheritedAggregator(Delegating):
    """The logic of one definition. Holds no state of its own."""

    def __init__(self, definition: AggregateDefinition) -> None:
        moments = definition._changed(window=Tumbling(1), by=(*definition.by, WINDOW_START), deliver=None)
        super().__init__(definition, moments)
        self.definition: AggregateDefinition = definition

    # -- steps ------------------------------------------------------------------------------------------------------

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        return _emitted(self.engine.advance(kv, watermark_us, now_us))

    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        return _emitted(self.engine.ingest(kv, tables, now_us))

    def learn(self, kv: KV, input: str, schema: pa.Schema) -> None:
        self.engine.learn(kv, input, schema)

    def refiling(self) -> Refiling | None:
        again: Refiling | None = self.engine.refiling()
        return None if again is None else replace(again, logic=self)

    # -- its output -------------------------------------------------------------------------------------------------

    def rows(self, panes: Sequence[pa.Table], commit: int) -> pa.Table:
        schema = pane_schema(self.definition, self.engine.calculation)
        return pane_rows(self.definition, schema, panes, commit)

    def schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        return pane_schema(self.definition, self._over(inputs[self.definition.inputs[0].name]))

    def messages(self, panes: Sequence[pa.Table]) -> pa.Table:
        return pane_messages(self.definition, self.engine.calculation, panes)

    def message_schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        return pane_message_schema(self.definition, self._over(inputs[self.definition.inputs[0].name]))

    def known_schema(self, kv: KV) -> pa.Schema | None:
        known = self.progress(kv).schema
        return None if known is None else pane_message_schema(self.definition, self._over(known))

    def _over(self, schema: pa.Schema) -> Calculation:
        return Calculation(self.engine.definition, self.engine.seen_schema(schema))

    # -- its input --------------------------------------------------------------------------------------------------

    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table]) -> Needs:
        needs: Needs = self.engine.needs_of(kv, name, other_inputs)
        return needs

    def columns(self, kv: KV) -> list[str]:
        return list(self.engine.columns(kv))

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        from windrow.operators.aggregate.propagated_window_views import InheritedView

        return InheritedView(self, stores, watermark_us)


def _emitted(step: StepResult) -> StepResult:
    step.panes = [with_starts(table) for table in step.panes]
    return step


def with_starts(rows: pa.Table) -> pa.Table:
    """Return rows of moments before ends as rows of windows."""
    starts = combine(rows.column(WINDOW_START)).cast(pa.int64()).fill_null(START_OF_TIME_US)
    return rows.set_column(rows.column_names.index(START), START, starts).drop_columns([WINDOW_START])
