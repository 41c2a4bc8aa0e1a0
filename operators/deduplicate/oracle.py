"""What a deduplication must tell, as a list and two loops: it forgets nothing, so that what may be forgotten shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windrow.core.messages import Position
from windrow.operators.deduplicate.definition import DeduplicateDefinition

Told = tuple[str, Mapping[str, Any]]


class DeduplicateOracle:
    """Takes steps one after the other. rows: (timing, row) in order; letters: (reason, position); duplicates: how many.

    counted: (source, partition, event time) of what the last ingest counted, which moves the watermark.
    """

    def __init__(self, definition: DeduplicateDefinition) -> None:
        self.definition = definition
        self.rows: list[Told] = []
        self.letters: list[tuple[str, Position | None]] = []
        self.duplicates = 0
        self.counted: list[tuple[str, int, int]] = []
        #: What was passed on: key and ids, event time.
        self._passed: list[tuple[tuple[Any, ...], int]] = []
        self._watermark_us: int | None = None

    def ingest(self, messages: Sequence[tuple[Position, int | None, Mapping[str, Any]]], now_us: int) -> None:
        """Messages in position order, each with its event time; None where that is none."""
        definition = self.definition
        self.counted = []
        ids = () if definition.ids is None else definition.ids.columns
        for position, time_us, row in messages:
            what = tuple(row[name] for name in (*definition.by, *ids))
            if time_us is None or any(row[name] is None for name in ids):
                self.letters.append(("malformed", position))
            elif definition.null_keys == "dead_letter" and any(row[name] is None for name in definition.by):
                self.letters.append(("null_key", position))
            elif self._is_too_late(time_us):
                self.letters.append(("too_late", position))
            else:
                self.counted.append((position.source, position.partition, time_us))
                self._take(what, time_us, row)

    def _take(self, what: tuple[Any, ...], time_us: int, row: Mapping[str, Any]) -> None:
        if any(what == other and self._is_near(time_us, at_us) for other, at_us in self._passed):
            self.duplicates += 1
            return
        late = self._watermark_us is not None and time_us < self._watermark_us
        self.rows.append(("LATE" if late else "EARLY", row))
        self._passed.append((what, time_us))

    def advance(self, watermark_us: int, now_us: int) -> None:
        self._watermark_us = watermark_us

    def _is_near(self, one_us: int, other_us: int) -> bool:
        within_us = self.definition.within_us
        return within_us is None or abs(one_us - other_us) <= within_us

    def _is_too_late(self, time_us: int) -> bool:
        within_us = self.definition.within_us
        if self._watermark_us is None or within_us is None:
            return False
        return time_us < self._watermark_us - within_us
