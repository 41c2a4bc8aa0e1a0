"""A consumer loop without Spark: every record counted once, whoever is killed, rebalanced, or refused."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

import windrow as wr
from tests.kafka.conftest import Sender, add_partition
from windrow.connectors.kafka.sink import read_all
from windrow.core.errors import SourceLost
from windrow.runners.telemetry import Telemetry

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


def row(second: int, k: str = "a", v: int = 1) -> dict[str, Any]:
    return {"t": second * SECOND, "k": k, "v": v}


class Panes:
    """A sink that keeps panes, and says how many messages they count."""

    def __init__(self) -> None:
        self.panes: list[Any] = []

    def publish(self, token: wr.Token, panes: Any) -> None:
        self.panes.extend(panes.panes())

    def last_commit(self, job: str, operator: str) -> int | None:
        return None

    @property
    def counted(self) -> int:
        return sum(p.values["n"] for p in self.panes)


class Running:
    """`run` in a thread, until it is stopped."""

    def __init__(self, location: Path, source: Any, **options: Any) -> None:
        self._stop = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(str(location), source), kwargs=options)
        self.thread.start()

    def _run(self, location: str, source: Any, **options: Any) -> None:
        try:
            COUNTS.run(location, source, stop=self._stop.is_set, tick="50 milliseconds", **options)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._stop.set()
        self.thread.join()
        if self.error is not None:
            raise self.error


@pytest.fixture
def running() -> Iterator[list[Running]]:
    """Loops that are ended with the test, however it ends."""
    started: list[Running] = []
    yield started
    for one in started:
        one._stop.set()
        one.thread.join()


def until(true: Callable[[], bool], *watched: Running, pause_s: float = 0.02) -> None:
    while not true():
        for one in watched:
            if one.error is not None:
                raise one.error
        threading.Event().wait(pause_s)


def test_records_of_all_partitions_are_counted_and_read_on_after_a_stop(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path, running: list[Running]
) -> None:
    topic = new_topic(2)
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    sender.send_rows(topic, [row(1), row(2), row(12)], 0)
    sender.send_rows(topic, [row(3, "b"), row(13, "b")], 1)
    sink = Panes()
    running.append(Running(tmp_path, source, sink=sink))
    until(lambda: sink.counted >= 3, *running)
    running[0].stop()
    sender.send_rows(topic, [row(25), row(26)], 0)
    sender.send_rows(topic, [row(27, "b")], 1)
    running.append(Running(tmp_path, source, sink=sink))
    until(lambda: sink.counted >= 5, *running)
    running[1].stop()
    assert sorted((p.window.start_us, p.key["k"], p.values["n"]) for p in sink.panes) == sorted(
        [(0, "a", 2), (0, "b", 1), (10 * SECOND, "a", 1), (10 * SECOND, "b", 1)]
    )
    with COUNTS.open(str(tmp_path)) as op:
        assert {p: o for (_, p), o in op.next_offsets().items()} == {0: 5, 1: 3}
        assert op.counters["rows"] == 8
        assert [tp.offset for tp in op.next_offsets([TopicPartition(topic, p) for p in (0, 1)])] == [5, 3]


def test_each_commit_knows_how_many_records_are_not_read(
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, seen = new_topic(2), list[tuple[Any, dict[str, int]]]()

    def committed(self: Telemetry, record: Any, stages: Any, lag: Any) -> None:
        [behind] = lag().values()
        seen.append(({str(p): n for (_, p), n in record.next_offsets.items()}, behind))

    monkeypatch.setattr(Telemetry, "committed", committed)
    sender.send_rows(topic, [row(n) for n in range(5)], 0)
    sender.send_rows(topic, [row(n) for n in range(3)], 1)
    source = wr.sources.kafka(kafka, topic, value=VALUE, max_offsets=2)
    COUNTS.run(str(tmp_path), source, sink=Panes(), available_now=True)
    assert len(seen) > 2 and seen[-1] == ({"0": 5, "1": 3}, {"0": 0, "1": 0})
    for offsets, behind in seen:
        assert all(offsets.get(p, 0) + n == {"0": 5, "1": 3}[p] for p, n in behind.items())


def test_a_record_that_cannot_be_read_is_a_dead_letter_with_its_coordinates(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    topic, dead = new_topic(1), new_topic(1)
    sender.send(topic, ["}", json.dumps(row(1)), None, json.dumps(row(12))])
    COUNTS.run(
        str(tmp_path),
        wr.sources.kafka(kafka, topic, value=VALUE),
        sink=Panes(),
        dead_letters=wr.sinks.kafka(dead, kafka),
        available_now=True,
    )
    with COUNTS.open(str(tmp_path)) as op:
        letters = op.dead_letters()
    assert [(d.reason, d.detail, d.position.offset) for d in letters if d.position is not None] == [
        ("malformed", "no JSON: Expecting value: line 1 column 1 (char 0)", 0),
        ("malformed", "the record has no value", 2),
    ]
    sent = list(read_all(kafka, dead, 0))
    assert sent[0].value() == b"}"
    assert [dict(r.headers())["windrow.offset"] for r in sent] == [b"0", b"2"]
    assert dict(sent[1].headers())["windrow.detail"] == b"the record has no value"


def test_transactions_that_were_aborted_are_not_read(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path, running: list[Running]
) -> None:
    topic = new_topic(1)
    sender.transact(topic, [json.dumps(row(1))])
    sender.transact(topic, [json.dumps(row(2))] * 5, commit=False)
    sender.transact(topic, [json.dumps(row(3)), json.dumps(row(12))])
    sink = Panes()
    running.append(Running(tmp_path, wr.sources.kafka(kafka, topic, value=VALUE), sink=sink))
    until(lambda: len(sink.panes) == 1, *running)
    running[0].stop()
    assert sink.panes[0].values["n"] == 2


def test_partitions_that_are_added_are_read_from_their_beginning(
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
    running: list[Running],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.consume.LOOK_S", 0.2)
    topic = new_topic(1)
    sender.send_rows(topic, [row(1)])
    sink = Panes()
    running.append(
        Running(tmp_path, wr.sources.kafka(kafka, topic, value=VALUE, starting="earliest"), sink=sink)
    )
    add_partition(kafka, topic, 2)
    Sender(kafka).send_rows(topic, [row(2), row(12)], 1)
    sender.send_rows(topic, [row(13)])
    # What ends the window may be read before the new partition is; then the record of that is late.
    until(lambda: [p.values["n"] for p in sink.panes[-1:]] == [2], *running)
    running[0].stop()


def test_a_topic_that_is_made_anew_stops_the_loop(
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    recreate: Callable[..., None],
    tmp_path: Path,
    running: list[Running],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.consume.LOOK_S", 0.2)
    topic = new_topic(1)
    sender.send_rows(topic, [row(1), row(12)])
    sink = Panes()
    running.append(Running(tmp_path, wr.sources.kafka(kafka, topic, value=VALUE), sink=sink))
    until(lambda: sink.counted == 1, *running)
    recreate(topic, 1)
    with pytest.raises(SourceLost, match=r"made anew|is deleted"):
        until(lambda: False, *running)


def test_records_that_expired_unread_stop_the_job_or_are_passed_over_on_request(
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    expire: Callable[[str, int, int], None],
    tmp_path: Path,
    running: list[Running],
) -> None:
    topic = new_topic(1)
    sender.send_rows(topic, [row(1), row(12)])
    sink = Panes()
    running.append(Running(tmp_path, wr.sources.kafka(kafka, topic, value=VALUE), sink=sink))
    until(lambda: sink.counted == 1, *running)
    running[0].stop()
    sender.send_rows(topic, [row(13), row(14), row(25), row(35)])
    expire(topic, 0, 4)
    with pytest.raises(SourceLost, match="2 offsets expired before they were read"):
        COUNTS.run(str(tmp_path), wr.sources.kafka(kafka, topic, value=VALUE), sink=sink)
    passing = wr.sources.kafka(kafka, topic, value=VALUE, fail_on_data_loss=False)
    running.append(Running(tmp_path, passing, sink=sink))
    until(lambda: len(sink.panes) == 3, *running)
    running[1].stop()
    assert [p.values["n"] for p in sink.panes] == [1, 1, 1]


def test_while_the_sink_refuses_nothing_is_read_and_nothing_is_lost(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path, running: list[Running]
) -> None:
    class Refusing(Panes):
        refuses = True
        asked = 0

        def publish(self, token: wr.Token, panes: Any) -> None:
            self.asked += 1
            if self.refuses:
                raise OSError("not now")
            super().publish(token, panes)

    topic, sink = new_topic(1), Refusing()
    sender.send_rows(topic, [row(1), row(12)])
    running.append(Running(tmp_path, wr.sources.kafka(kafka, topic, value=VALUE), sink=sink))
    until(lambda: sink.asked > 3, *running)
    sender.send_rows(topic, [row(25)])
    sink.refuses = False
    until(lambda: sink.counted == 2, *running)
    running[0].stop()


def test_members_of_a_group_share_partitions_and_take_over_from_who_leaves(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path, running: list[Running]
) -> None:
    """Topic to topic, exactly once: partitions move from one member to two and back, while records come."""
    topic, out = new_topic(4), new_topic(1)
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    sent: Counter[tuple[int, str]] = Counter()

    def send(seconds: range) -> None:
        for partition in range(4):
            rows = [row(s, f"k{partition}") for s in seconds]
            sender.send_rows(topic, rows, partition)
            sent.update((s // 10, f"k{partition}") for s in seconds)

    def published() -> Counter[tuple[int, str]]:
        counts: Counter[tuple[int, str]] = Counter()
        for record in read_all(kafka, out, 0):
            value = json.loads(record.value())
            second = int(value["window"]["start"][17:19]) + 60 * int(value["window"]["start"][14:16])
            counts[second // 10, value["k"]] += value["n"]
        return counts

    def member() -> Running:
        return Running(tmp_path, source, group=f"g-{topic}", sink=wr.sinks.kafka(out, kafka))

    running.append(member())
    send(range(0, 25))
    until(lambda: published().total() >= 4 * 20, *running, pause_s=0.3)
    running.append(member())
    send(range(25, 45))
    until(lambda: published().total() >= 4 * 40, *running, pause_s=0.3)
    running[0].stop()
    send(range(45, 61))
    until(lambda: published().total() >= 4 * 60, running[1], pause_s=0.3)
    running[1].stop()
    assert published() == Counter({at: n for at, n in sent.items() if at[0] < 6})


def test_what_is_there_now_is_read_and_then_it_ends(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    """Though the last offsets are those of a transaction that was aborted, and a partition is empty."""
    topic, sink = new_topic(3), Panes()
    sender.send_rows(topic, [row(1), row(12)], 0)
    sender.transact(topic, [json.dumps(row(2)), json.dumps(row(13))], 1)
    sender.transact(topic, [json.dumps(row(3))], 1, commit=False)
    source = wr.sources.kafka(kafka, topic, value=VALUE)
    for _ in range(2):
        COUNTS.run(str(tmp_path), source, sink=sink, available_now=True, tick="50 milliseconds")
    assert sink.counted == 2


def test_a_partition_that_is_read_first_does_not_make_the_others_late(
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backlog comes partition by partition: the watermark waits for those that hold something and were not seen."""
    monkeypatch.setattr("windrow.runners.embedded.consume.STEP_RECORDS", 2)
    topic = new_topic(3)
    for partition in range(2):
        sender.send_rows(topic, [row(s, f"k{partition}") for s in range(0, 7200, 600)], partition)
    COUNTS.run(
        str(tmp_path), wr.sources.kafka(kafka, topic, value=VALUE), available_now=True, tick="50 milliseconds"
    )
    with COUNTS.open(str(tmp_path)) as op:
        assert op.dead_letters() == []
        assert op.counters["rows"] == 24


