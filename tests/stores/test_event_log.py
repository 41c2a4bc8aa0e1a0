"""Kept messages by event time: read by a range of time, joined as they are read, forgotten by a range of keys."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from windrow.core.errors import CorruptState, NewerFormat
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.stores import event_log as events_module
from windrow.stores.event_log import MANY, SPARSE, TIME, Events, stretch_us
from windrow.stores.kv import Batch, MemoryKV

STRETCH = 100


def store() -> tuple[Events, MemoryKV]:
    return Events("e", STRETCH), MemoryKV(["e"])


def rows(*times: int) -> pa.Table:
    return pa.table({"x": list(times), TIME: pa.array(times, pa.int64())})


def read(events: Events, kv: MemoryKV, low: int = START_OF_TIME_US, high: int = END_OF_TIME_US) -> list[int]:
    rows = events.read(kv, low, high)
    return [] if rows is None else rows.column("x").to_pylist()


def test_a_range_of_time_is_read_by_stretch_then_in_the_order_of_arrival() -> None:
    events, kv = store()
    events.add(kv, rows(-1, 250, 5, 3), 1)
    events.add(kv, rows(4, 99, 100), 2)
    assert read(events, kv) == [-1, 5, 3, 4, 99, 100, 250]
    assert read(events, kv, 4, 100) == [5, 4, 99]
    assert read(events, kv, 101, 250) == []
    assert events.any_between(kv, 100, 101)
    assert not events.any_between(kv, 300, 400)
    assert not events.any_between(kv, 5, 5)


@pytest.mark.parametrize("many", [3, 300])
def test_some_columns_are_read_as_they_are(many: int) -> None:
    events, kv = store()
    table = rows(*(i // 4 for i in range(many))).append_column("y", pa.array(["same"] * many))
    table = table.append_column("at", table.column(TIME).cast(pa.timestamp("us", "UTC")))
    events.add(kv, table, 1)
    for wanted in ({"x", TIME}, {"y", TIME, "none"}, {"at", TIME}):
        read = events.read(kv, 0, STRETCH, columns=wanted)
        assert read is not None and set(read.column_names) == wanted - {"none"}
        assert read.equals(table.select(read.column_names))


def test_what_is_over_is_forgotten_by_the_stretch() -> None:
    events, kv = store()
    events.add(kv, rows(5, 105, 205), 1)
    events.forget(kv, 199)
    assert read(events, kv) == [105, 205]
    events.forget(kv, END_OF_TIME_US)
    assert read(events, kv) == []


def test_a_step_that_has_nothing_to_forget_writes_nothing() -> None:
    events, kv = store()
    events.add(kv, rows(105), 1)
    before = list(kv.scan("e"))
    kv.write = None  # type: ignore[method-assign, assignment]
    events.forget(kv, 105)
    assert list(kv.scan("e")) == before


def test_small_values_of_a_stretch_are_joined_and_each_row_is_written_a_few_times() -> None:
    events, kv = store()
    written, steps = 0, 1_000
    for step in range(steps):
        events.add(kv, rows(step % STRETCH), step)
        before = dict(kv.scan("e"))
        joined = events.read(kv, START_OF_TIME_US, END_OF_TIME_US, tidy=True)
        assert joined is not None and len(joined) == step + 1
        after = dict(kv.scan("e"))
        written += sum(len(value) for key, value in after.items() if before.get(key) != value)
        assert len(after) <= MANY + 12
    assert written < 12 * sum(len(value) for value in after.values())
    assert read(events, kv) == [step % STRETCH for step in range(steps)]


def test_columns_that_came_later_or_widened_are_read_in_one_type() -> None:
    events, kv = store()
    events.add(kv, rows(1), 1)
    wider = pa.table({"x": [0.5], "y": ["new"], TIME: pa.array([2], pa.int64())})
    events.add(kv, wider, 2)
    read = events.read(kv, 0, 10)
    assert read is not None
    assert read.select(["x", "y"]).to_pylist() == [{"x": 1.0, "y": None}, {"x": 0.5, "y": "new"}]


def test_what_is_dropped_is_exact_where_what_is_forgotten_is_by_the_stretch() -> None:
    events, kv = store()
    events.add(kv, rows(5, 105, 150, 205), 1)
    events.add(kv, rows(110, 120), 2)
    events.drop(kv, 150, before(150))
    assert read(events, kv) == [150, 205]
    assert len(list(kv.scan("e"))) == 2
    events.drop(kv, END_OF_TIME_US, before(END_OF_TIME_US))
    assert list(kv.scan("e")) == []


def before(time_us: int) -> Callable[[pa.Table], Any]:
    return lambda table: table.column(TIME).to_numpy() < time_us


def test_rows_far_apart_have_longer_stretches_and_others_as_usual() -> None:
    near, far = np.arange(10_000) // 3, np.arange(10_000) * 1_000
    assert stretch_us(near, STRETCH) == stretch_us(far[:SPARSE], STRETCH) == STRETCH
    assert stretch_us(far, STRETCH) == STRETCH * 16**3
    # Some far ones among many do not make the stretches of all longer.
    assert stretch_us(np.r_[near, far[-SPARSE // 2 :]], STRETCH) == STRETCH


STEPS = st.one_of(
    st.tuples(
        st.just("add"),
        st.lists(st.integers(-50, 3_000), min_size=1, max_size=8),
        st.sampled_from([1, 1, 4, 16]),
    ),
    st.tuples(
        st.sampled_from(["forget", "drop", "near"]),
        st.lists(st.integers(-100, 3_100), min_size=4, max_size=4),
        st.just(1),
    ),
)


@given(steps=st.lists(STEPS, min_size=2, max_size=14))
@examples(50, deep=5_000)
def test_whatever_the_width_of_stretches_a_range_is_what_a_list_gives(
    steps: list[tuple[str, list[int], int]],
) -> None:
    kv, listed, floor = MemoryKV(["e", "aux"]), list[int](), -(1 << 40)
    events = Events("e", STRETCH, ("aux", b"wide"))
    for number, (kind, numbers, times) in enumerate(steps):
        if kind == "add":
            with mock.patch.object(events_module, "stretch_us", lambda _, width, times=times: width * times):
                events.add(kv, rows(*numbers), number)
            listed += [n for n in numbers if n >= floor]
        if kind == "forget":
            floor = max(floor, numbers[0])
            events.forget(kv, floor)
            listed = [n for n in listed if n >= floor]
        elif kind == "drop":
            events.drop(kv, numbers[0], before(numbers[0]))
            listed = [n for n in listed if n >= numbers[0]]
        elif kind == "near":
            low, high = np.array(numbers[:2]), np.array(numbers[2:])
            near = events.read_near(kv, low, high)
            got = [] if near is None else near.column("x").to_pylist()
            wanted = {n for n in listed if any(a <= n <= b for a, b in zip(low, high, strict=True))}
            assert all(got.count(n) == listed.count(n) for n in wanted)
        for low_us, high_us in ((floor, END_OF_TIME_US), (max(700, floor), 1_900)):
            assert sorted(read(events, kv, low_us, high_us)) == sorted(
                n for n in listed if low_us <= n < high_us
            )


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda value: b"\x02" + value[1:], NewerFormat),
        (lambda value: value[:40], CorruptState),
        (lambda value: value[:1] + b"\x00\x00\x00\x09" + value[5:], CorruptState),
    ],
)
def test_a_newer_format_and_damage_are_reported(damage: object, error: type[Exception]) -> None:
    events, kv = store()
    events.add(kv, rows(1), 1)
    [(key, value)] = kv.scan("e")
    batch = Batch()
    batch.put("e", key, damage(value))  # type: ignore[operator]
    kv.write(batch)
    with pytest.raises(error):
        events.read(kv, 0, 10)


def wide_rows(n: int = 400) -> pa.Table:
    """Rows of one stretch, most of whose columns are the same in all of them, or are their time."""
    chance = np.random.default_rng(n)
    times = pa.array(chance.integers(0, STRETCH, n))
    zeros = np.zeros(n)
    zeros[1::2] = -0.0
    return pa.table(
        {
            "source": pa.array(["topic"] * n),
            "t": times.cast(pa.timestamp("us", "UTC")),
            "later": pc.add(times, 1).cast(pa.timestamp("us", "UTC")),
            "t_ms": times.cast(pa.timestamp("ms")),
            "x": chance.random(n),
            "zero": zeros,
            "none": pa.nulls(n, pa.int32()),
            "some": pa.array([None, *[1] * (n - 1)]),
            "partition": pa.array([3] * n, pa.int32()),
            "flag": [True] * n,
            "list": [[1]] * n,
            TIME: times,
        }
    )


def value_of(rows: pa.Table, step: int = 1) -> tuple[Events, MemoryKV, bytes]:
    events, kv = store()
    events.add(kv, rows, step)
    [(_, value)] = kv.scan("e")
    return events, kv, value


def test_what_is_the_same_in_all_rows_is_written_once_and_comes_back_in_every_bit() -> None:
    rows = wide_rows()
    events, kv, value = value_of(rows)
    read = events.read(kv, 0, STRETCH)
    assert read is not None and read.schema.equals(rows.schema) and read.equals(rows)
    assert np.signbit(read.column("zero").to_numpy()).tolist() == [i % 2 == 1 for i in range(400)]
    narrow = rows.drop_columns(["source", "t", "partition", "flag"])
    assert len(value) < len(value_of(narrow)[2]) + 2_500
    hows = [set(encoding[7 : 7 + encoding[6]]) for encoding in (value, value_of(wide_rows(3_000))[2])]
    assert hows[0] == {0, 1, 2} and hows[1] > {0, 1, 2}


@given(
    st.integers(0, 8),
    st.sampled_from([0, -(2**63), 2**63 - 2**33, -5, 1_700_000_000_000_000]),
    st.integers(1, 12),
    st.integers(0, 12),
    st.booleans(),
    st.data(),
)
@examples(80, deep=5_000)
def test_numbers_near_each_other_and_texts_that_differ_at_their_end_come_back_and_take_few_bytes(
    span: int, low: int, length: int, own: int, missing: bool, data: st.DataObject
) -> None:
    chance, n, own = np.random.default_rng(data.draw(st.integers(0, 99))), 5_000, min(own, length)
    numbers = low + chance.integers(0, 2 ** (4 * span) + (span == 0), n)
    ends = chance.integers(97, 123, (n, own)).astype(np.uint8).tobytes().decode()
    texts = ["k" * (length - own) + ends[own * i : own * (i + 1)] for i in range(n)]
    gone = chance.random(n) < (0.1 if missing else 0)
    rows = pa.table(
        {
            "number": pa.array(numbers, mask=gone),
            "at": pa.array(numbers, mask=gone).cast(pa.timestamp("ns", "UTC")),
            "text": pa.array(texts),
            "bytes": pa.array(texts).cast(pa.binary()),
            "some": pa.array(texts, mask=gone),
            "longer": [f"{text}{'!' * (i % 2)}" for i, text in enumerate(texts)],
            TIME: chance.integers(-STRETCH, STRETCH, n),
        }
    )
    events, kv = store()
    events.add(kv, rows, 1)
    read = events.read(kv, -STRETCH, STRETCH)
    assert read is not None and read.schema.equals(rows.schema)
    assert read.equals(
        rows.take(pa.array(np.argsort(rows.column(TIME).to_numpy() // STRETCH, kind="stable")))
    )


def test_keys_that_are_numbered_and_numbers_near_each_other_take_a_fraction_of_their_bytes() -> None:
    chance, n = np.random.default_rng(3), 10_000
    keys = pa.array([f"customer-{i:08d}" for i in chance.integers(0, 100_000, n)])
    rows = pa.table({"k": keys, "v": 10**12 + chance.integers(0, 60_000, n), TIME: np.arange(n) % STRETCH})
    assert len(value_of(rows)[2]) < n * (8 + 2 + 1) + 2_000


KINDS = [
    (3_000, "a-{:08d}", "topic"),
    (300, "a-{:08d}", "topic"),
    (2_500, "b-{:08d}", "topic"),
    (10, "c", "topic"),
    (2_200, "longer-{:08d}", "other"),
    (2_100, "{}", "topic"),
]


@pytest.mark.parametrize("kinds", [KINDS, *itertools.combinations(KINDS, 2)])
def test_values_that_are_kept_alike_or_in_other_ways_are_read_as_one(
    kinds: list[tuple[int, str, str]],
) -> None:
    (events, kv), tables = store(), list[pa.Table]()
    for step, (n, key, source) in enumerate(kinds):
        rows = wide_rows(n).set_column(0, "source", pa.array([source] * n))
        numbers = pa.array(step + np.arange(n) * 7, mask=np.arange(n) == 5 if n == 2_100 else None)
        rows = rows.append_column("key", pa.array([key.format(i) for i in range(n)])).append_column(
            "n", numbers
        )
        events.add(kv, rows, step)
        tables.append(rows)
    whole, part = events.read(kv, 0, STRETCH), events.read(kv, 0, STRETCH, columns={"key", "t", TIME})
    assert whole is not None and whole.equals(pa.concat_tables(tables))
    assert part is not None and part.equals(whole.select(["t", TIME, "key"]))


def test_few_rows_of_a_stretch_are_written_as_they_are() -> None:
    assert value_of(wide_rows(100))[2][5:7] == b"\x00\x00"
    events, kv = store()
    rows = wide_rows().drop_columns(["t"])
    spread = rows.set_column(rows.schema.get_field_index(TIME), TIME, pa.array(np.arange(400) * STRETCH // 4))
    events.add(kv, spread, 1)
    assert {value[5:7] for _, value in kv.scan("e")} == {b"\x00\x00"}


def test_joined_values_and_those_of_which_some_rows_go_keep_what_is_the_same() -> None:
    events, kv = store()
    for step in range(2 * MANY):
        events.add(kv, wide_rows(300 + step), step)
    before_us = STRETCH // 2
    tidied = events.read(kv, 0, STRETCH, tidy=True)
    assert tidied is not None and len(list(kv.scan("e"))) < MANY
    again = events.read(kv, 0, STRETCH)
    assert again is not None and again.equals(tidied)
    events.drop(kv, STRETCH, before(before_us))
    left = events.read(kv, 0, STRETCH)
    assert left is not None and left.equals(tidied.filter(pc.greater_equal(tidied.column(TIME), before_us)))


@pytest.mark.parametrize("many", [400, 3_000])
def test_a_value_that_is_cut_off_anywhere_is_reported_as_damaged(many: int) -> None:
    rows = wide_rows(many)
    numbered = pa.array([f"key-{i:08d}" for i in range(many)])
    events, kv, value = value_of(rows.append_column("key", numbered))
    [(key, _)] = kv.scan("e")
    for length in [*range(1, 400), *range(400, len(value) - 8, 97)]:
        batch = Batch()
        batch.put("e", key, value[:length])
        kv.write(batch)
        with pytest.raises(CorruptState):
            events.read(kv, 0, 10)


@given(
    st.lists(st.lists(st.integers(-300, 900), min_size=1, max_size=8), min_size=1, max_size=20),
    st.integers(1, 9),
    st.integers(-300, 1000),
    st.booleans(),
)
@examples(60, deep=5_000)
def test_portions_are_the_rows_before_a_time_and_each_is_later_than_the_one_before(
    steps: list[list[int]], most: int, high: int, far: bool
) -> None:
    with mock.patch.object(events_module, "PORTION", most):
        kv, events = MemoryKV(["e", "aux"]), Events("e", STRETCH, ("aux", b"wide"))
        for step, times in enumerate(steps):
            longer = 4 if far and step % 2 else 1
            with mock.patch.object(events_module, "stretch_us", lambda _, width, n=longer: width * n):
                events.add(kv, rows(*times), step)
        whole = sorted(read(events, kv, high=high))
        parts = [part.column(TIME).to_pylist() for part in events.portions(kv, high)]
        for before, after in itertools.pairwise(parts):
            assert max(before) < min(after)
        assert sorted(t for part in parts for t in part) == whole == sorted(read(events, kv, high=high))
        if not far:  # no more than a portion, one value and one stretch
            largest = max(map(len, steps)) + max(Counter(t // STRETCH for t in whole).values(), default=0)
            assert all(len(part) < most + largest for part in parts)


@given(
    st.lists(st.lists(st.integers(0, 500), min_size=1, max_size=8), min_size=1, max_size=20),
    st.integers(1, 9),
)
@examples(60, deep=5_000)
def test_what_is_wanted_is_kept_of_whole_portions(steps: list[list[int]], most: int) -> None:
    events, kv = store()
    for step, times in enumerate(steps):
        events.add(kv, rows(*times), step)
    whole, sizes = read(events, kv), list[int]()

    def even(table: pa.Table) -> pa.Table:
        sizes.append(len(table))
        return table.filter(pc.equal(pc.bit_wise_and(table.column("x"), 1), 0))

    with mock.patch.object(events_module, "PORTION", most):
        table = events.read(kv, START_OF_TIME_US, END_OF_TIME_US, keep=even)
    left = [] if table is None else table.column("x").to_pylist()
    assert [x for x in left if x % 2 == 0] == [x for x in whole if x % 2 == 0]
    assert len([x for x in left if x % 2]) < most and all(most <= size < most + 8 for size in sizes)
