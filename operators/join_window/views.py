"""Views of a join window: its windows, and the kept messages. Seed 003 "Get Windows", "Get Messages"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.keys import encode_equal
from windrow.core.messages import WindowInfo
from windrow.core.time import Instant
from windrow.operators.aggregate.views import view_of
from windrow.operators.join_window.windows import of_view
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.output_rows import output_schema
from windrow.operators.view import (
    Bound,
    View,
    key_of,
    merged,
    message_columns,
    of_key,
    one_key,
    rows_without_prefix,
)
from windrow.stores.kv import KV


class JoinWindowView(View):
    """A view of windows, as of an aggregate but without values, and of messages by session keys and join keys."""

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

    def windows(
        self, start: Instant | None, end: Instant | None, key: Any, input: str | None = None
    ) -> Sequence[WindowInfo]:
        return self._windows.windows(start, end, key, input)

    def windows_table(
        self, start: Instant | None, end: Instant | None, key: Any, input: str | None = None
    ) -> pa.Table:
        return self._windows.windows_table(start, end, key, input)

    def messages(
        self, start: Bound | None, end: Bound | None, key: Any, input: str | None = None
    ) -> list[Slice]:
        self.input(input)
        finds, wanted = self._windows.asked(start, end), self._wanted(key)
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
