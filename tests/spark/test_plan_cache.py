"""Batches that come alike are planned once; what a batch has of its own is never another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext, TaskContext
from pyspark.core.broadcast import Broadcast
from pyspark.sql import functions as F

import windrow as wr
from windrow.runners.spark import action, jvm_calls, placement, routes, session, shipping
from windrow.runners.spark.plan_cache import Planned
from windrow.runners.spark.session import Tagged
from windrow.testing.clock import ManualClock

from .batches import define, embedded, plain, same, start
from .conftest import at

pytestmark = pytest.mark.spark

MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


def batches(n: int) -> list[list[dict[str, Any]]]:
    return [[{"t": at(4 * i + j), "k": "abc"[j % 3], "v": j - i} for j in range(6)] for i in range(n)]


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the batches that were planned, and those that ran by a cached plan."""
    counts = {"planned": 0, "as before": 0}

    def planned(*arguments: Any, **named: Any) -> Any:
        counts["planned"] += 1
        return plan(*arguments, **named)

    def answers(self: Planned, *arguments: Any) -> list[bytes]:
        counts["as before"] += 1
        return run(self, *arguments)

    plan, run = action.planned, Planned.answers
    monkeypatch.setattr(action, "planned", planned)
    monkeypatch.setattr(Planned, "answers", answers)
    return counts


def test_batches_that_come_alike_are_planned_once(
    spark: Any, feed: Any, tmp_path: Path, plans: dict[str, int]
) -> None:
    """The first one makes groups; after a commit of few rows they cross. Another query is planned anew."""
    sent, sink, source = batches(9), wr.sinks.memory(), feed()
    function = define().foreach_batch(str(tmp_path / "state"), sink=sink, clock=ManualClock())
    start(spark, source, tmp_path, function, sent[:5])
    assert plans == {"planned": 2, "as before": 3}
    for plan in function._action._planned.values():
        assert plan is not None
        node = plan._between[0]
        while node.children().size():
            node = node.children().head()
        assert node.rdd().getNumPartitions() == 0, "what is kept holds the rows of no batch"
    start(spark, source, tmp_path, function, sent[5:])
    assert plans == {"planned": 3, "as before": 6}
    function.close()
    assert same(plain(sink.panes), embedded(define(), sent))


def test_groups_of_batches_that_come_alike_are_planned_once(
    spark: Any, feed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: dict[str, int]
) -> None:
    """Until rows are late: from then on the plan says which, in numbers."""
    monkeypatch.setattr(action, "FEW_ROWS", -1)
    sent, sink = batches(8), wr.sinks.memory()
    sent[5][0]["t"] = at(1)
    closing = define(emit=wr.Emit(), retention="0 seconds")
    function = closing.foreach_batch(str(tmp_path / "state"), sink=sink, clock=ManualClock())
    start(spark, feed(), tmp_path, function, sent)
    assert function.last_progress is not None
    counters = function.last_progress["counters"]
    function.close()
    assert counters.get("dead.too_late", 0) + counters.get("dead.out_of_retention", 0) == 1
    assert plans == {"planned": 2, "as before": 4}
    assert same(plain(sink.panes), embedded(closing, sent))


def test_more_partitions_than_are_grouped_by_themselves_are_planned_each_time(
    spark: Any, feed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: dict[str, int]
) -> None:
    monkeypatch.setattr(action, "FEW_ROWS", -1)
    monkeypatch.setattr(routes, "FEW_TIMES", 0)
    sent, sink = batches(4), wr.sinks.memory()
    function = define().foreach_batch(str(tmp_path / "state"), sink=sink, clock=ManualClock())
    start(spark, feed(), tmp_path, function, sent)
    function.close()
    assert plans == {"planned": 0, "as before": 0}
    assert same(plain(sink.panes), embedded(define(), sent))


