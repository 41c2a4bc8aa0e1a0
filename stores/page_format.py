"""Format of pages: merged state rows of some keys in one value, laid out so that many values are read as one.

    page    head, u32 bytes of each column that varies and of the tail, rows x record, those bytes column by column, tail
    narrow  head, shape, frame, then as above, of the columns that still vary: where many pages are written at once, records are
            of as few bytes as their values need (`stores/bit_packing.py`)

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
from windrow.core.errors import CorruptState
from windrow.stores.bit_packing import ITEM, LENGTH, TEXT, items_of, numbers, texts
from windrow.stores.block_format import FORMAT, HEADER, MAGIC, Codec, Kind, check_head, header_of
from windrow.stores.key_hash import hashes
from windrow.stores.row_codec import Schemas, unpack_table
from windrow.stores.window_state import UPSERT

#: A narrow page has about this fraction of its rows' bytes.
_PART = 4
#: Rows in a page, about. A commit of few rows writes as many pages, a firing all of them.
PAGE_ROWS = 16
#: Fewer values are sought without keys in order: they fit a cache of the processor.
_FEW = 4_096
#: Pages of so many bytes become one table.
_TABLE_BYTES = 64 << 20
#: The column of key hashes where rows are selected by hash, not by key.
HASH = "__hash"
PAGE_HEAD = struct.Struct(">BBBBI8sI?3xQ")
#: The fields of a page's head up to the schema.
_SAYS = np.dtype([("magic", "u1"), ("version", "u1"), ("", "V6"), ("schema", "u8")])
_BEGIN = _SAYS.itemsize
TEXTS = {pa.string(): "<i4", pa.binary(): "<i4", pa.large_string(): "<i8", pa.large_binary(): "<i8"}
_WIDTHS = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}


class Head(NamedTuple):
    """Header of a page. The last three fields describe the window and are in its page 0: all its pages, rows in them.

    waits: page 0 has it where some row of the window's pages may have something that no pane has emitted.
    """

    codec: int
    rows: int
    schema: bytes
    pages: int
    waits: bool
    stored: int

    @classmethod
    def of(cls, value: bytes) -> Head:
        check_head(value, (Kind.PAGE,), PAGE_HEAD)
        return cls(*PAGE_HEAD.unpack_from(value)[3:])


def is_page(value: bytes) -> bool:
    return value[2] == Kind.PAGE


def size_of(value: bytes) -> int:
    """Return the bytes that a page, or a block, would take if it were not narrow, about."""
    return len(value) * _PART if value[3] == Codec.NARROW else len(value)


def rows_in(pages: Iterable[bytes]) -> IntArray:
    """Return the number of rows in each page: `Head.of(page).rows`, of many."""
    return np.frombuffer(b"".join([page[4:8] for page in pages]), ">u4").astype(np.int64)


class Columns(NamedTuple):
    """Layout of a schema's columns in a page, by their numbers."""

    record: np.dtype[np.void]
    fixed: list[int]
    varying: list[int]
    nested: list[int]
    tail: pa.Schema
    #: The offset of each in a record.
    places: dict[str, int]

    @property
    def parts(self) -> list[str]:
        """The parts that a shape of narrow pages describes: bytes of nulls, whole numbers, texts."""
        return [f"null{i}" for i in range(self.record["null"].shape[0])] + [
            f"{i}" for i in (*self.fixed, *self.varying) if self.record[f"{i}"].kind != "V"
        ]


