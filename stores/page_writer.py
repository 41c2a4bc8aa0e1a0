"""Page writer: builds pages from rows (`stores/page_format.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.stores.bit_packing import LENGTH, Part, number, text
from windrow.stores.block_format import FORMAT, MAGIC, Codec, Kind
from windrow.stores.page_format import PAGE_HEAD, TEXTS, Columns, columns_of

#: Pages written at once, from which they are narrow: fewer cost more time than bytes, and would each have their own shape.
NARROW_PAGES = 512
#: Records that are written at once.
_AT_HAND = 1 << 11


class Packed:
    """Rows as pages: page i has the rows from `bounds[i]` to `bounds[i + 1]`."""

    def __init__(self, rows: pa.Table, schema: bytes, bounds: IntArray, narrow: bool | None = None) -> None:
        """narrow: whether they are; None: if they are many"""
        self._schema, columns, self._rows = schema, columns_of(rows.schema), bounds.tolist()
        narrow = len(rows) > 0 and (len(bounds) > NARROW_PAGES if narrow is None else narrow)
        self._codec, self._shape, parts = Codec.NARROW if narrow else Codec.PACKED, b"", list[Part]()
        arrays = [_one(rows.column(i)) for i in range(rows.num_columns)]
        nulls = np.zeros((columns.record["null"].shape[0], len(rows)), dtype=np.uint8)
        parts.append(Part("null", b"", b"", columns.record["null"], nulls.T))
        cut: list[tuple[memoryview, IntArray]] = []
        for i, array in enumerate(arrays):
            null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
            if null is not None:
                nulls[i // 8] |= null.view(np.uint8) << np.uint8(i % 8)
            if i in columns.fixed:
                kind = columns.record[f"{i}"]
                parts.append(Part(f"{i}", b"", b"", kind, _without_nulls(array, kind, null, narrow)))
            elif i in columns.varying:
                ends, data = _ends(array), array.buffers()[2]
                bytes_ = memoryview(b"" if data is None else data)
                short = text(f"{i}", ends, bytes_, null) if narrow else None
                parts.append(short or Part(f"{i}", b"", b"", columns.record[f"{i}"], np.diff(ends)))
                if short is None:
                    cut.append((bytes_, ends[bounds]))
        parts.sort(key=lambda part: columns.places[part.name])
        if narrow:
            parts = _narrow(columns, rows.schema, parts)
            self._shape = b"".join([part.item for part in parts]) + b"".join([part.frame for part in parts])
        records = _records(len(rows), parts)
        # Bytes that are cut cost a copy, but no object that Python's collector looks at.
        whole: Any = (
            records.tobytes() if narrow else memoryview(records.view(np.uint8).data if len(rows) else b"")
        )
        self._cut(rows, columns, arrays, [(whole, bounds * records.itemsize), *cut])

    def _cut(
        self,
        rows: pa.Table,
        columns: Columns,
        arrays: list[pa.Array],
        whole: list[tuple[memoryview, IntArray]],
    ) -> None:
        """Cut records, and the bytes of varying columns, into pages."""
        tails: list[bytes] = [b""] * (len(self._rows) - 1)
        if columns.nested:
            [tail] = pa.table([arrays[i] for i in columns.nested], schema=columns.tail).to_batches() or [None]
            for i, (low, high) in enumerate(pairwise(self._rows)):
                tails[i] = b"" if tail is None else tail.slice(low, high - low).serialize().to_pybytes()
        self._parts: list[list[memoryview] | list[bytes]] = [
            [data[i:k] for i, k in pairwise(ends.tolist())] for data, ends in whole
        ]
        self._parts.append(tails)
        sizes = [np.diff(ends) for _, ends in whole[1:]] + [
            np.fromiter(map(len, tails), np.int64, len(tails))
        ]
        lengths, each = np.stack(sizes, axis=1).astype(">u4").tobytes(), 4 * len(sizes)
        self._lengths = [self._shape + lengths[at : at + each] for at in range(0, len(lengths), each)]
        if not columns.nested:
            self._parts.pop()

    def page(self, i: int, waits: bool = False, pages: int = 0, stored: int = 0) -> bytes:
        n = self._rows[i + 1] - self._rows[i]
        head = PAGE_HEAD.pack(MAGIC, FORMAT, Kind.PAGE, self._codec, n, self._schema, pages, waits, stored)
        return b"".join((head, self._lengths[i], *(part[i] for part in self._parts)))

    def pages(self) -> list[bytes]:
        """Return all of them, none of which describes its window."""
        begin = np.frombuffer(bytes((MAGIC, FORMAT, Kind.PAGE, self._codec)), "u4")[0]
        heads = np.zeros(
            len(self._rows) - 1, [("begin", "u4"), ("rows", ">u4"), ("schema", "S8"), ("", "V16")]
        )
        heads["begin"], heads["rows"], heads["schema"] = begin, np.diff(self._rows), self._schema
        data, size = heads.tobytes(), heads.itemsize
        firsts = [data[at : at + size] for at in range(0, len(data), size)]
        return list(map(b"".join, zip(firsts, self._lengths, *self._parts, strict=True)))


def narrow_rows(rows: pa.Table, schema: bytes) -> bytes:
    """Write rows, at least one, as one narrow page."""
    return Packed(rows, schema, np.array([0, len(rows)]), narrow=True).page(0)


def _narrow(columns: Columns, schema: pa.Schema, page_parts: Sequence[Part]) -> list[Part]:
    """Return the same, of as few bytes as their values need."""
    parts = list[Part]()
    for part in page_parts:
        if part.name == "null":
            parts += [number(f"null{i}", np.ascontiguousarray(row)) for i, row in enumerate(part.values.T)]
        elif part.item or columns.record[part.name].kind == "V":
            parts.append(part)
        else:
            i = int(part.name)
            own = part.values
            if i in columns.fixed and not pa.types.is_unsigned_integer(schema.field(i).type):
                own = own.view(own.dtype.str.replace("u", "i"))
            parts.append(number(part.name, own, LENGTH if i in columns.varying else 0))
    return [part for part in parts if part.item] + [part for part in parts if not part.item]


def _records(n: int, parts: Sequence[Part]) -> npt.NDArray[np.void]:
    """Columns as records. So many rows at a time as the processor has at hand: it takes a third of the time."""
    there = [part for part in parts if part.kind is not None]
    records = np.empty(n, np.dtype([(part.name, part.kind) for part in there]))
    fields = [(records[part.name], part.values, part.base) for part in there]
    for low in range(0, n, _AT_HAND):
        for field, column, base in fields:
            portion = column[low : low + _AT_HAND]
            field[low : low + _AT_HAND] = portion - base if base else portion
    return records


def _without_nulls(
    array: pa.Array, kind: np.dtype[np.void], null: BoolArray | None, narrow: bool
) -> npt.NDArray[Any]:
    """Return the values as bytes of their width; nulls become zeros, or another row's value, which makes none wider."""
    if null is None:
        return _fixed(array, kind)
    if array.null_count == len(array):
        return np.zeros(len(array), kind)
    fixed = _fixed(array, kind)
    return np.where(
        null, fixed[np.argmin(null)] if narrow and fixed.dtype.kind != "V" else np.zeros(1, kind)[0], fixed
    )


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _fixed(array: pa.Array, kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Return the values as bytes of their width."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.zeros(len(array), kind)
    return np.frombuffer(data, kind, len(array), array.offset * kind.itemsize)


def _ends(array: pa.Array) -> IntArray:
    """Return the offset of each value's bytes, and the end of the last."""
    kind, offsets = np.dtype(TEXTS[array.type]), array.buffers()[1]
    if offsets is None or len(array) == 0:
        return np.zeros(len(array) + 1, dtype=np.int64)
    return np.frombuffer(offsets, kind, len(array) + 1, array.offset * kind.itemsize).astype(np.int64)
