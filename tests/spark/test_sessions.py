"""Session windows on Spark: groups of slices, and rows, give the panes of the embedded operator."""

from __future__ import annotations

import random
from typing import Any

import pytest

import windrow as wr
from tests.deep import usually
from windrow.runners.spark import action

from .batches import INCREMENTAL, define, embedded, grouped_batches, plain, run, same
from .conftest import at

pytestmark = pytest.mark.spark


KEYS = [f"k{n}" for n in range(usually(100, deep=250))]
ROWS = usually(3_000, deep=10_000)


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


@pytest.mark.parametrize(
    ("agg", "gap", "rows"),
    [
        (INCREMENTAL, "3 seconds", ROWS),
        ({**INCREMENTAL, "mid": wr.median("v")}, "3 seconds", ROWS),
        (INCREMENTAL, wr.col("v") * 200_000, 1_000),
    ],
    ids=["partials", "rows", "gaps of their own"],
)
def test_both_routes_give_the_sessions_of_the_oracle(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: Any, agg: Any, gap: Any, rows: int
) -> None:
    monkeypatch.setattr(action, "FEW_ROWS", -1)
    monkeypatch.setattr(action, "ROWS_A_GROUP", 0)
    # No hour passes; what would be told by then is noted on both routes.
    early = wr.any_of(wr.when(wr.col("n") >= 3), wr.every(2), wr.delay("1 hour"))
    emit = wr.Emit(early=early, late=wr.every_batch, mode="retracting")
    definition = define(agg, window=wr.session(gap), allowed_lateness="8 seconds", emit=emit)
    emitted = run(spark, feed(), tmp_path, definition, batches(rows), shards=2)
    assert same(plain(emitted), embedded(definition, batches(rows)))
    assert any(pane.kind is wr.core.messages.Kind.RETRACT for pane in emitted)


def test_after_a_batch_of_few_rows_a_slice_the_rows_of_the_next_one_cross(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    """Whichever way that one went: how many groups SQL made of it, or could have made, is in its record."""
    monkeypatch.setattr(action, "FEW_ROWS", -1)
    made = grouped_batches(monkeypatch)

    def batch(n: int, each: float) -> list[dict[str, Any]]:
        return [{"t": at(60 * n + each * (i // 2)), "k": "ab"[i % 2], "v": i} for i in range(40)]

    many, few = 0.1, 3.5
    batches = [batch(n, each) for n, each in enumerate((many, few, few, many, many))]
    definition = define(window=wr.session("3 seconds"))
    emitted = run(spark, feed(), tmp_path, definition, batches, shards=2)
    assert made == [1, 2, 5], "the first, of which nobody knows, and those after batches of many rows a slice"
    assert same(plain(emitted), embedded(definition, batches))
