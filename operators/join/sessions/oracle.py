"""The oracle of a session join in plain Python: two messages match if they are in one session.

An aggregate's oracle (`aggregate/sessions/oracle.py`) decides the sessions and what is too late for them. It takes the messages
of both inputs, or of the one that makes the sessions; a message of the other input is in the session open at its time.
Semantics "Joins", "Sessions"; seed 003 "Session Join Window Op".
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from datetime import timedelta
from typing import Any

from windrow.core.aggregation import Aggregation
from windrow.core.inputs import Input
from windrow.core.messages import JoinedRow, Message, Position, Timing
from windrow.core.time import END_OF_TIME_US
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.sessions.oracle import SessionOracle
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.oracle import Held, JoinOracle, Sides
from windrow.operators.join.windowing import GAP, KEY, TIME, windowing
from windrow.operators.oracle.arrow import Arguments, Raised
from windrow.operators.oracle.cells import Cell, Key, SessionCell
from windrow.operators.oracle.oracle import Messages, Outcome, by_input

SIDES = ("left", "right")


class Sessions(SessionOracle):
    """The sessions of a join; each message carries the number of its key."""

    def __init__(self, definition: AggregateDefinition) -> None:
        super().__init__(definition)
        self._apart = True
        self.evicted: list[SessionCell] = []

    def _drop(self, cell: Cell) -> None:
        super()._drop(cell)
        assert isinstance(cell, SessionCell)
        self.evicted.append(cell)

    def holding(self, key: int) -> list[SessionCell]:
        """Return the sessions of a key."""
        return [cell for cell in self._sorted() if cell.messages[0].payload[KEY] == key]

    def is_closed(self, cell: SessionCell, watermark_us: int) -> bool:
        return self._closed(cell, watermark_us)


class SessionJoinOracle(JoinOracle):
    """The expected behaviour of a `JoinDefinition` whose messages match within sessions."""

    def __init__(self, definition: JoinDefinition, schemas: Mapping[str, Any] | None = None) -> None:
        super().__init__(definition, schemas)
        self._sessions = Sessions(windowing(definition))
        self._making = [SIDES[side] for side in definition.session_sides]
        assert definition.sessions is not None
        self._gap_us = definition.sessions.sure_us
        gap = definition.own_gap
        asked = {} if gap is None else {GAP: Aggregation("any_value", (gap,))}
        #: By side, the arguments of dynamic gaps.
        self._own = {SIDES[s]: Arguments(asked) for s in definition.session_sides if asked}
        self._own_us: dict[Position, int] = {}
        self._keys: dict[Key, int] = {}
        self._met: set[tuple[Position, Position]] = set()

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        """Add messages to their sessions; then match all that have not matched yet."""
        now, taken = self._accept(messages, now_us, watermark_us)
        new = {side: [self._hold(side, m) for m in taken[self._source(side).name]] for side in SIDES}
        if self.definition.where is not None:
            new = self._without_raising(new["left"], new["right"], watermark_us)
        self._enter(new, now, watermark_us)
        for side in SIDES:
            self._file(side, new[side])
        rows: list[JoinedRow] = []
        for a in sorted(self._held["left"], key=lambda m: m.position):
            for b in sorted(self._held["right"], key=lambda m: m.position):
                if (a.position, b.position) not in self._met and self._match(a, b):
                    self._met.add((a.position, b.position))
                    session = self._session_of("left", a)
                    assert session is not None
                    timing = Timing.LATE if session.end_us <= watermark_us else Timing.EARLY
                    rows += self._matched(a, b, timing)
        return Outcome(rows, sorted(self._dead, key=lambda letter: letter.position or ()))

    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        self._sessions.evicted.clear()
        self._sessions.advance(max(watermark_us, self.watermark_us), now_us)
        return super().advance(watermark_us, now_us)

    def _shrink(self, watermark_us: int) -> list[JoinedRow]:
        return []  # a session is evicted with all of its messages

    def _is_evicted(self, message: Held) -> bool:
        """True if the session that held the message was evicted by the count limit."""
        return any(
            cell.messages[0].payload[KEY] == self._number(message.key)
            and cell.first_us <= message.time_us < cell.end_us
            for cell in self._sessions.evicted
        )

    def kept(self, input: str) -> list[Message]:
        """Return the messages of sessions in retention, and those of the other input that are, or may still be, in one."""
        side = "left" if self.definition.left.name == input else "right"
        kept = [m for m in self._held[side] if self._in_retention(side, m, self.watermark_us)]
        return [m.message for m in sorted(kept, key=lambda m: (m.time_us, m.position))]

    # -- sessions ----------------------------------------------------------------------------------------------------

    def _open_until(self, source: Input, time_us: int) -> float:
        """Return the time until which a message is accepted; if both inputs make sessions, these decide."""
        return float("inf") if self.definition.window is not None else super()._open_until(source, time_us)

    def _accept(
        self, messages: Messages, now_us: int, watermark_us: int
    ) -> tuple[int, dict[str, list[tuple[int, Message]]]]:
        for side, gaps in self._own.items():
            name = self._source(side).name
            gaps.learn([dict(m.payload) for m in by_input(self.definition.inputs, messages).get(name, ())])
        return super()._accept(messages, now_us, watermark_us)

    def _is_sound(self, source: Input, message: Message, time_us: int) -> bool:
        """True if its own gap is valid."""
        gaps = self._own.get("left" if source.name == self.definition.left.name else "right")
        if gaps is None:
            return True
        try:
            columns = gaps.of(dict(message.payload))[GAP]
        except Raised as error:
            self._bury("malformed", str(error), message, time_us)
            return False
        [gap] = columns or (None,)
        gap_us = gap // timedelta(microseconds=1) if isinstance(gap, timedelta) else gap
        if gap_us is None or gap_us < 0:
            self._bury("malformed", f"its gap is {gap!r}", message, time_us)
            return False
        assert message.position is not None
        self._own_us[message.position] = gap_us
        return True

    def _enter(self, new: dict[str, list[Held]], now_us: int, watermark_us: int) -> None:
        """Let messages enter their sessions. Those that do not are too late."""
        entering = [m for side in self._making for m in new[side]]
        rows = [Message(self._row(m), m.position) for m in entering]
        dead = self._sessions.ingest({"": rows}, now_us, watermark_us).dead if rows else []
        lost = {letter.position: letter for letter in dead}
        for side in self._making:
            for message in new[side]:
                letter = lost.get(message.position)
                if letter is not None:
                    self._bury(letter.reason, letter.detail, message.message, message.time_us)
                    position = message.position
                    self.counted.remove((position.source, position.partition, message.time_us))
            new[side] = [m for m in new[side] if m.position not in lost]

    def _raises(self, good: Sides, came: Sides, watermark_us: int) -> bool:
        """True if the condition raises, judged as if these messages were the whole step: new ones may also merge sessions."""
        assert self._now_us is not None
        before = (self._sessions, self._dead, self.counted)
        self._sessions, self._dead, self.counted = deepcopy(self._sessions), [], [*self.counted]
        new = {side: [*good[side], *came[side]] for side in SIDES}
        self._enter(new, self._now_us, watermark_us)
        held = {side: [*self._held[side], *new[side]] for side in SIDES}
        raises = self._raises_on(
            (a, b) for a in held["left"] for b in held["right"] if (a.position, b.position) not in self._met
        )
        self._sessions, self._dead, self.counted = before
        return raises

    def _row(self, m: Held) -> dict[str, Any]:
        """Return a message as a row for its sessions."""
        gap = {GAP: self._own_us[m.position]} if self._own else {}
        return {KEY: self._number(m.key), TIME: m.time_us, **gap}

    def _number(self, key: Key) -> int:
        return self._keys.setdefault(key, len(self._keys))

    def _session_of(self, side: str, message: Held) -> SessionCell | None:
        """Return the session that a message made, or that is open at its time."""
        for cell in self._sessions.holding(self._number(message.key)):
            if side not in self._making and cell.first_us <= message.time_us < cell.end_us:
                return cell
            if any(m.position == message.position for m in cell.messages):
                return cell
        return None

    def _match(self, left: Held, right: Held) -> bool:
        session = self._session_of("left", left)
        return (
            session is not None
            and session is self._session_of("right", right)
            and super()._match(left, right)
        )

    # -- time --------------------------------------------------------------------------------------------------------

    def _hopeless(self, side: str, message: Held, watermark_us: int) -> bool:
        """True if the message's session is closed, or no session open at its time can come any more."""
        session = self._session_of(side, message)
        if session is not None:
            return self._sessions.is_closed(session, watermark_us)
        if self._is_evicted(message):
            return True
        if side in self._making or watermark_us == END_OF_TIME_US:
            return True  # its session was closed, and has expired by now
        return message.time_us + self._gap_us < self._too_late_us(watermark_us)

    def _in_retention(self, side: str, message: Held, watermark_us: int) -> bool:
        """True while it is kept for queries."""
        kept = self.definition.retention.time_us
        if watermark_us == END_OF_TIME_US or self._is_evicted(message):
            return False
        if kept is None:
            return True
        session = self._session_of(side, message)
        if session is not None and session.end_us > watermark_us - kept:
            return True
        may_come = message.time_us + self._gap_us >= self._too_late_us(watermark_us)
        return side not in self._making and (message.time_us >= watermark_us - kept or may_come)

    def _drop(self, watermark_us: int) -> None:
        for side in SIDES:
            self._held[side] = [
                m for m in self._held[side] if not m.done or self._in_retention(side, m, watermark_us)
            ]
