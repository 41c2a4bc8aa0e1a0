"""Column codec of an event log's value: an Arrow table, of as few bytes as its columns need (`stores/event_log.py`).

    u8 1, u32 rows, u16 0, Arrow stream of the rows
    u8 1, u32 rows, u16 columns, u8 how for each of them, u32 length, Arrow stream of one row, Arrow stream of what is kept
    of the others

how: 0, the column; 1, nothing, each row has the value of the one row; 2, nothing, it is the event time; 3, whole numbers less
that of the one row; 4, the last bytes of texts, as whole numbers: before them is what the one row has.

Numbers near each other, and texts that differ at their end, as numbered ones do, take half of the bytes so, and what is left
of them RocksDB takes as it is: of others it would compress each as often as it is written.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import extremes, in_bits, is_one, letters_of, width_of
from windrow.core.envelope import check_version
from windrow.core.errors import CorruptState
from windrow.core.types import concat

FORMAT = 1
#: The column of event times, int64 microseconds.
TIME = "__time"
#: With fewer rows all columns are kept, with fewer than the second also numbers and texts: encoding costs more than it saves.
_ENOUGH, _MANY = 256, 2_048
_HEAD, _LENGTH = struct.Struct(">BIH"), struct.Struct(">I")
_KEPT, _SAME, _OF_TIME, _LESS, _ENDS = range(5)
_DAMAGE = (pa.ArrowException, OSError, struct.error, KeyError, ValueError, TypeError)
#: Bytes of what is kept of numbers, and of texts.
_OF_NUMBERS, _OF_TEXTS = (1, 2, 4), (1, 2, 4, 8)


class _Column(NamedTuple):
    """Encoded column: the encoding, the kept values, and the value of the one row."""

    how: int
    kept: pa.ChunkedArray | pa.Array | None
    one: pa.ChunkedArray | pa.Array


class Encoder:
    """Encoder of the rows of a step or bucket: `kept` has the part of each row that is stored, in their order.

    width_us: they are of several buckets, of that length, and are divided; None: of one
    """

    def __init__(self, rows: pa.Table, width_us: int | None = None) -> None:
        each = len(rows)
        if each >= _ENOUGH and width_us is not None:
            extent = pc.min_max(rows.column(TIME))
            each //= extent["max"].as_py() // width_us - extent["min"].as_py() // width_us + 1
        # Each small step reads the joined small values: encoding them would cost more time than the bytes save.
        narrow = width_us is not None and each >= _MANY
        columns = [_column(rows, field, narrow) for field in rows.schema if each >= _ENOUGH]
        self._how = bytes(column.how for column in columns)
        self.kept = rows
        if any(self._how):
            names = [n for n, c in zip(rows.column_names, columns, strict=True) if c.kept is not None]
            self.kept = pa.table([c.kept for c in columns if c.kept is not None], names)
            self._one = _stream(pa.table([c.one for c in columns], schema=rows.schema))

    def value(self, part: pa.Table) -> bytes:
        """Return the value of some rows of `kept`."""
        sink = pa.BufferOutputStream()
        if any(self._how):
            sink.write(_HEAD.pack(FORMAT, len(part), len(self._how)) + self._how)
            sink.write(_LENGTH.pack(len(self._one)))
            sink.write(self._one)
        else:
            sink.write(_HEAD.pack(FORMAT, len(part), 0))
        _write(sink, part)
        value: bytes = sink.getvalue().to_pybytes()
        return value


def packed(rows: pa.Table) -> bytes:
    """Encode the rows of one bucket."""
    encoder = Encoder(rows.combine_chunks())
    return encoder.value(encoder.kept)


def _column(rows: pa.Table, field: pa.Field, narrow: bool) -> _Column:
    column, kind = rows.column(field.name), field.type
    one = column.slice(0, 1)
    if field.name != TIME and not in_bits(kind) and is_one(column):
        return _Column(_SAME, None, one)
    moments = pa.types.is_timestamp(kind)
    if moments and kind.unit == "us" and column.cast(pa.int64()).equals(rows.column(TIME)):
        return _Column(_OF_TIME, None, one)
    kept = _Column(_KEPT, column, one)
    if not narrow:
        return kept
    return (_less(column) if moments or kind == pa.int64() else _ends(column)) or kept


def _less(column: pa.ChunkedArray) -> _Column | None:
    """Whole numbers, or times, less the least of them; None where these need all their bytes."""
    numbers = column.cast(pa.int64())
    low, high = pc.min_max(numbers).as_py().values()
    width = None if low is None else _width(high - low, _OF_NUMBERS)
    if width is None:
        return None
    least = pa.scalar(low, pa.int64())
    kept = pc.subtract(numbers, least).cast(_unsigned(width), safe=False)
    return _Column(_LESS, kept, pa.array([low], pa.int64()).cast(column.type))


def _ends(column: pa.ChunkedArray) -> _Column | None:
    """Texts of one length that differ in their last bytes; None where they are others."""
    texts = column.chunk(0)
    length = width_of(texts) if column.num_chunks == 1 else None
    if length is None:
        return None
    chars = letters_of(texts, length)
    differ = np.flatnonzero(np.not_equal(*extremes(chars)))
    width = _width((1 << 8 * (length - int(differ[0]))) - 1, _OF_TEXTS) if len(differ) else 1
    if width is None or width > length:
        return None
    ends = np.ndarray((len(texts),), f"<u{width}", chars, length - width, (length,))
    return _Column(_ENDS, pa.array(ends.copy()), column.slice(0, 1))


def _width(most: int, widths: tuple[int, ...]) -> int | None:
    """Return the smallest of `widths`, in bytes, that holds numbers up to `most`; None where none does."""
    return next((width for width in widths if most < 1 << 8 * width), None)


def _unsigned(width: int) -> pa.DataType:
    return pa.type_for_alias(f"uint{8 * width}")


def _stream(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    _write(sink, rows)
    return sink.getvalue()


def _write(sink: pa.NativeFile, rows: pa.Table) -> None:
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        for batch in rows.to_batches():
            writer.write_batch(batch)


@dataclass(frozen=True)
class Value:
    """A value that is read, but not decoded: the encoding of each column, the one row, and the kept columns."""

    hows: Mapping[str, int]
    one: pa.Table
    kept: pa.Table

    def __len__(self) -> int:
        return len(self.kept)


def opened(value: bytes) -> Value:
    check_version("kept messages", value[0] if value else 0, FORMAT)
    try:
        _, rows, columns = _HEAD.unpack_from(value)
        parsed = _opened(pa.py_buffer(value)[_HEAD.size :], columns)
    except _DAMAGE as error:
        raise CorruptState(f"kept messages of {len(value)} bytes cannot be read: {error}") from error
    if len(parsed) != rows:
        raise CorruptState(f"kept messages of {len(value)} bytes are {len(parsed)} rows, not {rows}")
    return parsed


def _opened(data: pa.Buffer, columns: int) -> Value:
    """Decode the bytes after the head of a value."""
    if not columns:
        whole = pa.ipc.open_stream(data).read_all()
        return Value(dict.fromkeys(whole.column_names, _KEPT), whole, whole)
    hows, length = data[:columns].to_pybytes(), _LENGTH.unpack_from(data, columns)[0]
    at = columns + _LENGTH.size
    one = pa.ipc.open_stream(data[at : at + length]).read_all()
    kept = pa.ipc.open_stream(data[at + length :]).read_all()
    return Value(dict(zip(one.column_names, hows, strict=True)), one, kept)


def together(values: Sequence[Value], columns: Collection[str] | None = None) -> pa.Table:
    """Return the rows of values, one after the other. columns: which of them, as far as they are there; None: all."""
    schema = values[0].one.schema
    if not all(value.one.schema.equals(schema) for value in values[1:]):
        return concat([together([value], columns) for value in values])
    fields = [field for field in schema if columns is None or field.name in columns]
    if all(value.kept is value.one for value in values):  # in full
        return pa.concat_tables([value.kept for value in values]).select([field.name for field in fields])
    try:
        times = _read(values, TIME)
        arrays = [
            times.cast(field.type)
            if field.name == TIME or all(value.hows[field.name] == _OF_TIME for value in values)
            else _read(values, field.name)
            for field in fields
        ]
        return pa.table(arrays, schema=pa.schema(fields, schema.metadata))
    except _DAMAGE as error:
        raise CorruptState(
            f"kept messages of {sum(map(len, values))} rows cannot be read: {error}"
        ) from error


def _read(values: Sequence[Value], name: str) -> pa.Array | pa.ChunkedArray:
    """Return a column of values, one after the other: in one piece where all are kept alike."""
    how, one = values[0].hows[name], values[0].one.column(name)
    if all(value.hows[name] == how for value in values):
        if how == _SAME and all(value.one.column(name)[0].equals(one[0]) for value in values):
            return pa.repeat(one[0], sum(map(len, values)))
        if how == _LESS and not any(value.kept.column(name).null_count for value in values):
            return _sums(values, name).cast(one.type)
        if how == _ENDS:
            return _texts(values, name)
    return pa.chunked_array([chunk for value in values for chunk in _pieces(value, name)], one.type)


def _pieces(value: Value, name: str) -> list[pa.Array]:
    """Return a column of a value, in one piece but for one that is kept."""
    how, one = value.hows[name], value.one.column(name)
    if how == _KEPT:
        return list(value.kept.column(name).chunks)
    if how == _SAME:
        return [pa.repeat(one[0], len(value))]
    if how == _OF_TIME:
        return [piece.cast(one.type) for piece in _pieces(value, TIME)]
    if how == _ENDS:
        return [_texts([value], name)]
    least = one.cast(pa.int64())[0]
    return [pc.add(piece.cast(pa.int64()), least).cast(one.type) for piece in value.kept.column(name).chunks]


def _sums(values: Sequence[Value], name: str) -> pa.Array:
    """Whole numbers of which those that are less than the one row's by that are kept, none of them null."""
    sums, at = np.empty(sum(map(len, values)), dtype=np.int64), 0
    for value in values:
        least = np.int64(value.one.column(name).cast(pa.int64())[0].as_py())
        np.add(value.kept.column(name).to_numpy(), least, out=sums[at : at + len(value)], casting="unsafe")
        at += len(value)
    return pa.array(sums)


def _texts(values: Sequence[Value], name: str) -> pa.Array | pa.ChunkedArray:
    """Texts whose last bytes are kept, in one piece where all have one length."""
    frames = [value.one.column(name).cast(pa.binary())[0].as_py() for value in values]
    length, rows, kind = len(frames[0]), sum(map(len, values)), values[0].one.schema.field(name).type
    if any(len(frame) != length for frame in frames) or rows * length >= 1 << 31:
        return pa.chunked_array([_texts([value], name) for value in values], kind)
    data, at = np.empty(rows, dtype=f"V{length}"), 0
    for value, frame in zip(values, frames, strict=True):
        texts, ends = data[at : at + len(value)], value.kept.column(name).to_numpy()
        texts[:] = np.void(frame)
        np.ndarray((len(texts),), ends.dtype, texts, length - ends.dtype.itemsize, (length,))[:] = ends
        at += len(value)
    starts = np.arange(0, (rows + 1) * length, length, dtype=np.int32)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(starts), pa.py_buffer(data)])
