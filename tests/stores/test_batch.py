"""Batches keep their net effect, and the maps under them keep order, whatever happens to them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.counting import CountingKV
from windrow.core.errors import CorruptState
from windrow.stores.kv import KV, Batch, MemoryKV, Overlay
from windrow.stores.mapped_run import Pairs
from windrow.stores.page_store import put_pairs
from windrow.stores.sorted_map import RangeSet, SortedMap
from windrow.stores.spilling_overlay import Spilling

KEYS = st.binary(max_size=2).map(lambda b: bytes(x % 4 for x in b))
OPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from("ab"), KEYS, st.binary(max_size=1)),
    st.tuples(st.just("delete"), st.sampled_from("ab"), KEYS),
    st.tuples(st.just("delete_range"), st.sampled_from("ab"), KEYS, KEYS),
)


def batch_of(ops: list[tuple[Any, ...]]) -> Batch:
    batch = Batch()
    for kind, *args in ops:
        getattr(batch, kind)(*args)
    return batch


@given(st.lists(OPS, max_size=12))
def test_a_batch_comes_back_from_its_bytes(ops: list[tuple[Any, ...]]) -> None:
    batch = batch_of(ops)
    back = Batch.decode(batch.encode())
    assert back == batch
    assert list(back.ops) == list(batch.ops)
    assert back.encode() == batch.encode()
    assert len(back) == len(batch) == len(list(batch.ops))


@given(st.lists(OPS, max_size=12), st.integers(0, 12))
def test_extending_is_the_one_batch_after_the_other(ops: list[tuple[Any, ...]], cut: int) -> None:
    both = batch_of(ops[:cut])
    both.extend(batch_of(ops[cut:]))
    assert both == batch_of(ops)


@given(st.lists(OPS, max_size=12))
def test_net_changes_applied_in_order_are_the_batch(ops: list[tuple[Any, ...]]) -> None:
    batch = batch_of(ops)
    assert batch_of([op if op[0] != "delete" else op[:3] for op in batch.ops]) == batch


def test_a_range_forgets_the_puts_that_it_covers() -> None:
    batch = batch_of([("put", "a", b"k", b"1"), ("delete_range", "a", b"k", b"l"), ("put", "a", b"kk", b"2")])
    assert list(batch.ops) == [("delete_range", "a", b"k", b"l"), ("put", "a", b"kk", b"2")]


def test_a_batch_holds_no_empty_range() -> None:
    batch = batch_of([("delete_range", "a", b"k", b"k"), ("delete_range", "a", b"k", b"j")])
    assert len(batch) == 0
    assert batch == Batch()
    assert batch.encode() == Batch().encode()


def test_bulk_changes_are_the_single_ones() -> None:
    one, many = Batch(), Batch()
    for key in (b"a", b"b"):
        one.put("a", key, b"v" + key)
    one.delete("a", b"c")
    many.put_many("a", [b"a", b"b"], [b"va", b"vb"])
    many.delete_many("a", [b"c"])
    assert one == many
    assert one.cfs == ("a",)
    with pytest.raises(ValueError, match="shorter"):
        many.put_many("a", [b"a", b"b"], [b"v"])


def test_only_takes_the_named_column_families() -> None:
    batch = batch_of([("put", "a", b"k", b"1"), ("put", "b", b"k", b"2"), ("delete_range", "c", b"b", b"a")])
    assert batch.cfs == ("a", "b")
    assert list(batch.only(["b", "x"]).ops) == [("put", "b", b"k", b"2")]
    batch.clear()
    assert len(batch) == 0
    assert not batch.cfs


def test_batches_differ_by_what_they_do() -> None:
    assert batch_of([("put", "a", b"k", b"")]) != batch_of([("delete", "a", b"k")])
    assert batch_of([("put", "a", b"k", b"")]) != batch_of([("put", "b", b"k", b"")])
    assert batch_of([("delete_range", "a", b"", b"k")]) != Batch()
    assert Batch() != 0
    assert repr(batch_of([("delete_range", "a", b"", b"k")])) == "<Batch a: 0 points, 1 ranges>"


@pytest.mark.parametrize("data", ["", "91", "9191", "90ff", "919561909091a0", "01", "91956190909091a0"])
def test_bytes_that_are_no_batch_are_refused(data: str) -> None:
    with pytest.raises(CorruptState, match=r"a batch of \d+ bytes cannot be read"):
        Batch.decode(bytes.fromhex(data))


# -- overlay -------------------------------------------------------------------------------------------------


def test_an_overlay_leaves_its_base_alone_until_its_batch_is_written() -> None:
    base = MemoryKV(["a"])
    base.write(batch_of([("put", "a", b"1", b"base"), ("put", "a", b"2", b"base")]))
    overlay = Overlay(base)
    overlay.put("a", b"3", b"new")
    overlay.delete("a", b"1")
    overlay.batch.put("a", b"4", b"direct")
    overlay.delete_range("a", b"2", b"3")
    assert list(overlay.scan("a")) == [(b"3", b"new"), (b"4", b"direct")]
    assert [key for key, _ in base.scan("a")] == [b"1", b"2"]
    base.write(overlay.batch)
    assert list(base.scan("a")) == [(b"3", b"new"), (b"4", b"direct")]
    overlay.close()
    assert len(overlay.batch) == 0
    assert overlay.get("a", b"3") == b"new"


@pytest.mark.parametrize("reverse", [False, True])
def test_an_overlay_does_not_read_the_rows_of_deleted_ranges(reverse: bool) -> None:
    base = CountingKV(["a"])
    batch = Batch()
    batch.put_many("a", [bytes([i]) for i in range(250)], [b""] * 250)
    base.write(batch)
    overlay = Overlay(base)
    overlay.delete_range("a", b"", bytes([100]))
    overlay.delete_range("a", bytes([120]), bytes([240]))
    overlay.put("a", bytes([150]), b"")
    assert len(list(overlay.scan("a", reverse=reverse))) == 31
    assert base.scanned["a"] == 30


# -- sorted map and ranges -----------------------------------------------------------------------------------

MAP_OPS = st.one_of(
    st.tuples(st.just("set"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("update"), st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=20)),
    st.tuples(st.just("remove"), st.lists(KEYS, max_size=20)),
    st.tuples(st.just("remove_range"), KEYS, KEYS),
    st.tuples(st.just("open"), st.booleans(), st.integers(0, 5)),
)


@given(st.lists(MAP_OPS, max_size=20))
def test_a_sorted_map_is_a_dict_in_order_and_its_scans_are_snapshots(ops: list[tuple[Any, ...]]) -> None:
    tested: SortedMap[int] = SortedMap()
    model: dict[bytes, int] = {}
    scans = []
    for kind, *args in ops:
        if kind == "open":
            reverse, taken = args
            expected = sorted(model.items(), reverse=reverse)
            scan = tested.scan(reverse=reverse)
            scans.append((expected, list(itertools.islice(scan, taken)), scan))
            continue
        getattr(tested, kind)(*args)
        if kind == "set":
            model[args[0]] = args[1]
        elif kind == "update":
            model.update(args[0])
        elif kind == "remove":
            for key in args[0]:
                model.pop(key, None)
        else:
            for key in [key for key in model if args[0] <= key < args[1]]:
                del model[key]
        if len(ops) % 2:  # else order is made only at the end, out of many changes
            assert list(tested.scan()) == sorted(model.items())
    assert list(tested.scan()) == sorted(model.items())
    assert len(tested) == len(model)
    for expected, head, scan in scans:
        assert head + list(scan) == expected


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        ("set", b"e", 0),
        ("set", b"ee", 0),
        ("update", [(b"e", 0), (b"ee", 0)]),
        ("remove", [b"e"]),
        ("remove", [bytes([letter]) for letter in b"bcdefghijkl"]),
        ("remove_range", b"c", b"h"),
    ],
)
def test_no_change_reaches_an_open_scan(change: tuple[Any, ...], reverse: bool) -> None:
    letters = [bytes([letter]) for letter in b"abcdefghijklm"]
    for taken in range(len(letters) + 1):
        tested: SortedMap[int] = SortedMap()
        tested.update((letter, number) for number, letter in enumerate(letters))
        expected = sorted(((letter, number) for number, letter in enumerate(letters)), reverse=reverse)
        scan = tested.scan(reverse=reverse)
        head = list(itertools.islice(scan, taken))
        getattr(tested, change[0])(*change[1:])
        assert head + list(scan) == expected
        assert list(tested.scan()) == sorted(tested.data.items()) != sorted(expected)


@given(st.lists(st.tuples(KEYS, KEYS).filter(lambda r: r[0] < r[1]), max_size=8), KEYS, st.none() | KEYS)
def test_ranges_are_merged_and_their_gaps_are_the_rest(
    ranges: list[tuple[bytes, bytes]], start: bytes, end: bytes | None
) -> None:
    tested = RangeSet()
    for low, high in ranges:
        tested.add(low, high)
    merged = list(tested)
    assert len(tested) == len(merged)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(merged))
    gaps = list(tested.gaps(start, end))
    for key in [bytes(t) for n in range(4) for t in itertools.product(range(4), repeat=n)]:
        covered = any(low <= key < high for low, high in ranges)
        assert (key in tested) == covered
        wanted = key >= start and (end is None or key < end) and not covered
        assert any(low <= key and (high is None or key < high) for low, high in gaps) == wanted


# -- runs -----------------------------------------------------------------------------------------------------------

WIDE = st.binary(min_size=2, max_size=2).map(lambda b: bytes(x % 4 for x in b))
MORE = st.one_of(
    OPS,
    st.tuples(
        st.just("put_run"), st.sampled_from("ab"), st.dictionaries(WIDE, st.binary(max_size=2), max_size=5)
    ),
)


def with_runs(ops: list[tuple[Any, ...]], *, runs: bool) -> Batch:
    """Their batch; or that of the puts that runs stand for."""
    batch = Batch()
    for kind, cf, *args in ops:
        if kind != "put_run":
            getattr(batch, kind)(cf, *args)
        elif not runs:
            batch.put_many(cf, args[0].keys(), args[0].values())
        else:
            pairs = Pairs()
            pairs.add(list(args[0]), list(args[0].values()))
            if (run := pairs.run()) is not None:
                batch.put_run(cf, run)
    return batch


@given(st.lists(MORE, max_size=10), st.integers(0, 10), st.lists(OPS, max_size=10), st.integers(1, 12))
def test_pairs_that_wait_in_a_file_are_put_as_others_are(
    ops: list[tuple[Any, ...]], cut: int, before: list[tuple[Any, ...]], most: int
) -> None:
    batch, wanted = (with_runs(ops, runs=runs) for runs in (True, False))
    extended = with_runs(ops[:cut], runs=True)
    extended.extend(with_runs(ops[cut:], runs=True))
    assert batch == wanted == extended == Batch.decode(batch.encode())
    assert batch_of([op if op[0] != "delete" else op[:3] for op in batch.ops]) == wanted
    seen = []
    for one in (batch, wanted):
        base = MemoryKV("ab")
        base.write(batch_of(before))
        overlay = Overlay(base)
        overlay.write(one)
        seen.append(everything(overlay))
        for part in one.parts(most):
            base.write(part)
        assert everything(base) == seen[-1]
    assert seen[0] == seen[1]


class Spilled(Spilling):
    """Has what does not fit memory in memory, too."""

    def _store(self) -> KV:
        return MemoryKV(self.cfs)


@given(st.lists(MORE, max_size=10), st.integers(0, 10), st.lists(OPS, max_size=6))
def test_pairs_that_wait_in_a_file_spill_with_the_others(
    ops: list[tuple[Any, ...]], cut: int, before: list[tuple[Any, ...]]
) -> None:
    seen = []
    for runs in (True, False):
        base = MemoryKV("ab")
        base.write(batch_of(before))
        overlay = Spilled(base, "nowhere")
        overlay.write(with_runs(ops[:cut], runs=runs))
        overlay._spill()
        overlay.write(with_runs(ops[cut:], runs=runs))
        seen.append(everything(overlay))
        for part in overlay.changes.parts(5):
            base.write(part)
        assert everything(base) == seen[-1]
    assert seen[0] == seen[1]


def everything(kv: Any) -> list[Any]:
    """Ask a store every question."""
    keys = [bytes((a, b)) for a in range(4) for b in range(4)]
    pairs: list[Any] = []
    for cf in "ab":
        pairs += [kv.multi_get(cf, keys), [kv.get(cf, key) for key in keys]]
        for low, high in ((b"", None), (b"\x01", b"\x02\x02"), (b"\x01\x01", b"\x03")):
            pairs += [list(kv.scan(cf, low, high)), list(kv.scan(cf, low, high, True))]
    return pairs


def test_a_scan_sees_the_runs_that_were_there_when_it_began() -> None:
    overlay = Overlay(MemoryKV("a"))
    overlay.write(with_runs([("put_run", "a", {b"ka": b"1", b"kb": b"2", b"kc": b"3"})], runs=True))
    scan = overlay.scan("a")
    assert next(scan) == (b"ka", b"1")
    overlay.delete_range("a", b"k", b"l")
    overlay.put("a", b"kb", b"4")
    assert list(scan) == [(b"kb", b"2"), (b"kc", b"3")]
    assert list(overlay.scan("a")) == [(b"kb", b"4")]


def test_large_values_of_the_same_windows_stay_in_their_files_however_many_slices_write_them() -> None:
    kv = Overlay(MemoryKV(("a",)))
    for number in range(3):
        keys = [bytes((window,)) * 8 + number.to_bytes(8, "big") for window in range(4)]
        put_pairs(kv, Batch(), "a", keys, [b"x" * 1_000] * 4, 10)
    assert kv.batch.held_bytes == 0
    assert [key for key, _ in kv.scan("a")] == sorted(
        bytes((window,)) * 8 + number.to_bytes(8, "big") for window in range(4) for number in range(3)
    )
