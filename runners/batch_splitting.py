"""Batch splitting: a shard whose rows do not fit a worker's memory ingests them in pieces. A piece is all rows of some keys.

A shard of a job with more shards would get the same rows, so the output does not depend on how rows are divided.
The number of rows and their keys alone decide the division, so a replay divides them alike. Rows of one key stay together.
All rows stay together if there are no keys, or if one shard has to see all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray
from windrow.core.inputs import Input
from windrow.operators.operator import Definition, Logic
from windrow.operators.steps.groups import combine
from windrow.runners.wire import INPUT
from windrow.stores.key_hash import hashes

#: So many rows of a shard are taken at once, and of those that an operator keeps. More are divided into pieces of so many, or a
#: little more.
WHOLE_ROWS, WHOLE_KEPT, PIECE_ROWS = 1_500_000, 400_000, 100_000
#: Rows come so many at a time.
CHUNK_ROWS = 100_000
#: Keys go to so many buckets, 2 to a power, and a piece is of whole ones.
BUCKETS = 128
#: The buckets of the low bits of a hash, these turned round: so those that follow each other share pages of state.
_TURNED = np.array([int(f"{i:07b}"[::-1], 2) for i in range(BUCKETS)])

#: For each row, the bucket of its key.
Buckets = Callable[[pa.Table], IntArray]


def buckets_of(definition: Definition, columns: Callable[[], Mapping[str, pa.Schema]]) -> Buckets | None:
    """Return the function that assigns an operator's wire rows to buckets; None: undivided. columns: of its inputs."""
    if not definition.by or definition.one_shard() is not None or definition.copied:
        return None
    return lambda table: _of_rows(definition, columns(), table)


def _of_rows(definition: Definition, inputs: Mapping[str, pa.Schema], table: pa.Table) -> IntArray:
    logic = definition.logic()
    if INPUT not in table.column_names:
        return _buckets(logic, definition.inputs[0], inputs, table)
    buckets = np.zeros(len(table), dtype=np.int64)
    whose = combine(table.column(INPUT))
    for input in definition.inputs:
        places = np.flatnonzero(pc.fill_null(pc.equal(whose, input.name), False))
        struct = combine(table.column(input.name)).take(pa.array(places))
        columns = pa.table(struct.flatten(), names=[f.name for f in struct.type])
        buckets[places] = _buckets(logic, input, inputs, columns)
    return buckets


def _buckets(logic: Logic, input: Input, inputs: Mapping[str, pa.Schema], table: pa.Table) -> IntArray:
    keys = []
    for name, types in logic.key_types(input.name, inputs):
        values = combine(table.column(name))
        for kind in types:  # in which they are compared with those of other inputs
            values = values.cast(kind, safe=False)
        keys.append(values)
    return _TURNED[(hashes(keys) & np.uint64(BUCKETS - 1)).astype(np.int64)]


def whole_rows(definition: Definition) -> int:
    """Return the number of rows up to which a shard is not divided."""
    return WHOLE_KEPT if definition.logic().message_cfs else WHOLE_ROWS


def division(sizes: IntArray, whole: int) -> list[tuple[int, int]]:
    """Return ranges of buckets, by their rows; each range is a piece."""
    if sizes.sum() <= whole:
        return [(0, len(sizes))]
    ranges, first, rows = [], 0, 0
    for bucket, size in enumerate(sizes.tolist(), 1):
        rows += size
        if rows >= PIECE_ROWS:
            ranges.append((first, bucket))
            first, rows = bucket, 0
    if rows:
        ranges.append((first, len(sizes)))
    return ranges


def divided(
    definition: Definition, tables: Mapping[str, pa.Table], inputs: Mapping[str, pa.Schema]
) -> Iterator[dict[str, pa.Table]]:
    """Yield rows by input in the pieces in which they were ingested. inputs: their columns."""
    logic = definition.logic()
    buckets = {name: _buckets(logic, definition.input(name), inputs, table) for name, table in tables.items()}
    sizes = sum((np.bincount(b, minlength=BUCKETS) for b in buckets.values()), np.zeros(BUCKETS, np.int64))
    for first, following in division(sizes, whole_rows(definition)):
        chosen = {name: (b >= first) & (b < following) for name, b in buckets.items()}
        yield {name: tables[name].filter(pa.array(mask)) for name, mask in chosen.items() if mask.any()}


class Spool:
    """A buffer of a shard's rows until its steps run: in memory, or by bucket in files where they are too many."""

    def __init__(self, buckets: Buckets | None, whole: int, folder: Callable[[], str]) -> None:
        """whole: up to so many rows are not divided. folder: makes the folder of the files."""
        self._buckets, self._whole, self._folder = buckets, whole, folder
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._files: list[tuple[str, IntArray]] = []
        self._sizes = np.zeros(BUCKETS, dtype=np.int64)

    def add(self, table: pa.Table) -> None:
        self._held.append(table)
        self._held_rows += len(table)
        if self._files or self._held_rows > self._whole:
            self._put_down()

    def pieces(self) -> Iterator[pa.Table]:
        """Yield the rows in pieces, with all columns even without rows. Held rows are released."""
        if not self._files:
            held, self._held = self._held, []
            yield held[0] if len(held) == 1 else pa.concat_tables(held, promote_options="permissive")
            return
        for first, following in division(self._sizes, self._whole):
            parts = [part for path, ends in self._files for part in _read(path, ends, first, following)]
            yield pa.concat_tables(parts, promote_options="permissive")

    @property
    def is_divided(self) -> bool:
        return bool(self._files)

    def _put_down(self) -> None:
        """Write the held rows to files, sorted by bucket: one record batch per bucket."""
        if self._buckets is None:
            return
        self._held.reverse()
        while self._held:
            table = self._held.pop()
            if len(table):
                self._write(table, self._buckets(table))
        self._held_rows = 0

    def _write(self, table: pa.Table, buckets: IntArray) -> None:
        sizes = np.bincount(buckets, minlength=BUCKETS)
        table = table.take(pa.array(np.argsort(buckets, kind="stable"))).combine_chunks()
        path = os.path.join(self._folder(), f"rows-{id(self)}-{len(self._files)}.arrow")
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(path, table.schema, options=options) as file:
            first = 0
            for size in sizes[sizes > 0].tolist():
                file.write_table(table.slice(first, size))
                first += size
        self._files.append((path, np.r_[0, np.cumsum(sizes > 0)]))
        self._sizes += sizes


def _read(path: str, ends: IntArray, first: int, following: int) -> Iterator[pa.Table]:
    """Yield the rows of buckets `[first, following)` of a file. ends: the record batches before each bucket."""
    batches = range(int(ends[first]), int(ends[following]))
    if batches:
        with pa.ipc.open_file(path) as file:
            yield pa.Table.from_batches([file.get_batch(i) for i in batches])
