"""Views of the state of rules: their rows, and the messages that are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.time import Instant
from windrow.core.types import concat
from windrow.operators.rules.matches import in_order
from windrow.operators.steps.columns import OFFSET, POSITION_COLUMNS
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.output_rows import told_schema
from windrow.operators.view import (
    Bound,
    Made,
    View,
    bounds_between,
    key_of,
    message_columns,
    of_key,
    rows_without_prefix,
)


class RulesView(View):
    """`messages`, of each input: those that some rule may still need, by event time, then position."""

    def schema(self) -> pa.Schema:
        found = [made for kv in self.stores if (made := self.logic.made(kv)) is not None]
        return told_schema(concat([m.empty_table() for m in found]).schema) if found else pa.schema([])

    def key_types(self, input: str | None = None) -> dict[str, pa.DataType]:
        given = self.definition.inputs[0] if input is None else self.input(input)
        known = self._columns(given.name) or pa.schema([])
        keys = self.definition.keys(given)
        return {k: known.field(k).type if k in known.names else pa.null() for k in keys}

    def source_prefix(self, input: str) -> str:
        return str(self.definition.input(input).source_prefix)

    def messages(self, start: Bound | None, end: Bound | None, key: object, input: str | None) -> list[Slice]:
        given = self.input(input)
        (low_us, first), (high_us, last) = bounds_between(start, end)
        wanted = key_of(self.definition.keys(given), key)
        parts = [part for kv in self.stores if (part := self.logic.kept_messages(kv, given.name)) is not None]
        if not parts:
            return []
        rows = concat([table for table, _ in parts])
        times = np.concatenate([times for _, times in parts])
        offsets = rows.column(OFFSET).to_numpy()
        inside = (times >= low_us) & (times <= high_us) & of_key(rows, wanted)
        if first is not None:
            inside &= (times > low_us) | (offsets >= first)
        if last is not None:
            inside &= (times < high_us) | (offsets <= last)
        kept = Slice(rows, times).take(np.flatnonzero(inside))
        places = kept.table.select(POSITION_COLUMNS).rename_columns([f".{n}" for n in POSITION_COLUMNS])
        order = in_order(places, [""])
        order = order[np.argsort(kept.times[order], kind="stable")]
        return [rows_without_prefix(kept.take(order), self.source_prefix(given.name))]

    def message_schema(self, input: str | None) -> pa.Schema:
        given = self.input(input)
        known = self._columns(given.name)
        if known is None:
            return message_columns([])
        columns = self.logic.columns_of_rules.kept(given, known)
        return message_columns([pa.schema([known.field(n) for n in columns])])

    def made_at(self, at: Instant, key: Any) -> list[Made]:
        return []

    def made_of(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Made]]:
        return [[] for _ in rows]

    def _columns(self, name: str) -> pa.Schema | None:
        """The columns of an input, as far as some store knows them."""
        found = [s for kv in self.stores if (s := self.logic.schema_of(kv, name)) is not None]
        return concat([s.empty_table() for s in found]).schema if found else None
