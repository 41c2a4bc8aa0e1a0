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
import pyarrow.json as arrow_json

from windrow.core.errors import ConfigurationError, RegistryFailed
from windrow.core.extras import need
from windrow.operators.steps.columns import MALFORMED_ROW, RAW
from windrow.operators.steps.dead import PAYLOAD_LIMIT

Values = Sequence[bytes | None]


class Decoder(Protocol):
    """Turns the bytes of records into rows. One of your own: `wr.decoders.decoder(function, schema)`."""

    def decode(self, values: Values, topic: str) -> pa.Table:
        """One row for each value. Where some cannot be read, with the columns that say so (see `set_apart`).

        values: the bytes of records of one topic, None for none. topic: its name
        """
        ...


class Unreadable(Exception):
    """Values that cannot be read, some of them or all."""


@dataclass(frozen=True)
class JsonDecoder:
    """See `json`."""

    schema: pa.Schema

    def decode(self, values: Values, topic: str) -> pa.Table:
        return set_apart(values, self._rows, self.schema)

    def _rows(self, values: Values) -> pa.Table:
        present = _present(values)
        whole = b"\n".join(present)
        # Line by line: no value may be empty or be more lines than one, or rows would be others' than their positions say.
        by_line = whole.count(b"\n") == len(values) - 1 and all(map(bytes.strip, present))
        if not by_line and len(values) > 1:
            raise Unreadable("lines")
        if not whole.strip():
            raise Unreadable("the value is empty")
        try:
            table = arrow_json.read_json(
                pa.BufferReader(whole),
                arrow_json.ReadOptions(use_threads=False, block_size=len(whole) + 1),
                arrow_json.ParseOptions(
                    explicit_schema=self.schema,
                    newlines_in_values=not by_line,
                    unexpected_field_behavior="ignore",
                ),
            )
        except pa.ArrowInvalid as error:
            raise Unreadable(str(error)) from error
        if len(table) != len(values):
            raise Unreadable(f"{len(table)} objects in {len(values)} values")
        return table.select(self.schema.names)


@dataclass(frozen=True)
class FunctionDecoder:
    """See `decoder`."""

    function: Callable[[bytes], Mapping[str, Any]]
    schema: pa.Schema

    def decode(self, values: Values, topic: str) -> pa.Table:
        return set_apart(values, lambda some: _each(self.function, some, self.schema), self.schema)


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

        return set_apart(values, lambda some: _each(read, some, self.schema), self.schema)


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
        return set_apart(values, lambda some: _each(self._read(topic), some, self.schema), self.schema)

    def _read(self, topic: str) -> Callable[[bytes], Mapping[str, Any]]:
        if not self.framed:
            return lambda value: _fields(self.message.FromString(value))
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
        from confluent_kafka.serialization import MessageField, SerializationContext

        read = ProtobufDeserializer(self.message, {"use.deprecated.format": False})
        context = SerializationContext(topic, MessageField.VALUE)
        return lambda value: _fields(read(value, context))


def set_apart(values: Values, rows: Callable[[Values], pa.Table], schema: pa.Schema | None) -> pa.Table:
    """`rows` of all values that it can read; a row that says what is wrong for each of the others.

    `rows` reads many at once and raises `Unreadable` if one of them cannot be read: halves tell which.
    """
    wrong: dict[int, str] = {}
    tables: list[pa.Table] = []

    def halve(start: int, end: int) -> None:
        try:
            tables.append(rows(values[start:end]))
            return
        except Unreadable as error:
            if end - start == 1:
                wrong[start] = str(error)
                tables.append(pa.table({_HOLE: pa.nulls(1)}))
                return
        middle = (start + end) // 2
        halve(start, middle)
        halve(middle, end)

    missing = [i for i, v in enumerate(values) if v is None]
    if missing and len(missing) == len(values):
        wrong = dict.fromkeys(missing, "the record has no value")
        tables.append(pa.table({_HOLE: pa.nulls(len(values))}))
    elif values:
        halve(0, len(values))
    empty = schema.empty_table() if schema is not None else pa.table({})
    table = pa.concat_tables([empty, *tables], promote_options="permissive") if tables else empty
    if _HOLE in table.column_names:
        table = table.drop_columns([_HOLE])
    if not wrong:
        return table
    details = np.full(len(values), None, dtype=object)
    raw = np.full(len(values), None, dtype=object)
    for i, detail in wrong.items():
        details[i], raw[i] = detail, _shown(values[i])
    return table.append_column(MALFORMED_ROW, pa.array(details, pa.string())).append_column(
        RAW, pa.array(raw, pa.string())
    )


#: Stands for the columns of a row that could not be read, where none are known.
_HOLE = "__hole"


def _shown(value: bytes | None) -> str | None:
    if value is None:
        return None
    text = value.decode("utf-8", "backslashreplace")
    return text if len(text) <= PAYLOAD_LIMIT else text[:PAYLOAD_LIMIT] + "..."


def _present(values: Values) -> list[bytes]:
    found = [v for v in values if v is not None]
    if len(found) < len(values):
        raise Unreadable("the record has no value")
    return found


def _each(
    function: Callable[[bytes], Mapping[str, Any]], values: Values, schema: pa.Schema | None
) -> pa.Table:
    rows = []
    for value in _present(values):
        try:
            row = function(value)
        except RegistryFailed:
            raise
        except Exception as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error
        if not isinstance(row, Mapping):
            raise Unreadable(f"a {type(row).__name__}, where a record of named fields is expected")
        rows.append(row)
    return _of_rows(rows, schema)


def _of_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    if schema is None:
        # A field may be missing from the first row.
        names = list(dict.fromkeys(name for row in rows for name in row))
        rows = [{name: row.get(name) for name in names} for row in rows]
    try:
        return pa.Table.from_pylist(list(rows), schema)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise Unreadable(str(error)) from error


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

    A record that is no such object is a dead letter. Raises `ConfigurationError` (WR100) where the schema is none.

    >>> json({"delay": pa.int64()}).schema.names
    ['delay']
    """
    return JsonDecoder(_schema(schema))


def msgpack(schema: Fields) -> FunctionDecoder:
    """msgpack maps, one a record.

    schema: as for `wr.decoders.json`

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
