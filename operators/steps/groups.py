"""Grouping, once for everything: rows to dense group numbers in order of first appearance, then Arrow's hash kernels.

All grouping of windrow is done here, always single-threaded: the same rows in the same order give the same bits.
(Arrow's threaded `group_by` gave six different float sums in six runs.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray, extremes, is_one, letters_of, whole, width_of

_FAST_SUMS = frozenset({pa.int64()})
_FAST_EXTREMES = frozenset({pa.int8(), pa.int16(), pa.int32(), pa.int64()})
#: Columns of so many values are checked for close ones; so many are read per batch, to stay in the cache.
_MANY, _AT_HAND = 1 << 12, 1 << 13
#: Numbers have few gaps where there are two to the power of this as many rows.
_ROWS_A_NUMBER = 4
_UFUNCS: dict[str, tuple[np.ufunc, Callable[[np.dtype[Any]], int]]] = {
    "sum": (np.add, lambda kind: 0),
    "min": (np.minimum, lambda kind: int(np.iinfo(kind).max)),
    "max": (np.maximum, lambda kind: int(np.iinfo(kind).min)),
}


def combine(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Combine chunks into one contiguous array."""
    if isinstance(column, pa.ChunkedArray):
        return whole(column)
    return column


def _aligned(column: pa.Array) -> pa.Array:
    """Return values with the alignment that Arrow's hash tables want, even if they were read out of the middle of bytes."""
    if any(buffer is not None and buffer.address % 8 for buffer in column.buffers()):
        return pa.concat_arrays([column, column.slice(0, 0)])
    return column


def one_zero_one_nan(column: pa.Array) -> pa.Array:
    """Return floats as keys: -0.0 and 0.0 are one, as in SQL, and so are all NaNs, of which there are many by their bits."""
    column = pc.add(column, pa.scalar(0.0, column.type))
    nan = pc.is_nan(column)
    return pc.if_else(nan, pa.scalar(math.nan, column.type), column) if pc.any(nan).as_py() else column


def _dense(column: pa.Array) -> tuple[IntArray, int]:
    """Return numbers of the distinct values of one column, null among them, in order of first appearance."""
    if pa.types.is_floating(column.type):
        column = one_zero_one_nan(column)
    if is_one(column):
        return np.zeros(len(column), dtype=np.int64), 1
    near = _near_numbers(column, 1, _MANY) if len(column) >= _MANY else None
    if near is not None:
        return _renumber(*near)
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    encoded = combine(encoded)
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)


def _renumber(codes: IntArray, span: int) -> tuple[IntArray, int]:
    """Return the same grouping by numbers without gaps, in order of first appearance; `codes` are below `span`."""
    rows = len(codes)
    if span > 8 * rows + 65_536:
        return _dense(pa.array(codes))
    first = np.full(span, -1, dtype=np.int64)
    first[codes[::-1]] = np.arange(rows - 1, -1, -1)
    there = first >= 0
    at = first[there]
    opens = np.zeros(rows, dtype=bool)
    opens[at] = True
    first[there] = (np.cumsum(opens) - 1)[at]
    return first[codes], len(at)


def key_numbers(
    columns: Sequence[pa.Array | pa.ChunkedArray], rows: int, *, gaps: bool = True
) -> tuple[IntArray, int]:
    """Return a number for the key of each row, below the second, in no order. gaps: many of them may have no rows, which is
    faster; False: some may, of many rows."""
    near = _near_numbers(combine(columns[0])) if len(columns) == 1 else None
    if near is not None and (gaps or near[1] <= rows >> _ROWS_A_NUMBER):
        return near
    groups = Groups(columns, rows)
    return groups.codes, groups.size


def _near_numbers(
    column: pa.Array, times: int = 8, least: int = 0, most: int | None = None
) -> tuple[IntArray, int] | None:
    """Return group codes without a hash table, for whole numbers that are close, and texts of one length that differ in few
    characters, as numbered ones do. None for others. times: numbers are below so many times the rows, about; least: a table
    of fewer is fast. most: below that, whatever the rows"""
    rows = len(column)
    if rows == 0 or column.null_count:
        return None
    most = times * rows + 65_536 if most is None else most
    if pa.types.is_integer(column.type):
        numbers = column.to_numpy()
        low = int(numbers.min())
        span = int(numbers.max()) - low + 1
        if not least <= span <= most:
            return None
        if pa.types.is_unsigned_integer(column.type):
            return (numbers - numbers.dtype.type(low)).astype(np.int64), span
        return numbers.astype(np.int64) - low, span
    width = width_of(column)
    if width is None:
        return None
    letters = letters_of(column, width)
    lows, highs = extremes(letters)
    spans = [high - low + 1 for low, high in zip(lows.tolist(), highs.tolist(), strict=True)]
    span = math.prod(spans)
    if not least <= span <= most:
        return None
    codes = np.zeros(rows, dtype=np.int64)
    for low in range(0, rows, _AT_HAND):
        chars, own = letters[low : low + _AT_HAND], codes[low : low + _AT_HAND]
        for place in np.flatnonzero(lows != highs).tolist():
            own *= spans[place]
            own += chars[:, place] - lows[place]
    return codes, span


