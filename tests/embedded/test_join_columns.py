"""Names of the columns of a join's rows, declared or decided once. Semantics "Joins"."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.core import errors as e
from windrow.testing import TestDriver

S = 1_000_000


def joined(how: str = "left", **options: Any) -> wr.Join:
    left, right = (wr.Input(name, event_time="t", watermark=wr.explicit()) for name in ("left", "right"))
    arguments = {
        **{"left": left, "right": right, "on": "k", "within": ("-5 seconds", "5 seconds")},
        **{"allowed_lateness": "0 seconds", "how": how},
    }
    return wr.Join(**{**arguments, **options})


def row(t: int, k: Any, **columns: Any) -> dict[str, Any]:
    return {"t": t * S, "k": k, **columns}


def names(driver: TestDriver) -> list[list[str]]:
    return [sorted(r.values) for r in driver.panes()]


def test_event_times_that_are_declared_as_numbers_may_come_for_both_inputs_at_once(tmp_path: Path) -> None:
    schema = pa.schema([("t", pa.int64()), ("k", pa.int64())])
    with joined("inner").open(str(tmp_path), schema={"left": schema, "right": schema}) as op:
        op.add_messages([wr.Message({"t": None, "k": 1})], "left")  # malformed, but the columns are known
        for second in (1, 2):
            op.add_messages({"right": [wr.Message(row(second, 1))], "left": [wr.Message(row(second, 1))]})
        op.drain()
        assert len(op.get_result()) == 4


def test_a_column_keeps_the_name_that_its_first_row_had(tmp_path: Path) -> None:
    driver = TestDriver(joined(), tmp_path)
    driver.feed([row(1, 1, v="a")], "left")
    driver.advance_watermark(20 * S)
    assert names(driver) == [["k", "left_t", "right_t", "v"]]
    driver.restart()
    driver.feed({"left": [row(21, 2, v="b")], "right": [row(22, 2, v="c", w=1)]})
    assert names(driver) == [["k", "left_t", "right_t", "right_v", "v", "w"]]
    driver.restart()
    driver.feed({"left": [row(23, 3, w=2)], "right": [row(24, 3)]})
    driver.drain()
    assert names(driver) == [["k", "left_t", "left_w", "right_t", "right_v", "v", "w"]]
    driver.check()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_declared_columns_are_called_the_same_whatever_comes_first(
    order: tuple[int, ...], tmp_path: Path
) -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.decimal128(9, 2))])
    with joined("full").open(str(tmp_path), schema={"left": schema, "right": schema}) as op:
        steps = [
            lambda: op.add_messages([wr.Message(row(1, 1))], "left"),
            lambda: op.add_messages([wr.Message(row(1, 1, v=1))], "right"),
            lambda: op.add_messages(pa.table({"t": pa.array([S], schema.field("t").type), "k": [2]}), "left"),
        ]
        for step in order:
            steps[step]()
        op.drain()
        assert op.result_table().column_names == [
            *("k", "left_t", "left_v", "right_t", "right_v"),
            *("pane", "commit"),
        ]
        assert op.result_table().schema.field("left_v").type == pa.decimal128(9, 2)


@pytest.mark.parametrize("name", ["commit", "pane", "window", "right_v", "left_v"])
@pytest.mark.parametrize("itself", [False, True], ids=["two inputs", "with itself"])
def test_a_message_with_a_column_that_cannot_be_is_a_dead_letter_and_alone(
    name: str, itself: bool, tmp_path: Path
) -> None:
    left = wr.Input("left", event_time="t", watermark=wr.explicit())
    driver = TestDriver(joined(**({"left": left, "right": left} if itself else {})), tmp_path)
    driver.feed([row(1, 1, v=1)], "left")
    if not itself:
        driver.feed([row(1, 1, v=1)], "right")
    driver.feed([row(1, 1, v=1), row(1, 1, v=1, **{name: "x"}), row(1, 1, v=1, **{name: None})], "left")
    driver.timeout()
    driver.restart()
    driver.drain()
    [letter] = driver.op.dead_letters()
    assert (letter.reason, letter.position.offset if letter.position else None) == ("malformed", 2)
    assert repr(name) in letter.detail and "rename it" in letter.detail
    assert {tuple(n) for n in names(driver)} == {("k", "left_t", "left_v", "right_t", "right_v")}
    driver.check(dead_letters=True)


@pytest.mark.parametrize("at_once", [False, True], ids=["step by step", "one step"])
def test_a_key_that_cannot_be_compared_is_a_dead_letter_and_alone(at_once: bool, tmp_path: Path) -> None:
    left, right = [wr.Message(row(1, 1))], [wr.Message(row(1, k)) for k in ("a", 1.0, 2)]
    with joined("inner").open(str(tmp_path)) as op:
        if at_once:
            op.add_messages({"left": left, "right": right})
        else:
            op.add_messages(left, "left")
            op.add_messages(right, "right")
        op.drain()
        assert [(r["k"], r["right_t"]) for r in op.get_result()] == [
            (1.0, r["right_t"]) for r in op.get_result()
        ]
        [letter] = op.dead_letters()
    assert letter.detail == "key 'k' is string, its partner 'k' is int64, which cannot be compared"


def test_a_condition_may_name_a_column_with_its_input_s_name_before_it(tmp_path: Path) -> None:
    driver = TestDriver(joined("left", where=wr.col("left_v") < wr.col("right_w")), tmp_path)
    driver.feed([row(1, 1, v=5)], "left")
    driver.feed([row(1, 1, w=4), row(1, 1, w=6)], "right")
    driver.drain()
    assert [r["w"] for r in driver.panes()] == [6]
    driver.check()


def test_dead_letters_of_a_join_have_a_sink_of_their_own(tmp_path: Path) -> None:
    panes, letters = (wr.sinks.parquet(str(tmp_path / name)) for name in ("rows", "letters"))
    with joined().open(str(tmp_path / "job"), sink=panes, dead_letters=letters) as op:
        op.add_messages([wr.Message({"k": 1, "t": "soon"})], "right")
    assert [d["input"] for d in wr.read_panes(letters.path).to_pylist()] == ["right"]


@pytest.mark.parametrize(
    ("schema", "error", "words"),
    [
        ({"lift": pa.schema([])}, e.InputError, ["'lift'", "'right'"]),
        ({"left": pa.schema([("t", pa.int64())])}, e.UnknownColumn, ["'k'", "'left'"]),
        (
            {"left": pa.schema([("t", pa.int64()), ("k", pa.int64()), ("pane", pa.int64())])},
            e.ReservedColumn,
            ["'pane'", "rename"],
        ),
        (
            {
                "left": pa.schema([("t", pa.int64()), ("k", pa.int64())]),
                "right": pa.schema([("t", pa.int64()), ("k", pa.string())]),
            },
            e.TypeClash,
            ["int64", "string"],
        ),
    ],
)
def test_a_schema_that_cannot_be_joined_is_refused(
    schema: dict[str, pa.Schema], error: type[Exception], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(error) as raised:
        joined().open(str(tmp_path), schema=schema)
    assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize(
    ("kind", "value", "held"),
    [
        (pa.int64(), 1_577_880_000_000_000, pa.int64()),
        (pa.string(), "2020-01-01T12:00:00Z", pa.string()),
        (pa.date32(), "2020-01-01T12:00:00Z", pa.timestamp("us", "UTC")),
        (pa.timestamp("ms", "Europe/Berlin"), "2020-01-01T12:00:00Z", pa.timestamp("us", "UTC")),
    ],
    ids=str,
)
@pytest.mark.parametrize("first", ["l", "r"])
def test_declared_event_times_are_of_one_type_on_both_sides(
    tmp_path: Path, kind: pa.DataType, value: Any, held: pa.DataType, first: str
) -> None:
    sides: dict[str, Any] = {"event_time": "t", "max_ahead": wr.forever}
    join = wr.Join(
        left=wr.Input("l", **sides),
        right=wr.Input("r", **sides),
        on="k",
        within=("-1 hour", "1 hour"),
        how="full",
        retention="1 day",
    )
    schema = pa.schema([("t", kind), ("k", pa.int64())])
    with join.open(str(tmp_path), store="memory", schema={"l": schema, "r": schema}) as operator:
        for side in (first, "r" if first == "l" else "l"):
            operator.add_messages({side: [{"t": value, "k": 1}]})
            operator.timeout()
        rows = operator.get_result()
        assert operator.dead_letters() == [] and len(rows) == 1
        assert {rows.to_arrow().schema.field(name).type for name in ("l_t", "r_t")} == {held}
