"""How the oracle of an aggregate takes messages in: places them, makes columns, buries what cannot be counted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from windrow.core.aggregation import Aggregation
from windrow.core.inputs import Input
from windrow.core.messages import DeadLetter, Message, Position
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.oracle_ids import PlainIds
from windrow.operators.oracle.arrow import Arguments, Filter, Raised
from windrow.operators.oracle.cells import Key, Taken, key_field
from windrow.operators.oracle.oracle import Oracle, TakenBack
from windrow.operators.oracle.times import event_time_us


class PlainIntake(Oracle):
    """What an aggregate does with a message before windows come in."""

    definition: AggregateDefinition

    def __init__(self, definition: AggregateDefinition) -> None:
        super().__init__(definition)
        self._arrived = 0
        self._ids = PlainIds(definition)
        self._arguments = {i.name: Arguments(self._of(i.name)) for i in definition.inputs}
        wheres = {i.name: definition.where if i.where is None else i.where for i in definition.inputs}
        self._filters = {name: Filter(where) for name, where in wheres.items()}
        #: What else is asked of messages, beside aggregations, by input.
        self._asked: dict[str, list[Arguments]] = {name: [f] for name, f in self._filters.items()}
        self._derived = Arguments({name: Aggregation("any_value", (e,)) for name, e in definition.makes})
        self._dead: list[DeadLetter] = []
        self._inputs = definition, definition.inputs

    def know(self, input: str, columns: Sequence[str]) -> None:
        [only, *others] = self._arguments
        name = input if others else only  # one input is one, whatever it is called
        for arguments in (self._arguments[name], *self._asked[name]):
            arguments.learn([dict.fromkeys(columns)])
        self._learn_made([dict.fromkeys(columns)])

    # -- of which input -----------------------------------------------------------------------------------------------

    def _input_of(self, position: Position | None) -> Input:
        """The input of a message; with several, the source of its position begins with its name."""
        if self._inputs[0] is not self.definition:  # which makes them anew whenever it is asked
            self._inputs = self.definition, self.definition.inputs
        first, *others = self._inputs[1]
        if not others or position is None:
            return first
        return self.definition.input(position.source.partition(":")[0])

    def _of(self, input: str) -> dict[str, Aggregation]:
        """The aggregations of an input: its own, and those of all."""
        return {
            alias: part for alias, a in self.definition.agg.items() if (part := a.part(input)) is not None
        }

    def _learn_arguments(self, admitted: Iterable[Taken], others: Iterable[Message]) -> None:
        """What columns are. A column is known by its name also where only a message that does not count has it: `others`."""
        for name, arguments in self._arguments.items():
            known = [m.payload for m in admitted if self._input_of(m.position).name == name]
            arguments.learn(
                known + [dict.fromkeys(m.payload) for m in others if self._input_of(m.position).name == name]
            )

    def _arguments_of(self, message: Taken) -> dict[str, tuple[Any, ...] | None]:
        """By alias; None where the message is not one of those that are aggregated. Raises `Raised`."""
        found = self._arguments[self._input_of(message.position).name].of(message.payload)
        return {alias: found.get(alias) for alias in self.definition.agg}

    def _admitted(self, messages: Sequence[Message], now_us: int, watermark_us: int) -> list[Taken]:
        """The messages of a step that pass the filter and can be counted, in order."""
        self._learn_made([m.payload for m in messages])
        made = [m for placed in self._in_order(messages) if (m := self._with_made(placed)) is not None]
        timed = [t for m in made if (t := self._timed(m, now_us)) is not None]
        every = [*messages, *(m for _, m in made)]
        for name, asked in self._asked.items():
            known = [t.payload for t in timed if self._input_of(t.position).name == name]
            known += [dict.fromkeys(m.payload) for m in every if self._input_of(m.position).name == name]
            for arguments in asked:
                arguments.learn(known)
        admitted = [t for t in timed if self._passes(t, watermark_us) and self._admit(t)]
        self._learn_arguments(admitted, every)
        return admitted

    def _learn_made(self, payloads: Iterable[Mapping[str, Any]]) -> None:
        """All but times: what is none is of any type."""
        time = self.definition.event_time
        self._derived.learn([{n: v for n, v in payload.items() if n != time} for payload in payloads])

    # -- one by one ---------------------------------------------------------------------------------------------------

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
            found = self._derived.of(dict(message.payload))
        except Raised as error:
            self._bury("malformed", str(error), position, None, dict(message.payload))
            return None
        columns = {name: values[0] for name, values in found.items() if values is not None}
        return position, replace(message, payload={**message.payload, **columns})

    def _timed(self, placed: tuple[Position, Message], now_us: int) -> Taken | None:
        position, message = placed
        payload, given = dict(message.payload), self._input_of(position)
        value = payload.get(given.event_time)
        time_us = event_time_us(value, given.time_zone, now_us, given.max_ahead_us, given.event_time_unit)
        if time_us is None:
            self._bury("malformed", f"event time {given.event_time!r} is {value!r}", position, None, payload)
            return None
        sign = -1 if isinstance(placed[1], TakenBack) else 1
        return Taken(time_us, position, payload, {}, sign=sign)

    def _passes(self, message: Taken, watermark_us: int) -> bool:
        """The filter of the input. What does not pass is nothing, but it was heard, as if it had passed."""
        try:
            if self._filters[self._input_of(message.position).name].passes(message.payload):
                return True
        except Raised as error:
            self._bury("malformed", str(error), message.position, message.time_us, message.payload)
            return False
        if self._only_advances(message, watermark_us):
            self.counted.append((message.position.source, message.position.partition, message.time_us))
        return False

    @abstractmethod
    def _only_advances(self, message: Taken, watermark_us: int) -> bool:
        """True of what would not be too late by itself."""

    def _admit(self, message: Taken) -> bool:
        position, time_us, payload = message.position, message.time_us, message.payload
        if self._ids.are_missing(payload):
            self._bury("malformed", "an id is null", position, time_us, payload)
            return False
        nulls = [column for column in self._keys_of(position) if payload.get(column) is None]
        if nulls and self.definition.null_keys == "dead_letter":
            self._bury("null_key", f"key field {nulls[0]!r} is null", position, time_us, payload)
            return False
        return True

    def _key_of(self, message: Taken) -> Key:
        return tuple(key_field(message.payload.get(column)) for column in self._keys_of(message.position))

    def _keys_of(self, position: Position) -> tuple[str, ...]:
        return self.definition.keys(self._input_of(position))

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
