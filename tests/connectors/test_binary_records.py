"""msgpack, Avro and Protobuf from anywhere: each record counts exactly or is a dead letter, and none ends the process."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest

import windrow as wr
from tests.connectors.test_decoders import errors_of, protobuf_class, registry, rows
from tests.deep import usually
from windrow.connectors.decoders import Decoder
from windrow.operators.steps.columns import MALFORMED_ROW
from windrow.testing import ManualClock

__all__ = ["registry"]

STAMP = datetime(2026, 1, 2, tzinfo=UTC)
FIELDS = {
    "n": pa.int64(),
    "k": pa.string(),
    "t": pa.timestamp("us", "UTC"),
    "f": pa.float32(),
    "l": pa.list_(pa.int16()),
    "o": pa.struct([("a", pa.int64()), ("at", pa.timestamp("us", "UTC"))]),
    "d": pa.decimal128(5, 2),
    "b": pa.binary(),
}
AVRO = """{"type": "record", "name": "r", "fields": [{"name": "k", "type": "string"}, {"name": "n", "type": ["null", "long"]},
    {"name": "f", "type": "double"}, {"name": "l", "type": {"type": "array", "items": "int"}}, {"name": "b", "type": "bytes"},
    {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "m", "type": {"type": "map", "values": "int"}},
    {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}}]}"""


def packed(value: Any) -> bytes:
    return msgpack.packb(value, datetime=True)


def avro(registry: Any, schema: str, value: Any) -> bytes:
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    return AvroSerializer(registry, schema)(value, SerializationContext("topic", MessageField.VALUE))


def held(table: pa.Table, row: int) -> dict[str, Any]:
    """Return the stored text of a row."""
    values = {
        name: str(table.column(name)[row]) for name in table.column_names if table.column(name)[row].is_valid
    }
    return {} if MALFORMED_ROW in values else values


def check(decoder: Decoder, good: list[bytes], header: int, records: int) -> None:
    """Records that are changed, cut and put together: none is an exception, and each is in a batch what it is alone."""
    source = random.Random(7)
    wrong = 0
    for _ in range(records // 16):
        values: list[bytes | None] = []
        for _ in range(16):
            value = bytearray(source.choice(good))
            for _ in range(source.choice([0, 1, 1, 3])):
                at = source.randrange(min(header, len(value)), len(value) + 1)
                put = source.choice(
                    [b"", b"\xff", b"\0", b"\x80", bytes([source.randrange(256)]), source.choice(good)]
                )
                value[at : at + source.randrange(3)] = put
            values.append(bytes(value[: source.choice([len(value), source.randrange(len(value) + 1)])]))
        table = decoder.decode([None, *values], "topic")
        table.validate(full=True)
        alone = [decoder.decode([v], "topic") for v in values]
        for i, one in enumerate(alone):
            is_wrong = MALFORMED_ROW in one.column_names
            wrong += is_wrong
            assert (table.column(MALFORMED_ROW)[i + 1].as_py() is not None) == is_wrong
            assert held(table, i + 1) == held(one, 0)
    print(f"{records} records, {wrong} of them dead letters")
    assert records / 10 < wrong < records * 0.95


def test_msgpack_from_anywhere() -> None:
    whole = {
        "n": 1,
        "k": "a",
        "t": STAMP,
        "f": 0.5,
        "l": [1, -2],
        "o": {"a": 1, "at": STAMP, "more": 1},
        "b": b"\xff",
        "more": [{}],
    }
    good = [packed(whole), packed({"n": 2**63 - 1}), packed({}), packed({"n": 1.0, "l": None})]
    check(wr.decoders.msgpack(FIELDS), good, 0, usually(320, deep=50_000))


@pytest.mark.parametrize(
    ("value", "column"),
    [
        *(({"n": n}, "n") for n in (1.5, 2**63, -1e19, "1", True, float("nan"), [1], {})),
        *(({"k": k}, "k") for k in (1, b"\xff", True, ["a"])),
        *(({"t": t}, "t") for t in (1, 1.5, "2026-01-02", msgpack.Timestamp(2**60))),
        *(({"f": f}, "f") for f in (1e39, "1", True)),
        *(({"l": li}, "l") for li in ([1.5], [70_000], [None, "a"], 1, {"a": 1})),
        *(({"o": o}, "o") for o in ({"a": 1.5}, {"at": 1}, [1], 1)),
        *(({"d": d}, "d") for d in (1.005, 1000, "1.5")),
        *(({"b": b}, "b") for b in ("a", 1, msgpack.ExtType(5, b"a"))),
    ],
    ids=repr,
)
def test_a_value_of_msgpack_that_a_column_does_not_hold_is_a_dead_letter(
    value: dict[str, Any], column: str
) -> None:
    """It costs its neighbours nothing."""
    good = packed({"n": 3})
    says = errors_of(wr.decoders.msgpack(FIELDS), good, packed(value), good)
    assert (says[0], says[2]) == (None, None)
    assert f"column {column!r}" in str(says[1]) or "OverflowError" in str(says[1])


def test_values_of_msgpack_are_counted_as_they_are() -> None:
    decoder = wr.decoders.msgpack({**FIELDS, "d": pa.float64()})
    value = {
        "n": 1.0,
        "k": "",
        "t": STAMP,
        "f": 0.1,
        "l": [1, None],
        "o": {"a": 2, "x": 1},
        "d": 2**53,
        "b": b"",
    }
    [row] = rows(decoder, packed(value))
    assert row == {
        **value,
        "n": 1,
        "f": pa.scalar(0.1, pa.float32()).as_py(),
        "o": {"a": 2, "at": None},
        "d": 2.0**53,
    }
    says = errors_of(
        decoder,
        b"\x82\xa1n\x01\xa1n\x02",
        b"\x91" * 20_000 + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        packed(None),
        packed(1),
        b"",
    )
    assert all(says) and "comes twice" in str(says[0])


def test_times_of_msgpack_keep_the_nanoseconds_that_a_column_holds() -> None:
    schema = {
        "t": pa.timestamp("ns", "UTC"),
        "u": pa.timestamp("us", "UTC"),
        "l": pa.list_(pa.timestamp("ns", "UTC")),
    }
    stamp = msgpack.Timestamp(1, 1_002_003)
    table = wr.decoders.msgpack(schema).decode(
        [msgpack.packb({"t": stamp, "u": stamp, "l": [stamp]})], "topic"
    )
    assert table.column("t").cast(pa.int64()).to_pylist() == [1_001_002_003]
    assert table.column("u").cast(pa.int64()).to_pylist() == [1_001_002]
    assert table.column("l").combine_chunks().flatten().cast(pa.int64()).to_pylist() == [1_001_002_003]
    only = wr.decoders.msgpack({"u": schema["u"]}).decode([msgpack.packb({"u": stamp})], "topic")
    assert only.column("u").equals(table.column("u"))


def test_avro_from_anywhere(registry: Any) -> None:
    value = {
        "k": "a",
        "n": 2**60,
        "f": 0.5,
        "l": [1, 2],
        "b": b"\xff",
        "t": STAMP,
        "m": {"a": 1},
        "d": Decimal("1.25"),
    }
    good = [avro(registry, AVRO, value), avro(registry, AVRO, {**value, "n": None, "l": [], "m": {}})]
    types = {
        "k": pa.string(),
        "n": pa.int64(),
        "l": pa.list_(pa.int8()),
        "m": pa.map_(pa.string(), pa.int16()),
        "b": pa.binary(),
    }
    check(wr.decoders.avro("mock://test", types), good, 5, usually(320, deep=50_000))
    assert rows(wr.decoders.avro("mock://test", types), good[0]) == [
        {"k": "a", "n": 2**60, "l": [1, 2], "m": [("a", 1)], "b": b"\xff"}
    ]
    [row] = rows(wr.decoders.avro("mock://test"), good[0])
    assert row == value
    narrow = wr.decoders.avro("mock://test", {"k": pa.string(), "n": pa.int8(), "d": pa.decimal128(3, 1)})
    assert "column 'n'" in str(errors_of(narrow, good[0])[0]) and "column 'd'" in str(
        errors_of(narrow, good[1])[0]
    )


@pytest.mark.parametrize(
    ("fields", "body", "says"),
    [
        ('{"name": "next", "type": ["null", "r"]}', lambda: b"\x02" * 50_000 + b"\x00", "contains itself"),
        (
            '{"name": "l", "type": {"type": "array", "items": "r"}}',
            lambda: b"\x02" * 50_000,
            "contains itself",
        ),
        (
            '{"name": "l", "type": {"type": "array", "items": "null"}}',
            lambda: b"\xfe" + b"\xff" * 8 + b"\x01",
            "no bytes",
        ),
        (
            '{"name": "l", "type": {"type": "array", "items": {"type": "record", "name": "z", "fields": []}}}',
            lambda: b"\xfe" + b"\xff" * 8 + b"\x01",
            "no bytes",
        ),
    ],
    ids=["next", "list", "nulls", "empty"],
)
def test_a_schema_of_avro_that_bounds_no_record_is_not_read(
    registry: Any, fields: str, body: Callable[[], bytes], says: str
) -> None:
    """fastavro ends the process where a record is in itself 10,000 times, and makes 2**62 nulls of nine bytes."""
    from confluent_kafka.schema_registry import Schema

    schema = f'{{"type": "record", "name": "r", "fields": [{fields}]}}'
    number = registry.register_schema("topic-value", Schema(schema, "AVRO"))
    good = avro(
        registry,
        AVRO.replace('"r"', '"other"'),
        {"k": "a", "n": 1, "f": 0, "l": [], "b": b"", "t": STAMP, "m": {}, "d": Decimal(1)},
    )
    reasons = errors_of(wr.decoders.avro("mock://test"), b"\0" + number.to_bytes(4, "big") + body(), good)
    assert says in str(reasons[0]) and reasons[1] is None


def test_avro_without_a_schema_learns_types_in_which_all_go_together(registry: Any) -> None:
    """Writers' schemas differ: int beside long widens, text beside them is a dead letter."""
    of = '{"type": "record", "name": "%s", "fields": [{"name": "n", "type": "%s"}]}'
    good = [avro(registry, of % ("a", "int"), {"n": 1}), avro(registry, of % ("b", "double"), {"n": 0.5})]
    text = avro(registry, of % ("c", "string"), {"n": "x"})
    table = wr.decoders.avro("mock://test").decode([good[0], text, good[1]], "topic")
    assert table.column("n").to_pylist() == [1.0, None, 0.5]
    assert [why is not None for why in table.column(MALFORMED_ROW).to_pylist()] == [False, True, False]


