"""Topic, log and Spark's checkpoint that disagree: the table of docs/howto/kafka.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from tests.kafka.conftest import Sender, add_partition, keyed
from windrow.checkpoint import job_admin
from windrow.testing.clock import ManualClock

SECOND = 1_000_000
VALUE = wr.decoders.json({"t": pa.int64(), "k": pa.string()})
COUNTS = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count()},
    retention="1 hour",
    emit=wr.Emit(late=wr.every_batch),
)


def send(sender: Sender, topic: str, n: int = 5, partition: int = 0) -> None:
    sender.send(topic, [json.dumps({"t": i * SECOND, "k": "a"}) for i in range(n)], partition)


class Embedded:
    """A consumer loop that takes what there is."""

    def __init__(self, place: Path) -> None:
        self.place = self.job = place

    def run(self, source: Any, rows: int) -> None:
        """Until the job has counted so many rows, and so many only."""
        COUNTS.run(str(self.place), source, stop=lambda: self.counted() >= rows, tick="20 milliseconds")
        assert self.counted() == rows

    def counted(self) -> int:
        return sum(s.rows for c in job_admin.look(str(self.job)).log.commits() for s in c.steps)


class Spark(Embedded):
    """A query over what is available."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.job, self.checkpoint = place / "windrow", place / "spark"

    def run(self, source: Any, rows: int) -> None:
        writer = COUNTS.writeStream(source).sink(wr.sinks.memory()).clock(ManualClock())
        writer = writer.option("checkpointLocation", str(self.place)).option("shards", 2)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        assert self.counted() == rows


ON_SPARK = pytest.param("spark", marks=pytest.mark.spark)
#: Embedded and on Spark; what both leave to the same code as a rule embedded only.
BOTH = pytest.mark.parametrize("runner", ["embedded", ON_SPARK], indirect=True)
SHARED = pytest.mark.parametrize("runner", usually(["embedded"], deep=["embedded", ON_SPARK]), indirect=True)


@pytest.fixture
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> Embedded:
    if request.param == "embedded":
        return Embedded(tmp_path)
    request.getfixturevalue("spark")
    return Spark(tmp_path)


@pytest.fixture
def on_spark(spark: Any, tmp_path: Path) -> Spark:
    return Spark(tmp_path)


Expire = Callable[[str, int, int], None]


@BOTH
def test_records_that_expired_unread_stop_it_or_are_passed_over(
    runner: Embedded, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, expire: Expire
) -> None:
    topic = new_topic(1)
    send(sender, topic)
    runner.run(wr.sources.kafka(kafka, topic, value=VALUE), 5)
    send(sender, topic)
    expire(topic, 0, 7)
    with pytest.raises(Exception, match=r"2 offsets expired before they were read.*fail_on_data_loss=False"):
        runner.run(wr.sources.kafka(kafka, topic, value=VALUE), 8)
    passing = wr.sources.kafka(kafka, topic, value=VALUE, fail_on_data_loss=False)
    runner.run(passing, 8)
    send(sender, topic)
    runner.run(passing, 13)


@SHARED
def test_records_that_expired_after_they_were_counted_are_not_missed(
    runner: Embedded, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, expire: Expire
) -> None:
    topic = new_topic(1)
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    send(sender, topic)
    runner.run(source, 5)
    expire(topic, 0, 5)
    runner.run(source, 5)
    send(sender, topic)
    runner.run(source, 10)


@SHARED
def test_a_topic_that_is_deleted_stops_it(
    runner: Embedded,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    recreate: Callable[..., None],
) -> None:
    topic = new_topic(1)
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    send(sender, topic)
    runner.run(source, 5)
    recreate(topic)
    with pytest.raises(Exception, match=rf"{topic}.* is deleted.*egin without it at another location"):
        runner.run(source, 5)


@BOTH
def test_a_topic_that_is_made_anew_stops_it_or_is_read_as_another(
    runner: Embedded,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    recreate: Callable[..., None],
) -> None:
    topic = new_topic(1)
    send(sender, topic)
    runner.run(wr.sources.kafka(kafka, topic, value=VALUE), 5)
    recreate(topic, 1)
    send(Sender(kafka), topic, 3)
    with pytest.raises(
        Exception, match=r"deleted and made anew.*as another source, with fail_on_data_loss=False"
    ):
        runner.run(wr.sources.kafka(kafka, topic, value=VALUE), 5)
    runner.run(wr.sources.kafka(kafka, topic, value=VALUE, fail_on_data_loss=False), 8)


