"""A chain in the plainest possible Python: the oracles of its operators, one feeding the next. Semantics "Chains".

It shares nothing with the operators but the value types of `windrow.core`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from windrow.checkpoint.records import Step
from windrow.core.inputs import Input
from windrow.core.messages import DeadLetter, JoinedRow, Message, Pane, Position, Window, WindowInfo
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, to_datetime
from windrow.operators.graph.definition import (
    WINDOW_COLUMNS,
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME,
    ChainDefinition,
    handed_input,
)
from windrow.operators.join.definition import JoinDefinition
from windrow.testing.oracle import AggregateOracle
from windrow.testing.oracle_join import JoinOracle

Told: TypeAlias = "Sequence[Pane | JoinedRow]"
Messages: TypeAlias = "Sequence[Message] | Mapping[str, Sequence[Message]]"


@dataclass
class ChainStep:
    """What a step of a chain gives, or several: of each operator, by name, what it told and its dead letters."""

    told: dict[str, list[Any]] = field(default_factory=dict)
    dead: dict[str, list[DeadLetter]] = field(default_factory=dict)

    def add(self, name: str, told: Told, dead: Sequence[DeadLetter]) -> None:
        self.told.setdefault(name, []).extend(told)
        self.dead.setdefault(name, []).extend(dead)


class ChainOracle:
    """The expected behaviour of one `wr.chain`.

    `advance(watermark_us, now_us)` and `ingest(messages, now_us, watermark_us)` are the two kinds of step; where an operator
    is a join, messages are given by input. schemas: the columns of all inputs, where they are known before the first message.
    """

    def __init__(self, definition: ChainDefinition, schemas: Mapping[str, pa.Schema] | None = None) -> None:
        self.definition = definition
        self._oracles: list[Any] = [
            JoinOracle(p, _of(definition.inputs_of(i), schemas))
            if isinstance(p, JoinDefinition)
            else AggregateOracle(p)
            for i, p in enumerate(definition.logics)
        ]
        self._steps = [0] * len(self._oracles)
        for i, part in enumerate(definition.parts[1:]):
            if schemas is not None and isinstance(part, JoinDefinition):
                self._oracles[i + 1].know(handed_input(definition.parts[i], part).name, self._columns(i))

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> ChainStep:
        """Each operator takes what the one before it told of the step's messages; a join also its own from outside."""
        whole, told = ChainStep(), list[Any]()
        for i in range(len(self._oracles)):
            taken = self._handed(i - 1, told) if i else None
            if i:
                watermark_us = self._oracles[i].watermark_us
            told = self._take(i, taken, messages, now_us, watermark_us, whole)
        return whole

    def advance(self, watermark_us: int, now_us: int) -> ChainStep:
        """Each operator takes what the one before it told, then advances to the watermark that that one leaves it."""
        whole, taken = ChainStep(), list[Message]()
        for i, part in enumerate(self.definition.parts):
            told: list[Any] = []
            if i:
                watermark_us = self._behind(i - 1, watermark_us)
                if taken:
                    told += self._take(i, taken, {}, now_us, self._oracles[i].watermark_us, whole)
            done = self._oracles[i].advance(watermark_us, now_us)
            self._steps[i] += 1
            whole.add(part.name, done[0], done[1])
            told += done[0]
            taken = self._handed(i, told)
        return whole

    def replay(self, steps: Iterable[Step], messages: Iterable[Message]) -> ChainStep:
        """The recorded steps of a job, done again with all messages that it was fed, by position."""
        whole = ChainStep()
        left = {m.position: m for m in messages if m.position is not None}
        for step in steps:
            watermark_us = START_OF_TIME_US if step.watermark_us is None else step.watermark_us
            if step.kind == "advance":
                done = self.advance(watermark_us, step.now_us)
            else:
                slice_ = [left.pop(p) for p in sorted(left) if _in(step, p)]
                assert len(slice_) == step.rows, f"{step} took {step.rows} rows, {len(slice_)} such were fed"
                done = self.ingest(self._by_input(slice_), step.now_us, watermark_us)
            for name in done.told:
                whole.add(name, done.told[name], done.dead[name])
        return whole

    def windows(self, name: str | None = None) -> list[WindowInfo]:
        """Every window that an aggregate of the chain keeps; by default the last one."""
        names = [p.name for p in self.definition.parts]
        found: list[WindowInfo] = self._oracles[names.index(name or names[-1])].windows()
        return found

    def _take(
        self,
        i: int,
        handed: Sequence[Message] | None,
        outside: Messages,
        now_us: int,
        watermark_us: int,
        whole: ChainStep,
    ) -> list[Any]:
        """An operator's ingest of what the one before it told and of its own; an aggregate's of nothing is none."""
        part = self.definition.parts[i]
        if isinstance(part, JoinDefinition):
            assert isinstance(outside, Mapping)
            given = {n.name: outside[n.name] for n in self.definition.inputs_of(i) if n.name in outside}
            if handed:
                given[handed_input(self.definition.parts[i - 1], part).name] = handed
            return self._ingest(i, given, now_us, watermark_us, whole)
        own = outside.get(part.name, ()) if isinstance(outside, Mapping) else outside
        taken = own if handed is None else handed
        return self._ingest(i, taken, now_us, watermark_us, whole) if taken else []

    def _ingest(
        self, i: int, messages: Messages, now_us: int, watermark_us: int, whole: ChainStep
    ) -> list[Any]:
        done = self._oracles[i].ingest(messages, now_us, watermark_us)
        self._steps[i] += 1
        whole.add(self.definition.parts[i].name, done[0], done[1])
        return list(done[0])

    def _columns(self, i: int) -> list[str]:
        """The columns of what an operator tells."""
        part = self.definition.parts[i]
        if isinstance(part, JoinDefinition):
            names: list[str] = self._oracles[i].columns
            return names
        return [*part.by, *part.agg, *WINDOW_COLUMNS]

    def _handed(self, i: int, told: Told) -> list[Message]:
        """What an operator told in its last step, as messages."""
        name, step = self.definition.parts[i].name, self._steps[i]
        return [Message(_payload(row), Position(name, 0, step, n)) for n, row in enumerate(told)]

    def _behind(self, i: int, watermark_us: int) -> int:
        if watermark_us == END_OF_TIME_US:
            return watermark_us
        return max(watermark_us - self.definition.behind_us(i), START_OF_TIME_US)

    def _by_input(self, messages: Sequence[Message]) -> Messages:
        if not self.definition.by_input:
            return messages
        return {
            i.name: [m for m in messages if m.position and m.position.source.startswith(i.source_prefix)]
            for i in self.definition.inputs
        }


def _of(inputs: Iterable[Input], schemas: Mapping[str, pa.Schema] | None) -> dict[str, pa.Schema]:
    """The schemas of these inputs: an aggregate's has the name under which a join takes its panes."""
    return {i.name: schemas[i.name] for i in inputs if schemas is not None and i.name in schemas}


def _payload(row: Pane | JoinedRow) -> dict[str, Any]:
    if isinstance(row, JoinedRow):
        return dict(row.values)
    assert isinstance(row.window, Window)
    start_us, end_us = row.window.start_us, row.window.end_us
    return {
        **row.key,
        **row.values,
        WINDOW_TIME: to_datetime(end_us - 1),
        WINDOW_START: to_datetime(start_us),
        WINDOW_END: to_datetime(end_us),
    }


def _in(step: Step, position: Position) -> bool:
    partition = (position.source, position.partition)
    first = step.first_offsets.get(partition)
    return first is not None and first <= position.offset < step.next_offsets[partition]
