"""Spill of rows to an unnamed file in the system's temporary folder, so that they need not be in memory all at once.

No file remains however the process ends: it is deleted with the last table that was read from it. A column of one
value, or equal to another column, is recorded and not written: of panes these are half.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.core.arrays import in_bits, is_one, taken, whole
from windrow.core.types import concat
from windrow.stores.files import Unnamed
from windrow.stores.page_format import hashes_of, is_page, rows_of, size_of, unpack
from windrow.stores.row_codec import Schemas

#: Arrow likes its buffers to begin at such places.
_ALIGNED = 64
#: About so many bytes are in memory at once of rows that gather, and no more of them are read at once.
SLICE_BYTES, SLICE_ROWS = 16 << 20, 1 << 16
#: With fewer rows all columns are written: inspecting them takes longer.
_MANY = 1 << 12


class _Piece(NamedTuple):
    """Spilled record batch: the place of its bytes, its columns, and those that are written. nbytes: of all. held: of others
    the one value, or the index of the equal written column.
    """

    at: int
    size: int
    rows: int
    schema: pa.Schema
    lie: pa.Schema
    nbytes: int
    held: dict[int, pa.Array | int]


class Constants:
    """Columns of one value. Tables that are read back share their memory."""

    def __init__(self) -> None:
        self._columns, self._bytes = dict[pa.Scalar, pa.Array](), 0

    def column(self, one: pa.Scalar, n: int) -> pa.Array | None:
        """Return a column of one value; None where it would take too much memory."""
        known = self._columns.get(one)
        if known is None or len(known) < n:
            size = 1 << (n - 1).bit_length()  # longer than was asked for, as the next table may be
            if self._bytes + pa.repeat(one, _ALIGNED).nbytes * size // _ALIGNED > SLICE_BYTES:
                return None
            known = self._columns[one] = pa.repeat(one, size)
            self._bytes += known.nbytes
        return known.slice(0, n)


class Spill:
    """Tables by number, each of which grows at its end. Not for several threads at once."""

    def __init__(self, constants: Constants | None = None) -> None:
        self._pieces: dict[int, list[_Piece]] = {}
        self._file, self._constants = Unnamed(), constants or Constants()

    def add(self, rows: pa.Table, number: int = 0, at_once: int | None = None) -> None:
        """Add rows to a table. at_once: no more than so many are in memory where they are read one after the other."""
        for batch in rows.to_batches(max_chunksize=at_once):
            if len(batch):
                rest, held = self._apart(batch) if len(batch) >= _MANY else (batch, {})
                self._write(number, rest, batch.schema, held)

    def deal(self, rows: pa.Table, to: npt.NDArray[np.uint8]) -> None:
        """Add rows to several tables, to each in their order. to: of each row the number of its table"""
        at = 0
        for batch in rows.combine_chunks().to_batches():
            own, at = to[at : at + len(batch)], at + len(batch)
            rest, held = self._apart(batch) if len(batch) >= _MANY else (batch, {})
            ordered = taken(pa.Table.from_batches([rest]), np.argsort(own, kind="stable"))
            bounds = np.r_[0, np.cumsum(np.bincount(own))].tolist()
            for number, (low, high) in enumerate(pairwise(bounds)):
                n = high - low
                ones = {i: same if isinstance(same, int) else same.slice(0, n) for i, same in held.items()}
                for piece in ordered.slice(low, n).to_batches():
                    self._write(number, piece, batch.schema, ones)

    def _write(
        self, number: int, some: pa.RecordBatch, schema: pa.Schema, held: dict[int, pa.Array | int]
    ) -> None:
        data = some.serialize()
        at = self._file.write(data, b"\0" * (-data.size % _ALIGNED))
        nbytes = data.size + sum(
            (some.column(same) if isinstance(same, int) else same).nbytes for same in held.values()
        )
        piece = _Piece(at, data.size, len(some), schema, some.schema, nbytes, held)
        self._pieces.setdefault(number, []).append(piece)

    def _apart(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, pa.Array | int]]:
        """Split a batch into the columns to write and the records of the others."""
        lie, held = list[int](), dict[int, pa.Array | int]()
        for i, column in enumerate(batch.columns):
            if (
                _is_constant(column)
                and (of_one := self._constants.column(column[0], len(column))) is not None
            ):
                held[i] = of_one
            elif (
                twin := next((k for k, n in enumerate(lie) if _equal(column, batch.column(n))), None)
            ) is None:
                lie.append(i)
            else:
                held[i] = twin
        return batch.select(lie), held

    @property
    def numbers(self) -> list[int]:
        """Numbers of the tables that have rows."""
        return sorted(number for number, pieces in self._pieces.items() if pieces)

    def rows(self, number: int = 0) -> int:
        """Return the number of rows of a table."""
        return sum(piece.rows for piece in self._pieces.get(number, ()))

    def nbytes(self, number: int = 0) -> int:
        """Return the number of bytes of a table."""
        return sum(piece.nbytes for piece in self._pieces.get(number, ()))

    def read(self, numbers: Iterable[int]) -> list[pa.Table]:
        """Tables, one after the other, in memory."""
        return [
            _table(pa.py_buffer(self._file.read(piece.at, piece.size)), piece)
            for number in numbers
            for piece in self._pieces.get(number, ())
        ]

    def whole(self, numbers: Iterable[int]) -> pa.Table:
        """Tables as one, each column of which is one piece of memory."""
        numbers = list(numbers)
        tables, held = self.read(numbers), [p.held for n in numbers for p in self._pieces.get(n, ())]
        rows = concat(tables)
        if len(tables) == 1:
            return rows
        columns = list[pa.Array]()
        for i, column in enumerate(rows.columns):
            ones = [same for of in held if isinstance(same := of.get(i), pa.Array)]
            alike = len(ones) == len(held) and all(same[0].equals(column[0]) for same in ones)
            of_one = self._constants.column(column[0], len(rows)) if alike else None
            columns.append(whole(column) if of_one is None else of_one)
        return pa.table(columns, schema=rows.schema)

    def each(self, most: int, number: int = 0) -> Iterator[list[pa.Table]]:
        """Yield the rows of a table in their order, about so many bytes at once."""
        tables, size = list[pa.Table](), 0
        for piece in self._pieces.get(number, ()):
            tables.append(_table(pa.py_buffer(self._file.read(piece.at, piece.size)), piece))
            size += piece.nbytes
            if size >= most:
                yield tables
                tables, size = [], 0
        if tables:
            yield tables

    def mapped(self) -> dict[int, pa.Table]:
        """Map all tables, by number: the system reads the file on access, and may release the memory again."""
        if not self._file.size:
            return {}
        whole = pa.py_buffer(self._file.mapped())
        return {number: _concat(whole, 0, self._pieces[number]) for number in self.numbers}

    def pieces(self) -> int:
        """Count the pieces of the first table."""
        return len(self._pieces.get(0, ()))

    def mapped_from(self, first: int) -> pa.Table:
        """Map the rows of the first table from one of its pieces on."""
        pieces = self._pieces[0][first:]
        at = pieces[0].at // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        return _concat(pa.py_buffer(self._file.mapped(at)), at, pieces)


class Gathered:
    """Buffer of rows that come a table at a time: as soon as they are many, they are spilled to a file."""

    def __init__(self) -> None:
        self._held: list[pa.Table] = []
        self._spill: Spill | None = None
        self._rows, self._bytes = 0, 0
        self._schemas: dict[pa.Schema, None] = {}

    def __len__(self) -> int:
        return self._rows

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        self._held.append(rows)
        self._schemas[rows.schema] = None
        self._rows += len(rows)
        self._bytes += rows.nbytes
        if self._bytes > SLICE_BYTES:
            self._spill = self._spill or Spill()
            for table in self._held:
                self._spill.add(table, at_once=SLICE_ROWS)
            self._held, self._bytes = [], 0

    @property
    def held(self) -> pa.Table | None:
        """The rows, if they are all in memory."""
        return concat(self._held) if self._held and self._spill is None else None

    @property
    def schema(self) -> pa.Schema:
        """Their columns, of which some may have come later."""
        return concat([schema.empty_table() for schema in self._schemas]).schema

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows in their order, about so many bytes at once."""
        empty = self.schema.empty_table()
        away = iter(()) if self._spill is None else self._spill.each(SLICE_BYTES)
        for tables in chain(away, [self._held] if self._held else []):
            rows = concat(tables)
            yield rows if rows.schema.equals(empty.schema) else concat([empty, rows])


