"""Window metadata: two layouts of state rows.

Both keep *state rows*, Arrow columns with one row per (window, key): `__start`, `__end`, the key columns, counts, first and
last position, what was emitted, and the accumulators. A row is either a *delta*, to be merged with the rows before it,
or an *upsert*, which replaces them all (`__upsert`).

`BlockWindows` (`stores/delta_blocks.py`): one value per window and commit, an Arrow record batch of the rows of that commit.
`PlainWindows`: one msgpack value per (window, key) of tuple windows, which names its schema in `aux`, under `<key><start>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import xxhash

from windrow.core.arrays import taken
from windrow.core.byte_order import encode_i64
from windrow.core.envelope import check_version
from windrow.core.errors import CorruptState
from windrow.core.keys import encode_equal
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import concat
from windrow.stores.kv import KV, Batch

FORMAT = 1
START, END, UPSERT, PENDING = "__start", "__end", "__upsert", "__pending"


@dataclass(frozen=True)
class Near:
    """rows: with `__upsert`, oldest first; None where there are none. held: data for `put`, by start. merged: no
    (window, key) has several of them
    """

    rows: pa.Table | None
    held: Mapping[int, Any]
    merged: bool = False


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


def put_schema(kv: KV, aux: str, batch: Batch, schema: pa.Schema) -> bytes:
    """Keep a schema, once; returns the name that values have for it."""
    packed = schema.serialize().to_pybytes()
    name = xxhash.xxh3_64_digest(packed)
    if kv.get(aux, b"s" + name) is None:
        batch.put(aux, b"s" + name, packed)
    return name


class Schemas:
    """Schemas that `put_schema` kept, each read once."""

    def __init__(self, kv: KV, aux: str) -> None:
        self._kv, self._aux = kv, aux
        self._read: dict[bytes, pa.Schema] = {}

    def of(self, name: bytes) -> pa.Schema:
        if name not in self._read:
            packed = self._kv.get(self._aux, b"s" + name)
            if packed is None:
                raise CorruptState(f"window values of schema {name.hex()} are here, the schema is not")
            self._read[name] = pa.ipc.read_schema(pa.py_buffer(packed))
        return self._read[name]


def bound(high: int) -> bytes | None:
    return None if high >= END_OF_TIME_US else encode_i64(high)


def split_by_start(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield (start, its rows) for each window of `rows`, starts ascending, row order kept."""
    starts = rows.column(START).to_numpy()
    if len(starts) == 0:
        return
    if (starts[0] == starts).all():
        yield int(starts[0]), rows
        return
    order = np.argsort(starts, kind="stable")
    ordered = starts[order]
    rows = taken(rows, order)
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    for low, high in zip(np.r_[0, cuts], np.r_[cuts, len(ordered)], strict=True):
        yield int(ordered[low]), rows.slice(int(low), int(high - low))


class PlainWindows:
    """One msgpack value per (window, key), under `<key><start>`. Its writer reads first: rows are merged, and replace."""

    def __init__(self, cf: str, aux: str, by: Sequence[str]) -> None:
        self.cf, self.aux, self.by = cf, aux, tuple(by)

    def _keys(self, rows: pa.Table) -> list[bytes]:
        starts = [encode_i64(s) for s in rows.column(START).to_pylist()]
        if not self.by:
            return starts
        fields = encode_equal([rows.column(b) for b in self.by])
        return [k + s for k, s in zip(fields, starts, strict=True)]

    def put(self, kv: KV, rows: pa.Table) -> None:
        """Write rows, in place of those of their (window, key)."""
        batch = Batch()
        columns = [pack_column(c) for c in rows.columns]
        schema = b"s" + put_schema(kv, self.aux, batch, rows.schema)
        for key, values in zip(self._keys(rows), zip(*columns, strict=True), strict=True):
            batch.put(self.cf, key, bytes((FORMAT,)) + msgpack.packb((schema, values)))
        kv.write(batch)

    def read(self, kv: KV, keys: pa.Table) -> pa.Table | None:
        """Return the rows of these (window, key): a table of `__start` and the key columns."""
        return self._table(kv, [v for v in kv.multi_get(self.cf, self._keys(keys)) if v is not None])

    def read_key(self, kv: KV, prefix: bytes, low: int, high: int) -> pa.Table | None:
        """Return the rows of one encoded key with `low <= start < high`."""
        return self._table(
            kv, [v for _, v in kv.scan(self.cf, prefix + encode_i64(low), prefix + encode_i64(high))]
        )

    def read_all(self, kv: KV) -> pa.Table | None:
        """Read every row."""
        return self._table(kv, [v for _, v in kv.scan(self.cf)])

    def _table(self, kv: KV, values: Sequence[bytes]) -> pa.Table | None:
        by_schema: dict[bytes, list[Sequence[Any]]] = {}
        for value in values:
            check_version("a window value", value[0], FORMAT)
            schema, row = msgpack.unpackb(value[1:])
            by_schema.setdefault(schema, []).append(row)
        tables, schemas = [], Schemas(kv, self.aux)
        for name, rows in by_schema.items():
            schema = schemas.of(name[1:])
            columns = [
                unpack_column(list(c), f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)
            ]
            tables.append(
                pa.table(columns, schema=schema).append_column(UPSERT, pa.array([True] * len(rows)))
            )
        return concat(tables) if tables else None


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
