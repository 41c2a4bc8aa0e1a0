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
from windrow.operators.aggregate.handing import WINDOW_COLUMNS, WINDOW_END, WINDOW_START, WINDOW_TIME
from windrow.operators.graph.definition import ChainDefinition, Feed
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
        self._oracles: list[Any] = []
        for i in range(len(definition.parts)):
            part: Any = definition.parts[i]
            for feed in definition.feeds[i]:
                part = part.of_handed_rows(feed.input)
            self._oracles.append(
                JoinOracle(part, _of(definition.inputs_of(i), schemas))
                if isinstance(part, JoinDefinition)
                else AggregateOracle(part)
            )
        self._steps = [0] * len(self._oracles)
        for i, part in enumerate(definition.parts):
            if schemas is not None and isinstance(part, JoinDefinition):
                for feed in definition.feeds[i]:
                    self._oracles[i].know(feed.input.name, self._columns(feed.part))

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> ChainStep:
        """Each operator takes what others told of the step's messages, and its own from outside."""
        whole, told = ChainStep(), list[list[Any]]()
        for i in range(len(self._oracles)):
            taken = self._taken(i, told)
            own_us = self._oracles[i].watermark_us if self.definition.feeds[i] else watermark_us
            told.append(self._take(i, taken, messages, now_us, own_us, whole))
        return whole

    def advance(self, watermark_us: int, now_us: int) -> ChainStep:
        """Each operator takes what others told, then advances to the watermark that they leave it."""
        whole, tellings = ChainStep(), list[list[Any]]()
        reached: list[int] = []
        for i, part in enumerate(self.definition.parts):
            told: list[Any] = []
            taken = self._taken(i, tellings)
            own_us = min(
                (self._behind(f, reached[f.part]) for f in self.definition.feeds[i]), default=watermark_us
            )
            reached.append(own_us)
            if any(taken.values()):
                told += self._take(i, taken, {}, now_us, self._oracles[i].watermark_us, whole)
            done = self._oracles[i].advance(own_us, now_us)
            self._steps[i] += 1
            whole.add(part.name, done[0], done[1])
            tellings.append(told + list(done[0]))
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

    def _taken(self, i: int, told: Sequence[Told]) -> dict[str, list[Message]]:
        """What an operator takes of others in a step, by its inputs."""
        return {f.input.name: self._handed(f.part, told[f.part]) for f in self.definition.feeds[i]}

    def _take(
        self,
        i: int,
        handed: Mapping[str, Sequence[Message]],
        outside: Messages,
        now_us: int,
        watermark_us: int,
        whole: ChainStep,
    ) -> list[Any]:
        """An operator's ingest of what others told and of its own; an aggregate's of nothing is none."""
        part = self.definition.parts[i]
        if isinstance(part, JoinDefinition):
            assert isinstance(outside, Mapping)
            given = {n.name: outside[n.name] for n in self.definition.inputs_of(i) if n.name in outside}
            given |= {name: rows for name, rows in handed.items() if rows}
            return self._ingest(i, given, now_us, watermark_us, whole)
        [own] = part.inputs
        mine = outside.get(own.name, ()) if isinstance(outside, Mapping) else outside
        taken = handed.get(own.name, ()) if self.definition.feeds[i] else mine
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
        return [*(part.told_columns or ()), *WINDOW_COLUMNS]

    def _handed(self, i: int, told: Told) -> list[Message]:
        """What an operator told in its last step, as messages."""
        name, step = self.definition.parts[i].name, self._steps[i]
        return [Message(_payload(row), Position(name, 0, step, n)) for n, row in enumerate(told)]

    def _behind(self, feed: Feed, watermark_us: int) -> int:
        if watermark_us == END_OF_TIME_US:
            return watermark_us
        return max(watermark_us - feed.behind_us, START_OF_TIME_US)

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
