"""An aggregate of a bounded DataFrame."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr

from .batches import ROWS, define
from .conftest import SCHEMA, at

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("agg", [wr.sum("v`.w"), wr.median("v`.w")], ids=["partials", "rows"])
def test_apply_takes_any_name_of_a_column_and_hands_out_its_dead_letters(spark: Any, agg: Any) -> None:
    definition = define(
        {"n.m": agg}, by=("a.b", "c`d"), event_time="t.`t", null_keys="dead_letter", emit=wr.Emit()
    )
    rows = [(at(1), "x", "y", 3), (at(2), "x", "y", 3), (None, "x", "y", 4), (at(3), None, "y", 5)]
    df = spark.createDataFrame(rows, "`t.``t` timestamp, `a.b` string, `c``d` string, `v``.w` bigint")
    letters: list[str] = []
    panes = definition.apply(df, dead_letters=lambda token, files: letters.extend(files))
    [pane] = panes.collect()
    assert (pane["a.b"], pane["c`d"], pane["n.m"]) == ("x", "y", 6 if agg == wr.sum("v`.w") else 3.0)
    found = spark.read.parquet(*letters).select("reason").collect()
    assert sorted(r.reason for r in found) == ["malformed", "null_key"]


def test_a_value_on_which_an_expression_raises_is_one_dead_letter(spark: Any) -> None:
    few = {"n": wr.count(), "few": wr.count().where(wr.lit(10) / wr.col("v") > 1)}
    rows = [("a", at(1), 1), ("a", at(2), 0), ("a", at(3), 2)]
    letters: list[str] = []
    panes = define(few, emit=wr.Emit()).apply(
        spark.createDataFrame(rows, "k string, t timestamp, v bigint"),
        dead_letters=lambda token, files: letters.extend(files),
    )
    assert [(p["n"], p["few"]) for p in panes.collect()] == [(2, 2)]
    [letter] = spark.read.parquet(*letters).collect()
    assert letter.reason == "malformed" and "divide by zero" in letter.detail


def test_apply_on_a_bounded_frame_gives_the_final_windows(spark: Any, tmp_path: Any) -> None:
    rows = [r for batch in ROWS for r in batch]
    df = spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA))
    definition = define({"n": wr.count()}, emit=wr.Emit())
    panes = definition.apply(df).collect()
    assert sum(p["n"] for p in panes) == len(rows)
    assert {p["pane"]["timing"] for p in panes} == {"ON_TIME"}


def test_apply_on_a_bounded_frame_counts_each_id_once(spark: Any) -> None:
    frame = spark.createDataFrame(
        [("a", at(1), 5, 1), ("a", at(1), 5, 1), ("b", at(2), 5, 1), ("a", at(3), None, 1)],
        "k string, t timestamp, o long, v long",
    )
    panes = define({"n": wr.count()}, ids=wr.ids("o"), emit=wr.Emit()).apply(frame)
    assert sorted((r["k"], r["n"]) for r in panes.collect()) == [("a", 1), ("b", 1)]


@pytest.mark.parametrize(("unit", "each"), [("ms", 1_000), ("ns", 1_000_000_000)])
def test_integers_are_times_in_the_unit_that_is_given(spark: Any, unit: Any, each: int) -> None:
    definition = define({"n": wr.count()}, event_time_unit=unit, emit=wr.Emit.append())
    rows = [("a", 100 * each + 1), ("a", 109 * each), ("a", -5 * each - 1), ("b", 2**63 - 1)]
    told = definition.apply(spark.createDataFrame(rows, "k string, t bigint")).collect()
    assert sorted((r["window"]["start"].timestamp(), r["n"]) for r in told) == [(-10.0, 1), (100.0, 2)]


def test_durations_are_intervals_of_spark(spark: Any) -> None:
    rows = [("a", at(1), timedelta(seconds=90, microseconds=1)), ("a", at(2), timedelta(days=-1))]
    df = spark.createDataFrame(rows, "k string, t timestamp, v interval day to second")
    panes = define({"a.`b": wr.max("v"), "last": wr.last("v")}, emit=wr.Emit()).apply(df)
    [pane] = panes.collect()
    assert (pane["a.`b"], pane["last"]) == (rows[0][2], rows[1][2])
