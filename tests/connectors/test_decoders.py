"""Bytes to rows: what can be read is, and what cannot says why, in its own row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from windrow.connectors import decoders
from windrow.core.errors import RegistryFailed
from windrow.operators.steps.columns import MALFORMED_ROW, RAW

FIELDS = {"k": pa.string(), "n": pa.int64(), "t": pa.timestamp("us", "UTC")}


def rows(decoder: decoders.Decoder, *values: bytes | None) -> list[dict[str, Any]]:
    return decoder.decode(values, "topic").to_pylist()


def errors_of(decoder: decoders.Decoder, *values: bytes | None) -> list[str | None]:
    table = decoder.decode(values, "topic")
    assert len(table) == len(values)
    if MALFORMED_ROW not in table.column_names:
        return [None] * len(values)
    return table.column(MALFORMED_ROW).to_pylist()


def test_json_gives_the_fields_of_the_schema_and_null_for_those_that_are_missing() -> None:
    [row, other] = rows(
        decoders.json(FIELDS), b'{"n": 7, "k": "a", "t": "2026-01-02T03:04:05Z", "more": [1]}', b"{}"
    )
    assert row == {"k": "a", "n": 7, "t": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}
    assert other == {"k": None, "n": None, "t": None}


POISON: list[tuple[bytes | None, str]] = [
    (None, "the record has no value"),
    (b"", "the value is empty"),
    (b"  ", "the value is empty"),
    (b"{bad", "no JSON: Expecting property name"),
    (b"[1]", "a list, where an object is expected"),
    (b"null", "a NoneType, where an object is expected"),
    (b'{"n": "x"}', "column 'n': 'x' is no int64"),
    (b'{"n": 1.5}', "column 'n': 1.5 is no int64"),
    (b'{"n": 1, "n": 2}', "column 'n': 'n' comes twice"),
    (b"\xff\x00", "no JSON: 'utf-8' codec can't decode"),
    (b'{"n": 1}\n{"n": 2}', "no JSON: Extra data"),
    (b'{"n": 1}{"n": 2}', "no JSON: Extra data"),
]


@pytest.mark.parametrize(("poison", "says"), POISON, ids=[repr(p[0]) for p in POISON])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_value_that_is_no_json_object_is_malformed_and_its_neighbours_are_not(
    poison: bytes | None, says: str, place: int
) -> None:
    values: list[bytes | None] = [b'{"n": 1}', b'{\n"n": 2\n}']
    values.insert(place, poison)
    table = decoders.json(FIELDS).decode(values, "topic")
    details = table.column(MALFORMED_ROW).to_pylist()
    assert [d is not None for d in details] == [i == place for i in range(3)]
    assert says in details[place]
    assert [n for n in table.column("n").to_pylist() if n is not None] == [1, 2]
    shown = table.column(RAW).to_pylist()[place]
    assert shown == (None if poison is None else poison.decode("utf-8", "backslashreplace"))


def test_an_empty_value_and_one_of_two_objects_do_not_make_up_for_each_other() -> None:
    """Their rows would be two, as many as there are values, at each other's positions."""
    says = errors_of(decoders.json(FIELDS), b"", b'{"n": 1}{"n": 2}', b'{"n": 3}')
    assert says[0] is not None and says[1] is not None and says[2] is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40))
def test_any_mixture_of_good_and_bad_keeps_order_and_number(mixture: Sequence[tuple[bool, int]]) -> None:
    values = [b'{"n": %d}' % n if good else b"}%d" % n for good, n in mixture]
    table = decoders.json(FIELDS).decode(values, "topic")
    assert table.column("n").to_pylist() == [n if good else None for good, n in mixture]
    if not all(good for good, _ in mixture):
        assert table.column(RAW).to_pylist() == [None if good else f"}}{n}" for good, n in mixture]


def test_a_long_value_is_cut_in_its_dead_letter() -> None:
    table = decoders.json(FIELDS).decode([b"x" * 10_000], "topic")
    assert table.column(RAW).to_pylist()[0] == "x" * 4096 + "..."


def test_msgpack_maps() -> None:
    stamp = datetime(2026, 1, 2, tzinfo=UTC)
    good = msgpack.packb({"k": "a", "n": 1, "t": stamp}, datetime=True)
    assert rows(decoders.msgpack(FIELDS), good) == [{"k": "a", "n": 1, "t": stamp}]
    says = errors_of(decoders.msgpack(FIELDS), good, b"\xc1", msgpack.packb([1]), msgpack.packb({"n": "x"}))
    assert [s is not None for s in says] == [False, True, True, True]
    assert "where a record of named fields is expected" in str(says[2])


def test_raw_bytes() -> None:
    assert rows(decoders.raw("body"), b"\xff", None) == [{"body": b"\xff"}, {"body": None}]


def test_what_a_function_raises_makes_that_record_malformed() -> None:
    decoder = decoders.decoder(lambda v: {"n": int(v)}, {"n": pa.int64()})
    assert errors_of(decoder, b"1", b"x") == [
        None,
        "ValueError: invalid literal for int() with base 10: b'x'",
    ]


