"""Keys sort as their values do, come back as they were, and never run into each other."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from windrow.core import byte_order as bo
from windrow.core import keys as k
from windrow.core import message_keys as mk
from windrow.core.errors import CorruptState, TypeClash

I64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
UTC_TIMES = st.datetimes(timezones=st.just(dt.UTC))
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
ORDERED: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int": st.integers() | I64 | st.integers(-(2**200), 2**200),
    "float": FLOATS,
    "decimal": DECIMALS,
    "str": st.text() | st.text("\x00\x01a", max_size=4),
    "bytes": st.binary() | st.binary(max_size=3).map(lambda b: b.replace(b"b", b"\x00")),
    "date": st.dates(),
    "datetime": st.datetimes(),
    "utc datetime": UTC_TIMES,
}
FIELD = st.one_of(st.none(), *ORDERED.values())


def order(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("kind", ORDERED)
def test_fields_sort_as_their_values_do(kind: str) -> None:
    @given(ORDERED[kind], ORDERED[kind])
    def check(a: Any, b: Any) -> None:
        one, two = k.encode_key([a]), k.encode_key([b])
        assert (one < two) == (order(a) < order(b))
        assert (one == two) == (a == b)
        assert k.encode_key([None]) < one

    check()


@given(st.lists(FIELD, max_size=4))
def test_keys_round_trip(values: list[Any]) -> None:
    back = k.decode_key(k.encode_key(values))
    assert back == tuple(values)
    assert [type(value) for value in back] == [type(value) for value in values]


@given(st.lists(st.tuples(st.text("\x00a", max_size=3), I64, st.binary(max_size=2)), min_size=2, max_size=2))
def test_tuples_sort_as_tuples_do(pair: list[tuple[str, int, bytes]]) -> None:
    a, b = pair
    assert (k.encode_key(a) < k.encode_key(b)) == (a < b)


@given(st.lists(FIELD, max_size=3), st.lists(FIELD, max_size=3))
def test_no_key_begins_with_another_key_of_as_many_fields(a: list[Any], b: list[Any]) -> None:
    one, two = k.encode_key(a), k.encode_key(b)
    if len(a) == len(b) and a != b:
        assert not two.startswith(one)
    assert one + two == k.encode_key(a + b)


def test_a_key_and_a_longer_one_stay_apart() -> None:
    key, key2 = k.encode_key([b"key"]), k.encode_key([b"key2"])
    assert not key <= key2 < (bo.prefix_end(key) or b"")


@given(
    st.lists(st.text(max_size=2), max_size=3),
    st.lists(st.text(max_size=2), max_size=3),
    st.binary(max_size=4),
)
def test_closed_fields_keep_tuple_order_whatever_follows(a: list[str], b: list[str], tail: bytes) -> None:
    one, two = (k.encode_key(fields) + k.FIELDS_END + tail for fields in (a, b))
    if a != b:
        assert (one < two) == ([s.encode() for s in a] < [s.encode() for s in b])
    values, end = k.decode_fields(one)
    assert list(values) == a
    assert one[end:] == k.FIELDS_END + tail


def test_equal_values_get_equal_keys() -> None:
    assert k.encode_key([-0.0]) == k.encode_key([0.0])
    other_nan = struct.unpack(">d", bytes.fromhex("fff0000000000001"))[0]
    assert k.encode_key([math.nan]) == k.encode_key([other_nan]) == k.encode_key([-math.nan])
    assert k.encode_key([Decimal("1.0")]) == k.encode_key([Decimal(1)]) == k.encode_key([Decimal("10E-1")])
    east = dt.timezone(dt.timedelta(hours=2))
    noon = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
    assert k.encode_key([noon]) == k.encode_key([noon.astimezone(east)])
    assert k.encode_key([np.int16(7), np.float32(0.5), np.bool_(True)]) == k.encode_key([7, 0.5, True])


def test_nan_is_the_largest_float() -> None:
    assert k.encode_key([math.nan]) > k.encode_key([math.inf])
    assert math.isnan(k.decode_key(k.encode_key([math.nan]))[0])


def test_a_value_without_an_order_is_refused_by_name() -> None:
    for value in ([1], {"a": 1}, object(), Decimal("NaN"), Decimal("Infinity"), 1j):
        with pytest.raises(TypeClash, match=r"key field cannot be"):
            k.encode_key([value])


@given(st.lists(FIELD, min_size=1, max_size=3), st.data())
def test_a_key_cut_short_is_never_read_as_another(values: list[Any], data: st.DataObject) -> None:
    whole = k.encode_key(values)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        read = k.decode_key(cut)
    except CorruptState:
        return
    assert read == tuple(values[: len(read)])
    assert len(read) < len(values)


def test_bytes_that_are_no_key_are_refused() -> None:
    for data in (
        "ff",
        "30",
        "3061",
        "30610002",
        "11",
        "1180",
        "1200000009",
        "1c",
        "1c02",
        "00",
        "0200",
        "1c03",
    ):
        with pytest.raises(CorruptState):
            k.decode_key(bytes.fromhex(data))
    for data in ("", "61", "610001", "61000100000001"):
        with pytest.raises(CorruptState):
            mk.decode_position(bytes.fromhex(data))


# -- integers ------------------------------------------------------------------------------------------------


@given(I64, I64)
def test_i64_sorts_and_round_trips(a: int, b: int) -> None:
    assert (bo.encode_i64(a) < bo.encode_i64(b)) == (a < b)
    assert bo.decode_i64(b"xx" + bo.encode_i64(a), 2) == a


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_unsigned_round_trip(wide: int, narrow: int) -> None:
    assert bo.decode_u64(b"x" + bo.encode_u64(wide), 1) == wide == int.from_bytes(bo.encode_u64(wide))
    assert bo.decode_u32(b"x" + bo.encode_u32(narrow), 1) == narrow == int.from_bytes(bo.encode_u32(narrow))


@given(st.lists(I64, max_size=5))
def test_i64_arrays_are_i64_row_by_row(values: list[int]) -> None:
    array = np.array(values, dtype=np.int64)
    rows = bo.i64_array_to_bytes(array)
    assert rows.shape == (len(values), 8)
    assert [row.tobytes() for row in rows] == [bo.encode_i64(value) for value in values]
    assert bo.bytes_to_i64_array(rows).tolist() == values


def test_i64_arrays_need_not_be_contiguous() -> None:
    array = np.arange(-5, 5, dtype=np.int64)[::2]
    assert bo.i64_array_to_bytes(array).tobytes() == b"".join(map(bo.encode_i64, [-5, -3, -1, 1, 3]))


def test_numbers_that_do_not_fit_are_refused() -> None:
    for call in (lambda: bo.encode_i64(2**63), lambda: bo.encode_u64(-1), lambda: bo.encode_u32(2**32)):
        with pytest.raises(struct.error):
            call()
    for partition in (-1, 2**32):
        with pytest.raises(ValueError, match=r"outside 0\.\.4294967295"):
            mk.message_keys(None, ["t"], [partition], [0], [0])


# -- positions and message keys ------------------------------------------------------------------------------

POSITION = st.tuples(st.text(max_size=3), st.integers(0, 2**32 - 1), I64, st.integers(0, 2**32 - 1))


@given(POSITION, POSITION)
def test_positions_sort_and_round_trip(a: Any, b: Any) -> None:
    assert (mk.position_prefix(a) < mk.position_prefix(b)) == ((order(a[0]), *a[1:]) < (order(b[0]), *b[1:]))
    data = b"head" + mk.position_prefix(a) + b"tail"
    assert mk.decode_position(data, 4) == (a, len(data) - 4)
    for count in range(5):
        assert mk.position_prefix(a).startswith(mk.position_prefix(a[:count]))


@given(
    st.lists(st.tuples(I64, POSITION, st.binary(max_size=3)), max_size=6),
    st.sampled_from(["list", "array", "chunked", "dictionary"]),
)
def test_message_keys_are_prefix_time_position(rows: list[Any], form: str) -> None:
    times = np.array([row[0] for row in rows], dtype=np.int64)
    sources, partitions, offsets, ordinals = ([row[1][i] for row in rows] for i in range(4))
    column: Any = sources
    if form != "list":
        column = pa.array(sources, pa.string())
    if form == "chunked":
        column = pa.chunked_array([column.slice(0, 2), column.slice(2)])
    if form == "dictionary":
        column = column.dictionary_encode()
    prefixes = [row[2] for row in rows]
    positions = [mk.position_prefix(row[1]) for row in rows]
    timed = [bo.encode_i64(row[0]) + position for row, position in zip(rows, positions, strict=True)]
    assert mk.message_keys(times, column, partitions, offsets, ordinals) == timed
    assert mk.message_keys(None, column, partitions, offsets, ordinals) == positions
    as_array = mk.position_keys(column, partitions, offsets, ordinals)
    assert (as_array.type, as_array.to_pylist()) == (pa.binary(), positions)
    as_array.validate(full=True)
    with_prefix = [prefix + key for prefix, key in zip(prefixes, timed, strict=True)]
    assert mk.message_keys(times, column, partitions, offsets, ordinals, prefixes) == with_prefix


def test_message_keys_refuse_columns_of_different_length_and_rows_without_source() -> None:
    with pytest.raises(ValueError, match="2 sources for 1 offsets"):
        mk.message_keys(None, ["a", "b"], 0, [1], 0)
    with pytest.raises(ValueError, match="without a source"):
        mk.message_keys(None, pa.array(["a", None]), 0, [1, 2], 0)


@given(st.binary(max_size=4).map(lambda b: b.replace(b"b", b"\xff")), st.binary(max_size=5))
def test_prefix_end_is_the_first_key_above_a_prefix(prefix: bytes, key: bytes) -> None:
    end = bo.prefix_end(prefix)
    below_end = end is None or key < end
    assert (key >= prefix and below_end) == key.startswith(prefix)


def test_prefix_end_of_all_ff_is_none() -> None:
    assert bo.prefix_end(b"") is bo.prefix_end(b"\xff\xff") is None
    assert bo.prefix_end(b"a\xff") == b"b"


# -- columns -------------------------------------------------------------------------------------------------

COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), I64),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "double": (pa.float64(), st.floats()),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=3) | st.text("\x00a", max_size=3)),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "date": (pa.date32(), st.dates()),
    "decimal": (pa.decimal128(20, 3), st.decimals(-1000, 1000, places=3)),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "timestamp utc": (pa.timestamp("us", "UTC"), UTC_TIMES),
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("nulls", [False, True])
def test_columns_are_encoded_as_row_by_row(kind: str, nulls: bool) -> None:
    dtype, values = COLUMNS[kind]

    @examples(20, deep=5_000)
    @given(st.lists(st.tuples(values | st.none() if nulls else values, st.text(max_size=1)), max_size=5))
    def check(rows: list[tuple[Any, str]]) -> None:
        left = pa.array([row[0] for row in rows], dtype)
        right = pa.chunked_array([pa.array([row[1] for row in rows], pa.string())])
        assert k.encode_columns([left, right]) == [k.encode_key(row) for row in rows]
        assert k.encode_columns([left]) == [k.encode_key(row[:1]) for row in rows]

    check()


def test_dictionary_columns_are_encoded_by_value() -> None:
    column = pa.array(["b", None, "a", "b"]).dictionary_encode()
    assert k.encode_columns([column]) == [k.encode_key([v]) for v in ("b", None, "a", "b")]
