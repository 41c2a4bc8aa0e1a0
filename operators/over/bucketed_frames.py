"""Windows of long frames, each made of rows, of all buckets, and of rows again.

The windows of an advance share the buckets of their key. So the rows before the buckets are the end of a partition, and the
rows after them the beginning of one. One pass along a partition aggregates, for each row, all rows from the buckets to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.frames import RangeBetween
from windrow.operators.aggregations.base import concat_parts
from windrow.operators.over.frame_kernels import Column, Columns, Merge, Ufunc, halves, sums_before
from windrow.operators.over.partitions import Bounds, Lines

#: Partitions are laid out as a matrix, all as long as the longest, if that needs no more than so many times the room.
_ROOM = 4


class Middle(NamedTuple):
    """Buckets of one frame: rows before them, in partitions, and their accumulators, None without any; the accumulators of the
    buckets, one a key, and the numbers of these keys."""

    lines: Lines | None
    lifted: Mapping[str, pa.Array]
    merged: Mapping[str, pa.Array]
    codes: IntArray


@dataclass(frozen=True)
class _Side:
    """Rows in partitions, cut at the buckets, and the number of rows from there on in each window of the key.

    codes: of the rows. starts: the begin of the partition of each key, and the end of the last. keys: of the windows. before:
    true of rows before the buckets, which are counted backwards.
    """

    codes: IntArray
    starts: IntArray
    keys: IntArray
    many: IntArray
    before: bool

    @cached_property
    def bounds(self) -> Bounds:
        """The windows as ranges of these rows."""
        cut = self.starts[self.keys + self.before]
        low, high = (cut - self.many, cut) if self.before else (cut, cut + self.many)
        return Bounds(low, high, np.ones(len(cut), dtype=bool))

    @cached_property
    def _width(self) -> int:
        return int(np.diff(self.starts).max(initial=0)) + 1

    @cached_property
    def fits(self) -> bool:
        """True if partitions may be laid out as a matrix."""
        return (len(self.starts) - 1) * self._width <= _ROOM * (len(self.codes) + len(self.starts))

    @cached_property
    def _cells(self) -> IntArray:
        """Return the cell of each row in that matrix: its distance from the cut, in the row of its key."""
        places, begins = np.arange(len(self.codes)), np.arange(len(self.starts) - 1) * self._width
        if self.before:
            return (begins + self.starts[1:])[self.codes] - places
        return (begins - self.starts[:-1] + 1)[self.codes] + places

    @cached_property
    def _whole(self) -> IntArray:
        """Return the last cell of each window."""
        return self.keys * self._width + self.many

    def along(self, column: Column, ufunc: np.ufunc, nothing: Any, first: Column | None = None) -> Column:
        """Aggregate the rows of each window, starting with the `first` value of its key if there is one."""
        size = len(self.starts) - 1
        cells = np.full((size, self._width), nothing, dtype=column.dtype)
        cells.reshape(-1)[self._cells] = column
        if first is not None:
            cells[:, 0] = first
        values: Column = ufunc.accumulate(cells, axis=1).reshape(-1)[self._whole]
        return values


class Sliced:
    """Windows as `frame_kernels.Windows`, in three pieces: rows before the buckets, an accumulator a key, rows after them."""

    def __init__(
        self,
        middle: Middle,
        lines: Lines,
        lifted: Mapping[str, pa.Array],
        right_us: int,
        frame: RangeBetween,
        places: IntArray,
    ) -> None:
        """Set up windows around the messages at these places of `lines`, with accumulators `lifted`; the rows after the buckets
        are those from `right_us` on."""
        left, size, keys, times = middle.lines, lines.size, lines.codes[places], lines.times[places]
        left_codes: IntArray = np.zeros(0, dtype=np.int64) if left is None else left.codes
        starts, many = _starts(left_codes, size), np.zeros(len(places), dtype=np.int64)
        if left is not None:
            many = starts[keys + 1] - left.first_from(keys, times + frame.low_us)
        self._left = _Side(left_codes, starts, keys, many, before=True)
        # For each key the place of its accumulator, or the one after all of them.
        self._slices = len(middle.codes)
        self._of = np.full(size, self._slices, dtype=np.int64)
        self._of[middle.codes] = np.arange(self._slices)
        after, ends, codes, right = lines.times >= right_us, lines.ends_of(frame, places), lines.codes, lifted
        if not after.all():
            ends, codes = np.r_[0, np.cumsum(after)][ends], codes[after]
            kept = pa.array(np.flatnonzero(after))
            right = {name: column.take(kept) for name, column in lifted.items()}
        starts = _starts(codes, size)
        self._right = _Side(codes, starts, keys, np.maximum(ends - starts[keys], 0), before=False)
        parts = (middle.lifted, len(left_codes)), (middle.merged, len(middle.codes)), (right, len(codes))
        self.pieces = _alike(parts)

    @cached_property
    def sizes(self) -> IntArray:
        left, right = self._left, self._right
        sizes: IntArray = left.many + right.many + (self._of < self._slices)[left.keys]
        return sizes

    def sums(self, values: Sequence[IntArray]) -> IntArray:
        (before, behind), middle = (sums_before(values[i]) for i in (0, 2)), values[1]
        left, right = self._left, self._right
        of_keys = np.r_[middle, 0][self._of] + before[left.starts[1:]] - behind[right.starts[:-1]]
        sums: IntArray = of_keys[left.keys] - before[left.bounds.low] + behind[right.bounds.high]
        return sums

    def merged(self, columns: Sequence[Columns], merge: Merge, nothing: tuple[Any, ...]) -> Columns:
        left, right = self._left, self._right
        middle = tuple(
            np.append(c, np.array(none, dtype=c.dtype))[self._of]
            for c, none in zip(columns[1], nothing, strict=True)
        )
        if isinstance(merge, Ufunc) and left.fits and right.fits:
            behind = right.along(columns[2][0], merge.of, nothing[0], middle[0])
            return merge((left.along(columns[0][0], merge.of, nothing[0]),), (behind,))
        of_windows = tuple(c[left.keys] for c in middle)
        before = merge(halves(columns[0], merge, nothing, left.bounds), of_windows)
        return merge(before, halves(columns[2], merge, nothing, right.bounds))


def _starts(codes: IntArray, size: int) -> IntArray:
    """Return where each key begins among sorted codes, and where the last one ends."""
    starts = np.zeros(size + 1, dtype=np.int64)
    np.cumsum(np.bincount(codes, minlength=size), out=starts[1:])
    return starts


def _alike(pieces: Sequence[tuple[Mapping[str, pa.Array], int]]) -> list[Mapping[str, pa.Array]]:
    """Return accumulators with equal parts and types: those made before a column widened are cast to its current type."""
    types = [{name: column.type for name, column in parts.items()} for parts, _ in pieces]
    if types[0] == types[1] == types[2]:
        return [parts for parts, _ in pieces]
    both = concat_parts([piece for piece in pieces if piece[1]])
    cuts = np.cumsum([0, *(n for _, n in pieces)]).tolist()
    return [
        {name: c.slice(at, n) for name, c in both.items()} for at, (_, n) in zip(cuts, pieces, strict=False)
    ]
