"""Every type, its values, every route and every role: counted exactly, or a dead letter that names the column, or refused.

Never an exception later than at intake, never a changed value, and routes agree. Spark's routes: tests/border/test_spark.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import windrow as wr
from tests.border.cells import INPUT, WINDOW, try_cells
from tests.border.kinds import KINDS, WITHOUT_PLACE, faulty, held
from tests.border.test_widening import is_same, shown
from tests.deep import usually
from windrow.core.errors import TypeClash, WindrowError

TIMED: dict[str, Any] = {**WINDOW, "event_time": "v", "time_zone": "UTC", "max_ahead": wr.forever}
ROLES: dict[str, Callable[[], Any]] = {
    "key": lambda: wr.Aggregate(agg={"n": wr.count()}, by="v", **INPUT, **WINDOW),
    "id": lambda: wr.Deduplicate(by="v", within="1 hour", **INPUT),
    "event time": lambda: wr.Aggregate(agg={"n": wr.count()}, by=(), **TIMED),
    "aggregated": lambda: wr.Aggregate(agg={"v": wr.collect_list("v")}, by=(), **INPUT, **WINDOW),
    "compared": lambda: wr.Aggregate(agg={"v": wr.max("v")}, by=(), **INPUT, **WINDOW),
    "kept": lambda: wr.Deduplicate(by="n", within="1 hour", **INPUT),
}
#: Routes that do not hold values of each type.
FRAMES = ("pandas", "polars", "msgpack")
Cell = tuple[pa.DataType, bool, str, str]


def to_pandas(table: pa.Table) -> Any:
    return pd.DataFrame(
        {n: pd.array(c, pd.ArrowDtype(c.type)) for n, c in zip(table.column_names, table, strict=True)}
    )


def decoded(table: pa.Table) -> list[pa.Table]:
    """Records of which a function reads the rows."""
    rows = table.to_pylist()
    decoder = wr.decoders.decoder(lambda record: rows[int(record)], table.schema)
    return [decoder.decode([str(i).encode() for i in range(len(rows))], "topic")]


def unpacked(table: pa.Table) -> list[pa.Table]:
    """Records of msgpack. Raises `TypeError` or `OverflowError` on values that it does not hold."""
    records = [msgpack.packb(row, datetime=True) for row in table.to_pylist()]
    return [wr.decoders.msgpack(table.schema).decode(records, "topic")]


ROUTES: dict[str, Callable[[pa.Table], Any]] = {
    "messages": lambda table: table.to_pylist(),
    "decoder": decoded,
    "msgpack": unpacked,
    "list": lambda table: [table.to_pylist()],
    "table": lambda table: [table],
    "batches": lambda table: [table.slice(i, 1).to_batches()[0] for i in range(len(table))],
    "pandas": lambda table: [to_pandas(table)],
    "polars": lambda table: [pl.from_arrow(table)],
}


@dataclass(frozen=True)
class Outcome:
    """Result of a cell: the rows emitted, the dead letters, or the refusal."""

    rows: tuple[Any, ...] = ()
    dead_letters: tuple[str, ...] = ()
    refused: str = ""


def table_of(values: pa.Array) -> pa.Table:
    n = len(values)
    return pa.table({"ts": pa.array([0] * n, pa.int64()), "n": pa.array(range(n)), "v": values})


def outcome(role: str, route: str, steps: Any, folder: Path) -> Outcome:
    with ROLES[role]().open(str(folder), store="memory") as operator:
        try:
            for step in steps:
                (operator.add_message if route == "messages" else operator.add_messages)(step)
                operator.timeout()
        except WindrowError as error:
            operator.timeout()  # what was refused stops nobody
            return Outcome(refused=str(error))
        operator.drain()
        rows = operator.get_result()
        assert str(rows) and len(rows.to_arrow()) == len(rows) and operator.next_offsets() is not None
        letters = operator.dead_letters()
        cells = [row.key["v"] if role == "key" else row.values.get("v") for row in rows]
    assert all(json.loads(letter.payload) for letter in letters)
    return Outcome(tuple(map(shown, cells)), tuple(f"{x.reason}: {x.detail}" for x in letters))


def cells() -> Iterator[Cell]:
    for kind in KINDS:
        bad = faulty(kind) is not None
        for role in ROLES:
            for route in ROUTES:
                yield kind, True, role, route
                if bad and route in ("table", "batches", "pandas"):
                    yield kind, False, role, route


def check(kind: pa.DataType, good: bool, role: str, route: str, folder: Path) -> str:
    """Name the result of the cell: "counted", "malformed", "refused"."""
    values = held(kind, random.Random(1)) if good else faulty(kind)
    assert values is not None
    try:
        steps = ROUTES[route](table_of(values))
    except BaseException:  # of polars also a panic
        if route not in FRAMES:
            raise
        return "no value there"
    came = outcome(role, route, steps, folder)
    if came.refused:
        assert "'v'" in came.refused or "WR111" in came.refused, came
        return "refused"
    reasons = ("malformed: ", "out_of_retention: ", "too_late: ")[: 3 if role == "event time" else 1]
    assert all(x.startswith(reasons) and "v" in x for x in came.dead_letters), came
    if role == "event time":
        return "malformed" if came.dead_letters else "counted"
    emitted: list[Any] = list(came.rows)
    if role == "aggregated":
        emitted = list(came.rows[-1]) if came.rows else []
    if not good:
        assert emitted in ([], [None]) and len(came.dead_letters) == len(values), came
        return "malformed"
    of_frame = steps[0].to_arrow()["v"] if route == "polars" else values  # which has its own types
    sent = list(map(shown, of_frame.to_pylist()))
    changed = [v for v in emitted if v is not None and not any(is_same(g, v) for g in sent)]
    assert not changed, (changed, sent)
    if role in ("aggregated", "kept"):
        nulls = sum(v is None or v == {} for v in sent) if role == "aggregated" else 0
        assert len(emitted) + len(came.dead_letters) >= len(sent) - nulls, (came, sent)
    return "malformed" if came.dead_letters else "counted"


@pytest.mark.timeout(1800)
def test_every_type_value_route_and_role(tmp_path: Path) -> None:
    every = list(cells())
    sample = random.Random(2).sample(every, min(len(every), usually(60, deep=10_000)))
    try_cells(sample, len(every), check, tmp_path)


@pytest.mark.parametrize("kind", WITHOUT_PLACE, ids=str)
def test_types_without_a_place_are_refused_in_every_role(tmp_path: Path, kind: pa.DataType) -> None:
    table = table_of(union(kind) if pa.types.is_union(kind) else pa.nulls(1, kind))
    for role, made in ROLES.items():
        operator = made().open(str(tmp_path / role), store="memory")
        with operator, pytest.raises(TypeClash, match="column 'v' is of type"):
            operator.add_messages(table)


def union(kind: pa.DataType) -> pa.Array:
    """A column of a union."""
    ids, children = pa.array([0], pa.int8()), [pa.array([1])]
    if kind.mode == "sparse":
        return pa.UnionArray.from_sparse(ids, children, ["a"])
    return pa.UnionArray.from_dense(ids, pa.array([0], pa.int32()), children, ["a"])
