"""Wire format between Spark and a task: rows of one shard to the task, and its result back.

Rows of every operator and input travel in one frame; added columns name the operator and input. It imports no pyspark.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray
from windrow.core.positions import Partition
from windrow.core.sql import as_given
from windrow.operators.operator import Definition
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, POSITION_COLUMNS, SOURCE
from windrow.operators.steps.groups import combine

#: Accumulators travel as `__part<i>`, in the order of a task's `parts`.
PART = "__part"
SHARD, OPERATOR, CONTROL, OLD = "__shard", "__operator", "__control", "__old"
#: The row's input, where two inputs travel as one frame; a struct of the input's name holds its columns.
INPUT = "__input"


def rows_of_shard(batches: Iterable[pa.RecordBatch]) -> tuple[int, pa.Table] | None:
    """Return the shard whose partition this is, and its rows; None where the partition is of none."""
    return next(tables_of_shard(batches, sys.maxsize), None)


def tables_of_shard(batches: Iterable[pa.RecordBatch], at_once: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield `rows_of_shard` in tables of more than `at_once` rows, except the last."""
    before, known, reached = 0, set[int](), dict[Partition, tuple[int, int]]()
    for table in chunks((pa.Table.from_batches([b]) for b in batches if b.num_rows), at_once):
        table = table.rename_columns([as_given(c) for c in table.column_names])
        known.update(table.column(SHARD).unique().to_pylist())
        if len(known) != 1:
            raise RuntimeError(
                f"a partition holds the rows of shards {sorted(known)}: it must hold those of one"
            )
        rows = table.drop_columns([SHARD])
        if CONTROL in rows.column_names:
            rows = without_rows(rows, combine(rows.column(CONTROL)).is_valid()).drop_columns([CONTROL])
        yield next(iter(known)), with_ordinals(rows, _firsts(rows, before, reached))
        before += len(table)


