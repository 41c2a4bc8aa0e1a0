"""`next_offsets(partitions)`: a consumer of the user's is assigned every partition that it has, also those not seen yet."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

import windrow as wr
from windrow.core.errors import InputError
from windrow.testing import ManualClock, SimulatedKafka

COUNTS = wr.Aggregate(
    by="k", event_time="t", window=wr.tumbling("10 seconds"), retention="1 minute", agg={"n": wr.count()}
)  # fmt: skip


def pairs(kept: str = "1 hour") -> wr.Join:
    def side(name: str) -> Any:
        return wr.Input(name, event_time="t")

    return wr.Join(left=side("l"), right=side("r"), on="k", within=("0 s", "5 s"), retention=kept)


def begun(op: Any, *seen: tuple[int, int], topic: str = "orders", input: str | None = None) -> None:
    """The operator has taken the record at each (partition, offset)."""
    for partition, offset in seen:
        op.add_message(wr.Message({"k": "a", "t": 0}, wr.Position(topic, partition, offset)), input)


def assigned(op: Any, *wanted: Any, **options: Any) -> list[tuple[str, int, int]]:
    return [(p.topic, p.partition, p.offset) for p in op.next_offsets(list(wanted), **options)]


def test_partitions_that_were_not_seen_begin_at_their_beginning_or_where_they_say(tmp_path: Path) -> None:
    with COUNTS.open(str(tmp_path), clock=ManualClock()) as op:
        orders = [TopicPartition("orders", n) for n in range(3)]
        assert assigned(op, *orders) == [("orders", n, OFFSET_BEGINNING) for n in range(3)]
        begun(op, (1, 41))
        asked = [*orders, TopicPartition("orders", 3, OFFSET_END), TopicPartition("orders", 4, 7)]
        assert assigned(op, *asked) == [
            ("orders", 0, OFFSET_BEGINNING), ("orders", 1, 42), ("orders", 2, OFFSET_BEGINNING),
            ("orders", 3, OFFSET_END), ("orders", 4, 7),
        ]  # fmt: skip
        assert assigned(op, TopicPartition("orders", 1, OFFSET_END)) == [("orders", 1, 42)]
        assert op.next_offsets() == {("orders", 1): 42}


def test_a_topic_of_two_inputs_is_read_from_where_the_one_that_lags_continues(tmp_path: Path) -> None:
    with pairs().open(str(tmp_path), clock=ManualClock()) as op:
        begun(op, (0, 41), (1, 9), input="l")
        zero, one = TopicPartition("orders", 0), TopicPartition("orders", 1)
        assert assigned(op, zero, one) == [("orders", 0, 42), ("orders", 1, 10)]  # one input has the topic
        begun(op, (0, 6), input="r")
        assert assigned(op, zero, one) == [("orders", 0, 7), ("orders", 1, OFFSET_BEGINNING)]
        assert assigned(op, zero, one, input="l") == [("orders", 0, 42), ("orders", 1, 10)]
        assert assigned(op, TopicPartition("orders", 1, OFFSET_END)) == [("orders", 1, 10)]


def test_what_is_no_partition_of_a_consumer_is_refused_with_what_to_give(tmp_path: Path) -> None:
    with COUNTS.open(str(tmp_path), clock=ManualClock()) as op:
        for assignment in (
            "orders",
            ["orders"],
            [("orders", 0)],
            ("orders", 0),
            [TopicPartition("orders", 0), 1],
            3,
        ):
            with pytest.raises(InputError, match=r"only partitions that messages have come from.*'orders'"):
                op.next_offsets(assignment)  # type: ignore[arg-type]


def test_a_loop_of_ones_own_reads_every_record_once_however_often_it_is_stopped(tmp_path: Path) -> None:
    kafka, draw = SimulatedKafka(), random.Random(7)
    kafka.create_topic("orders", 5)
    producer = kafka.producer()
    for second in range(300):
        at = min(second // 50, draw.randrange(5))  # partitions come to life one after the other
        producer.produce("orders", json.dumps({"k": "ab"[second % 2], "t": 1_000_000}).encode(), partition=at)
    producer.flush()
    while True:
        with COUNTS.open(str(tmp_path), clock=ManualClock()) as op:
            consumer = kafka.consumer()
            numbers = consumer.list_topics("orders").topics["orders"].partitions
            consumer.assign(op.next_offsets([TopicPartition("orders", n) for n in numbers]))
            records = consumer.consume(40)
            op.add_messages(
                [
                    wr.Message(json.loads(r.value()), wr.Position(r.topic(), r.partition(), r.offset()))
                    for r in records
                ]
            )
            if not records:
                op.drain()
                assert sorted(pane["n"] for pane in op.get_result()) == [150, 150]
                return
