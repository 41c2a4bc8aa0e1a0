"""Watermarks of keys that anchors promise, against a loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from windrow.core.time import START_OF_TIME_US
from windrow.operators.over.anchors.key_watermarks import floors_of


@given(st.data())
@examples(40, deep=2_000)
def test_the_floor_of_an_anchor_is_the_largest_promise_before_it_in_its_key(data: st.DataObject) -> None:
    """As a loop says it; also where times are too far apart to be packed into one number."""
    none = START_OF_TIME_US
    moments = st.sampled_from([none, none, -7, 0, 3, 4, 9, data.draw(st.sampled_from([10, 1 << 61]))])
    lines = data.draw(st.lists(st.lists(moments, min_size=1, max_size=5), min_size=1, max_size=4))
    before = data.draw(st.lists(moments, min_size=len(lines), max_size=len(lines)))
    wanted = [max([before[i], *line[:n]]) for i, line in enumerate(lines) for n in range(len(line))]
    codes = np.repeat(np.arange(len(lines)), [len(line) for line in lines])
    promised, former = np.array([us for line in lines for us in line]), np.array(before)
    assert floors_of(codes, promised, former).tolist() == wanted
    assert promised.tolist() == [us for line in lines for us in line] and former.tolist() == before
