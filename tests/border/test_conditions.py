"""Columns of conditions and of anchors: the same rows count as a table and as messages, and the others decide no type."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow as wr
from tests.deep import usually
from windrow.core.errors import TypeClash

BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
KINDS: dict[pa.DataType, Callable[[int], Any]] = {
    pa.int64(): lambda i: i,
    pa.float64(): lambda i: i + 0.5,
    pa.string(): lambda i: f"2020-01-01T00:00:{i % 60:02}Z",
    pa.timestamp("us", "UTC"): lambda i: BEGIN + timedelta(seconds=i),
    pa.timestamp("us"): lambda i: (BEGIN + timedelta(seconds=i)).replace(tzinfo=None),
    pa.date32(): lambda i: date(2020, 1, 1 + i % 9),
    pa.bool_(): lambda i: bool(i % 2),
}
INPUT: dict[str, Any] = {"event_time": "t", "max_ahead": wr.forever, "watermark": "1 hour"}


def join() -> wr.Join:
    left, right = wr.Input("l", **INPUT), wr.Input("r", **INPUT)
    where = wr.col("l_v") <= wr.col("r_v")
    return wr.Join(
        left=left, right=right, on="k", within=("-1 hour", "1 hour"), where=where, retention="1 day"
    )


def anchored(frame: Any, time_zone: str | None = None) -> wr.Over:
    anchors = wr.Input("l", time_zone=time_zone, **INPUT)
    return wr.Over(
        by="k", input="r", agg={"n": wr.count()}, frame=frame, anchors=anchors, retention="1 day", **INPUT
    )


DEFINITIONS: dict[str, Callable[[], Any]] = {
    "join": join,
    "columns": lambda: anchored(wr.between("v", "v")),
    "expressions": lambda: anchored(wr.between(wr.col("v"), wr.col("v"))),
    "zone": lambda: anchored(wr.between("v", "v"), "Europe/Berlin"),
}
Steps = list[tuple[str, pa.DataType, list[dict[str, Any]]]]


def drawn(draw: random.Random) -> Steps:
    steps, last = Steps(), 0
    for _ in range(draw.randint(1, 4)):
        side, kind, rows = draw.choice("lr"), draw.choice([*KINDS]), list[dict[str, Any]]()
        for i in range(last + 1, last + 1 + draw.randint(1, 3)):
            value = None if rows and draw.random() < 0.2 else KINDS[kind](i)
            rows.append({"t": i * 1_000_000, "k": 1, "v": value})
            last = i
        steps.append((side, kind, rows))
    return steps


def outcome(definition: Any, steps: Steps, folder: Path, *, tables: bool) -> tuple[list[int], int]:
    """Count the dead letters after each step, and the emitted rows. Raises `TypeClash` on a table."""
    dead, emitted = list[int](), 0
    with definition.open(str(folder), store="memory") as operator:
        for side, kind, rows in steps:
            columns = {n: pa.array([row[n] for row in rows], kind if n == "v" else pa.int64()) for n in "tkv"}
            operator.add_messages({side: pa.table(columns) if tables else rows})
            operator.timeout()
            emitted += len(operator.get_result())
            dead.append(len(operator.dead_letters()))
        operator.drain()
        return dead, emitted + len(operator.get_result())


def test_the_same_rows_count_as_a_table_and_as_messages(tmp_path: Path) -> None:
    refused = 0
    for seed in range(usually(24, deep=1_500)):
        draw = random.Random(seed)
        name, steps = draw.choice([*DEFINITIONS]), drawn(draw)
        try:
            table = outcome(DEFINITIONS[name](), steps, tmp_path / f"{seed}-table", tables=True)
        except TypeClash as error:  # of a type unrelated to that which the stream has
            assert "column 'v' of the input was" in str(error), (seed, name, error)
            refused += 1
            continue
        messages = outcome(DEFINITIONS[name](), steps, tmp_path / f"{seed}-messages", tables=False)
        assert table == messages, (seed, name, steps)
    print(f"{refused} refused of {seed + 1}")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("join", pa.string()), ("columns", pa.timestamp("us")), ("expressions", pa.timestamp("us"))],
)
def test_a_first_table_that_cannot_count_decides_no_type(
    tmp_path: Path, name: str, kind: pa.DataType
) -> None:
    definition = anchored(wr.between("v", "v")) if name != "join" else join()
    if name == "expressions":
        definition = anchored(wr.between(wr.col("v"), wr.col("v")))
    rows = [{"t": 0, "k": 1, "v": KINDS[kind](i)} for i in range(2)]
    numbers = [{"t": 0, "k": 1, "v": i} for i in range(2)]
    steps: Steps = [("r", pa.int64(), numbers), ("l", kind, rows), ("l", pa.int64(), numbers)]
    dead, emitted = outcome(definition, steps, tmp_path, tables=True)
    assert dead == [0, 2, 2] and emitted


@pytest.mark.parametrize("as_table", [False, True], ids=["message", "table"])
def test_the_event_time_is_a_time_in_expressions_of_several_columns_of_an_anchor(
    tmp_path: Path, as_table: bool
) -> None:
    end = pc.if_else(wr.col("v") == 0, wr.col("t"), wr.col("t") + timedelta(seconds=2))
    operator = anchored(wr.between(wr.col("t") - timedelta(seconds=2), end))
    anchor = {"k": 1, "t": BEGIN, "v": 3}
    with operator.open(tmp_path) as op:
        op.add_message({"k": 1, "t": BEGIN + timedelta(seconds=1), "x": 1}, "r")
        op.add_messages(pa.Table.from_pylist([anchor]) if as_table else [anchor], "l")
        op.drain()
        [row] = op.get_result()
        assert (row["n"], op.dead_letters()) == (1, [])
