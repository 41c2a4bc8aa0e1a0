"""Deduplication and process functions in a running query: alone, and before and after an aggregate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.operators.three_in_chain import CHAIN

from .conftest import at

pytestmark = pytest.mark.spark


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


def test_a_query_of_three_operators_emits_what_they_emit_embedded(
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
    with wr.read_state(str(tmp_path / "c" / "windrow"), definition=CHAIN) as state:
        assert state.table("state", operator="growth").num_rows == 3
    source.add(rows(3))
    start().drain()
    twins = {name: wr.sinks.memory() for name in names}
    with CHAIN.open(str(tmp_path / "twin"), sink=twins) as op:
        for part in range(4):
            op.add_messages(rows(part))
        op.drain()
    assert {n: said(s.panes) for n, s in sinks.items()} == {n: said(s.panes) for n, s in twins.items()}
    assert [len(sinks[n].panes) > least for n, least in zip(names, (79, 20, 40), strict=True)] == 3 * [True]


def test_a_query_emits_the_windows_around_messages_that_are_emitted_embedded(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    near = wr.Over(
        by="k",
        event_time="t",
        frame=wr.range_between("-2 seconds", "1 second"),
        agg={"near": wr.sum("v"), "last": wr.avg("v").over(3), "so_far": wr.count().over()},
        ttl="1 minute",
    )
    source, sink, twin = feed(), wr.sinks.memory(), wr.sinks.memory()

    def start() -> Any:
        writer = near.writeStream(source.stream(spark)).sink(sink).option("shards", 2)
        return writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    source.add(rows(0))
    start().awaitTermination()
    before = len(sink.panes)
    source.add(rows(1))
    start().drain()
    with near.open(str(tmp_path / "twin"), sink=twin) as op:
        for part in range(2):
            op.add_messages(rows(part))
        op.drain()
    assert said(sink.panes) == said(twin.panes)
    assert (before < len(sink.panes), len(sink.panes)) == (True, 48)


def test_a_query_of_several_inputs_emits_what_they_emit_embedded(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    both = wr.CoGroup(
        inputs=(wr.Input("a", event_time="t"), wr.Input("b", event_time="at", by="key")),
        by="k",
        window=wr.session("2 seconds"),
        agg={"n": wr.count(), "sum": wr.sum("v").of("a"), "list": wr.collect_list(wr.col("v") * 2).of("b")},
        retention="1 minute",
    )
    theirs = pa.schema([("at", pa.timestamp("us", "UTC")), ("key", pa.string()), ("v", pa.int64())])
    sources, sink, twin = {"a": feed("a"), "b": feed("b", theirs)}, wr.sinks.memory(), wr.sinks.memory()

    def inputs_of(part: int) -> dict[str, list[dict[str, Any]]]:
        sent = rows(part)
        return {"a": sent[::2], "b": [{"at": r["t"], "key": r["k"], "v": r["v"]} for r in sent[1::2]]}

    def start() -> Any:
        frames = {name: source.stream(spark) for name, source in sources.items()}
        writer = both.writeStream(**frames).sink(sink).option("shards", 2)
        return writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    for part in range(2):
        for name, sent in inputs_of(part).items():
            sources[name].add(sent)
        start().awaitTermination() if part == 0 else start().drain()
    with both.open(str(tmp_path / "twin"), sink=twin) as op:
        for part in range(2):
            op.add_messages(inputs_of(part))
        op.drain()
    assert said(sink.panes) == said(twin.panes) and len(sink.panes) > 5


def test_spark_skips_what_the_embedded_operator_skips(spark: Any, tmp_path: Path) -> None:
    totals = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), watermark=wr.explicit(), retention="1 minute",
        agg={"n": wr.count(), "v": wr.sum("v"), "missed": wr.skipped()},
        deliver=wr.deliver.newest(2).guarantee(wr.col("v") == 0).marked(),
    )  # fmt: skip
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64())])
    table = pa.Table.from_pylist(rows(0), schema)
    with totals.open(str(tmp_path)) as op:
        op.add_messages(table)
        op.drain()
        wanted = op.result_table()
        assert op.counters["skipped"] > 0
    emitted = totals.apply(spark.createDataFrame(table)).toArrow()
    names = ("k", "n", "v", "missed")
    actual, wanted = (sorted(tuple(r[n] for n in names) for r in t.to_pylist()) for t in (emitted, wanted))
    assert actual == wanted
    marked = wr.Delivery(
        by="k", event_time="t", policy=wr.deliver.latest(), mark="skipped", watermark=wr.explicit()
    )
    emitted = marked.apply(spark.createDataFrame(table)).toArrow().to_pylist()
    assert (
        len(emitted) - sum(row["skipped"] for row in emitted)
        == len({row["k"] for row in emitted})
        < len(emitted)
    )


def test_an_alert_reads_its_history_with_the_first_commit_of_a_query(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    """Give three samples of 90 each as history of `a`, and one batch a run; a query that starts again reads no history."""
    definition = wr.Alert(
        by="k",
        event_time="t",
        frame="1 minute",
        agg={"n": wr.count(), "mean": wr.avg("v")},
        when=wr.col("mean") > 50,
        input="live",
        history="past",
    )
    source, sink = feed(), wr.sinks.memory()
    past = pa.Table.from_pylist([{"t": at(i), "k": "a", "v": 90} for i in range(3)], source.schema)
    for batch in (
        [{"t": at(30), "k": "a", "v": 10}, {"t": at(30), "k": "b", "v": 60}],
        [{"t": at(90), "k": "a", "v": 0}],
    ):
        source.add(batch)
        writer = definition.writeStream(live=source.stream(spark), past=spark.createDataFrame(past)).sink(
            sink
        )
        writer = writer.option("checkpointLocation", str(tmp_path / "c")).option("shards", 2)
        writer.trigger(availableNow=True).start().awaitTermination()
    transitions = sorted((row["k"], row["status"], row["n"], row["mean"]) for row in sink.panes)
    assert transitions == [("a", "CANCEL", 2, 50.0), ("a", "OPEN", 4, 70.0), ("b", "OPEN", 1, 60.0)]
