"""The border: what of outside becomes a value of a column is that value, or it is said why it is none."""

from __future__ import annotations

import itertools
import math
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from windrow.core.border import fit, read
from windrow.core.faults import faults, without_place
from windrow.core.time import instant_us

MOMENT = datetime(2020, 1, 2, 3, 4, 5, 678901)
VALUES: list[Any] = [
    *(
        3,
        2**53 + 1,
        2**64 - 1,
        2**70,
        -1,
        0.5,
        0.1,
        1.0,
        1e300,
        math.inf,
        True,
        "a",
        "",
        "\ud800",
        b"a",
        b"\xff",
    ),
    *(Decimal("1.25"), Decimal(2), Decimal("nan"), date(2020, 1, 2), MOMENT, MOMENT.replace(tzinfo=UTC)),
    *(time(1, 2, 3, 456789), time(1, tzinfo=UTC), timedelta(seconds=1, microseconds=1), uuid.UUID(int=5)),
    *(np.float16(0.5), np.float32(0.1), np.int8(3), np.uint64(2**63 + 5), np.bool_(True), np.str_("x")),
    *(
        np.datetime64(1, "ns"),
        np.datetime64("2020-01-01"),
        np.datetime64(10**9, "D"),
        np.timedelta64(1, "ns"),
    ),
    *(pd.Timestamp(1, tz="UTC"), pd.Timestamp("2020-01-01"), pd.Timedelta(1, "ns"), pd.NaT, pd.NA),
    *([1], [1.5], [True, 0.5], [date(2020, 1, 2), 3], [np.datetime64(1, "ns"), np.int64(3)], (1,), {1}, []),
    *({"a": 1}, {"a": 1.5}, {"b": 1}, {}, {"a": np.float16(0.5)}, np.array([1, 2]), object()),
]
KINDS = [
    *(pa.int8(), pa.uint8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary(1)),
    *(pa.decimal128(5, 1), pa.decimal256(50, 2), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us")),
    *(pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us", "UTC")),
    *(pa.duration("s"), pa.duration("us"), pa.list_(pa.int64()), pa.large_list(pa.float64()), pa.null()),
    *(pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64()), pa.month_day_nano_interval()),
    *(pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.list_(pa.int8()))),
]


def is_held(value: Any, held: Any) -> bool:
    """True if they are the same to a reader: numbers are compared as numbers, and a truth value is none."""
    if held is None or value is pd.NaT or value is pd.NA:
        return held is None and (value is pd.NaT or value is pd.NA)
    if isinstance(value, bool | np.bool_) or isinstance(held, bool):
        return isinstance(value, bool | np.bool_) and isinstance(held, bool) and bool(value) == held
    if isinstance(value, bytes) and isinstance(held, str):
        return value.decode() == held
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(value == type(value)(getattr(held, "asm8", held)))
    if isinstance(value, np.generic):
        return is_held(value.item(), held)
    if isinstance(value, dict) and isinstance(held, list):
        return list(value.items()) == held
    if isinstance(value, dict):
        return set(value) <= set(held) and all(
            is_held(value[n], v) if n in value else v is None for n, v in held.items()
        )
    if isinstance(value, list | tuple | set | np.ndarray):
        return len(value) == len(held) and all(is_held(g, h) for g, h in zip(value, held, strict=True))
    return bool(value == held)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_value_of_python_fits_a_type_as_what_it_is_or_is_said_not_to(kind: pa.DataType) -> None:
    rounded = kind in (pa.float16(), pa.float32())
    for value in VALUES:
        fitted = fit([None, value], kind)
        assert fitted.array.type == kind and len(fitted.array) == 2
        if fitted.misfits:
            assert fitted.array[1].as_py() is None and "is no" in fitted.misfits[1]
        elif rounded and isinstance(value, float | np.floating):
            assert fitted.array[1].as_py() == pytest.approx(float(value), rel=1e-3)
        else:
            assert is_held(value, fitted.array[1].as_py()), (str(value), kind)


def test_times_in_an_hour_that_comes_twice_or_never_fit_as_the_instant_that_they_are() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    for local in (datetime(2026, 10, 25, 2, 30), datetime(2026, 3, 29, 2, 30)):
        for fold in (0, 1):
            moment = local.replace(tzinfo=berlin, fold=fold)
            for zone in ("UTC", "Europe/Berlin", "+02:00"):
                fitted = fit([moment], pa.timestamp("us", zone))
                assert not fitted.misfits
                assert fitted.array.cast(pa.int64()).to_pylist() == [instant_us(moment)]