def test_a_malformed_record_becomes_a_dead_letter_with_its_position_and_moves_no_watermark(
    tmp_path: Any,
) -> None:
    counted = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={"n": wr.count()}, retention="1 hour"
    )
    table = decoders.json(FIELDS).decode([b'{"k": "a", "t": "1970-01-01T00:00:01Z"}', b"}"], "in")
    table = table.append_column("__offset", pa.array([10, 11], pa.int64()))
    table = table.append_column("__source", pa.array(["in"] * 2)).append_column(
        "__partition", pa.array([3] * 2, pa.int64())
    )
    with counted.open(str(tmp_path)) as op:
        op.add_messages(table)
        [letter] = op.dead_letters()
        assert op.next_offsets() == {("in", 3): 12}
    assert (letter.reason, letter.payload) == ("malformed", "}")
    assert letter.position is not None and letter.position.offset == 11


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One registry for whoever asks for its URL."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    client = SchemaRegistryClient.new_client({"url": "mock://test"})
    monkeypatch.setattr(SchemaRegistryClient, "new_client", lambda config: client)
    decoders._avro_deserializer.cache_clear()
    yield client
    decoders._avro_deserializer.cache_clear()


def test_avro_with_a_schema_registry(registry: Any) -> None:
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    schema = """{"type": "record", "name": "r", "fields": [{"name": "k", "type": "string"}, {"name": "n", "type": "long"},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}"""
    serializer = AvroSerializer(registry, schema)
    stamp = datetime(2026, 1, 2, tzinfo=UTC)
    good = serializer({"k": "a", "n": 1, "t": stamp}, SerializationContext("topic", MessageField.VALUE))
    assert rows(decoders.avro("mock://test"), good) == [{"k": "a", "n": 1, "t": stamp}]
    says = errors_of(decoders.avro("mock://test"), b"no avro", good, None)
    assert [s is not None for s in says] == [True, False, True]


def test_a_registry_that_does_not_answer_makes_no_record_malformed() -> None:
    decoder = decoders.avro({"url": "http://127.0.0.1:1", "max.retries": 0})
    with pytest.raises(RegistryFailed, match="did not answer"):
        decoder.decode([b"\x00\x00\x00\x00\x01\x02a"], "topic")


def protobuf_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

    file = descriptor_pb2.FileDescriptorProto(
        name="reading.proto", package="test", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    message = file.message_type.add(name="Reading")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate((("k", kinds.TYPE_STRING), ("n", kinds.TYPE_INT64)), 1):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    message.field.add(
        name="t",
        number=3,
        type=kinds.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=kinds.LABEL_OPTIONAL,
    )
    message.field.add(name="tags", number=4, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Reading"))


def test_protobuf_plain_and_with_the_registry_header() -> None:
    made = protobuf_class()
    message = made(k="a", n=2**60, tags=["x", "y"])
    message.t.FromDatetime(datetime(2026, 1, 2))
    wanted = {"k": "a", "n": 2**60, "t": datetime(2026, 1, 2, tzinfo=UTC), "tags": ["x", "y"]}
    plain = message.SerializeToString()
    assert rows(decoders.protobuf(made, framed=False), plain) == [wanted]
    framed = b"\x00\x00\x00\x00\x01\x00" + plain  # magic byte, schema id, index of the first message
    assert rows(decoders.protobuf(made), framed) == [wanted]
    assert rows(decoders.protobuf(made, framed=False), made(k="b").SerializeToString()) == [
        {"k": "b", "n": 0, "t": None, "tags": []}
    ]
    says = errors_of(decoders.protobuf(made, framed=False), b"\xff\xff", plain)
    assert [s is not None for s in says] == [True, False]


def test_a_schema_that_is_none_is_refused() -> None:
    with pytest.raises(wr.ConfigurationError, match="neither a pyarrow schema nor a map"):
        decoders.json(["k"])
    with pytest.raises(wr.ConfigurationError, match="name each once"):
        decoders.msgpack(pa.schema([("k", pa.string()), ("k", pa.int64())]))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (str, r"use pa\.string\(\)"),
        (int, r"use pa\.int64\(\)"),
        (datetime, r"use pa\.timestamp\('us', 'UTC'\)"),
        ("strng", "use one such as"),
        (dict, "use one such as"),
    ],
)
def test_a_type_that_is_none_of_pyarrow_is_refused_with_its_column(kind: Any, said: str) -> None:
    for decoder in (decoders.json, decoders.msgpack):
        with pytest.raises(wr.ConfigurationError, match=f"column 'a' is of .*: {said}"):
            decoder({"b": pa.int64(), "a": kind})


@pytest.mark.parametrize("value", ["json", b"json", decoders.json, decoders.JsonDecoder, None])
def test_a_source_refuses_what_is_no_decoder(value: Any) -> None:
    with pytest.raises(wr.ConfigurationError, match=r"is no decoder: use .*wr\.decoders\.json\(\{"):
        wr.sources.kafka("localhost:9092", "orders", value=value)
