"""Joins over sessions, of both inputs and of one: what may be asked of them, what is refused, what follows them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from tests.counting import CountingKV
from windrow.core.errors import (
    BadWindow,
    ConfigurationError,
    DefinitionChanged,
    RetentionMissing,
    UnknownColumn,
)
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.time import SECOND_US as S
from windrow.operators.view import Query
from windrow.testing import ManualClock


def visits(**changes: Any) -> wr.Join:
    """Clicks and purchases of users, in common sessions."""
    options = {"event_time": "t", "watermark": wr.explicit(), "max_ahead": wr.forever}
    settings: dict[str, Any] = {
        "left": wr.Input("clicks", **options),
        "right": wr.Input("buys", **options),
        "on": "user",
        "window": wr.session("10 seconds"),
        "retention": "1 minute",
    }
    return wr.Join(**{**settings, **changes})


def of_clicks(**changes: Any) -> wr.Join:
    clicks = wr.Input(
        "clicks",
        event_time="t",
        watermark=wr.explicit(),
        max_ahead=wr.forever,
        window=wr.session("10 seconds"),
    )
    return visits(left=clicks, window=None, **changes)


def click(second: int, user: str = "a") -> dict[str, Any]:
    return {"t": second * S, "user": user, "page": f"/{second}"}


def buy(second: int, user: str = "a") -> dict[str, Any]:
    return {"t": second * S, "user": user, "item": second}


def pairs(op: Any) -> list[tuple[str | None, int | None, str]]:
    rows = op.get_result()
    op.flush()
    return [(row["page"], row.values.get("item"), row.timing.value) for row in rows]


def test_sessions_of_a_join_and_their_messages_are_found_by_session_key_and_without(tmp_path: Path) -> None:
    with visits().open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages(
            {"clicks": [click(0), click(30), click(2, "b")], "buys": [buy(6), buy(31), buy(60, "b")]}
        )
        assert pairs(op) == [("/0", 6, "EARLY"), ("/30", 31, "EARLY")]

        def sessions(input: str, *range_: int, key: Any = None) -> list[tuple[str, int, int, int]]:
            start, end = (second * S for second in range_ or (0, 1000))
            answer = op.get_windows(start, end, key=key, input=input)
            return [(w.key["user"], w.window.start_us // S, w.window.end_us // S, w.messages) for w in answer]

        assert sessions("clicks") == [("a", 0, 16, 1), ("b", 2, 12, 1), ("a", 30, 41, 1)]
        assert sessions("buys", 10, 40, key="a") == [("a", 0, 16, 1), ("a", 30, 41, 1)]
        assert sessions("buys", 16, 29, key="a") == []
        assert [m.payload["page"] for m in op.get_messages(5 * S, 35 * S, key="a", input="clicks")] == ["/30"]
        assert [m.payload["item"] for m in op.get_messages(input="buys")] == [6, 31, 60]
        op.next_offsets()
        with wr.read_state(str(tmp_path)) as state:
            [why] = state.explain(6 * S, key="a")
            assert {name: [p.offset for p in positions] for name, positions in why.inputs.items()} == {
                "clicks": [0],
                "buys": [0],
            }
            table = state.windows_table(input="clicks").to_pylist()
            assert [row["user"] for row in table] == ["a", "b", "a"]


def test_messages_go_with_their_session_however_long_it_was(tmp_path: Path) -> None:
    with visits().open(str(tmp_path), clock=ManualClock()) as op:
        for second in range(0, 100, 10):
            op.add_message(click(second), "clicks")
            op.advance_watermark(second * S)
        op.add_message(buy(100), "buys")
        assert (
            len(pairs(op)) == 10
        )  # the first click is older than the retention, and its session is not over
        op.advance_watermark(169 * S)
        assert len(op.get_messages(input="clicks")) == 10
        op.advance_watermark(170 * S)
        assert op.get_messages(input="clicks") == op.get_windows(input="buys") == []
        op.add_message(click(95), "clicks")
        assert [letter.reason for letter in op.dead_letters()] == ["out_of_retention"]


@pytest.mark.parametrize("common", [True, False])
def test_each_message_holds_its_session_open_for_as_long_as_it_says(common: bool, tmp_path: Path) -> None:
    window = wr.session(wr.col("gap") * S)
    clicks = wr.Input(
        "clicks",
        event_time="t",
        watermark=wr.explicit(),
        max_ahead=wr.forever,
        window=None if common else window,
    )
    join = visits(left=clicks, window=window if common else None, how="full", allowed_lateness="0 seconds")
    with join.open(str(tmp_path), clock=ManualClock()) as op:

        def add(input: str, second: int, gap: int | None) -> list[tuple[str | None, int | None, str]]:
            op.add_message({**(click if input == "clicks" else buy)(second), "gap": gap}, input)
            return pairs(op)

        assert add("clicks", 0, 5) == []
        assert add("buys", 8, 0) == []
        assert add("clicks", 2, 30) == [("/0", 8, "EARLY"), ("/2", 8, "EARLY")]
        assert add("buys", 31, 1) == [("/0", 31, "EARLY"), ("/2", 31, "EARLY")]
        assert add("clicks", 32, 0) == [("/32", 8, "EARLY"), ("/32", 31, "EARLY")]
        assert add("clicks", 40, None) == add("clicks", 40, -1) == []
        assert [letter.reason for letter in op.dead_letters()] == ["malformed"] * 2
        assert add("buys", 36, 2) == []
        op.advance_watermark(36 * S)
        assert pairs(op) == []
        op.advance_watermark(39 * S)
        assert pairs(op) == [(None, 36, "ON_TIME")]
        if not common:  # where a gap may be as long as it likes, time decides alone
            assert add("clicks", 38, 60) == []
            assert [letter.reason for letter in op.dead_letters()] == ["malformed", "malformed", "too_late"]


def test_a_gap_that_no_message_can_have_is_refused_with_its_type(tmp_path: Path) -> None:
    with visits(window=wr.session(wr.col("gap"))).open(str(tmp_path), clock=ManualClock()) as op:
        op.add_message({**click(0), "gap": "long"}, "clicks")
        [letter] = op.dead_letters()
        assert letter.reason == "malformed"
        assert "gaps are durations, or microseconds" in letter.detail
        with pytest.raises(UnknownColumn, match="gap"):
            op.add_message(buy(0), "buys")


@pytest.mark.parametrize(
    ("size", "common", "per"),
    [
        ({"windows": 2}, True, "key"),
        ({"windows": 2}, False, "job"),
        ({"messages": 3}, True, "job"),
        ({"messages": 3}, False, "key"),
    ],
)
def test_sessions_of_a_join_beyond_a_number_go_with_all_that_they_hold(
    size: dict[str, Any], common: bool, per: Any, tmp_path: Path
) -> None:
    """SAMZA-552: a join window operator has "Window Retention Size" beside "Window Retention Time"."""
    made = visits if common else of_clicks
    join = made(how="full", retention=wr.Retain("1 day", **size, per=per))
    with join.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages({"clicks": [click(0), click(40), click(80)], "buys": [buy(5), buy(45)]})
        assert pairs(op) == [("/0", 5, "EARLY"), ("/40", 45, "EARLY")]
        op.advance_watermark(1)
        kept = 3 if "messages" in size and not common else 2
        assert [w.window.start_us // S for w in op.get_windows(input="clicks")] == [0, 40, 80][3 - kept :]
        assert len(op.get_messages(input="clicks")) == kept
        assert len(op.get_messages(input="buys")) == kept - 1
        op.add_message(click(120), "clicks")
        op.advance_watermark(2)
        assert pairs(op) == []
        kept_clicks = [m.payload["page"] for m in op.get_messages(input="clicks")]
        assert kept_clicks == (["/40", "/80", "/120"] if kept == 3 else ["/80", "/120"])
        op.add_message(click(7), "clicks")
        assert [letter.reason for letter in op.dead_letters()] == ["out_of_retention"]
        op.add_messages([click(160), click(200), click(240)], "clicks")
        op.advance_watermark(3)
        # What nobody met says so when it goes.
        gone = ["/80", "/120", "/160"] if "windows" in size else ["/80", "/120"]
        assert pairs(op) == [(page, None, "ON_TIME") for page in gone]
        op.add_message(click(7, "b"), "clicks")
        assert len(op.dead_letters()) == 1 + (per == "job")


def test_sessions_that_go_free_their_messages_and_read_nothing_else(tmp_path: Path, monkeypatch: Any) -> None:
    """Cost follows what goes, and not how many sessions there are."""
    join = visits(retention=wr.Retain("1 day", windows=50, per="job"))
    with join.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages([click(100 * n, f"u{n}") for n in range(50)], "clicks")
        op.advance_watermark(1)
        logic = op.engine.logic
        monkeypatch.setattr(type(logic.sessions), "read", None)  # which reads all of them
        op.add_messages([click(100 * n, f"u{n}") for n in range(50, 60)], "clicks")
        op.advance_watermark(2)
        monkeypatch.undo()
        assert len(list(op.engine.staged.overlay.scan(logic.stores[0].cf))) == 50


def test_a_null_in_a_key_meets_nobody_and_is_emitted_when_nobody_can_join_it(tmp_path: Path) -> None:
    join = visits(how="left", allowed_lateness="0 seconds")
    with join.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages({"clicks": [{**click(0), "user": None}], "buys": [{**buy(1), "user": None}]})
        op.advance_watermark(12 * S)
        assert pairs(op) == [("/0", None, "ON_TIME")]


def test_what_a_condition_keeps_apart_in_a_session_of_the_other_input_waits_for_its_end(
    tmp_path: Path,
) -> None:
    join = of_clicks(how="right", where=wr.col("page") == "/9", allowed_lateness="0 seconds")
    with join.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages({"clicks": [click(0), click(8)], "buys": [buy(1), buy(40)]})
        op.advance_watermark(17 * S)  # beyond the buy and a gap, and the session of clicks goes on
        op.add_message(click(9, "b"), "clicks")
        op.add_message(click(17), "clicks")
        op.advance_watermark(28 * S)
        assert pairs(op) == [(None, 1, "ON_TIME")]
        op.advance_watermark(51 * S)
        assert pairs(op) == [(None, 40, "ON_TIME")]


@pytest.mark.parametrize("definition", [visits(), of_clicks()])
def test_a_session_that_grows_reads_what_new_messages_meet_and_nothing_else(
    definition: wr.Join, tmp_path: Path, monkeypatch: Any
) -> None:
    """Cost follows what changes: another click reads no clicks, and what has met is not met again."""
    with definition.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages({"clicks": [click(n) for n in range(9)], "buys": [buy(9)]})
        assert len(pairs(op)) == 9
        logic = op.engine.logic
        read: list[int] = []
        for side in (0, 1):
            store = logic.stores[side]
            monkeypatch.setattr(store, "scan_spans", _noting(store.scan_spans, read, side))
        op.add_message(click(10), "clicks")
        assert pairs(op) == [("/10", 9, "EARLY")]
        assert read == [1]
        read.clear()
        op.add_message(buy(11), "buys")
        assert len(pairs(op)) == 10
        assert read == [0]


@pytest.mark.parametrize("definition", [visits, of_clicks])
def test_a_long_session_whose_pairs_are_bounded_reads_what_they_reach(
    definition: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Cost follows how far pairs may lie apart, and not how long a session is."""
    join = definition(within=("-5 seconds", "5 seconds"), retention="1 day")
    with join.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages(
            {"clicks": [click(n) for n in range(500)], "buys": [buy(n) for n in range(0, 500, 7)]}
        )
        op.add_messages([click(n) for n in range(515, 900)], "clicks")
        pairs(op)
        logic, read = op.engine.logic, list[int]()
        for side in (0, 1):
            store = logic.stores[side]
            monkeypatch.setattr(store, "scan_spans", _counting(store.scan_spans, read))
        op.add_message(buy(250), "buys")
        assert [row[0] for row in pairs(op)] == [f"/{n}" for n in range(245, 256)]
        op.add_message(click(507), "clicks")  # a bridge
        assert pairs(op) == []
        op.add_message(buy(510), "buys")
        assert [row[0] for row in pairs(op)] == ["/515", "/507"]
        assert sum(read) < 50


