"""Marks of keys by the moment at which they are to be looked at."""

from __future__ import annotations

import numpy as np

from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.stores.kv import MemoryKV
from windrow.stores.marks import Marks


def test_marks_are_found_between_two_moments_until_their_bucket_is_dropped() -> None:
    kv, marks = MemoryKV(("aux",)), Marks("aux", b"m", 10)
    other = Marks("aux", b"n", 10)
    for step, moments in enumerate(([-3, 5, 12], [12, 30], [])):
        hashes = np.arange(len(moments), dtype=np.uint64) + np.uint64(10 * step)
        marks.add(kv, np.array(moments, dtype=np.int64), hashes, step)
    marks.add(kv, np.array([5]), np.array([99], dtype=np.uint64), 0)  # the same step, later
    other.add(kv, np.array([7]), np.array([7], dtype=np.uint64), 0)

    def found(low: int, high: int) -> list[tuple[int, int]]:
        return sorted(zip(*(column.tolist() for column in marks.between(kv, low, high)), strict=True))

    assert found(5, 12) == [(5, 1), (5, 99), (12, 2), (12, 10)]
    assert found(START_OF_TIME_US, -1) == [(-3, 0)]
    marks.drop(kv, 12)
    assert found(START_OF_TIME_US, END_OF_TIME_US) == [(12, 2), (12, 10), (30, 11)]
    marks.drop_between(kv, 30, 31)
    assert found(0, 100) == [(12, 2), (12, 10)]
    marks.drop(kv)
    assert [key[:1] for key, _ in kv.scan("aux")] == [b"n"]


def test_who_looks_for_what_has_passed_hears_whether_there_is_something_to_forget() -> None:
    kv, marks = MemoryKV(("aux",)), Marks("aux", b"m", 10)

    def passed(low: int, high: int, before: int) -> tuple[list[int], list[int], bool]:
        moments, hashes, older = marks.passed(kv, low, high, before)
        return moments.tolist(), hashes.tolist(), older

    assert passed(0, 50, 50) == ([], [], False)
    marks.add(kv, np.array([5, 17, 31]), np.array([1, 2, 3], dtype=np.uint64), 0)
    assert passed(6, 17, 18) == ([17], [2], True)
    assert passed(6, 9, 10) == ([], [], True)
    marks.drop(kv, 18)
    assert passed(0, 18, 18) == ([17], [2], False)
    assert passed(0, 19, 20) == ([17], [2], True)
    marks.drop(kv, 20)
    assert passed(0, 30, 30) == ([], [], False)
    assert passed(0, 31, 31) == ([31], [3], False)


def test_many_marks_of_a_step_lie_in_values_that_are_read_soon() -> None:
    kv, marks = MemoryKV(("aux",)), Marks("aux", b"m", 10)
    moments = np.arange(10_000, dtype=np.int64) % 20
    hashes = np.arange(10_000, dtype=np.uint64)
    for step in (1, 2):
        marks.add(kv, moments, hashes, step)
    values = [value for _, value in kv.scan("aux")]
    assert len(values) == 8
    assert max(map(len, values)) == 16 * 4_096
    times, keys = marks.between(kv, 10, 19)
    assert sorted(keys.tolist()) == sorted(2 * [i for i in range(10_000) if i % 20 >= 10])
    assert (times >= 10).all()
    marks.drop(kv, 10)
    assert marks.first(kv) == 10
    marks.drop(kv)
    assert marks.first(kv) is None
