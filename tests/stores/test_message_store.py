"""Messages: every layout of seed 003's matrix against a plain list, replay, bounds, and expiry that frees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from windrow.core.keys import encode_key
from windrow.core.message_keys import Position
from windrow.stores.kv import Batch, MemoryKV, Overlay
from windrow.stores.message_store import Layout, MessageStore, Parts, PositionColumns, choose_layout

BUCKET = 10
#: Each property is tried in every layout.
FEW = examples(25, deep=2_000)


class Row(NamedTuple):
    time: int
    fields: tuple[Any, ...]
    position: Position
    value: bytes = b"v"


def key_of(row: Row) -> bytes:
    return encode_key(row.fields)


def columns(rows: list[Row]) -> tuple[Any, PositionColumns]:
    times = np.array([row.time for row in rows], dtype=np.int64)
    parts: list[Any] = [[row.position[i] for row in rows] for i in range(4)]
    return times, PositionColumns(*parts)


def file_rows(store: MessageStore, rows: list[Row], kv: MemoryKV | None = None) -> MemoryKV:
    kv = kv or MemoryKV(("messages", "message_index"))
    batch = Batch()
    keys = [key_of(row) for row in rows] if store.layout.has_fields else None
    store.put_rows(batch, *columns(rows), keys, [row.value for row in rows])
    kv.write(batch)
    return kv


def expire(store: MessageStore, kv: MemoryKV, *floor: Any) -> int:
    batch = Batch()
    how = store.expire if store.layout.has_time else store.expire_offsets
    ranges: int = how(kv, batch, *floor)  # type: ignore[operator]
    kv.write(batch)
    return ranges


def in_order(store: MessageStore, row: Row) -> Any:
    """Return the sort key of the layout, written a second time."""
    position = (row.position[0].encode(), *row.position[1:])
    fields = key_of(row)
    return {
        Layout.OFFSET: (position,),
        Layout.FIELDS_OFFSET: (fields, position),
        Layout.TIME_OFFSET: (row.time, position),
        Layout.FIELDS_TIME_OFFSET: (fields, row.time, position),
        Layout.TIME_FIELDS_OFFSET: (row.time, fields, position),
    }[store.layout]


ROWS = st.lists(
    st.builds(
        Row,
        st.integers(-25, 25),
        st.tuples(st.sampled_from(["", "a", "a\x00", "b", None]), st.integers(0, 1)),
        st.tuples(st.sampled_from(["s", "topic"]), st.integers(0, 1), st.integers(-1, 5), st.integers(0, 1)),
        st.binary(max_size=2),
    ),
    unique_by=lambda row: row.position,
    max_size=15,
)
TIMES = st.integers(-30, 30)
OFFSETS = st.one_of(
    st.none(),
    st.integers(-2, 6),
    st.just(()),
    st.tuples(st.sampled_from(["s", "topic"])),
    st.tuples(st.just("topic"), st.integers(0, 1), st.integers(-1, 5)),
    st.tuples(st.just("s"), st.integers(0, 1), st.integers(-1, 5), st.integers(0, 1)),
)


# -- the matrix ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tuples", "equal", "time_range", "large", "layout"),
    [
        # tuple aggregate; tuple join without equals; with, small; with, large
        (True, False, False, True, Layout.OFFSET),
        (True, True, False, False, Layout.OFFSET),
        (True, True, False, True, Layout.FIELDS_OFFSET),
        # time aggregate and time joins without equals, with or without a time range
        (False, False, False, True, Layout.TIME_OFFSET),
        (False, False, True, False, Layout.TIME_OFFSET),
        # equals and no time range, small and large
        (False, True, False, False, Layout.FIELDS_TIME_OFFSET),
        (False, True, False, True, Layout.FIELDS_TIME_OFFSET),
        # equals and a time range, small and large
        (False, True, True, False, Layout.TIME_FIELDS_OFFSET),
        (False, True, True, True, Layout.FIELDS_TIME_OFFSET),
    ],
)
def test_the_layout_is_the_one_of_seed_003s_matrix(
    tuples: bool, equal: bool, time_range: bool, large: bool, layout: Layout
) -> None:
    assert choose_layout(tuples=tuples, equal=equal, time_range=time_range, large=large) is layout


# -- reading -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", Layout)
def test_rows_are_filed_in_the_layouts_order_and_taken_apart_again(layout: Layout) -> None:
    store = MessageStore(layout, bucket=BUCKET)

    @given(ROWS)
    @FEW
    def check(rows: list[Row]) -> None:
        kv = file_rows(store, rows)
        rows = sorted(rows, key=lambda row: in_order(store, row))
        keys = [key for key, _ in kv.scan("messages")]
        assert [value for _, value in kv.scan("messages")] == [row.value for row in rows]
        for key, row in zip(keys, rows, strict=True):
            fields = key_of(row) if layout.has_fields else None
            assert store.split(key) == Parts(fields, row.time if layout.has_time else None, row.position)
        sources, *numbers = store.positions(keys)
        columns_of = [sources.to_pylist(), *(column.tolist() for column in numbers)]
        assert list(zip(*columns_of, strict=True)) == [row.position for row in rows]
        if layout.has_time:
            assert store.times(keys).tolist() == [row.time for row in rows]

    check()


@pytest.mark.parametrize("layout", [layout for layout in Layout if layout.has_time])
def test_a_scan_takes_the_times_that_are_asked_for(layout: Layout) -> None:
    store = MessageStore(layout, bucket=BUCKET)

    @given(ROWS, TIMES, TIMES)
    @FEW
    def check(rows: list[Row], start: int, end: int) -> None:
        kv = file_rows(store, rows)
        wanted = [row for row in sorted(rows, key=lambda r: in_order(store, r)) if start <= row.time < end]
        keys, values = store.scan(kv, start, end)
        assert values == [row.value for row in wanted]
        assert [store.split(key).position for key in keys] == [row.position for row in wanted]
        for fields in {row.fields for row in rows} if layout.has_fields else ():
            of_key = [row for row in wanted if row.fields == fields]
            assert store.scan(kv, start, end, encode_key(fields))[1] == [row.value for row in of_key]
            of_first = [row for row in wanted if row.fields[:1] == fields[:1]]
            part = store.scan(kv, start, end, key_prefix=encode_key(fields[:1]))
            assert part[1] == [row.value for row in of_first]
        if layout is Layout.TIME_FIELDS_OFFSET:
            chosen = {row.fields for row in rows[::2]}
            of_some = store.scan(kv, start, end, keys={encode_key(fields) for fields in chosen})
            assert of_some[1] == [row.value for row in wanted if row.fields in chosen or not chosen]

    check()


def test_keys_of_many_lengths_are_not_looked_for() -> None:
    store = MessageStore(Layout.TIME_FIELDS_OFFSET, bucket=BUCKET)
    rows = [Row(1, ("k" * n,), ("s", 0, n, 0)) for n in range(12)]
    kv = file_rows(store, rows)
    counts = [len(store.scan(kv, 0, 2, keys=[key_of(row) for row in rows[:n]])[0]) for n in range(12)]
    assert counts == [12, 1, 2, 3, 4, 5, 6, 7, 8, 12, 12, 12]


@pytest.mark.parametrize("layout", [Layout.TIME_OFFSET, Layout.TIME_FIELDS_OFFSET])
def test_a_scan_by_time_takes_no_key_apart(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MessageStore(layout, bucket=BUCKET)
    kv = file_rows(store, [Row(t, ("k",), ("s", 0, t, 0)) for t in range(9)])
    monkeypatch.setattr(MessageStore, "split", None)
    assert len(store.scan(kv, 2, 7)[0]) == 5


@pytest.mark.parametrize("layout", Layout)
def test_both_bounds_are_inclusive(layout: Layout) -> None:
    store = MessageStore(layout, bucket=BUCKET)

    def meets(row: Row, bound: Any, sign: int) -> bool:
        """True if the row is not beyond the bound; what follows a shorter bound counts as on it."""
        if layout.has_time and row.time != bound[0]:
            return (row.time > bound[0]) == (sign > 0)
        if bound[1] is None:
            return True
        if isinstance(bound[1], int):
            return sign * (row.position[2] - bound[1]) >= 0
        own: tuple[Any, ...] = row.position[: len(bound[1])]
        return own == bound[1] or (own > bound[1]) == (sign > 0)

    @given(ROWS, st.tuples(TIMES, OFFSETS), st.tuples(TIMES, OFFSETS))
    @examples(60, deep=2_000)
    def check(rows: list[Row], start: Any, end: Any) -> None:
        kv = file_rows(store, rows)
        ordered = sorted(rows, key=lambda r: in_order(store, r))
        wanted = [row for row in ordered if meets(row, start, 1) and meets(row, end, -1)]
        assert store.scan_between(kv, start, end)[1] == [row.value for row in wanted]
        for fields in {row.fields for row in rows} if layout.has_fields else ():
            of_key = [row.value for row in wanted if row.fields == fields]
            assert store.scan_between(kv, start, end, encode_key(fields))[1] == of_key

    check()


def test_one_keys_scan_reads_only_that_keys_range() -> None:
    store = MessageStore(Layout.FIELDS_TIME_OFFSET)

    class Recording(MemoryKV):
        scans: list[tuple[Any, ...]]

        def scan(self, *args: Any, **options: Any) -> Any:
            rows = list(super().scan(*args, **options))
            self.scans.append((args[1:], len(rows)))
            return iter(rows)

    kv = Recording(("messages", "message_index"))
    kv.scans = []
    file_rows(
        store, [Row(t, (k,), ("s", 0, 10 * t + n, 0)) for t in range(9) for n, k in enumerate("abc")], kv
    )
    assert len(store.scan(kv, 2, 5, encode_key(["b"]))[0]) == 3
    assert [count for _, count in kv.scans] == [3]


def test_keys_without_messages_of_a_time_are_known_by_the_index_alone() -> None:
    """Messages of other buckets are found too, and all of them in a span of many buckets."""
    store = MessageStore(Layout.FIELDS_TIME_OFFSET, bucket=BUCKET)
    rows = [
        Row(time, (name,), ("s", 0, i, 0)) for i, (name, time) in enumerate([("a", 3), ("b", 25), ("c", 31)])
    ]
    kv = Overlay(file_rows(store, rows[:2]))
    file_rows(store, rows[2:], kv)  # type: ignore[arg-type]
    a, b, c, d = keys = [encode_key((name,)) for name in "abcd"]
    assert store.holding(kv, dict.fromkeys(keys, (0, 9))) == [a]
    assert store.holding(kv, dict.fromkeys(keys, (22, 39))) == [b, c]
    assert store.holding(kv, {a: (0, 9), b: (0, 9), c: (12, 30), d: (0, 39)}) == [a, c]
    assert store.holding(kv, {a: (10, 9), b: (20, 19)}) == []
    assert store.holding(kv, dict.fromkeys(keys, (-(1 << 62), 1 << 62))) == keys


def test_many_keys_are_read_at_once_each_in_times_of_its_own() -> None:
    store = MessageStore(Layout.FIELDS_TIME_OFFSET)
    rows = [Row(t, (k,), ("s", 0, 10 * t + n, 0)) for t in range(9) for n, k in enumerate("abc")]
    kv, ranges = file_rows(store, rows), {"c": (7, 99), "a": (2, 4), "b": (5, 4), "d": (0, 9)}
    keys, _ = store.scan_keys(kv, {encode_key([k]): times for k, times in ranges.items()})
    assert [(store.split(key).fields, store.split(key).time_us) for key in keys] == [
        *((encode_key(["a"]), t) for t in (2, 3, 4)),
        *((encode_key(["c"]), t) for t in (7, 8)),
    ]
    with pytest.raises(ValueError, match="use scan"):
        MessageStore(Layout.TIME_OFFSET).scan_keys(kv, {})


def test_a_scan_passes_through_an_overlay() -> None:
    store = MessageStore(Layout.TIME_OFFSET)
    overlay = Overlay(file_rows(store, [Row(1, (), ("s", 0, 1, 0)), Row(2, (), ("s", 0, 2, 0))]))
    store.put_rows(overlay.batch, np.array([3]), (["s"], [0], [3], [0]), None, [b"new"])
    store.expire(overlay, overlay.batch, 2)
    assert store.scan(overlay, 0, 10)[1] == [b"v", b"new"]


# -- once ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", Layout)
def test_a_replay_is_stored_once_and_known(layout: Layout) -> None:
    store = MessageStore(layout, bucket=BUCKET)

    @given(ROWS, st.integers(0, 15))
    @FEW
    def check(rows: list[Row], cut: int) -> None:
        kv = file_rows(store, rows[:cut])
        keys = [key_of(row) for row in rows] if layout.has_fields else None
        present = kv.multi_get(store.cf, store.row_keys(*columns(rows), keys))
        assert [value is not None for value in present] == [i < cut for i in range(len(rows))]
        once = {cf: list(kv.scan(cf)) for cf in kv.cfs}
        file_rows(store, rows[:cut], kv)
        assert {cf: list(kv.scan(cf)) for cf in kv.cfs} == once

    check()


def test_rows_of_one_record_and_of_two_partitions_are_apart() -> None:
    store = MessageStore(Layout.TIME_OFFSET)
    positions = [("s", 0, 1, 0), ("s", 0, 1, 1), ("s", 1, 1, 0), ("t", 0, 1, 0)]
    kv = file_rows(store, [Row(5, (), position) for position in positions])
    assert len(store.scan(kv, 5, 6)[0]) == 4


# -- expiry --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [Layout.TIME_OFFSET, Layout.TIME_FIELDS_OFFSET])
def test_where_time_leads_expiry_is_one_range_and_exact(layout: Layout) -> None:
    store = MessageStore(layout)
    assert store.cfs == ("messages",)
    rows = [Row(t, (f"k{t % 3}",), ("s", 0, t, 0)) for t in range(-50, 50)]
    kv = file_rows(store, rows)
    batch = Batch()
    assert store.expire(kv, batch, 7) == 1
    assert [op[0] for op in batch.ops] == ["delete_range"]
    kv.write(batch)
    assert store.times(store.scan(kv, -100, 100)[0]).tolist() == list(range(7, 50))
    again = Batch()
    assert store.expire(kv, again, 7) == len(again) == 0


def test_where_fields_lead_expiry_frees_keys_that_never_return() -> None:
    store = MessageStore(Layout.FIELDS_TIME_OFFSET, bucket=BUCKET)
    assert store.cfs == ("messages", "message_index")
    # a thousand keys come once each, with three messages, and never again
    rows = [Row(k // 10, (f"key{k}",), ("s", 0, 3 * k + n, 0)) for k in range(1000) for n in range(3)]
    kv = file_rows(store, rows)
    batch = Batch()
    assert store.expire(kv, batch, 95) == 900
    assert {op[0] for op in batch.ops} == {"delete_range"}
    assert len(batch) == 900 + 1  # one for each key, one for the index; none for each row
    kv.write(batch)
    assert min(store.times([key for key, _ in kv.scan("messages")])) == 90
    assert len(list(kv.scan("message_index"))) == 100
    assert expire(store, kv, 1000) == 1  # nothing stays
    assert list(kv.scan("messages")) == list(kv.scan("message_index")) == []


def test_keys_that_begin_alike_expire_apart() -> None:
    store = MessageStore(Layout.FIELDS_TIME_OFFSET, bucket=BUCKET)
    kv = file_rows(store, [Row(5, (b"key",), ("s", 0, 0, 0)), Row(95, (b"key2",), ("s", 0, 1, 0))])
    assert expire(store, kv, 50) == 1
    assert [store.split(key).fields for key, _ in kv.scan("messages")] == [encode_key([b"key2"])]


@pytest.mark.parametrize("layout", [layout for layout in Layout if layout.has_time])
def test_expiry_never_takes_a_retained_row_and_leaves_at_most_a_bucket(layout: Layout) -> None:
    store = MessageStore(layout, bucket=BUCKET)

    @given(ROWS, st.lists(TIMES, max_size=3), ROWS)
    @FEW
    def check(rows: list[Row], floors: list[int], later: list[Row]) -> None:
        kv = file_rows(store, rows)
        for floor in sorted(floors):
            expire(store, kv, floor)
            left = [value for _, value in kv.scan("messages")]
            kept = [row for row in rows if row.time >= floor]
            assert store.scan(kv, floor, 1000)[1] == [
                row.value for row in sorted(kept, key=lambda r: in_order(store, r))
            ]
            exact = not layout.fields_first
            oldest = floor if exact else floor // BUCKET * BUCKET
            assert len(left) == sum(row.time >= oldest for row in rows)
        file_rows(store, later, kv)
        expire(store, kv, 1000)
        assert list(kv.scan("messages")) == list(kv.scan("message_index")) == []

    check()


@pytest.mark.parametrize("layout", [Layout.OFFSET, Layout.FIELDS_OFFSET])
def test_offsets_expire_by_partition(layout: Layout) -> None:
    store = MessageStore(layout, bucket=BUCKET)

    @given(ROWS, st.sampled_from(["s", "topic"]), st.integers(0, 1), st.integers(-20, 20))
    @FEW
    def check(rows: list[Row], source: str, partition: int, floor: int) -> None:
        rows = [
            row._replace(position=(*row.position[:2], row.position[2] * 7, row.position[3])) for row in rows
        ]
        kv = file_rows(store, rows)
        expire(store, kv, source, partition, floor)
        oldest = floor if layout is Layout.OFFSET else floor // BUCKET * BUCKET
        wanted = {
            row.position
            for row in rows
            if row.position[:2] != (source, partition) or row.position[2] >= oldest
        }
        assert {store.split(key).position for key, _ in kv.scan("messages")} == wanted
        for group in {row.position[:2] for row in rows}:
            expire(store, kv, *group, 1000)
        assert list(kv.scan("messages")) == list(kv.scan("message_index")) == []

    check()


def test_one_key_expires_exactly() -> None:
    times = MessageStore(Layout.FIELDS_TIME_OFFSET)
    offsets = MessageStore(Layout.FIELDS_OFFSET)
    rows = [Row(t, (k,), ("s", 0, 2 * t + n, 0)) for t in range(5) for n, k in enumerate("ab")]
    for store, floor in ((times, 3), (offsets, ("s", 0, 6))):
        kv = file_rows(store, rows)
        batch = Batch()
        store.expire_key(batch, encode_key(["a"]), floor)  # type: ignore[arg-type]
        kv.write(batch)
        left = [store.split(key) for key, _ in kv.scan("messages")]
        assert [p.position[2] for p in left if p.fields == encode_key(["a"])] == [6, 8]
        assert [p.position[2] for p in left if p.fields == encode_key(["b"])] == [1, 3, 5, 7, 9]


def test_the_oldest_times_there_are_expire_too() -> None:
    store = MessageStore(Layout.FIELDS_TIME_OFFSET, bucket=1000)
    kv = file_rows(store, [Row(-(2**63), ("a",), ("s", 0, 0, 0)), Row(2**63 - 1, ("a",), ("s", 0, 1, 0))])
    assert store.scan(kv, -(2**63), -(2**63) + 1)[1] == [b"v"]
    expire(store, kv, 0)
    assert [store.split(key).time_us for key, _ in kv.scan("messages")] == [2**63 - 1]


def test_the_index_of_equal_rows_is_the_same_bytes_in_every_process() -> None:
    store = MessageStore(Layout.FIELDS_TIME_OFFSET, bucket=BUCKET)
    batch = Batch()
    rows = [Row(i % 30, (f"k{i % 7}",), ("s", 0, i, 0)) for i in range(60)]
    store.put_rows(batch, *columns(rows), [key_of(row) for row in rows], [b""] * 60)
    first_seen = dict.fromkeys((row.time // BUCKET, row.fields) for row in rows)
    assert len(batch.points("message_index")) == len(first_seen) == 21
    written = [(key[8:]) for key in batch.points("message_index")]
    assert written == [encode_key(fields) for _, fields in first_seen]


# -- mistakes ------------------------------------------------------------------------------------------------


def test_what_a_layout_cannot_do_is_refused() -> None:
    time, keyed = MessageStore(Layout.TIME_OFFSET), MessageStore(Layout.FIELDS_OFFSET)
    kv, one = MemoryKV(("messages", "message_index")), (np.array([1]), (["s"], [0], [1], [0]))
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: time.row_keys(*one, [b"k"]), "TIME_OFFSET has no equal fields"),
        (lambda: keyed.row_keys(*one), "FIELDS_OFFSET needs equal fields"),
        (lambda: keyed.scan(kv, 0, 1), "FIELDS_OFFSET has no time: use scan_between"),
        (lambda: time.scan(kv, 0, 1, b"k"), "no equal fields to look for"),
        (lambda: time.scan(kv, 0, 1, key_prefix=b"k"), "no equal fields to look for"),
        (lambda: keyed.scan_between(kv, (0, 0), (0, 1), b"k", key_prefix=b"k"), "not both"),
        (lambda: keyed.expire(kv, Batch(), 1), "has no time: use expire_offsets"),
        (lambda: time.expire_offsets(kv, Batch(), "s", 0, 1), "is by time: use expire"),
        (lambda: time.expire_key(Batch(), b"k", 1), "does not lead with fields: use expire"),
        (lambda: keyed.times([b"k"]), "FIELDS_OFFSET has no time"),
        (lambda: MessageStore(Layout.OFFSET, bucket=0), "has no width"),
    ]
    for call, text in mistakes:
        with pytest.raises(ValueError, match=text):
            call()
    assert time.scan(kv, 1, 1) == time.scan(kv, 2, 1) == ([], [])
    assert time.times([]).tolist() == []
