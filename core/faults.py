"""Faults of columns of Arrow: text that is not UTF-8, times outside the years 1 to 9999, types that no column has here."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.types import is_text

#: The years 1 to 9999: what a timestamp of Spark and of Python can hold.
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def without_place(kind: pa.DataType, *, unnamed: bool = False) -> str | None:
    """Name the type in `kind` that no column has here, such as unions and intervals; None where there is none.

    unnamed: of a column that the definition does not name, which may be one of intervals
    """
    t = pa.types
    refused = (t.is_union, t.is_run_end_encoded, t.is_list_view, t.is_large_list_view)
    if any(is_kind(kind) for is_kind in refused) or (t.is_interval(kind) and not unnamed):
        return str(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return without_place(kind.storage_type, unnamed=unnamed)
    if t.is_dictionary(kind):
        return without_place(kind.value_type, unnamed=unnamed)
    if t.is_nested(kind):
        found = (without_place(kind.field(i).type, unnamed=unnamed) for i in range(kind.num_fields))
        return next(filter(None, found), None)
    return None


def faults(column: pa.ChunkedArray | pa.Array) -> dict[int, str]:
    """Find the rows whose values cannot be counted: text that is not UTF-8, times outside the years 1 to 9999."""
    found: dict[int, str] = {}
    if not may_have_faults(column.type):
        return found
    first = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if not is_sound(chunk):
            found.update((first + i, why) for i, why in _faults_in(chunk))
        first += len(chunk)
    return found


def may_have_faults(kind: pa.DataType) -> bool:
    """True if a value of that type may be one that cannot be counted."""
    if isinstance(kind, pa.BaseExtensionType):
        return may_have_faults(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return may_have_faults(kind.value_type)
    if pa.types.is_nested(kind):
        return any(may_have_faults(kind.field(i).type) for i in range(kind.num_fields))
    return is_text(kind) or kind == pa.string_view() or bool(pa.types.is_temporal(kind))


def _faults_in(chunk: pa.Array) -> Iterator[tuple[int, str]]:
    """Yield rows with a fault, by halves."""
    parts = [(0, len(chunk))]
    while parts:
        start, end = parts.pop()
        part = chunk.slice(start, end - start)
        if is_sound(part):
            continue
        if end - start > 1:
            middle = (start + end) // 2
            parts += [(middle, end), (start, middle)]
        else:
            yield start, _shown(part)


def is_sound(values: pa.Array) -> bool:
    kind = values.type
    """True if all values of a column can be counted."""
    if isinstance(values, pa.ExtensionArray):
        return is_sound(values.storage)
    if pa.types.is_dictionary(kind):
        if is_sound(values.dictionary):
            return True
        return is_sound(values.dictionary.take(values.indices))
    if pa.types.is_struct(kind):
        return all(map(is_sound, values.flatten()))
    if pa.types.is_map(kind):
        # `flatten` of a slice, and without what lies below nulls.
        return not may_have_faults(kind) or is_sound(values.cast(pa.list_(kind.field(0))).flatten())
    if pa.types.is_nested(kind):
        return not may_have_faults(kind) or is_sound(values.flatten())
    if is_text(kind) or kind == pa.string_view():
        return _is_utf8(values)
    if not pa.types.is_temporal(kind) or pa.types.is_interval(kind):
        return True
    return _is_in_range(values)


def _is_utf8(values: pa.Array) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_in_range(values: pa.Array) -> bool:
    low, high = _range(values.type)
    width = pa.int32() if values.type.bit_width == 32 else pa.int64()
    ends = pc.min_max(values.view(width)).as_py()
    return ends["min"] is None or (low <= ends["min"] and ends["max"] <= high)


def _range(kind: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest value of a type of times, as it counts."""
    t = pa.types
    if t.is_date32(kind):
        return FIRST_US // 86_400_000_000, LAST_US // 86_400_000_000
    if t.is_date64(kind):
        return FIRST_US // 1000, LAST_US // 1000
    each = _PER_SECOND[kind.unit]
    if t.is_time(kind):
        return 0, 86_400 * each - 1
    most = 2**63 - 1
    if t.is_duration(kind):
        most = most if kind.unit == "ns" else most * each // 1_000_000
        return -most, most
    # The local time of a zone has to be in these years, too.
    margin_us = 0 if kind.tz in (None, "UTC", "+00:00") else 86_400_000_000
    if kind.unit == "ns":
        return margin_us * 1_000 - most, most - margin_us * 1_000
    return (FIRST_US + margin_us) * each // 1_000_000, (LAST_US - margin_us) * each // 1_000_000


def _shown(value: pa.Array) -> str:
    """Return text that says why the one value of a column is invalid."""
    kind = value.type
    if isinstance(value, pa.ExtensionArray):
        return _shown(value.storage)
    if pa.types.is_dictionary(kind):
        return _shown(value.dictionary.take(value.indices))
    if is_text(kind) or kind == pa.string_view():
        return f"{value.cast(pa.string()).view(pa.binary())[0].as_py()!r:.100} is no text: it is not UTF-8"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        number = value.view(pa.int32() if kind.bit_width == 32 else pa.int64())[0].as_py()
        return f"{number} as {kind} is outside the years 1 to 9999"
    if pa.types.is_temporal(kind):
        return f"{value.view(pa.int32() if kind.bit_width == 32 else pa.int64())[0].as_py()} is out of range of {kind}"
    return f"a value of {kind} has text that is not UTF-8, or a time outside the years 1 to 9999"
