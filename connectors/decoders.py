"""Decoders from the bytes of records to rows: JSON, msgpack, Avro, Protobuf, or a function of your own.

A record that cannot be decoded raises no error: its row has the reason, and becomes a dead letter with its position.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol, TypeAlias

import msgpack as python_msgpack
import numpy as np
import pyarrow as pa

from windrow.connectors import json_records
from windrow.core.border import Fitted, fit, read
from windrow.core.errors import ConfigurationError, RegistryFailed
from windrow.core.extras import need
from windrow.core.types import plain_type, typed_field, widened
from windrow.operators.steps.columns import MALFORMED_ROW, RAW
from windrow.operators.steps.dead_letters import PAYLOAD_LIMIT

Values = Sequence[bytes | None]


class Decoder(Protocol):
    """Decoder of the bytes of records to rows. For a custom one use `wr.decoders.decoder(function, schema)`."""

    def decode(self, values: Values, topic: str) -> pa.Table:
        """Return one row for each value. Where some cannot be decoded, with the columns of the reason (see `to_rows`).

        values: the bytes of records of one topic, None for none. topic: its name
        """
        ...


@dataclass(frozen=True)
class JsonDecoder:
    """See `json`."""

    schema: pa.Schema
    #: Time zone of columns without one: the input's, where a job reads.
    time_zone: str = "UTC"

    def decode(self, values: Values, topic: str) -> pa.Table:
        return to_rows(
            values,
            self.schema,
            self.time_zone,
            read_one=lambda value: json_records.read_one(value, self.schema, self.time_zone),
            read_many=lambda some: json_records.read_many(some, self.schema, self.time_zone),
        )


@dataclass(frozen=True)
class FunctionDecoder:
    """See `decoder`."""

    function: Callable[[bytes], Mapping[str, Any]]
    schema: pa.Schema
    time_zone: str = "UTC"

    def decode(self, values: Values, topic: str) -> pa.Table:
        return to_rows(values, self.schema, self.time_zone, self.function)


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
    time_zone: str = "UTC"

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

        return to_rows(values, self.schema, self.time_zone, read)


def _url(registry: tuple[tuple[str, Any], ...]) -> str:
    """Return the registry's URL without the name and password that it may hold."""
    return re.sub(r"//[^/]*@", "//", str(dict(registry).get("url", "")))


@functools.cache
def _avro_deserializer(registry: tuple[tuple[str, Any], ...]) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    from windrow.connectors.avro_records import BoundedDeserializer

    return BoundedDeserializer(SchemaRegistryClient.new_client(dict(registry)))


@dataclass(frozen=True)
class ProtobufDecoder:
    """See `protobuf`."""

    message: Any
    framed: bool = True
    schema: pa.Schema | None = None
    time_zone: str = "UTC"

    def decode(self, values: Values, topic: str) -> pa.Table:
        return to_rows(values, self.schema, self.time_zone, self._read(topic))

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
    zone: str,
    read_one: Callable[[bytes], Any],
    read_many: Callable[[Sequence[bytes]], pa.Table | None] | None = None,
) -> pa.Table:
    """Make one row of each value, null where it cannot be read, with columns that say why.

    zone: of columns without one
    read_one: gives the fields of a value, or raises. read_many: gives the rows of values at once, or None if some have to be
    read alone: halves show which.
    """
    table = read_many(values) if read_many is not None and all(values) else None  # type: ignore[arg-type]
    if table is not None:
        return table
    present = [i for i, v in enumerate(values) if v is not None]
    parts, alone = _read_many([v for v in values if v is not None], read_many)
    rows, of_row, wrong = _read_each(values, [present[j] for j in alone], read_one)
    wrong.update((i, "the record has no value") for i, v in enumerate(values) if v is None)
    fitted, misfits = _fitted(rows, schema, zone)
    wrong.update((of_row[row], why) for row, why in misfits.items())
    if not parts and not wrong:
        return fitted
    places = np.full(len(values), -1)
    before = 0
    for of_part in (*(present[start : start + len(part)] for start, part in parts), of_row):
        places[of_part] = np.arange(before, before + len(of_part))
        before += len(of_part)
    places[list(wrong)] = -1
    table = pa.concat_tables([*(part for _, part in parts), fitted]).take(pa.array(places, mask=places < 0))
    if not wrong:
        return table
    details = pa.array([wrong.get(i) for i in range(len(values))], pa.string())
    raw = pa.array([_shown(v) if i in wrong else None for i, v in enumerate(values)], pa.string())
    return pa.table([*table.columns, details, raw], names=[*table.column_names, MALFORMED_ROW, RAW])


def _read_many(
    values: Sequence[bytes], read: Callable[[Sequence[bytes]], pa.Table | None] | None
) -> tuple[list[tuple[int, pa.Table]], Sequence[int]]:
    """Read parts of the values at once: give the rows from each first value on, and the values to be read alone."""
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


def _read_each(
    values: Values, wanted: Iterable[int], read: Callable[[bytes], Any]
) -> tuple[list[Mapping[str, Any]], list[int], dict[int, str]]:
    """Read records one by one. Returns the fields, the record of each, and the faults of the others."""
    rows: list[Mapping[str, Any]] = []
    of_row: list[int] = []
    wrong: dict[int, str] = {}
    for i in wanted:
        try:
            row = read(values[i])  # type: ignore[arg-type]
        except (RegistryFailed, MemoryError):
            raise
        except json_records.NoRecord as error:
            wrong[i] = str(error)
        except Exception as error:
            wrong[i] = f"{type(error).__name__}: {error}"
        else:
            if type(row) is dict or isinstance(row, Mapping):
                rows.append(row)
                of_row.append(i)
            else:
                wrong[i] = f"a {type(row).__name__}, where a record of named fields is expected"
    return rows, of_row, wrong


