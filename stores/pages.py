"""Pages: merged state rows of some keys to a value, laid out so that many values are read as one.

    page    head, u32 bytes of each column that varies and of the tail, rows x record, those bytes column by column, tail

A record has a row's columns of fixed width (little endian, as Arrow has them), before them a bit for each column that is null,
after them the u32 length of each column that varies. The tail is an Arrow record batch of the columns that are nested. So
reading is joining: no page costs more than a few slices, and a window of a million keys can lie in small pages.

Which page a key is in: `page_of`, linear hashing. A window grows by a page at a time, and only the page that the new one takes
its rows from is read and written: no commit pays for all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.errors import CorruptState, NewerFormat
from windrow.stores.spread import KeyColumns, hashes
from windrow.stores.values import rows_of
from windrow.stores.windows import UPSERT, Schemas

PAGE = 4
#: So many rows are in a page, about. A commit of few rows writes as many pages, a firing all of them.
PAGE_ROWS = 16
#: Pages of so many bytes become one table.
_TABLE_BYTES = 64 << 20
#: Where rows are asked for by the number of their key, not by the key.
HASH = "__hash"
#: So many records are written at once.
_AT_HAND = 1 << 11
_HEAD = struct.Struct(">B?2xI8sQQ")
#: Of its head, up to the schema.
_SAYS = np.dtype([("page", "u1"), ("", "V7"), ("schema", "u8")])
_BEGIN = _SAYS.itemsize
_TEXTS = {pa.string(): "<i4", pa.binary(): "<i4", pa.large_string(): "<i8", pa.large_binary(): "<i8"}
_WIDTHS = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}


class Head(NamedTuple):
    """What stands first in a page. The last two are of the window, and stand in its page 0: all its pages, rows in them.

    waits: page 0 has it where some row of the window's pages may have something that no pane has told.
    """

    version: int
    waits: bool
    rows: int
    schema: bytes
    pages: int
    stored: int

    @classmethod
    def of(cls, value: bytes) -> Head:
        if value[:1] > bytes((PAGE,)):
            raise NewerFormat(
                f"window page of format {value[0]}, this windrow reads up to {PAGE}: upgrade windrow"
            )
        try:
            return cls(*_HEAD.unpack_from(value))
        except struct.error as error:
            raise CorruptState(f"window page of {len(value)} bytes cannot be read: {error}") from error


def rows_in(pages: Iterable[bytes]) -> IntArray:
    """How many rows are in each page: `Head.of(page).rows`, of many."""
    return np.frombuffer(b"".join([page[4:8] for page in pages]), ">u4").astype(np.int64)


class _Columns(NamedTuple):
    """Where the columns of a schema lie in a page, by their numbers."""

    record: np.dtype[np.void]
    fixed: list[int]
    varying: list[int]
    nested: list[int]
    tail: pa.Schema


@lru_cache(maxsize=64)
def _columns(schema: pa.Schema) -> _Columns:
    fixed: list[int] = []
    varying: list[int] = []
    nested: list[int] = []
    record: list[tuple[str, str] | tuple[str, str, tuple[int]]] = [("null", "u1", (-(-len(schema) // 8),))]
    for i, field in enumerate(schema):
        if pa.types.is_null(field.type):
            continue
        if field.type in _TEXTS:
            varying.append(i)
        elif pa.types.is_nested(field.type) or pa.types.is_dictionary(field.type):
            nested.append(i)
        else:
            width = 1 if pa.types.is_boolean(field.type) else field.type.bit_width // 8
            record.append((f"{i}", _WIDTHS.get(width, f"V{width}")))
            fixed.append(i)
    record += [(f"{i}", "<u4") for i in varying]
    return _Columns(np.dtype(record), fixed, varying, nested, pa.schema([schema.field(i) for i in nested]))


# -- which page -------------------------------------------------------------------------------------------------------


def hashes_of(rows: pa.Table, by: Sequence[str]) -> npt.NDArray[np.uint64]:
    """For each row a number of its key, which may stand in its place."""
    if HASH in rows.column_names:
        return np.asarray(rows.column(HASH).to_numpy(), dtype=np.uint64)
    if not by:
        return np.zeros(len(rows), dtype=np.uint64)
    scales = KeyColumns.of(by).scales
    return hashes([rows.column(b) for b in by], [scales.get(b) for b in by] if scales else None)


def among(keys: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> BoolArray:
    """True for keys that are among others: `np.isin`, of many that are spread evenly."""
    if len(others) == 0:
        return np.zeros(len(keys), dtype=bool)
    others, order = np.sort(others), np.argsort(keys)
    at = np.searchsorted(others, keys[order])
    found = np.empty(len(keys), dtype=bool)
    found[order] = others[np.minimum(at, len(others) - 1)] == keys[order]
    return found


def page_of(keys: npt.NDArray[np.uint64], pages: int | IntArray) -> IntArray:
    """The page of each key, of so many pages: its low bits, of which the first is left out where that page is not there yet."""
    count = np.asarray(pages, dtype=np.int64)
    bits = np.frexp((count - 1).astype(np.float64))[1].astype(np.int64)
    low = (keys & ((np.int64(1) << bits) - 1).astype(np.uint64)).astype(np.int64)
    half = (np.int64(1) << np.maximum(bits - 1, 0)) - 1
    page: IntArray = np.where(low < count, low, low & half)
    return page


def split_from(pages: int, more: int) -> set[int]:
    """The pages from which rows move when there are `more` of them, not `pages`."""
    found = set()
    for new in range(pages, more):
        while new >= pages:
            new &= (1 << (new.bit_length() - 1)) - 1
        found.add(new)
    return found


# -- values -----------------------------------------------------------------------------------------------------------


class Packed:
    """Rows as pages: page i has the rows from `bounds[i]` to `bounds[i + 1]`."""

    def __init__(self, rows: pa.Table, schema: bytes, bounds: IntArray) -> None:
        self._schema, columns = schema, _columns(rows.schema)
        self._bytes: list[tuple[memoryview, list[int]]] = []
        arrays = [_one(rows.column(i)) for i in range(rows.num_columns)]
        nulls = np.zeros((len(rows), columns.record["null"].shape[0]), dtype=np.uint8)
        values: list[tuple[str, npt.NDArray[Any]]] = [("null", nulls)]
        for i, array in enumerate(arrays):
            null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
            if null is not None:
                nulls[:, i // 8] |= (null << (i % 8)).astype(np.uint8)
            if i in columns.fixed:
                kind = columns.record[f"{i}"]
                fixed = np.zeros(len(rows), kind) if array.null_count == len(rows) else _fixed(array, kind)
                if null is not None and array.null_count < len(rows):
                    fixed = fixed.copy()
                    fixed[null] = np.zeros(1, kind)[0]
                values.append((f"{i}", fixed))
            elif i in columns.varying:
                ends, data = _ends(array), array.buffers()[2]
                values.append((f"{i}", np.diff(ends)))
                self._bytes.append((memoryview(b"" if data is None else data), ends[bounds].tolist()))
        records = _records(len(rows), columns.record, values)
        width = columns.record.itemsize
        whole = memoryview(records.view(np.uint8).data if len(rows) else b"")
        self._bytes.insert(0, (whole, (bounds * width).tolist()))
        self._rows = bounds.tolist()
        self._tails: list[bytes] = []
        if columns.nested:
            [tail] = pa.table([arrays[i] for i in columns.nested], schema=columns.tail).to_batches() or [None]
            for low, high in zip(self._rows[:-1], self._rows[1:], strict=True):
                self._tails.append(
                    b"" if tail is None else tail.slice(low, high - low).serialize().to_pybytes()
                )
        self._parts: list[list[memoryview] | list[bytes]] = [
            [data[i:k] for i, k in pairwise(ends)] for data, ends in self._bytes
        ]
        self._parts.append(self._tails or [b""] * (len(bounds) - 1))
        sizes = [np.fromiter(map(len, part), np.int64, len(part)) for part in self._parts[1:]]
        lengths, each = np.stack(sizes, axis=1).astype(">u4").tobytes(), 4 * len(sizes)
        self._lengths = [lengths[at : at + each] for at in range(0, len(lengths), each)]

    def page(self, i: int, waits: bool = False, pages: int = 0, stored: int = 0) -> bytes:
        head = _HEAD.pack(PAGE, waits, self._rows[i + 1] - self._rows[i], self._schema, pages, stored)
        return b"".join((head, self._lengths[i], *(part[i] for part in self._parts)))

    def pages(self) -> list[bytes]:
        """All of them, none of which says what there is of a window."""
        head = [("page", "u1"), ("", "V3"), ("rows", ">u4"), ("schema", "S8"), ("", "V16")]
        heads = np.zeros(len(self._rows) - 1, head)
        heads["page"], heads["rows"], heads["schema"] = PAGE, np.diff(self._rows), self._schema
        data, size = heads.tobytes(), heads.itemsize
        firsts = [data[at : at + size] for at in range(0, len(data), size)]
        return list(map(b"".join, zip(firsts, self._lengths, *self._parts, strict=True)))


def in_order(values: Iterable[bytes], schemas: Schemas) -> list[pa.Table]:
    """The rows of pages and of blocks, in the order of these."""
    found = list[pa.Table]()
    for schema, run in groupby(values, lambda value: Head.of(value).schema if value[0] == PAGE else None):
        same = list(run)
        found += [rows_of(value, schemas) for value in same] if schema is None else unpack(same, schemas)
    return found


def unpack(values: Iterable[bytes], schemas: Schemas) -> list[pa.Table]:
    """The rows of pages; upserts, where they do not say what they are."""
    values = list(values)
    heads = b"".join([value[:_BEGIN] for value in values])
    if len(heads) < _BEGIN * len(values):
        Head.of(min(values, key=len))  # which is cut off
    said = np.frombuffer(heads, _SAYS)
    if (newer := np.flatnonzero(said["page"] > PAGE)).size:
        Head.of(values[newer[0]])
    several = len(values) > 0 and bool((said["schema"] != said["schema"][0]).any())
    same: dict[bytes, list[bytes]] = {}
    for value in values if several else ():
        same.setdefault(value[8:_BEGIN], []).append(value)
    if values and not several:
        same[values[0][8:_BEGIN]] = values
    return [
        _table(some, schemas.of(name))
        for name, pages in same.items()
        for some in _of_bytes(pages, _TABLE_BYTES)
    ]


def _of_bytes(values: list[bytes], most: int) -> Iterator[list[bytes]]:
    if sum(map(len, values)) < most:
        yield values
        return
    some: list[bytes] = []
    size = 0
    for value in values:
        some.append(value)
        size += len(value)
        if size >= most:
            yield some
            some, size = [], 0
    if some:
        yield some


def _table(values: list[bytes], schema: pa.Schema) -> pa.Table:
    columns = _columns(schema)
    width, begin = columns.record.itemsize, _HEAD.size + 4 * (len(columns.varying) + 1)
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    if (short := np.flatnonzero(sizes < begin)).size:
        raise CorruptState(f"window page of {sizes[short[0]]} bytes cannot be read: it is cut off")
    heads, first = b"".join([value[:begin] for value in values]), begin * np.arange(len(values))
    lengths = [_u32(heads, first + place) for place in (4, *range(_HEAD.size, begin, 4))]
    lengths[0] *= width
    ends = np.cumsum([np.full(len(values), begin, dtype=np.int64), *lengths], axis=0)
    if (wrong := np.flatnonzero(ends[-1] != sizes)).size:
        says = int(ends[-1][wrong[0]])
        raise CorruptState(f"window page of {sizes[wrong[0]]} bytes cannot be read: it says it has {says}")
    pages, cuts = [memoryview(value) for value in values], [column.tolist() for column in ends]
    parts = [[page[i:k] for page, i, k in zip(pages, *pair, strict=True)] for pair in pairwise(cuts)]
    records = np.frombuffer(b"".join(parts[0]), columns.record)
    arrays: list[pa.Array | None] = [None] * len(schema)
    nulls = np.bitwise_or.reduce(records["null"], axis=0).tolist()
    valid = {
        i: _valid(records, i) if nulls[i // 8] >> i % 8 & 1 else None
        for i in (*columns.varying, *columns.fixed)
    }
    try:
        for part, i in zip(parts[1:-1], columns.varying, strict=True):
            arrays[i] = _text(schema.field(i).type, records[f"{i}"], b"".join(part), valid[i])
        for i in columns.fixed:
            arrays[i] = _values(schema.field(i).type, records[f"{i}"], valid[i])
        if columns.nested:
            batches = [
                pa.ipc.read_record_batch(pa.py_buffer(tail), columns.tail) for tail in parts[-1] if len(tail)
            ]
            tails = pa.Table.from_batches(batches, columns.tail)
            for name, i in zip(columns.tail.names, columns.nested, strict=True):
                arrays[i] = tails.column(name)
        filled = [pa.nulls(len(records)) if array is None else array for array in arrays]
        table = pa.table(filled, schema=schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptState(f"{len(values)} window pages cannot be read: {error}") from error
    if UPSERT in schema.names:
        return table
    return table.append_column(UPSERT, pa.array(np.ones(len(records), dtype=bool)))


def _records(
    n: int, kind: np.dtype[np.void], values: Sequence[tuple[str, npt.NDArray[Any]]]
) -> npt.NDArray[np.void]:
    """Columns as records. So many rows at a time as the processor has at hand: it takes a third of the time."""
    records = np.empty(n, kind)
    fields = [(records[name], column) for name, column in values]
    for low in range(0, n, _AT_HAND):
        for field, column in fields:
            field[low : low + _AT_HAND] = column[low : low + _AT_HAND]
    return records


def _u32(data: bytes, places: IntArray) -> IntArray:
    """Numbers of four bytes, the first of which is the highest."""
    content, value = np.frombuffer(data, np.uint8), np.zeros(len(places), dtype=np.int64)
    for i in range(4):
        value = (value << 8) | content[places + i]
    return value


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _fixed(array: pa.Array, kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """The values as bytes of their width."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.zeros(len(array), kind)
    return np.frombuffer(data, kind, len(array), array.offset * kind.itemsize)


