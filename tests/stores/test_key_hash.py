"""Numbers of keys: always the same, even, and alike for equal keys of other types."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

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
