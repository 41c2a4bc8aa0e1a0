"""Rows as the values and keys of records: JSON, encoded a column at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def json_rows(table: pa.Table, columns: Sequence[str] | None = None) -> list[str]:
    """Each row as a JSON object.

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
    """Encode as `json_rows`, with one text for the values of one key: -0.0 is 0.0, and NaN and infinities are text."""
    table = table.select(list(columns))
    for i, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            table = table.set_column(i, field, pc.add(table.column(i), pa.scalar(0, field.type)))
    keys = json_rows(table)
    for name in columns:
        for row, text in _no_numbers(table.column(name)):
            fields = {**json.loads(keys[row]), name: text}
            keys[row] = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    return keys


def _no_numbers(column: pa.ChunkedArray) -> Iterator[tuple[int, str]]:
    """Find the rows with NaN, an infinity, or a part of a microsecond, and the value as text."""
    kind = column.type
    if pa.types.is_floating(kind):
        rows = np.flatnonzero(pc.fill_null(pc.invert(pc.is_finite(column)), False))
        yield from ((int(i), json.dumps(column[i].as_py())) for i in rows)
    elif kind == pa.duration("ns"):
        counts = column.cast(pa.int64())
        rows = np.flatnonzero(counts.fill_null(0).to_numpy() % 1000)
        yield from ((int(i), str(Decimal(counts[i].as_py()) / 1000)) for i in rows)


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
    """The column as types that JSON has."""
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
