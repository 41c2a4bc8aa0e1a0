"""Delivery: what the policy of its input let pass is told as it is, or all with a mark. Nothing is remembered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from windrow.core.errors import ReservedColumn
from windrow.operators.delivery.definition import DeliveryDefinition
from windrow.operators.one_input import OneInputLogic, WholeMessages, Work
from windrow.operators.steps.columns import EARLY, LATE, TIMING
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.learning import Needs
from windrow.stores.kv import KV


class Deliverer(OneInputLogic):
    """One definition. Of the store it has its progress alone."""

    definition: DeliveryDefinition

    def __init__(self, definition: DeliveryDefinition) -> None:
        super().__init__(definition)
        self.adds_columns = definition.mark is not None

    def take(self, work: Work, rows: Slice) -> Slice:
        timing = np.where(rows.times < work.progress.watermark_us, LATE, EARLY)
        told = rows.table.select([field.name for field in self.fields(work.schema)])
        work.result.panes.append(told.append_column(TIMING, pa.array(timing.tolist(), pa.string())))
        return rows

    def pass_time(self, work: Work, watermark_us: int) -> None:
        return None

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        mark = self.definition.mark
        told = [field for field in schema if field.name != mark]
        return told if mark is None else [*told, pa.field(mark, pa.bool_())]

    # -- the columns of its input, of which the mark is none ----------------------------------------------------------

    def message_schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        for schema in inputs.values():
            self._refuse(schema.names)
        return super().message_schema(inputs)

    def check_schemas(self, inputs: Mapping[str, pa.Schema]) -> None:
        super().check_schemas(inputs)
        for schema in inputs.values():
            self._refuse(schema.names)

    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        known = super().schema_of(kv, name)
        return known if known is None else pa.schema([f for f in known if f.name != self.definition.mark])

    def needs_of(self, kv: KV, name: str, beside: Mapping[str, pa.Table]) -> Needs:
        return _Needs(self.definition)

    def _refuse(self, names: Iterable[str]) -> None:
        for why in _Needs(self.definition).refused(names).values():
            raise ReservedColumn(why)


class _Needs(WholeMessages):
    """As of any operator that hands messages on, to which it adds a column."""

    def __init__(self, definition: DeliveryDefinition) -> None:
        super().__init__(definition)
        self._mark = definition.mark

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        names = list(names)
        why = f"column {self._mark!r} of the input would stand beside the mark of that name: give the mark another one"
        return super().refused(names) | ({self._mark: why} if self._mark in names else {})