@lru_cache(maxsize=64)
def columns_of(schema: pa.Schema) -> Columns:
    fixed: list[int] = []
    varying: list[int] = []
    nested: list[int] = []
    record: list[tuple[str, str] | tuple[str, str, tuple[int]]] = [("null", "u1", (-(-len(schema) // 8),))]
    for i, field in enumerate(schema):
        if pa.types.is_null(field.type):
            continue
        if field.type in TEXTS:
            varying.append(i)
        elif pa.types.is_nested(field.type) or pa.types.is_dictionary(field.type):
            nested.append(i)
        else:
            width = 1 if pa.types.is_boolean(field.type) else field.type.bit_width // 8
            record.append((f"{i}", _WIDTHS.get(width, f"V{width}")))
            fixed.append(i)
    record += [(f"{i}", "<u4") for i in varying]
    places = {name: i for i, (name, *_) in enumerate(record)}
    tail = pa.schema([schema.field(i) for i in nested])
    return Columns(np.dtype(record), fixed, varying, nested, tail, places)


# -- which page -------------------------------------------------------------------------------------------------------


def hashes_of(rows: pa.Table, by: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return a hash of each row's key, by which rows may be selected in place of the key."""
    if HASH in rows.column_names:
        return np.asarray(rows.column(HASH).to_numpy(), dtype=np.uint64)
    if not by:
        return np.zeros(len(rows), dtype=np.uint64)
    return hashes([rows.column(b) for b in by])


def among(keys: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> BoolArray:
    """True for keys that are among others: `np.isin`, of many that are spread evenly."""
    if len(others) == 0:
        return np.zeros(len(keys), dtype=bool)
    others = np.sort(others)
    if len(others) < _FEW:
        at = np.minimum(np.searchsorted(others, keys), len(others) - 1)
        return np.asarray(others[at] == keys)
    order = np.argsort(keys)
    at = np.searchsorted(others, keys[order])
    is_among = np.empty(len(keys), dtype=bool)
    is_among[order] = others[np.minimum(at, len(others) - 1)] == keys[order]
    return is_among


def page_of(keys: npt.NDArray[np.uint64], pages: int | IntArray) -> IntArray:
    """Return the page of each key, of so many pages: its low bits, less the highest where that page does not exist yet."""
    count = np.asarray(pages, dtype=np.int64)
    bits = np.frexp((count - 1).astype(np.float64))[1].astype(np.int64)
    low = (keys & ((np.int64(1) << bits) - 1).astype(np.uint64)).astype(np.int64)
    half = (np.int64(1) << np.maximum(bits - 1, 0)) - 1
    page: IntArray = np.where(low < count, low, low & half)
    return page


def split_from(pages: int, more: int) -> set[int]:
    """Return the pages from which rows move when there are `more` of them, not `pages`."""
    split = set()
    for new in range(pages, more):
        while new >= pages:
            new &= (1 << (new.bit_length() - 1)) - 1
        split.add(new)
    return split


# -- values -----------------------------------------------------------------------------------------------------------


def rows_of(value: bytes, schemas: Schemas) -> pa.Table:
    """Return the rows of a block."""
    header = header_of(value)
    if header.codec == Codec.STREAM:
        return unpack_table(value[HEADER.size :])
    if header.codec == Codec.NARROW:
        [rows] = unpack([value[HEADER.size :]], schemas)
        return rows
    schema = schemas.of(header.schema)
    try:
        return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(value)[HEADER.size :], schema)])
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptState(f"window block of {len(value)} bytes cannot be read: {error}") from error


def in_order(values: Iterable[bytes], schemas: Schemas) -> list[pa.Table]:
    """Return the rows of pages and of blocks, in the order of these."""
    tables = list[pa.Table]()
    for schema, run in groupby(values, lambda value: Head.of(value).schema if is_page(value) else None):
        same = list(run)
        tables += [rows_of(value, schemas) for value in same] if schema is None else unpack(same, schemas)
    return tables


def unpack(values: Iterable[bytes], schemas: Schemas) -> list[pa.Table]:
    """Return the rows of pages, as upserts where they have no such column."""
    values = list(values)
    heads = b"".join([value[:_BEGIN] for value in values])
    if len(heads) < _BEGIN * len(values):
        Head.of(min(values, key=len))  # which is cut off
    headers = np.frombuffer(heads, _SAYS)
    if (other := np.flatnonzero((headers["magic"] != MAGIC) | (headers["version"] != FORMAT))).size:
        Head.of(values[other[0]])
    several = len(values) > 0 and bool((headers["schema"] != headers["schema"][0]).any())
    same: dict[bytes, list[bytes]] = {}
    for value in values if several else ():
        same.setdefault(value[8:_BEGIN], []).append(value)
    if values and not several:
        same[values[0][8:_BEGIN]] = values
    return [
        _table(batch, schemas.of(name))
        for name, pages in same.items()
        for batch in _of_bytes(pages, _TABLE_BYTES)
    ]


def _of_bytes(values: list[bytes], most: int) -> Iterator[list[bytes]]:
    if sum(map(size_of, values)) < most:
        yield values
        return
    batch: list[bytes] = []
    size = 0
    for value in values:
        batch.append(value)
        size += size_of(value)
        if size >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Read(NamedTuple):
    """Raw content of many pages, column by column. texts: the length of each text, and the bytes of all."""

    nulls: npt.NDArray[np.uint8]
    fixed: dict[int, npt.NDArray[Any]]
    texts: dict[int, tuple[npt.NDArray[Any], Any]]
    tails: Sequence[memoryview]


def _table(values: list[bytes], schema: pa.Schema) -> pa.Table:
    columns = columns_of(schema)
    end = PAGE_HEAD.size + ITEM * len(columns.parts)
    of = {value[PAGE_HEAD.size : end] if value[3] == Codec.NARROW else b"" for value in values}
    if len(of) > 1:
        return _of_shapes(values, schema, columns)
    read = _read_narrow(values, columns, of.pop()) if values[0][3] == Codec.NARROW else _read(values, columns)
    arrays: list[pa.Array | None] = [None] * len(schema)
    with_nulls = np.bitwise_or.reduce(read.nulls, axis=0).tolist()
    valid = {
        i: _valid(read.nulls, i) if with_nulls[i // 8] >> i % 8 & 1 else None
        for i in (*columns.varying, *columns.fixed)
    }
    try:
        for i, (lengths, data) in read.texts.items():
            arrays[i] = _text(schema.field(i).type, lengths, data, valid[i])
        for i, column in read.fixed.items():
            arrays[i] = _values(schema.field(i).type, column, valid[i])
        if columns.nested:
            batches = [
                pa.ipc.read_record_batch(pa.py_buffer(tail), columns.tail) for tail in read.tails if len(tail)
            ]
            tails = pa.Table.from_batches(batches, columns.tail)
            for name, i in zip(columns.tail.names, columns.nested, strict=True):
                arrays[i] = tails.column(name)
        filled = [pa.nulls(len(read.nulls)) if array is None else array for array in arrays]
        table = pa.table(filled, schema=schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptState(f"{len(values)} window pages cannot be read: {error}") from error
    if UPSERT in schema.names:
        return table
    return table.append_column(UPSERT, pa.array(np.ones(len(read.nulls), dtype=bool)))


def _of_shapes(values: list[bytes], schema: pa.Schema, columns: Columns) -> pa.Table:
    """Return one table, as `_table` does, of pages of several formats or shapes, in their order."""
    by_shape, end = dict[bytes, list[int]](), PAGE_HEAD.size + ITEM * len(columns.parts)
    for i, value in enumerate(values):
        by_shape.setdefault(value[PAGE_HEAD.size : end] if value[3] == Codec.NARROW else b"", []).append(i)
    tables = [_table([values[i] for i in members], schema) for members in by_shape.values()]
    places = np.concatenate([np.array(members, dtype=np.int64) for members in by_shape.values()])
    of_rows = np.repeat(places, rows_in([values[i] for i in places.tolist()]))
    return pa.concat_tables(tables).combine_chunks().take(pa.array(np.argsort(of_rows, kind="stable")))


def _cuts(
    values: list[bytes], begin: int, first: int, width: int, varying: int
) -> tuple[npt.NDArray[np.uint8], list[list[memoryview]]]:
    """Split pages at `begin`. Returns the bytes of each page before its records, and its records of `width` bytes, varying
    columns and tail. first: the offset of the varying columns' lengths"""
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    if (short := np.flatnonzero(sizes < begin)).size:
        raise CorruptState(f"window page of {sizes[short[0]]} bytes cannot be read: it is cut off")
    heads = b"".join([value[:begin] for value in values])
    at = begin * np.arange(len(values))
    lengths = [_u32(heads, at + place) for place in (4, *range(first, first + 4 * varying, 4))]
    lengths[0] *= width
    ends = np.cumsum([np.full(len(values), begin, dtype=np.int64), *lengths], axis=0)
    if (wrong := np.flatnonzero(ends[-1] != sizes)).size:
        says = int(ends[-1][wrong[0]])
        raise CorruptState(f"window page of {sizes[wrong[0]]} bytes cannot be read: it says it has {says}")
    pages, cuts = [memoryview(value) for value in values], [column.tolist() for column in ends]
    parts = [[page[i:k] for page, i, k in zip(pages, *pair, strict=True)] for pair in pairwise(cuts)]
    return np.frombuffer(heads, np.uint8).reshape(len(values), begin), parts


def _read(values: list[bytes], columns: Columns) -> _Read:
    varying = len(columns.varying)
    begin = PAGE_HEAD.size + 4 * (varying + 1)
    _, parts = _cuts(values, begin, PAGE_HEAD.size, columns.record.itemsize, varying + 1)
    records = np.frombuffer(b"".join(parts[0]), columns.record)
    return _Read(
        records["null"],
        {i: records[f"{i}"] for i in columns.fixed},
        {i: (records[f"{i}"], b"".join(parts[1 + k])) for k, i in enumerate(columns.varying)},
        parts[-1],
    )


def _read_narrow(values: list[bytes], columns: Columns, shape: bytes) -> _Read:
    """Pages of one shape."""
    if len(shape) < ITEM * len(columns.parts):
        raise CorruptState(f"window page of {len(values[0])} bytes cannot be read: it is cut off")
    items, frame = items_of(columns.parts, shape)
    kinds = [(item.name, item.kind) for item in items if item.kind]
    kinds += [
        (f"{i}", columns.record[f"{i}"].str) for i in columns.fixed if columns.record[f"{i}"].kind == "V"
    ]
    record, framed = np.dtype(kinds), PAGE_HEAD.size + len(shape)
    varying = [int(item.name) for item in items if item.what == LENGTH]
    begin = framed + frame + 4 * (len(varying) + 1)
    heads, parts = _cuts(values, begin, framed + frame, record.itemsize, len(varying) + 1)
    rows = rows_in(values)
    records = np.zeros(int(rows.sum()), record)
    if kinds:
        records = np.frombuffer(b"".join(parts[0]), record)
    frames = heads[:, framed : framed + frame]
    read = _Read(np.zeros((len(records), columns.record["null"].shape[0]), np.uint8), {}, {}, parts[-1])
    for item in items:
        if item.what == TEXT:
            lengths = np.full(len(records), item.width, dtype=np.uint32)
            read.texts[int(item.name)] = lengths, texts(item, records, frames, rows)
        elif item.name.startswith("null"):
            read.nulls[:, int(item.name[4:])] = numbers(item, records, frames, rows, "u1")
        elif item.what == LENGTH:
            data = b"".join(parts[1 + varying.index(int(item.name))])
            read.texts[int(item.name)] = numbers(item, records, frames, rows, "<u4"), data
        else:
            i = int(item.name)
            read.fixed[i] = numbers(item, records, frames, rows, columns.record[f"{i}"].str)
    for i in columns.fixed:
        if columns.record[f"{i}"].kind == "V":
            read.fixed[i] = records[f"{i}"]
    return read


def _u32(data: bytes, places: IntArray) -> IntArray:
    """Return numbers of four bytes, the first of which is the highest."""
    content, value = np.frombuffer(data, np.uint8), np.zeros(len(places), dtype=np.int64)
    for i in range(4):
        value = (value << 8) | content[places + i]
    return value


def _valid(nulls: npt.NDArray[np.uint8], i: int) -> BoolArray:
    """True where column i has a value."""
    valid: BoolArray = nulls[:, i // 8] >> (i % 8) & 1 == 0
    return valid


def _bits(valid: BoolArray | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _text(
    kind: pa.DataType, lengths: npt.NDArray[np.uint32], data: bytes, valid: BoolArray | None
) -> pa.Array:
    if (says := int(lengths.sum())) != len(data):
        raise CorruptState(f"a column of {len(data)} bytes in window pages says it has {says}")
    if valid is not None and bool(lengths[~valid].any()):
        chars = np.frombuffer(data, np.uint8)
        if bool((lengths == lengths[0]).all()):  # as all texts of narrow pages
            data = chars.reshape(len(lengths), -1)[valid].tobytes()
        else:  # what Arrow had beneath nulls
            data = chars[np.repeat(valid, lengths)].tobytes()
        lengths = np.where(valid, lengths, 0)
    ends = np.zeros(len(lengths) + 1, dtype=TEXTS[kind])
    np.cumsum(lengths, out=ends[1:])
    return pa.Array.from_buffers(kind, len(lengths), [_bits(valid), pa.py_buffer(ends), pa.py_buffer(data)])


def _values(kind: pa.DataType, values: npt.NDArray[np.void], valid: BoolArray | None) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(values.astype(bool), kind, mask=None if valid is None else ~valid)
    if valid is not None and values.dtype.kind != "V":
        values = np.where(valid, values, np.zeros(1, values.dtype))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [_bits(valid), data])
