"""A small job on Spark: two operators on two shards, one pre-aggregated by Spark, one fed with rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import windrow as wr
from tests.golden.jobs import FIRST, SECOND, aggregate, plain, row
from windrow.testing import ManualClock

SPARK = "spark"
TOGETHER = 16
NUMBERS = {name: pa.int64() for name in ("x", "id", "offset", "part")}
SCHEMA = pa.schema(
    {"t": pa.timestamp("us", "UTC"), "k": pa.string(), "f": pa.float64(), "s": pa.string(), **NUMBERS}
)


def operators() -> list[Any]:
    places: dict[str, Any] = {"positions": wr.positions("offset", partition="part")}
    return [
        aggregate(agg={"n": wr.count(), "total": wr.sum("x"), "mean": wr.avg("f")}, name="sums", **places),
        aggregate(agg={"middle": wr.median("x"), "texts": wr.collect_list("s")}, name="texts", **places),
    ]


def run(spark: Any, location: str, numbers: range, first_batch: int) -> list[list[Any]]:
    """The messages of these numbers, a batch every few. What was told."""
    clock, sinks = ManualClock(), {d.name: wr.sinks.memory() for d in operators()}
    clock.advance(f"{numbers.start} seconds")
    function = wr.foreach_batch(operators(), location, sink=sinks, shards=2, clock=clock)
    for batch, at in enumerate(range(numbers.start, numbers.stop, TOGETHER), first_batch):
        rows = [{**row(i), "offset": i, "part": 0} for i in range(at, at + TOGETHER)]
        function(spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA)), batch)
        clock.advance("3 seconds")
    function.close()
    return sorted(
        (
            [name, plain(p.window), plain(p.key), p.timing.value, p.index, p.commit, plain(p.values)]
            for name, sink in sinks.items()
            for p in sink.panes
        ),
        key=repr,
    )


def state_of(location: str) -> dict[str, Any]:
    """What a reader answers, without Spark."""
    with wr.read_state(location) as state:
        found: dict[str, Any] = {"commit": state.commit, "watermarks": dict(state.watermarks)}
        for name in state.operators:
            found[f"{name}.windows"] = plain(state.get_windows(operator=name))
            found[f"{name}.panes"] = len(state.panes(name))
        found["texts.messages"] = plain(state.get_messages(operator="texts"))
        return found


def begin_on_spark(spark: Any, location: str) -> dict[str, Any]:
    run(spark, location, FIRST, 0)
    return state_of(location)


def go_on_on_spark(spark: Any, location: str) -> dict[str, Any]:
    told = run(spark, location, SECOND, len(FIRST) // TOGETHER)
    return {"told": told, "known": state_of(location)}
