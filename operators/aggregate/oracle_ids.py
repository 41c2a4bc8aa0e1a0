"""Duplicates by id, for the oracle: a plain dictionary that forgets nothing and asks the windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windrow.core.expressions import Expr
from windrow.core.policy import UNBOUNDED_US
from windrow.core.windows import Hopping, Session, Tuples, TupleSession
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.oracle.aggregates import is_nan
from windrow.operators.oracle.cells import Key, Taken
from windrow.operators.oracle.windows import windows_of


class PlainIds:
    """The ids of one definition's messages; of a definition without ids, nothing."""

    def __init__(self, definition: AggregateDefinition) -> None:
        self._definition = definition
        self._columns = () if definition.ids is None else definition.ids.columns
        self._seen: dict[tuple[Key, Key], int] = {}  # key and ids -> event time of the message that had them

    def are_missing(self, payload: Mapping[str, Any]) -> bool:
        return any(payload.get(column) is None or is_nan(payload[column]) for column in self._columns)

    def is_new(self, key: Key, message: Taken, watermark_us: int) -> bool:
        """False for a message of a key and ids that are remembered."""
        if not self._columns:
            return True
        known_as = self._known_as(key, message)
        before_us = self._seen.get(known_as)
        if before_us is not None and self._remembered(before_us, watermark_us):
            return False
        self._seen[known_as] = message.time_us
        return True

    def forget(self, key: Key, message: Taken) -> None:
        """Forget the ids of a message that cannot be counted: the next one with them is new."""
        if self._columns:
            del self._seen[self._known_as(key, message)]

    def _known_as(self, key: Key, message: Taken) -> tuple[Key, Key]:
        values = [message.payload[column] for column in self._columns]
        # Messages of several inputs are known within their own.
        several = len(self._definition.inputs) > 1
        input = message.position.source.partition(":")[0] if several else None
        return key, (input, *((isinstance(value, bool), value) for value in values))

    def _remembered(self, time_us: int, watermark_us: int) -> bool:
        """True until the last window that begins at or before the event time is out of retention."""
        spec, kept_us = self._definition.window, self._definition.retention.time_us
        if kept_us is None or kept_us >= UNBOUNDED_US or isinstance(spec, Tuples | TupleSession):
            return True
        if isinstance(spec, Session):  # until a message of that time is out of retention by itself
            cell = windows_of(spec.cut, time_us) if spec.cut is not None else []
            gap_us = 0 if isinstance(spec.gap, Expr) else spec.gap
            end_us = min([time_us + gap_us, *(window.end_us for window in cell)])
            return end_us + kept_us >= watermark_us
        covering = windows_of(spec, time_us)
        while not covering and isinstance(spec, Hopping):  # in a gap between hops: the window before it
            time_us -= spec.size_us
            covering = windows_of(spec, time_us)
        return covering[-1].end_us + kept_us > watermark_us
