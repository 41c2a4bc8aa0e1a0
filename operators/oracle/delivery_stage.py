"""The oracle of delivery policies: an operator sees only the messages that the policies of its inputs let pass.

A policy takes, of the countable messages of a step, the newest, the young, or one in an interval. The others are skipped, but
advance the watermark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from windrow.core.deliver import Policy
from windrow.core.inputs import Input
from windrow.core.messages import DeadLetter, Message, WindowInfo
from windrow.core.time import END_OF_TIME_US, to_datetime
from windrow.operators.oracle.arrow import Filter, Raised
from windrow.operators.oracle.cells import Key, key_field
from windrow.operators.oracle.oracle import Messages, Oracle, Outcome, by_input
from windrow.operators.oracle.times import event_time_us


def delivering(definition: Any, oracle: Oracle, schemas: Mapping[str, Any] | None) -> Oracle:
    """Wrap an oracle, whose inputs have these columns, in the delivery policies of the inputs."""
    made = DeliveringOracle(definition, oracle) if definition.policies else oracle
    for name, schema in (schemas or {}).items():
        made.know(name, schema.names)
    return made


class DeliveringOracle(Oracle):
    """An oracle with delivery policies. oracle: of the operator, which gets the messages that pass."""

    def __init__(self, definition: Any, oracle: Oracle) -> None:
        super().__init__(definition)
        self._oracle = oracle
        self.takes_columns = oracle.takes_columns
        self._filters = {
            input.name: [Filter(input.where), self._guarantee(input)] for input in definition.inputs
        }
        #: (input, key): when a message of it was taken last.
        self._last_us: dict[tuple[str, Key], int] = {}

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        by_name, buried, skipped = by_input(self.definition.inputs, messages), list[DeadLetter](), list[Any]()
        for one in self.definition.inputs:
            policy = self.definition.policies.get(one.name)
            if policy is not None and one.name in by_name:
                by_name[one.name] = self._taken(one, policy, by_name[one.name], now_us, buried, skipped)
        done = self._oracle.ingest(by_name, now_us, watermark_us)
        self._follow()
        self.counted = [*self._oracle.counted, *skipped]
        return Outcome(done.rows, [*done.dead, *buried])

    def feed(self, inputs: Collection[str]) -> None:
        self._oracle.feed(inputs)

    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        done = self._oracle.advance(watermark_us, now_us)
        if watermark_us == END_OF_TIME_US:
            self._last_us.clear()
        self._follow()
        return done

    def _taken(
        self,
        input: Input,
        policy: Policy,
        messages: Sequence[Message],
        now_us: int,
        buried: list[DeadLetter],
        advancing: list[Any],
    ) -> list[Message]:
        """Return the messages of an input that pass, with the dead letters that the operator has to record."""
        self._learn(input, messages, now_us)
        taken, came = list[Message](), list[tuple[Message, int, bool]]()
        for message in sorted(messages, key=lambda m: m.position or ()):
            time_us = self._time_us(input, message, now_us)
            try:
                counts = time_us is not None and self._counts(input, message)
                sure = counts and self._is_sure(input, policy, message, time_us)
            except Raised:
                buried.append(self._letter("malformed", message, time_us))
                continue
            if counts:
                assert time_us is not None
                came.append((message, time_us, sure))
            else:
                taken.append(message)
        passed = [
            (i, m)
            for i, (m, t, sure) in enumerate(came)
            if sure or self._wanted(input, policy, came, i, now_us)
        ]
        numbers = {i for i, _ in passed}
        if policy.mark is not None:
            skipped = [m for i, (m, _, _) in enumerate(came) if i not in numbers]
            emitted = (
                [(m, False) for m in taken] + [(m, False) for _, m in passed] + [(m, True) for m in skipped]
            )
            taken = [Message({**m.payload, policy.mark: mark}, m.position) for m, mark in emitted]
            came = []
        for i, (message, time_us, _) in enumerate(came):
            if i not in numbers:
                assert message.position is not None
                advancing.append((*message.position[:2], time_us))
                if policy.record is not None:
                    buried.append(self._letter("skipped", message, time_us))
        if policy.interval_us is not None:
            self._last_us |= {(input.name, self._key(input, policy, m)): now_us for _, m in passed}
        return taken if policy.mark is not None else taken + [m for _, m in passed]

    def _wanted(
        self, input: Input, policy: Policy, came: Sequence[tuple[Message, int, bool]], i: int, now_us: int
    ) -> bool:
        """True if a message passes that nothing guarantees."""
        message, time_us, _ = came[i]
        if policy.within_us is not None:
            return now_us - time_us <= policy.within_us
        key, room = self._key(input, policy, message), policy.newest
        if policy.interval_us is not None:
            last_us = self._last_us.get((input.name, key))
            room = 1 if last_us is None or now_us - last_us >= policy.interval_us else 0
        assert room is not None
        before = [sure for m, _, sure in came[:i] if self._key(input, policy, m) == key]
        behind = [sure for m, _, sure in came[i + 1 :] if self._key(input, policy, m) == key]
        return sum(before) + len(behind) < room

    def _key(self, input: Input, policy: Policy, message: Message) -> Key:
        by = self.definition.keys(input) if policy.per == "key" else ()
        return tuple(key_field(message.payload.get(name)) for name in by)

    def _time_us(self, input: Input, message: Message, now_us: int) -> int | None:
        value, unit = message.payload.get(input.event_time), input.event_time_unit
        return event_time_us(value, input.time_zone, now_us, input.max_ahead_us, unit)

    def _counts(self, input: Input, message: Message) -> bool:
        """True if it passes the filter and its keys and ids are there. Raises `Raised`."""
        payload, definition = message.payload, self.definition
        ids = () if definition.ids is None else definition.ids.columns
        needed = [*ids]
        if getattr(definition, "null_keys", "group") == "dead_letter":
            needed += definition.keys(input)
        return self._filters[input.name][0].passes(payload) and not any(
            payload.get(n) is None for n in needed
        )

    def _learn(self, input: Input, messages: Sequence[Message], now_us: int) -> None:
        """Learn the columns of a step's messages, and their types."""
        where, guarantee = self._filters[input.name]
        timed = [m for m in messages if self._time_us(input, m, now_us) is not None]
        where.learn([dict(m.payload) for m in timed] + [dict.fromkeys(m.payload) for m in messages])
        guarantee.learn([{**m.payload, input.event_time: None} for m in messages])
        if messages:  # skipped messages declare their columns, too
            self._oracle.know(input.name, list(dict.fromkeys(name for m in messages for name in m.payload)))

    def _guarantee(self, input: Input) -> Filter:
        return Filter(None if input.deliver is None else input.deliver.guaranteed)

    def _is_sure(self, input: Input, policy: Policy, message: Message, time_us: int | None) -> bool:
        assert time_us is not None
        payload = {**message.payload, input.event_time: to_datetime(time_us)}
        guarantee = self._filters[input.name][1]
        guarantee.learn([payload])
        return policy.guaranteed is not None and guarantee.passes(payload)

    def _letter(self, reason: str, message: Message, time_us: int | None) -> DeadLetter:
        return DeadLetter(reason, "", message.position, time_us, repr(dict(message.payload)))

    def _follow(self) -> None:
        """Copy the public state of the operator's oracle."""
        self.watermark_us, self.duplicates = self._oracle.watermark_us, self._oracle.duplicates
        self.counted = self._oracle.counted

    # -- as the operator's ------------------------------------------------------------------------------------------

    def redefine(self, definition: Any) -> None:
        super().redefine(definition)
        self._oracle.redefine(definition)

    def windows(self) -> list[WindowInfo] | None:
        return self._oracle.windows()

    def kept(self, input: str) -> list[Message] | None:
        return self._oracle.kept(input)

    def forwarded(self, row: Any) -> dict[str, Any]:
        return self._oracle.forwarded(row)

    @property
    def columns(self) -> Sequence[str]:
        return self._oracle.columns

    def know(self, input: str, columns: Sequence[str]) -> None:
        [only, *others] = self._filters
        for condition in self._filters[input if others else only]:  # a single input may have any name
            condition.learn([dict.fromkeys(columns)])
        policy = self.definition.policies.get(input if others else only)
        marks = [policy.mark] if policy is not None and policy.mark is not None else []
        self._oracle.know(input, [*columns, *marks])


__all__ = ["DeliveringOracle", "delivering"]
