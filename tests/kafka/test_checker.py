"""The checker of topics: it says that what is right is right, and finds what is removed, doubled or altered."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.kafka.conftest import Sender
from windrow.connectors.kafka.reading import Fetched
from windrow.connectors.kafka.sink import read_all
from windrow.testing import Report, check_topics


def definition(window: Any, emit: Any) -> Any:
    return wr.Aggregate(
        by="k",
        event_time="t",
        window=window,
        agg={"n": wr.count(), "mean": wr.avg("v"), "first": wr.min("t")},
        watermark="5 seconds",
        retention=wr.forever,
        emit=emit,
    )


WINDOW = wr.tumbling("10 seconds")
DEFINITION = definition(WINDOW, wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting"))
VALUE = wr.decoders.json({"t": pa.timestamp("us", "UTC"), "k": pa.string(), "v": pa.float64()})


def value(second: int, k: str) -> str:
    return json.dumps({"t": f"2020-01-01T00:{second // 60:02d}:{second % 60:02d}Z", "k": k, "v": second / 3})


@pytest.fixture
def job(kafka: wr.Kafka, new_topic: Callable[..., str], sender: Sender, tmp_path: Path) -> tuple[Any, Any]:
    """A drained job of two runs, with late records, an aborted transaction and one record that is no JSON."""
    topic, out = new_topic(2), new_topic(2)
    source, sink = wr.sources.kafka(kafka, topic, value=VALUE), wr.sinks.kafka(out, kafka)
    for seconds in (range(0, 25), range(5, 60, 3)):
        for partition, k in enumerate("ab"):
            sender.send(topic, [value(s, k) for s in seconds], partition)
        sender.send(topic, ["}"])
        sender.transact(topic, [value(s, "never") for s in range(5)], commit=False)
        with DEFINITION.open(str(tmp_path), sink=sink) as op:
            for partition in (0, 1):
                begin = source.begin(op.next_offsets(), _cluster(kafka))[topic]
                records = [
                    r for r in read_all(kafka, topic, partition) if r.offset() >= begin.next[partition]
                ]
                fetched = Fetched(source.attributes)
                fetched.add(records)
                op.add_messages(source.rows(fetched, topic, begin.id, partition))
    with DEFINITION.open(str(tmp_path), sink=sink) as op:
        op.drain()
    return source, sink


def _cluster(kafka: wr.Kafka) -> Any:
    from windrow.connectors.kafka.source_metadata import Cluster

    return Cluster(kafka)


def test_a_drained_job_is_right(job: tuple[Any, Any]) -> None:
    report = check_topics(DEFINITION, *job)
    assert report.ok, str(report)
    assert report.records_in == 2 * (25 + 19) + 2
    assert report.set_aside == 2
    assert report.windows == 12
    assert report.panes_out > 12
    assert str(report).startswith("right: 90 records in, 2 of them set aside;")


def written(sink: Any) -> list[list[Any]]:
    """The rows of the topic, by partition."""
    return [
        [json.loads(r.value()) for r in read_all(sink.kafka, sink.topic, p)]
        for p in sink.kafka.partitions(sink.topic)
    ]


def rewritten(
    job: tuple[Any, Any], sender: Sender, new_topic: Callable[..., str], change: Callable[[list[Any]], None]
) -> Report:
    """The report on a copy of the topic with other rows and the same tokens."""
    source, sink = job
    copy = wr.sinks.kafka(new_topic(1), sink.kafka, tokens=sink.tokens)
    rows = [row for partition in written(sink) for row in partition]
    change(rows)
    sender.send_rows(copy.topic, rows)
    return check_topics(DEFINITION, source, copy)


def find(rows: Sequence[Any], kind: str, index: int) -> Any:
    return next(r for r in rows if (r["pane"]["kind"], r["pane"]["index"]) == (kind, index))


def final(rows: Sequence[Any]) -> Any:
    return max((r for r in rows if r["pane"]["kind"] == "INSERT"), key=lambda r: r["pane"]["index"])


def test_a_row_that_is_removed_is_found(
    job: tuple[Any, Any], sender: Sender, new_topic: Callable[..., str]
) -> None:
    report = rewritten(job, sender, new_topic, lambda rows: rows.remove(find(rows, "INSERT", 0)))
    assert not report.ok
    assert any("rows of commit" in line for line in report.lost)
    assert any("INSERT 0 of" in line for line in report.lost)
    assert "lost: " in str(report)


def test_a_result_that_is_removed_is_found(
    job: tuple[Any, Any], sender: Sender, new_topic: Callable[..., str]
) -> None:
    report = rewritten(job, sender, new_topic, lambda rows: rows.remove(final(rows)))
    assert any("the result of" in line for line in report.lost)


def test_a_row_that_is_there_twice_is_found(
    job: tuple[Any, Any], sender: Sender, new_topic: Callable[..., str]
) -> None:
    report = rewritten(job, sender, new_topic, lambda rows: rows.append(find(rows, "INSERT", 0)))
    assert any("INSERT 0 of" in line for line in report.twice)
    assert any("its token counts" in line for line in report.twice)


def test_a_row_of_another_commit_too_is_found(
    job: tuple[Any, Any], sender: Sender, new_topic: Callable[..., str]
) -> None:
    def again(rows: list[Any]) -> None:
        rows.append({**find(rows, "INSERT", 0), "commit": 1_000})

    report = rewritten(job, sender, new_topic, again)
    assert any("in commit 1000" in line for line in report.twice)
    assert report.broken == ["commit 1000 has rows and no token"]


def test_a_retraction_that_is_removed_is_found(
    job: tuple[Any, Any], sender: Sender, new_topic: Callable[..., str]
) -> None:
    report = rewritten(job, sender, new_topic, lambda rows: rows.remove(find(rows, "RETRACT", 0)))
    assert any("is current" in line for line in report.broken)


def test_a_wrong_result_and_one_of_nothing_are_found(
    job: tuple[Any, Any], sender: Sender, new_topic: Callable[..., str]
) -> None:
    def alter(rows: list[Any]) -> None:
        rows.append({**find(rows, "INSERT", 0), "k": "c"})
        final(rows)["n"] += 1

    report = rewritten(job, sender, new_topic, alter)
    assert len(report.wrong) == 1
    assert len(report.unknown) == 1


def test_what_topics_cannot_show_is_refused(kafka: wr.Kafka) -> None:
    source, sink = wr.sources.kafka(kafka, "t", value=VALUE), wr.sinks.kafka("o", kafka)
    discarding = definition(WINDOW, wr.Emit(mode="discarding"))
    with pytest.raises(wr.ConfigurationError, match="need not be all of it"):
        check_topics(discarding, source, sink)
    tuples = definition(wr.tuples(3), wr.Emit())
    with pytest.raises(wr.ConfigurationError, match="order of arrival"):
        check_topics(tuples, source, sink)
    with pytest.raises(wr.ConfigurationError, match="every pane as JSON"):
        check_topics(DEFINITION, source, wr.sinks.kafka("o", kafka, mode="upsert"))
