"""Columns that were told beforehand, and that no message has: the oracle of each operator reads conditions on them as null."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.testing import ManualClock, TestDriver

S = 1_000_000
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64()), ("x", pa.int64())])
POLICY = wr.deliver.within("1 hour").guarantee(wr.col("x") == 1)
TIMES: dict[str, Any] = {"event_time": "t", "max_ahead": wr.forever}


def _definitions(deliver: Any) -> list[Any]:
    one: dict[str, Any] = {**TIMES, "by": "k", "where": wr.col("v") > 1, "deliver": deliver}
    kept: dict[str, Any] = {"agg": {"n": wr.count()}, "retention": "1 hour"}
    sides = wr.Input("a", where=wr.col("v") > 1, deliver=deliver, **TIMES), wr.Input("b", **TIMES)
    return [
        wr.Aggregate(**one, **kept, window=wr.tumbling("10 seconds")),
        wr.Aggregate(**one, **kept, window=wr.session("10 seconds")),
        wr.CoGroup(inputs=sides, by="k", **kept, window=wr.tumbling("10 seconds")),
        wr.Join(left=sides[0], right=sides[1], on="k", within=("-5 seconds", "5 seconds"), how="left"),
        wr.Deduplicate(**one, ids=wr.ids("k"), within="1 hour"),
    ]


@pytest.mark.parametrize("deliver", [None, POLICY])
@pytest.mark.parametrize("n", range(5))
def test_a_condition_on_a_column_that_no_message_has_yet_is_null(
    n: int, deliver: Any, tmp_path: Path
) -> None:
    definition = _definitions(deliver)[n]
    name = "a" if definition.by_input else None
    schema = {"a": SCHEMA, "b": SCHEMA} if name else SCHEMA
    with TestDriver(definition, str(tmp_path), clock=ManualClock(10 * S), schema=schema) as driver:
        for i, payload in enumerate(({}, {"x": 1}, {"v": 3})):
            messages = [wr.Message({"k": "x", "t": (10 + i) * S, **payload}, wr.Position("s", 0, i))]
            driver.feed({name: messages} if name else messages)
        driver.drain()
        assert len(driver.check(dead_letters=True).rows) == 1
