"""The oracle of OVER windows that count messages in the order of arrival, in lists and loops."""

from __future__ import annotations

from windrow.core.messages import Message
from windrow.core.time import END_OF_TIME_US
from windrow.operators.oracle.oracle import Messages, Outcome
from windrow.operators.over.oracle import Anchor, OverOracle, same_key


class ArrivalOracle(OverOracle):
    """The expected behaviour of an `OverDefinition` with `order="position"`."""

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        buried = super().ingest(messages, now_us, watermark_us)
        for anchor in self._anchors:
            line, at = self._line_of(anchor)
            waits = max(frame.high for frame in self.definition.frames.values())  # type: ignore[union-attr]
            if not anchor.decided and len(line) - 1 - at >= waits:
                self._emit(anchor, "ON_TIME")
        emitted = self._outcome()
        return Outcome(emitted.rows, buried.dead + emitted.dead)

    def accept(self, message: Message, time_us: int, now_us: int) -> bool:
        if not super().accept(message, time_us, now_us):
            return False
        anchor = self._anchors[-1]
        anchor.came_us = self.watermark_us
        before = [a for a in self._anchors[:-1] if same_key(a.key, anchor.key)]
        if before:
            line = [a for a in before if a.line == before[-1].line]
            anchor.line = line[-1].line + self._is_over(line)
        return True

    def pass_time(self, before_us: int, now_us: int) -> None:
        for anchor in self._anchors:
            if not anchor.decided and self._is_over(self._line_of(anchor)[0]):
                self._emit(anchor, "ON_TIME")

    def kept(self, input: str) -> list[Message] | None:
        return None

    def _is_over(self, line: list[Anchor]) -> bool:
        """True if the watermark is more than the ttl past all of its messages, and past their arrival: the next one begins
        a new partition.
        """
        if self.watermark_us == END_OF_TIME_US:
            return True
        ttl_us = self.definition.ttl_us
        return (
            ttl_us is not None and max(max(a.time_us, a.came_us) for a in line) < self.watermark_us - ttl_us
        )

    def _is_due(self, anchor: Anchor, watermark_us: int) -> bool:
        return True

    def _line_of(self, anchor: Anchor) -> tuple[list[Anchor], int]:
        line = [a for a in self._anchors if same_key(a.key, anchor.key) and a.line == anchor.line]
        return line, next(i for i, a in enumerate(line) if a is anchor)
