"""Large windows are read and written by shares of their keys, and single keys without the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.stores.test_window_state import CFS, plain, rows
from windrow.stores import delta_blocks, partitioned_windows
from windrow.stores.delta_blocks import BlockWindows
from windrow.stores.kv import KV, MemoryKV
from windrow.stores.spill import Spill, dealt, grouped, of_keys_apart


@pytest.fixture
def kv() -> KV:
    return MemoryKV(CFS)


@pytest.mark.parametrize("layout", ["blocks", "divided", "pages"])
def test_windows_are_read_in_chunks_and_a_large_one_by_shares_of_its_keys(
    kv: KV, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioned_windows, "PART_BYTES", 500)
    monkeypatch.setattr(delta_blocks, "FOLD_LARGE_AT", delta_blocks.FOLD_AT)
    store = BlockWindows("windows", "aux", ["k"])
    for n in range(delta_blocks.FOLD_AT + 1 if layout == "divided" else 3):
        table = rows(
            *((s, f"key-{k}" if k else None, n) for s in (0, 20, 30) for k in range(1 if s else 300))
        )
        for start in store.append(kv, table, upsert=False):
            store.fold(kv, start, lambda t: rows(*plain(t)))
    if layout == "pages":
        store.replace(kv, [0], rows(*plain(store.read(kv, [0]))))
        store.append(kv, rows(*((0, f"key-{k}", 7) for k in range(250, 300))), upsert=False)
    for most in (1, 4_000, 1 << 30):
        read: list[tuple[Any, ...]] = []
        chunks = list(store.chunks(kv, store.starts(kv, 0, 100), most))
        for chunk in chunks:
            if chunk.shares is None:
                read += plain(chunk.rows)
                continue
            seen: set[Any] = set()
            for share in grouped(chunk.shares, most):
                keys = set(share.column("k").to_pylist())
                assert not keys & seen  # all that there is of a key is in one share
                seen |= keys
                read += plain(share)
        assert sorted(read) == plain(store.read(kv, [0, 20, 30]))
        assert [start for chunk in chunks for start in chunk.starts] == [0, 20, 30]
        assert len(chunks) > 1 if most < 1 << 30 else len(chunks) == 1
        assert (chunks[0].shares is not None) == (most < 1 << 30)


@pytest.mark.parametrize("count", [1, 15, 40, 3_000])
def test_a_window_that_is_replaced_by_shares_is_the_same(kv: KV, count: int) -> None:
    store = BlockWindows("windows", "aux", ["k"])
    merged = rows(*((7, f"key-{n}", n) for n in range(count)))
    store.append(kv, rows((7, "gone", 1)), upsert=False)
    store.replace(kv, [7], merged)
    wanted = list(kv.scan("windows"))
    store.append(kv, rows((7, "gone", 1)), upsert=False)
    groups = Spill()
    for number, chunk in enumerate(
        grouped(dealt([merged.slice(0, 9), merged.slice(9)], ["k"], Spill()), 500)
    ):
        groups.add(chunk, number)
    store.replace_by_shares(kv, 7, groups)
    pairs = list(kv.scan("windows"))
    assert plain(store.read(kv, [7])) == plain(merged)
    assert [key for key, _ in pairs] == [key for key, _ in wanted]
    if count > 2_000:  # where pages are few their rows may stand in another order
        assert pairs == wanted
    store.replace_by_shares(kv, 7, Spill())
    assert store.starts(kv, 0, 10) == []


@pytest.mark.parametrize(
    ("keys", "apart"),
    [
        (["a", "b", None], True),
        (["a", "b", "a"], False),
        ([None, "b", None], False),
        ([0.0, 1.0, -0.0], False),
        ([float("nan"), 1.0, -float("nan")], False),
        ([], True),
    ],
)
def test_keys_are_apart_where_none_comes_twice(keys: list[Any], apart: bool) -> None:
    assert of_keys_apart(pa.table({"k": pa.array(keys)}), ["k"]) is apart


@pytest.mark.parametrize("layout", ["divided", "pages"])
def test_a_key_is_read_without_the_others(kv: KV, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioned_windows, "PART_BYTES", 2_000)
    monkeypatch.setattr(delta_blocks, "FOLD_LARGE_AT", delta_blocks.FOLD_AT)
    store = BlockWindows("windows", "aux", ["k"])
    table = rows(*((7, f"key-{n}" if n else None, n) for n in range(1_000)))
    few = rows((7, "key-9", 10))
    for n in range(3 * delta_blocks.FOLD_AT):  # until all but the last few are dealt out to parts
        if layout == "pages":
            store.replace(kv, [7], table)
        for start in store.append(kv, table if n < 2 * delta_blocks.FOLD_AT else few, upsert=False):
            store.fold(kv, start, lambda t: rows(*plain(t)))
    asked: list[int] = []
    original = store._each

    def counted(*which: Any) -> Iterator[bytes]:
        for value in original(*which):
            asked.append(len(value))
            yield value

    monkeypatch.setattr(store, "_each", counted)
    for key in ("key-9", None, "no such key"):
        asked.clear()
        keys = pa.table({"k": pa.array([key], pa.string())})
        read, table = store.read(kv, [7], keys), sum(asked)
        asked.clear()
        wanted = [row for row in plain(store.read(kv, [7])) if row[1] == (key or "")]
        assert plain(read) == wanted and bool(wanted) == (key != "no such key")
        assert 5 * table < sum(asked), f"{table} bytes of {sum(asked)} were read"


def test_a_window_is_divided_before_it_is_too_large_to_be_folded(
    kv: KV, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioned_windows, "PART_BYTES", 500)
    monkeypatch.setattr(delta_blocks, "FOLD_BYTES", 20_000)
    store, due = BlockWindows("windows", "aux", ["k"]), list[list[int]]()
    for n in range(4):
        due.append(store.append(kv, rows(*((0, f"key-{n}-{k}", n) for k in range(300))), upsert=False))
        for start in due[-1]:
            store.fold(kv, start, lambda t: rows(*plain(t)))
    # What is divided is looked at each time.
    assert due == [[], [0], [0], [0]]
    assert len(plain(store.read(kv, [0]))) == 1_200
