"""Base class of operators that delegate to an aggregate on the same store."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.operator import Logic
from windrow.operators.steps.progress import Progress
from windrow.stores.kv import KV


class Delegating(Logic):
    """Logic that delegates to an aggregate. engine: the logic of the aggregate that does the work."""

    def __init__(self, definition: AggregateDefinition, engine: AggregateDefinition) -> None:
        self.definition = definition
        self.engine: Any = engine.logic()
        self.aux_cf = self.engine.aux_cf

    def cfs(self) -> tuple[str, ...]:
        return tuple(self.engine.cfs())

    def stays(self, key: bytes, value: bytes) -> bool:
        return bool(self.engine.stays(key, value))

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        self.engine.set_back(kv, progress, watermark_us)

    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        known: pa.Schema | None = self.engine.schema_of(kv, name)
        return known
