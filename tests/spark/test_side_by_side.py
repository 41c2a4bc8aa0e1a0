"""Operators of several inputs in one job on Spark: side by side, one commit; messages that a join has lost come back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.filed import opened
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.testing import ManualClock

from .test_joins import ORDERS, SHIPMENTS, by_spark, counted_rows, define, generated, streams

pytestmark = pytest.mark.spark


def values(**changes: Any) -> wr.Aggregate:
    """Aggregate the orders by half minutes."""
    settings: dict[str, Any] = {
        "by": "id", "event_time": "time", "window": wr.tumbling("30 seconds"), "agg": {"value": wr.sum("value")},
        "retention": "1 minute", "watermark": "5 seconds", "name": "values", "input": "orders",
    }  # fmt: skip
    return wr.Aggregate(**{**settings, **changes})


def costs() -> wr.Join:
    """A second join, of the shipments with themselves."""
    each = wr.Input("shipments", event_time="time", watermark="5 seconds")
    return wr.Join(
        left=each,
        right=each,
        on="id",
        within=("0 seconds", "2 seconds"),
        allowed_lateness="0 seconds",
        name="costs",
    )


def panes(rows: list[Any]) -> dict[tuple[int, int], int]:
    """Return the last pane of each window."""
    return {(p.window.start_us, p.key["id"]): p.values["value"] for p in rows}


def test_joins_and_an_aggregate_share_the_inputs_of_one_job(spark: Any, feed: Any, tmp_path: Path) -> None:
    sinks = {"join": wr.sinks.memory(), "values": wr.sinks.memory(), "costs": wr.sinks.memory()}
    query = (
        wr.writeStream([define(), values(), costs()], **streams(spark, feed, tmp_path, 6))
        .sink(sinks)
        .option("checkpointLocation", str(tmp_path / "ckpt"))
        .option("shards", 2)
        .trigger(availableNow=True)
        .start()
    )
    query.drain()
    assert counted_rows(sinks["join"].panes) == by_spark(spark, "inner")
    assert query.lastProgress["counters"]["rows"] == 240, "each row counts once, however many take it"
    orders, shipments = generated(7, 120)
    frames = {
        "orders": spark.createDataFrame(pa.Table.from_pylist(orders, ORDERS)),
        "shipments": spark.createDataFrame(pa.Table.from_pylist(shipments, SHIPMENTS)),
    }
    alone = values(input=None).apply(frames["orders"]).collect()
    wanted = {(int(r["window"]["start"].timestamp()) * 1_000_000, r["id"]): r["value"] for r in alone}
    assert panes(sinks["values"].panes) == wanted
    pairs = costs().apply(shipments=frames["shipments"])
    assert len(sinks["costs"].panes) == pairs.count() > 0


def kept(place: Path) -> dict[Any, Any]:
    messages, logic, ever = {}, define().logic(), ((START_OF_TIME_US, None), (END_OF_TIME_US, None))
    for shard in range(2):
        there = opened(place, shard, [logic])
        for side in (0, 1):
            messages[shard, side] = logic.kept(there.kv, side, *ever, None).table.to_pylist()
        there.close()
    return messages


def test_messages_that_a_join_has_lost_come_back_from_both_sources(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    places = [tmp_path / "job", tmp_path / "twin"]
    sinks = {place: wr.sinks.memory() for place in places}
    inputs = streams(spark, feed, tmp_path, 3)

    def run(place: Path, replay: Any = None) -> None:
        writer = define().writeStream(**inputs).sink(sinks[place]).option("checkpointLocation", str(place))
        writer = writer.option("shards", 2).clock(ManualClock()).trigger(availableNow=True)
        writer = writer.option("heartbeat", "none")  # a run that failed would bring one more commit
        query = (writer if replay is None else writer.replay(replay)).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    for place in places:
        run(place)
    for folder in ("local", "snapshots", "segments"):
        shutil.rmtree(places[0] / "windrow" / folder)
    more = feed("orders", ORDERS)
    more._n = 3
    more.add([{"time": row["time"], "id": row["id"], "value": -1} for row in generated(7, 120)[0][-2:]])

    def both() -> dict[str, Any]:
        return {
            name: spark.read.schema(frame.schema).parquet(str(tmp_path / name))
            for name, frame in inputs.items()
        }

    with pytest.raises(Exception, match=r"messages are lost"):
        run(places[0])
    with pytest.raises(
        Exception, match=r"replay= gave DataFrame: give a bounded DataFrame of each of the inputs"
    ):
        run(places[0], lambda: both()["orders"])
    run(places[0], both)
    run(places[1])
    stores = [kept(place / "windrow") for place in places]
    assert stores[0] == stores[1], "as they were, in their order"
    assert all(len(rows) > 3 for rows in stores[0].values())
    assert counted_rows(sinks[places[0]].panes) == counted_rows(sinks[places[1]].panes)