def _counting(scan: Any, read: list[int]) -> Any:
    def counted(*args: Any) -> Any:
        rows = scan(*args)
        read.append(len(rows[0]))
        return rows

    return counted


def test_who_was_alone_in_a_session_is_found_however_much_else_lies_next_to_it(tmp_path: Path) -> None:
    with visits(how="left", allowed_lateness="0 seconds").open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages([click(second, user) for second in range(60) for user in "bcd"], "clicks")
        op.add_messages([click(0), click(9)], "clicks")
        op.advance_watermark(20 * S)
        assert pairs(op) == [("/0", None, "ON_TIME"), ("/9", None, "ON_TIME")]
        op.add_message(buy(60, "b"), "buys")
        assert len(pairs(op)) == 60
        op.advance_watermark(71 * S)
        assert len(pairs(op)) == 120


def _noting(scan: Any, read: list[int], side: int) -> Any:
    def noted(*args: Any, **options: Any) -> Any:
        rows = scan(*args, **options)
        if rows[0]:
            read.append(side)
        return rows

    return noted


def test_an_aggregate_follows_a_join_over_sessions_whose_pairs_are_bounded(tmp_path: Path) -> None:
    totals = wr.Aggregate(
        by="user",
        event_time="clicks_t",
        window=wr.tumbling("1 minute"),
        agg={"n": wr.count()},
        retention="1 hour",
    )
    with pytest.raises(BadWindow, match="within"):
        visits().then(totals)
    with pytest.raises(BadWindow, match="within"):
        visits(how="left", within=("-1 minute", "1 minute")).then(totals)
    chain = visits(within=("-1 minute", "1 minute"), name="pairs").then(totals)
    with chain.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages({"clicks": [click(0), click(5)], "buys": [buy(6)]})
        op.drain()
        assert [row["n"] for row in op.get_result()] == [2]


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"on": ()}, BadWindow, "without keys"),
        ({"retention": None}, RetentionMissing, "how long they are kept"),
        (
            {
                "left": wr.Input("clicks", event_time="t", watermark=wr.explicit(), window=wr.session("5 s")),
                "window": None,
                "retention": wr.Retain(messages=10),
            },
            RetentionMissing,
            "the other input that are in none",
        ),
        ({"how": "asof"}, ConfigurationError, "asof"),
        ({"window": wr.session("1 minute", max_length="1 hour")}, BadWindow, "cut="),
        ({"window": wr.tumbling("1 minute")}, BadWindow, "give windows of other kinds to the inputs"),
        ({"window": wr.session(messages=3)}, BadWindow, "wr.JoinWindow"),
        ({"right": wr.Input("clicks", event_time="t", watermark=wr.explicit(), max_ahead=wr.forever)}, BadWindow, "two names"),
        ({"right": wr.Input("buys", event_time="t", static=True)}, BadWindow, "static"),
        ({"left": wr.Input("clicks", event_time="t", window=wr.session("5 s"))}, BadWindow, "together"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_sessions_is_refused_with_what_to_do(
    changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        visits(**changes)


def test_state_of_a_join_opens_with_the_sessions_that_it_was_begun_with_and_no_others(tmp_path: Path) -> None:
    with visits().open(str(tmp_path), clock=ManualClock()) as op:
        op.add_message(click(0), "clicks")
    with visits().open(str(tmp_path), clock=ManualClock()) as op:
        op.add_message(buy(9), "buys")
        assert pairs(op) == [("/0", 9, "EARLY")]
    with pytest.raises(DefinitionChanged):
        visits(window=wr.session("11 seconds")).open(str(tmp_path), clock=ManualClock())


def test_a_watermark_set_back_by_hand_lets_no_match_follow_a_row_that_said_there_was_none() -> None:
    from windrow.stores.kv import MemoryKV

    logic: Any = visits(how="left", allowed_lateness="0 seconds").logic()
    kv = MemoryKV(logic.cfs())
    logic.ingest(kv, {"clicks": _table([click(0), click(30)])}, 0)
    assert len(logic.advance(kv, 20 * S, 0).panes) == 1
    progress = logic.progress(kv)
    logic.set_back(kv, progress, 5 * S)
    assert logic.sessions.progress(kv).watermark_us == progress.watermark_us == 5 * S
    assert len(list(kv.scan(logic.stores[0].cf))) == 1
    assert logic.ingest(kv, {"buys": _table([buy(8), buy(31)])}, 0).dead is None


def _table(rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    return pa.Table.from_pylist(rows)


def test_windows_of_a_range_are_found_by_the_messages_of_their_sessions(tmp_path: Path) -> None:
    with visits(retention="1 day").open(str(tmp_path), clock=ManualClock()) as op:
        times = [100 * n + i for n in range(30) for i in (0, 5, 9)]
        op.add_messages({"clicks": [click(t, user) for t in times for user in "ab"], "buys": [buy(3)]})
        op.advance_watermark(1_500 * S)
        op.next_offsets()
        read, view = [], op._view("windows", None, "clicks")
        kept = view.logic.kept

        def noted(*asked: Any) -> Any:
            read.append(rows := kept(*asked))
            return rows

        view.logic.kept = noted
        # Both bounds are inclusive, and an end is not in its session.
        for low, high in (
            (0, 0),
            (210, 400),
            (219, 399),
            (218, 300),
            (1_400, 1_600),
            (2_950, 9_000),
            (50, 60),
        ):
            wanted = [
                (100 * n * S, (100 * n + 19) * S, user, 3)
                for n in range(30)
                if 100 * n <= high and 100 * n + 19 > low
                for user in "ab"
            ]
            read.clear()
            windows = view.windows(Query(low * S, high * S, input="clicks"))
            assert [
                (i.window.start_us, i.window.end_us, i.key["user"], i.messages) for i in windows
            ] == wanted
            assert sum(map(len, read)) == 3 * len(wanted)
        assert len(view.windows(Query(input="clicks"))) == 60


class Sessions:
    """A session join on a store in memory, whose watermark is told."""

    def __init__(self, definition: wr.Join) -> None:
        self.logic: Any = definition.logic()
        self.kv = CountingKV(self.logic.cfs())
        self.sent = 0

    def ingest(self, clicks: list[tuple[str, int]]) -> None:
        users, times = zip(*clicks, strict=True)
        n = len(clicks)
        table = pa.table(
            {
                "user": list(users),
                "t": pa.array(times, pa.int64()),
                "__source": ["s"] * n,
                "__partition": np.zeros(n, dtype=np.int64),
                "__offset": np.arange(self.sent, self.sent + n),
            }
        )
        self.sent += n
        self.logic.ingest(self.kv, {"clicks": table}, 0)

    def advance(self, second: int) -> None:
        self.logic.advance(self.kv, second * S, 0)

    def messages(self) -> int:
        return len(list(self.kv.scan("join.left.messages")))


def test_where_open_sessions_begin_is_known_without_reading_them() -> None:
    job = Sessions(visits(retention="0 seconds", allowed_lateness="0 seconds"))
    job.ingest([(f"long {n}", 100 * S) for n in range(3_000)])
    read = []
    for second in range(110, 210, 5):  # none of them ends
        job.ingest([(f"long {n}", second * S) for n in range(3_000)] + [(f"short {second}", second * S)])
        job.kv.clear()
        job.logic.sessions.first_kept(job.kv)
        read.append(sum(job.kv.read.values()))
        job.advance(second)
    assert max(read) < 1_000
    assert job.logic.sessions.first_kept(job.kv) == 100 * S


def test_no_session_that_is_kept_begins_before_what_is_forgotten_and_all_is_evicted_at_last() -> None:
    for seed in range(2):
        draw = random.Random(seed)
        job, at = Sessions(visits(retention="5 seconds", allowed_lateness="3 seconds")), 50
        for step in range(40):
            at += draw.randrange(4)
            clicks = [(draw.choice("abcd"), (at - draw.randrange(8)) * S) for _ in range(3)]
            clicks += [("long", at * S)] if step < 25 else []
            job.ingest(clicks)
            job.advance(at)
            kept = job.logic.sessions.kept(job.kv, START_OF_TIME_US, END_OF_TIME_US, None)
            first = (
                END_OF_TIME_US if kept is None or not len(kept) else min(kept.column("__start").to_pylist())
            )
            assert START_OF_TIME_US < job.logic.sessions.first_kept(job.kv) <= first
        job.ingest([("z", (at + 1_000) * S)])
        job.advance(at + 1_000)
        assert job.messages() == 1
        assert len(list(job.kv.scan(job.logic.sessions.aux_cf, b"ds", b"dt"))) <= 1
        job.logic.advance(job.kv, END_OF_TIME_US, 0)
        assert job.messages() == 0
        assert not list(job.kv.scan(job.logic.sessions.aux_cf, b"ds", b"dt"))
