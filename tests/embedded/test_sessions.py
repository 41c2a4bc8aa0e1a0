"""Session windows, embedded. What transcripts say better is in tests/transcripts/sessions.yaml."""

from __future__ import annotations

import random
import re
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from windrow.core.errors import BadTrigger, BadWindow, DefinitionChanged, TypeClash
from windrow.core.messages import Kind
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate.sessions import logic as sessions
from windrow.stores import sessions as stored
from windrow.stores.kv import Overlay
from windrow.stores.sessions import HOME, HOT
from windrow.testing import ManualClock, TestDriver

S = 1_000_000


def visits(**options: Any) -> wr.Aggregate:
    arguments: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.session("10 seconds"),
        "agg": {"n": wr.count(), "sum": wr.sum("v")},
        "retention": "1 hour",
        "watermark": wr.explicit(),
        "max_ahead": wr.forever,
        **options,
    }
    return wr.Aggregate(**arguments)


def rows(*visits: tuple[float, str]) -> list[dict[str, Any]]:
    return [{"t": int(t * S), "k": k, "v": 1} for t, k in visits]


def test_sessions_are_what_is_left_when_all_messages_are_sorted_by_time() -> None:
    chance = random.Random(7)
    messages = rows(*((chance.randrange(400), chance.choice("abc")) for _ in range(120)))
    wanted = []
    for key in "abc":
        times = sorted(m["t"] for m in messages if m["k"] == key)
        breaks = [0, *(i for i in range(1, len(times)) if times[i] - times[i - 1] > 10 * S), len(times)]
        for low, high in pairwise(breaks):
            wanted.append((key, times[low], times[high - 1] + 10 * S, high - low))
    with TestDriver(visits()) as driver:
        chance.shuffle(messages)
        for i in range(0, len(messages), 7):
            driver.feed(messages[i : i + 7])
        sessions = [(i.key["k"], i.window.start_us, i.window.end_us, i.messages) for i in driver.windows()]
        assert sorted(sessions) == sorted(wanted)
        driver.drain()
        driver.check(dead_letters=True)
        driver.assert_state_zero()


@pytest.mark.parametrize("mode", ["accumulating", "retracting"])
def test_what_is_emitted_of_a_key_never_overlaps_nor_touches(mode: Any) -> None:
    chance = random.Random(11)
    emit = wr.Emit(early=wr.every_batch, late=wr.every_batch, mode=mode)
    with TestDriver(visits(emit=emit, allowed_lateness="20 seconds")) as driver:
        for n in range(25):
            moments = [(max(n * 3 + chance.randrange(-40, 10), 0), chance.choice("ab")) for _ in range(3)]
            driver.feed(rows(*moments))
            driver.advance_event_time(n * 3 * S)
            driver.next_offsets()
        driver.check(dead_letters=True)
        panes = driver.committed_panes()
    standing: dict[Any, Any] = {}
    for pane, later in zip(panes, [*panes[1:], None], strict=True):
        name = (pane.key["k"], pane.window.start_us, pane.window.end_us)
        if pane.kind is Kind.RETRACT:
            assert standing.pop(name) == pane.values
        else:
            standing[name] = pane.values
        if later is None or later.commit != pane.commit:
            for (k, _, end), (other, start, _) in pairwise(sorted(standing)):
                assert k != other or end < start
    assert any(pane.kind is Kind.RETRACT for pane in panes)


def test_late_messages_say_the_same_however_what_has_ended_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_rows() -> list[Any]:
        chance = random.Random(3)
        emit = wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting")
        with TestDriver(visits(emit=emit, retention="2 minutes")) as driver:
            for n in range(40):
                moments = [
                    (max(n * 9 - chance.randrange(60), 0), f"k{chance.randrange(20)}") for _ in range(12)
                ]
                driver.feed(rows(*moments))
                driver.advance_event_time(n * 9 * S)
                driver.next_offsets()
            driver.drain()
            driver.check(dead_letters=True)
            driver.assert_state_zero()
            return list(driver.committed_panes())

    before = all_rows()
    for page_bytes in (0, 2_000):
        monkeypatch.setattr(stored, "PAGE_BYTES", page_bytes)
        assert all_rows() == before, page_bytes


