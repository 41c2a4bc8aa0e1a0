"""Oracle of sessions by messages of others in the plainest possible Python: messages are numbered, each key has its sessions.

A session is a run of messages of one key with at most n messages of other keys between two of them. It is emitted, for good, as
soon as n + 1 others have come after its last; nothing is late.
"""

from __future__ import annotations

from dataclasses import replace

from windrow.core.messages import Timing, TupleWindow, Window, WindowInfo
from windrow.core.windows import TupleSession
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.sessions.oracle import SessionOracle
from windrow.operators.oracle.cells import Cell, SessionCell, Taken
from windrow.operators.oracle.oracle import Messages, Outcome


class TupleSessionOracle(SessionOracle):
    """The expected behaviour of one `AggregateDefinition` over sessions by messages of others."""

    def __init__(self, definition: AggregateDefinition) -> None:
        super().__init__(definition)
        assert isinstance(definition.window, TupleSession)
        self._others = definition.window.messages
        self._numbered = 0

    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        self._dead, self._step = [], self._step + 1
        now = self._now(now_us)
        ticked = now if self._ticked_us is None else self._ticked_us
        self.watermark_us, self._ticked_us = max(watermark_us, self.watermark_us), now
        panes, trigger = [], self.definition.emit.early
        for cell in self._sorted():
            moment = self._moment(cell, now, ticked)
            if moment.fires(trigger) and cell.current:
                panes += self._emit_session(cell, Timing.EARLY, False, always=moment.insists(trigger))
        return Outcome(panes, self._buried())

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        touched, emitted, trigger = (
            self._touched(messages, now_us, watermark_us),
            [],
            self.definition.emit.early,
        )
        for cell in touched:
            if self._closed(cell, watermark_us):
                emitted += self._emit_session(cell, Timing.ON_TIME, True)
            elif self._moment(cell, now_us, None).fires(trigger):
                emitted += self._emit_session(cell, Timing.EARLY, False)
        for cell in self._sorted():
            closed = self._closed(cell, watermark_us)
            if closed and cell.current and not any(cell is other for other in touched):
                emitted += self._emit_session(cell, Timing.ON_TIME, True)
            cell.current = not closed
        for key, cells in self._sessions.items():
            self._sessions[key] = [cell for cell in cells if not self._forgotten(cell, watermark_us)]
        return Outcome(emitted, self._buried())

    def windows(self) -> list[WindowInfo]:
        infos = [(self._info(cell, self._closed(cell, 0)), cell.window) for cell in self._sorted()]
        return [replace(info, window=self._shown(window)) for info, window in infos]

    # -- numbers in the place of times ------------------------------------------------------------------------------

    def _own(self, message: Taken) -> Window:
        """Return the numbers up to which a message continues a session."""
        return Window(message.number, message.number + self._others + 1)

    def _only_advances(self, message: Taken, watermark_us: int) -> bool:
        return True

    def _may_count(self, message: Taken, watermark_us: int) -> bool:
        refused = self._refused(message)
        if refused is not None:
            self._lose("malformed", refused, message)
            self._ids.forget(self._key_of(message), message)
            return False
        self._numbered += 1
        message.number = self._numbered
        return True

    def _closed(self, cell: Cell, watermark_us: int) -> bool:
        return cell.end_us <= self._numbered

    def _is_open(self, cell: SessionCell, watermark_us: int) -> bool:
        return cell.current  # as it was before the messages of the step

    def _forgotten(self, cell: Cell, watermark_us: int) -> bool:
        kept = self.definition.retention.messages
        return kept is not None and cell.end_us + kept <= self._numbered

    def _shown(self, window: Window) -> TupleWindow:
        return TupleWindow(window.start_us, window.end_us - self._others - 1)
