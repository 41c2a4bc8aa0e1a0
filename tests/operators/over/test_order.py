"""The order of messages: by a number, ties by where they stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from windrow.operators.over.partitions import ordered, stand_by_position
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE

places = st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 40), st.integers(0, 1))
one_source = st.tuples(st.just("a"), st.integers(0, 1), st.integers(0, 40), st.integers(0, 1))
far_apart = st.tuples(
    st.just("a"), st.integers(0, 1), st.sampled_from([0, 1, 2**61, 2**62]), st.integers(0, 1)
)
one_partition = st.tuples(st.just("a"), st.just(0), st.integers(0, 40), st.just(0))


@given(
    st.one_of(
        st.lists(place, max_size=12, unique=True) for place in (places, one_source, far_apart, one_partition)
    ),
    st.booleans(),
    st.data(),
)
def test_ties_are_in_position_order_however_they_came(
    stand: list[tuple[Any, ...]], came_in_order: bool, data: st.DataObject
) -> None:
    stand = sorted(stand) if came_in_order else stand
    numbers = data.draw(st.lists(st.integers(0, 3), min_size=len(stand), max_size=len(stand)))
    rows, wanted = of_places(stand), sorted(range(len(stand)), key=lambda i: (numbers[i], stand[i]))
    assert ordered(np.array(numbers, dtype=np.int64), rows).tolist() == wanted


def of_places(stand: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*stand, strict=True)) or [(), (), (), ()]
    kinds = (pa.string(), pa.int64(), pa.int64(), pa.int64())
    names = (SOURCE, PARTITION, OFFSET, ORDINAL)
    return pa.table({n: pa.array(c, k) for n, c, k in zip(names, columns, kinds, strict=True)})


@given(
    st.one_of(st.lists(place, max_size=8, unique=True) for place in (places, one_source, one_partition)),
    st.booleans(),
    st.data(),
)
def test_rows_that_are_said_to_stand_by_position_do_wherever_times_are_equal(
    stand: list[tuple[Any, ...]], came_in_order: bool, data: st.DataObject
) -> None:
    stand = sorted(stand) if came_in_order else stand
    times = data.draw(st.lists(st.integers(0, 3), min_size=len(stand), max_size=len(stand)))
    if stand_by_position(of_places(stand), np.array(times, dtype=np.int64)):
        wanted = sorted(range(len(stand)), key=lambda i: (times[i], stand[i]))
        assert ordered(np.array(times, dtype=np.int64), None).tolist() == wanted


def test_rows_of_one_partition_stand_by_position_in_each_stretch_though_steps_bring_some_of_several() -> None:
    # Two stretches, of each rows of two steps: as they are read.
    offsets, times = [0, 2, 4, 6, 1, 3, 5, 7], np.array([3, 1, 2, 1, 11, 10, 11, 12])
    stand = [("a", 0, offset, 0) for offset in offsets]
    assert stand_by_position(of_places(stand), times)
    assert not stand_by_position(of_places(stand), np.where(times == 10, 3, times))
    assert not stand_by_position(of_places([*stand[:-1], ("a", 1, 7, 0)]), times)
