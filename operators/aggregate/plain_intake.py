"""How the oracle of an aggregate takes messages in: places them, makes columns, buries what cannot be counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from windrow.core.aggregation import Aggregation
from windrow.core.messages import DeadLetter, Message, Position
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.plain_ids import PlainIds
from windrow.operators.plain.arrow import Arguments, Filter, Raised
from windrow.operators.plain.cells import Key, Taken, key_field
from windrow.operators.plain.oracle import Oracle, TakenBack
from windrow.operators.plain.times import event_time_us


class PlainIntake(Oracle):
    """What an aggregate does with a message before windows come in."""

    definition: AggregateDefinition

    def __init__(self, definition: AggregateDefinition) -> None:
        super().__init__(definition)
        self._arrived = 0
        self._ids = PlainIds(definition)
        self._arguments = Arguments(dict(definition.agg))
        self._filter = Filter(definition.where)
        self._made = Arguments({name: Aggregation("any_value", (e,)) for name, e in definition.makes})
        self._dead: list[DeadLetter] = []

    def know(self, input: str, columns: Sequence[str]) -> None:
        for arguments in (self._arguments, self._filter, self._made):
            arguments.learn([dict.fromkeys(columns)])

    def _in_order(self, messages: Iterable[Message]) -> list[tuple[Position, Message]]:
        """By (source, partition, offset, ordinal); messages without a position are numbered on arrival."""
        placed = []
        for message in messages:
            position = message.position
            if position is None:
                position = Position("", 0, self._arrived)
                self._arrived += 1
            placed.append((position, message))
        return sorted(placed, key=lambda pair: pair[0])

    def _with_made(self, placed: tuple[Position, Message]) -> tuple[Position, Message] | None:
        """The message with the keys and the time that are made of its columns."""
        position, message = placed
        try:
            found = self._made.of(dict(message.payload))
        except Raised as error:
            self._bury("malformed", str(error), position, None, dict(message.payload))
            return None
        columns = {name: values[0] for name, values in found.items() if values is not None}
        return position, replace(message, payload={**message.payload, **columns})

    def _timed(self, placed: tuple[Position, Message], now_us: int) -> Taken | None:
        position, message = placed
        payload = dict(message.payload)
        time_us = self._event_time(payload.get(self.definition.event_time), now_us)
        if time_us is None:
            detail = (
                f"event time {self.definition.event_time!r} is {payload.get(self.definition.event_time)!r}"
            )
            self._bury("malformed", detail, position, None, payload)
            return None
        sign = -1 if isinstance(placed[1], TakenBack) else 1
        return Taken(time_us, position, payload, {}, sign=sign)

    def _admit(self, message: Taken) -> bool:
        position, time_us, payload = message.position, message.time_us, message.payload
        if self._ids.are_missing(payload):
            self._bury("malformed", "an id is null", position, time_us, payload)
            return False
        nulls = [column for column in self.definition.by if payload.get(column) is None]
        if nulls and self.definition.null_keys == "dead_letter":
            self._bury("null_key", f"key field {nulls[0]!r} is null", position, time_us, payload)
            return False
        return True

    def _key_of(self, message: Taken) -> Key:
        return tuple(key_field(message.payload.get(column)) for column in self.definition.by)

    def _event_time(self, value: Any, now_us: int) -> int | None:
        return event_time_us(
            value,
            self.definition.time_zone,
            now_us,
            self.definition.max_ahead_us,
            self.definition.event_time_unit,
        )

    def _bury(
        self,
        reason: str,
        detail: str,
        position: Position | None,
        time_us: int | None,
        payload: dict[str, Any],
    ) -> None:
        self._dead.append(DeadLetter(reason, detail, position, time_us, repr(payload)))

    def _buried(self) -> list[DeadLetter]:
        """By position; panes that could not be come last."""
        return sorted(self._dead, key=lambda letter: (letter.position is None, letter.position or ()))
