"""Message rows as values and back: version byte, msgpack `[schema id, position, values...]`; schemas are under `h<id>` in
an auxiliary family. The position is nil where the key has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgpack
import numpy as np
import pyarrow as pa
import xxhash

from windrow.core.arrays import BoolArray
from windrow.core.envelope import check_version
from windrow.core.errors import CorruptState
from windrow.core.message_keys import Position
from windrow.core.types import as_type, concat
from windrow.operators.steps.columns import ORDINAL, POSITION_COLUMNS
from windrow.operators.steps.intake import Slice
from windrow.stores.kv import KV, Batch
from windrow.stores.message_store import Bound, compare
from windrow.stores.window_state import pack_column, unpack_column

FORMAT = 1
POSITION_TYPES = (pa.string(), pa.int64(), pa.int64(), pa.int64())


def pack_rows(
    kv: KV, batch: Batch, aux_cf: str, table: pa.Table, *, with_positions: bool = False
) -> list[bytes]:
    """Return the values of rows; a new schema is filed."""
    user = table.select([n for n in table.column_names if not n.startswith("__")])
    packed = user.schema.remove_metadata().serialize().to_pybytes()
    schema_id = xxhash.xxh3_64_digest(packed)
    if kv.get(aux_cf, b"h" + schema_id) is None:
        batch.put(aux_cf, b"h" + schema_id, packed)
    pack = msgpack.Packer(autoreset=True).pack
    head = bytes((FORMAT,))
    columns = [pack_column(c) for c in user.columns]
    positions: Sequence[object] = (
        list(zip(*(table.column(c).to_pylist() for c in POSITION_COLUMNS), strict=True))
        if with_positions
        else [None] * len(table)
    )
    rows = zip(*columns, strict=True) if columns else [()] * len(table)
    return [head + pack((schema_id, p, *values)) for p, values in zip(positions, rows, strict=True)]


def unpack_rows(
    kv: KV,
    aux_cf: str,
    values: Sequence[bytes],
    positions: Sequence[Position] | None,
    schema: pa.Schema,
) -> pa.Table:
    """Return the rows of values, in order, with position columns; columns are those of `schema`, absent ones null."""
    bodies = []
    for value in values:
        check_version("a message", value[0], FORMAT)
        bodies.append(msgpack.unpackb(value[1:]))
    groups: dict[bytes, list[int]] = {}
    for i, body in enumerate(bodies):
        groups.setdefault(body[0], []).append(i)
    tables, order = [], []
    for schema_id, indices in groups.items():
        packed = kv.get(aux_cf, b"h" + schema_id)
        if packed is None:
            raise CorruptState(f"messages of schema {schema_id.hex()} are here, the schema is not")
        stored = pa.ipc.read_schema(pa.py_buffer(packed))
        columns = list(zip(*(bodies[i] for i in indices), strict=True))
        arrays = {
            f.name: as_type(unpack_column(list(c), f.type), schema.field(f.name).type)
            for c, f in zip(columns[2:], stored, strict=True)
        }
        n = len(indices)
        where = columns[1] if positions is None else [positions[i] for i in indices]
        places = [pa.array([p[j] for p in where], kind) for j, kind in enumerate(POSITION_TYPES)]
        own = [arrays[f.name] if f.name in arrays else pa.nulls(n, f.type) for f in schema]
        tables.append(pa.table([*own, *places], schema=empty_rows(schema).schema))
        order += indices
    if not tables:
        return empty_rows(schema)
    table = concat(tables)
    if len(tables) > 1:
        table = table.take(pa.array(np.argsort(np.array(order), kind="stable")))
    return table


def empty_rows(schema: pa.Schema) -> pa.Table:
    """Return an empty table of a schema, with position columns."""
    fields = [pa.field(n, t) for n, t in zip(POSITION_COLUMNS, POSITION_TYPES, strict=True)]
    return pa.schema([*schema, *fields]).empty_table()


def with_positions(table: pa.Table, step: int, source: str = "") -> pa.Table:
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


def inside(rows: Slice, start: Bound, end: Bound) -> BoolArray:
    """True for rows from `start` to `end`, both inclusive, as a message store has them."""
    is_inside: BoolArray = (rows.times >= start[0]) & (rows.times <= end[0])
    for bound, sign in ((start, 1), (end, -1)):
        for i in np.flatnonzero(rows.times == bound[0]).tolist() if bound[1] is not None else ():
            source, partition, offset, ordinal = (rows.table.column(c)[i].as_py() for c in POSITION_COLUMNS)
            is_inside[i] &= sign * compare((source, partition, offset, ordinal), bound[1]) >= 0
    return is_inside
