"""A silent partition is idle where the broker has nothing newer, and holds the watermark where it has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.deep import usually
from tests.kafka.conftest import Sender
from tests.kafka.test_source_job import counts, row, rows_of
from windrow.checkpoint.records import Intent
from windrow.operators.steps.watermarks import watermark_of
from windrow.testing import ManualClock

US = 1_000_000
#: A partition that is asked for by a wrong name seems to have nothing newer: that it has more is seen of both.
CASES = [("kafka", False), ("kafka", True), ("windrow-kafka", False), ("windrow-kafka", True)]
_, *FEWER = CASES


def test_a_partition_with_unread_records_is_not_idle() -> None:
    marks, seen = {(":t", 0): 25 * US, (":t", 1): 5 * US}, {(":t", 0): 60 * US, (":t", 1): 0}
    job = counts(idle="10 seconds")
    assert watermark_of(job, marks, seen, 61 * US, 0) == (25 * US, {(":t", 1)})
    assert watermark_of(job, marks, seen, 61 * US, 0, {(":t", 1)}) == (5 * US, set())
    assert watermark_of(counts(), marks, seen, 61 * US, 0) == (5 * US, set())


def test_the_inputs_of_a_join_are_asked_each_for_its_own_partitions() -> None:
    join = wr.Join(
        left=wr.Input("l", event_time="t", watermark=wr.bounded("0 seconds", idle="10 seconds")),
        right=wr.Input("r", event_time="t"),
        on="k",
        within=("0 seconds", "10 seconds"),
        retention="1 minute",
    )
    marks = {("l:t", 0): 5 * US, ("l:t", 1): 25 * US, ("r:t", 0): 90 * US}
    seen = {("l:t", 0): 0, ("l:t", 1): 60 * US, ("r:t", 0): 60 * US}
    assert watermark_of(join, marks, seen, 61 * US, 0) == (25 * US, {("l:t", 0)})
    assert watermark_of(join, marks, seen, 61 * US, 0, {("r:t", 0)}) == (25 * US, {("l:t", 0)})
    assert watermark_of(join, marks, seen, 61 * US, 0, {("l:t", 0)}) == (5 * US, set())


def test_control_records_and_aborted_ones_are_nothing_newer(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic(partitions=2)
    source = wr.KafkaSource(kafka)
    sender.transact(topic, ["a"])  # 0, and its end 1
    sender.transact(topic, ["x", "y"], commit=False)  # 2 to 4
    read = {(topic, 0): 1, (topic, 1): 0}
    assert source.newest(read) == {(topic, 0): 5, (topic, 1): 0}
    for _ in range(2):
        assert source.newest(read, silent=[(topic, 0)]) == read
    sender.send(topic, ["b"])
    assert source.newest(read, silent=[(topic, 0)]) == {(topic, 0): 6, (topic, 1): 0}
    assert source.is_empty((topic, 0), 1, 5) and not source.is_empty((topic, 0), 0, 5)


def test_a_topic_that_is_gone_or_was_made_anew_has_nothing_newer(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic()
    sender.send(topic, ["a"])
    former = f"{topic}@DphUeuu6QZWzerm25N4RNA"
    read = {(former, 0): 0, ("no-such-topic", 0): 3, (topic, 0): 0}
    assert wr.KafkaSource(kafka).newest(read) == {**read, (topic, 0): 1}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("form", "more"),
    [
        pytest.param(form, more, id=f"{form}-{'more unread' if more else 'nothing newer'}")
        for form, more in usually(FEWER, deep=CASES)
    ],
)
def test_a_silent_partition_holds_the_watermark_only_where_the_broker_has_more(
    spark: Any,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
    form: str,
    more: bool,
) -> None:
    topic = new_topic(partitions=2)
    clock = ManualClock()
    batch = counts(idle="10 seconds").foreach_batch(
        str(tmp_path), clock=clock, shards=1, source=wr.KafkaSource(kafka)
    )

    def read(number: int, start: dict[str, int], end: dict[str, int]) -> dict[str, Any]:
        """The progress of a batch of these offsets."""
        reader = spark.read.format(form).option("kafka.bootstrap.servers", kafka.servers)
        reader = reader.option("subscribe", topic).option("startingOffsets", json.dumps({topic: start}))
        batch(rows_of(reader.option("endingOffsets", json.dumps({topic: end})).load()), number)
        assert batch.last_progress is not None
        return batch.last_progress

    sender.send_rows(topic, [row(5)], 0)
    sender.send_rows(topic, [row(1)], 1)
    read(0, {"0": 0, "1": 0}, {"0": 1, "1": 1})
    clock.advance("60 seconds")
    sender.send_rows(topic, [row(25)], 0)
    read(1, {"0": 1, "1": 1}, {"0": 2, "1": 1})
    if more:
        sender.send_rows(topic, [row(2), row(3)], 1)
    sender.send_rows(topic, [row(26)], 0)
    clock.advance("1 second")
    progress = read(2, {"0": 2, "1": 1}, {"0": 3, "1": 1})
    [(source, lag)] = progress["lag"].items()
    assert source.split("@")[0] == topic
    assert lag == {"0": 0, "1": 2 if more else 0}
    seconds = 5 if more else 25
    assert progress["eventTime"]["watermark"] == f"1970-01-01T00:00:{seconds:02}+00:00"
    intents = [r for r in map(batch.job.log.read, range(20)) if isinstance(r, Intent)]
    assert intents[-1].idle == (() if more else ((f":{source}", 1),))
    batch.close()
