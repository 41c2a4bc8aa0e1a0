"""A join in this process as a user meets it: two inputs to feed, rows, queries, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

import windrow as wr
from windrow.core import errors as e
from windrow.testing.clock import ManualClock

S = 1_000_000


def define(how: str = "inner", *, orders: Any = None, shipments: Any = None, **changed: Any) -> wr.Join:
    options: dict[str, Any] = {
        "on": "id",
        "within": ("0 seconds", "10 seconds"),
        "how": how,
        "allowed_lateness": "0 seconds",
    }
    return wr.Join(
        left=wr.Input("orders", event_time="time", **(orders or {})),
        right=wr.Input("shipments", event_time="time", **(shipments or {})),
        **(options | changed),
    )


def order(second: float, id: Any = 1, offset: int | None = None, topic: str = "topic") -> wr.Message:
    position = None if offset is None else wr.Position(topic, 0, offset)
    return wr.Message({"time": int(second * S), "id": id, "value": int(second)}, position)


def shipment(second: float, id: Any = 1, offset: int | None = None, topic: str = "topic") -> wr.Message:
    position = None if offset is None else wr.Position(topic, 0, offset)
    return wr.Message({"time": int(second * S), "id": id, "cost": second / 10}, position)


def brief(rows: list[wr.JoinedRow]) -> list[tuple[Any, ...]]:
    return [(r["id"], r["value"], r["cost"], str(r.timing)) for r in rows]


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "job")


# -- feeding --------------------------------------------------------------------------------------------------------


def test_messages_of_both_inputs_are_joined_as_they_come(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(order(1), "orders")
        op.add_message(shipment(3), "shipments")
        op.add_message(shipment(4, 2), "shipments")
        op.add_message(order(2), input="orders")
        rows = op.get_result()
        assert brief(rows) == [(1, 1, 0.3, "EARLY"), (1, 2, 0.3, "EARLY")]
        assert {r.token for r in rows} == {wr.Token(op.job, op.last_commit)}
        assert op.columns == ["id", "orders_time", "value", "shipments_time", "cost"]
        assert str(rows[0]).startswith("EARLY  id=1 ")
        assert op.counters["rows"] == 4


def test_messages_of_both_inputs_can_be_one_step(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_messages({"shipments": [shipment(3), shipment(9)], "orders": [order(1)]})
        assert brief(op.get_result()) == [(1, 1, 0.3, "EARLY"), (1, 1, 0.9, "EARLY")]
        [record] = op.engine.job.commits()
        assert [(step.kind, step.rows) for step in record.steps] == [("ingest", 3), ("advance", 0)]


def test_an_input_that_the_join_does_not_have_is_refused_naming_those_that_it_has(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        for feed in (
            lambda: op.add_message(order(1)),
            lambda: op.add_message(order(1), "order"),
            lambda: op.add_messages({"orders": [order(1)], "parcels": []}),
            lambda: op.next_offsets(input="parcels"),
        ):
            with pytest.raises(e.InputError, match=r"say which, of \['orders', 'shipments'\]"):
                feed()
        for ask in (op.get_messages, op.get_windows):
            with pytest.raises(
                e.ConfigurationError, match=r"'parcels'.*say which, of \['orders', 'shipments'\]"
            ):
                ask(input="parcels")
        assert op.counters.get("rows", 0) == 0


def test_a_stream_joins_itself_without_naming_its_input(location: str) -> None:
    orders = wr.Input("orders", event_time="time")
    with wr.Join(left=orders, right=orders, on="id", within=("1 second", "5 seconds")).open(location) as op:
        for second in (1, 4, 9):
            op.add_message(order(second))
        assert [(r["left_value"], r["right_value"]) for r in op.get_result()] == [(1, 4), (4, 9)]
        assert [m.payload["value"] for m in op.get_messages()] == [1, 4, 9]


def test_tables_are_fed_with_positions_by_the_names_that_each_input_gives(location: str) -> None:
    definition = define(
        orders={"positions": wr.positions("o", partition="p", source="s")},
        shipments={"positions": wr.positions("at")},
    )
    orders = pa.table(
        {"time": [1 * S, 2 * S], "id": [1, 2], "value": [1, 2], "o": [6, 7], "p": [3, 3], "s": ["t", "t"]}
    )
    shipments = pa.table({"time": [3 * S], "id": [2], "cost": [0.3], "at": [41]})
    for n in (1, 2):
        with definition.open(location, clock=ManualClock()) as op:
            op.add_messages({"orders": orders, "shipments": shipments})
            op.add_messages(shipments.to_batches()[0], "shipments")
            assert brief(op.get_result()) == [(2, 2, 0.3, "EARLY")]
            assert op.next_offsets() == {"orders": {("t", 3): 8}, "shipments": {("", 0): 42}}
            assert (op.counters["rows"], op.counters["replayed"]) == (3, 4 * n - 3)


def test_a_replay_does_nothing_for_each_input_though_both_have_one_topic(location: str) -> None:
    for n in (1, 2):
        with define().open(location, clock=ManualClock()) as op:
            for offset in range(3):
                op.add_message(order(1 + offset, offset=offset), "orders")
            for offset in range(2):
                op.add_message(shipment(5 + offset, offset=offset), "shipments")
            assert op.counters.get("replayed", 0) == 5 * (n - 1)
            assert len(op.get_result()) == 6
            assert op.next_offsets() == {"orders": {("topic", 0): 3}, "shipments": {("topic", 0): 2}}


def test_messages_without_positions_are_numbered_on_arrival_for_each_input(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(order(1), "orders")
        op.add_messages({"orders": [order(2), order(3)], "shipments": [shipment(2)]})
        times = pa.array([4 * S], pa.timestamp("us", "UTC"))
        op.add_messages(pa.table({"time": times, "id": [1], "value": [4]}), "orders")
        assert op.next_offsets() == {"orders": {("", 0): 4}, "shipments": {("", 0): 1}}
        assert [m.position for m in op.get_messages(input="orders")] == [
            wr.Position("", 0, n) for n in range(4)
        ]


def test_rows_of_one_record_are_distinguished_by_ordinals(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        for ordinal in (0, 1, 1, 2):
            message = order(1)
            op.add_message(wr.Message(message.payload, wr.Position("topic", 0, 7, ordinal)), "orders")
        op.add_message(shipment(2, offset=7), "shipments")
        assert len(op.get_result()) == 3


def test_a_consumer_of_a_topic_of_both_inputs_is_assigned_where_the_one_that_lags_continues(
    location: str,
) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(order(1, offset=41), "orders")
        op.add_message(shipment(1, offset=6), "shipments")
        [assigned] = op.next_offsets([TopicPartition("topic", 0)])
        assert (assigned.topic, assigned.partition, assigned.offset) == ("topic", 0, 7)
        [assigned] = op.next_offsets([TopicPartition("topic", 0)], input="orders")
        assert assigned.offset == 42
        assert op.next_offsets(input="shipments") == {("topic", 0): 7}


# -- results --------------------------------------------------------------------------------------------------------


def test_rows_stay_until_they_are_flushed_over_a_restart_too(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_messages({"orders": [order(1)], "shipments": [shipment(2)]})
        first = op.get_result()
        assert first == op.get_result() != []
    with define().open(location, clock=ManualClock()) as op:
        assert op.get_result() == first
        assert [r.token for r in op.get_result()] == [r.token for r in first]
        op.flush()
        assert op.get_result() == []
    with define().open(location, clock=ManualClock()) as op:
        assert op.get_result() == []


def test_rows_are_a_table_too(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_messages({"orders": [order(1)], "shipments": [shipment(2)]})
        table = op.result_table()
        assert table.column_names == [*op.columns, "pane", "commit"]
        assert table.column("cost").to_pylist() == [0.2]


def test_drain_emits_what_nobody_matched_and_what_comes_later_is_too_late(location: str) -> None:
    with define("full").open(location, clock=ManualClock()) as op:
        op.add_messages({"orders": [order(1)], "shipments": [shipment(2, 7)]})
        assert op.get_result() == []
        op.drain()
        assert brief(op.get_result()) == [(1, 1, None, "ON_TIME"), (7, None, 0.2, "ON_TIME")]
        op.add_message(order(3), "orders")
        assert [letter.reason for letter in op.dead_letters()] == ["out_of_retention"]


def test_a_period_is_waited_for(location: str) -> None:
    clock = ManualClock()
    with define(emit=wr.Emit(early=wr.every("10 seconds"), late=wr.every_batch)).open(
        location, clock=clock
    ) as op:
        op.add_messages({"orders": [order(1)], "shipments": [shipment(2)]})
        assert op.get_result() == []
    clock.advance("10 seconds")
    with define(emit=wr.Emit(early=wr.every("10 seconds"), late=wr.every_batch)).open(
        location, clock=clock
    ) as op:
        op.timeout()
        assert brief(op.get_result()) == [(1, 1, 0.2, "EARLY")]


# -- watermark ------------------------------------------------------------------------------------------------------


def test_the_watermark_is_the_least_of_both_inputs(location: str) -> None:
    with define("left", orders={"watermark": "5 seconds"}).open(location, clock=ManualClock()) as op:
        op.add_message(order(100), "orders")
        assert op.watermark < 0  # the other was never seen
        op.add_message(shipment(40), "shipments")
        assert op.watermark == 40 * S
        op.add_message(shipment(200), "shipments")
        assert op.watermark == 95 * S
        assert op.get_result() == []
        op.add_message(order(130), "orders")
        assert brief(op.get_result()) == [(1, 100, None, "ON_TIME")]


def test_an_input_that_is_idle_holds_nobody_back(location: str) -> None:
    clock = ManualClock()
    idle = {"watermark": wr.bounded("0 seconds", idle="1 minute")}
    with define(orders=idle, shipments=idle).open(location, clock=clock) as op:
        op.add_messages({"orders": [order(1)], "shipments": [shipment(1)]})
        clock.advance("59 seconds")
        op.add_message(order(100), "orders")
        assert op.watermark == 1 * S
        clock.advance("1 second")
        op.timeout()
        assert op.watermark == 100 * S
        clock.advance("1 hour")
        op.timeout()
        assert op.watermark == 100 * S  # nobody is left who could say more
        op.add_message(shipment(101), "shipments")
        assert op.watermark == 101 * S


def test_an_explicit_watermark_is_the_whole_joins(location: str) -> None:
    explicit = {"watermark": wr.explicit()}
    with define("anti", orders=explicit, shipments=explicit).open(location, clock=ManualClock()) as op:
        op.add_messages({"orders": [order(1), order(50)], "shipments": [shipment(90)]})
        assert op.get_result() == [] and op.watermark < 0
        op.advance_watermark(12 * S)
        assert [(r["id"], r["value"]) for r in op.get_result()] == [(1, 1)]


# -- queries --------------------------------------------------------------------------------------------------------


def test_messages_of_an_input_between_two_bounds_both_included(location: str) -> None:
    with define(retention="1 hour").open(location, clock=ManualClock()) as op:
        for n in range(6):
            op.add_message(order(n, n % 2, offset=n), "orders")
        op.add_message(shipment(3, 1, offset=9), "shipments")
        between = op.get_messages((1 * S, 1), (4 * S, 4), input="orders")
        assert sorted(m.payload["value"] for m in between) == [1, 2, 3, 4]
        assert sorted(m.payload["value"] for m in op.get_messages(2 * S, 3 * S, input="orders")) == [2, 3]
        assert [m.payload["value"] for m in op.get_messages(key=1, input="orders")] == [1, 3, 5]
        [kept] = op.get_messages(key={"id": 1}, input="shipments")
        assert kept.position == wr.Position("topic", 0, 9) and kept.payload["cost"] == 0.3
        assert op.get_messages(key=5, input="orders") == []


def test_messages_are_asked_for_by_the_key_names_of_their_input(location: str) -> None:
    with define(on={"id": "cost"}).open(location, clock=ManualClock()) as op:
        op.add_messages({"orders": [order(1)], "shipments": [shipment(10, 7)]})
        assert len(op.get_messages(key={"cost": 1.0}, input="shipments")) == 1
        with pytest.raises(e.ConfigurationError, match=r"'id' is none of \['cost'\]"):
            op.get_messages(key={"id": 1.0}, input="shipments")


def test_a_stream_with_itself_gives_what_either_side_keeps(location: str) -> None:
    orders = wr.Input("orders", event_time="time")
    newest = wr.Join(
        left=orders,
        right=orders,
        on="id",
        how="asof",
        within=("-3 seconds", "0 seconds"),
        allowed_lateness="12 seconds",
    )
    with newest.open(location, clock=ManualClock()) as op:
        for second in (
            4,
            6,
            20,
        ):  # as a left message 6 is answered, as a right one it may still be the newest of 9
            op.add_message(order(second))
        assert [m.payload["value"] for m in op.get_messages()] == [6, 20]
        assert [m.payload["value"] for m in op.get_messages(key=1)] == [6, 20]


def test_windows_of_an_input_are_what_its_messages_make_of_them(location: str) -> None:
    with windowed().open(location, clock=ManualClock()) as op:
        for offset, (second, key) in enumerate([(1, 7), (12, 7), (13, 8)]):
            payload = {"id": key, "value": 0, "time": second * S}
            op.add_message(wr.Message(payload, wr.Position("o", 0, offset)), "orders")
        op.add_message(wr.Message({"id": 7, "cost": 0, "time": 2 * S}, wr.Position("s", 0, 0)), "shipments")
        windows = op.get_windows(input="orders")
        with wr.read_state(location) as state:
            assert state.get_windows(input="orders") == []  # nothing is committed yet
        op.flush()
        with wr.read_state(location) as state:
            assert state.get_windows(input="orders") == windows
            assert state.get_windows(5 * S, 9 * S, input="orders") == windows[:1]
        assert [(w.window, w.messages) for w in windows] == [
            (wr.Window(0, 10 * S), 1),
            (wr.Window(10 * S, 20 * S), 2),
        ]
        assert (windows[1].first, windows[1].last) == (wr.Position("o", 0, 1), wr.Position("o", 0, 2))
        assert [w.messages for w in op.get_windows(input="orders", key=7)] == [1, 1]
        assert [w.window for w in op.get_windows(12 * S, input="orders")] == [wr.Window(10 * S, 20 * S)]
        assert [w.messages for w in op.get_windows(input="shipments")] == [1]


def windowed() -> wr.Join:
    ten = wr.tumbling("10 seconds")
    return wr.Join(
        left=wr.Input("orders", event_time="time", window=ten),
        right=wr.Input("shipments", event_time="time", window=ten),
        on="id",
        retention="1 hour",
    )


# -- dead letters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("input", ["orders", "shipments"])
@pytest.mark.parametrize(
    ("second", "reason"), [(None, "malformed"), (49, "too_late"), (1, "out_of_retention")]
)
def test_a_dead_letter_of_either_side_names_its_input_and_the_position_that_was_given(
    location: str, input: str, second: int | None, reason: str
) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_messages({"orders": [order(50, offset=0)], "shipments": [shipment(50, offset=0)]})
        watermark = op.watermark
        bad = wr.Message(
            {"time": None if second is None else second * S, "id": 1}, wr.Position("topic", 0, 5)
        )
        op.add_message(bad, input)
        [letter] = op.dead_letters()
        assert (letter.reason, letter.input, letter.position) == (
            reason,
            input,
            wr.Position("topic", 0, 5),
        )
        assert letter.detail and op.counters[f"dead.{reason}"] == 1
        assert op.watermark == watermark
        assert op.get_result() != [] and len(op.get_result()) == 1


def test_a_message_of_a_stream_that_joins_itself_is_one_dead_letter(location: str) -> None:
    orders = wr.Input("orders", event_time="time")
    with wr.Join(left=orders, right=orders, on="id", within=("1 second", "5 seconds")).open(location) as op:
        op.add_message(wr.Message({"time": None, "id": 1}))
        assert [(d.reason, d.input) for d in op.dead_letters()] == [("malformed", "orders")]
        assert op.counters["dead.malformed"] == 1


# -- sinks ----------------------------------------------------------------------------------------------------------


def test_a_sink_gets_rows_as_they_are_committed(location: str) -> None:
    sink = wr.sinks.memory()
    with define().open(location, clock=ManualClock(), sink=sink) as op:
        op.add_messages({"orders": [order(1)], "shipments": [shipment(2)]})
        assert sink.panes == []
        op.timeout()
        assert brief(sink.panes) == [(1, 1, 0.2, "EARLY")]
        assert op.get_result() == []


def test_a_parquet_sink_is_read_as_a_table(tmp_path: Path, location: str) -> None:
    sink = wr.sinks.parquet(str(tmp_path / "out"))
    with define("left").open(location, clock=ManualClock(), sink=sink) as op:
        op.add_messages({"orders": [order(1)], "shipments": [shipment(2)]})
        op.timeout()
        op.add_message(order(40, 2), "orders")
        op.drain()
    rows = wr.read_panes(sink.path)
    assert rows.column("value").to_pylist() == [1, 40]
    assert rows.column("cost").to_pylist() == [0.2, None]
    assert [p["timing"] for p in rows.column("pane").to_pylist()] == ["EARLY", "ON_TIME"]


def test_the_console_sink_prints_a_line_a_row(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    with define("semi").open(location, clock=ManualClock(), sink=wr.sinks.console()) as op:
        op.add_messages({"orders": [order(1)], "shipments": [shipment(2)]})
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("--", "   "))]
    assert lines == ["-- commit 1 of join: 1 panes", "   EARLY  id=1 time=1970-01-01 00:00:01+00:00 value=1"]


@pytest.mark.parametrize("named", [("orders", "shipments"), ("shipments", "orders")])
@pytest.mark.parametrize("how", ["inner", "asof"])
def test_of_messages_of_one_step_on_which_a_condition_raises_together_the_last_is_a_dead_letter(
    location: str, how: Any, named: tuple[str, str]
) -> None:
    """Each by itself could be taken: before, no call that brought both came through. Left ones come first."""
    where = wr.lit(6) / (wr.col("value") - wr.col("cost")) > 0
    within = ("-1 minute", "1 minute" if how == "inner" else "0 minutes")
    with define(how, where=where, within=within).open(location, clock=ManualClock()) as op:
        for cost in (1, 3):
            shipments = [wr.Message({"time": S, "id": cost, "cost": n}) for n in (cost, 2)]
            sent = {"orders": [wr.Message({"time": S, "id": cost, "value": 3})], "shipments": shipments}
            op.add_messages({name: sent[name] for name in named})
        op.drain()
        assert [(row["value"], row["cost"]) for row in op.get_result()] == (
            [(3, 1), (3, 2), (3, 2)] if how == "inner" else [(3, 2), (3, 2)]
        )
        [letter] = op.dead_letters()
        assert (letter.reason, letter.input, letter.detail) == (
            "malformed",
            "shipments",
            "ArrowInvalid: divide by zero, in where=(divide_checked(6, subtract_checked(value, cost)) > 0)",
        )
