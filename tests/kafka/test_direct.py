"""Topics that Spark's tasks read for themselves: `delays.writeStream(wr.sources.kafka(...))`."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.kafka.conftest import Sender, add_partition, keyed
from windrow.connectors.kafka.sink import read_all
from windrow.core.errors import JobMismatch, UnknownColumn

COUNTS = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count(), "v": wr.sum("v")},
    retention="1 hour",
    emit=wr.Emit(late=wr.every_batch),
)
VALUE = wr.decoders.json({"t": pa.int64(), "k": pa.string(), "v": pa.int64()})
SECOND = 1_000_000


def rows(seconds: range, k: str) -> list[dict[str, Any]]:
    return [{"t": s * SECOND, "k": k, "v": s} for s in seconds]


def panes(kafka: wr.Kafka, topic: str) -> Counter[tuple[str, str]]:
    """Count the messages in the panes on a topic, by window and key; each pane may be there once."""
    counts: Counter[tuple[str, str]] = Counter()
    for partition in kafka.partitions(topic):
        for record in read_all(kafka, topic, partition):
            value = json.loads(record.value())
            counts[value["window"]["start"][14:19], value["k"]] += value["n"]
    return counts


@pytest.fixture
def queries() -> Iterator[list[Any]]:
    started: list[Any] = []
    yield started
    for query in started:
        query.stop()


def start(source: Any, location: Path, sink: Any, queries: list[Any], **options: Any) -> Any:
    writer = COUNTS.writeStream(source).sink(sink).option("checkpointLocation", str(location))
    query = writer.options(**options).trigger(availableNow=True).start()
    queries.append(query)
    return query


@pytest.mark.parametrize("keyed", [False, True], ids=["any partition", "keyed"])
def test_topic_to_topic_and_on_from_the_jobs_own_offsets(
    spark: Any,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
    queries: list[Any],
    keyed: bool,
) -> None:
    """Records come, the query ends, more come, Spark's checkpoint is deleted: every record is counted once."""
    topic, out = new_topic(3), new_topic(2)
    source = wr.sources.kafka(kafka, topic, value=VALUE, keyed=keyed, max_offsets=40)
    sink = wr.sinks.kafka(out, kafka)
    for partition in range(3):
        sender.send_rows(topic, rows(range(0, 25), f"k{partition}"), partition)
    query = start(source, tmp_path, sink, queries)
    query.awaitTermination()
    assert query.exception() is None
    wanted = {(f"00:{tens}0", f"k{p}"): 10 for tens in range(2) for p in range(3)}
    assert panes(kafka, out).items() <= wanted.items()
    shutil.rmtree(tmp_path / "spark")
    sender.transact(topic, [json.dumps(r) for r in rows(range(25, 41), "k0")])
    for partition in (1, 2):
        sender.send_rows(topic, rows(range(25, 41), f"k{partition}"), partition)
    query = start(source, tmp_path, sink, queries)
    query.drain()
    assert panes(kafka, out) == {
        (f"00:{tens}0", f"k{p}"): 10 if tens < 4 else 1 for tens in range(5) for p in range(3)
    }
    progress = query.lastProgress
    assert progress["counters"]["rows"] == 3 * 41
    assert progress["counters"].get("replayed", 0) == 0


@keyed(False)
def test_with_its_log_in_kafka_the_folder_and_sparks_checkpoint_may_go(
    spark: Any,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
    queries: list[Any],
    keyed: bool,
) -> None:
    """Everything is in topics: source, log, state and panes."""
    topic, out = new_topic(2), new_topic(1)
    source = wr.sources.kafka(kafka, topic, value=VALUE, keyed=keyed)
    for seconds in (range(0, 25), range(25, 41)):
        for partition in range(2):
            sender.send_rows(topic, rows(seconds, f"k{partition}"), partition)
        writer = (
            COUNTS.writeStream(source)
            .sink(wr.sinks.kafka(out, kafka))
            .log(wr.kafka_log(kafka, f"log-{topic}"))
        )
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        queries.append(query)
        query.awaitTermination()
        if seconds.start == 0:
            query.stop()
            shutil.rmtree(tmp_path)
    query.drain()
    assert panes(kafka, out) == {
        (f"00:{tens}0", f"k{p}"): 10 if tens < 4 else 1 for tens in range(5) for p in range(2)
    }


