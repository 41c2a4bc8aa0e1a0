"""Verification of a job against the oracle, over the job's log of steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from windrow.checkpoint.records import Step
from windrow.core.errors import CorruptState
from windrow.core.messages import DeadLetter, Message, Position, WindowInfo
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.operator import Definition
from windrow.operators.oracle.oracle import Oracle
from windrow.operators.oracle.watermark import InputsOracle
from windrow.runners.embedded import Embedded
from windrow.runners.embedded.intake import declared_of
from windrow.testing.ledger import values_equal

#: Messages that no step has ingested yet, by partition, in order.
Unread = dict[Partition, list[tuple[Position, Message]]]
#: (number of the first step, the definition from there on).
Lives = Sequence[tuple[int, Definition]]


@dataclass(frozen=True)
class Expected:
    """The oracle's output for a job's log. emitted: by operator; panes: those of the results, or rows."""

    oracle: Oracle
    emitted: Mapping[str, list[Any]]
    dead_letters: list[DeadLetter]

    @property
    def panes(self) -> list[Any]:
        return self.emitted[self.oracle.definition.name]

    @property
    def rows(self) -> list[Any]:
        return self.panes

    @property
    def windows(self) -> list[WindowInfo]:
        return self.oracle.part(self.oracle.definition.name).windows() or []

    @property
    def duplicates(self) -> int:
        return self.oracle.duplicates


def expect(
    lives: Lives,
    steps: Sequence[Step],
    fed: Mapping[Position, Message],
    pushed: set[int],
    schema: pa.Schema | Mapping[str, pa.Schema] | None = None,
) -> Expected:
    """Play the steps through the oracle. Raises where a recorded watermark is not the oracle's.

    fed: by position as the log has it; pushed: watermarks that were set explicitly
    """
    definition, waiting = lives[0][1], list(lives[1:])
    oracle = definition.oracle(declared_of(definition.inputs, schema, definition.name) or None)
    marks = InputsOracle(definition)
    emitted: dict[str, list[Any]] = {part.name: [] for part in definition.parts}
    dead: list[DeadLetter] = []
    unread: Unread = {}
    for position, message in sorted(fed.items(), key=lambda one: one[0]):
        unread.setdefault((position.source, position.partition), []).append((position, message))
    for number, step in enumerate(steps):
        while waiting and waiting[0][0] <= number:
            definition = waiting.pop(0)[1]
            oracle.redefine(definition)
        watermark_us = START_OF_TIME_US if step.watermark_us is None else step.watermark_us
        if step.kind == "ingest":
            done = oracle.ingest(_taken(definition, unread, step), step.now_us, watermark_us)
            marks.observe(oracle.counted, step.now_us)
        else:
            due_us = marks.advance(step.now_us)
            if watermark_us > due_us and (watermark_us in pushed or watermark_us == END_OF_TIME_US):
                due_us = marks.advance(step.now_us, watermark_us)
            if due_us != watermark_us:
                raise AssertionError(f"step {number} {step}: the watermark should be {due_us}")
            done = oracle.advance(watermark_us, step.now_us)
        for name, one in (oracle.gave or {definition.name: done}).items():
            emitted[name] += one.rows
        dead += done.dead
    return Expected(oracle, emitted, dead)


def _taken(definition: Definition, unread: Unread, step: Step) -> dict[str, list[Message]]:
    """Return the messages that an ingest took, by input, which are not taken again."""
    taken: dict[str, list[Message]] = {}
    prefixes = [(input.name, input.source_prefix) for input in definition.inputs]
    for partition, first in sorted(step.first_offsets.items()):
        waiting = unread.get(partition, [])
        low, high = (bisect_left(waiting, at, key=_offset) for at in (first, step.next_offsets[partition]))
        if low < high:
            name = next(name for name, prefix in prefixes if partition[0].startswith(prefix))
            found = (Message(message.payload, position) for position, message in waiting[low:high])
            taken.setdefault(name, []).extend(found)
            del waiting[low:high]
    rows = sum(map(len, taken.values()))
    if rows != step.rows:
        raise CorruptState(f"{step} took {step.rows} rows, {rows} such were fed")
    return taken


def _offset(one: tuple[Position, Message]) -> int:
    return one[0].offset


def compare(
    what: str, found: Sequence[Any], wanted: Sequence[Any], equal: Callable[[Any, Any], bool]
) -> None:
    """Raise `AssertionError` unless these are equal, one by one."""
    for number, (a, b) in enumerate(zip(found, wanted, strict=False)):
        if not equal(a, b):
            raise AssertionError(f"{what} {number} is\n  {a!r}\ninstead of\n  {b!r}")
    if len(found) > len(wanted):
        raise AssertionError(
            f"{len(found) - len(wanted)} unexpected {what}s, the first\n  {found[len(wanted)]!r}"
        )
    if len(found) < len(wanted):
        raise AssertionError(
            f"{len(wanted) - len(found)} missing {what}s, the first\n  {wanted[len(found)]!r}"
        )


def as_given(definition: Definition, position: Position) -> Position:
    """Return a message's position as its user gave it: without the name of its input."""
    for prefix in (input.source_prefix for input in definition.inputs):
        if position.source.startswith(prefix):
            return position._replace(source=position.source.removeprefix(prefix))
    return position


