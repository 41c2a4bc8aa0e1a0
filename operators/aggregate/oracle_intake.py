"""Intake of the aggregate's oracle: orders messages, derives columns, drops messages that cannot be counted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from windrow.core.aggregation import Aggregation
from windrow.core.expressions import Expr
from windrow.core.inputs import Input
from windrow.core.messages import DeadLetter, Message, Position
from windrow.core.policy import UNBOUNDED_US
from windrow.core.windows import Hopping, Session, Tuples, TupleSession
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.oracle.aggregates import is_nan
from windrow.operators.oracle.arrow import Arguments, Filter, Raised
from windrow.operators.oracle.cells import Key, Taken, key_field
from windrow.operators.oracle.oracle import Oracle, TakenBack
from windrow.operators.oracle.times import event_time_us
from windrow.operators.oracle.windows import windows_of


class PlainIds:
    """The ids of one definition's messages; of a definition without ids, nothing."""

    def __init__(self, definition: AggregateDefinition) -> None:
        self._definition = definition
        self._columns = () if definition.ids is None else definition.ids.columns
        self._seen: dict[tuple[Key, Key], int] = {}  # key and ids -> event time of the message that had them

    def are_missing(self, payload: Mapping[str, Any]) -> bool:
        return any(payload.get(column) is None or is_nan(payload[column]) for column in self._columns)

    def is_new(self, key: Key, message: Taken, watermark_us: int) -> bool:
        """False for a message of a key and ids that are remembered."""
        if not self._columns:
            return True
        known_as = self._known_as(key, message)
        before_us = self._seen.get(known_as)
        if before_us is not None and self._remembered(before_us, watermark_us):
            return False
        self._seen[known_as] = message.time_us
        return True

    def forget(self, key: Key, message: Taken) -> None:
        """Forget the ids of a message that cannot be counted: the next one with them is new."""
        if self._columns:
            del self._seen[self._known_as(key, message)]

    def _known_as(self, key: Key, message: Taken) -> tuple[Key, Key]:
        values = [message.payload[column] for column in self._columns]
        # Messages of several inputs are known within their own.
        several = len(self._definition.inputs) > 1
        input = message.position.source.partition(":")[0] if several else None
        return key, (input, *((isinstance(value, bool), value) for value in values))

    def _remembered(self, time_us: int, watermark_us: int) -> bool:
        """True until the last window that begins at or before the event time is out of retention."""
        spec, kept_us = self._definition.window, self._definition.retention.time_us
        if kept_us is None or kept_us >= UNBOUNDED_US or isinstance(spec, Tuples | TupleSession):
            return True
        if isinstance(spec, Session):  # until a message of that time is out of retention by itself
            cell = windows_of(spec.cut, time_us) if spec.cut is not None else []
            gap_us = 0 if isinstance(spec.gap, Expr) else spec.gap
            end_us = min([time_us + gap_us, *(window.end_us for window in cell)])
            return end_us + kept_us >= watermark_us
        covering = windows_of(spec, time_us)
        while not covering and isinstance(spec, Hopping):  # in a gap between hops: the window before it
            time_us -= spec.size_us
            covering = windows_of(spec, time_us)
        return covering[-1].end_us + kept_us > watermark_us