def _fitted(
    rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None, zone: str
) -> tuple[pa.Table, dict[int, str]]:
    """Make columns of rows. Give, by row, the value that does not fit its column."""
    wrong: dict[int, str] = {}
    columns: dict[str, pa.Array] = {}
    # A field may be missing from the first row.
    names = schema.names if schema is not None else list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        wrong = dict.fromkeys(range(len(rows)), "the record has no fields")
    for name in names:
        values = [row.get(name) for row in rows]
        kind = None if schema is None else schema.field(name).type
        shaped = None if kind is None else _shaper(kind, zone)
        values = values if shaped is None else [shaped(value) for value in values]
        fitted = _learnt(values) if kind is None else fit(values, kind)
        columns[name] = fitted.array
        for row, why in fitted.misfits.items():
            wrong.setdefault(row, f"column {name!r}: {why}")
    return pa.table(columns, schema=schema), wrong


def _shaper(kind: pa.DataType, zone: str) -> Callable[[Any], Any] | None:
    """Give a function that leaves out the fields that the type does not name, and has times as the type holds them."""
    if pa.types.is_struct(kind):
        fields = [(f.name, _shaper(f.type, zone)) for f in kind]
        return lambda value: (
            {n: value.get(n) if shaped is None else shaped(value.get(n)) for n, shaped in fields}
            if isinstance(value, dict)
            else value
        )
    if pa.types.is_list(kind):
        inner = _shaper(kind.value_type, zone)
        return inner and (lambda value: [inner(one) for one in value] if isinstance(value, list) else value)
    return partial(_moment, kind=kind, zone=zone) if pa.types.is_timestamp(kind) else None


def _moment(value: Any, kind: pa.TimestampType, zone: str) -> Any:
    """Convert a time of msgpack, its nanoseconds cut where the type holds none, or a time to a local time."""
    try:
        if isinstance(value, python_msgpack.Timestamp):
            if kind.unit == "ns" and value.nanoseconds % 1000:
                return pa.scalar(value.to_unix_nano(), pa.timestamp("ns", "UTC"))
            value = value.to_datetime()
        is_local = kind.tz is not None or not isinstance(value, datetime) or value.tzinfo is None
        return value if is_local else json_records.local_time(value, zone)
    except (OverflowError, ValueError):
        return value  # outside of what the type holds


def _learnt(values: Sequence[Any]) -> Fitted:
    """Make a column in the type that its values say, the first of them first."""
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
    """Return the fields of a Protobuf message by name; unset message fields and optionals are null."""
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
        return value.ToDatetime(tzinfo=UTC)
    if hasattr(value, "DESCRIPTOR"):
        return _fields(value)
    return [_fields(v) for v in value]


#: A schema, or a map of names to types.
Fields: TypeAlias = pa.Schema | Mapping[str, pa.DataType]


def _schema(value: Any) -> pa.Schema:
    """Read the columns of rows, in the types that their values have here."""
    schema = _as_schema(value)
    return pa.schema([pa.field(f.name, plain_type(f.type)) for f in schema])


def _as_schema(value: Any) -> pa.Schema:
    if isinstance(value, Mapping):
        return pa.schema([typed_field(name, kind) for name, kind in value.items()])
    if not isinstance(value, pa.Schema):
        raise ConfigurationError(
            f"schema {value!r} is neither a pyarrow schema nor a map such as {{'origin': pa.string(), 'delay': pa.int64()}}"
        )
    if len(set(value.names)) < len(value):
        raise ConfigurationError(f"schema with columns {value.names}: name each once")
    return value


def json(schema: Fields) -> JsonDecoder:
    """JSON objects, one a record, read many at a time.

    schema: a pyarrow schema, or {name: type}. Fields that it does not name are left out, those that a record lacks are null

    A number counts if the column holds it exactly, in a float column as the nearest float. Decimals are numbers or text; a
    binary column holds the UTF-8 of text. Times are ISO 8601 text, digits beyond microseconds are cut, except under `ns`. Text
    without a zone is in the column's. Text with one, under a column without one, is the local time of the input's `time_zone=`,
    or of UTC.
    A record that is no such object is a dead letter.

    Raises `ConfigurationError` (WR100) where the schema is none, or has a type that cannot be read from JSON.

    >>> json({"delay": pa.int64()}).schema.names
    ['delay']
    """
    json_records.check_readable(_as_schema(schema))
    return JsonDecoder(_schema(schema))


def msgpack(schema: Fields) -> FunctionDecoder:
    """Decode msgpack maps, one a record. A record with a value that its column does not hold exactly is a dead letter.

    schema: as for `wr.decoders.json`, of any types

    >>> msgpack({"delay": pa.int64()}).schema.names
    ['delay']
    """
    types = _schema(schema)
    return FunctionDecoder(_unpack_nanoseconds if "timestamp[ns" in str(types) else _unpack, types)


def _unpack(value: bytes) -> Any:
    return python_msgpack.unpackb(value, timestamp=3, object_pairs_hook=_object)


def _unpack_nanoseconds(value: bytes) -> Any:
    return python_msgpack.unpackb(value, timestamp=0, object_pairs_hook=_object)


def _object(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Make a dict of a map of msgpack. Raises `ValueError` where a name comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a name comes twice in {[name for name, _ in pairs]!r:.200}")
    return found


def raw(column: str = "value") -> BytesDecoder:
    """Decode the bytes unchanged, as one column.

    column: its name

    >>> raw("body").column
    'body'
    """
    return BytesDecoder(column)


def decoder(function: Callable[[bytes], Mapping[str, Any]], schema: Fields) -> FunctionDecoder:
    """Decode by a function of your own.

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
