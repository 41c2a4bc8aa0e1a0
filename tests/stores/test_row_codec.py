"""Row codec: rows come back as they were, in their places, whatever their schemas."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from windrow.core.errors import CorruptState
from windrow.operators.steps.message_rows import pack_rows as pack_messages
from windrow.operators.steps.message_rows import unpack_rows as unpack_messages
from windrow.stores.kv import Batch, MemoryKV
from windrow.stores.row_codec import Schemas, in_places, pack_rows, put_schema, unpack_rows

#: A column of each kind that is packed in its own way, and its values.
COLUMNS = {
    "number": (pa.int64(), st.integers(-(1 << 62), 1 << 62)),
    "text": (pa.string(), st.text(max_size=4)),
    "time": (
        pa.timestamp("us", "UTC"),
        st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    ),
    "day": (pa.date32(), st.dates(date(1990, 1, 1), date(2100, 1, 1))),
    "span": (pa.duration("us"), st.timedeltas(timedelta(days=-9), timedelta(days=9))),
    "price": (pa.decimal128(9, 2), st.integers(-999, 999).map(lambda cents: Decimal(cents) / 100)),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(0, 9), max_size=3)),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4, unique=True))
    n = draw(st.integers(1, 4))
    values = [draw(st.lists(st.none() | COLUMNS[name][1], min_size=n, max_size=n)) for name in names]
    arrays = [pa.array(column, COLUMNS[name][0]) for name, column in zip(names, values, strict=True)]
    return pa.table(dict(zip(names, arrays, strict=True)))


@given(st.lists(tables(), min_size=1, max_size=4), st.randoms(use_true_random=False))
@examples(60, deep=3_000)
def test_rows_of_any_schemas_come_back_in_their_places(written: list[pa.Table], chance: object) -> None:
    kv, batch, each = MemoryKV(["aux"]), Batch(), list[tuple[bytes, dict[str, object]]]()
    for rows in written:
        each += zip(pack_rows(rows, put_schema(kv, "aux", batch, rows.schema)), rows.to_pylist(), strict=True)
    kv.write(batch)
    chance.shuffle(each)  # type: ignore[attr-defined]
    unpacked = in_places(unpack_rows([value for value, _ in each], Schemas(kv, "aux"), "a row"))
    for row, (_, wanted) in zip(unpacked.to_pylist(), each, strict=True):
        assert {name: row[name] for name in wanted} == wanted
        assert {row[name] for name in row.keys() - wanted.keys()} <= {None}


def test_messages_without_columns_have_their_positions() -> None:
    kv, batch = MemoryKV(["aux"]), Batch()
    values = pack_messages(kv, batch, "aux", pa.table({"x": [1, 2]}).select([]))
    kv.write(batch)
    rows = unpack_messages(
        kv, "aux", values, [("s", 0, 5, 0), ("s", 1, 6, 0)], pa.schema([("y", pa.int64())])
    )
    assert rows.to_pylist() == [
        {"y": None, "__source": "s", "__partition": 0, "__offset": 5, "__ordinal": 0},
        {"y": None, "__source": "s", "__partition": 1, "__offset": 6, "__ordinal": 0},
    ]


def test_rows_without_their_schema_are_reported() -> None:
    rows = pa.table({"x": [1]})
    values = pack_rows(rows, put_schema(MemoryKV(["aux"]), "aux", Batch(), rows.schema))
    with pytest.raises(CorruptState, match="the schema is not"):
        unpack_rows(values, Schemas(MemoryKV(["aux"]), "aux"), "a row")
