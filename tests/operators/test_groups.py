"""Minima and maxima of positions, by numbers rather than by Arrow's slow tables of bytes."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from windrow.core.message_keys import position_prefix
from windrow.operators.steps.groups import Groups

POSITIONS = st.builds(
    lambda source, partition, offset, ordinal: position_prefix((source, partition, offset, ordinal)),
    st.sampled_from(["", "t", "topic", "a\0"]),
    st.sampled_from([0, 1, 300, 2**32 - 1]),
    st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, 70_000]),
)


@examples(80, deep=3_000)
@given(
    st.lists(st.tuples(st.integers(0, 3), POSITIONS | st.binary(max_size=12)), min_size=1), st.integers(0, 3)
)
def test_the_extremes_of_bytes_are_those_of_python(rows, before):
    codes = np.array([0] * before + [code for code, _ in rows])
    column = pa.array([b"before"] * before + [value for _, value in rows], pa.binary())
    groups = Groups.of_codes(codes[before:], 4)
    least, most = groups.aggregate([(column[before:], "min"), (column[before:], "max")])
    of = [[value for code, value in rows if code == g] for g in range(4)]
    assert least.to_pylist() == [min(values, default=None) for values in of]
    assert most.to_pylist() == [max(values, default=None) for values in of]


def test_positions_of_one_input_need_no_table_of_bytes(monkeypatch: pytest.MonkeyPatch):
    def refuse(self, requests):
        assert not requests
        return []

    monkeypatch.setattr(Groups, "_hashed", refuse)
    column = pa.array([position_prefix(("topic", i % 3, i, 0)) for i in range(70_000)], pa.binary())
    least, most = Groups.of_codes(np.arange(70_000) % 7, 7).aggregate([(column, "min"), (column, "max")])
    assert least[0].as_py() == position_prefix(("topic", 0, 0, 0))
    assert most[0].as_py() == position_prefix(("topic", 2, 69_986, 0))
