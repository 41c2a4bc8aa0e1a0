"""Batches for the function of foreachBatch, and what the oracle tells of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.runners.spark.action import Action
from windrow.testing.clock import ManualClock

from .conftest import SCHEMA, at

INCREMENTAL = {
    "n": wr.count(),
    "s": wr.sum("v"),
    "hi": wr.max("v"),
    "mean": wr.avg("v"),
    "spread": wr.variance("v"),
}
ROWS = [
    [{"t": at(s), "k": "ab"[s % 2], "v": s} for s in range(0, 12)],
    [{"t": at(s), "k": "ab"[s % 2], "v": s} for s in (3, 13, 25, 26)],
    [{"t": at(s), "k": "ab"[s % 2], "v": s} for s in (2, 27, 60)],
]
NUMBERED = SCHEMA.append(pa.field("o", pa.int64()))
FLAT = [{**r, "o": i} for i, r in enumerate(r for rows in ROWS for r in rows)]


def define(agg: dict[str, Any] | None = None, **changes: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": agg or INCREMENTAL,
        "watermark": "5 seconds",
        "retention": "1 hour",
        "emit": wr.Emit(early=wr.every_batch, late=wr.every_batch),
    }
    return wr.Aggregate(**{**settings, **changes})


def run(
    spark: Any, feed: Any, tmp_path: Any, definition: wr.Aggregate, batches: Any, **options: Any
) -> list[wr.Pane]:
    """Return the rows of a driver for more files; the next one continues in the same folders."""
    sink = wr.sinks.memory()
    function = definition.foreach_batch(
        str(tmp_path / "state"), sink=sink, clock=options.pop("clock", ManualClock()), **options
    )
    start(
        spark, feed, tmp_path, function, batches, definition.inputs[0].name if definition.by_input else None
    )
    function.close()
    return sink.panes


def start(
    spark: Any, feed: Any, tmp_path: Any, function: Any, batches: Any, named: str | None = None
) -> None:
    """One query over all files that are new to its checkpoint. named: of the only input, where it has a name."""
    for batch in batches:
        feed.add(batch)
    stream = feed.stream(spark)
    if named is not None:
        stream = wr.together([define(input=named)], **{named: stream})
    query = (
        stream.writeStream.foreachBatch(function)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def plain(panes: list[wr.Pane]) -> list[Any]:
    """Panes as `embedded` gives them."""
    return sorted(
        (p.commit, p.window.start_us, p.key["k"], p.timing.value, p.index, p.is_last, tuple(p.values.items()))
        for p in panes
    )


def embedded(definition: wr.Aggregate, batches: Any) -> list[Any]:
    """The same steps without Spark: advance, then ingest, for each batch."""
    oracle = definition.oracle()
    now_us, marks, watermark = ManualClock().now_us(), None, None
    panes = []
    for i, batch in enumerate(batches):
        watermark = -(2**63) if marks is None else marks - 5_000_000
        fired, _ = oracle.advance(watermark, now_us)
        more, _ = oracle.ingest([wr.Message(r) for r in batch], now_us, watermark)
        panes += [(i + 1, p) for p in [*fired, *more]]
        times = [int(r["t"].timestamp() * 1_000_000) for r in batch]
        marks = max(times if marks is None else [marks, *times], default=None)
    return sorted(
        (c, p.window.start_us, p.key["k"], p.timing.value, p.index, p.is_last, tuple(p.values.items()))
        for c, p in panes
    )


def same(left: list[Any], right: list[Any]) -> bool:
    """True if floats are nearly equal, and all else is."""
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a[:-1] == b[:-1]
        for (name, x), (_, y) in zip(a[-1], b[-1], strict=True):
            assert x == y or (None not in (x, y) and x == pytest.approx(y, rel=1e-9)), name
    return True


def grouped_batches(monkeypatch: Any) -> list[int]:
    """Gets the commits of batches that SQL groups."""
    made: list[int] = []
    groups = Action._groups

    def chosen(self: Any, batch: Any, *more: Any) -> Any:
        what = groups(self, batch, *more)
        if what is not None:
            made.append(batch.plan.commit)
        return what

    monkeypatch.setattr(Action, "_groups", chosen)
    return made
