"""From the bytes of records to rows: JSON, msgpack, Avro, Protobuf, or a function of your own.

A record that cannot be read is no error: its row says what is wrong, and goes to the dead letters with its position.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol, TypeAlias

import msgpack as python_msgpack
import numpy as np
import pyarrow as pa

from windrow.connectors import json_records
from windrow.core.border import Fitted, fit, read
from windrow.core.errors import ConfigurationError, RegistryFailed
from windrow.core.extras import need
from windrow.core.types import widened
from windrow.operators.steps.columns import MALFORMED_ROW, RAW
from windrow.operators.steps.dead import PAYLOAD_LIMIT

Values = Sequence[bytes | None]


class Decoder(Protocol):
    """Turns the bytes of records into rows. One of your own: `wr.decoders.decoder(function, schema)`."""

    def decode(self, values: Values, topic: str) -> pa.Table:
        """One row for each value. Where some cannot be read, with the columns that say so (see `to_rows`).

        values: the bytes of records of one topic, None for none. topic: its name
        """
        ...


@dataclass(frozen=True)
class JsonDecoder:
    """See `json`."""

    schema: pa.Schema

    def __post_init__(self) -> None:
        json_records.check_readable(self.schema)

    def decode(self, values: Values, topic: str) -> pa.Table:
        return to_rows(
            values,
            self.schema,
            read_one=lambda value: json_records.read_one(value, self.schema),
            read_many=lambda some: json_records.read_many(some, self.schema),
        )


@dataclass(frozen=True)
class FunctionDecoder:
    """See `decoder`."""

    function: Callable[[bytes], Mapping[str, Any]]
    schema: pa.Schema

    def decode(self, values: Values, topic: str) -> pa.Table:
        return to_rows(values, self.schema, self.function)


@dataclass(frozen=True)
class BytesDecoder:
    """See `raw`."""

    column: str = "value"

    def decode(self, values: Values, topic: str) -> pa.Table:
        return pa.table({self.column: pa.array(values, pa.binary())})


@dataclass(frozen=True)
class AvroDecoder:
    """See `avro`."""

    registry: tuple[tuple[str, Any], ...]
    schema: pa.Schema | None = None

    def __repr__(self) -> str:
        schema = "" if self.schema is None else f", schema={self.schema!r}"
        return f"wr.decoders.avro({_url(self.registry)!r}{schema})"

    def decode(self, values: Values, topic: str) -> pa.Table:
        from confluent_kafka.schema_registry.error import SchemaRegistryError
        from confluent_kafka.serialization import MessageField, SerializationContext
        from httpx import HTTPError

        deserializer = _avro_deserializer(self.registry)
        context = SerializationContext(topic, MessageField.VALUE)
        registry = _url(self.registry)

        def read(value: bytes) -> Any:
            try:
                return deserializer(value, context)
            except SchemaRegistryError as error:
                if error.http_status_code == HTTPStatus.NOT_FOUND:
                    raise  # no such schema: the record is at fault
                raise RegistryFailed(f"the schema registry {registry!r} refused: {error}") from error
            except HTTPError as error:
                raise RegistryFailed(f"the schema registry {registry!r} did not answer: {error}") from error

        return to_rows(values, self.schema, read)


def _url(registry: tuple[tuple[str, Any], ...]) -> str:
    """Where a registry is, without the name and password that a URL may hold; all else of it is nobody's business."""
    return re.sub(r"//[^/]*@", "//", str(dict(registry).get("url", "")))


@functools.cache
def _avro_deserializer(registry: tuple[tuple[str, Any], ...]) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer

    return AvroDeserializer(SchemaRegistryClient.new_client(dict(registry)))


@dataclass(frozen=True)
class ProtobufDecoder:
    """See `protobuf`."""

    message: Any
    framed: bool = True
    schema: pa.Schema | None = None

    def decode(self, values: Values, topic: str) -> pa.Table:
        return to_rows(values, self.schema, self._read(topic))

    def _read(self, topic: str) -> Callable[[bytes], Mapping[str, Any]]:
        if not self.framed:
            return lambda value: _fields(self.message.FromString(value))
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
        from confluent_kafka.serialization import MessageField, SerializationContext

        read = ProtobufDeserializer(self.message, {"use.deprecated.format": False})
        context = SerializationContext(topic, MessageField.VALUE)
        return lambda value: _fields(read(value, context))


