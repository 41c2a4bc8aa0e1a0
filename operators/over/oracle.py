"""What windows around messages must tell, in lists and loops. Seed 002 sections 1, 2 and 4.

It keeps all messages, and looks at each anchor that was not told whenever event time moves: is everything below the watermark
that its frames could hold?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windrow.core.aggregation import Aggregation
from windrow.core.frames import Frame, RangeBetween
from windrow.core.messages import Message, Position
from windrow.core.time import END_OF_TIME_US
from windrow.operators.over.definition import OverDefinition
from windrow.operators.plain.aggregates import IntegerOverflow, Row, evaluate
from windrow.operators.plain.arrow import Arguments, Raised
from windrow.operators.plain.cells import Key
from windrow.operators.plain.one_input import OneInputOracle
from windrow.operators.plain.oracle import Messages, Outcome, listed


@dataclass
class Anchor:
    """A message that was counted, around which there is a window."""

    time_us: int
    position: Position
    key: Key
    payload: dict[str, Any]
    arguments: dict[str, tuple[Any, ...] | None]
    told: bool = False


class OverOracle(OneInputOracle):
    """The expected behaviour of one `OverDefinition`."""

    definition: OverDefinition

    def __init__(self, definition: OverDefinition) -> None:
        super().__init__(definition)
        self._anchors: list[Anchor] = []
        self._arguments = Arguments(dict(definition.agg))
        #: Messages that have no row, because their frames are not whole.
        self.incomplete = 0

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        time = self.definition.event_time
        self._arguments.learn([{**m.payload, time: None} for m in listed(messages)])
        return super().ingest(messages, now_us, watermark_us)

    def take(self, message: Message, time_us: int, now_us: int) -> bool:
        payload = dict(message.payload)
        assert message.position is not None
        self._arguments.learn([payload])  # whose time is one
        try:
            arguments = self._arguments.of(payload)
        except Raised:
            self.bury("malformed", message, time_us)
            return False
        self._anchors.append(Anchor(time_us, message.position, self.key_of(payload), payload, arguments))
        return True

    def pass_time(self, before_us: int, now_us: int) -> None:
        for anchor in sorted(self._anchors, key=lambda a: (a.time_us, a.position)):
            if not anchor.told and self._is_due(anchor):
                anchor.told = True
                self._tell(anchor)

    def kept(self, input: str) -> list[Message]:
        """Those that are not settled, and those that windows of what may come reach back to."""
        made = self.definition
        if self.watermark_us == END_OF_TIME_US:
            return []
        behind_us = max([0, *(f.high_us for f in made.frames.values() if isinstance(f, RangeBetween))])
        before_us = max([0, *(-f.low_us for f in made.frames.values() if isinstance(f, RangeBetween))])
        settled_us = self.watermark_us - behind_us
        return [
            Message(a.payload, a.position)
            for a in self._anchors
            if a.time_us >= settled_us - before_us or self._is_in_tail(a, settled_us)
        ]

    def _is_in_tail(self, anchor: Anchor, settled_us: int) -> bool:
        """True if it is one of the last messages of its key that count, and the key can go on."""
        counted = [f for f in self.definition.frames.values() if not isinstance(f, RangeBetween)]
        before = max([0, *(-f.low for f in counted if f.low is not None)])
        many = before + max([0, *(f.high for f in counted)])
        settled = [a for a in self._of_key(anchor) if a.time_us < settled_us]
        line = [a for a in self._line_of(settled[-1])[0] if a.time_us < settled_us] if settled else []
        ttl_us = self.definition.ttl_us
        goes_on = ttl_us is None or (bool(settled) and settled[-1].time_us + ttl_us >= settled_us)
        return goes_on and many > 0 and any(a is anchor for a in line[-many:])

    # -- when -------------------------------------------------------------------------------------------------------

    def _is_due(self, anchor: Anchor) -> bool:
        """True if no message can come any more that would be in one of its frames."""
        if self.watermark_us == END_OF_TIME_US:
            return True
        if anchor.time_us >= self.watermark_us:
            return False
        return all(self._is_whole(anchor, frame) for frame in self.definition.frames.values())

    def _is_whole(self, anchor: Anchor, frame: Frame) -> bool:
        if isinstance(frame, RangeBetween):
            return anchor.time_us + frame.high_us < self.watermark_us
        line, at = self._line_of(anchor)
        behind = [other for other in line[at + 1 :] if other.time_us < self.watermark_us]
        if len(behind) >= frame.high:
            return True
        last = behind[-1] if behind else anchor
        ttl_us = self.definition.ttl_us
        return ttl_us is not None and last.time_us + ttl_us < self.watermark_us

    # -- what -------------------------------------------------------------------------------------------------------

    def _tell(self, anchor: Anchor) -> None:
        made, values = self.definition, dict[str, Any]()
        for alias, aggregation in made.agg.items():
            frame = aggregation.frame
            assert frame is not None
            rows, whole = self._frame_of(anchor, frame)
            partial = "emit" if isinstance(frame, RangeBetween) or whole else frame.partial
            if partial == "skip":
                self.incomplete += 1
                return
            values[alias] = self._value(alias, aggregation, rows) if partial == "emit" else None
        broken = [v for v in values.values() if isinstance(v, _Broken)]
        if broken:
            self.bury(broken[0].reason, Message(anchor.payload, anchor.position), anchor.time_us)
            return
        columns = anchor.payload
        if made.select is not None:
            names = dict.fromkeys((*made.by, made.event_time, *made.select))
            columns = {name: anchor.payload.get(name) for name in names}
        self.tell("ON_TIME", {**columns, **values})

    def _frame_of(self, anchor: Anchor, frame: Frame) -> tuple[list[Anchor], bool]:
        """The messages in it, in event-time order; True if there are as many as it counts."""
        if isinstance(frame, RangeBetween):
            low_us, high_us = anchor.time_us + frame.low_us, anchor.time_us + frame.high_us
            return [a for a in self._of_key(anchor) if low_us <= a.time_us <= high_us], True
        line, at = self._line_of(anchor)
        if frame.low is None:
            return line[: at + 1], True
        first, last = at + frame.low, at + frame.high
        found = [a for i, a in enumerate(line) if first <= i <= last]
        return found, first >= 0 and last < len(line)

    def _of_key(self, anchor: Anchor) -> list[Anchor]:
        mine = [a for a in self._anchors if same(a.key, anchor.key)]
        return sorted(mine, key=lambda a: (a.time_us, a.position))

    def _line_of(self, anchor: Anchor) -> tuple[list[Anchor], int]:
        """The messages of its key between two pauses that are longer than the ttl, and its place among them."""
        mine, ttl_us = self._of_key(anchor), self.definition.ttl_us
        line: list[Anchor] = []
        for one in mine:
            if line and ttl_us is not None and one.time_us - line[-1].time_us > ttl_us:
                if any(a is anchor for a in line):
                    break
                line = []
            line.append(one)
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


def same(one: Key, other: Key) -> bool:
    """True if two keys are one; a NaN is one with itself, and equal numbers with each other."""
    return all(a is b or a == b for a, b in zip(one, other, strict=True))
