"""Chains on Spark: the rows of one operator are the messages of the next, in the same commit, on the same shard."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from windrow.core.errors import ConfigurationError, SparkUnsupported

from .conftest import at
from .test_joins import ORDERS, SHIPMENTS, define, generated, streams

pytestmark = pytest.mark.spark


def totals(**changes: Any) -> wr.Aggregate:
    """Shipped value by id and half minute of the order."""
    settings: dict[str, Any] = {
        "by": "id",
        "event_time": "orders_time",
        "window": wr.tumbling("30 seconds"),
        "agg": {"n": wr.count(), "value": wr.sum("value")},
        "retention": "1 minute",
        "name": "totals",
    }
    return wr.Aggregate(**{**settings, **changes})


def by_spark(spark: Any) -> Counter[tuple[Any, ...]]:
    """The same of all rows by Spark SQL."""
    orders, shipments = generated(7, 120)
    spark.createDataFrame(pa.Table.from_pylist(orders, ORDERS)).createOrReplaceTempView("orders")
    spark.createDataFrame(pa.Table.from_pylist(shipments, SHIPMENTS)).createOrReplaceTempView("shipments")
    rows = spark.sql(
        "select o.id, unix_micros(window(o.time, '30 seconds').start), count(*), sum(value) "
        "from orders o left join shipments s on o.id = s.id "
        "and s.time between o.time - interval 10 seconds and o.time + interval 10 seconds "
        "group by o.id, window(o.time, '30 seconds')"
    ).collect()
    return Counter(tuple(row) for row in rows)


def counted_panes(panes: list[wr.Pane]) -> Counter[tuple[Any, ...]]:
    return Counter((p.key["id"], p.window.start_us, p["n"], p["value"]) for p in panes)


@pytest.mark.parametrize("by", usually([("id", "customer")], deep=["id", ("id", "customer")]))
def test_a_join_then_an_aggregate_give_what_spark_sql_gives_over_all_rows(
    spark: Any, feed: Any, tmp_path: Path, by: Any
) -> None:
    """Nothing of a left join is too late for the aggregate, though what has no partner is told long after its time."""
    inputs, inner, results = streams(spark, feed, tmp_path, 6), wr.sinks.memory(), wr.sinks.memory()
    join = define(how="left")
    if by != "id":
        inputs["orders"] = inputs["orders"].selectExpr("*", "id % 3 customer")
        inputs["shipments"] = inputs["shipments"].selectExpr("*", "id % 3 customer")
        join = define(how="left", on=by)
    query = (
        join.then(totals())
        .writeStream(**inputs)
        .sink({"join": inner, "totals": results})
        .option("checkpointLocation", str(tmp_path / "ckpt"))
        .option("shards", 2)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    before = len(results.panes)
    query.drain()
    assert 0 < before < len(results.panes)
    assert counted_panes(results.panes) == by_spark(spark)
    assert {p.timing for p in results.panes} == {"ON_TIME"} and len(inner.panes) > 120
    assert query.lastProgress["counters"] == {"rows": 240}


SECONDS = wr.Aggregate(
    by=("k", "g"),
    event_time="t",
    window=wr.tumbling("1 second"),
    agg={"n": wr.count()},
    watermark="3 seconds",
    retention="1 minute",
    emit=wr.Emit.append(),
    name="seconds",
)
TENS = wr.Aggregate(
    by="k",
    event_time="window_time",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.sum("n"), "seconds": wr.count()},
    retention="1 minute",
    name="tens",
)
READINGS = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("g", pa.int64())])


def readings(i: int) -> list[dict[str, Any]]:
    """Twenty readings of five keys in the ith two seconds, up to two seconds out of order."""
    return [{"t": at(max(0.0, 2 * i + 0.1 * j - j % 3)), "k": "abcde"[j % 5], "g": j % 4} for j in range(20)]


def direct(key: str) -> Counter[tuple[Any, ...]]:
    rows = [r for i in range(10) for r in readings(i)]
    return Counter((r[key], int(r["t"].timestamp()) // 10 * 10_000_000) for r in rows)


def test_an_aggregate_then_a_coarser_one_on_two_shards_count_every_message_once(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    """Shards are by the key that both have, over two runs of the query; a second aggregate shares the input."""
    source, results, others = feed("readings", READINGS), wr.sinks.memory(), wr.sinks.memory()
    beside = wr.Aggregate(
        by="g", event_time="t", window=wr.tumbling("10 seconds"), agg={"n": wr.count()}, retention="1 minute",
        watermark="3 seconds", name="beside",
    )  # fmt: skip
    for run in range(2):
        for i in range(5 * run, 5 * run + 5):
            source.add(readings(i))
        query = (
            wr.writeStream([SECONDS.then(TENS), beside], source.stream(spark))
            .sink({"tens": results, "beside": others})
            .option("checkpointLocation", str(tmp_path / "ckpt"))
            .option("shards", 2)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if run:
            query.drain()
        query.stop()
    assert Counter({(p.key["k"], p.window.start_us): p["n"] for p in results.panes}) == direct("k")
    assert len(results.panes) == 10 and max(p["seconds"] for p in results.panes) > 10
    assert Counter({(p.key["g"], p.window.start_us): p["n"] for p in others.panes}) == direct("g")


def test_a_bounded_chain_gives_the_same_and_has_its_columns_without_rows(spark: Any) -> None:
    rows = [r for i in range(10) for r in readings(i)]
    frame = SECONDS.then(TENS).apply(spark.createDataFrame(pa.Table.from_pylist(rows, READINGS)))
    counts = {(r["k"], int(r["window"]["start"].timestamp()) * 1_000_000): r["n"] for r in frame.collect()}
    assert Counter(counts) == direct("k")
    empty = SECONDS.then(TENS).apply(spark.createDataFrame(READINGS.empty_table()))
    assert empty.schema == frame.schema and empty.count() == 0
    joined = define().then(totals())
    none = joined.apply(
        orders=spark.createDataFrame(ORDERS.empty_table()),
        shipments=spark.createDataFrame(SHIPMENTS.empty_table()),
    )
    assert none.columns == ["window", "id", "n", "value", "pane", "commit"] and none.count() == 0


def test_foreach_batch_of_a_chain_that_runs_again_emits_nothing_twice(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    chain, inputs, sink = (
        define(how="left").then(totals()),
        streams(spark, feed, tmp_path, 3),
        wr.sinks.memory(),
    )
    for _ in range(2):
        function = chain.foreach_batch(str(tmp_path / "windrow"), sink=sink)
        writer = chain.together(**inputs).writeStream.foreachBatch(function)
        query = (
            writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        if _:
            function.input_schema = chain.together(**inputs).schema
            function.drain(spark)
        function.close()
    assert counted_panes(sink.panes) == by_spark(spark)


def test_what_cannot_lie_in_one_shard_or_has_the_wrong_inputs_is_refused(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    frame = spark.createDataFrame(READINGS.empty_table())
    overall = wr.Aggregate(
        event_time="window_time", window=wr.tumbling("10 seconds"), agg={"n": wr.sum("n")}, retention="1 minute",
        name="overall",
    )  # fmt: skip
    with pytest.raises(SparkUnsupported, match=r"'seconds' by \['k', 'g'\], 'overall' by \[\].*shards=1"):
        SECONDS.then(overall).foreach_batch(str(tmp_path / "a"), shards=2)(frame, 0)
    function = SECONDS.then(overall).foreach_batch(str(tmp_path / "b"))
    function(frame, 0)
    assert function.job.shards == 1
    function.close()
    with pytest.raises(ConfigurationError, match=r"'nobody'.*\['seconds', 'tens'\]"):
        SECONDS.then(TENS).foreach_batch(str(tmp_path / "c"), sink={"nobody": wr.sinks.memory()})
    with pytest.raises(ConfigurationError, match=r"'tens' has one input.*one DataFrame"):
        SECONDS.then(TENS).apply(readings=frame)
    with pytest.raises(ConfigurationError, match=r"\['orders', 'shipments'\].*orders=df"):
        define().then(totals()).apply(frame)
