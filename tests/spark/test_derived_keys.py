"""Keys and event time by expressions, filters, and triggers by value, on Spark as embedded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import windrow as wr
from windrow.testing import ManualClock

pytestmark = pytest.mark.spark

VISITS = wr.Aggregate(
    by={"name": pc.utf8_lower(wr.col("name")), "share": wr.lit(12) / wr.col("kind")},
    event_time=wr.col("ms") * 1000,
    window=wr.tumbling("10 seconds"),
    agg={
        "n": wr.count(),
        "tops": wr.top_k_by("kind", "ms", 2),
        "sorted": wr.sort_list("ms", descending=True),
    },
    retention="1 hour",
    where=wr.col("share") < 12,
    emit=wr.Emit(
        early=wr.when(wr.col("n") >= 2), late=wr.any_of(wr.every(2), wr.every("1 second", always=True))
    ),
)


def test_what_is_made_filtered_and_emitted_by_value_is_on_spark_what_it_is_embedded(
    spark: Any, tmp_path: Path
) -> None:
    def rows(part: int) -> list[tuple[Any, ...]]:
        return [
            (i * 137 % 30_000 + 10_000 * part, ["Ann", "ANN", "bob", None][i % 4], i % 5) for i in range(60)
        ]

    sink, clock = wr.sinks.memory(), ManualClock(0)
    batch = VISITS.foreach_batch(str(tmp_path / "spark"), sink=sink, shards=2, clock=clock)
    twin = wr.sinks.memory()
    with VISITS.open(str(tmp_path / "twin"), sink=twin, clock=clock) as op:
        for part in range(3):
            frame = spark.createDataFrame(rows(part), "ms bigint, name string, kind bigint")
            batch(frame, part)
            op.add_messages([dict(zip(("ms", "name", "kind"), row, strict=True)) for row in rows(part)])
            op.flush()
            clock.advance("1 second")
        batch.drain(spark)
        op.drain()
        letters = {(x.reason, x.detail) for x in op.dead_letters()}
    with wr.read_state(str(tmp_path / "spark"), definition=VISITS) as state:
        of_spark = {(x.reason, x.detail) for x in state.dead_letters()}

    def as_texts(panes: list[Any]) -> list[tuple[str, ...]]:
        last = {(str(p.window), str(p.key)): str(p.values) for p in panes}
        return sorted((*name, values) for name, values in last.items())

    assert as_texts(sink.panes) == as_texts(twin.panes) and len(twin.panes) > 20
    raised = ("malformed", "ArrowInvalid: divide by zero, in share=divide_checked(12, kind)")
    assert raised in letters and letters == of_spark