def by_shard(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each shard, in their order."""
    numbers = batch.column(SHARD).to_numpy()
    order = np.argsort(numbers, kind="stable")
    ordered, sorted_numbers = batch.take(pa.array(order)), numbers[order]
    begins = np.flatnonzero(np.r_[True, sorted_numbers[1:] != sorted_numbers[:-1]][: len(order)]).tolist()
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        yield int(sorted_numbers[begin]), ordered.slice(begin, end - begin)


def _firsts(table: pa.Table, before: int, reached: dict[Partition, tuple[int, int]]) -> IntArray | int:
    """Return the first ordinal of each row's record: above all others where rows of it may have come before, else 0.

    reached: the lowest and the highest offset of each partition so far.
    """
    if ORDINAL not in table.column_names or not table.column(ORDINAL).null_count:
        return 0
    firsts = np.zeros(len(table), dtype=np.int64)
    offsets = combine(table.column(OFFSET)).to_numpy()
    grouped = table.group_by([SOURCE, PARTITION], use_threads=False)
    for row in grouped.aggregate([(OFFSET, "min"), (OFFSET, "max")]).to_pylist():
        low, high = row[f"{OFFSET}_min"], row[f"{OFFSET}_max"]
        known = reached.get((row[SOURCE], row[PARTITION]))
        if known is not None and low <= known[1] and high >= known[0]:
            of_source = pc.equal(table.column(SOURCE), row[SOURCE])
            of_partition = combine(pc.and_(of_source, pc.equal(table.column(PARTITION), row[PARTITION])))
            again = (offsets >= known[0]) & (offsets <= known[1])
            firsts[of_partition.to_numpy(zero_copy_only=False) & again] = before
        low, high = (low, high) if known is None else (min(low, known[0]), max(high, known[1]))
        reached[row[SOURCE], row[PARTITION]] = low, high
    return firsts


def chunks(tables: Iterable[pa.Table], at_once: int) -> Iterator[pa.Table]:
    """Yield the same rows in tables of more than `at_once`, except the last; at least one table, if any comes."""
    buffered: list[pa.Table] = []
    rows = 0
    for table in tables:
        buffered.append(table)
        rows += len(table)
        if rows > at_once:
            yield pa.concat_tables(buffered, promote_options="permissive")
            buffered, rows = [], 0
    if buffered:
        yield pa.concat_tables(buffered, promote_options="permissive")


def without_rows(table: pa.Table, gone: pa.BooleanArray) -> pa.Table:
    """Return the table without a few rows; the rest is not copied."""
    edges = np.flatnonzero(gone.to_numpy(zero_copy_only=False)).tolist()
    firsts, ends = [0, *(edge + 1 for edge in edges)], [*edges, len(table)]
    return pa.concat_tables([table.slice(f, e - f) for f, e in zip(firsts, ends, strict=True)])


def with_ordinals(table: pa.Table, firsts: IntArray | int = 0) -> pa.Table:
    """Number the rows without an ordinal: by their place among the rows of their record, in order of arrival.

    firsts: the number of the first one, for each row's record.
    """
    if ORDINAL not in table.column_names or not table.column(ORDINAL).null_count:
        return table
    n = len(table)
    records = [c for c in (OPERATOR, SOURCE, PARTITION, OFFSET) if c in table.column_names]
    ordinals = np.zeros(n, dtype=np.int64) + firsts
    if len(table.group_by(records).aggregate([])) < n:
        where = table.select(records)
        order = pc.sort_indices(where, sort_keys=[(c, "ascending") for c in records]).to_numpy()  # stable
        begins = np.zeros(n, dtype=bool)
        begins[0] = True
        for column in where.take(order).columns:
            values = combine(column)
            begins[1:] |= pc.not_equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False)
        numbers = np.arange(n)
        ordinals[order] += numbers - np.maximum.accumulate(np.where(begins, numbers, 0))
    filled = pc.coalesce(table.column(ORDINAL), pa.chunked_array([ordinals]))
    return table.set_column(table.column_names.index(ORDINAL), ORDINAL, filled)


def tables_of_inputs(definition: Definition, table: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of a shard by input, with the columns of each."""
    if INPUT not in table.column_names:
        return {} if definition.by_input else {definition.inputs[0].name: table}
    tables = {}
    whose = combine(table.column(INPUT))
    where = [c for c in POSITION_COLUMNS if c in table.column_names]
    for input in definition.inputs:
        rows = table.filter(pc.fill_null(pc.equal(whose, input.name), False))
        struct = combine(rows.column(input.name))
        columns = dict(zip([f.name for f in struct.type], struct.flatten(), strict=True))
        tables[input.name] = pa.table({**columns, **{c: combine(rows.column(c)) for c in where}})
    return tables


def rows_that_came(definitions: Sequence[Definition], table: pa.Table, shard: int = 0) -> int:
    """Count the rows that came: each is there once for every definition that takes it. Copies count in the first shard."""
    copied = pa.array(sorted({name for d in definitions for name in d.copied}), pa.string())
    if shard and len(copied):
        table = table.filter(pc.invert(pc.is_in(table.column(INPUT), value_set=copied)))
    if OPERATOR not in table.column_names:
        return len(table)
    whose = combine(table.column(OPERATOR)).to_numpy()
    if INPUT not in table.column_names:
        return int((whose == 0).sum())
    first: dict[str, int] = {}
    for i, definition in enumerate(definitions):
        for input in definition.inputs:
            first.setdefault(input.name, i)
    inputs = combine(table.column(INPUT))
    named = pc.index_in(inputs, pa.array(list(first))).to_numpy(zero_copy_only=False)
    return int((whose == np.array(list(first.values()))[named]).sum())


def reply(number: int, answer: Any) -> pa.RecordBatch:
    """Return a task's reply to Spark."""
    return pa.record_batch(
        [pa.array([number], pa.int32()), pa.array([pickle.dumps(answer)], pa.binary())],
        names=["shard", "payload"],
    )
