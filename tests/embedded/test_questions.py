"""Questions to an operator, by window, by bounds and by keys, against plain lists of what was added."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core import errors as e
from windrow.testing import ManualClock

S = 1_000_000
#: Second, key; the offset is the place in the list. Keys hold what separators might be.
HEARD = [
    (31, "a"),
    (4, "a_b"),
    (12, "a"),
    (3, "a"),
    (3, "\u00fc\x00"),
    (24, ""),
    (5, "a_b"),
    (13, "a"),
    (25, "a"),
    (1, "a"),
]
MEDIAN = {"m": wr.median("n")}
OTHERS = wr.session(messages=1)  # sessions by messages of others: numbered among all


def messages() -> list[wr.Message]:
    return [
        wr.Message({"t": second * S, "k": key, "n": n}, wr.Position("heard", 0, n))
        for n, (second, key) in enumerate(HEARD)
    ]


def aggregate(window: Any, by: Any) -> wr.Aggregate:
    return wr.Aggregate(by=by, event_time="t", window=window, agg=MEDIAN, retention=wr.forever)


def join_window(window: Any, by: Any) -> wr.JoinWindow:
    return wr.JoinWindow(by=by, event_time="t", window=window, retention=wr.forever)


def numbered(by: Any, of_all: bool) -> dict[int, int]:
    """The number of each message, from 1: among those of its key, or among all."""
    seen: dict[Any, int] = defaultdict(int)
    numbers = {}
    for n, (_, key) in enumerate(HEARD):
        of = key if by and not of_all else None
        seen[of] += 1
        numbers[n] = seen[of]
    return numbers


@pytest.mark.parametrize(
    ("kind", "window", "by"),
    [
        (aggregate, wr.tumbling("10 s"), "k"),
        (aggregate, wr.hopping("10 s", "4 s"), ()),
        (aggregate, wr.session("4 s"), "k"),
        (aggregate, wr.tuples(3), "k"),
        (aggregate, wr.tuples(4, step=2), ()),
        (aggregate, OTHERS, "k"),
        (aggregate, wr.global_window(), "k"),
        (join_window, wr.hopping("10 s", "4 s"), "k"),
        (join_window, wr.session("4 s"), ()),
        (join_window, wr.tuples(3), ()),
        (join_window, wr.tuples(4, step=2), "k"),
    ],
    ids=lambda one: one.__name__ if callable(one) else repr(one),
)
def test_the_messages_of_a_window_are_asked_for_by_the_window(
    kind: Any, window: Any, by: Any, tmp_path: Path
) -> None:
    numbers = numbered(by, of_all=window == OTHERS)
    with kind(window, by).open(str(tmp_path), clock=ManualClock()) as op:
        for one in messages():
            op.add_message(one)
        op.timeout()
        with wr.read_state(str(tmp_path)) as state:
            windows = op.get_windows()
            assert windows and windows == state.get_windows()
            for info in windows:
                span = info.window
                expected = [
                    n
                    for n, (second, key) in enumerate(HEARD)
                    if (not by or key == info.key["k"])
                    and (
                        span.first <= numbers[n] <= span.last
                        if isinstance(span, wr.TupleWindow)
                        else span.start_us <= second * S < span.end_us
                    )
                ]
                members = op.get_messages(span, key=info.key)
                assert sorted(m.payload["n"] for m in members) == expected and len(expected) == info.messages
                assert members == state.get_messages(span, key=info.key)
                places = [wr.Position("heard", 0, n) for n in expected]
                assert (info.first, info.last) == (places[0], places[-1])


def test_a_window_says_where_it_ends_and_numbers_are_not_times(tmp_path: Path) -> None:
    numbers, times = wr.TupleWindow(1, 2), wr.Window(0, 10 * S)
    with aggregate(wr.tuples(3), "k").open(str(tmp_path / "tuples"), clock=ManualClock()) as op:
        for one in messages():
            op.add_message(one)
        assert [m.payload["n"] for m in op.get_messages(numbers, key="a")] == [0, 2]
        assert sorted(m.payload["n"] for m in op.get_messages(numbers)) == [0, 1, 2, 4, 5, 6]
        assert sorted(m.payload["n"] for m in op.get_messages(times)) == [1, 3, 4, 6, 9]
        for window in (numbers, times):
            with pytest.raises(e.BadInstant, match="an end of its own"):
                op.get_messages(window, 5)
    with aggregate(wr.tumbling("10 s"), "k").open(str(tmp_path / "times"), clock=ManualClock()) as op:
        op.add_message(messages()[0])
        with pytest.raises(e.BadInstant, match=r"#\[1, 2\] is a window of numbers"):
            op.get_messages(numbers)


@pytest.mark.parametrize("window", [wr.tuples(3), OTHERS], ids=["tuples", "sessions by others"])
def test_windows_of_numbers_are_asked_for_by_numbers_up_to_their_last(window: Any, tmp_path: Path) -> None:
    definition = aggregate(window, "k")
    with definition.open(str(tmp_path), clock=ManualClock()) as op:
        for one in messages():
            op.add_message(one)
        windows: list[Any] = list(op.get_windows())
        for at in range(1, len(HEARD) + 1):
            wanted = [w for w in windows if w.window.first <= at <= w.window.last]
            assert list(op.get_windows(at, at)) == wanted
        assert any(w.window.first < w.window.last for w in windows)
    with wr.read_state(str(tmp_path), definition=definition) as state:
        assert (state.timed("windows"), state.timed("messages")) == (None, "stored")


@pytest.mark.parametrize(
    "bound", [(5 * S,), (5 * S, "x"), (5 * S, 1, 2), (5 * S, 1.5), (5 * S, True), (), (None, 1)]
)
def test_a_bound_that_is_none_is_refused(bound: Any, tmp_path: Path) -> None:
    with aggregate(wr.tumbling("10 s"), ()).open(str(tmp_path), clock=ManualClock()) as op:
        op.add_message(messages()[0])
        for bounds in ((bound, None), (None, bound)):
            with pytest.raises(e.BadInstant, match=r"\(time, offset\), or a window"):
                op.get_messages(*bounds)


def test_leading_columns_find_the_messages_of_a_join_window(tmp_path: Path) -> None:
    definition = wr.JoinWindow(
        by="k", event_time="t", window=wr.tumbling("1 minute"), retention="1 day", join_keys=("i", "j")
    )
    keys = [(k, i, j) for k in ("x", "x_1") for i in (1, 2) for j in ("p", "p_", "")]
    with definition.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages([{"t": n * S, "k": k, "i": i, "j": j, "n": n} for n, (k, i, j) in enumerate(keys)])
        for length in (1, 2, 3):
            for key in {row[:length] for row in keys} | {("x", 3, "p")[:length]}:
                numbers = [m.payload["n"] for m in op.get_messages(3 * S, (8 * S, 1 << 40), key=key)]
                assert sorted(numbers) == [
                    n for n, row in enumerate(keys) if row[:length] == key and 3 <= n <= 8
                ]
        assert len(op.get_messages(key="x")) == 6
        with pytest.raises(e.ConfigurationError, match=r"has 4 values.*\['k', 'i', 'j'\]"):
            op.get_messages(key=("x", 1, "p", 0))


def test_a_question_takes_times_as_text(tmp_path: Path) -> None:
    with aggregate(wr.tumbling("10 s"), ()).open(str(tmp_path), clock=ManualClock()) as op:
        for one in messages():
            op.add_message(one)
        begin, end = "1970-01-01 00:00:10Z", "1970-01-01T01:00:20+01:00"
        assert op.get_windows(begin, end) == op.get_windows(10 * S, 20 * S) != []
        assert op.get_messages((begin, 0), end) == op.get_messages((10 * S, 0), 20 * S) != []
