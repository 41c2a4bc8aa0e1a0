"""Two topics joined on Spark, and what is told of them on a third: exactly once, also when Spark's checkpoint is lost."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.deep import usually
from tests.kafka.conftest import Sender
from tests.kafka.test_sink import committed
from tests.kafka.test_source_job import FORMATS, row, stream

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ORDERS = wr.Input("orders", event_time="t", watermark="5 seconds")
PAYMENTS = wr.Input("payments", event_time="t", watermark="5 seconds")
JOINED = wr.Join(left=ORDERS, right=PAYMENTS, on="k", within=("-7 seconds", "7 seconds"))


def by_hand(seconds: range) -> Counter[tuple[str, int, int]]:
    return Counter(
        (f"key-{o % 5}", o, p) for o in seconds for p in seconds if o % 5 == p % 5 and abs(o - p) <= 7
    )


@pytest.mark.parametrize("form", usually(["windrow-kafka"], deep=FORMATS))
def test_two_topics_join_and_each_pair_comes_once(
    spark: Any,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
    form: str,
) -> None:
    orders, payments, pairs = new_topic(2), new_topic(2), f"t-{uuid.uuid4().hex[:12]}"
    resumes = form == "windrow-kafka"

    def send(seconds: range) -> None:
        for i in seconds:
            sender.send_rows(orders, [row(i, f"key-{i % 5}", i)], partition=i % 2)
            sender.send_rows(payments, [row(i, f"key-{i % 5}", i)], partition=i // 2 % 2)

    def run(*, resume: bool = False, drain: bool = False) -> None:
        more = {"resumeFrom": str(tmp_path / "ckpt")} if resume else {}
        query = (
            JOINED.writeStream(
                orders=stream(spark, kafka, form, orders, **more).withColumnRenamed("v", "order"),
                payments=stream(spark, kafka, form, payments, **more).withColumnRenamed("v", "paid"),
            )
            .sink(wr.sinks.kafka(pairs, kafka))
            .option("checkpointLocation", str(tmp_path / "ckpt"))
            .option("shards", 2)
            .trigger(availableNow=True)
            .start()
        )
        if drain:
            query.drain()
        query.awaitTermination()

    send(range(60))
    run()
    send(range(60, 90))
    shutil.rmtree(tmp_path / "ckpt" / "spark")
    run(resume=resumes)
    send(range(90, 100))
    run(resume=resumes, drain=True)
    emitted = Counter((p["k"], p["order"], p["paid"]) for _, p in committed(kafka, pairs))
    assert emitted == by_hand(range(100)) and len(emitted) > 250
