"""Replay of a source, `open(..., replay=)`: a function reads it again for an operator whose messages are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from windrow.checkpoint.records import Commit
from windrow.checkpoint.replay import Ranges
from windrow.checkpoint.shard import Replay, ShardSpec
from windrow.core.arrays import IntArray
from windrow.core.errors import PositionsMissing
from windrow.core.inputs import UNNAMED, Input
from windrow.core.messages import Message, Position
from windrow.core.positions import Partition
from windrow.operators.operator import Definition
from windrow.operators.steps.columns import OFFSET
from windrow.operators.steps.schema_inference import Needs
from windrow.runners.embedded.positions import with_positions, with_prefix
from windrow.runners.replay import (
    GivenByInput,
    GivenTable,
    SourceRows,
    bring_back,
    inside,
    split_offsets,
)
from windrow.runners.rows import table_of
from windrow.stores.kv import LocalStore

#: Takes the ranges to read, {(source, partition): (first offset, next offset)}, and returns at least those: messages with
#: positions, or a table with the columns that the definition's `positions` names. Other messages are dropped.
ReadAgain = Callable[[Mapping[Partition, tuple[int, int]]], Iterable[Message] | pa.Table | pa.RecordBatch]
#: The same for a join, by input: takes {input: {(source, partition): (first, next)}}, returns {input: messages or a table}.
ReadInputsAgain = Callable[
    [Mapping[str, Mapping[Partition, tuple[int, int]]]],
    Mapping[str, Iterable[Message] | pa.Table | pa.RecordBatch],
]


#: Either of them.
Again = ReadAgain | ReadInputsAgain


def replay_of(definition: Definition, read: Again) -> Replay:
    """Return the hook of `Shard.open`."""

    def replay(spec: ShardSpec, kv: LocalStore, commits: Sequence[Commit]) -> None:
        for part in definition.apart:
            read_rows = partial(_source_rows, part, kv, read)
            bring_back(part, spec, kv, commits, read_rows, ones_together=definition.in_runs)

    return replay


def _source_rows(definition: Definition, kv: LocalStore, read: Again, ranges: Ranges) -> GivenByInput:
    """Return the source's rows of these ranges."""
    logic = definition.logic()
    asked: dict[str, Ranges] = {}
    for (source, partition), span in ranges.items():
        name, _, rest = source.partition(":")
        asked.setdefault(name, {})[rest, partition] = span
    by_input: Any = read(asked) if definition.by_input else {UNNAMED: read(asked[UNNAMED])}  # type: ignore[arg-type]
    inputs: dict[str, SourceRows] = {}
    for input in definition.inputs:
        name, prefix = input.name, input.source_prefix
        messages = by_input.get(name, [])
        if isinstance(messages, pa.RecordBatch):
            messages = pa.Table.from_batches([messages])
        wanted = {(prefix + s, p): span for (s, p), span in asked.get(name, {}).items()}
        if isinstance(messages, pa.Table):
            table = _placed(input, messages)
            table = with_prefix(prefix, table)
            inputs[input.name] = GivenTable(inside(table, wanted))
        else:
            needs = logic.needs_of(kv, input.name, {})
            schema = logic.schema_of(kv, input.name)
            inputs[input.name] = _Messages(input, messages, wanted, schema, needs, prefix)
    return GivenByInput(inputs)


def _placed(input: Input, table: pa.Table) -> pa.Table:
    if input.positions is None and OFFSET not in table.column_names:
        raise PositionsMissing(
            f"replay= gave a table, and {input.called} does not say which columns are positions: declare "
            "positions=wr.positions(...), or give messages"
        )
    return with_positions(table, input.positions, {})


class _Messages:
    """The messages inside the ranges, in position order."""

    def __init__(
        self,
        reading: Input,
        messages: Iterable[Message],
        ranges: Ranges,
        schema: pa.Schema | None,
        needs: Needs,
        prefix: str = "",
    ) -> None:
        self._reading, self._schema, self._needs = reading, schema, needs
        placed: list[tuple[Position, Message]] = []
        for message in messages:
            if message.position is None:
                raise PositionsMissing(
                    f"replay= gave a message without a position, {dict(message.payload)!r}: which of those that were taken "
                    "it is cannot be known; give each the position that it was added with"
                )
            original = Position(*message.position)
            position = original._replace(source=prefix + original.source)
            first, following = ranges.get((position.source, position.partition), (0, 0))
            if first <= position.offset < following:
                placed.append((position, message))
        placed.sort(key=lambda one: one[0])
        self._placed = placed
        self.offsets = split_offsets(
            pa.array([p.source for p, _ in placed], pa.string()),
            pa.array([p.partition for p, _ in placed], pa.int64()),
            pa.array([p.offset for p, _ in placed], pa.int64()),
        )

    def rows(self, chosen: IntArray) -> pa.Table:
        placed = [self._placed[i] for i in chosen.tolist()]
        return table_of(
            [m for _, m in placed],
            [p for p, _ in placed],
            event_time=None if self._reading.time_made else self._reading.event_time,
            time_zone=self._reading.time_zone,
            event_time_unit=self._reading.event_time_unit,
            schema=self._schema,
            needs=self._needs,
        )
