"""Kept messages by a hash of their key: looked up, merged as they come, forgotten by ranges of keys."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.counting import CountingKV
from tests.deep import examples, usually
from windrow.core.errors import CorruptState, NewerFormat
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.stores import event_log, keyed_event_store
from windrow.stores.event_log import TIME
from windrow.stores.keyed_event_store import FAN, HASH, KeyedEvents, hashes_of
from windrow.stores.kv import Batch, MemoryKV, Overlay
from windrow.stores.rocks import RocksKV
from windrow.stores.run_cache import DECODED, READS, TABLE_BYTES, Decoded, name_of

STRETCH = 100
#: (number, key, time)
Row = tuple[int, int, int]


@pytest.fixture(autouse=True)
def decoded(monkeypatch: pytest.MonkeyPatch) -> Decoded:
    """Name of a family that no other test uses."""
    held = Decoded()
    monkeypatch.setattr(keyed_event_store, "DECODED", held)
    return held


def store() -> KeyedEvents:
    return KeyedEvents("k", STRETCH)


def table(rows: Sequence[Row]) -> pa.Table:
    numbers, keys, times = zip(*rows, strict=True)
    hashes = pa.array(keys, pa.uint32())
    return pa.table(
        {
            "x": pa.array(numbers),
            "text": [f"row {n}" for n in numbers],
            TIME: pa.array(times, pa.int64()),
            HASH: hashes,
        }
    )


def numbers(table: pa.Table | None) -> list[int]:
    if table is None:
        return []
    assert table.column("text").to_pylist() == [f"row {n}" for n in table.column("x").to_pylist()]
    return sorted(table.column("x").to_pylist())


def look(events: KeyedEvents, kv: MemoryKV, asked: Sequence[tuple[int, int, int]]) -> list[int]:
    keys, low, high = (np.array(column) for column in zip(*asked, strict=True))
    return numbers(events.read_keys(kv, keys.astype(np.uint32), low, high))


STEPS = st.one_of(
    *[
        st.tuples(
            st.just("add"),
            st.lists(st.tuples(st.integers(0, 6), st.integers(-50, 1_500)), min_size=1, max_size=40),
            st.sampled_from([1, 1, 1, 4, 16]),
        )
    ] * 3,
    st.tuples(
        st.sampled_from(["forget", "drop"]),
        st.lists(st.tuples(st.integers(0, 6), st.integers(-100, 1_600)), min_size=1, max_size=1),
        st.just(1),
    ),
)  # fmt: skip
ASKED = st.lists(
    st.tuples(st.integers(0, 8), st.integers(-100, 1_600), st.integers(-100, 1_600)), min_size=1, max_size=6
)


@given(
    steps=st.lists(STEPS, min_size=2, max_size=24), asked=ASKED, room=st.sampled_from([0, 60_000, 1 << 30])
)
@examples(40, deep=5_000)
def test_whatever_was_filed_merged_and_forgotten_a_key_has_what_a_list_gives(
    steps: list[tuple[str, list[tuple[int, int]], int]], asked: list[tuple[int, int, int]], room: int
) -> None:
    events = KeyedEvents("k", STRETCH, ("aux", b"wide"))
    kv, listed, floor, many = MemoryKV(["k", "aux"]), list[Row](), -(1 << 40), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed_event_store, "FAN", 3)
        patch.setattr(keyed_event_store, "SMALL", 8)
        patch.setattr(keyed_event_store, "BLOCK_BYTES", 256)
        patch.setattr(keyed_event_store, "INDEXED", 1)
        patch.setattr(keyed_event_store, "DECODED", Decoded(room))
        for number, (kind, given_, times) in enumerate(steps):
            at = given_[0][1]
            if kind == "add":
                rows = [(many + i, key, t) for i, (key, t) in enumerate(given_)]
                many += len(rows)
                listed += [row for row in rows if row[2] >= floor]
                patch.setattr(event_log, "stretch_us", lambda _, width_us, times=times: width_us * times)
                events.add(kv, table(rows), number)
            elif kind == "forget":
                floor = max(floor, at)
                events.forget(kv, floor)
                listed = [row for row in listed if row[2] >= floor]
            else:
                events.drop(kv, at, lambda rows, at=at: rows.column(TIME).to_numpy() < at)  # type: ignore[misc]
                listed = [row for row in listed if row[2] >= at]
            for low, high in ((floor, END_OF_TIME_US), (max(700, floor), 1_200)):
                assert numbers(events.read(kv, low, high)) == [n for n, _, t in listed if low <= t < high]
            bounded = [(key, max(low, floor), high) for key, low, high in asked]
            got = look(events, kv, bounded)
            assert len(set(got)) == len(got)
            wanted = {n for n, key, t in listed if any(key == k and a <= t <= b for k, a, b in bounded)}
            assert wanted <= set(got)
            # Of one key those are given, too, that lie between what was asked for.
            spans = {key: [(a, b) for k, a, b in bounded if k == key and a <= b] for key, *_ in bounded}
            assert set(got) <= {
                n for n, key, t in listed
                if spans.get(key) and min(a for a, _ in spans[key]) <= t <= max(b for _, b in spans[key])
            }  # fmt: skip


def test_many_steps_of_few_rows_leave_few_values_and_are_written_a_few_times() -> None:
    kv, events, most = CountingKV(["k"]), store(), 0
    steps = usually(2_000, deep=10_000)
    for number in range(steps):
        events.add(kv, table([(number, number % 977, number % STRETCH)]), number)
        if number % 97 == 0:
            most = max(most, sum(key[:1] == b"i" for key, _ in kv.scan("k")))
    assert most < 6 * FAN and kv.written < 40 * steps * 100
    kv.clear()
    assert len(look(events, kv, [(5, 0, STRETCH)])) == len(range(5, steps, 977))
    assert kv.read["k"] < 6 * FAN * (keyed_event_store.BLOCK_BYTES + 2_000)
    assert numbers(events.read(kv, START_OF_TIME_US, END_OF_TIME_US)) == list(range(steps))


def test_a_key_among_many_costs_a_block_of_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    kv, events = CountingKV(["k"]), store()
    for number in range(4):
        rows = [(number * 50_000 + i, i, 5) for i in range(50_000)]
        events.add(kv, table(rows), number)
    for room, read in ((1 << 20, keyed_event_store.BLOCK_BYTES), (0, 2 * keyed_event_store.BLOCK_BYTES)):
        monkeypatch.setattr(keyed_event_store, "DECODED", Decoded(room))
        assert look(events, kv, [(700, 0, 10)]) == [
            700 + 50_000 * n for n in range(4)
        ]  # indexes are held then
        kv.clear()
        assert look(events, kv, [(800, 0, 10)]) == [800 + 50_000 * n for n in range(4)]
        heads = sum(len(value) for key, value in kv.scan("k", b"i", b"j"))
        assert kv.read["k"] < 2 * heads + 4 * (read + 2_000)
    kv.clear()
    assert look(events, kv, [(700, 200, 300)]) == []  # of a stretch that has nothing
    assert kv.read["k"] == 0


def test_a_key_that_fills_blocks_and_shares_others_is_read_whole() -> None:
    kv, events = MemoryKV(["k"]), store()
    rows = [(n, key, 5) for n, key in enumerate([1] * 900 + [2] * 3_000 + [3] * 50 + [4] * 2_000)]
    events.add(kv, table(rows), 1)
    for key in range(6):
        assert look(events, kv, [(key, 0, 10)]) == [n for n, k, _ in rows if k == key]


@pytest.mark.parametrize("room", [0, 1 << 30])
def test_blocks_of_many_runs_are_looked_at_together(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_event_store, "DECODED", Decoded(room))
    kv, events = MemoryKV(["k"]), store()
    for number in range(3):
        rows = [(10_000 * number + i, i, STRETCH * number) for i in range(4_001 + number)]
        events.add(kv, table(rows), number)
    for keys in ([4_000, 3], [0], [1_999, 2_000, 4_002]):
        numbers = [n for n in (10_000 * i + key for i in range(3) for key in keys if key < 4_001 + i)]
        assert look(events, kv, [(key, 0, 3 * STRETCH) for key in keys]) == sorted(numbers)


def test_a_run_between_the_times_that_are_asked_for_is_not_looked_at(decoded: Decoded) -> None:
    kv, events = MemoryKV(["k"]), store()
    for number, at in enumerate((5, 20 * STRETCH, 10 * STRETCH)):
        events.add(kv, table([(n, n, at) for n in range(4_000 if number == 2 else 9)]), number)
    assert look(events, kv, [(1, 0, 10), (2, 20 * STRETCH, 21 * STRETCH)]) == [1, 2]
    assert len(decoded) == 2  # both runs, and no index


def test_a_large_run_is_merged_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_event_store, "LARGE_BYTES", 4_000)
    kv, events = CountingKV(["k"]), store()
    most = 0
    for number in range(200):
        before = kv.written
        events.add(kv, table([(number * 10 + i, i, 5) for i in range(10)]), number)
        most = max(most, kv.written - before)
    assert most < 10_000
    assert look(events, kv, [(3, 0, 10)]) == [10 * n + 3 for n in range(200)]


def test_what_is_over_is_forgotten_by_three_ranges_and_nothing_is_written_where_nothing_is() -> None:
    kv, events = MemoryKV(["k"]), store()
    events.add(kv, table([(n, n, n * 10) for n in range(50)]), 1)
    ranges: list[int] = []
    write = kv.write

    def noted(batch: Batch) -> None:
        ranges.append(len(batch))
        write(batch)

    kv.write = noted  # type: ignore[method-assign]
    events.forget(kv, 250)
    events.forget(kv, 299)
    assert ranges == [3]
    assert numbers(events.read(kv, START_OF_TIME_US, END_OF_TIME_US)) == list(range(20, 50))
    events.forget(kv, END_OF_TIME_US)
    assert list(kv.scan("k")) == []


def test_columns_that_came_later_or_widened_are_merged_in_one_type() -> None:
    kv, events = MemoryKV(["k"]), store()
    for number in range(FAN):
        kind = pa.int32() if number < 2 else pa.float64()
        rows = pa.table({"x": pa.array([number], kind), TIME: [1], HASH: pa.array([7], pa.uint32())})
        if number > 1:
            rows = rows.append_column("y", pa.array(["new"]))
        events.add(kv, rows, number)
    [(_, value)] = [pair for pair in kv.scan("k") if pair[0][:1] == b"i"]
    assert value[0] == 1
    read = events.read_keys(kv, np.array([7], dtype=np.uint32), np.array([0]), np.array([9]))
    assert read is not None and sorted(read.column("x").to_pylist()) == [float(n) for n in range(FAN)]
    assert read.filter(read.column("x").to_numpy() > 1).column("y").to_pylist() == ["new", "new"]


def test_hashes_are_these_for_good() -> None:
    assert hashes_of([b"", b"a", b"\x11\x80\x00"]).tolist() == [46947589, 1426945110, 943895325]


@pytest.mark.parametrize(
    ("letter", "damage", "error"),
    [
        (b"i", lambda value: b"\x02" + value[1:], NewerFormat),
        (b"i", lambda value: value[:40], CorruptState),
        (b"i", lambda value: value[:20], CorruptState),
        (b"b", lambda value: value[:20], CorruptState),
        (b"b", None, CorruptState),
    ],
)
def test_a_newer_format_and_damage_are_reported(letter: bytes, damage: Any, error: type[Exception]) -> None:
    kv, events = MemoryKV(["k"]), store()
    events.add(kv, table([(1, 1, 1), (2, 1, 1)]), 1)
    [(key, value)] = [pair for pair in kv.scan("k") if pair[0][:1] == letter]
    batch = Batch()
    if damage is None:
        batch.delete("k", key)
    else:
        batch.put("k", key, damage(value))
    kv.write(batch)
    with pytest.raises(error):
        look(events, kv, [(1, 0, 10)])


@pytest.mark.parametrize("damage", [lambda value: value[:-4], lambda value: value[4:] + value[:4], None])
def test_an_index_that_is_not_there_or_another_is_damage(damage: Any) -> None:
    kv, events = MemoryKV(["k"]), store()
    events.add(kv, table([(n, n, 1) for n in range(4_000)]), 1)
    [(key, value)] = list(kv.scan("k", b"h", b"i"))
    batch = Batch()
    if damage is None:
        batch.delete("k", key)
    else:
        batch.put("k", key, damage(value))
    kv.write(batch)
    with pytest.raises(CorruptState, match="index"):
        look(events, kv, [(700, 0, 10)])


def test_what_is_held_of_a_run_follows_its_bytes_and_not_its_number() -> None:
    """Two attempts of one step, of which the first was given up after it was read."""
    for x in (1, 2, 1):
        kv, events = MemoryKV(["k"]), store()
        events.add(kv, table([(x, 7, 5)]), 1)
        for _ in range(2):
            assert look(events, kv, [(7, 0, 10)]) == [x]


def test_a_run_that_is_looked_at_much_is_read_once_and_one_of_which_little_is_asked_is_not_held(
    decoded: Decoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_event_store, "BLOCK_BYTES", 1)
    kv, events = MemoryKV(["k"]), store()
    events.add(kv, table([(n, n, 1) for n in range(512)]), 1)  # 32 blocks
    asked: list[int] = []
    read = kv.multi_get
    monkeypatch.setattr(kv, "multi_get", lambda cf, names: (asked.append(len(names)), read(cf, names))[1])
    for _ in range(2):
        assert look(events, kv, [(20, 0, 10)]) == [20]
    assert (asked, len(decoded)) == ([1, 1], 1)  # its index is held
    for _ in range(2):
        assert look(events, kv, [(20, 0, 10), (40, 0, 10)]) == [20, 40]
    assert look(events, kv, [(20, 0, 10)]) == [20]
    assert (asked, len(decoded)) == ([1, 1, 32], 2)
    for number in range(2, FAN + 1):
        events.add(kv, table([(1_000 * number + n, n, 1) for n in range(512)]), number)
    assert len(decoded) == 0  # merged
    assert len(list(kv.scan("k", b"h", b"i"))) == len(list(kv.scan("k", b"i", b"j"))) == 1
    assert look(events, kv, [(20, 0, 10)]) == [20, *(1_000 * number + 20 for number in range(2, FAN + 1))]


def test_what_is_asked_for_stays_and_what_nobody_asks_for_makes_room() -> None:
    rows = table([(1, 1, 1)])
    size = int(rows.nbytes) + TABLE_BYTES
    held = Decoded(2 * size).of("store")
    held.begin()
    for digest in (b"a", b"b", b"c"):
        held.put(digest, rows)
    assert [held.get(digest) is not None for digest in (b"a", b"b", b"c")] == [True, True, False]
    assert not held.has_room(0)
    for _ in range(READS):
        held.begin()
        assert held.get(b"b") is not None
    held.begin()
    assert (len(held.tables), held.get(b"a"), held.has_room(0)) == (1, None, True)
    held.forget(b"b")
    held.forget(b"b")
    assert (len(held.tables), held.has_room(2 * size - TABLE_BYTES)) == (0, True)


def test_what_a_store_holds_does_not_age_by_reads_of_others() -> None:
    """Fifty shards of a process, each of which is read now and then."""
    rows, process = table([(1, 1, 1)]), Decoded()
    shards = [process.of(f"shard {n}") for n in range(50)]
    for _ in range(3):
        for shard in shards:
            for _ in range(READS // 10):
                shard.begin()
            value = shard.get(b"run")
            shard.put(b"run", rows)
    assert value is not None and len(process) == 50


def test_where_there_is_no_room_each_store_gets_its_part_and_keeps_what_it_has_beyond_until_another_comes() -> (
    None
):
    rows, names = table([(1, 1, 1)]), [f"{n}".encode() for n in range(8)]
    process = Decoded(8 * (int(rows.nbytes) + TABLE_BYTES))
    first = process.of("first")
    for name in names:
        first.put(name, rows)
    assert first.get(names[0]) is not None and not first.has_room(0)  # it is asked for last
    second = process.of("second")
    for name in names:
        second.put(name, rows)
    assert [name for name in names if second.get(name) is not None] == names[:4]
    assert [name for name in names if first.get(name) is not None] == [names[0], *names[5:]]
    assert not second.has_room(0) and not first.has_room(0)
    process.of("third").put(b"x", rows)
    assert len(process) == 8 and len(process.of("third").tables) == 1


def test_a_store_that_nobody_reads_loses_what_is_held_of_it() -> None:
    rows, clock = table([(1, 1, 1)]), [0.0]
    process = Decoded(idle_s=3_600.0, clock=lambda: clock[0])
    busy, idle = process.of("busy"), process.of("idle")
    for held in (busy, idle):
        held.begin()
        held.put(b"run", rows)
    clock[0] += 3_599
    busy.begin()
    process.release()
    assert len(process) == 2
    clock[0] += 1
    process.release()
    assert busy.get(b"run") is not None and process.of("idle").get(b"run") is None


def test_it_works_in_a_process_in_which_nothing_happens() -> None:
    process = Decoded(idle_s=0.02)
    held = process.of("store")
    held.begin()
    held.put(b"run", table([(1, 1, 1)]))
    while len(process):  # a thread takes it away
        time.sleep(0.01)


def test_a_process_that_may_begin_no_thread_reads_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that ends may not, on Python 3.12."""

    def refuse(_: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    process, rows = Decoded(idle_s=0.02), table([(1, 1, 1)])
    with monkeypatch.context() as ending:
        ending.setattr(threading.Thread, "start", refuse)
        process.of("store").begin()
    process.of("store").put(b"run", rows)
    process.of("store").begin()
    while len(process):  # a thread takes it away again
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_was_forked_waits_for_no_thread_of_its_parent() -> None:
    taken, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with DECODED.lock:
            taken.set()
            let_go.wait()

    holds = threading.Thread(target=hold)
    holds.start()
    taken.wait()
    child = os.fork()
    if not child:
        signal.alarm(60)
        DECODED.of("store").begin()
        os._exit(0)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        let_go.set()
        holds.join()


def test_two_openings_of_a_folder_are_one_store(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        with RocksKV(tmp_path / "kv", ("k",)) as kv:
            names += [name_of(kv), name_of(Overlay(Overlay(kv)))]
    one, other = MemoryKV(["k"]), MemoryKV(["k"])
    assert len({*names}) == 1 and name_of(one) == name_of(Overlay(one)) != name_of(other)


def test_an_interrupt_anywhere_leaves_what_is_held_usable() -> None:
    table = pa.table({"a": [1]})
    for event in range(1, 200):
        process, left = Decoded(4 * TABLE_BYTES), event
        held = process.of("store")

        def interrupt(*_: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return interrupt

        gc.disable()  # what earlier tests left is not to be collected, and interrupted, here
        sys.settrace(interrupt)
        try:
            for digest in (b"a", b"b", b"c", b"a", b"d"):
                held.begin()
                held.put(digest, table)
                held.get(digest)
                held.forget(b"b")
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
            gc.enable()
        for _ in range(2 * READS + 1):  # nobody asks for anything
            held.begin()
        assert len(process) == 0 and held.has_room(2 * TABLE_BYTES)
