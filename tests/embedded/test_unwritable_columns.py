"""Columns of types that no Parquet file holds: rows that have them are refused, by name, and come again without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.errors import TypeClash
from windrow.testing import ManualClock

INTERVAL = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
INPUT = {"event_time": "t", "max_ahead": wr.forever}
DEFINITIONS: dict[str, Any] = {
    "deduplicate": wr.Deduplicate(by="k", within=wr.forever, **INPUT),
}


@pytest.mark.parametrize("kind", ["interval", "list", "struct"])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_column_that_cannot_be_emitted_is_refused_and_the_rows_come_again_without_it(
    tmp_path: Path, name: str, kind: str
) -> None:
    column = {
        "list": pa.ListArray.from_arrays([0, 1], INTERVAL),
        "struct": pa.StructArray.from_arrays([INTERVAL], ["i"]),
    }.get(kind, INTERVAL)
    plain = pa.table({"k": ["a"], "t": [0]})
    table = plain.append_column("x", column)
    with (
        pytest.raises(TypeClash, match=r"column 'x' .* drop it, or cast it"),
        DEFINITIONS[name].open(str(tmp_path), clock=ManualClock(0)) as op,
    ):
        op.add_messages(table)
        op.flush()
    with DEFINITIONS[name].open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages(plain)
        op.drain()
        assert len(op.get_result()) == 1


def test_of_a_message_such_a_value_is_left_out_and_counted(tmp_path: Path) -> None:
    with DEFINITIONS["deduplicate"].open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([{"k": "a", "t": 0, "x": INTERVAL[0].as_py()}])
        op.drain()
        [row] = op.get_result()
        assert row.values["x"] is None
