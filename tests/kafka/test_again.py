"""Messages that a job lost with snapshots and segments are read from its topic again, without anybody saying so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.filed import filed
from tests.kafka.conftest import Sender
from windrow.checkpoint import job_admin
from windrow.core.errors import StateLost
from windrow.runners.embedded import Embedded
from windrow.testing.clock import ManualClock

SECOND = 1_000_000
VALUE = wr.decoders.json({"t": pa.int64(), "k": pa.string(), "x": pa.int64()})
FULL = {"n": wr.count(), "middle": wr.median("x"), "all": wr.collect_list("x")}


def define(**changes: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": FULL,
        "watermark": "5 seconds",
        "retention": "30 seconds",
        "allowed_lateness": "10 seconds",
        "emit": wr.Emit(late=wr.every_batch),
    }
    return wr.Aggregate(**{**settings, **changes})


DEFINITIONS = {
    "tumbling": define(),
    "hopping": define(
        window=wr.hopping("10 seconds", "4 seconds"), emit=wr.Emit(early=wr.every(2), mode="discarding")
    ),
    "tuples": define(
        window=wr.tuples(3, step=2),
        retention=wr.Retain(windows=4),
        allowed_lateness=None,
        emit=wr.Emit(early=wr.every_batch),
    ),
}
ALL = [pytest.param(d, id=name) for name, d in DEFINITIONS.items()]


def row(i: int) -> str:
    """Out of order, some late, some too late, one without a value, some unreadable."""
    if i % 17 == 5:
        return "}"
    late = {23: 9, 41: 60, 53: 12, 58: 17, 63: 15, 70: 14}.get(i, (i * 7) % 4)
    x = None if i % 50 == 11 else i % 13
    return json.dumps({"t": max(i - late, 0) * SECOND, "k": "abc"[i % 3], "x": x})


def send(sender: Sender, topic: str, numbers: range) -> None:
    """Plain records, transactions and aborted ones, to two partitions."""
    third = len(numbers) // 3
    for i in numbers[:third]:
        sender.send(topic, [row(i)], i % 2)
    sender.transact(topic, [row(i) for i in numbers[third : 2 * third]], 0)
    sender.transact(topic, [row(i) for i in numbers[:5]], 0, commit=False)
    sender.transact(topic, [row(i) for i in numbers[2 * third :]], 1)


def run(definition: wr.Aggregate, job: Path, source: Any, sink: Any, rows: int = 0) -> None:
    """The consumer loop, until the job has counted so many rows."""

    def counted() -> bool:
        return sum(s.rows for c in job_admin.look(str(job)).log.commits() for s in c.steps) >= rows

    definition.run(str(job), source, sink=sink, stop=counted, tick="20 milliseconds")


def kept(op: Embedded) -> dict[str, list[Any]]:
    """The message store."""
    return {cf: filed(op.engine.shard.kv, cf) for cf in op.engine.spec.message_cfs}


def lose(job: Path) -> None:
    for folder in ("local", "snapshots", "segments"):
        shutil.rmtree(job / folder, ignore_errors=True)


def begun(
    definition: wr.Aggregate, job: Path, source: Any, sender: Sender, sink: Any, rows: int = 60
) -> None:
    """A job of several runs and commits."""
    for first in range(0, rows, 30):
        send(sender, source.topics[0], range(first, first + 30))
        run(definition, job, source, sink, first + 30)


@pytest.mark.parametrize("definition", ALL)
def test_a_consumer_loop_that_lost_its_messages_reads_them_again(
    definition: wr.Aggregate, kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    topic, sink = new_topic(2), wr.sinks.memory()
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    job, twin = tmp_path / "job", tmp_path / "twin"
    begun(definition, job, source, sender, sink)
    shutil.copytree(job, twin)
    lose(job)
    before = list(sink.panes)
    run(definition, job, source, sink)
    assert sink.panes == before != []  # no pane is sent again
    send(sender, topic, range(60, 90))
    emitted, stores = [], []
    for place in (job, twin):
        with definition.open(str(place), clock=ManualClock()) as op:
            stores.append(kept(op))
            seen = [op.get_windows(), op.get_messages()]
            reached = op.next_offsets()
            rest = source.again({p: (o, o + 15) for p, o in reached.items()})
            for at in range(0, len(rest), 10):
                op.add_messages(rest.slice(at, 10))
            op.drain()
            emitted.append((seen, op.get_result(), op.counters, op.dead_letters()))
    assert sum(map(len, stores[0].values())) > 5
    assert stores[0] == stores[1]
    assert emitted[0] == emitted[1]
    assert len(emitted[0][1]) > 3


def test_a_partition_of_a_group_is_read_again_by_whoever_is_assigned_it(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    topic, sink = new_topic(1), wr.sinks.memory()
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    job = tmp_path / f"{topic}-0"
    sender.send(topic, [row(i) for i in range(40)])
    run(define(), job, source, sink, 40)
    with define().open(str(job)) as op:
        before = kept(op)
    lose(job)
    define().run(
        str(tmp_path),
        source,
        group=f"g-{topic}",
        stop=lambda: (job / "snapshots").exists(),
        tick="20 milliseconds",
    )
    with define().open(str(job)) as op:
        assert kept(op) == before
        assert len(op.get_messages()) > 10


@pytest.mark.parametrize("loss", ["expired", "made anew", "deleted"])
def test_what_the_topic_no_longer_has_is_refused_naming_what_is_needed_and_what_is_there(
    loss: str,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    expire: Callable[[str, int, int], None],
    recreate: Callable[..., None],
    tmp_path: Path,
) -> None:
    topic, sink = new_topic(1), wr.sinks.memory()
    source = wr.sources.kafka(kafka, topic, value=VALUE, fail_on_data_loss=False)
    sender.send(topic, [row(i) for i in range(40)])
    run(define(retention="10 minutes"), tmp_path, source, sink, 40)
    lose(tmp_path)
    match loss:
        case "expired":
            expire(topic, 0, 30)
            said = r"the broker has \[30, 40\)"
        case "made anew":
            recreate(topic, 1)
            said = "the topic was deleted and made anew under the id"
        case _:
            recreate(topic)
            said = "the topic is deleted"
    with pytest.raises(
        StateLost, match=rf"\[0, 40\) of '{topic}@.*'/0 is needed, {said}.*segments and snapshots"
    ):
        run(define(retention="10 minutes"), tmp_path, source, sink)
    assert list((tmp_path / "local").iterdir()) == []  # nothing half done is left


def test_records_that_expired_and_are_needed_by_no_retained_window_are_not_missed(
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    expire: Callable[[str, int, int], None],
    tmp_path: Path,
) -> None:
    topic, sink = new_topic(1), wr.sinks.memory()
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    for first in range(0, 120, 20):
        sender.send(topic, [row(i) for i in range(first, first + 20)])
        run(define(), tmp_path, source, sink, first + 20)
    with define().open(str(tmp_path)) as op:
        before = kept(op)
    lose(tmp_path)
    expire(topic, 0, 40)
    run(define(), tmp_path, source, sink)
    with define().open(str(tmp_path)) as op:
        assert kept(op) == before


def test_messages_that_were_taken_from_a_topic_without_its_id_are_not_guessed(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    topic = new_topic(1)
    sender.send(topic, [row(0)])
    with define().open(str(tmp_path)) as op:
        op.add_message(wr.Message(json.loads(row(0)), wr.Position(topic, 0, 0)))
        op.get_result()
        op.flush()
    lose(tmp_path)
    with pytest.raises(StateLost, match=r"without the topic's id nobody knows.*open the job with replay="):
        run(define(), tmp_path, wr.sources.kafka(kafka, topic, value=VALUE), wr.sinks.memory())
