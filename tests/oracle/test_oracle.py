"""The oracle of windowed aggregates, step by step. What transcripts say better is in tests/transcripts."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from windrow.core.aggregations import aggregate_function
from windrow.core.messages import Kind, Message, Pane, Position, Timing, TupleWindow, Window
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.oracle import AggregateOracle
from windrow.testing.transcript_parser import parse

S = 1_000_000
START = START_OF_TIME_US


def define(text: str, **names: Any) -> AggregateDefinition:
    defaults = 'event_time="t", agg={"n": wr.count()}, watermark=wr.explicit(), '
    if "agg=" in text:
        defaults = defaults.replace('agg={"n": wr.count()}, ', "")
    body = {"name": "x", "operator": f"wr.Aggregate({defaults}{text})", "steps": []}
    return parse(body, names).definition


def oracle(text: str, **names: Any) -> AggregateOracle:
    return AggregateOracle(define(text, **names))


def messages(*times: float, **fields: Any) -> list[Message]:
    return [Message({"t": int(t * S), **fields}) for t in times]


def shown(panes: Iterable[Pane]) -> list[tuple[Any, ...]]:
    return [(p.window, *p.key.values(), p.timing.value, p.index, *p.values.values()) for p in panes]


TUMBLING = 'window=wr.tumbling("10 seconds"), retention="1 hour"'


def test_nothing_in_nothing_out() -> None:
    made = oracle(TUMBLING)
    assert made.advance(0, 0) == ([], [])
    assert made.ingest([], 0, 0) == ([], [])
    assert made.windows() == []


def test_messages_are_taken_in_position_order_whatever_order_they_come_in() -> None:
    made = oracle(
        'window=wr.tuples(9), retention=wr.forever, agg={"v": wr.collect_list("v"), "a": wr.any_value("v")}'
    )
    places = [("s", 1, 0, 0), ("s", 0, 2, 1), ("r", 5, 9, 0), ("s", 0, 2, 0), ("s", 0, 1, 7)]
    made.ingest([Message({"t": 0, "v": str(p)}, Position(*p)) for p in places], 0, START)
    assert made.windows()[0].values == {"v": [str(p) for p in sorted(places)], "a": str(("r", 5, 9, 0))}


def test_messages_without_position_are_numbered_on_arrival() -> None:
    made = oracle(TUMBLING)
    made.ingest(messages(1, 2), 0, START)
    made.ingest(messages(0), 0, START)
    (info,) = made.windows()
    assert (info.first, info.last) == (Position("", 0, 0), Position("", 0, 2))


def test_the_first_step_ever_does_not_tick_and_an_ingest_does_not_swallow_a_tick() -> None:
    made = oracle(f'{TUMBLING}, emit=wr.Emit(early=wr.every("10 seconds"))')
    assert made.ingest(messages(1), 25 * S, START).rows == []
    assert made.advance(0, 29 * S).rows == []
    assert made.ingest(messages(2), 31 * S, 0).rows == []
    assert shown(made.advance(0, 31 * S).rows) == [(Window(0, 10 * S), "EARLY", 0, 2)]
    fresh = oracle(f'{TUMBLING}, emit=wr.Emit(early=wr.every("10 seconds"))')
    fresh.ingest(messages(1), 9 * S, START)
    assert len(fresh.advance(0, 11 * S).rows) == 1


def test_neither_now_nor_the_watermark_moves_back() -> None:
    made = oracle(f'{TUMBLING}, emit=wr.Emit(late=wr.every("10 seconds"), early=wr.every("10 seconds"))')
    made.advance(10 * S, 25 * S)
    made.ingest(messages(1), 5 * S, 10 * S)
    assert made.advance(0, 29 * S).rows == []
    assert shown(made.advance(0, 30 * S).rows) == [(Window(0, 10 * S), "LATE", 0, 1)]
    assert made.watermark_us == 10 * S


def test_panes_of_one_advance_come_on_time_then_ticks_then_closing_each_by_window_and_key() -> None:
    made = oracle(
        'by="k", window=wr.tumbling("10 seconds"), retention="30 seconds", allowed_lateness="10 seconds", '
        'emit=wr.Emit(early=wr.every("10 seconds"), late=wr.every("10 seconds"), closing_pane=True)'
    )
    zero, ten, twenty = (Window(start, start + 10 * S) for start in (0, 10 * S, 20 * S))
    made.ingest([*messages(1, k="b"), *messages(1, k="a"), *messages(1, k=None)], 0, START)
    assert shown(made.advance(10 * S, 0).rows) == [
        (zero, None, "ON_TIME", 0, 1),
        (zero, "a", "ON_TIME", 0, 1),
        (zero, "b", "ON_TIME", 0, 1),
    ]
    made.ingest([*messages(2, 11, k="b"), *messages(21, 11, k="a")], 0, 10 * S)
    panes = made.advance(20 * S, 10 * S).rows
    assert shown(panes) == [
        (ten, "a", "ON_TIME", 0, 1),
        (ten, "b", "ON_TIME", 0, 1),
        (zero, "b", "LATE", 1, 2),
        (twenty, "a", "EARLY", 0, 1),
        (zero, None, "LATE", 1, 1),
        (zero, "a", "LATE", 1, 1),
    ]
    assert [p.is_last for p in panes] == [False, False, True, False, True, True]


def test_a_key_of_nan_is_one_group_and_so_is_zero() -> None:
    made = oracle(f'by="k", {TUMBLING}')
    for k in (float("nan"), 0.0, None, -0.0, float("nan"), -1.5):
        made.ingest(messages(1, k=k), 0, START)
    assert [(str(info.key["k"]), info.messages) for info in made.windows()] == [
        ("None", 1),
        ("-1.5", 1),
        ("0.0", 2),
        ("nan", 2),
    ]


def test_event_times_are_aware_datetimes_or_microseconds() -> None:
    made = oracle(TUMBLING)
    values = [5, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(1970, 1, 1), 5.0, "5", True, None]
    dead = made.ingest([Message({"t": value}) for value in values], 0, START).dead
    assert [(d.reason, d.position and d.position.offset) for d in dead] == [
        ("malformed", i) for i in range(2, 7)
    ]
    assert made.windows()[0].messages == 2


def test_naive_event_times_take_the_declared_zone() -> None:
    made = oracle(f'{TUMBLING}, time_zone="Europe/Berlin"')
    made.ingest([Message({"t": datetime(1970, 1, 1, 1, 0, 5)})], 0, START)
    assert made.windows()[0].window == Window(0, 10 * S)


@pytest.mark.parametrize(
    ("time_us", "malformed"),
    [
        (-62_135_596_800_000_000, False),
        (-62_135_596_800_000_001, True),
        (253_402_300_799_999_999, False),
        (253_402_300_800_000_000, True),
    ],
)
def test_event_times_lie_in_the_years_1_to_9999(time_us: int, malformed: bool) -> None:
    dead = oracle("window=wr.global_window(), retention=wr.forever").ingest(
        [Message({"t": time_us})], 0, START
    )
    assert bool(dead.dead) is malformed


def test_only_what_was_counted_moves_the_watermark() -> None:
    made = oracle(
        'by="k", window=wr.hopping("2 seconds", "10 seconds", gaps=True), retention="1 hour", '
        'allowed_lateness="0 seconds", null_keys="dead_letter"'
    )
    made.advance(50 * S, 0)
    times = [(60, "a"), (55, "a"), (1, "a"), (None, "a"), (70, None)]
    batch = [
        Message({"t": t if t is None else t * S, "k": k}, Position("s", 3, i))
        for i, (t, k) in enumerate(times)
    ]
    step = made.ingest(batch, 0, 50 * S)
    assert [d.reason for d in step.dead] == ["too_late", "malformed", "null_key"]
    assert made.counted == [("s", 3, 60 * S), ("s", 3, 55 * S)]


def test_retention_without_bound_closes_a_window_at_the_end_of_time_only() -> None:
    made = oracle('window=wr.tumbling("10 seconds"), retention=wr.forever, emit=wr.Emit(late=wr.every_batch)')
    made.ingest(messages(1), 0, START)
    (pane,) = made.advance(END_OF_TIME_US - 1, 0).rows
    assert (pane.timing, pane.is_last) == (Timing.ON_TIME, False)
    assert [p.index for p in made.ingest(messages(2), 0, END_OF_TIME_US - 1).rows] == [1]
    made.advance(END_OF_TIME_US, 0)
    assert [d.reason for d in made.ingest(messages(3), 0, END_OF_TIME_US).dead] == ["too_late"]


class Touchy:
    """A sum that does not like 13."""

    def initial(self) -> int:
        return 0

    def add(self, state: int, value: int) -> int:
        if value == 13:
            raise ValueError("bad luck")
        return state + value

    def merge(self, a: int, b: int) -> int:
        return a + b

    def finish(self, state: int) -> int:
        return state


def test_an_aggregate_that_raises_leaves_the_state_of_its_key_and_window_as_it_was() -> None:
    touchy = aggregate_function(name="touchy", returns=pa.int64())(Touchy)
    made = oracle(
        'by="k", window=wr.hopping("10 seconds", "5 seconds"), retention="1 hour", '
        'agg={"sum": touchy("v"), "n": wr.count()}, emit=wr.Emit(early=wr.every_batch)',
        touchy=touchy,
    )
    made.ingest(messages(1, k="a", v=1), 0, START)
    batch = [*messages(2, k="a", v=2), *messages(7, k="a", v=13), *messages(7, k="b", v=5)]
    step = made.ingest(batch, 0, START)
    assert [(d.reason, d.position and d.position.offset) for d in step.dead] == [
        ("aggregate_failed", 1),
        ("aggregate_failed", 2),
        ("aggregate_failed", 2),
    ]
    assert "bad luck" in step.dead[0].detail
    assert shown(step.rows) == [
        (Window(-5 * S, 5 * S), "a", "EARLY", 1, 3, 2),
        (Window(0, 10 * S), "b", "EARLY", 0, 5, 1),
        (Window(5 * S, 15 * S), "b", "EARLY", 0, 5, 1),
    ]
    held = {
        (i.window.start_us // S, i.key["k"]): i.messages
        for i in made.windows()
        if isinstance(i.window, Window)
    }
    assert held == {(-5, "a"): 2, (0, "a"): 1, (0, "b"): 1, (5, "b"): 1}


def test_a_pane_that_cannot_be_is_a_dead_letter_that_names_key_and_window() -> None:
    made = oracle(f'by="k", {TUMBLING}, agg={{"sum": wr.sum("v")}}')
    made.ingest(messages(1, 2, k="a", v=2**62), 0, START)
    assert made.windows()[0].values == {"sum": None}
    step = made.advance(10 * S, 0)
    assert step.rows == []
    (letter,) = step.dead
    assert letter.reason == "integer_overflow"
    assert "[1970-01-01 00:00, 00:00:10)Z" in letter.detail and "'k': 'a'" in letter.detail


def test_decimals_on_request_do_not_overflow() -> None:
    made = oracle(f'{TUMBLING}, agg={{"sum": wr.sum("v")}}, integer_overflow="decimal"')
    made.ingest(messages(1, 2, v=2**62), 0, START)
    assert made.advance(10 * S, 0).rows[0].values == {"sum": 2**63}


def test_a_retraction_repeats_what_was_sent_and_carries_its_index() -> None:
    made = oracle(f'{TUMBLING}, emit=wr.Emit(mode="retracting", late=wr.every_batch)')
    made.ingest(messages(1), 0, START)
    made.advance(10 * S, 0)
    back, new = made.ingest(messages(2), 0, 10 * S).rows
    assert (back.kind, back.values, back.timing, back.index, back.is_last) == (
        Kind.RETRACT,
        {"n": 1},
        Timing.LATE,
        0,
        False,
    )
    assert (new.kind, new.values, new.timing, new.index) == (Kind.INSERT, {"n": 2}, Timing.LATE, 1)


def test_in_discarding_mode_windows_show_what_was_not_sent_yet() -> None:
    made = oracle(f'{TUMBLING}, emit=wr.Emit(mode="discarding", early=wr.every(2))')
    made.ingest(messages(1, 2), 0, START)
    made.ingest(messages(3), 0, START)
    (info,) = made.windows()
    assert (info.messages, info.values, info.panes) == (3, {"n": 1}, 1)


def test_a_tick_that_is_the_last_pane_leaves_nothing_to_close() -> None:
    made = oracle(
        'window=wr.tumbling("10 seconds"), retention="10 seconds", '
        'emit=wr.Emit(late=wr.every("10 seconds"), closing_pane=True)'
    )
    made.ingest(messages(1), 0, START)
    made.advance(10 * S, 0)
    made.ingest(messages(2), 0, 10 * S)
    (pane,) = made.advance(20 * S, 10 * S).rows
    assert (pane.timing, pane.index, pane.is_last, pane.values) == (Timing.LATE, 1, True, {"n": 2})


def test_windows_beyond_the_number_are_dropped_at_the_next_advance_with_their_last_words() -> None:
    made = oracle(
        'by="k", window=wr.tumbling("10 seconds"), retention=wr.Retain("1 hour", windows=1), '
        "emit=wr.Emit(early=wr.every(9), late=wr.every(9))"
    )
    made.ingest(messages(1, 11, 21, k="a"), 0, START)
    made.ingest(messages(1, k="b"), 0, START)
    assert len(made.windows()) == 4
    panes = made.advance(10 * S, 0).rows
    assert shown(panes) == [
        (Window(0, 10 * S), "b", "ON_TIME", 0, 1),
        (Window(0, 10 * S), "a", "LATE", 0, 1),
        (Window(10 * S, 20 * S), "a", "EARLY", 0, 1),
    ]
    assert [p.is_last for p in panes] == [False, True, True]
    step = made.ingest([*messages(12, 21, k="a"), *messages(2, k="b")], 0, 10 * S)
    assert [(d.reason, d.event_time_us) for d in step.dead] == [("out_of_retention", 12 * S)]


def test_dropped_windows_say_nothing_where_their_trigger_is_never() -> None:
    made = oracle('window=wr.tumbling("10 seconds"), retention=wr.Retain("1 hour", windows=1)')
    made.ingest(messages(1, 11), 0, START)
    assert made.advance(START, 0).rows == []
    assert [info.window for info in made.windows()] == [Window(10 * S, 20 * S)]


def test_limits_by_messages_drop_the_oldest_windows_until_the_sum_fits() -> None:
    made = oracle(
        'by="k", window=wr.tumbling("10 seconds"), retention=wr.Retain("1 hour", messages=3, per="job")'
    )
    made.ingest([*messages(1, 2, k="a"), *messages(3, 11, k="b"), *messages(21, k="a")], 0, START)
    made.advance(START, 0)
    assert [(i.window, i.key["k"]) for i in made.windows()] == [
        (Window(10 * S, 20 * S), "b"),
        (Window(20 * S, 30 * S), "a"),
    ]


def test_partial_tuple_windows_count_but_are_not_dropped() -> None:
    made = oracle("window=wr.tuples(3, step=1), retention=wr.Retain(windows=1)")
    made.ingest(messages(1, 1, 1, 1), 0, START)
    made.advance(START, 0)
    assert [i.window for i in made.windows()] == [TupleWindow(3, 5), TupleWindow(4, 6)]
    made.ingest(messages(1), 0, START)
    assert [(i.window, i.messages) for i in made.windows()] == [
        (TupleWindow(3, 5), 3),
        (TupleWindow(4, 6), 2),
        (TupleWindow(5, 7), 1),
    ]


def test_dead_letters_of_a_step_come_in_position_order() -> None:
    made = oracle('window=wr.tumbling("10 seconds"), retention="0 seconds"')
    made.advance(10 * S, 0)
    bad = [Message({"t": t}, Position("s", 0, i)) for i, t in enumerate([1, None, 2, None])]
    step = made.ingest(bad, 0, 10 * S)
    assert [(d.reason, d.position and d.position.offset) for d in step.dead] == [
        ("out_of_retention", 0),
        ("malformed", 1),
        ("out_of_retention", 2),
        ("malformed", 3),
    ]
