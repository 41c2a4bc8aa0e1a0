"""The oracle of OVER windows, in lists and loops. Seed 002 sections 1, 2 and 4.

It keeps all messages and checks each of them in every step: is everything that its frames could hold below the watermark?
Is the row emitted for it still the current one?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windrow.core.aggregation import Aggregation
from windrow.core.emit import Emit, EveryBatch, EveryPeriod, Trigger
from windrow.core.frames import Frame, RangeBetween
from windrow.core.messages import Kind, Message, Position
from windrow.core.policy import UNBOUNDED_US
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.oracle.aggregates import IntegerOverflow, Row, evaluate, same
from windrow.operators.oracle.arrow import Arguments, Raised
from windrow.operators.oracle.cells import Key
from windrow.operators.oracle.one_input import OneInputOracle
from windrow.operators.oracle.oracle import Messages, Outcome, listed
from windrow.operators.over.definition import OverDefinition


@dataclass(kw_only=True)
class EmittedRow:
    """The rows emitted for a message with a window around it.

    decided: its row was emitted on time, or late. current: the last row, unless retracted. rows: how many were
    emitted. buried: its row failed, and there is a dead letter
    """

    decided: bool = False
    current: dict[str, Any] | None = None
    rows: int = 0
    buried: bool = False


def updated(
    anchor: EmittedRow, row: dict[str, Any] | None, timing: str, emit: Emit
) -> list[tuple[dict[str, Any], Kind, int]]:
    """Return the rows to emit for a new row, with the number of each. The current one is retracted if the mode says so, or if
    there is no row any more."""
    updates: list[tuple[dict[str, Any], Kind, int]] = []
    if timing != "EARLY":
        anchor.decided = True
    current = anchor.current
    stays = row is not None and current is not None and same(row, current)
    if stays and (timing != "ON_TIME" or emit.only_if_changed):
        return updates
    if current is not None and (row is None or emit.mode == "retracting"):
        updates.append((current, Kind.RETRACT, anchor.rows - 1))
        anchor.current = None
    if row is not None:
        updates.append((row, Kind.INSERT, anchor.rows))
        anchor.current = row
        anchor.rows += 1
    return updates


@dataclass
class Anchor(EmittedRow):
    """A counted message with a window around it. line: of its key, in the order of arrival; came_us: the watermark
    when it came."""

    time_us: int
    position: Position
    key: Key
    payload: dict[str, Any]
    arguments: dict[str, tuple[Any, ...] | None]
    line: int = 0
    came_us: int = START_OF_TIME_US


class OverOracle(OneInputOracle):
    """The expected behaviour of one `OverDefinition`."""

    definition: OverDefinition

    def __init__(self, definition: OverDefinition) -> None:
        super().__init__(definition)
        self._anchors: list[Anchor] = []
        self._arguments = Arguments(dict(definition.agg))
        #: Messages that have no row, because their frames are not whole.
        self.incomplete = 0
        self._now_us: int | None = None

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        time = self.definition.event_time
        self._arguments.learn([{**m.payload, time: None} for m in listed(messages)])
        buried = super().ingest(messages, now_us, watermark_us)
        if self._now_us is None:
            self._now_us = now_us
        if self.counted and self.definition.corrects:
            self._emit_changes()
        emitted = self._outcome()
        return Outcome(emitted.rows, buried.dead + emitted.dead)

    def accept(self, message: Message, time_us: int, now_us: int) -> bool:
        payload = dict(message.payload)
        assert message.position is not None
        self._arguments.learn([payload])  # of a valid time
        try:
            arguments = self._arguments.of(payload)
        except Raised:
            self.bury("malformed", message, time_us)
            return False
        self._anchors.append(Anchor(time_us, message.position, self.key_of(payload), payload, arguments))
        return True

    def pass_time(self, before_us: int, now_us: int) -> None:
        emit = self.definition.emit
        for anchor in self._in_order():
            if anchor.decided or self._is_due(anchor, before_us):
                if self._ticks(emit.late, now_us) or self._is_due(anchor, self._closed_us):
                    self._emit(anchor, "LATE")
            elif self._is_due(anchor, self.watermark_us):
                self._emit(anchor, "ON_TIME")
            elif self._ticks(emit.early, now_us):
                self._emit(anchor, "EARLY")
        self._now_us = now_us

    def _emit_changes(self) -> None:
        """Emit the rows that the messages of a step changed and whose trigger fires at once."""
        emit = self.definition.emit
        for anchor in self._in_order():
            late = anchor.decided or self._is_due(anchor, self.watermark_us)
            if isinstance(emit.late if late else emit.early, EveryBatch):
                self._emit(anchor, "LATE" if late else "EARLY")

    def _ticks(self, trigger: Trigger, now_us: int) -> bool:
        """True if a period of it has ended."""
        if self._now_us is None or not isinstance(trigger, EveryPeriod):
            return False
        return now_us // trigger.period_us > self._now_us // trigger.period_us

    def _in_order(self) -> list[Anchor]:
        return sorted(self._anchors, key=lambda a: (a.time_us, a.position))

    @property
    def _closed_us(self) -> int:
        """The time before which no message is accepted any more."""
        ends = self.watermark_us == END_OF_TIME_US
        return END_OF_TIME_US if ends else self.watermark_us - self.definition.late_us

    def kept(self, input: str) -> list[Message] | None:
        """Return the messages that are not settled, and those that later windows reach back to."""
        definition = self.definition
        if definition.queried_us >= UNBOUNDED_US:
            return [Message(a.payload, a.position) for a in self._anchors]
        if self.watermark_us == END_OF_TIME_US:
            return []
        output_delay_us = max(
            [0, *(f.high_us for f in definition.frames.values() if isinstance(f, RangeBetween))]
        )
        before_us = max([0, *(-f.low_us for f in definition.frames.values() if isinstance(f, RangeBetween))])
        settled_us = self._closed_us - output_delay_us
        return [
            Message(a.payload, a.position)
            for a in self._anchors
            if a.time_us >= min(settled_us - before_us, self.watermark_us - definition.queried_us)
            or self._is_in_tail(a, settled_us)
        ]

    def _is_in_tail(self, anchor: Anchor, settled_us: int) -> bool:
        """True if it is one of the last counted messages of its key, and the key can be continued."""
        counted = [f for f in self.definition.frames.values() if not isinstance(f, RangeBetween)]
        before = max([0, *(-f.low for f in counted if f.low is not None)])
        many = before + max([0, *(f.high for f in counted)])
        settled = [a for a in self._of_key(anchor) if a.time_us < settled_us]
        line = [a for a in self._line_of(settled[-1])[0] if a.time_us < settled_us] if settled else []
        ttl_us = self.definition.ttl_us
        continues = ttl_us is None or (bool(settled) and settled[-1].time_us + ttl_us >= settled_us)
        return continues and many > 0 and any(a is anchor for a in line[-many:])

    # -- when -------------------------------------------------------------------------------------------------------

    def _is_due(self, anchor: Anchor, watermark_us: int) -> bool:
        """True if no message from the watermark on can be in one of its frames."""
        if watermark_us == END_OF_TIME_US:
            return True
        if anchor.time_us >= watermark_us:
            return False
        return all(self._is_whole(anchor, frame, watermark_us) for frame in self.definition.frames.values())

    def _is_whole(self, anchor: Anchor, frame: Frame, watermark_us: int) -> bool:
        if isinstance(frame, RangeBetween):
            return anchor.time_us + frame.high_us < watermark_us
        line, at = self._line_of(anchor)
        behind = [other for other in line[at + 1 :] if other.time_us < watermark_us]
        if len(behind) >= frame.high:
            return True
        last = behind[-1] if behind else anchor
        ttl_us = self.definition.ttl_us
        return ttl_us is not None and last.time_us + ttl_us < watermark_us

    # -- emission ---------------------------------------------------------------------------------------------------

    def _emit(self, anchor: Anchor, timing: str) -> None:
        """Emit its row: always on time, else if it changed. Retract a row that no longer exists."""
        row = self._row_of(anchor, timing)
        for values, kind, index in updated(anchor, row, timing, self.definition.emit):
            last = kind is Kind.INSERT and self._is_due(anchor, self._closed_us)
            self.emit_row(timing, values, kind.name, index, is_last=last)

    def _row_of(self, anchor: Anchor, timing: str) -> dict[str, Any] | None:
        """Return its current row; None if there is none."""
        definition, values = self.definition, dict[str, Any]()
        for alias, aggregation in definition.agg.items():
            frame = aggregation.frame
            assert frame is not None
            rows, whole = self._frame_of(anchor, frame)
            partial = "emit" if isinstance(frame, RangeBetween) or whole else frame.partial
            if partial == "skip":
                self.incomplete += timing != "EARLY" and not anchor.decided
                return None
            values[alias] = self._value(alias, aggregation, rows) if partial == "emit" else None
        broken = [v for v in values.values() if isinstance(v, _Broken)]
        if broken:
            if timing != "EARLY" and not anchor.buried:
                self.bury(broken[0].reason, Message(anchor.payload, anchor.position), anchor.time_us)
                anchor.buried = True
            return None
        columns = anchor.payload
        if definition.select is not None:
            names = dict.fromkeys((*definition.by, definition.event_time, *definition.select))
            columns = {name: anchor.payload.get(name) for name in names}
        return {**columns, **values}

    def _frame_of(self, anchor: Anchor, frame: Frame) -> tuple[list[Anchor], bool]:
        """Return the messages in it, in event-time order; True if there are as many as it counts."""
        if isinstance(frame, RangeBetween):
            low_us, high_us = anchor.time_us + frame.low_us, anchor.time_us + frame.high_us
            return [a for a in self._of_key(anchor) if low_us <= a.time_us <= high_us], True
        line, at = self._line_of(anchor)
        if frame.low is None:
            return [
                a for i, a in enumerate(line) if i <= at or (frame.peers and a.time_us == anchor.time_us)
            ], True
        first, last = at + frame.low, at + frame.high
        inside = [a for i, a in enumerate(line) if first <= i <= last]
        return inside, first >= 0 and last < len(line)

    def _of_key(self, anchor: Anchor) -> list[Anchor]:
        of_key = [a for a in self._anchors if same_key(a.key, anchor.key)]
        return sorted(of_key, key=lambda a: (a.time_us, a.position))

    def _line_of(self, anchor: Anchor) -> tuple[list[Anchor], int]:
        """Return the messages of its key between two pauses longer than the ttl, and its place among them."""
        of_key, ttl_us = self._of_key(anchor), self.definition.ttl_us
        line: list[Anchor] = []
        for message in of_key:
            if line and ttl_us is not None and message.time_us - line[-1].time_us > ttl_us:
                if any(a is anchor for a in line):
                    break
                line = []
            line.append(message)
        return line, next(i for i, a in enumerate(line) if a is anchor)

    def _value(self, alias: str, aggregation: Aggregation, anchors: Sequence[Anchor]) -> Any:
        rows = []
        for a in anchors:
            arguments = a.arguments[alias]
            if arguments is not None:
                rows.append(Row(a.time_us, a.position, a.payload, arguments))
        try:
            return evaluate(aggregation, rows, self.definition.integer_overflow)
        except IntegerOverflow:
            return _Broken("integer_overflow")
        except Exception:
            return _Broken("aggregate_failed")


@dataclass
class _Broken:
    """A value that could not be made."""

    reason: str


def same_key(one: Key, other: Key) -> bool:
    """True if two keys are one; NaN equals NaN, and equal numbers are one."""
    return all(a is b or a == b for a, b in zip(one, other, strict=True))


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
