"""Message rows as values and back (`stores/row_codec.py`). Positions are columns of them where the key does not have them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.message_keys import Position
from windrow.core.types import as_type
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, POSITION_COLUMNS, SOURCE
from windrow.operators.steps.intake import Slice
from windrow.stores import row_codec
from windrow.stores.kv import KV, Batch
from windrow.stores.message_store import Bound, PositionColumns, compare
from windrow.stores.row_codec import Schemas, in_places, put_schema

POSITION_TYPES = (pa.string(), pa.int64(), pa.int64(), pa.int64())


def pack_rows(
    kv: KV, batch: Batch, aux_cf: str, table: pa.Table, *, with_positions: bool = False
) -> list[bytes]:
    """Return the values of rows; a new schema is filed."""
    rows = table.select([n for n in table.column_names if not n.startswith("__")])
    if with_positions:
        for name, kind in zip(POSITION_COLUMNS, POSITION_TYPES, strict=True):
            rows = rows.append_column(name, as_type(table.column(name), kind))
    schema = rows.schema.remove_metadata()
    return row_codec.pack_rows(rows, put_schema(kv, aux_cf, batch, schema, b"h"))


def unpack_rows(
    kv: KV,
    aux_cf: str,
    values: Sequence[bytes],
    positions: Sequence[Position] | None,
    schema: pa.Schema,
) -> pa.Table:
    """Return the rows of values, in order, with position columns; columns are those of `schema`, absent ones null."""
    empty, parts = empty_rows(schema), []
    for rows, places in row_codec.unpack_rows(values, Schemas(kv, aux_cf, b"h"), "a message"):
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        if positions is not None:
            own = zip(*(positions[i] for i in places.tolist()), strict=True)
            columns |= {name: pa.array(c) for name, c in zip(POSITION_COLUMNS, own, strict=True)}
        present = [
            as_type(columns[f.name], f.type) if f.name in columns else pa.nulls(len(places), f.type)
            for f in empty.schema
        ]
        parts.append((pa.table(present, schema=empty.schema), places))
    return in_places(parts) if parts else empty


def empty_rows(schema: pa.Schema) -> pa.Table:
    """Return an empty table of a schema, with position columns."""
    fields = [pa.field(n, t) for n, t in zip(POSITION_COLUMNS, POSITION_TYPES, strict=True)]
    return pa.schema([*schema, *fields]).empty_table()


def with_positions(table: pa.Table, step: int | IntArray, source: str = "") -> pa.Table:
    """Return rows with all position columns; those without are numbered by step, each a message of its own of `source`."""
    n = len(table)
    if "__offset" in table.column_names:
        if ORDINAL not in table.column_names:
            table = table.append_column(ORDINAL, pa.array(np.zeros(n, dtype=np.int64)))
        return table
    zeros = pa.array(np.zeros(n, dtype=np.int64))
    numbers = pa.array((step << 32) + np.arange(n, dtype=np.int64))
    for name, column in zip(
        POSITION_COLUMNS, (pa.repeat(pa.scalar(source, pa.string()), n), zeros, numbers, zeros), strict=True
    ):
        table = table.append_column(name, column)
    return table


def positions_of(rows: pa.Table) -> PositionColumns:
    """Return the positions of messages, as columns."""
    partition, offset, ordinal = (rows.column(c).to_numpy() for c in (PARTITION, OFFSET, ORDINAL))
    return PositionColumns(rows.column(SOURCE), partition, offset, ordinal)


def inside(rows: Slice, start: Bound, end: Bound) -> BoolArray:
    """True for rows from `start` to `end`, both inclusive, as a message store has them."""
    is_inside: BoolArray = (rows.times >= start[0]) & (rows.times <= end[0])
    for bound, sign in ((start, 1), (end, -1)):
        for i in np.flatnonzero(rows.times == bound[0]).tolist() if bound[1] is not None else ():
            source, partition, offset, ordinal = (rows.table.column(c)[i].as_py() for c in POSITION_COLUMNS)
            is_inside[i] &= sign * compare((source, partition, offset, ordinal), bound[1]) >= 0
    return is_inside
