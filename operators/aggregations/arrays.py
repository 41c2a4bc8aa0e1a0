"""Columns that kernels share: sort keys, the best row of a group, lists of a group.

numpy and Arrow only: nothing here runs Python per row or per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.operators.steps.groups import stable_order

_SIGN = np.uint64(1 << 63)


def filled(values: pa.Array, instead: Any) -> pa.Array:
    """Replace nulls by `instead`. Arrow would copy the values even without nulls."""
    return pc.fill_null(values, instead) if values.null_count else values


def validity(values: pa.Array) -> BoolArray:
    """True where a value is not null."""
    mask: BoolArray = pc.is_valid(values).to_numpy(zero_copy_only=False)
    return mask


def integers(values: pa.Array) -> IntArray:
    """Return int64 values; 0 for null."""
    found: IntArray = filled(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return found


def floats(values: pa.Array) -> npt.NDArray[np.float64]:
    """Return float64 values; NaN for null."""
    wide = values.cast(pa.float64(), safe=False)
    found: npt.NDArray[np.float64] = filled(wide, float("nan")).to_numpy(zero_copy_only=False)
    return found


def sort_key(values: pa.Array) -> IntArray:
    """Return int64 numbers in the order of the values: NaN the largest, -0.0 as 0.0. Any number for null."""
    kind = values.type
    if pa.types.is_null(kind):
        return np.zeros(len(values), dtype=np.int64)
    if kind == pa.uint64():
        unsigned = filled(values, 0).to_numpy(zero_copy_only=False)
        return np.asarray((unsigned ^ _SIGN).view(np.int64))
    if pa.types.is_floating(kind):
        numbers = floats(values) + 0.0
        numbers[np.isnan(numbers)] = np.nan  # one NaN, the positive one
        bits = numbers.view(np.int64)
        return np.asarray(bits ^ ((bits >> 63) & np.int64(0x7FFF_FFFF_FFFF_FFFF)))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return integers(values)
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return integers(values.cast(pa.int32()))
    if pa.types.is_temporal(kind):
        return integers(values.cast(pa.int64()))
    encoded = pc.dictionary_encode(values)
    places = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(places), dtype=np.int64)
    ranks[places] = np.arange(len(places))
    codes = integers(encoded.indices)
    return ranks[codes] if len(ranks) else codes


Key: TypeAlias = IntArray | Any  # numbers, or an Arrow array of anything that compares


def position_key(order: pa.Array | None, rows: int) -> list[Key]:
    """Return keys by which rows compare by position: none where they already are in position order.

    A row without a position sorts before every row that has one; equal positions keep the order of arrival.
    """
    if order is None or order.null_count == rows or rows < 2:
        return []
    filled = pc.fill_null(order, b"")
    if not pc.any(pc.less(filled[1:], filled[:-1])).as_py():
        return []
    return [filled]


def _before(keys: Sequence[Key], left: IntArray, right: IntArray) -> tuple[BoolArray, BoolArray]:
    """Return (left sorts before right, left equals right) for pairs of rows."""
    before = np.zeros(len(left), dtype=np.bool_)
    tied = np.ones(len(left), dtype=np.bool_)
    for key in keys:
        if not tied.any():
            break
        if isinstance(key, np.ndarray):
            a, b = key[left], key[right]
            before |= tied & (a < b)
            tied &= a == b
        else:
            one, two = key.take(pa.array(left)), key.take(pa.array(right))
            before |= tied & pc.less(one, two).to_numpy(zero_copy_only=False)
            tied &= pc.equal(one, two).to_numpy(zero_copy_only=False)
    return before, tied


def best_rows(
    codes: IntArray, size: int, candidates: BoolArray, keys: Sequence[Key], *, largest: bool = False
) -> IntArray:
    """Return for each group the candidate with the smallest keys, or -1; the first to arrive wins a tie.

    `largest`: with the largest keys, and the last to arrive wins a tie. Neighbours are compared in rounds of a
    tournament, so that keys of any type need nothing but a comparison.
    """
    best = np.full(size, -1, dtype=np.int64)
    rows = np.flatnonzero(candidates)
    if not keys:
        rows = rows if largest else rows[::-1]
        best[codes[rows]] = rows
        return best
    rows = rows[stable_order(codes[rows], size)]
    while True:
        groups = codes[rows]
        place = np.arange(len(rows))
        starts = np.ones(len(rows), dtype=np.bool_)
        starts[1:] = groups[1:] != groups[:-1]
        place -= np.maximum.accumulate(np.where(starts, place, 0))
        second = place % 2 == 1
        if not second.any():
            break
        at = np.flatnonzero(second)
        early, late = rows[at - 1], rows[at]
        if largest:
            before, _ = _before(keys, late, early)
            wins = ~before
        else:
            wins, _ = _before(keys, late, early)
        rows[at - 1] = np.where(wins, late, early)
        rows = rows[~second]
    best[codes[rows]] = rows
    return best


def sort_rows(codes: IntArray, size: int, keys: Sequence[Key]) -> IntArray:
    """Sort rows by group, then by `keys` (the first the most significant), then by arrival."""
    order: IntArray = np.arange(len(codes))
    for key in reversed(keys):
        numbers = key if isinstance(key, np.ndarray) else sort_key(key)
        order = order[np.argsort(numbers[order], kind="stable")]
    return order[stable_order(codes[order], size)]


def is_sorted(codes: IntArray, keys: Sequence[Key]) -> bool:
    """True if rows that are sorted by group are sorted by `keys`, too."""
    if len(codes) < 2 or not keys:
        return True
    same = np.flatnonzero(codes[1:] == codes[:-1])
    before, _ = _before(keys, same + 1, same)
    return not bool(before.any())


def places(sorted_codes: IntArray, size: int) -> IntArray:
    """Return for rows sorted by group the place of each inside its group, from 0."""
    starts = bounds(sorted_codes, size)
    return np.arange(len(sorted_codes)) - starts[sorted_codes]


def bounds(codes: IntArray, size: int) -> IntArray:
    """Return bounds of rows sorted by group: those of g are `bounds[g]` to `bounds[g + 1]`."""
    ends = np.zeros(size + 1, dtype=np.int64)
    np.cumsum(np.bincount(codes, minlength=size), out=ends[1:])
    return ends


# -- lists ---------------------------------------------------------------------------------------------------


def unit_lists(values: pa.Array, keep: BoolArray) -> pa.Array:
    """Return a list of one value for each row; empty where `keep` is false."""
    ends = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(keep, out=ends[1:])
    kept = values if keep.all() else values.filter(pa.array(keep))
    return pa.ListArray.from_arrays(pa.array(ends), kept)


def flatten(lists: pa.Array, codes: IntArray) -> tuple[IntArray, pa.Array]:
    """Return (group, value) of every element, in row order; null lists have none."""
    lengths = integers(pc.list_value_length(lists))
    return np.repeat(codes, lengths), lists.flatten()


def group_lists(sorted_codes: IntArray, size: int, values: pa.Array) -> pa.Array:
    """Return a list for each group, of values that are sorted by group."""
    return pa.ListArray.from_arrays(pa.array(bounds(sorted_codes, size).astype(np.int32)), values)


def fill_empty(lists: pa.Array) -> pa.Array:
    """Replace null by an empty list."""
    if lists.null_count == 0:
        return lists
    codes, values = flatten(lists, np.arange(len(lists)))
    return group_lists(codes, len(lists), values)