def test_a_commit_of_few_messages_reads_few_of_many_open_sessions() -> None:
    definition = visits(agg={"n": wr.count()})
    with TestDriver(definition) as driver:
        keys = [f"k{i}" for i in range(20_000)]
        table = pa.table({"t": pa.array(np.arange(20_000) * 100, pa.int64()), "k": keys})
        driver.op.add_messages(table)
        driver.next_offsets()
        engine = driver.op.engine
        staged = Overlay(engine.shard.kv)
        logic = engine.logic
        few = pa.table({"t": pa.array([2 * S] * 10, pa.int64()), "k": keys[:10]})
        logic.ingest(staged, {definition.name: few}, 0)
        logic.advance(staged, 1, 0)
        written = sum(len(value or b"") for kind, cf, _, value in staged.batch.ops if kind == "put")
        assert written < 60_000  # of two megabytes


def test_many_lone_sessions_that_end_at_once_leave_by_one_range_and_nothing_waits_for_them_any_more() -> None:
    with TestDriver(visits(agg={"n": wr.count()}, retention="1 minute")) as driver:
        table = pa.table(
            {"t": pa.array(np.zeros(20_000, dtype=np.int64)), "k": [f"k{i}" for i in range(20_000)]}
        )
        driver.op.add_messages(table)
        driver.next_offsets()
        engine = driver.op.engine
        staged, logic = Overlay(engine.shard.kv), engine.logic
        assert len(logic.timers.due.between(staged, 0, END_OF_TIME_US)[0]) == 20_000
        step = logic.advance(staged, 60 * S, 0)
        assert sum(map(len, step.panes)) == 20_000
        gone = [kind for kind, cf, *_ in staged.batch.ops if kind != "put" and cf.endswith(".windows")]
        assert gone == ["delete_range"]
        assert len(logic.timers.due.between(staged, START_OF_TIME_US, END_OF_TIME_US)[0]) == 0
        assert logic.store.read(staged, [HOT]) is None


def test_a_message_that_joined_two_sessions_and_comes_again_does_nothing() -> None:
    with TestDriver(visits(by=(), emit=wr.Emit(early=wr.every_batch))) as driver:
        for offset, second in enumerate((20, 35, 27)):
            driver.add(wr.Message({"t": second * S, "v": 1}, wr.Position("s", 0, offset)))
            driver.next_offsets()
        [before] = driver.windows()
        assert (before.window.start_us, before.window.end_us, before.messages) == (20 * S, 45 * S, 3)
        assert len(driver.panes()) == 5
        driver.restart()
        driver.add(wr.Message({"t": 27 * S, "v": 1}, wr.Position("s", 0, 2)))
        driver.next_offsets()
        assert driver.windows() == [before]
        assert driver.panes() == driver.dead_letters() == []
        assert driver.op.counters["replayed"] == 1
        driver.check(dead_letters=True)


def test_what_ends_is_left_in_pages_of_what_continues_and_comes_back_to_nobody() -> None:
    definition = visits(agg={"n": wr.count()})
    with TestDriver(definition) as driver:
        keys = [f"k{i}" for i in range(20_000)]
        times = np.where(np.arange(20_000) % 100 == 0, 0, 5 * S)
        driver.op.add_messages(pa.table({"t": pa.array(times), "k": keys}))
        driver.next_offsets()
        engine = driver.op.engine
        staged, logic = Overlay(engine.shard.kv), engine.logic
        step = logic.advance(staged, 11 * S, 0)
        assert sum(map(len, step.panes)) == 200
        written = sum(len(value or b"") for kind, cf, _, value in staged.batch.ops if kind == "put")
        assert written < 100_000  # of two megabytes
        assert len(logic.kept(staged, START_OF_TIME_US, END_OF_TIME_US, None)) == 20_000
        assert logic.advance(staged, 12 * S, 0).panes == []
        logic.set_back(staged, logic.progress(staged), 0)
        hot = logic.store.read(staged, [HOT])
        assert len(hot) == 19_800
        assert len(logic.kept(staged, START_OF_TIME_US, END_OF_TIME_US, None)) == 20_000


