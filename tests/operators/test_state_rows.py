"""State rows that meet are merged, those that are alone stay as they are; rows come into the order of their positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import windrow as wr
from windrow.operators.aggregate.pane_order import in_window_order
from windrow.operators.aggregate.state_rows import merge_rows
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.steps.columns import (
    EMIT_STEP,
    END,
    FIRST,
    LAST,
    MESSAGES,
    OFFSET,
    ORDINAL,
    PANES,
    PARTITION,
    PENDING,
    SOURCE,
    START,
    UPSERT,
)
from windrow.operators.steps.groups import Groups
from windrow.operators.steps.intake import in_position_order


class Sum:
    """Refuses two states that come to 13."""

    def initial(self) -> int:
        return 0

    def add(self, state: int, x: int) -> int:
        return state + x

    def merge(self, older: int, newer: int) -> int:
        if older + newer == 13:
            raise ValueError("thirteen")
        return older + newer

    def finish(self, state: int) -> int:
        return state


own = wr.aggregate_function(name="own", returns=pa.int64())(Sum)
SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("x", pa.int64())])
CALCULATION = Calculation(
    wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("1 second"),
        agg={"hi": wr.max("x"), "own": own("x")},
        retention="1 day",
    ),
    SCHEMA,
)
#: key, value, pending, offset, whether it stands for everything before it
ROWS = st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 3), st.integers(0, 99), st.booleans())


def state_rows(rows: list[Any]) -> pa.Table:
    keys, values, pending, offsets, upsert = ([r[i] for r in rows] for i in range(5))
    n = len(rows)
    kernel = CALCULATION.kernels["own"]
    assert kernel is not None
    places = pa.array([o.to_bytes(1, "big") for o in offsets], pa.binary())
    return pa.table(
        {
            START: pa.array([0] * n, pa.int64()),
            END: pa.array([1_000_000] * n, pa.int64()),
            "k": pa.array(keys, pa.int64()),
            MESSAGES: pa.array([1] * n, pa.int64()),
            PENDING: pa.array(pending, pa.int64()),
            PANES: pa.array([0] * n, pa.int64()),
            EMIT_STEP: pa.nulls(n, pa.int64()),
            FIRST: places,
            LAST: places,
            "a.hi.v": pa.array(values, pa.int64()),
            "a.own.s": pa.array([stored(v) for v in values], pa.binary()),
            UPSERT: pa.array(upsert),
        }
    )


def stored(value: int) -> bytes:
    """The state of the user's aggregate as it is stored."""
    import msgpack

    return bytes(msgpack.packb(value))


@given(st.lists(ROWS, min_size=1, max_size=40))
@example([(k, v, 0, 0, False) for k, v in ((2, 1), (1, 6), (3, 1), (1, 7), (4, 1))])
def test_most_rows_alone_or_not_each_group_is_merged_as_if_it_were_the_only_one(rows: list[Any]) -> None:
    table = state_rows(rows)
    keys = list(dict.fromkeys(r[0] for r in rows))
    expected, failed = [], []
    for i, key in enumerate(keys):
        own = table.filter(pa.array([r[0] == key for r in rows]))
        merged, broken = merge_rows(CALCULATION, own)
        expected += merged.to_pylist()
        failed += [(i, b.alias, str(b.error)) for b in broken]
    merged, broken = merge_rows(CALCULATION, table)
    assert [(b.group, b.alias, str(b.error)) for b in broken] == failed
    assert merged.to_pylist() == expected


PLACES = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), st.integers(0, 3), st.integers(0, 1))


@given(st.lists(PLACES, max_size=12), st.booleans())
def test_rows_come_into_the_order_of_their_positions(places: list[Any], ordered: bool) -> None:
    places = sorted(places) if ordered else places
    columns = {
        name: pa.array([p[i] for p in places], pa.string() if i == 0 else pa.int64())
        for i, name in enumerate((SOURCE, PARTITION, OFFSET, ORDINAL))
    }
    table = in_position_order(pa.table({**columns, "row": pa.array(np.arange(len(places)))}))
    rows = table.column("row").to_pylist()
    assert rows == sorted(range(len(places)), key=lambda i: (places[i], i))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_all_nans_are_one_key_whatever_their_bits(kind: Any) -> None:
    nan = np.array([np.nan, -np.nan], dtype=kind)
    bits = nan.view(np.uint32 if kind is np.float32 else np.uint64)
    values = np.concatenate([bits, bits + 1]).view(kind)
    assert len(set(values.view(bits.dtype).tolist())) == 4
    groups = Groups([pa.array(np.append(values, kind(0.0)))], 5)
    assert groups.codes.tolist() == [0, 0, 0, 0, 1]


