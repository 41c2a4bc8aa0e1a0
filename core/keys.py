"""Binary keys that sort as their values do.

A store compares keys byte by byte, so every key is written such that byte order is value order, and such that
no key is the beginning of another value's key: joining fields by a separator is how expiring `b"key"` came to
delete `b"key2"` elsewhere. The format is drawn in `docs/reference/formats.md`.

    key       = field*                      each field: one type tag, then a body that tells where it ends
    position  = escaped source, u32 partition, i64 offset, u32 ordinal
    escaped   = bytes with 00 written as 00 ff, closed by 00 01
    i64       = big-endian with the sign bit flipped; u32, u64 = big-endian

Tags rise with the order of types: null first. `00` is no tag: it closes a list of fields where something
follows (`FIELDS_END`), and sorts below every tag, so that ("a",) stays before ("a", "b"). Equal values get
equal keys: -0.0 is written as 0.0, every NaN as one NaN (the largest float), Decimal("1.0") as Decimal("1").
Integers and floats of one column do not interleave: a column has one type.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.core.errors import CorruptState, TypeClash

FIELDS_END: Final = b"\x00"

_NULL, _FALSE, _TRUE = 0x02, 0x04, 0x05
_INT_BELOW, _INT, _INT_ABOVE = 0x10, 0x11, 0x12  # below int64, int64, above int64
_FLOAT, _DECIMAL = 0x18, 0x1C
_DATE, _DATETIME_NAIVE, _DATETIME, _TIME, _DURATION = 0x20, 0x21, 0x22, 0x23, 0x24
_STR, _BYTES = 0x30, 0x31

_END: Final = b"\x00\x01"
_ESCAPED_ZERO: Final = b"\x00\xff"
_SIGN: Final = 1 << 63
_I64: Final = struct.Struct(">Q")
_U32: Final = struct.Struct(">I")
_F64: Final = struct.Struct(">d")
_TAGGED_I64: Final = struct.Struct(">BQ")
_POSITION_TAIL: Final = struct.Struct(">IQI")
_NAN_BITS: Final = 0x7FF8_0000_0000_0000
_EPOCH: Final = dt.datetime(1970, 1, 1)
_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DATE: Final = dt.date(1970, 1, 1)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_FLIP: Final = bytes(255 - b for b in range(256))

#: Bytes of every row of columns of key fields.
Encode: TypeAlias = Callable[[Sequence[pa.Array | pa.ChunkedArray]], list[bytes]]
Bytes2D: TypeAlias = npt.NDArray[np.uint8]
Position: TypeAlias = tuple[str, int, int, int]


# -- integers ------------------------------------------------------------------------------------------------


def encode_i64(n: int) -> bytes:
    """8 bytes; order of int64."""
    return _I64.pack(n + _SIGN)


def decode_i64(data: bytes, start: int = 0) -> int:
    return int(_I64.unpack_from(data, start)[0]) - _SIGN


def encode_u64(n: int) -> bytes:
    return _I64.pack(n)


def decode_u64(data: bytes, start: int = 0) -> int:
    return int(_I64.unpack_from(data, start)[0])


def encode_u32(n: int) -> bytes:
    return _U32.pack(n)


def decode_u32(data: bytes, start: int = 0) -> int:
    return int(_U32.unpack_from(data, start)[0])


def i64_array_to_bytes(values: npt.NDArray[np.int64]) -> Bytes2D:
    """One row of 8 bytes for each value: `encode_i64`, vectorised."""
    flipped = np.asarray(values, dtype=np.int64).view(np.uint64) ^ np.uint64(_SIGN)
    return flipped.astype(">u8").view(np.uint8).reshape(-1, 8)


def u32_array_to_bytes(values: npt.NDArray[Any]) -> Bytes2D:
    """One row of 4 bytes for each value: `encode_u32`, vectorised. Values outside u32 are refused."""
    wide = np.asarray(values, dtype=np.int64)
    if wide.size and (int(wide.min()) < 0 or int(wide.max()) > 0xFFFF_FFFF):
        raise ValueError(f"a partition or ordinal is outside 0..4294967295: {wide.min()}..{wide.max()}")
    return wide.astype(">u4").view(np.uint8).reshape(-1, 4)


def bytes_to_i64_array(rows: Bytes2D) -> npt.NDArray[np.int64]:
    """Inverse of `i64_array_to_bytes`."""
    unsigned = np.ascontiguousarray(rows).view(">u8").ravel().astype(np.uint64)
    return (unsigned ^ np.uint64(_SIGN)).view(np.int64)


# -- escaped bytes -------------------------------------------------------------------------------------------


def escape(data: bytes) -> bytes:
    """Self-delimiting form of `data` that sorts as `data` does."""
    if 0 in data:
        data = data.replace(b"\x00", _ESCAPED_ZERO)
    return data + _END


def unescape(data: bytes, start: int = 0) -> tuple[bytes, int]:
    """(value, index after it)."""
    i = start
    while True:
        i = data.find(0, i)
        if i < 0 or i + 1 >= len(data):
            raise CorruptState(f"key {data.hex()} ends inside an escaped field that starts at byte {start}")
        if data[i + 1] == 0x01:
            return data[start:i].replace(_ESCAPED_ZERO, b"\x00"), i + 2
        if data[i + 1] != 0xFF:
            raise CorruptState(f"key {data.hex()} has the unknown escape 00 {data[i + 1]:02x} at byte {i}")
        i += 2


# -- keys of typed fields ------------------------------------------------------------------------------------


def encode_key(values: Sequence[Any]) -> bytes:
    """Bytes of a tuple of key fields; `encode_key(a) + encode_key(b) == encode_key(a + b)`.

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
        return _TAGGED_I64.pack(tag, (value - epoch) // _MICROSECOND + _SIGN)
    if isinstance(value, dt.date):
        return _TAGGED_I64.pack(_DATE, (value - _EPOCH_DATE).days + _SIGN)
    if isinstance(value, dt.time):
        since_midnight = dt.datetime.combine(_EPOCH_DATE, value) - _EPOCH
        return _TAGGED_I64.pack(_TIME, since_midnight // _MICROSECOND + _SIGN)
    if isinstance(value, dt.timedelta):
        return _TAGGED_I64.pack(_DURATION, value // _MICROSECOND + _SIGN)
    if isinstance(value, Decimal):
        return bytes((_DECIMAL,)) + _encode_decimal(value)
    raise TypeClash(
        f"a key field cannot be a {type(value).__name__} ({value!r:.60}): use text, bytes, a number, "
        "a date or a time"
    )


def _encode_int(n: int) -> bytes:
    if -_SIGN <= n < _SIGN:
        return _TAGGED_I64.pack(_INT, n + _SIGN)
    magnitude = abs(n).to_bytes((abs(n).bit_length() + 7) // 8)
    body = _U32.pack(len(magnitude)) + magnitude
    if n > 0:
        return bytes((_INT_ABOVE,)) + body
    return bytes((_INT_BELOW,)) + body.translate(_FLIP)


def _encode_float(x: float) -> bytes:
    bits = _NAN_BITS if x != x else int(_I64.unpack(_F64.pack(x + 0.0))[0])  # -0.0 + 0.0 is 0.0
    return _TAGGED_I64.pack(_FLOAT, bits ^ 0xFFFF_FFFF_FFFF_FFFF if bits & _SIGN else bits | _SIGN)


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
        return _F64.unpack(_I64.pack(bits ^ _SIGN if bits & _SIGN else bits ^ 0xFFFF_FFFF_FFFF_FFFF))[0]
    n = bits - _SIGN
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


# -- positions and message keys ------------------------------------------------------------------------------


def encode_position(source: str, partition: int, offset: int, ordinal: int) -> bytes:
    """Bytes of a position: the order of (source, partition, offset, ordinal)."""
    return escape(source.encode()) + _POSITION_TAIL.pack(partition, offset + _SIGN, ordinal)


def _encode_source(source: str) -> bytes:
    return escape(source.encode())


def position_prefix(parts: Sequence[Any]) -> bytes:
    """What every position that begins with these one to four parts begins with; b"" for none."""
    encoders: tuple[Callable[[Any], bytes], ...] = (_encode_source, encode_u32, encode_i64, encode_u32)
    return b"".join([encode(part) for encode, part in zip(encoders, parts, strict=False)])


def decode_position(data: bytes, start: int = 0) -> tuple[Position, int]:
    """((source, partition, offset, ordinal), index after it)."""
    source, i = unescape(data, start)
    if len(data) < i + _POSITION_TAIL.size:
        raise CorruptState(f"key {data.hex()} ends inside the position that starts at byte {start}")
    partition, offset, ordinal = _POSITION_TAIL.unpack_from(data, i)
    return (source.decode(), partition, offset - _SIGN, ordinal), i + _POSITION_TAIL.size


def prefix_end(prefix: bytes) -> bytes | None:
    """Smallest key above every key that starts with `prefix`; None where there is none (all bytes ff)."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else None


def _side_by_side(columns: Sequence[Bytes2D]) -> Bytes2D:
    """Byte columns as one matrix."""
    count, width = columns[0].shape[0], sum(column.shape[1] for column in columns)
    rows = np.empty((count, width), dtype=np.uint8)
    at = 0
    for column in columns:
        rows[:, at : at + column.shape[1]] = column
        at += column.shape[1]
    return rows


def rows_to_bytes(*columns: Bytes2D) -> list[bytes]:
    """One bytes object for each row of byte columns laid side by side."""
    rows = _side_by_side(columns)
    if not rows.size:
        return [b""] * len(rows)
    return rows.view(f"V{rows.shape[1]}").ravel().tolist()


def message_keys(
    time_us: npt.NDArray[np.int64] | None,
    sources: Sequence[str] | pa.Array | pa.ChunkedArray,
    partitions: npt.ArrayLike,
    offsets: npt.ArrayLike,
    ordinals: npt.ArrayLike,
    prefix: Sequence[bytes] | None = None,
) -> list[bytes]:
    """Keys `<prefix><time i64><position>` in row order; without `time_us`, `<prefix><position>`.

    Rows are written as one matrix per length of source name, so a few distinct sources cost next to nothing.
    """
    matrices = _key_matrices(time_us, sources, partitions, offsets, ordinals)
    if len(matrices) == 1:
        keys = rows_to_bytes(matrices[0][1])
    else:
        keys = [b""] * sum(len(matrix) for _, matrix in matrices)
        for rows, matrix in matrices:
            for row, key in zip(rows.tolist(), rows_to_bytes(matrix), strict=True):
                keys[row] = key
    if prefix is None:
        return keys
    return [head + key for head, key in zip(prefix, keys, strict=True)]


def position_keys(
    sources: Sequence[str] | pa.Array | pa.ChunkedArray,
    partitions: npt.ArrayLike,
    offsets: npt.ArrayLike,
    ordinals: npt.ArrayLike,
) -> pa.Array:
    """`message_keys` of positions alone, as an Arrow array: no object for each row."""
    matrices = _key_matrices(None, sources, partitions, offsets, ordinals)
    arrays = [_binary(matrix) for _, matrix in matrices]
    if len(arrays) == 1:
        return arrays[0]
    rows = np.concatenate([rows for rows, _ in matrices] or [np.zeros(0, dtype=np.int64)])
    place = np.empty(len(rows), dtype=np.int64)
    place[rows] = np.arange(len(rows))
    return pa.concat_arrays(arrays).take(pa.array(place)) if arrays else pa.array([], pa.binary())


def _binary(rows: Bytes2D) -> pa.Array:
    count, width = rows.shape
    if count * width >= 1 << 31:
        return pa.array(rows_to_bytes(rows), pa.binary())
    bounds = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(rows)])


def _key_matrices(
    time_us: npt.NDArray[np.int64] | None,
    sources: Sequence[str] | pa.Array | pa.ChunkedArray,
    partitions: npt.ArrayLike,
    offsets: npt.ArrayLike,
    ordinals: npt.ArrayLike,
) -> list[tuple[npt.NDArray[np.int64], Bytes2D]]:
    """(rows, their keys) for each length of source name; one of all rows, in order, where there is one length."""
    offset = np.asarray(offsets, dtype=np.int64)
    count = len(offset)
    columns = [
        u32_array_to_bytes(np.broadcast_to(np.asarray(partitions), (count,))),
        i64_array_to_bytes(offset),
        u32_array_to_bytes(np.broadcast_to(np.asarray(ordinals), (count,))),
    ]
    heads = [] if time_us is None else [i64_array_to_bytes(np.asarray(time_us, dtype=np.int64))]
    names, codes = _escaped_sources(sources)
    if len(codes) != count:
        raise ValueError(f"{len(codes)} sources for {count} offsets")
    found = []
    lengths = np.array([len(name) for name in names], dtype=np.int64)
    for length in np.unique(lengths):
        table = np.zeros((len(names), int(length)), dtype=np.uint8)
        for i in np.flatnonzero(lengths == length):
            table[i] = np.frombuffer(names[i], dtype=np.uint8)
        if len(np.unique(lengths)) == 1:
            return [(np.arange(count), _side_by_side([*heads, table[codes], *columns]))]
        rows = np.flatnonzero(lengths[codes] == length)
        parts = [*(h[rows] for h in heads), table[codes[rows]], *(c[rows] for c in columns)]
        found.append((rows, _side_by_side(parts)))
    return found


def _escaped_sources(
    sources: Sequence[str] | pa.Array | pa.ChunkedArray,
) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """(distinct escaped names, the code of each row)."""
    if not isinstance(sources, pa.Array | pa.ChunkedArray):
        code_of = {name: code for code, name in enumerate(dict.fromkeys(sources))}
        codes = np.array([code_of[name] for name in sources], dtype=np.int64)
        return [escape(name.encode()) for name in code_of], codes
    column = sources.combine_chunks() if isinstance(sources, pa.ChunkedArray) else sources
    coded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    if coded.null_count:
        raise ValueError("a position without a source")
    names = [escape(name.encode()) for name in coded.dictionary.to_pylist()]
    return names, coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


# -- columns of key fields -----------------------------------------------------------------------------------


def encode_columns(columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[bytes]:
    """`encode_key` of every row of equally long columns: the same bytes as row by row."""
    encoded = [_encode_column(column) for column in columns]
    return encoded[0] if len(encoded) == 1 else list(map(b"".join, zip(*encoded, strict=True)))


def encode_equal(columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[bytes]:
    """As `encode_columns`, values that are equal alike, whatever their types: whole floats and decimals as integers.

    For keys that are looked up after their column may have widened.
    """
    encoded = [_encode_equal(column) for column in columns]
    return encoded[0] if len(encoded) == 1 else list(map(b"".join, zip(*encoded, strict=True)))


def plain_number(value: Any) -> Any:
    """The integer that a whole float or decimal equals; any other value as it is."""
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


def _encode_column(column: pa.Array | pa.ChunkedArray) -> list[bytes]:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if column.null_count == 0 and pa.types.is_integer(kind) and kind != pa.uint64():
        tags = np.full((len(column), 1), _INT, dtype=np.uint8)
        values = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return rows_to_bytes(tags, i64_array_to_bytes(values))
    coded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    distinct = [_encode_field(value) for value in coded.dictionary.to_pylist()]
    distinct.append(_encode_field(None))
    indices = coded.indices.fill_null(len(distinct) - 1).to_pylist()
    return [distinct[i] for i in indices]