def test_what_cannot_be_decoded_is_a_dead_letter_with_its_coordinates(
    spark: Any,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
    queries: list[Any],
) -> None:
    topic, dead = new_topic(1), new_topic(1)
    sender.send(topic, [json.dumps(rows(range(1), "a")[0]), "}", json.dumps(rows(range(12, 13), "a")[0])])
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    writer = COUNTS.writeStream(source).sink({}).deadLetters(wr.sinks.kafka(dead, kafka))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    queries.append(query)
    query.awaitTermination()
    [letter] = read_all(kafka, dead, 0)
    headers = {name: value.decode() for name, value in letter.headers()}
    assert letter.value() == b"}"
    assert headers["windrow.reason"] == "malformed"
    assert (headers["windrow.partition"], headers["windrow.offset"]) == ("0", "1")
    assert headers["windrow.source"].startswith(topic)


def test_a_running_query_takes_what_comes(
    spark: Any,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
    queries: list[Any],
) -> None:
    topic = new_topic(2)
    sink = wr.sinks.memory()
    source = wr.sources.kafka(kafka, topic, value=VALUE, keyed=True)
    writer = COUNTS.writeStream(source).sink(sink).option("checkpointLocation", str(tmp_path))
    query = writer.start()
    queries.append(query)
    sender.send_rows(topic, rows(range(0, 12), "a"), 0)
    sender.send_rows(topic, rows(range(0, 12), "b"), 1)
    query.processAllAvailable()
    sender.send_rows(topic, rows(range(12, 22), "a"), 0)
    sender.send_rows(topic, rows(range(12, 22), "b"), 1)
    query.processAllAvailable()
    query.drain()
    counted = Counter({(p.window.start_us // SECOND, p.key["k"]): p.values["n"] for p in sink.panes})
    assert counted == {(s, k): n for s, n in ((0, 10), (10, 10), (20, 2)) for k in "ab"}


def test_shards_by_partition_are_not_opened_as_shards_by_key(
    spark: Any,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
    queries: list[Any],
) -> None:
    topic = new_topic(2)
    sender.send_rows(topic, rows(range(0, 12), "a"))
    sink = wr.sinks.memory()
    start(wr.sources.kafka(kafka, topic, value=VALUE, keyed=True), tmp_path, sink, queries).awaitTermination()
    sender.send_rows(topic, rows(range(12, 24), "a"))
    with pytest.raises(Exception, match="by the partitions of"):
        start(wr.sources.kafka(kafka, topic, value=VALUE), tmp_path, sink, queries).awaitTermination()


def test_partitions_that_are_added_to_a_keyed_topic_stop_the_job(
    spark: Any,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
    queries: list[Any],
) -> None:
    topic = new_topic(1)
    sender.send_rows(topic, rows(range(0, 12), "a"))
    source = wr.sources.kafka(kafka, topic, value=VALUE, keyed=True)
    sink = wr.sinks.memory()
    start(source, tmp_path, sink, queries).awaitTermination()
    add_partition(kafka, topic, 2)
    sender.send_rows(topic, rows(range(12, 24), "a"))
    with pytest.raises(Exception, match=JobMismatch.code):
        start(source, tmp_path, sink, queries).awaitTermination()


def test_a_column_that_no_record_has_is_refused_before_anything_runs(kafka: wr.Kafka) -> None:
    with pytest.raises(UnknownColumn, match="'k' of 'aggregate' is not in the input"):
        COUNTS.writeStream(wr.sources.kafka(kafka, "t", value=wr.decoders.json({"t": pa.int64()})))


def test_a_decoder_without_columns_is_refused_before_anything_runs(kafka: wr.Kafka) -> None:
    with pytest.raises(wr.ConfigurationError, match="learns its columns from the records"):
        COUNTS.writeStream(wr.sources.kafka(kafka, "t", value=wr.decoders.avro("http://registry")))
