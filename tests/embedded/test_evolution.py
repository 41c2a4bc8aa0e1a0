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
from tests.operators.cogroup.cases import OPERATOR as COGROUPS
from tests.operators.contract import life
from tests.operators.session.cases import OPERATOR as SESSIONS
from windrow.core.errors import DefinitionChanged
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


def test_windows_from_before_have_null_for_what_has_come_and_later_ones_have_it(tmp_path: Path) -> None:
    with TestDriver(sums("n"), tmp_path) as driver:
        driver.feed([row(1, 0)])
        driver.next_offsets()
        driver.restart(sums("n", "total", "high"))
        driver.advance_clock(S)
        driver.timeout()  # before any message had the column that `high` takes
        driver.feed([row(2, 1, w=1), row(11, 2, w=4), row(12, 3, w=5)])
        driver.advance_event_time(20 * S)
        last = {p.window.start_us: p.values for p in driver.check(dead_letters=True).panes}
        assert last == {0: {"n": 2, "total": None, "high": None}, 10 * S: {"n": 2, "total": 23, "high": 10}}


def test_what_has_come_may_raise_on_messages_that_are_kept_from_before(tmp_path: Path) -> None:
    with TestDriver(sums("middle", "high"), tmp_path) as driver:
        driver.feed([row(1, 0, w=0), row(2, 1, w=2)])
        driver.next_offsets()
        driver.restart(sums("middle", "high", "share", "shares"))
        driver.feed([row(3, 2, w=0), row(4, 3, w=3), row(11, 4, w=2), row(12, 5, w=6)])
        driver.advance_event_time(20 * S)
        last = {p.window.start_us: p.values for p in driver.check(dead_letters=True).panes}
        assert last == {
            0: {"middle": 2, "high": 6, "share": None, "shares": None},
            10 * S: {"middle": 11.5, "high": 12, "share": 7, "shares": 1},
        }
        [letter] = driver.dead_letters()
        assert letter.reason == "malformed" and letter.position == wr.Position("s", 0, 2)


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


