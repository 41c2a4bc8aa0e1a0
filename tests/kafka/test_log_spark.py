"""Spark with its log in Kafka: shards on executors write, fetch and copy by themselves; the folder is a cache."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.deep import usually
from tests.spark.conftest import at, feed
from windrow.connectors.kafka.log import KafkaLog
from windrow.connectors.kafka.topics import PartitionReader, delete_below
from windrow.testing.clock import ManualClock

__all__ = ["feed"]
pytestmark = pytest.mark.spark

INCREMENTAL = {"n": wr.count(), "s": wr.sum("v")}
FULL_STATE = {"n": wr.count(), "mid": wr.median("v")}


def define(agg: dict[str, Any]) -> wr.Aggregate:
    return wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg=agg,
        watermark="5 seconds",
        retention="1 hour",
        emit=wr.Emit(early=wr.every_batch, late=wr.every_batch),
    )


def rows(first: int) -> list[dict[str, Any]]:
    return [{"t": at(s), "k": "abcde"[s % 5], "v": s} for s in range(first, first + 12)]


def run(spark: Any, source: Any, place: Path, definition: wr.Aggregate, log: KafkaLog | None) -> None:
    """All that is there, a file a commit."""
    writer = (
        definition.writeStream(source.stream(spark))
        .sink(wr.sinks.parquet(str(place / "panes")))
        .option("checkpointLocation", str(place / "checkpoint"))
        .option("shards", 2)
        .clock(ManualClock())
        .trigger(availableNow=True)
    )
    query = (writer if log is None else writer.log(log)).start()
    try:
        query.query.awaitTermination()  # Spark's own: the end of a run is left to the next one
    finally:
        query.stop()


def panes_in(place: Path) -> list[dict[str, Any]]:
    panes = wr.read_panes(str(place / "panes"))
    return sorted(panes.drop_columns(["job"] if "job" in panes.column_names else []).to_pylist(), key=str)


def wipe(place: Path) -> None:
    shutil.rmtree(place / "checkpoint" / "windrow")


@pytest.mark.parametrize("agg", usually([FULL_STATE], deep=[INCREMENTAL, FULL_STATE]))
def test_the_whole_folder_is_deleted_and_the_query_continues(
    spark: Any, feed: Any, tmp_path: Path, log: KafkaLog, agg: dict[str, Any]
) -> None:
    source, places = feed(), (tmp_path / "job", tmp_path / "twin")
    for first in (0, 9, 18):
        source.add(rows(first))
    run(spark, source, places[0], define(agg), log)
    wipe(places[0])
    source.add(rows(20))
    run(spark, source, places[0], define(agg), log)
    run(spark, source, places[1], define(agg), None)
    assert panes_in(places[0]) == panes_in(places[1])
    assert len(panes_in(places[0])) > 10


def test_shards_come_back_from_the_changelog_where_segments_expired(
    spark: Any, feed: Any, tmp_path: Path, log: KafkaLog
) -> None:
    source, places = feed(), (tmp_path / "job", tmp_path / "twin")
    for first in (0, 9, 18):
        source.add(rows(first))
    source.add(rows(20))
    # Each batch takes in the commit before it.
    run(spark, source, places[0], define(INCREMENTAL), log)
    wipe(places[0])
    # What the changelog does not have yet is the last commit.
    topic, last = f"{log.name}-segments", log.log(None).tail().last_commit  # type: ignore[arg-type]
    assert last is not None
    for shard in last.shards:
        first = min(at[0] for at in shard.kept.values())
        assert PartitionReader(log.kafka, topic, shard.shard).bounds()[0] < first
        delete_below(log.kafka.admin(), topic, shard.shard, first)
    source.add(rows(30))
    run(spark, source, places[0], define(INCREMENTAL), log)
    run(spark, source, places[1], define(INCREMENTAL), None)
    assert panes_in(places[0]) == panes_in(places[1])


def test_foreach_batch_takes_a_log_too(spark: Any, feed: Any, tmp_path: Path, log: KafkaLog) -> None:
    source, sink = feed(), wr.sinks.memory()
    for n, first in enumerate((0, 9)):
        source.add(rows(first))
        function = define(INCREMENTAL).foreach_batch(
            str(tmp_path / "state"), sink=sink, clock=ManualClock(), shards=2, log=log
        )
        query = (
            source.stream(spark)
            .writeStream.foreachBatch(function)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        function.close()
        shutil.rmtree(tmp_path / "state")
        assert log.log(None).tail().commit_number == n + 1  # type: ignore[arg-type]
    windows = {f"{p.window} {p.key}": p.values["n"] for p in sink.panes}
    assert sum(windows.values()) == 24
