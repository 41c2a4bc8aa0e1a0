"""JSON records as rows. Arrow parses many at once; Python parses only the records that Arrow cannot parse exactly.

The bytes come from anywhere, and Arrow's reader crashes on `null`, skips a byte order mark, checks no UTF-8, makes two rows of
two objects in one record and infinities of numbers that are too large, and drops zones. Only what passes `_lines` reaches it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from windrow.core.arrays import IntArray
from windrow.core.errors import ConfigurationError
from windrow.core.faults import faults
from windrow.core.time import instant_us, read_iso
from windrow.core.types import is_text
from windrow.core.zones import zone_of

_OPEN, _CLOSE = b"{}"
#: Bytes that Arrow reads at once.
_MOST_BYTES = 2**31 - 2
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
#: Digits of a second beyond microseconds.
_FINER = re.compile(r"[.,]\d{6}(\d{1,3})", re.ASCII)
#: No integer of a column has more digits.
_INTEGER_DIGITS = 20


def check_readable(schema: pa.Schema) -> None:
    """Raise `ConfigurationError` where a column has a type that no JSON value is read as."""
    for field in schema:
        kind = _unreadable(field.type)
        if kind is not None:
            raise ConfigurationError(
                f"column {field.name!r} of the schema is {field.type}, and {kind} cannot be read from JSON: give it as bool, "
                "integers, float32, float64, decimals, string, binary, dates, times, timestamps, lists and structs of them"
            )


def _unreadable(kind: pa.DataType) -> str | None:
    t = pa.types
    if t.is_struct(kind) or t.is_list(kind):
        found = (_unreadable(kind.field(i).type) for i in range(kind.num_fields))
        return next(filter(None, found), None)
    if t.is_timestamp(kind) and kind.tz is not None:
        try:
            zone_of(kind.tz)
        except ConfigurationError:
            return f"time zone {kind.tz!r}"
        return None
    texts = (
        t.is_string,
        t.is_large_string,
        t.is_binary,
        t.is_large_binary,
        t.is_string_view,
        t.is_binary_view,
    )
    numbers = (t.is_null, t.is_boolean, t.is_integer, t.is_float32, t.is_float64, t.is_decimal)
    times = (t.is_date, t.is_time, t.is_timestamp)
    return None if any(is_one(kind) for is_one in (*texts, *numbers, *times)) else str(kind)


# -- many at once -----------------------------------------------------------------------------------------------------------


def read_many(values: Sequence[bytes], schema: pa.Schema, zone: str = "UTC") -> pa.Table | None:
    """Read one row for each value; give None where some value has to be read alone. zone: of columns without one."""
    lines = _lines(values)
    if lines is None:
        return None
    read_as = pa.schema([pa.field(f.name, _read_as(f.type)) for f in schema])
    try:
        table = arrow_json.read_json(
            pa.BufferReader(lines),
            arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            arrow_json.ParseOptions(explicit_schema=read_as, unexpected_field_behavior="ignore"),
        )
        if len(table) != len(values):
            return None
        columns = [_from_text(table.column(f.name), f.type, zone) for f in schema]
        rows = pa.table(columns, schema=schema)
        rows.validate(full=True)  # Arrow's reader takes decimals with too many digits
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    wrong = any(_has_infinity(c) or (not is_text(c.type) and faults(c)) for c in columns)
    return None if wrong else rows


def _lines(values: Sequence[bytes]) -> bytes | None:
    """Join the values line by line, if Arrow makes either an error of them or one row of each.

    Each begins an object at the top level, and ends with a brace: what is open at its end is an error on the next line.
    """
    if not _are_objects(values):
        values = [v.strip(b" \t\r\n") for v in values]
        if not _are_objects(values):
            return None
    lines = b"\n".join([*values, b""])
    return lines if len(lines) <= _MOST_BYTES and _is_utf8(lines) else None


def _are_objects(values: Sequence[bytes]) -> bool:
    return all(values) and not [v for v in values if v[0] != _OPEN or v[-1] != _CLOSE]


def _is_utf8(text: bytes) -> bool:
    ends = np.array([0, len(text)], dtype=np.int32)
    whole = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(text)])
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _read_as(kind: pa.DataType) -> pa.DataType:
    """Choose the type that Arrow reads: text, where it makes times of numbers, or drops or invents a time zone."""
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([f.with_type(_read_as(f.type)) for f in kind])
    if t.is_list(kind):
        return pa.list_(kind.value_field.with_type(_read_as(kind.value_type)))
    is_text = t.is_date(kind) or t.is_time(kind) or (t.is_timestamp(kind) and kind.tz != "UTC")
    return pa.string() if is_text else kind


def _from_text(column: pa.ChunkedArray, kind: pa.DataType, zone: str) -> pa.ChunkedArray:
    """Bring text that was read to its type. Raises `ArrowInvalid`, `ArrowNotImplementedError` where Arrow cannot."""
    if column.type == kind:
        return column
    if pa.types.is_time(kind):
        moments = pc.binary_join_element_wise("1970-01-01", column, "T").cast(pa.timestamp(kind.unit))
        return moments.cast(kind)
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(kind) or kind.unit == "ns":
            raise
    # All are in the other form: without the zone that the column has, or with one that it has not.
    name, utc = str(kind.tz or zone), pa.timestamp("us", "UTC")
    instants_us = (
        column.cast(utc if kind.tz is None else pa.timestamp("us")).cast(pa.int64()).combine_chunks()
    )
    numbers = instants_us.fill_null(0).to_numpy()
    other = _local(numbers, name) if kind.tz is None else zone_of(name).instants(numbers)
    moments = pa.array(other, mask=instants_us.is_null().to_numpy(zero_copy_only=False))
    return pa.chunked_array([moments.cast(pa.timestamp("us", kind.tz)).cast(kind)])


def local_time(moment: datetime, zone: str) -> datetime:
    """Convert a moment to its local time. Raises `ValueError` for the second of two moments with one local time."""
    [local_us] = _local(np.array([instant_us(moment)]), zone)
    return datetime(1970, 1, 1) + timedelta(microseconds=int(local_us))


def _local(instants_us: IntArray, zone: str) -> IntArray:
    local = zone_of(zone).local_times(instants_us)
    if not np.array_equal(zone_of(zone).instants(local), instants_us):
        # A `ValueError`, as what Arrow cannot read is.
        raise pa.ArrowInvalid(f"a local time of {zone} that comes twice is the first of both")
    return local


def _has_infinity(column: pa.ChunkedArray | pa.Array) -> bool:
    """True if a number may have been too large for its type."""
    kind = column.type
    if pa.types.is_floating(kind):
        return bool(pc.any(pc.is_inf(column)).as_py())
    if isinstance(column, pa.ChunkedArray):
        return pa.types.is_nested(kind) and any(map(_has_infinity, column.chunks))
    if pa.types.is_struct(kind):
        return any(map(_has_infinity, column.flatten()))
    return pa.types.is_list(kind) and _has_infinity(column.flatten())


# -- one alone --------------------------------------------------------------------------------------------------------------


class _Object(dict[str, Any]):
    """A JSON object with duplicate names."""

    def __init__(self, pairs: Iterable[tuple[str, Any]]) -> None:
        self.twice: set[str] = set()
        for name, value in pairs:
            if name in self:
                self.twice.add(name)
            self[name] = value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Object(pairs)


class NoRecord(ValueError):
    """Error for bytes that are no record of a schema, with the reason."""


def read_one(value: bytes, schema: pa.Schema, zone: str = "UTC") -> dict[str, Any]:
    """Read one record as Python values that fit the types of the schema, if they can. Raises `NoRecord`.

    zone: of columns without one
    """
    if not value.strip():
        raise NoRecord("the value is empty")
    try:
        record = json.loads(
            value.decode("utf-8-sig"), parse_int=Decimal, parse_float=Decimal, object_pairs_hook=_object
        )
    except (ArithmeticError, RecursionError, ValueError) as error:
        raise NoRecord(f"no JSON: {error}") from error
    if not isinstance(record, dict):
        raise NoRecord(f"a {type(record).__name__}, where an object is expected")
    row = {}
    for field in schema:
        try:
            [name] = _once(record, [field.name])
            row[name] = _shaped(record.get(name), field.type, zone)
        except (ArithmeticError, ValueError) as error:
            raise NoRecord(f"column {field.name!r}: {error}") from error
    return row


def _once(record: dict[str, Any], names: list[str]) -> list[str]:
    if isinstance(record, _Object):
        for name in record.twice.intersection(names):
            raise ValueError(f"{name!r} comes twice")
    return names


def _shaped(value: Any, kind: pa.DataType, zone: str) -> Any:
    """Make of a value of JSON one that a column of `kind` holds. Another value stays as it is, and does not fit."""
    t = pa.types
    if isinstance(value, dict) and t.is_struct(kind):
        return {
            n: _shaped(value.get(n), kind.field(n).type, zone) for n in _once(value, [f.name for f in kind])
        }
    if isinstance(value, list) and t.is_list(kind):
        return [_shaped(v, kind.value_type, zone) for v in value]
    if isinstance(value, str):
        return _of_text(value, kind, zone)
    return _of_number(value, kind) if isinstance(value, Decimal) else value


def _of_number(number: Decimal, kind: pa.DataType) -> int | float | Decimal:
    if pa.types.is_decimal(kind):
        return number
    if (
        pa.types.is_integer(kind)
        and number.adjusted() < _INTEGER_DIGITS
        and number == number.to_integral_value()
    ):
        return int(number)
    if pa.types.is_floating(kind) and math.isfinite(nearest := float(number)):
        return nearest
    raise ValueError(f"{number!s:.100} is no {kind}")


def _of_text(text: str, kind: pa.DataType, zone: str) -> Any:
    t = pa.types
    if t.is_timestamp(kind):
        return _moment(text, kind, zone)
    if t.is_date(kind):
        return date.fromisoformat(text)
    if t.is_time(kind):
        return time.fromisoformat(text)
    if t.is_decimal(kind) and _NUMBER.fullmatch(text):
        return Decimal(text)
    is_bytes = t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind)
    return text.encode() if is_bytes else text


def _moment(text: str, kind: pa.TimestampType, zone: str) -> Any:
    """Read an instant, or a local time in a column without a zone. Text without a zone is in the column's."""
    found = read_iso(text)
    if found.tzinfo is not None and kind.tz is None:
        remedy = f"read it as {pa.timestamp(kind.unit, 'UTC')}"
        try:
            found = local_time(found, zone)
        except ValueError as error:
            raise ValueError(f"{text!r:.100} does not fit {kind}, as {error}: {remedy}") from error
    if found.tzinfo is None and kind.tz is not None:
        of_column = zone_of(kind.tz).instant(found)
        found = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=of_column)
    finer = _FINER.search(text) if kind.unit == "ns" else None
    if finer is None:
        return found
    since = found - datetime(1970, 1, 1, tzinfo=None if kind.tz is None else UTC)
    return pa.scalar(since // timedelta(microseconds=1) * 1000 + int(finer[1].ljust(3, "0")), kind)
