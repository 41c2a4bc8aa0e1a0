"""Frame kernels: aggregates of all windows of a step at once.

Windows are ranges of places, or made of buckets (`bucketed_frames.py`). Counts and whole numbers are differences of running
sums, which are exact. Floats are never subtracted: their sums, extremes and moments are made by half blocks (`halves`), so that
a value outside a window has no effect on its result. All else is laid out, row by row of each window, and merged by its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.operators.aggregations.arrays import floats, integers, sort_key, validity
from windrow.operators.aggregations.base import Kernel, Parts
from windrow.operators.aggregations.basic import Avg, Count, Extreme, Sum, normalise_limbs
from windrow.operators.aggregations.moments import Variance
from windrow.operators.over.partitions import Bounds

Column: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = tuple[Column, ...]
Merge: TypeAlias = Callable[[Columns, Columns], Columns]
#: So many rows are laid out at a time.
LAID_OUT = 4_000_000
#: Windows of at most so many rows, and on average of at most so many, are merged row by row.
_LONGEST, _OFTEN = 64, 4
#: So many numbers are looked at first.
_GLANCE = 64


@dataclass(frozen=True)
class Ufunc:
    """A merge of one column by a numpy function that can accumulate it."""

    of: np.ufunc

    def __call__(self, left: Columns, right: Columns) -> Columns:
        return (self.of(left[0], right[0]),)


class Windows(Protocol):
    """Windows, and the merging of their contents, which come in pieces, a column of each.

    sizes: of how many rows, or accumulators, each is made
    """

    @property
    def sizes(self) -> IntArray: ...

    def sums(self, values: Sequence[IntArray]) -> IntArray:
        """Return sums of whole numbers, which fit int64 as all of them together do."""
        ...

    def merged(self, columns: Sequence[Columns], merge: Merge, nothing: tuple[Any, ...]) -> Columns:
        """Merge the rows of each window by `merge`, which is associative; `nothing` is the value of an empty one."""
        ...


class Ranges(NamedTuple):
    """Windows that are ranges of places, of rows in one piece."""

    bounds: Bounds

    @property
    def sizes(self) -> IntArray:
        return self.bounds.sizes

    def sums(self, values: Sequence[IntArray]) -> IntArray:
        sums = sums_before(values[0])
        in_windows: IntArray = sums[self.bounds.high] - sums[self.bounds.low]
        return in_windows

    def merged(self, columns: Sequence[Columns], merge: Merge, nothing: tuple[Any, ...]) -> Columns:
        return halves(columns[0], merge, nothing, self.bounds)


class Once:
    """Windows that compute sums of the same numbers once: columns without nulls have the same counts."""

    def __init__(self, windows: Windows) -> None:
        self._windows, self._known = windows, list[tuple[Sequence[IntArray], IntArray]]()

    @property
    def sizes(self) -> IntArray:
        return self._windows.sizes

    def sums(self, values: Sequence[IntArray]) -> IntArray:
        for known, known_sums in self._known:
            if all(map(_same, known, values)):
                return known_sums
        known_sums = self._windows.sums(values)
        self._known.append((values, known_sums))
        return known_sums

    def merged(self, columns: Sequence[Columns], merge: Merge, nothing: tuple[Any, ...]) -> Columns:
        return self._windows.merged(columns, merge, nothing)


def _same(some: IntArray, other: IntArray) -> bool:
    """True if numbers are equal; a prefix decides for most that are not."""
    return np.array_equal(some[:_GLANCE], other[:_GLANCE]) and np.array_equal(some, other)


def folded(kernel: Kernel, pieces: Sequence[Parts], windows: Windows) -> Parts | None:
    """Return the accumulators of windows, from those of rows, the same parts in each piece; None if only the kernel can merge
    them."""
    if isinstance(kernel, Count):
        return {"n": _sums("n", pieces, windows)}
    if isinstance(kernel, Sum | Avg):
        return None if "d" in pieces[0] else _sum_parts(pieces, windows)
    if isinstance(kernel, Variance):
        return _moments(pieces, windows)
    if isinstance(kernel, Extreme):
        return {"v": _extremes([parts["v"] for parts in pieces], kernel.fn, windows)}
    return None


def laid_out(bounds: Bounds) -> Iterator[tuple[int, int, IntArray, IntArray]]:
    """Yield windows row by row, in batches: (the first window, the one after the last, places of their rows, for each row the
    number of its window, from 0)."""
    sizes, ends = bounds.sizes, np.cumsum(bounds.sizes)
    first, n = 0, len(sizes)
    while first < n:
        done = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, done + LAID_OUT, side="right")), first + 1)
        batch_sizes = sizes[first:last]
        of = np.repeat(np.arange(last - first), batch_sizes)
        begins = np.cumsum(batch_sizes) - batch_sizes
        yield first, last, np.arange(len(of)) - begins[of] + bounds.low[first:last][of], of
        first = last


# -- exact ------------------------------------------------------------------------------------------------------------


def sums_before(values: IntArray) -> IntArray:
    """Return for each place the sum of all before it, and of all at last."""
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def _sums(name: str, pieces: Sequence[Parts], windows: Windows) -> pa.Array:
    return pa.array(windows.sums([integers(parts[name]) for parts in pieces]))


def _sum_parts(pieces: Sequence[Parts], windows: Windows) -> Parts:
    totals: Parts = {}
    if "lo" in pieces[0]:
        totals["hi"], totals["lo"] = normalise_limbs(*(_sums(name, pieces, windows) for name in ("hi", "lo")))
    if "f" in pieces[0]:
        numbers = [(_or(parts["f"], floats(parts["f"]), 0.0),) for parts in pieces]
        with np.errstate(invalid="ignore", over="ignore"):
            [sums] = windows.merged(numbers, Ufunc(np.add), (0.0,))
        totals["f"] = pa.array(sums)
    if "n" in pieces[0]:
        totals["n"] = _sums("n", pieces, windows)
    return totals


def _or(values: pa.Array, numbers: Column, none: Any) -> Column:
    """Return values as numbers; `none` for null."""
    return np.where(validity(values), numbers, none) if values.null_count else numbers


# -- by half blocks ---------------------------------------------------------------------------------------------------


def halves(columns: Columns, merge: Merge, nothing: tuple[Any, ...], bounds: Bounds) -> Columns:
    """Merge the rows of each window by `merge`, which is associative; `nothing` is the value of an empty one.

    A window of two rows or more has a boundary between two blocks of some power of two inside: it is the end of one block and
    the beginning of the next. Both are known for all places once blocks of that size are: from those of half the size, by one
    merge for each place. So a window costs one merge, and all rows one for each doubling up to the longest window.
    """
    sizes = bounds.sizes
    merged = tuple(np.full(len(sizes), none, dtype=c.dtype) for c, none in zip(columns, nothing, strict=True))
    filled = bounds.filled
    if len(filled) == 0:
        return merged
    if bounds.longest <= _LONGEST and int(sizes.sum()) <= _OFTEN * len(sizes):
        _row_by_row(merged, columns, merge, bounds)
        return merged
    first, last = bounds.low[filled], bounds.high[filled] - 1
    levels = (bounds.longest - 1).bit_length()
    # The level at which a window has its boundary; none for a single row.
    level = np.minimum(np.frexp((first ^ last).astype(np.float64))[1], levels + 1).astype(np.int8)
    by_level = np.argsort(level, kind="stable")
    cuts = np.searchsorted(level[by_level], np.arange(levels + 3))
    room = -(-len(columns[0]) // (1 << levels)) << levels
    ends = tuple(_padded(c, room, none) for c, none in zip(columns, nothing, strict=True))
    begins = tuple(c.copy() for c in ends)
    single = by_level[: cuts[1]]
    for out, column in zip(merged, ends, strict=True):
        out[filled[single]] = column[first[single]]
    for k in range(levels + 1):
        of_level = by_level[cuts[k + 1] : cuts[k + 2]]
        if len(of_level):
            left, right = (
                tuple(c[first[of_level]] for c in ends),
                tuple(c[last[of_level]] for c in begins),
            )
            for out, column in zip(merged, merge(left, right), strict=True):
                out[filled[of_level]] = column
        if k < levels:
            _double(ends, begins, k, merge)
    return merged


def _row_by_row(derived: Columns, columns: Columns, merge: Merge, bounds: Bounds) -> None:
    """Merge short windows: the first row of each, then the second of those that have one, and so on. A fold from the left."""
    for depth, (windows, places) in enumerate(bounds.by_depth):
        rows = tuple(column[places] for column in columns)
        if depth:
            rows = merge(tuple(out[windows] for out in derived), rows)
        for out, column in zip(derived, rows, strict=True):
            out[windows] = column


def _double(ends: Columns, begins: Columns, k: int, merge: Merge) -> None:
    """Double blocks of 2**k places. ends: from each place to the end of its block; begins: to it from the beginning."""
    paired = tuple(c.reshape(-1, 2, 1 << k) for c in ends)
    whole = tuple(c[:, 1, :1] for c in paired)
    for column, longer in zip(paired, merge(tuple(c[:, 0] for c in paired), whole), strict=True):
        column[:, 0] = longer
    paired = tuple(c.reshape(-1, 2, 1 << k) for c in begins)
    whole = tuple(c[:, 0, -1:] for c in paired)
    for column, longer in zip(paired, merge(whole, tuple(c[:, 1] for c in paired)), strict=True):
        column[:, 1] = longer


def _padded(column: Column, room: int, none: Any) -> Column:
    padded = np.full(room, none, dtype=column.dtype)
    padded[: len(column)] = column
    return padded


def _chan(left: Columns, right: Columns) -> Columns:
    """Count, mean and squared distances of two parts; Chan, Golub, LeVeque."""
    n = left[0] + right[0]
    share = right[0] / np.where(n > 0, n, 1)
    apart = right[1] - left[1]
    both = (left[0] > 0) & (right[0] > 0)
    mean = np.where(right[0] > 0, np.where(left[0] > 0, left[1] + apart * share, right[1]), left[1])
    between = np.where(both, apart * apart * left[0] * share, 0.0)
    return n, mean, left[2] + right[2] + between


def _moments(pieces: Sequence[Parts], windows: Windows) -> Parts:
    columns = [
        tuple(_or(parts["n"], floats(parts[name]), 0.0) for name in ("n", "mean", "m2")) for parts in pieces
    ]
    with np.errstate(invalid="ignore", over="ignore"):
        n, mean, m2 = windows.merged(columns, _chan, (0.0, 0.0, 0.0))
    none = n == 0
    return {
        "n": pa.array(n.astype(np.int64), mask=none),
        "mean": pa.array(mean, mask=none),
        "m2": pa.array(m2, mask=none),
    }


class _Extreme(NamedTuple):
    """The merge for the largest, or the smallest, number of a kind. none: loses to all others, and replaces null."""

    merge: Merge
    none: Any


def _extremes(pieces: Sequence[pa.Array], fn: str, windows: Windows) -> pa.Array:
    kind, largest = pieces[0].type, fn == "max"
    whole = not any(values.null_count for values in pieces)
    empty = (windows.sizes if whole else windows.sums([validity(v).astype(np.int64) for v in pieces])) == 0
    if pa.types.is_floating(kind):
        # A NaN is larger than any number: the largest if there is one, the smallest if there is nothing else.
        how = _Extreme(Ufunc(np.maximum), -np.inf) if largest else _Extreme(Ufunc(np.fmin), np.nan)
        numbers = [(_or(values, floats(values), how.none),) for values in pieces]
        with np.errstate(invalid="ignore"):
            [best] = windows.merged(numbers, how.merge, (how.none,))
        return pa.array(best, mask=empty).cast(kind)
    worst = np.iinfo(np.int64).min if largest else np.iinfo(np.int64).max
    if pa.types.is_signed_integer(kind) or pa.types.is_timestamp(kind):
        keys = [(_or(values, sort_key(values), worst),) for values in pieces]
        [best] = windows.merged(keys, Ufunc(np.maximum if largest else np.minimum), (worst,))
        return pa.array(np.where(empty, 0, best), mask=empty).cast(kind)
    values, cuts = pa.concat_arrays(pieces), np.cumsum([len(piece) for piece in pieces])[:-1]
    places = _or(values, np.arange(len(values)), -1)
    both = zip(np.split(_or(values, sort_key(values), worst), cuts), np.split(places, cuts), strict=True)
    _, rows = windows.merged(list(both), _by_key(largest), (worst, -1))
    return values.take(pa.array(rows, mask=empty | (rows < 0)))


def _by_key(largest: bool) -> Merge:
    """Return the row with the largest, or smallest, key; of equal ones, a row there is."""

    def merge(left: Columns, right: Columns) -> Columns:
        better = right[0] > left[0] if largest else right[0] < left[0]
        better = better | ((right[0] == left[0]) & (left[1] < 0))
        return np.where(better, right[0], left[0]), np.where(better, right[1], left[1])

    return merge


def null_where(values: pa.Array, none: BoolArray) -> pa.Array:
    """Return the values, of any type, null where that is true."""
    if not none.any():
        return values
    return values.take(pa.array(np.arange(len(values)), mask=none))