def _ends(array: pa.Array) -> IntArray:
    """Where the bytes of each value begin, and where the last ends."""
    kind, offsets = np.dtype(_TEXTS[array.type]), array.buffers()[1]
    if offsets is None or len(array) == 0:
        return np.zeros(len(array) + 1, dtype=np.int64)
    return np.frombuffer(offsets, kind, len(array) + 1, array.offset * kind.itemsize).astype(np.int64)


def _valid(records: npt.NDArray[np.void], i: int) -> BoolArray:
    """True where column i has a value."""
    valid: BoolArray = records["null"][:, i // 8] >> (i % 8) & 1 == 0
    return valid


def _bits(valid: BoolArray | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _text(
    kind: pa.DataType, lengths: npt.NDArray[np.uint32], data: bytes, valid: BoolArray | None
) -> pa.Array:
    ends = np.zeros(len(lengths) + 1, dtype=_TEXTS[kind])
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] != len(data):
        raise CorruptState(f"a column of {len(data)} bytes in window pages says it has {ends[-1]}")
    return pa.Array.from_buffers(kind, len(lengths), [_bits(valid), pa.py_buffer(ends), pa.py_buffer(data)])


def _values(kind: pa.DataType, values: npt.NDArray[np.void], valid: BoolArray | None) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(values.astype(bool), kind, mask=None if valid is None else ~valid)
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [_bits(valid), data])
