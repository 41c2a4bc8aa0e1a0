"""Aggregate in a chain whose rows keep the windows that they came from.

The time of a row is the last moment of its window, and the start is a column. So the store holds a window of this operator as
the moment before its end, under a key with the start as a field: all rules for ends are those of any window of time. The
output shows the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.messages import WindowInfo
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.core.windows import Tumbling
from windrow.operators.aggregate.definition import WINDOW_START, AggregateDefinition
from windrow.operators.aggregate.delegating import Delegating
from windrow.operators.aggregate.output import pane_message_schema, pane_messages, pane_rows, pane_schema
from windrow.operators.aggregate.pane_order import in_window_order
from windrow.operators.aggregate.views import AggregateView
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.operator import Refiling
from windrow.operators.steps.columns import MESSAGES, START, UPSERT
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.schema_inference import Needs
from windrow.operators.steps.step import StepResult
from windrow.operators.view import Provenance, Query, View, key_of, of_key
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
        return InheritedView(self, stores, watermark_us)


def _emitted(step: StepResult) -> StepResult:
    step.panes = [with_starts(table) for table in step.panes]
    return step


def with_starts(rows: pa.Table) -> pa.Table:
    """Return rows of moments before ends as rows of windows."""
    starts = combine(rows.column(WINDOW_START)).cast(pa.int64()).fill_null(START_OF_TIME_US)
    return rows.set_column(rows.column_names.index(START), START, starts).drop_columns([WINDOW_START])


class InheritedView(AggregateView):
    """The view over the windows of other operators."""

    def __init__(self, logic: InheritedAggregator, stores: Sequence[KV], watermark_us: int) -> None:
        super().__init__(logic.engine, stores, watermark_us)
        self.definition = logic.definition

    def _rows(self, query: Query) -> pa.Table | None:
        low, high = query.times
        by = self.definition.by
        wanted, tables = key_of(by, query.key), list[pa.Table]()
        for kv in self.stores:
            # A window that begins in the moment before its end ends after it.
            for moments in self.logic.states(kv, low, END_OF_TIME_US):
                rows = with_starts(moments)
                mask = (combine(rows.column(START)).to_numpy() <= high) & of_key(rows, wanted)
                if mask.any():
                    tables.append(rows.filter(pa.array(mask)))
        if not tables:
            return None
        whole = concat(tables)
        return whole.take(pa.array(in_window_order(whole, by)))

    def _taken(self, info: WindowInfo, kv: KV) -> Slice | None:
        last_us = info.window.end_us - 1  # type: ignore[union-attr]
        rows = self._kept(kv, (last_us, None), (last_us, None), info.key or None)
        return None if rows is None else rows.take(np.flatnonzero(_of_start(rows.table, info)))

    def brought(self, provenance: Provenance, kv: KV) -> list[tuple[bool, int]] | None:
        assert provenance.window is not None
        last_us = provenance.window.window.end_us - 1  # type: ignore[union-attr]
        if self.logic.store.is_divided(kv, last_us):
            return None
        rows = self.logic.store.read(kv, [last_us])
        if rows is None:
            return []
        matches = (combine(rows.column(START)).to_numpy() == last_us) & of_key(rows, provenance.window.key)
        rows = rows.filter(pa.array(matches & _of_start(rows, provenance.window)))
        return list(zip(rows.column(UPSERT).to_pylist(), rows.column(MESSAGES).to_pylist(), strict=True))


def _of_start(rows: pa.Table, info: WindowInfo) -> Any:
    """True for rows of a window that starts there."""
    starts = combine(rows.column(WINDOW_START)).cast(pa.int64()).fill_null(START_OF_TIME_US)
    return starts.to_numpy() == info.window.start_us  # type: ignore[union-attr]
