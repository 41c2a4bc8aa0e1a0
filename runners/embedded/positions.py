"""Where messages stand: replays are left out, and what has no position is numbered on arrival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from windrow.checkpoint.offsets import Partition
from windrow.core.messages import Message, Position
from windrow.core.positions import Positions
from windrow.operators.columns import OFFSET, ORDINAL, PARTITION, SOURCE


@dataclass(frozen=True)
class Placed:
    """Messages that are not replays, their positions, and which of those given they are; ordinals reached since."""

    messages: list[Message]
    positions: list[Position]
    indices: list[int]
    ordinals: dict[Partition, int]


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
        placed.append((Position(*position), i, message))
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


def with_positions(
    table: pa.Table, named: Positions | None, reached_offsets: Mapping[Partition, int]
) -> pa.Table:
    """Position columns by the definition's names, without replays; a table without is numbered on arrival."""
    n = len(table)
    if named is None:
        start = reached_offsets.get(("", 0), 0)
        offsets = pa.array(range(start, start + n), pa.int64())
        source, partition = pa.array([""] * n, pa.string()), pa.array([0] * n, pa.int64())
    else:
        offsets = table.column(named.offset).cast(pa.int64())
        source = (
            pa.array([""] * n, pa.string())
            if named.source is None
            else table.column(named.source).cast(pa.string())
        )
        partition = (
            pa.array([0] * n, pa.int64())
            if named.partition is None
            else table.column(named.partition).cast(pa.int64())
        )
    for name, column in ((SOURCE, source), (PARTITION, partition), (OFFSET, offsets)):
        table = table.append_column(name, column)
    table = table.append_column(ORDINAL, pa.array([0] * n, pa.int64()))
    if named is None:
        return table
    keep = [
        o >= reached_offsets.get((s, p), 0)
        for s, p, o in zip(*(table.column(c).to_pylist() for c in (SOURCE, PARTITION, OFFSET)), strict=True)
    ]
    return table if all(keep) else table.filter(pa.array(keep))


def extent(table: pa.Table) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """First and following offset of each partition in a slice."""
    grouped = table.group_by([SOURCE, PARTITION], use_threads=False).aggregate(
        [(OFFSET, "min"), (OFFSET, "max")]
    )
    rows = grouped.to_pylist()
    first = {(r[SOURCE], r[PARTITION]): r[f"{OFFSET}_min"] for r in rows}
    return first, {(r[SOURCE], r[PARTITION]): r[f"{OFFSET}_max"] + 1 for r in rows}
