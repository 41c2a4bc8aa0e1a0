"""Pairing: all pairs of left and right rows of one key whose times fit, by one sort and two binary searches, without a loop."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from windrow.core.arrays import IntArray

#: The code of a row whose key equals nothing.
NO_KEY = -1


class Partners(NamedTuple):
    """The partners of left rows: for each, `n` right rows from `first` on in `order`."""

    first: IntArray
    n: IntArray
    order: IntArray

    def of(self, left: IntArray) -> tuple[IntArray, IntArray]:
        """Return (left row, right row) of some left rows, one after the other."""
        first, n = self.first[left], self.n[left]
        each = np.repeat(np.arange(len(left), dtype=np.int64), n)
        within = np.arange(len(each), dtype=np.int64) - np.repeat(np.cumsum(n) - n, n)
        return left[each], self.order[np.repeat(first, n) + within]


def pairs(
    left_codes: IntArray, low: IntArray, high: IntArray, right_codes: IntArray, right_times: IntArray
) -> tuple[IntArray, IntArray]:
    """Return (left row, right row) of equal codes with `low <= right time <= high` of the left row; left rows in order."""
    ranges = partners(left_codes, low, high, right_codes, right_times)
    return ranges.of(np.arange(len(left_codes), dtype=np.int64))


def partners(
    left_codes: IntArray, low: IntArray, high: IntArray, right_codes: IntArray, right_times: IntArray
) -> Partners:
    """Return the partners from which `pairs` makes pairs."""
    if not len(left_codes) or not len(right_codes):
        none = np.zeros(len(left_codes), dtype=np.int64)
        return Partners(none, none, none[:0])
    order = np.lexsort((right_times, right_codes))
    codes, times = right_codes[order], right_times[order]
    # Times as ranks among the right ones, so that (code, time) is one number that cannot overflow.
    known, ranks = np.unique(times, return_inverse=True)
    span = len(known) + 1
    place = codes * span + ranks
    first = np.searchsorted(place, left_codes * span + np.searchsorted(known, low, "left"), "left")
    last = np.searchsorted(place, left_codes * span + np.searchsorted(known, high, "right"), "left")
    n = np.maximum(last - first, 0)
    n[left_codes == NO_KEY] = 0
    return Partners(first, n, order)
