"""Delays of flights, topic to topic, exactly once: flights in, hourly windows out, on Spark or alone.

Sends the flights of some months to a topic, keyed by airport and carrier, runs the job until nothing is left, reads the panes
as any consumer would, and compares the last pane of each window with pandas. Run again, it sends and counts nothing.

    python examples/kafka_delays.py --servers localhost:9092          # on Spark; in a cluster: SPARK_MASTER
    python examples/kafka_delays.py --servers localhost:9092 --alone  # a consumer loop, without Spark

Exit code 1: something was not equal.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import flights_data as data
import pandas as pd
import pyarrow as pa
import structlog
from confluent_kafka import Consumer, Producer, TopicPartition

import windrow as wr

DELAYS = wr.Aggregate(
    by=("origin", "carrier"),
    event_time="departure",
    window=wr.tumbling("1 hour"),
    agg={"flights": wr.count(), "delay": wr.avg("dep_delay")},
    watermark="2 hours",
    retention="2 days",
    emit=wr.Emit(late=wr.every_batch),
)
FLIGHT = wr.decoders.json(
    {
        "origin": pa.string(),
        "carrier": pa.string(),
        "departure": pa.timestamp("us", "UTC"),
        "dep_delay": pa.float64(),
    }
)
PARTITIONS = 4


def send(kafka: wr.Kafka, topic: str, frame: pd.DataFrame) -> int:
    """Send the flights, unless the topic has them; returns how many were sent."""
    if not kafka.create_topic(topic, PARTITIONS):
        return 0
    producer = Producer(kafka.settings(partitioner="murmur2_random", linger_ms=50))
    rows = frame[["origin", "carrier", "dep_delay"]].assign(departure=data.to_utc(frame.departure))
    for flight in rows.to_dict("records"):
        value = {
            **flight,
            "departure": flight["departure"].isoformat(),
            "dep_delay": None if pd.isna(flight["dep_delay"]) else flight["dep_delay"],
        }
        producer.produce(topic, json.dumps(value), f"{flight['origin']}/{flight['carrier']}")
        producer.poll(0)
    producer.flush()
    return len(rows)


def on_spark(source: Any, sink: Any, out: str) -> None:
    """Until what is there is read; then everything fires."""
    from flights import spark_session

    with spark_session(os.path.join(out, "spark.log")):
        query = (
            DELAYS.writeStream(source)
            .sink(sink)
            .option("checkpointLocation", os.path.join(out, "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.drain()


def alone(source: Any, sink: Any, out: str) -> None:
    """The same, in this process."""
    location = os.path.join(out, "alone")
    DELAYS.run(location, source, sink=sink, available_now=True)
    with DELAYS.open(location, sink=sink) as op:
        op.drain()


def panes(kafka: wr.Kafka, topic: str) -> pd.DataFrame:
    """The panes of a topic, as any consumer has them that reads committed records only."""
    places = [TopicPartition(topic, p, 0) for p in kafka.partitions(topic)]
    hasty = Consumer(kafka.settings(group_id="reader", isolation_level="read_uncommitted"))
    ends = {p.partition: hasty.get_watermark_offsets(p)[1] for p in places}
    hasty.close()
    consumer = Consumer(
        kafka.settings(group_id="reader", isolation_level="read_committed", enable_partition_eof=True)
    )
    consumer.assign(places)
    open_partitions, rows = set(ends), []
    while open_partitions:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            if (
                message.offset() >= ends[message.partition()]
            ):  # earlier, the end of a transaction is to come yet
                open_partitions.discard(message.partition())
        else:
            rows.append(json.loads(message.value()))
    consumer.close()
    return pd.DataFrame(
        {
            "start": pd.to_datetime(p["window"]["start"]),
            "origin": p["origin"],
            "carrier": p["carrier"],
            "flights": p["flights"],
            "delay": p["delay"],
            "order": (p["commit"], p["pane"]["index"]),
        }
        for p in rows
    )


def check(actual: pd.DataFrame, frame: pd.DataFrame) -> bool:
    """The last pane of each window against pandas over all flights."""
    key = ["start", "origin", "carrier"]
    last = actual.sort_values("order").groupby(key).last().sort_index()
    rows = frame.assign(start=data.to_utc(frame.departure).dt.floor("h"))
    truth = rows.groupby(key).agg(flights=("departure", "size"), delay=("dep_delay", "mean")).sort_index()
    counts = last.flights.equals(truth.flights)
    worst = (last.delay - truth.delay).abs().max() if counts else float("nan")
    same = counts and bool((last.delay.isna() == truth.delay.isna()).all()) and worst < 1e-9
    twice = int(actual.duplicated([*key, "order"]).sum())
    print(
        f"{len(actual):,} panes of {len(last):,} windows, {len(truth):,} by pandas; {twice} twice: "
        f"{'EQUAL' if same and not twice else 'NOT EQUAL'}"
    )
    return same and not twice


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--servers", default="localhost:9092")
    parser.add_argument("--out", default=os.path.join("out", "kafka_delays"))
    parser.add_argument("--months", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth flight")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--panes", default="delays", help="the topic of panes")
    parser.add_argument("--alone", action="store_true", help="without Spark")
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    os.makedirs(chosen.out, exist_ok=True)
    kafka, frame = wr.Kafka(chosen.servers), data.flights(chosen.months, chosen.every)
    print(f"{send(kafka, chosen.topic, frame):,} flights sent to {chosen.topic!r} on {chosen.servers}")
    source = wr.sources.kafka(kafka, chosen.topic, value=FLIGHT, keyed=True, max_offsets=10_000)
    sink = wr.sinks.kafka(chosen.panes, kafka, partitions=PARTITIONS)
    began = time.monotonic()
    if chosen.alone:
        alone(source, sink, chosen.out)
    else:
        on_spark(source, sink, chosen.out)
    print(f"counted in {time.monotonic() - began:.1f} s")
    return 0 if check(panes(kafka, chosen.panes), frame) else 1


if __name__ == "__main__":
    sys.exit(main())
