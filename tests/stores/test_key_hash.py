"""Numbers of keys: always the same, even, and alike for equal keys of other types."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from windrow.core.types import as_type
from windrow.stores.key_hash import NUMBERS, hashes, numbers_of

TEXTS = pa.array(["", "a", None, "ab", "\0", "Zürich"])


def test_the_number_of_a_key_never_changes() -> None:
    assert numbers_of(hashes([pa.array([0, 1, -7, None, 2**62])])).tolist() == [0, 15763, 23249, 0, 3092]
    assert numbers_of(hashes([TEXTS])).tolist() == [0, 25902, 0, 3542, 9232, 21937]
    assert numbers_of(hashes([TEXTS, pa.array(range(6))])).tolist() == [0, 31110, 11042, 9031, 8850, 29860]
    assert numbers_of(hashes([pa.array([1, None], pa.timestamp("us"))])).tolist() == [23456, 0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1, None, 3]), pa.array([1.0, None, 3.0])),
        (pa.array([1, None, 3]), pa.array([Decimal("1.00"), None, Decimal("3.00")])),
        (pa.array([1, 3], pa.int8()), pa.array([1, 3], pa.uint64())),
        (pa.array([0.0, float("nan")]), pa.array([-0.0, -float("nan")])),
        (TEXTS, TEXTS.cast(pa.large_string())),
        (TEXTS, pa.chunked_array([TEXTS[:3], TEXTS[3:]])),
        (TEXTS[2:], pa.concat_arrays([TEXTS[2:]])),
    ],
    ids=str,
)
def test_equal_keys_have_one_number(one: pa.Array, other: pa.Array) -> None:
    assert numbers_of(hashes([one])).tolist() == numbers_of(hashes([other])).tolist()


@pytest.mark.parametrize("column", [pa.array(range(64_000)), pa.array([f"key-{i}" for i in range(64_000)])])
def test_keys_are_spread_evenly(column: pa.Array) -> None:
    counts = np.bincount(numbers_of(hashes([column])) * 64 // NUMBERS, minlength=64)
    assert len(counts) == 64 and counts.min() > 800 and counts.max() < 1_200


@given(
    whole=st.lists(st.none() | st.integers(-(10**15) + 1, 10**15 - 1), min_size=1, max_size=20),
    scale=st.integers(0, 15),
    more=st.integers(0, 40),
)
@examples(150, deep=5_000)
def test_decimals_have_the_number_of_whatever_they_widen_to(
    whole: list[int | None], scale: int, more: int
) -> None:
    """More digits behind the point, and floats: all are hashed as the nearest float."""
    values = [None if n is None else Decimal(n).scaleb(-scale) for n in whole]
    column = pa.array(values, pa.decimal128(15 + scale, scale))
    numbers = hashes([column]).tolist()
    assert hashes([column.cast(pa.decimal256(76, scale + more))]).tolist() == numbers
    floats = as_type(column, pa.float64())
    assert floats.to_pylist() == [None if v is None else float(v) for v in values]
    assert hashes([floats]).tolist() == numbers
    wide = column.cast(pa.decimal256(76, scale + more))
    assert as_type(wide, pa.float64()).to_pylist() == floats.to_pylist()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_binaries_of_one_size_have_the_number_of_others(kind: pa.DataType) -> None:
    column = pa.array([b"ab", None, b"\0\0", b"ab"], pa.binary(2))
    assert hashes([column]).tolist() == hashes([column.cast(pa.binary()).cast(kind)]).tolist()
