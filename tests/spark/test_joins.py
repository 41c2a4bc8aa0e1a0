"""Joins on Spark: two streams through one `foreachBatch`, one commit for both, the rows of Spark's own join."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from windrow.core.errors import BadWatermark, ConfigurationError, SparkUnsupported, UnknownColumn

from .conftest import at

pytestmark = pytest.mark.spark

ORDERS = pa.schema([("time", pa.timestamp("us", "UTC")), ("id", pa.int64()), ("value", pa.int64())])
SHIPMENTS = pa.schema([("time", pa.timestamp("us", "UTC")), ("id", pa.int32()), ("cost", pa.float64())])


def define(**changes: Any) -> wr.Join:
    settings: dict[str, Any] = {
        "left": wr.Input("orders", event_time="time", watermark="5 seconds"),
        "right": wr.Input("shipments", event_time="time", watermark="5 seconds"),
        "on": "id",
        "within": ("-10 seconds", "10 seconds"),
        "allowed_lateness": "0 seconds",
    }
    return wr.Join(**{**settings, **changes})


def generated(seed: int, n: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of both inputs over a minute, out of order by up to four seconds."""
    chosen = random.Random(seed)

    def side(column: str) -> list[dict[str, Any]]:
        made = [(60 * i / n + chosen.uniform(-4, 0), i) for i in range(n)]
        return [{"time": at(max(s, 0)), "id": chosen.randrange(20), column: i} for s, i in made]

    return side("value"), side("cost")