def test_a_member_of_a_group_does_not_know_when_all_is_read(kafka: wr.Kafka, tmp_path: Path) -> None:
    with pytest.raises(wr.ConfigurationError, match="group 'g' and available_now"):
        COUNTS.run(str(tmp_path), wr.sources.kafka(kafka, "t", value=VALUE), group="g", available_now=True)


def test_a_group_whose_log_is_one_name_is_refused(kafka: wr.Kafka, tmp_path: Path) -> None:
    with pytest.raises(wr.ConfigurationError, match="one name is one job"):
        COUNTS.run(
            str(tmp_path), wr.sources.kafka(kafka, "t", value=VALUE), group="g", log=wr.kafka_log(kafka, "g")
        )


def test_a_tick_that_is_no_time_is_refused(kafka: wr.Kafka, tmp_path: Path) -> None:
    with pytest.raises(wr.ConfigurationError, match="tick '0 seconds'"):
        COUNTS.run(str(tmp_path), wr.sources.kafka(kafka, "t", value=VALUE), tick="0 seconds")


def test_a_join_and_what_follows_it_read_a_topic_for_each_input(
    kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path
) -> None:
    topics = {"left": new_topic(1), "right": new_topic(2)}
    sources = {n: wr.sources.kafka(kafka, topic, value=VALUE) for n, topic in topics.items()}
    left, right = (wr.Input(name, event_time="t") for name in sources)
    join = wr.Join(left=left, right=right, on="k", within=("0 seconds", "2 seconds"), name="pairs")
    chain = join.then(wr.Aggregate(
        by="k", event_time="left_t", window=wr.tumbling("10 seconds"), agg={"n": wr.count()}, retention="1 hour",
    ))  # fmt: skip
    sender.send_rows(topics["left"], [row(1), row(2, "b"), row(4)])
    sender.send_rows(topics["right"], [row(2)], 0)
    sender.send_rows(topics["right"], [row(6, "b"), row(5)], 1)
    for job in (join, chain):
        location, sink = str(tmp_path / job.name), wr.sinks.memory()
        job.run(location, sources, sink=sink, available_now=True)
        sender.send_rows(topics["right"], [row(6, "a", 7)], 0)
        job.run(location, sources, sink=sink, available_now=True)
        with job.open(location) as op:
            read = {name: sum(offsets.values()) for name, offsets in op.next_offsets().items()}
            assert read == {"left": 3, "right": 4 if job is join else 5}
            assert op.counters["rows"] == sum(read.values())
        if job is join:
            assert sorted((r["left_t"], r["right_t"], r["right_v"]) for r in sink.panes) == [
                (1 * SECOND, 2 * SECOND, 1), (4 * SECOND, 5 * SECOND, 1), (4 * SECOND, 6 * SECOND, 7),
            ]  # fmt: skip


def test_sources_that_are_not_those_of_the_inputs_are_refused(kafka: wr.Kafka, tmp_path: Path) -> None:
    left, right = (wr.Input(name, event_time="t") for name in ("left", "right"))
    join = wr.Join(left=left, right=right, on="k", within=("0 seconds", "2 seconds"))
    one, other = (wr.sources.kafka(kafka, topic, value=VALUE) for topic in ("one", "other"))
    elsewhere = wr.sources.kafka(wr.Kafka("elsewhere:9092"), "else", value=VALUE)
    for source, words in [
        (one, r"\['left', 'right'\].*\['left'\]"),
        ({"left": one, "rihgt": other}, "rihgt"),
        ({"left": one, "right": one}, "topic 'one' is read for several"),
        ({"left": one, "right": elsewhere}, "several clusters"),
    ]:
        with pytest.raises(wr.ConfigurationError, match=words):
            join.run(str(tmp_path), source)  # type: ignore[arg-type]
    with pytest.raises(wr.ConfigurationError, match="would never meet"):
        join.run(str(tmp_path), {"left": one, "right": other}, group="g")
