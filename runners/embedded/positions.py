"""Positions of messages: replayed messages are dropped, and messages without a position are numbered on arrival."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import is_one
from windrow.core.errors import InputError, UnknownColumn
from windrow.core.messages import Message, Position
from windrow.core.positions import Partition, Positions
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, POSITION_COLUMNS, SOURCE
from windrow.operators.steps.groups import combine

#: So many rows are looked at one by one in less time than Arrow needs to make a hash table.
FEW = 64


@dataclass(frozen=True)
class Placed:
    """Messages that are not replays, their positions, their indexes in the input, and the ordinals reached since."""

    messages: list[Message]
    positions: list[Position]
    indices: list[int]
    ordinals: dict[Partition, int]


@dataclass(frozen=True)
class Passed:
    """A step's progress: counters of its messages, ordinals reached, and how many buffered messages are done."""

    counts: Mapping[str, int] = field(default_factory=dict)
    ordinals: Mapping[Partition, int] = field(default_factory=dict)
    waited: int = 0

    def then(self, other: Passed) -> Passed:
        """Return the sum of both."""
        counts = {n: self.counts.get(n, 0) + other.counts.get(n, 0) for n in {**self.counts, **other.counts}}
        return Passed(counts, {**self.ordinals, **other.ordinals}, self.waited + other.waited)


NOTHING = Passed()


def place(
    prefix: str,
    messages: Sequence[Message],
    reached_offsets: Mapping[Partition, int],
    reached_ordinals: Mapping[Partition, int],
    *,
    in_position_order: bool,
) -> Placed:
    """Drop messages at or below the reached offsets; messages without a position are numbered. prefix: before their sources"""
    kept: list[Message] = []
    positions: list[Position] = []
    indices: list[int] = []
    offsets, ordinals = dict(reached_offsets), dict(reached_ordinals)
    number = offsets.get((prefix, 0), 0)
    placed = []
    for i, message in enumerate(messages):
        position = message.position
        if position is None:
            position, number = Position(prefix, 0, number), number + 1
        else:
            position = Position(prefix + position[0], *position[1:])
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
    """Return the ordinal of the last position of each partition."""
    return {(p.source, p.partition): p.ordinal for p in positions}


def with_positions(
    table: pa.Table, named: Positions | None, reached_offsets: Mapping[Partition, int]
) -> pa.Table:
    """Position columns by the definition's names, without replays and second rows of a position; a table without is numbered
    on arrival.

    A table of a source that windrow reads itself has them already.
    """
    n = len(table)
    if OFFSET not in table.column_names and named is None:
        start = reached_offsets.get(("", 0), 0)
        return _at(table, pa.repeat("", n), _zeros(n), pa.array(np.arange(start, start + n, dtype=np.int64)))
    if OFFSET not in table.column_names:
        assert named is not None
        table = _first_of_each(_at(table, *_named(table, named)))
    if ORDINAL not in table.column_names:
        table = table.append_column(ORDINAL, _zeros(len(table)))
    old = None
    for (source_name, number), reached in reached_offsets.items():
        below = pc.and_(
            pc.less(table.column(OFFSET), reached),
            pc.and_(pc.equal(table.column(SOURCE), source_name), pc.equal(table.column(PARTITION), number)),
        )
        old = below if old is None else pc.or_(old, below)
    return table if old is None or not pc.any(old).as_py() else table.filter(pc.invert(old))


def with_prefix(prefix: str, table: pa.Table) -> pa.Table:
    """Return the table with a prefix before its sources."""
    sources = table.column(SOURCE)
    if is_one(sources):
        named = pa.repeat(prefix + sources[0].as_py(), len(table))
    else:
        named = pc.binary_join_element_wise(prefix, sources, "")
    return table.set_column(table.column_names.index(SOURCE), SOURCE, named)


def _zeros(n: int) -> pa.Array:
    return pa.array(np.zeros(n, dtype=np.int64))


def _at(table: pa.Table, sources: Any, partitions: Any, offsets: Any) -> pa.Table:
    """Return the table with position columns."""
    for name, column in zip(
        POSITION_COLUMNS, (sources, partitions, offsets, _zeros(len(table))), strict=True
    ):
        table = table.append_column(name, column)
    return table


def _named(table: pa.Table, named: Positions) -> tuple[Any, Any, Any]:
    """Sources, partitions and offsets by the columns that a definition names."""
    n = len(table)
    return (
        pa.array([""] * n, pa.string())
        if named.source is None
        else _position(table, named.source, pa.string()),
        _zeros(n) if named.partition is None else _position(table, named.partition, pa.int64(), below=2**32),
        _position(table, named.offset, pa.int64(), below=2**63 - 1),
    )


def _position(table: pa.Table, name: str, kind: pa.DataType, below: int | None = None) -> pa.ChunkedArray:
    """Return a column of positions. A row without one is a mistake of the program, as it is with messages."""
    if name not in table.column_names:
        raise UnknownColumn.lacking(name, "positions", table.column_names)
    try:
        column = table.column(name).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"column {name!r} of positions cannot be {kind}: {error}") from error
    bad = column.null_count
    if below is not None and len(column) > bad:
        span = pc.min_max(column).as_py()
        bad = bad or span["min"] < 0 or span["max"] >= below
    if bad:
        within = "" if below is None else f", from 0 to {below - 1}"
        raise InputError(
            f"column {name!r} of positions has rows without one: give every row a {kind}{within}, or leave positions= out"
        )
    return column


def _first_of_each(table: pa.Table) -> pa.Table:
    """Without rows at a position that an earlier row has."""
    steps = np.diff(combine(table.column(OFFSET)).to_numpy())
    if (steps > 0).all():
        return table
    rows = table.select([SOURCE, PARTITION, OFFSET]).append_column("row", pa.array(np.arange(len(table))))
    first = rows.group_by([SOURCE, PARTITION, OFFSET], use_threads=False).aggregate([("row", "min")])
    return table if len(first) == len(table) else table.take(first.column("row_min").combine_chunks().sort())


def extent(table: pa.Table) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """First and following offset of each partition in a slice."""
    if len(table) <= FEW:
        return _extent_of_few(table)
    if is_one(combine(table.column(SOURCE))) and is_one(combine(table.column(PARTITION))):
        partition = (table.column(SOURCE)[0].as_py(), table.column(PARTITION)[0].as_py())
        span = pc.min_max(table.column(OFFSET)).as_py()
        return {partition: span["min"]}, {partition: span["max"] + 1}
    grouped = table.group_by([SOURCE, PARTITION], use_threads=False).aggregate(
        [(OFFSET, "min"), (OFFSET, "max")]
    )
    rows = grouped.to_pylist()
    first = {(r[SOURCE], r[PARTITION]): r[f"{OFFSET}_min"] for r in rows}
    return first, {(r[SOURCE], r[PARTITION]): r[f"{OFFSET}_max"] + 1 for r in rows}


def _extent_of_few(table: pa.Table) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Return `extent` of few rows, which are read one by one."""
    first: dict[Partition, int] = {}
    following: dict[Partition, int] = {}
    columns = (table.column(name).to_pylist() for name in (SOURCE, PARTITION, OFFSET))
    for source, partition, offset in zip(*columns, strict=True):
        place = (source, partition)
        first[place] = min(offset, first.get(place, offset))
        following[place] = max(offset + 1, following.get(place, 0))
    return first, following
