"""View of an operator of one input that keeps no messages for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from windrow.core.time import Instant
from windrow.core.types import concat
from windrow.operators.steps.output_rows import output_schema
from windrow.operators.view import Made, View


class OneInputView(View):
    """A view of any operator of one input. It has the schema of the rows, and keeps nothing to explain them by."""

    def schema(self) -> pa.Schema:
        known = self._known()
        return pa.schema([]) if known is None else output_schema(self.logic.fields(known))

    def key_types(self, input: str | None = None) -> dict[str, pa.DataType]:
        known = self._known() or pa.schema([])
        return {b: known.field(b).type if b in known.names else pa.null() for b in self.definition.by}

    def made_at(self, at: Instant, key: Any) -> list[Made]:
        return []

    def made_of(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Made]]:
        return [[] for _ in rows]

    def _known(self) -> pa.Schema | None:
        """Return the columns of the input, as far as some store knows them."""
        found = [s for kv in self.stores if (s := self.logic.progress(kv).schema) is not None]
        return concat([s.empty_table() for s in found]).schema if found else None
