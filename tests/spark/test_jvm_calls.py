"""Few calls into the JVM: what they make is what Spark's own verbs make, and a batch takes no more of them than it did."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.clientserver import JavaClient
from py4j.protocol import Py4JError
from pyspark.sql import functions as F

import windrow as wr
from windrow.runners import tasks
from windrow.runners.spark import jvm_calls, routes, session
from windrow.runners.spark.session import Tagged

from .batches import ROWS, define, embedded, plain, run, same
from .conftest import at

pytestmark = pytest.mark.spark


def frame(spark: Any) -> Any:
    return spark.createDataFrame([(i % 3, f"v{i}", i) for i in range(10)], "`a.b` int, `c``d` string, n int")


def collected(df: Any) -> list[Any]:
    return sorted(map(tuple, df.collect()))


def test_columns_of_text_are_those_of_spark_s_own_verbs_on_any_frame(spark: Any) -> None:
    df = frame(spark)
    picked = ("`a.b` + 1 as `x.y`", "*", "`c``d`")
    assert collected(jvm_calls.select(df, *picked)) == collected(df.selectExpr(*picked))
    assert jvm_calls.select(df, *picked).schema == df.selectExpr(*picked).schema
    another = df.withColumn("n", F.lit(7.5))  # another column of the name, and another type
    assert collected(jvm_calls.select(another, "n", "`a.b`")) == collected(another.selectExpr("n", "`a.b`"))
    assert collected(jvm_calls.select(df, "n", "`a.b`")) == collected(df.selectExpr("n", "`a.b`"))
    by, aggregates = ["`a.b` % 2 as odd", "'x' as x"], ["count(1) as n", "max(n) as hi"]
    theirs = df.groupBy(*map(F.expr, by)).agg(*map(F.expr, aggregates))
    assert collected(jvm_calls.grouped(df, by, aggregates)) == collected(theirs)
    assert collected(jvm_calls.grouped(df, by, aggregates[:1])) == collected(theirs.drop("hi"))
    parts = jvm_calls.repartitioned(df, 4, "`a.b`").select("`a.b`", F.spark_partition_id())
    assert all(key == partition for key, partition in collected(parts)) and parts.rdd.getNumPartitions() == 4


def test_groups_of_each_partition_need_no_shuffle(spark: Any) -> None:
    rows = spark.sparkContext.parallelize([(i % 2, i) for i in range(12)], 3).toDF(["k", "n"])
    df = rows.where("n > 0").select("n", "k", F.lit("x").alias("a.b"))
    each = jvm_calls.each_partition(df, 3)
    assert each is not None and collected(each) == collected(df) and each.schema == df.schema
    groups = jvm_calls.grouped(each, ["k as k"], ["count(1) as n", "sum(n) as s"])
    plan = groups._jdf.queryExecution().executedPlan().toString()
    assert "HashAggregate" in plan and "Exchange" not in plan
    assert collected(groups) == [(0, 1, 2), (0, 2, 10), (0, 2, 18), (1, 2, 4), (1, 2, 12), (1, 2, 20)]
    assert collected(jvm_calls.repartitioned(groups, 2, "cast(k as int)")) == collected(groups)
    plain = df.select("n", "k")
    passed = jvm_calls.each_partition(plain.mapInArrow(lambda batches: batches, plain.schema), 3)
    assert passed is not None
    again = jvm_calls.grouped(passed, ["k as k"], ["count(1) as n", "sum(n) as s"])
    assert "Exchange" not in again._jdf.queryExecution().executedPlan().toString() and collected(
        again
    ) == collected(groups)
    assert jvm_calls.each_partition(df, 2) is None, "more partitions than may be grouped by themselves"
    for other in (df.union(df), df.distinct(), spark.range(3), df.join(df.select("n"), "n")):
        assert jvm_calls.each_partition(other, None) is None, (
            "of these Spark has to know where their rows are"
        )
    cached = df.select("n").cache()
    assert jvm_calls.each_partition(cached.where("n > 1"), 3) is None, (
        "read past its cache it may be other rows"
    )
    cached.unpersist()
    assert jvm_calls.each_partition(cached.where("n > 1"), 3) is not None


def test_lists_of_columns_are_let_go_of(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm_calls, "KEPT", 2)
    df = frame(spark)
    for n in (1, 2, 3, 1):
        assert jvm_calls.select(df, f"{n} as one").first()[0] == n
    assert len(jvm_calls.known(df)._columns) == 2


@pytest.mark.parametrize("how", ["inline", "large", "with a broadcast"])
def test_a_function_is_sent_to_tasks_with_all_that_it_holds(
    spark: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    held = spark.sparkContext.broadcast(5) if how == "with a broadcast" else None
    if how == "large":
        monkeypatch.setattr(jvm_calls, "INLINE_BYTES", 10)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [row for batch in batches for row in batch.to_pylist()]
        shown = f"{sorted(rows[0])} {os.environ['WINDROW_CALLS']} {0 if held is None else held.value}"
        yield pa.record_batch(
            [pa.array([len(rows)], pa.int32()), pa.array([shown.encode()])], ["shard", "payload"]
        )

    df = spark.range(7).selectExpr("id", "'x' as `a``b`").coalesce(1)
    for value in ("first", "second"):  # what every function goes with may change
        monkeypatch.setitem(spark.sparkContext.environment, "WINDROW_CALLS", value)
        [row] = (
            jvm_calls.mapped(df, ["id", "`a``b`"], count, routes.ANSWER).collect()
            if how == "inline"
            else (
                jvm_calls.mapped(
                    df.withColumnRenamed("a`b", "b"), ["id", "b"], count, routes.ANSWER
                ).collect()
            )
        )
        name = "a`b" if how == "inline" else "b"
        assert (row["shard"], bytes(row["payload"]).decode()) == (
            7,
            f"{sorted(['id', name])} {value} {5 if held is not None else 0}",
        )


def test_a_stage_that_ran_twice_is_reported(spark: Any, tmp_path: Path) -> None:
    """Files of a shuffle go while it is read: Spark makes them again, by a second attempt of the stage before. The same action
    runs once more: the jobs of its first run count no more.
    """
    folders = spark.range(1).rdd.map(lambda _: os.environ["SPARK_LOCAL_DIRS"]).first().split(",")
    gone = str(tmp_path / "gone")

    def lose(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.column(0)[0].as_py() % 8 == 0 and not os.path.exists(gone):
                open(gone, "x").close()
                for folder in folders:
                    for path in Path(folder).rglob("shuffle_*"):
                        path.unlink()
            yield batch

    for function, expected in ((lambda batches: batches, False), (lose, True), (lose, False)):
        df = spark.range(80).selectExpr("id", "cast(id % 8 as int) as part").repartitionById(8, F.col("part"))
        with Tagged(spark, "test") as tagged:
            rows = df.sortWithinPartitions("id").mapInArrow(function, "id long, part int").collect()
        assert sorted(r["id"] for r in rows) == list(range(80))
        assert tagged.second_attempts() is expected


def test_a_batch_makes_few_calls(
    spark: Any, feed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written with Spark's own methods, a batch made 220 calls."""
    made, inside = [0], [False]
    send = JavaClient.send_command

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        made[0] += inside[0]
        return send(self, *arguments, **named)

    monkeypatch.setattr(JavaClient, "send_command", counted)
    counts = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "s": wr.sum("v")},
        retention="1 hour",
    )
    function = counts.foreach_batch(str(tmp_path / "state"), sink=wr.sinks.memory())
    each: list[int] = []

    def batch(df: Any, number: int) -> None:
        made[0], inside[0] = 0, True
        function(df, number)
        inside[0] = False
        each.append(made[0])

    source = feed()
    for i in range(4):
        source.add([{"t": at(20 * i), "k": "a", "v": i}])
    query = source.stream(spark).writeStream.foreachBatch(batch).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    function.close()
    assert each[-1] < 100, each


