"""Panes to a Kafka topic: each commit once, whole or not at all, whoever dies or is fenced on the way."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.connectors.kafka import sink as sink_module
from windrow.connectors.kafka.sink import KafkaSink, read_all
from windrow.core.errors import Fenced, KafkaFailed
from windrow.testing import ManualClock

SECOND = 1_000_000
TOTALS = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count(), "v": wr.sum("v")},
    retention="1 hour",
    emit=wr.Emit(late=wr.every_batch, mode="retracting"),
)


def message(offset: int, second: int, k: str = "a", v: int = 1) -> wr.Message:
    return wr.Message({"t": second * SECOND, "k": k, "v": v}, position=wr.Position("in", 0, offset))


def committed(kafka: wr.Kafka, topic: str) -> list[Any]:
    """The values of all records that a read_committed reader sees, partition after partition."""
    records = []
    for partition in kafka.partitions(topic):
        for record in read_all(kafka, topic, partition):
            value = record.value()
            records.append((record.key(), None if value is None else json.loads(value)))
    return records


def counts(records: list[Any]) -> list[tuple[str, str, int, str]]:
    return [(v["window"]["start"][14:19], v["k"], v["n"], v["pane"]["kind"]) for _, v in records]


@pytest.fixture
def out(new_topic: Callable[..., str]) -> str:
    return new_topic(1)


def test_each_commit_is_one_transaction_of_its_panes(kafka: wr.Kafka, out: str, tmp_path: Path) -> None:
    sink = wr.sinks.kafka(out, kafka)
    with TOTALS.open(str(tmp_path), sink=sink, clock=ManualClock(0)) as op:
        op.add_messages([message(0, 1), message(1, 2), message(2, 3, "b")])
        op.timeout()
        assert committed(kafka, out) == []
        op.add_messages([message(3, 12)])
        op.timeout()
    records = committed(kafka, out)
    assert counts(records) == [("00:00", "a", 2, "INSERT"), ("00:00", "b", 1, "INSERT")]
    assert [key for key, _ in records] == [b'{"k":"a"}', b'{"k":"b"}']
    assert records[0][1] == {
        "window": {"start": "1970-01-01T00:00:00+00:00", "end": "1970-01-01T00:00:10+00:00"},
        "k": "a",
        "n": 2,
        "v": 2,
        "pane": {"timing": "ON_TIME", "index": 0, "is_last": False, "kind": "INSERT"},
        "commit": op.last_commit,
    }


def test_a_commit_that_is_published_again_is_there_once(kafka: wr.Kafka, out: str, tmp_path: Path) -> None:
    """The driver dies after the transaction and before it could note that: the next one asks the topic."""
    first = TOTALS.open(str(tmp_path), sink=wr.sinks.kafka(out, kafka), clock=ManualClock(0))
    first.add_messages([message(0, 1), message(1, 12)])
    first.timeout()
    first.abandon()  # its last commit says that nothing of it is published yet
    assert len(committed(kafka, out)) == 1
    with TOTALS.open(str(tmp_path), sink=wr.sinks.kafka(out, kafka), clock=ManualClock(0)) as op:
        op.timeout()
    assert counts(committed(kafka, out)) == [("00:00", "a", 1, "INSERT")]


def test_a_transaction_whose_outcome_is_unknown_is_decided_by_the_topic(
    kafka: wr.Kafka, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker commits and the answer is lost: the sink refuses, and takes the same panes for done later."""
    sink = wr.sinks.kafka(out, kafka)
    with TOTALS.open(str(tmp_path), sink=sink, clock=ManualClock(0)) as op:
        op.timeout()
        monkeypatch.setattr("windrow.connectors.kafka.sink._Session.send", _send_and_lose_the_answer)
        op.add_messages([message(0, 1), message(1, 12)])
        op.timeout()
        monkeypatch.undo()
        assert len(committed(kafka, out)) == 1
        op.timeout()
        op.add_messages([message(2, 25)])
        op.timeout()
    assert counts(committed(kafka, out)) == [("00:00", "a", 1, "INSERT"), ("00:10", "a", 1, "INSERT")]


def _send_and_lose_the_answer(self: Any, topic: str, portions: Any, tokens: str, token: Any) -> None:
    self.producer.begin_transaction()
    for portion in portions:
        self._produce(topic, portion)
    self._produce(tokens, [token])
    self.producer.commit_transaction(30)
    raise KafkaFailed("no answer")