def test_protobuf_from_anywhere() -> None:
    made = protobuf_class()
    message = made(k="a", n=2**60, tags=["x", "y"])
    message.t.FromDatetime(datetime(2026, 1, 2))
    good = [message.SerializeToString(), made(k="b").SerializeToString() + b"\x2a\x01a"]
    check(wr.decoders.protobuf(made, framed=False), good, 0, usually(320, deep=50_000))
    narrow = wr.decoders.protobuf(made, framed=False, schema={"n": pa.int32(), "tags": pa.list_(pa.int64())})
    assert "column 'n'" in str(errors_of(narrow, good[0])[0])


def test_what_a_function_gives_is_counted_as_it_is_or_not() -> None:
    decoder = wr.decoders.decoder(lambda v: {"n": eval(v)}, {"n": pa.int64()})
    says = errors_of(decoder, b"1", b"1.5", b"2.0", b"'a'", b"None", b"[[]]", b"True")
    assert [why is not None for why in says] == [False, True, False, True, False, True, True]
    assert says[1] == "column 'n': 1.5 is no int64 without loss"


def test_columns_of_any_type_have_rows_that_cannot_be_read() -> None:
    for kind in (
        pa.string_view(),
        pa.binary_view(),
        pa.large_list(pa.int8()),
        pa.list_(pa.int8(), 1),
        pa.dictionary(pa.int8(), pa.string()),
    ):
        table = wr.decoders.msgpack({"v": kind}).decode([packed({"v": None}), b""], "topic")
        assert table.column(MALFORMED_ROW).null_count == 1
    assert errors_of(wr.decoders.json({"v": pa.string_view()}), b'{"v": "a"}', b"null")[0] is None


