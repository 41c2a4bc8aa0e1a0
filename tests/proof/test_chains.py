"""Properties of operators in a chain, for any operators.

The contract suite (tests/operators/test_contract.py) compares graphs with their oracles.
WINDROW_DEEP=1 runs many more examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from tests.operators.contract import Case, Life, S, life
from tests.operators.graph.cases import SCHEMA, drawn, jobs, rows
from windrow.core.messages import Timing

PROFILE = examples(16, deep=3_000)


def actions(case: Case) -> st.SearchStrategy[list[tuple[str, Any]]]:
    one = st.one_of(
        st.tuples(st.just("feed"), st.lists(case.messages, min_size=1, max_size=8)),
        st.tuples(st.just("each"), st.lists(case.messages, min_size=1, max_size=4)),
        st.tuples(st.just("clock"), st.integers(0, 5)),
        st.tuples(st.just("watermark"), st.sampled_from([0, 1, 3, 10])),
        st.tuples(st.just("die"), st.just((None, 5))),
    )
    return st.lists(one, min_size=3, max_size=12)


def play(job: Life, acts: Sequence[tuple[str, Any]]) -> None:
    for kind, value in acts:
        job.act(kind, value)
    job.driver.drain()


@given(data=st.data())
@PROFILE
def test_what_is_not_late_for_one_operator_is_not_too_late_for_the_next(data: st.DataObject) -> None:
    case = data.draw(jobs())
    with life(case) as job:
        play(job, data.draw(actions(case)))
        letters = job.driver.op.dead_letters()
        for i, before in enumerate(case.definition.parts[:-1]):
            late = sum(row.timing is Timing.LATE for row in job.sinks[before.name].panes)
            takers = sum(feed.part == i for feeds in case.definition.feeds for feed in feeds)
            handed = [
                d
                for d in letters
                if d.position and d.position.source == before.name and d.reason != "malformed"
            ]
            assert len(handed) <= late * takers


PER_SECOND = wr.Aggregate(
    by=("k", "g"), event_time="t", window=wr.tumbling("1 second"), agg={"n": wr.count(), "v": wr.sum("v")},
    watermark=wr.explicit(), retention="1 hour", name="first",
    emit=wr.Emit(early=wr.every(2), late=wr.every_batch, mode="discarding"),
)  # fmt: skip
PER_TEN = wr.Aggregate(
    by="k", event_time="window_time", window=wr.tumbling("10 seconds"),
    agg={"n": wr.sum("n"), "v": wr.sum("v")}, retention="1 hour", name="second",
)  # fmt: skip


@given(data=st.data(), append=st.booleans())
@PROFILE
def test_sums_of_counts_are_the_counts_of_one_aggregate(data: st.DataObject, append: bool) -> None:
    """Seconds summed to tens are tens of seconds, where nothing was dropped; told in parts, however late."""
    first = PER_SECOND
    if append:
        first = eval(repr(first).replace(repr(first.emit), "wr.Emit.append()"))
    graph = first.then(PER_TEN)
    case = Case(definition=graph, messages=rows.map(lambda row: drawn(graph, row)), schema=SCHEMA)
    acts = data.draw(actions(case))
    with life(case) as job:
        play(job, [a for a in acts if not (append and a[0] == "watermark")])
        infos = {(p.window.start_us, p.key["k"]): p for p in job.sinks["second"].panes}
        wanted: dict[tuple[int, str], list[int]] = {}
        for _, m in job.sent:
            wanted.setdefault((m.payload["t"] // (10 * S) * 10 * S, m.payload["k"]), []).append(
                m.payload["v"]
            )
        assert {w: (p["n"], p["v"]) for w, p in infos.items()} == {
            w: (len(v), sum(v)) for w, v in wanted.items()
        }
