"""The timer service against a dict, and its cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.core.keys import encode_key
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.stores.kv import Batch, MemoryKV, Overlay, Pair
from windrow.stores.timers import DueTimers, TimerIndex

TIMES = st.one_of(st.integers(-4, 4), st.sampled_from([START_OF_TIME_US, END_OF_TIME_US, -(10**15), 10**15]))
KEYS = st.sampled_from([encode_key((name,)) for name in ("", "a", "a\x00", "b", None, 7)])
TIMER = st.tuples(TIMES, KEYS, st.integers(0, 2))
VALUES = st.binary(max_size=2)
VERB = st.one_of(
    st.tuples(st.just("set"), TIMER, VALUES),
    st.tuples(st.just("cancel"), TIMER),
    st.tuples(st.just("set_many"), st.lists(TIMER, max_size=20), st.booleans()),
    st.tuples(st.just("cancel_many"), st.lists(TIMER, max_size=20), st.booleans()),
    st.tuples(st.sampled_from(["drop", "pop"]), TIMES),
    st.tuples(st.just("commit")),
)


def columns(timers: Sequence[tuple[int, bytes, int]], arrow: bool) -> tuple[object, object, object]:
    times, keys, kinds = zip(*timers, strict=True) if timers else ((), (), ())
    of_keys = pa.array(keys, pa.binary()) if arrow else list(keys)
    return np.array(times, dtype=np.int64), of_keys, np.array(kinds, dtype=np.uint8)


def expected(
    model: dict[tuple[int, bytes, int], bytes], first: int, last: int
) -> list[tuple[int, bytes, int, bytes]]:
    return [(*timer, model[timer]) for timer in sorted(model) if first <= timer[0] <= last]


@settings(max_examples=150, deadline=None)
@given(st.lists(VERB, max_size=20), TIMES, TIMES)
def test_an_index_is_a_dict_in_the_order_of_time_key_and_kind(
    verbs: list[tuple], low: int, high: int
) -> None:
    base, neighbours = MemoryKV(("t",)), Batch()
    for prefix in (b"d", b"dz", b"f"):
        TimerIndex("t", prefix).set(neighbours, 0, b"x\x00\x01")
    base.write(neighbours)
    kv, index, model = Overlay(base), TimerIndex("t", b"e"), dict[tuple[int, bytes, int], bytes]()
    for verb, *args in verbs:
        batch = Batch()
        if verb == "commit":
            base.write(kv.batch)
            kv = Overlay(base)
        elif verb == "set":
            index.set(batch, *args[0], args[1])
            model[args[0]] = args[1]
        elif verb == "cancel":
            index.cancel(batch, *args[0])
            model.pop(args[0], None)
        elif verb in ("drop", "pop"):
            if verb == "drop":
                index.drop(batch, args[0])
            else:
                assert list(index.pop(kv, batch, args[0])) == expected(model, START_OF_TIME_US, args[0])
            model = {timer: value for timer, value in model.items() if timer[0] > args[0]}
        else:
            getattr(index, verb)(batch, *columns(*args))
            model = (
                model | dict.fromkeys(args[0], b"")
                if verb == "set_many"
                else {timer: value for timer, value in model.items() if timer not in args[0]}
            )
        kv.write(batch)

    due = index.due(kv, high)
    assert list(due) == expected(model, START_OF_TIME_US, high)
    assert list(due.of(1)) == [row for row in expected(model, START_OF_TIME_US, high) if row[2] == 1]
    assert list(index.between(kv, low, high)) == expected(model, low, high)
    assert index.next(kv) == min((timer[0] for timer in model), default=None)
    assert all(index.get(kv, *timer) == value for timer, value in model.items())


def test_keys_of_one_length_are_columns_of_numpy() -> None:
    kv, index, batch = MemoryKV(("t",)), TimerIndex("t"), Batch()
    times, hashes = np.array([5, -1, 5], dtype=np.int64), np.array([2**64 - 1, 7, 3], dtype=np.uint64)
    index.set_many(batch, times, hashes, 9, [b"a", b"b", b"c"])
    kv.write(batch)
    due = index.due(kv, 5)
    assert due.times.tolist() == [-1, 5, 5]
    assert due.hashes.tolist() == [7, 3, 2**64 - 1]
    assert (due.kinds.tolist(), due.values) == ([9, 9, 9], [b"b", b"c", b"a"])
    rows = np.frombuffer(b"".join(due.keys), np.uint8).reshape(-1, 8)
    index.cancel_many(batch := Batch(), due.times, rows, due.kinds)
    kv.write(batch)
    assert index.next(kv) is None
    assert not index.due(kv, END_OF_TIME_US)


@pytest.mark.parametrize("kind", [-1, 256])
def test_a_kind_is_a_byte(kind: int) -> None:
    index = TimerIndex("t")
    with pytest.raises((ValueError, OverflowError)):
        index.set(Batch(), 0, b"k", kind)
    with pytest.raises((ValueError, OverflowError)):
        index.set_many(Batch(), np.zeros(1, dtype=np.int64), [b"k"], kind)


class Counted(MemoryKV):
    """A store that counts its scans and the pairs that they yield."""

    scans = pairs = 0

    def scan(
        self, cf: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[Pair]:
        self.scans += 1
        for pair in super().scan(cf, start, end, reverse):
            self.pairs += 1
            yield pair


def test_cost_follows_what_is_due() -> None:
    kv, index, batch, n = Counted(("t",)), TimerIndex("t", b"e"), Batch(), 100_000
    index.set_many(batch, np.arange(n, dtype=np.int64) + 10, np.arange(n, dtype=np.uint64))
    kv.write(batch)

    def read(look: object) -> tuple[int, int]:
        kv.scans = kv.pairs = 0
        look()  # type: ignore[operator]
        return kv.scans, kv.pairs

    due = list[DueTimers]()
    assert read(lambda: due.append(index.due(kv, 9))) == (1, 0)
    assert read(lambda: due.append(index.due(kv, 12))) == (1, 3)
    assert [len(timers) for timers in due] == [0, 3]
    assert read(lambda: index.next(kv)) == (1, 1)
    index.drop(batch := Batch(), 12)
    assert len(batch) == 1
