"""Format windrow-kafka against a broker: which offsets a query is given, and which records they hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

import windrow as wr
from tests.kafka.conftest import Sender, add_partition, wait_for
from windrow.connectors.kafka.topics import PartitionReader
from windrow.core.errors import KafkaFailed, SourceLost
from windrow.core.positions import topic_of, topic_source
from windrow.runners.spark.kafka import KafkaDataSource, KafkaReader, KafkaStreamReader

ALL = ReadAllAvailable()


def source(kafka: wr.Kafka, topic: str, **options: Any) -> KafkaDataSource:
    settings = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic, **options}
    if "assign" in options or "subscribePattern" in options:
        del settings["subscribe"]
    return KafkaDataSource({name.lower(): str(value) for name, value in settings.items()})


def bounded(kafka: wr.Kafka, topic: str, **options: Any) -> KafkaReader:
    made = source(kafka, topic, **options)
    reader = made.reader(made.schema())
    assert isinstance(reader, KafkaReader)
    return reader


def streamed(kafka: wr.Kafka, topic: str, **options: Any) -> KafkaStreamReader:
    made = source(kafka, topic, **options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, KafkaStreamReader)
    return reader


def table(reader: Any, *ends: Any) -> pa.Table:
    """Return the rows that all tasks of a plan read."""
    schema = None
    batches = []
    for part in reader.partitions(*ends):
        for batch in reader.read(part):
            schema = batch.schema
            batches.append(batch)
    return pa.Table.from_batches(batches, schema) if batches else pa.table({"value": [], "offset": []})


def values(reader: Any, *ends: Any) -> list[str]:
    return [v.decode() for v in table(reader, *ends)["value"].to_pylist()]


def step(reader: KafkaStreamReader, start: Any = None, limit: Any = ALL) -> tuple[list[str], Any]:
    """Return the rows of one batch, and its end."""
    start = reader.initialOffset() if start is None else start
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    return values(reader, start, end), end


def test_a_record_s_columns(kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender) -> None:
    topic = new_topic()
    sender.send(topic, ["v"], key="k", timestamp=1_700_000_000_123, headers=[("h", b"1"), ("h", None)])
    sender.send(topic, [None], timestamp=5)
    [first, second] = table(bounded(kafka, topic, includeHeaders="true")).to_pylist()
    assert first == {
        "key": b"k",
        "value": b"v",
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        "topicId": first["topicId"],
    }
    assert topic_of(topic_source(topic, first["topicId"])) == (topic, first["topicId"])
    assert (second["key"], second["value"], second["headers"], second["offset"]) == (None, None, None, 1)


def test_time_of_arrival_is_reported_as_such(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    sender.send(topic, ["v"])
    assert table(bounded(kafka, topic))["timestampType"].to_pylist() == [1]


def test_what_a_transaction_of_a_test_wrote_is_seen_at_once(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic()
    reader = PartitionReader(kafka, topic, 0)
    for n in range(1, 16):
        sender.transact(topic, ["a"], commit=n % 2 == 0)
        assert reader.bounds() == (0, 2 * n)
    reader.close()


def test_a_range_that_ends_in_aborted_records_and_control_records_is_read_to_its_end(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic()
    reader = streamed(kafka, topic, startingOffsets="earliest")
    start = reader.initialOffset()
    sender.transact(topic, ["a", "b"])  # offsets 0, 1 and its end 2
    sender.transact(topic, ["x", "y", "z"], commit=False)  # 3 to 6
    read, end = step(reader, start)
    assert read == ["a", "b"]
    [offset] = end["topics"].values()
    assert offset["next"] == {"0": 7}
    assert step(reader, end) == ([], end)
    for _ in range(2):
        # Every possible end of a batch, also those that fall on what nobody sees.
        for cut in range(8):
            offset["next"] = {"0": cut}
            assert values(reader, start, end) == ["a", "b"][:cut]
        sender.transact(topic, ["c"])
    offset["next"] = {"0": 4}
    assert step(reader, end)[0] == ["c", "c"]


def test_records_of_a_transaction_are_read_when_it_is_committed(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic()
    producer = kafka.producer(transactional_id=f"open-{topic}")
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, "t")
    producer.flush()
    sender.send(topic, ["later"])
    reader = streamed(kafka, topic, startingOffsets="earliest")
    read, end = step(reader)
    assert read == []
    hasty = streamed(
        kafka, topic, startingOffsets="earliest", **{"kafka.isolation.level": "read_uncommitted"}
    )
    assert step(hasty)[0] == ["t", "later"]
    producer.commit_transaction()
    wait_for(kafka, topic, 1)
    assert step(reader, end)[0] == ["t", "later"]


def test_a_limit_splits_what_there_is_and_all_available_ignores_it(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic(partitions=2)
    sender.send(topic, [f"a{i}" for i in range(30)], 0)
    sender.send(topic, [f"b{i}" for i in range(10)], 1)
    reader = streamed(kafka, topic, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(8)
    first, end = step(reader, None, limit)
    assert sorted(first) == ["a0", "a1", "a2", "a3", "a4", "a5", "b0", "b1"]
    rest, end = step(reader, end)
    assert len(rest) == 32 and end == reader.reportLatestOffset()


def test_a_batch_waits_for_as_many_records_as_asked_for_unless_it_has_waited_long(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic()
    few = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 3}
    reader = streamed(kafka, topic, **few)
    assert reader.getDefaultReadLimit() == ReadMinRows(3)
    start = reader.initialOffset()
    sender.send(topic, ["a", "b"])
    assert step(reader, start, ReadMinRows(3)) == ([], start)
    assert step(streamed(kafka, topic, **few, maxTriggerDelay="0s"), start, ReadMinRows(3))[0] == ["a", "b"]
    sender.send(topic, ["c"])
    assert step(reader, start, ReadMinRows(3))[0] == ["a", "b", "c"]


def test_available_now_ends_at_what_there_was(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic()
    sender.send(topic, ["a", "b", "c"])
    reader = streamed(kafka, topic, startingOffsets="earliest", minOffsetsPerTrigger=100)
    reader.prepareForTriggerAvailableNow()
    sender.send(topic, ["late"])
    first, end = step(reader, None, ReadMaxRows(2))
    rest, end = step(reader, end, ReadMaxRows(2))
    assert (first, rest) == (["a", "b"], ["c"])
    assert step(reader, end, ReadMaxRows(2)) == ([], end)


def test_partitions_that_are_added_are_taken_from_their_beginning(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic()
    reader = streamed(kafka, topic)  # from the latest
    _, end = step(reader)
    add_partition(kafka, topic, 2)
    sender.send(topic, ["n"], 1)
    read, end = step(reader, end)
    again, end = step(reader, end)
    assert read + again == ["n"]
    assert step(reader, end) == ([], end)


@pytest.mark.parametrize("where", ["planned", "read"])
def test_records_that_expired_unread_stop_the_query_or_are_counted(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, expire: Callable[..., None], where: str
) -> None:
    topic = new_topic()
    sender.send(topic, [str(i) for i in range(10)])
    careful = streamed(kafka, topic, startingOffsets="earliest")
    careless = streamed(kafka, topic, startingOffsets="earliest", failOnDataLoss="false")
    start = careful.initialOffset()
    if where == "planned":
        expire(topic, 0, 4)
        with pytest.raises(SourceLost, match=r"up to 0.*from 4 on: 4 offsets expired.*retention\.ms"):
            careful.latestOffset(start, ALL)
        read, end = step(careless, start)
        assert read == ["4", "5", "6", "7", "8", "9"]
        assert [t["lost"] for t in end["topics"].values()] == [4]
        return
    end = careful.latestOffset(start, ALL)
    [part] = careful.partitions(start, end)
    [same] = careless.partitions(start, end)
    expire(topic, 0, 4)
    with pytest.raises(SourceLost, match=r"from 0,.*from 4 on: 4 offsets expired.*retention\.ms"):
        list(careful.read(part))
    assert sum(len(b) for b in careless.read(same)) == 6


def test_a_topic_made_anew_is_noticed_when_a_batch_is_planned_and_while_it_is_read(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, recreate: Callable[..., None]
) -> None:
    topic = new_topic()
    sender.send(topic, ["old"] * 3)
    careful = streamed(kafka, topic, startingOffsets="earliest")
    start = careful.initialOffset()
    end = careful.latestOffset(start, ALL)
    [part] = careful.partitions(start, end)
    recreate(topic, 1)
    sender.send(topic, ["new"] * 3)
    with pytest.raises(SourceLost, match=r"was made anew under the id .* while it was read"):
        list(careful.read(part))
    for plan in (lambda: careful.latestOffset(end, ALL), lambda: careful.partitions(start, end)):
        with pytest.raises(SourceLost, match=r"deleted and made anew.*without resumeFrom"):
            plan()
    careless = streamed(kafka, topic, failOnDataLoss="false")
    read, turned = step(careless, end)
    assert read == ["new"] * 3
    assert step(careless, turned) == ([], turned)


def test_a_topic_that_is_deleted_stops_the_query_or_is_waited_for(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, recreate: Callable[..., None]
) -> None:
    topic = new_topic()
    sender.send(topic, ["a"])
    careful = streamed(kafka, topic, startingOffsets="earliest")
    _, end = step(careful)
    recreate(topic)
    with pytest.raises(SourceLost, match="is deleted"):
        careful.latestOffset(end, ALL)
    assert step(streamed(kafka, topic, failOnDataLoss="false"), end) == ([], end)
    with pytest.raises(KafkaFailed, match="is not on"):
        streamed(kafka, topic).initialOffset()


def test_topics_by_pattern_and_partitions_by_name(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    one, other = new_topic(partitions=2), new_topic()
    sender.send(one, ["a"], 0)
    sender.send(one, ["b"], 1)
    sender.send(other, ["c"])
    assert sorted(values(bounded(kafka, one, subscribePattern=f"({one}|{other})"))) == ["a", "b", "c"]
    assert sorted(values(bounded(kafka, f"{one},{other}"))) == ["a", "b", "c"]
    assert values(bounded(kafka, one, assign=json.dumps({one: [1]}))) == ["b"]
    with pytest.raises(KafkaFailed, match=f"{one}-7.*has 2 partitions"):
        bounded(kafka, one, assign=json.dumps({one: [7]})).partitions()


def test_where_a_bounded_read_begins_and_ends(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender
) -> None:
    topic = new_topic(partitions=2)
    for i in range(6):
        sender.send(topic, [f"a{i}"], 0, timestamp=1000 + i)
    sender.send(topic, ["b"], 1, timestamp=1000)

    def read(**options: Any) -> list[str]:
        return sorted(values(bounded(kafka, topic, **options)))

    def at(first: int, second: int) -> str:
        return json.dumps({topic: {"0": first, "1": second}})

    assert read(startingOffsets=at(4, -2)) == ["a4", "a5", "b"]
    assert read(startingOffsets=at(1, 1), endingOffsets=at(3, -1)) == ["a1", "a2"]
    assert read(startingTimestamp=1005, startingOffsetsByTimestampStrategy="latest") == ["a5"]
    assert read(startingOffsetsByTimestamp=at(1004, 1000), endingTimestamp=1005) == ["a4", "b"]
    assert len(bounded(kafka, topic, minPartitions=6).partitions()) >= 6
    with pytest.raises(wr.ConfigurationError, match=r"-1 has no record at or after 1005 ms.*Strategy"):
        read(startingTimestamp=1005)
    with pytest.raises(wr.ConfigurationError, match=r"names partitions \[0\] of .*has \[0, 1\]"):
        read(startingOffsets=json.dumps({topic: {"0": 3}}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"kafka.key.deserializer": "x"}, "key.deserializer.*decode them in Spark"),
        ({"kafka.sasl.jaas.config": "x"}, "kafka.sasl.username and kafka.sasl.password"),
        ({"kafka.ssl.truststore.location": "x"}, "kafka.ssl.ca.location"),
        ({"kafka.auto.offset.reset": "latest"}, "startingOffsets or resumeFrom"),
        ({"kafka.no.such": "x"}, 'No such configuration property: "no.such".*librdkafka'),
        ({"kafka.security.protocol": "MAGIC"}, "security.protocol"),
        ({"assign": "{}", "subscribe": "t"}, "subscribe and assign"),
        ({"assign": '{"t": 3}'}, "assign '{\"t\": 3}' cannot be read"),
        ({"subscribePattern": "("}, "no regular expression"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger 'many': give a whole number"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss 'no' is none of"),
        ({"startingOffsets": "newest"}, "startingOffsets 'newest'.*'earliest' or 'latest'"),
        ({"startingOffsets": '{"u": {"0": 3}}'}, "names topic 'u', which is not in"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay 'soon'"),
        ({"subscribe": " , "}, "names no topic"),
        ({"kafka.bootstrap.servers": ""}, "no cluster is given"),
    ],
)
def test_options_that_mean_nothing_are_refused_before_anything_is_read(
    kafka: wr.Kafka, options: dict[str, str], said: str
) -> None:
    both = options.get("subscribe") == "t"
    reader = source(kafka, "t", **options)
    if both:
        reader.options["subscribe"] = "t"
    with pytest.raises(wr.ConfigurationError, match=said):
        reader.schema()


@pytest.mark.parametrize(
    ("options", "streaming", "said"),
    [
        ({"endingOffsets": "latest"}, True, "endingOffsets means nothing for a stream"),
        ({"maxOffsetsPerTrigger": 3}, False, "maxOffsetsPerTrigger means nothing for a bounded read"),
        ({"startingOffsets": "latest"}, False, "leaves a bounded read nothing"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, False, "startingOffsets of t-0 is -1"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, False, "endingOffsets of t-0 is -2"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, True, "startingOffsets of t-0 is -3"),
    ],
)
def test_options_of_the_other_kind_of_query_are_refused(
    kafka: wr.Kafka, options: dict[str, Any], streaming: bool, said: str
) -> None:
    with pytest.raises(wr.ConfigurationError, match=said):
        (streamed if streaming else bounded)(kafka, "t", **options)


def test_a_cluster_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.connectors.kafka.source_metadata.TIMEOUT_S", 1.0)
    nowhere = wr.Kafka("127.0.0.1:1")
    with pytest.raises(KafkaFailed, match=r"127\.0\.0\.1:1 did not answer"):
        streamed(nowhere, "t").initialOffset()