@pytest.mark.parametrize(
    ("emit", "part"),
    [
        (wr.Emit.append(), "_fire_ended"),
        (wr.Emit(early=wr.every_batch, mode="retracting"), "_fire_ended"),
        (wr.Emit(late=wr.every(100), closing_pane=True), "_fire_closing"),
    ],
)
def test_many_sessions_that_end_or_close_at_once_are_emitted_in_slices(
    emit: wr.Emit, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.stores.sessions.SESSION_ROWS", 4)
    chance, emitted = random.Random(3), []
    messages = rows(*((chance.randrange(300), f"k{chance.randrange(150)}") for _ in range(900)))
    for most in (sessions.SESSIONS_AT_ONCE, 40):
        monkeypatch.setattr(sessions, "SESSIONS_AT_ONCE", most)
        with TestDriver(visits(emit=emit)) as driver:
            for i in range(0, len(messages), 300):
                driver.feed(messages[i : i + 300])
            reads = []
            read = getattr(driver.op.engine.logic, part)
            monkeypatch.setattr(driver.op.engine.logic, part, lambda *a: reads.append(1) or read(*a))  # noqa: B023
            driver.advance_event_time(200 * S)
            driver.drain()
            driver.check(dead_letters=True)
            driver.assert_state_zero()
            panes = driver.committed_panes()
            emitted.append([(p.window, p.key, p.values, p.timing, p.index, p.kind) for p in panes])
            assert (len(reads) > 5) == (most == 40)
    assert emitted[0] == emitted[1]


def test_few_sessions_that_end_among_many_are_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.stores.sessions.SESSION_ROWS", 4)
    monkeypatch.setattr(sessions, "SESSIONS_AT_ONCE", 40)
    with TestDriver(visits()) as driver:
        driver.feed(rows(*((0 if i % 50 == 0 else 100, f"k{i}") for i in range(500))))
        logic, reads = driver.op.engine.logic, []
        read = logic._fire_ended
        monkeypatch.setattr(
            logic, "_fire_ended", lambda step, hashes, w: reads.append(len(hashes)) or read(step, hashes, w)
        )
        driver.advance_event_time(50 * S)
        assert reads == [10]
        driver.drain()
        driver.check(dead_letters=True)
        assert sum(reads) == 500
        assert max(reads) < 40


def test_a_slice_of_sessions_that_end_reads_its_own_pages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_AT_ONCE", 400)
    with TestDriver(visits()) as driver:
        driver.feed(rows(*((0, f"k{i}") for i in range(2_000))))
        logic, held = driver.op.engine.logic, []
        near = logic.store.near

        def spy(*args: Any) -> Any:
            read = near(*args)
            held.append(0 if read.rows is None else len(read.rows))
            return read

        monkeypatch.setattr(logic.store, "near", spy)
        driver.advance_event_time(50 * S)
        assert len(held) > 5
        assert max(held) < 400
        driver.drain()
        driver.check(dead_letters=True)


def test_what_nothing_can_reach_when_it_ends_is_emitted_and_not_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TestDriver(visits(emit=wr.Emit.append(), retention="0 seconds")) as driver:
        driver.feed(rows(*((30 * i, f"k{i % 7}") for i in range(500))))
        logic, stored = driver.op.engine.logic, []
        put = logic.store.put

        def spy(kv: Any, near: Any, table: pa.Table, *others: Any) -> None:
            stored.append(int((table.column(HOME).to_numpy() != HOT).sum()))
            put(kv, near, table, *others)

        monkeypatch.setattr(logic.store, "put", spy)
        driver.advance_event_time(30 * 490 * S)
        assert len(driver.committed_panes()) == 490
        assert 0 < sum(stored) < 5, "the last one could keep out what comes yet"
        driver.drain()
        driver.check(dead_letters=True)
        driver.assert_state_zero()


@pytest.mark.parametrize("before", [wr.Emit.append(), wr.Emit(early=wr.every_batch, late=wr.never)])
def test_another_emission_finds_what_waits(before: wr.Emit, tmp_path: Path) -> None:
    clock = ManualClock()
    with TestDriver(visits(emit=before), tmp_path, clock=clock) as driver:
        driver.feed(rows((0, "a"), (30, "b"), (5, "a")))
        driver.advance_event_time(15 * S)
        driver.restart(visits(emit=wr.Emit(early=wr.every("5 seconds"), late=wr.every(2), mode="retracting")))
        driver.timeout()
        clock.advance("5 seconds")
        driver.timeout()
        driver.feed(rows((20, "b"), (12, "a")))
        driver.advance_event_time(60 * S)
        driver.drain()
        driver.check(dead_letters=True)


def test_a_reader_finds_the_sessions_of_a_key(tmp_path: Path) -> None:
    definition = visits()
    with definition.open(str(tmp_path)) as op:
        op.add_messages([wr.Message(row) for row in rows((0, "a"), (5, "b"), (40, "a"), (70, "a"))])
        op.next_offsets()
        windows = op.get_windows(key="a")
        assert [(w.window.start_us // S, w.window.end_us // S) for w in windows] == [
            (0, 10),
            (40, 50),
            (70, 80),
        ]
        assert op.get_windows(start=41 * S, end=60 * S, key={"k": "a"}) == windows[1:2]
        assert op.get_windows(key="nobody") == []


@pytest.mark.parametrize("agg", [{"n": wr.count()}, {"m": wr.median("v")}], ids=["incremental", "messages"])
def test_a_session_is_explained_by_the_message_that_made_it_of_two(agg: Any, tmp_path: Path) -> None:
    sent = rows((20, "a"), (35, "a"), (27, "a"), (60, "a"), (50, "a"), (40, "a"), (28, "a"), (90, "a"))
    with visits(agg=agg, emit=wr.Emit(early=wr.every_batch)).open(str(tmp_path)) as op:
        for n, row in enumerate(sent):
            op.add_message(wr.Message(row, wr.Position("s", 0, n)))
            op.next_offsets()
        with wr.read_state(str(tmp_path)) as state:
            [one] = state.explain(20 * S, key="a")
            assert one.window is not None and one.window.messages == 7
            assert one.joined_by == wr.Position("s", 0, 5)  # 50 joined 60 and what ended at 45 only by 40
            assert {t.commit for t in one.commits} >= {1, 6, 7}
            assert one.complete == ("m" in agg)
            [alone] = state.explain(90 * S, key="a")
            assert alone.joined_by is None and [t.commit for t in alone.commits] == [8]


MODES: tuple[Any, ...] = ("accumulating", "discarding", "retracting")
GROWING = list(product(MODES, (None, wr.tumbling("1 minute")), ({"n": wr.count()}, {"m": wr.median("v")})))
#: Any two of the three in every way.
EVERY_OTHER = [GROWING[n] for n in (0, 3, 5, 6, 8, 11)]


@pytest.mark.parametrize(("mode", "cut", "agg"), usually(EVERY_OTHER, deep=GROWING))
def test_under_a_larger_gap_sessions_of_the_state_are_joined(
    mode: Any, cut: Any, agg: Any, tmp_path: Path
) -> None:
    chance, options = (
        random.Random(5),
        {"emit": wr.Emit(early=wr.every(3), late=wr.every("7 seconds"), mode=mode)},
    )
    arguments = {**options, "agg": agg, "allowed_lateness": "20 seconds", "retention": "40 seconds"}
    clock = ManualClock()
    with TestDriver(
        visits(**arguments, window=wr.session("2 seconds", cut=cut)), tmp_path, clock=clock
    ) as driver:
        for n, gap in enumerate([2] * 6 + [5] * 6 + [12] * 6 + [30] * 6):
            if n % 6 == 0 and n:
                driver.restart(visits(**arguments, window=wr.session(f"{gap} seconds", cut=cut)))
            moments = [(max(n * 6 + chance.randrange(-50, 10), 0), chance.choice("abc")) for _ in range(5)]
            clock.advance("2 seconds")
            if n % 12 != 6:  # a step that takes messages comes first, or one in which time passes
                driver.feed(rows(*moments))
            driver.advance_event_time(n * 6 * S)
            driver.next_offsets()
        driver.drain()
        driver.check(dead_letters=True)


def test_a_larger_gap_says_what_it_would_have_said_if_it_had_been_there_from_the_beginning(
    tmp_path: Path,
) -> None:
    sent = rows((0, "a"), (8, "a"), (30, "a"), (3, "b"))
    with visits(window=wr.session("5 seconds")).open(str(tmp_path)) as op:
        op.add_messages([wr.Message(row) for row in sent])
        op.next_offsets()
    with visits().open(str(tmp_path)) as op:
        op.advance_watermark(S)
        op.next_offsets()
        changes = [
            (w.key["k"], w.window.start_us // S, w.window.end_us // S, w.messages) for w in op.get_windows()
        ]
        assert changes == [("a", 0, 18, 2), ("b", 3, 13, 1), ("a", 30, 40, 1)]
    with pytest.raises(
        DefinitionChanged, match=r"session\('10 seconds'\).*session\('5 seconds'\).*not on this state"
    ):
        visits(window=wr.session("5 seconds")).open(str(tmp_path))
    both = visits(window=wr.session("1 minute"), agg={"n": wr.count()})
    with pytest.raises(
        DefinitionChanged, match="alone it could be opened\nOpen it with one of these changes first, and then"
    ):
        both.open(str(tmp_path))
    visits(window=wr.session("1 minute")).open(str(tmp_path)).close()
    with both.open(str(tmp_path)) as op:
        op.advance_watermark(2 * S)
        assert sorted(w.messages for w in op.get_windows()) == [1, 3]


def test_of_a_window_that_was_emitted_and_taken_back_nothing_is_left() -> None:
    window = {"start": 0, "end": 10 * S}
    kind = pa.struct(
        [("timing", pa.string()), ("index", pa.int32()), ("is_last", pa.bool_()), ("kind", pa.string())]
    )
    pane = {"timing": "EARLY", "index": 0, "is_last": False}
    panes = pa.table(
        {
            "window": pa.array([window, window]),
            "k": ["a", "a"],
            "pane": pa.array([{**pane, "kind": "INSERT"}, {**pane, "kind": "RETRACT"}], kind),
            "commit": [3, 3],
        }
    )
    assert len(wr.latest(panes, by="k")) == 0


def test_sessions_are_counted_by_the_next_operator(tmp_path: Path) -> None:
    first = visits(emit=wr.Emit.append(), name="sessions", watermark="0 seconds")
    second = wr.Aggregate(
        event_time="window_time",
        window=wr.tumbling("20 seconds"),
        agg={"sessions": wr.count(), "n": wr.sum("n")},
        retention="1 hour",
        emit=wr.Emit.append(),
        name="per_20",
    )
    with TestDriver(wr.chain(first, second), tmp_path) as driver:
        for row in rows((0, "a"), (4, "b"), (5, "a"), (30, "a"), (31, "b"), (80, "a")):
            driver.feed([row])
        driver.drain()
        driver.check(dead_letters=True)
        assert [p.values for p in driver.committed_panes()] == [
            {"sessions": 2, "n": 3},
            {"sessions": 1, "n": 1},
            {"sessions": 1, "n": 1},
            {"sessions": 1, "n": 1},
        ]
        assert driver.dead_letters() == []


def test_a_chain_after_sessions_that_may_be_corrected_is_refused() -> None:
    second = wr.Aggregate(
        event_time="window_time",
        window=wr.tumbling("1 minute"),
        agg={"n": wr.count()},
        retention="1 hour",
        name="two",
    )
    with pytest.raises(BadTrigger, match=r"emit=wr\.Emit\.append"):
        wr.chain(
            visits(emit=wr.Emit(late=wr.every_batch), allowed_lateness="0 seconds", watermark="0 s"), second
        )


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_gaps_of_their_own_are_durations_of_any_unit_or_microseconds(unit: str, tmp_path: Path) -> None:
    gaps = pa.array([2 * S, 3 * S, None, -S, 0], pa.duration("us")).cast(pa.duration(unit))
    table = pa.table({"t": [0, 2 * S, 3 * S, 4 * S, 9 * S], "k": ["a"] * 5, "v": [1] * 5, "gap": gaps})
    with visits(window=wr.session(wr.col("gap"))).open(str(tmp_path)) as op:
        op.add_messages(table)
        op.next_offsets()
        sessions = [(w.window.start_us, w.window.end_us, w.messages) for w in op.get_windows()]
        assert sessions == [(0, 5 * S, 2), (9 * S, 9 * S + 1, 1)]
        assert [(d.reason, d.event_time_us) for d in op.dead_letters()] == [
            ("malformed", t * S) for t in (3, 4)
        ]


def test_a_gap_of_a_type_that_can_be_none_is_refused_with_what_to_do(tmp_path: Path) -> None:
    why = "gap of sessions, gap, is of type double: .*cast"
    with visits(window=wr.session(wr.col("gap"))).open(str(tmp_path / "one")) as op:
        op.add_messages([{"t": 0, "k": "a", "v": 1, "gap": 2}, {"t": 0, "k": "a", "v": 1, "gap": 2.5}])
        op.next_offsets()
        [letter] = op.dead_letters()
        assert letter.reason == "malformed" and re.search(why, letter.detail)
    with (
        visits(window=wr.session(wr.col("gap"))).open(str(tmp_path / "table")) as op,
        pytest.raises(TypeClash, match=why),
    ):
        op.add_messages(pa.table({"t": [0], "k": ["a"], "v": [1], "gap": [2.5]}))


def test_a_session_prints_as_what_builds_it_and_shapes_the_state() -> None:
    window = wr.session("30 minutes", cut=wr.calendar("day", time_zone="America/New_York"))
    assert repr(window) == "wr.session('30 minutes', cut=wr.calendar('day', time_zone='America/New_York'))"
    assert visits(window=window).fingerprint != visits(window=wr.session("30 minutes")).fingerprint
    assert visits(window=window).scale == "large"
    own = wr.session(wr.col("gap") * 60)
    assert repr(own) == "wr.session(multiply_checked(gap, 60))" and own == wr.session(wr.col("gap") * 60)
    with pytest.raises(BadWindow, match="all messages have one gap"):
        _ = own.gap_us
