"""What travels between Spark and a task: rows of one shard on the way there, and its answer on the way back.

Rows of every operator and input travel in one frame, under columns of ours that say whose they are. It imports no pyspark.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.sql import as_given
from windrow.operators.operator import Definition
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, POSITION_COLUMNS, SOURCE
from windrow.operators.steps.groups import combine

#: Accumulators travel as `__part<i>`, in the order of a task's `parts`.
PART = "__part"
SHARD, OPERATOR, CONTROL, OLD = "__shard", "__operator", "__control", "__old"
#: Whose row it is, where two inputs travel as one frame; a struct of the input's name holds its columns.
INPUT = "__input"
OUTPUT = "shard int, payload binary"


def rows_of_shard(batches: Iterator[pa.RecordBatch]) -> tuple[int, pa.Table] | None:
    """The shard whose partition this is, and its rows; None where it is of none."""
    received = [b for b in batches if b.num_rows]
    if not received:
        return None
    table = pa.Table.from_batches(received)
    table = table.rename_columns([as_given(c) for c in table.column_names])
    shards = table.column(SHARD).unique().to_pylist()
    if len(shards) != 1:
        raise RuntimeError(f"a partition holds the rows of shards {shards}: it must hold those of one")
    control = combine(table.column(CONTROL)).is_valid()
    return shards[0], with_ordinals(table.filter(pc.invert(control)).drop_columns([SHARD, CONTROL]))


def with_ordinals(table: pa.Table) -> pa.Table:
    """Rows without an ordinal get one: their number among the rows of their record, in the order they came in."""
    if ORDINAL not in table.column_names or not table.column(ORDINAL).null_count:
        return table
    n = len(table)
    records = [c for c in (OPERATOR, SOURCE, PARTITION, OFFSET) if c in table.column_names]
    ordinals = np.zeros(n, dtype=np.int64)
    if len(table.group_by(records).aggregate([])) < n:
        where = table.select(records)
        order = pc.sort_indices(where, sort_keys=[(c, "ascending") for c in records]).to_numpy()  # stable
        begins = np.zeros(n, dtype=bool)
        begins[0] = True
        for column in where.take(order).columns:
            values = combine(column)
            begins[1:] |= pc.not_equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False)
        numbers = np.arange(n)
        ordinals[order] = numbers - np.maximum.accumulate(np.where(begins, numbers, 0))
    filled = pc.coalesce(table.column(ORDINAL), pa.chunked_array([ordinals]))
    return table.set_column(table.column_names.index(ORDINAL), ORDINAL, filled)


def tables_of_inputs(definition: Definition, table: pa.Table) -> dict[str, pa.Table]:
    """The rows of a shard by input, with the columns of each."""
    if INPUT not in table.column_names:
        return {} if definition.by_input else {definition.inputs[0].name: table}
    found = {}
    whose = combine(table.column(INPUT))
    where = [c for c in POSITION_COLUMNS if c in table.column_names]
    for given in definition.inputs:
        mine = table.filter(pc.fill_null(pc.equal(whose, given.name), False))
        struct = combine(mine.column(given.name))
        columns = dict(zip([f.name for f in struct.type], struct.flatten(), strict=True))
        found[given.name] = pa.table({**columns, **{c: combine(mine.column(c)) for c in where}})
    return found


def rows_that_came(definitions: Sequence[Definition], table: pa.Table) -> int:
    """How many rows came: each is there once for every definition that takes it."""
    if OPERATOR not in table.column_names:
        return len(table)
    whose = combine(table.column(OPERATOR)).to_numpy()
    if INPUT not in table.column_names:
        return int((whose == 0).sum())
    first: dict[str, int] = {}
    for i, definition in enumerate(definitions):
        for given in definition.inputs:
            first.setdefault(given.name, i)
    inputs = combine(table.column(INPUT))
    named = pc.index_in(inputs, pa.array(list(first))).to_numpy(zero_copy_only=False)
    return int((whose == np.array(list(first.values()))[named]).sum())


def reply(number: int, answer: Any) -> pa.RecordBatch:
    """What a task gives Spark."""
    return pa.record_batch(
        [pa.array([number], pa.int32()), pa.array([pickle.dumps(answer)], pa.binary())],
        names=["shard", "payload"],
    )
