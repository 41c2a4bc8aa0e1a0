"""Messages added one by one run together: all is told, buried, counted, recorded and kept as single steps would do it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples, usually
from tests.filed import filed
from tests.operators.aggregate import cases
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate.micro_batching import entries
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.runners.embedded import Embedded
from windrow.testing import ManualClock

S = 1_000_000
#: What a store does of its own is tried elsewhere (tests/stores, tests/operators/test_contract.py).
STORE = usually("memory", deep="rocksdb")
#: Sums of these depend on the order in which they are added.
FLOATS = {0.25: 0.1, -3.0: 1e17, 7.5: -0.3}


class Life:
    """A job whose messages run together, or not."""

    def __init__(self, definition: wr.Aggregate, folder: str, start_us: int, *, together: bool) -> None:
        self.definition, self.folder, self.together = definition, folder, together
        self.clock = ManualClock(start_us)
        self.sent: list[wr.Message] = []
        self.emitted: list[Any] = []
        self.op = self._open()

    def _open(self) -> Embedded:
        op: Embedded = self.definition.open(self.folder, clock=self.clock, store=STORE)
        assert op._in_runs
        op._in_runs = self.together
        return op

    def act(self, kind: str, value: Any) -> None:
        match kind:
            case "add":
                for drawn in value:
                    self.sent.append(
                        wr.Message(drawn.payload, wr.Position("s", drawn.partition, len(self.sent)))
                    )
                    self.op.add_message(self.sent[-1])
            case "many":
                first = len(self.sent)
                self.sent += [
                    wr.Message(d.payload, wr.Position("s", d.partition, first + i))
                    for i, d in enumerate(value)
                ]
                self.op.add_messages(self.sent[first:])
            case "again":
                for message in self.sent[-value:]:
                    self.op.add_message(message)
            case "clock":
                self.clock.advance(timedelta(seconds=value))
            case "timeout":
                self.op.timeout()
            case "results":
                self.emitted.append(
                    [self.op.get_result(), sorted(self.op.counters.items()), self.op.watermark]
                )
                self.op.flush()
            case "die":
                self.op.abandon()
                self.op = self._open()
                self.emitted.append(["after a crash", self.op.get_result()])
                reached = self.op.next_offsets()
                reached = reached if not self.definition.by_input else reached["readings"]
                for message in self.sent:
                    assert message.position is not None
                    if message.position.offset >= reached.get(message.position[:2], 0):
                        self.op.add_message(message)

    def all(self) -> list[str]:
        """All that can be known of it. The text of floats has all of their bits."""
        self.act("results", None)
        op, logic = self.op, self.op.engine.logic
        kv = op.engine.shard.kv
        facts = [*self.emitted, op.dead_letters(), op.get_windows(), self._state(), vars(logic.progress(kv))]
        plain = [
            cf for cf in (*op.engine.spec.message_cfs, *logic.cfs()) if cf.endswith((".messages", ".ids"))
        ]
        facts += [(cf, filed(kv, cf)) for cf in plain]
        for commit in op.engine.job.commits():
            facts += [
                commit.steps,
                commit.marks,
                sorted(commit.counters.items()),
                commit.next_offsets,
                commit.meta,
            ]
            facts.append([sorted(shard.counters.items()) for shard in commit.shards])
        op.drain()
        facts += [op.get_result(), sorted(op.counters.items()), self._state()]
        return [repr(one).replace(op.job, "job") for one in facts]

    def _state(self) -> list[str]:
        """State rows, without the columns in which nothing is."""
        logic: Any = self.op.engine.logic
        kv = self.op.engine.shard.kv
        schema = logic.progress(kv).schema
        if schema is None:
            return []
        logic._bind(schema)
        if self.definition.tuple_window:
            rows = logic.store.read_all(kv)
        elif self.definition.session:
            rows = logic.kept(kv, START_OF_TIME_US, END_OF_TIME_US, None)
        else:
            stored = logic.store.read(kv, logic.store.starts(kv, START_OF_TIME_US, END_OF_TIME_US))
            rows = None if stored is None else logic._merge(stored, DeadLetters(0), notes=False)
        if rows is None:
            return []
        values = [{n: v for n, v in row.items() if v not in (None, [])} for row in rows.to_pylist()]
        return sorted(repr(sorted(row.items())) for row in values)


@contextmanager
def lives(definition: wr.Aggregate, start_us: int) -> Iterator[list[Life]]:
    with tempfile.TemporaryDirectory(prefix="runs-", ignore_cleanup_errors=True) as folder:
        both: list[Life] = []
        try:
            for name, together in (("runs", True), ("ones", False)):
                both.append(Life(definition, str(Path(folder) / name), start_us, together=together))
            yield both
        finally:
            for one in both:
                one.op.abandon()


def _drawn(scaled: cases.Scaled, row: dict[str, Any]) -> Any:
    row = {**row, "x": FLOATS.get(row["x"], row["x"])}
    return scaled.drawn(row)


@given(data=st.data())
@examples(24, deep=5_000)
def test_messages_that_run_together_emit_what_single_steps_emit_bit_for_bit(data: st.DataObject) -> None:
    scaled = data.draw(
        cases.cases(ids=data.draw(st.booleans()), full=data.draw(st.sampled_from([False] * 7 + [True])))
    )
    assume(scaled.definition.in_runs)
    _compare(data, scaled)


@st.composite
def sessions(draw: st.DrawFn) -> cases.Scaled:
    """Sessions that run together, of which few messages are enough to join, end and close some."""

    def pick(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    kept, lateness = pick((None, None), (25, None), (25, 4), (8, 0), (0, None))
    definition = wr.Aggregate(
        by=pick("k", "k", (), ("k", "g")),
        event_time="t",
        window=wr.session(timedelta(seconds=pick(1, 2, 3)), cut=pick(None, None, wr.tumbling("10 seconds"))),
        agg={
            **{
                name: cases.INCREMENTAL[name]
                for name in pick(("n", "sumx", "avg"), ("n", "sum"), ("sumx", "any"))
            },
            **pick({"list": wr.collect_list("v")}, {"hi": wr.max("v")}, {"middle": wr.median("v")}),
        },
        retention=wr.forever if kept is None else timedelta(seconds=kept),
        allowed_lateness=None if lateness is None else timedelta(seconds=lateness),
        watermark=pick("0 seconds", "3 seconds", wr.bounded("2 seconds", idle="20 seconds")),
        emit=wr.Emit(
            early=pick(wr.never, wr.every("5 seconds")),
            late=pick(wr.never, wr.every_batch, wr.every(2), wr.every("3 seconds")),
            mode=pick("accumulating", "retracting", "discarding"),
            only_if_changed=draw(st.booleans()),
            drop_late=False,
        ),
        null_keys=pick("group", "dead_letter"),
        max_ahead=pick(wr.forever, "40 seconds"),
        ids=pick(None, None, wr.ids("u")),
    )
    return cases.Scaled(definition, pick(0, 10**9 * S), S, draw(st.booleans()))


@given(data=st.data())
@examples(14, deep=5_000)
def test_sessions_of_messages_that_run_together_are_those_of_single_steps(data: st.DataObject) -> None:
    scaled = data.draw(sessions())
    assert scaled.definition.in_runs
    _compare(data, scaled)


def _compare(data: st.DataObject, scaled: cases.Scaled) -> None:
    drawn = data.draw(st.sampled_from([1, 2, 3, 128]))
    rows = cases.messages(close=data.draw(st.booleans())).map(lambda row: _drawn(scaled, row))
    action = st.one_of(
        st.tuples(st.just("add"), st.lists(rows, min_size=1, max_size=14)),
        st.tuples(st.just("add"), st.lists(rows, min_size=5, max_size=14)),
        st.tuples(st.just("many"), st.lists(rows, min_size=1, max_size=5)),
        st.tuples(st.sampled_from(["again", "clock"]), st.integers(1, 6)),
        st.tuples(st.sampled_from(["timeout", "results", "die"]), st.none()),
    )
    actions = data.draw(st.lists(action, min_size=2, max_size=8))
    at_once, entries.AT_ONCE = entries.AT_ONCE, drawn  # last: a draw may end the example
    try:
        with lives(scaled.definition, scaled.base_us) as (runs, ones):
            for kind, value in actions:
                for one in (runs, ones):
                    one.act(kind, value)
            batched, wanted = runs.all(), ones.all()
            event(
                f"{type(scaled.definition.emit.early).__name__} {'some' if 'Pane' in str(wanted) else 'no'} panes"
            )
            differ = [pair for pair in zip(batched, wanted, strict=True) if pair[0] != pair[1]]
            assert not differ, differ
    finally:
        entries.AT_ONCE = at_once


def counts(**more: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("1 hour"),
        "agg": {"n": wr.count(), "s": wr.sum("v")},
        "retention": "1 day",
        "max_ahead": wr.forever,
    }
    return wr.Aggregate(**(settings | more))


SINGLY = {
    "every message": {"emit": wr.Emit(early=wr.every_batch)},
    "by count": {"emit": wr.Emit(early=wr.every(3))},
    "update mode": {"emit": wr.Emit.update()},
    "either": {"emit": wr.Emit(early=wr.any_of(wr.every(3), wr.every(4), wr.delay("1 hour")))},
    "both": {"emit": wr.Emit(early=wr.all_of(wr.every(2), wr.any_of(wr.every(3), wr.every("1 hour"))))},
    "by value": {"emit": wr.Emit(early=wr.when(wr.col("n") > 10))},
    "by value and count": {"emit": wr.Emit(early=wr.all_of(wr.when(wr.col("n") > 10), wr.every(4)))},
    "delay": {"emit": wr.Emit(early=wr.delay("1 hour"))},
    "sign of life": {"emit": wr.Emit(early=wr.every("1 hour", always=True))},
    "tuples": {"window": wr.tuples(3), "retention": wr.Retain(windows=2)},
    "ids": {"ids": wr.ids("v")},
}


@pytest.mark.parametrize("name", SINGLY)
def test_a_run_is_one_ingest_whatever_it_emits_inside(name: str, tmp_path: Path) -> None:
    with counts(**SINGLY[name]).open(str(tmp_path), clock=ManualClock(0)) as op:
        attempts = []
        attempt = op.engine.attempt
        op.engine.attempt = lambda *a: attempts.append(a) or attempt(*a)
        for i in range(60):
            op.add_message({"t": i * S, "k": "ab"[i % 2], "v": i // 2})
        panes = op.get_result()
        assert len(attempts) == 2  # the first message tells the columns
        expected = {
            "every message": 60,
            "by count": 20,
            "update mode": 60,
            "either": 20,
            "both": 20,
            "by value": 40,
            "by value and count": 10,
            "delay": 0,
            "sign of life": 0,
            "tuples": 20,
            "ids": 0,
        }
        assert len(panes) == expected[name]


def test_what_waits_under_a_delay_that_is_new_is_emitted_by_the_first_message_of_a_run(
    tmp_path: Path,
) -> None:
    emitted = []
    for together in (True, False):
        for keys, early in (("aaaa", wr.every(100)), ("baaa", wr.delay("5 seconds"))):
            with counts(emit=wr.Emit(early=early)).open(
                str(tmp_path / str(together)), clock=ManualClock(9)
            ) as op:
                op._in_runs = together
                for i, key in enumerate(keys):
                    op.add_message({"t": i * S, "k": key, "v": i})
                emitted.append([(p.key["k"], p["n"]) for p in op.get_result()])
                op.flush()
                emitted.append([t for t, *_ in op.engine.logic.due.timers.due(op.engine.shard.kv, 2**62)])
    assert emitted[:4] == emitted[4:] == [[], [], [("a", 4)], [9 + 5 * S]]


def test_a_run_ends_where_something_that_waits_is_due(tmp_path: Path) -> None:
    clock = ManualClock(0)
    with counts(emit=wr.Emit(early=wr.delay("5 seconds"))).open(str(tmp_path), clock=clock) as op:
        for i in range(20):
            op.add_message({"t": i * S, "k": "a", "v": i})
            clock.advance(timedelta(seconds=1))
        assert [p["n"] for p in op.get_result()] == [6, 12, 18]


def test_what_is_overdue_is_emitted_as_soon_as_enough_has_come_though_the_clock_stops(tmp_path: Path) -> None:
    emit = wr.Emit(early=wr.all_of(wr.delay("5 seconds"), wr.every(3)))
    for together in (True, False):
        clock = ManualClock(0)
        with counts(emit=emit).open(str(tmp_path / str(together)), clock=clock) as op:
            op._in_runs = together
            op.add_message({"t": 0, "k": "a", "v": 1})
            clock.advance(timedelta(seconds=6))
            op.timeout()
            for i in range(3):
                op.add_message({"t": i * S, "k": "a", "v": i})
            assert [p["n"] for p in op.get_result()] == [3]


def test_sessions_end_inside_a_run(tmp_path: Path) -> None:
    definition = counts(window=wr.session("5 seconds"), watermark="2 seconds", emit=wr.Emit.append())
    emitted = []
    for together in (True, False):
        with definition.open(str(tmp_path / str(together)), clock=ManualClock(0), store=STORE) as op:
            op._in_runs = together
            attempts = []
            attempt = op.engine.attempt
            op.engine.attempt = lambda *a: attempts.append(a) or attempt(*a)  # noqa: B023
            for i in range(120):
                op.add_message({"t": (2 * i - i % 3) * S, "k": f"k{i * i % 7 + i // 20 % 3}", "v": 0.1 * i})
            emitted.append([(p.window, p.key, p.values, p.is_last) for p in op.get_result()])
            assert not together or len(attempts) < 8
    assert emitted[0] == emitted[1]
    assert len(emitted[0]) > 30


def test_a_run_knows_which_of_its_messages_joined_two_of_its_sessions() -> None:
    definition = counts(window=wr.session("3 seconds"), watermark="10 seconds")
    with lives(definition, 0) as (runs, ones):
        for one in (runs, ones):
            messages = [(0, 3), (0, 6), (1, 11), (0, 8), (1, 20), (1, 7)]
            one.act("add", [cases.Drawn({"t": t * S, "k": "a", "v": t}, None, p) for p, t in messages])
        batched, wanted = runs.all(), ones.all()
        assert "__joined_by" in repr(wanted)
        assert batched == wanted


def test_a_column_that_widens_inside_a_run_widens_after_the_messages_before_it(tmp_path: Path) -> None:
    """Whole numbers are summed as such, also once one comes that is none: beyond 2**53 it is a dead letter."""
    with counts(emit=wr.Emit(early=wr.every_batch)).open(str(tmp_path), clock=ManualClock(0)) as op:
        for i, value in enumerate([2**53 + 1, 2**53 + 1, 2**53 + 1, 0.5, None, 3]):
            op.add_message({"t": i * S, "k": "a", "v": value})
        assert [p["s"] for p in op.get_result()][2] == 3 * (2**53 + 1)


def test_each_message_of_a_run_has_the_room_for_letters_of_a_step_of_its_own(tmp_path: Path) -> None:
    with counts(dead_letter_limit=1).open(str(tmp_path), clock=ManualClock(0)) as op:
        for i in range(4):
            op.add_message(wr.Message({"t": "no time", "k": "a", "v": i}, wr.Position("s", 3 - i, 0)))
        letters = op.dead_letters()
        assert [letter.position.partition for letter in letters if letter.position] == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("emit", "panes"), [(wr.Emit(early=wr.every(7)), 14), (wr.Emit(), 1)], ids=["count", "none"]
)
def test_a_key_of_a_long_run_keeps_the_bits_of_its_sum(
    emit: wr.Emit, panes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accumulators go on from one block of entries to the next, and neighbours are not merged first."""
    monkeypatch.setattr(entries, "AT_ONCE", 32)
    emitted = []
    for together in (True, False):
        with counts(emit=emit).open(str(tmp_path / str(together)), clock=ManualClock(0), store=STORE) as op:
            op._in_runs = together
            for i in range(3 * entries.AT_ONCE):
                op.add_message({"t": i, "k": "a", "v": 10.0 ** (i % 9) / 7})
                if i % 75 == 45:
                    assert op.counters["rows"] == i + 1  # a run ends here
            op.drain()
            emitted.append([(p["n"], p["s"]) for p in op.get_result()])
    assert emitted[0] == emitted[1]
    assert len(emitted[0]) == panes