def streams(
    spark: Any, feed: Any, tmp_path: Path, pieces: int, seed: int = 7, n: int = 120
) -> dict[str, Any]:
    orders, shipments = generated(seed, n)
    feeds = {"orders": feed("orders", ORDERS), "shipments": feed("shipments", SHIPMENTS)}
    for name, rows in (("orders", orders), ("shipments", shipments)):
        for i in range(pieces):
            feeds[name].add(rows[i * n // pieces : (i + 1) * n // pieces])
    return {name: one.stream(spark) for name, one in feeds.items()}


def counted_rows(rows: list[Any]) -> Counter[tuple[Any, ...]]:
    names = ("id", "orders_time", "value", "shipments_time", "cost")
    return Counter(tuple(row[n] for n in names) for row in rows)


def by_spark(spark: Any, how: str, seed: int = 7, n: int = 120) -> Counter[tuple[Any, ...]]:
    """The same join of all rows by Spark SQL."""
    orders, shipments = generated(seed, n)
    spark.createDataFrame(pa.Table.from_pylist(orders, ORDERS)).createOrReplaceTempView("orders")
    spark.createDataFrame(pa.Table.from_pylist(shipments, SHIPMENTS)).createOrReplaceTempView("shipments")
    rows = spark.sql(
        "select coalesce(o.id, s.id) id, o.time orders_time, value, s.time shipments_time, cost "
        f"from orders o {how} join shipments s on o.id = s.id "
        "and s.time between o.time - interval 10 seconds and o.time + interval 10 seconds"
    ).collect()
    utc = [
        {n: r[n].astimezone(at(0).tzinfo) if n.endswith("time") and r[n] else r[n] for n in r.asDict()}
        for r in rows
    ]
    return counted_rows(utc)


def embedded(join: wr.Join, tmp_path: Path) -> Counter[tuple[Any, ...]]:
    """The same join of all rows without Spark."""
    orders, shipments = generated(7, 120)
    with join.open(str(tmp_path / "embedded")) as op:
        op.add_messages({"orders": orders, "shipments": shipments})
        op.drain()
        rows = op.get_result()
    assert {row["cost"] is None for row in rows} == {row["value"] is None for row in rows} == {True, False}
    return counted_rows(rows)


def test_two_streams_join_like_spark_sql_over_all_rows(spark: Any, feed: Any, tmp_path: Path) -> None:
    """Three ways side by side."""
    joins = [define(how=how, name=how) for how in ("inner", "left", "full")]
    common = {"within": None, "window": wr.session("2 seconds"), "retention": "1 minute"}
    in_sessions = define(how="full", name="sessions", **common)
    own = wr.Input(
        "orders", event_time="time", watermark="5 seconds", window=wr.session(wr.col("id") * 300_000)
    )
    kept = {"within": None, "retention": wr.Retain("1 minute", windows=1_000)}
    of_own_gaps = define(left=own, how="full", name="own_gaps", **kept)
    sessions = (in_sessions, of_own_gaps)
    sinks = {join.name: wr.sinks.memory() for join in (*joins, *sessions)}
    query = (
        wr.writeStream([*joins, *sessions], **streams(spark, feed, tmp_path, 6))
        .sink(sinks)
        .option("checkpointLocation", str(tmp_path / "ckpt"))
        .option("shards", 2)
        .trigger(availableNow=True)
        .start()
    )
    query.drain()
    for join in joins:
        panes = sinks[join.name].panes
        assert counted_rows(panes) == by_spark(spark, join.how) and len(panes) > 100
    for join in sessions:
        assert counted_rows(sinks[join.name].panes) == embedded(join, tmp_path / join.name)
    assert query.lastProgress["counters"]["rows"] == 240


def test_a_bounded_join_gives_the_same_rows(spark: Any) -> None:
    orders, shipments = generated(7, 120)
    frame = define(how="full").apply(
        orders=spark.createDataFrame(pa.Table.from_pylist(orders, ORDERS)),
        shipments=spark.createDataFrame(pa.Table.from_pylist(shipments, SHIPMENTS)),
    )
    rows = [r.asDict() for r in frame.collect()]
    utc = [
        {k: v.astimezone(at(0).tzinfo) if k.endswith("time") and v else v for k, v in r.items()} for r in rows
    ]
    assert counted_rows(utc) == by_spark(spark, "full")


def test_a_bounded_join_without_rows_has_its_columns(spark: Any) -> None:
    empty = {
        "orders": spark.createDataFrame(ORDERS.empty_table()),
        "shipments": spark.createDataFrame(SHIPMENTS.empty_table()),
    }
    frame = define().apply(empty)
    assert frame.columns == ["id", "orders_time", "value", "shipments_time", "cost", "pane", "commit"]
    assert frame.count() == 0


def test_foreach_batch_takes_both_inputs_as_one_stream_and_a_second_run_emits_nothing_twice(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    inputs, sink = streams(spark, feed, tmp_path, 3), wr.sinks.memory()
    for _ in range(2):
        function = define().foreach_batch(str(tmp_path / "windrow"), sink=sink, shards=2)
        query = (
            define()
            .together(**inputs)
            .writeStream.foreachBatch(function)
            .option("checkpointLocation", str(tmp_path / "spark"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        function.close()
    assert counted_rows(sink.panes) == by_spark(spark, "inner")


def test_a_deleted_spark_checkpoint_counts_no_row_of_either_input_twice(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    inputs, sink = streams(spark, feed, tmp_path, 3), wr.sinks.memory()
    for run in range(2):
        query = (
            define()
            .writeStream(**inputs)
            .sink(sink)
            .option("checkpointLocation", str(tmp_path / "ckpt"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        query.stop()
        if run == 0:
            import shutil

            shutil.rmtree(tmp_path / "ckpt" / "spark")
    assert counted_rows(sink.panes) == by_spark(spark, "inner")


def test_a_stream_joins_itself(spark: Any, feed: Any, tmp_path: Path) -> None:
    source = feed("orders", ORDERS)
    source.add([{"time": at(s), "id": 1, "value": s} for s in (1, 4, 9)])
    orders = wr.Input("orders", event_time="time")
    pairs = wr.Join(left=orders, right=orders, on="id", within=("1 second", "5 seconds"))
    sink = wr.sinks.memory()
    query = pairs.writeStream(orders=source.stream(spark)).sink(sink)
    query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().drain()
    assert sorted((r["left_value"], r["right_value"]) for r in sink.panes) == [(1, 4), (4, 9)]


def test_the_watermark_is_the_least_of_both_inputs(spark: Any, feed: Any, tmp_path: Path) -> None:
    orders, shipments = feed("orders", ORDERS), feed("shipments", SHIPMENTS)
    orders.add([{"time": at(100), "id": 1, "value": 1}])
    shipments.add([{"time": at(40), "id": 2, "cost": 1.0}])
    orders.add([{"time": at(101), "id": 1, "value": 1}])
    shipments.add([{"time": at(41), "id": 2, "cost": 1.0}])
    query = (
        define()
        .writeStream(orders=orders.stream(spark), shipments=shipments.stream(spark))
        .sink({})
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.lastProgress["eventTime"]["watermark"] == (at(41) - timedelta(seconds=5)).isoformat()
    query.stop()


def test_with_watermark_on_an_input_is_honoured_and_a_contradiction_refused(spark: Any, feed: Any) -> None:
    orders, shipments = feed("orders", ORDERS), feed("shipments", SHIPMENTS)
    marked = orders.stream(spark).withWatermark("time", "7 seconds")
    plain = define(left=wr.Input("orders", event_time="time"))
    writer = plain.writeStream(orders=marked, shipments=shipments.stream(spark))
    assert writer._definitions[0].left.watermark == wr.bounded("7 seconds")
    with pytest.raises(BadWatermark, match=r"'7 seconds'.*'5 seconds'"):
        define().writeStream(orders=marked, shipments=shipments.stream(spark))


def test_what_cannot_work_is_refused_before_it_runs(spark: Any, feed: Any, tmp_path: Path) -> None:
    orders, shipments = feed("orders", ORDERS).stream(spark), feed("shipments", SHIPMENTS).stream(spark)
    with pytest.raises(ConfigurationError, match=r"\['orders', 'shipments'\].*\['orders'\]"):
        define().writeStream(orders=orders)
    with pytest.raises(UnknownColumn, match="'id' of input 'shipments'"):
        define().writeStream(orders=orders, shipments=shipments.drop("id"))
    with pytest.raises(ConfigurationError, match="bounded"):
        empty = spark.createDataFrame(ORDERS.empty_table())
        define().writeStream(orders=empty, shipments=empty)
    with pytest.raises(SparkUnsupported, match=r"no keys.*shards=1"):
        define(on=()).foreach_batch(str(tmp_path / "w"), shards=2)
    named = define(left=wr.Input("orders", event_time="time", positions=wr.positions("value")))
    with pytest.raises(ConfigurationError, match="different kinds"):
        named.writeStream(orders=orders, shipments=shipments)
    with pytest.raises(UnknownColumn, match=r"__input.*together"):
        define().foreach_batch(str(tmp_path / "w"))(spark.createDataFrame(ORDERS.empty_table()), 0)


@pytest.mark.parametrize("how", usually(["left"], deep=["inner", "left"]))
def test_a_stream_joins_a_static_frame_and_is_not_held_back_by_it(
    spark: Any, feed: Any, tmp_path: Path, how: str
) -> None:
    orders, shipments = generated(7, 120)
    source, sink = feed("orders", ORDERS), wr.sinks.memory()
    for i in range(4):
        source.add(orders[i * 30 : (i + 1) * 30])
    static = wr.Input("shipments", event_time="time", static=True)
    for _ in range(2):  # the second run finds nothing new, and does not take in the static frame again
        query = (
            define(how=how, right=static)
            .writeStream(
                orders=source.stream(spark),
                shipments=spark.createDataFrame(pa.Table.from_pylist(shipments, SHIPMENTS)),
            )
            .sink(sink)
            .option("checkpointLocation", str(tmp_path / "ckpt"))
            .option("shards", 2)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert len(sink.panes) > 50  # before the end of time
        query.drain()
    assert counted_rows(sink.panes) == by_spark(spark, how)


def test_a_bounded_frame_next_to_a_stream_must_be_declared_static(spark: Any, feed: Any) -> None:
    shipments = spark.createDataFrame(SHIPMENTS.empty_table())
    with pytest.raises(ConfigurationError, match=r"'shipments' is bounded.*static=True"):
        define().writeStream(orders=feed("orders", ORDERS).stream(spark), shipments=shipments)


def test_a_dead_letter_names_its_input_and_the_file_that_it_came_from(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    orders, shipments = feed("orders", ORDERS), feed("shipments", SHIPMENTS)
    orders.add([{"time": at(1), "id": 1, "value": 1}])
    shipments.add([{"time": None, "id": 2, "cost": 1.0}])
    kept = wr.sinks.parquet(str(tmp_path / "dead"))
    query = (
        define()
        .writeStream(orders=orders.stream(spark), shipments=shipments.stream(spark))
        .sink({})
        .deadLetters(kept)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.drain()
    [letter] = wr.read_panes(kept.path).to_pylist()
    assert (letter["reason"], letter["input"], letter["offset"]) == ("malformed", "shipments", 0)
    assert letter["source"].endswith(".parquet") and not letter["source"].startswith("shipments:")
