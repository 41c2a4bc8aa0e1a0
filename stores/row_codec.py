"""Row codec: each row as a value, for stores that find, count and evict single rows.

    u8 1, msgpack [schema id, column, ...]

The id is the xxh3 of the schema's bytes, which lie in an auxiliary family: under `s<id>` those of window state, under `h<id>`
those of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import xxhash

from windrow.core.arrays import IntArray
from windrow.core.envelope import check_version
from windrow.core.errors import CorruptState
from windrow.core.types import concat
from windrow.stores.kv import KV, Batch

FORMAT = 1


def put_schema(
    kv: KV, aux: str, batch: Batch, schema: pa.Schema, letter: bytes = b"s", *, again: bool = False
) -> bytes:
    """Keep a schema, once; returns the name that values have for it. again: keep it in each step that has such values."""
    packed = schema.serialize().to_pybytes()
    name = xxhash.xxh3_64_digest(packed)
    if again or kv.get(aux, letter + name) is None:
        batch.put(aux, letter + name, packed)
    return name


class Schemas:
    """Schemas that `put_schema` kept, each read once."""

    def __init__(self, kv: KV, aux: str, letter: bytes = b"s") -> None:
        self._kv, self._aux, self._letter = kv, aux, letter
        self._read: dict[bytes, pa.Schema] = {}

    def of(self, name: bytes) -> pa.Schema:
        if name not in self._read:
            packed = self._kv.get(self._aux, self._letter + name)
            if packed is None:
                raise CorruptState(f"rows of schema {name.hex()} are here, the schema is not")
            self._read[name] = pa.ipc.read_schema(pa.py_buffer(packed))
        return self._read[name]


def pack_rows(rows: pa.Table, schema_id: bytes) -> list[bytes]:
    """Return the value of each row. schema_id: the name of their schema, as `put_schema` gives it."""
    pack, head = msgpack.Packer(autoreset=True).pack, bytes((FORMAT,))
    columns = [pack_column(c) for c in rows.columns]
    each: Iterable[Sequence[Any]] = zip(*columns, strict=True) if columns else [()] * len(rows)
    return [head + pack((schema_id, *values)) for values in each]


def unpack_rows(values: Sequence[bytes], schemas: Schemas, kind: str) -> list[tuple[pa.Table, IntArray]]:
    """Return the rows of each schema, and their places among the values. kind: of the values, for errors."""
    for version in {value[0] for value in values}:
        check_version(kind, version, FORMAT)
    # Unpacked together, as one array: the version bytes are numbers of msgpack.
    head = b"\xdd" + (2 * len(values)).to_bytes(4, "big")
    bodies: Sequence[Any] = msgpack.unpackb(head + b"".join(values), use_list=False)[1::2]
    by_schema: dict[bytes, list[int]] = {}
    for i, body in enumerate(bodies):
        by_schema.setdefault(body[0], []).append(i)
    parts = []
    for name, places in by_schema.items():
        schema, (_, *columns) = schemas.of(name), zip(*(bodies[i] for i in places), strict=True)
        arrays = [unpack_column(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
        parts.append((pa.table(arrays, schema=schema), np.array(places, dtype=np.int64)))
    return parts


def in_places(parts: Sequence[tuple[pa.Table, IntArray]]) -> pa.Table:
    """Return the rows of all parts, of which there is one at least, in their places."""
    if len(parts) == 1:
        return parts[0][0]
    rows, places = concat([rows for rows, _ in parts]), np.concatenate([places for _, places in parts])
    return rows.take(pa.array(np.argsort(places, kind="stable")))


def pack_table(rows: pa.Table) -> bytes:
    """Return an Arrow IPC stream of one record batch, after a version byte."""
    sink = pa.BufferOutputStream()
    sink.write(bytes((FORMAT,)))
    batch = rows.combine_chunks().to_batches()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        for b in batch:
            writer.write_batch(b)
    value: bytes = sink.getvalue().to_pybytes()
    return value


def unpack_table(value: bytes) -> pa.Table:
    """Return the table that `pack_table` packed; raises for a newer format and for damage."""
    check_version("a table", value[0] if value else 0, FORMAT)
    try:
        return pa.ipc.open_stream(pa.py_buffer(value)[1:]).read_all()
    except pa.ArrowInvalid as error:
        raise CorruptState(f"window block of {len(value)} bytes cannot be read: {error}") from error


def pack_column(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Values that msgpack takes, without loss under the column's type."""
    kind = column.type
    if (
        pa.types.is_timestamp(kind)
        or pa.types.is_time64(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_date64(kind)
    ):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    elif pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    elif pa.types.is_nested(kind):
        return [None if v is None else _pack_nested(v, kind) for v in column]
    values: list[Any] = column.to_pylist()
    return values


def _pack_nested(value: pa.Scalar, kind: pa.DataType) -> Any:
    """Nested values travel as an Arrow stream of their own: rare, and without loss."""
    if not value.is_valid:
        return None
    return pack_table(pa.table({"v": pa.array([value.as_py()], type=kind)}))


def unpack_column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return the column that `pack_column` packed."""
    if (
        pa.types.is_timestamp(kind)
        or pa.types.is_time64(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_date64(kind)
    ):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    if pa.types.is_nested(kind):
        if not any(v is not None for v in values):
            return pa.nulls(len(values), kind)
        tables = [pa.table({"v": pa.nulls(1, kind)}) if v is None else unpack_table(v) for v in values]
        return pa.concat_tables(tables).column("v").combine_chunks()
    return pa.array(values, kind)
