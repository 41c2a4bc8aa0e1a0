"""A delivery policy on records of Kafka: what it would skip in any case is gone past, and noted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import windrow as wr
from tests.kafka.conftest import Sender
from tests.kafka.test_again import lose
from windrow.checkpoint import job_admin
from windrow.checkpoint.records import UNREAD
from windrow.testing import ManualClock

SECOND = 1_000_000
VALUE = wr.decoders.json({"t": pa.int64(), "x": pa.int64()})


def middles(deliver: Any, **options: Any) -> wr.Aggregate:
    """Keeps its messages, and says which they are."""
    return wr.Aggregate(
        event_time="t",
        window=wr.tumbling("100 seconds"),
        agg={"m": wr.median("x"), "x": wr.collect_list("x")},
        retention="1 hour",
        emit=wr.Emit(early=wr.every_batch),
        deliver=deliver,
        **options,
    )


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [{"t": i * SECOND, "x": i} for i in range(first, last)]


def unread(job: Path) -> list[list[Any]]:
    """Return the offsets that a job's commits call unread: partition, from, to."""
    noted = [r for c in job_admin.look(str(job)).log.commits() for r in c.meta.get(UNREAD, ())]
    return sorted(row[1:] for row in noted)


def test_all_but_the_newest_of_a_backlog_is_passed_over_and_comes_back_from_no_replay(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    topic, definition = new_topic(2), middles(wr.deliver.newest(3, per="input"))
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    sender.send_rows(topic, rows(0, 10), 0)
    sender.send_rows(topic, rows(20, 22), 1)
    for expected, sent in (([[0, 0, 7]], rows(30, 40)), ([[0, 0, 7], [0, 10, 17]], [])):
        definition.run(str(tmp_path), source, sink=wr.sinks.memory(), available_now=True)
        assert unread(tmp_path) == expected
        if sent:
            sender.send_rows(topic, sent, 0)
    with definition.open(str(tmp_path)) as op:
        before = [m.payload["x"] for m in op.get_messages()]
        assert set(before) <= {7, 8, 9, 20, 21, 37, 38, 39}
        assert {39} <= set(before)
        assert {p: o for (_, p), o in op.next_offsets().items()} == {0: 20, 1: 2}
        assert op.counters["rows"] == 8
        assert op.counters["unread"] == 14
    lose(tmp_path)
    definition.run(str(tmp_path), source, sink=wr.sinks.memory(), available_now=True)
    with definition.open(str(tmp_path)) as op:
        assert [m.payload["x"] for m in op.get_messages()] == before


def test_records_that_are_too_old_are_passed_over_also_where_nothing_comes_after_them(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    topic, definition = new_topic(1), middles(wr.deliver.within("2 seconds"), max_ahead=wr.forever)
    values = wr.decoders.json({"x": pa.int64()})
    source = wr.sources.kafka(kafka, topic, value=values, columns={"t": "timestamp"})
    base = 1_700_000_000_000
    for x, ms in enumerate((0, 5_000, 7_999, 8_000, 3_000, 9_000)):
        sender.send(topic, [f'{{"x": {x}}}'], timestamp=base + ms)
    for now, expected in ((10, [[0, 0, 3]]), (30, [[0, 0, 3], [0, 6, 7]])):
        clock = ManualClock(base * 1_000 + now * SECOND)
        definition.run(str(tmp_path), source, sink=wr.sinks.memory(), available_now=True, clock=clock)
        assert unread(tmp_path) == expected
        sender.send(topic, ['{"x": 6}'], timestamp=base + 20_000)
    with definition.open(str(tmp_path)) as op:
        assert [m.payload["x"] for m in op.get_messages()] == [3, 5]
        assert op.counters["skipped"] == 1  # record 4 was read: 3 is before it
        assert op.counters["unread"] == 4
        assert {p: o for (_, p), o in op.next_offsets().items()} == {0: 7}


def test_where_more_comes_than_is_read_at_once_the_rest_is_passed_over(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    topic, definition = new_topic(1), middles(wr.deliver.newest(2, per="input"))
    source = wr.sources.kafka(kafka, topic, value=VALUE, max_offsets=5)
    later = rows(10, 60)

    class Late:
        """Records come when reading has begun."""

        def publish(self, token: wr.Token, panes: Any) -> None:
            if later:
                sender.send_rows(topic, later)
                later.clear()

        def last_commit(self, job: str, operator: str) -> int | None:
            return None

    def read() -> bool:
        stands = job_admin.look(str(tmp_path)).last_commit
        return stands is not None and set(stands.next_offsets.values()) == {60}

    sender.send_rows(topic, rows(0, 10))
    definition.run(str(tmp_path), source, sink=Late(), stop=read, tick="20 milliseconds")
    offsets = unread(tmp_path)
    assert offsets[0] == [0, 0, 8]
    assert offsets[-1][2] == 58
    with definition.open(str(tmp_path)) as op:
        assert op.counters["rows"] + op.counters["unread"] == 60
        assert op.counters["unread"] >= 50
        assert [m.payload["x"] for m in op.get_messages()][-2:] == [58, 59]


def test_the_newest_of_a_topic_is_read_where_transactions_end_after_it(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    topic, definition = new_topic(1), middles(wr.deliver.latest(per="input"))
    for row in rows(0, 8):
        sender.transact(topic, [json.dumps(row)])
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    definition.run(str(tmp_path), source, sink=wr.sinks.memory(), available_now=True)
    with definition.open(str(tmp_path)) as op:
        assert [m.payload["x"] for m in op.get_messages()] == [7]
        assert unread(tmp_path) == [[0, 0, 14]]


def test_the_newest_that_can_be_counted_is_read_where_others_end_a_partition(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    topic, definition = new_topic(1), middles(wr.deliver.latest(per="input"))
    sender.send_rows(topic, rows(0, 8))
    sender.send(topic, ["no JSON", '{"x": 1}', "{", '{"t": null}', "[]"])
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    definition.run(str(tmp_path), source, sink=wr.sinks.memory(), available_now=True)
    with definition.open(str(tmp_path)) as op:
        assert [m.payload["x"] for m in op.get_messages()] == [7]
        assert unread(tmp_path) == [[0, 0, 7]]
