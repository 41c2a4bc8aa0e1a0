"""The oracle of deduplication, as a list and two loops: it never expires ids, so that an early expiry shows."""

from __future__ import annotations

from windrow.core.messages import Message
from windrow.operators.deduplicate.definition import DeduplicateDefinition
from windrow.operators.oracle.cells import Key
from windrow.operators.oracle.one_input import OneInputOracle


class DeduplicateOracle(OneInputOracle):
    """The expected behaviour of one `DeduplicateDefinition`."""

    definition: DeduplicateDefinition

    def __init__(self, definition: DeduplicateDefinition) -> None:
        super().__init__(definition)
        #: The forwarded messages: key and ids, event time.
        self._passed: list[tuple[Key, int]] = []

    def accept(self, message: Message, time_us: int, now_us: int) -> bool:
        ids = () if self.definition.ids is None else self.definition.ids.columns
        what = self.key_of(message.payload, *ids)
        if any(what == other and self._is_near(time_us, at_us) for other, at_us in self._passed):
            self.duplicates += 1
            return True
        self.emit_row("LATE" if self.is_late(time_us) else "EARLY", message.payload)
        self._passed.append((what, time_us))
        return True

    def _is_near(self, one_us: int, other_us: int) -> bool:
        within_us = self.definition.within_us
        return within_us is None or abs(one_us - other_us) <= within_us
