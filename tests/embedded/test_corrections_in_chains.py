"""Corrections in chains: the next operator counts a corrected row once, with its final values."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from tests.operators.contract import Case, life
from tests.operators.graph.cases import corrections, drawn, rows, schema_of
from windrow.core.errors import DefinitionChanged
from windrow.core.messages import Pane
from windrow.operators.oracle.aggregates import Row, evaluate, same
from windrow.operators.oracle.windows import windows_of
from windrow.testing import ManualClock
from windrow.testing.ledger import ledger, ledger_key

S = 1_000_000


def counts(**changes: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": ("k", "host"), "event_time": "t", "window": wr.tumbling("10 seconds"), "agg": {"n": wr.count()},
        "retention": "1 hour", "emit": wr.Emit.update(), "name": "counts",
    }  # fmt: skip
    return wr.Aggregate(**settings | changes)


def again(**changes: Any) -> wr.Aggregate:
    settings = {
        "by": "k", "event_time": "window_time", "window": wr.tumbling("1 minute"), "name": "again",
        "agg": {"n": wr.sum("n"), "hosts": wr.count(), "least": wr.min("n"), "most": wr.max("n")},
        "emit": wr.Emit(early=wr.every_batch, mode="retracting"),
    }  # fmt: skip
    return counts(**settings | changes)


def at(t: int, host: str = "x", k: str = "a") -> wr.Message:
    return wr.Message({"t": t * S, "k": k, "host": host})


def fresh(op: Any) -> list[Pane]:
    """Return the rows emitted since the last call."""
    panes: list[Pane] = op.get_result()
    op.flush()
    return panes


def shown(panes: list[Any]) -> list[tuple[Any, ...]]:
    return [(p.kind.value, *p.key.values(), *p.values.values()) for p in panes]


@pytest.mark.parametrize(
    "emit",
    [wr.Emit.update(), wr.Emit(early=wr.every_batch), wr.Emit(early=wr.every_batch, mode="retracting")],
)
def test_early_results_are_counted_once_however_often_they_are_emitted(tmp_path: Path, emit: wr.Emit) -> None:
    with counts(emit=emit).then(again()).open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([at(1), at(2), at(3, "y")])
        assert shown(fresh(op)) == [("INSERT", "a", 3, 2, 1, 2)]
        op.add_messages([at(4, "y"), at(5, "y")])
        assert shown(fresh(op)) == [("RETRACT", "a", 3, 2, 1, 2), ("INSERT", "a", 5, 2, 2, 3)]
        op.add_messages([at(11)])
        op.drain()
        assert shown(fresh(op))[-1] == ("INSERT", "a", 6, 3, 1, 3)
        assert op.dead_letters() == []


def test_a_group_from_which_all_has_gone_is_taken_back(tmp_path: Path) -> None:
    """Count the hosts with so many messages: by value, in a mode without retractions."""
    many = again(by="n", agg={"hosts": wr.count()}, emit=wr.Emit(early=wr.every_batch))
    with counts().then(many).open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([at(1), at(1, "y")])
        assert shown(fresh(op)) == [("INSERT", 1, 2)]
        op.add_messages([at(2)])
        assert shown(fresh(op)) == [("INSERT", 1, 1), ("INSERT", 2, 1)]
        op.add_messages([at(2, "y")])
        panes = fresh(op)
        assert shown(panes) == [("RETRACT", 1, 1), ("INSERT", 2, 2)] and panes[0].index == 1
        assert [(w.key, w.messages, w.values) for w in op.get_windows()] == [({"n": 2}, 2, {"hosts": 2})]
        op.add_messages([at(2, "z")])
        panes = fresh(op)
        assert shown(panes) == [("INSERT", 1, 1)] and panes[0].index == 2
        op.drain()
        assert {p.key["n"]: p["hosts"] for p in fresh(op)} == {1: 1, 2: 2}


def test_a_session_that_continues_at_the_last_moment_is_taken_back_where_it_was(tmp_path: Path) -> None:
    """A message at the very end of a session is on time while the watermark stands there, where the next window has ended."""
    first = counts(
        by="k", window=wr.session("1 second"), emit=wr.Emit(early=wr.every_batch, late=wr.every_batch),
        watermark=wr.explicit(), allowed_lateness="0 seconds",
    )  # fmt: skip
    second = again(window=wr.tumbling("4 seconds"), allowed_lateness="0 seconds", agg={"n": wr.sum("n")})
    with first.then(second).open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([at(3)])
        op.advance_watermark(4 * S)
        op.add_messages([at(4)])
        op.drain()
        assert [(p.window.start_us // S, p["n"]) for p in final(fresh(op))] == [(4, 2)]
        assert op.dead_letters() == []


def test_what_takes_the_place_of_another_is_emitted_inside_only(tmp_path: Path) -> None:
    """A sink of the first operator sees its panes as they are without the second."""
    sinks = {"counts": wr.sinks.memory(), "again": wr.sinks.memory()}
    with counts().then(again()).open(str(tmp_path), sink=sinks, clock=ManualClock(0)) as op:
        op.add_messages([at(1)])
        op.add_messages([at(2)])
    assert [(p["n"], p.kind, p.index) for p in sinks["counts"].panes] == [(1, "INSERT", 0), (2, "INSERT", 1)]


def test_state_that_counts_corrections_is_not_opened_where_there_are_none(tmp_path: Path) -> None:
    with counts().then(again()).open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([at(1)])
    with (
        counts(emit=wr.Emit(mode="retracting")).then(again()).open(str(tmp_path), clock=ManualClock(0)) as op
    ):
        op.add_messages([at(2)])
        op.drain()
        assert shown(fresh(op))[-1] == ("INSERT", "a", 2, 1, 2, 2)
    with pytest.raises(DefinitionChanged):
        counts(emit=wr.Emit.append()).then(again()).open(str(tmp_path))


def final(panes: list[Pane]) -> list[Pane]:
    """Return the current rows of all that were emitted."""
    standing: dict[Any, Pane] = {}
    for pane in panes:
        name = ledger_key(pane.key, pane.window)
        standing.pop(name, None)
        if pane.kind.value == "INSERT":
            standing[name] = pane
    return list(standing.values())


def over_final(panes: list[Pane], second: wr.Aggregate) -> dict[Any, Any]:
    """The last results of an aggregate over these panes alone."""
    cells: dict[Any, list[Row]] = {}
    for n, pane in enumerate(panes):
        row = {**pane.key, **pane.values}
        for window in windows_of(second.window, pane.window.end_us - 1):
            name = ledger_key({b: row[b] for b in second.by}, window)
            cells.setdefault(name, []).append(Row(0, wr.Position("", 0, n), row, ()))
    return {
        name: {alias: evaluated(aggregation, column) for alias, aggregation in second.agg.items()}
        for name, column in cells.items()
    }


def evaluated(aggregation: Any, rows: list[Row]) -> Any:
    kept = [r for r in rows if aggregation.condition is None or (r.payload["n"] or 0) > 1]
    made = [Row(0, r.position, r.payload, tuple(r.payload[c] for c in aggregation.columns)) for r in kept]
    return evaluate(aggregation, made)


@given(data=st.data())
@examples(25, deep=5_000)
def test_the_last_results_are_those_over_the_last_results_before(data: st.DataObject) -> None:
    """Whatever the emissions, the lateness and the cuts, as long as nothing came too late to be counted again."""
    chain = data.draw(corrections().filter(lambda c: all(p.emit.late != wr.never for p in c.parts[1:])))
    late = [part.allowed_lateness_us for part in chain.parts]
    case = Case(
        definition=chain, messages=rows.map(lambda r: drawn(chain, r)), schema=schema_of(chain), start_us=0
    )
    feed = st.tuples(st.just("feed"), st.lists(case.messages, min_size=1, max_size=6))
    other = st.one_of(
        st.tuples(st.just("watermark"), st.sampled_from([1, 3])),
        st.tuples(st.just("clock"), st.integers(1, 6)),
        st.tuples(st.just("die"), st.tuples(st.none(), st.just(3))),
    )
    with life(case) as job:
        for kind, value in data.draw(st.lists(st.one_of(feed, feed, other), min_size=1, max_size=8)):
            if kind != "watermark" or chain.inputs[0].watermark == wr.explicit():
                job.act(kind, value)
        job.driver.drain()
        job.check()
        emitted = [job.sinks[part.name].panes for part in chain.parts]
    if late != sorted(late):
        return  # the oracle has said what is right
    for (before, after), part in zip(itertools.pairwise(emitted), chain.parts[1:], strict=True):
        wanted, current = over_final(final(before), part), ledger(after)
        assert wanted.keys() == current.keys()
        for name, values in wanted.items():
            for alias, value in values.items():
                assert near(current[name][alias], value), (name, alias)


def near(a: Any, b: Any) -> bool:
    return same(a, b) or (isinstance(a, float) and abs(a - b) <= 1e-9 * max(abs(a), abs(b), 1))
