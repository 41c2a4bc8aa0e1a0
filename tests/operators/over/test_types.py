"""Columns of any type that wait with their message, and columns that widen while messages are kept."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.testing import ManualClock, TestDriver

S = 1_000_000
FRAMES: dict[str, dict[str, Any]] = {
    "by time": {"frame": ("-3 seconds", "2 seconds")},
    "by count": {"frame": wr.rows_between(-2, 0, partial="emit"), "ttl": "1 minute"},
    "waiting": {"frame": wr.rows_between(-1, 2, partial="emit"), "ttl": wr.forever},
    "running": {"frame": (wr.forever, 0), "ttl": "1 minute"},
}
ANY: list[dict[str, Any]] = [
    {
        "text": "é" * i,
        "bytes": b"\x00" * i,
        "flag": i % 2 == 0,
        "number": i / 3,
        "money": Decimal(i).scaleb(-2),
        "day": date(2013, 7, 1 + i),
        "clock": time(1, i),
        "moment": datetime(2013, 7, 1, tzinfo=UTC) + timedelta(hours=i),
        "long": timedelta(seconds=i),
        "list": list(range(i)),
        "struct": {"a": i, "b": {"c": [str(i)]}},
        "null": None,
    }
    for i in range(6)
]


@pytest.mark.parametrize("name", FRAMES)
def test_columns_of_any_type_wait_with_their_message(name: str, tmp_path: Path) -> None:
    agg = {
        "latest": wr.latest("struct"),
        "most": wr.max("moment"),
        "least": wr.min("clock"),
        "texts": wr.max("text"),
        "day": wr.min("day"),
        "flags": wr.max("flag"),
        "sum": wr.sum("money"),
        "mean": wr.avg("money"),
        "longest": wr.max("long"),
    }
    agg = {f"of {alias}": one for alias, one in agg.items()}
    over = wr.Over(by="k", event_time="t", agg=agg, max_ahead=wr.forever, **FRAMES[name])
    with TestDriver(over, tmp_path, clock=ManualClock()) as driver:
        for i, row in enumerate(ANY * 2):
            driver.add(wr.Message({"t": i * S, "k": "ab"[i % 3 == 0], **row}, wr.Position("s", 0, i)))
            if i % 4 == 3:
                driver.next_offsets()
                driver.restart()
        driver.drain()
        driver.check()
        told = [dict(row.values) for row in driver.committed_panes()]
    assert len(told) == len(ANY) * 2
    for row in told:
        [i] = [i for i, one in enumerate(ANY) if one["text"] == row["text"]]
        assert {name: row[name] for name in ANY[i]} == ANY[i]


WIDER: dict[str, list[list[Any]]] = {
    "numbers that get fractions": [[1, 2, 2**40], [0.5, None], [3]],
    "numbers that get decimals": [[1, 2], [Decimal("0.25")], [3, None]],
    "nothing, then numbers": [[None, None], [4, 5], [0.5]],
}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("values", WIDER)
def test_a_column_that_widens_is_in_windows_with_what_came_before(
    values: str, name: str, tmp_path: Path
) -> None:
    agg = {
        "n": wr.count("x"),
        "sum": wr.sum("x"),
        "mean": wr.avg("x"),
        "least": wr.min("x"),
        "most": wr.max("x"),
        "dev": wr.stddev("x"),
    }
    over = wr.Over(by="k", event_time="t", agg=agg, max_ahead=wr.forever, **FRAMES[name])
    with TestDriver(over, tmp_path, clock=ManualClock()) as driver:
        offset = 0
        for piece in WIDER[values]:
            for x in piece:
                key = 1 if offset < 3 else 1.0  # which is the same key
                driver.add(wr.Message({"t": offset * S, "k": key, "x": x}, wr.Position("s", 0, offset)))
                offset += 1
            driver.next_offsets()
        driver.drain()
        assert driver.check().rows
