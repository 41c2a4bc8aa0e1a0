"""Merging slices into windows gives what laying every slice out once for each of its windows would give."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.message_keys import message_keys
from windrow.operators.aggregate.state_rows import (
    Windows,
    merge_rows,
    merge_slices,
)
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.steps.assigners import assigner_of
from windrow.operators.steps.columns import (
    EMIT_STEP,
    END,
    FIRST,
    LAST,
    MESSAGES,
    PANES,
    PENDING,
    START,
    UPSERT,
)

INPUT = pa.schema(
    [("t", pa.timestamp("us", "UTC")), ("a", pa.string()), ("b", pa.int64()), ("v", pa.int64())]
)


def slices_of(rng: random.Random, n: int, *, positions: bool) -> tuple[pa.Table, list[int]]:
    """`n` groups as Spark gives them: keys with nulls, a slice may have several."""
    values = [rng.randrange(-50, 50) for _ in range(n)]
    offsets = np.array([rng.randrange(1000) for _ in range(n)], dtype=np.int64)
    zeros = np.zeros(n, dtype=np.int64)
    keys = message_keys(None, pa.array([""] * n), zeros, offsets, zeros)
    position = pa.array(keys if positions else [None] * n, pa.binary())
    table = pa.table(
        {
            "a": pa.array([rng.choice(["x", "y", None]) for _ in range(n)], pa.string()),
            "b": pa.array([rng.choice([1, 2, None]) for _ in range(n)], pa.int64()),
            MESSAGES: pa.array([rng.randrange(1, 5) for _ in range(n)]),
            FIRST: position,
            LAST: position,
            "a.n.n": pa.array([1] * n),
            "a.s.hi": pa.array([v >> 32 for v in values]),
            "a.s.lo": pa.array([v & 0xFFFFFFFF for v in values]),
            "a.lo.v": pa.array([rng.choice([v, None]) for v in values], pa.int64()),
        }
    )
    return table, [rng.randrange(-5, 10) * 1_000_000 for _ in range(n)]


@pytest.mark.parametrize("window", [wr.hopping("3 seconds", "1 second"), wr.tumbling("2 seconds")])
@pytest.mark.parametrize("by", [("a", "b"), ("b",), ()])
@pytest.mark.parametrize("positions", [True, False])
def test_merged_slices_are_the_merge_of_rows_laid_out(
    window: object, by: tuple[str, ...], positions: bool
) -> None:
    rng = random.Random(f"{window}{by}{positions}")
    definition = wr.Aggregate(
        by=by,
        event_time="t",
        window=window,  # type: ignore[arg-type]
        agg={"n": wr.count(), "s": wr.sum("v"), "lo": wr.min("v")},
        retention="1 day",
    )
    calculation = Calculation(definition, INPUT)
    for n in (1, 2, 40, 300):
        slices, times = slices_of(rng, n, positions=positions)
        windows = Windows(*assigner_of(definition.window).assign(np.array(times, dtype=np.int64)))
        slices = slices.drop_columns([k for k in ("a", "b") if k not in by])
        laid_out = slices.take(pa.array(windows.row_of))
        for name, column in (
            (START, pa.array(windows.starts)),
            (END, pa.array(windows.ends)),
            (PENDING, laid_out.column(MESSAGES)),
            (PANES, pa.array(np.zeros(len(laid_out), dtype=np.int64))),
            (EMIT_STEP, pa.nulls(len(laid_out), pa.int64())),
            (UPSERT, pa.array(np.zeros(len(laid_out), dtype=bool))),
        ):
            laid_out = laid_out.append_column(name, column)
        expected, _ = merge_rows(calculation, laid_out)
        merged, broken = merge_slices(calculation, slices, windows)
        assert broken == []
        assert merged.to_pylist() == expected.select(merged.column_names).to_pylist()
        assert set(merged.column_names) == set(expected.column_names)
