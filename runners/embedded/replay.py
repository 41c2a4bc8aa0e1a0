"""`open(..., replay=)`: a function that reads the source again, for an operator whose messages are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from windrow.checkpoint.offsets import Partition
from windrow.checkpoint.records import Commit
from windrow.checkpoint.replay import Ranges
from windrow.checkpoint.shard import Replay, ShardSpec
from windrow.core.definition import AggregateDefinition
from windrow.core.errors import PositionsMissing
from windrow.core.messages import Message, Position
from windrow.operators.columns import OFFSET
from windrow.operators.learning import AggregateNeeds
from windrow.operators.progress import Progress
from windrow.runners.embedded.positions import with_positions
from windrow.runners.embedded.runs import runs
from windrow.runners.replay import Given, GivenTable, IntArray, bring_back, inside, split_offsets
from windrow.runners.rows import table_of
from windrow.stores.kv import LocalStore

#: Gets what has to be read, {(source, partition): (first offset, next offset)}, and gives at least that: messages with
#: positions, or a table with the columns that the definition's `positions` names. What lies outside is left out.
ReadAgain = Callable[[Mapping[Partition, tuple[int, int]]], Iterable[Message] | pa.Table | pa.RecordBatch]


def replay_of(definition: AggregateDefinition, read: ReadAgain) -> Replay:
    """The hook of `Shard.open`."""

    def replay(spec: ShardSpec, kv: LocalStore, commits: Sequence[Commit]) -> None:
        schema = Progress.load(kv, f"{definition.name}.aux").schema

        def given(ranges: Ranges) -> Given:
            found = read(ranges)
            if isinstance(found, pa.RecordBatch):
                found = pa.Table.from_batches([found])
            if isinstance(found, pa.Table):
                if definition.positions is None and OFFSET not in found.column_names:
                    raise PositionsMissing(
                        f"replay= gave a table, and {definition.name!r} does not say which columns are positions: declare "
                        "positions=wr.positions(...), or give messages"
                    )
                return GivenTable(inside(with_positions(found, definition.positions, {}), ranges))
            return _Messages(definition, found, ranges, schema)

        bring_back(definition, spec, kv, commits, given, ones_together=runs(definition))

    return replay


class _Messages:
    """Messages inside the ranges, in position order."""

    def __init__(
        self,
        definition: AggregateDefinition,
        messages: Iterable[Message],
        ranges: Ranges,
        schema: pa.Schema | None,
    ) -> None:
        self._definition, self._schema = definition, schema
        placed: list[tuple[Position, Message]] = []
        for message in messages:
            if message.position is None:
                raise PositionsMissing(
                    f"replay= gave a message without a position, {dict(message.payload)!r}: which of those that were taken "
                    "it is cannot be known; give each the position that it was added with"
                )
            position = Position(*message.position)
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
        some = [self._placed[i] for i in chosen.tolist()]
        return table_of(
            [m for _, m in some],
            [p for p, _ in some],
            event_time=self._definition.event_time,
            time_zone=self._definition.time_zone,
            schema=self._schema,
            needs=AggregateNeeds(self._definition),
        )
