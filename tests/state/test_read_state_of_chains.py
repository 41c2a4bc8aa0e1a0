"""Reading a chain from outside: each operator by its name, and what the chain itself answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import windrow as wr
from tests.core.test_chain_definition import join
from tests.embedded.test_chains_of_joins import CHAIN, INPUTS, PER_TEN, S, at
from windrow.testing import ManualClock


def test_a_chain_of_joins_answers_the_same_from_outside(tmp_path: Path) -> None:
    """Its definition comes from the log, or from whoever reads; windows are explained by rows of the join before them."""
    chain = CHAIN.then(PER_TEN)
    with chain.open(str(tmp_path), clock=ManualClock(0)) as op:
        for second in range(0, 24, 2):
            op.add_messages({n: [at(second, v=i)] for i, n in enumerate(INPUTS)})
        op.timeout()
        for definition in (None, chain):
            with wr.read_state(str(tmp_path), definition=definition) as state:
                assert state.operators == ("paid", "shipped", "tens")
                for name in (*INPUTS, "shipped"):
                    assert state.get_messages(input=name) == op.get_messages(input=name) != []
                    assert state.get_windows(input=name) == op.get_windows(input=name)
                assert state.get_windows() == op.get_windows() != []
                assert state.watermarks == {"shipped": 22 * S, "paid": 17 * S, "tens": 13 * S}
                [why] = state.explain(10 * S, key="a")
                assert why.window == op.get_windows(10 * S, 10 * S)[-1]
                assert {s for t in why.commits for s, *_ in t.ranges} == {f"{n}:" for n in INPUTS}
                assert len(state.panes()) == len(op.get_result()) and len(state.panes("paid")) == 0
        for name in INPUTS:
            op.add_message(at(-100), name)
        op.timeout()
        with wr.read_state(str(tmp_path)) as state:
            letters = state.dead_letters_table().select(["operator", "input"]).to_pylist()
            assert [tuple(row.values()) for row in letters] == [
                ("shipped", "orders"),
                ("shipped", "shipments"),
                ("paid", "payments"),
            ]


def test_positions_of_a_first_aggregate_are_those_that_were_given(tmp_path: Path) -> None:
    counts = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={"m": wr.median("v")}, retention="1 hour",
        emit=wr.Emit.append(), name="one",
    )  # fmt: skip
    limits = wr.Join(
        left=wr.Input("one", event_time="window_time"), right=wr.Input("limits", event_time="t"), on="k",
        within=("0 seconds", "1 minute"), name="two",
    )  # fmt: skip
    positions = [wr.Position("x", 2, i) for i in range(3)]
    with counts.then(limits).open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([wr.Message(at(i, v=i).payload, p) for i, p in enumerate(positions)], "one")
        op.timeout()
        with wr.read_state(str(tmp_path)) as state:
            assert [m.position for m in state.get_messages(operator="one")] == positions
            assert [(w.first, w.last) for w in state.get_windows(operator="one")] == [
                (positions[0], positions[2])
            ]
            assert state.windows_table(operator="one").column("first").to_pylist()[0]["source"] == "x"
            [why] = state.explain(0, operator="one")
            assert why.positions == tuple(positions)


def test_a_chain_of_two_is_read_as_one_of_three(tmp_path: Path) -> None:
    last: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("1 second"),
        "retention": "1 minute",
    }
    chain = join().then(wr.Aggregate(**last, agg={"n": wr.count()}, name="two"))
    with chain.open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages({"a": [at(1)], "b": [wr.Message({"u": 2 * S, "k": "a"})]})  # type: ignore[arg-type]
        op.timeout()
        with wr.read_state(str(tmp_path)) as state:
            assert state.get_windows() == op.get_windows() != []
            assert state.get_messages(input="b") == op.get_messages(input="b") != []
