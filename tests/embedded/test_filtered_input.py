"""`where=`: a filter of an operator's input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.errors import ConfigurationError, UnknownColumn
from windrow.testing import ManualClock

S = 1_000_000


def sales(**more: Any) -> wr.Aggregate:
    options: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count()},
        "retention": "1 minute",
        "allowed_lateness": "0 seconds",
        "where": wr.col("kind") == "sale",
    }
    return wr.Aggregate(**options | more)


def row(t: int, kind: str | None, k: str | None = "a", u: int = 0) -> dict[str, Any]:
    return {"t": t * S, "k": k, "kind": kind, "u": u}


@pytest.mark.proves(
    "Definitions: a filter of the input; what does not pass moves the watermark and is nothing else"
)
@pytest.mark.parametrize("as_table", [False, True])
def test_what_does_not_pass_is_in_no_window_and_ends_windows(tmp_path: Path, as_table: bool) -> None:
    def add(op: Any, rows: list[dict[str, Any]]) -> None:
        op.add_messages(pa.Table.from_pylist(rows) if as_table else rows)

    with sales().open(str(tmp_path), clock=ManualClock(0)) as op:
        add(op, [row(1, "sale"), row(2, "offer"), row(3, None), row(4, "sale")])
        add(op, [row(25, "offer")])
        assert [(p.window.start_us, p["n"]) for p in op.get_result()] == [(0, 2)]
        assert op.watermark == 25 * S


@pytest.mark.proves(
    "Definitions: a filter of the input; what does not pass moves the watermark and is nothing else"
)
def test_what_does_not_pass_is_no_dead_letter_and_no_duplicate(tmp_path: Path) -> None:
    definition = sales(ids="u", null_keys="dead_letter")
    with definition.open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([row(30, "sale", u=1)])
        op.add_messages(
            [row(1, "offer", u=2), row(31, "offer", None, u=2), row(32, "offer", u=3), row(33, "sale", u=3)]
        )
        op.add_messages([row(2, "sale", u=4)])
        op.drain()
        assert [p["n"] for p in op.get_result()] == [2]
        assert [letter.reason for letter in op.dead_letters()] == ["too_late"]


def test_a_filter_that_raises_or_a_message_without_a_time_makes_a_dead_letter(tmp_path: Path) -> None:
    definition = sales(where=wr.lit(6) / wr.col("u") > 2)
    with definition.open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([row(1, "", u=2), row(2, "", u=0), row(3, "", u=6), {**row(0, "", u=6), "t": None}])
        op.drain()
        assert [p["n"] for p in op.get_result()] == [1]
        assert [letter.reason for letter in op.dead_letters()] == ["malformed", "malformed"]


def test_a_filter_is_part_of_the_fingerprint_and_names_columns_that_there_are(tmp_path: Path) -> None:
    assert sales().fingerprint != sales(where=None).fingerprint
    assert 'where=(kind == "sale")' in repr(sales())
    with pytest.raises(ConfigurationError, match=r"where='kind': use an expression"):
        sales(where="kind")
    with sales().open(str(tmp_path)) as op, pytest.raises(UnknownColumn, match="kind"):
        op.add_messages([{"t": 1, "k": "a"}])
