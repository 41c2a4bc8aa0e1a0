"""Shards that lost their messages read their topics again: keyed streams each its own partitions, others as a frame."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.deep import usually
from tests.filed import messages_of
from tests.kafka.conftest import Sender, keyed
from tests.kafka.test_again import DEFINITIONS, VALUE, define, row, send
from windrow.testing.clock import ManualClock

TUPLES = define(
    window=wr.tuples(3, step=2),
    retention=wr.Retain(windows=4),
    allowed_lateness=None,
    emit=wr.Emit(early=wr.every_batch),
    name="tuples",
)
COUNTS = define(agg={"n": wr.count()}, name="counts")
ONE, SEVERAL = [DEFINITIONS["hopping"]], [define(), TUPLES, COUNTS]


def run(definitions: list[wr.Aggregate], place: Path, source: Any) -> list[Any]:
    """All that is there. The panes that it told."""
    sink = wr.sinks.memory()
    writer = (
        wr.writeStream(definitions, source)
        .sink({d.name: sink for d in definitions})
        .option("checkpointLocation", str(place))
        .option("shards", 2)
        .clock(ManualClock())
        .trigger(availableNow=True)
    )
    query = writer.start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return sorted(sink.panes, key=repr)


def lose(place: Path) -> None:
    for folder in ("local", "snapshots", "segments"):
        shutil.rmtree(place / "windrow" / folder)


@pytest.mark.parametrize(
    ("definitions", "keyed"),
    usually(
        [
            pytest.param(SEVERAL, False, id="several operators-any partition"),
            pytest.param(ONE, True, id="one operator-keyed"),
        ],
        deep=[
            pytest.param(
                definitions, keyed, id=f"{len(definitions)} operators-{'keyed' if keyed else 'any partition'}"
            )
            for definitions in (ONE, SEVERAL)
            for keyed in (False, True)
        ],
    ),
)
def test_shards_that_lost_their_messages_read_the_topic_again(
    definitions: list[wr.Aggregate],
    keyed: bool,
    spark: Any,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
) -> None:
    topic = new_topic(2)
    # Two commits a query.
    source = wr.sources.kafka(kafka, topic, value=VALUE, keyed=keyed, max_offsets=40)
    job, twin = tmp_path / "job", tmp_path / "twin"
    for first in range(0, 60, 30):
        send(sender, topic, range(first, first + 30))
    run(definitions, job, source)
    shutil.copytree(job, twin)
    lose(job)
    send(sender, topic, range(60, 75))
    emitted = [run(definitions, place, source) for place in (job, twin)]
    stores = [messages_of(place / "windrow", definitions) for place in (job, twin)]
    assert stores[0] == stores[1]
    assert all(len(pairs) > 3 for (_, cf), pairs in stores[0].items() if cf.endswith(".messages"))
    assert emitted[0] == emitted[1]
    assert len(emitted[0]) > 3


@keyed(True)
def test_what_the_topic_no_longer_has_is_refused_naming_it(
    keyed: bool,
    spark: Any,
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    expire: Callable[[str, int, int], None],
    tmp_path: Path,
) -> None:
    topic = new_topic(1)
    source = wr.sources.kafka(kafka, topic, value=VALUE, keyed=keyed)
    sender.send(topic, [row(i) for i in range(20)])
    run([define()], tmp_path, source)
    lose(tmp_path)
    expire(topic, 0, 8)
    sender.send(topic, [row(20)])
    with pytest.raises(Exception, match=rf"\[0, 20\) of '{topic}@.*'/0 is needed, the broker has \[8, 21\)"):
        run([define()], tmp_path, source)


def test_a_replay_next_to_a_topic_that_is_its_own_is_refused(kafka: wr.Kafka) -> None:
    writer = define().writeStream(wr.sources.kafka(kafka, "t", value=VALUE))
    with pytest.raises(wr.ConfigurationError, match=r"read again by windrow itself: leave replay"):
        writer.replay(lambda: None)
