"""The job under drill, a process of its own: `python -m tests.drills.job <settings as JSON>`.

It runs until a line "drain" comes on its standard input; then it reads what is there, drains, and ends. It ends at once where
whoever started it is gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import pyarrow as pa

import windrow as wr
from windrow.connectors.kafka.offsets import newest, ranges
from windrow.connectors.kafka.reading import cluster_of

MASTERS = {"spark": "local[2,4]", "cluster": "local-cluster[2,1,1024]"}


#: Early panes and late ones for every commit, all retracted properly; no record is ever too late.
_EMIT = wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting")
_INPUT: dict[str, Any] = {"by": "k", "event_time": "t", "watermark": "5 seconds"}
DEFINITIONS: dict[str, Any] = {
    "windows": wr.Aggregate(
        **_INPUT,
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "sum": wr.sum("v"), "middle": wr.median("v")},
        retention="1 day",
        emit=_EMIT,
    ),
    "sessions": wr.Aggregate(
        **_INPUT,
        window=wr.session("1 second"),
        agg={"n": wr.count(), "sum": wr.sum("v"), "most": wr.max("v")},
        retention="1 day",
        emit=_EMIT,
    ),
    "over": wr.Over(
        **_INPUT,
        frame=wr.range_between("-2 seconds", "1 second"),
        agg={"n": wr.count(), "sum": wr.sum("v"), "most": wr.max("v")},
        allowed_lateness="1 day",
        emit=_EMIT,
    ),
}


def source_of(kafka: wr.Kafka, topic: str) -> Any:
    value = wr.decoders.json({"t": pa.timestamp("us", "UTC"), "k": pa.string(), "v": pa.int64()})
    return wr.sources.kafka(kafka, topic, value=value, keyed=True)


def sink_of(kafka: wr.Kafka, topic: str) -> Any:
    return wr.sinks.kafka(topic, kafka, partitions=2)


def wait_for_drain(drain: threading.Event) -> None:
    for line in sys.stdin:
        if line.strip() == "drain":
            drain.set()
            return
    os._exit(1)


def run_embedded(job: Any, location: str, source: Any, sink: Any, drain: threading.Event) -> None:
    job.run(location, source, sink=sink, stop=drain.is_set, tick="100 milliseconds")
    cluster = cluster_of(source.kafka)
    with job.open(location, sink=sink) as op:
        while op.paused:
            op.timeout()
        begin = source.begin(op.next_offsets(), cluster)
        for wanted in ranges(begin, newest(source.extents(cluster, {}), committed=True)):
            for rows in source.read([wanted]):
                op.add_messages(rows)
        op.drain()


def run_spark(
    job: Any, master: str, location: str, local: str, source: Any, sink: Any, drain: threading.Event
) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(master)
        .appName("windrow-drill")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    query = (
        job.writeStream(source)
        .sink(sink)
        .option("checkpointLocation", location)
        .option("localDir", local)
        .start()
    )
    while query.isActive and not drain.wait(0.2):
        pass
    if not drain.is_set():
        query.awaitTermination()  # raises what ended it
    query.drain()
    query.stop()
    spark.stop()


def main(settings: dict[str, Any]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    kafka = wr.Kafka(settings["servers"], settings["config"])
    source, sink = source_of(kafka, settings["topic"]), sink_of(kafka, settings["out"])
    drain = threading.Event()
    threading.Thread(target=wait_for_drain, args=(drain,), daemon=True).start()
    job, runner, location = DEFINITIONS[settings["job"]], settings["runner"], settings["location"]
    if runner == "embedded":
        run_embedded(job, location, source, sink, drain)
    else:
        run_spark(job, MASTERS[runner], location, settings["local"], source, sink, drain)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
