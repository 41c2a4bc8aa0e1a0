"""Operators of rows from topic to topic, alone: each record once, whoever sent it twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.kafka.conftest import Sender
from tests.kafka.test_consume import VALUE, row
from tests.kafka.test_sink import committed
from windrow.testing import ManualClock

ONCE = wr.Deduplicate(by="k", event_time="t", ids="v", within="1 minute", name="once")
#: By the clock of these jobs all that is not guaranteed is too old.
SURE = wr.Deduplicate(
    by="k",
    event_time="t",
    ids="v",
    within="1 minute",
    deliver=wr.deliver.within("1 hour").guarantee(wr.col("v") > 1),
)


class Silence:
    """Tells how many came before three seconds of silence."""

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> None:
        if "due" in state:
            timers.cancel(state["due"])
        state["n"], state["due"] = state.get("n", 0) + 1, timers.time + timedelta(seconds=3)
        timers.set(state["due"])

    def on_timer(self, key: Any, at: Any, state: Any, timers: Any) -> dict[str, Any]:
        n = state["n"]
        state.clear()
        return {"n": n}


NEAR = wr.Over(by="k", event_time="t", agg={"n": wr.sum("v").over("2 seconds")}, select=())
LISTED = wr.JoinWindow(
    by="k", event_time="t", window=wr.session("3 seconds"), retention="1 hour", emit=wr.Emit(early=wr.never)
)
SILENCE = wr.Process(by="k", event_time="t", function=Silence, emits={"n": pa.int64()}, ttl="1 hour")


@pytest.mark.parametrize(
    ("definition", "wanted"),
    [
        pytest.param(ONCE, [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 9), ("c", 7)], id="deduplicate"),
        pytest.param(SILENCE, [("a", 3), ("a", 5), ("b", 1)], id="process"),
        pytest.param(
            NEAR,
            [("a", n) for n in (0, 2, 2, 5, 5, 5, 8, 11)] + [("b", 9), ("c", 14), ("c", 14)],
            id="over",
        ),
        pytest.param(
            LISTED,
            [("a", n) for n in (0, 1, 1, 1, 2, 2, 3, 3)] + [("b", 9), ("c", 7), ("c", 7)],
            id="join window",
        ),
        pytest.param(SURE, [("a", 2), ("a", 3), ("b", 9), ("c", 7)], id="delivery policy"),
        pytest.param(ONCE.then(SILENCE), [("a", 2), ("a", 2), ("b", 1), ("c", 1)], id="one after the other"),
    ],
)
def test_what_comes_on_a_topic_is_sent_to_a_topic_once(
    definition: Any,
    wanted: list[Any],
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
) -> None:
    topic, out, dead = new_topic(2), new_topic(1), new_topic(1)
    source = wr.sources.kafka(kafka, topic, value=VALUE)

    def run() -> None:
        sink = wr.sinks.kafka(out, kafka)
        letters = wr.sinks.kafka(dead, kafka)
        definition.run(
            str(tmp_path), source, sink=sink, dead_letters=letters, available_now=True, clock=ManualClock()
        )

    def later(second: int) -> None:
        """Both partitions come to this time."""
        for partition in (0, 1):
            sender.send_rows(topic, [row(second, "c", 7)], partition)

    sender.send_rows(topic, [row(1, v=0), row(2, v=1), row(2, v=1)])
    sender.send_rows(topic, [row(1, "b", 9)], 1)
    run()
    later(6)
    run()
    sender.send_rows(topic, [row(10, v=1), row(10, v=2), row(10, v=2), row(11, v=3), row(12, v=3)])
    sender.send(topic, ["[]"], 1)
    later(40)
    run()
    sender.send_rows(topic, [row(40, v=0)])
    run()
    emitted = sorted((v["k"], v.get("v", v.get("n"))) for _, v in committed(kafka, out))
    assert emitted == wanted and len(committed(kafka, dead)) == 1


BOTH = wr.CoGroup(
    inputs=(wr.Input("a", event_time="t"), wr.Input("b", event_time="t")),
    by="k",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count(), "a": wr.sum("v").of("a"), "b": wr.sum("v").of("b")},
    retention="1 hour",
)
AROUND = wr.Over(
    by="k", event_time="t", input="a", anchors=wr.Input("b", event_time="t"), frame=("-3 seconds", 0),
    agg={"a": wr.sum("v")}, emit=wr.Emit(late=wr.every_batch, mode="retracting"), allowed_lateness="1 minute",
)  # fmt: skip

FIVE = (0, "5 seconds")
RULES = wr.Rules(
    by="k",
    inputs=[wr.Input("a", event_time="t"), wr.Input("b", event_time="t")],
    rules={
        "pair": wr.Rule(
            when={"x": wr.event("a"), "y": wr.event("b", time=wr.after("x", *FIVE))},
            then={"v": wr.col("x.v"), "w": wr.col("y.v")},
        ),
        "alone": wr.Rule(
            when={"y": wr.event("b"), "no": wr.absent("a", time=wr.before("y", *FIVE))},
            then={"v": wr.col("y.v"), "w": wr.lit(0)},
        ),
    },
    emit=wr.Emit(late=wr.every_batch, mode="retracting"),
    allowed_lateness="1 minute",
)


@pytest.mark.parametrize(
    ("both", "columns", "wanted"),
    [
        pytest.param(BOTH, "k n a b", [("a", 4, 6, 40), ("b", 1, 0, 20)], id="aggregate"),
        # The first row of the first anchor, this one taken back, and the one in its place.
        pytest.param(
            AROUND,
            "k v a",
            [("a", 10, 1), ("a", 10, 1), ("a", 10, 6), ("a", 30, 6), ("b", 20, 0)],
            id="anchors",
        ),
        pytest.param(
            RULES,
            "rule v w",
            [("alone", 20, 0), *(("pair", v, w) for v, w in ((1, 1), (1, 10), (1, 30), (5, 10), (5, 30)))],
            id="rules",
        ),
    ],
)
def test_several_topics_go_to_one_operator(
    both: Any,
    columns: str,
    wanted: list[Any],
    kafka: wr.Kafka,
    new_topic: Callable[..., str],
    sender: Sender,
    tmp_path: Path,
) -> None:
    topics, out = {"a": new_topic(1), "b": new_topic(1)}, new_topic(1)

    def run(**rows: list[dict[str, Any]]) -> None:
        for name, sent in rows.items():
            sender.send_rows(topics[name], sent)
        sources = {name: wr.sources.kafka(kafka, topic, value=VALUE) for name, topic in topics.items()}
        sink = wr.sinks.kafka(out, kafka)
        both.run(str(tmp_path), sources, sink=sink, available_now=True, clock=ManualClock())

    run(a=[row(1, v=1), row(12)], b=[row(2, v=10), row(3, "b", 20)])
    run(a=[row(2, v=5)])
    run(b=[row(4, v=30), row(15)])
    emitted = sorted(tuple(v[name] for name in columns.split()) for _, v in committed(kafka, out))
    assert emitted == wanted
