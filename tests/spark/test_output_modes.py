"""`Emit.append()` and `Emit.update()` give the rows of Spark's own append and update modes, row for row."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import windrow as wr
from tests.deep import usually

from .conftest import at

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True, scope="module")
def one_store(spark: Any) -> Iterator[None]:
    """Spark's own state is in one store: two have the same rows, and cost nearly twice as much."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


WINDOWS = {
    "tumbling": (wr.tumbling("10 seconds"), ("10 seconds",)),
    "hopping": (wr.hopping("10 seconds", "5 seconds"), ("10 seconds", "5 seconds")),
}


def files(seed: int) -> list[list[dict[str, Any]]]:
    """After 1970, where Spark's own watermark begins: files out of order, some rows too late, then two to push on."""
    rng = random.Random(seed)
    batches = [
        [
            {"t": at(1_000_000 + base + rng.uniform(-25, 10)), "k": rng.choice("ab"), "v": rng.randrange(100)}
            for _ in range(rng.randrange(1, 30))
        ]
        for base in range(0, usually(40, deep=60), 10)
    ]
    marker = [{"t": at(1_001_000), "k": "end", "v": 0}]
    return [*batches, marker, marker]


EMITS = {"append": wr.Emit.append(), "update": wr.Emit.update()}


def ours(window: Any) -> list[wr.Aggregate]:
    return [
        wr.Aggregate(
            by="k",
            event_time="t",
            window=window,
            agg={"n": wr.count(), "s": wr.sum("v")},
            watermark="5 seconds",
            retention="1 hour",
            emit=emit,
            name=mode,
        )
        for mode, emit in EMITS.items()
    ]


def theirs(
    spark: Any, feed: Any, tmp_path: Any, window: tuple[str, ...]
) -> tuple[list[Any], Callable[[str], set[Any]]]:
    """A query of each mode, and what one of them has told since it was asked before."""
    rows: dict[str, list[Any]] = {mode: [] for mode in EMITS}
    aggregated = (
        feed.stream(spark)
        .withWatermark("t", "5 seconds")
        .groupBy(F.window("t", *window), "k")
        .agg(F.count("*").alias("n"), F.sum("v").alias("s"))
        .select(F.unix_micros("window.start").alias("w"), "k", "n", "s")
    )

    def query(mode: str) -> Any:
        return (
            aggregated.writeStream.outputMode(mode)
            .foreachBatch(lambda df, _: rows[mode].extend(tuple(r) for r in df.collect()))
            .option("checkpointLocation", str(tmp_path / mode))
            .start()
        )

    def emitted_in(mode: str) -> set[Any]:
        emitted, rows[mode] = rows[mode], []
        return set(emitted)

    return [query(mode) for mode in EMITS], emitted_in


@pytest.mark.parametrize("window", usually(["hopping"], deep=list(WINDOWS)))
@pytest.mark.parametrize("seed", [1])
def test_append_and_update_give_the_rows_of_sparks_modes(
    spark: Any, feed: Any, tmp_path: Any, window: str, seed: int
) -> None:
    """Update batch by batch; append in all, for it is Spark's next batch that tells what one has ended."""
    definition, spans = WINDOWS[window]
    source, sinks = feed(), {mode: wr.sinks.memory() for mode in EMITS}
    function = wr.foreach_batch(ours(definition), str(tmp_path / "state"), sink=sinks)
    query = source.stream(spark).writeStream.foreachBatch(function)
    query = query.option("checkpointLocation", str(tmp_path / "ours")).start()
    queries, they_told = theirs(spark, source, tmp_path, spans)
    got: dict[str, list[set[Any]]] = {mode: [] for mode in EMITS}
    expected: dict[str, list[set[Any]]] = {mode: [] for mode in EMITS}
    for batch in files(seed):
        source.add(batch)
        for one in (query, *queries):
            one.processAllAvailable()
        for mode, sink in sinks.items():
            got[mode].append({(p.window.start_us, p.key["k"], p["n"], p["s"]) for p in sink.panes})
            sink.panes.clear()
            expected[mode].append(they_told(mode))
    for one in (query, *queries):
        one.stop()
    function.close()
    assert got["update"] == expected["update"]
    assert set().union(*got["append"]) == set().union(*expected["append"])
    assert sum(map(len, got["append"])) == sum(map(len, expected["append"])) > 5
    assert sum(map(len, got["update"])) > 20


