"""Types of columns drift: what is needed widens or is a dead letter, what nobody uses harms nobody. Semantics "Types"."""

from __future__ import annotations

from decimal import Decimal as D
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr

VALUES = {
    "n": wr.count(),
    "sum": wr.sum("v"),
    "min": wr.min("v"),
    "avg": wr.avg("v"),
    "latest": wr.latest("v"),
    "all": wr.collect_list("v"),
}


def definition(**agg: Any) -> wr.Aggregate:
    return wr.Aggregate(by="k", event_time="t", window=wr.tumbling("1 hour"), agg=agg, retention="1 day")


def message(number: int, columns: dict[str, Any]) -> wr.Message:
    return wr.Message({"t": 1_000_000, "k": "a", **columns}, wr.Position("s", 0, number))


def played(
    what: wr.Aggregate, folder: Path, steps: list[list[dict[str, Any]]], **options: Any
) -> tuple[dict[str, Any], list[wr.DeadLetter]]:
    """The one pane of a job that is opened anew for every step, and all of its dead letters."""
    number = 0
    for step in steps:
        with what.open(str(folder), **options) as op:
            op.add_messages([message(number + i, columns) for i, columns in enumerate(step)])
            number += len(step)
    with what.open(str(folder), **options) as op:
        op.drain()
        [pane] = op.get_result()
        return dict(pane.values), op.dead_letters()


def drift(*values: Any) -> list[dict[str, Any]]:
    return [{"v": value} for value in values]


@pytest.mark.parametrize("median", [False, True], ids=["accumulators", "messages"])
@pytest.mark.parametrize("at_once", [True, False], ids=["one step", "step by step"])
@pytest.mark.parametrize(
    ("values", "total", "least"),
    [
        ((D("9.99"), D("10.00"), D("100.5")), D("120.49"), D("9.99")),
        ((D("9.99"), D("10.125"), D("1" + "0" * 40)), D("1" + "0" * 38 + "20.115"), D("9.99")),
        ((1, D("2.5"), 2**62), D(2**62) + D("3.5"), D(1)),
        ((D("2.5"), 1.5, 3), 7.0, 1.5),
        ((1, 1.5, 2**50), 2**50 + 2.5, 1.0),
        ((1.5, None, D("2.5")), 4.0, 1.5),
    ],
)
def test_numbers_and_decimals_widen_and_sums_are_exact(
    values: tuple[Any, ...], total: Any, least: Any, at_once: bool, median: bool, tmp_path: Path
) -> None:
    what = definition(**VALUES, **({"median": wr.median("v")} if median else {}))
    steps = [drift(*values)] if at_once else [drift(v) for v in values]
    pane, dead = played(what, tmp_path, steps)
    assert dead == []
    like = D if isinstance(total, D) else float
    assert (pane["n"], pane["sum"], pane["min"], pane["latest"]) == (3, total, least, like(values[-1]))
    assert pane["all"] == [like(v) for v in values if v is not None]


def test_a_decimal_beyond_what_arrow_holds_is_a_dead_letter_and_alone(tmp_path: Path) -> None:
    pane, dead = played(
        definition(**VALUES), tmp_path, [drift(D("1e50")), drift(D("1e-30"), D(1)), drift(D(2))]
    )
    assert (pane["n"], pane["sum"]) == (3, D(10**50 + 3))
    assert [(d.reason, d.position.offset) for d in dead if d.position] == [("malformed", 1)]


@pytest.mark.parametrize("at_once", [True, False], ids=["one step", "step by step"])
def test_the_first_value_of_a_sum_decides_nothing_where_it_can_be_no_number(
    at_once: bool, tmp_path: Path
) -> None:
    values = drift("a", 1, 2)
    pane, [letter] = played(definition(**VALUES), tmp_path, [values] if at_once else [[v] for v in values])
    assert (pane["n"], pane["sum"]) == (2, 3)
    assert letter.detail == "wr.sum('v'): column of type string cannot be summed: cast it to a number first"


@pytest.mark.parametrize(
    "odd",
    [("n/a", 1, 2.5), (1, "n/a", [1]), ({"a": 1}, {"a": "x"}, 5), ("\ud800", b"\xff", object())],
    ids=["text and numbers", "a number and a list", "structs", "no Unicode, bytes, an object"],
)
@pytest.mark.parametrize("at_once", [True, False], ids=["one step", "step by step"])
def test_a_column_that_nobody_uses_kills_no_message(
    odd: tuple[Any, ...], at_once: bool, tmp_path: Path
) -> None:
    values = [{"v": 1, "x": x} for x in odd]
    pane, dead = played(
        definition(n=wr.count(), sum=wr.sum("v"), few=wr.count().where(wr.col("v") > 5)),
        tmp_path,
        [values] if at_once else [[v] for v in values],
    )
    assert (pane, dead) == ({"n": 3, "sum": 3, "few": 0}, [])


