"""Extents of sessions, in whole columns: ranges of event time of one key that overlap or touch are one session."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from windrow.core.arrays import BoolArray, IntArray


class Extents(NamedTuple):
    """Ranges `[start, end]` of keys, which have numbers."""

    codes: IntArray
    starts: IntArray
    ends: IntArray

    def and_more(self, more: Extents) -> Extents:
        return Extents(*(np.concatenate(pair) for pair in zip(self, more, strict=True)))


class Joined(NamedTuple):
    """The component of each range, and the extent of each component."""

    component: IntArray
    starts: IntArray
    ends: IntArray


def by_code(codes: IntArray, values: IntArray) -> IntArray:
    """Return indices that sort by code, then by value, stably. Numbers that fit are sorted as one with their index: fastest."""
    n = len(codes)
    if n < 2:
        return np.arange(n)
    low, place = int(values.min()), (n - 1).bit_length()
    span = int(values.max()) - low + 1
    if (int(codes.max()) + 1) * span << place < 1 << 63:
        packed = ((codes * span + (values - low)) << place) | np.arange(n)
        packed.sort()
        return packed & ((1 << place) - 1)
    return np.lexsort((values, codes))


def joined(extents: Extents) -> Joined:
    """Join ranges of a key that overlap or touch, whichever touches which."""
    codes, starts, ends = extents.codes, extents.starts, extents.ends
    n = len(codes)
    if n == 0:
        return Joined(np.zeros(0, dtype=np.int64), starts, ends)
    order = by_code(codes, starts)
    codes, starts, ends = codes[order], starts[order], ends[order]
    opens = np.ones(n, dtype=bool)
    opens[1:] = (codes[1:] != codes[:-1]) | (starts[1:] > reach_of(codes, ends)[:-1])
    component = np.empty(n, dtype=np.int64)
    component[order] = np.cumsum(opens) - 1
    first = np.flatnonzero(opens)
    return Joined(component, starts[first], np.maximum.reduceat(ends, first))


def reach_of(codes: IntArray, ends: IntArray) -> IntArray:
    """Return the furthest end of a key so far at each range: a running maximum that begins anew with each code.

    codes: sorted
    """
    if len(codes) == 0:
        return ends
    low = int(ends.min())
    span = int(ends.max()) - low + 1
    if (int(codes[-1]) + 1) * span < 1 << 63:
        base = codes * span - low
        reach: IntArray = np.maximum.accumulate(base + ends) - base
        return reach
    distinct, rank = np.unique(ends, return_inverse=True)
    ranks: IntArray = np.maximum.accumulate(codes * len(distinct) + rank) % len(distinct)
    return np.asarray(distinct[ranks])


def holders(outer: Extents, codes: IntArray, moments: IntArray) -> IntArray:
    """Return for each moment of a key the last range of that key that begins at or before it; -1 where there is none."""
    n, m = len(outer.codes), len(codes)
    if n == 0:
        return np.full(m, -1, dtype=np.int64)
    all_codes = np.concatenate([outer.codes, codes])
    # Of equal ones ranges come first, as in the input.
    order = by_code(all_codes, np.concatenate([outer.starts, moments]))
    place = np.where(order < n, np.arange(n + m), -1)
    last = np.maximum.accumulate(place)
    ranges = np.where(last >= 0, order[np.maximum(last, 0)], -1)
    result = np.empty(n + m, dtype=np.int64)
    result[order] = ranges
    holder = result[n:]
    same_key = (holder >= 0) & (outer.codes[np.maximum(holder, 0)] == codes)
    return np.where(same_key, holder, -1)


def first_ending(ranges: Extents, codes: IntArray, moments: IntArray) -> IntArray:
    """Return for each moment of a key the first range of that key that ends at or after it; -1 where there is none."""
    return holders(Extents(ranges.codes, -ranges.ends, ranges.starts), codes, -moments)


def reached(by: Extents, ranges: Extents) -> BoolArray:
    """True for those of `ranges` that overlap or touch one of `by`, of which no two of a key do."""
    holder = holders(by, ranges.codes, ranges.ends)
    ends = by.ends[np.maximum(holder, 0)] if len(by.codes) else ranges.ends
    touches: BoolArray = (holder >= 0) & (ends >= ranges.starts)
    return touches
