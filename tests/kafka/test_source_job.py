"""From a topic through a Kafka source of Spark and a job to panes: exactly once, with windrow's source and with Spark's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.deep import usually
from tests.kafka.conftest import Sender
from windrow.connectors.kafka.start_offsets import job_offsets
from windrow.core.errors import OffsetGap, PositionsMissing, SourceLost
from windrow.core.positions import topic_of
from windrow.testing import ManualClock

US = 1_000_000
FORMATS = ["windrow-kafka", "kafka"]


def counts(idle: str | None = None, **more: Any) -> wr.Aggregate:
    return wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "total": wr.sum("v")},
        watermark=wr.bounded("0 seconds", idle=idle),
        retention="1 day",
        **more,
    )


def stream(spark: Any, kafka: wr.Kafka, form: str, topic: str, **options: Any) -> Any:
    """The topic's rows and where they stand."""
    reader = spark.readStream.format(form).option("kafka.bootstrap.servers", kafka.servers)
    for name, value in {"subscribe": topic, "startingOffsets": "earliest", **options}.items():
        reader = reader.option(name, value)
    return rows_of(reader.load())


def rows_of(raw: Any) -> Any:
    from pyspark.sql import functions as F

    parsed = F.from_json(F.col("value").cast("string"), "t bigint, k string, v bigint")
    where = [c for c in ("topic", "partition", "offset", "topicId") if c in raw.columns]
    return raw.select(parsed.alias("row"), *where).select(
        F.timestamp_micros("row.t").alias("t"), "row.k", "row.v", *where
    )


def row(second: int, key: str = "a", value: int = 1) -> dict[str, Any]:
    return {"t": second * US, "k": key, "v": value}


