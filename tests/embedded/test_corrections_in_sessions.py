"""Sessions of messages that may be taken back: they grow, shrink, fall apart and vanish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from tests.operators.contract import Case, life
from tests.operators.graph.cases import S, corrected_sessions, drawn, rows, schema_of
from tests.operators.test_contract import actions
from windrow.testing import TestDriver
from windrow.testing.ledger import ledger


def large(**changes: Any) -> wr.Chain:
    """Spans in which there is at least one large order in each ten seconds: an order is large while its sum is."""
    sums = wr.Aggregate(
        by=("k", "id"), event_time="t", window=wr.tumbling("1 second"), agg={"sum": wr.sum("v")}, retention="1 hour",
        watermark=wr.explicit(), emit=wr.Emit(early=wr.every_batch, late=wr.every_batch), name="sums",
    )  # fmt: skip
    settings: dict[str, Any] = {
        "by": "k", "event_time": "window_time", "window": wr.session("10 seconds"), "retention": "1 hour", "name": "spans",
        "agg": {"n": wr.count(), "most": wr.max("sum"), "all": wr.collect_list("sum")}, "where": wr.col("sum") > 0,
        "emit": wr.Emit(early=wr.every_batch, late=wr.every_batch),
    }  # fmt: skip
    return sums.then(wr.Aggregate(**settings | changes))


def order(second: int, v: int, id: int = 0, k: str = "a") -> dict[str, Any]:
    return {"t": second * S, "k": k, "id": id, "v": v}


def shown(panes: list[Any]) -> list[tuple[Any, ...]]:
    return [
        (p.kind.value, p.timing.value, p.window.start_us // S, -(-p.window.end_us // S), p.index, p["n"])
        for p in panes
    ]


class NewPanes:
    """Return the rows that each step emitted."""

    def __init__(self, driver: TestDriver) -> None:
        self.driver, self.seen = driver, 0

    def __call__(self) -> list[tuple[Any, ...]]:
        panes = self.driver.committed_panes()
        new, self.seen = panes[self.seen :], len(panes)
        return shown(new)


def test_a_session_falls_apart_where_the_message_that_is_removed_held_it_together(tmp_path: Path) -> None:
    with TestDriver(large(), tmp_path) as driver:
        emitted = NewPanes(driver)
        driver.feed([order(0, 5), order(8, 1), order(16, 7)])
        assert emitted() == [("INSERT", "EARLY", 0, 27, 0, 3)]
        driver.feed([order(8, -1)])  # its sum is 0 now, so it is none of them
        assert emitted() == [
            ("RETRACT", "EARLY", 0, 27, 0, 3),
            ("INSERT", "EARLY", 0, 11, 1, 1),
            ("INSERT", "EARLY", 16, 27, 1, 1),
        ]
        driver.feed([order(8, 2)])
        assert emitted()[-1] == ("INSERT", "EARLY", 0, 27, 2, 3)
        driver.check(dead_letters=True)


def test_a_session_whose_last_message_is_removed_ends_earlier_and_the_last_one_takes_it_along(
    tmp_path: Path,
) -> None:
    with TestDriver(large(emit=wr.Emit(early=wr.every_batch, mode="retracting")), tmp_path) as driver:
        emitted = NewPanes(driver)
        driver.feed([order(0, 5), order(8, 1)])
        driver.feed([order(8, -1)])
        assert emitted() == [
            ("INSERT", "EARLY", 0, 19, 0, 2),
            ("RETRACT", "EARLY", 0, 19, 0, 2),
            ("INSERT", "EARLY", 0, 11, 1, 1),
        ]
        driver.feed([order(0, -5)])
        assert emitted() == [("RETRACT", "EARLY", 0, 11, 1, 1)]
        assert driver.op.get_windows() == [] and ledger(driver.committed_panes(), grows=True) == {}
        driver.feed([order(0, 3)])
        assert emitted() == [
            ("INSERT", "EARLY", 0, 11, 2, 1)
        ]  # a window is not emitted twice under one number
        driver.check(dead_letters=True)


def test_a_session_that_waits_for_a_delay_may_be_left_without_messages(tmp_path: Path) -> None:
    with TestDriver(large(emit=wr.Emit(early=wr.delay("1 second"))), tmp_path) as driver:
        driver.feed([order(0, 5)])
        driver.feed([order(0, -5)])
        driver.drain()
        assert driver.committed_panes() == [] and driver.op.get_windows() == []
        driver.check(dead_letters=True)


def test_what_is_current_in_place_of_another_at_the_same_time_moves_no_session(tmp_path: Path) -> None:
    with TestDriver(large(), tmp_path) as driver:
        emitted = NewPanes(driver)
        driver.feed([order(0, 5), order(8, 1), order(16, 7)])
        driver.feed([order(8, 2)])
        assert emitted()[1:] == [("INSERT", "EARLY", 0, 27, 1, 3)]
        assert driver.committed_panes()[-1]["all"] == [5, 7, 3]  # in the order in which they came
        driver.check(dead_letters=True)


def test_a_message_is_found_where_the_operator_before_emits_fewer_columns_by_now(tmp_path: Path) -> None:
    """An aggregation went from it, whose values are kept with the messages of before."""
    sums = wr.Aggregate(
        by=("k", "id"), event_time="t", window=wr.tumbling("1 second"), agg={"sum": wr.sum("v"), "rows": wr.count()},
        retention="1 hour", watermark=wr.explicit(), emit=wr.Emit.update(), name="sums",
    )  # fmt: skip
    chain = large()
    with TestDriver(sums.then(chain.parts[-1]), tmp_path) as driver:
        driver.feed([order(0, 5), order(8, 1), order(16, 7)])
        driver.next_offsets()
        driver.restart(chain)
        driver.feed([order(8, -1)])
        assert [(w.window.start_us // S, w.values["n"]) for w in driver.windows()] == [(0, 1), (16, 1)]
        assert driver.dead_letters() == []
        driver.check(dead_letters=True)


@pytest.mark.parametrize(
    ("emit", "timing"),
    [(wr.Emit.append(), "ON_TIME"), (wr.Emit(), "ON_TIME"), (wr.Emit(on_time=False), "LATE")],
)
def test_a_part_that_ended_before_it_was_apart_is_emitted_at_once(
    tmp_path: Path, emit: wr.Emit, timing: str
) -> None:
    """Nobody would look at it any more: its end is behind the watermark."""
    lateness = None if emit.drop_late else "0 seconds"
    with TestDriver(large(emit=emit, allowed_lateness=lateness), tmp_path) as driver:
        emitted = NewPanes(driver)
        driver.feed([order(0, 5), order(9, 1), order(18, 7)])
        driver.advance_watermark(12 * S)
        driver.feed([order(9, -1)])
        if timing == "ON_TIME":
            assert emitted() == [("INSERT", timing, 0, 11, 0, 1)]
            assert driver.committed_panes()[-1].is_last
        else:
            assert emitted() == [("INSERT", timing, 0, 11, 0, 1)]
        driver.drain()
        assert emitted() == [("INSERT", timing, 18, 29, 0, 1)]
        driver.check(dead_letters=True)


def test_a_message_of_a_session_that_is_closed_cannot_be_taken_back(tmp_path: Path) -> None:
    with TestDriver(large(allowed_lateness="5 seconds"), tmp_path) as driver:
        driver.feed([order(0, 5), order(40, 5)])
        driver.advance_watermark(30 * S)
        emitted = NewPanes(driver)
        emitted()
        driver.feed([order(0, -5)])
        assert emitted() == [] and [x.reason for x in driver.dead_letters()] == ["too_late"]
        driver.check(dead_letters=True)


@given(data=st.data())
@examples(8, deep=10_000)
def test_sessions_that_take_back_emit_what_their_oracle_says(data: st.DataObject) -> None:
    """However they are fed, cut, killed and robbed of their state."""
    chain = data.draw(corrected_sessions())
    case = Case(
        definition=chain, messages=rows.map(lambda r: drawn(chain, r)), schema=schema_of(chain), start_us=0
    )
    with life(case, with_sink=data.draw(st.booleans())) as job:
        for kind, value in data.draw(actions(case)):
            job.act(kind, value)
        job.check()
        job.driver.drain()
        job.check()
        panes = job.driver.committed_panes()
        if chain.parts[-1].emit != wr.Emit.append():
            ledger(panes, grows=True)
