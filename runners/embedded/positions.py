"""Where messages stand: replays are left out, and what has no position is numbered on arrival."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from windrow.checkpoint.offsets import Partition
from windrow.core.messages import Message, Position
from windrow.core.positions import Positions
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE


@dataclass(frozen=True)
class Placed:
    """Messages that are not replays, their positions, and which of those given they are; ordinals reached since."""

    messages: list[Message]
    positions: list[Position]
    indices: list[int]
    ordinals: dict[Partition, int]


@dataclass(frozen=True)
class Passed:
    """What a step leaves behind: what is counted of its messages, ordinals reached, how many go out of the buffer."""

    counts: Mapping[str, int] = field(default_factory=dict)
    ordinals: Mapping[Partition, int] = field(default_factory=dict)
    buffered: int = 0

    def then(self, other: Passed) -> Passed:
        """Both."""
        counts = {n: self.counts.get(n, 0) + other.counts.get(n, 0) for n in {**self.counts, **other.counts}}
        return Passed(counts, {**self.ordinals, **other.ordinals}, self.buffered + other.buffered)


NOTHING = Passed()


def place(
    messages: Sequence[Message],
    reached_offsets: Mapping[Partition, int],
    reached_ordinals: Mapping[Partition, int],
    *,
    in_position_order: bool,
) -> Placed:
    """Leave out what is at or below what was reached; messages without a position get numbers."""
    kept: list[Message] = []
    positions: list[Position] = []
    indices: list[int] = []
    offsets, ordinals = dict(reached_offsets), dict(reached_ordinals)
    number = offsets.get(("", 0), 0)
    placed = []
    for i, message in enumerate(messages):
        position = message.position
        if position is None:
            position, number = Position("", 0, number), number + 1
        placed.append((position, i, message))
    if in_position_order:
        placed.sort(key=lambda one: one[0])
    for position, i, message in placed:
        partition = (position.source, position.partition)
        reached = offsets.get(partition, 0)
        if position.offset < reached and not (
            position.offset == reached - 1 and position.ordinal > ordinals.get(partition, 0)
        ):
            continue
        offsets[partition] = position.offset + 1
        ordinals[partition] = position.ordinal
        kept.append(message)
        positions.append(position)
        indices.append(i)
    return Placed(kept, positions, indices, ordinals)


def reached_ordinals(positions: Iterable[Position]) -> dict[Partition, int]:
    """The ordinal of the last position of each partition."""
    return {(p.source, p.partition): p.ordinal for p in positions}


def with_positions(
    table: pa.Table, named: Positions | None, reached_offsets: Mapping[Partition, int]
) -> pa.Table:
    """Position columns by the definition's names, without replays; a table without is numbered on arrival.

    A table of a source that windrow reads itself has them already.
    """
    n = len(table)
    if OFFSET not in table.column_names:
        if named is None:
            start = reached_offsets.get(("", 0), 0)
            offsets = pa.array(range(start, start + n), pa.int64())
        else:
            offsets = table.column(named.offset).cast(pa.int64())
        source = partition = None
        if named is not None and named.source is not None:
            source = table.column(named.source).cast(pa.string())
        if named is not None and named.partition is not None:
            partition = table.column(named.partition).cast(pa.int64())
        table = (
            table.append_column(SOURCE, pa.array([""] * n, pa.string()) if source is None else source)
            .append_column(PARTITION, pa.array([0] * n, pa.int64()) if partition is None else partition)
            .append_column(OFFSET, offsets)
        )
        if named is None:
            return table.append_column(ORDINAL, pa.array([0] * n, pa.int64()))
    if ORDINAL not in table.column_names:
        table = table.append_column(ORDINAL, pa.array([0] * n, pa.int64()))
    old = None
    for (source_name, number), reached in reached_offsets.items():
        below = pc.and_(
            pc.less(table.column(OFFSET), reached),
            pc.and_(pc.equal(table.column(SOURCE), source_name), pc.equal(table.column(PARTITION), number)),
        )
        old = below if old is None else pc.or_(old, below)
    return table if old is None or not pc.any(old).as_py() else table.filter(pc.invert(old))


def extent(table: pa.Table) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """First and following offset of each partition in a slice."""
    grouped = table.group_by([SOURCE, PARTITION], use_threads=False).aggregate(
        [(OFFSET, "min"), (OFFSET, "max")]
    )
    rows = grouped.to_pylist()
    first = {(r[SOURCE], r[PARTITION]): r[f"{OFFSET}_min"] for r in rows}
    return first, {(r[SOURCE], r[PARTITION]): r[f"{OFFSET}_max"] + 1 for r in rows}
