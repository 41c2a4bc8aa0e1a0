"""A step that raises on some of its rows: which these are is found at the cost of a few such steps, however many came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow as wr
from windrow.operators.steps.columns import MALFORMED_ROW, PASSED_OVER, RAW
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.intake import countable_rows
from windrow.operators.steps.poison_rows import MOST, OF_STEPS, culprits
from windrow.stores.kv import KV, MemoryKV

ROWS = 4096


@pytest.mark.parametrize("in_place", [False, True])
def test_parts_of_a_slice_are_tried_without_the_rest_of_it(in_place: bool) -> None:
    tables = {"x": pa.table({"n": range(ROWS)}), "y": pa.table({"n": range(ROWS, 2 * ROWS)})}
    wrong, seen = {("x", 77), ("y", 1)}, 0

    def step(kv: KV, tables: Any) -> None:
        nonlocal seen
        for table in tables.values():
            seen += len(table)
            if MALFORMED_ROW in table.column_names:
                table = table.filter(table.column(MALFORMED_ROW).is_null())
            if {77, ROWS + 1} & set(table.column("n").to_pylist()):
                raise ValueError("no")

    poison = culprits(step, MemoryKV([]), tables, ValueError("no"), in_place=in_place)
    assert set(poison) == wrong and set(poison.values()) == {"ValueError: no"}
    # All, the halves of all, and of each half with a culprit in it all again; and what is left.
    assert in_place or seen <= 6 * 2 * ROWS


@pytest.mark.parametrize("in_place", [False, True])
def test_of_rows_that_raise_together_the_last_is_to_blame(in_place: bool) -> None:
    tables = {"x": pa.table({"n": range(ROWS)}), "y": pa.table({"n": range(ROWS, 2 * ROWS)})}

    def step(kv: KV, tables: Any) -> None:
        chosen: set[int] = set()
        for table in tables.values():
            if MALFORMED_ROW in table.column_names:
                table = table.filter(table.column(MALFORMED_ROW).is_null())
            chosen |= set(table.column("n").to_pylist())
        if {3, 900} <= chosen or {3, ROWS + 5} <= chosen or 7 in chosen:
            raise ValueError("no")

    poison = culprits(step, MemoryKV([]), tables, ValueError("no"), in_place=in_place)
    assert set(poison) == {("x", 7), ("x", 900), ("y", 5)}


def test_of_one_step_so_many_rows_may_raise_and_of_many_steps_together_any() -> None:
    tables = {"x": pa.table({"n": range(MOST + 1)})}

    def step(kv: KV, tables: Any) -> None:
        if len(tables["x"]):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        culprits(step, MemoryKV([]), tables, ValueError("no"))
    poison = culprits(step, MemoryKV([]), tables, ValueError("no"), most=OF_STEPS)
    assert set(poison) == {("x", n) for n in range(MOST + 1)}


def test_a_row_that_is_passed_over_leaves_no_letter_and_others_leave_each_their_own() -> None:
    table = pa.table(
        {"t": [1, 2, 3, 4], MALFORMED_ROW: [None, "a", PASSED_OVER, "b"], RAW: pa.nulls(4, pa.string())}
    )
    dead = DeadLetters(10)
    rows = countable_rows(
        wr.Deduplicate(event_time="t", by=(), ids=wr.ids("t"), within="1 hour"), table, 9, dead
    )
    assert rows.times.tolist() == [1] and dead.counts == {"malformed": 2}
    letters = dead.table()
    assert letters is not None and letters.column("detail").to_pylist() == ["a", "b"]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_messages_that_an_expression_cannot_take_cost_nothing_but_themselves(
    one_by_one: bool, tmp_path: Path
) -> None:
    definition = wr.Aggregate(
        event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.sum(pc.field("a") / pc.field("b"))}
    )  # fmt: skip
    messages = [{"t": i, "a": 4, "b": i % 10} for i in range(50)]
    with definition.open(str(tmp_path)) as op:
        if one_by_one:
            for message in messages:
                op.add_message(message)
        else:
            op.add_messages(pa.Table.from_pylist(messages))
        assert [d.position.offset for d in op.dead_letters() if d.position] == [0, 10, 20, 30, 40]
        op.drain()
        assert [p.values["n"] for p in op.get_result()][-1] == 5 * sum(4 // b for b in range(1, 10))
