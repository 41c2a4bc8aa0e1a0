"""A join of what an operator corrects: what is told in the end is the join of what stands in the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from tests.operators.contract import Case, life
from tests.operators.graph.cases import corrected_joins, drawn, rows, schema_of
from windrow.core.errors import BadTrigger, DefinitionChanged
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, instant_us
from windrow.operators.join.oracle import JoinOracle
from windrow.stores.kv import MemoryKV
from windrow.testing import ManualClock

S = 1_000_000


def counts(**changes: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k", "event_time": "t", "window": wr.tumbling("10 seconds"), "agg": {"n": wr.count()}, "retention": "1 hour",
        "emit": wr.Emit(early=wr.every_batch), "input": "clicks", "watermark": wr.explicit(), "name": "counts",
    }  # fmt: skip
    return wr.Aggregate(**settings | changes)


def joined(how: Any = "inner", **changes: Any) -> wr.Join:
    settings: dict[str, Any] = {
        "left": wr.Input("counts", event_time="window_time", watermark=wr.explicit()), "how": how, "on": "k",
        "right": wr.Input("sales", event_time="t", watermark=wr.explicit()), "within": ("-10 seconds", "0 seconds"),
        "retention": "1 hour", "name": "joined",
    }  # fmt: skip
    return wr.Join(**settings | changes)


def click(t: int, k: str = "a") -> dict[str, Any]:
    return {"t": t * S, "k": k}


def sale(t: int, price: int, k: str = "a") -> dict[str, Any]:
    return {"t": t * S, "k": k, "price": price}


def shown(op: Any) -> list[tuple[Any, ...]]:
    """(kind, how many clicks, price) of what was told since the last call."""
    panes = [(r.kind.value, r.values.get("n"), r.values.get("price")) for r in op.get_result()]
    op.flush()
    return panes


def test_a_pair_is_removed_with_the_row_that_made_it_and_comes_with_the_one_in_its_place(
    tmp_path: Path,
) -> None:
    with counts().then(joined()).open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([click(1)], "clicks")
        assert shown(op) == []
        op.add_messages([sale(2, 30), sale(3, 40)], "sales")
        assert shown(op) == [("INSERT", 1, 30), ("INSERT", 1, 40)]
        op.add_messages({"clicks": [click(4)], "sales": [sale(5, 50)]})
        gone = [("RETRACT", 1, 30), ("RETRACT", 1, 40)]
        assert shown(op) == [*gone, ("INSERT", 2, 30), ("INSERT", 2, 40), ("INSERT", 2, 50)]
        [kept] = op.get_messages(input="counts")
        assert kept.payload["n"] == 2
        op.drain()
        assert shown(op) == []


@pytest.mark.parametrize("how", ["left", "full", "semi", "anti", "asof"])
def test_who_loses_all_partners_is_alone_again(how: Any, tmp_path: Path) -> None:
    """Hosts by how many clicks they have: those of one are gone when there is a second."""
    by_n = counts(
        by="n",
        event_time="window_time",
        agg={"keys": wr.count()},
        input="counts",
        name="many",
        watermark="0 s",
    )
    join = joined(how, left=wr.Input("sales", event_time="t", watermark=wr.explicit()),
                  right=wr.Input("many", event_time="window_time", watermark=wr.explicit()),
                  on={"price": "n"}, within=("0 s", "9 s") if how != "asof" else ("-20 s", "0 s"))  # fmt: skip
    with wr.chain(counts(), by_n, join).open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([sale(15 if how == "asof" else 5, 1)], "sales")
        op.add_messages([click(1)], "clicks")
        panes = [(r.kind.value, r.values.get("keys")) for r in op.get_result()]
        assert panes == ([] if how in ("anti", "asof") else [("INSERT", None if how == "semi" else 1)])
        op.flush()
        op.add_messages([click(2)], "clicks")
        panes = [(r.kind.value, r.values.get("keys")) for r in op.get_result()]
        assert panes == ([] if how in ("anti", "asof") else [("RETRACT", None if how == "semi" else 1)])
        op.flush()
        op.drain()
        alone = [(r.values.get("price"), r.values.get("keys"), r.timing.value) for r in op.get_result()]
        both = [(1, None, "ON_TIME")] + [(2, 1, "ON_TIME")] * (how == "full")
        assert alone == ([] if how == "semi" else both)


def test_an_as_of_join_of_corrected_rows_continues_where_its_condition_raises_on_a_pair(
    tmp_path: Path,
) -> None:
    join = joined("asof", left=wr.Input("sales", event_time="t", watermark=wr.explicit()),
                  right=wr.Input("counts", event_time="window_time", watermark=wr.explicit()),
                  within=("-20 s", "0 s"), where=wr.lit(6) / (wr.col("price") - wr.col("n")) > -9)  # fmt: skip
    with wr.chain(counts(emit=wr.Emit(early=wr.every_batch, mode="retracting")), join).open(
        str(tmp_path), clock=ManualClock(0)
    ) as op:
        op.add_messages([sale(15, 2)], "sales")
        op.add_messages([click(1)], "clicks")
        op.add_messages([click(2)], "clicks")  # the second count is that price
        assert {letter.reason for letter in op.dead_letters()} == {"malformed"}
        op.add_messages([click(3)], "clicks")
        op.drain()
        assert [(r.values["price"], r.values["n"]) for r in op.get_result()] == [(2, 3)]


def plain(value: Any) -> Any:
    return instant_us(value) if isinstance(value, datetime) else value


def present(panes: list[Any]) -> Counter[str]:
    """Rows that were told and not taken back."""
    left: Counter[str] = Counter()
    for row in panes:
        name = repr(sorted((n, plain(v)) for n, v in row.values.items() if v is not None))
        left[name] += 1 if row.kind.value == "INSERT" else -1
        assert left[name] >= 0, "taken back before it was told"
    return +left


@given(data=st.data())
@examples(15, deep=5_000)
def test_what_is_current_in_the_end_is_the_join_of_what_is_current_before_it(data: st.DataObject) -> None:
    """Compute a join whose rows are emitted once, with lists and loops, if nothing came too late."""
    graph = data.draw(corrected_joins().filter(lambda g: g.inputs[0].watermark == wr.explicit()))
    case = Case(
        definition=graph, messages=rows.map(lambda r: drawn(graph, r)), schema=schema_of(graph), start_us=0
    )
    with life(case, store="memory") as job:
        for step in data.draw(
            st.lists(st.lists(case.messages, min_size=1, max_size=8), min_size=1, max_size=5)
        ):
            job.act("feed", step)
            job.act(*data.draw(st.sampled_from([("clock", 3), ("die", (None, 3)), ("commit", None)])))
        job.driver.drain()
        job.check()
        join = next(p for p in graph.parts if p.name == "joined")
        given_ = {i.name: [m for name, m in job.sent if name == i.name] for i in join.inputs}
        oracle, parts, known = graph.oracle(case.schema), {p.name: p for p in graph.parts}, {}
        for source in join.inputs:
            if source.name in parts:
                before = oracle.part(source.name)
                last = [before.forwarded(row) for row in last_of(job.sinks[source.name].panes)]
                given_[source.name] = [
                    wr.Message(row, wr.Position(source.name, 0, n)) for n, row in enumerate(last)
                ]
                known[source.name] = before.columns
        current = present(job.sinks["joined"].panes)
    once = JoinOracle(join, {n: s for n, s in case.schema.items() if n in given_})
    for name, columns in known.items():
        once.know(name, columns)
    wanted = once.ingest(given_, 0, START_OF_TIME_US).rows + once.advance(END_OF_TIME_US, 0).rows
    assert current == present(wanted)


def last_of(panes: list[Any]) -> list[Any]:
    """Return the current rows: panes by key and window, other rows by their values."""
    left: dict[str, list[Any]] = defaultdict(list)
    for row in panes:
        pane = isinstance(row, wr.Pane)
        name = repr((row.window, row.key) if pane else row.values)
        if row.kind.value == "RETRACT" or pane:
            del left[name][:1]
        if row.kind.value == "INSERT":
            left[name].append(row)
    return [row for rows in left.values() for row in rows]


def test_a_row_that_takes_back_what_is_not_kept_is_a_dead_letter() -> None:
    """As after a watermark that was set back by hand, when messages that could match no more have gone."""
    logic = counts().then(joined("left")).logic().part("joined")
    kv = MemoryKV(logic.cfs())
    row = {
        "window_time": 9 * S,
        "k": "a",
        "n": 1,
        "__sign": -1,
        "__source": "counts",
        "__partition": 0,
        "__offset": 1,
        "__ordinal": 0,
    }
    step = logic.ingest(kv, {"counts": pa.Table.from_pylist([row])}, 0)
    assert step.dead is not None and not step.panes
    assert step.dead.column("detail").to_pylist() == ["what it takes back is not kept"]


def test_state_of_rows_that_are_taken_back_is_not_opened_where_none_are(tmp_path: Path) -> None:
    with counts().then(joined()).open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([click(1)], "clicks")
        op.flush()
    with pytest.raises(DefinitionChanged, match="takes_back was True"):
        counts(emit=wr.Emit.append()).then(joined()).open(str(tmp_path))


@pytest.mark.parametrize(
    ("join", "words"),
    [
        (
            joined(right=wr.Input("sales", event_time="t", window=wr.rows(2), watermark=wr.explicit()), within=None),
            ["wr.rows(2)", "displaced"],
        ),
        (joined(within=None, window=wr.session("10 s")), ["sessions", "come apart", "within="]),
        (joined(retention=wr.Retain("1 hour", messages=5)), ["messages=5", "by time"]),
        (joined(emit=wr.Emit(early=wr.every("10 s"), late=wr.every_batch)), ["every_batch", "wait"]),
    ],
)  # fmt: skip
def test_joins_that_cannot_take_messages_back_say_why(join: wr.Join, words: list[str]) -> None:
    with pytest.raises(BadTrigger) as refused:
        counts().then(join)
    assert all(word in str(refused.value) for word in ["'counts'", "'joined'", "append()", *words])


def test_what_a_join_takes_back_the_next_operator_takes_back_as_long() -> None:
    settings: dict[str, Any] = {
        "event_time": "window_time",
        "input": "joined",
        "watermark": "0 s",
        "name": "last",
    }
    with pytest.raises(
        BadTrigger, match=r"nothing that is later than .*, and would count both: allow as much"
    ):
        wr.chain(
            counts(), joined(), counts(**settings, agg={"n": wr.sum("n")}, allowed_lateness="10 minutes")
        )
    with pytest.raises(BadTrigger, match=r"'last' cannot take that back: 'n' is wr.first"):
        wr.chain(counts(), joined(), counts(**settings, agg={"n": wr.first("n")}))
