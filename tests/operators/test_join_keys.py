"""Keys of a join that are equal meet, whatever their types and wherever messages are kept."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.keys import encode_equal
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.stores.kv import MemoryKV

S = 1_000_000


def rows(source: str, offset: int, key: Any) -> pa.Table:
    where = {SOURCE: [source], PARTITION: pa.array([0]), OFFSET: pa.array([offset]), ORDINAL: pa.array([0])}
    return pa.table({"t": [S], "k": [key], **where})


@pytest.mark.parametrize("scale", ["small", "large"])
@pytest.mark.parametrize(
    ("kept", "later"), [(1, 1.0), (1.0, 1), (Decimal("1.0"), 1), (1, Decimal(1)), (-3, -3.0)]
)
def test_keys_meet_though_their_column_widens(scale: str, kept: Any, later: Any) -> None:
    join = wr.Join(
        left=wr.Input("a", event_time="t"),
        right=wr.Input("b", event_time="t"),
        on="k",
        within=("0 s", "1 s"),
        scale=scale,
    )
    operator = join.logic()
    kv = MemoryKV(operator.cfs())
    operator.ingest(kv, {"a": rows("a:x", 0, kept)}, 0)
    [pane] = operator.ingest(kv, {"b": rows("b:x", 0, later)}, 1).panes
    assert len(pane) == 1


@pytest.mark.parametrize("window", [wr.rows(1), wr.unbounded()])
def test_keys_meet_in_windows_of_rows_too(window: Any) -> None:
    join = wr.Join(
        left=wr.Input("a", event_time="t", window=wr.rows(2)),
        right=wr.Input("b", event_time="t", window=window),
        on="k",
        retention="1 hour",
    )
    operator = join.logic()
    kv = MemoryKV(operator.cfs())
    operator.ingest(kv, {"a": rows("a:x", 0, 7)}, 0)
    [pane] = operator.ingest(kv, {"b": rows("b:x", 0, 7.0)}, 1).panes
    assert len(pane) == 1


def test_what_is_not_whole_stays_what_it_is() -> None:
    floats = pa.array([1.0, 1.5, float("inf"), None, -0.0])
    one, half, endless, null, zero = encode_equal([floats])
    assert [one, null, zero] == encode_equal([pa.array([1, None, 0])])
    assert len({one, half, endless, null, zero}) == 5
