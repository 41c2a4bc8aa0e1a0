"""Rows that come again: a batch handed in twice, another query with positions, ids or neither, another driver."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException

import windrow as wr
from tests.deep import usually
from windrow.core.errors import StateError
from windrow.testing.clock import ManualClock

from .batches import FLAT, NUMBERED, ROWS, define, run, start

pytestmark = pytest.mark.spark


def test_a_batch_that_is_passed_in_again_is_not_counted_again(spark: Any, feed: Any, tmp_path: Any) -> None:
    sink = wr.sinks.memory()
    function = define().foreach_batch(str(tmp_path / "state"), sink=sink)
    seen: list[Any] = []

    def twice(df: Any, batch_id: int) -> None:
        function(df, batch_id)
        before = len(sink.panes)
        function(df, batch_id)
        seen.append(len(sink.panes) - before)

    source = feed()
    start(spark, source, tmp_path, twice, ROWS)
    assert seen == [0, 0, 0] and not list((tmp_path / "state").glob("nonce-*"))
    assert function.job.progress.commit == 3
    function.close()
    # In another process, and without a batch, it is drained all the same.
    again = define().foreach_batch(str(tmp_path / "state"), sink=sink)
    with pytest.raises(StateError, match=r"use drain\(spark, stream\)"):
        again.drain(spark)
    assert not any(p.window.start_us == 60_000_000 and p.timing.value == "ON_TIME" for p in sink.panes)
    again.drain(spark, source.stream(spark))
    assert any(p.window.start_us == 60_000_000 and p.timing.value == "ON_TIME" for p in sink.panes)
    again.close()


def test_rows_without_positions_of_another_query_are_refused(spark: Any, feed: Any, tmp_path: Any) -> None:
    source = feed()
    run(spark, source, tmp_path, define(), ROWS)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match=r"WR302.*carry no positions"):
        run(spark, source, tmp_path, define(), [])


#: The two routes of rows to shards: each test takes one, the deep ones both.
BY_PARTIALS, BY_ROWS = {"n": wr.count()}, {"n": wr.count(), "mid": wr.median("v")}


@pytest.mark.parametrize("agg", usually([BY_PARTIALS], deep=[BY_PARTIALS, BY_ROWS]))
def test_rows_with_positions_of_another_query_are_counted_once(
    spark: Any, feed: Any, tmp_path: Any, agg: Any
) -> None:
    definition = define(agg, positions=wr.positions("o"))
    first = run(spark, feed("first", NUMBERED), tmp_path, definition, [FLAT[:10]])
    shutil.rmtree(tmp_path / "checkpoint")
    second = run(spark, feed("again", NUMBERED), tmp_path, definition, [FLAT])
    latest = {(p.window.start_us, p.key["k"]): p["n"] for p in [*first, *second]}
    assert sum(latest.values()) == len(FLAT)


@pytest.mark.parametrize("agg", usually([BY_ROWS], deep=[BY_PARTIALS, BY_ROWS]))
def test_a_batch_that_spark_plans_again_with_more_in_it_brings_its_new_rows(
    spark: Any, feed: Any, tmp_path: Any, agg: Any
) -> None:
    """As it does when its plan was lost with the power. Handed in as it was, it makes no commit."""
    sink = wr.sinks.memory()
    function = define(agg, positions=wr.positions("o")).foreach_batch(str(tmp_path / "state"), sink=sink)
    commits: list[int] = []

    def planned_again(df: Any, batch_id: int) -> None:
        for frame in (df.where("o < 10"), df.where("o < 10"), df, df):
            function(frame, batch_id)
            commits.append(function.job.progress.commit)

    start(spark, feed("input", NUMBERED), tmp_path, planned_again, [FLAT])
    latest = {(p.window.start_us, p.key["k"]): p["n"] for p in sink.panes}
    assert sum(latest.values()) == len(FLAT)
    assert commits == [1, 1, 2, 2]
    function.close()


def test_rows_with_ids_of_another_query_are_counted_once(spark: Any, feed: Any, tmp_path: Any) -> None:
    definition = define({"n": wr.count()}, ids=wr.ids("o"))
    first = run(spark, feed("first", NUMBERED), tmp_path, definition, [FLAT[:6], FLAT[3:10]], shards=2)
    shutil.rmtree(tmp_path / "checkpoint")
    sink = wr.sinks.memory()
    function = definition.foreach_batch(str(tmp_path / "state"), sink=sink, clock=ManualClock())
    start(spark, feed("again", NUMBERED), tmp_path, function, [FLAT, FLAT[5:]])
    latest = {(p.window.start_us, p.key["k"]): p["n"] for p in [*first, *sink.panes]}
    assert sum(latest.values()) == len(FLAT)
    totals = function.job.progress.counters
    assert totals["duplicates"] == 3 + 10 + len(FLAT[5:])
    assert not any(name.startswith("dead.") for name in totals)
    function.close()


def test_with_ids_another_query_is_let_in_from_its_beginning_only(
    spark: Any, feed: Any, tmp_path: Any
) -> None:
    definition = define({"n": wr.count()}, ids=wr.ids("o"))
    run(spark, feed("first", NUMBERED), tmp_path, definition, [FLAT[:6]])
    function = definition.foreach_batch(str(tmp_path / "state"), clock=ManualClock())
    with pytest.raises(wr.WindrowError, match=r"WR301.*at its batch 3.*empty Spark checkpoint"):
        function(spark.createDataFrame([], "k string, t timestamp, v long, o long"), 3)
    function.close()


@pytest.mark.parametrize(
    ("rows", "error"),
    [(FLAT[:5], r"WR303.*counted before"), (FLAT[15:], r"WR301.*between them are missing")],
    ids=["behind", "gap"],
)
def test_another_query_that_begins_elsewhere_is_refused(
    spark: Any, feed: Any, tmp_path: Any, rows: Any, error: str
) -> None:
    definition = define({"n": wr.count()}, positions=wr.positions("o"))
    run(spark, feed("first", NUMBERED), tmp_path, definition, [FLAT[:10]])
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match=error):
        run(spark, feed("again", NUMBERED), tmp_path, definition, [rows])


def test_two_drivers_on_one_state_only_the_newer_continues(spark: Any, feed: Any, tmp_path: Any) -> None:
    source = feed()
    older = define().foreach_batch(str(tmp_path / "state"), sink=wr.sinks.memory())
    start(spark, source, tmp_path, older, ROWS[:1])
    sink = wr.sinks.memory()
    newer = define().foreach_batch(str(tmp_path / "state"), sink=sink)
    start(spark, source, tmp_path, newer, ROWS[1:2])
    with pytest.raises(StreamingQueryException, match=r"WR205.*one driver only"):
        start(spark, source, tmp_path, older, ROWS[2:])
    newer.close()
    older.close()
    assert max(p.commit for p in sink.panes) == 2
