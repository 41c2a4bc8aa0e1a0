"""Pages that a store was given last are at hand: the very values, and never others than it holds."""

from __future__ import annotations

import random
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from windrow.core.byte_order import encode_i64
from windrow.core.errors import CorruptState, StateError
from windrow.stores import page_cache
from windrow.stores.block_format import PAGES, SINCE, key_of
from windrow.stores.kv import Batch, MemoryKV
from windrow.stores.page_cache import RecentKV
from windrow.stores.page_format import among
from windrow.stores.page_store import Pages
from windrow.stores.rocks import RocksKV
from windrow.stores.window_state import START, UPSERT, Near

CF, CFS = "a.windows", ("a.windows", "a.aux")


@pytest.fixture
def kv(tmp_path: Path) -> Iterator[RecentKV]:
    with RecentKV(tmp_path / "db", CFS) as opened:
        yield opened


def page(number: int, window: int = 0) -> bytes:
    return key_of(encode_i64(window), PAGES | number)


def put(kv: RocksKV | MemoryKV, *pairs: tuple[bytes, bytes], cf: str = CF) -> None:
    batch = Batch()
    batch.put_many(cf, [key for key, _ in pairs], [value for _, value in pairs])
    kv.write(batch)


def test_a_page_that_was_written_is_the_very_value(kv: RecentKV) -> None:
    value = b"v" * 5_000
    put(kv, (page(0), value), (key_of(encode_i64(0), SINCE + 1), value))
    pages = kv.multi_get(CF, [page(0), page(1), key_of(encode_i64(0), SINCE + 1)])
    assert pages == [value, None, value]
    assert pages[0] is value and pages[2] is not value
    assert kv.nbytes == len(value)


def test_what_is_at_hand_is_what_the_store_holds(kv: RecentKV) -> None:
    """Puts, deletes and deleted ranges in any order, of two windows, with keys beside the pages."""
    chance, like, sizes = random.Random(7), MemoryKV(CFS), [0, 1, 40, 3_000]
    keys = [page(number, window) for window in (-3, 4) for number in range(6)]
    keys += [key_of(encode_i64(window), SINCE + 1) for window in (-3, 4)]
    bounds = sorted([*keys, *(encode_i64(window) for window in (-4, -3, 0, 4, 5))])
    for _ in range(400):
        batch = Batch()
        for _ in range(chance.randrange(1, 5)):
            what, key = chance.randrange(4), chance.choice(keys)
            if what < 2:
                batch.put(CF, key, chance.randbytes(chance.choice(sizes)))
            elif what == 2:
                batch.delete(CF, key)
            else:
                batch.delete_range(CF, *sorted(chance.sample(bounds, 2)))
        kv.write(batch)
        like.write(batch)
        assert kv.multi_get(CF, keys) == like.multi_get(CF, keys)
        assert kv.nbytes == sum(len(value) for key, value in like.scan(CF) if key[8:10] == b"\xff\xfd")


def test_nothing_is_at_hand_after_a_write_that_failed(kv: RecentKV, monkeypatch: pytest.MonkeyPatch) -> None:
    put(kv, (page(0), b"one"))
    monkeypatch.setattr(RocksKV, "write", lambda self, batch: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        put(kv, (page(0), b"two"))
    assert kv.nbytes == 0
    assert kv.multi_get(CF, [page(0)]) == [b"one"]


def test_a_process_has_so_many_bytes_of_all_its_stores(
    kv: RecentKV, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "RECENT_BYTES", 1_000)
    monkeypatch.setattr(page_cache, "_STORES", weakref.WeakSet([kv]))
    put(kv, (page(0), b"a" * 600))
    with RecentKV(tmp_path / "other", CFS) as other:
        put(other, (page(0), b"b" * 300))
        assert (kv.nbytes, other.nbytes) == (600, 300)
        put(other, (page(1), b"b" * 300))
        assert (kv.nbytes, other.nbytes) == (0, 600)
        put(other, (page(2), b"b" * 500))
        assert other.nbytes == 0
        assert other.multi_get(CF, [page(2), page(0)]) == [b"b" * 500, b"b" * 300]
    assert kv.multi_get(CF, [page(0)]) == [b"a" * 600]


def test_a_store_with_more_pages_than_may_be_at_hand_begins_again_with_those_of_its_next_write(
    kv: RecentKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "RECENT_BYTES", 1_000)
    monkeypatch.setattr(page_cache, "_STORES", weakref.WeakSet([kv]))
    at_hand = []
    for number in range(9):
        put(kv, (page(number), bytes([number]) * 300))
        at_hand.append(kv.nbytes)
        assert kv.multi_get(CF, [page(n) for n in range(9)]) == [
            bytes([n]) * 300 if n <= number else None for n in range(9)
        ]
    assert at_hand == [300, 600, 900, 0, 300, 600, 900, 0, 300]


#: Twenty pages that each write replaces, and beside them the number of that write.
WRITER = """
import os, resource, signal, sys
from tests.stores.test_page_cache import CF, CFS, page
from windrow.core.errors import DiskFailed
from windrow.stores.kv import Batch
from windrow.stores.page_cache import RecentKV
from windrow.stores.rocks import RocksKV
kv, keys, failed, n = RecentKV(sys.argv[1], CFS), [page(number) for number in range(20)], [], 0
if sys.argv[2] == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
while n < 20 or sys.argv[2] == "killed":
    n += 1
    batch = Batch()
    batch.put_many(CF, keys, [n.to_bytes(4, "big") + os.urandom(50_000) for _ in keys])
    batch.put("a.aux", b"n", n.to_bytes(4, "big"))
    try:
        kv.write(batch)
    except DiskFailed:
        failed.append(n)
        assert kv.nbytes == 0
    assert kv.multi_get(CF, keys) == RocksKV.multi_get(kv, CF, keys)
    print(n, flush=True)
print(len(failed), "failed", flush=True)
os._exit(0 if failed else 1)
"""


def written(folder: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), how]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)