def run(job: wr.Aggregate, frame: Any, folder: Path, *, drain: bool = False, **more: Any) -> Any:
    """Read what there is, fire everything where that is asked for, and stop."""
    writer = job.writeStream(frame).sink(wr.sinks.parquet(str(folder / "out")))
    for name, value in more.items():
        writer = getattr(writer, name)(value)
    query = (
        writer.option("checkpointLocation", str(folder / "ckpt"))
        .option("shards", 2)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None
    if drain:
        query.drain()
    query.stop()
    return query


def panes(folder: Path) -> list[tuple[int, str, int, int]]:
    """(start in seconds, key, n, total) of all inserts that are out; a thing that was sent twice stands here twice."""
    table = wr.read_panes(str(folder / "out"))
    return sorted(
        (int(p["window"]["start"].timestamp()), p["k"], p["n"], p["total"]) for p in table.to_pylist()
    )


@pytest.mark.spark
@pytest.mark.parametrize("form", usually(["windrow-kafka"], deep=FORMATS))
def test_a_topic_becomes_panes_and_a_deleted_spark_checkpoint_repeats_and_loses_nothing(
    spark: Any,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
    form: str,
) -> None:
    topic = new_topic(partitions=2)
    job = counts()
    for partition in (0, 1):
        sender.send_rows(topic, [row(s, "ab"[s % 2], s) for s in range(40)], partition)
    run(job, stream(spark, kafka, form, topic, maxOffsetsPerTrigger=40), tmp_path)
    shutil.rmtree(tmp_path / "ckpt" / "spark")
    for partition in (0, 1):
        sender.send_rows(topic, [row(s, "ab"[s % 2], s) for s in range(40, 60)], partition)
    location = str(tmp_path / "ckpt" / "windrow")
    resume = {"resumeFrom": location}
    if form == "kafka":
        resume = {"startingOffsets": wr.kafka_offsets(location, kafka, topic)}
    query = run(job, stream(spark, kafka, form, topic, **resume), tmp_path, drain=True)
    assert query.recentProgress[0]["numInputRows"] == 40  # what was read before was not read again
    expected = [
        (start, key, 10, 2 * sum(s for s in range(start, start + 10) if "ab"[s % 2] == key))
        for start in range(0, 60, 10)
        for key in "ab"
    ]
    assert panes(tmp_path) == expected


@pytest.mark.spark
@pytest.mark.parametrize("form", usually(["kafka"], deep=FORMATS))
def test_a_query_that_begins_anew_at_the_earliest_offset_counts_nothing_twice(
    spark: Any, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path, form: str
) -> None:
    topic = new_topic()
    sender.send_rows(topic, [row(s) for s in range(20)])
    run(counts(), stream(spark, kafka, form, topic), tmp_path)
    shutil.rmtree(tmp_path / "ckpt" / "spark")
    sender.send_rows(topic, [row(s) for s in range(20, 31)])
    run(counts(), stream(spark, kafka, form, topic), tmp_path, drain=True)
    assert panes(tmp_path) == [(0, "a", 10, 10), (10, "a", 10, 10), (20, "a", 10, 10), (30, "a", 1, 1)]
    [((source, partition), offset)] = job_offsets(str(tmp_path / "ckpt")).items()
    assert (partition, offset) == (0, 31)
    assert topic_of(source)[0] == topic and (topic_of(source)[1] is not None) == (form == "windrow-kafka")


@pytest.mark.spark
def test_one_topic_with_its_id_and_without_is_refused_and_the_remedy_works(
    spark: Any, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    topic = new_topic()
    sender.send_rows(topic, [row(s) for s in range(12)])
    run(counts(), stream(spark, kafka, "kafka", topic), tmp_path)
    shutil.rmtree(tmp_path / "ckpt" / "spark")
    sender.send_rows(topic, [row(s) for s in range(12, 21)])
    resume = {"resumeFrom": str(tmp_path / "ckpt")}
    with pytest.raises(Exception, match=PositionsMissing.code + ".*includeTopicId"):
        run(counts(), stream(spark, kafka, "windrow-kafka", topic, **resume), tmp_path)
    shutil.rmtree(tmp_path / "ckpt" / "spark")
    frame = stream(spark, kafka, "windrow-kafka", topic, includeTopicId="false", **resume)
    run(counts(), frame, tmp_path, drain=True)
    assert panes(tmp_path) == [(0, "a", 10, 10), (10, "a", 10, 10), (20, "a", 1, 1)]


@pytest.mark.spark
@pytest.mark.parametrize("form", FORMATS)
def test_the_ends_of_transactions_are_no_gap_where_the_source_is_asked(
    spark: Any, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path, form: str
) -> None:
    topic = new_topic()
    sender.transact(topic, ['{"t": 1000000, "k": "a", "v": 1}'])
    committed = {"kafka.isolation.level": "read_committed"}
    run(counts(), stream(spark, kafka, form, topic, **committed), tmp_path)
    shutil.rmtree(tmp_path / "ckpt" / "spark")
    sender.transact(topic, ['{"t": 2000000, "k": "a", "v": 5}'], commit=False)
    sender.transact(topic, ['{"t": 3000000, "k": "a", "v": 1}'])
    offsets = {"startingOffsets": wr.kafka_offsets(str(tmp_path / "ckpt"), kafka, topic)}
    with pytest.raises(Exception, match=OffsetGap.code):
        run(counts(), stream(spark, kafka, form, topic, **committed, **offsets), tmp_path)
    shutil.rmtree(tmp_path / "ckpt" / "spark")
    frame = stream(spark, kafka, form, topic, **committed, **offsets)
    run(counts(), frame, tmp_path, drain=True, source=wr.KafkaSource(kafka))
    assert panes(tmp_path) == [(0, "a", 2, 2)]


@pytest.mark.spark
def test_rows_that_a_filter_took_are_no_gap_where_our_source_resumes_the_job(
    spark: Any, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    topic = new_topic()
    location = {"resumeFrom": str(tmp_path / "ckpt")}
    sender.send_rows(topic, [row(1), row(2, value=0)])
    run(counts(), stream(spark, kafka, "windrow-kafka", topic, **location).where("v > 0"), tmp_path)
    shutil.rmtree(tmp_path / "ckpt" / "spark")
    sender.send_rows(topic, [row(3, value=0), row(4)])
    frame = stream(spark, kafka, "windrow-kafka", topic, **location).where("v > 0")
    run(counts(), frame, tmp_path, drain=True)
    assert panes(tmp_path) == [(0, "a", 2, 2)]


@pytest.mark.spark
def test_a_topic_made_anew_is_not_what_the_job_read(
    spark: Any,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    recreate: Callable[..., None],
    sender: Sender,
    tmp_path: Path,
) -> None:
    topic = new_topic()
    sender.send_rows(topic, [row(s) for s in range(5)])
    run(counts(), stream(spark, kafka, "windrow-kafka", topic), tmp_path)
    recreate(topic, 1)
    sender.send_rows(topic, [row(s) for s in range(9)])
    with pytest.raises(SourceLost, match="made anew"):
        wr.kafka_offsets(str(tmp_path / "ckpt"), kafka, topic)
    with pytest.raises(Exception, match=SourceLost.code + ".*made anew"):
        run(counts(), stream(spark, kafka, "windrow-kafka", topic), tmp_path)  # by Spark's checkpoint
    shutil.rmtree(tmp_path / "ckpt" / "spark")
    run(counts(), stream(spark, kafka, "windrow-kafka", topic), tmp_path, drain=True)
    assert panes(tmp_path) == [(0, "a", 14, 14)]


def test_offsets_of_a_job_name_every_partition_and_refuse_what_has_expired(
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    expire: Callable[..., None],
    tmp_path: Path,
) -> None:
    topic = new_topic(partitions=3)
    sender.send(topic, ["x"] * 5, partition=1)
    with counts().open(str(tmp_path), clock=ManualClock()) as op:
        for offset in range(3):
            op.add_message(wr.Message(row(offset), position=wr.Position(topic, 1, offset)))
    assert wr.kafka_offsets(str(tmp_path), kafka, topic) == f'{{"{topic}": {{"0": -2, "1": 3, "2": -2}}}}'
    expire(topic, 1, 4)
    with pytest.raises(SourceLost, match=r"read up to 3.*from 4 on: 1 offsets expired"):
        wr.kafka_offsets(str(tmp_path), kafka, [topic])
    with pytest.raises(SourceLost, match="not on"):
        wr.kafka_offsets(str(tmp_path), kafka, "no-such-topic")


@pytest.mark.spark
def test_all_rows_made_from_one_record_are_kept(
    spark: Any, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    topic = new_topic()
    sender.send_rows(topic, [row(1, value=10), row(2, value=20)])
    job = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "total": wr.sum("v"), "middle": wr.median("v")},
        retention="1 day",
    )
    frame = stream(spark, kafka, "windrow-kafka", topic)
    parts = F.explode(F.array(F.col("v"), F.col("v") + 1, F.col("v") + 2))
    run(job, frame.withColumn("v", parts), tmp_path, drain=True)
    [pane] = wr.read_panes(str(tmp_path / "out")).to_pylist()
    assert (pane["n"], pane["total"], pane["middle"]) == (6, 96, 16.0)
