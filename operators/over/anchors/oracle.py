"""The oracle of OVER windows around the messages of another input, in lists and loops. Seed 002 section 3.

It keeps all messages and all anchors. When the watermark advances, it takes the anchors below it, in the order of event time
and position, and judges their promises. Then it emits those whose windows the watermark has passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windrow.core.aggregation import Aggregation
from windrow.core.between import Between, Ticks
from windrow.core.emit import EveryBatch, EveryPeriod, Trigger
from windrow.core.expressions import Expr
from windrow.core.frames import RangeBetween
from windrow.core.messages import DeadLetter, JoinedRow, Kind, Message, Position, Timing
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, to_datetime
from windrow.operators.oracle.aggregates import IntegerOverflow, Row, evaluate
from windrow.operators.oracle.arrow import Arguments, Columns, Filter, Raised
from windrow.operators.oracle.cells import Key, key_field
from windrow.operators.oracle.oracle import Messages, Oracle, Outcome, by_input
from windrow.operators.oracle.times import event_time_us
from windrow.operators.over.definition import OverDefinition
from windrow.operators.over.oracle import EmittedRow, same_key, updated


@dataclass
class Held:
    """A message of the aggregated input."""

    time_us: int
    position: Position
    key: Key
    payload: dict[str, Any]
    arguments: dict[str, tuple[Any, ...] | None]


@dataclass
class Anchor(EmittedRow):
    """A message with a window around it. low_us, high_us: the first and the last microsecond of the window."""

    time_us: int
    position: Position | None
    key: Key
    payload: dict[str, Any]
    start_us: int
    low_us: int
    high_us: int
    obsolete_us: int | None = None
    judged: bool = False
    done: bool = False

    @property
    def over_us(self) -> int:
        """The last moment that has a part in it."""
        return max(self.time_us, self.high_us)


class AnchoredOracle(Oracle):
    """The expected behaviour of one `OverDefinition` with anchors."""

    definition: OverDefinition

    def __init__(self, definition: OverDefinition) -> None:
        super().__init__(definition)
        self._held: list[Held] = []
        self._anchors: list[Anchor] = []
        self._floors: list[tuple[Key, int]] = []
        self._tick_us: int | None = None
        self._now_us: int | None = None
        self._arguments = Arguments(dict(definition.agg))
        self._columns = Columns()
        anchors = definition.anchors
        self._filters = [
            Filter(definition.where),
            Filter(None if isinstance(anchors, Ticks | None) else anchors.where),
        ]
        self._rows: list[JoinedRow] = []
        self._dead: list[DeadLetter] = []

    def know(self, input: str, columns: Sequence[str]) -> None:
        for n, source in enumerate(self.definition.inputs):
            if source.name == input:
                self._filters[n].learn([dict.fromkeys(columns)])

    # -- steps ------------------------------------------------------------------------------------------------------

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        self.counted = []
        by_name = by_input(self.definition.inputs, messages)
        for n, source in enumerate(self.definition.inputs):
            reading = self.definition.source if n == 0 else self.definition.markers
            arrived = sorted(by_name.get(source.name, ()), key=lambda m: m.position or ())
            self._learn(n, [{**m.payload, reading.event_time: None} for m in arrived])
            timed = [m for m in arrived if self._time_us(reading, m, now_us) is not None]
            self._filters[n].learn(
                [dict(m.payload) for m in timed] + [dict.fromkeys(m.payload) for m in arrived]
            )
            for message in arrived:
                self._admit(n, reading, message, now_us)
        self._now_us = now_us if self._now_us is None else self._now_us
        if self.definition.corrects:
            self._emit_changes()
        return self._outcome()

    def _emit_changes(self) -> None:
        """Emit the rows that the messages of a step changed and whose trigger fires at once."""
        emit = self.definition.emit
        for anchor in sorted(self._anchors, key=_by_time):
            late = anchor.decided or anchor.over_us < self.watermark_us
            if not anchor.done and isinstance(emit.late if late else emit.early, EveryBatch):
                self._emit(anchor, "LATE" if late else "EARLY")

    def _learn(self, side: int, payloads: list[dict[str, Any]]) -> None:
        if side == 0:
            self._arguments.learn(payloads)
        for name in dict.fromkeys(name for payload in payloads for name in payload) if side else ():
            self._columns.learn(name, [payload.get(name) for payload in payloads])

    def _admit(self, side: int, reading: OverDefinition, message: Message, now_us: int) -> None:
        """Keep a message, or make it a dead letter."""
        time_us = self._time_us(reading, message, now_us)
        if time_us is None:
            return self._bury("malformed", message, None)
        assert message.position is not None
        try:
            passes = self._filters[side].passes(message.payload)
        except Raised:
            return self._bury("malformed", message, time_us)
        if not passes:
            if not self._is_too_late(time_us):
                self.counted.append((*message.position[:2], time_us))
            return None
        if reading.null_keys == "dead_letter" and any(
            message.payload.get(name) is None for name in reading.by
        ):
            return self._bury("null_key", message, time_us)
        if self._is_too_late(time_us):
            return self._bury("too_late", message, time_us)
        payload = {**message.payload, reading.event_time: to_datetime(time_us)}
        self._learn(side, [payload])
        key = tuple(key_field(payload.get(name)) for name in reading.by)
        try:
            if side == 0:
                arguments = self._arguments.of(payload)
                self._held.append(Held(time_us, message.position, key, payload, arguments))
            else:
                anchor = self._anchor(time_us, message.position, key, payload)
                reason = self._refusal(anchor)
                if reason is not None:
                    return self._bury(reason, message, time_us)
                assert anchor is not None
                self._anchors.append(anchor)
        except Raised:
            return self._bury("malformed", message, time_us)
        except _Failed:
            return self._bury("function_failed", message, time_us)
        self.counted.append((*message.position[:2], time_us))

    def _time_us(self, reading: OverDefinition, message: Message, now_us: int) -> int | None:
        value, zone = message.payload.get(reading.event_time), reading.time_zone
        return event_time_us(value, zone, now_us, reading.max_ahead_us, reading.event_time_unit)

    def _is_too_late(self, time_us: int) -> bool:
        return time_us < self._closed_us or self.watermark_us == END_OF_TIME_US

    @property
    def _closed_us(self) -> int:
        """The time before which no message is accepted any more."""
        ends = self.watermark_us == END_OF_TIME_US
        return END_OF_TIME_US if ends else self.watermark_us - self.definition.late_us

    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        emit, before_us = self.definition.emit, self.watermark_us
        self.watermark_us = max(watermark_us, self.watermark_us)
        self._tick()
        for anchor in sorted(self._anchors, key=_by_time):
            if not anchor.judged and self._passed(anchor.time_us):
                self._judge(anchor)
        for anchor in sorted(self._anchors, key=_by_time):
            if anchor.done:
                continue
            passed = anchor.judged and self._passed(anchor.over_us)
            if anchor.decided or (self.definition.corrects and anchor.over_us < before_us):
                waits = isinstance(emit.late, EveryPeriod)
                if self._ends(emit.late, now_us) or (waits and self._is_closed(anchor)):
                    self._emit(anchor, "LATE")
            elif passed:
                self._emit(anchor, "ON_TIME")
            elif self._ends(emit.early, now_us):
                self._emit(anchor, "EARLY")
            anchor.done = passed and self._is_closed(anchor)
        self._now_us = now_us
        return self._outcome()

    def _ends(self, trigger: Trigger, now_us: int) -> bool:
        """True if a period of it has ended."""
        if self._now_us is None or not isinstance(trigger, EveryPeriod):
            return False
        return now_us // trigger.period_us > self._now_us // trigger.period_us

    def _is_closed(self, anchor: Anchor) -> bool:
        """True if nothing that comes has a part in it."""
        return anchor.over_us < self._closed_us or self.watermark_us == END_OF_TIME_US

    def _passed(self, time_us: int) -> bool:
        return time_us < self.watermark_us or self.watermark_us == END_OF_TIME_US

    def kept(self, input: str) -> list[Message]:
        """Return anchors without their final row, or the messages that their windows, or those of later anchors, can reach."""
        waiting = [a for a in self._anchors if not a.done]
        if input != self.definition.inputs[0].name:
            kept: Sequence[Held | Anchor] = waiting
        elif self.watermark_us == END_OF_TIME_US:
            return []
        else:
            known = [a for a in waiting if a.judged or self.definition.corrects]
            floor_us = min([self._floor_us(), *(a.low_us for a in known)])
            kept = [m for m in self._held if m.time_us >= floor_us]
        return [Message(m.payload, m.position) for m in sorted(kept, key=_by_time)]

    def _floor_us(self) -> int:
        """Return the time before which no window of an unjudged anchor begins."""
        floor_us = START_OF_TIME_US
        back_us = self.definition.back_us
        if back_us is not None:
            floor_us = max(floor_us, self._closed_us - max(back_us, self.definition.queried_us))
        if not self.definition.by:
            floor_us = max([floor_us, *(floor for _, floor in self._floors)])
        return floor_us

    # -- anchors ----------------------------------------------------------------------------------------------------

    def _anchor(
        self, time_us: int, position: Position | None, key: Key, payload: dict[str, Any]
    ) -> Anchor | None:
        """Return an anchor; None if its window has no start, no end, or ends before it starts."""
        span = self.definition.span
        assert span is not None
        obsolete_us: int | None = None
        if isinstance(span, RangeBetween):
            start_us: int | None = time_us + span.start_us
            end_us: int | None = time_us + span.end_us
        else:
            start_us, end_us, obsolete_us = (
                self._moment(span, what, payload) for what in ("start", "end", "obsolete")
            )
        if start_us is None or end_us is None or start_us > end_us:
            return None
        kept_us = None if isinstance(span, RangeBetween) else self.definition.retention.time_us
        if obsolete_us is not None and kept_us is not None and obsolete_us < time_us - kept_us:
            obsolete_us = None  # no more than the retention says
        low_us = start_us + (span.closed in ("right", "neither"))
        high_us = end_us - (span.closed in ("left", "neither"))
        return Anchor(time_us, position, key, payload, start_us, low_us, high_us, obsolete_us)

    def _moment(self, span: Between, what: str, payload: dict[str, Any]) -> int | None:
        """Return the start, the end or the obsolete time of an anchor's window; None where there is none."""
        if span.function is not None:
            try:
                moments = span.function(self._columns.typed(payload))
                value = moments[what].to_pylist()[0] if what in moments.column_names else None
            except Exception as error:
                raise _Failed from error
        else:
            moment = span.moments.get(what)
            if isinstance(moment, Expr):
                value = self._columns.value(moment, payload)
            else:
                value = None if moment is None else payload.get(moment)
        reading = self.definition.markers
        return event_time_us(value, reading.time_zone, 0, None, reading.event_time_unit)

    def _refusal(self, anchor: Anchor | None) -> str | None:
        """Return the reason why an anchor is invalid by its own values."""
        if anchor is None:
            return "malformed"
        kept_us = self.definition.retention.time_us
        if isinstance(self.definition.span, RangeBetween) or kept_us is None:
            return None
        far = anchor.start_us < anchor.time_us - kept_us or anchor.high_us > anchor.time_us + kept_us
        return "out_of_retention" if far else None

    def _judge(self, anchor: Anchor) -> None:
        """Judge an anchor: obsolete if its window begins before a promise of its key, or its own promise is a step back."""
        anchor.judged = True
        floor_us = max(
            [START_OF_TIME_US, *(floor for key, floor in self._floors if same_key(key, anchor.key))]
        )
        own_us = anchor.obsolete_us
        if anchor.start_us < floor_us or (own_us is not None and own_us < floor_us):
            anchor.done = True
            self._bury("obsolete_window", Message(anchor.payload, anchor.position), anchor.time_us)
        elif own_us is not None:
            self._floors.append((anchor.key, own_us))

    def _tick(self) -> None:
        """Add the anchors of a clock that the watermark has passed."""
        clock = self.definition.anchors
        if not isinstance(clock, Ticks) or not self._held:
            return
        at_us = self._tick_us
        if at_us is None:
            at_us = clock.first_at(min(m.time_us for m in self._held))
        last_us = max(m.time_us for m in self._held)
        while self._passed(at_us) and (at_us <= last_us or self.watermark_us < END_OF_TIME_US):
            payload = {self.definition.output_time: to_datetime(at_us)}
            anchor = self._anchor(at_us, None, (), payload)
            assert anchor is not None
            self._anchors.append(anchor)
            at_us += clock.period_us
            self._tick_us = at_us

    # -- emission ---------------------------------------------------------------------------------------------------

    def _emit(self, anchor: Anchor, timing: str) -> None:
        """Emit the anchor's row: always on time, else if it changed. Retract a row that no longer exists."""
        row, emitted = self._row_of(anchor, timing), Timing(timing)
        for values, kind, index in updated(anchor, row, timing, self.definition.emit):
            last = kind is Kind.INSERT and self._is_closed(anchor)
            self._rows.append(JoinedRow(values, emitted, kind=kind, index=index, is_last=last))

    def _row_of(self, anchor: Anchor, timing: str) -> dict[str, Any] | None:
        """Return its current row; None if there is none."""
        definition, values, broken = self.definition, dict[str, Any](), list[str]()
        held = {alias: self._held_of(anchor, aggregation) for alias, aggregation in definition.agg.items()}
        if not any(held.values()) and definition.empty == "skip":
            return None
        for alias, aggregation in definition.agg.items():
            rows = [
                Row(m.time_us, m.position, m.payload, arguments)
                for m in held[alias]
                if (arguments := m.arguments[alias]) is not None
            ]
            try:
                values[alias] = evaluate(aggregation, rows, definition.integer_overflow)
            except Exception as error:
                broken.append(
                    "integer_overflow" if isinstance(error, IntegerOverflow) else "aggregate_failed"
                )
        if broken:
            if timing != "EARLY" and not anchor.buried:
                self._bury(broken[0], Message(anchor.payload, anchor.position), anchor.time_us)
                anchor.buried = True
            return None
        columns: Mapping[str, Any] = anchor.payload
        if definition.select is not None:
            names = dict.fromkeys((*definition.by, definition.output_time, *definition.select))
            columns = {name: anchor.payload.get(name) for name in names}
        return {**columns, **values}

    def _held_of(self, anchor: Anchor, aggregation: Aggregation) -> list[Held]:
        """Return the messages in its window, or in the own frame of an aggregation."""
        low_us, high_us, frame = anchor.low_us, anchor.high_us, aggregation.frame
        if isinstance(frame, RangeBetween):
            low_us, high_us = anchor.time_us + frame.low_us, anchor.time_us + frame.high_us
        inside = [m for m in self._held if same_key(m.key, anchor.key) and low_us <= m.time_us <= high_us]
        return sorted(inside, key=_by_time)

    def _bury(self, reason: str, message: Message, time_us: int | None) -> None:
        self._dead.append(DeadLetter(reason, "", message.position, time_us, repr(dict(message.payload))))

    def _outcome(self) -> Outcome:
        done = Outcome(self._rows, self._dead)
        self._rows, self._dead = [], []
        return done


class _Failed(Exception):
    """The error of an anchor for which the user's function has no window."""


def _by_time(one: Held | Anchor) -> tuple[Any, ...]:
    return (one.time_us, one.position or ())
