"""Types of columns: the common wider type of two, and conversion of columns to it. Semantics "Types".

A stream's column has one type, which only ever gets wider: numbers and decimals widen, structs gain fields, dictionaries
and views are decoded. Everything that was written in a narrower type is converted to the present one when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.errors import ConfigurationError

#: Values in Python that hold others.
HOLDERS = (Mapping, list, tuple, set, frozenset)
#: Lists and structs inside each other. Parquet and Arrow's own files write more than they read.
NESTED_MOST = 32
#: Digits of the widest decimals: of 128 bits, of 256.
_DIGITS, _MOST_DIGITS = 38, 76
#: Types that most columns have, which need no decoding.
_PLAIN = {kind.id for kind in (pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.binary())}
#: Digits of a decimal that a float gives back.
FLOAT_DIGITS = 15
#: The largest power of ten that a float holds exactly.
_EXACT_POWER = 22
#: Bits of integers that floats hold.
_MANTISSA = {pa.float16(): 11, pa.float32(): 24, pa.float64(): 53}
_FLOATS = (*_MANTISSA,)
_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNITS = ("s", "ms", "us", "ns")
#: Digits of an integer by its width in bits.
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Choose the type that values of type `kind` have here: no dictionary, view, extension or narrow decimal.

    Structs without fields, which no Parquet file holds, are null.
    """
    if kind.id in _PLAIN:
        return kind
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_struct(kind):
        if kind.num_fields == 0:
            return pa.null()
        return pa.struct([f.with_type(plain_type(f.type)) for f in kind])
    if is_listlike(kind):
        values = kind.value_field.with_type(plain_type(kind.value_type))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(values, kind.list_size)
        return pa.large_list(values) if pa.types.is_large_list(kind) else pa.list_(values)
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_decimal(kind):
        # Arrow does not group by narrower ones, and Parquet holds no scale below 0.
        digits, scale = kind.precision - min(kind.scale, 0), max(kind.scale, 0)
        if pa.types.is_decimal256(kind) or digits > _DIGITS:
            return pa.decimal256(min(digits, _MOST_DIGITS), scale)
        return pa.decimal128(digits, scale)
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary(0):  # which no Parquet file holds
        return pa.binary()
    return pa.binary() if kind == pa.binary_view() else kind


def declared_type(kind: pa.DataType) -> pa.DataType:
    """Choose the type of a column that is declared as `kind` and made by code of the user's, whose values may be extensions."""
    is_kept = isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind)
    return kind if is_kept else plain_type(kind)


def widened(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """Choose the narrowest type that holds all values of both exactly; None where there is none.

    Two exceptions are decided by value, at the border (`rounds`): next to floats, integers of 64 bits are floats up to 2**53,
    and decimals of up to 15 digits are the float that prints as they do.
    """
    a, b = plain_type(a), plain_type(b)
    if a == b or pa.types.is_null(b):
        return a
    if is_too_deep(b):
        return None
    if pa.types.is_null(a):
        return b
    for is_kind, common in _FAMILIES:
        if is_kind(a) and is_kind(b):
            return common(a, b)
    return None


def rounds(source: pa.DataType, target: pa.DataType) -> bool:
    """True if `target`, to which `source` widens, has floats for numbers that have more digits."""
    if pa.types.is_floating(target):
        return is_wide(source)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        return any(rounds(f.type, target.field(f.name).type) for f in source)
    if pa.types.is_nested(source) and pa.types.is_nested(target):
        both = zip(_inner(source), _inner(target), strict=False)
        return any(rounds(one, other) for one, other in both)
    return False


def is_wide(kind: pa.DataType) -> bool:
    """True if numbers are in it that floats may not hold: integers of 64 bits, decimals of more than 15 digits."""
    if pa.types.is_nested(kind):
        return any(map(is_wide, _inner(kind)))
    if pa.types.is_decimal(kind):
        return bool(kind.precision > FLOAT_DIGITS)
    return bool(pa.types.is_integer(kind) and kind.bit_width == 64)


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(i).type for i in range(kind.num_fields)]


def is_too_deep(kind: pa.DataType) -> bool:
    """True if lists and structs are inside each other beyond what a column holds."""
    level = [kind]
    for _ in range(NESTED_MOST + 1):
        level = [k.field(i).type for k in level if pa.types.is_nested(k) for i in range(k.num_fields)]
    return bool(level)


def holds_too_deep(value: Any) -> bool:
    """True if a Python value is too deep, as in `is_too_deep`, or holds itself."""
    level: list[Any] = [value]
    for _ in range(NESTED_MOST + 1):
        inner = {id(v): v for one in level for v in _values(one)}
        level = [v for v in inner.values() if isinstance(v, HOLDERS)]
        if not level:
            return False
    return True


def _values(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, HOLDERS) else ()


def is_key(kind: pa.DataType) -> bool:
    """True if values of that type have an order and bytes of their own, so that they can be keys."""
    t = pa.types
    plain = (
        t.is_null,
        t.is_boolean,
        t.is_integer,
        t.is_float32,
        t.is_float64,
        t.is_decimal,
        t.is_date,
        t.is_timestamp,
    )
    more = (t.is_time, t.is_duration, is_text, t.is_binary, t.is_large_binary, t.is_fixed_size_binary)
    return any(is_one(plain_type(kind)) for is_one in (*plain, *more))


