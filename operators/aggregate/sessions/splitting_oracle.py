"""Oracle of split sessions, in lists and loops: by a maximum length, and where retracted messages held them together.

A session with a maximum length is cut from its first message on: so long after the first message of a part the next begins.
Parts are sessions of their own from then on, each of messages that reach one another. A message later than allowed enters only
open sessions, so that no cut before the watermark moves.

A retraction is as late as a message of that time would be, and is processed after the messages that a session takes. Then the
rest of the session splits where no message reaches the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windrow.core.messages import Kind, Pane, Timing, Window
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.oracle import past
from windrow.operators.aggregate.sessions.oracle import SessionOracle
from windrow.operators.oracle.aggregates import same
from windrow.operators.oracle.cells import EmittedPane, Key, SessionCell, Taken, place
from windrow.operators.oracle.oracle import Messages
from windrow.operators.oracle.times import shown


class CutSessionOracle(SessionOracle):
    """The expected behaviour of sessions with a maximum length, or with retractions."""

    def __init__(self, definition: AggregateDefinition) -> None:
        super().__init__(definition)
        self._gone: list[Taken] = []
        self._owed: list[SessionCell] = []
        #: Of keys that have lost messages: the pane count, and the last end of their sessions; now, and before a step.
        self._counted: dict[Key, tuple[int, int]] = {}
        self._counted_before = self._counted

    # -- retractions --------------------------------------------------------------------------------------------------

    def _touched(self, messages: Messages, now_us: int, watermark_us: int) -> list[SessionCell]:
        self._gone, self._owed, self._counted_before = [], [], dict(self._counted)
        return super()._touched(messages, now_us, watermark_us)

    def _in_the_end(self, key: Key, some: list[Taken], watermark_us: int) -> list[Taken]:
        """Return new messages, and retractions of kept ones. A new message that equals a retracted one restores it."""
        open_ = [cell for cell in self._sessions.get(key, []) if self._is_open(cell, watermark_us)]
        kept = sorted((m for cell in open_ for m in cell.messages), key=lambda m: (m.step, m.position))
        gone, came = list[tuple[Taken, Taken]](), list[Taken]()
        for message in some:
            if message.sign > 0:
                again = next((pair for pair in gone if _same(pair[0], message)), None)
                if again is None:
                    came.append(message)
                else:
                    gone.remove(again)
                continue
            left = [m for m in kept if not _among(m, [earlier for earlier, _ in gone])]
            retracted = next((m for m in left if _same(m, message)), None)
            new = next((m for m in came if _same(m, message)), None)
            if retracted is not None:
                gone.append((retracted, message))
            elif new is not None:
                came = [m for m in came if m is not new]
            else:
                self._lose("too_late", "what it takes back is in no session that is open", message)
        self._gone += [earlier for earlier, _ in gone]
        backs = [back for _, back in gone]
        return [m for m in some if _among(m, came) or _among(m, backs)]

    def _judged(self, cell: SessionCell, now_us: int, watermark_us: int) -> list[Pane]:
        emit, closed = self.definition.emit, self._closed(cell, watermark_us)
        if _among(cell, self._owed) and (emit.on_time or (cell.pending and not emit.emits_late)):
            cell.current = False
            panes = self._emit_session(cell, Timing.ON_TIME, closed)
        else:
            panes = super()._judged(cell, now_us, watermark_us)
        if closed and not cell.ended and (emit.closing_pane or (cell.pending and emit.emits_late)):
            panes += self._emit_session(cell, Timing.LATE, True, closing=True)
        return panes

    # -- splits -------------------------------------------------------------------------------------------------------

    def _in_parts(
        self, whole: SessionCell, new: list[Taken], parts: list[SessionCell], watermark_us: int
    ) -> list[SessionCell]:
        backs = [m for m in new if m.sign < 0]
        self._count_on(whole, bool(backs), watermark_us)
        if self._longest_us is None and not backs:
            return [whole]
        whole.messages = [m for m in whole.messages if m.sign > 0 and not _among(m, self._gone)]
        pieces = self._pieces(whole)
        if len(pieces) == 1 and not backs:
            whole.window, whole.reach_us = pieces[0].window, pieces[0].reach_us
            self._retract_across(whole.key, whole.emitted, [whole], watermark_us)
            return [whole]
        changed = list[SessionCell]()
        for i, piece in enumerate(pieces):
            came = [m for m in piece.messages if _among(m, new)]
            came += [m for m in backs if _holder(pieces, m.time_us) is piece]
            alike = [part for part in parts if part.window == piece.window]
            if alike and not came:
                pieces[i] = alike[0]
                continue
            changed.append(piece)
            piece.messages.sort(key=lambda m: (m.step, m.position))
            before = [p for p in parts if p.first_us < piece.end_us and piece.first_us < p.end_us]
            piece.panes = whole.panes if backs else max((part.panes for part in before), default=0)
            began = [part for part in before if part.first_us >= piece.first_us]
            continues = any(part.first_us == piece.first_us for part in began)
            piece.pending = [m for p in began for m in p.pending] + came if continues else [*piece.messages]
            piece.since_us = self._since(before, bool(came) or not continues)
            not_emitted = not before or not all(self._passed(part, watermark_us) for part in before)
            if backs and not_emitted and self._passed(piece, watermark_us):
                self._owed.append(piece)
        others = [cell for cell in self._sessions[whole.key] if cell is not whole]
        self._sessions[whole.key] = others + pieces
        self._retract_across(whole.key, whole.emitted, pieces, watermark_us)
        return changed

    def _count_on(self, whole: SessionCell, loses: bool, watermark_us: int) -> None:
        """Continue the pane count of a key that has lost messages, so that no window is emitted twice under one index."""
        kept, key = self.definition.retention.time_us, whole.key

        def counted(by_key: dict[Key, tuple[int, int]]) -> int:
            panes, until_us = by_key.get(key, (0, START_OF_TIME_US))
            return 0 if kept is not None and past(until_us + 1, kept, watermark_us) else panes

        whole.panes = max(whole.panes, counted(self._counted_before))
        if loses:
            _, until_us = self._counted.get(key, (0, START_OF_TIME_US))
            self._counted[key] = (max(whole.panes, counted(self._counted)), max(until_us, whole.end_us))

    def _pieces(self, whole: SessionCell) -> list[SessionCell]:
        """Return the parts of a session's messages. A part that is over reaches nothing, whatever gap its messages have."""
        pieces = list[SessionCell]()
        for message in sorted(whole.messages, key=lambda m: m.time_us):
            own, at_us = self._own(message), message.time_us
            if not pieces or at_us > pieces[-1].reach_us or at_us >= self._last_end_us(pieces[-1]):
                pieces.append(SessionCell(whole.key, own))
            piece = pieces[-1]
            piece.reach_us = max(piece.reach_us, own.end_us)
            piece.window = Window(piece.first_us, min(piece.reach_us, self._last_end_us(piece)))
            piece.messages.append(message)
        return pieces

    def _last_end_us(self, cell: SessionCell) -> int:
        """Return its latest possible end."""
        return END_OF_TIME_US if self._longest_us is None else cell.first_us + self._longest_us

    def _retract_across(
        self, key: Key, panes: Sequence[EmittedPane], derived: Sequence[SessionCell], watermark_us: int
    ) -> None:
        """Give each pane of a session to the part that holds it; retract at once those that no part holds."""
        for piece in derived:
            piece.emitted = []
        for pane in panes:
            start_us, end_us = pane.window.start_us, pane.window.end_us
            holder = next((c for c in derived if c.first_us <= start_us and end_us <= c.end_us), None)
            if holder is not None:
                holder.emitted.append(pane)
                continue
            timing = Timing.EARLY if end_us > watermark_us else Timing.LATE
            first = SessionCell(key, Window(start_us, start_us))  # before all that begins there
            values, index = pane.values, pane.index
            back = shown(pane.window), self._key(first), values, timing, index, False, Kind.RETRACT
            self._taken_back.append((place(first), Pane(*back)))


def _holder(derived: Sequence[SessionCell], time_us: int) -> SessionCell | None:
    """Return the last part that begins at or before a moment, if it continues until then."""
    last = next((piece for piece in reversed(derived) if piece.first_us <= time_us), None)
    return last if last is not None and time_us <= last.end_us else None


def _same(kept: Taken, said: Taken) -> bool:
    """True if a message equals the one that a retraction names: in all of its columns."""
    values = all(same(kept.payload.get(name), value) for name, value in said.payload.items())
    return kept.time_us == said.time_us and values


def _among(one: Any, some: Sequence[Any]) -> bool:
    return any(one is other for other in some)