def to_rows(
    values: Values,
    schema: pa.Schema | None,
    read_one: Callable[[bytes], Any],
    read_many: Callable[[Sequence[bytes]], pa.Table | None] | None = None,
) -> pa.Table:
    """One row for each value, null where it cannot be read, with columns that say why.

    read_one: gives the fields of a value, or raises. read_many: gives the rows of values at once, or None if some have to be
    read alone: halves show which.
    """
    table = read_many(values) if read_many is not None and all(values) else None  # type: ignore[arg-type]
    if table is not None:
        return table
    wrong = {i: "the record has no value" for i, v in enumerate(values) if v is None}
    present = [i for i, v in enumerate(values) if v is not None]
    parts, alone = _read_many([v for v in values if v is not None], read_many)
    places = np.full(len(values), -1)
    rows_before = 0
    for start, part in parts:
        places[present[start : start + len(part)]] = np.arange(rows_before, rows_before + len(part))
        rows_before += len(part)
    rows: list[Mapping[str, Any]] = []
    of_row: list[int] = []
    for i in (present[j] for j in alone):
        row = _read_one(values[i], read_one)
        if isinstance(row, str):
            wrong[i] = row
        else:
            rows.append(row)
            of_row.append(i)
    fitted, misfits = _fitted(rows, schema)
    places[of_row] = np.arange(rows_before, rows_before + len(rows))
    wrong.update((of_row[row], why) for row, why in misfits.items())
    places[list(wrong)] = -1
    table = pa.concat_tables([*(part for _, part in parts), fitted])
    table = table.take(pa.array(places, mask=places < 0))
    if not wrong:
        return table
    details = pa.array([wrong.get(i) for i in range(len(values))], pa.string())
    raw = pa.array([_shown(v) if i in wrong else None for i, v in enumerate(values)], pa.string())
    return table.append_column(MALFORMED_ROW, details).append_column(RAW, raw)


def _read_many(
    values: Sequence[bytes], read: Callable[[Sequence[bytes]], pa.Table | None] | None
) -> tuple[list[tuple[int, pa.Table]], Sequence[int]]:
    """Rows of values from some place on, and which values have to be read alone."""
    if read is None:
        return [], range(len(values))
    parts: list[tuple[int, pa.Table]] = []
    alone: list[int] = []
    todo = [(0, len(values))] if values else []
    while todo:
        start, end = todo.pop()
        table = read(values[start:end])
        if table is not None:
            parts.append((start, table))
        elif end - start == 1:
            alone.append(start)
        else:
            middle = (start + end) // 2
            todo += [(middle, end), (start, middle)]
    return parts, alone


def _read_one(value: bytes | None, read: Callable[[bytes], Any]) -> Mapping[str, Any] | str:
    """The fields of a record, or what is wrong with it."""
    assert value is not None
    try:
        row = read(value)
    except (RegistryFailed, MemoryError):
        raise
    except json_records.NoRecord as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if not isinstance(row, Mapping):
        return f"a {type(row).__name__}, where a record of named fields is expected"
    return row