@SHARED
def test_partitions_that_are_added_are_read_from_their_beginning(
    runner: Embedded, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic(1)
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    send(sender, topic)
    runner.run(source, 5)
    add_partition(kafka, topic, 2)
    send(Sender(kafka), topic, 3, partition=1)
    runner.run(source, 8)


@SHARED
def test_a_location_that_was_emptied_begins_anew(
    runner: Embedded, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic(1)
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    send(sender, topic)
    runner.run(source, 5)
    shutil.rmtree(runner.place)
    runner.place.mkdir()
    send(sender, topic)
    runner.run(source, 10)


@BOTH
def test_a_log_that_was_deleted_alone_is_never_begun_anew_next_to_what_is_left(
    runner: Embedded, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic(1)
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    send(sender, topic)
    runner.run(source, 5)
    shutil.rmtree(runner.job / "log")
    if isinstance(runner, Spark):
        shutil.rmtree(runner.checkpoint)
    send(sender, topic)
    with pytest.raises(Exception, match="WR207"):
        runner.run(source, 10)


@keyed(False)
def test_a_log_that_is_older_than_sparks_checkpoint_or_lost_is_refused(
    keyed: bool,
    on_spark: Spark,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
) -> None:
    """Otherwise the records between would be left out: also of a partition that has nothing new."""
    topic = new_topic(2)
    source = wr.sources.kafka(kafka, topic, value=VALUE, keyed=keyed)
    send(sender, topic, partition=0)
    send(sender, topic, partition=1)
    on_spark.run(source, 10)
    shutil.copytree(on_spark.job, tmp_path / "backup")
    send(sender, topic, partition=1)
    on_spark.run(source, 15)
    shutil.rmtree(on_spark.job)
    shutil.copytree(tmp_path / "backup", on_spark.job)
    send(sender, topic, partition=0)
    with pytest.raises(
        Exception, match=rf"{topic}-1 up to 10, the log of the job has it up to 5.*delete Spark"
    ):
        on_spark.run(source, 15)
    shutil.rmtree(on_spark.job)
    with pytest.raises(Exception, match=rf"{topic}-0 up to 5, the log of the job has it up to nowhere"):
        on_spark.run(source, 5)
    shutil.rmtree(on_spark.job, ignore_errors=True)
    shutil.copytree(tmp_path / "backup", on_spark.job)
    shutil.rmtree(on_spark.checkpoint)
    on_spark.run(source, 20)


@keyed(True)
def test_a_checkpoint_of_sparks_that_is_older_than_the_log_skips_nothing(
    keyed: bool,
    on_spark: Spark,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
) -> None:
    """Its next batch has the number of one that is committed, and more in it: that is counted, and the rest is not again."""
    topic = new_topic(1)
    source = wr.sources.kafka(kafka, topic, value=VALUE, keyed=keyed)
    send(sender, topic)
    on_spark.run(source, 5)
    shutil.copytree(on_spark.checkpoint, tmp_path / "backup")
    send(sender, topic)
    on_spark.run(source, 10)
    shutil.rmtree(on_spark.checkpoint)
    shutil.copytree(tmp_path / "backup", on_spark.checkpoint)
    send(sender, topic)
    on_spark.run(source, 15)


def test_an_old_checkpoint_of_sparks_wants_records_that_were_counted_and_expired(
    on_spark: Spark,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    expire: Expire,
    tmp_path: Path,
) -> None:
    topic = new_topic(1)
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    send(sender, topic)
    on_spark.run(source, 5)
    shutil.copytree(on_spark.checkpoint, tmp_path / "backup")
    sender.transact(topic, [json.dumps({"t": i * SECOND, "k": "a"}) for i in range(5)])
    on_spark.run(source, 10)
    shutil.rmtree(on_spark.checkpoint)
    shutil.copytree(tmp_path / "backup", on_spark.checkpoint)
    expire(topic, 0, 9)
    on_spark.run(source, 10)
    send(sender, topic)
    on_spark.run(source, 15)


def test_a_checkpoint_of_sparks_that_was_deleted_is_made_anew_from_the_log(
    on_spark: Spark, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic(1)
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    send(sender, topic)
    on_spark.run(source, 5)
    shutil.rmtree(on_spark.checkpoint)
    on_spark.run(source, 5)
    send(sender, topic)
    on_spark.run(source, 10)


def test_a_query_that_ends_in_aborted_and_unreadable_records_continues(
    on_spark: Spark, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    """Spark's checkpoint is past the log, by offsets without a record."""
    topic = new_topic(2)
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    send(sender, topic)
    sender.send(topic, ["}"])
    sender.transact(topic, ["{}", "{}"], commit=False)
    sender.transact(topic, ["{}", "{}"], 1, commit=False)
    on_spark.run(source, 6)
    on_spark.run(source, 6)
    send(sender, topic, partition=1)
    on_spark.run(source, 11)


def test_a_record_from_the_future_is_a_dead_letter_and_makes_no_other_late(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    topic = new_topic(1)
    clock = ManualClock()
    now = clock.now_us()
    times = [now, now + 3600 * SECOND, now + SECOND, now + 20 * SECOND]
    sender.send(topic, [json.dumps({"t": t, "k": "a"}) for t in times])
    counts = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count()},
        retention="1 hour",
        max_ahead="1 minute",
    )
    sink = wr.sinks.memory()
    counts.run(
        str(tmp_path),
        wr.sources.kafka(kafka, topic, value=VALUE),
        sink=sink,
        clock=clock,
        stop=lambda: bool(sink.panes),
        tick="20 milliseconds",
    )
    assert [p.values["n"] for p in sink.panes] == [2]
    with counts.open(str(tmp_path), clock=clock) as op:
        [letter] = op.dead_letters()
        assert op.watermark == now + 20 * SECOND
    assert (letter.reason, letter.position.offset) == ("malformed", 1)
