"""Messages of small steps wait beside the pages of the sessions that they touch: nobody can tell by what is told or asked."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples, usually
from tests.operators.aggregate.cases import INCREMENTAL, SCHEMA, messages
from tests.operators.contract import Case, Drawn, S, life
from tests.operators.test_contract import DEATHS, actions
from windrow.core.errors import CorruptState, NewerFormat
from windrow.core.message_keys import decode_position
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate.sessions import assignment as session_filing
from windrow.operators.aggregate.sessions.merging import JOINED_BY
from windrow.stores import sessions, write_buffer
from windrow.stores.block_format import SINCE, key_of
from windrow.stores.sessions import HOT
from windrow.testing import TestDriver


@contextmanager
def sizes(*, page: int, blocks: int) -> Iterator[None]:
    """Pages of so many sessions, and so many blocks beside them."""
    before = sessions.SESSION_ROWS, write_buffer.MOST_BLOCKS
    sessions.SESSION_ROWS, write_buffer.MOST_BLOCKS = page, blocks
    try:
        yield
    finally:
        sessions.SESSION_ROWS, write_buffer.MOST_BLOCKS = before


@contextmanager
def at_once() -> Iterator[None]:
    """Nothing waits."""
    before, session_filing.MOST_WAITING = session_filing.MOST_WAITING, 0
    try:
        yield
    finally:
        session_filing.MOST_WAITING = before


@st.composite
def jobs(draw: st.DrawFn) -> Case:
    """Sessions of aggregations whose order makes no difference, and messages that are mostly beyond the watermark."""

    def pick(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    def seconds(n: int | None) -> Any:
        return wr.forever if n is None else timedelta(seconds=n)

    both = [wr.all_of(wr.every(2), one) for one in (wr.every("3 seconds"), wr.delay("2 seconds"))]
    kept, lateness = pick((None, None), (25, None), (25, 4), (8, 0), (0, None))
    definition = wr.Aggregate(
        by=pick("k", "k", ("k", "g"), "f"),
        event_time="t",
        window=wr.session(seconds(pick(1, 2, 3)), cut=pick(None, None, None, wr.tumbling("10 seconds"))),
        agg={name: INCREMENTAL[name] for name in pick(("n", "sum", "nv"), ("n",), ("sum", "n"))}
        | pick({}, {"hi": wr.max("v"), "lo": wr.min("v")}, {"mean": wr.avg("v")}),
        retention=seconds(kept),
        allowed_lateness=None if lateness is None else seconds(lateness),
        watermark=pick("0 seconds", "3 seconds", wr.bounded("8 seconds", idle="20 seconds"), wr.explicit()),
        emit=wr.Emit(
            early=pick(wr.never, wr.every("5 seconds"), wr.delay("2 seconds"), *both),
            late=pick(wr.never, wr.every_batch, wr.every(2), wr.every("3 seconds")),
            mode=pick("accumulating", "retracting", "discarding"),
            only_if_changed=draw(st.booleans()),
            closing_pane=draw(st.booleans()),
        ),
        null_keys=pick("group", "dead_letter"),
        max_ahead=pick(wr.forever, "40 seconds"),
        integer_overflow=pick("dead_letter", "decimal"),
    )
    rows = messages(close=draw(st.booleans()))
    names = [n for n in SCHEMA.names if n != "u"]
    base = pick(0, 10**9 * S)
    return Case(
        definition=definition,
        messages=rows.map(lambda row: _drawn(row, base, names)),
        schema=pa.schema([SCHEMA.field(name) for name in names]),
        start_us=base,
    )


def _drawn(row: dict[str, Any], base_us: int, names: list[str]) -> Drawn:
    payload = {name: row.get(name) for name in names if name != "t"}
    return Drawn({**payload, "t": row.get("bad", base_us + row["t"] * S)}, None, row["p"])


@given(data=st.data())
@examples(22, deep=5_000)
def test_what_waits_is_emitted_asked_and_forgotten_as_the_oracle_says(data: st.DataObject) -> None:
    case = data.draw(jobs())
    page, blocks = data.draw(st.sampled_from([1, 2, 32])), data.draw(st.sampled_from([2, 4, 32]))
    with sizes(page=page, blocks=blocks), life(case, with_sink=data.draw(st.booleans())) as job:
        most = 0
        for kind, value in data.draw(actions(case)):
            job.act(kind, value)
            most = max(most, len(_blocks(job.driver)))
        job.check()
        event("some waited" if most else "none waited")
        job.die(data.draw(st.sampled_from(DEATHS)), 3)
        job.driver.drain()
        job.check()
        if case.forgets:
            job.act("clock", 3_600)
            job.driver.drain()
            job.driver.assert_state_zero()


def visits(**more: Any) -> wr.Aggregate:
    arguments: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.session("10 seconds"),
        "agg": {"n": wr.count(), "sum": wr.sum("v"), "hi": wr.max("v")},
        "watermark": wr.explicit(),
        "retention": "1 hour",
        "max_ahead": wr.forever,
        **more,
    }
    return wr.Aggregate(**arguments)


def _logic(driver: TestDriver) -> Any:
    return driver.op.engine.logic


def _kv(driver: TestDriver) -> Any:
    return driver.op.engine.staged.overlay


def _blocks(driver: TestDriver) -> list[bytes]:
    """Return the merge buffer, as it is stored."""
    low = key_of(HOT.to_bytes(8, "big"), SINCE)
    low = bytes((low[0] ^ 0x80,)) + low[1:]
    [cf] = [cf for cf in _kv(driver).cfs if cf.endswith(".windows")]
    return [value for _, value in _kv(driver).scan(cf, low, low[:8] + b"\xff" * 9)]


def _joined(driver: TestDriver) -> dict[tuple[str, int, int], bytes | None]:
    """Return the message that joined each session."""
    rows = _logic(driver).kept(_kv(driver), START_OF_TIME_US, END_OF_TIME_US, None)
    names = rows.column(JOINED_BY).to_pylist() if JOINED_BY in rows.column_names else [None] * len(rows)
    places = zip(*(rows.column(c).to_pylist() for c in ("k", "__start", "__end")), strict=True)
    return dict(zip(places, names, strict=True))


class PlainSessions:
    """Sessions of one gap, and which message joined each, by loops over lists."""

    def __init__(self, gap: int) -> None:
        self.gap = gap
        #: (key, start, end, the number of the message that joined it)
        self.there: list[tuple[str, int, int, int | None]] = []

    def step(self, rows: list[tuple[int, str, int]]) -> None:
        """rows: (number, key, time)"""
        for key in {key for _, key, _ in rows}:
            own = [(number, time, time + self.gap) for number, k, time in rows if k == key]
            before = sorted((s, e, by) for k, s, e, by in self.there if k == key)
            spans = sorted([(s, e) for s, e, _ in before] + [(s, e) for _, s, e in own])
            whole: list[list[int]] = []
            for start, end in spans:
                if whole and start <= whole[-1][1]:
                    whole[-1][1] = max(whole[-1][1], end)
                else:
                    whole.append([start, end])
            after = []
            for low, high in whole:
                inside = [(s, e, by) for s, e, by in before if low <= s and e <= high]
                by = inside[0][2] if inside else None
                for (_, left, _), (right, _, _) in pairwise(inside):
                    over = [n for n, s, e in own if s < right and e > left]
                    by = max([*over, *([by] if by is not None and by >= rows[0][0] else [])])
                after.append((key, low, high, by))
            self.there = [one for one in self.there if one[0] != key] + after


@pytest.mark.parametrize("seed", range(usually(4, deep=200)))
def test_who_joined_two_sessions_is_known_though_both_and_he_have_waited(seed: int) -> None:
    chance, plain = random.Random(seed), PlainSessions(10)
    with sizes(page=2, blocks=7), TestDriver(visits()) as driver:
        driver.op.add_messages(pa.table({"t": pa.array([0] * 3, pa.int64()), "k": list("abc"), "v": [1] * 3}))
        plain.step([(0, "a", 0), (1, "b", 0), (2, "c", 0)])
        n = 3
        for _ in range(12):
            rows = [
                (n + i, chance.choice("abcd"), chance.randrange(1, 160))
                for i in range(chance.randrange(1, 5))
            ]
            n += len(rows)
            plain.step(rows)
            times = pa.array([t * S for _, _, t in rows], pa.int64())
            driver.op.add_messages(pa.table({"t": times, "k": [k for _, k, _ in rows], "v": [1] * len(rows)}))
            if chance.random() < 0.3:
                driver.next_offsets()
            bridges = _joined(driver)
            wanted = {(k, s * S, e * S): by for k, s, e, by in plain.there}
            assert bridges.keys() == wanted.keys()
            numbers = {key: None if v is None else _number(v) for key, v in bridges.items()}
            assert numbers == wanted


def _number(position: bytes) -> int:
    """Name the message by its offset in the one partition."""
    return decode_position(position)[0][2]


def test_a_commit_of_few_messages_writes_what_came_and_reads_no_page() -> None:
    with TestDriver(visits()) as driver:
        keys = [f"k{i}" for i in range(20_000)]
        table = pa.table({"t": pa.array([0] * 20_000, pa.int64()), "k": keys, "v": [1] * 20_000})
        driver.op.add_messages(table)
        driver.next_offsets()
        few = keys[::200]
        driver.op.add_messages(pa.table({"t": pa.array([S] * 100, pa.int64()), "k": few, "v": [2] * 100}))
        batch = driver.op.engine.staged.overlay.batch
        assert (
            sum(len(value or b"") for kind, _, _, value in batch.ops if kind == "put") < 20_000
        )  # of three hundred
        assert len(_blocks(driver)) == 1
        sessions = {i.key["k"]: (i.window.end_us, i.messages) for i in driver.windows()}
        assert {sessions[k] for k in few} == {(11 * S, 2)}
        assert {sessions[k] for k in set(keys) - set(few)} == {(10 * S, 1)}
        driver.advance_event_time(10 * S)
        panes = driver.panes()
        assert len(panes) == 20_000 - 100
        driver.advance_event_time(11 * S)
        assert {(p.key["k"], p.values["n"], p.values["sum"]) for p in driver.panes()} == {
            (k, 2, 3) for k in few
        }
        assert not _blocks(driver)


def test_what_waits_is_laid_into_pages_before_it_is_much() -> None:
    with TestDriver(visits()) as driver:
        keys = [f"k{i}" for i in range(500)]
        for n in range(100):
            driver.feed([{"t": n * S, "k": keys[(n * 7 + i) % 500], "v": 1} for i in range(3)])
            assert len(_blocks(driver)) < write_buffer.MOST_BLOCKS
        assert sum(i.messages for i in driver.windows()) == 300
        driver.check(dead_letters=True)


def test_what_waits_is_laid_into_pages_before_it_is_of_many_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_buffer, "MOST_PAGES", 8)
    with sizes(page=1, blocks=1_000), TestDriver(visits()) as driver:
        driver.feed([{"t": 0, "k": f"k{i}", "v": 1} for i in range(40)])
        most = 0
        for n in range(30):
            driver.feed([{"t": S + n, "k": f"k{(2 * n + i) % 40}", "v": 1} for i in range(2)])
            most = max(most, len(_blocks(driver)))
        assert most == 4  # ten rows are of about eight of forty pages
        driver.drain()
        driver.check(dead_letters=True)


def test_a_page_that_is_split_keeps_what_continues_with_what_waits() -> None:
    before, session_filing.MOST_WAITING = session_filing.MOST_WAITING, 64
    try:
        with sizes(page=2, blocks=32), TestDriver(visits()) as driver:
            keys = [f"k{i}" for i in range(64)]
            driver.feed([{"t": 0, "k": k, "v": 1} for k in keys] + [{"t": 0, "k": "more", "v": 1}])
            driver.feed([{"t": 5 * S, "k": k, "v": 1} for k in keys])
            assert len(_blocks(driver)) == 1
            driver.advance_event_time(12 * S)  # beyond the end that their rows in pages say
            session_filing.MOST_WAITING = 3
            for n in range(20):
                driver.feed([{"t": 13 * S, "k": f"{n}-{i}", "v": 1} for i in range(4)])
            assert _blocks(driver)
            sessions = {i.key["k"]: i.messages for i in driver.windows()}
            assert {sessions[k] for k in keys} == {2}
            driver.drain()
            driver.check(dead_letters=True)
    finally:
        session_filing.MOST_WAITING = before


@pytest.mark.parametrize(
    ("early", "expected"),
    [
        (wr.delay("10 seconds"), {30: [100], 34: [200]}),
        (wr.every("10 seconds"), {30: [100, 200]}),
        (wr.any_of(wr.delay("9 seconds"), wr.every("15 seconds")), {29: [100], 30: [200]}),
    ],
)
def test_each_session_of_what_waits_is_emitted_when_its_time_has_come(
    early: Any, expected: dict[int, list[int]]
) -> None:
    # The shorter delay is of late messages: nothing but the trigger above tells early.
    emit = wr.Emit(early=early, late=wr.delay("3 seconds"))
    with sizes(page=1, blocks=32), TestDriver(visits(emit=emit)) as driver:
        driver.feed([{"t": 0, "k": f"k{i}", "v": 1} for i in range(40)])
        driver.advance_clock("20 seconds")
        driver.timeout()
        assert len(driver.panes()) == 40
        for start in (100, 200):
            driver.feed([{"t": start * S, "k": "k1", "v": 1}])
            driver.advance_clock("4 seconds")
        assert len(_blocks(driver)) == 2
        sessions = {}
        for now in range(28, 36):
            driver.timeout()
            sessions[now] = [pane.window.start_us // S for pane in driver.panes()]
            driver.advance_clock("1 second")
        assert {now: starts for now, starts in sessions.items() if starts} == expected
        driver.check(dead_letters=True)


def test_sessions_that_end_soon_never_come_into_pages() -> None:
    with TestDriver(visits(watermark="0 seconds")) as driver:
        driver.feed([{"t": 0, "k": "long", "v": 1}])
        waited = 0
        for n in range(1, 40):
            driver.feed([{"t": n * 9 * S + i, "k": k, "v": 1} for i, k in enumerate(["long", f"k{n}"])])
            waited += len(_blocks(driver))
        assert waited
        driver.drain()
        driver.check(dead_letters=True)
        driver.assert_state_zero()


def test_blocks_of_another_version_are_refused(tmp_path: Path) -> None:
    from windrow.stores.block_format import header_of

    with TestDriver(visits()) as driver:
        for n in range(3):
            driver.op.add_messages(pa.table({"t": pa.array([n * S], pa.int64()), "k": ["a"], "v": [1]}))
        first, _ = _blocks(driver)
        with pytest.raises(CorruptState, match="of kind 6"):
            header_of(first)
        with pytest.raises(NewerFormat, match="of version 2"):
            write_buffer._head(first[:1] + b"\x02" + first[2:])
        with pytest.raises(CorruptState, match="it has 3 bytes"):
            write_buffer._head(first[:3])