def _fitted(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> tuple[pa.Table, dict[int, str]]:
    """Rows as columns; and why a row is none, where a value does not fit its column."""
    wrong: dict[int, str] = {}
    columns: dict[str, pa.Array] = {}
    # A field may be missing from the first row.
    names = schema.names if schema is not None else list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        values = [row.get(name) for row in rows]
        fitted = _learnt(values) if schema is None else fit(values, schema.field(name).type)
        columns[name] = fitted.array
        for row, why in fitted.misfits.items():
            wrong.setdefault(row, f"column {name!r}: {why}")
    return pa.table(columns, schema=schema), wrong


def _learnt(values: Sequence[Any]) -> Fitted:
    """A column in the type that its values say, the first of them first."""
    array = read(values)
    if array is not None:
        return Fitted(array)
    kind = pa.null()
    for value in values:
        one = read([value])
        kind = (None if one is None else widened(kind, one.type)) or kind
    return fit(values, kind)


def _shown(value: bytes | None) -> str | None:
    if value is None:
        return None
    text = value[: 4 * PAYLOAD_LIMIT + 4].decode("utf-8", "backslashreplace")
    return text if len(text) <= PAYLOAD_LIMIT else text[:PAYLOAD_LIMIT] + "..."


def _fields(message: Any) -> dict[str, Any]:
    """The fields of a Protobuf message by name; unset message fields and optionals are null."""
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            row[field.name] = None
            continue
        row[field.name] = _value(field, getattr(message, field.name))
    return row


def _value(field: Any, value: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"].message_type
        return {k: v if inner is None else _fields(v) for k, v in value.items()}
    if kind is None:
        return value if isinstance(value, (str, bytes, int, float, bool)) else list(value)
    if kind.full_name == "google.protobuf.Timestamp":
        return value.ToDatetime(tzinfo=_utc())
    if hasattr(value, "DESCRIPTOR"):
        return _fields(value)
    return [_fields(v) for v in value]


def _utc() -> Any:
    from datetime import UTC

    return UTC


#: A schema, or a map of names to types.
Fields: TypeAlias = pa.Schema | Mapping[str, pa.DataType]


def _schema(given: Any) -> pa.Schema:
    if isinstance(given, pa.Schema):
        return given
    if isinstance(given, Mapping):
        return pa.schema(list(given.items()))
    raise ConfigurationError(
        f"schema {given!r} is neither a pyarrow schema nor a map such as {{'origin': pa.string(), 'delay': pa.int64()}}"
    )


def json(schema: Fields) -> JsonDecoder:
    """JSON objects, one a record, read many at a time.

    schema: a pyarrow schema, or {name: type}. Fields that it does not name are left out, those that a record lacks are null

    A number counts if the column holds it exactly, in a float column as the nearest float. Times are ISO 8601 text. Without a
    zone they are in the column's; with one the column needs one. Digits beyond microseconds are cut, except under `ns`.
    Decimals are numbers or text; a binary column holds the UTF-8 of text. A record that is no such object is a dead letter.

    Raises `ConfigurationError` (WR100) where the schema is none, or has a type that cannot be read from JSON.

    >>> json({"delay": pa.int64()}).schema.names
    ['delay']
    """
    return JsonDecoder(_schema(schema))


def msgpack(schema: Fields) -> FunctionDecoder:
    """msgpack maps, one a record. A record with a value that its column does not hold exactly is a dead letter.

    schema: as for `wr.decoders.json`, of any types

    >>> msgpack({"delay": pa.int64()}).schema.names
    ['delay']
    """
    return FunctionDecoder(_unpack, _schema(schema))


def _unpack(value: bytes) -> Any:
    return python_msgpack.unpackb(value, timestamp=3)


def raw(column: str = "value") -> BytesDecoder:
    """The bytes as they come, as one column.

    column: its name

    >>> raw("body").column
    'body'
    """
    return BytesDecoder(column)


def decoder(function: Callable[[bytes], Mapping[str, Any]], schema: Fields) -> FunctionDecoder:
    """A function of your own.

    function: takes the bytes of a record, gives its fields as a dict. What it raises makes that record a dead letter
    schema: as for `wr.decoders.json`

    >>> decoder(lambda value: {"text": value.decode()}, {"text": pa.string()}).function(b"x")
    {'text': 'x'}
    """
    return FunctionDecoder(function, _schema(schema))


def avro(registry: str | Mapping[str, Any], schema: Fields | None = None) -> AvroDecoder:
    """Avro records with the header of a schema registry. Needs the extra `avro`.

    registry: its URL, or the configuration that `SchemaRegistryClient` takes
    schema: types to give the columns, where they should not be those that come; Spark needs it

    Raises `RegistryFailed` (WR602) while reading, where the registry does not answer.
    """
    need("fastavro", "avro", "wr.decoders.avro")
    config = {"url": registry} if isinstance(registry, str) else dict(registry)
    return AvroDecoder(tuple(sorted(config.items())), None if schema is None else _schema(schema))


def protobuf(message: Any, *, framed: bool = True, schema: Fields | None = None) -> ProtobufDecoder:
    """Protobuf messages of one generated class. Needs the extra `protobuf`.

    message: the class
    framed: the records have the header of a schema registry, which is passed over
    schema: as for `wr.decoders.avro`
    """
    need("google.protobuf", "protobuf", "wr.decoders.protobuf")
    return ProtobufDecoder(message, framed, None if schema is None else _schema(schema))


__all__ = ["Decoder", "avro", "decoder", "json", "msgpack", "protobuf", "raw"]
