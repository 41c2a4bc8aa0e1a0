"""The border on Spark: rows and groups count what tables count embedded, and the rest is the same dead letters.

A batch holds many cells: a column for each type, and for each of its values a row in which the other columns are null.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.border.cells import INPUT, WINDOW
from tests.border.kinds import FLAT, KINDS, faulty, held
from tests.border.test_widening import shown
from tests.deep import usually
from windrow.core.errors import TypeClash
from windrow.core.types import is_key
from windrow.testing import ManualClock

pytestmark = pytest.mark.spark

#: Types of which a faulty value is tried in each run.
ALWAYS = (pa.string(), pa.date32(), pa.timestamp("us", "UTC"))
ROLES: dict[str, tuple[Callable[[pa.DataType], bool], Callable[[list[str]], dict[str, Any]]]] = {
    "key": (is_key, lambda names: {"agg": {"n": wr.count()}, "by": tuple(names)}),
    "compared": (
        lambda kind: kind in FLAT and not pa.types.is_null(kind),
        lambda names: {"agg": {n: wr.max(n) for n in names}, "by": "row"},
    ),
    "aggregated": (
        lambda kind: not pa.types.is_null(kind),
        lambda names: {"agg": {n: wr.collect_list(n) for n in names}, "by": "row"},
    ),
}


def kinds_of_spark() -> list[pa.DataType]:
    """List the types that a frame of Spark holds as they are."""
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

    there = []
    for kind in KINDS:
        if pa.types.is_decimal(kind) and kind.scale < 0:  # which Spark reads, and then refuses
            continue
        try:
            frame = from_arrow_type(kind, prefer_timestamp_ntz=True)
            there += [kind] if to_arrow_type(frame, timezone="UTC") == kind else []
        except (PySparkTypeError, ValueError):
            continue
    return there


def cells(kinds: list[pa.DataType]) -> tuple[pa.Table, int]:
    """(a column for each type, a row for each of its values, those that cannot be counted among them; how many of these)."""
    values, bad = [], 0
    for kind in kinds:
        wrong = faulty(kind)
        values.append(pa.concat_arrays([held(kind, random.Random(1)), *([] if wrong is None else [wrong])]))
        bad += 0 if wrong is None else len(wrong)
    size, first, columns = sum(map(len, values)), 0, {}
    for i, column in enumerate(values):
        after = size - first - len(column)
        columns[f"c{i}"] = pa.concat_arrays(
            [pa.nulls(first, column.type), column, pa.nulls(after, column.type)]
        )
        first += len(column)
    return pa.table({"ts": pa.array([0] * size, pa.int64()), "row": pa.array(range(size)), **columns}), bad


@pytest.mark.parametrize("role", ROLES)
def test_rows_and_groups_count_what_a_table_does(spark: Any, tmp_path: Path, role: str) -> None:
    takes, settings = ROLES[role]
    every = [kind for kind in kinds_of_spark() if takes(kind)]
    sample = [k for k in every if k in ALWAYS]
    rest = [k for k in every if k not in ALWAYS]
    sample += random.Random(4).sample(rest, min(len(rest), usually(6, deep=10_000)))
    table, bad = cells(sample)
    frame = spark.createDataFrame(table)
    print(f"{role}: {len(sample)} of {len(every)} types, {len(table)} values, {bad} of them faulty")
    settings_of = settings([f"c{i}" for i in range(len(sample))])
    for route in ("rows", "groups")[: 1 if role == "aggregated" else 2]:
        agg = {**settings_of["agg"], **({"middle": wr.median("ts")} if route == "rows" else {})}
        made = wr.Aggregate(agg=agg, by=settings_of["by"], **INPUT, **WINDOW)
        with made.open(str(tmp_path / f"{route}-embedded"), store="memory", clock=ManualClock(0)) as operator:
            operator.add_messages(frame.toArrow())
            operator.drain()
            expected = summary(operator.get_result()), buried(operator)
        assert len(expected[1]) == bad
        sink, folder = wr.sinks.memory(), str(tmp_path / route)
        batch = made.foreach_batch(folder, sink=sink, shards=1, clock=ManualClock(0))
        batch(frame, 0)
        batch.drain(spark)
        with wr.read_state(folder, definition=made) as state:
            came = summary(sink.panes), buried(state)
        assert came == expected, (route, sample)


def summary(panes: Any) -> list[str]:
    return sorted(
        f"{[shown(v) for v in pane.key.values()]} {[shown(v) for v in pane.values.values()]}"
        for pane in panes
        if str(pane)
    )


def counted() -> wr.Aggregate:
    return wr.Aggregate(agg={"n": wr.count()}, by=(), **INPUT, **WINDOW)


def buried(of: Any) -> list[tuple[str, str]]:
    return sorted((x.reason, x.detail) for x in of.dead_letters())


def test_a_column_that_nobody_names_is_refused_by_name_or_harms_nobody(spark: Any, tmp_path: Path) -> None:
    for i, column in enumerate(("interval '1' month", "named_struct('a', interval '1' month)")):
        frame = spark.sql(f"select bigint(1) ts, 1 v, {column} as odd")
        batch = counted().foreach_batch(str(tmp_path / str(i)), sink=wr.sinks.memory(), shards=1)
        with pytest.raises(TypeClash, match=r"column 'odd' is of type .*interval month"):
            batch(frame, 0)
    frame, sink = spark.sql("select bigint(1) ts, 1 v, time'12:00:00' as odd"), wr.sinks.memory()
    made = counted()
    batch = made.foreach_batch(str(tmp_path / "time"), sink=sink, shards=1, clock=ManualClock(0))
    batch(frame, 0)
    batch.drain(spark)
    assert sink.panes[-1].values == {"n": 1}