def value_order(columns: Sequence[pa.Array]) -> IntArray | None:
    """Return rows, at least one, by the values of columns, then in row order, of whole numbers or texts as `_near_numbers` has
    them, at any distance; None for others. A row's value and its place are packed into one number, which numpy sorts in a
    fraction of the time.
    """
    rows = len(columns[0])
    bits = rows.bit_length()
    room, order = 1 << 62 - bits, np.zeros(rows, dtype=np.int64)
    for column in columns:
        near = _near_numbers(column, most=room)
        if near is None:
            return None
        room //= near[1]
        order *= near[1]
        order += near[0]
    order <<= bits
    order |= np.arange(rows)
    order.sort()
    order &= (1 << bits) - 1
    return order


def stable_order(codes: IntArray, size: int) -> IntArray:
    """Return rows by group number below `size`, then in row order. numpy sorts 16 bits by radix, in O(n)."""
    if len(codes) < 2 or bool(np.all(codes[1:] >= codes[:-1])):
        return np.arange(len(codes))
    order: IntArray = np.argsort(codes.astype(np.uint16), kind="stable")  # the low 16 bits
    if size <= 1 << 16:
        return order
    if size <= 1 << 32:
        return order[np.argsort((codes[order] >> 16).astype(np.uint16), kind="stable")]
    return np.argsort(codes, kind="stable")


class Words(NamedTuple):
    """Bytes of one length as numbers that sort as they do: of the places in which they differ, in order.

    pattern: one of them. places: where they differ, at most eight.
    """

    pattern: npt.NDArray[np.uint8]
    places: IntArray
    values: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, column: pa.Array) -> Words | None:
        """Return the words of a column; None if there are none, or they are too long or too different."""
        width = width_of(column)
        if width is None:
            return None
        matrix = letters_of(column, width)
        pattern = matrix[0].copy()
        places = np.flatnonzero(np.not_equal(*extremes(matrix)))
        if len(places) > 8:
            return None
        values = np.zeros(len(column), dtype=np.uint64)
        for place in places:
            values = (values << np.uint64(8)) | matrix[:, place]
        return cls(pattern, places, values)

    def back(self, values: npt.NDArray[np.uint64], filled: BoolArray) -> pa.Array:
        """Return the bytes of such numbers; null where they are not `filled`."""
        matrix = np.tile(self.pattern, (len(values), 1))
        for i, place in enumerate(self.places[::-1]):
            matrix[:, place] = (values >> np.uint64(8 * i)) & np.uint64(0xFF)
        offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(len(self.pattern))
        whole = pa.Array.from_buffers(
            pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(matrix)]
        )
        return whole if filled.all() else pc.if_else(pa.array(filled), whole, pa.scalar(None, pa.binary()))


