"""JSON of a sink: its output is JSON, and a key of a group is a record key of its own."""

from __future__ import annotations

import itertools
import json
import math
import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.connectors.kafka.encoding import json_keys, json_rows
from windrow.connectors.kafka.sink import KafkaSink, read_all
from windrow.core.show import json_text
from windrow.testing import ManualClock, SimulatedKafka

INFINITIES = [math.nan, math.inf, -math.inf]
MOMENT = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
#: Types of columns, and values that are different keys.
KEYS: list[tuple[pa.DataType, list[Any]]] = [
    *((kind, [*INFINITIES, None, 0.0, 1.0, -1.5, 2.0**20 + 1]) for kind in (pa.float64(), pa.float32())),
    (pa.float64(), [0.1, 0.1 + 2**-55, 5e-324, 1.7976931348623157e308, 1e22]),
    (pa.int64(), [2**63 - 1, 2**63 - 2, -(2**63), 0, None]),
    (pa.uint64(), [2**64 - 1, 2**64 - 2, None]),
    (pa.bool_(), [True, False, None]),
    (pa.string(), ["a", "", "\0", '"', "null", "NaN", "é", "\u2028", "Infinity", None]),
    (pa.large_string(), ["a", None]),
    (pa.binary(), [b"", b"\xff", b"\xfe", b"/w==", None]),
    (pa.binary(2), [b"\xff\x00", b"\xff\x01", None]),
    (pa.decimal128(5, 2), [Decimal("1.10"), Decimal("1.11"), Decimal(-1), None]),
    (pa.decimal256(60, 2), [Decimal("1" + "0" * 50), Decimal("1" + "0" * 50 + ".01"), None]),
    (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    (pa.time64("us"), [time(0), time(0, microsecond=1), None]),
    (pa.time64("ns"), [1, 2, None]),
    (
        pa.timestamp("us"),
        [datetime(1, 1, 1), datetime(2026, 1, 1), datetime(2026, 1, 1, microsecond=1), None],
    ),
    (pa.timestamp("us", "Europe/Berlin"), [MOMENT, MOMENT + timedelta(hours=1), None]),
    (pa.timestamp("ns", "UTC"), [0, 1, 1001, None]),
    (pa.duration("us"), [timedelta(0), timedelta(microseconds=1), -timedelta(microseconds=1), None]),
    (pa.duration("ns"), [0, 1, 999, 1000, -1, None]),
]
NESTED = [
    pa.list_(pa.float64()),
    pa.list_(pa.float64(), 1),
    pa.struct([("a", pa.list_(pa.decimal256(50, 2)))]),
]


def parsed(text: str) -> Any:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(("kind", "values"), KEYS, ids=[f"{kind}-{i}" for i, (kind, _) in enumerate(KEYS)])
def test_different_keys_are_different_texts(kind: pa.DataType, values: list[Any]) -> None:
    table = pa.table({"k": pa.array(values, kind), "l": pa.array([1] * len(values))})
    keys = json_keys(table, ["k", "l"])
    assert len(set(keys)) == len(values)
    assert all(list(parsed(key)) == ["k", "l"] for key in keys)
    assert all(list(parsed(row)) == ["k", "l"] for row in json_rows(table))


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Dublin", "UTC"])
def test_times_of_a_zone_are_their_instants(zone: str) -> None:
    """Offsets had seconds once, which ISO 8601 in JSON has not."""
    times = [datetime(year, 7, 1, 12, 0, 1, tzinfo=UTC) for year in (1, 1810, 1900, 2026, 2038, 2150, 9999)]
    table = pa.table({"t": pa.array(times, pa.timestamp("us", zone)), "l": [[t] for t in times]})
    table = table.set_column(1, "l", table.column("l").cast(pa.list_(pa.timestamp("us", zone))))
    for row, moment in zip(json_rows(table), times, strict=True):
        read = parsed(row)
        assert datetime.fromisoformat(read["t"]) == datetime.fromisoformat(read["l"][0]) == moment
    texts = KafkaSink("out", SimulatedKafka(), key="t")._keys(table, [])
    assert [datetime.fromisoformat(text) for text in texts] == times


def test_a_key_has_one_text_also_as_a_float() -> None:
    assert json_keys(pa.table({"k": [0.0, -0.0]}), ["k"]) == ['{"k":0}', '{"k":0}']
    wide = pa.table({"k": pa.array([1, -5, 2**53 - 1, 10**15, None], pa.int64())})
    assert json_keys(wide, ["k"]) == json_keys(wide.cast(pa.schema([("k", pa.float64())])), ["k"])
    half = pa.table({"k": pa.array([0.1, 1.5, 3e38, math.nan], pa.float32())})
    assert json_keys(half, ["k"]) == json_keys(half.cast(pa.schema([("k", pa.float64())])), ["k"])
    assert json_keys(pa.table({'a"é': ["x"]}), ['a"é']) == ['{"a\\"é":"x"}']


def test_floats_are_numbers_that_read_as_they_are() -> None:
    source = random.Random(7)
    numbers = [source.uniform(-1, 1) * 10.0 ** source.randrange(-320, 309) for _ in range(2000)]
    keys = json_keys(pa.table({"k": numbers}), ["k"])
    assert [parsed(key)["k"] for key in keys] == numbers


@pytest.mark.parametrize("kind", NESTED, ids=str)
def test_values_of_nested_types_are_json(kind: pa.DataType) -> None:
    value = {"a": [Decimal("1.5")]} if pa.types.is_struct(kind) else [math.nan]
    rows = json_rows(pa.table({"v": pa.array([value, None], kind)}))
    assert [parsed(row)["v"] for row in rows] == [
        {"a": ["1.50"]} if pa.types.is_struct(kind) else [None],
        None,
    ]


def committed(kafka: Any, topic: str) -> list[Any]:
    return [record for partition in kafka.partitions(topic) for record in read_all(kafka, topic, partition)]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_an_upsert_topic_has_a_record_for_each_group(kind: pa.DataType, tmp_path: Path) -> None:
    kafka = SimulatedKafka()
    sums = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"v": wr.sum("v"), "d": wr.sum("d")},
        retention="1 hour",
    )
    keys = [*INFINITIES, None, 1.0]
    sink = wr.sinks.kafka("out", kafka, mode="upsert")
    assert isinstance(sink, KafkaSink)
    with sums.open(str(tmp_path), sink=sink, clock=ManualClock(0)) as op:
        moments = pa.array([1] * len(keys), pa.int64())
        d = pa.array([Decimal("0.5")] * len(keys), pa.decimal128(10, 2))
        op.add_messages(pa.table({"k": pa.array(keys, kind), "t": moments, "v": range(len(keys)), "d": d}))
        op.add_messages(pa.table({"k": pa.array([2.0], kind), "t": [20_000_000], "v": [0], "d": d[:1]}))
        op.timeout()
    records = committed(kafka, "out")
    assert {parsed(r.key().decode())["k"]: parsed(r.value().decode())["v"] for r in records} == {
        "NaN": 0,
        "Infinity": 1,
        "-Infinity": 2,
        None: 3,
        1.0: 4,
    }
    assert {parsed(r.value().decode())["d"] for r in records} == {"0.50"}


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        (pa.binary(2), b"\xff\xfe", b"\xff\xfe"),
        (pa.large_binary(), b"\xff", b"\xff"),
        (pa.duration("us"), timedelta(seconds=1), '{"k":1000000}'),
        (pa.list_(pa.float64()), [0.5], '{"k":[0.5]}'),
        (pa.float64(), math.inf, "inf"),
        (pa.date32(), date(2026, 1, 1), "2026-01-01"),
        (pa.string(), None, None),
    ],
    ids=str,
)
def test_a_column_of_any_type_is_a_key(kind: pa.DataType, value: Any, key: Any) -> None:
    sink = wr.sinks.kafka("out", SimulatedKafka(), key="k")
    assert isinstance(sink, KafkaSink)
    assert list(sink._keys(pa.table({"k": pa.array([value], kind)}), [])) == [key]


