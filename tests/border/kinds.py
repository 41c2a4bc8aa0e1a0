"""Types of Arrow, and of each the values at its bounds: those that a column holds, and those that cannot be counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa

FIRST_S, LAST_S = -62_135_596_800, 253_402_300_799
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_MS = 86_400_000

NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.decimal128(5, 2), pa.decimal128(15, 3)),
    *(
        pa.decimal128(38, 10),
        pa.decimal256(60, 3),
        pa.decimal128(3, -2),
        pa.decimal32(9, 1),
        pa.decimal64(18, 4),
    ),
]
TIMES = [
    *(pa.timestamp(unit, zone) for unit in _PER_SECOND for zone in (None, "UTC", "Europe/Berlin")),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.duration(unit) for unit in _PER_SECOND),
]
TEXTS = [
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
    *(
        pa.binary(3),
        pa.binary(4),
        pa.binary(0),
        pa.uuid(),
        pa.json_(),
        pa.dictionary(pa.int32(), pa.string()),
    ),
]
FLAT = [*NUMBERS, *TIMES, *TEXTS, pa.null(), pa.bool8()]


def nested(of: pa.DataType) -> list[pa.DataType]:
    """Lists, structs and maps of a type."""
    return [
        *(pa.list_(of), pa.large_list(of), pa.list_(of, 2), pa.struct([("a", of)])),
        *(pa.struct([("b", pa.int8()), ("a", of)]), pa.map_(pa.string(), of)),
    ]


KINDS = [
    *FLAT,
    *(
        kind
        for of in (pa.int64(), pa.float64(), pa.string(), pa.timestamp("us"), pa.date32())
        for kind in nested(of)
    ),
    pa.struct([]),
]
#: Types that no column has.
WITHOUT_PLACE = [
    *(pa.month_day_nano_interval(), pa.list_(pa.month_day_nano_interval())),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    *(pa.list_view(pa.int64()), pa.large_list_view(pa.int8())),
    *(pa.sparse_union([pa.field("a", pa.int64())]), pa.dense_union([pa.field("a", pa.int64())])),
]


def _raw(kind: pa.DataType, numbers: list[int]) -> pa.Array:
    return pa.array(numbers, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def _counts(kind: pa.DataType) -> tuple[int, int, int]:
    """The least and the greatest number that a type of times counts, and the step between its values."""
    t = pa.types
    if t.is_date32(kind):
        return FIRST_S // 86400, LAST_S // 86400, 1
    if t.is_date64(kind):
        return FIRST_S * 1000, LAST_S // 86400 * _DAY_MS, _DAY_MS
    each = _PER_SECOND[kind.unit]
    if t.is_time(kind):
        return 0, 86400 * each - 1, 1
    if t.is_duration(kind) and kind.unit != "ns":
        return -((2**63 - 1) * each // 10**6), (2**63 - 1) * each // 10**6, 1
    local = 0 if t.is_duration(kind) or kind.tz in (None, "UTC") else 86400
    if kind.unit == "ns":
        return -(2**63) + 1 + local * each, 2**63 - 1 - local * each, 1
    return (FIRST_S + local) * each, (LAST_S + 1 - local) * each - 1, 1


def held(kind: pa.DataType, draw: random.Random) -> pa.Array:
    """Values of a type at its bounds, near what other types hold, and some drawn."""
    t = pa.types
    if kind == pa.bool8():
        return pa.ExtensionArray.from_storage(kind, pa.array([0, 1, None], pa.int8()))
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, held(kind.storage_type, draw))
    if t.is_dictionary(kind):
        return held(kind.value_type, draw).dictionary_encode()
    if t.is_null(kind):
        return pa.nulls(2)
    if t.is_boolean(kind):
        return pa.array([True, False, None])
    if t.is_integer(kind):
        bits = kind.bit_width - t.is_signed_integer(kind)
        low, high = -(2**bits) if t.is_signed_integer(kind) else 0, 2**bits - 1
        near = [
            n for n in (0, 1, -1, 2**24 + 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1) if low <= n <= high
        ]
        return pa.array([low, high, *near, draw.randint(low, high), None], kind)
    if t.is_floating(kind):
        most = {16: 65504.0, 32: 3.4028234663852886e38, 64: 1.7976931348623157e308}[kind.bit_width]
        tiny = {16: 2.0**-24, 32: 2.0**-149, 64: 5e-324}[kind.bit_width]
        specials = [0.0, -0.0, 1.0, 0.5, most, -most, tiny, float("nan"), float("inf"), -float("inf")]
        return pa.concat_arrays([pa.array([*specials, None], pa.float64()), pa.array([draw.random()])]).cast(
            kind
        )
    if t.is_decimal(kind):
        most = 10**kind.precision - 1
        numbers = [0, 1, -1, most, -most, draw.randint(-most, most)]
        return pa.array(
            [*(Decimal((n < 0, tuple(map(int, str(abs(n)))), -kind.scale)) for n in numbers), None], kind
        )
    if t.is_interval(kind):
        return pa.array([(0, 0, 0), (1, 2, 3), None], kind)
    if t.is_temporal(kind):
        low, high, step = _counts(kind)
        numbers = [low, high, 0, step, low + (draw.randrange(high - low) // step) * step]
        return pa.concat_arrays([_raw(kind, numbers), pa.nulls(1, kind)])
    if t.is_fixed_size_binary(kind):
        return pa.array([bytes(kind.byte_width), b"\xff" * kind.byte_width, None], kind)
    if t.is_string(kind) or t.is_large_string(kind) or kind == pa.string_view():
        return pa.array(["", "a", "ä\x00\U0001f600", "1", "x" * 20, None], kind)
    if t.is_nested(kind):
        return _nested(kind, lambda of: held(of, draw))
    return pa.array([b"", b"\xff\xfe", b"\x00", b"x" * 20, None], kind)


def faulty(kind: pa.DataType) -> pa.Array | None:
    """Values of a type that cannot be counted; None where there are none."""
    t = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        values = faulty(kind.storage_type)
        return None if values is None else pa.ExtensionArray.from_storage(kind, values)
    if t.is_dictionary(kind):
        values = faulty(kind.value_type)
        return (
            None
            if values is None
            else pa.DictionaryArray.from_arrays(pa.array([*range(len(values))]), values)
        )
    if t.is_string(kind) or t.is_large_string(kind) or kind == pa.string_view():
        texts = pa.array([b"\xff\xfe", b"a\xc3\x28", b"x" * 20 + b"\xff"], pa.binary())
        return (
            texts.cast(pa.large_binary()).view(kind)
            if t.is_large_string(kind)
            else texts.view(pa.string())
            if kind == pa.string()
            else None
        )
    if t.is_temporal(kind) and not t.is_interval(kind):
        low, high, step = _counts(kind)
        if getattr(kind, "unit", "") == "ns" and not t.is_time(kind):
            return None
        bits = kind.bit_width - 1
        return _raw(kind, [n for n in (low - step, high + step) if -(2**bits) <= n < 2**bits])
    if t.is_nested(kind) and kind.num_fields:
        inner = [kind.field(i).type for i in range(kind.num_fields)]
        return (
            _nested(kind, lambda of: f if (f := faulty(of)) is not None else held(of, random.Random(0)))
            if any(faulty(of) is not None for of in inner[-1:])
            else None
        )
    return None


def _nested(kind: pa.DataType, values_of: Callable[[pa.DataType], pa.Array]) -> pa.Array:
    t = pa.types
    if t.is_struct(kind):
        if not kind.num_fields:
            return pa.array([{}, {}, None], kind)
        columns = [values_of(f.type) for f in kind]
        n = min(map(len, columns))
        return pa.StructArray.from_arrays([c[-n:] for c in columns], fields=list(kind))
    if t.is_map(kind):
        values = values_of(kind.item_type)
        keys = pa.array([str(i) for i in range(len(values))])
        return pa.MapArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), keys, values).cast(kind)
    values = values_of(kind.value_type)
    if t.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values[: len(values) // 2 * 2], 2).cast(kind)
    ends = pa.array(range(len(values) + 1), pa.int32())
    return pa.ListArray.from_arrays(ends, values).cast(kind)
