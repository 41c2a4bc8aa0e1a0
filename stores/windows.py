"""Window metadata: two layouts behind one Protocol.

Both keep *state rows*, Arrow columns with one row per (window, key): `__start`, `__end`, the key columns, counts, first and
last position, what was emitted, and the accumulators. A row is either a *delta*, to be merged with the rows before it,
or an *upsert*, which stands for all of them (`__upsert`).

`BlockWindows`: one value per window and commit, an Arrow record batch of the rows of that commit, under
`<start><number>`. Appending reads no rows; a window is merged when it fires or is asked for; expiry is one range. What a window
has gathered is known from its newest block, so that whoever appends can fold it in time.
`PlainWindows`: one msgpack value per (window, key), which names its schema in `aux`, under `<start><key>` (expiry order,
seed 003) or, for tuple windows and sessions, `<key><start>`. It cannot merge on read: its writer reads first and upserts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgpack
import numpy as np
import pyarrow as pa
import xxhash

from windrow.core.errors import CorruptState, NewerFormat
from windrow.core.keys import Encode, decode_i64, encode_equal, encode_i64, encode_key, prefix_end
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import concat
from windrow.stores.kv import KV, Batch

FORMAT = 1
START, END, UPSERT = "__start", "__end", "__upsert"


class WindowStore(Protocol):
    """Where state rows live. `kv` is read-your-writes inside a commit."""

    #: True if `append` takes deltas that were not merged with what is stored.
    merges_on_read: bool

    def append(self, kv: KV, rows: pa.Table, *, upsert: bool) -> list[int]:
        """Add rows; `upsert` rows replace what is stored for their (window, key). Returns the starts of windows that should
        be folded: merged, and given to `replace`.
        """
        ...

    def read(self, kv: KV, starts: Sequence[int], keys: pa.Table | None = None) -> pa.Table | None:
        """The rows of the windows that start at `starts`, oldest first, with `__upsert`; None where there are none.

        `keys`, a table of `__start` and the key columns, may narrow the answer to those (window, key).
        """
        ...

    def starts(self, kv: KV, low: int, high: int) -> list[int]:
        """The starts of stored windows with `low <= start < high`, sorted."""
        ...

    def replace(self, kv: KV, start: int, rows: pa.Table) -> None:
        """`rows` are from now on all that the window at `start` holds."""
        ...

    def drop(self, kv: KV, low: int, high: int) -> None:
        """Forget all windows with `low <= start < high`."""
        ...


def pack_table(rows: pa.Table) -> bytes:
    """An Arrow IPC stream of one record batch, behind a version byte."""
    sink = pa.BufferOutputStream()
    sink.write(bytes((FORMAT,)))
    batch = rows.combine_chunks().to_batches()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        for b in batch:
            writer.write_batch(b)
    value: bytes = sink.getvalue().to_pybytes()
    return value


def unpack_table(value: bytes) -> pa.Table:
    """The table of `pack_table`; refuses a newer format and damage."""
    if not value or value[0] > FORMAT:
        raise NewerFormat(
            f"window block of format {value[0] if value else '-'}, this windrow reads up to {FORMAT}: upgrade windrow"
        )
    try:
        return pa.ipc.open_stream(pa.py_buffer(value)[1:]).read_all()
    except pa.ArrowInvalid as error:
        raise CorruptState(f"window block of {len(value)} bytes cannot be read: {error}") from error


class _Block(NamedTuple):
    """What stands before the rows of a block.

    first: number of the window's first block, which has `whole` bytes. since: bytes of those after it, this one included.
    """

    version: int
    schema: bytes
    first: int
    whole: int
    since: int


_BLOCK = struct.Struct(">B7x8sQQQ")
BLOCK_FORMAT = 2
#: A window is looked at whenever so many blocks more have come, and folded when those after its first are as large as that
#: one: so each byte is rewritten about twice, however long the window, and a window takes about twice its folded size.
FOLD_AT = 16
#: A window beyond this is not folded: one value would become too large.
FOLD_MOST_BYTES = 1 << 30


class BlockWindows:
    """The columnar layout: `<start i64><number u64>` -> header, Arrow record batch. Schemas are in `aux`."""

    merges_on_read = True

    def __init__(self, cf: str, aux: str) -> None:
        self.cf, self.aux = cf, aux

    def append(self, kv: KV, rows: pa.Table, *, upsert: bool) -> list[int]:
        batch, due = Batch(), []
        rows = rows.append_column(UPSERT, pa.array(np.full(len(rows), upsert)))
        schema = put_schema(kv, self.aux, batch, rows.schema)
        for start, part in split_by_start(rows):
            prefix, data = encode_i64(start), _record_batch(part)
            number, newest = self._newest(kv, prefix)
            if newest is None:
                block = _Block(BLOCK_FORMAT, schema, number, len(data), 0)
            else:
                block = newest._replace(schema=schema, since=newest.since + len(data))
                gathered = (number - block.first) % FOLD_AT == 0
                if gathered and block.whole <= block.since < FOLD_MOST_BYTES:
                    due.append(start)
            batch.put(self.cf, prefix + number.to_bytes(8, "big"), _BLOCK.pack(*block) + data)
        kv.write(batch)
        return due

    def _newest(self, kv: KV, prefix: bytes) -> tuple[int, _Block | None]:
        """(number of the next block, header of the newest)."""
        newest = next(iter(kv.scan(self.cf, prefix, prefix_end(prefix), reverse=True)), None)
        if newest is None:
            return 0, None
        key, value = newest
        number = int.from_bytes(key[8:], "big") + 1
        if value[:1] != b"\x01":
            return number, _header(value)
        # Of an older windrow: blocks did not say what came before them.
        sizes = [
            (int.from_bytes(k[8:], "big"), len(v)) for k, v in kv.scan(self.cf, prefix, prefix_end(prefix))
        ]
        (first, whole), *rest = sizes
        return number, _Block(BLOCK_FORMAT, b"", first, whole, sum(size for _, size in rest))

    def blocks(self, kv: KV, start: int) -> int:
        """How many blocks the window at `start` has."""
        number, newest = self._newest(kv, encode_i64(start))
        return 0 if newest is None else number - newest.first

    def read(self, kv: KV, starts: Sequence[int], keys: pa.Table | None = None) -> pa.Table | None:
        schemas = Schemas(kv, self.aux)
        tables = [
            unpack_table(value) if value[:1] == b"\x01" else _rows(value, schemas)
            for low, high in _runs(self, kv, starts)
            for _, value in kv.scan(self.cf, low, high)
        ]
        return concat(tables) if tables else None

    def starts(self, kv: KV, low: int, high: int) -> list[int]:
        found: list[int] = []
        at, end = encode_i64(low), _bound(high)
        while True:
            entry = next(iter(kv.scan(self.cf, at, end)), None)
            if entry is None:
                return found
            start = decode_i64(entry[0][:8])
            found.append(start)
            after = prefix_end(entry[0][:8])
            if after is None or (end is not None and after >= end):
                return found
            at = after

    def first_start(self, kv: KV) -> int | None:
        """The start of the earliest stored window."""
        entry = next(iter(kv.scan(self.cf)), None)
        return None if entry is None else decode_i64(entry[0][:8])

    def replace(self, kv: KV, start: int, rows: pa.Table) -> None:
        prefix, batch = encode_i64(start), Batch()
        number, _ = self._newest(kv, prefix)
        key = prefix + number.to_bytes(8, "big")
        batch.delete_range(self.cf, prefix, key)
        if len(rows):
            whole = rows.append_column(UPSERT, pa.array(np.ones(len(rows), dtype=bool)))
            data = _record_batch(whole)
            block = _Block(BLOCK_FORMAT, put_schema(kv, self.aux, batch, whole.schema), number, len(data), 0)
            batch.put(self.cf, key, _BLOCK.pack(*block) + data)
        kv.write(batch)

    def drop(self, kv: KV, low: int, high: int) -> None:
        batch = Batch()
        end = _bound(high)
        batch.delete_range(self.cf, encode_i64(low), b"\xff" * 17 if end is None else end)
        kv.write(batch)


def _record_batch(rows: pa.Table) -> bytes:
    [batch] = rows.combine_chunks().to_batches()
    data: bytes = batch.serialize().to_pybytes()
    return data


def _header(value: bytes) -> _Block:
    if value[:1] > bytes((BLOCK_FORMAT,)):
        raise NewerFormat(
            f"window block of format {value[0]}, this windrow reads up to {BLOCK_FORMAT}: upgrade windrow"
        )
    try:
        return _Block(*_BLOCK.unpack_from(value))
    except struct.error as error:
        raise CorruptState(f"window block of {len(value)} bytes cannot be read: {error}") from error


def _rows(value: bytes, schemas: Schemas) -> pa.Table:
    header = _header(value)
    schema = schemas.of(header.schema)
    try:
        return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(value)[_BLOCK.size :], schema)])
    except (pa.ArrowInvalid, OSError) as error:
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


def _runs(store: BlockWindows, kv: KV, starts: Sequence[int]) -> Iterator[tuple[bytes, bytes | None]]:
    for start in sorted(set(starts)):
        prefix = encode_i64(start)
        yield prefix, prefix_end(prefix)


def _bound(high: int) -> bytes | None:
    return None if high >= END_OF_TIME_US else encode_i64(high)


def split_by_start(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """(start, its rows) for each window of `rows`, starts ascending, row order kept."""
    starts = rows.column(START).to_numpy()
    if len(starts) == 0:
        return
    if (starts[0] == starts).all():
        yield int(starts[0]), rows
        return
    order = np.argsort(starts, kind="stable")
    ordered = starts[order]
    rows = rows.take(pa.array(order))
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    for low, high in zip(np.r_[0, cuts], np.r_[cuts, len(ordered)], strict=True):
        yield int(ordered[low]), rows.slice(int(low), int(high - low))


class PlainWindows:
    """One msgpack value per (window, key); `key_first` chooses `<key><start>` over `<start><key>`."""

    merges_on_read = False

    def __init__(self, cf: str, aux: str, by: Sequence[str], *, key_first: bool) -> None:
        self.cf, self.aux, self.by, self.key_first = cf, aux, tuple(by), key_first
        self.encode: Encode = encode_equal

    def _keys(self, rows: pa.Table) -> list[bytes]:
        starts = [encode_i64(s) for s in rows.column(START).to_pylist()]
        if not self.by:
            return starts
        fields = self.encode([rows.column(b) for b in self.by])
        if self.key_first:
            return [k + s for k, s in zip(fields, starts, strict=True)]
        return [s + k for k, s in zip(fields, starts, strict=True)]

    def append(self, kv: KV, rows: pa.Table, *, upsert: bool) -> list[int]:
        if not upsert:
            raise ValueError("the plain layout holds merged rows: read and upsert")
        batch = Batch()
        columns = [pack_column(c) for c in rows.columns]
        schema = b"s" + put_schema(kv, self.aux, batch, rows.schema)
        for key, values in zip(self._keys(rows), zip(*columns, strict=True), strict=True):
            batch.put(self.cf, key, bytes((FORMAT,)) + msgpack.packb((schema, values)))
        kv.write(batch)
        return []

    def read(self, kv: KV, starts: Sequence[int], keys: pa.Table | None = None) -> pa.Table | None:
        if keys is not None:
            values = [v for v in kv.multi_get(self.cf, self._keys(keys)) if v is not None]
        else:
            wanted = set(starts)
            values = [v for k, v in kv.scan(self.cf) if self._start(k) in wanted]
        return self._table(kv, values)

    def _table(self, kv: KV, values: Sequence[bytes]) -> pa.Table | None:
        by_schema: dict[bytes, list[Sequence[Any]]] = {}
        for value in values:
            if value[0] > FORMAT:
                raise NewerFormat(
                    f"window value of format {value[0]}, this windrow reads up to {FORMAT}: upgrade windrow"
                )
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

    def _start(self, key: bytes) -> int:
        return decode_i64(key[-8:]) if self.key_first else decode_i64(key[:8])

    def starts(self, kv: KV, low: int, high: int) -> list[int]:
        if self.key_first:
            return sorted({s for k, _ in kv.scan(self.cf) if low <= (s := self._start(k)) < high})
        return sorted({self._start(k) for k, _ in kv.scan(self.cf, encode_i64(low), _bound(high))})

    def replace(self, kv: KV, start: int, rows: pa.Table) -> None:
        if not self.key_first:
            self.drop(kv, start, start + 1)
        self.append(kv, rows, upsert=True)

    def drop(self, kv: KV, low: int, high: int) -> None:
        batch = Batch()
        if self.key_first:
            raise ValueError("windows kept by key expire key by key: use drop_key")
        end = _bound(high)
        batch.delete_range(self.cf, encode_i64(low), b"\xff" * 17 if end is None else end)
        kv.write(batch)

    def drop_key(self, kv: KV, prefix: bytes, low: int, high: int) -> None:
        """Forget the windows of one encoded key with `low <= start < high`."""
        batch = Batch()
        batch.delete_range(self.cf, prefix + encode_i64(low), prefix + encode_i64(high))
        kv.write(batch)

    def read_key(self, kv: KV, prefix: bytes, low: int, high: int) -> pa.Table | None:
        """The rows of one encoded key with `low <= start < high`."""
        return self._table(
            kv, [v for _, v in kv.scan(self.cf, prefix + encode_i64(low), prefix + encode_i64(high))]
        )

    def read_all(self, kv: KV) -> pa.Table | None:
        """Every row."""
        return self._table(kv, [v for _, v in kv.scan(self.cf)])


def encode_packed(columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[bytes]:
    """Keys as state has them that was begun long ago: temporal values as integers, decimals as text."""
    return [encode_key(k) for k in zip(*(pack_column(column) for column in columns), strict=True)]


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
    """The column that `pack_column` took apart."""
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
