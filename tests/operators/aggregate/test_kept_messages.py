"""Messages that are values of their own become columns piece by piece."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.time import END_OF_TIME_US
from windrow.operators.aggregate import kept_messages
from windrow.stores.kv import MemoryKV
from windrow.testing import TestDriver

S = 1_000_000


def medians(**changes: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.session("10 seconds"),
        "agg": {"m": wr.median("v")},
        "watermark": wr.explicit(),
        "retention": "1 hour",
        "max_ahead": wr.forever,
    }
    return wr.Aggregate(**{**settings, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"emit": wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="discarding")},
        {"by": []},
        {"window": wr.tuples(3), "retention": wr.Retain(windows=100)},
    ],
    ids=["sessions", "discarding", "without keys", "tuples"],
)
def test_it_does_not_matter_how_many_are_objects_at_a_time(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some messages are of another schema: their values are no whole numbers."""
    monkeypatch.setattr(kept_messages, "PIECE", 3)
    chance = random.Random(3)
    with TestDriver(medians(**changes)) as driver:
        for n in range(6):
            driver.feed(
                [
                    {
                        "t": chance.randrange(40) * S,
                        "k": chance.choice("ab"),
                        "v": chance.randrange(9) / (1 + n % 2),
                    }
                    for _ in range(5)
                ]
            )
        driver.drain()
        driver.check(dead_letters=True)


def test_a_session_that_fires_has_few_of_its_messages_as_objects() -> None:
    n = 20_000
    logic: Any = medians(name="agg").logic()
    kv = MemoryKV(logic.cfs())
    rows = pa.table({"t": np.arange(n) * 100, "k": ["a"] * n, "v": np.arange(n)})
    logic.ingest(kv, {"agg": rows}, 0)
    tracemalloc.start()
    try:
        step = logic.advance(kv, END_OF_TIME_US, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [pane.column("m").to_pylist() for pane in step.panes] == [[(n - 1) / 2]]
    assert peak < 200 * n
