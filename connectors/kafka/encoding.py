"""Rows as the values and keys of records: JSON, encoded a column at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def json_rows(table: pa.Table, columns: Sequence[str] | None = None) -> list[str]:
    """Each row as a JSON object.

    Times are ISO 8601, durations microseconds, decimals text, bytes base64; NaN and the infinities, which
    JSON has not, are null.
    """
    import polars as pl

    if columns is not None:
        table = table.select(list(columns))
    if len(table) == 0:
        return []
    frame = pl.DataFrame(pl.from_arrow(table))
    plain = [_plain(pl.col(name), kind).alias(name) for name, kind in frame.schema.items()]
    encoded = frame.select(pl.struct(plain).struct.json_encode()).to_series()
    return encoded.to_list()


def _plain(column: Any, kind: Any) -> Any:
    """The column as types that JSON has."""
    import polars as pl

    if isinstance(kind, pl.Struct):
        return pl.struct([_plain(column.struct.field(f.name), f.dtype).alias(f.name) for f in kind.fields])
    if isinstance(kind, (pl.List, pl.Array)):
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
