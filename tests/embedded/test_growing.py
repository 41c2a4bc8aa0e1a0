"""Aggregations come to an aggregate that has state, and go from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from tests.operators.aggregate.cases import INCREMENTAL, OPERATOR
from tests.operators.contract import life
from windrow.core.errors import DefinitionChanged
from windrow.core.windows import Tuples
from windrow.operators.growth import Before, Growth
from windrow.testing import ManualClock, TestDriver

S = 1_000_000


def sums(*names: str, **more: Any) -> wr.Aggregate:
    all_of_them = {
        "n": wr.count(),
        "total": wr.sum("v"),
        "high": wr.max(wr.col("w") * 2),
        "middle": wr.median("v"),
        "share": wr.sum(wr.col("v") / wr.col("w")),
        "shares": wr.count().where(wr.col("v") / wr.col("w") > 3),
    }
    options: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {name: all_of_them[name] for name in names},
        "retention": "1 hour",
        "watermark": wr.explicit(),
        "emit": wr.Emit(early=wr.every_batch, mode="retracting"),
    }
    return wr.Aggregate(**options | more)


def row(t: int, offset: int, **more: Any) -> wr.Message:
    return wr.Message({"t": t * S, "k": "a", "v": t, **more}, wr.Position("s", 0, offset))


@pytest.mark.proves("Coming back: an aggregation more, or less, on the state that there is")
def test_windows_from_before_have_null_for_what_has_come_and_later_ones_have_it(tmp_path: Path) -> None:
    with TestDriver(sums("n"), tmp_path) as driver:
        driver.feed([row(1, 0)])
        driver.next_offsets()
        driver.restart(sums("n", "total", "high"))
        driver.advance_clock(S)
        driver.timeout()  # before any message had the column that `high` takes
        driver.feed([row(2, 1, w=1), row(11, 2, w=4), row(12, 3, w=5)])
        driver.advance_event_time(20 * S)
        last = {p.window.start_us: p.values for p in driver.check().panes}
        assert last == {0: {"n": 2, "total": None, "high": None}, 10 * S: {"n": 2, "total": 23, "high": 10}}


def test_what_has_come_may_raise_on_messages_that_are_kept_from_before(tmp_path: Path) -> None:
    with TestDriver(sums("middle", "high"), tmp_path) as driver:
        driver.feed([row(1, 0, w=0), row(2, 1, w=2)])
        driver.next_offsets()
        driver.restart(sums("middle", "high", "share", "shares"))
        driver.feed([row(3, 2, w=0), row(4, 3, w=3), row(11, 4, w=2), row(12, 5, w=6)])
        driver.advance_event_time(20 * S)
        last = {p.window.start_us: p.values for p in driver.check().panes}
        assert last == {
            0: {"middle": 2, "high": 6, "share": None, "shares": None},
            10 * S: {"middle": 11.5, "high": 12, "share": 7, "shares": 1},
        }
        [letter] = driver.dead_letters()
        assert letter.reason == "malformed" and letter.position == wr.Position("s", 0, 2)


@pytest.mark.proves("Coming back: an aggregation more, or less, on the state that there is")
def test_what_has_gone_comes_back_as_it_was_or_not_at_all(tmp_path: Path) -> None:
    def opened(definition: wr.Aggregate, *messages: wr.Message) -> list[dict[str, Any]]:
        with definition.open(str(tmp_path), clock=ManualClock(0)) as op:
            op.add_messages(list(messages))
            op.get_result()
            return [w.values for w in op.get_windows()]

    assert opened(sums("n", "total"), row(1, 0)) == [{"n": 1, "total": 1}]
    assert opened(sums("n"), row(2, 1)) == [{"n": 2}]
    other = sums("n")._changed(agg={"n": wr.count(), "total": wr.avg("v")})
    with pytest.raises(
        DefinitionChanged, match=r"'total' was wr.sum\('v'\), and is wr.avg\('v'\): give the new one a name"
    ):
        opened(other)
    assert opened(sums("n", "total"), row(3, 2), row(11, 3)) == [
        {"n": 3, "total": None},
        {"n": 1, "total": 11},
    ]
    assert wr.read_state(str(tmp_path)).get_windows()[0].values == {"n": 3, "total": None}


def test_a_definition_that_changed_otherwise_is_refused_and_told_what_could_be_opened(tmp_path: Path) -> None:
    with sums("n", "total").open(str(tmp_path)) as op:
        op.add_messages([row(1, 0)])
    with pytest.raises(DefinitionChanged) as refused:
        sums("n", "high", window=wr.tumbling("1 minute")).open(str(tmp_path))
    told = str(refused.value)
    assert "'high' has come, wr.max(multiply_checked(w, 2)): alone it could be opened" in told
    assert "'total' has gone, wr.sum('v'): alone it could be opened" in told
    assert "window was \"wr.tumbling('10 seconds')\"" in told and "not on this state" in told
    with pytest.raises(DefinitionChanged, match="design was 'incremental', and is 'full-state'"):
        sums("n", "total", "middle").open(str(tmp_path))


def test_of_a_log_that_keeps_fingerprints_alone_what_has_come_is_found(tmp_path: Path) -> None:
    old, new = sums("n"), sums("n", "total", "high")
    assert new.growth(Before(old.fingerprint, None, Growth(), 7)) == Growth({"total": 8, "high": 8})
    assert old.growth(Before(new.fingerprint, None, Growth(), 7)) == ""


def test_an_aggregate_that_keeps_messages_grows_as_well(tmp_path: Path) -> None:
    with TestDriver(sums("n", "middle"), tmp_path) as driver:
        driver.feed([row(1, 0)])
        driver.next_offsets()
        driver.restart(sums("n", "middle", "high"))
        driver.feed([row(2, 1, w=1), row(11, 2, w=4)])
        last = {p.window.start_us: p.values for p in driver.check().panes}
        assert last[0] == {"n": 2, "middle": 1.5, "high": None}
        assert last[10 * S] == {"n": 1, "middle": 11.0, "high": 8}


@given(data=st.data())
@examples(40, deep=2_000)
def test_whatever_comes_and_goes_the_oracle_says_what_is_told(data: st.DataObject) -> None:
    case = data.draw(OPERATOR.cases)
    definition = case.definition
    assume(not isinstance(definition.window, Tuples))
    kept = data.draw(st.lists(st.sampled_from([*definition.agg]), unique=True))
    kept += [
        name
        for name in definition.agg
        if (name == "n" or definition.agg[name].full_state) and name not in kept
    ]
    come = data.draw(
        st.lists(
            st.sampled_from([n for n in INCREMENTAL if n not in definition.agg]), unique=True, max_size=3
        )
    )
    assume(kept or come)
    grown = definition._changed(
        agg={**{n: definition.agg[n] for n in kept}, **{n: INCREMENTAL[n] for n in come}}
    )
    feed = st.tuples(st.just("feed"), st.lists(case.messages, min_size=1, max_size=6))
    other = st.one_of(
        st.tuples(st.just("watermark"), st.sampled_from([1, 3, 12])),
        st.tuples(st.just("clock"), st.integers(1, 6)),
    )
    acts = st.lists(st.one_of(feed, feed, other), min_size=1, max_size=5)
    with life(case, with_sink=data.draw(st.booleans())) as job:
        for kind, value in data.draw(acts):
            job.act(kind, value)
        job.driver.next_offsets()
        job.driver.restart(grown)
        for kind, value in data.draw(acts):
            job.act(kind, value)
        job.driver.drain()
        job.check()
