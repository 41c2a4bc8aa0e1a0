"""Keys in binary form, which sort as their values do.

A store compares keys byte by byte, so every key is written such that byte order is value order, and such that
no key is the beginning of another value's key: joining fields by a separator is how expiring `b"key"` came to
delete `b"key2"` elsewhere. The format is drawn in `docs/reference/formats.md`.

    key       = field*                      each field: one type tag, then a self-delimiting body

Tags rise with the order of types: null first. `00` is no tag: it closes a list of fields where something
follows (`FIELDS_END`), and sorts below every tag, so that ("a",) stays before ("a", "b"). Equal values get
equal keys: -0.0 is written as 0.0, every NaN as one NaN (the largest float), Decimal("1.0") as Decimal("1").
Integers and floats of one column do not interleave: a column has one type.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.byte_order import (
    I64,
    SIGN,
    U32,
    decode_i64,
    decode_u32,
    decode_u64,
    encode_i64,
    escape,
    i64_array_to_bytes,
    rows_to_bytes,
    unescape,
)
from windrow.core.errors import CorruptState, TypeClash

FIELDS_END: Final = b"\x00"

_NULL, _FALSE, _TRUE = 0x02, 0x04, 0x05
_INT_BELOW, _INT, _INT_ABOVE = 0x10, 0x11, 0x12  # below int64, int64, above int64
_FLOAT, _DECIMAL = 0x18, 0x1C
_DATE, _DATETIME_NAIVE, _DATETIME, _TIME, _DURATION = 0x20, 0x21, 0x22, 0x23, 0x24
_STR, _BYTES = 0x30, 0x31

_F64: Final = struct.Struct(">d")
_TAGGED_I64: Final = struct.Struct(">BQ")
_NAN_BITS: Final = 0x7FF8_0000_0000_0000
_EPOCH: Final = dt.datetime(1970, 1, 1)
_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DATE: Final = dt.date(1970, 1, 1)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_FLIP: Final = bytes(255 - b for b in range(256))


# -- keys of typed fields ------------------------------------------------------------------------------------


def encode_key(values: Sequence[Any]) -> bytes:
    """Encode a tuple of key fields; `encode_key(a) + encode_key(b) == encode_key(a + b)`.

    Takes None, bool, int of any size, float, Decimal, date, datetime, time, timedelta, str and bytes (numpy scalars too).
    """
    return b"".join([_encode_field(value) for value in values])


def decode_key(data: bytes) -> tuple[Any, ...]:
    """Inverse of `encode_key`."""
    values, end = decode_fields(data)
    if end != len(data):
        raise CorruptState(f"key {data.hex()} goes on after its last field, at byte {end}")
    return values


def decode_fields(data: bytes, start: int = 0) -> tuple[tuple[Any, ...], int]:
    """Fields up to `FIELDS_END` or the end of the data, and the index after them (before `FIELDS_END`)."""
    values: list[Any] = []
    i = start
    while i < len(data) and data[i] != 0:
        value, i = _decode_field(data, i)
        values.append(value)
    return tuple(values), i


def _encode_field(value: Any) -> bytes:
    if value is None:
        return bytes((_NULL,))
    if isinstance(value, str):
        return b"\x30" + escape(value.encode())
    if isinstance(value, bool | np.bool_):
        return bytes((_TRUE if value else _FALSE,))
    if isinstance(value, int | np.integer):
        return _encode_int(int(value))
    if isinstance(value, float | np.floating):
        return _encode_float(float(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return b"\x31" + escape(bytes(value))
    if isinstance(value, dt.datetime):
        tag, epoch = (_DATETIME_NAIVE, _EPOCH) if value.tzinfo is None else (_DATETIME, _EPOCH_UTC)
        return _TAGGED_I64.pack(tag, (value - epoch) // _MICROSECOND + SIGN)
    if isinstance(value, dt.date):
        return _TAGGED_I64.pack(_DATE, (value - _EPOCH_DATE).days + SIGN)
    if isinstance(value, dt.time):
        since_midnight = dt.datetime.combine(_EPOCH_DATE, value) - _EPOCH
        return _TAGGED_I64.pack(_TIME, since_midnight // _MICROSECOND + SIGN)
    if isinstance(value, dt.timedelta):
        return _TAGGED_I64.pack(_DURATION, value // _MICROSECOND + SIGN)
    if isinstance(value, Decimal):
        return bytes((_DECIMAL,)) + _encode_decimal(value)
    raise TypeClash(
        f"a key field cannot be a {type(value).__name__} ({value!r:.60}): use text, bytes, a number, "
        "a date or a time"
    )


def _encode_int(n: int) -> bytes:
    if -SIGN <= n < SIGN:
        return _TAGGED_I64.pack(_INT, n + SIGN)
    magnitude = abs(n).to_bytes((abs(n).bit_length() + 7) // 8)
    body = U32.pack(len(magnitude)) + magnitude
    if n > 0:
        return bytes((_INT_ABOVE,)) + body
    return bytes((_INT_BELOW,)) + body.translate(_FLIP)


def _encode_float(x: float) -> bytes:
    bits = _NAN_BITS if x != x else int(I64.unpack(_F64.pack(x + 0.0))[0])  # -0.0 + 0.0 is 0.0
    return _TAGGED_I64.pack(_FLOAT, bits ^ 0xFFFF_FFFF_FFFF_FFFF if bits & SIGN else bits | SIGN)


def _encode_decimal(value: Decimal) -> bytes:
    """Zero is 01; positive: 02, i64 exponent of the leading digit, digits + 1, 00; negative: 00, then those
    flipped."""
    if not value.is_finite():
        raise TypeClash(f"a key field cannot be the decimal {value}: only finite decimals have an order")
    if not value:
        return b"\x01"
    sign, digits, _ = value.as_tuple()
    text = bytes(digit + 1 for digit in digits).rstrip(b"\x01")
    body = encode_i64(value.adjusted()) + text + b"\x00"
    return b"\x00" + body.translate(_FLIP) if sign else b"\x02" + body


def _decode_field(data: bytes, i: int) -> tuple[Any, int]:
    tag = data[i]
    if tag == _STR:
        raw, i = unescape(data, i + 1)
        return raw.decode(), i
    if tag == _BYTES:
        return unescape(data, i + 1)
    if tag in (_NULL, _FALSE, _TRUE):
        return {_NULL: None, _FALSE: False, _TRUE: True}[tag], i + 1
    try:
        if tag in (_INT_BELOW, _INT_ABOVE):
            return _decode_big_int(data, i)
        if tag == _DECIMAL:
            return _decode_decimal(data, i + 1)
        if tag in (_INT, _FLOAT, _DATE, _DATETIME_NAIVE, _DATETIME, _TIME, _DURATION):
            return _decode_fixed(tag, decode_u64(data, i + 1)), i + 9
    except (struct.error, IndexError, ValueError) as error:
        raise CorruptState(f"key {data.hex()} ends inside the field that starts at byte {i}") from error
    raise CorruptState(f"key {data.hex()} has the unknown field type {tag:02x} at byte {i}")


def _decode_fixed(tag: int, bits: int) -> Any:
    if tag == _FLOAT:
        return _F64.unpack(I64.pack(bits ^ SIGN if bits & SIGN else bits ^ 0xFFFF_FFFF_FFFF_FFFF))[0]
    n = bits - SIGN
    if tag == _INT:
        return n
    if tag == _TIME:
        return (_EPOCH + dt.timedelta(microseconds=n)).time()
    if tag == _DURATION:
        return dt.timedelta(microseconds=n)
    if tag == _DATE:
        return _EPOCH_DATE + dt.timedelta(days=n)
    return (_EPOCH_UTC if tag == _DATETIME else _EPOCH) + dt.timedelta(microseconds=n)


def _decode_big_int(data: bytes, i: int) -> tuple[int, int]:
    below = data[i] == _INT_BELOW
    head = data[i + 1 : i + 5]
    size = decode_u32(head.translate(_FLIP) if below else head)
    body = data[i + 5 : i + 5 + size]
    if len(body) != size:
        raise ValueError("short")
    return (-int.from_bytes(body.translate(_FLIP)) if below else int.from_bytes(body)), i + 5 + size


def _decode_decimal(data: bytes, i: int) -> tuple[Decimal, int]:
    if data[i] == 0x01:
        return Decimal(0), i + 1
    negative = data[i] == 0x00
    end = data.index(b"\xff" if negative else b"\x00", i + 9)
    body = data[i + 1 : end]
    if negative:
        body = body.translate(_FLIP)
    digits = tuple(byte - 1 for byte in body[8:])
    return Decimal((int(negative), digits, decode_i64(body) - len(digits) + 1)), end + 1


# -- columns of key fields -----------------------------------------------------------------------------------


def encode_columns(columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[bytes]:
    """Return `encode_key` of every row of equally long columns: the same bytes as row by row."""
    encoded = [_encode_column(column) for column in columns]
    return encoded[0] if len(encoded) == 1 else list(map(b"".join, zip(*encoded, strict=True)))


def encode_equal(columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[bytes]:
    """Encode as `encode_columns` does, but equal values of any types alike: whole floats and decimals as integers.

    For keys that are looked up after their column may have widened.
    """
    encoded = [_encode_equal(column) for column in columns]
    return encoded[0] if len(encoded) == 1 else list(map(b"".join, zip(*encoded, strict=True)))


def plain_number(value: Any) -> Any:
    """Return the integer that a whole float or decimal equals; any other value as it is."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return int(value)
    return value