@pytest.mark.parametrize("names", [("n",), ("n", "middle")], ids=["accumulators", "messages are kept"])
def test_what_comes_back_is_null_in_windows_of_messages_from_before_though_none_came_without_it(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    numbered = {"window": wr.tuples(3), "retention": wr.forever}
    with TestDriver(sums(*names, "total", **numbered), tmp_path) as driver:
        driver.feed([row(1, 0)])
        for now in (names, (*names, "total")):
            driver.next_offsets()
            driver.restart(sums(*now, **numbered))
        driver.feed([row(t, t - 1) for t in (2, 3, 4, 5, 6)])
        last = {p.window.first: p["total"] for p in driver.check(dead_letters=True).panes}
        assert last == {1: None, 4: 15}


def test_a_column_of_nulls_has_values_while_the_expression_over_it_is_gone(tmp_path: Path) -> None:
    agg = {"n": wr.count(), "middle": wr.median("v"), "large": wr.sum("v").where(wr.col("v") > 1)}
    less = {name: agg[name] for name in ("n", "middle")}
    with TestDriver(sums("n")._changed(agg=agg), tmp_path) as driver:
        driver.feed([row(1, 0, v=None)])
        driver.next_offsets()
        driver.restart(sums("n")._changed(agg=less))
        driver.feed([row(2, 1, v=3)])
        driver.next_offsets()
        driver.restart(sums("n")._changed(agg=agg))
        driver.feed([row(3, 2, v=4), row(11, 3, v=5)])
        last = {p.window.start_us: p.values for p in driver.check(dead_letters=True).panes}
        assert last == {
            0: {"n": 3, "middle": 3.5, "large": None},
            10 * S: {"n": 1, "middle": 5.0, "large": 5},
        }


def test_a_definition_that_changed_otherwise_is_refused_and_shown_what_could_be_opened(
    tmp_path: Path,
) -> None:
    with sums("n", "total").open(str(tmp_path)) as op:
        op.add_messages([row(1, 0)])
    with pytest.raises(DefinitionChanged) as refused:
        sums("n", "high", window=wr.tumbling("1 minute")).open(str(tmp_path))
    error = str(refused.value)
    assert "'high' has come, wr.max(multiply_checked(w, 2)): alone it could be opened" in error
    assert "'total' has gone, wr.sum('v'): alone it could be opened" in error
    assert "window was \"wr.tumbling('10 seconds')\"" in error and "not on this state" in error


def test_an_aggregate_that_keeps_messages_grows_as_well(tmp_path: Path) -> None:
    with TestDriver(sums("n", "middle"), tmp_path) as driver:
        driver.feed([row(1, 0)])
        driver.next_offsets()
        driver.restart(sums("n", "middle", "high"))
        driver.feed([row(2, 1, w=1), row(11, 2, w=4)])
        last = {p.window.start_us: p.values for p in driver.check(dead_letters=True).panes}
        assert last[0] == {"n": 2, "middle": 1.5, "high": None}
        assert last[10 * S] == {"n": 1, "middle": 11.0, "high": 8}


@pytest.mark.parametrize("mode", ["retracting", "accumulating"])
def test_what_has_come_is_computed_from_kept_messages_and_corrected(tmp_path: Path, mode: Any) -> None:
    emit = wr.Emit(early=wr.every_batch, late=wr.every_batch, mode=mode)
    before, after = (sums(*names, emit=emit) for names in (("middle",), ("middle", "total", "n")))
    with TestDriver(before, tmp_path) as driver:
        driver.feed([row(1, 0), row(2, 1), row(11, 2)])
        driver.advance_event_time(10 * S)
        driver.panes()
        driver.restart(after.recomputing())
        driver.advance_clock(S)
        driver.timeout()
        panes = [(p.window.start_us // S, p.timing.value, p.kind.value, p.values) for p in driver.panes()]
        wanted = [
            (0, "LATE", "INSERT", {"middle": 1.5, "total": 3, "n": 2}),
            (10, "EARLY", "INSERT", {"middle": 11.0, "total": 11, "n": 1}),
        ]
        if mode == "retracting":
            backs = [(0, "LATE", "RETRACT", {"middle": 1.5, "total": None, "n": None}),
                     (10, "EARLY", "RETRACT", {"middle": 11.0, "total": None, "n": None})]  # fmt: skip
            wanted = [backs[0], wanted[0], backs[1], wanted[1]]
        assert panes == wanted
        driver.restart()
        driver.advance_clock(S)
        driver.timeout()
        assert driver.panes() == []  # once
        driver.feed([row(3, 3)])
        assert driver.panes()[-1].values == {"middle": 2.0, "total": 6, "n": 3}
        driver.check(dead_letters=True)


def test_what_was_null_is_computed_later_where_its_columns_are_kept(tmp_path: Path) -> None:
    """Messages keep the columns that somebody takes: of others there is nothing to compute it from."""
    with TestDriver(sums("middle"), tmp_path) as driver:
        driver.feed([row(1, 0, w=5), row(2, 1, w=0)])
        driver.next_offsets()
        driver.restart(sums("middle", "n", "high").recomputing())
        driver.feed([row(3, 2, w=7)])
        assert driver.panes()[-1].values == {"middle": 2.0, "n": 3, "high": None}
        driver.restart(sums("middle", "n", "high", "total"))
        driver.feed([row(4, 3, w=7)])
        assert driver.panes()[-1].values == {"middle": 2.5, "n": 4, "high": None, "total": None}
        driver.restart(sums("middle", "n", "high", "total").recomputing())
        driver.feed([row(5, 4, w=9)])
        assert driver.panes()[-1].values == {"middle": 3.0, "n": 5, "high": None, "total": 15}
        driver.check(dead_letters=True)


def test_what_raises_on_a_message_of_before_is_null_of_it(tmp_path: Path) -> None:
    with TestDriver(sums("middle", "high"), tmp_path) as driver:
        driver.feed([row(1, 0, w=0), row(2, 1, w=2), row(6, 2, w=2)])
        driver.next_offsets()
        driver.restart(sums("middle", "high", "share", "shares").recomputing())
        driver.feed([row(3, 3, w=0), row(4, 4, w=4)])
        assert driver.panes()[-1].values == {"middle": 3.0, "high": 8, "share": 5, "shares": 0}
        driver.check(dead_letters=True)


def test_without_kept_messages_there_is_nothing_to_compute_from(tmp_path: Path) -> None:
    with TestDriver(sums("n"), tmp_path) as driver:
        driver.feed([row(1, 0)])
        driver.next_offsets()
        driver.restart(sums("n", "total").recomputing())
        driver.feed([row(2, 1), row(11, 2)])
        assert [p.values for p in driver.panes()][-2:] == [{"n": 2, "total": None}, {"n": 1, "total": 11}]
        driver.check(dead_letters=True)


def chained(first: tuple[str, ...], second: dict[str, Any], **more: Any) -> wr.Chain:
    parts = sums(*first, name="first", **more)
    tens = wr.Aggregate(
        by="k", event_time="window_time", window=wr.tumbling("5 seconds"), agg=second, retention="1 hour",
        emit=wr.Emit(early=wr.every_batch), name="second",
    )  # fmt: skip
    return wr.chain(parts, tens)


def test_operators_of_a_chain_grow_each_by_itself(tmp_path: Path) -> None:
    """An early pane is dated at the end of its window, so that the next operator has seen times beyond all messages."""
    grown = chained(("n", "total"), {"n": wr.sum("n"), "total": wr.sum("total"), "rows": wr.count()})
    with TestDriver(
        chained(("n",), {"n": wr.sum("n")}, window=wr.tumbling("10 seconds")), tmp_path
    ) as driver:
        driver.feed([row(11, 0)])
        driver.next_offsets()
        driver.restart(grown)
        driver.feed([row(12, 1), row(21, 2)])
        driver.advance_event_time(60 * S)
        last = {p.window.start_us // S: p.values for p in driver.check(dead_letters=True).panes}
        assert last == {
            15: {"n": 2, "total": None, "rows": None},
            25: {"n": 1, "total": 21, "rows": 1},
        }
    assert wr.read_state(str(tmp_path), definition=grown).get_windows()[0].values["total"] is None


def test_of_a_chain_it_is_said_which_change_could_be_opened(tmp_path: Path) -> None:
    with chained(("n",), {"n": wr.sum("n")}).open(str(tmp_path)) as op:
        op.add_messages([row(1, 0)])
    with pytest.raises(DefinitionChanged) as refused:
        chained(("n", "total"), {"n": wr.avg("n")}).open(str(tmp_path))
    error = str(refused.value)
    assert (
        "'second':" in error and "'n' was wr.sum('n'), and is wr.avg('n'): give the new one a name" in error
    )
    with pytest.raises(
        DefinitionChanged, match=r"'first':\n  - 'total' has come.*alone it could be opened\n  - window was"
    ):
        chained(("n", "total"), {"n": wr.sum("n")}, window=wr.tumbling("5 seconds")).open(str(tmp_path))
    once = chained(("n",), {"n": wr.sum("n")}, emit=wr.Emit.append())
    with pytest.raises(
        DefinitionChanged, match="'second' takes messages in another way: takes_back was True"
    ):
        once.open(str(tmp_path))


@pytest.mark.parametrize("kept", ["n", "middle"])
def test_a_window_of_messages_has_what_has_come_when_it_has_seen_all_of_them(
    kept: str, tmp_path: Path
) -> None:
    pairs = {"window": wr.tuples(2), "retention": wr.Retain(windows=9)}
    with TestDriver(sums(kept, **pairs), tmp_path) as driver:
        driver.feed([row(1, 0), row(2, 1, k="b")])
        driver.next_offsets()
        driver.restart(sums(kept, "total", **pairs))
        driver.feed([row(3, 2), row(4, 3), row(5, 4, k="b")])
        driver.feed([row(6, 5), row(7, 6, k="b"), row(8, 7, k="b")])
        full = [(p.key["k"], p.window.first, p["total"]) for p in driver.panes() if p.is_last]
        assert full == [("a", 1, None), ("b", 1, None), ("a", 3, 10), ("b", 3, 15)]
        driver.check(dead_letters=True)


@pytest.mark.parametrize("recompute", [False, True])
def test_sessions_from_before_have_null_for_what_has_come_unless_it_is_computed(
    recompute: bool, tmp_path: Path
) -> None:
    def emitted_rows() -> list[tuple[Any, ...]]:
        return [(p.kind.value, p.window.start_us // S, p["total"], p["middle"]) for p in driver.panes()]  # type: ignore[union-attr]

    window = wr.session("10 seconds")
    with TestDriver(sums("middle", window=window), tmp_path) as driver:
        driver.feed([row(1, 0), row(20, 1)])
        driver.panes()
        grown = sums("middle", "total", window=window)
        driver.restart(grown.recomputing() if recompute else grown)
        driver.feed([row(11, 2), row(40, 3)])
        corrected = [
            ("RETRACT", 1, None, 1), ("INSERT", 1, 1, 1), ("RETRACT", 20, None, 20), ("INSERT", 20, 20, 20)
        ]  # fmt: skip
        parts, whole = ((1, 20), 32) if recompute else ((None, None), None)
        assert emitted_rows() == [
            *(corrected if recompute else []),
            ("RETRACT", 1, parts[0], 1), ("RETRACT", 20, parts[1], 20), ("INSERT", 1, whole, 11),
            ("INSERT", 40, 40, 40),
        ]  # fmt: skip
        driver.check(dead_letters=True)


def test_operators_side_by_side_grow_each_by_itself(tmp_path: Path) -> None:
    """Also where it is computed of kept messages."""

    def emitted_rows(op: Any, name: str) -> list[dict[str, Any]]:
        return [pane.values for pane in op.get_result(name) if pane.kind.value == "INSERT"]

    before = [sums("middle", name="tens"), sums("n", name="visits", window=wr.session("10 seconds"))]
    after = [
        sums("middle", "total", name="tens"),
        sums("n", "total", name="visits", window=wr.session("10 seconds")),
    ]
    with wr.open(before, str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([row(1, 0), row(2, 1)])
        assert emitted_rows(op, "tens") == [{"middle": 1.5}] and emitted_rows(op, "visits") == [{"n": 2}]
    with wr.open(after, str(tmp_path), clock=ManualClock(0), recompute=True) as op:
        op.add_messages([row(3, 2), row(31, 3)])
        assert emitted_rows(op, "tens")[-2:] == [{"middle": 2.0, "total": 6}, {"middle": 31.0, "total": 31}]
        assert emitted_rows(op, "visits")[-2:] == [{"n": 3, "total": None}, {"n": 1, "total": 31}]
    assert wr.read_state(str(tmp_path)).get_windows(operator="visits")[0].values == {"n": 3, "total": None}


def test_what_comes_to_several_inputs_is_computed_of_the_messages_of_its_own(tmp_path: Path) -> None:
    """Kept is of each input what aggregations of it name: another column, or that column of another input, is not."""

    def accounts(*names: str) -> wr.CoGroup:
        agg = {
            "middle": wr.median("v").of("o"), "total": wr.sum("v").of("o"), "high": wr.count().where(wr.col("v") > 1).of("o"),
            "n": wr.count(), "paid": wr.sum("v").of("p"), "other": wr.sum("w").of("o"), "came": wr.count().of("p"),
        }  # fmt: skip
        return wr.CoGroup(
            inputs=[wr.Input(name, event_time="t", watermark=wr.explicit()) for name in "op"], by="k",
            window=wr.tumbling("10 seconds"), agg={name: agg[name] for name in names}, retention="1 hour",
            emit=wr.Emit(early=wr.every_batch, mode="retracting"),
        )  # fmt: skip

    with TestDriver(accounts("middle", "came"), tmp_path) as driver:
        driver.feed({"o": [row(1, 0, w=3), row(2, 1, w=3)], "p": [row(3, 0)]})
        driver.next_offsets()
        driver.restart(accounts("middle", "came", "total", "high", "n", "paid", "other").recomputing())
        driver.advance_clock(S)
        driver.timeout()
        driver.feed({"o": [row(11, 2, w=4)]})
        driver.advance_event_time(20 * S)
        panes = driver.check(dead_letters=True).panes
    first = {"middle": 1.5, "came": 1, "total": 3, "high": 1, "n": 3, "paid": None, "other": None}
    second = {"middle": 11.0, "came": 0, "total": 11, "high": 1, "n": 1, "paid": 0, "other": 4}
    assert {p.window.start_us: p.values for p in panes} == {0: first, 10 * S: second}
    assert [(p.kind.value, p["middle"]) for p in panes[:3]] == [
        ("INSERT", 1.5),
        ("RETRACT", 1.5),
        ("INSERT", 1.5),
    ]


@given(data=st.data())
@examples(25, deep=2_000)
def test_whatever_is_added_and_removed_the_oracle_says_what_is_emitted(data: st.DataObject) -> None:
    case = data.draw(
        st.one_of(OPERATOR.cases, SESSIONS.cases, COGROUPS.cases.filter(lambda c: not c.definition.policies))
    )
    definition = case.definition
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
    # Of the messages of one input, mostly such that are kept.
    inputs = [definition.agg[n].input for n in kept if definition.agg[n].columns] or [None]
    inputs += [i.name for i in definition.inputs if definition.by_input][:1]
    of = {n: data.draw(st.sampled_from(inputs)) for n in come}
    grown = definition._changed(
        agg={
            **{n: definition.agg[n] for n in kept},
            **{n: INCREMENTAL[n] if of[n] is None else INCREMENTAL[n].of(of[n]) for n in come},
        }
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
        job.driver.restart(grown.recomputing() if data.draw(st.booleans()) else grown)
        for kind, value in data.draw(acts):
            job.act(kind, value)
        if data.draw(st.booleans()):  # as it was
            job.driver.next_offsets()
            job.driver.restart(definition)
            for kind, value in data.draw(acts):
                job.act(kind, value)
        job.driver.drain()
        job.check()


@pytest.mark.parametrize("window", [wr.tumbling("10 seconds"), wr.session("10 seconds"), wr.tuples(3)])
def test_the_last_aggregation_that_needs_messages_may_go_and_messages_are_kept_on(
    window: Any, tmp_path: Path
) -> None:
    kind: dict[str, Any] = {"window": window}
    if isinstance(window, type(wr.tuples(3))):
        kind["retention"] = wr.Retain(windows=9)
    with TestDriver(sums("n", "total", "middle", **kind), tmp_path) as driver:
        driver.feed([row(1, 0), row(2, 1)])
        driver.next_offsets()
        driver.restart(sums("n", "total", **kind))
        driver.feed([row(4, 2)])
        assert driver.panes()[-1].values == {"n": 3, "total": 7}
        with wr.read_state(str(tmp_path)) as state:
            assert [m.payload["v"] for m in state.get_messages()] == [1, 2, 4]
            assert state.get_windows()[0].values == {"n": 3, "total": 7}
        driver.restart()
        driver.feed([row(5, 3)])
        if kind.keys() == {"window"}:
            assert driver.panes()[-1].values == {"n": 4, "total": 12}
            driver.restart(sums("n", "total", "middle", **kind).recomputing())
            driver.feed([row(6, 4)])
            assert driver.panes()[-1].values == {"n": 5, "total": 18, "middle": 4.0}
            driver.restart(sums("n", **kind))  # and goes again, with another
            driver.feed([row(7, 5)])
            assert driver.panes()[-1].values == {"n": 6}
        driver.check(dead_letters=True)


def test_an_aggregation_that_needs_messages_cannot_come_where_none_are_kept(tmp_path: Path) -> None:
    with sums("n").open(str(tmp_path)) as op:
        op.add_messages([row(1, 0)])
    with pytest.raises(DefinitionChanged) as refused:
        sums("n", "total", "middle").open(str(tmp_path))
    error = str(refused.value)
    assert (
        "'middle' has come, wr.median('v'): it needs every message of a window, and this state keeps none"
        in error
    )
    assert "'total' has come, wr.sum('v'): alone it could be opened" in error and "design" not in error


@pytest.mark.parametrize("window", [wr.tumbling("10 seconds"), wr.session("10 seconds")])
def test_after_corrected_panes_medians_come_and_go(window: Any, tmp_path: Path) -> None:
    """No messages are kept for medians there, and those of sessions are kept in any case."""

    def busy(*names: str) -> wr.Chain:
        agg = {"n": wr.sum("n"), "middle": wr.median("n")}
        second = wr.Aggregate(
            by="k", event_time="window_time", window=window, agg={name: agg[name] for name in names},
            retention="1 hour", emit=wr.Emit(early=wr.every_batch), name="second",
        )  # fmt: skip
        return sums("n", name="first", window=wr.tumbling("2 seconds")).then(second)

    with TestDriver(busy("n"), tmp_path) as driver:
        driver.feed([row(1, 0)])
        driver.next_offsets()
        driver.restart(busy("n", "middle"))
        driver.feed([row(1, 1), row(41, 2), row(43, 3), row(43, 4)])
        assert [p.values for p in driver.panes()][-2:] == [
            {"n": 2, "middle": None},
            {"n": 3, "middle": 1.5},
        ]
        driver.restart(busy("n"))
        driver.feed([row(41, 5)])
        assert driver.panes()[-1].values == {"n": 4}
        driver.check(dead_letters=True)


def test_of_several_inputs_the_last_aggregation_that_needs_messages_may_go(tmp_path: Path) -> None:
    def accounts(*names: str) -> wr.CoGroup:
        agg = {"n": wr.count(), "middle": wr.median("v").of("o"), "paid": wr.sum("v").of("p")}
        return wr.CoGroup(
            inputs=[wr.Input(name, event_time="t", watermark=wr.explicit()) for name in "op"], by="k",
            window=wr.session("10 seconds"), agg={name: agg[name] for name in names}, retention="1 hour",
            emit=wr.Emit(early=wr.every_batch, mode="retracting"),
        )  # fmt: skip

    with TestDriver(accounts("n", "middle", "paid"), tmp_path) as driver:
        driver.feed({"o": [row(1, 0)], "p": [row(2, 0)]})
        driver.next_offsets()
        driver.restart(accounts("n", "paid"))
        driver.feed({"p": [row(3, 1)]})
        assert driver.panes()[-1].values == {"n": 3, "paid": 5}
        driver.restart(accounts("n", "paid", "middle"))
        driver.feed({"o": [row(4, 1), row(40, 2)]})
        assert [p.values for p in driver.panes()][-2:] == [
            {"n": 4, "paid": 5, "middle": None},
            {"n": 1, "paid": 0, "middle": 40.0},
        ]
        driver.check(dead_letters=True)


@pytest.mark.parametrize("window", [wr.tumbling("10 seconds"), wr.session("10 seconds")])
def test_where_one_that_was_computed_is_removed_nothing_is_updated(window: Any, tmp_path: Path) -> None:
    more = {"window": window, "emit": wr.Emit(early=wr.every_batch)}
    with TestDriver(sums("middle", **more), tmp_path) as driver:
        driver.feed([row(1, 0)])
        driver.next_offsets()
        driver.restart(sums("middle", "n", "total", **more).recomputing())
        driver.feed([row(2, 1)])
        driver.panes()
        for left in (("middle", "n"), ("middle",)):
            driver.restart(sums(*left, **more))
            driver.advance_clock(S)
            driver.timeout()
            assert driver.panes() == []
        driver.feed([row(3, 2)])
        assert [p.values for p in driver.panes()][-1] == {"middle": 2.0}
        driver.check(dead_letters=True)


@pytest.mark.parametrize("again", [2, "x"], ids=["as before", "as another type"])
def test_a_column_that_nothing_needed_for_a_while_stops_no_commit(tmp_path: Path, again: Any) -> None:
    """Kept messages have it in its former type: one of another type is a dead letter as long as they are there."""
    lives: list[dict[str, Any]] = [
        {"a": wr.sum("w")},
        {"b": wr.sum("v")},
        {"b": wr.sum("v"), "x": wr.max("w")},
        {"b": wr.sum("v"), "x": wr.max("w")},
    ]
    for n, agg in enumerate(lives):
        medians = wr.Aggregate(
            by="k",
            event_time="t",
            window=wr.tumbling("1 hour"),
            agg={"m": wr.median("v"), **agg},
            retention="1 day",
            emit=wr.Emit(early=wr.every_batch, mode="retracting"),
        )
        with medians.open(str(tmp_path), recompute=n > 1, clock=ManualClock()) as op:
            op.add_message({"t": 1, "k": "a", "v": 1, "w": 2 if n < 2 else again})
            op.flush()
            [window] = op.get_windows()
            letters = len(op.dead_letters())
            assert letters == (max(n - 1, 0) if again == "x" else 0)
            assert (window.messages, window.values["m"]) == (n + 1 - letters, 1)


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("extra", [{}, {"m": wr.median("v")}], ids=["", "messages are kept"])
def test_what_is_taken_back_is_what_was_emitted_whatever_went_and_came_in_between(
    tmp_path: Path, extra: dict[str, Any], one_by_one: bool
) -> None:
    emitted = []
    for names, value in ((("hi", "s"), 4), (("hi",), 4), (("hi", "s"), 9)):
        agg = {"hi": wr.max("v"), "s": wr.sum("v")}
        both = wr.Aggregate(
            by="k",
            event_time="t",
            window=wr.tumbling("1 hour"),
            agg={**{name: agg[name] for name in names}, **extra},
            retention="1 day",
            emit=wr.Emit(early=wr.every_batch, mode="retracting", only_if_changed=True),
        )
        with both.open(str(tmp_path), clock=ManualClock()) as op:
            for message in [{"t": 1, "k": "a", "v": value}] * (1 + one_by_one):
                op.add_message(message)
            emitted += [(pane.kind, pane["hi"], pane.values.get("s")) for pane in op.get_result()]
            op.flush()
    stands = None
    for kind, *values in emitted:
        assert stands is None if kind == "INSERT" else values == stands, emitted
        stands = values if kind == "INSERT" else None
    assert stands == [9, None]


@pytest.mark.parametrize(
    ("mode", "one_by_one"), [("accumulating", False), ("retracting", False), ("retracting", True)]
)
@pytest.mark.parametrize("extra", [{}, {"m": wr.median("v")}], ids=["", "messages are kept"])
def test_what_is_taken_back_of_sessions_is_what_was_emitted_whatever_went_and_came_in_between(
    tmp_path: Path, extra: dict[str, Any], one_by_one: bool, mode: Any
) -> None:
    """In between a message of `a` changes nothing, none of `b` comes, and one of `c` changes what is emitted."""
    agg = {"hi": wr.max("v"), "s": wr.sum("v"), "big": wr.count().where(wr.col("v") > 5)}
    both, fewer = ("hi", "s", "big"), ("hi",)
    lives: list[tuple[tuple[str, ...], list[tuple[str, int, int]]]] = [
        (both, [("a", 1, 4), ("a", 21, 4), ("b", 1, 4), ("c", 1, 4), ("e", 1, 4)]),
        (fewer, [("a", 1, 4), ("c", 1, 5), ("d", 1, 4)]),
        (both, [("a", 11, 9), ("b", 1, 9), ("c", 1, 9), ("d", 1, 9), ("g", 1, 4), ("g", 21, 4)]),
        (fewer, [("g", 1, 4)]),
        (both, [("g", 11, 9), ("e", 1, 4), ("a", 1, 1)]),
    ]
    emitted = []
    for names, messages in lives:
        sessions = wr.Aggregate(
            by="k",
            event_time="t",
            window=wr.session("10 seconds"),
            agg={**{name: agg[name] for name in names}, **extra},
            retention="1 day",
            watermark=wr.explicit(),
            emit=wr.Emit(early=wr.every_batch, mode=mode, only_if_changed=True),
        )
        with sessions.open(str(tmp_path), clock=ManualClock()) as op:
            for n, (key, t, value) in enumerate(messages, 1):
                op.add_message({"t": t * S, "k": key, "v": value})
                if one_by_one or n == len(messages):
                    emitted += op.get_result()
                    op.flush()
    stands: dict[Any, Any] = {}
    retractions_alone = 0
    for pane in emitted:
        values, place = {**dict.fromkeys(both), **pane.values}, (pane.key["k"], pane.window)
        if pane.kind.value == "INSERT":
            assert mode == "accumulating" or place not in stands
            stands[place] = values
        else:
            was = stands.pop(place)
            assert {name: was[name] for name in pane.values} == pane.values, place
            retractions_alone += 1
    assert retractions_alone == (4 if mode == "accumulating" else 9)
    last = {(key, w.start_us // S): [v[name] for name in both] for (key, w), v in stands.items()}
    assert last == {
        ("a", 1): [9, None, None],
        ("b", 1): [9, None, None],
        ("c", 1): [9, None, None],
        ("d", 1): [9, None, None],
        ("e", 1): [4, None, None],
        ("g", 1): [9, None, None],
    }


@pytest.mark.parametrize("emit", [None, wr.Emit(early=wr.every_batch, mode="retracting")])
def test_messages_come_one_by_one_to_an_aggregation_that_is_computed_anew(
    tmp_path: Path, emit: wr.Emit | None
) -> None:
    """The first step of such a job corrects windows; the messages that wait behind it are counted, and it opens again."""

    def medians(**more: Any) -> wr.Aggregate:
        agg = {"m": wr.median("w"), **more}
        return wr.Aggregate(
            event_time="t", window=wr.tumbling("1 hour"), agg=agg, retention="1 day", emit=emit
        )

    with medians().open(str(tmp_path)) as op:
        op.add_message({"t": 1, "w": 1})
        op.flush()
    for n, more in enumerate([{"x": wr.max("w")}, {"x": wr.max("w"), "y": wr.min("w")}]):
        with medians(**more).open(str(tmp_path), recompute=True) as op:
            for w in (2, "text", 3, 4):
                op.add_message({"t": 2, "w": w})
            op.flush()
            [window] = op.get_windows()
            assert (window.messages, window.values["x"], window.values["m"]) == (4 + 3 * n, 4, (2.5, 3.0)[n])
            assert [letter.reason for letter in op.dead_letters()] == ["malformed"] * (n + 1)
