"""The order of messages: by a number, ties by where they stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from windrow.operators.over.lines import ordered
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
    columns = list(zip(*stand, strict=True)) or [(), (), (), ()]
    kinds = (pa.string(), pa.int64(), pa.int64(), pa.int64())
    names = (SOURCE, PARTITION, OFFSET, ORDINAL)
    rows = pa.table({n: pa.array(c, k) for n, c, k in zip(names, columns, kinds, strict=True)})
    found = ordered(np.array(numbers, dtype=np.int64), rows).tolist()
    assert found == sorted(range(len(stand)), key=lambda i: (numbers[i], stand[i]))
