"""Minima and maxima of positions, by numbers rather than by Arrow's slow tables of bytes."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from windrow.core import arrays
from windrow.core.message_keys import position_prefix
from windrow.operators.steps import groups
from windrow.operators.steps.groups import Groups, key_numbers

POSITIONS = st.builds(
    lambda source, partition, offset, ordinal: position_prefix((source, partition, offset, ordinal)),
    st.sampled_from(["", "t", "topic", "a\0"]),
    st.sampled_from([0, 1, 300, 2**32 - 1]),
    st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, 70_000]),
)


@examples(50, deep=3_000)
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


TEXTS = st.one_of(
    st.lists(st.integers(0, 120).map("key-{:04d}".format), max_size=40),
    st.lists(st.text("ab\u00e9", max_size=3), max_size=40),
    st.lists(st.one_of(st.none(), st.sampled_from(["aa", "ab", "zz"])), max_size=40),
)
NUMBERS = st.one_of(
    st.lists(st.integers(-128, 127), max_size=40).map(lambda some: pa.array(some, pa.int8())),
    st.lists(st.integers(0, 255), max_size=40).map(lambda some: pa.array(some, pa.uint8())),
    st.lists(st.integers((1 << 64) - 70, (1 << 64) - 1), max_size=40).map(
        lambda some: pa.array(some, pa.uint64())
    ),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=40).map(
        lambda some: pa.array(some, pa.int64())
    ),
    st.lists(st.integers(-(1 << 63), 60 - (1 << 63)), max_size=40).map(
        lambda some: pa.array(some, pa.int64())
    ),
    st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=40).map(
        lambda some: pa.array(some, pa.int32())
    ),
)


KEYS = st.one_of(
    TEXTS.map(lambda some: pa.array(some, pa.string())),
    TEXTS.map(lambda some: pa.array([s and s.encode() for s in some], pa.binary())),
    NUMBERS,
)


@given(
    column=KEYS,
    first=st.integers(0, 5),
    two_columns=st.booleans(),
    gaps=st.booleans(),
)
@examples(120, deep=5_000)
def test_numbers_of_keys_are_the_same_for_the_same_keys_alone(
    column: pa.Array, first: int, two_columns: bool, gaps: bool
) -> None:
    column = column.slice(first)
    columns = [column, pa.array(np.arange(len(column)) % 2)] if two_columns else [column]
    numbers, size = key_numbers(columns, len(column), gaps=gaps)
    keys = list(zip(*(c.to_pylist() for c in columns), strict=True))
    assert len(numbers) == len(keys) and all(0 <= n < size for n in numbers.tolist())
    assert len(set(keys)) == len(set(numbers.tolist())) == len(set(zip(keys, numbers.tolist(), strict=True)))


@given(column=KEYS, first=st.integers(0, 5))
@examples(60, deep=5_000)
def test_groups_are_numbered_as_they_come_with_a_hash_table_or_without(column: pa.Array, first: int) -> None:
    keys = column.slice(first)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(groups, "_MANY", 0)
        numbered = Groups([keys], len(keys))
    numbers: dict[object, int] = {}
    assert numbered.codes.tolist() == [numbers.setdefault(key, len(numbers)) for key in keys.to_pylist()]
    assert numbered.size == len(numbers)


@given(column=KEYS, first=st.integers(0, 5), places=st.lists(st.integers(0, 1 << 30), max_size=60))
@examples(60, deep=5_000)
def test_rows_are_taken_as_arrow_takes_them(column: pa.Array, first: int, places: list[int]) -> None:
    rows = pa.table({"c": column.slice(first), "n": np.arange(len(column.slice(first)))})
    wanted = np.array([place % len(rows) for place in places if len(rows)], dtype=np.int64)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(arrays, "_MANY", 0)
        selected = arrays.taken(rows, wanted)
    selected.validate(full=True)
    assert selected.equals(rows.take(pa.array(wanted)))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([-128, 127, 0, 127], pa.int8()),
        pa.array([None, 3, 4, 3], pa.int32()),
        pa.array(["k1", None, "k2", "k1"]),
        pa.array([(1 << 64) - 1, (1 << 64) - 9, 0, 0], pa.uint64()).slice(0, 2),
    ],
    ids=["whole range", "nulls", "no text", "beyond int64"],
)
def test_numbers_of_keys_at_the_ends_of_their_types(column: pa.Array) -> None:
    numbers, size = key_numbers([column], len(column))
    assert all(0 <= n < size for n in numbers.tolist())
    keys = column.to_pylist()
    assert [keys.index(k) for k in keys] == [numbers.tolist().index(n) for n in numbers.tolist()]


def test_values_that_lie_unevenly_are_grouped_without_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    numbers = pa.py_buffer(b"x" + np.arange(4.0).tobytes())[1:]
    column = pa.Array.from_buffers(pa.float64(), 4, [None, numbers])
    [sums] = Groups.of_codes(np.array([0, 1, 1, 0]), 2).aggregate([(column, "sum")])
    assert sums.to_pylist() == [3.0, 3.0]
    assert capfd.readouterr().err == ""


@given(
    st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(-(2**62), 2**61)), max_size=20),
    st.sampled_from(["sum", "min", "max"]),
)
@examples(40, deep=3_000)
def test_sums_and_extremes_of_numbers_are_those_of_arrow_where_some_are_missing(
    rows: list[tuple[int, int | None]], of: str
) -> None:
    codes = np.array([code for code, _ in rows], dtype=np.int64)
    column = pa.array([value and value >> 5 for _, value in rows], pa.int64())
    groups = Groups.of_codes(codes, 4)
    [actual], [wanted] = groups.aggregate([(column, of)]), groups._hashed([(column, of)])
    assert actual.equals(wanted)