def test_the_payload_of_a_dead_letter_is_json(tmp_path: Path) -> None:
    counts = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={"n": wr.count()}, retention="1 hour"
    )
    nested = {"a": [math.nan, {"b": -math.inf}]}
    with counts.open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([wr.Message({"t": 1, "k": "a", "v": 0.5})])
        op.add_messages([wr.Message({"t": "no time", "k": "b", "v": v, "w": nested}) for v in INFINITIES])
        op.add_messages(pa.table({"t": [-1] * 3, "k": pa.array([None] * 3, pa.string()), "v": INFINITIES}))
        op.add_messages(pa.table({"t": pa.array([None] * 3, pa.int64()), "k": ["c"] * 3, "v": INFINITIES}))
        letters = op.dead_letters()
    assert [parsed(one.payload)["v"] for one in letters] == ["NaN", "Infinity", "-Infinity"] * (
        len(letters) // 3
    )
    assert {one.reason for one in letters} >= {"malformed"}
    assert parsed(letters[0].payload)["w"] == {"a": ["NaN", {"b": "-Infinity"}]}


def test_any_value_is_json() -> None:
    for one, other in itertools.product(
        [*INFINITIES, 1.5, "a", None, [1], {"a": math.nan}, (math.inf,), MOMENT], repeat=2
    ):
        assert parsed(json_text({"one": one, "others": [other, {"deep": one}]})) is not None
