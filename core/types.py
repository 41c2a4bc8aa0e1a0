"""Types of columns: what two of them widen to, and columns brought to a wider one. Semantics "Types".

A stream's column has one type, which only ever gets wider: numbers and decimals widen, structs gain fields, dictionaries
and views are what they stand for. Everything that was written in a narrower type is brought to the present one when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

#: Values in Python that hold others.
HOLDERS = (Mapping, list, tuple, set, frozenset)
#: Lists and structs inside each other. Parquet and Arrow's own files write more than they read.
NESTED_MOST = 32
#: Digits of the widest decimals: of 128 bits, of 256.
_DIGITS, _MOST_DIGITS = 38, 76
#: Types that most columns have, which stand for nothing else.
_PLAIN = {kind.id for kind in (pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.binary())}
#: Digits of an integer by its width in bits.
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that values of a column of type `kind` have here: no dictionaries, views or extensions, and of structs without
    fields, which no Parquet file holds, nulls.
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
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if kind == pa.string_view():
        return pa.string()
    return pa.binary() if kind == pa.binary_view() else kind


def widened(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The narrowest type for the values of both; None where there is none. Next to floats, numbers become the nearest float."""
    a, b = plain_type(a), plain_type(b)
    if a == b or pa.types.is_null(b):
        return a
    if is_too_deep(b):
        return None
    if pa.types.is_null(a):
        return b
    if pa.types.is_decimal(a) or pa.types.is_decimal(b):
        return _with_decimal(a, b)
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b) and None not in (a.tz, b.tz):
        units = ("s", "ms", "us", "ns")
        return pa.timestamp(max(a.unit, b.unit, key=units.index), a.tz if a.tz == b.tz else "UTC")
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        return _merged(a, b)
    if pa.types.is_list(a) and pa.types.is_list(b):
        values = widened(a.value_type, b.value_type)
        return None if values is None else pa.list_(values)
    if is_text(a) != is_text(b):
        return None  # Arrow would make bytes of text
    try:
        schemas = [pa.schema([("x", a)]), pa.schema([("x", b)])]
        return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except (pa.ArrowTypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def is_too_deep(kind: pa.DataType) -> bool:
    """True if lists and structs are inside each other beyond what a column holds."""
    level = [kind]
    for _ in range(NESTED_MOST + 1):
        level = [k.field(i).type for k in level if pa.types.is_nested(k) for i in range(k.num_fields)]
    return bool(level)


def holds_too_deep(value: Any) -> bool:
    """As `is_too_deep`, of a value in Python; or if it holds itself."""
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
    kinds = (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)
    return any(is_kind(kind) for is_kind in kinds)


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _with_decimal(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if pa.types.is_floating(a) or pa.types.is_floating(b):
        return pa.float64()
    places = [_places(kind) for kind in (a, b)]
    if places[0] is None or places[1] is None:
        return None
    whole, scale = (max(one, other) for one, other in zip(places[0], places[1], strict=True))
    if whole + scale > _MOST_DIGITS:
        return None
    wide = whole + scale > _DIGITS
    return pa.decimal256(whole + scale, scale) if wide else pa.decimal128(whole + scale, scale)


def _places(kind: pa.DataType) -> tuple[int, int] | None:
    """Digits before and after the point; None of what is no exact number."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    if pa.types.is_integer(kind):
        return _INTEGER_DIGITS[kind.bit_width] + (kind == pa.uint64()), 0
    return None


def _merged(a: pa.StructType, b: pa.StructType) -> pa.DataType | None:
    """The fields of both, those of `a` first."""
    names = list(dict.fromkeys(f.name for f in (*a, *b)))
    if len(names) > len({f.name for f in a} | {f.name for f in b}) or any(
        len({f.name for f in s}) < s.num_fields for s in (a, b)
    ):
        return None
    fields = []
    for name in names:
        mine, theirs = (s.field(name).type if s.get_field_index(name) >= 0 else pa.null() for s in (a, b))
        kind = widened(mine, theirs)
        if kind is None:
            return None
        fields.append(pa.field(name, kind))
    return pa.struct(fields)


def as_type(values: Any, kind: pa.DataType) -> Any:
    """`values` in a type that theirs widens to; numbers become the nearest floats, also inside lists and structs."""
    if values.type == kind:
        return values
    if pa.types.is_dictionary(values.type) or isinstance(values.type, pa.BaseExtensionType):
        values = values.cast(plain_type(values.type))
    if _has_empty(values.type):
        filled = pa.array([_filled(v, kind) for v in values.to_pylist()], kind)
        return pa.chunked_array([filled]) if isinstance(values, pa.ChunkedArray) else filled
    return values.cast(kind, safe=not _gets_float(values.type, kind))


def _has_empty(kind: pa.DataType) -> bool:
    """True if a struct without fields is in it."""
    if pa.types.is_struct(kind) and kind.num_fields == 0:
        return True
    return pa.types.is_nested(kind) and any(_has_empty(kind.field(i).type) for i in range(kind.num_fields))


def _filled(value: Any, kind: pa.DataType) -> Any:
    """A value of a type with structs without fields, in that of the column: null where that has none either."""
    if value is None or pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        return {f.name: _filled(value.get(f.name), f.type) for f in kind}
    if pa.types.is_list(kind):
        return [_filled(v, kind.value_type) for v in value]
    if pa.types.is_map(kind):
        return [(k, _filled(v, kind.item_type)) for k, v in value]
    return value


def _gets_float(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_nested(target):
        return any(_gets_float(pa.null(), target.field(i).type) for i in range(target.num_fields))
    return bool(pa.types.is_floating(target) and not pa.types.is_floating(source))


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of rows whose columns may have come, or widened, over time; absent ones are null."""
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
    """As `widened`; sums of decimals, which have digits to spare, give some up for a larger scale."""
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