class Away:
    """Buffer of tables in a list, in their order: as soon as they are many, earlier ones are spilled to a file.

    Each mapping of the file is more than twice as long as the next one, so that there are few of them.
    """

    def __init__(self, tables: list[pa.Table], most: int | None = None) -> None:
        self._tables, self._from, self._most = tables, len(tables), most or SLICE_BYTES
        self._spill: Spill | None = None
        #: The first piece of each mapping.
        self._runs = list[int]()

    def gathered(self) -> None:
        """Move the newest tables to a file if they exceed the limit. Call it after tables were added."""
        runs, at = self._runs, self._from + len(self._runs)
        fresh = self._tables[at:]
        if sum(table.nbytes for table in fresh) <= self._most:
            return
        spill = self._spill = self._spill or Spill()
        runs.append(spill.pieces())
        for table in fresh:
            spill.add(table)
        while len(runs) > 1 and 2 * (spill.pieces() - runs[-1]) >= runs[-1] - runs[-2]:
            runs.pop()
        self._tables[self._from + len(runs) - 1 :] = [spill.mapped_from(runs[-1])]


def _is_constant(column: pa.Array) -> bool:
    """True if a column of some rows is of one value, or of none."""
    if column.null_count == len(column):
        return not pa.types.is_nested(column.type)
    return not in_bits(column.type) and is_one(column)


