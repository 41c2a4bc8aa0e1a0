"""Partitions of the messages of a step: those of a key one after the other, in the order of event time and position.

All windows of a step are ranges of places in the partitions, computed at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray, is_one
from windrow.core.frames import Frame, RangeBetween
from windrow.core.time import END_OF_TIME_US
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, POSITION_COLUMNS, SOURCE
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import encoded_positions

#: Numbers below it leave room for a sum.
_MOST = 1 << 62


def ordered(first: IntArray, rows: pa.Table | None, at: IntArray | None = None) -> IntArray:
    """Return the order of rows by a number of each, ties by position, or as stored without `rows`. at: their indices there;
    default: all, as they are."""
    n = len(first)
    if n < 2:
        return np.arange(n)
    low, size = int(first.min()), n if at is None else int(at.max()) + 1
    bits = size.bit_length()
    if int(first.max()) - low >= _MOST >> bits:
        order: IntArray = np.argsort(first, kind="stable")
        sorted_, stand = first[order], order if at is None else at[order]
    else:  # ties by index: mostly they came by position
        packed = ((first - low) << bits) | (np.arange(n) if at is None else at)
        packed.sort()
        sorted_, stand = packed >> bits, packed & ((1 << bits) - 1)
        order = stand
        if at is not None:
            number = np.empty(size, dtype=np.int64)
            number[at] = np.arange(n)
            order = number[stand]
    equal = sorted_[1:] == sorted_[:-1]
    if rows is None or not equal.any() or _follow(rows, stand, equal):
        return order
    tied = np.flatnonzero(np.r_[equal, False] | np.r_[False, equal])
    order[tied] = order[tied][_by_position(sorted_[tied], rows, stand[tied])]
    return order


def stand_by_position(rows: pa.Table, times: IntArray) -> bool:
    """True if rows of equal times are in position order, by one look at each: they are of one partition,
    in runs of which each is later than those before it. May be False for others that are."""
    if len(rows) == 0 or not {SOURCE, PARTITION, OFFSET} <= set(rows.column_names):
        return False
    starts = np.r_[0, np.flatnonzero(np.diff(rows.column(OFFSET).to_numpy()) <= 0) + 1]
    lasts, firsts = np.maximum.reduceat(times, starts), np.minimum.reduceat(times, starts)
    return bool((firsts[1:] > lasts[:-1]).all()) and all(is_one(rows.column(n)) for n in (SOURCE, PARTITION))


def _order(numbers: IntArray) -> IntArray:
    """Return the places of numbers in sorted order; equal ones keep theirs."""
    low, high, bits = int(numbers.min()), int(numbers.max()), len(numbers).bit_length()
    if high - low >= _MOST >> bits:
        order: IntArray = np.argsort(numbers, kind="stable")
        return order
    packed = ((numbers - low) << bits) | np.arange(len(numbers))
    packed.sort()
    return packed & ((1 << bits) - 1)


def _by_position(first: IntArray, rows: pa.Table, at: IntArray) -> IntArray:
    """Return the order of rows by a number of each, which does not fall from one to the next, and by position. at: their
    indices in `rows`."""
    ranks = np.cumsum(np.r_[False, first[1:] != first[:-1]])
    if not is_one(rows.column(SOURCE)):
        positions = encoded_positions(rows.select(POSITION_COLUMNS).take(pa.array(at)))
        assert positions is not None
        return np.lexsort((_ranks(combine(positions)), ranks))
    packed, most = ranks, int(ranks[-1]) + 1
    numbers = [rows.column(name).to_numpy()[at] for name in (PARTITION, OFFSET, ORDINAL)]
    for column in numbers:
        low = int(column.min())
        span = int(column.max()) - low + 1
        most *= span
        if most >= _MOST:  # numbers of which one cannot be made
            return np.lexsort((*numbers[::-1], ranks))
        packed = packed * span + (column - low)
    return _order(packed)


def _follow(rows: pa.Table, order: IntArray, equal: BoolArray) -> bool:
    """True if of equal rows each has a higher offset than the one before it, all in one partition of the source."""
    if not {SOURCE, PARTITION, OFFSET} <= set(rows.column_names):
        return False
    offsets, partitions = (rows.column(name).to_numpy() for name in (OFFSET, PARTITION))
    same = np.flatnonzero(equal)
    behind = offsets[order[same + 1]] > offsets[order[same]]
    return bool(behind.all() and (partitions == partitions[0]).all() and is_one(rows.column(SOURCE)))


def _ranks(values: pa.Array) -> IntArray:
    """Return for each value its place in their order."""
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[pc.sort_indices(values).to_numpy()] = np.arange(len(values))
    return ranks


def _places(
    numbers: IntArray, least: IntArray, most: IntArray, order: IntArray | None
) -> tuple[IntArray, IntArray]:
    """Return the first index of numbers not below `least`, and the end of those not above `most`.

    order: the order of lookup, so that neighbouring entries are read together; None: as they come
    """
    if order is None:
        return np.searchsorted(numbers, least, side="left"), np.searchsorted(numbers, most, side="right")
    low, high = np.empty_like(least), np.empty_like(most)
    low[order] = np.searchsorted(numbers, least[order], side="left")
    high[order] = np.searchsorted(numbers, most[order], side="right")
    return low, high


@dataclass(frozen=True)
class Bounds:
    """Windows of rows: the places from `low` up to `high`, exclusive. whole: as many as the frame counts."""

    low: IntArray
    high: IntArray
    whole: BoolArray

    @cached_property
    def sizes(self) -> IntArray:
        sizes: IntArray = self.high - self.low
        return sizes

    @cached_property
    def longest(self) -> int:
        return int(self.sizes.max(initial=0))

    @cached_property
    def filled(self) -> IntArray:
        """The windows that have rows."""
        return np.flatnonzero(self.sizes > 0)

    @cached_property
    def by_depth(self) -> list[tuple[IntArray, IntArray]]:
        """The rows of all windows by depth, (windows, the places of their rows): first rows, second rows, up to the longest."""
        windows, by_depth = self.filled, list[tuple[IntArray, IntArray]]()
        for depth in range(self.longest):
            if depth:
                windows = windows[self.sizes[windows] > depth]
            by_depth.append((windows, self.low[windows] + depth))
        return by_depth

    def take(self, some: IntArray | BoolArray) -> Bounds:
        return Bounds(self.low[some], self.high[some], self.whole[some])


class Lines:
    """Rows by key, event time and position.

    codes: a number of each row's key, below `size`. times: event times. at: which rows, None for all; those of one moment keep
    their order if `rows` is None. order: the former index of each row. A partition ends where the next message of its key is
    more than `ttl_us` later; None: it never does. in_order: rows come by key, event time and position
    """

    def __init__(
        self,
        rows: pa.Table | None,
        codes: IntArray,
        size: int,
        times: IntArray,
        ttl_us: int | None,
        at: IntArray | None = None,
        *,
        in_order: bool = False,
    ) -> None:
        rows_us = times
        if at is not None:
            codes, times = codes[at], times[at]
        self._first_us = int(times.min(initial=END_OF_TIME_US))
        self._span = int(times.max(initial=self._first_us)) - self._first_us + 3
        self._moments: IntArray | None = None
        if size * self._span >= _MOST:  # too far apart: by the places of times among all times
            self._moments = np.unique(times)
            self._span = len(self._moments) + 2
        packed = self._packed(codes, times, "left")
        self.size, self.ttl_us = size, ttl_us
        if in_order:
            self.order, self._packed_in_order = np.arange(len(packed)), packed
            self.codes, self.times, self.ties = codes, times, None
            return
        #: The rows whose positions order those of one moment; None if they are in that order.
        self.ties = None if rows is None or stand_by_position(rows, rows_us) else rows
        order = ordered(packed, self.ties, at)
        self.order = order if at is None else at[order]
        self._packed_in_order = packed[order]
        self.codes, self.times = codes[order], times[order]

    def __len__(self) -> int:
        return len(self.times)

    def _packed(self, codes: IntArray, times: IntArray, side: str) -> IntArray:
        """Return numbers in the order of key and time, also of times that no row has; side: the side of such a time."""
        if self._moments is None:
            places = np.clip(times, self._first_us - 1, self._first_us + self._span - 2) - self._first_us + 1
        elif side == "left":
            places = np.searchsorted(self._moments, times, side="left") + 1
        else:
            places = np.searchsorted(self._moments, times, side="right")
        packed: IntArray = codes * self._span + places
        return packed

    @cached_property
    def _breaks(self) -> BoolArray:
        """True for the first of each partition."""
        first = np.ones(len(self), dtype=bool)
        first[1:] = self.codes[1:] != self.codes[:-1]
        if self.ttl_us is not None:
            first[1:] |= self.times[1:] - self.times[:-1] > self.ttl_us
        return first

    @cached_property
    def starts(self) -> IntArray:
        """For each key the place of its first row, and at last the end of all."""
        return np.searchsorted(self.codes, np.arange(self.size + 1), side="left")

    @cached_property
    def begins(self) -> IntArray:
        """For each place the first one of its partition."""
        begins: IntArray = np.maximum.accumulate(np.where(self._breaks, np.arange(len(self)), 0))
        return begins

    @cached_property
    def ends(self) -> IntArray:
        """For each place the end of its partition, exclusive."""
        starts = np.flatnonzero(self._breaks)
        ends: IntArray = np.repeat(np.r_[starts[1:], len(self)], np.diff(np.r_[starts, len(self)]))
        return ends

    def windows(self, frame: Frame, places: IntArray) -> Bounds:
        """Return the windows around the messages at these places. A running one is not among them."""
        if isinstance(frame, RangeBetween):
            return self._around(frame, places)
        assert frame.low is not None
        begins, ends = self.begins[places], self.ends[places]
        low, high = places + frame.low, places + frame.high + 1
        whole = (low >= begins) & (high <= ends)
        low = np.clip(low, begins, ends)
        return Bounds(low, np.maximum(np.clip(high, begins, ends), low), whole)

    def _around(self, frame: RangeBetween, places: IntArray) -> Bounds:
        """Return the windows of time around the messages at these places."""
        codes, times, numbers = self.codes[places], self.times[places], self._packed_in_order
        if frame.low_us == 0:
            low = self.peers[0][places]
        else:
            low = np.searchsorted(numbers, self._packed(codes, times + frame.low_us, "left"), side="left")
        return Bounds(low, np.maximum(self.ends_of(frame, places), low), np.ones(len(places), dtype=bool))

    def ends_of(self, frame: RangeBetween, places: IntArray) -> IntArray:
        """Return the ends, exclusive, of the windows of time around the messages at these places."""
        if frame.high_us == 0:
            return self.peers[1][places]
        most = self._packed(self.codes[places], self.times[places] + frame.high_us, "right")
        return np.searchsorted(self._packed_in_order, most, side="right")

    @cached_property
    def peers(self) -> tuple[IntArray, IntArray]:
        """Return for each place the first of the same key and moment, and the end of these, exclusive."""
        numbers = self._packed_in_order
        starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
        many = np.diff(np.r_[starts, len(numbers)])
        return np.repeat(starts, many), np.repeat(starts + many, many)

    def between(self, codes: IntArray, low_us: IntArray, high_us: IntArray) -> Bounds:
        """Return the windows of these keys from one time to another, both included."""
        if len(self) == 0:
            none = np.zeros(len(codes), dtype=np.int64)
            return Bounds(none, none, np.ones(len(codes), dtype=bool))
        least, most = self._packed(codes, low_us, "left"), self._packed(codes, high_us, "right")
        order = None if bool((least[1:] >= least[:-1]).all()) else _order(least)
        low, high = _places(self._packed_in_order, least, most, order)
        return Bounds(low, np.maximum(high, low), np.ones(len(codes), dtype=bool))

    def first_from(self, codes: IntArray, times: IntArray) -> IntArray:
        """Return for each key and time the place of the first message from then on, or the end of its key."""
        packed = self._packed(codes, times, "left")
        first: IntArray = np.searchsorted(self._packed_in_order, packed, side="left")
        return first

    def hull(self, frames: Iterable[Frame], places: IntArray) -> Bounds:
        """Return for the message at each place all from the first to the last that its windows reach, itself among them."""
        low, high = places, places + 1
        for frame in frames:
            if isinstance(frame, RangeBetween):
                reach = self.windows(RangeBetween(min(frame.low_us, 0), max(frame.high_us, 0)), places)
                low, high = np.minimum(low, reach.low), np.maximum(high, reach.high)
                continue
            begins = self.begins[places]
            first = begins if frame.low is None else np.maximum(places + min(frame.low, 0), begins)
            low = np.minimum(low, first)
            high = np.maximum(high, np.minimum(places + max(frame.high, 0) + 1, self.ends[places]))
            if frame.peers:
                high = np.maximum(high, self.peers[1][places])
        return Bounds(low, high, np.ones(len(places), dtype=bool))

    def complete(self, waits: int, watermark_us: int) -> BoolArray:
        """Return True for messages with `waits` later ones of their partition below the watermark, or if no more can come."""
        done = np.ones(len(self), dtype=bool)
        if waits == 0 or watermark_us >= END_OF_TIME_US:
            return done
        behind = np.arange(len(self)) + waits
        there = behind < self.ends
        done = there & (self.times[np.where(there, behind, 0)] < watermark_us)
        if self.ttl_us is not None:
            done |= self.times[self.ends - 1] < watermark_us - self.ttl_us
        return done
