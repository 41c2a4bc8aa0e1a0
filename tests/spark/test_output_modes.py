"""`Emit.append()` and `Emit.update()` give the rows of Spark's own append and update modes, row for row."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import functions as F

import windrow as wr
from tests.deep import usually

from .conftest import at

pytestmark = pytest.mark.spark

WINDOWS = {
    "tumbling": (wr.tumbling("10 seconds"), ("10 seconds",)),
    "hopping": (wr.hopping("10 seconds", "5 seconds"), ("10 seconds", "5 seconds")),
}


def files(seed: int) -> list[list[dict[str, Any]]]:
    """After 1970, where Spark's own watermark begins: six files out of order, some rows too late, then two to push on."""
    rng = random.Random(seed)
    batches = [
        [
            {"t": at(1_000_000 + base + rng.uniform(-25, 10)), "k": rng.choice("ab"), "v": rng.randrange(100)}
            for _ in range(rng.randrange(1, 30))
        ]
        for base in range(0, 60, 10)
    ]
    marker = [{"t": at(1_001_000), "k": "end", "v": 0}]
    return [*batches, marker, marker]


def ours(spark: Any, feed: Any, tmp_path: Any, mode: str, window: Any, batches: Any) -> list[set[Any]]:
    definition = wr.Aggregate(
        by="k",
        event_time="t",
        window=window,
        agg={"n": wr.count(), "s": wr.sum("v")},
        watermark="5 seconds",
        retention="1 hour",
        emit=wr.Emit.append() if mode == "append" else wr.Emit.update(),
    )
    sink = wr.sinks.memory()
    function = definition.foreach_batch(str(tmp_path / "state"), sink=sink)
    query = feed.stream(spark).writeStream.foreachBatch(function)
    query = query.option("checkpointLocation", str(tmp_path / "ours")).start()
    told: list[set[Any]] = []
    for batch in batches:
        feed.add(batch)
        before = len(sink.panes)
        query.processAllAvailable()
        told.append({(p.window.start_us, p.key["k"], p["n"], p["s"]) for p in sink.panes[before:]})
    query.stop()
    function.close()
    return told


def theirs(
    spark: Any, feed: Any, tmp_path: Any, mode: str, window: tuple[str, ...], batches: Any
) -> list[set[Any]]:
    told: list[set[Any]] = []
    rows: list[Any] = []
    aggregated = (
        feed.stream(spark)
        .withWatermark("t", "5 seconds")
        .groupBy(F.window("t", *window), "k")
        .agg(F.count("*").alias("n"), F.sum("v").alias("s"))
        .select(F.unix_micros("window.start").alias("w"), "k", "n", "s")
    )
    query = (
        aggregated.writeStream.outputMode(mode)
        .foreachBatch(lambda df, _: rows.extend(tuple(r) for r in df.collect()))
        .option("checkpointLocation", str(tmp_path / "theirs"))
        .start()
    )
    for batch in batches:
        feed.add(batch)
        before = len(rows)
        query.processAllAvailable()
        told.append(set(rows[before:]))
    query.stop()
    return told


@pytest.mark.proves("Emission: rows of Spark's append mode")
@pytest.mark.parametrize("window", usually(["hopping"], deep=list(WINDOWS)))
@pytest.mark.parametrize("seed", [1])
def test_append_gives_the_rows_of_sparks_append_mode(
    spark: Any, feed: Any, tmp_path: Any, window: str, seed: int
) -> None:
    batches = files(seed)
    mine, spans = WINDOWS[window]
    got = ours(spark, feed("a"), tmp_path, "append", mine, batches)
    expected = theirs(spark, feed("b"), tmp_path, "append", spans, batches)
    assert set().union(*got) == set().union(*expected)
    assert sum(map(len, got)) == sum(map(len, expected)) > 5


@pytest.mark.proves("Emission: rows of Spark's update mode")
@pytest.mark.parametrize("window", usually(["hopping"], deep=list(WINDOWS)))
@pytest.mark.parametrize("seed", [1])
def test_update_gives_the_rows_of_sparks_update_mode_batch_by_batch(
    spark: Any, feed: Any, tmp_path: Any, window: str, seed: int
) -> None:
    batches = files(seed)
    mine, spans = WINDOWS[window]
    got = ours(spark, feed("a"), tmp_path, "update", mine, batches)
    expected = theirs(spark, feed("b"), tmp_path, "update", spans, batches)
    assert got == expected
    assert sum(map(len, got)) > 20
