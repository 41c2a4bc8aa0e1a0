"""A chain in the plainest possible Python: the oracles of its operators, one feeding the next. Semantics "Chains".

It shares nothing with the operators but the value types of `windrow.core`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from windrow.checkpoint.records import Step
from windrow.core.chain import WINDOW_END, WINDOW_START, WINDOW_TIME, ChainDefinition
from windrow.core.join import JoinDefinition
from windrow.core.messages import DeadLetter, JoinedRow, Message, Pane, Position, Window, WindowInfo
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, to_datetime
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

    `advance(watermark_us, now_us)` and `ingest(messages, now_us, watermark_us)` are the two kinds of step; a join's messages
    are given by input. schemas: the columns of the inputs of a join, where they are known before the first message.
    """

    def __init__(self, definition: ChainDefinition, schemas: Mapping[str, pa.Schema] | None = None) -> None:
        self.definition = definition
        self._oracles: list[Any] = [
            JoinOracle(p, schemas) if isinstance(p, JoinDefinition) else AggregateOracle(p)
            for p in definition.parts
        ]
        self._steps = [0] * len(self._oracles)

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> ChainStep:
        """Each operator takes what the one before it told of the step's messages."""
        whole, taken = ChainStep(), messages
        for i, part in enumerate(self.definition.parts):
            if i:
                watermark_us = self._oracles[i].watermark_us
            if i and not taken:
                break
            told = self._ingest(i, taken, now_us, watermark_us, whole)
            taken = self._handed(i, told)
            assert part.name in whole.told
        return whole

    def advance(self, watermark_us: int, now_us: int) -> ChainStep:
        """Each operator takes what the one before it told, then advances to the watermark that that one leaves it."""
        whole, taken = ChainStep(), list[Message]()
        for i, part in enumerate(self.definition.parts):
            told: list[Any] = []
            if i:
                watermark_us = self._behind(i - 1, watermark_us)
                if taken:
                    told += self._ingest(i, taken, now_us, self._oracles[i].watermark_us, whole)
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

    def _ingest(
        self, i: int, messages: Messages, now_us: int, watermark_us: int, whole: ChainStep
    ) -> list[Any]:
        done = self._oracles[i].ingest(messages, now_us, watermark_us)
        self._steps[i] += 1
        whole.add(self.definition.parts[i].name, done[0], done[1])
        return list(done[0])

    def _handed(self, i: int, told: Told) -> list[Message]:
        """What an operator told in its last step, as messages."""
        name, step = self.definition.parts[i].name, self._steps[i]
        return [Message(_payload(row), Position(name, 0, step, n)) for n, row in enumerate(told)]

    def _behind(self, i: int, watermark_us: int) -> int:
        if watermark_us == END_OF_TIME_US:
            return watermark_us
        return max(watermark_us - self.definition.behind_us(i), START_OF_TIME_US)

    def _by_input(self, messages: Sequence[Message]) -> Messages:
        first = self.definition.first
        if not isinstance(first, JoinDefinition):
            return messages
        return {
            i.name: [m for m in messages if m.position and m.position.source.startswith(i.source_prefix)]
            for i in first.inputs
        }


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
