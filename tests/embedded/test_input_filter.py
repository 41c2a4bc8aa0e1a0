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


@pytest.mark.parametrize("as_table", [False, True])
def test_what_does_not_pass_is_in_no_window_and_ends_windows(tmp_path: Path, as_table: bool) -> None:
    def add(op: Any, rows: list[dict[str, Any]]) -> None:
        op.add_messages(pa.Table.from_pylist(rows) if as_table else rows)

    with sales().open(str(tmp_path), clock=ManualClock(0)) as op:
        add(op, [row(1, "sale"), row(2, "offer"), row(3, None), row(4, "sale")])
        add(op, [row(25, "offer")])
        assert [(p.window.start_us, p["n"]) for p in op.get_result()] == [(0, 2)]
        assert op.watermark == 25 * S


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


def joined(**more: Any) -> wr.Join:
    options: dict[str, Any] = {
        "left": wr.Input("orders", event_time="t", where=wr.col("kind") == "sale"),
        "right": wr.Input("paid", event_time="t", where=wr.col("x") > 0),
        "on": "k", "within": ("0 seconds", "5 seconds"), "how": "left", "allowed_lateness": "0 seconds",
    }  # fmt: skip
    return wr.Join(**options | more)


def test_each_input_of_a_join_is_filtered_and_advances_time(tmp_path: Path) -> None:
    with joined().open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages({"orders": [row(1, "sale"), row(2, "offer"), row(3, "sale", k="b")]})
        op.add_messages({"paid": [{"t": 4 * S, "k": "a", "x": 7}, {"t": 5 * S, "k": "b", "x": -7}]})
        assert [(r["k"], r["x"]) for r in op.get_result()] == [("a", 7)]
        assert [m.payload["k"] for m in op.get_messages(input="orders")] == ["a", "b"]
        op.add_messages(
            {"orders": [row(20, "offer"), row(1, "offer")], "paid": [{"t": 20 * S, "k": "c", "x": 0}]}
        )
        assert op.watermark == 20 * S
        assert [(r["k"], r["x"]) for r in op.get_result()] == [("a", 7), ("b", None)]
        assert op.dead_letters() == []


def test_a_filter_of_an_input_is_part_of_what_a_join_is(tmp_path: Path) -> None:
    assert 'where=(kind == "sale")' in repr(joined())
    other = wr.Input("orders", event_time="t")
    assert joined(left=other).fingerprint != joined().fingerprint
    with pytest.raises(ConfigurationError, match=r"where='kind': use an expression"):
        wr.Input("orders", event_time="t", where="kind")  # type: ignore[arg-type]
    with joined().open(str(tmp_path)) as op, pytest.raises(UnknownColumn, match="kind"):
        op.add_messages({"orders": [{"t": 1, "k": "a"}]})


def test_what_does_not_pass_is_no_neighbour(tmp_path: Path) -> None:
    over = wr.Over(
        by="k", event_time="t", agg={"n": wr.count().over(3)}, ttl="1 hour", where=wr.col("kind") == "sale"
    )
    with over.open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages(
            [row(1, "sale"), row(2, "offer"), row(3, "sale"), row(4, None), row(5, "sale"), row(9, "offer")]
        )
        assert [(r["t"].second, r["n"]) for r in op.get_result()] == [(5, 3)]
        assert op.dead_letters() == [] and op.watermark == 9 * S