def is_listlike(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _number(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    floats = [kind for kind in (a, b) if pa.types.is_floating(kind)]
    if len(floats) == 2:
        return max(a, b, key=lambda kind: kind.bit_width)
    if floats:
        other = b if floats == [a] else a
        if pa.types.is_decimal(other):
            return pa.float64()
        bits = min(_value_bits(other), 53)
        return next(f for f in _FLOATS if f.bit_width >= floats[0].bit_width and _MANTISSA[f] >= bits)
    if pa.types.is_integer(a) and pa.types.is_integer(b):
        signed = [pa.types.is_signed_integer(kind) for kind in (a, b)]
        if signed[0] == signed[1]:
            return max(a, b, key=lambda kind: kind.bit_width)
        bits = max(map(_value_bits, (a, b)))
        fitting = next((kind for kind in _SIGNED if _value_bits(kind) >= bits), None)
        return pa.decimal128(20, 0) if fitting is None else fitting
    return _with_decimal(a, b)


def _value_bits(kind: pa.DataType) -> int:
    """Bits of an integer without its sign."""
    return int(kind.bit_width) - bool(pa.types.is_signed_integer(kind))


def _with_decimal(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    (whole_a, scale_a), (whole_b, scale_b) = _places(a), _places(b)
    whole, scale = max(whole_a, whole_b), max(scale_a, scale_b)
    if whole + scale > _MOST_DIGITS:
        return None
    wide = whole + scale > _DIGITS
    return pa.decimal256(whole + scale, scale) if wide else pa.decimal128(whole + scale, scale)


def _places(kind: pa.DataType) -> tuple[int, int]:
    """Digits before and after the point."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return _INTEGER_DIGITS[kind.bit_width] + (kind == pa.uint64()), 0


def _timestamp(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    unit = _unit(a, b)
    if unit is None or (a.tz is None) != (b.tz is None):
        return None
    return pa.timestamp(unit, a.tz if a.tz == b.tz else "UTC")


def _duration(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    unit = _unit(a, b)
    return None if unit is None else pa.duration(unit)


def _unit(a: pa.DataType, b: pa.DataType) -> str | None:
    """Return the finer unit; None for nanoseconds with others, whose years they do not hold."""
    if a.unit != b.unit and "ns" in (a.unit, b.unit):
        return None
    return str(max(a.unit, b.unit, key=_UNITS.index))


def _time(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    return max(a, b, key=lambda kind: _UNITS.index(kind.unit))


def _date(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    return pa.date64()


def _text(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    return pa.large_string()


def _binary(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    return pa.large_binary() if pa.large_binary() in (a, b) else pa.binary()


def _is_binary(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind))


def _list(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    values = widened(a.value_type, b.value_type)
    if values is None:
        return None
    if pa.types.is_fixed_size_list(a) and pa.types.is_fixed_size_list(b) and a.list_size == b.list_size:
        return pa.list_(values, a.list_size)
    return (
        pa.large_list(values) if pa.types.is_large_list(a) or pa.types.is_large_list(b) else pa.list_(values)
    )


def _map(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    keys, items = widened(a.key_type, b.key_type), widened(a.item_type, b.item_type)
    return None if keys is None or items is None else pa.map_(keys, items)


def _merged(a: pa.StructType, b: pa.StructType) -> pa.DataType | None:
    """Return the fields of both, those of `a` first."""
    names = list(dict.fromkeys(f.name for f in (*a, *b)))
    if len(names) > len({f.name for f in a} | {f.name for f in b}) or any(
        len({f.name for f in s}) < s.num_fields for s in (a, b)
    ):
        return None
    fields = []
    for name in names:
        ours, theirs = (s.field(name).type if s.get_field_index(name) >= 0 else pa.null() for s in (a, b))
        kind = widened(ours, theirs)
        if kind is None:
            return None
        fields.append(pa.field(name, kind))
    return pa.struct(fields)


#: Types with something in common, and what two of them widen to.
_FAMILIES: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], pa.DataType | None]], ...
] = (
    (_is_number, _number),
    (is_text, _text),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_struct, _merged),
    (is_listlike, _list),
    (pa.types.is_map, _map),
    (_is_binary, _binary),
    (pa.types.is_date, _date),
    (pa.types.is_time, _time),
    (pa.types.is_duration, _duration),
)


def as_type(values: Any, kind: pa.DataType) -> Any:
    """Return `values` in a type that theirs widens to; numbers become the nearest floats, also inside lists and structs."""
    if values.type == kind:
        return values
    if isinstance(values.type, pa.BaseExtensionType):
        return as_type(_stored(values), kind)  # Arrow casts views of an extension to other bytes
    if pa.types.is_dictionary(values.type):
        values = values.cast(plain_type(values.type))
    if pa.types.is_decimal(values.type) and kind == pa.float64():
        if isinstance(values, pa.ChunkedArray):
            return pa.chunked_array([nearest_floats(chunk) for chunk in values.chunks], kind)
        return nearest_floats(values)
    if pa.types.is_nested(values.type) and _is_made_in_python(values.type, kind):
        filled = pa.array([_filled(v, kind) for v in values.to_pylist()], kind)
        return pa.chunked_array([filled]) if isinstance(values, pa.ChunkedArray) else filled
    return values.cast(kind, safe=not _gets_float(values.type, kind))


def _stored(values: Any) -> Any:
    """Values of an extension type as they are stored."""
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
    return values.storage


def nearest_floats(values: pa.Array) -> pa.Array:
    """Convert decimals to the nearest floats, which Arrow's cast misses by a bit.

    They are the same for decimals of any scale: keys that widen are hashed as these.
    """
    values = values.cast(plain_type(values.type))
    digits, scale = values.type.precision, values.type.scale
    kind = pa.decimal256(digits, 0) if pa.types.is_decimal256(values.type) else pa.decimal128(digits, 0)
    unscaled = pa.Array.from_buffers(kind, len(values), values.buffers(), offset=values.offset)
    if scale <= _EXACT_POWER:
        try:
            # A division of two exact floats is the nearest one.
            return pc.divide(unscaled.cast(pa.int64()).cast(pa.float64()), 10.0**scale)
        except pa.ArrowInvalid:  # more digits than floats hold
            pass
    coded = values.dictionary_encode()
    return pa.array(map(float, coded.dictionary.to_pylist()), pa.float64()).take(coded.indices)


def _is_made_in_python(source: pa.DataType, target: pa.DataType) -> bool:
    """True if structs without fields are in it, or decimals that become floats."""
    if pa.types.is_decimal(source):
        return bool(pa.types.is_floating(target))
    if pa.types.is_struct(source):
        of_target = {f.name: f.type for f in target} if pa.types.is_struct(target) else {}
        fields = [_is_made_in_python(f.type, of_target.get(f.name, pa.null())) for f in source]
        return not fields or any(fields)
    if pa.types.is_nested(source) and pa.types.is_nested(target):
        return any(map(_is_made_in_python, _inner(source), _inner(target)))
    return False


def _filled(value: Any, kind: pa.DataType) -> Any:
    """Return a value in the type of the column: structs without fields are null, decimals floats."""
    if value is None or pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        return {f.name: _filled(value.get(f.name), f.type) for f in kind}
    if isinstance(value, Mapping):  # without fields, beside values of another type
        return None
    if is_listlike(kind):
        return [_filled(v, kind.value_type) for v in value]
    if pa.types.is_map(kind):
        return [(k, _filled(v, kind.item_type)) for k, v in value]
    return float(value) if pa.types.is_floating(kind) else value


def _gets_float(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_nested(target):
        return any(_gets_float(pa.null(), target.field(i).type) for i in range(target.num_fields))
    return bool(pa.types.is_floating(target) and not pa.types.is_floating(source))


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one table of rows whose columns may have come, or widened, over time; absent ones are null."""
    if len(tables) == 1:
        return tables[0]
    first = tables[0].schema
    if all(t.schema.equals(first) for t in tables[1:]):
        return pa.concat_tables(tables)
    fields: dict[str, pa.Field] = {}
    for table in tables:
        for field in table.schema:
            known = fields.setdefault(field.name, field)
            fields[field.name] = known.with_type(_common(known.type, field.type)).with_nullable(True)
    return pa.concat_tables([_conformed(table, fields) for table in tables])


def _common(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """Return the type as `widened` does; sums of decimals, which have spare digits, give some up for a larger scale."""
    kind = widened(a, b)
    if kind is not None:
        return kind
    if pa.types.is_decimal(a) and pa.types.is_decimal(b):
        return pa.decimal256(_MOST_DIGITS, max(a.scale, b.scale))
    raise pa.ArrowTypeError(f"columns of {a} and {b} do not go together")


def _conformed(table: pa.Table, fields: dict[str, pa.Field]) -> pa.Table:
    there = dict(zip(table.column_names, table.columns, strict=True))
    columns = [
        as_type(there[name], field.type) if name in there else pa.nulls(len(table), field.type)
        for name, field in fields.items()
    ]
    return pa.table(columns, schema=pa.schema(list(fields.values())))


#: Types of Python's, with the types of columns that have their values.
_PYTHON = {
    bool: "pa.bool_()",
    bytes: "pa.binary()",
    date: "pa.date32()",
    datetime: "pa.timestamp('us', 'UTC')",
    float: "pa.float64()",
    int: "pa.int64()",
    str: "pa.string()",
}


def typed_field(column: str, kind: Any) -> pa.Field:
    """Make a field of a schema that a user writes as {column: type}."""
    try:
        return pa.field(column, kind)
    except (TypeError, ValueError):
        known = isinstance(kind, type) and _PYTHON.get(kind)
        remedy = f"use {known}" if known else "use one such as pa.string() or pa.int64()"
        raise ConfigurationError(
            f"column {column!r} is of {kind!r}, which is no type of pyarrow: {remedy}"
        ) from None
