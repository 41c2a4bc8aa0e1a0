"""Oracle of session windows in the plainest possible Python: a list of sessions for each key, joined message by message.

A message is the range `[t, t + gap]`; ranges of a key that overlap or touch are one session, `[first, last + gap)`. A session
is closed when the watermark, less the allowed lateness, is beyond its end. A closed session never opens again, and takes no
later message: a message is late by its own window, unless an open session takes it. A pane stays until the session that
holds it, or its successor, retracts it. The gap may be dynamic, one per message; of zero, it is a microsecond.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from windrow.core.aggregation import Aggregation
from windrow.core.emit import Delay
from windrow.core.expressions import Expr
from windrow.core.messages import Kind, Pane, Timing, TupleWindow, Window, WindowInfo
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.windows import LAST_END_US, Session, TupleSession
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.oracle import AggregateOracle, past
from windrow.operators.oracle.aggregates import added, same
from windrow.operators.oracle.arrow import Arguments, Raised
from windrow.operators.oracle.cells import Cell, EmittedPane, Key, SessionCell, Taken, place
from windrow.operators.oracle.oracle import Messages, Outcome, listed
from windrow.operators.oracle.times import shown
from windrow.operators.oracle.windows import windows_of


class SessionOracle(AggregateOracle):
    """The expected behaviour of one `AggregateDefinition` over session windows."""

    def __init__(self, definition: AggregateDefinition) -> None:
        super().__init__(definition)
        window = definition.window
        gap: int | Expr = window.gap if isinstance(window, Session) else 0
        self._cut = window.cut if isinstance(window, Session) else None
        self._longest_us = window.max_length_us if isinstance(window, Session) else None
        self._taken_back: list[tuple[Any, Pane]] = []
        self._own_gaps = isinstance(gap, Expr)
        self._gap_us = self._next_gap_us = (
            0 if isinstance(gap, Expr) else gap
        )  # the next: from the next step on
        self._floor_us = START_OF_TIME_US  # state out of retention under a smaller gap stays so
        self._gaps = Arguments({"gap": Aggregation("any_value", (gap,))} if isinstance(gap, Expr) else {})
        self._asked[definition.inputs[0].name].append(self._gaps)
        self._sessions: dict[Key, list[SessionCell]] = {}
        #: True where sessions of a key never overlap: a message that touches a closed one is too late.
        self._apart = definition.takes_back

    # -- steps ------------------------------------------------------------------------------------------------------

    def redefine(self, definition: AggregateDefinition) -> None:
        super().redefine(definition)
        if isinstance(definition.window, Session) and isinstance(definition.window.gap, int):
            self._next_gap_us = definition.window.gap

    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        before, after, ticked, now = self._advance_to(watermark_us, now_us)
        emit, panes = self.definition.emit, [*self._widened(before), *self._corrected(before)]
        expiry = [(c, t) for c, t in self._drop_by_size(before, after) if isinstance(c, SessionCell)]
        cells = self._sorted()
        for cell in cells:
            if cell.current and self._passed(cell, after):
                cell.current = False
                if emit.on_time or (cell.pending and not emit.emits_late):
                    panes += self._emit_session(cell, Timing.ON_TIME, self._closed(cell, after))
        for cell in cells:
            closed = self._closed(cell, after)
            trigger = emit.early if cell.current else emit.late
            moment = self._moment(cell, now, ticked, (before, after))
            if moment.fires(trigger) and (cell.pending or not closed):
                timing = Timing.EARLY if cell.current else Timing.LATE
                panes += self._emit_session(cell, timing, closed, always=moment.insists(trigger))
        for cell in cells:
            closes = self._closed(cell, after) and not self._closed(cell, before) and not cell.ended
            if closes and (emit.closing_pane or (cell.pending and emit.emits_late)):
                expiry.append((cell, Timing.LATE))
        for cell, timing in sorted(expiry, key=lambda pair: place(pair[0])):
            panes += self._emit_session(cell, timing, True, closing=True)
        for key in list(self._sessions):
            self._sessions[key] = [c for c in self._sessions[key] if not self._forgotten(c, after)]
        return Outcome(panes, self._buried())

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        emitted: list[tuple[Any, Pane]] = []
        first, buried = [*self._widened(watermark_us), *self._corrected(watermark_us)], self._dead
        for cell in self._touched(messages, now_us, watermark_us):
            emitted += [(place(cell), pane) for pane in self._judged(cell, now_us, watermark_us)]
        emitted = sorted(self._taken_back + emitted, key=lambda pair: pair[0])
        self._dead += buried
        return Outcome([*first, *(pane for _, pane in emitted)], self._buried())

    def _judged(self, cell: SessionCell, now_us: int, watermark_us: int) -> list[Pane]:
        """Return the panes of a session that took messages."""
        cell.current = not self._passed(cell, watermark_us)
        trigger = self.definition.emit.early if cell.current else self.definition.emit.late
        if not self._moment(cell, now_us, None).fires(trigger):
            return []
        return self._emit_session(
            cell, Timing.EARLY if cell.current else Timing.LATE, self._closed(cell, watermark_us)
        )

    def _widened(self, watermark_us: int) -> list[Pane]:
        """Widen open sessions where the gap has grown; return the panes of those that have ended."""
        self._dead = []
        more_us, kept = self._next_gap_us - self._gap_us, self.definition.retention.time_us
        if more_us <= 0:
            return []
        if kept is not None:
            self._floor_us = max(self._floor_us, watermark_us - kept - self._gap_us)
        self._gap_us, panes, widened = self._next_gap_us, list[Pane](), list[SessionCell]()
        for key, cells in self._sessions.items():
            groups: list[tuple[Window, list[SessionCell]]] = []
            for cell in sorted(cells, key=place):
                end_us = min(cell.end_us + more_us, LAST_END_US)
                if self._cut is not None:
                    end_us = min(end_us, windows_of(self._cut, cell.first_us)[0].end_us)
                if self._closed(cell, watermark_us) or end_us <= cell.end_us:
                    continue
                window = Window(cell.first_us, end_us)
                if groups and self._meet(groups[-1][0], window):
                    groups[-1] = (Window(groups[-1][0].start_us, end_us), [*groups[-1][1], cell])
                else:
                    groups.append((window, [cell]))
            widened += [
                whole for w, parts in groups if (whole := self._joined(key, w, [], parts)) is not None
            ]
        emit = self.definition.emit
        for cell in sorted(widened, key=place):
            cell.current = not self._passed(cell, watermark_us)
            if not cell.current and (emit.on_time or (cell.pending and not emit.emits_late)):
                panes += self._emit_session(cell, Timing.ON_TIME, False)
        return panes

    def _corrected(self, watermark_us: int) -> list[Pane]:
        """Return panes of sessions that still take messages again, where aggregations of kept messages were added."""
        recomputed, panes = self.definition.recomputed_us, list[Pane]()
        if set(recomputed) <= set(self._recomputed):
            return panes
        self._recomputed = recomputed
        for cell in self._sorted():
            before = cell.panes > 0 and cell.first_us < max(us for _, us in recomputed)
            if (
                before
                and self._is_open(cell, watermark_us)
                and (cell.current or self.definition.emit.emits_late)
            ):
                panes += self._emit_session(cell, Timing.EARLY if cell.current else Timing.LATE, False)
        return panes

    def _touched(self, messages: Messages, now_us: int, watermark_us: int) -> list[SessionCell]:
        """Return the sessions that took messages of a step."""
        self.counted, self._dead, self._step = [], [], self._step + 1
        now = self._now(now_us)
        self._ticked_us = now if self._ticked_us is None else self._ticked_us
        by_key: dict[Key, list[Taken]] = {}
        for message in self._admitted(listed(messages), now, watermark_us):
            key = self._key_of(message)
            if not self._ids.is_new(key, message, watermark_us):
                self.duplicates += 1
            elif self._may_count(message, watermark_us):
                by_key.setdefault(key, []).append(message)
        self._taken_back = []
        some_of = {key: self._in_the_end(key, taken, watermark_us) for key, taken in by_key.items()}
        touched = [
            cell for key, taken in some_of.items() for cell in self._join_messages(key, taken, watermark_us)
        ]
        return sorted(touched, key=place)

    def windows(self) -> list[WindowInfo]:
        kept = self.definition.retention.time_us
        return [
            self._info(cell, cell.end_us <= self.watermark_us)
            for cell in self._sorted()
            if kept is None or not past(cell.end_us, kept, self.watermark_us)
        ]

    def _shown(self, window: Window) -> Window | TupleWindow:
        """Return a window as it is emitted."""
        return shown(window)

    # -- the session of a message -----------------------------------------------------------------------------------

    def _own(self, message: Taken) -> Window:
        """Return the window of a message alone."""
        end_us = message.time_us + (message.gap_us if self._own_gaps else self._gap_us)
        if self._cut is not None:
            end_us = min(end_us, windows_of(self._cut, message.time_us)[0].end_us)
        return Window(message.time_us, min(end_us, LAST_END_US))

    def _meet(self, a: Window, b: Window) -> bool:
        if self._cut is not None and windows_of(self._cut, a.start_us) != windows_of(self._cut, b.start_us):
            return False
        return a.start_us <= b.end_us and b.start_us <= a.end_us

    def _admit(self, message: Taken) -> bool:
        return super()._admit(message) and (not self._own_gaps or self._has_gap(message))

    def _has_gap(self, message: Taken) -> bool:
        """Give the message its own gap. False for a dead letter."""
        try:
            gaps = self._gaps.of(message.payload)["gap"]
        except Raised as error:
            self._lose("malformed", str(error), message)
            return False
        [gap] = gaps or (None,)
        if isinstance(gap, timedelta):
            gap = gap // timedelta(microseconds=1)
        if gap is None or gap < 0:
            self._lose("malformed", f"its gap is {gap!r}", message)
            return False
        message.gap_us = max(gap, 1)
        return True

    def _only_advances(self, message: Taken, watermark_us: int) -> bool:
        message.gap_us = 1  # its gap is not evaluated
        alone = SessionCell(self._key_of(message), self._own(message))
        return not self._is_gone(message, watermark_us) and self._is_open(alone, watermark_us)

    def _is_gone(self, message: Taken, watermark_us: int) -> bool:
        """True if a message is out of retention whatever session would take it: where ids, or evicted sessions, are known that
        long, and where sessions are disjoint. With a dynamic gap, its time alone decides.
        """
        retention = self.definition.retention
        kept = retention.time_us
        sized = retention.windows is not None or retention.messages is not None
        last_us = message.time_us if self._own_gaps else self._own(message).end_us
        gone = kept is not None and past(last_us + 1, kept, watermark_us)
        gone = gone and (self._apart or sized or self.definition.ids is not None)
        by_size = message.time_us <= self._floor(self._key_of(message))
        return gone or by_size or message.time_us < self._floor_us

    def _may_count(self, message: Taken, watermark_us: int) -> bool:
        """False for a message that is a dead letter whatever came with it."""
        own, key = self._own(message), self._key_of(message)
        if self._is_gone(message, watermark_us):
            self._lose("out_of_retention", "is out of retention", message)
            return False
        cells = self._sessions.get(key, [])
        if self._longest_us is not None:
            last_us = message.time_us if self._apart else min(own.end_us, message.time_us + self._longest_us)
            late = past(last_us + 1, self.definition.allowed_lateness_us, watermark_us)
            holds = [c for c in cells if c.first_us <= message.time_us < c.end_us]
            if late and not any(not self._closed(cell, watermark_us) for cell in holds):
                self._lose_late("is in no session that is open", message, watermark_us)
                return False
            cells = []
        for cell in cells if self._apart else []:
            if self._closed(cell, watermark_us) and self._meet(cell.window, own):
                self._lose("too_late", f"reaches {cell.window!r}, which is closed", message)
                return False
        refused = self._refused(message)
        if refused is not None:
            self._lose("malformed", refused, message)
            self._ids.forget(key, message)
        return refused is None

    def _lose_late(self, detail: str, message: Taken, watermark_us: int) -> None:
        """Add the dead letter of a message that no open session takes, and whose own window is closed."""
        kept = self.definition.retention.time_us
        gone = kept is not None and past(self._own(message).end_us + 1, kept, watermark_us)
        self._lose("out_of_retention" if gone else "too_late", detail, message)

    def _join_messages(self, key: Key, messages: list[Taken], watermark_us: int) -> list[SessionCell]:
        """Join messages with each other and with the open sessions of their key; return the sessions that took some."""
        groups: list[tuple[Window, list[Taken], list[SessionCell]]] = []
        ranges: list[tuple[Window, list[Taken], list[SessionCell]]] = []
        for cell in self._sessions.get(key, []):
            if self._is_open(cell, watermark_us):
                ranges.append((Window(cell.first_us, max(cell.end_us, cell.reach_us)), [], [cell]))
        ranges += [(self._own(message), [message], []) for message in messages]
        for window, members, parts in ranges:
            for group in [g for g in groups if self._meet(g[0], window)]:
                groups.remove(group)
                window = Window(min(window.start_us, group[0].start_us), max(window.end_us, group[0].end_us))
                members, parts = group[1] + members, group[2] + parts
            groups.append((window, members, parts))
        cells = []
        for window, members, parts in groups:
            if not members:
                continue
            members = [m for m in messages if any(m is member for member in members)]
            if not self._is_open(SessionCell(key, window), watermark_us):
                for message in members:
                    self._lose_late(f"{window!r} is closed", message, watermark_us)
                continue
            for m in members:
                m.step = self._step
                self.counted.append((m.position.source, m.position.partition, m.time_us))
            merged = self._joined(key, window, members, parts)
            if merged is not None:
                cells += self._in_parts(merged, members, parts, watermark_us)
        return cells

    def _in_parts(
        self, whole: SessionCell, new: list[Taken], parts: list[SessionCell], watermark_us: int
    ) -> list[SessionCell]:
        """Return the sessions that replace one that took messages. parts: the sessions that it consisted of"""
        return [whole]

    def _in_the_end(self, key: Key, some: list[Taken], watermark_us: int) -> list[Taken]:
        """Return the messages of a key in a step that remain after its retractions."""
        return some

    def _joined(
        self, key: Key, window: Window, some: list[Taken], parts: list[SessionCell]
    ) -> SessionCell | None:
        """Return the session of these parts and messages; None where a user aggregate cannot take them."""
        cell = SessionCell(key, window)
        for part in sorted(parts, key=place):
            cell.messages += part.messages
            cell.pending += part.pending
            cell.panes = max(cell.panes, part.panes)
            cell.emitted_in = max(cell.emitted_in, part.emitted_in)
            cell.emitted += part.emitted
        cell.since_us = self._since(parts, bool(some))
        cell.messages, cell.pending = cell.messages + some, cell.pending + some
        if self.definition.full_state:  # they are read again, in order of arrival
            for kept in (cell.messages, cell.pending):
                kept.sort(key=lambda m: (m.step, m.position))
        try:
            for alias in self.definition.agg:
                self._value(alias, cell, added)
        except Exception:
            for m in some:
                self._lose("aggregate_failed", traceback.format_exc(), m)
            return None
        others = [c for c in self._sessions.get(key, []) if not any(c is part for part in parts)]
        self._sessions[key] = [*others, cell]
        return cell

    def _since(self, parts: list[SessionCell], more: bool) -> int | None:
        """Return since when a session has messages that no pane has emitted: of merged ones, since the first of them."""
        waits = any(isinstance(trigger, Delay) for trigger in self.definition.emit.leaves)
        now = [self._now_us] if more and waits and self._now_us is not None else []
        return min([*(p.since_us for p in parts if p.since_us is not None), *now], default=None)

    def _lose(self, reason: str, detail: str, message: Taken) -> None:
        self._bury(reason, detail, message.position, message.time_us, message.payload)

    # -- emission ---------------------------------------------------------------------------------------------------

    def _emit_session(
        self, cell: SessionCell, timing: Timing, is_last: bool, closing: bool = False, always: bool = False
    ) -> list[Pane]:
        """Retract the current panes inside the session, and emit it. always: even if nothing has changed"""
        emit, news, values = self.definition.emit, bool(cell.pending), self._finished(cell)
        if values is None:
            return []
        inside = sorted(cell.emitted, key=lambda s: s.window.start_us)
        alone = len(inside) == 1 and inside[0].window == cell.window
        unchanged = alone and same(self._emitted_values(inside[0].values), values)
        asked = closing and emit.closing_pane
        if emit.only_if_changed and not asked and (not news if emit.mode == "discarding" else unchanged):
            return []
        repeats = asked or always or timing is Timing.ON_TIME
        if emit.mode == "retracting" and unchanged and not repeats:
            return []
        key = self._key(cell)
        back = inside if emit.mode == "retracting" else [s for s in inside if s.window != cell.window]
        panes = [
            Pane(
                self._shown(s.window),
                key,
                self._emitted_values(s.values),
                timing,
                s.index,
                False,
                Kind.RETRACT,
            )
            for s in back
        ]
        panes.append(Pane(self._shown(cell.window), key, values, timing, cell.panes, is_last))
        if emit.mode != "discarding":
            cell.emitted = [EmittedPane(cell.window, values, cell.panes)]
        cell.panes += 1
        cell.emitted_in = self._step
        cell.ended = is_last
        return panes

    # -- time -------------------------------------------------------------------------------------------------------

    def _passed(self, cell: Cell, watermark_us: int) -> bool:
        """True if a session that cannot grow is emitted: a message at its end may come while the watermark is there, so one
        that can never be corrected is delayed until the next moment."""
        waits = not self.definition.emit.emits_late
        return watermark_us > cell.end_us if waits else watermark_us >= cell.end_us

    def _closed(self, cell: Cell, watermark_us: int) -> bool:
        return past(cell.end_us + 1, self.definition.allowed_lateness_us, watermark_us)

    def _is_open(self, cell: SessionCell, watermark_us: int) -> bool:
        return not self._closed(cell, watermark_us)

    def _is_early(self, cell: Cell, watermark_us: int) -> bool:
        return not self._passed(cell, watermark_us)

    def _counted_cells(self, watermark_us: int) -> Sequence[Cell]:
        kept = self.definition.retention.time_us
        return [c for c in self._sorted() if kept is None or not past(c.end_us, kept, watermark_us)]

    def _drop(self, cell: Cell) -> None:
        self._sessions[cell.key] = [other for other in self._sessions[cell.key] if other is not cell]

    def _forgotten(self, cell: Cell, watermark_us: int) -> bool:
        """True if nothing that is in retention can reach it."""
        kept = self.definition.retention.time_us
        return kept is not None and past(cell.end_us + self._gap_us + 1, kept, watermark_us)

    def _sorted(self) -> Sequence[SessionCell]:
        return sorted((cell for cells in self._sessions.values() for cell in cells), key=place)


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