def _encode_equal(column: pa.Array | pa.ChunkedArray) -> list[bytes]:
    if not (pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
        return _encode_column(column)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    coded = column.dictionary_encode()
    distinct = [_encode_field(plain_number(value)) for value in coded.dictionary.to_pylist()]
    distinct.append(_encode_field(None))
    return [distinct[i] for i in coded.indices.fill_null(len(distinct) - 1).to_pylist()]


def _encode_texts(values: pa.Array) -> list[bytes] | None:
    """Encode a text column without zero bytes, the usual case, at once; returns None for any other column."""
    if values.type != pa.string() or values.null_count:
        return None
    raw = values.cast(pa.binary())
    if pc.any(pc.match_substring(raw, b"\x00")).as_py():
        return None
    head, end = (pa.scalar(part, pa.binary()) for part in (bytes((_STR,)), escape(b"")))
    encoded: list[bytes] = pc.binary_join_element_wise(head, raw, end, b"").to_pylist()
    return encoded


def _encode_column(column: pa.Array | pa.ChunkedArray) -> list[bytes]:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if column.null_count == 0 and pa.types.is_integer(kind) and kind != pa.uint64():
        tags = np.full((len(column), 1), _INT, dtype=np.uint8)
        values = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return rows_to_bytes(tags, i64_array_to_bytes(values))
    coded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    distinct = _encode_texts(coded.dictionary) or [_encode_field(v) for v in coded.dictionary.to_pylist()]
    if len(distinct) == len(column) and coded is not column and column.null_count == 0:
        return distinct  # each in its place
    distinct.append(_encode_field(None))
    indices = coded.indices.fill_null(len(distinct) - 1).to_numpy(zero_copy_only=False).tolist()
    return [distinct[i] for i in indices]
