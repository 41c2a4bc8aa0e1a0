"""The oracle of a graph in plain Python: the oracles of its operators, one feeding the next. Semantics "Chains".

It shares nothing with the operators but the value types of `windrow.core`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windrow.core.messages import JoinedRow, Kind, Message, Position
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.graph.definition import ChainDefinition, Feed
from windrow.operators.oracle.aggregates import same
from windrow.operators.oracle.oracle import Messages, Oracle, Outcome, TakenBack, by_input


class ChainOracle(Oracle):
    """The expected behaviour of one `wr.chain`. schemas: of all inputs, where they are known before the first message."""

    definition: ChainDefinition

    def __init__(self, definition: ChainDefinition, schemas: Mapping[str, Any] | None = None) -> None:
        super().__init__(definition)
        self._oracles = [self._oracle(i, schemas) for i in range(len(definition.parts))]
        self._steps = [0] * len(self._oracles)
        #: (an operator, an upstream one whose rows may retract others): the current rows of the latter.
        self._current: dict[tuple[int, int], list[Any]] = {}
        for i, feeds in enumerate(definition.feeds if schemas is not None else ()):
            for feed in feeds:
                self._oracles[i].know(feed.input.name, self._oracles[feed.part].columns)

    def _oracle(self, i: int, schemas: Mapping[str, Any] | None) -> Oracle:
        part = self.definition.taking[i]
        outside = [n.name for n in self.definition.inputs_of(i)]
        known = {name: schema for name, schema in (schemas or {}).items() if name in outside}
        made = part.oracle(known)
        made.feed([feed.input.name for feed in self.definition.feeds[i]])
        return made

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        """Let each operator take the rows that others emit for the step's messages, and its own messages from outside."""
        by_name, done, self.counted = by_input(self.definition.inputs, messages), list[Outcome](), []
        for i, oracle in enumerate(self._oracles):
            own_us = oracle.watermark_us if self.definition.feeds[i] else watermark_us
            own = {n.name: by_name[n.name] for n in self.definition.inputs_of(i) if n.name in by_name}
            done.append(self._ingest(i, self._forwarded_to(i, done), own, now_us, own_us))
        return self._whole(done)

    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        """Let each operator take the rows of its upstream operators, then advance it to the watermark that they leave it."""
        done, reached = list[Outcome](), list[int]()
        self.watermark_us = max(watermark_us, self.watermark_us)
        for i, oracle in enumerate(self._oracles):
            forwarded = self._forwarded_to(i, done)
            fed = [self._downstream(f, reached[f.part]) for f in self.definition.feeds[i]]
            reached.append(min(fed, default=watermark_us))
            took = Outcome([], [])
            if any(forwarded.values()):
                took = self._ingest(i, forwarded, {}, now_us, oracle.watermark_us)
            emitted = oracle.advance(reached[i], now_us)
            self._steps[i] += 1
            done.append(Outcome(took.rows + emitted.rows, took.dead + emitted.dead))
        return self._whole(done)

    def redefine(self, definition: ChainDefinition) -> None:
        self.definition = definition
        for oracle, part in zip(self._oracles, definition.taking, strict=True):
            oracle.redefine(part)

    def part(self, name: str) -> Oracle:
        return self._oracles[[p.name for p in self.definition.parts].index(name)]

    def _forwarded_to(self, i: int, done: Sequence[Outcome]) -> dict[str, list[Message]]:
        """Return the rows that others forward to an operator in a step, by its inputs, with the positions of their emission."""
        forwarded = {}
        for feed in self.definition.feeds[i]:
            before, name, step = (
                self._oracles[feed.part],
                self.definition.parts[feed.part].name,
                self._steps[feed.part],
            )
            current = self._current.setdefault((i, feed.part), [])
            rows = [(Message, row) for row in done[feed.part].rows]
            if feed.again:
                rows = _with_taken_back(done[feed.part].rows, current)
            forwarded[feed.input.name] = [
                kind(before.forwarded(row), Position(name, 0, step, n)) for n, (kind, row) in enumerate(rows)
            ]
        return forwarded

    def _ingest(
        self,
        i: int,
        forwarded: Mapping[str, Sequence[Message]],
        own: Mapping[str, Sequence[Message]],
        now_us: int,
        watermark_us: int,
    ) -> Outcome:
        """Ingest rows of others and own messages into an operator; an empty step is skipped unless it declares columns."""
        oracle = self._oracles[i]
        rows_by_name = {name: rows for name, rows in (*own.items(), *forwarded.items()) if rows}
        if not rows_by_name and not oracle.takes_columns:
            return Outcome([], [])
        done = oracle.ingest(rows_by_name, now_us, watermark_us)
        self._steps[i] += 1
        outside = {m.position[:2] for messages in own.values() for m in messages if m.position}
        self.counted += [one for one in oracle.counted if one[:2] in outside]
        return done

    def _whole(self, done: Sequence[Outcome]) -> Outcome:
        self.gave = {p.name: one for p, one in zip(self.definition.parts, done, strict=True)}
        self.duplicates = sum(oracle.duplicates for oracle in self._oracles)
        return Outcome(done[-1].rows, [letter for one in done for letter in one.dead])

    def _downstream(self, feed: Feed, watermark_us: int) -> int:
        if watermark_us == END_OF_TIME_US:
            return watermark_us
        return max(watermark_us - feed.output_delay_us, START_OF_TIME_US)


def _with_taken_back(rows: Sequence[Any], current: list[Any]) -> list[tuple[type[Message], Any]]:
    """Return rows, each after the retraction of the row that it replaces; rows without a window carry their own retractions.
    current: rows that were emitted and not retracted.
    """
    if rows and isinstance(rows[0], JoinedRow):
        return [(Message if row.kind is Kind.INSERT else TakenBack, row) for row in rows]
    found: list[tuple[type[Message], Any]] = []
    for row in rows:
        places = [n for n, one in enumerate(current) if one.window == row.window and same(one.key, row.key)]
        found += [(TakenBack, current.pop(n)) for n in places]  # one at most
        if row.kind is Kind.INSERT:
            found.append((Message, row))
            current.append(row)
    return found
