"""Session windows in the plainest possible Python: a list of sessions for each key, joined message by message.

A message is the range `[t, t + gap]`; ranges of a key that overlap or touch are one session, `[first, last + gap)`. A session
is closed when the watermark, less the allowed lateness, is beyond its end; a closed session never opens again. What was told of
a window stands until it is taken back: by the pane of a session that holds it.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Any

from windrow.core.emit import EveryBatch, EveryCount
from windrow.core.messages import Kind, Pane, Timing, Window, WindowInfo
from windrow.core.windows import LAST_END_US, Session
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.oracle import AggregateOracle, past, ticks
from windrow.operators.plain.aggregates import IntegerOverflow, same
from windrow.operators.plain.cells import Cell, Key, Taken, place
from windrow.operators.plain.oracle import Messages, Outcome, listed
from windrow.operators.plain.times import shown
from windrow.operators.plain.windows import windows_of


@dataclass
class SessionCell(Cell):
    """One session of one key."""

    window: Window = field(default_factory=lambda: Window(0, 1))
    current: bool = True  # the watermark has not passed its end since it has that end


@dataclass(frozen=True)
class Standing:
    """A pane that was told and not taken back."""

    window: Window
    values: dict[str, Any]
    index: int


class SessionOracle(AggregateOracle):
    """The expected behaviour of one `AggregateDefinition` over session windows."""

    def __init__(self, definition: AggregateDefinition) -> None:
        super().__init__(definition)
        assert isinstance(definition.window, Session)
        self._gap_us, self._cut = definition.window.gap_us, definition.window.cut
        self._sessions: dict[Key, list[SessionCell]] = {}
        self._standing: dict[Key, list[Standing]] = {}
        self._step = 0

    # -- steps ------------------------------------------------------------------------------------------------------

    def redefine(self, definition: AggregateDefinition) -> None:
        self.definition = definition
        for cell in self._all():
            cell.ended = False

    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        self._dead = []
        now = self._now(now_us)
        ticked = now if self._ticked_us is None else self._ticked_us
        before, after = self.watermark_us, max(watermark_us, self.watermark_us)
        self.watermark_us, self._ticked_us = after, now
        emit, panes = self.definition.emit, list[Pane]()
        for cell in self._all():
            if cell.current and self._passed(cell, after):
                cell.current = False
                if emit.on_time or (cell.pending and not emit.tells_late):
                    panes += self._tell(cell, Timing.ON_TIME, self._is_closed(cell, after))
        for cell in self._all():
            early = cell.current
            if cell.pending and ticks(emit.early if early else emit.late, ticked, now):
                timing = Timing.EARLY if early else Timing.LATE
                panes += self._tell(cell, timing, self._is_closed(cell, after))
        for cell in self._all():
            closes = self._is_closed(cell, after) and not self._is_closed(cell, before) and not cell.ended
            if closes and (emit.closing_pane or (cell.pending and emit.tells_late)):
                panes += self._tell(cell, Timing.LATE, True, closing=True)
        for key in list(self._sessions):
            self._sessions[key] = [c for c in self._sessions[key] if not self._forgotten(c, after)]
        return Outcome(panes, self._buried())

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        messages, self._dead = listed(messages), []
        now = self._now(now_us)
        self._ticked_us = now if self._ticked_us is None else self._ticked_us
        timed = [t for m in self._in_order(messages) if (t := self._timed(m, now)) is not None]
        admitted = [t for t in timed if self._admit(t)]
        self._learn_arguments(admitted, messages)
        self.counted, self._step = [], self._step + 1
        by_key: dict[Key, list[Taken]] = {}
        for message in admitted:
            key = self._key_of(message)
            if not self._ids.is_new(key, message, watermark_us):
                self.duplicates += 1
            elif self._may_count(message, watermark_us):
                by_key.setdefault(key, []).append(message)
        touched = [cell for key, some in by_key.items() for cell in self._take(key, some, watermark_us)]
        panes: list[Pane] = []
        for cell in sorted(touched, key=place):
            cell.current = not self._passed(cell, watermark_us)
            trigger = self.definition.emit.early if cell.current else self.definition.emit.late
            needed = trigger.n if isinstance(trigger, EveryCount) else 1
            if isinstance(trigger, EveryBatch | EveryCount) and len(cell.pending) >= needed:
                timing = Timing.EARLY if cell.current else Timing.LATE
                panes += self._tell(cell, timing, self._is_closed(cell, watermark_us))
        return Outcome(panes, self._buried())

    def windows(self) -> list[WindowInfo]:
        kept = self.definition.retention.time_us
        return [
            self._info(cell, cell.end_us <= self.watermark_us)
            for cell in self._all()
            if kept is None or not past(cell.end_us, kept, self.watermark_us)
        ]

    # -- which session a message belongs to ---------------------------------------------------------------------------

    def _own(self, message: Taken) -> Window:
        """The window of a message alone."""
        end_us = message.time_us + self._gap_us
        if self._cut is not None:
            end_us = min(end_us, windows_of(self._cut, message.time_us)[0].end_us)
        return Window(message.time_us, min(end_us, LAST_END_US))

    def _meet(self, a: Window, b: Window) -> bool:
        if self._cut is not None and windows_of(self._cut, a.start_us) != windows_of(self._cut, b.start_us):
            return False
        return a.start_us <= b.end_us and b.start_us <= a.end_us

    def _may_count(self, message: Taken, watermark_us: int) -> bool:
        """False for a message that is a dead letter whatever came with it."""
        own, kept, key = self._own(message), self.definition.retention.time_us, self._key_of(message)
        if kept is not None and past(own.end_us + 1, kept, watermark_us):
            self._lose("out_of_retention", "is out of retention", message)
            return False
        for cell in self._sessions.get(key, []):
            if self._is_closed(cell, watermark_us) and self._meet(cell.window, own):
                self._lose("too_late", f"reaches {cell.window!r}, which is closed", message)
                return False
        refused = self._refused(message)
        if refused is not None:
            self._lose("malformed", refused, message)
            self._ids.forget(key, message)
        return refused is None

    def _take(self, key: Key, messages: list[Taken], watermark_us: int) -> list[SessionCell]:
        """Join messages with each other and with the open sessions of their key; returns the sessions that took some."""
        groups: list[tuple[Window, list[Taken], list[SessionCell]]] = []
        for cell in self._sessions.get(key, []):
            if not self._is_closed(cell, watermark_us):
                groups.append((cell.window, [], [cell]))
        for message in messages:
            window, some, parts = self._own(message), [message], list[SessionCell]()
            for group in [g for g in groups if self._meet(g[0], window)]:
                groups.remove(group)
                window = Window(min(window.start_us, group[0].start_us), max(window.end_us, group[0].end_us))
                some, parts = group[1] + some, group[2] + parts
            groups.append((window, some, parts))
        found = []
        for window, some, parts in groups:
            if not some:
                continue
            some = [m for m in messages if any(m is one for one in some)]
            if past(window.end_us + 1, self.definition.allowed_lateness_us, watermark_us):
                for message in some:
                    self._lose("too_late", f"{window!r} is closed", message)
                continue
            for m in some:
                m.step = self._step
                self.counted.append((m.position.source, m.position.partition, m.time_us))
            made = self._joined(key, window, some, parts)
            if made is not None:
                found.append(made)
        return found

    def _joined(
        self, key: Key, window: Window, some: list[Taken], parts: list[SessionCell]
    ) -> SessionCell | None:
        """The session of these parts and messages; None where an aggregate of the user's cannot take them."""
        cell = SessionCell(key, window)
        for part in sorted(parts, key=place):
            cell.messages += part.messages
            cell.pending += part.pending
            cell.panes = max(cell.panes, part.panes)
        cell.messages = cell.messages + some
        if self.definition.full_state:  # they are read again, as they came
            cell.messages.sort(key=lambda m: (m.step, m.position))
        cell.pending = cell.pending + some
        try:
            for alias, aggregation in self.definition.agg.items():
                if aggregation.function is not None:
                    self._value(alias, cell)
        except Exception:
            for m in some:
                self._lose("aggregate_failed", traceback.format_exc(), m)
            return None
        others = [c for c in self._sessions.get(key, []) if not any(c is part for part in parts)]
        self._sessions[key] = [*others, cell]
        return cell

    def _lose(self, reason: str, detail: str, message: Taken) -> None:
        self._bury(reason, detail, message.position, message.time_us, message.payload)

    # -- what is told -----------------------------------------------------------------------------------------------

    def _tell(self, cell: SessionCell, timing: Timing, is_last: bool, closing: bool = False) -> list[Pane]:
        """Take back what stands inside the session, and tell it."""
        emit, news = self.definition.emit, bool(cell.pending)
        try:
            values = {alias: self._value(alias, cell) for alias in self.definition.agg}
        except Exception as error:
            cell.pending = []
            reason = "integer_overflow" if isinstance(error, IntegerOverflow) else "aggregate_failed"
            self._bury(reason, f"{cell.window!r} {self._key(cell)!r}: {error}", None, None, {})
            return []
        cell.pending = []
        standing = self._standing.get(cell.key, [])
        inside = [
            s for s in standing if cell.first_us <= s.window.start_us and s.window.end_us <= cell.end_us
        ]
        inside.sort(key=lambda s: s.window.start_us)
        alone = len(inside) == 1 and inside[0].window == cell.window
        unchanged = alone and same(inside[0].values, values)
        asked = closing and emit.closing_pane
        if emit.only_if_changed and not asked and (not news if emit.mode == "discarding" else unchanged):
            return []
        if emit.mode == "retracting" and unchanged and not closing and timing is not Timing.ON_TIME:
            return []
        key = self._key(cell)
        back = inside if emit.mode == "retracting" else [s for s in inside if s.window != cell.window]
        panes = [Pane(shown(s.window), key, s.values, timing, s.index, False, Kind.RETRACT) for s in back]
        panes.append(Pane(shown(cell.window), key, values, timing, cell.panes, is_last))
        if emit.mode != "discarding":
            others = [s for s in standing if s not in inside]
            self._standing[cell.key] = [*others, Standing(cell.window, values, cell.panes)]
        cell.panes += 1
        cell.ended = is_last
        return panes

    # -- time -------------------------------------------------------------------------------------------------------

    def _passed(self, cell: Cell, watermark_us: int) -> bool:
        """True if a session that grows no more is told: a message at its end may still come while the watermark stands there,
        so one that can never be corrected waits for the next moment."""
        waits = not self.definition.emit.tells_late
        return watermark_us > cell.end_us if waits else watermark_us >= cell.end_us

    def _is_closed(self, cell: Cell, watermark_us: int) -> bool:
        return past(cell.end_us + 1, self.definition.allowed_lateness_us, watermark_us)

    def _forgotten(self, cell: Cell, watermark_us: int) -> bool:
        """True if nothing that is in retention can reach it."""
        kept = self.definition.retention.time_us
        return kept is not None and past(cell.end_us + self._gap_us + 1, kept, watermark_us)

    def _all(self) -> list[SessionCell]:
        return sorted((cell for cells in self._sessions.values() for cell in cells), key=place)
