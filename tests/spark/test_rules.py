"""Rules in a running query: events that are stamped, absences, and facts that go with every partition."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr

from .conftest import at

pytestmark = pytest.mark.spark

TIME = pa.timestamp("us", "UTC")
SCHEMAS = {
    "orders": pa.schema([("t", TIME), ("k", pa.string()), ("v", pa.int64())]),
    "acks": pa.schema([("t", TIME), ("k", pa.string())]),
    "clicks": pa.schema([("k", pa.string()), ("v", pa.int64())]),
    "limits": pa.schema([("id", pa.int64()), ("most", pa.int64()), ("gone", pa.string())]),
    "names": pa.schema([("k", pa.string()), ("name", pa.string())]),
}
RULES = wr.Rules(
    by="k",
    inputs=[
        wr.Input("orders", event_time="t"),
        wr.Input("acks", event_time="t"),
        wr.Input("clicks", event_time=None),
        wr.Table("limits", key="id", by=(), deleted="gone"),
        wr.Table("names", key="k"),
    ],
    rules={
        "pair": wr.Rule(
            when={"o": wr.event("orders"), "a": wr.event("acks", time=wr.after("o", 0, "5 seconds"))},
            then={"v": wr.col("o.v")},
        ),
        "unanswered": wr.Rule(
            when={"o": wr.event("orders"), "no": wr.absent("acks", time=wr.after("o", 0, "5 seconds"))},
            then={"v": wr.col("o.v")},
        ),
        "above": wr.Rule(
            when={
                "c": wr.event("clicks"),
                "limit": wr.fact("limits", where=wr.col("most") < wr.col("c.v")),
                "named": wr.fact("names"),
            },
            then={"v": wr.col("c.v"), "most": wr.col("limit.most"), "name": wr.col("named.name")},
        ),
    },
)
FACTS: dict[str, list[dict[str, Any]]] = {
    "limits": [
        {"id": 1, "most": 3, "gone": "false"},
        {"id": 2, "most": 15, "gone": None},
        {"id": 3, "most": 0, "gone": "true"},
        {"id": 4, "most": 0, "gone": "maybe"},
    ],
    "names": [{"k": k, "name": k.upper()} for k in "abcde"],
}


def events(part: int) -> dict[str, list[dict[str, Any]]]:
    numbers = range(20 * part, 20 * part + 20)
    orders = [{"t": at(i / 2), "k": "abcdefgh"[i * i % 7], "v": i} for i in numbers]
    acks = [{"t": at(i / 2 + 2), "k": "abcdefgh"[i * i % 7]} for i in numbers if i % 3]
    return {"orders": orders, "acks": acks, "clicks": [{"k": row["k"], "v": row["v"] % 20} for row in orders]}


def values(panes: list[Any]) -> list[str]:
    """Rows without the moments that depend on how batches are cut."""
    left = ("match_time", "match_id", "messages")
    return sorted(repr({n: v for n, v in row.values.items() if n not in left}) for row in panes)


def test_a_query_of_rules_emits_what_they_emit_embedded_and_counts_copied_facts_once(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    sources = {name: feed(name, schema) for name, schema in SCHEMAS.items() if name not in FACTS}
    sink, twin = wr.sinks.memory(), wr.sinks.memory()
    facts = {name: spark.createDataFrame(pa.Table.from_pylist(FACTS[name], SCHEMAS[name])) for name in FACTS}

    def start() -> Any:
        frames = {name: source.stream(spark) for name, source in sources.items()}
        writer = RULES.writeStream(**frames, **facts).sink(sink).option("shards", 3)
        return writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    for part in range(2):
        for name, rows in events(part).items():
            sources[name].add(rows)
        query = start()
        query.awaitTermination() if part == 0 else query.drain()
    with RULES.open(str(tmp_path / "twin"), sink=twin) as op:
        op.add_messages(FACTS)
        for part in range(2):
            op.add_messages(events(part))
        op.drain()
        wanted = Counter((letter.reason, letter.input) for letter in op.dead_letters())
    assert values(sink.panes) == values(twin.panes)
    assert Counter(row.values["rule"] for row in sink.panes).keys() == RULES.rules.keys()
    with wr.read_state(str(tmp_path / "c" / "windrow"), definition=RULES) as state:
        letters = Counter((letter.reason, letter.input) for letter in state.dead_letters())
        rows = sum(commit.steps[-1].rows for commit in state.commits())
    assert letters == wanted == {("malformed", "limits"): 1}
    sent = [*FACTS.values(), *(rows for part in range(2) for rows in events(part).values())]
    assert rows == sum(map(len, sent))