def test_what_a_batch_has_of_its_own_is_never_another_s(
    spark: Any, feed: Any, tmp_path: Path, plans: dict[str, int]
) -> None:
    """Conditions, columns, caches that the user puts over what Spark hands in."""
    sent, sink = batches(9), wr.sinks.memory()
    function = define().foreach_batch(str(tmp_path / "state"), sink=sink, clock=ManualClock())
    other = {
        3: lambda df: df.where("v > 0"),
        4: lambda df: df.withColumn("v", F.col("v") + 100),
        5: lambda df: df.withColumn("v", F.lit(7).cast("long")),
        7: lambda df: df.select("t", "k", (F.col("v") + 1).alias("v")).cache(),
    }
    start(spark, feed(), tmp_path, lambda df, n: function(other.get(n, lambda df: df)(df), n), sent)
    function.close()
    assert plans == {"planned": 2, "as before": 3}
    meant = [list(rows) for rows in sent]
    meant[3] = [r for r in sent[3] if r["v"] > 0]
    meant[4] = [{**r, "v": r["v"] + 100} for r in sent[4]]
    meant[5] = [{**r, "v": 7} for r in sent[5]]
    meant[7] = [{**r, "v": r["v"] + 1} for r in sent[7]]
    assert same(plain(sink.panes), embedded(define(), meant))


def test_columns_that_change_while_a_query_runs_are_those_of_each_batch(
    spark: Any, feed: Any, tmp_path: Path, plans: dict[str, int]
) -> None:
    """One more, another order, wider types, values that may be missing; batches of nothing, and of nothing that counts."""
    long, wide, may_lack = "v long", "t timestamp, k string, v long", "k string, t timestamp, v int"
    strict = "t timestamp not null, k string not null, v long not null"
    under = [wide, strict, wide, f"x string, {may_lack}", f"{long}, t timestamp, k string", may_lack]
    under = [*under, wide, wide, strict, may_lack, f"x string, {may_lack}", wide, wide]
    sent, sink = batches(len(under)), wr.sinks.memory()
    sent[0] = sent[7] = []
    for row in sent[6][1:3] + sent[11]:
        row["t"] = None
    sent[9][1]["v"] = None

    def batch(df: Any, n: int) -> None:
        if n == 8:
            df.sparkSession.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
        names = [column.split()[0] for column in under[n].split(", ")]
        rows = [tuple(row.get(name) for name in names) for row in sent[n]]
        function(df.sparkSession.createDataFrame(rows, under[n]), n)

    function = define().foreach_batch(str(tmp_path / "state"), sink=sink, clock=ManualClock())
    start(spark, feed(), tmp_path, batch, batches(len(under)))
    assert function.last_progress is not None
    assert function.last_progress["commit"] == len(under)
    function.close()
    assert plans["planned"] + plans["as before"] == len(under) and plans["as before"] >= 6
    counted = [[row for row in rows if row["t"] is not None] for rows in sent]
    assert same(plain(sink.panes), embedded(define(), counted))


def test_what_is_kept_in_a_cache_is_not_read_past_it(
    spark: Any, feed: Any, tmp_path: Path, plans: dict[str, int]
) -> None:
    """The frame itself is cached: its rows may be others when they are made once more."""
    function = define().foreach_batch(str(tmp_path / "state"), clock=ManualClock())

    def batch(df: Any, n: int) -> None:
        function(df.cache() if n > 2 else df, n)

    start(spark, feed(), tmp_path, batch, batches(5))
    function.close()
    assert plans == {"planned": 2, "as before": 1}


def test_a_large_plan_is_sent_once_to_each_executor(
    spark: Any, feed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: dict[str, int]
) -> None:
    """So do the names of all shards' files: a broadcast for few bytes of commits, which later plans share. None is left."""
    monkeypatch.setattr(jvm_calls, "INLINE_BYTES", 2_000)
    monkeypatch.setattr(shipping, "WITH_TASKS_BYTES", 0)
    monkeypatch.setattr("windrow.checkpoint.job.RECENT", 5)
    made: list[Any] = []
    destroyed: list[Any] = []
    broadcast, destroy = SparkContext.broadcast, Broadcast.destroy
    monkeypatch.setattr(
        SparkContext, "broadcast", lambda *arguments: made.append(broadcast(*arguments)) or made[-1]
    )
    monkeypatch.setattr(Broadcast, "destroy", lambda one: destroyed.append(one) or destroy(one))
    arguments, sink = batches(8), wr.sinks.memory()
    function = define().foreach_batch(str(tmp_path / "state"), sink=sink, clock=ManualClock())
    start(spark, feed(), tmp_path, function, arguments)
    assert plans == {"planned": 2, "as before": 6}
    assert len(made) == 8 + 7 and len(destroyed) == 7 + 2
    function.close()
    assert set(map(id, destroyed)) == set(map(id, made))
    assert same(plain(sink.panes), embedded(define(), arguments))


