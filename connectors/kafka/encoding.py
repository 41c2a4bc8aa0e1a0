"""Rows as the values and keys of records: JSON, encoded a column at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def json_rows(table: pa.Table, columns: Sequence[str] | None = None) -> list[str]:
    """Return each row as a JSON object.

    Times are ISO 8601, those of a zone in UTC, durations whole microseconds, decimals text, bytes base64; NaN and the
    infinities, which JSON has not, are null.
    """
    import polars as pl

    if columns is not None:
        table = table.select(list(columns))
    if len(table) == 0:
        return []
    table = table.cast(pa.schema([f.with_type(plain_kind(f.type)) for f in table.schema]))
    frame = pl.DataFrame(pl.from_arrow(table))
    plain = [_plain(pl.col(name), kind).alias(name) for name, kind in frame.schema.items()]
    encoded = frame.select(pl.struct(plain).struct.json_encode()).to_series()
    return encoded.to_list()


def json_keys(table: pa.Table, columns: Sequence[str]) -> list[str]:
    """Encode as `json_rows`, with one text for the values of one key, also after integers have widened to floats.

    Whole floats are written as integers are; NaN, the infinities and durations with parts of a microsecond are text.
    """
    kinds = [table.schema.field(name).type for name in columns]
    if not any(pa.types.is_floating(kind) or kind == pa.duration("ns") for kind in kinds):
        return json_rows(table, columns)
    parts: list[Any] = []
    for name in columns:
        parts += [
            "," if parts else "{",
            json.dumps(name, ensure_ascii=False) + ":",
            _key_texts(table.column(name)),
        ]
    keys: list[str] = pc.binary_join_element_wise(*parts, "}", "").to_pylist()
    return keys


def _key_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_floating(kind):
        return _of_floats(column.cast(pa.float64()))
    texts = [row[5:-1] for row in json_rows(pa.table({"v": column}))]  # of {"v":...}
    if kind == pa.duration("ns"):
        for i, count in enumerate(column.cast(pa.int64()).to_pylist()):
            if count is not None and count % 1000:
                texts[i] = f'"{Decimal(count) / 1000}"'
    return pa.chunked_array([texts], pa.string())


def _of_floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), 2.0**53))
    integers = pc.if_else(whole, column, None).cast(pa.int64()).cast(pa.string())
    texts = pc.if_else(pc.is_finite(column), column, None).cast(pa.string())
    named = pc.if_else(
        pc.is_nan(column), '"NaN"', pc.if_else(pc.greater(column, 0.0), '"Infinity"', '"-Infinity"')
    )
    return pc.coalesce(integers, texts, named, pa.scalar("null"))


def plain_kind(kind: pa.DataType) -> pa.DataType:
    """Choose text for decimals that polars does not hold, which become text anyway, lists for those of a fixed size, and UTC
    for times of a zone: the text of a local time has no seconds of its offset.
    """
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_decimal256(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(plain_kind(f.type)) for f in kind])
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(plain_kind(kind.value_type)))
    return kind


def _plain(column: Any, kind: Any) -> Any:
    """Return the column as types that JSON has."""
    import polars as pl

    if isinstance(kind, pl.Struct):
        fields = [_plain(column.struct.field(f.name), f.dtype).alias(f.name) for f in kind.fields]
        return pl.when(column.is_not_null()).then(pl.struct(fields))
    if isinstance(kind, pl.List):
        return column.list.eval(_plain(pl.element(), kind.inner))
    if isinstance(kind, pl.Duration):
        return column.dt.total_microseconds()
    if isinstance(kind, pl.Decimal):
        return column.cast(pl.String)
    if isinstance(kind, pl.Datetime) and kind.time_zone is None:
        return column.dt.to_string("iso:strict")
    if kind == pl.Binary:
        return column.bin.encode("base64")
    if kind.is_float():
        return pl.when(column.is_finite()).then(column)
    return column
