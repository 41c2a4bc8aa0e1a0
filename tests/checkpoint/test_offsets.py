"""Offsets: the arithmetic, checked against sets of single offsets."""

from __future__ import annotations

from itertools import product

import pytest

from windrow.checkpoint.offsets import SliceRelation, covers, gaps, merge, relation
from windrow.core.positions import Partition

A, B = ("s", 0), ("s", 1)
ENDS = [None, 0, 2, 4]  # None: the partition is not named
RANGES = [None, *((first, end) for first in range(5) for end in range(first, 6))]


def offsets(a: int | None, b: int | None) -> dict[Partition, int]:
    return {p: n for p, n in ((A, a), (B, b)) if n is not None}


def test_merge_takes_the_further() -> None:
    for left, right in product(product(ENDS, ENDS), repeat=2):
        merged = merge(offsets(*left), offsets(*right))
        for n, partition in enumerate((A, B)):
            known = [side[n] for side in (left, right) if side[n] is not None]
            assert merged.get(partition) == max(known, default=None)


def test_covers_compares_what_was_read() -> None:
    for left, right in product(product(ENDS, ENDS), repeat=2):
        read = [{(n, k) for n, end in enumerate(side) for k in range(end or 0)} for side in (left, right)]
        assert covers(offsets(*left), offsets(*right)) == (read[0] >= read[1])


def test_gaps_names_what_is_left_out() -> None:
    assert gaps({A: 3, B: 3}, {A: 5, B: 3}) == {A: (3, 5)}
    assert gaps({A: 3}, {A: 1, B: 9}) == {}
    assert gaps({A: 0}, {A: 1}) == {A: (0, 1)}


def expected(before: dict[Partition, int], rows: dict[Partition, range], explained: set[Partition]) -> str:
    """The definition, row by row."""
    taken = [(p, n) for p, numbers in rows.items() for n in numbers]
    if not taken:
        return "EMPTY"
    for p, numbers in rows.items():
        if numbers and p in before and p not in explained and numbers[0] > before[p]:
            return "GAP"
    old = [(p, n) for p, n in taken if n < before.get(p, 0)]
    return "BELOW" if len(old) == len(taken) else "OVERLAPS" if old else "ADJACENT"


@pytest.mark.parametrize("explained", [set(), {A}, {A, B}])
def test_relation_of_every_small_slice(explained: set[Partition]) -> None:
    seen = set()
    for ends, a, b in product(product(ENDS, ENDS), RANGES, RANGES):
        before = offsets(*ends)
        ranges = {p: r for p, r in ((A, a), (B, b)) if r is not None}
        first, end = {p: r[0] for p, r in ranges.items()}, {p: r[1] for p, r in ranges.items()}
        related = relation(before, first, end, explained)
        assert related.name == expected(before, {p: range(*r) for p, r in ranges.items()}, explained)
        seen.add(related)
    assert seen >= {*SliceRelation} - {SliceRelation.UNKNOWN, SliceRelation.GAP}


def test_a_slice_that_begins_and_does_not_end_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="begins in"):
        relation({}, {A: 1}, {B: 2})
