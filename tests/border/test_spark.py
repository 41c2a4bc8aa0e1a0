"""The border on Spark: rows and groups count what is counted embedded, and the rest is the same dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core.errors import TypeClash
from windrow.testing import ManualClock

pytestmark = pytest.mark.spark

#: Of columns a value that counts and one that does not, and what is said of it.
FAULTY = {
    "text": ("'a'", "cast(X'FFFE' as string)", "b'\\xff\\xfe' is no text: it is not UTF-8"),
    "day": (
        *("date'2020-01-01'", "date_from_unix_date(2932897)"),
        "2932897 as date32[day] is outside the years 1 to 9999",
    ),
    "moment": (
        *("timestamp'2020-01-01'", "timestamp_micros(253402300800000000)"),
        "253402300800000000 as timestamp[us, tz=UTC] is outside the years 1 to 9999",
    ),
}


def definition(agg: dict[str, Any], by: tuple[str, ...], *, rows: bool) -> wr.Aggregate:
    agg = {"n": wr.count(), **agg, **({"median": wr.median("ts")} if rows else {})}
    return wr.Aggregate(agg=agg, by=by, event_time="ts", window=wr.tumbling("1 hour"), retention="1 day")


def test_a_value_that_cannot_be_counted_is_one_dead_letter_of_rows_and_of_groups(
    spark: Any, tmp_path: Path
) -> None:
    good = [values[0] for values in FAULTY.values()]
    lines = [["bigint(0)", *good]]
    for i, (_, bad, _) in enumerate(FAULTY.values()):
        lines.append([f"bigint({i + 1})", *good[:i], bad, *good[i + 1 :]])
    values = ", ".join(f"({', '.join(line)})" for line in lines)
    frame = spark.sql(f"select * from values {values} as (ts, {', '.join(FAULTY)})")
    for agg, by in (({}, tuple(FAULTY)), ({name: wr.min(name) for name in FAULTY}, ())):
        for rows in (False, True):
            made, sink = definition(agg, by, rows=rows), wr.sinks.memory()
            folder = str(tmp_path / f"{len(by)}-{rows}")
            batch = made.foreach_batch(folder, sink=sink, shards=1, clock=ManualClock(0))
            batch(frame, 0)
            batch.drain(spark)
            assert {pane.values["n"] for pane in sink.panes} == {1} and str(sink.panes)
            with wr.read_state(folder, definition=made) as state:
                letters = sorted((x.reason, x.detail) for x in state.dead_letters())
            assert letters == sorted(
                ("malformed", f"column {name!r}: {why}") for name, (_, _, why) in FAULTY.items()
            )


def test_a_column_that_nobody_names_is_refused_by_name_or_harms_nobody(spark: Any, tmp_path: Path) -> None:
    for i, column in enumerate(("interval '1' month", "named_struct('a', interval '1' month)")):
        frame = spark.sql(f"select bigint(1) ts, 1 v, {column} as odd")
        batch = definition({}, (), rows=False).foreach_batch(
            str(tmp_path / str(i)), sink=wr.sinks.memory(), shards=1
        )
        with pytest.raises(TypeClash, match=r"column 'odd' is of type .*interval month"):
            batch(frame, 0)
    frame, sink = spark.sql("select bigint(1) ts, 1 v, time'12:00:00' as odd"), wr.sinks.memory()
    made = definition({}, (), rows=False)
    batch = made.foreach_batch(str(tmp_path / "time"), sink=sink, shards=1, clock=ManualClock(0))
    batch(frame, 0)
    batch.drain(spark)
    assert sink.panes[-1].values == {"n": 1}
