"""Session windows on Spark: groups of slices, and rows, give the panes of the embedded operator."""

from __future__ import annotations

import random
from typing import Any

import pytest

import windrow as wr
from windrow.runners.spark import action

from .batches import INCREMENTAL, define, embedded, plain, run, same
from .conftest import at

pytestmark = pytest.mark.spark


KEYS = [f"k{n}" for n in range(250)]


def batches(rows: int) -> list[list[dict[str, Any]]]:
    """Six batches out of order; in the last ones one row of 25 may come too late."""
    chance = random.Random(3)
    return [
        [
            {
                "t": at(10 * n + chance.uniform(-30 if n > 1 and i % 25 == 0 else -5, 10)),
                "k": chance.choice(KEYS),
                "v": i % 40,
            }
            for i in range(rows // 6)
        ]
        for n in range(6)
    ]


@pytest.mark.proves("Windows: sessions: on Spark, of groups that SQL has made, and of rows")
@pytest.mark.parametrize(
    ("agg", "gap", "rows"),
    [
        (INCREMENTAL, "3 seconds", 10_000),
        ({**INCREMENTAL, "mid": wr.median("v")}, "3 seconds", 10_000),
        (INCREMENTAL, wr.col("v") * 200_000, 1_000),
    ],
    ids=["partials", "rows", "gaps of their own"],
)
def test_both_routes_give_the_sessions_of_the_oracle(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: Any, agg: Any, gap: Any, rows: int
) -> None:
    monkeypatch.setattr(action, "FEW_ROWS", -1)
    # No hour passes; what would be told by then is noted on both routes.
    early = wr.any_of(wr.when(wr.col("n") >= 3), wr.every(2), wr.after("1 hour"))
    emit = wr.Emit(early=early, late=wr.every_batch, mode="retracting")
    definition = define(agg, window=wr.session(gap), allowed_lateness="8 seconds", emit=emit)
    told = run(spark, feed(), tmp_path, definition, batches(rows), shards=2)
    assert same(plain(told), embedded(definition, batches(rows)))
    assert any(pane.kind is wr.core.messages.Kind.RETRACT for pane in told)
