"""Chains in one process: one commit for all, what is on time for one is on time for the next, nothing told twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.core.test_chain_definition import join, one, two
from windrow.core.errors import ConfigurationError, DefinitionChanged
from windrow.testing import ManualClock, TestDriver

S = 1_000_000


def at(second: float, time: str = "t", **fields: Any) -> wr.Message:
    return wr.Message({time: int(second * S), "k": "a", "v": 1, **fields})


def placed(offset: int, second: float) -> wr.Message:
    return wr.Message(at(second).payload, wr.Position("x", 0, offset))


CHAIN = one(watermark="1 second").then(
    two(window=wr.tumbling("10 seconds"), agg={"n": wr.sum("n"), "panes": wr.count()})
)
COUNTS = {"n": wr.count()}


def values(op: Any) -> list[tuple[int, int, str]]:
    return [(p.window.start_us // S, p["n"], p.timing.value) for p in op.get_result()]


def test_panes_feed_the_next_operator_and_keep_their_windows(tmp_path: Path) -> None:
    """A window that ends with the larger one is part of it, and told in the same step."""
    with CHAIN.open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages([at(0.5), at(9.25), at(9.5)])
        op.add_message(at(10.9))
        assert values(op) == []
        op.add_message(at(11))
        assert values(op) == [(0, 3, "ON_TIME")] and op.last_commit == 2
        op.drain()
        assert values(op) == [(0, 3, "ON_TIME"), (10, 2, "ON_TIME")]
        assert op.dead_letters() == []


@pytest.mark.parametrize("window", [wr.tumbling("1 second"), wr.calendar("day", time_zone="Europe/Berlin")])
def test_in_the_same_windows_each_pane_stays_in_its_own(tmp_path: Path, window: Any) -> None:
    chain = one(window=window, agg={"n": wr.count()}).then(
        two(
            window=window,
            by=(),
            agg={"n": wr.sum("n"), "start": wr.min("window_start"), "end": wr.max("window_end")},
        )
    )
    with chain.open(str(tmp_path), clock=ManualClock(80 * 3600 * S)) as op:
        op.add_messages([at(hour * 3600, k=str(hour % 3)) for hour in range(80)])
        op.drain()
        panes = op.get_result()
        assert sum(p["n"] for p in panes) == 80 and len(panes) > 3
        for p in panes:
            assert (int(p["start"].timestamp() * S), int(p["end"].timestamp() * S)) == (
                p.window.start_us,
                p.window.end_us,
            )


def test_a_replay_after_opening_again_emits_nothing_more(tmp_path: Path) -> None:
    fed = [placed(i, i / 4) for i in range(90)]
    for upto in (30, 60, 90):
        with CHAIN.open(str(tmp_path), clock=ManualClock(0)) as op:
            op.add_messages(fed[:upto])
            assert op.next_offsets() == {("x", 0): upto}
    with CHAIN.open(str(tmp_path), clock=ManualClock(0)) as op:
        before = values(op)
        op.add_messages(fed)
        op.timeout()
        assert values(op) == before and op.counters["replayed"] == 30 + 60 + 90
        op.drain()
        assert sum(n for _, n, _ in values(op)) == 90
        op.flush()
        assert values(op) == []


@pytest.mark.parametrize("how", ["inner", "left", "anti", "semi"])
def test_rows_that_wait_for_a_partner_are_on_time_for_the_next(tmp_path: Path, how: str) -> None:
    """The partner comes five seconds of event time later, or not at all: a window of one second still waits for the row."""
    chain = join(how, allowed_lateness="0 seconds").then(
        two(event_time="t", agg=COUNTS, emit=wr.Emit.append())
    )
    with chain.open(str(tmp_path), clock=ManualClock(0)) as op:
        for tenth in range(0, 300, 7):
            op.add_message(at(tenth / 10, k=str(tenth)), "a")
            if how != "anti" and tenth >= 50:
                op.add_message(at(tenth / 10, "u", k=str(tenth - 49)), "b")
            else:
                op.add_message(at(tenth / 10, "u", k="nobody"), "b")
        assert len(values(op)) > 5
        op.drain()
        assert op.dead_letters() == []
        matched = 35 if how in ("inner", "semi") else 43
        assert sum(n for _, n, _ in values(op)) == matched


def test_a_window_of_the_other_input_is_waited_for_to_its_end(tmp_path: Path) -> None:
    first = wr.Join(
        left=wr.Input("a", event_time="t"), right=wr.Input("b", event_time="u", window=wr.tumbling("10 seconds")),
        on="k", how="left", allowed_lateness="0 seconds", name="one", within=("0 seconds", "1 second"), retention="1 minute",
    )  # fmt: skip
    chain = first.then(two(event_time="t", agg=COUNTS, emit=wr.Emit.append()))
    with chain.open(str(tmp_path), clock=ManualClock(0)) as op:
        for tenth in range(0, 400, 3):
            op.add_messages({"a": [at(tenth / 10)], "b": [at(tenth / 10, "u", k="nobody")]})
        op.drain()
        assert op.dead_letters() == [] and sum(n for _, n, _ in values(op)) == 134


def test_late_panes_are_judged_by_the_next_operators_lateness(tmp_path: Path) -> None:
    emit = wr.Emit(late=wr.every_batch, mode="discarding")
    for lateness, dead in (("0 seconds", 1), ("1 minute", 0)):
        chain = one(emit=emit).then(two(allowed_lateness=lateness))
        with chain.open(str(tmp_path / lateness), clock=ManualClock(0)) as op:
            for second in (0.5, 30, 0.6):
                op.add_message(at(second))
            letters = op.dead_letters()
            assert [(d.reason, d.position.source) for d in letters if d.position] == [
                ("too_late", "one")
            ] * dead
            op.drain()
            assert max(p["n"] for p in op.get_result() if p.window.start_us == 0) == 2 - dead


def test_a_sink_by_operator_gets_the_inner_panes_too(tmp_path: Path) -> None:
    inner, last = wr.sinks.memory(), wr.sinks.memory()
    for second in (0.5, 3, 20):
        with CHAIN.open(str(tmp_path), clock=ManualClock(0), sink={"one": inner, "two": last}) as op:
            op.add_message(at(second))
    assert [p.window.start_us // S for p in inner.panes] == [0, 3] and [p["n"] for p in last.panes] == [2]
    assert inner.panes[0].commit < inner.panes[1].commit == last.panes[0].commit
    with pytest.raises(ConfigurationError, match=r"'three'.*\['one', 'two'\]"):
        CHAIN.open(str(tmp_path / "other"), sink={"three": inner})


def test_state_of_a_chain_is_not_opened_as_something_else(tmp_path: Path) -> None:
    with CHAIN.open(str(tmp_path)) as op:
        op.add_message(at(1))
    for other in (CHAIN.parts[1], CHAIN.parts[0], one().then(two())):
        with pytest.raises(DefinitionChanged, match="two"):
            other.open(str(tmp_path))


def test_windows_and_messages_of_any_part_can_be_asked_for(tmp_path: Path) -> None:
    chain = join().then(two(event_time="t", agg={"m": wr.median("v_a")}))
    with chain.open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages({"a": [at(1, v_a=4)], "b": [at(2, "u", v_b=6)]})  # type: ignore[arg-type]
        assert [w.values for w in op.get_windows()] == [{"m": 4.0}]
        assert len(op.get_messages(input="a")) == len(op.get_messages(operator="two")) == 1
        assert op.get_messages() == op.get_messages(operator="two")  # the last that keeps some
        with pytest.raises(ConfigurationError, match=r"several inputs.*\['a', 'b'\]"):
            op.get_messages(operator="one")
        assert [w.messages for w in op.get_windows(operator="one", input="b")] == [1]
        with pytest.raises(ConfigurationError, match=r"several inputs.*\['a', 'b'\]"):
            op.get_windows(operator="one")
        with pytest.raises(ConfigurationError, match=r"'three'.*\['one', 'two'\]"):
            op.get_windows(operator="three")


SHARES = {"rows": wr.count(), "share": wr.sum(wr.lit(6) / wr.col("v"))}
ONCE = wr.Deduplicate(by="k", event_time="t", within="1 hour", name="first", max_ahead=wr.forever)
SUMS: dict[str, Any] = {
    "by": "k", "event_time": "t", "window": wr.tumbling("10 seconds"), "agg": {"v": wr.sum("v")}, "retention": "1 hour",
    "name": "first", "max_ahead": wr.forever,
}  # fmt: skip
UNTAKEN: dict[str, tuple[Any, list[tuple[int, str, int]], tuple[int, int], int]] = {
    # What the first operator knows of a message stays: the second of key "b" is a duplicate.
    "one message": (ONCE, [(0, "a", 1), (1, "b", 0), (2, "b", 2)], (1, 6), 1),
    # The pane of "b" is of two messages, neither of which is to blame, and comes when time passes.
    "of two, as time passes": (
        wr.Aggregate(**SUMS, emit=wr.Emit.append()), [(0, "a", 1), (1, "b", 3), (2, "b", -3)], (1, 6), 1,
    ),
    # Zero stands for a while: it comes in place of 3, and is taken back.
    "corrected": (
        wr.Aggregate(**SUMS, emit=wr.Emit(early=wr.every_batch)), [(0, "a", 3), (1, "a", -3), (2, "a", 2)], (1, 3), 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNTAKEN)
def test_a_row_that_the_next_operator_cannot_take_is_a_dead_letter_of_it(name: str, tmp_path: Path) -> None:
    first, messages, message, letters = UNTAKEN[name]
    time = "t" if first is ONCE else "window_time"
    second = wr.Aggregate(
        event_time=time, window=wr.tumbling("20 seconds"), agg=SHARES, retention="1 hour", name="second"
    )
    with TestDriver(first.then(second), tmp_path) as driver:
        for t, k, v in [*messages, (100, "z", 2)]:
            driver.feed([{"t": t * S, "k": k, "v": v}])
            driver.next_offsets()
            driver.restart()
        driver.drain()
        assert [(p["rows"], p["share"]) for p in driver.check(dead_letters=True).panes] == [message, (1, 3)]
        dead = driver.check(dead_letters=True).dead_letters
        assert [(one.reason, one.position.source) for one in dead if one.position] == [
            ("malformed", "first")
        ] * letters
