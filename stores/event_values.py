"""The value of a stretch of kept messages: an Arrow table, of as few bytes as its columns need (`stores/events.py`).

    u8 1, u32 rows, Arrow stream of the rows
    u8 2 or 3, u32 rows, u16 columns, u8 how for each of them, u32 length, Arrow stream of one row, Arrow stream of what is
    kept of the others

how: 0, the column; 1, nothing, each row has the value of the one row; 2, nothing, it is the event time; 3, whole numbers less
that of the one row; 4, the last bytes of texts, as whole numbers: before them is what the one row has. 3 and 4 are of format 3.

Numbers near each other, and texts that differ at their end, as numbered ones do, take half of the bytes so, and what is left
of them RocksDB takes as it is: of others it would compress each as often as it is written.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import extremes, is_one, letters_of, width_of
from windrow.core.errors import CorruptState, NewerFormat

FORMAT, SAME_FORMAT, IN_FULL = 3, 2, 1
#: The column of event times, int64 microseconds.
TIME = "__time"
#: Of fewer rows all columns are kept, of fewer than the second also numbers and texts: less would take more time than bytes.
_ENOUGH, _MANY = 256, 2_048
_HEAD, _COLUMNS, _LENGTH = struct.Struct(">BI"), struct.Struct(">H"), struct.Struct(">I")
_KEPT, _SAME, _OF_TIME, _LESS, _ENDS = range(5)
#: Bytes of what is kept of numbers, and of texts.
_OF_NUMBERS, _OF_TEXTS = (1, 2, 4), (1, 2, 4, 8)


class _Column(NamedTuple):
    """How a column is kept, what is kept of it, and what the one row has."""

    how: int
    kept: pa.ChunkedArray | pa.Array | None
    one: pa.ChunkedArray | pa.Array


class Encoder:
    """Rows, of one step or stretch, and how they are kept: `kept` is what each has of its own, in their order.

    width_us: they are of several stretches, of that length, and are divided; None: of one
    """

    def __init__(self, rows: pa.Table, width_us: int | None = None) -> None:
        each = len(rows)
        if each >= _ENOUGH and width_us is not None:
            extent = pc.min_max(rows.column(TIME))
            each //= extent["max"].as_py() // width_us - extent["min"].as_py() // width_us + 1
        columns = [_column(rows, field, each >= _MANY) for field in rows.schema if each >= _ENOUGH]
        self._how = bytes(column.how for column in columns)
        self.kept = rows
        if any(self._how):
            names = [n for n, c in zip(rows.column_names, columns, strict=True) if c.kept is not None]
            self.kept = pa.table([c.kept for c in columns if c.kept is not None], names)
            self._one = _stream(pa.table([c.one for c in columns], schema=rows.schema))

    def value(self, part: pa.Table) -> bytes:
        """The value of some rows of `kept`."""
        sink = pa.BufferOutputStream()
        if any(self._how):
            form = FORMAT if max(self._how) > _OF_TIME else SAME_FORMAT
            sink.write(_HEAD.pack(form, len(part)) + _COLUMNS.pack(len(self._how)) + self._how)
            sink.write(_LENGTH.pack(len(self._one)))
            sink.write(self._one)
        else:
            sink.write(_HEAD.pack(IN_FULL, len(part)))
        _write(sink, part)
        value: bytes = sink.getvalue().to_pybytes()
        return value


def packed(rows: pa.Table) -> bytes:
    """The value of rows of one stretch."""
    encoder = Encoder(rows.combine_chunks())
    return encoder.value(encoder.kept)


def _column(rows: pa.Table, field: pa.Field, narrow: bool) -> _Column:
    column, kind = rows.column(field.name), field.type
    one = column.slice(0, 1)
    if field.name != TIME and not _in_bits(kind) and is_one(column):
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
    letters = letters_of(texts, length)
    differ = np.flatnonzero(np.not_equal(*extremes(letters)))
    width = _width((1 << 8 * (length - int(differ[0]))) - 1, _OF_TEXTS) if len(differ) else 1
    if width is None or width > length:
        return None
    ends = np.ndarray((len(texts),), f"<u{width}", letters, length - width, (length,))
    return _Column(_ENDS, pa.array(ends.copy()), column.slice(0, 1))


def _width(most: int, widths: tuple[int, ...]) -> int | None:
    """So many bytes hold numbers up to that."""
    return next((width for width in widths if most < 1 << 8 * width), None)


def _unsigned(width: int) -> pa.DataType:
    return pa.type_for_alias(f"uint{8 * width}")


def _in_bits(kind: pa.DataType) -> bool:
    """True of values that may be equal and not the same: 0.0 and -0.0, and what holds them."""
    return not (
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
    )


def _stream(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    _write(sink, rows)
    return sink.getvalue()


def _write(sink: pa.NativeFile, rows: pa.Table) -> None:
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        for batch in rows.to_batches():
            writer.write_batch(batch)


def unpacked(value: bytes, columns: Collection[str] | None = None) -> pa.Table:
    """The rows of a value. columns: which of them, as far as they are there; None: all."""
    if value[:1] > bytes((FORMAT,)):
        raise NewerFormat(
            f"kept messages of format {value[0]}, this windrow reads up to {FORMAT}: upgrade windrow"
        )
    try:
        form, wanted = _HEAD.unpack_from(value)
        rows = _decoded(pa.py_buffer(value)[_HEAD.size :], form, wanted, columns)
    except (pa.ArrowException, OSError, struct.error, KeyError, ValueError, TypeError) as error:
        raise CorruptState(f"kept messages of {len(value)} bytes cannot be read: {error}") from error
    if len(rows) != wanted:
        raise CorruptState(f"kept messages of {len(value)} bytes are {len(rows)} rows, not {wanted}")
    return rows


def _decoded(data: pa.Buffer, form: int, rows: int, wanted: Collection[str] | None) -> pa.Table:
    """The rows of a value behind its head. wanted: which columns; None: all."""
    if form == IN_FULL:
        whole = pa.ipc.open_stream(data).read_all()
        return whole if wanted is None else whole.select([n for n in whole.column_names if n in wanted])
    many = _COLUMNS.unpack_from(data)[0]
    at = _COLUMNS.size + many
    how, length = data[_COLUMNS.size : at].to_pybytes(), _LENGTH.unpack_from(data, at)[0]
    at += _LENGTH.size
    first = pa.ipc.open_stream(data[at : at + length]).read_all()
    kept = pa.ipc.open_stream(data[at + length :]).read_all()
    fields = [field for field in first.schema if wanted is None or field.name in wanted]
    hows = dict(zip(first.schema.names, how, strict=True))
    times = _read(hows[TIME], TIME, kept, first, rows)
    columns = [
        times.cast(field.type)
        if field.name == TIME or hows[field.name] == _OF_TIME
        else _read(hows[field.name], field.name, kept, first, rows)
        for field in fields
    ]
    return pa.table(columns, schema=pa.schema(fields, first.schema.metadata))


def _read(how: int, name: str, kept: pa.Table, first: pa.Table, rows: int) -> pa.ChunkedArray | pa.Array:
    """A column that is not made of another one."""
    one = first.column(name)
    if how == _KEPT:
        return kept.column(name)
    if how == _SAME:
        return pa.repeat(one[0], rows)
    column = kept.column(name)
    if how == _LESS:
        return pc.add(column.cast(pa.int64()), one.cast(pa.int64())[0]).cast(one.type)
    frame = one.cast(pa.binary())[0].as_py()
    ends, length = column.to_numpy(), len(frame)
    found = np.full(rows, np.void(frame))
    last = np.ndarray((rows,), ends.dtype, found, length - ends.dtype.itemsize, (length,))
    last[:] = ends
    starts = np.arange(0, (rows + 1) * length, length, dtype=np.int32)
    return pa.Array.from_buffers(one.type, rows, [None, pa.py_buffer(starts), pa.py_buffer(found)])