def _equal(column: pa.Array, other: pa.Array) -> bool:
    """True if two columns are equal. Most others are recognized by a few values."""
    if column.type != other.type or in_bits(column.type):
        return False
    return bool(column[0].equals(other[0]) and column[-1].equals(other[-1]) and column.equals(other))


def _concat(data: pa.Buffer, at: int, pieces: Iterable[_Piece]) -> pa.Table:
    """Read pieces from the bytes of their file from `at` on."""
    return concat([_table(data.slice(piece.at - at, piece.size), piece) for piece in pieces])


def _table(data: pa.Buffer, piece: _Piece) -> pa.Table:
    batch = pa.ipc.read_record_batch(data, piece.lie)
    if not piece.held:
        return pa.Table.from_batches([batch])
    lie, columns = iter(batch.columns), list[pa.Array]()
    for i in range(len(piece.schema)):
        held = piece.held.get(i)
        columns.append(next(lie) if held is None else batch.column(held) if isinstance(held, int) else held)
    return pa.Table.from_arrays(columns, schema=piece.schema)


# -- spill partitions -------------------------------------------------------------------------------------------------
# Hash partitions of a large window: rows are partitioned by a hash of their key and spilled, so no step holds all of them.
# Partitions are by the low bits of the hash, as pages are: a page's rows are of one partition, unless pages are few.

#: Rows of a large window are dealt out to so many shares: 2 to this power.
BITS = 6
SHARES = 1 << BITS
#: Rows that are dealt out at a time, and bytes of pages.
_ROWS, _BYTES = 1 << 17, 4 << 20


class Chunk(NamedTuple):
    """Some windows. rows: all their rows, None for nothing; or shares: the partitions of one large window, by its keys."""

    starts: list[int]
    rows: pa.Table | None
    shares: Spill | None


def dealt(tables: Iterable[pa.Table], by: Sequence[str], spill: Spill) -> Spill:
    """Deal out rows to hash partitions of their keys, in each in the order of arrival."""
    for table in tables:
        for low in range(0, len(table), _ROWS):
            portion = table.slice(low, _ROWS)
            spill.deal(portion, (hashes_of(portion, by) & np.uint64(SHARES - 1)).astype(np.uint8))
    return spill


def tables_of(values: Iterable[bytes], schemas: Schemas) -> Iterator[pa.Table]:
    """Yield the rows of values of a window, as they come: pages, then blocks."""
    pages, size = list[bytes](), 0
    for value in values:
        if is_page(value):
            pages.append(value)
            size += size_of(value)
            if size < _BYTES:
                continue
        yield from unpack(pages, schemas)
        pages, size = [], 0
        if not is_page(value):
            yield rows_of(value, schemas)
    yield from unpack(pages, schemas)


def grouped(spill: Spill, most: int) -> Iterator[pa.Table]:
    """Yield the rows of partitions, several at once as long as they are of `most` bytes."""
    numbers, size = list[int](), 0
    for number in spill.numbers:
        if numbers and size + spill.nbytes(number) > most:
            yield spill.whole(numbers)
            numbers, size = [], 0
        numbers.append(number)
        size += spill.nbytes(number)
    if numbers:
        yield spill.whole(numbers)


def of_keys_apart(rows: pa.Table, by: Sequence[str]) -> bool:
    """True only if no two rows have the same key: those that have it have one hash."""
    hashes = np.sort(hashes_of(rows, by))
    return not bool((hashes[1:] == hashes[:-1]).any())


def of_pages(groups: Spill, pages: int) -> Iterator[tuple[pa.Table, bool]]:
    """Yield the rows of groups of partitions, as from `grouped`, for so many pages; no page gets rows twice. True at last:
    page 0 is among them.
    """
    numbers = groups.numbers
    if pages < 2 * SHARES:  # then a page may have rows of several shares
        yield groups.whole(numbers), True
        return
    for number in reversed(numbers):
        yield groups.whole([number]), number == numbers[0]