def test_each_run_with_available_now_emits_what_sparks_own_does(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    """Windows that the last batch of a run closes are emitted by that run, not by the next one."""
    definition, span = WINDOWS["tumbling"]
    source, sink, rows = feed(), wr.sinks.memory(), list[Any]()
    aggregated = (
        source.stream(spark)
        .withWatermark("t", "5 seconds")
        .groupBy(F.window("t", *span), "k")
        .agg(F.count("*").alias("n"), F.sum("v").alias("s"))
        .select(F.unix_micros("window.start").alias("w"), "k", "n", "s")
    )
    theirs = aggregated.writeStream.foreachBatch(lambda df, _: rows.extend(tuple(r) for r in df.collect()))
    theirs = theirs.option("checkpointLocation", str(tmp_path / "theirs"))
    for batch in files(2)[:2]:
        source.add(batch)
        rows.clear()
        sink.panes.clear()
        theirs.trigger(availableNow=True).start().awaitTermination()
        stream = ours(definition)[0].writeStream(source.stream(spark)).sink(sink)
        query = stream.option("checkpointLocation", str(tmp_path / "ours")).trigger(availableNow=True).start()
        query.awaitTermination()
        commits = query.batch.job.progress.commit
        query.awaitTermination()
        assert query.batch.job.progress.commit == commits
        query.stop()
        assert sorted((p.window.start_us, p.key["k"], p["n"], p["s"]) for p in sink.panes) == sorted(rows)
        assert rows


GAP_S = 3
#: Beside the last batches of random ones: what the page says of rows that differ.
DIFFER = [
    [("touch", 1000), ("late", 1001.9)],
    [("late", 1003)],
    [("touch", 1003), ("late", 999.5)],
    [("end", 1100)],
    [("end", 1100)],
]


def session_batches(seed: int) -> list[list[dict[str, Any]]]:
    """Rows with the watermark that they meet: whether their own windows, without a session, are closed by then."""
    rng = random.Random(seed)
    times = [
        [(rng.choice("abcdef"), round(base + rng.uniform(-7, 3), 3)) for _ in range(rng.randrange(5, 16))]
        for base in range(100, 100 + 6 * usually(4, deep=25), 6)
    ]
    batches, watermark = list[list[dict[str, Any]]](), 0.0
    for batch in [*times, *DIFFER]:
        batches.append(
            [
                {"t": at(time), "k": k, "v": int(batch in DIFFER or time + GAP_S > watermark)}
                for k, time in batch
            ]
        )
        watermark = max(watermark, *(time for _, time in batch))
    return batches


def test_append_gives_the_rows_of_sparks_sessions_but_for_those_that_the_page_names(
    spark: Any, feed: Any, tmp_path: Any
) -> None:
    """Rows that are late by themselves are kept from ours, as they would enter open sessions."""
    definition = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.session(f"{GAP_S} seconds"),
        agg={"n": wr.count()},
        where=wr.col("v") > 0,
        watermark="0 seconds",
        retention="1 hour",
        emit=wr.Emit.append(),
    )
    source, sink, theirs = feed(), wr.sinks.memory(), list[Any]()
    function = definition.foreach_batch(str(tmp_path / "state"), sink=sink)
    query = source.stream(spark).writeStream.foreachBatch(function)
    query = query.option("checkpointLocation", str(tmp_path / "ours")).start()
    sessions = (
        source.stream(spark)
        .withWatermark("t", "0 seconds")
        .groupBy(F.session_window("t", f"{GAP_S} seconds").alias("w"), "k")
        .agg(F.count("*").alias("n"))
        .select("k", F.unix_millis("w.start"), F.unix_millis("w.end"), "n")
        .writeStream.outputMode("append")
        .foreachBatch(lambda df, _: theirs.extend(tuple(r) for r in df.collect()))
        .option("checkpointLocation", str(tmp_path / "theirs"))
        .start()
    )
    for batch in session_batches(3):
        source.add(batch)
        query.processAllAvailable()
        sessions.processAllAvailable()
    query.stop()
    sessions.stop()
    function.close()
    first = at(0).timestamp() * 1000
    ours = [(p.key["k"], p.window.start_us // 1000, p.window.end_us // 1000, p["n"]) for p in sink.panes]
    of_windrow, other = (
        [(k, (a - first) / 1000, (b - first) / 1000, n) for k, a, b, n in r] for r in (ours, theirs)
    )
    assert sorted(set(of_windrow) - set(other)) == [("late", 999.5, 1006, 3), ("touch", 1000, 1006, 2)]
    assert sorted(set(other) - set(of_windrow)) == [
        ("late", 1001.9, 1006, 2),
        ("touch", 1000, 1003, 1),
        ("touch", 1003, 1006, 1),
    ]
    assert len(of_windrow) == len(set(of_windrow))
    assert any(a[0] == b[0] and a[1] < b[1] < a[2] < b[2] for a in other for b in other), "some overlap"