def test_many_shards_share_tasks_where_rows_are_few(
    spark: Any, feed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: dict[str, int]
) -> None:
    """The first batch, of which nothing is known, has a task a shard."""
    monkeypatch.setattr(placement, "TASKS_A_CORE", 1)
    cores, partitions, repartitioned = (
        spark.sparkContext.defaultParallelism,
        list[int](),
        jvm_calls.repartitioned,
    )

    def noted(df: Any, number: int, by: str) -> Any:
        partitions.append(number)
        return repartitioned(df, number, by)

    monkeypatch.setattr(jvm_calls, "repartitioned", noted)
    sent, sink = batches(5), wr.sinks.memory()
    function = define().foreach_batch(
        str(tmp_path / "state"), sink=sink, clock=ManualClock(), shards=cores + 3
    )
    start(spark, feed(), tmp_path, function, sent)
    function.close()
    assert partitions == [cores + 3, cores] and plans == {"planned": 2, "as before": 3}
    assert same(plain(sink.panes), embedded(define(), sent))


def test_a_stage_that_ran_twice_is_run_again_with_files_of_its_own(
    spark: Any, feed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: dict[str, int]
) -> None:
    second, looked = Tagged.second_attempts, [0]

    def twice(self: Tagged) -> bool:
        looked[0] += 1
        return second(self) or looked[0] == 4

    monkeypatch.setattr(Tagged, "second_attempts", twice)
    sent, sink = batches(5), wr.sinks.memory()
    function = define().foreach_batch(str(tmp_path / "state"), sink=sink, clock=ManualClock())
    start(spark, feed(), tmp_path, function, sent)
    function.close()
    assert looked == [6] and plans == {"planned": 2, "as before": 4}
    assert same(plain(sink.panes), embedded(define(), sent))


def test_tasks_know_where_spark_need_not_measure(
    spark: Any, feed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: dict[str, int]
) -> None:
    """A cached plan keeps no settings: they go with the thread's jobs, and leave it as they found it."""
    monkeypatch.setattr(action, "FEW_ROWS", 1)
    monkeypatch.setattr(action, "ROWS_A_GROUP", 1000)
    seen = tmp_path / "seen"

    def noted(plan: Any, rows: Any) -> Any:
        context = TaskContext.get()
        assert context is not None
        with open(seen, "a") as file:
            file.write(f"{plan.commit} {context.partitionId()} {context.getLocalProperty(MOST_BYTES)}\n")
        return session.run_on_partition(plan, rows)

    monkeypatch.setattr(action, "run_on_partition", noted)
    after = []
    gap = define({"n": wr.count()}, window=wr.session("2 seconds"), emit=wr.Emit())
    function = gap.foreach_batch(str(tmp_path / "state"), clock=ManualClock())

    def batch(df: Any, n: int) -> None:
        function(df, n)
        after.append(spark.sparkContext.getLocalProperty(MOST_BYTES))

    start(spark, feed(), tmp_path, batch, batches(5))
    function.close()
    lines = sorted(line.split() for line in seen.read_text().splitlines())
    said = {commit: {limit for number, _, limit in lines if number == commit} for commit, _, _ in lines}
    limit = spark.conf.get(MOST_BYTES)
    assert plans["as before"] >= 2
    assert said["4"] == said["5"] == {str(2**31 - 1)} != {limit}
    assert set(after) <= {None, limit}
