"""Chains with a join as a later part on Spark: all inputs in one query, one commit, each row on the shard of its key."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from windrow.core.errors import ConfigurationError, SparkUnsupported, UnknownColumn

from .conftest import at
from .test_joins import ORDERS, SHIPMENTS, define, generated

pytestmark = pytest.mark.spark

PAYMENTS = pa.schema([("time", pa.timestamp("us", "UTC")), ("account", pa.int16()), ("paid", pa.int64())])
SCHEMAS = {"orders": ORDERS, "shipments": SHIPMENTS, "payments": PAYMENTS}


def shipped(**changes: Any) -> wr.Join:
    return define(name="shipped", within=("-5 seconds", "5 seconds"), **changes)


def paid(how: str = "inner", **changes: Any) -> wr.Join:
    """Payments know the id under another name, and in another type; rows of orders and shipments stand on the right."""
    settings: dict[str, Any] = {
        "left": wr.Input("payments", event_time="time", watermark="5 seconds"),
        "right": wr.Input("shipped", event_time="orders_time"),
        "on": {"account": "id"},
        "within": ("-8 seconds", "8 seconds"),
        "allowed_lateness": "0 seconds",
        "how": how,
        "name": "paid",
    }
    return wr.Join(**{**settings, **changes})


TOTALS = wr.Aggregate(
    by="account", event_time="time", window=wr.tumbling("30 seconds"),
    agg={"paid": wr.sum("paid")}, retention="1 minute", name="totals",
)  # fmt: skip


def rows() -> dict[str, list[dict[str, Any]]]:
    """A minute of three inputs, out of order by up to four seconds."""
    orders, shipments = generated(7, 120)
    chosen = random.Random(8)
    times = [60 * i / 60 + chosen.uniform(-4, 0) for i in range(60)]
    payments = [
        {"time": at(max(t, 0)), "account": chosen.randrange(20), "paid": i} for i, t in enumerate(times)
    ]
    return {"orders": orders, "shipments": shipments, "payments": payments}


def by_spark(spark: Any, how: str) -> Counter[tuple[Any, ...]]:
    """The same joins of all rows by Spark SQL."""
    for name, part in rows().items():
        table = pa.Table.from_pylist(part, SCHEMAS[name])
        spark.createDataFrame(table).createOrReplaceTempView(name)
    emitted = spark.sql(
        "select p.account, paid, value, cost from payments p "
        f"{how} join (select o.id, o.time, value, cost from orders o join shipments s on o.id = s.id "
        "and s.time between o.time - interval 5 seconds and o.time + interval 5 seconds) s on p.account = s.id "
        "and s.time between p.time - interval 8 seconds and p.time + interval 8 seconds"
    ).collect()
    return Counter(tuple(r) for r in emitted)


def counted_rows(panes: list[Any]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(r[n] for n in ("account", "paid", "value", "cost")) for r in panes)


@pytest.mark.parametrize("how", usually(["left"], deep=["inner", "left"]))
def test_three_streams_join_like_spark_sql_over_all_rows(
    spark: Any, feed: Any, tmp_path: Path, how: str
) -> None:
    """On two shards, over two runs of the query, in a few batches each."""
    feeds = {name: feed(name, schema) for name, schema in SCHEMAS.items()}
    inner, results = wr.sinks.memory(), wr.sinks.memory()
    for run in range(2):
        for name, part in rows().items():
            for i in range(2 * run, 2 * run + 2):
                feeds[name].add(part[i * len(part) // 4 : (i + 1) * len(part) // 4])
        query = (
            shipped()
            .then(paid(how))
            .writeStream(**{name: one.stream(spark) for name, one in feeds.items()})
            .sink({"shipped": inner, "paid": results})
            .option("checkpointLocation", str(tmp_path / "ckpt"))
            .option("shards", 2)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if run:
            query.drain()
            assert query.lastProgress["counters"]["rows"] == 300
        query.stop()
    assert counted_rows(results.panes) == by_spark(spark, how) and len(results.panes) > 50
    assert {p.commit for p in results.panes} & {p.commit for p in inner.panes}
    assert not [n for n in query.lastProgress["counters"] if n.startswith("dead")]


def test_a_bounded_chain_of_joins_and_an_aggregate_gives_the_same(spark: Any) -> None:
    frames = {n: spark.createDataFrame(pa.Table.from_pylist(r, SCHEMAS[n])) for n, r in rows().items()}
    frame = shipped().then(paid()).apply(**frames)
    assert counted_rows([r.asDict() for r in frame.collect()]) == by_spark(spark, "inner")
    sums = Counter[int]()
    for (account, paid_, _, _), n in by_spark(spark, "inner").items():
        sums[account] += n * paid_
    totals = Counter[int]()
    for r in shipped().then(paid()).then(TOTALS).apply(**frames).collect():
        totals[r["account"]] += r["paid"]
    assert totals == sums
    empty = {n: spark.createDataFrame(s.empty_table()) for n, s in SCHEMAS.items()}
    none = shipped().then(paid()).apply(**empty)
    assert none.columns == frame.columns and none.schema == frame.schema and none.count() == 0


def test_readings_summed_then_joined_with_a_table_stay_in_one_commit(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    """An aggregate begins: its input has its name. `foreach_batch` runs twice and tells nothing twice."""
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string())])
    seconds = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("1 second"), agg={"n": wr.count()}, watermark="1 second",
        retention="1 minute", emit=wr.Emit.append(), name="seconds",
    )  # fmt: skip
    limits = wr.Join(
        left=wr.Input("seconds", event_time="window_time"),
        right=wr.Input("limits", event_time="since", static=True),
        on="k", within=("-1 day", "0 seconds"), name="limited", where=wr.col("n") > wr.col("most"),
    )  # fmt: skip
    source, sink = feed("readings", schema), wr.sinks.memory()
    for i in range(4):
        source.add([{"t": at(5 * i + j / 10), "k": "abc"[j % 3] if j > 5 else "a"} for j in range(50)])
    table = pa.table({"k": ["a", "b", "c"], "since": [at(0)] * 3, "most": [3, 100, 100]})
    chain = seconds.then(limits)
    frames = {"seconds": source.stream(spark), "limits": spark.createDataFrame(table)}
    for run in range(2):
        function = chain.foreach_batch(
            str(tmp_path / "windrow"), sink=sink, static={"limits": frames["limits"]}, shards=2
        )
        writer = chain.together(**frames).writeStream.foreachBatch(function)
        writer = writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(availableNow=True)
        writer.start().awaitTermination()
        if not run:
            assert function.last_progress["eventTime"]["watermark"] > "1970", (
                "without positions it moves, too"
            )
        else:
            function.input_schema = chain.together(**frames).schema
            function.drain(spark)
        function.close()
    wanted = Counter(5 * i + j // 10 for i in range(4) for j in range(50) if j <= 5 or j % 3 == 0)
    assert {int(r["window_start"].timestamp()): r["n"] for r in sink.panes} == {
        s: n for s, n in wanted.items() if n > 3
    }
    assert len(sink.panes) == len({r["window_start"] for r in sink.panes}) > 5


def test_what_cannot_lie_in_one_shard_or_lacks_a_column_is_refused(spark: Any, tmp_path: Path) -> None:
    frames = {n: spark.createDataFrame(s.empty_table()) for n, s in SCHEMAS.items()}
    by_value = shipped().then(paid(on={"paid": "value"}))
    stream = by_value.together(**frames)
    with pytest.raises(SparkUnsupported, match=r"'shipped' by \['id'\], 'paid' by \['paid'\].*shards=1"):
        by_value.foreach_batch(str(tmp_path / "a"), shards=2)(stream, 0)
    function = by_value.foreach_batch(str(tmp_path / "b"))
    function(stream, 0)
    assert function.job.shards == 1
    function.close()
    with pytest.raises(SparkUnsupported, match=r"'paid' needs one shard, not 2.*no keys.*shards=1"):
        shipped().then(paid(on=())).foreach_batch(str(tmp_path / "c"), shards=2)
    with pytest.raises(UnknownColumn, match=r"'price' of input 'shipped' of 'paid'.*'orders_time'"):
        shipped().then(paid(on={"account": "price"})).apply(**frames)
    with pytest.raises(UnknownColumn, match=r"'account' of input 'payments'"):
        shipped().then(paid()).apply(**{**frames, "payments": frames["orders"]})
    with pytest.raises(ConfigurationError, match=r"\['orders', 'shipments', 'payments'\].*payments=df"):
        shipped().then(paid()).apply(orders=frames["orders"])
    with pytest.raises(ConfigurationError, match=r"'paid'.*\['orders', 'shipments', 'payments'\].*orders=df"):
        shipped().then(paid()).apply(frames["orders"])
    for definition in (shipped(), shipped().then(paid())):
        with pytest.raises(ConfigurationError, match=r"'totals' does not say which.*input='orders'"):
            wr.foreach_batch([definition, TOTALS], str(tmp_path / "d"))