#: Columns of a name, a number or a flag; many of one value only.
KEYS = st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([None, 0, 1]), st.booleans()))


@given(KEYS, st.sets(st.integers(0, 2)), st.sampled_from([1, 2, 3]))
@example([("a", 1, True)] * 3, set(), 3)
@example([("a", 1, True), ("a", 1, True), ("b", 1, True)], {0}, 3)
@example([("a", 0, True), ("b", 0, True), ("a", 0, True)], set(), 2)
def test_rows_are_numbered_by_their_keys_in_the_order_in_which_these_come(
    keys: list[Any], constant: set[int], width: int
) -> None:
    keys = [tuple(keys[0][i] if i in constant else key[i] for i in range(width)) for key in keys]
    kinds = (pa.string(), pa.int64(), pa.bool_())
    columns = [pa.array([key[i] for key in keys], kinds[i]) for i in range(width)]
    groups, numbers = Groups(columns, len(keys)), {key: i for i, key in enumerate(dict.fromkeys(keys))}
    assert groups.codes.tolist() == [numbers[key] for key in keys]
    assert groups.size == len(numbers)
    assert groups.first_rows.tolist() == [keys.index(key) for key in numbers]


@pytest.mark.parametrize("starts", [3, 40, 4_000])
def test_panes_are_in_the_order_of_start_end_and_key_whether_few_or_most_have_one_start(starts: int) -> None:
    chance = np.random.default_rng(starts)
    columns = [chance.integers(0, n, 60) for n in (starts, 3, 4)]
    rows = pa.table(dict(zip((START, END, "k"), columns, strict=True)))
    wanted = sorted(range(60), key=lambda i: tuple(int(column[i]) for column in columns))
    assert in_window_order(rows, ["k"]).tolist() == wanted


@pytest.mark.parametrize("most", [9, 5_000, 10**12, 2**63])
@pytest.mark.parametrize("as_text", [False, True])
def test_many_keys_of_one_window_are_in_order_and_those_that_are_equal_as_they_came(
    most: int, as_text: bool
) -> None:
    chance = np.random.default_rng(most % 1_000)
    numbers = chance.integers(-most if not as_text else 0, most, 6_000, dtype=np.int64).tolist()
    keys = [f"{number:020}" for number in numbers] if as_text else numbers
    rows = pa.table({START: [5] * len(keys), END: [9] * len(keys), "k": keys})
    assert in_window_order(rows, ["k"]).tolist() == sorted(range(len(keys)), key=keys.__getitem__)


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("kind", ["text", "texts", "numbers", "nulls", "far"])
def test_panes_of_many_windows_are_in_order_however_their_keys_are(kind: str, alike: bool) -> None:
    chance, n = np.random.default_rng(5), 5_000
    starts = chance.integers(-40, 40, n) * (10**16 if kind == "far" else 2_000_000)
    ends = starts + (10 if alike else chance.integers(1, 9, n))
    numbers = chance.integers(-50, 50, n).tolist()
    keys: dict[str, list[Any]] = {
        "text": [f"key-{number + 50:05}" for number in numbers],
        "texts": [f"key-{number}" for number in numbers],
        "numbers": numbers,
        "nulls": [None if number == 7 else number for number in numbers],
        "far": numbers,
    }
    both = list(
        zip(starts.tolist(), ends.tolist(), keys[kind], chance.integers(0, 3, n).tolist(), strict=True)
    )
    rows = pa.table(dict(zip((START, END, "k", "j"), map(list, zip(*both, strict=True)), strict=True)))
    said = [(start, end, k is not None, 0 if k is None else k, j) for start, end, k, j in both]
    assert in_window_order(rows, ["k", "j"]).tolist() == sorted(range(n), key=said.__getitem__)
