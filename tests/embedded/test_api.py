"""The embedded runner as a user meets it: feeding, results, queries, refusals."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

import windrow as wr
from windrow.core import errors as e
from windrow.runners.embedded import results
from windrow.runners.embedded.operator import Embedded
from windrow.testing.clock import ManualClock

SECOND = 1_000_000


def define(**changed: Any) -> wr.Aggregate:
    options: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count(), "total": wr.sum("x")},
        "retention": "1 minute",
    }
    return wr.Aggregate(**(options | changed))


def message(second: float, k: str | None = "a", x: Any = 1, offset: int | None = None) -> wr.Message:
    position = None if offset is None else wr.Position("topic", 0, offset)
    return wr.Message({"k": k, "t": int(second * SECOND), "x": x}, position)


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "job")


def brief(panes: list[wr.Pane]) -> list[tuple[Any, ...]]:
    return [(p.window.start_us // SECOND, p["k"], str(p.timing), p.index, p["n"]) for p in panes]  # type: ignore[union-attr]


# -- results --------------------------------------------------------------------------------------------------------


def test_results_are_panes_with_their_token(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        for m in (message(1), message(2), message(3, "b"), message(11)):
            op.add_message(m)
        panes = op.get_result()
        assert brief(panes) == [(0, "a", "ON_TIME", 0, 2), (0, "b", "ON_TIME", 0, 1)]
        assert {p.token for p in panes} == {wr.Token(op.job, op.last_commit)}
        assert str(panes[0]) == "[1970-01-01 00:00, 00:00:10)Z  a  ON_TIME #0  n=2 total=2"


def test_results_stay_until_they_are_flushed_over_a_restart_too(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(message(1))
        op.add_message(message(11))
        first = op.get_result()
        assert first == op.get_result() != []
    with define().open(location, clock=ManualClock()) as op:
        assert op.get_result() == first
        op.flush()
        assert op.get_result() == []
    with define().open(location, clock=ManualClock()) as op:
        assert op.get_result() == []


@pytest.mark.parametrize(("commits", "rows"), [(2, 100), (100, 2)])
def test_results_that_wait_for_ever_to_be_flushed_are_warned_of_once(
    location: str, commits: int, rows: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def warned() -> list[str]:
        return [text for text in caplog.messages if "Call flush()" in text]

    def live(op: Embedded, seconds: range) -> None:
        for n in seconds:
            op.add_message(message(10 * n))
            op.get_result()

    monkeypatch.setattr(results, "MOST_COMMITS", commits)
    monkeypatch.setattr(results, "MOST_ROWS", rows)
    with define().open(location, clock=ManualClock()) as op:
        live(op, range(3))
        op.flush()
        live(op, range(3, 5))
        assert len(op.get_result()) == 2 and not warned()
        live(op, range(5, 8))
        [text] = warned()
        assert "commits=3 rows=3" in text
    with define().open(location, clock=ManualClock()) as op:
        assert len(op.get_result()) == 5 and len(warned()) == 2  # who opens it again meets them at once
        op.flush()
        live(op, range(8, 12))
        assert len(warned()) == 2


def test_a_block_that_raises_commits_nothing_of_what_was_staged(location: str) -> None:
    with pytest.raises(RuntimeError), define().open(location, clock=ManualClock()) as op:
        op.add_message(message(1, offset=0))
        raise RuntimeError
    with define().open(location, clock=ManualClock()) as op:
        assert op.get_windows() == [] and op.next_offsets() == {}


def test_a_table_is_one_step(location: str) -> None:
    table = pa.table({"k": ["a", "b", "a"], "t": [1 * SECOND, 2 * SECOND, 25 * SECOND], "x": [1, 2, 3]})
    with define().open(location, clock=ManualClock()) as op:
        op.add_messages(table)
        assert brief(op.get_result()) == [(0, "a", "ON_TIME", 0, 1), (0, "b", "ON_TIME", 0, 1)]


def test_drain_fires_everything_and_what_comes_later_is_late(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(message(1))
        op.drain()
        assert brief(op.get_result()) == [(0, "a", "ON_TIME", 0, 1)]
        op.add_message(message(2))
        assert [letter.reason for letter in op.dead_letters()] == ["out_of_retention"]


def test_an_explicit_watermark_moves_when_it_is_advanced(location: str) -> None:
    with define(watermark=wr.explicit()).open(location, clock=ManualClock()) as op:
        op.add_message(message(1))
        op.add_message(message(100))
        assert op.get_result() == []
        op.advance_watermark(datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC))
        assert brief(op.get_result()) == [(0, "a", "ON_TIME", 0, 1)]


def test_periods_tick_by_the_clock_that_is_given(location: str) -> None:
    clock = ManualClock()
    with define(emit=wr.Emit(early=wr.every("10 seconds"))).open(location, clock=clock) as op:
        op.add_message(message(1))
        assert op.get_result() == []
        clock.advance("10 seconds")
        op.timeout()
        assert brief(op.get_result()) == [(0, "a", "EARLY", 0, 1)]


# -- positions ------------------------------------------------------------------------------------------------------


def test_a_replayed_message_does_nothing_and_is_counted(location: str) -> None:
    for _ in range(2):
        with define().open(location, clock=ManualClock()) as op:
            for i in range(5):
                op.add_message(message(i, offset=i))
            [window] = op.get_windows()
            assert window.messages == 5
            assert op.next_offsets() == {("topic", 0): 5}
    with define().open(location, clock=ManualClock()) as op:
        assert op.counters["replayed"] == 5


def test_rows_of_one_record_are_distinguished_by_ordinals(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        for ordinal in (0, 1, 1, 2):
            op.add_message(wr.Message({"k": "a", "t": 1, "x": 1}, wr.Position("topic", 0, 7, ordinal)))
        [window] = op.get_windows()
        assert window.messages == 3
        assert (window.first, window.last) == (wr.Position("topic", 0, 7, 0), wr.Position("topic", 0, 7, 2))


def test_columns_may_be_named_as_positions(location: str) -> None:
    table = pa.table({"k": ["a", "a"], "t": [1, 2], "x": [1, 1], "o": [3, 4], "p": [1, 1]})
    definition = define(positions=wr.positions("o", partition="p"))
    with definition.open(location, clock=ManualClock()) as op:
        op.add_messages(table)
        op.add_messages(table)
        assert op.next_offsets() == {("", 1): 5}
        assert [w.messages for w in op.get_windows()] == [2]


def test_with_ids_redelivery_is_recognised_though_messages_have_no_positions(location: str) -> None:
    definition = define(ids=wr.ids("x"))
    for _ in range(2):
        with definition.open(location, clock=ManualClock()) as op:
            for i in range(5):
                op.add_message(message(i, x=i))
            op.add_messages([message(1, x=4), message(1, x=3)])
            [window] = op.get_windows()
            assert (window.messages, window.values["total"]) == (5, 10)
    with definition.open(location, clock=ManualClock()) as op:
        assert (op.counters["rows"], op.counters["duplicates"]) == (14, 9)
        assert op.dead_letters() == []


def test_a_duplicate_that_is_added_alone_does_not_move_the_watermark(location: str) -> None:
    with define(ids=wr.ids("x"), emit=wr.Emit()).open(location, clock=ManualClock()) as op:
        for second, x in ((1, 1), (50, 1), (2, 2)):
            op.add_message(message(second, x=x))
        assert op.watermark == 2 * SECOND
        assert [(w.window.start_us, w.messages) for w in op.get_windows()] == [(0, 2)]  # type: ignore[union-attr]


def test_with_positions_and_ids_both_are_asked(location: str) -> None:
    with define(ids=wr.ids("x")).open(location, clock=ManualClock()) as op:
        for offset, x in ((0, 7), (0, 7), (1, 7), (2, 8)):
            op.add_message(message(1, x=x, offset=offset))
        assert [w.messages for w in op.get_windows()] == [2]
        assert (op.counters["replayed"], op.counters["duplicates"]) == (1, 1)


def test_ids_that_are_added_or_taken_away_are_another_state(location: str) -> None:
    with define(ids=wr.ids("x")).open(location, clock=ManualClock()) as op:
        op.add_message(message(1))
    for other in (None, wr.ids("x", "k")):
        with pytest.raises(e.DefinitionChanged, match=r"ids=wr\.ids\('x'\)"):
            define(ids=other).open(location, clock=ManualClock())


def test_after_the_end_of_time_no_id_is_left(location: str) -> None:
    from windrow.testing.driver import TestDriver

    with TestDriver(define(ids=wr.ids("x")), location, clock=ManualClock()) as driver:
        driver.feed([message(s, x=s) for s in range(0, 90, 7)])
        driver.drain()
        driver.assert_state_zero()


def test_a_consumer_is_assigned_where_the_job_continues(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(message(1, offset=41))
        assigned = [TopicPartition("topic", 0), TopicPartition("topic", 1)]
        offsets = {p.partition: p.offset for p in op.next_offsets(assigned)}
        assert offsets[0] == 42 and set(offsets) == {0, 1}


# -- queries --------------------------------------------------------------------------------------------------------


def test_windows_that_overlap_the_closed_range_are_given_in_order(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        for second in (31, 1, 11, 21):
            op.add_message(message(second))
        op.add_message(message(12, "b"))

        def starts(*bounds: int) -> list[tuple[int, Any]]:
            windows = op.get_windows(*(b * SECOND for b in bounds))
            return [(w.window.start_us // SECOND, w.key["k"]) for w in windows]  # type: ignore[union-attr]

        assert starts() == [(0, "a"), (10, "a"), (10, "b"), (20, "a"), (30, "a")]
        assert starts(10, 20) == [(10, "a"), (10, "b"), (20, "a")]
        assert starts(9, 10) == [(0, "a"), (10, "a"), (10, "b")]
        for asked in (op.get_windows, op.get_messages):
            with pytest.raises(e.BadInstant, match="start=15000000 is after end=12000000: swap them"):
                asked(15 * SECOND, 12 * SECOND)
        for wrong in (None, 12 * SECOND), (12 * SECOND, None):
            with pytest.raises(
                e.BadInstant, match=r"covering=True with .*: no window holds a range without bounds"
            ):
                op.get_windows(*wrong, covering=True)
        with pytest.raises(e.BadInstant, match="covering"):
            op.get_windows(1, 2, covering=1)  # type: ignore[arg-type]

        def covering(*bounds: int) -> list[tuple[int, Any]]:
            windows = op.get_windows(*(b * SECOND for b in bounds), covering=True)
            return [(w.window.start_us // SECOND, w.key["k"]) for w in windows]  # type: ignore[union-attr]

        assert covering(12, 15) == covering(10, 19) == [(10, "a"), (10, "b")]
        assert covering(12, 20) == covering(9, 12) == []
        assert [w.key for w in op.get_windows(key="b")] == [{"k": "b"}]
        assert op.get_windows(key={"k": "c"}) == []


def test_messages_between_two_bounds_both_included(location: str) -> None:
    definition = define(agg={"m": wr.median("x")})
    with definition.open(location, clock=ManualClock()) as op:
        for i in range(6):
            op.add_message(message(i, "ab"[i % 2], i, offset=i))
        kept = op.get_messages((1 * SECOND, 1), (4 * SECOND, 4))
        assert sorted(m.payload["x"] for m in kept) == [1, 2, 3, 4]
        assert [m.payload["x"] for m in op.get_messages(key="b")] == [1, 3, 5]
        assert kept[0].position.source == "topic"


def test_messages_of_an_operator_that_keeps_none_are_refused(location: str) -> None:
    with (
        define().open(location, clock=ManualClock()) as op,
        pytest.raises(e.ConfigurationError, match=r"incremental.*wr\.median"),
    ):
        op.get_messages()


@pytest.mark.parametrize(
    ("key", "error"), [({"z": 1}, "'z' is none of"), (("a", "b"), "has 2 values"), ((), "has 0 values")]
)
def test_a_key_that_the_operator_does_not_have_is_refused(location: str, key: Any, error: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(message(1))
        with pytest.raises(e.ConfigurationError, match=error):
            op.get_windows(key=key)


# -- dead letters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (wr.Message({"k": "a", "t": None, "x": 1}), "malformed"),
        (wr.Message({"k": "a", "t": float("nan"), "x": 1}), "malformed"),
        (wr.Message({"k": "a", "t": "soon", "x": 1}), "malformed"),
        (wr.Message({"k": "a", "t": datetime(2013, 7, 1), "x": 1}), "malformed"),
        (wr.Message({"k": "a", "t": 2**62, "x": 1}), "malformed"),
        (wr.Message({"k": "a", "t": 50 * SECOND, "x": "text"}), "malformed"),
        (wr.Message({"k": None, "t": 50 * SECOND, "x": 1}), "null_key"),
        (wr.Message({"k": "a", "t": 1 * SECOND, "x": 1}), "too_late"),
        (wr.Message({"k": "a", "t": -(10**9), "x": 1}), "out_of_retention"),
    ],
    ids=str,
)
def test_what_cannot_be_counted_is_a_dead_letter_with_a_reason(
    location: str, bad: wr.Message, reason: str
) -> None:
    definition = define(null_keys="dead_letter", allowed_lateness="5 seconds")
    with definition.open(location, clock=ManualClock()) as op:
        op.add_message(message(51))
        watermark = op.watermark
        op.add_message(bad)
        [letter] = op.dead_letters()
        assert letter.reason == reason and letter.detail
        assert op.counters[f"dead.{reason}"] == 1
        assert op.watermark == watermark
        assert [w.messages for w in op.get_windows()] == [1]


def test_letters_beyond_the_limit_are_counted_and_not_kept(location: str) -> None:
    with define(dead_letter_limit=2).open(location, clock=ManualClock()) as op:
        op.add_messages([wr.Message({"k": "a", "t": None, "x": 1})] * 5)
        assert len(op.dead_letters()) == 2
        assert op.counters["dead.malformed"] == 5


# -- sinks ----------------------------------------------------------------------------------------------------------


class Moody:
    """A sink that refuses while it is told to."""

    def __init__(self) -> None:
        self.refuses = False
        self.got: list[tuple[int, int]] = []

    def publish(self, token: wr.Token, panes: Any) -> None:
        if self.refuses:
            raise ConnectionError("full")
        self.got.append((token.commit, panes.rows))

    def last_commit(self, job: str, operator: str) -> int | None:
        return None


def test_a_sink_that_refuses_pauses_the_operator_until_it_takes_what_is_pending(location: str) -> None:
    sink = Moody()
    with define().open(location, clock=ManualClock(), sink=sink) as op:
        op.add_message(message(1))
        op.add_message(message(11))
        sink.refuses = True
        op.timeout()
        with pytest.raises(e.OperatorPaused, match=r"timeout\(\)"):
            op.add_message(message(12))
        with pytest.raises(e.OperatorPaused):
            op.timeout()
        sink.refuses = False
        op.timeout()
        assert sink.got == [(1, 1)]
        op.add_message(message(12))


def test_panes_that_were_refused_go_out_at_the_next_open(location: str) -> None:
    sink = Moody()
    with pytest.raises(e.SinkFailed), define().open(location, clock=ManualClock(), sink=sink) as op:
        op.add_message(message(1))
        op.add_message(message(11))
        sink.refuses = True
    sink.refuses = False
    with define().open(location, clock=ManualClock(), sink=sink):
        assert sink.got == [(1, 1)]


def test_a_function_is_a_sink(location: str) -> None:
    got: list[tuple[list[wr.Pane], wr.Token]] = []
    with define().open(location, clock=ManualClock(), sink=lambda p, t: got.append((p, t))) as op:
        op.add_message(message(1))
        op.add_message(message(11))
    [(panes, token)] = got
    assert brief(panes) == [(0, "a", "ON_TIME", 0, 1)]
    assert token.commit == 1 and str(token) == f"{token.job}/1"


def test_a_parquet_sink_is_given_a_token_twice_and_has_it_once(tmp_path: Path, location: str) -> None:
    sink = wr.sinks.parquet(str(tmp_path / "out"))
    taken: list[Callable[[], None]] = []

    class Twice:
        def publish(self, token: wr.Token, panes: Any) -> None:
            taken.append(lambda: sink.publish(token, panes))
            taken[-1]()
            taken[-1]()

        def last_commit(self, job: str, operator: str) -> int | None:
            return sink.last_commit(job, operator)

    with define().open(location, clock=ManualClock(), sink=Twice()) as op:
        for second in (1, 11, 21):
            op.add_message(message(second))
            op.timeout()
    assert len(taken) == 2
    assert wr.read_panes(sink.path).column("n").to_pylist() == [1, 1]


def test_the_console_sink_prints_a_line_a_pane(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    with define().open(location, clock=ManualClock(), sink=wr.sinks.console(limit=1)) as op:
        for m in (message(1), message(1, "b"), message(11)):
            op.add_message(m)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("--", "   "))]
    assert lines == [
        "-- commit 1 of aggregate: 2 panes",
        "   [1970-01-01 00:00, 00:00:10)Z  a  ON_TIME #0  n=1 total=1",
        "   ... 1 more",
    ]


# -- definitions and state ------------------------------------------------------------------------------------------


def test_state_of_another_definition_is_refused_naming_both(location: str) -> None:
    define().open(location, clock=ManualClock()).close()
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(message(1))
    other = define(window=wr.tumbling("20 seconds"))
    with pytest.raises(e.DefinitionChanged) as error:
        other.open(location, clock=ManualClock())
    assert repr(define()) in str(error.value) and repr(other) in str(error.value)
    assert "windrow reset" in str(error.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"retention": "1 day"},
        {"emit": wr.Emit(early=wr.every_batch)},
        {"watermark": "1 minute"},
        {"allowed_lateness": "1 second"},
        {"dead_letter_limit": 1},
    ],
    ids=str,
)
def test_what_does_not_shape_state_may_change(location: str, changed: dict[str, Any]) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(message(1))
    with define(**changed).open(location, clock=ManualClock()) as op:
        assert [w.messages for w in op.get_windows()] == [1]


def test_a_new_column_is_no_change_and_an_int_may_become_a_float(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(message(1, x=1))
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(wr.Message({"k": "a", "t": 2 * SECOND, "x": 0.5, "new": "text"}))
        [window] = op.get_windows()
        assert window.values == {"n": 2, "total": 1.5}


def test_a_closed_operator_says_so(location: str) -> None:
    op = define().open(location, clock=ManualClock())
    op.close()
    op.close()
    for call in (op.timeout, op.get_result, op.flush, op.get_windows, lambda: op.add_message(message(1))):
        with pytest.raises(e.OperatorClosed, match="open it again"):
            call()
