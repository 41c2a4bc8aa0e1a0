"""KLL quantile sketch of many groups at once, in numpy, and deterministic.

Karnin, Lang, Liberty, "Optimal quantile approximation in streams" (2016), with the capacities of Apache
DataSketches. A sketch is a set of values, each with a level: a value at level `l` represents `2**l` values of
the stream. If a sketch has no room for all values, the lowest full level is sorted. Every second value moves
up one level, the others are dropped. A coin selects the second values. Here the coin is a hash of the level and its
smallest and largest value, not a random number: the same steps leave the same bits.
The weights always add up to the number of values seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windrow.core.arrays import BoolArray, IntArray
from windrow.operators.aggregations.arrays import bounds
from windrow.operators.steps.groups import stable_order

FloatArray = npt.NDArray[np.float64]

_SMALLEST_LEVEL = 8  # room of the lowest levels
_SHRINK = 2.0 / 3.0  # room of a level in terms of the one above


@dataclass(frozen=True)
class Items:
    """Retained values of all groups; `codes` has the group of each."""

    codes: IntArray
    values: FloatArray
    levels: npt.NDArray[np.uint8]

    def take(self, rows: IntArray) -> Items:
        return Items(self.codes[rows], self.values[rows], self.levels[rows])


def compress(items: Items, size: int, k: int) -> Items:
    """Compress the same distributions into the room of a sketch of size `k`; the result is sorted by group."""
    items = items.take(stable_order(items.codes, size))
    while True:
        level = _level_to_compact(items, size, k)
        if not (level >= 0).any():
            return items
        chosen = items.levels == level[items.codes]  # -1 is no level
        items = _compact(items, chosen, size)


def _level_to_compact(items: Items, size: int, k: int) -> IntArray:
    """Return for each group that is over its room the lowest level that is full, else -1."""
    heights = int(items.levels.max(initial=0)) + 1
    cells = items.codes * heights + items.levels
    counts = np.bincount(cells, minlength=size * heights).reshape(size, heights)
    tops = heights - 1 - np.argmax(counts[:, ::-1] > 0, axis=1)
    depth = tops[:, None] - np.arange(heights)[None, :]
    room = np.maximum(np.ceil(k * _SHRINK ** np.maximum(depth, 0)), _SMALLEST_LEVEL).astype(np.int64)
    room[depth < 0] = 0
    over = counts.sum(axis=1) > room.sum(axis=1)
    full = (counts >= room) & (depth >= 0)
    return np.where(over, np.argmax(full, axis=1), -1)


def _compact(items: Items, chosen: BoolArray, size: int) -> Items:
    """Halve the chosen items: of a sorted run without its first (if odd), every second moves up a level."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(items.values[rows], kind="stable")]
    rows = rows[stable_order(items.codes[rows], size)]
    codes, values = items.codes[rows], items.values[rows]
    ends = bounds(codes, size)
    counts = np.diff(ends)
    place = np.arange(len(rows)) - ends[codes]
    filled = np.flatnonzero(counts)
    coin = np.zeros(size, dtype=np.int64)
    coin[filled] = _coins(
        values[ends[filled]], values[ends[filled + 1] - 1], items.levels[rows[ends[filled]]], counts[filled]
    )
    odd = (counts % 2)[codes]
    stays = (odd == 1) & (place == 0)
    rises = ~stays & ((place - odd) % 2 == coin[codes])
    kept = np.ones(len(items.codes), dtype=np.bool_)
    kept[rows[~(stays | rises)]] = False
    levels = items.levels.copy()
    levels[rows[rises]] += 1
    return Items(items.codes, items.values, levels).take(np.flatnonzero(kept))


def _coins(
    smallest: FloatArray, largest: FloatArray, levels: npt.NDArray[np.uint8], counts: IntArray
) -> IntArray:
    """Return 0 or 1 for each run, by the finaliser of splitmix64 over all arguments."""
    mixed = levels.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for part in (smallest.view(np.uint64), largest.view(np.uint64), counts.view(np.uint64)):
        mixed = _mix(mixed ^ part)
    return (mixed >> np.uint64(63)).astype(np.int64)


def _mix(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def quantile(items: Items, size: int, fraction: float) -> tuple[FloatArray, BoolArray]:
    """Return (smallest value of each group with `fraction` of the weight at or below it, true where it has none)."""
    order = np.argsort(items.values, kind="stable")  # NaN last
    order = order[stable_order(items.codes[order], size)]
    weights = np.left_shift(np.int64(1), items.levels[order].astype(np.int64))
    reached = np.cumsum(weights)
    ends = bounds(items.codes, size)
    empty = np.diff(ends) == 0
    before = np.append(0, reached)[ends]
    total = np.diff(before)
    target = before[:-1] + np.maximum(np.ceil(fraction * total), 1).astype(np.int64)
    at = np.searchsorted(reached, target)
    values = np.append(items.values[order], np.nan)
    return values[np.where(empty, len(order), at)], empty
