"""Conversion of columns from outside to the stream's types, by value: it is exact, or returns the values that
do not convert, and the reasons."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.border import cut_repr
from windrow.core.types import FLOAT_DIGITS, as_type, is_wide, plain_type, rounds, widened

#: Integers up to it are floats.
_MOST_EXACT = 2**53


@dataclass(frozen=True)
class Brought:
    """Values in the type of their column, null where one does not fit; the resulting column; the reasons, by row."""

    values: Any
    field: pa.Field
    misfits: Mapping[int, str] = dataclasses.field(default_factory=dict)


#: Notes of a column that it holds numbers of more digits than floats: it never becomes one of floats.
_BEYOND = {b"beyond_floats": b"1"}


def joined(known: pa.Field, seen: pa.Field) -> pa.Field | None:
    """Give a column the type for its old and new values; None where these are incompatible.

    It is unchanged where one type does not hold all of the other: numbers of more digits with floats, nanoseconds with other
    units. What fits it counts then, and the rest does not.
    """
    kind = widened(known.type, seen.type)
    beyond = _is_beyond(known) or _is_beyond(seen)
    if kind is None or (beyond and (rounds(known.type, kind) or rounds(plain_type(seen.type), kind))):
        kind = known.type if _is_near(known.type, seen.type) else None
    return None if kind is None else pa.field(known.name, kind, metadata=_BEYOND if beyond else None)


def compared(one: pa.Field, other: pa.Field) -> pa.Field | None:
    """Choose the column in which values of two inputs are compared; None where they cannot be.

    Next to floats, numbers with more digits than floats keep their type: no value of a float changes then that equals one.
    """
    kind = widened(one.type, other.type)
    for field in (one, other):
        if kind is not None and _is_beyond(field) and rounds(field.type, kind):
            kind = None if pa.types.is_nested(kind) else field.type
    beyond = _is_beyond(one) or _is_beyond(other)
    return None if kind is None else pa.field(one.name, kind, metadata=_BEYOND if beyond else None)


def brought(
    values: pa.Array | pa.ChunkedArray, known: pa.Field, others: Sequence[pa.Field] = ()
) -> Brought | None:
    """Convert values to the common type with the known one; None where these are incompatible.

    others: columns of other inputs with which the values are compared. A value that this would change is a misfit.
    """
    misfits: dict[int, str] = {}
    for other in others:
        common = compared(known, other)
        judged = None if common is None else brought(values, common)
        if judged is None and common is not None and _is_cut(values.type, common.type):
            judged = _by_value(values, common)
        if judged is not None and judged.misfits:
            misfits.update(judged.misfits)
            values = without(values, judged.misfits)
    if misfits:
        rest = brought(values, known)
        return None if rest is None else Brought(rest.values, rest.field, {**misfits, **rest.misfits})
    seen = plain_type(values.type)
    field = joined(known, pa.field(known.name, seen))
    if field is None:
        return None
    if is_by_value(field, seen):
        return _by_value(values, field)
    return Brought(as_type(values, field.type), noted(field, [values]))


def without(column: pa.Array | pa.ChunkedArray, rows: Mapping[int, str]) -> pa.Array | pa.ChunkedArray:
    """Return the column with nulls in these rows."""
    if not rows:
        return column
    return column.take(pa.array([None if i in rows else i for i in range(len(column))], pa.int64()))


def is_by_value(column: pa.Field, kind: pa.DataType) -> bool:
    """True if values of a type may be none of a column."""
    return rounds(plain_type(kind), column.type) or widened(column.type, kind) != column.type


def noted(column: pa.Field, values: Iterable[Any]) -> pa.Field:
    """Return the column, with a note where one of these columns of values holds more digits than floats."""
    if _is_beyond(column) or not is_wide(column.type) or not any(map(_holds_beyond, values)):
        return column
    return column.with_metadata(_BEYOND)


def _is_beyond(field: pa.Field) -> bool:
    return field.metadata is not None and b"beyond_floats" in field.metadata


def _is_cut(kind: pa.DataType, common: pa.DataType) -> bool:
    """True if a cast from one type to the other rounds, and raises nothing."""
    return bool(pa.types.is_floating(plain_type(kind)) and pa.types.is_decimal(common))


def _is_near(a: pa.DataType, b: pa.DataType) -> bool:
    """True if values of `b` may be values of `a`, though there is no type for all of both."""
    t = pa.types
    if t.is_timestamp(a) and t.is_timestamp(b):
        return (a.tz is None) == (b.tz is None)
    return bool(
        (t.is_duration(a) and t.is_duration(b))
        or (t.is_integer(a) and t.is_floating(b))
        or (t.is_floating(a) and t.is_integer(b))
    )


def _holds_beyond(values: Any) -> bool:
    """True if a number in it has more digits than floats hold."""
    if isinstance(values, pa.ChunkedArray):
        return any(map(_holds_beyond, values.chunks))
    if isinstance(values, pa.ExtensionArray):
        return _holds_beyond(values.storage)
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _holds_beyond(values.dictionary)
    if not is_wide(kind):
        return False
    if pa.types.is_struct(kind):
        return any(map(_holds_beyond, values.flatten()))
    if pa.types.is_map(kind):
        return _holds_beyond(values.keys) or _holds_beyond(values.items)
    if pa.types.is_nested(kind):
        return _holds_beyond(values.flatten())
    if pa.types.is_decimal(kind):
        values = values.cast(plain_type(kind))
    most = Decimal(10) ** (FLOAT_DIGITS - kind.scale) if pa.types.is_decimal(kind) else _MOST_EXACT
    ends = pc.min_max(values).as_py()
    return ends["min"] is not None and not -most <= ends["min"] <= ends["max"] <= most


def _by_value(values: pa.Array | pa.ChunkedArray, field: pa.Field) -> Brought:
    """Values in the type of the column, null where one is none of it."""
    kind = field.type
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    values = as_type(values, plain_type(values.type))
    parts, misfits, left = [], {}, [(0, len(values))]
    while left:
        start, end = left.pop()
        part = values.slice(start, end - start)
        try:
            if rounds(part.type, kind):
                if _holds_beyond(part):
                    raise pa.ArrowInvalid("more digits than floats hold")
                parts.append(as_type(part, kind))
            elif pa.types.is_floating(part.type) and pa.types.is_decimal(kind):  # whose cast rounds
                parts.append(part.cast(pa.int64()).cast(pa.decimal128(19)).cast(kind))
            else:
                parts.append(part.cast(kind))
        except pa.ArrowInvalid:
            if end - start == 1 and _is_cut(part.type, kind) and (one := _as_decimal(part[0].as_py(), kind)):
                parts.append(one)
                continue
            if end - start > 1:
                middle = (start + end) // 2
                left += [(middle, end), (start, middle)]
                continue
            misfits[start] = f"{cut_repr(part[0].as_py())} is no {kind} without loss"
            parts.append(pa.nulls(1, kind))
    return Brought(pa.concat_arrays(parts) if parts else pa.nulls(0, kind), field, misfits)


def _as_decimal(value: float, kind: pa.DataType) -> pa.Array | None:
    """Return the decimal that prints as the float does; None where the type does not hold it."""
    try:
        return pa.array([Decimal(repr(value))], kind)
    except (pa.ArrowException, ArithmeticError, ValueError):
        return None
