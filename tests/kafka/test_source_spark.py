"""Formats windrow-kafka and kafka side by side, in one session."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import windrow as wr
from tests.kafka.conftest import Sender

pytestmark = pytest.mark.spark


def read(spark: Any, kafka: wr.Kafka, form: str, topic: str, **options: Any) -> Any:
    reader = spark.read.format(form).option("kafka.bootstrap.servers", kafka.servers)
    for name, value in {"subscribe": topic, **options}.items():
        reader = reader.option(name, value)
    return reader.load()


def test_both_give_the_same_columns_types_and_rows(
    spark: Any, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic(partitions=2)
    sender.send(topic, ["a", None], 0, key="k", timestamp=1_700_000_000_123)
    sender.send(topic, [b"\xff\x00", ""], 1, headers=[("h", b"1"), ("h", None)])
    same = {"includeHeaders": "true", "startingOffsets": "earliest"}
    theirs = read(spark, kafka, "kafka", topic, **same)
    ours = read(spark, kafka, "windrow-kafka", topic, includeTopicId="false", **same)
    assert ours.schema == theirs.schema
    order = ["partition", "offset"]
    assert ours.orderBy(order).collect() == theirs.orderBy(order).collect()
    with_id = read(spark, kafka, "windrow-kafka", topic, **same)
    assert with_id.columns == [*theirs.columns, "topicId"]


def test_a_stream_is_read_in_batches_of_the_asked_size_and_continues_by_its_checkpoint(
    spark: Any, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Any
) -> None:
    topic = new_topic(partitions=2)
    batches: list[list[str]] = []

    def run() -> Any:
        batches.clear()
        stream = spark.readStream.format("windrow-kafka").option("kafka.bootstrap.servers", kafka.servers)
        stream = stream.option("subscribe", topic).option("startingOffsets", "earliest")
        query = (
            stream.option("maxOffsetsPerTrigger", 4)
            .load()
            .writeStream.foreachBatch(
                lambda df, _: batches.append(sorted(r.value.decode() for r in df.collect()))
            )
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    sender.send(topic, ["a0", "a1", "a2"], 0)
    sender.send(topic, ["b0", "b1", "b2"], 1)
    query = run()
    assert batches == [["a0", "a1", "b0", "b1"], ["a2", "b2"]]
    [progress] = query.recentProgress[0]["sources"]
    newest = (
        json.loads(progress["latestOffset"])
        if isinstance(progress["latestOffset"], str)
        else progress["latestOffset"]
    )
    [told_topic] = newest["topics"].values()
    assert told_topic["next"] == {"0": 3, "1": 3}
    sender.send(topic, ["a3"], 0)
    run()
    assert batches == [["a3"]]


def test_a_bad_option_is_refused_when_the_frame_is_made(spark: Any, kafka: wr.Kafka) -> None:
    with pytest.raises(Exception, match=r"WR100.*did you mean 'startingOffsets'"):
        read(spark, kafka, "windrow-kafka", "t", startingOffset="earliest")
