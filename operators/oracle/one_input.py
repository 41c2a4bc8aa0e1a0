"""Base of the oracles of operators with one input whose rows are emitted once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windrow.core.messages import DeadLetter, JoinedRow, Kind, Message, Timing
from windrow.core.policy import UNBOUNDED_US
from windrow.core.time import END_OF_TIME_US, to_datetime
from windrow.operators.oracle.arrow import Filter, Raised
from windrow.operators.oracle.cells import Key, key_field
from windrow.operators.oracle.oracle import Messages, Oracle, Outcome, listed
from windrow.operators.oracle.times import event_time_us


class OneInputOracle(Oracle):
    """An oracle of one input. `accept` gets the messages one by one, in position order, without dead letters."""

    def __init__(self, definition: Any) -> None:
        super().__init__(definition)
        self._rows: list[JoinedRow] = []
        self._dead: list[DeadLetter] = []
        self._filter = Filter(definition.where)
        #: The input whose messages are ingested.
        self._input = definition.inputs[0]

    @abstractmethod
    def accept(self, message: Message, time_us: int, now_us: int) -> bool:
        """Accept a message, whose event time is a datetime by now. False if it is a dead letter all the same."""

    def pass_time(self, before_us: int, now_us: int) -> None:
        """Process the advance of event time from `before_us` to `watermark_us`."""
        return None

    def know(self, input: str, columns: Sequence[str]) -> None:
        self._filter.learn([dict.fromkeys(columns)])

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        self.counted = []
        self._input = self.definition.inputs[0]
        self._ingest(messages, now_us, self.accept)
        return self._outcome()

    def _ingest(self, messages: Messages, now_us: int, accept: Callable[[Message, int, int], bool]) -> None:
        """Ingest messages of one input. accept: as `OneInputOracle.accept`"""
        timed = [m for m in listed(messages) if self._time_us(m, now_us) is not None]
        self._filter.learn(
            [dict(m.payload) for m in timed] + [dict.fromkeys(m.payload) for m in listed(messages)]
        )
        for message in sorted(listed(messages), key=lambda m: m.position or ()):
            time_us = self._time_us(message, now_us)
            if time_us is not None and not self._passes(message, time_us):
                continue
            reason = self._refusal(message.payload, time_us)
            if reason is not None:
                self.bury(reason, message, time_us)
                continue
            assert time_us is not None and message.position is not None
            payload = {**message.payload, self.definition.event_time: to_datetime(time_us)}
            if accept(Message(payload, message.position), time_us, now_us):
                self.counted.append((*message.position[:2], time_us))

    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        before_us, self.watermark_us = self.watermark_us, max(watermark_us, self.watermark_us)
        self.pass_time(before_us, now_us)
        return self._outcome()

    def emit_row(
        self, timing: str, row: Mapping[str, Any], kind: str = "INSERT", index: int = 0, is_last: bool = True
    ) -> None:
        self._rows.append(JoinedRow(dict(row), Timing(timing), kind=Kind(kind), index=index, is_last=is_last))

    def bury(self, reason: str, message: Message | None, time_us: int | None = None) -> None:
        position = None if message is None else message.position
        payload = None if message is None else dict(message.payload)
        self._dead.append(DeadLetter(reason, "", position, time_us, repr(payload)))

    def is_late(self, time_us: int) -> bool:
        return time_us < self.watermark_us

    def key_of(self, payload: Mapping[str, Any], *more: str) -> Key:
        """Return the values of the key columns, and of `more`."""
        return tuple(key_field(payload.get(name)) for name in (*self.definition.by, *more))

    def _time_us(self, message: Message, now_us: int) -> int | None:
        made, value = self.definition, message.payload.get(self.definition.event_time)
        return event_time_us(value, made.time_zone, now_us, self._input.max_ahead_us, made.event_time_unit)

    def _passes(self, message: Message, time_us: int) -> bool:
        """True if a message passes the filter of the input. A rejected one still advances the watermark."""
        try:
            if self._filter.passes(message.payload):
                return True
        except Raised:
            self.bury("malformed", message, time_us)
            return False
        if not self._is_too_late(time_us):
            assert message.position is not None
            self.counted.append((*message.position[:2], time_us))
        return False

    def _is_too_late(self, time_us: int) -> bool:
        if self._input.static:
            return False
        late_us = self.definition.late_us
        bounded = late_us < UNBOUNDED_US and time_us < self.watermark_us - late_us
        return bounded or self.watermark_us == END_OF_TIME_US

    def _refusal(self, payload: Mapping[str, Any], time_us: int | None) -> str | None:
        """Return the reason why a message cannot be counted."""
        made = self.definition
        ids = () if made.ids is None else made.ids.columns
        if time_us is None or any(payload.get(name) is None for name in ids):
            return "malformed"
        if made.null_keys == "dead_letter" and any(payload.get(name) is None for name in made.by):
            return "null_key"
        return "too_late" if self._is_too_late(time_us) else None

    def _outcome(self) -> Outcome:
        done = Outcome(self._rows, self._dead)
        self._rows, self._dead = [], []
        return done
