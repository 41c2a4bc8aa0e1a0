"""Ranges of keys, joined in whole columns, are what joining them one by one gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.operators.aggregate.sessions.extents import Extents, by_code, holders, joined, reach_of, reached

#: Numbers that are sorted as one, and those that are too far apart for that.
FAR = 1 << 61
RANGES = st.lists(st.tuples(st.integers(0, 2), st.integers(-20, 20), st.integers(0, 6)), max_size=14)


def extents(ranges: list[tuple[int, int, int]]) -> Extents:
    rows = np.array(ranges, dtype=np.int64).reshape(-1, 3)
    return Extents(rows[:, 0], rows[:, 1], rows[:, 1] + rows[:, 2])


def one_by_one(ranges: list[tuple[int, int, int]]) -> list[tuple[int, int, int, set[int]]]:
    spans: list[tuple[int, int, int, set[int]]] = []
    for i, (code, start, width) in enumerate(ranges):
        low, high, of = start, start + width, {i}
        for other in [f for f in spans if f[0] == code and f[1] <= high and low <= f[2]]:
            spans.remove(other)
            low, high, of = min(low, other[1]), max(high, other[2]), of | other[3]
        spans.append((code, low, high, of))
    return spans


@given(RANGES)
def test_ranges_that_overlap_or_touch_are_one(ranges: list[tuple[int, int, int]]) -> None:
    got = joined(extents(ranges))
    components: dict[int, set[int]] = {}
    for i, component in enumerate(got.component.tolist()):
        components.setdefault(component, set()).add(i)
    made = {(int(got.starts[c]), int(got.ends[c]), frozenset(of)) for c, of in components.items()}
    assert made == {(low, high, frozenset(of)) for _, low, high, of in one_by_one(ranges)}


@given(RANGES, RANGES)
def test_who_holds_a_moment_and_what_is_reached(
    ranges: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]
) -> None:
    apart = [(code, low, high - low) for code, low, high, _ in one_by_one(ranges)]
    outer, inner = extents(apart), extents(asked)
    for i, holder in enumerate(holders(outer, inner.codes, inner.starts).tolist()):
        before = [j for j, r in enumerate(apart) if r[0] == asked[i][0] and r[1] <= asked[i][1]]
        assert holder == max(before, key=lambda j: apart[j][1], default=-1)
    for (code, start, width), touches in zip(asked, reached(outer, inner).tolist(), strict=True):
        near = [r for r in apart if r[0] == code and r[1] <= start + width and start <= r[1] + r[2]]
        assert touches == bool(near)


@given(RANGES)
def test_numbers_that_are_far_apart_are_sorted_and_joined_as_near_ones(
    ranges: list[tuple[int, int, int]],
) -> None:
    near = extents(ranges)
    order = sorted(range(len(ranges)), key=lambda i: (ranges[i][0], ranges[i][1]))
    assert by_code(near.codes, near.starts).tolist() == order
    wide = [(code, start + FAR * (1 if code else -1), width) for code, start, width in ranges]
    far = extents(wide)
    assert by_code(far.codes, far.starts).tolist() == order
    assert joined(far).component.tolist() == joined(near).component.tolist()
    for places in (near, far):
        codes, ends = places.codes[order], places.ends[order]
        furthest = [max(ends[: i + 1][codes[: i + 1] == codes[i]]) for i in range(len(codes))]
        assert reach_of(codes, ends).tolist() == furthest
