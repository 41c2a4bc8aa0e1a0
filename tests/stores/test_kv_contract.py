"""Contract of every key-value store, run over every kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.deep import usually
from windrow.stores.kv import KV, Batch, Overlay, scan_ranges

CFS = ("data", "meta", "other")


def batch_of(*ops: tuple[Any, ...]) -> Batch:
    batch = Batch()
    for kind, *args in ops:
        getattr(batch, kind)(*args)
    return batch


def rows(kv: KV, cf: str = "data", *args: Any, **options: Any) -> list[tuple[bytes, bytes]]:
    return list(kv.scan(cf, *args, **options))


def filled(kv: KV, keys: Sequence[bytes] = (b"a", b"b", b"c", b"d")) -> KV:
    """The store with rows; those of an overlay lie below it, so that what follows changes what it reads."""
    (kv.base if isinstance(kv, Overlay) else kv).write(
        batch_of(*(("put", "data", key, b"v" + key) for key in keys))
    )
    return kv


def test_it_is_a_kv(kv: KV) -> None:
    assert isinstance(kv, KV)
    assert kv.cfs == CFS


def test_what_was_put_is_read(kv: KV) -> None:
    filled(kv)
    assert kv.get("data", b"b") == b"vb"
    assert kv.get("data", b"bb") is None
    assert kv.multi_get("data", [b"d", b"x", b"a", b"a"]) == [b"vd", None, b"va", b"va"]
    assert kv.multi_get("data", []) == []


def test_an_empty_value_is_not_an_absent_one(kv: KV) -> None:
    kv.write(batch_of(("put", "data", b"k", b"")))
    assert kv.get("data", b"k") == b""
    assert kv.multi_get("data", [b"k", b"l"]) == [b"", None]
    assert rows(kv) == [(b"k", b"")]


def test_an_empty_key_is_a_key(kv: KV) -> None:
    kv.write(batch_of(("put", "data", b"", b"v")))
    assert kv.get("data", b"") == b"v"
    assert rows(kv, "data", b"", b"\x00") == [(b"", b"v")]


def test_column_families_are_apart(kv: KV) -> None:
    kv.write(batch_of(("put", "data", b"k", b"1"), ("put", "meta", b"k", b"2")))
    kv.write(batch_of(("delete_range", "data", b"", b"\xff")))
    assert kv.get("data", b"k") is None
    assert kv.get("meta", b"k") == b"2"
    assert rows(kv, "other") == []


def test_a_scan_is_half_open_and_in_byte_order(kv: KV) -> None:
    filled(kv, [b"\xff", b"b", b"a\x00", b"a", b"B"])
    assert [key for key, _ in rows(kv)] == [b"B", b"a", b"a\x00", b"b", b"\xff"]
    assert [key for key, _ in rows(kv, "data", b"a", b"b")] == [b"a", b"a\x00"]
    assert [key for key, _ in rows(kv, "data", b"a\x00")] == [b"a\x00", b"b", b"\xff"]
    assert [key for key, _ in rows(kv, "data", end=b"a")] == [b"B"]


KEYS = st.binary(min_size=1, max_size=1).map(lambda key: bytes((97 + key[0] % 6,)))


@given(
    below=st.sets(KEYS, max_size=8),
    changes=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.just("data"), KEYS, st.just(b"new")),
            st.tuples(st.just("delete"), st.just("data"), KEYS),
            st.tuples(st.just("delete_range"), st.just("data"), KEYS, KEYS),
        ),
        max_size=5,
    ),
    edges=st.sets(KEYS, max_size=8),
)
@settings(
    max_examples=usually(8, deep=15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_many_ranges_are_read_as_scans_of_each(
    make_kv: Callable[[], KV], below: set[bytes], changes: list[tuple[Any, ...]], edges: set[bytes]
) -> None:
    kv, cuts = filled(make_kv(), sorted(below)), sorted(edges)
    kv.write(batch_of(*changes))
    ranges = list(zip(cuts[::2], cuts[1::2], strict=False))
    assert scan_ranges(kv, "data", ranges) == [pair for a, b in ranges for pair in rows(kv, "data", a, b)]
    assert scan_ranges(kv, "data", [(b"", b"\xff\xff\xff")]) == rows(kv)


def test_a_scan_backwards_is_the_scan_turned_round(kv: KV) -> None:
    filled(kv, [b"a", b"b", b"c", b"d", b"\xff\xff"])
    for start, end in itertools.product(
        [b"", b"a", b"b", b"bb", b"z"], [None, b"", b"a", b"c", b"cc", b"\xff"]
    ):
        assert rows(kv, "data", start, end, reverse=True) == rows(kv, "data", start, end)[::-1]


def test_an_empty_or_reversed_range_has_no_rows(kv: KV) -> None:
    filled(kv)
    assert rows(kv, "data", b"c", b"c") == rows(kv, "data", b"c", b"b") == []
    assert rows(kv, "data", b"c", b"b", reverse=True) == []


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_sees_the_store_as_of_its_call(make_kv: Callable[[], KV], reverse: bool) -> None:
    for taken in range(5):
        kv = filled(make_kv())
        before = rows(kv, "data", reverse=reverse)
        scan = kv.scan("data", reverse=reverse)
        seen = list(itertools.islice(scan, taken))
        kv.write(
            batch_of(("put", "data", b"b", b"new"), ("put", "data", b"bb", b"x"), ("delete", "data", b"c"))
        )
        kv.write(batch_of(("delete_range", "data", b"a", b"b"), ("put", "data", b"zz", b"x")))
        assert seen + list(scan) == before
        assert [key for key, _ in rows(kv)] == [b"b", b"bb", b"d", b"zz"]


def test_the_later_of_two_changes_in_a_batch_wins(kv: KV) -> None:
    filled(kv)
    kv.write(
        batch_of(
            ("put", "data", b"a", b"1"),
            ("delete", "data", b"a"),
            ("delete", "data", b"b"),
            ("put", "data", b"b", b"2"),
            ("put", "data", b"cc", b"gone"),
            ("delete_range", "data", b"c", b"e"),
            ("put", "data", b"d", b"back"),
        )
    )
    assert rows(kv) == [(b"b", b"2"), (b"d", b"back")]


def test_a_deleted_range_is_half_open(kv: KV) -> None:
    filled(kv)
    kv.write(batch_of(("delete_range", "data", b"b", b"d")))
    assert rows(kv) == [(b"a", b"va"), (b"d", b"vd")]
    assert kv.multi_get("data", [b"b", b"c", b"d"]) == [None, None, b"vd"]
    assert kv.get("data", b"c") is None


@pytest.mark.parametrize("reverse", [False, True])
def test_changes_before_between_on_and_after_the_rows_are_merged_in_order(kv: KV, reverse: bool) -> None:
    filled(kv, [b"b", b"d", b"f", b"h", b"j", b"l"])
    kv.write(
        batch_of(
            ("delete", "data", b"a"),
            ("put", "data", b"aa", b"first"),
            ("put", "data", b"b", b"over"),
            ("delete", "data", b"c"),
            ("delete_range", "data", b"d", b"e"),
            ("delete", "data", b"f"),
            ("put", "data", b"g", b"between"),
            ("delete_range", "data", b"i", b"k"),
            ("delete", "data", b"m"),
            ("put", "data", b"n", b"last"),
            ("delete", "data", b"o"),
        )
    )
    wanted = [
        (b"aa", b"first"),
        (b"b", b"over"),
        (b"g", b"between"),
        (b"h", b"vh"),
        (b"l", b"vl"),
        (b"n", b"last"),
    ]
    assert rows(kv, reverse=reverse) == (wanted[::-1] if reverse else wanted)
    for key in (b"a", b"c", b"d", b"f", b"j", b"m"):
        assert kv.get("data", key) is None
        assert kv.multi_get("data", [key, b"h"]) == [None, b"vh"]


def test_an_empty_or_reversed_deleted_range_deletes_nothing(kv: KV) -> None:
    filled(kv)
    kv.write(batch_of(("delete_range", "data", b"b", b"b"), ("delete_range", "data", b"d", b"a")))
    assert len(rows(kv)) == 4


def test_deleting_what_is_not_there_is_nothing(kv: KV) -> None:
    kv.write(batch_of(("delete", "data", b"x"), ("delete_range", "data", b"a", b"z")))
    kv.write(Batch())
    assert rows(kv) == []


def test_an_unknown_column_family_is_refused_and_nothing_is_written(kv: KV) -> None:
    for ask in (lambda: kv.get("no", b""), lambda: kv.multi_get("no", [b""]), lambda: list(kv.scan("no"))):
        with pytest.raises(KeyError):
            ask()
    with pytest.raises(KeyError):
        kv.write(batch_of(("put", "data", b"k", b"v"), ("put", "no", b"k", b"v")))
    with pytest.raises(KeyError):
        kv.write(batch_of(("put", "no", b"k", b"v"), ("put", "data", b"k", b"v")))
    assert rows(kv) == []


def test_writing_does_not_keep_hold_of_the_batch(kv: KV) -> None:
    batch = batch_of(("put", "data", b"a", b"1"))
    kv.write(batch)
    batch.put("data", b"b", b"2")
    assert rows(kv) == [(b"a", b"1")]


KEYS = st.binary(max_size=3) | st.sampled_from([b"", b"a", b"b", b"c", b"\xff", b"\xff\xff"])
OPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(CFS), KEYS, st.binary(max_size=2)),
    st.tuples(st.just("delete"), st.sampled_from(CFS), KEYS),
    st.tuples(st.just("delete_range"), st.sampled_from(CFS), KEYS, KEYS),
)
Model = dict[str, dict[bytes, bytes]]


def apply(model: Model, op: tuple[Any, ...]) -> None:
    kind, cf, key, *rest = op
    if kind == "put":
        model[cf][key] = rest[0]
    elif kind == "delete":
        model[cf].pop(key, None)
    else:
        for covered in [k for k in model[cf] if key <= k < rest[0]]:
            del model[cf][covered]


@settings(
    max_examples=usually(30, deep=60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    batches=st.lists(st.lists(OPS, max_size=8), max_size=6),
    bounds=st.lists(st.tuples(KEYS, st.none() | KEYS), min_size=1, max_size=4),
    below=st.integers(0, 6),
)
def test_any_batches_leave_what_they_leave_in_a_dict(
    make_kv: Callable[[], KV],
    batches: list[list[tuple[Any, ...]]],
    bounds: list[tuple[bytes, bytes | None]],
    below: int,
) -> None:
    kv = make_kv()
    model: Model = {cf: {} for cf in CFS}
    for number, ops in enumerate(batches):
        # for overlays, the first batches go below
        target = kv.base if isinstance(kv, Overlay) and number < below else kv
        target.write(batch_of(*ops))
        for op in ops:
            apply(model, op)
        for cf, (start, end) in itertools.product(CFS, bounds):
            wanted = sorted((k, v) for k, v in model[cf].items() if k >= start and (end is None or k < end))
            assert rows(kv, cf, start, end) == wanted
            assert rows(kv, cf, start, end, reverse=True) == wanted[::-1]
            asked = [start, end or b"", *model[cf]]
            assert kv.multi_get(cf, asked) == [model[cf].get(key) for key in asked]
            assert kv.get(cf, start) == model[cf].get(start)