def test_panes_of_an_aborted_transaction_are_seen_by_nobody(
    kafka: wr.Kafka, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies inside the transaction: the next one's init_transactions aborts it."""
    sink = wr.sinks.kafka(out, kafka)
    dying = TOTALS.open(str(tmp_path), sink=sink, clock=ManualClock(0))
    monkeypatch.setattr("windrow.connectors.kafka.sink._Session.send", _send_and_die)
    dying.add_messages([message(0, 1), message(1, 12)])
    dying.timeout()
    dying.abandon()
    monkeypatch.undo()
    with TOTALS.open(str(tmp_path), sink=wr.sinks.kafka(out, kafka), clock=ManualClock(0)) as op:
        op.timeout()
    assert counts(committed(kafka, out)) == [("00:00", "a", 1, "INSERT")]


def _send_and_die(self: Any, topic: str, portions: Any, tokens: str, token: Any) -> None:
    self.producer.begin_transaction()
    for portion in portions:
        self._produce(topic, portion)
    self.producer.flush(30)
    raise KafkaFailed("dead")


def test_a_driver_that_was_replaced_publishes_nothing(kafka: wr.Kafka, out: str, tmp_path: Path) -> None:
    """It slept between its commit and the publishing of it; the new driver has published it since."""
    refusing = _Refusing(wr.sinks.kafka(out, kafka))
    old = TOTALS.open(str(tmp_path), sink=refusing, clock=ManualClock(0))
    old.add_messages([message(0, 1), message(1, 12)])
    old.timeout()  # committed, refused
    old.engine.shard.close()
    with TOTALS.open(str(tmp_path), sink=wr.sinks.kafka(out, kafka), clock=ManualClock(0)) as new:
        new.add_messages([message(2, 25)])
        new.timeout()
        refusing.refuses = False
        with pytest.raises(Fenced, match="epoch 2, which ends epoch 1"):
            old.timeout()
        new.add_messages([message(3, 35)])
        new.timeout()  # the old driver's init_transactions has fenced this one's producer: it begins another
        new.timeout()
    assert [n for _, _, n, _ in counts(committed(kafka, out))] == [1, 1, 1]


def test_two_drivers_of_one_process_share_no_session(kafka: wr.Kafka, out: str, tmp_path: Path) -> None:
    """The same sink object, under another epoch: it fences, checks and reads the token as any other driver."""
    sink = wr.sinks.kafka(out, kafka)
    with TOTALS.open(str(tmp_path), sink=sink, clock=ManualClock(0)) as op:
        op.add_messages([message(0, 1), message(1, 12)])
        op.timeout()
        [first] = sink._sessions.values()
    with TOTALS.open(str(tmp_path), sink=sink, clock=ManualClock(0)) as op:
        op.add_messages([message(2, 25)])
        op.timeout()
        [second] = sink._sessions.values()
    assert second is not first
    with pytest.raises(Exception, match=r"fenced|_FENCED|newer producer|PRODUCER"):
        first.producer.begin_transaction()
        first.producer.produce(out, b"of nobody")
        first.producer.commit_transaction(10)
    assert [n for _, _, n, _ in counts(committed(kafka, out))] == [1, 1]


class _Refusing:
    def __init__(self, sink: KafkaSink) -> None:
        self.sink, self.refuses = sink, True

    def publish(self, token: wr.Token, panes: Any) -> None:
        if self.refuses:
            raise OSError("not now")
        self.sink.publish(token, panes)

    def last_commit(self, job: str, operator: str) -> int | None:
        return None


def test_a_token_after_another_jobs_open_transaction_is_waited_for(
    kafka: wr.Kafka, out: str, tmp_path: Path
) -> None:
    """Its records hide ours from a read_committed reader until it ends: what is not seen is not taken for not there."""
    sink = wr.sinks.kafka(out, kafka)
    with TOTALS.open(str(tmp_path), sink=sink, clock=ManualClock(0)) as op:
        op.add_messages([message(0, 1), message(1, 12)])
        op.timeout()
        job = op.job
    other = kafka.producer(transactional_id=f"other-{out}")
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(sink.tokens, key=b"other/x", value=b'{"commit": 1}', partition=0)
    other.flush(30)
    threading.Timer(1.0, other.abort_transaction).start()
    with TOTALS.open(
        str(tmp_path), sink=wr.sinks.kafka(out, kafka, tokens=sink.tokens), clock=ManualClock(0)
    ) as op:
        op.add_messages([message(2, 25)])
        op.timeout()
    assert wr.sinks.kafka(out, kafka).last_commit(job, "aggregate") == op.last_commit
    assert len(committed(kafka, out)) == 2


def test_upsert_keeps_the_current_pane_under_window_and_key(
    kafka: wr.Kafka, out: str, tmp_path: Path
) -> None:
    """A pane that another replaces in the same commit is not sent; one that is taken back for good is a tombstone."""
    with TOTALS.open(
        str(tmp_path), sink=wr.sinks.kafka(out, kafka, mode="upsert"), clock=ManualClock(0)
    ) as op:
        op.add_messages([message(0, 1), message(1, 12)])
        op.timeout()
        op.add_messages([message(2, 2)])
        op.timeout()
    key = b'{"window":{"start":"1970-01-01T00:00:00+00:00","end":"1970-01-01T00:00:10+00:00"},"k":"a"}'
    records = committed(kafka, out)
    assert [(k, v["n"]) for k, v in records] == [(key, 1), (key, 2)]


def test_upsert_writes_a_tombstone_where_a_pane_is_only_taken_back() -> None:
    import pyarrow as pa

    from windrow.connectors.kafka.sink import newest_of
    from windrow.operators.steps.output_columns import PANE_TYPE

    window = {"start": 0, "end": 10}
    pane = {"timing": "LATE", "index": 1, "is_last": False}
    rows = pa.table(
        {
            "window": pa.array([window] * 3, pa.struct([("start", pa.int64()), ("end", pa.int64())])),
            "k": ["a", "a", "b"],
            "n": [1, 2, 3],
            "pane": pa.array([{**pane, "kind": k} for k in ("RETRACT", "INSERT", "RETRACT")], PANE_TYPE),
        }
    )
    newest = newest_of(rows, ["k"])
    assert newest.column("n").to_pylist() == [2, 3]


def test_the_key_can_be_a_column_and_the_value_a_function_of_the_rows(
    kafka: wr.Kafka, out: str, tmp_path: Path
) -> None:
    sink = wr.sinks.kafka(
        out, kafka, key="k", encode=lambda rows: [json.dumps(n) for n in rows.column("n").to_pylist()]
    )
    with TOTALS.open(str(tmp_path), sink=sink, clock=ManualClock(0)) as op:
        op.add_messages([message(0, 1), message(1, 12)])
        op.timeout()
    assert committed(kafka, out) == [(b"a", 1)]


def test_many_records_and_large_ones_pass_the_producers_queue(
    kafka: wr.Kafka, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a tenth of its room, and gets more than it holds."""
    monkeypatch.setattr(sink_module, "CHUNK_RECORDS", sink_module.CHUNK_RECORDS // 10)
    monkeypatch.setattr(sink_module, "WAITING_BYTES", sink_module.WAITING_BYTES // 10)
    large = "x" * 200_000
    sink = wr.sinks.kafka(out, kafka, encode=lambda rows: [large] * len(rows))
    with TOTALS.open(str(tmp_path / "a"), sink=sink, clock=ManualClock(0)) as op:
        op.add_messages([message(i, 1, f"k{i}") for i in range(70)] + [message(70, 12)])
        op.timeout()
    assert sum(1 for _ in read_all(kafka, out, 0)) == 70
    small = wr.sinks.kafka(out, kafka, encode=lambda rows: ["y"] * len(rows))
    with TOTALS.open(str(tmp_path / "b"), sink=small, clock=ManualClock(0)) as op:
        op.add_messages([message(i, 1, f"k{i}") for i in range(25_000)] + [message(25_000, 12)])
        op.timeout()
    assert sum(1 for r in read_all(kafka, out, 0) if r.value() == b"y") == 25_000


def test_a_topic_is_made_where_there_is_none(kafka: wr.Kafka, tmp_path: Path, out: str) -> None:
    sink = wr.sinks.kafka(f"{out}-new", kafka, mode="upsert", partitions=3)
    with TOTALS.open(str(tmp_path), sink=sink, clock=ManualClock(0)) as op:
        op.add_messages([message(0, 1), message(1, 12)])
        op.timeout()
    assert kafka.partitions(f"{out}-new") == [0, 1, 2]
    assert len(committed(kafka, f"{out}-new")) == 1


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("neither 'append' nor 'upsert'", lambda: wr.sinks.kafka("t", "h:1", mode="replace")),
    ("mode 'upsert' and key 'k'", lambda: wr.sinks.kafka("t", "h:1", mode="upsert", key="k")),
    (
        "key 'x' is none of the columns",
        lambda: TOTALS.open("/nowhere/at/all", sink=wr.sinks.kafka("t", "h:1", key="x")),
    ),
    (
        "have no window to be known by",
        lambda: wr.Join(
            left=wr.Input("l", event_time="t"),
            right=wr.Input("r", event_time="t"),
            on="k",
            within=("0 s", "1 s"),
        ).open("/nowhere/at/all", sink=wr.sinks.kafka("t", "h:1", mode="upsert")),
    ),
]


@pytest.mark.parametrize(("says", "make"), REFUSED, ids=[r[0] for r in REFUSED])
def test_refused_before_anything_runs(says: str, make: Callable[[], object]) -> None:
    with pytest.raises(wr.ConfigurationError, match=says):
        make()


def test_a_broker_that_is_not_there_pauses_intake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.connectors.kafka.cluster.TIMEOUT_S", 0.5)
    op = TOTALS.open(str(tmp_path), clock=ManualClock(0), sink=wr.sinks.kafka("t", "127.0.0.1:1"))
    op.add_messages([message(0, 1), message(1, 12)])
    op.timeout()
    with pytest.raises(wr.WindrowError, match=r"did not answer.*call timeout\(\)"):
        op.add_messages([message(2, 25)])
    op.abandon()


def test_a_sink_is_a_value() -> None:
    sink = wr.sinks.kafka("t", "h:1", mode="upsert", partitions=3)
    assert repr(sink) == "wr.sinks.kafka('t', wr.Kafka('h:1'), mode='upsert', partitions=3)"
    assert (
        pickle.loads(pickle.dumps(sink))
        == sink
        == wr.sinks.kafka("t", wr.Kafka("h:1"), mode="upsert", partitions=3)
    )
