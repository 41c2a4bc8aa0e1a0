"""JSON records from anywhere: each counts exactly or is a dead letter, whatever comes around it. None ends the process."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from windrow.connectors import decoders, json_records
from windrow.core.border import fit
from windrow.operators.steps.columns import MALFORMED_ROW, RAW

FIELDS = pa.schema(
    [
        ("n", pa.int64()),
        ("s", pa.string()),
        ("o", pa.struct([("a", pa.int64())])),
        ("l", pa.list_(pa.int64())),
        ("t", pa.timestamp("us", "UTC")),
    ]
)
BOM = b"\xef\xbb\xbf"
TWICE = object()
#: Pieces that records are made of: whole ones, and what is none.
PIECES = [
    *(
        b'{"n": 1}',
        b"{}",
        b'{"s": "\xc3\xa9 }\\n{"}',
        b'{"o": {"a": 2, "b": [null]}}',
        b'{"l": [1, null, 3]}',
    ),
    *(
        b'{"t": "2026-01-02T03:04:05Z"}',
        b'{"t": "2026-01-02T03:04:05.123456789z"}',
        b'{"n": 7.0, "x": [[[]]]}',
    ),
    *(
        b'{"n": 1,\n"s":\t"a"\r\n}',
        b' {"n": 9223372036854775807} \n',
        BOM + b'{"n": 4}',
        b'{"x": NaN, "n": 1}',
    ),
    *(
        b"null",
        b"[]",
        b"[null]",
        b"1",
        b"1e999",
        b'"a"',
        b"true",
        b"",
        b" ",
        b"\n",
        b"\0",
        BOM,
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
    ),
    *(
        b'{"n": 1',
        b'{"n"',
        b'{"s": "a',
        b'{"s": "\xff"}',
        b'{"s": "\xed\xa0\x80"}',
        b'{"s": "\\ud800"}',
        b'{"\xff": 1}',
    ),
    *(
        b'{"n": 1, "n": 2}',
        b'{"x": 1, "x": 2}',
        b'{"n": 1, "\\u006e": 2}',
        b'{"o": {"a": 1, "a": 1}}',
        b'{"n": "1"}',
        b'{"n": true}',
    ),
    *(
        b'{"n": 1.5}',
        b'{"n": 9223372036854775808}',
        b'{"s": 1}',
        b'{"l": 1}',
        b'{"o": []}',
        b'{"s": "a\nb"}',
        b'{"s": "a\0b"}',
    ),
    b'{"x": ' + b"[" * 300 + b"]" * 300 + b"}",
    b'{"x": ' + b'{"n":' * 100 + b"1" + b"}" * 100 + b"}",
    b'{"x": ' + b"[" * 5000,
]


def decoded(values: Sequence[bytes | None], schema: pa.Schema = FIELDS) -> list[dict[str, Any]]:
    """The rows, of one that cannot be read the reason."""
    table = wr.decoders.json(schema).decode(values, "topic")
    table.validate(full=True)
    assert len(table) == len(values)
    return [
        row if row.pop(RAW, None) is None and row.pop(MALFORMED_ROW, None) is None else {"wrong": True}
        for row in table.to_pylist()
    ]


def drawn(seed: int) -> bytes:
    """A record: a piece, some of them, or one with bytes changed, cut or put in."""
    source = random.Random(seed)
    value = b"".join(source.choices(PIECES, k=source.choice([1, 1, 1, 2, 3])))
    if source.random() < 0.4:
        at = source.randrange(len(value) + 1)
        put = source.choice([b"", b"\xff", b"\0", b'"', b"{", b"}", b"\n", b"null", BOM, b"e", b","])
        value = value[:at] + put + value[at + source.randrange(2) :]
    return value


def plain(value: bytes) -> bool:
    """True if Python's reader takes the record for an object, with numbers and texts that the columns hold."""
    try:
        record = json.loads(value.decode("utf-8-sig"), object_pairs_hook=_pairs)
        assert isinstance(record, dict) and not record[TWICE] & set(FIELDS.names)
        text, whole = record.get("s"), record.get("n")
        assert text is None or (isinstance(text, str) and text.encode() is not None)
        assert whole is None or (type(whole) in (int, float) and whole == int(whole) and abs(whole) < 2**63)
        inner, numbers = record.get("o"), record.get("l")
        assert inner is None or (isinstance(inner, dict) and type(inner.get("a", 0)) is int)
        assert inner is None or "a" not in inner[TWICE]
        assert numbers is None or all(n is None or type(n) is int for n in numbers)
        moment = record.get("t")
        assert moment is None or datetime.fromisoformat(moment.upper())
    except (ValueError, AssertionError, OverflowError, RecursionError, TypeError, AttributeError):
        return False
    return True


