"""Values from outside are counted as they are, or each is a dead letter that names column and value, on every route."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import windrow as wr

PANE = ["pane_timing", "pane_index", "pane_is_last", "pane_kind", "commit"]
LATE = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def aggregate(**agg: Any) -> wr.Aggregate:
    return wr.Aggregate(
        agg=agg, by=(), event_time="ts", window=wr.tumbling("1 hour"), retention="1 day", max_ahead=wr.forever
    )


def counted(
    what: wr.Aggregate, folder: Path, steps: list[Any], *, alone: bool = False
) -> tuple[Any, list[str]]:
    """The values of the one pane, and dead letters. Each step is a commit of its own. alone: messages one by one."""
    with what.open(str(folder), store="memory") as operator:
        for step in steps:
            if alone:
                for one in step:
                    operator.add_message(one)
            else:
                operator.add_messages(step)
            operator.flush()
        operator.drain()
        panes = operator.get_result()
        assert len(str(panes)) and operator.next_offsets() is not None
        values = dict(panes[-1].values) if len(panes) else {}
        return values, [f"{letter.reason}: {letter.detail}" for letter in operator.dead_letters()]


def rows(values: list[Any]) -> list[dict[str, Any]]:
    return [{"ts": 0, "v": value} for value in values]


def table(values: pa.Array) -> pa.Table:
    return pa.table({"ts": pa.array([0] * len(values), pa.int64()), "v": values})


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    ("values", "most", "reasons"),
    [
        ([np.uint64(2**63 + 5), -1], 2**63 + 5, []),
        ([1, np.float16(0.5)], 1.0, []),
        ([1, 2.5, 2**53], 2.0**53, []),
        ([2**53 + 1, 2.5, 3.0], 2**53 + 1, ["column 'v' is 2.5, which is no int64 without loss"]),
        ([2.5, 2**53 + 1], 2.5, ["column 'v' is 9007199254740993, which is no double without loss"]),
        ([1, 2.5, 2**53 + 1], 2.5, ["column 'v' is 9007199254740993, which is no double without loss"]),
        ([1, {}, 2], 2, []),
        ([1, Decimal("2.50"), 3.5], 3.5, []),
        ([Decimal("0.30"), 2.5], 2.5, []),
        ([2.5, Decimal("12345678901234567")], 2.5, None),
        (
            [3, np.datetime64(5, "us")],
            3,
            ["column 'v' is np.datetime64('1970-01-01T00:00:00.000005'), which is no int64"],
        ),
        ([True, 2], True, ["column 'v' is 2, which is no bool"]),
        ([2, True], 2, ["column 'v' is True, which is no int64"]),
        ([LATE, np.datetime64(1, "ns")], LATE, None),
    ],
)
def test_messages_are_counted_exactly_or_not_at_all(
    tmp_path: Path, values: list[Any], most: Any, reasons: list[str] | None, alone: bool
) -> None:
    pane, dead = counted(aggregate(v=wr.max("v")), tmp_path, [rows([value]) for value in values], alone=alone)
    assert pane["v"] == most
    together, also = counted(aggregate(v=wr.max("v")), tmp_path / "2", [rows(values)], alone=alone)
    assert together["v"] == most and len(also) == len(dead)
    if reasons is not None:
        assert dead == [f"malformed: {letter}" for letter in reasons]


@pytest.mark.parametrize(
    ("first", "then", "held", "buried"),
    [
        (pa.array([LATE], pa.timestamp("us", "UTC")), pa.array([5], pa.timestamp("ns", "UTC")), 1, 1),
        (pa.array([LATE], pa.timestamp("us", "UTC")), pa.array([5000], pa.timestamp("ns", "UTC")), 2, 0),
        (pa.array([5], pa.timestamp("ns", "UTC")), pa.array([LATE], pa.timestamp("us", "UTC")), 1, 1),
        (pa.array([2**63 + 5], pa.uint64()), pa.array([-1], pa.int64()), 2, 0),
        (pa.array([2**53 + 1]), pa.array([0.5, 2.0]), 2, 1),
        (pa.array([0.5]), pa.array([2**53 + 1, 2]), 2, 1),
        (pa.array([1]), pa.array([0.5]), 2, 0),
        (pa.array([Decimal("0.3")], pa.decimal64(18, 4)), pa.array([0.5]), 2, 0),
        (pa.array([Decimal("0.3")], pa.decimal128(21, 2)), pa.array([0.5]), 2, 0),
        (pa.array([0.5]), pa.array([Decimal("0.3"), Decimal(10**17)], pa.decimal128(21, 2)), 2, 1),
        (pa.array([2**62], pa.duration("s")), pa.array([5], pa.duration("s")), 1, 1),
    ],
)
def test_tables_of_two_types_are_counted_exactly_or_row_by_row_not(
    tmp_path: Path, first: pa.Array, then: pa.Array, held: int, buried: int
) -> None:
    pane, dead = counted(aggregate(n=wr.count("v"), v=wr.max("v")), tmp_path, [table(first), table(then)])
    assert (pane["n"], len(dead)) == (held, buried)
    assert all(letter.startswith("malformed: column 'v': ") for letter in dead)


def not_utf8() -> pa.Array:
    return pa.array([b"a", b"\xff\xfe", b"b"], pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    "frame",
    [
        lambda t: t,
        lambda t: t.to_batches()[0],
        lambda t: t.set_column(
            1, "v", pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), t.column(1).chunk(0))
        ),
        lambda t: pd.DataFrame({"ts": [0, 0, 0], "v": pd.array(t.column(1), pd.ArrowDtype(pa.string()))}),
    ],
)
@pytest.mark.parametrize("by", [(), ("v",)])
def test_text_that_is_not_utf8_is_malformed_and_its_neighbours_count(
    tmp_path: Path, frame: Callable[[pa.Table], Any], by: tuple[str, ...]
) -> None:
    what = wr.Aggregate(
        agg={"n": wr.count(), "few": wr.approx_count_distinct("v"), "last": wr.max("v")},
        **{"by": by, "event_time": "ts", "window": wr.tumbling("1 hour"), "retention": "1 day"},  # type: ignore[arg-type]
    )
    with what.open(str(tmp_path), store="memory") as operator:
        operator.add_messages(frame(table(not_utf8())))
        operator.drain()
        panes = operator.get_result()
        assert sum(p.values["n"] for p in panes) == 2 and "b" in str(panes)
        [letter] = operator.dead_letters()
        assert letter.detail == "column 'v': b'\\xff\\xfe' is no text: it is not UTF-8"
        assert letter.payload == '{"ts": 0, "v": "\\\\xff\\\\xfe"}'


@pytest.mark.parametrize(
    "values",
    [
        pa.array([2932897, 5], pa.date32()),
        pa.array([253402300800, 5], pa.timestamp("s")),
        pa.array([-62135596800000001, 5], pa.timestamp("us", "UTC")),
        pa.array([86400, 5], pa.int32()).view(pa.time32("s")),
    ],
)
def test_times_outside_the_years_are_malformed_and_their_neighbours_count(
    tmp_path: Path, values: pa.Array
) -> None:
    for number, what in enumerate((aggregate(v=wr.max("v")), aggregate(v=wr.collect_list("v")))):
        pane, [letter] = counted(what, tmp_path / str(number), [table(values)])
        assert letter.startswith("malformed: column 'v': ") and pane["v"]


def test_event_times_of_coarse_units_do_not_wrap(tmp_path: Path) -> None:
    times = pa.array([2**62, 5], pa.timestamp("s", "UTC"))
    pane, [letter] = counted(aggregate(n=wr.count()), tmp_path, [pa.table({"ts": times})])
    assert pane == {"n": 1}
    assert (
        letter
        == f"malformed: event time 'ts': {2**62} as timestamp[s, tz=UTC] is outside the years 1 to 9999"
    )


@pytest.mark.parametrize("name", ["v", "other"])
@pytest.mark.parametrize(
    "values",
    [
        pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array([1, 2])),
        pa.UnionArray.from_sparse(pa.array([0, 0, 0], pa.int8()), [pa.array([1, 2, 3])]),
        pa.array([[1], [None], []], pa.list_view(pa.int64())),
    ],
)
def test_types_that_no_column_has_are_refused_with_the_columns_name(
    tmp_path: Path, values: pa.Array, name: str
) -> None:
    table = pa.table({"ts": pa.array([0, 0, 0], pa.int64()), "v": pa.array([1, 2, 3]), "w": values})
    table = (
        table.drop_columns(["v"]).rename_columns(["ts", "v"])
        if name == "v"
        else table.rename_columns(["ts", "v", name])
    )
    with aggregate(v=wr.max("v")).open(str(tmp_path), store="memory") as operator:
        with pytest.raises(
            wr.WindrowError, match=f"column {name!r} is of type .*no column has here: drop it, or cast it"
        ):
            operator.add_messages(table)
        operator.add_messages([{"ts": 0, "v": 1}])
        operator.drain()


def test_a_frame_of_polars_is_counted(tmp_path: Path) -> None:
    frame = pl.DataFrame({"ts": [0, 0], "v": [2**53 + 1, None]})
    pane, dead = counted(aggregate(v=wr.max("v")), tmp_path, [frame])
    assert (pane, dead) == ({"v": 2**53 + 1}, [])


@pytest.mark.parametrize("alone", [True, False])
def test_an_object_without_fields_harms_no_commit(tmp_path: Path, alone: bool) -> None:
    definitions: list[Any] = [
        aggregate(s=wr.sum("v")),
        aggregate(s=wr.median("v")),
        aggregate(n=wr.count()),
        wr.Deduplicate(ids="v", event_time="ts", within="1 hour", by=()),
        wr.Over(agg={"s": wr.sum("v")}, by=(), event_time="ts", frame="1 hour"),
    ]
    for number, what in enumerate(definitions):
        with what.open(str(tmp_path / str(number)), store="memory") as operator:
            for value in (1, {}, 2):
                if alone:
                    operator.add_message({"ts": 0, "v": value, "x": value})
                else:
                    operator.add_messages([{"ts": 0, "v": value, "x": value}])
                operator.flush()
            operator.timeout()
            assert operator.next_offsets()


def test_an_event_time_that_is_a_float_gets_the_same_remedy_on_each_route(tmp_path: Path) -> None:
    for number, messages in enumerate(([{"ts": 1.5}], pa.table({"ts": [1.5]}))):
        _, [letter] = counted(aggregate(n=wr.count()), tmp_path / str(number), [messages])
        assert letter.startswith("malformed: event time 'ts' is 1.5, no time: cast it to a whole number")


def test_a_frame_of_no_panes_has_the_columns_of_panes(tmp_path: Path) -> None:
    with aggregate(v=wr.max("v")).open(str(tmp_path), store="memory") as operator:
        operator.add_messages(rows([1]))
        operator.flush()
        assert list(operator.get_result().to_pandas().columns) == ["window_start", "window_end", "v", *PANE]
        operator.add_messages(rows([2]))
        operator.drain()
        assert list(operator.get_result().to_pandas().columns) == ["window_start", "window_end", "v", *PANE]


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int8(), pa.string()), pa.string_view()], ids=str)
def test_text_in_any_encoding_is_an_event_time(tmp_path: Path, kind: pa.DataType) -> None:
    values = pa.array(["2013-07-01T05:10Z", None, "noon"]).cast(kind)
    counts = wr.Aggregate(
        event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()}
    )
    with counts.open(str(tmp_path / "job")) as op:
        op.add_messages(pa.table({"t": values, "unnamed": values.cast(pa.string()).cast(pa.string_view())}))
        op.drain()
        assert [pane["n"] for pane in op.get_result()] == [1]
        assert [letter.reason for letter in op.dead_letters()] == ["malformed"] * 2


def test_a_declared_map_takes_objects_and_pairs_that_it_holds(tmp_path: Path) -> None:
    kept = wr.JoinWindow(event_time="t", window=wr.tumbling("1 hour"), retention="1 day")
    values = [{"a": 1}, [("a", 1), ("b", None)], {}, [], None, {"a": 1.5}, {1: 1}, [["a"]]]
    schema = pa.schema({"t": pa.timestamp("us", "UTC"), "v": pa.map_(pa.string(), pa.int64())})
    held = [[("a", 1)], [("a", 1), ("b", None)], [], [], None, None, None, None]
    for name, parts in (("one", [[v] for v in values]), ("all", [values])):
        with kept.open(str(tmp_path / name), schema=schema) as op:
            for part in parts:
                op.add_messages([{"t": 0, "v": v} for v in part])
            assert [row["v"] for row in op.get_result()] == held
            assert op.counters["nulled"] == 3