def test_a_worker_s_first_task_settles_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's workers collect garbage after each task."""
    plan: Any = None
    monkeypatch.setattr(tasks, "run", lambda plan, batches, expected, kept: iter(batches))
    monkeypatch.setattr(session, "_settled", set())
    gc.unfreeze()
    try:
        arriving = iter([pa.record_batch([pa.array([1])], ["a"])])
        assert len(list(session.run_on_partition(plan, arriving))) == 1
        frozen = gc.get_freeze_count()
        assert frozen > 10_000
        kept = [[n] for n in range(100)]
        list(session.run_on_partition(plan, iter([])))
        assert gc.get_freeze_count() <= frozen and len(kept) == 100
    finally:
        gc.unfreeze()


def test_without_spark_s_internals_batches_come_to_the_same(
    spark: Any, feed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The public API is chosen where the startup check fails, or where a setting leaves the internals alone."""
    assert jvm_calls.known(spark) is not None
    jvm_calls._of_contexts.pop(spark.sparkContext)

    def missing(*_: object) -> None:
        raise Py4JError("no such constructor")

    monkeypatch.setattr(jvm_calls._Known, "placed", missing)
    try:
        assert jvm_calls.known(spark) is None
        definition = define()
        assert same(plain(run(spark, feed(), tmp_path, definition, ROWS)), embedded(definition, ROWS))
    finally:
        jvm_calls._of_contexts.pop(spark.sparkContext)


@pytest.mark.parametrize(
    "settings, long",
    [
        ({}, []),
        ({"spark.locality.wait": "10s"}, []),
        ({"spark.locality.wait": "60s"}, ["process", "node", "rack"]),
        (
            {"spark.locality.wait": "1m", "spark.locality.wait.node": "0s", "spark.locality.wait.rack": "0"},
            ["process"],
        ),
        ({"spark.locality.wait.process": "90000"}, ["process"]),
    ],
)
def test_settings_under_which_a_lost_executor_holds_a_commit_up_are_warned_of(
    spark: Any, caplog: pytest.LogCaptureFixture, settings: dict[str, str], long: list[str]
) -> None:
    conf = spark._jvm.org.apache.spark.SparkConf(False)
    for name, value in settings.items():
        conf.set(name, value)
    session.check_waits(conf)
    said = "".join(record.getMessage() for record in caplog.records)
    assert [
        level for level in ("process", "node", "rack") if f"spark.locality.wait.{level}='" in said
    ] == long
