"""Routes of a batch's rows to their shards: both give the oracle's panes, whatever the number of shards."""

from __future__ import annotations

from typing import Any

import pytest

import windrow as wr
from windrow.core.sharding import Sharding
from windrow.runners.spark import action, routes
from windrow.testing.clock import ManualClock

from .batches import INCREMENTAL, ROWS, define, embedded, grouped_batches, plain, run, same, start
from .conftest import at

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("agg", "named", "groups"),
    [
        (INCREMENTAL, None, True),
        (INCREMENTAL, "rows", True),
        ({**INCREMENTAL, "mid": wr.median("v")}, None, False),
    ],
    ids=["partials", "partials of an input with a name", "rows"],
)
def test_both_routes_give_the_panes_of_the_oracle(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: Any, agg: Any, named: str | None, groups: bool
) -> None:
    made = grouped_batches(monkeypatch)
    monkeypatch.setattr(action, "FEW_ROWS", -1)
    definition = define(agg, input=named)
    got = run(spark, feed(), tmp_path, definition, ROWS)
    assert made == ([1, 2, 3] if groups else [])
    assert same(plain(got), embedded(definition, ROWS))
    assert {p.timing.value for p in got} == {"EARLY", "ON_TIME", "LATE"}


def test_after_a_batch_of_few_rows_the_rows_of_the_next_one_cross(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(action, "FEW_ROWS", 3)
    made = grouped_batches(monkeypatch)
    batches = [
        [{"t": at(10 * begin + i), "k": "abc"[i % 3], "v": i} for i in range(n)]
        for begin, n in enumerate((5, 3, 4, 2, 1, 9))
    ]
    got = run(spark, feed(), tmp_path, define(), batches, shards=2)
    assert made == [1, 2, 4], "the first, of which nobody knows, and those after 5 and 4 rows"
    assert same(plain(got), embedded(define(), batches))


def test_a_driver_that_is_started_anew_knows_how_many_rows_came_last(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    """So a batch that is run again goes the way that it went."""
    monkeypatch.setattr(action, "FEW_ROWS", 3)
    made, source = grouped_batches(monkeypatch), feed()
    for n in (5, 2, 9):
        run(spark, source, tmp_path, define(), [[{"t": at(i), "k": "abc"[i % 3], "v": i} for i in range(n)]])
    assert made == [1, 2]


@pytest.mark.parametrize("agg", [{"n": wr.count()}, {"mid": wr.median("v")}], ids=["partials", "rows"])
def test_a_shard_answers_though_no_row_comes_to_it(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: Any, agg: Any
) -> None:
    """One of four shards has the only key. Each gets an added row only if Spark may know that nothing comes."""
    monkeypatch.setattr(action, "FEW_ROWS", -1)
    added: list[int] = []
    control = routes.control_rows
    monkeypatch.setattr(routes, "control_rows", lambda *a: added.append(1) or control(*a))
    batches = [[{"t": at(20 * n), "k": "a", "v": n}] for n in range(3)]
    sink = wr.sinks.memory()
    function = define(agg).foreach_batch(str(tmp_path / "state"), sink=sink, clock=ManualClock(), shards=4)
    start(spark, feed(), tmp_path, function, batches)
    assert not added and function.job.progress.commit == 3
    assert same(plain(sink.panes), embedded(define(agg), batches))
    function.close()
    nothing = define(agg).foreach_batch(str(tmp_path / "none"), sink=wr.sinks.memory(), shards=4)
    start(
        spark,
        feed("more"),
        tmp_path / "none",
        lambda df, n: nothing(df.sparkSession.createDataFrame([], df.schema).where("false"), n),
        batches[:2],
    )
    assert added == [1] and nothing.job.progress.commit == 2
    nothing.close()


def test_the_number_of_shards_does_not_change_the_panes(spark: Any, feed: Any, tmp_path: Any) -> None:
    definition = define()
    one = run(spark, feed("one"), tmp_path / "one", definition, ROWS, shards=1)
    four = run(spark, feed("four"), tmp_path / "four", definition, ROWS, shards=4)
    assert plain(one) == plain(four) != []


def test_a_key_that_widens_between_two_runs_stays_in_its_shard(spark: Any, tmp_path: Any) -> None:
    definition = wr.Aggregate(
        by="k", event_time="t", window=wr.tuples(5), agg={"n": wr.count()}, retention=wr.forever
    )
    sink = wr.sinks.memory()
    for batch, kind in enumerate(("int", "bigint", "decimal(12,2)", "double", "float")):
        function = definition.foreach_batch(str(tmp_path / "state"), sink=sink, shards=4, clock=ManualClock())
        numbers = spark.range(20).selectExpr(f"cast(id as {kind}) as k", "timestamp_micros(id) as t")
        function(numbers, batch)
        function.close()
    assert sorted((pane.key["k"], pane["n"]) for pane in sink.panes) == [(k, 5) for k in range(20)]


def test_numbers_are_hashed_by_value() -> None:
    fields = [("`k`", True), ("`s`", False)]
    assert "xxhash64(cast(`k` as double) + 0D, `s`)" in Sharding(4).sql(fields)