def letters_as_given(definition: Definition, dead_letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Return dead letters of an oracle as users see them: their input is named, where messages name theirs."""
    shown = []
    for letter in dead_letters:
        name = None
        if letter.position is not None:
            source = letter.position.source
            name = next((i.shown for i in definition.inputs if source.startswith(i.source_prefix)), None)
            letter = replace(letter, position=as_given(definition, letter.position))
        shown.append(replace(letter, input=name))
    return shown


def check_letters(definition: Definition, found: Sequence[DeadLetter], wanted: Sequence[DeadLetter]) -> None:
    """Raise unless these are the dead letters, whatever their order."""
    compare(
        "dead letter",
        sorted(found, key=_place),
        sorted(letters_as_given(definition, wanted), key=_place),
        _letters_equal,
    )


def _place(letter: DeadLetter) -> tuple[Any, ...]:
    return (letter.position is None, letter.position or (), letter.reason, letter.input or "")


def _letters_equal(a: DeadLetter, b: DeadLetter) -> bool:
    """True if reasons and positions are equal; the texts are free. The oracle has no event time for malformed messages."""
    return (
        (a.reason, a.position) == (b.reason, b.position)
        and (b.input is None or a.input == b.input)
        and (b.event_time_us is None or a.event_time_us == b.event_time_us)
    )


def check_kept(definition: Definition, op: Embedded, oracle: Oracle) -> None:
    """Raise unless kept windows and messages are those of the oracle, where it has them."""
    for part in definition.parts:
        said = oracle.part(part.name)
        windows = said.windows()
        if windows is not None:
            wanted = [info_as_given(definition, info) for info in windows]
            compare(f"window of {part.name!r}", op.get_windows(operator=part.name), wanted, _infos_equal)
        for input in part.inputs:
            messages = said.kept(input.name)
            if messages is None:
                continue
            kept = sorted(m.position for m in op.get_messages(input=input.name, operator=part.name))
            there = sorted(as_given(definition, m.position) for m in messages if m.position is not None)
            compare(f"message of {input.name!r}", kept, there, lambda a, b: bool(a == b))


def info_as_given(definition: Definition, info: WindowInfo) -> WindowInfo:
    first, last = info.first, info.last
    assert first is not None and last is not None
    return replace(info, first=as_given(definition, first), last=as_given(definition, last))


def _infos_equal(a: WindowInfo, b: WindowInfo) -> bool:
    return (
        (a.window, a.messages, a.first, a.last, a.panes) == (b.window, b.messages, b.first, b.last, b.panes)
        and values_equal(a.key, b.key)
        and values_equal(a.values, b.values)
    )