def _pairs(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    names = [name for name, _ in pairs]
    return {**dict(pairs), TWICE: {name for name in names if names.count(name) > 1}}


def test_what_becomes_of_a_record_depends_on_no_other() -> None:
    """Batches of any records are what each of them is alone, and a record that Python reads is read."""
    records = usually(600, deep=200_000)
    counts = {True: 0, False: 0}
    for seed in range(0, records, 12):
        values = [*map(drawn, range(seed, seed + 12))]
        alone = [decoded([v])[0] for v in values]
        assert decoded(values) == alone
        assert decoded([b'{"n": 1}', *reversed(values), None])[1:-1] == alone[::-1]
        for value, row in zip(values, alone, strict=True):
            assert ("wrong" not in row) == plain(value), value[:200]
            counts["wrong" in row] += 1
    print(f"{records} records, {counts[False]} of them counted, {counts[True]} dead letters")
    assert min(counts.values()) > records // 10


@pytest.mark.parametrize("piece", [b"null", BOM, b"", b"\n", b"[]", b"1"], ids=repr)
def test_a_record_that_gives_no_row_takes_none_of_another(piece: bytes) -> None:
    """The next record is two objects: together they are as many as the records."""
    wrong = {"wrong": True}
    assert decoded([piece, b'{"n": 1}{"n": 2}']) == [wrong, wrong]
    assert decoded([piece, b'{"n": 1}\n{"n": 2}', b'{"n": 3}'])[:2] == [wrong, wrong]


def test_a_bad_record_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reads only the wrong one of 4,096 records, and Arrow reads at most as many again for each halving."""
    alone: list[bytes] = []
    read = json_records.read_one
    monkeypatch.setattr(json_records, "read_one", lambda v, *more: alone.append(v) or read(v, *more))
    values = [b'{"n": %d}' % n for n in range(4096)]
    values[1234] = b"null"
    rows = decoded(values)
    assert alone == [b"null"]
    assert [r.get("n") for r in rows] == [None if n == 1234 else n for n in range(4096)]


@pytest.mark.parametrize("size", usually([1 << 16], deep=[1 << 16, 100 << 20]))
def test_large_records(size: int) -> None:
    good = {"n": 1, "s": None, "o": None, "l": None, "t": None}
    text = b'{"n": 1, "s": "' + b"a" * size + b'"}'
    assert decoded([text, b'{"n": 1}']) == [{**good, "s": "a" * size}, good]
    wrong = [
        text[:-1],
        b"[" * size,
        b'{"x": ' + b"[" * size,
        b"1" * size,
        b'{"n": ' + b"1" * size + b"}",
        b"\xff" * size,
    ]
    assert decoded([*wrong, b'{"n": 1}']) == [{"wrong": True}] * len(wrong) + [good]


NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
LOCAL = NOON.replace(tzinfo=None)
NANOS = pa.scalar(1_782_907_200_123_456_789, pa.timestamp("ns", "UTC"))
UTC_US = pa.timestamp("us", "UTC")


def one_ms(n: int) -> timedelta:
    return timedelta(milliseconds=n)


#: Types, literals that a column of them holds, as which values, and literals that it does not hold.
READ: list[tuple[pa.DataType, str, list[Any], str]] = [
    (pa.int64(), "1 -0 1.0 1e3", [1, 0, 1, 1000], '1.5 1e-1 true "1" NaN [] {} 1e99 01 +1 1. .5'),
    (pa.int64(), "9007199254740993.0 9223372036854775807", [2**53 + 1, 2**63 - 1], "9223372036854775808"),
    (pa.int8(), "127 -128 1.27e2", [127, -128, 127], "128 -129 127.5"),
    (pa.uint64(), "18446744073709551615 -0", [2**64 - 1, 0], "18446744073709551616 -1 1e999999999"),
    (
        pa.float64(),
        "1 0.1 9007199254740993 1e-400",
        [1.0, 0.1, 2.0**53, 0.0],
        "1e400 -1e400 1e9999999999999999999",
    ),
    (pa.float64(), "Infinity -Infinity -0", [math.inf, -math.inf, -0.0], '"1" true [] ' + "9" * 400),
    (
        pa.float32(),
        "0.5 0.1 -3.4028235e38",
        [0.5, float(np.float32(0.1)), -3.4028234663852886e38],
        "1e39 -1e39",
    ),
    (pa.list_(pa.float32()), "[0.5,null] []", [[0.5, None], []], "[1e39] 1 [[]]"),
    (pa.bool_(), "true false null", [True, False, None], '1 0 "true" []'),
    (pa.string(), '"a" "\\ud83d\\ude00" "1"', ["a", "\U0001f600", "1"], '"\\ud800" 1 true {} []'),
    (pa.binary(), '"é" null', ["é".encode(), None], "1 [1] true"),
    (pa.null(), "null", [None], '1 "" {}'),
    (
        pa.decimal128(10, 2),
        '1 1.5 "1.50" 1e2',
        [1, Decimal("1.5"), Decimal("1.5"), 100],
        "1.555 100000000 1e9",
    ),
    (pa.decimal128(10, 2), '-0 "-1" ".5"', [0, -1, Decimal("0.5")], '"x" "NaN" "1_0" 1e999999999 true ""'),
    (pa.decimal256(50, 2), '1e30 "1e30"', [10**30, 10**30], "1e60 1e-3"),
    (pa.date32(), '"2026-07-01"', [date(2026, 7, 1)], '1 "2026-13-01" "0000-01-01" "2026-07-01T12:00" 1.5'),
    (pa.date64(), '"2026-07-01"', [date(2026, 7, 1)], "86400000 0"),
    (
        pa.time64("us"),
        '"12:00" "12:00:00.000001"',
        [time(12), time(12, microsecond=1)],
        '1 "12:00Z" "25:00" ""',
    ),
    (pa.time32("s"), '"12:00:01" "00:00"', [time(12, 0, 1), time(0)], '"12:00:00.5" 86400'),
    (UTC_US, '"2026-07-01T12:00:00Z" "2026-07-01T12:00:00z"', [NOON, NOON], '1 "x" "" 1.5 "1" true'),
    (UTC_US, '"2026-07-01T14:00:00+02:00" "20260701T120000Z"', [NOON, NOON], '"2026-06-30T23:59:60Z"'),
    (
        UTC_US,
        '"2026-07-01T12:00:00" "2026-07-01"',
        [NOON, NOON - one_ms(43_200_000)],
        '"2026-07-01T24:00:01"',
    ),
    (UTC_US, '"2026-07-01T12:00:00.123000789Z"', [NOON + one_ms(123)], '"0000-12-31T23:59:59Z"'),
    (
        UTC_US,
        '"9999-12-31T23:59:59.999999Z"',
        [datetime.max.replace(tzinfo=UTC)],
        '"9999-12-31T23:59:59-01:00"',
    ),
    (UTC_US, '"0001-01-01T00:00:00Z"', [datetime.min.replace(tzinfo=UTC)], '"0001-01-01T00:00:00+05:00"'),
    (pa.timestamp("us", "Europe/Berlin"), '"2026-07-01T14:00" "2026-07-01T12:00Z"', [NOON, NOON], "1"),
    (
        pa.timestamp("us", "Europe/Berlin"),
        '"2026-03-29T02:30"',
        [datetime(2026, 3, 29, 1, 30, tzinfo=UTC)],
        '"x"',
    ),
    (pa.timestamp("us", "+02:00"), '"2026-07-01T14:00" "2026-07-01T12:00Z"', [NOON, NOON], "1"),
    (
        pa.timestamp("us"),
        '"2026-07-01T12:00:00" "2026-07-01T12:00:00Z" "2026-07-01T02:00:00+02:00"',
        [LOCAL, LOCAL, datetime(2026, 7, 1)],
        "1",
    ),
    (pa.timestamp("s"), '"2026-07-01T12:00:00"', [LOCAL], '"2026-07-01T12:00:00.5"'),
    (
        pa.timestamp("ms", "UTC"),
        '"2026-07-01T12:00:00.5Z"',
        [NOON + one_ms(500)],
        '"2026-07-01T12:00:00.0005Z"',
    ),
    (pa.timestamp("ns", "UTC"), '"2026-07-01T12:00:00.123456789z"', [NANOS], '"2300-01-01T00:00Z"'),
    (pa.timestamp("ns", "UTC"), '"2026-07-01T12:00:00.123456789Z"', [NANOS], '"1600-01-01T00:00Z"'),
    (
        pa.struct([("a", pa.date32())]),
        '{"a":"2026-07-01"} {}',
        [{"a": date(2026, 7, 1)}, {"a": None}],
        '{"a":1} [] 1',
    ),
    (
        pa.struct([("a", pa.timestamp("us"))]),
        '{"a":"2026-07-01T12:00","b":1} {"a":"2026-07-01T12:00Z"}',
        [{"a": LOCAL}, {"a": LOCAL}],
        '{"a":1}',
    ),
    (pa.list_(pa.time64("us")), '["12:00",null]', [[time(12), None]], '[1] {} [[]] "12:00"'),
]


@pytest.mark.parametrize(
    ("kind", "good", "held", "bad"), READ, ids=[f"{k[0]}-{i}" for i, k in enumerate(READ)]
)
def test_a_column_holds_what_the_record_says_or_the_record_is_a_dead_letter(
    kind: pa.DataType, good: str, held: list[Any], bad: str
) -> None:
    """The same alone, in a batch, and next to a field that only Python reads."""
    literals = [*good.split(), *bad.split()]
    values = pa.concat_arrays([fit(held, kind).array, pa.nulls(len(bad.split()), kind)])
    decoder = wr.decoders.json(pa.schema([("v", kind), ("m", UTC_US)]))
    records = [b'{"v": %s}' % text.encode() for text in literals]
    with_moment = [b'{"m": "2026-07-01T12:00:00z", "v": %s}' % text.encode() for text in literals]
    alone = [decoder.decode([record], "topic") for record in records]
    for table in (decoder.decode(records, "topic"), decoder.decode(with_moment, "topic"), concat(alone)):
        assert table.column("v").combine_chunks().equals(values)
        reasons = table.column(MALFORMED_ROW).to_pylist()
        assert [text for text, why in zip(literals, reasons, strict=True) if why is not None] == bad.split()
        assert all("column 'v'" in why or "no JSON" in why for why in reasons if why is not None)


def concat(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="default")


def test_a_message_and_a_record_of_the_same_number_count_alike() -> None:
    """JSON and Python treat a number alike."""
    source = random.Random(7)
    kinds = [
        pa.int8(),
        pa.int64(),
        pa.uint64(),
        pa.decimal128(20, 3),
        pa.bool_(),
        pa.string(),
        pa.date32(),
        pa.list_(pa.int16()),
    ]
    for _ in range(usually(8, deep=5000)):
        numbers: list[Any] = [
            source.choice([1, -1]) * source.randrange(2 ** source.randrange(1, 66)) for _ in range(5)
        ]
        numbers += [n / source.choice([1, 2, 1000]) for n in numbers if abs(n) < 2**50] + [
            True,
            "a",
            None,
            [3],
            [70_000],
        ]
        for kind in kinds:
            table = wr.decoders.json({"v": kind}).decode(
                [json.dumps({"v": n}).encode() for n in numbers], "topic"
            )
            # A literal is the number that is written, not the nearest float.
            wanted = fit(
                [
                    Decimal(str(n)) if pa.types.is_decimal(kind) and isinstance(n, float) else n
                    for n in numbers
                ],
                kind,
            )
            wrong = (
                table.column(MALFORMED_ROW).to_pylist()
                if MALFORMED_ROW in table.column_names
                else [None] * len(numbers)
            )
            assert table.column("v").combine_chunks() == wanted.array
            assert {i for i, why in enumerate(wrong) if why is not None} == set(wanted.misfits)


@pytest.mark.parametrize(
    "kind",
    [
        *(
            pa.map_(pa.string(), pa.int64()),
            pa.duration("us"),
            pa.dictionary(pa.int32(), pa.string()),
            pa.uuid(),
            pa.float16(),
        ),
        *(
            pa.list_(pa.int64(), 2),
            pa.large_list(pa.int64()),
            pa.binary(4),
            pa.month_day_nano_interval(),
            pa.timestamp("us", "Mars/Base"),
        ),
        *(pa.run_end_encoded(pa.int32(), pa.int64()), pa.list_(pa.struct([("a", pa.duration("s"))]))),
    ],
    ids=str,
)
def test_a_schema_with_a_type_that_cannot_be_read_is_refused_at_construction(kind: pa.DataType) -> None:
    with pytest.raises(wr.ConfigurationError, match=r"column 'v' .* cannot be read from JSON") as raised:
        decoders.json({"n": pa.int64(), "v": kind})
    assert str(kind) in str(raised.value)
