"""Any definition with ids, any input, any cut, any crash, any redelivery: as the oracle, and nothing is counted twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from tests.proof.test_against_oracle import ACTIONS, PROFILE, Case, Run, cases, in_the_end, messages
from windrow.core.messages import Message, Position
from windrow.testing.clock import ManualClock
from windrow.testing.driver import TestDriver
from windrow.testing.ledger import values_equal

IDS = st.sampled_from([1, 2, 3, 4, 5, 6, 7, None])


def named(rows: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(rows, IDS).map(lambda pair: {**pair[0], "u": pair[1]})


FEEDS = st.one_of(
    st.tuples(st.just("feed"), st.lists(named(messages()), min_size=1, max_size=6)),
    st.tuples(st.just("each"), st.lists(named(messages(close=True)), min_size=1, max_size=4)),
    st.tuples(st.just("again"), st.integers(1, 6)),
)
OTHERS = ACTIONS.filter(lambda action: action[0] not in ("feed", "each"))


def again(run: Run, n: int) -> None:
    """The last messages of each partition come once more, where the source has no memory of them."""
    twice = []
    for partition, known in run.source.items():
        for old in known[-n:]:
            made = Message(old.payload, Position("s", partition, len(known)))
            known.append(made)
            twice.append(made)
    if twice:
        run.driver.feed(twice)


@pytest.mark.proves("Ids: a second message of a key and id is a duplicate, within retention")
@given(
    case=cases(ids=True),
    actions=st.lists(st.one_of(FEEDS, FEEDS, OTHERS), min_size=2, max_size=14),
    drained=st.booleans(),
)
@PROFILE
def test_with_ids_the_operator_gives_what_the_oracle_makes_of_the_recorded_steps(
    case: Case, actions: list[tuple[str, Any]], drained: bool
) -> None:
    with TestDriver(case.definition, clock=ManualClock(case.base_us)) as driver:
        run = Run(case, driver)
        for kind, value in actions:
            if kind == "again":
                again(run, value)
            else:
                run.act(kind, value)
        if drained:
            driver.drain()
        driver.check()


@pytest.mark.proves("Ids: a second message of a key and id is a duplicate, within retention")
@given(
    case=cases(ids=True, unbounded=True, modes=("accumulating", "retracting")),
    rows=st.lists(named(messages(good=True)), min_size=1, max_size=15),
    cuts=st.tuples(st.integers(1, 3), st.integers(4, 15)),
)
@examples(40, deep=3_000)
def test_which_of_two_is_the_duplicate_does_not_depend_on_the_cut(
    case: Case, rows: list[dict[str, Any]], cuts: tuple[int, int]
) -> None:
    rows = [{**row, "p": 0} for row in rows]
    (held, told), (held_too, told_too) = (in_the_end(case, rows, cut) for cut in cuts)
    assert values_equal(held, held_too)
    assert values_equal(told, told_too)


@pytest.mark.proves("Ids: a second message of a key and id is a duplicate, within retention")
@given(
    seconds=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), min_size=1, max_size=25),
    lives=st.lists(st.integers(1, 9), max_size=4),
)
@examples(40, deep=3_000)
def test_a_source_that_begins_anew_with_every_life_counts_each_id_once(
    seconds: list[tuple[int, int]], lives: list[int]
) -> None:
    """Messages without positions: what was counted before the crash comes again, and more."""
    definition = wr.Aggregate(
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count()},
        retention="30 seconds",
        ids=wr.ids("u"),
        emit=wr.Emit(late=wr.every_batch),
    )
    rows = [{"t": t * 1_000_000, "u": f"{t}/{u}"} for t, u in seconds]
    with TestDriver(definition, clock=ManualClock()) as driver:
        for reached in [*lives, len(rows)]:
            for row in rows[:reached]:
                driver.add(row)
            driver.next_offsets()  # which commits
            driver.restart()
        driver.drain()
        counted = {(p.window.start_us, p.index): p["n"] for p in driver.committed_panes()}  # type: ignore[union-attr]
        per_window = {start: n for (start, _), n in sorted(counted.items())}
        driver.check()
        for start, n in per_window.items():
            assert n <= len({row["u"] for row in rows if start <= row["t"] < start + 10_000_000})
