"""Graphs in one process: operators side by side on inputs of their own or on one, joined with each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.errors import InputError
from windrow.testing import ManualClock

S = 1_000_000
TEN: dict[str, Any] = {
    "by": "k", "event_time": "t", "window": wr.tumbling("10 seconds"), "retention": "1 hour", "emit": wr.Emit.append(),
}  # fmt: skip
CLICKS = wr.Aggregate(**TEN, agg={"clicks": wr.count()}, name="clicked", input="clicks")
SALES = wr.Aggregate(**TEN, agg={"sold": wr.sum("v")}, name="sales", input="orders")
BOTH = wr.Join(
    left=wr.Input("clicked", event_time="window_time"), right=wr.Input("sales", event_time="window_time"), on="k",
    within=("0 seconds", "0 seconds"), name="both",
)  # fmt: skip
#: The largest sale of those that were clicked for, whole.
ORDERS = wr.Join(
    left=wr.Input("orders", event_time="t"), right=wr.Input("clicks", event_time="t"), on="k",
    within=("-10 seconds", "0 seconds"), name="clicked_for",
)  # fmt: skip


def at(second: float, position: int | None = None, **fields: Any) -> wr.Message:
    where = None if position is None else wr.Position("x", 0, position)
    return wr.Message({"t": int(second * S), "k": "a", **fields}, where)


def test_two_aggregates_are_joined_window_by_window_over_a_restart(tmp_path: Path) -> None:
    graph = wr.chain(CLICKS, SALES, BOTH)
    with graph.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages({"clicks": [at(1, 0), at(2, 1)], "orders": [at(3, 0, v=5)]})
        assert op.next_offsets() == {"clicks": {("x", 0): 2}, "orders": {("x", 0): 1}}
    with graph.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages(
            {"clicks": [at(2, 1), at(11, 2)], "orders": [at(3, 0, v=5), at(4, 1, v=2), at(12, 2, v=1)]}
        )
        assert [w.messages for w in op.get_windows(operator="sales")] == [2, 1]
        op.drain()
        assert [(r["clicks"], r["sold"]) for r in op.get_result()] == [(2, 7), (1, 1)]
        assert op.next_offsets(input="clicks") == {("x", 0): 3} and op.counters["replayed"] == 2


def test_operators_on_one_input_agree_on_the_types_of_its_columns(tmp_path: Path) -> None:
    totals = wr.Join(
        left=wr.Input("clicked_for", event_time="orders_t"), right=wr.Input("sales", event_time="window_time"), on="k",
        within=("0 seconds", "10 seconds"), name="totals",
    )  # fmt: skip
    graph = wr.chain(SALES, ORDERS, totals)
    with graph.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages({"clicks": [at(1)], "orders": [at(2, v=1, note=7)]})
        op.add_message(at(3, v=2, note="seven"), "orders")  # only the join keeps the note, which was a number
        op.drain()
        assert [(r["v"], r["note"], r["sold"]) for r in op.get_result()] == [(1, 7, 3), (2, None, 3)]
        assert op.counters["nulled"] == 1


def test_the_one_input_of_an_aggregate_that_names_it_may_be_left_out(tmp_path: Path) -> None:
    for _ in range(2):
        with SALES.open(str(tmp_path), clock=ManualClock()) as op:
            op.add_message(at(1, 0, v=5))
            op.add_messages([at(2, 1, v=6)], "orders")
            columns = [("t", pa.int64()), ("k", pa.string()), ("v", pa.int64())]
            op.add_messages({"orders": pa.schema(columns).empty_table()})
            assert op.next_offsets() == {"orders": {("x", 0): 2}}
            assert [(w.messages, w.first.source) for w in op.get_windows() if w.first] == [(2, "x")]
            with pytest.raises(InputError, match=r"input 'clicks' is none of 'sales'.*\['orders'\]"):
                op.add_message(at(1), "clicks")


def test_a_chain_takes_schemas_and_a_sink_for_dead_letters(tmp_path: Path) -> None:
    letters = wr.sinks.parquet(str(tmp_path / "letters"))
    graph = wr.chain(CLICKS, SALES, BOTH)
    declared = {"orders": pa.schema([("t", pa.int64()), ("k", pa.string()), ("v", pa.float64())])}
    with graph.open(str(tmp_path / "job"), schema=declared, sink={}, dead_letters=letters) as op:
        op.add_messages({"orders": [at(1, v=5), wr.Message({"k": "a", "t": "soon"})], "clicks": [at(2)]})
    assert wr.read_panes(letters.path).to_pylist()[0]["input"] == "orders"
    with pytest.raises(InputError, match="schema= of 'order', which is no input"):
        graph.open(str(tmp_path / "other"), schema={"order": declared["orders"]})


def test_the_watermark_is_as_far_as_any_operator_counted_whatever_their_order(tmp_path: Path) -> None:
    of_all = wr.Aggregate(**{**TEN, "by": ()}, agg={"n": wr.count()}, name="of_all", input="x")
    of_key = wr.Aggregate(**TEN, agg={"n": wr.count()}, name="of_key", input="x", null_keys="dead_letter")
    both = wr.Join(
        left=wr.Input("of_all", event_time="window_time"), right=wr.Input("of_key", event_time="window_time"),
        within=("0 seconds", "0 seconds"), name="both",
    )  # fmt: skip
    for parts in ((of_all, of_key), (of_key, of_all)):
        with wr.chain(*parts, both).open(str(tmp_path / parts[0].name), clock=ManualClock()) as op:
            op.add_messages([at(1), at(25, k=None)], "x")
            assert op.watermark == 25 * S and len(op.get_result()) == 1
