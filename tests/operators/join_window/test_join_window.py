"""The seed's join window operator by itself: what it tells, what may be asked of it, and a join that is written on it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import windrow as wr
from windrow.core.time import MINUTE_US, SECOND_US
from windrow.operators.join_window.windows import Kept
from windrow.testing import ManualClock

S = SECOND_US


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2015-03-01T{clock}").replace(tzinfo=UTC)


def order(id: int, value: int, clock: str) -> dict[str, Any]:
    return {"id": id, "value": value, "time": at(clock)}


def shipment(id: int, cost: int, clock: str) -> dict[str, Any]:
    return {"id": id, "cost": cost, "time": at(clock)}


ORDERS = {"event_time": "time", "join_keys": "id", "max_ahead": wr.forever}


def test_the_windowed_join_of_the_samza_design_is_written_on_two_join_windows(tmp_path: Any) -> None:
    """`Shipments JOIN Orders OVER (ORDER BY time RANGE '2' min PRECEDING) ON Orders.id = Shipments.id`."""
    orders = wr.JoinWindow(
        window=wr.tumbling("2 minutes", offset="1 minute"),
        retention="1 hour",
        watermark="5 minutes",
        **ORDERS,
    )
    shipments = wr.JoinWindow(window=wr.global_window(), retention=wr.forever, **ORDERS)
    joined: list[tuple[int, int, int]] = []
    with (
        orders.open(str(tmp_path / "orders"), clock=ManualClock()) as of_orders,
        shipments.open(str(tmp_path / "shipments"), clock=ManualClock()) as of_shipments,
    ):

        def join() -> None:
            """New orders with all shipments so far, then new shipments with the orders there were."""
            new_orders, new_shipments = of_orders.get_result(), of_shipments.get_result()
            of_orders.flush()
            of_shipments.flush()
            came = {row["cost"] for row in new_shipments}
            for row in new_orders:
                for other in of_shipments.get_messages(key=row["id"]):
                    if other.payload["cost"] not in came:
                        joined.append((row["id"], row["value"], other.payload["cost"]))
            for row in new_shipments:
                for other in of_orders.get_messages(key=row["id"]):
                    joined.append((row["id"], other.payload["value"], row["cost"]))

        of_orders.add_messages([order(1, 0, "08:59:10"), order(3, 5, "09:00:00")])
        of_shipments.add_messages([shipment(3, 0, "09:00:10"), shipment(1, 2, "09:00:10")])
        join()
        assert joined == [(3, 5, 0), (1, 0, 2)]
        of_shipments.add_messages([shipment(1, 3, "09:01:10"), shipment(9, 1, "09:01:20")])
        join()
        assert joined[2:] == [(1, 0, 3)]
        of_orders.add_message(order(9, 9, "08:59:30"))
        join()
        assert joined[3:] == [(9, 9, 1)]
        [window] = of_orders.get_windows(at("08:59:30"), at("08:59:30"))
        assert (window.messages, window.first.offset, window.last.offset) == (3, 0, 2)


def seconds(definition: Any, folder: Any, *times: int, **columns: Any) -> Iterator[Any]:
    with definition.open(str(folder), clock=ManualClock()) as op:
        for second in times:
            op.add_message({"t": second * S, "n": second, **columns})
        yield op


def brief(op: Any) -> list[tuple[int, str, tuple[int, int]]]:
    """(message, timing, window in seconds) of each row since the last time."""
    rows = op.get_result()
    op.flush()
    return [
        (row["n"], row.timing.value, (row["window"].start_us // S, row["window"].end_us // S)) for row in rows
    ]


def test_a_message_is_emitted_in_its_first_window_only_and_all_of_its_windows_have_it(tmp_path: Any) -> None:
    definition = wr.JoinWindow(
        event_time="t",
        window=wr.hopping("4 seconds", "2 seconds"),
        retention="1 hour",
        watermark=wr.explicit(),
    )
    for op in seconds(definition, tmp_path, 4, 5, 6):
        assert brief(op) == [(4, "EARLY", (2, 6)), (5, "EARLY", (2, 6)), (6, "EARLY", (4, 8))]
        windows = [(w.window.start_us // S, w.messages) for w in op.get_windows()]
        assert windows == [(2, 2), (4, 3), (6, 1)]
        op.advance_watermark(6 * S)
        op.add_message({"t": 5 * S + 1, "n": 7})
        assert brief(op) == [(7, "LATE", (2, 6))]


def test_what_nobody_emitted_early_is_emitted_when_the_window_is_full_and_what_comes_late_by_its_period(
    tmp_path: Any,
) -> None:
    definition = wr.JoinWindow(
        event_time="t",
        window=wr.tumbling("10 seconds"),
        retention="1 hour",
        watermark=wr.explicit(),
        emit=wr.Emit(early=wr.every(3), late=wr.every("10 seconds")),
    )
    clock = ManualClock()
    with definition.open(str(tmp_path), clock=clock) as op:
        for n in range(5):
            op.add_message({"t": n * S, "n": n})
        assert brief(op) == [(n, "EARLY", (0, 10)) for n in (0, 1, 2)]
        op.advance_watermark(10 * S)
        assert brief(op) == [(n, "ON_TIME", (0, 10)) for n in (3, 4)]
        op.add_message({"t": 9 * S, "n": 9})
        assert brief(op) == []
        clock.advance("10 seconds")
        op.timeout()
        assert brief(op) == [(9, "LATE", (0, 10))]


def test_a_session_emits_what_none_of_its_parts_has_emitted(tmp_path: Any) -> None:
    definition = wr.JoinWindow(
        by="user",
        event_time="t",
        window=wr.session("10 seconds"),
        retention="1 hour",
        join_keys="n",
        watermark=wr.explicit(),
        emit=wr.Emit(early=wr.every(2), late=wr.every_batch),
    )
    for op in seconds(definition, tmp_path, 0, 20, 25, user="ann"):
        assert brief(op) == [(20, "EARLY", (20, 35)), (25, "EARLY", (20, 35))]
        op.add_message({"t": 10 * S, "n": 10, "user": "ann"})
        assert brief(op) == [(0, "EARLY", (0, 35)), (10, "EARLY", (0, 35))]
        op.add_message({"t": 11 * S, "n": 11, "user": "bob"})
        # getWindows(sessKey, startTime, endTime); getMessages with session key, with join keys, with both, with neither.
        assert [w.messages for w in op.get_windows(5 * S, 5 * S, key="ann")] == [4]
        ask = {
            "session": {"user": "ann"},
            "join": {"n": 10},
            "both": ("ann", 10),
            "of another": ("bob", 10),
        }
        messages = {name: [m.payload["n"] for m in op.get_messages(key=key)] for name, key in ask.items()}
        assert messages == {"session": [0, 10, 20, 25], "join": [10], "both": [10], "of another": []}
        between = op.get_messages((10 * S, 0), (20 * S, 1 << 40), key="ann")
        assert [m.payload["n"] for m in between] == [10, 20]
        view, known = (
            op._view("messages", None, None),
            op.engine.logic.schema_of(op.engine.staged.overlay, "join_window"),
        )
        assert set(view._lookup(known, {"user": "ann"})) == {"key_prefix"}  # no look at those of others
        assert len(op.get_messages()) == 5


def test_a_window_of_messages_emits_its_newest_and_lets_go_of_the_oldest(tmp_path: Any) -> None:
    definition = wr.JoinWindow(
        event_time="t",
        window=wr.tuples(3, step=1),
        retention=wr.Retain(windows=2),
        join_keys="n",
        watermark=wr.explicit(),
        emit=wr.Emit(early=wr.never),
    )
    for op in seconds(definition, tmp_path, 0, 1, 2, 3, 4):
        spans = [(row["n"], row["window"]) for row in op.get_result()]
        assert spans == [
            (0, wr.TupleWindow(1, 3)), (1, wr.TupleWindow(1, 3)), (2, wr.TupleWindow(1, 3)),
            (3, wr.TupleWindow(2, 4)), (4, wr.TupleWindow(3, 5)),
        ]  # fmt: skip
        op.timeout()
        kept = [m.payload["n"] for m in op.get_messages()]
        first = op.get_windows()[0].window.first
        assert kept == list(range(first - 1, 5))
        assert [m.payload["n"] for m in op.get_messages(key=4)] == [4]


def test_messages_of_a_join_key_are_found_without_a_look_at_the_others(tmp_path: Any) -> None:
    definition = wr.JoinWindow(
        event_time="t",
        window=wr.tumbling("1 hour"),
        retention="1 day",
        join_keys=("n", "site"),
        max_ahead=wr.forever,
    )
    with definition.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages([{"t": n * S, "n": n, "site": "x"} for n in range(100)])
        view = op._view("messages", None, None)
        known = op.engine.logic.schema_of(op.engine.staged.overlay, "join_window")
        assert set(view._lookup(known, {"n": 7, "site": "x"})) == {"key"}
        assert set(view._lookup(known, {"n": 7})) == {"key_prefix"}
        for key in ((7, "x"), {"n": 7}, {"site": "x", "n": 7}):
            assert [m.payload["n"] for m in op.get_messages(key=key)] == [7]
        assert len(op.get_messages(key={"site": "x"})) == 100
        assert op.get_messages(key=("seven", "x")) == []


@pytest.mark.parametrize("window", [wr.hopping("4 s", "2 s"), wr.session("2 s"), wr.tuples(9)])
def test_windows_are_asked_for_without_a_look_at_what_they_have_to_emit(
    window: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = wr.JoinWindow(
        by="k", event_time="t", window=window, retention=wr.forever, watermark=wr.explicit(),
        emit=wr.Emit(early=wr.never),
    )  # fmt: skip
    for op in seconds(definition, tmp_path, 0, 1, 2, k="a"):
        assert op.get_result() == []
        with monkeypatch.context() as patched:
            patched.setattr(Kept, "decode", None)
            assert max(info.messages for info in op.get_windows()) == 3
        assert len(op.get_messages(key="a")) == 3


def test_a_session_by_messages_of_others_emits_what_waits_when_so_many_others_have_come(
    tmp_path: Any,
) -> None:
    """SAMZA-552: "for tuple-based window, it is a max number of messages w/o the corresponding session_key"."""
    definition = wr.JoinWindow(
        by="k",
        event_time="t",
        window=wr.session(messages=2),
        join_keys="i",
        retention=wr.Retain(messages=3, per="job"),
        emit=wr.Emit(early=wr.every(2)),
    )
    with definition.open(str(tmp_path), clock=ManualClock()) as op:

        def add(*keys: str) -> list[tuple[int, str, tuple[int, int]]]:
            """(message, timing, numbers of the window) of each row."""
            for k in keys:
                number = len(sent)
                sent.append(k)
                op.add_message({"t": 0, "k": k, "n": number + 1, "i": number % 2})
            rows = op.get_result()
            op.flush()
            return [(row["n"], row.timing.value, (row["window"].first, row["window"].last)) for row in rows]

        sent: list[str] = []
        assert add("a", "b", "c") == []
        assert add("a") == [(1, "EARLY", (1, 4)), (4, "EARLY", (1, 4))]
        assert [(w.key["k"], w.window.first, w.window.last) for w in op.get_windows(key="a")] == [("a", 1, 4)]
        assert add("d", "e") == [(2, "ON_TIME", (2, 2)), (3, "ON_TIME", (3, 3))]
        [window] = op.get_windows(key="a")
        assert [m.payload["n"] for m in op.get_messages(window.window, key=window.key)] == [1, 4]
        assert [m.payload["n"] for m in op.get_messages(key=("a", 1))] == [4]
        assert [m.payload["n"] for m in op.get_messages(key={"i": 1})] == [4, 2, 6]  # by key
        # With the seventh the session of "a" is over; nothing of it had to be told yet.
        assert add("f", "a") == [(5, "ON_TIME", (5, 5))]
        assert [w.window.first for w in op.get_windows(key="a")] == [1, 8]
        add("b", "b")
        assert [w.window.first for w in op.get_windows(key="a")] == [8]
        assert [m.payload["n"] for m in op.get_messages(key="a")] == [8]


@pytest.mark.parametrize(
    ("window", "size", "kept"),
    [
        (wr.tumbling("10 seconds"), {"windows": 2}, [20, 30]),
        (wr.hopping("10 seconds", "5 seconds"), {"messages": 3}, [20, 25, 30]),
        (wr.session("3 seconds"), {"windows": 1, "per": "job"}, [30]),
        (wr.session(wr.col("gap") * S), {"messages": 2}, [20, 30]),
        (wr.tuples(2), {"windows": 1, "time": None}, [3]),
        (wr.session(messages=0), {"messages": 2, "per": "job", "time": None}, [2, 3, 4]),
    ],
    ids=["tumbling", "hopping", "session", "own gaps", "tuples", "session by messages"],
)
def test_the_oldest_windows_beyond_a_number_go_and_emit_what_waits(
    window: Any, size: dict[str, Any], kept: list[int], tmp_path: Any
) -> None:
    """SAMZA-552: a join window operator is given "Window Retention Size" and "Window Retention Time"."""
    definition = wr.JoinWindow(
        by="k",
        event_time="t",
        window=window,
        retention=wr.Retain(**{"time": "1 hour", **size}),
        watermark=wr.explicit(),
        emit=wr.Emit(early=wr.never),
    )
    with definition.open(str(tmp_path), clock=ManualClock()) as op:
        for n in (0, 10, 20, 30):
            key = "ab"[n // 10 % 2] if "messages=0" in repr(window) else "a"
            op.add_message({"t": n * S, "n": n, "k": key, "gap": 3})
        op.advance_watermark(1)
        windows = [info.window for info in op.get_windows()]
        assert [w.first if isinstance(w, wr.TupleWindow) else w.start_us // S for w in windows] == kept
        stay = {m.payload["n"] for m in op.get_messages()}
        assert len(stay) < 4
        assert {row["n"] for row in op.get_result()} >= {0, 10, 20, 30} - stay


def test_a_message_out_of_retention_is_a_dead_letter_and_messages_go_with_their_windows(
    tmp_path: Any,
) -> None:
    definition = wr.JoinWindow(
        event_time="t", window=wr.tumbling("1 minute"), retention="2 minutes", watermark=wr.explicit()
    )
    for op in seconds(definition, tmp_path, 0, 100):
        op.advance_watermark(4 * MINUTE_US)
        op.add_message({"t": 1, "n": -1})
        assert [letter.reason for letter in op.dead_letters()] == ["out_of_retention"]
        assert [m.payload["n"] for m in op.get_messages()] == []
        assert len(op.get_windows()) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"emit": wr.Emit(mode="retracting")}, "emitted once and never retracted"),
        ({"emit": wr.Emit(early=wr.when(wr.col("n") > 1))}, "wr.every_batch"),
        ({"emit": wr.Emit(early=wr.every("1 s", always=True))}, "wr.every_batch"),
        ({"by": "k", "join_keys": ("i", "k")}, "twice"),
        ({"retention": None}, "retention"),
        ({"window": wr.sliding("1 minute")}, "wr.tumbling"),
        ({"by": "k", "window": wr.inherited()}, "no operator before it has windows"),
        ({"by": "k", "window": wr.session("1 s", max_length="1 hour")}, "cut="),
        ({"window": wr.session(messages=3), "retention": wr.forever}, "name a key"),
        ({"event_time": 3}, "event_time"),
    ],
)
def test_what_a_join_window_cannot_do_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(wr.ConfigurationError, match=says):
        wr.JoinWindow(
            **{"event_time": "t", "window": wr.tumbling("1 minute"), "retention": "1 day", **options}
        )


def test_a_message_with_a_column_that_rows_have_too_is_a_dead_letter(tmp_path: Any) -> None:
    definition = wr.JoinWindow(event_time="t", window=wr.tumbling("1 minute"), retention="1 day")
    with definition.open(str(tmp_path)) as op:
        op.add_message({"t": 0, "window": 1})
        assert [(one.reason, "rename it" in one.detail) for one in op.dead_letters()] == [("malformed", True)]


def test_messages_are_forwarded_to_the_next_operator_when_they_are_emitted(tmp_path: Any) -> None:
    first = wr.JoinWindow(
        event_time="t", window=wr.tumbling("10 seconds"), retention="1 minute", emit=wr.Emit(early=wr.never)
    )
    count = wr.Aggregate(
        event_time="t", window=wr.tumbling("20 seconds"), retention="1 minute", agg={"n": wr.count()},
        emit=wr.Emit.append(),
    )  # fmt: skip
    with first.then(count).open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages([{"t": n * S} for n in range(0, 60, 2)])
        op.drain()
        assert [pane["n"] for pane in op.get_result()] == [10, 10, 10]
    sessions = wr.JoinWindow(
        event_time="t", window=wr.session("1 s"), retention="1 hour", emit=wr.Emit(early=wr.never)
    )
    with pytest.raises(wr.ConfigurationError, match="its watermark would never move"):
        sessions.then(count)
