"""Deduplication and process functions in a running query: alone, and before and after an aggregate."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr

from .conftest import at

pytestmark = pytest.mark.spark

ONCE = wr.Deduplicate(
    by="k", event_time="t", ids="v", within="20 seconds", watermark="5 seconds", name="once"
)
FIVES = wr.Aggregate(
    by="k", event_time="t", window=wr.tumbling("5 seconds"), agg={"n": wr.count(), "mid": wr.median("v")},
    retention="1 minute", emit=wr.Emit.append(), name="fives",
)  # fmt: skip


class Growth:
    """How much more than the last time; and when nothing came for ten seconds."""

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> dict[str, Any]:
        before = state.get("n", 0)
        state["n"] = message["n"]
        timers.set(timers.time + timedelta(seconds=10))
        return {"what": "more", "n": message["n"] - before}

    def on_timer(self, key: Any, at: Any, state: Any, timers: Any) -> dict[str, Any]:
        return {"what": "timer", "n": state["n"]}


GROWTH = wr.Process(
    by="k", event_time="window_time", function=Growth, emits={"what": pa.string(), "n": pa.int64()}, ttl="1 hour",
    name="growth",
)  # fmt: skip
CHAIN = wr.chain(ONCE, FIVES, GROWTH)


def rows(part: int) -> list[dict[str, Any]]:
    """In order of time, every third one twice."""
    made = []
    for i in range(20 * part, 20 * part + 20):
        one = {"t": at(i / 2), "k": "abcde"[i * i % 5], "v": i}
        made += [one, one] if i % 3 == 0 else [one]
    return made


def said(rows: list[Any]) -> list[str]:
    """Without when it was told: batches are cut otherwise."""
    return sorted(repr(getattr(r, "key", "")) + repr(r.values) for r in rows)


@pytest.mark.proves(
    "Operators: deduplication and process functions in a streaming query on Spark, alone and in chains"
)
def test_a_query_of_three_operators_tells_what_they_tell_embedded(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    source, names = feed(), [p.name for p in CHAIN.parts]
    sinks = {name: wr.sinks.memory() for name in names}
    for part in range(3):
        source.add(rows(part))

    def start() -> Any:
        writer = CHAIN.writeStream(source.stream(spark)).sink(sinks).option("shards", 2)
        return writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    start().awaitTermination()
    source.add(rows(3))
    start().drain()
    with wr.read_state(str(tmp_path / "c" / "windrow"), definition=CHAIN) as state:
        assert state.table("state", operator="growth").num_rows == 3
    twins = {name: wr.sinks.memory() for name in names}
    with CHAIN.open(str(tmp_path / "twin"), sink=twins) as op:
        for part in range(4):
            op.add_messages(rows(part))
        op.drain()
    assert {n: said(s.panes) for n, s in sinks.items()} == {n: said(s.panes) for n, s in twins.items()}
    assert [len(sinks[n].panes) > least for n, least in zip(names, (79, 20, 40), strict=True)] == 3 * [True]
