"""Views of an aggregate over several inputs: its windows, and the messages of each input."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.lazy import LazyList, Part
from windrow.core.messages import Position, StoredMessage, WindowInfo
from windrow.core.time import Instant
from windrow.operators.cogroup.definition import CoGroupDefinition
from windrow.operators.cogroup.logic import CoGroupOperator
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.view import Provenance, Query, View, message_columns, rows_without_prefix
from windrow.stores.kv import KV


class CoGroupView(View):
    """A view of the aggregate that does the work, in terms of the inputs."""

    logic: CoGroupOperator
    definition: CoGroupDefinition

    def __init__(self, logic: Any, stores: Sequence[KV], watermark_us: int) -> None:
        super().__init__(logic, stores, watermark_us)
        self._united = logic.united
        self._inner: View = logic.engine.view(stores, watermark_us)
        self.counted_in = self._inner.counted_in
        names = "|".join(re.escape(i.name) for i in self.definition.inputs)
        #: A pattern of the prefixes of sources that windrow added.
        self._named = f"^({names}):"

    def schema(self) -> pa.Schema:
        return self._inner.schema()

    def key_types(self, input: str | None = None) -> dict[str, pa.DataType]:
        self._check(input)
        return self._inner.key_types()

    def timed(self, table: str) -> str | None:
        return self._inner.timed(table)

    def _check(self, input: str | None) -> None:
        """Check the name of an input; windows are of all inputs, whichever is named."""
        if input is not None:
            self.input(input)

    # -- windows ----------------------------------------------------------------------------------------------------

    def windows(self, query: Query) -> Sequence[WindowInfo]:
        self._check(query.input)
        found = self._inner.windows(replace(query, input=None))
        return LazyList([Part(len(found), lambda low, high: map(self._as_given, found[low:high]))])

    def _as_given(self, info: WindowInfo) -> WindowInfo:
        first, last = (None if p is None else self._place(p) for p in (info.first, info.last))
        return replace(info, first=first, last=last)

    def _place(self, position: Position) -> Position:
        return position._replace(source=re.sub(self._named, "", position.source))

    def windows_table(self, query: Query) -> pa.Table:
        self._check(query.input)
        table = self._inner.windows_table(replace(query, input=None))
        for name in ("first", "last"):
            at = table.column_names.index(name)
            places = combine(table.column(name))
            source, *rest = places.flatten()
            source = pc.replace_substring_regex(source, self._named, "")
            made = pa.StructArray.from_arrays(
                [source, *rest], fields=list(places.type), mask=places.is_null()
            )
            table = table.set_column(at, table.schema.field(at), made)
        return table

    # -- messages ---------------------------------------------------------------------------------------------------

    def messages(self, query: Query) -> list[Slice]:
        """Return messages of an input. key: by the names of the operator's keys."""
        input_spec = self.input(query.input)
        found = [
            self._united.back(rows, input_spec) for rows in self._inner.messages(replace(query, input=None))
        ]
        return [rows_without_prefix(rows, input_spec.source_prefix) for rows in found if len(rows)]

    def message_schema(self, input: str | None = None) -> pa.Schema:
        input_spec, found = self.input(input), []
        for kv in self.stores:
            schemas = self.logic.schemas(kv)
            if input_spec.name in schemas:
                found.append(self._united.schema_of(input_spec, self._united.schema(schemas)))
        return message_columns(found)

    # -- why --------------------------------------------------------------------------------------------------------

    def made_at(self, at: Instant, key: Any) -> list[Provenance]:
        return [self._provenance(one) for one in self._inner.made_at(at, key)]

    def made_of(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Provenance]]:
        return [[self._provenance(one) for one in group] for group in self._inner.made_of(rows)]

    def brought(self, provenance: Provenance, kv: KV) -> list[tuple[bool, int]] | None:
        return self._inner.brought(provenance, kv)

    def _provenance(self, provenance: Provenance) -> Provenance:
        """Return the provenance in terms of the inputs: the window, and the messages of each input."""
        assert provenance.window is not None
        window = self._as_given(provenance.window)
        joined_by = None if provenance.joined_by is None else self._place(provenance.joined_by)
        if provenance.messages is None:
            return Provenance(window, None, None, joined_by)
        [united] = provenance.messages.values()
        found: dict[str, list[StoredMessage]] = {i.name: [] for i in self.definition.inputs}
        for message in united:
            input = self.definition.input_of(message.position.source)
            payload = self._united.payload(message.payload, input)
            found[input.name].append(
                replace(message, position=self._place(message.position), payload=payload)
            )
        return Provenance(window, None, found, joined_by)
