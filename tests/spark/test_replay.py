"""Spark: shards that lost their messages with snapshots and segments get them back from the source."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.filed import messages_of
from windrow.checkpoint.records import ShardResult
from windrow.core.errors import StateError
from windrow.runners.replay import until_none_is_lost
from windrow.runners.task_result import Answer
from windrow.testing.clock import ManualClock

from .conftest import at

pytestmark = pytest.mark.spark


def define(**changes: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.hopping("10 seconds", "5 seconds"),
        "agg": {"n": wr.count(), "mid": wr.median("v")},
        "watermark": "5 seconds",
        "retention": "30 seconds",
        "allowed_lateness": "10 seconds",
        "emit": wr.Emit(late=wr.every_batch, mode="discarding"),
    }
    return wr.Aggregate(**{**settings, **changes})


TUPLES = define(
    window=wr.tuples(3, step=2),
    retention=wr.Retain(windows=3),
    allowed_lateness=None,
    emit=wr.Emit(early=wr.every_batch),
    name="tuples",
)

#: Of the second operator, which keeps rows of the first, all steps are run again.
CHAIN = define(
    window=wr.tumbling("5 seconds"),
    agg={"v": wr.sum("v")},
    emit=wr.Emit.append(),
    allowed_lateness=None,
    name="sums",
).then(define(event_time="window_time", watermark="0 seconds", retention="1 minute", name="medians"))


def rows(first: int, n: int = 12) -> list[dict[str, Any]]:
    """Out of order, and one too late for all of its windows; keys of both shards."""
    made = [{"t": at(i - (i * 7) % 5), "k": "abcde"[i % 5], "v": i} for i in range(first, first + n)]
    if first > 40:
        made.append({"t": at(1), "k": "a", "v": -1})
    return made


def transformed(df: Any) -> Any:
    return df.where("v % 11 <> 3").withColumn("v", df.v * 2)


def run(spark: Any, source: Any, place: Path, definitions: list[wr.Aggregate], replay: Any = None) -> None:
    """All that is there, a file a commit."""
    writer = (
        wr.writeStream(definitions, transformed(source.stream(spark)))
        .sink({d.name: wr.sinks.parquet(str(place / d.name)) for d in definitions})
        .option("checkpointLocation", str(place / "checkpoint"))
        .option("shards", 2)
        .option("heartbeat", "none")  # a run that failed would bring one more commit
        .clock(ManualClock())
        .trigger(availableNow=True)
    )
    query = (writer if replay is None else writer.replay(replay)).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def lose(place: Path) -> None:
    for folder in ("local", "snapshots", "segments"):
        shutil.rmtree(place / "checkpoint" / "windrow" / folder)


@pytest.mark.parametrize(
    ("before", "definitions"),
    [
        # Retention may change meanwhile; what was retained at the time is read.
        ([define()], [define(retention="11 seconds")]),
        ([define(), TUPLES], [define(), TUPLES]),
        ([CHAIN], [CHAIN]),
    ],
    ids=["windows", "two operators", "a chain"],
)
def test_shards_that_lost_their_messages_read_the_source_again(
    before: list[wr.Aggregate], definitions: list[wr.Aggregate], spark: Any, feed: Any, tmp_path: Path
) -> None:
    source = feed()
    files = str(source.path)

    def again() -> Any:
        return transformed(spark.read.schema(source.stream(spark).schema).parquet(files))

    places = [tmp_path / "job", tmp_path / "twin"]
    for n in range(5):
        source.add(rows(12 * n))
    run(spark, source, places[0], before)
    shutil.copytree(*places)
    lose(places[0])
    source.add(rows(60))
    with pytest.raises(Exception, match=r"messages are lost.*[Gg]ive replay="):
        run(spark, source, places[0], definitions)
    asked: list[int] = []
    run(spark, source, places[0], definitions, lambda: asked.append(1) or again())
    run(spark, source, places[1], definitions)
    assert len(asked) == 1
    stores = [messages_of(place / "checkpoint" / "windrow", definitions) for place in places]
    assert stores[0] == stores[1]
    assert all(len(pairs) > 2 for (_, cf), pairs in stores[0].items() if cf.endswith(".messages"))
    for _ in range(2):
        source.add(rows(72))
    for place in places:
        run(spark, source, place, definitions, again)
    for d in definitions:
        panes = [wr.read_panes(str(place / d.name)) for place in places]
        assert [p.drop_columns([c for c in p.column_names if c == "job"]) for p in panes] == 2 * [panes[1]]
        assert len(panes[0]) > 10


def test_a_source_that_has_lost_files_is_refused_and_nothing_is_guessed(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    source = feed()
    for n in range(4):
        source.add(rows(12 * n))
    place = tmp_path / "job"
    run(spark, source, place, [define()])
    lose(place)
    source.add(rows(48))
    schema = source.stream(spark).schema
    with pytest.raises(Exception, match=r"v is missing, the stream has bigint"):
        run(spark, source, place, [define()], lambda: spark.read.parquet(str(source.path)).drop("v"))
    (source.path / "00002.parquet").unlink()
    with pytest.raises(
        Exception, match=r"commit 3 took \d messages of .*00002.parquet.*the source gives 0 of them now"
    ):
        run(
            spark,
            source,
            place,
            [define()],
            lambda: transformed(spark.read.schema(schema).parquet(str(source.path))),
        )


def test_shards_that_an_attempt_finds_lost_come_back_each_once() -> None:
    """An executor may have the store of a shard that others find lost: the next attempt runs elsewhere."""
    by_attempt, asked = [[1], [0], []], list[list[int]]()

    def act() -> list[Answer]:
        lost = by_attempt.pop(0)
        return [Answer(ShardResult(shard=n), lost="lost" if n in lost else None) for n in range(2)]

    assert len(until_none_is_lost(7, act, asked.append)) == 2
    assert asked == [[1], [0]]
    by_attempt[:] = [[1], [0, 1]]
    with pytest.raises(StateError, match=r"commit 7: shards \[1\] have lost their messages again: lost"):
        until_none_is_lost(7, act, asked.append)