class Groups:
    """Rows of a table by group.

    codes: for each row its group, 0 to `size` - 1, in order of first appearance. first_rows: the first row of each.
    """

    def __init__(self, columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> None:
        codes: IntArray = np.zeros(rows, dtype=np.int64)
        size = 1 if rows else 0
        for i, column in enumerate(columns):
            dense, distinct = _dense(combine(column))
            if i == 0 or size == 1:
                codes, size = dense, distinct
                continue
            if distinct == 1:
                continue
            codes, size = _renumber(codes * distinct + dense, size * distinct)
        self.codes = codes
        self.size = size
        self.rows = rows

    @classmethod
    def of_codes(cls, codes: IntArray, size: int) -> Groups:
        """Return groups whose numbers are known; some may have no rows (their aggregates are null)."""
        groups = cls.__new__(cls)
        groups.codes, groups.size, groups.rows = codes, size, len(codes)
        return groups

    @classmethod
    def numbered(cls, numbers: IntArray, span: int) -> Groups:
        """Return groups of rows that have numbers below `span`, perhaps with gaps."""
        return cls.of_codes(*_renumber(numbers, span))

    @cached_property
    def first_rows(self) -> IntArray:
        first = np.full(self.size, self.rows, dtype=np.int64)
        first[self.codes[::-1]] = np.arange(self.rows - 1, -1, -1)
        return first

    @cached_property
    def last_rows(self) -> IntArray:
        last = np.zeros(self.size, dtype=np.int64)
        last[self.codes] = np.arange(self.rows)
        return last

    @cached_property
    def _filled(self) -> BoolArray:
        """True for groups that have rows."""
        filled = np.zeros(self.size, dtype=bool)
        filled[self.codes] = True
        return filled

    def aggregate(self, requests: Sequence[tuple[pa.Array | pa.ChunkedArray, str]]) -> list[pa.Array]:
        """Return one array of `size` rows for each (column, Arrow hash function), e.g. `(x, "sum")`; nulls are skipped.

        "first" and "last" take the first and last non-null value in row order; "list" keeps nulls.
        """
        results = [self._fast(combine(c), fn) for c, fn in requests]
        slow = [i for i, r in enumerate(results) if r is None]
        for i, result in zip(slow, self._hashed([requests[i] for i in slow]), strict=True):
            results[i] = result
        return results

    def _fast(self, column: pa.Array, fn: str) -> pa.Array | None:
        """Return sums, minima and maxima of integers, and of short bytes without nulls, and empty columns: no hash table is
        needed.
        """
        kind = column.type
        if len(column) and column.null_count == len(column) and fn in ("min", "max", "first", "last"):
            return pa.nulls(self.size, kind)
        if fn in ("min", "max") and kind == pa.binary() and column.null_count == 0:
            return self._extreme_bytes(column, fn)
        if fn not in _UFUNCS or kind not in (_FAST_SUMS if fn == "sum" else _FAST_EXTREMES):
            return None
        if column.null_count == len(column):
            return pa.nulls(self.size, kind)
        codes, filled, values = self.codes, self._filled, column.drop_null().to_numpy()
        if column.null_count:
            codes = codes[column.is_valid().to_numpy(zero_copy_only=False)]
            filled = np.zeros(self.size, dtype=bool)
            filled[codes] = True
        ufunc, start = _UFUNCS[fn]
        out = np.full(self.size, start(values.dtype), dtype=values.dtype)
        ufunc.at(out, codes, values)
        return pa.array(out) if filled.all() else pa.array(out, mask=~filled)

    def _extreme_bytes(self, column: pa.Array, fn: str) -> pa.Array | None:
        """Return minima or maxima of bytes of one length that differ in few places, as positions do. Arrow is slow at them."""
        words = Words.of(column)
        if words is None:
            return None
        ufunc, start = _UFUNCS[fn]
        out = np.full(self.size, start(words.values.dtype), dtype=np.uint64)
        ufunc.at(out, self.codes, words.values)
        return words.back(out, self._filled)

    def _hashed(self, requests: Sequence[tuple[pa.Array | pa.ChunkedArray, str]]) -> list[pa.Array]:
        if not requests:
            return []
        columns = [_aligned(combine(c)) for c, _ in requests]
        names = [f"c{i}" for i in range(len(columns))]
        table = pa.table([pa.array(self.codes.astype(np.int32)), *columns], names=["code", *names])
        spec: list[tuple[str, str, Any]] = []
        for name, (_, fn) in zip(names, requests, strict=True):
            options: Any = None
            if fn in ("sum", "min", "max") or fn in ("first", "last"):
                options = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
            spec.append((name, fn, options))
        out = table.group_by("code", use_threads=False).aggregate(spec)
        order = combine(out.column("code")).to_numpy()
        results = [combine(out.column(f"{n}_{fn}")) for n, (_, fn) in zip(names, requests, strict=True)]
        if not np.array_equal(order, np.arange(self.size)):
            at = np.full(self.size, -1, dtype=np.int64)
            at[order] = np.arange(len(order))
            places = pa.array(at, mask=at < 0)
            results = [r.take(places) for r in results]
        return results

    def slices(self) -> tuple[IntArray, IntArray]:
        """Return (order, bounds): `order[bounds[g]:bounds[g+1]]` are the rows of group g, in row order."""
        order = stable_order(self.codes, self.size)
        bounds = np.zeros(self.size + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.codes, minlength=self.size), out=bounds[1:])
        return order, bounds


def without(rows: pa.Table, *names: str) -> pa.Table:
    present = [n for n in names if n in rows.column_names]
    return rows.drop_columns(present) if present else rows
