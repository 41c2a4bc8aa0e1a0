"""windrow.testing.SimulatedKafka behaves as a broker: every test runs against both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

import windrow as wr
from windrow.core.errors import KafkaFailed
from windrow.testing.simulated_kafka import Outcome, SimulatedKafka

Scene = tuple[Any, str]


@pytest.fixture(params=["simulated", pytest.param("broker", marks=pytest.mark.kafka)])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A cluster and a new topic of one partition."""
    topic = f"t-{uuid4().hex[:12]}"
    cluster = SimulatedKafka() if request.param == "simulated" else request.getfixturevalue("kafka")
    assert isinstance(cluster, SimulatedKafka | wr.Kafka)
    cluster.create_topic(topic, config={"retention.ms": "-1"})
    yield cluster, topic


def producer_of(cluster: Any, topic: str) -> Any:
    made = cluster.producer(transactional_id=f"of-{topic}")
    made.init_transactions(30)
    return made


def read(cluster: Any, topic: str, **config: Any) -> list[tuple[int, bytes]]:
    """(offset, value) of all records up to the end."""
    consumer = cluster.consumer(enable_partition_eof=True, **config)
    consumer.assign([TopicPartition(topic, 0, 0)])
    records = []
    while True:
        message = consumer.poll(10)
        if message is not None and message.error() is None:
            records.append((message.offset(), message.value()))
        elif message is not None and message.error().code() == KafkaError._PARTITION_EOF:
            break
    consumer.close()
    return records


def ends(cluster: Any, topic: str, **config: Any) -> tuple[int, int]:
    consumer = cluster.consumer(**config)
    extent: tuple[int, int] = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    consumer.close()
    return extent


def ended(scene: Scene, producer: Any, *, commit: bool = True) -> None:
    """The producer's transaction is over, and readers see that: a broker answers a little before."""
    (producer.commit_transaction if commit else producer.abort_transaction)(30)
    until = time.monotonic() + 30
    while ends(*scene) != ends(*scene, isolation_level="read_uncommitted"):
        assert time.monotonic() < until, "the transaction has ended, and its end cannot be seen"


def transacts(producer: Any, topic: str) -> None:
    producer.begin_transaction()
    producer.produce(topic, b"again", partition=0)
    producer.commit_transaction(30)


def code_of(call: Callable[[], Any]) -> tuple[int, bool]:
    with pytest.raises(KafkaException) as raised:
        call()
    error = raised.value.args[0]
    return error.code(), error.fatal()


def test_the_end_of_a_transaction_takes_an_offset(scene: Scene) -> None:
    cluster, topic = scene
    producer = producer_of(cluster, topic)
    for value in (b"a", b"b"):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        ended(scene, producer)
    assert read(cluster, topic) == [(0, b"a"), (2, b"b")]
    assert ends(cluster, topic) == (0, 4)


def test_an_aborted_record_is_seen_by_those_only_who_ask_for_it(scene: Scene) -> None:
    cluster, topic = scene
    producer = producer_of(cluster, topic)
    producer.begin_transaction()
    producer.produce(topic, b"a", partition=0)
    producer.flush(30)
    ended(scene, producer, commit=False)
    producer.begin_transaction()
    producer.produce(topic, b"b", partition=0)
    ended(scene, producer)
    assert read(cluster, topic) == [(2, b"b")]
    assert read(cluster, topic, isolation_level="read_uncommitted") == [(0, b"a"), (2, b"b")]


def test_nothing_is_read_beyond_what_is_still_open(scene: Scene) -> None:
    cluster, topic = scene
    producer = producer_of(cluster, topic)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(30)
    other = cluster.producer()
    other.produce(topic, b"plain", partition=0)
    other.flush(30)
    assert read(cluster, topic) == []
    assert ends(cluster, topic) == (0, 0)
    assert ends(cluster, topic, isolation_level="read_uncommitted") == (0, 2)
    ended(scene, producer)
    assert read(cluster, topic) == [(0, b"open"), (1, b"plain")]


