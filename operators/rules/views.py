"""Views of the state of rules: their rows, the messages that are kept, the tuples that wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from windrow.core.time import Instant
from windrow.core.types import concat
from windrow.operators.steps.output_rows import told_schema
from windrow.operators.view import Made, View


class RulesView(View):
    """`messages`, of each input."""

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

    def made_at(self, at: Instant, key: Any) -> list[Made]:
        return []

    def made_of(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Made]]:
        return [[] for _ in rows]

    def _columns(self, name: str) -> pa.Schema | None:
        """The columns of an input, as far as some store knows them."""
        found = [s for kv in self.stores if (s := self.logic.schema_of(kv, name)) is not None]
        return concat([s.empty_table() for s in found]).schema if found else None
