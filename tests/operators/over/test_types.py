"""Columns of any type that wait with their message, and columns that widen while messages are kept."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from windrow.testing import ManualClock, TestDriver
from windrow.testing.ledger import values_equal

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
        driver.check(dead_letters=True)
        rows = [dict(row.values) for row in driver.committed_panes()]
    assert len(rows) == len(ANY) * 2
    for row in rows:
        [i] = [i for i, one in enumerate(ANY) if one["text"] == row["text"]]
        assert {name: row[name] for name in ANY[i]} == ANY[i]


WIDER: dict[str, list[list[Any]]] = {
    "numbers that get fractions": [[1, 2, 2**40], [0.5, None], [3]],
    "numbers that get decimals": [[1, 2], [Decimal("0.25")], [3, None]],
    "nothing, then numbers": [[None, None], [4, 5], [0.5]],
}


def whole(low: int, high: int) -> list[Any]:
    return [low, high, 0, None, 5, 7, high, None, None, None, 3, low, 2]


FLOATS = [0.5, -1.25, None, math.nan, 3.0, math.inf, -math.inf, 2.5, None, 0.0, -0.0, 7.5, 8.25]
CENTS = [Decimal(text) for text in ("0.10", "-9999999.99", "9999999.99", "1.23", "0.01", "2.50")]
NUMBERS: dict[str, tuple[pa.DataType, list[Any]]] = {
    **{f"int{n}": (getattr(pa, f"int{n}")(), whole(-(2 ** (n - 1)), 2 ** (n - 1) - 1)) for n in (8, 16, 32)},
    **{f"uint{n}": (getattr(pa, f"uint{n}")(), whole(0, 2**n - 1)) for n in (8, 16, 32)},
    "int64": (pa.int64(), whole(-(2**60) - 1, 2**60 + 1)),
    "uint64": (pa.uint64(), whole(0, 2**61)),
    "float16": (pa.float16(), [None if x is None else np.float16(x) for x in FLOATS]),
    "float32": (pa.float32(), FLOATS),
    "float64": (pa.float64(), [0.1, 1e9, *FLOATS]),
    "decimal128": (pa.decimal128(10, 2), [*CENTS, None, None, None, *CENTS]),
    "decimal256": (pa.decimal256(50, 2), [*CENTS, None, None, None, Decimal("12345678901234567890123.45")]),
}
STATISTICS: dict[str, Any] = {
    "count": wr.count("x"),
    "sum": wr.sum("x"),
    "avg": wr.avg("x"),
    "min": wr.min("x"),
    "max": wr.max("x"),
    "deviation": wr.stddev("x"),
    "of all": wr.stddev("x", ddof=0),
}


def statistics_of(values: list[Any]) -> dict[str, Any]:
    """Nulls are skipped, and a NaN is larger than any number."""
    floats = [float(x) if isinstance(x, np.floating) else x for x in values if x is not None]
    numbers = [x for x in floats if not (isinstance(x, float) and math.isnan(x))]
    finite = all(math.isfinite(x) for x in floats)
    total: Any = sum(floats) if finite or len(numbers) == len(floats) else math.nan
    statistics = {"count": len(floats), "sum": total if floats else 0, "avg": None, "min": None, "max": None}
    if not floats:
        return {**statistics, "deviation": None, "of all": None}
    statistics["avg"] = float(Fraction(total) / len(floats)) if finite else total / len(floats)
    statistics["min"] = min(numbers, default=math.nan)
    statistics["max"] = max(floats) if len(numbers) == len(floats) else math.nan
    for name, less in (("deviation", 1), ("of all", 0)):
        if len(floats) <= less:
            statistics[name] = None
        elif finite:
            mean = Fraction(sum(map(Fraction, floats))) / len(floats)
            statistics[name] = math.sqrt(
                sum((Fraction(x) - mean) ** 2 for x in floats) / (len(floats) - less)
            )
        else:
            statistics[name] = math.nan
    return statistics


@pytest.mark.parametrize("kind", NUMBERS)
def test_statistics_of_numbers_of_each_type_are_those_of_python(kind: str, tmp_path: Path) -> None:
    dtype, xs = NUMBERS[kind]
    times = pa.array([i * S for i in range(len(xs))]).cast(pa.timestamp("us", "UTC"))
    table = pa.table({"t": times, "n": list(range(len(xs))), "x": pa.array(xs, dtype)})
    agg = {name: one.over(wr.rows_between(-2, 0, partial="emit")) for name, one in STATISTICS.items()}
    agg |= {f"{name} so far": one.over() for name, one in STATISTICS.items()}
    options: dict[str, Any] = {"event_time": "t", "max_ahead": wr.forever, "integer_overflow": "decimal"}
    around = wr.Over(agg=agg, ttl=wr.forever, select="n", **options)
    windows = wr.Aggregate(agg=STATISTICS, window=wr.tumbling("3 seconds"), retention="1 day", **options)
    emitted = []
    for name, definition in (("around", around), ("windows", windows)):
        with definition.open(str(tmp_path / name)) as op:
            op.add_messages(table.slice(0, 5))
            op.next_offsets()
            op.add_messages(table.slice(5))
            op.drain()
            emitted.append([dict(row.values) for row in op.get_result()])
            assert not op.dead_letters()
    assert [row["n"] for row in emitted[0]] == list(range(len(xs)))
    for i, row in enumerate(emitted[0]):
        wanted = statistics_of(xs[max(i - 2, 0) : i + 1])
        wanted |= {f"{name} so far": value for name, value in statistics_of(xs[: i + 1]).items()}
        assert values_equal({name: row[name] for name in wanted}, wanted), (i, row, wanted)
    assert len(emitted[1]) == -(-len(xs) // 3)
    for i, row in enumerate(emitted[1]):
        wanted = statistics_of(xs[3 * i : 3 * i + 3])
        assert values_equal({name: row[name] for name in wanted}, wanted), (i, row, wanted)


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
        assert driver.check(dead_letters=True).rows