def test_a_newer_producer_aborts_what_is_open_and_fences_the_older(scene: Scene) -> None:
    cluster, topic = scene
    old = producer_of(cluster, topic)
    old.begin_transaction()
    old.produce(topic, b"old", partition=0)
    old.flush(30)
    new = producer_of(cluster, topic)
    assert ends(cluster, topic) == (0, 2)
    assert code_of(lambda: old.commit_transaction(30)) == (KafkaError._FENCED, True)
    # librdkafka may let a fenced producer begin, now and then; it is refused then when it sends, or when it commits.
    assert code_of(lambda: transacts(old, topic))[0] in (KafkaError._FENCED, KafkaError._FATAL)
    new.begin_transaction()
    new.produce(topic, b"new", partition=0)
    ended(scene, new)
    assert read(cluster, topic) == [(2, b"new")]


def test_a_fenced_producer_hears_it_when_it_sends(scene: Scene) -> None:
    cluster, topic = scene
    old = producer_of(cluster, topic)
    old.begin_transaction()
    producer_of(cluster, topic)
    old.produce(topic, b"x", partition=0)
    assert code_of(lambda: old.flush(30)) == (KafkaError._FENCED, True)
    assert code_of(lambda: old.commit_transaction(30)) == (KafkaError._FENCED, True)
    assert read(cluster, topic) == []


def test_records_are_reported_when_they_are_sent(scene: Scene) -> None:
    cluster, topic = scene
    producer = producer_of(cluster, topic)
    reports: list[tuple[Any, int]] = []
    producer.begin_transaction()
    producer.produce(topic, b"a", partition=0, on_delivery=lambda e, m: reports.append((e, m.offset())))
    assert (reports, len(producer)) == ([], 1)
    assert producer.flush(30) == 0
    assert reports == [(None, 0)]
    producer.commit_transaction(30)


def test_calls_out_of_turn_are_refused(scene: Scene) -> None:
    cluster, topic = scene
    producer = cluster.producer(transactional_id=f"of-{topic}")
    assert code_of(producer.begin_transaction) == (KafkaError._STATE, False)
    producer.init_transactions(30)
    assert code_of(lambda: producer.produce(topic, b"x")) == (KafkaError._STATE, False)
    assert code_of(lambda: producer.commit_transaction(30)) == (KafkaError._STATE, False)
    producer.begin_transaction()
    assert code_of(producer.begin_transaction) == (KafkaError._STATE, False)
    producer.abort_transaction(30)


def test_a_consumer_moves_where_it_is_sent(scene: Scene) -> None:
    cluster, topic = scene
    producer = cluster.producer()
    for value in (b"a", b"b", b"c"):
        producer.produce(topic, value, key=b"k", partition=0, headers={"h": b"1"}, timestamp=7)
    producer.flush(30)
    consumer = cluster.consumer()
    consumer.assign([TopicPartition(topic, 0, 1)])
    while (first := consumer.poll(10)) is None or first.error() is not None:
        pass  # a notice of the client is no record
    assert (first.offset(), first.value(), first.key()) == (1, b"b", b"k")
    assert (first.headers(), first.timestamp()) == ([("h", b"1")], (1, 7))
    assert consumer.position([TopicPartition(topic, 0)])[0].offset == 2
    consumer.seek(TopicPartition(topic, 0, 0))
    values: list[bytes] = []
    while len(values) < 3:
        values += [m.value() for m in consumer.consume(10, 1) if m.error() is None]
    assert values == [b"a", b"b", b"c"]
    consumer.close()
    with pytest.raises(RuntimeError):
        consumer.poll(0)


# -- answers that do not come: the simulated cluster alone -------------------------------------------------------------