def test_of_messages_that_are_kept_whole_a_value_that_does_not_fit_is_left_out_and_counted(
    tmp_path: Path,
) -> None:
    @wr.aggregate_function(name="seen", returns=pa.string())
    def seen(messages: pa.Table) -> str:
        return repr({c: messages.column(c).to_pylist() for c in ("number", "text")})

    what = definition(seen=seen("v"))
    odd = [(1, "a"), ("n/a", 2), (2.5, {"b": 3}), ([1], None)]
    steps = [[{"v": 0, "number": number, "text": text}] for number, text in odd]
    pane, dead = played(what, tmp_path, steps)
    assert dead == []
    assert pane["seen"] == repr({"number": [1.0, None, 2.5, None], "text": ["a", "2", '{"b": 3}', None]})
    with what.open(str(tmp_path)) as op:
        assert op.counters["nulled"] == 2


def test_structs_gain_fields_and_lose_no_value(tmp_path: Path) -> None:
    values = drift({"a": 1}, {"a": 2.5, "b": {"c": "x"}}, {"b": {"d": D("1.5")}}, {"b": {"d": D("1.25")}})
    pane, dead = played(definition(all=wr.collect_list("v")), tmp_path, [[v] for v in values])
    assert dead == []
    assert pane["all"] == [
        {"a": 1.0, "b": None},
        {"a": 2.5, "b": {"c": "x", "d": None}},
        {"a": None, "b": {"c": None, "d": D("1.50")}},
        {"a": None, "b": {"c": None, "d": D("1.25")}},
    ]


def test_a_declared_type_is_that_of_the_stream_from_the_first_message_on(tmp_path: Path) -> None:
    declared = pa.schema([("k", pa.string()), ("v", pa.decimal128(10, 2))])
    pane, dead = played(
        definition(**VALUES), tmp_path, [drift("a"), drift(1), drift(D("2.5"))], schema=declared
    )
    assert (pane["sum"], str(pane["min"])) == (D("3.50"), "1.00")
    assert [d.detail for d in dead] == ["column 'v' is 'a', which is no decimal128(10, 2)"]


def test_tables_of_wider_types_and_of_columns_that_nobody_uses_are_taken(tmp_path: Path) -> None:
    def table(v: pa.Array, x: pa.Array) -> pa.Table:
        return pa.table(
            {"t": pa.array([1], pa.int64()), "k": pa.array(["a"]).dictionary_encode(), "v": v, "x": x}
        )

    with definition(n=wr.count(), sum=wr.sum("v")).open(str(tmp_path)) as op:
        op.add_messages(table(pa.array([1]), pa.array(["text"])))
        op.add_messages(table(pa.array([D("2.25")]), pa.array([[1]])))
        op.drain()
        [pane] = op.get_result()
    assert pane.values == {"n": 2, "sum": D("3.25")}


def test_a_filter_compares_decimals_with_whole_numbers(tmp_path: Path) -> None:
    what = definition(many=wr.count().where(wr.col("v") > 1), twice=wr.sum(wr.col("v") * D("2")))
    pane, dead = played(what, tmp_path, [drift(D("0.5"), D("1.01"), D("2"))])
    assert (pane, dead) == ({"many": 2, "twice": D("7.02")}, [])


@pytest.mark.parametrize("at_once", [True, False], ids=["one step", "step by step"])
@pytest.mark.parametrize("first", ["v", "y"])
def test_expressions_may_name_several_columns_in_whatever_order_these_come(
    tmp_path: Path, first: str, at_once: bool
) -> None:
    what = definition(
        n=wr.count(),
        few=wr.sum("v").where((wr.col("y") > 1) & (wr.col("z") == "b")),
        product=wr.sum(wr.col("v") * wr.col("y")),
        middle=wr.median("v").where(wr.col("y") > 1),
    )
    rows = [{"v": v, "y": y, "z": z} for v, y, z in ((1, 1, None), (2, 2, "b"), (None, 3, "b"), (4, 4, "c"))]
    rows = [{first: row[first], **row} for row in rows]
    pane, dead = played(what, tmp_path, [rows] if at_once else [[row] for row in rows])
    assert (pane, dead) == ({"n": 4, "few": 2, "product": 1 + 4 + 16, "middle": 3.0}, [])


def test_a_filter_of_a_function_of_messages_that_raises_costs_its_message_only(tmp_path: Path) -> None:
    @wr.aggregate_function(name="many", returns=pa.int64())
    def many(messages: pa.Table) -> int:
        return len(messages)

    what = definition(many=many("v").where(wr.lit(6) / wr.col("v") > 1))
    pane, dead = played(what, tmp_path, [[{"v": v}] for v in (1, 0, 2, 6)])
    assert pane == {"many": 2}
    assert [(x.position.offset, x.detail) for x in dead if x.position] == [
        (1, "ArrowInvalid: divide by zero, in many=many('v').where((divide_checked(6, v) > 1))")
    ]