def test_on_a_full_disk_writes_fail_and_what_is_read_is_what_the_store_holds(tmp_path: Path) -> None:
    """No file may be longer than 300 kB, so nothing of the pages can be flushed."""
    with written(tmp_path / "db", "full") as child:
        assert child.stdout is not None
        said = child.stdout.read()
    assert child.returncode == 0 and int(said.splitlines()[-1].split()[0]) > 5, said
    try:
        with RecentKV(tmp_path / "db", CFS) as kv:
            assert kv.multi_get(CF, [page(n) for n in range(20)]) == [None] * 20
    except CorruptState:
        pass  # left without its head: it is built anew


@pytest.mark.parametrize("writes", [1, 14, 30])
def test_a_process_that_is_killed_between_writes_leaves_pages_of_one_of_them(
    writes: int, tmp_path: Path
) -> None:
    with written(tmp_path / "db", "killed") as child:
        assert child.stdout is not None
        for _ in range(writes):
            child.stdout.readline()
        child.kill()
    with RecentKV(tmp_path / "db", CFS) as kv:
        assert kv.nbytes == 0
        [marked] = kv.multi_get("a.aux", [b"n"])
        kept = {
            None if value is None else value[:4] for value in kv.multi_get(CF, [page(n) for n in range(20)])
        }
        assert kept == {marked}
        put(kv, (page(0), b"new"))
        assert kv.multi_get(CF, [page(0)]) == [b"new"]


def test_a_store_that_is_closed_has_nothing_at_hand(tmp_path: Path) -> None:
    with RecentKV(tmp_path / "db", CFS) as kv:
        put(kv, (page(0), b"one"))
    assert kv.nbytes == 0
    with pytest.raises((StateError, KeyError)):
        kv.multi_get(CF, [page(0)])


# -- rows of pages that were written last -----------------------------------------------------------------------------


def rows(keys: range, step: int) -> pa.Table:
    n = len(keys)
    columns = {
        START: np.zeros(n, dtype=np.int64),
        "k": [f"key-{key}" for key in keys],
        "v": [None if key % 7 == step else step * key for key in keys],
    }
    return pa.table(columns)


def test_rows_of_pages_are_the_same_in_the_same_order_whether_they_are_remembered(kv: RecentKV) -> None:
    """All pages, one page in two, or few are cached, against a reader that has not written anything."""
    cached, other = (Pages(CF, "a.aux", ["k"], 4, remembers=remembers) for remembers in (True, False))

    def both(keys: range) -> Near:
        asked = rows(keys, 0).select([START, "k"])
        actual, like = (pages.near(kv, [0], asked, lambda kv, prefix: []) for pages in (cached, other))
        assert actual.rows is not None and like.rows is not None
        assert actual.rows.to_pylist() == like.rows.to_pylist()
        return actual

    cached.replace(kv, [0], rows(range(2_000), 1))
    cached.release()
    assert len(both(range(2_000)).rows) == 2_000
    for chosen, step in ((range(40), 2), (range(1_000), 3), (range(500, 520), 4), (range(2_000), 5)):
        near = both(chosen)
        kept = near.rows.drop_columns([UPSERT])
        held = kept.filter(
            pa.array([key not in {f"key-{i}" for i in chosen} for key in kept["k"].to_pylist()])
        )
        cached.put(kv, near, pa.concat_tables([held, rows(chosen, step).cast(held.schema)]))
        cached.release()
        near = both(range(2_000))
        actual = dict(zip(*(near.rows[name].to_pylist() for name in ("k", "v")), strict=True))
        assert len(actual) == len(near.rows) == 2_000
        assert all(actual[f"key-{i}"] == (None if i % 7 == step else step * i) for i in chosen)
        both(range(100, 130))


def test_numbers_are_found_among_others() -> None:
    chance = np.random.default_rng(3)
    numbers = chance.integers(0, 1 << 63, 1_000).astype(np.uint64)
    for others in (numbers[::3], numbers[:0], numbers, numbers[:1]):
        assert (among(numbers, others) == np.isin(numbers, others)).all()
    assert len(among(numbers[:0], numbers)) == 0
