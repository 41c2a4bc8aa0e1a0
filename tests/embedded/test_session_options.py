"""Options of sessions beside their gap."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow as wr
from tests.deep import usually
from windrow.operators.aggregate.sessions.logic import SessionAggregator
from windrow.stores.kv import Batch
from windrow.testing import TestDriver

S = 1_000_000


def visits(**options: Any) -> wr.Aggregate:
    arguments: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.session("10 seconds"),
        "agg": {"n": wr.count()},
        "retention": "1 hour",
        "watermark": wr.explicit(),
        "max_ahead": wr.forever,
        **options,
    }
    return wr.Aggregate(**arguments)


def test_sessions_are_of_what_passes_by_keys_and_times_that_are_made(tmp_path: Path) -> None:
    definition = visits(
        by={"name": pc.utf8_lower(wr.col("who"))},
        event_time=wr.col("ms") * 1000,
        where=wr.col("kind") == "view",
        watermark="0 seconds",
        emit=wr.Emit.append(),
    )
    messages = [(0, "Ann", "view"), (8_000, "ann", "view"), (16_000, "ANN", "ping"), (25_000, "ann", "view")]
    with TestDriver(definition, tmp_path) as driver:
        for ms, who, kind in messages:
            driver.feed([{"ms": ms, "who": who, "kind": kind}])
        # The ping makes nothing longer, but time has passed with it.
        sessions = [
            (p.key["name"], p.window.start_us // S, p.window.end_us // S, p["n"]) for p in driver.panes()
        ]
        assert sessions == [("ann", 0, 18, 2)]
        assert driver.op.get_windows(key={"name": "ann"})[-1].messages == 1
        driver.feed([{"ms": 60_000, "who": "bob", "kind": "ping"}])
        assert driver.op.watermark == 60 * S
        driver.check(dead_letters=True)


@pytest.mark.parametrize(
    "more", [{"where": wr.col("v") > 1}, {"by": {"k": pc.utf8_lower(wr.col("k"))}}], ids=["where", "made"]
)
def test_what_sql_cannot_see_of_a_row_is_not_left_to_it(more: dict[str, Any]) -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64())])
    assert visits().logic().pushdown(schema) is not None
    assert visits(**more).logic().pushdown(schema) is None


@pytest.mark.parametrize("per", ["key", "job"])
def test_sessions_beyond_a_number_go_and_what_could_touch_them_is_out_of_retention(
    per: Any, tmp_path: Path
) -> None:
    definition = visits(retention=wr.Retain(windows=2, per=per), emit=wr.Emit(early=wr.every(100)))
    with TestDriver(definition, tmp_path) as driver:
        driver.feed([{"t": t * S, "k": "a"} for t in (0, 20, 40)])
        driver.feed([])
        assert [(p.window.start_us // S, p.is_last) for p in driver.panes()] == [(0, True)]  # type: ignore[union-attr]
        driver.restart()
        driver.feed([{"t": t * S, "k": "a"} for t in (10, 11)])
        assert [letter.reason for letter in driver.dead_letters()] == ["out_of_retention"]
        sessions = [(w.window.start_us // S, w.messages) for w in driver.windows()]  # type: ignore[union-attr]
        assert sessions == [(11, 2), (40, 1)]
        driver.feed([{"t": 5 * S, "k": "b"}])
        assert len(driver.dead_letters()) == (per == "job")
        driver.check(dead_letters=True)


def test_sessions_by_messages_keep_them_for_a_median(tmp_path: Path) -> None:
    definition = visits(
        window=wr.session(messages=2),
        agg={"middle": wr.median("v"), "newest": wr.latest("v")},
        retention=wr.Retain(messages=3, per="job"),
    )
    with TestDriver(definition, tmp_path) as driver:
        panes = []
        for v, k in enumerate("abcadefa"):
            driver.feed([{"t": (9 - v) * S, "k": k, "v": v}])
            panes += driver.panes()
            driver.restart()
        sessions = [(p.key["k"], p.window.first, p.window.last, p["middle"], p["newest"]) for p in panes]
        assert sessions[:3] == [("b", 2, 2, 1, 1), ("c", 3, 3, 2, 2), ("a", 1, 4, 1.5, 0)]
        assert [m.payload["v"] for m in driver.op.get_messages(key={"k": "a"})][-1] == 7
        driver.check(dead_letters=True)


def test_a_part_of_a_long_session_reaches_as_far_as_its_messages_do(tmp_path: Path) -> None:
    definition = visits(
        window=wr.session(wr.col("gap") * S, max_length="10 seconds"), agg={"middle": wr.median("gap")}
    )
    with TestDriver(definition, tmp_path) as driver:
        driver.feed([{"t": t * S, "k": "a", "gap": gap} for t, gap in ((0, 9), (8, 30), (12, 2), (13, 4))])
        driver.feed([{"t": 5 * S, "k": "a", "gap": 1}])
        sessions = [(w.window.start_us // S, w.window.end_us // S, w.messages) for w in driver.windows()]  # type: ignore[union-attr]
        assert sessions == [(0, 10, 3), (12, 17, 2)]
        driver.drain()
        driver.check(dead_letters=True)


#: Each order where each time has passed, with one lateness, its neighbours with the other.
PASSED = [*itertools.product(itertools.permutations((11, 13, 15)), (0, 9, 10.5), ("0 seconds", None))]
EVERY_OTHER = [one for n, one in enumerate(PASSED) if n % 4 in (0, 3)]


@pytest.mark.parametrize(("order", "passed", "lateness"), usually(EVERY_OTHER, deep=PASSED))
def test_a_part_that_is_over_reaches_nothing_wherever_the_watermark_is(
    order: tuple[int, ...], passed: float, lateness: str | None
) -> None:
    definition = visits(
        window=wr.session(wr.col("gap") * S, max_length="10 seconds"),
        agg={"middle": wr.median("gap")},
        allowed_lateness=lateness,
        emit=wr.Emit(early=wr.every_batch),
    )
    with TestDriver(definition) as driver:
        driver.feed([{"t": 0, "k": "a", "gap": 100}])
        driver.advance_event_time(int(passed * S))
        for t in order:
            driver.feed([{"t": t * S, "k": "a", "gap": 1 + (t == 13)}])
        sessions = [(w.window.start_us // S, w.window.end_us // S) for w in driver.windows()]  # type: ignore[union-attr]
        assert sessions == [(0, 10), (11, 12), (13, 16)]
        driver.check(dead_letters=True)


def test_what_was_emitted_across_a_cut_is_taken_back_though_nothing_follows_the_cut(tmp_path: Path) -> None:
    definition = visits(
        window=wr.session("4 seconds", max_length="3 seconds"),
        agg={"n": wr.count(), "middle": wr.median("v")},
        emit=wr.Emit(early=wr.every_batch, mode="accumulating"),
    )
    with TestDriver(definition, tmp_path) as driver:
        for t in (13, 11):
            driver.feed([{"t": t * S, "k": "a", "v": t}])
        panes = [
            (p.kind.value, p.window.start_us // S, p.window.end_us // S, p.values["n"])
            for p in driver.check(dead_letters=True).panes
        ]
        assert sorted(panes) == [("INSERT", 11, 14, 2), ("INSERT", 13, 16, 1), ("RETRACT", 13, 16, 1)]


def test_sessions_whose_keys_are_not_listed_since_they_began_before_the_limits_are_found_all_the_same(
    tmp_path: Path,
) -> None:
    with TestDriver(visits(retention=wr.Retain(windows=3, per="job")), tmp_path) as driver:
        driver.feed([{"t": t * S, "k": k} for t, k in ((0, "a"), (0, "b"), (20, "a"), (40, "c"))])
        driver.next_offsets()
        kv, batch = driver.op.engine.shard.kv, Batch()
        aux = driver.op.engine.logic.aux_cf
        assert len(list(kv.scan(aux, b"y", b"z"))) == 4
        batch.delete_range(aux, b"y", b"z")
        kv.write(batch)
        driver.feed([{"t": 60 * S, "k": "d"}])
        driver.feed([])
        starts = [(w.key["k"], w.window.start_us // S) for w in driver.windows()]  # type: ignore[union-attr]
        assert starts == [("a", 20), ("c", 40), ("d", 60)]
        driver.check(dead_letters=True)


@pytest.mark.parametrize("per", ["key", "job"])
def test_sessions_of_many_keys_that_go_are_looked_for_where_they_are(
    per: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, near = [], SessionAggregator.near
    monkeypatch.setattr(SessionAggregator, "read", None)  # which reads all of them

    def counted(self: SessionAggregator, step: Any, homes: Any, *more: Any) -> Any:
        asked.append(len(homes))
        return near(self, step, homes, *more)

    keys = 60
    windows = 1 if per == "key" else keys
    with visits(retention=wr.Retain("1 day", windows=windows, per=per)).open(str(tmp_path)) as op:
        op.add_messages([{"k": f"k{k}", "t": k * 100 * S} for k in range(keys)])
        monkeypatch.setattr(SessionAggregator, "near", counted)
        op.add_messages([{"k": f"k{k}", "t": (k + keys) * 100 * S} for k in range(keys)])
        op.next_offsets()
        monkeypatch.undo()
        assert len(op.get_windows()) == keys
    assert asked and max(asked) <= 4 * keys


@pytest.mark.parametrize(("gap", "at"), [("10 seconds", 5), (wr.col("gap") * 1_000_000, 11)])
def test_what_would_touch_a_session_that_went_by_size_stays_out_though_all_others_go_by_time(
    gap: Any, at: int
) -> None:
    definition = visits(
        window=wr.session(gap),
        retention=wr.Retain("1 minute", windows=1, per="job"),
        watermark=wr.explicit(),
        emit=wr.Emit(early=wr.every_batch),
    )
    with TestDriver(definition) as driver:
        driver.feed([{"k": "a", "t": 0, "gap": 11}])
        driver.feed([{"k": "b", "t": 1_000_000, "gap": 10}])
        assert [pane.window.start_us for pane in driver.panes()] == [0, 1_000_000]
        driver.advance_event_time(71_000_000)
        assert driver.windows() == []
        driver.feed([{"k": "a", "t": at * 1_000_000, "gap": 10}])
        assert [letter.reason for letter in driver.dead_letters()] == ["out_of_retention"]
        driver.check(dead_letters=True)
        driver.drain()
        driver.assert_state_zero()


@pytest.mark.parametrize("late", [wr.never, wr.delay("1 second")], ids=str)
@pytest.mark.parametrize("watermarks_s", [[], [5], [11, 12]], ids=str)
def test_timers_of_event_time_periods_are_deleted_when_event_time_is_over(
    watermarks_s: list[int], late: Any
) -> None:
    """No period ends where the watermark begins, even if it begins at the end of time."""
    early = wr.all_of(wr.every(2), wr.every("3 seconds", event_time=True))
    definition = visits(emit=wr.Emit(early=early, late=late), allowed_lateness="4 seconds")
    with TestDriver(definition) as driver:
        driver.feed([{"k": "a", "t": 1 * S}])
        for watermark_s in watermarks_s:
            driver.advance_event_time(watermark_s * S)
            driver.feed([{"k": "a", "t": 2 * S}])
        driver.drain()
        driver.check(dead_letters=True)
        driver.advance_clock(2 * S)
        driver.drain()
        driver.assert_state_zero()