def test_times_of_pandas_keep_their_nanoseconds() -> None:
    moment, spell = pd.Timestamp(1_001, tz="UTC"), pd.Timedelta(1_001)
    assert fit([moment], pa.timestamp("ns", "UTC")).array.cast(pa.int64()).to_pylist() == [1_001]
    assert fit([spell], pa.duration("ns")).array.cast(pa.int64()).to_pylist() == [1_001]
    assert fit([moment], pa.timestamp("us", "UTC")).misfits and fit([spell], pa.duration("us")).misfits


def test_values_of_python_are_read_in_a_type_that_holds_all_of_them_or_in_none() -> None:
    tried = 0
    for values in itertools.product(VALUES, repeat=2):
        array = read([*values, None])
        tried += 1
        if array is not None:
            assert all(is_held(g, h) for g, h in zip(values, array.to_pylist(), strict=False)), (
                str(values),
                array,
            )
    assert tried == len(VALUES) ** 2


def test_what_fits_is_kept_next_to_what_does_not() -> None:
    fitted = fit([1.5, 2, 2.0, True, "x", 2**70], pa.int64())
    assert fitted.array.to_pylist() == [None, 2, 2, None, None, None]
    assert fitted.misfits[0] == "1.5 is no int64 without loss"
    assert set(fitted.misfits) == {0, 3, 4, 5}


def text(*values: bytes) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


def test_what_becomes_of_a_value_depends_on_no_other() -> None:
    inner = pa.struct([("a", pa.timestamp("us", "UTC")), ("b", pa.list_(pa.int64()))])
    nested = [
        {"a": MOMENT},
        {"a": MOMENT.replace(tzinfo=UTC), "b": [1, None]},
        {"b": [1, 0.5]},
        {"c": 1},
        {},
        None,
        [{"b": (2, 3)}],
    ]
    for kind in [*KINDS, inner, pa.list_(inner), pa.struct([("a", inner)])]:
        values = [*VALUES, *nested, [nested[1], None], {"a": nested[1]}, {"a": nested[2]}]
        for cases in (
            values,
            values[::-1],
            [v for v in values if isinstance(v, dict)],
            [v for v in values if isinstance(v, list)],
        ):
            whole, alone = fit(cases, kind), [fit([v], kind) for v in cases]
            assert whole.array.equals(pa.concat_arrays([one.array for one in alone])), kind
            assert whole.misfits.keys() == {i for i, one in enumerate(alone) if one.misfits}
            whole.array.validate(full=True)


def test_text_that_is_not_utf8_is_found_wherever_it_is() -> None:
    bad = text(b"a", b"\xff\xfe", b"b", b"\xc3\x28")
    expected = {1: "b'\\xff\\xfe' is no text: it is not UTF-8", 3: "b'\\xc3(' is no text: it is not UTF-8"}
    assert faults(bad) == faults(pa.chunked_array([bad.slice(0, 1), bad.slice(1)])) == expected
    assert faults(text(b"a", "ä".encode())) == {}
    nested = [
        pa.StructArray.from_arrays([bad], ["a"]),
        pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), bad),
        pa.MapArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), text(*b"abcd".split(b"|") * 4), bad),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3]), bad),
    ]
    for column in nested:
        assert set(faults(column)) == {1, 3}, column.type
        assert set(faults(column.slice(1, 2))) == {0}, column.type


def test_times_outside_the_years_1_to_9999_are_found() -> None:
    for kind, last in (
        (pa.date32(), 2932896),
        (pa.timestamp("s"), 253402300799),
        (pa.timestamp("us", "UTC"), 253402300799999999),
        (pa.date64(), 2932896 * 86_400_000),
    ):
        step = 86_400_000 if kind == pa.date64() else 1
        width = pa.int32() if kind == pa.date32() else pa.int64()
        column = pa.array([last, last + step, None], width).view(kind)
        assert faults(column) == {1: f"{last + step} as {kind} is outside the years 1 to 9999"}
    assert set(faults(pa.array([-1, 86399, 86400], pa.int32()).view(pa.time32("s")))) == {0, 2}
    assert set(faults(pa.array([2**62, 5], pa.int64()).view(pa.duration("s")))) == {0}


def test_types_that_no_column_has_are_named() -> None:
    ends = pa.run_end_encoded(pa.int32(), pa.int64())
    for kind in (
        ends,
        pa.sparse_union([pa.field("a", pa.int64())]),
        pa.list_(ends),
        pa.struct([("a", ends)]),
    ):
        assert without_place(kind) is not None
    assert without_place(pa.struct([("a", pa.list_(pa.int64()))])) is None