@pytest.mark.parametrize("operator", ["aggregate", "made", "session", "over"])
def test_records_that_cannot_be_read_before_any_other_stop_no_job(
    registry: Any, operator: str, tmp_path: Any
) -> None:
    """Without a schema the columns are those of the records, and there are none yet."""
    schema = """{"type": "record", "name": "r", "fields": [{"name": "k", "type": "string"}, {"name": "v", "type": "long"},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}"""
    good = avro(registry, schema, {"k": "a", "v": 3, "t": STAMP})
    window = wr.session("10 seconds") if operator == "session" else wr.tumbling("10 seconds")
    definition: Any = wr.Over(
        by="k",
        event_time="t",
        agg={"n": wr.count().over("10 seconds"), "most": wr.max("v").over("10 seconds")},
    )
    if operator != "over":
        by: Any = {"key": wr.col("k")} if operator == "made" else "k"
        agg = {"n": wr.count(), "v": wr.sum(wr.col("v") * 2)}
        definition = wr.Aggregate(by=by, event_time="t", window=window, agg=agg, retention="1 hour")
    decoder = wr.decoders.avro("mock://test")
    with definition.open(str(tmp_path), clock=ManualClock(int(STAMP.timestamp() * 1_000_000))) as op:
        first = 0
        for values in ([b"x", b"null"], [None], [b"\xff", good], [good], [b"x"]):
            table = decoder.decode(values, "topic")
            for name, value in (("__source", "topic"), ("__partition", 0)):
                table = table.append_column(name, pa.array([value] * len(values)))
            op.add_messages(table.append_column("__offset", pa.array(range(first, first + len(values)))))
            op.flush()
            first += len(values)
        assert [one.reason for one in op.dead_letters()] == ["malformed"] * 5
