"""The job that a simulation plays: its input, its definitions, and what it must never be caught at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

import windrow as wr
from windrow.core.positions import Partition
from windrow.runners.wire import OLD

S = 1_000_000
INPUT, PARTITIONS, EXECUTORS = "input", 2, 2
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("v", pa.int64())])

DEFINITIONS: dict[str, wr.Aggregate] = {
    "retracting": wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "total": wr.sum("v")},
        watermark="5 seconds",
        retention="30 seconds",
        emit=wr.Emit(early=wr.every(2), late=wr.every_batch, mode="retracting"),
        name="panes",
    ),
    "periodic": wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.hopping("10 seconds", "5 seconds"),
        agg={"n": wr.count(), "least": wr.min("v")},
        watermark=wr.bounded("2 seconds", idle="10 seconds"),
        retention="20 seconds",
        emit=wr.Emit(early=wr.every(timedelta(seconds=2)), late=wr.every(timedelta(seconds=1))),
        name="panes",
    ),
    "full state": wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"middle": wr.median("v")},
        watermark="3 seconds",
        retention="20 seconds",
        name="panes",
    ),
    "tuples": wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tuples(3),
        agg={"n": wr.count(), "values": wr.collect_list("v")},
        retention=wr.forever,
        emit=wr.Emit(early=wr.every_batch),
        name="panes",
    ),
}


class Broken(AssertionError):
    """The protocol has not kept what it promises."""


def short(offsets: Mapping[Partition, Any]) -> dict[int, Any]:
    return {partition: value for (_, partition), value in sorted(offsets.items())}


def table_of(
    rows: Sequence[tuple[int, int, tuple[str, int, int]]], old: Sequence[bool] | None = None
) -> pa.Table:
    """Rows as a task gets them."""
    n = len(rows)
    columns = {
        "k": pa.array([row[0] for _, _, row in rows], pa.string()),
        "t": pa.array([row[1] for _, _, row in rows], pa.timestamp("us", "UTC")),
        "v": pa.array([row[2] for _, _, row in rows], pa.int64()),
        "__source": pa.array([INPUT] * n, pa.string()),
        "__partition": pa.array([p for p, _, _ in rows], pa.int64()),
        "__offset": pa.array([o for _, o, _ in rows], pa.int64()),
        "__ordinal": pa.array([0] * n, pa.int64()),
    }
    if old is not None:
        columns[OLD] = pa.array(old, pa.bool_())
    return pa.table(columns)