class PlainIntake(Oracle):
    """The handling of a message before it reaches windows."""

    definition: AggregateDefinition

    def __init__(self, definition: AggregateDefinition) -> None:
        super().__init__(definition)
        self._arrived = 0
        self._ids = PlainIds(definition)
        self._arguments = {i.name: Arguments(self._of(i.name)) for i in definition.inputs}
        wheres = {i.name: definition.where if i.where is None else i.where for i in definition.inputs}
        self._filters = {name: Filter(where) for name, where in wheres.items()}
        #: Other expressions over messages besides aggregations, by input.
        self._asked: dict[str, list[Arguments]] = {name: [f] for name, f in self._filters.items()}
        self._derived = Arguments({name: Aggregation("any_value", (e,)) for name, e in definition.makes})
        self._dead: list[DeadLetter] = []
        self._inputs = definition, definition.inputs

    def know(self, input: str, columns: Sequence[str]) -> None:
        [only, *others] = self._arguments
        name = input if others else only  # a single input takes any name
        for arguments in (self._arguments[name], *self._asked[name]):
            arguments.learn([dict.fromkeys(columns)])
        self._learn_made([dict.fromkeys(columns)])

    # -- the input of a message ---------------------------------------------------------------------------------------

    def _input_of(self, position: Position | None) -> Input:
        """Return the input of a message; with several, the source of its position begins with its name."""
        if self._inputs[0] is not self.definition:  # it builds them at each call
            self._inputs = self.definition, self.definition.inputs
        first, *others = self._inputs[1]
        if not others or position is None:
            return first
        return self.definition.input(position.source.partition(":")[0])

    def _of(self, input: str) -> dict[str, Aggregation]:
        """Return the aggregations of an input: its own, and those of all."""
        return {
            alias: part for alias, a in self.definition.agg.items() if (part := a.part(input)) is not None
        }

    def _learn_arguments(self, admitted: Iterable[Taken], others: Iterable[Message]) -> None:
        """Record the columns of inputs. A column of a message that does not count is known by name only: `others`."""
        for name, arguments in self._arguments.items():
            known = [m.payload for m in admitted if self._input_of(m.position).name == name]
            arguments.learn(
                known + [dict.fromkeys(m.payload) for m in others if self._input_of(m.position).name == name]
            )

    def _arguments_of(self, message: Taken) -> dict[str, tuple[Any, ...] | None]:
        """Return arguments by alias; None where the message is not aggregated. Raises `Raised`."""
        arguments = self._arguments[self._input_of(message.position).name].of(message.payload)
        return {alias: arguments.get(alias) for alias in self.definition.agg}

    def _admitted(self, messages: Sequence[Message], now_us: int, watermark_us: int) -> list[Taken]:
        """Return the messages of a step that pass the filter and can be counted, in order."""
        self._learn_made([m.payload for m in messages])
        derived = [m for placed in self._in_order(messages) if (m := self._with_made(placed)) is not None]
        timed = [t for m in derived if (t := self._timed(m, now_us)) is not None]
        every = [*messages, *(m for _, m in derived)]
        for name, asked in self._asked.items():
            known = [t.payload for t in timed if self._input_of(t.position).name == name]
            known += [dict.fromkeys(m.payload) for m in every if self._input_of(m.position).name == name]
            for arguments in asked:
                arguments.learn(known)
        admitted = [t for t in timed if self._passes(t, watermark_us) and self._admit(t)]
        self._learn_arguments(admitted, every)
        return admitted

    def _learn_made(self, payloads: Iterable[Mapping[str, Any]]) -> None:
        """Learn derived columns, without the event time: values that are no time may have any type."""
        time = self.definition.event_time
        self._derived.learn([{n: v for n, v in payload.items() if n != time} for payload in payloads])

    # -- one by one ---------------------------------------------------------------------------------------------------

    def _in_order(self, messages: Iterable[Message]) -> list[tuple[Position, Message]]:
        """Return messages by (source, partition, offset, ordinal); messages without a position are numbered on arrival."""
        placed = []
        for message in messages:
            position = message.position
            if position is None:
                position = Position("", 0, self._arrived)
                self._arrived += 1
            placed.append((position, message))
        return sorted(placed, key=lambda pair: pair[0])

    def _with_made(self, placed: tuple[Position, Message]) -> tuple[Position, Message] | None:
        """Return the message with the derived keys and the derived time."""
        position, message = placed
        try:
            derived = self._derived.of(dict(message.payload))
        except Raised as error:
            self._bury("malformed", str(error), position, None, dict(message.payload))
            return None
        columns = {name: values[0] for name, values in derived.items() if values is not None}
        return position, replace(message, payload={**message.payload, **columns})

    def _timed(self, placed: tuple[Position, Message], now_us: int) -> Taken | None:
        position, message = placed
        payload, input = dict(message.payload), self._input_of(position)
        value = payload.get(input.event_time)
        time_us = event_time_us(value, input.time_zone, now_us, input.max_ahead_us, input.event_time_unit)
        if time_us is None:
            self._bury("malformed", f"event time {input.event_time!r} is {value!r}", position, None, payload)
            return None
        sign = -1 if isinstance(placed[1], TakenBack) else 1
        return Taken(time_us, position, payload, {}, sign=sign)

    def _passes(self, message: Taken, watermark_us: int) -> bool:
        """True for a message that passes the filter of the input. Another one only advances the watermark."""
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
        """True for a message that would not be too late by itself."""

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
        """Return dead letters by position; failed panes come last."""
        return sorted(self._dead, key=lambda letter: (letter.position is None, letter.position or ()))
