"""What may be asked of windows around anchors: the messages that these may still hold, and the anchors that are not told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from windrow.core.time import END_OF_TIME_US, Instant
from windrow.core.types import concat
from windrow.operators.over.needs import conformed, kept_columns
from windrow.operators.over.pending import AT
from windrow.operators.over.views import OverView
from windrow.operators.steps.filed_rows import empty_rows
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.told import told_schema
from windrow.operators.view import Bound, Made, message_columns
from windrow.stores.events import TIME
from windrow.stores.kv import KV


class AnchoredView(OverView):
    """`messages`, of either input; by event time, then position."""

    def schema(self) -> pa.Schema:
        found = [made for kv in self.stores if (made := self.logic.made(kv)) is not None]
        return told_schema(concat([m.empty_table() for m in found]).schema) if found else pa.schema([])

    def key_types(self, input: str | None = None) -> dict[str, pa.DataType]:
        known = self._columns(0 if input is None else self._side(input)) or pa.schema([])
        return {b: known.field(b).type if b in known.names else pa.null() for b in self.definition.by}

    def source_prefix(self, input: str) -> str:
        return self.prefix if not self.definition.by_input else self.definition.input(input).source_prefix

    def messages(self, start: Bound | None, end: Bound | None, key: object, input: str | None) -> list[Slice]:
        given = self.input(input)
        side, prefix = self._side(given.name), self.source_prefix(given.name)
        known = self._columns(side)
        if known is None:
            return []
        filed = empty_rows(self._filed(side, known)).schema.append(pa.field(TIME, pa.int64()))
        found = [conformed(rows, filed) for kv in self.stores if (rows := self._rows(kv, side)) is not None]
        return self.selected(found, start, end, key, prefix)

    def message_schema(self, input: str | None) -> pa.Schema:
        side = self._side(self.input(input).name)
        known = self._columns(side)
        return message_columns([None if known is None else self._filed(side, known)])

    def made_at(self, at: Instant, key: Any) -> list[Made]:
        return []

    def made_of(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Made]]:
        return [[] for _ in rows]

    def _side(self, input: str | None) -> int:
        return [given.name for given in self.definition.inputs].index(self.input(input).name)

    def _columns(self, side: int) -> pa.Schema | None:
        """The columns of an input, as far as some store knows them."""
        name = self.definition.inputs[side].name
        found = [s for kv in self.stores if (s := self.logic.schema_of(kv, name)) is not None]
        return concat([s.empty_table() for s in found]).schema if found else None

    def _filed(self, side: int, known: pa.Schema) -> pa.Schema:
        """The columns that are kept of the messages of an input."""
        return pa.schema([known.field(n) for n in kept_columns(self.logic.readings[side], known)])

    def _rows(self, kv: KV, side: int) -> pa.Table | None:
        """What one shard keeps of an input."""
        watermark_us, pending = self.logic.progress(kv).watermark_us, self.logic.pending
        if side == 0:
            lowest_us = pending.lowest_of_waiting_us(kv, watermark_us)
            rows: pa.Table | None = self.logic.events.read(
                kv, min(self.logic.reached_us(kv, watermark_us), lowest_us), END_OF_TIME_US
            )
            return rows
        anchors = pending.kept(kv, watermark_us)
        return (
            None if anchors is None else anchors.drop_columns([TIME]).append_column(TIME, anchors.column(AT))
        )
