"""One contract for all layouts of window metadata, over every kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.deep import usually
from tests.format_pages import examples_of_formats
from windrow.core.byte_order import encode_i64
from windrow.core.errors import CorruptState, NewerFormat
from windrow.core.keys import encode_key
from windrow.stores import delta_blocks, page_writer, partitioned_windows
from windrow.stores import page_store as paged
from windrow.stores import write_buffer as waiting
from windrow.stores.block_format import Codec, Kind
from windrow.stores.delta_blocks import BlockWindows
from windrow.stores.kv import KV, Batch, MemoryKV, Overlay
from windrow.stores.page_format import unpack
from windrow.stores.rocks import RocksKV
from windrow.stores.row_codec import Schemas, pack_table, put_schema, unpack_table
from windrow.stores.window_state import PlainWindows

CFS = ("windows", "aux")


@pytest.fixture(params=["memory", "rocks", "overlay"])
def kv(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KV]:
    store: Any = MemoryKV(CFS) if request.param in ("memory", "overlay") else RocksKV(tmp_path / "store", CFS)
    if request.param == "overlay":
        store = Overlay(store)
    yield store
    store.close()


class AllPaged(BlockWindows):
    """Whatever is appended is put into pages at once, as triggers do that judge keys."""

    def append(self, kv: KV, rows: pa.Table, *, upsert: bool, aside: bool = False) -> list[int]:
        due = super().append(kv, rows, upsert=upsert, aside=aside)
        for start in sorted(set(rows["__start"].to_pylist())):
            asked = rows.filter(pc.equal(rows["__start"], start)).select(["__start", "k"])
            near = self.near(kv, [start], asked)
            assert near.rows is not None
            last = {row["k"]: n for n, row in enumerate(near.rows.to_pylist())}
            self.put(kv, near, near.rows.take(sorted(last.values())).drop_columns(["__upsert"]))
            assert self.pages(kv, start) > 0
        return due


@pytest.fixture(params=["blocks", "narrow blocks", "pages"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "blocks":
        return BlockWindows("windows", "aux", ["k"])
    if request.param == "narrow blocks":
        monkeypatch.setattr(delta_blocks, "NARROW_FROM", 1)
        return BlockWindows("windows", "aux", ["k"], narrow=True)
    monkeypatch.setattr(paged, "PAGE_ROWS", 1)
    return AllPaged("windows", "aux", ["k"])


def rows(*of: tuple[int, str | None, int]) -> pa.Table:
    starts, keys, values = zip(*of, strict=True)
    return pa.table(
        {
            "__start": pa.array(starts, pa.int64()),
            "__end": pa.array([s + 10 for s in starts], pa.int64()),
            "k": pa.array(keys, pa.string()),
            "n": pa.array(values, pa.int64()),
        }
    )


def plain(table: pa.Table | None) -> list[tuple[Any, ...]]:
    """(start, key, n), the newest row of each (window, key)."""
    newest = {(r["__start"], r["k"]): r["n"] for r in ([] if table is None else table.to_pylist())}
    return sorted(((s, k or "", n) for (s, k), n in newest.items()))


def test_what_is_upserted_is_read_again_and_replaces_what_was_there(store: Any, kv: KV) -> None:
    store.append(kv, rows((0, "a", 1), (10, "a", 2), (0, None, 3)), upsert=True)
    store.append(kv, rows((0, "a", 7)), upsert=True)
    assert plain(store.read(kv, [0])) == [(0, "", 3), (0, "a", 7)]
    assert plain(store.read(kv, [0, 10])) == [(0, "", 3), (0, "a", 7), (10, "a", 2)]
    assert store.read(kv, [20]) is None


def test_starts_are_those_of_stored_windows_sorted_negative_ones_first(store: Any, kv: KV) -> None:
    store.append(kv, rows((10, "a", 1), (-20, "b", 2), (0, "a", 3)), upsert=True)
    assert store.starts(kv, -100, 100) == [-20, 0, 10]
    assert store.starts(kv, -20, 10) == [-20, 0]
    assert store.starts(kv, 11, 100) == []


def test_a_column_that_widens_or_comes_later_is_read_with_the_older_rows(store: Any, kv: KV) -> None:
    store.append(kv, rows((0, "a", 1)), upsert=True)
    wider = rows((0, "b", 2)).set_column(3, "n", pa.array([2.5])).append_column("extra", pa.array(["x"]))
    store.append(kv, wider, upsert=True)
    table = store.read(kv, [0])
    assert plain(table) == [(0, "a", 1.0), (0, "b", 2.5)]
    assert sorted(table.column("extra").to_pylist(), key=str) == [None, "x"]


def test_blocks_keep_deltas_in_the_order_they_came(kv: KV) -> None:
    store = BlockWindows("windows", "aux")
    for n in (1, 2, 3):
        store.append(kv, rows((0, "a", n)), upsert=False)
    table = store.read(kv, [0])
    assert table is not None
    assert table.column("n").to_pylist() == [1, 2, 3]
    assert store.blocks(kv, 0) == 3
    store.replace(kv, [0], rows((0, "a", 6)))
    assert (plain(store.read(kv, [0])), store.blocks(kv, 0)) == ([(0, "a", 6)], 1)
    store.replace(kv, [0], rows((0, "a", 6)).slice(1))
    assert store.read(kv, [0]) is None


def test_a_window_is_due_to_be_folded_when_what_came_since_is_as_large_as_what_it_was(kv: KV) -> None:
    store = BlockWindows("windows", "aux")
    due = [store.append(kv, rows((0, "a", n), (10, "a", n)), upsert=False) for n in range(33)]
    assert [n for n, starts in enumerate(due) if starts] == [16, 32]
    assert due[16] == [0, 10]
    store.append(kv, rows(*((0, f"key-{n}", n) for n in range(1_000))), upsert=True)
    store.fold(kv, 0, lambda table: table.drop_columns(["__upsert"]))
    again = [store.append(kv, rows((0, "a", n)), upsert=False) for n in range(200)]
    [first, *_] = [n for n, starts in enumerate(again) if starts]
    whole, *since = [len(value) - 40 for _, value in kv.scan("windows", encode_i64(0), encode_i64(1))]
    assert sum(since[: first + 1 - 16]) < whole <= sum(since[: first + 1])


def summed(table: pa.Table) -> pa.Table:
    """One row a key: an upsert stands for what was before it."""
    sums: dict[str, int] = {}
    for row in table.to_pylist():
        sums[row["k"]] = row["n"] + (0 if row["__upsert"] else sums.get(row["k"], 0))
    return rows(*((0, key, n) for key, n in sums.items()))


@pytest.mark.parametrize("deal_bytes", [64, 4])
def test_no_commit_reads_or_writes_much_of_a_window_of_many_keys(
    kv: KV, monkeypatch: pytest.MonkeyPatch, deal_bytes: int
) -> None:
    """It is divided, a little at a time, and a commit folds of it about as much as it brings."""
    monkeypatch.setattr(partitioned_windows, "PART_BYTES", 4_096)
    monkeypatch.setattr(partitioned_windows, "DEAL_BYTES", deal_bytes)
    store, said, wrote, folded = BlockWindows("windows", "aux", ["k"]), dict[str, int](), [0], [0]
    order = Random(0).sample([f"key-{i}" for i in range(2_000)], 2_000)

    def merge(table: pa.Table) -> pa.Table:
        folded[-1] += len(table)
        return summed(table)

    for n in range(usually(300, deep=600)):
        commit = Overlay(kv)
        chosen, upsert = order[20 * n % 2_000 :][:20], n % 7 == 0  # all parts double at one time
        said.update({key: n if upsert else said.get(key, 0) + n for key in chosen})
        for start in store.append(commit, rows(*((0, key, n) for key in chosen)), upsert=upsert):
            store.fold(commit, start, merge)
        wrote.append(len(commit.batch.encode()))
        folded.append(0)
        kv.write(commit.batch)
        if n % 100 == 99:
            table = store.read(kv, [0])
            assert table is not None
            assert plain(summed(table)) == sorted((0, key, value) for key, value in said.items())
    whole = sum(len(value) for _, value in kv.scan("windows"))
    assert sum(folded) > 10_000 and max(folded) < 600
    assert max(wrote) < 33_000
    assert whole < 250_000  # and does not grow, though pages of a row or two are dealt out
    # A trigger that judges single keys turns it into pages.
    near = store.near(kv, [0], rows((0, order[0], 0)).select(["__start", "k"]))
    assert near.rows is not None
    assert plain(summed(near.rows)) == sorted((0, key, value) for key, value in said.items())
    store.put(kv, near, summed(near.rows))
    assert plain(store.read(kv, [0])) == sorted((0, key, value) for key, value in said.items())
    assert {value[2] for _, value in kv.scan("windows")} == {Kind.PAGE}
    assert all(key[8:10] == b"\xff\xfd" for key, _ in kv.scan("windows"))
    store.replace(kv, [0], rows((0, "a", 1)))
    assert (plain(store.read(kv, [0])), store.blocks(kv, 0)) == ([(0, "a", 1)], 1)
    store.append(kv, rows((0, "b", 2)), upsert=True)
    assert plain(store.read(kv, [0])) == [(0, "a", 1), (0, "b", 2)]
    store.drop(kv, 0, 1)
    assert store.read(kv, [0]) is None and store.starts(kv, -1, 1) == []


def test_what_is_put_in_the_place_of_some_keys_leaves_all_others(kv: KV) -> None:
    """Whatever came before, and however: the newest row of each (window, key) is what it was put last."""
    store = BlockWindows("windows", "aux", ["k"])
    chance, said = Random(7), dict[tuple[int, str], int]()
    for n in range(120):
        starts = chance.sample([-10, 0, 10], chance.randint(1, 3))
        names = {
            (start, f"key-{chance.randrange(n + 20)}")
            for start in starts
            for _ in range(chance.randint(1, 9))
        }
        stored = [(*name, n) for name in sorted(names)]
        kind = chance.choice(["append", "put", "put", "put", "waiting", "replace"] if n else ["put"])
        if kind == "append" and n % 5 == 0:
            store.append(kv, rows(*stored), upsert=True)
            said.update({name: n for name in names})
        elif kind == "replace" and n % 20 == 0:
            store.replace(kv, starts, rows(*stored))
            said = {name: v for name, v in said.items() if name[0] not in starts} | {
                name: n for name in names
            }
        elif kind == "waiting":
            near = store.near(kv, starts, None)
            assert set(plain(near.rows)) <= {(*name, v) for name, v in said.items()}
        else:
            near = store.near(kv, starts, rows(*stored).select(["__start", "k"]))
            held = {(s, k): v for s, k, v in plain(near.rows)}
            assert held == {name: said[name] for name in held}
            assert {name for name in names if name in said} <= set(held)
            said.update({name: n for name in names})
            store.put(kv, near, rows(*((s, k, said[s, k]) for s, k in {**held, **dict.fromkeys(names)})))
        assert plain(store.read(kv, [-10, 0, 10])) == sorted((*name, v) for name, v in said.items())
    assert len(said) > 200 and store.starts(kv, -100, 100) == [-10, 0, 10]


def test_a_commit_of_few_keys_reads_and_writes_few_pages(kv: KV) -> None:
    """As much as of a hundredth of the keys; a window that grows key by key rewrites no more than it needs."""
    store, wrote = BlockWindows("windows", "aux", ["k"]), dict[int, int]()
    for size in (1_000, 20_000):
        store.replace(kv, [size], rows(*((size, f"key-{n}", 1) for n in range(size))))
        commit = Overlay(kv)
        asked = [(size, f"key-{n * 997 % size}", 2) for n in range(10)] + [
            (size, f"new-{n}", 2) for n in range(10)
        ]
        near = store.near(commit, [size], rows(*asked).select(["__start", "k"]))
        assert near.rows is not None and len(near.rows) < 700
        new = {k for _, k, _ in asked}
        others = near.rows.filter(pa.array([k not in new for k in near.rows["k"].to_pylist()]))
        store.put(commit, near, pa.concat_tables([others.drop_columns(["__upsert"]), rows(*asked)]))
        wrote[size] = len(commit.batch.encode())
        kv.write(commit.batch)
        assert dict.fromkeys(new, 2).items() <= {k: n for _, k, n in plain(store.read(kv, [size]))}.items()
    assert wrote[20_000] < 1.3 * wrote[1_000]


def test_what_waits_is_what_came_since_or_was_left_waiting(kv: KV) -> None:
    def waiting(*of: tuple[int, str | None, int]) -> pa.Table:
        return rows(*of).append_column("__pending", pa.array([n for _, _, n in of], pa.int64()))

    def names(near: Any) -> list[str]:
        return [] if near.rows is None else sorted(set(near.rows["k"].to_pylist()))

    store = BlockWindows("windows", "aux", ["k"])
    many = [f"key-{n:03d}" for n in range(400)]
    store.replace(kv, [0], waiting(*((0, k, 0) for k in many)))
    assert names(store.near(kv, [0], None)) == []
    store.append(kv, waiting((0, "key-007", 1)), upsert=False)
    near = store.near(kv, [0], None)
    assert "key-007" in names(near) and len(names(near)) < 100
    merged = {k: 0 for k in names(near)}
    store.put(kv, near, waiting(*((0, k, n) for k, n in merged.items())))
    assert names(store.near(kv, [0], None)) == []
    # One by one it is left: by a trigger that counts.
    near = store.near(kv, [0], rows((0, "key-009", 0)).select(["__start", "k"]))
    store.put(kv, near, waiting(*((0, k, int(k == "key-009")) for k in names(near))))
    again = store.near(kv, [0], rows((0, "key-300", 0)).select(["__start", "k"]))
    store.put(kv, again, waiting(*((0, k, int(k == "key-009")) for k in names(again))))
    assert len(names(again)) < 100 and names(store.near(kv, [0], None)) == many
    store.put(kv, store.near(kv, [0], None), waiting(*((0, k, 0) for k in many)))
    assert names(store.near(kv, [0], None)) == []


def test_what_a_window_of_pages_takes_does_not_grow_with_its_age() -> None:
    """Commits that judge keys, and some whose rows wait beside the pages: ten times as many leave as many values and bytes."""
    commits = usually(1_000, deep=10_000)
    kv, store, chance = MemoryKV(CFS), BlockWindows("windows", "aux", ["k"]), Random(3)
    keys, sizes, wrote = [f"key-{n:03d}" for n in range(500)], list[tuple[int, int]](), list[int]()
    store.replace(kv, [0], rows(*((0, k, 0) for k in keys)))
    for n in range(commits):
        commit, asked = Overlay(kv), rows(*((0, k, n) for k in chance.sample(keys, 5)))
        if n % 3:
            for start in store.append(commit, asked, upsert=True):
                store.fold(commit, start, summed)
        else:
            near = store.near(commit, [0], asked.select(["__start", "k"]))
            upserts = asked.append_column("__upsert", pa.array([True] * 5))
            store.put(commit, near, summed(pa.concat_tables([near.rows, upserts])))
        wrote.append(len(commit.batch.encode()))
        kv.write(commit.batch)
        if n + 1 in (commits // 10, commits):
            sizes.append((len(list(kv.scan("windows"))), sum(len(value) for _, value in kv.scan("windows"))))
    assert all(0.9 * young < old < 1.1 * young for young, old in zip(*sizes, strict=True))
    assert max(wrote) < 2 * max(wrote[: commits // 10])


def test_columns_of_every_type_lie_in_pages_as_they_came(kv: KV) -> None:
    kinds: list[tuple[Any, pa.DataType]] = [
        ([1, None, 3], pa.int8()),
        ([1.5, None, float("nan")], pa.float64()),
        ([1, 2, None], pa.float16()),
        ([True, None, False], pa.bool_()),
        ([None, "", "Zürich"], pa.string()),
        ([b"x", None, b""], pa.large_binary()),
        ([Decimal("1.25"), None, Decimal("-3.00")], pa.decimal128(10, 2)),
        ([Decimal("1.25"), None, Decimal("-3.00")], pa.decimal256(50, 2)),
        ([1, None, 2**40], pa.timestamp("us", "UTC")),
        ([1, None, 3], pa.date32()),
        ([b"abc", None, b"def"], pa.binary(3)),
        ([[1, None], None, []], pa.list_(pa.int64())),
        (
            [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
        ([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        ([None, None, None], pa.null()),
    ]
    table = rows((0, "a", 1), (0, "b", 2), (10, None, 3))
    for i, (values, kind) in enumerate(kinds):
        table = table.append_column(f"c{i}", pa.array([None, *values], kind)[1:])
    store = BlockWindows("windows", "aux", ["k"])
    store.replace(kv, [0, 10], table)
    stored = store.read(kv, [0, 10])
    assert stored is not None
    assert stored.schema.equals(table.append_column("__upsert", pa.array([True] * 3)).schema)
    order = [stored["k"].to_pylist().index(k) for k in ("a", "b", None)]
    assert repr(stored.take(order).drop_columns(["__upsert"]).to_pylist()) == repr(table.to_pylist())


def test_the_schema_of_blocks_is_kept_once(kv: KV) -> None:
    store = BlockWindows("windows", "aux")
    for n in range(3):
        store.append(kv, rows((n, "a", n)), upsert=False)
    assert len(list(kv.scan("aux"))) == 1
    assert max(len(value) for _, value in kv.scan("windows")) < 600
    batch = Batch()
    batch.delete_range("aux", b"", b"z")
    kv.write(batch)
    with pytest.raises(CorruptState, match="are here, the schema is not"):
        store.read(kv, [0])


def test_dropping_a_range_of_windows_leaves_the_others(kv: KV) -> None:
    of_blocks, of_pages = (layout("windows", "aux", ["k"]) for layout in (BlockWindows, AllPaged))
    for store in (of_blocks, of_pages):
        store.append(kv, rows((-10, "a", 1), (0, "a", 2), (10, "a", 3)), upsert=True)
        store.drop(kv, -(2**63), 0)
        assert store.starts(kv, -100, 100) == [0, 10]
        store.drop(kv, 0, 2**63 - 1)
        assert store.starts(kv, -100, 100) == []


def test_tuple_windows_are_replaced_and_read_by_key(kv: KV) -> None:
    store = PlainWindows("windows", "aux", ["k"])
    assert store.read_all(kv) is None
    store.put(kv, rows((1, "a", 1), (4, "a", 2), (1, "ab", 3), (1, None, 4)))
    store.put(kv, rows((4, "a", 7)))
    assert plain(store.read_key(kv, encode_key(["a"]), 1, 5)) == [(1, "a", 1), (4, "a", 7)]
    assert plain(store.read_key(kv, encode_key(["a"]), 2, 4)) == []
    asked = rows((1, "ab", 0), (1, None, 0), (9, "a", 0)).select(["__start", "k"])
    assert plain(store.read(kv, asked)) == [(1, "", 4), (1, "ab", 3)]
    wider = rows((1, "b", 2)).set_column(3, "n", pa.array([2.5])).append_column("extra", pa.array(["x"]))
    store.put(kv, wider)
    table = store.read_all(kv)
    assert plain(table) == [(1, "", 4.0), (1, "a", 1.0), (1, "ab", 3.0), (1, "b", 2.5), (4, "a", 7.0)]
    assert table is not None and set(table.column("extra").to_pylist()) == {None, "x"}


def test_a_block_of_a_newer_format_is_refused_and_a_damaged_one_too() -> None:
    value = pack_table(rows((0, "a", 1)))
    assert plain(unpack_table(value)) == [(0, "a", 1)]
    with pytest.raises(NewerFormat, match="upgrade windrow"):
        unpack_table(b"\x09" + value[1:])
    with pytest.raises(CorruptState, match="cannot be read"):
        unpack_table(value[:40])
    kv = MemoryKV(CFS)
    store = BlockWindows("windows", "aux")
    store.append(kv, rows((0, "a", 1)), upsert=False)
    [(key, block)] = kv.scan("windows")
    store.put(kv, store.near(kv, [10], None), rows((10, "a", 1)))
    [(paged, page)] = kv.scan("windows", encode_i64(10))
    for name, value, start in ((key, block, 0), (paged, page, 10)):
        for damaged in (value[:1] + b"\x02" + value[2:], b"\x00" + value[1:], value[:20], value[:60]):
            batch = Batch()
            batch.put("windows", name, damaged)
            kv.write(batch)
            with pytest.raises((NewerFormat, CorruptState), match=r"upgrade windrow|cannot be read"):
                store.read(kv, [start])
    with pytest.raises((NewerFormat, CorruptState), match=r"upgrade windrow|cannot be read"):
        store.near(kv, [10], rows((10, "a", 1)))


def many(n: int) -> pa.Table:
    return rows(*((0, f"key-{i:07d}", i) for i in range(n)))


def test_many_rows_of_windows_that_lie_long_are_narrow_blocks_and_few_are_not() -> None:
    kv, wide = MemoryKV(CFS), MemoryKV(CFS)
    store, n = BlockWindows("windows", "aux", ["k"], narrow=True), delta_blocks.NARROW_FROM
    for table in (many(n), many(n - 1), many(n + 1)):
        for to, layout in ((kv, store), (wide, BlockWindows("windows", "aux", ["k"]))):
            layout.append(to, table, upsert=True)
    assert [value[3] for _, value in kv.scan("windows")] == [Codec.NARROW, Codec.ARROW, Codec.NARROW]
    size, of_wide = (sum(len(value) for _, value in to.scan("windows")) for to in (kv, wide))
    assert size < 0.6 * of_wide
    assert store.read(kv, [0]) == BlockWindows("windows", "aux", ["k"]).read(wide, [0])
    # What they take in memory, and not in the store, says whether a window is taken in slices.
    assert [chunk.shares is None for most in (size, 4 * size) for chunk in store.chunks(kv, [0], most)] == [
        False,
        True,
    ]


@pytest.mark.parametrize("keys", [12, 400])
def test_windows_of_narrow_blocks_are_folded_and_divided_as_others(
    monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    """Few blocks are narrow, and whichever are does not matter."""
    for owner, name, value in (
        (partitioned_windows, "PART_BYTES", 2_048),
        (delta_blocks, "FOLD_LARGE_AT", 8),
    ):
        monkeypatch.setattr(owner, name, value)
    kv, store, chance = MemoryKV(CFS), BlockWindows("windows", "aux", ["k"], narrow=True), Random(keys)
    said, folded = dict[str, int](), list[int]()
    for n in range(120):
        monkeypatch.setattr(delta_blocks, "NARROW_FROM", chance.choice([1, 30]))
        chosen = [f"key-{i:03d}" for i in chance.sample(range(keys), min(keys, chance.randint(1, 40)))]
        said.update({key: said.get(key, 0) + n for key in chosen})
        for start in store.append(kv, rows(*((0, key, n) for key in chosen)), upsert=False):
            folded.append(n)
            store.fold(kv, start, summed)
        assert plain(summed(store.read(kv, [0]))) == sorted((0, key, value) for key, value in said.items())
    kinds = {tuple(value[2:4]) for _, value in kv.scan("windows")}
    both = {(Kind.DIVIDED, codec) for codec in (Codec.ARROW, Codec.NARROW)}
    assert len(folded) > 5 and (both <= kinds) == (keys > 100)


def test_a_narrow_block_of_a_newer_format_is_refused_and_a_damaged_one_too() -> None:
    kv, store = MemoryKV(CFS), BlockWindows("windows", "aux", ["k"], narrow=True)
    store.append(kv, many(delta_blocks.NARROW_FROM), upsert=True)
    [(key, value)] = kv.scan("windows")
    newer = value[:1] + b"\x02" + value[2:], value[:41] + b"\x02" + value[42:]
    other = (
        b"\x00" + value[1:],
        value[:2] + b"\x09" + value[3:],
        value[:2] + bytes((Kind.WAITING,)) + value[3:],
    )
    for damaged in (*newer, *other, value[:20], value[:40], value[:60], value[:-1]):
        batch = Batch()
        batch.put("windows", key, damaged)
        kv.write(batch)
        error = NewerFormat if damaged in newer else CorruptState
        with pytest.raises(error, match=r"upgrade windrow|cannot be read"):
            store.read(kv, [0])


def test_the_block_and_the_progress_of_the_formats_page_are_read_as_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from windrow.operators.steps.progress import Progress

    kv = MemoryKV(CFS)
    store = BlockWindows("windows", "aux")
    row = pa.table({"__start": pa.array([0]), "k": ["a"], "a.n.n": pa.array([2])})
    store.append(kv, row, upsert=False)
    block = examples_of_formats()["window-block"]
    [(key, value)] = kv.scan("windows")
    assert value[:8] + value[16:24] + value[32:40] == block[:8] + block[16:24] + block[32:40]
    batch = Batch()
    batch.put("windows", key, value[:16] + block[16:])  # Arrow may write the schema in other bytes one day
    kv.write(batch)
    assert store.read(kv, [0]) == row.append_column("__upsert", pa.array([False]))
    paged = MemoryKV(CFS)
    two = pa.table({"__start": pa.array([0, 0]), "k": ["a", "b"], "a.n.n": pa.array([2, None], pa.int64())})
    store.replace(paged, [0], two)
    [(key, value)] = paged.scan("windows")
    page = examples_of_formats()["window-page"]
    assert key == encode_i64(0) + b"\xff\xfd" + bytes(6)
    assert value[:8] + value[16:] == page[:8] + page[16:]
    assert store.read(paged, [0]) == two.append_column("__upsert", pa.array([True, True]))
    narrow = pa.table(
        {"__start": [7, 7], "k": ["key-1", "key-2"], "a.n.n": pa.array([300, None], pa.int64())}
    )
    monkeypatch.setattr(page_writer, "NARROW_PAGES", 0)
    schema = examples_of_formats()["window-page-narrow"][8:16]
    batch = Batch()
    assert put_schema(paged, "aux", batch, narrow.schema) == value[8:16]
    [page] = page_writer.Packed(narrow, schema, np.array([0, 2])).pages()
    assert page == examples_of_formats()["window-page-narrow"]
    read = [page[:8] + value[8:16] + page[16:]]
    assert unpack(read, Schemas(paged, "aux")) == [narrow.append_column("__upsert", pa.array([True, True]))]
    monkeypatch.undo()
    beside, wait = MemoryKV(CFS), waiting.WaitingRows("windows", "aux", ("k",), 1)
    for keys, came in (["a"], 3), (["b", "c"], 4):
        ones, steps = ([n] * len(keys) for n in (1, came))
        wait.add(beside, pa.table({"k": keys, "a.n.n": ones, "__ingest_step": steps}), pages=1)
    _, (key, value) = beside.scan("windows")
    block = examples_of_formats()["window-waiting"]
    assert key == encode_i64(1) + b"\xff\xff" + bytes(5) + b"\x02"
    assert value[:24] + value[32:] == block[:24] + block[32:]
    stored = wait.read(beside)
    assert stored is not None and stored.rows.to_pydict() == {
        "k": ["a", "b", "c"],
        "a.n.n": [1, 1, 1],
        "__ingest_step": [3, 4, 4],
    }
    parts = [
        partitioned_windows.Part(0, 2, 4, 300_000, 4_100),
        partitioned_windows.Part(0x4000, 0x4000 << 48, (0x4000 << 48) + 1, 280_000, 0),
    ]
    since = 0xFFFF << 48 | 3
    assert (
        partitioned_windows.Directory(7, 10, since, -200_000, parts).pack()
        == examples_of_formats()["window-directory"]
    )
    written: list[bytes] = []
    progress = Progress(3, 1_000_000, -5, {0, 10_000_000}, -10_000_000, None)
    progress.save(lambda key, value: written.append(value))
    assert written == [examples_of_formats()["window-progress"]]
    kv = MemoryKV(("aux",))
    kv_batch = Batch()
    kv_batch.put("aux", b"\x00progress", examples_of_formats()["window-progress"])
    kv.write(kv_batch)
    assert Progress.load(kv, "aux") == progress