@pytest.mark.parametrize("outcome", [*Outcome])
def test_a_commit_without_an_answer_may_be_asked_again(outcome: Outcome) -> None:
    answers: list[Outcome | None] = []
    cluster = SimulatedKafka(lambda what: answers.pop() if answers and what == "commit_transaction" else None)
    cluster.create_topic("t")
    producer = producer_of(cluster, "t")
    producer.begin_transaction()
    producer.produce("t", b"a", partition=0)
    answers.append(outcome)
    assert code_of(lambda: producer.commit_transaction(1)) == (KafkaError._TIMED_OUT, False)
    assert read(cluster, "t") == ([(0, b"a")] if outcome is Outcome.UNHEARD else [])
    assert code_of(producer.abort_transaction) == (KafkaError._CONFLICT, False)
    producer.commit_transaction(1)
    cluster.deliver_late()
    assert read(cluster, "t") == [(0, b"a")]


@pytest.mark.parametrize("fenced", [False, True], ids=["before a newer producer", "after it"])
def test_a_commit_that_comes_late_counts_only_before_a_newer_producer(fenced: bool) -> None:
    answers: list[Outcome | None] = []
    cluster = SimulatedKafka(lambda what: answers.pop() if answers and what == "commit_transaction" else None)
    cluster.create_topic("t")
    producer = producer_of(cluster, "t")
    producer.begin_transaction()
    producer.produce("t", b"a", partition=0)
    answers.append(Outcome.LATE)
    code_of(lambda: producer.commit_transaction(1))
    if fenced:
        producer_of(cluster, "t")
    cluster.deliver_late()
    assert read(cluster, "t") == ([] if fenced else [(0, b"a")])


def test_an_open_transaction_expires() -> None:
    cluster = SimulatedKafka()
    cluster.create_topic("t")
    producer = producer_of(cluster, "t")
    producer.begin_transaction()
    producer.produce("t", b"a", partition=0)
    producer.flush()
    assert cluster.expire_transactions() == 1
    assert read(cluster, "t") == []
    assert code_of(lambda: producer.commit_transaction(1)) == (KafkaError._FENCED, True)


def test_a_batch_of_records_is_a_part_of_the_transaction(scene: Scene) -> None:
    cluster, topic = scene
    producer = producer_of(cluster, topic)
    producer.begin_transaction()
    taken = producer.produce_batch(topic, [{"key": b"k", "value": "a"}, {"key": None, "value": None}])
    assert (taken, len(producer)) == (2, 2)
    ended(scene, producer)
    assert len(producer) == 0
    assert read(cluster, topic) == [(0, b"a"), (1, None)]


def test_a_batch_outside_of_a_transaction_is_not_taken(scene: Scene) -> None:
    cluster, topic = scene
    producer = producer_of(cluster, topic)
    records: list[dict[str, Any]] = [{"value": "a"}]
    assert producer.produce_batch(topic, records) == 0
    assert "_error" in records[0]
    assert (len(producer), read(cluster, topic)) == (0, [])


def test_what_is_purged_is_reported_and_not_written(scene: Scene) -> None:
    cluster, topic = scene
    producer = cluster.producer(linger_ms=10_000)
    errors: list[Any] = []
    producer.produce_batch(topic, [{"value": "a"}], on_delivery=lambda error, _: errors.append(error.code()))
    producer.purge()
    while len(producer):
        producer.flush(10)
    assert (errors, read(cluster, topic)) == ([KafkaError._PURGE_QUEUE], [])


def test_who_does_not_hear_of_a_topic_says_so() -> None:
    cluster = SimulatedKafka(lambda what: Outcome.UNHEARD)
    with pytest.raises(KafkaFailed, match="cannot be created"):
        cluster.create_topic("t")
    with pytest.raises(KafkaFailed, match="did not answer"):
        cluster.partitions("t")
    cluster.step = lambda what: None
    assert cluster.create_topic("t") is False
    assert cluster.partitions("t") == [0]
