"""One aggregate over several inputs in this process, as a user meets it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.core import errors as e
from windrow.testing import ManualClock, TestDriver

S = 1_000_000
ORDERS, PAID = wr.Input("orders", event_time="t"), wr.Input("paid", event_time="at", by="order")


def accounts(**changed: Any) -> wr.CoGroup:
    options: dict[str, Any] = {
        "inputs": (ORDERS, PAID),
        "by": "id",
        "window": wr.tumbling("10 seconds"),
        "retention": "1 minute",
        "agg": {"n": wr.count(), "spent": wr.sum("amount").of("orders"), "paid": wr.sum("sum").of("paid")},
    }
    return wr.CoGroup(**(options | changed))


def order(second: float, id: Any = 1, amount: Any = 10) -> dict[str, Any]:
    return {"t": int(second * S), "id": id, "amount": amount}


def payment(second: float, order: Any = 1, sum: Any = 4) -> dict[str, Any]:
    return {"at": int(second * S), "order": order, "sum": sum}


def brief(panes: list[wr.Pane]) -> list[tuple[Any, ...]]:
    return [(p.window.start_us // S, p.key["id"], p["n"], p["spent"], p["paid"]) for p in panes]  # type: ignore[union-attr]


def test_each_input_has_aggregations_keys_and_times_of_its_own(tmp_path: Path) -> None:
    with accounts().open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages({"orders": [order(1), order(2, 2)], "paid": [payment(3), payment(4)]})
        op.add_message(payment(12, 3, 7), "paid")
        assert op.get_result() == []  # the orders may still be of any time
        op.add_message(order(15, 3), "orders")
        assert brief(op.get_result()) == [(0, 1, 3, 10, 8), (0, 2, 1, 10, 0)]
        op.drain()
        assert brief(op.get_result())[2:] == [(10, 3, 2, 10, 7)]


def test_its_watermark_is_the_earliest_of_those_of_its_inputs(tmp_path: Path) -> None:
    with TestDriver(accounts(), tmp_path) as driver:
        driver.add({**order(1_000)}, "orders")
        assert driver.op.watermark == wr.core.time.START_OF_TIME_US  # nothing has come of the other
        driver.add(payment(200), "paid")
        assert driver.op.watermark == 200 * S
        driver.add(payment(2_100), "paid")
        assert driver.op.watermark == 1_000 * S
        driver.check(dead_letters=True)


def test_what_an_input_does_not_let_pass_is_nothing_but_time(tmp_path: Path) -> None:
    paid = wr.Input("paid", event_time="at", by="order", where=wr.col("sum") > 0)
    with TestDriver(accounts(inputs=(ORDERS, paid)), tmp_path) as driver:
        driver.feed({"orders": [order(1)], "paid": [payment(2), payment(3, sum=-4)]})
        driver.feed({"orders": [order(31)], "paid": [payment(30, 7, sum=0)]})
        assert brief(driver.panes()) == [(0, 1, 2, 10, 4)]  # the watermark came to 30 with what did not pass
        driver.feed({"paid": [payment(5, sum=-1)]})
        driver.restart()
        driver.check(dead_letters=True)


def test_a_message_is_known_by_its_ids_within_its_input_and_key(tmp_path: Path) -> None:
    definition = accounts(ids="no")
    with TestDriver(definition, tmp_path) as driver:
        driver.feed({"orders": [{**order(1), "no": 7}], "paid": [{**payment(2), "no": 7}]})
        driver.restart()
        driver.feed({"orders": [{**order(1), "no": 7}, {**order(3), "no": 8}, {**order(2, 5), "no": 7}]})
        driver.feed({"paid": [{**payment(4), "no": None}, {**payment(2), "no": 7}]})
        driver.drain()
        assert brief(driver.panes()) == [(0, 1, 3, 20, 4), (0, 5, 1, 10, 0)]
        assert [(x.input, x.reason) for x in driver.dead_letters()] == [("paid", "malformed")]
        driver.check(dead_letters=True)


def test_an_idle_input_holds_nobody_back_and_late_is_who_lags_all(tmp_path: Path) -> None:
    idle = wr.Input("paid", event_time="at", by="order", watermark=wr.bounded("0 seconds", idle="5 seconds"))
    definition = accounts(inputs=(ORDERS, idle), allowed_lateness="0 seconds")
    with TestDriver(definition, tmp_path) as driver:
        driver.feed({"orders": [order(1)], "paid": [payment(2)]})
        driver.add(order(31), "orders")
        assert driver.op.watermark == 2 * S
        driver.advance_clock(6 * S)
        driver.timeout()
        assert driver.op.watermark == 31 * S and brief(driver.panes()) == [(0, 1, 2, 10, 4)]
        driver.feed({"paid": [payment(3, sum=9)]})
        [letter] = driver.check(dead_letters=True).dead_letters
        assert letter.reason == "too_late"


def test_a_dead_letter_is_the_message_as_it_came_and_says_of_which_input(tmp_path: Path) -> None:
    definition = accounts(
        allowed_lateness="0 seconds", null_keys="dead_letter", window=wr.tumbling("1 second")
    )
    with definition.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages(
            {"orders": [order(50), order(51, None)], "paid": [payment(50), {**payment(0), "at": None}]}
        )
        op.add_messages({"orders": [order(5)], "paid": [payment(6, 7)]})
        op.next_offsets()
        letters = [
            (one.reason, one.input, one.position and one.position[:3], one.payload)
            for one in op.dead_letters()
        ]
    assert letters == [
        ("null_key", "orders", ("", 0, 1), '{"t": "1970-01-01 00:00:51+00:00", "id": null, "amount": 10}'),
        ("malformed", "paid", ("", 0, 1), '{"at": null, "order": 1, "sum": 4}'),
        ("too_late", "orders", ("", 0, 2), '{"t": "1970-01-01 00:00:05+00:00", "id": 1, "amount": 10}'),
        ("too_late", "paid", ("", 0, 2), '{"at": "1970-01-01 00:00:06+00:00", "order": 7, "sum": 4}'),
    ]


def test_a_message_on_which_an_expression_of_its_input_raises_does_not_count(tmp_path: Path) -> None:
    share = wr.sum(wr.lit(100) / wr.col("sum")).of("paid")
    definition = accounts(agg={"n": wr.count(), "spent": wr.sum("amount").of("orders"), "paid": share})
    with TestDriver(definition, tmp_path) as driver:
        driver.feed({"orders": [order(1)], "paid": [payment(1, sum=0), payment(2, sum=50)]})
        driver.drain()
        assert brief(driver.panes()) == [(0, 1, 2, 10, 2)]
        [letter] = driver.check(dead_letters=True).dead_letters
        assert letter.reason == "malformed"


def test_rows_of_other_inputs_are_null_to_an_expression_whatever_it_makes_of_nulls(tmp_path: Path) -> None:
    missing = wr.count().where(wr.col("sum").is_null()).of("paid")
    definition = accounts(agg={"n": wr.count(), "spent": wr.count().of("orders"), "paid": missing})
    with TestDriver(definition, tmp_path) as driver:
        driver.feed({"orders": [order(1), order(2)], "paid": [payment(1, sum=None), payment(2)]})
        driver.drain()
        assert brief(driver.panes()) == [(0, 1, 4, 2, 1)]
        driver.check(dead_letters=True)


def test_a_message_of_one_input_bridges_sessions_of_another(tmp_path: Path) -> None:
    definition = accounts(
        window=wr.session("5 seconds"), emit=wr.Emit(early=wr.every_batch, mode="retracting")
    )
    with TestDriver(definition, tmp_path) as driver:
        driver.feed({"orders": [order(1), order(9)]})
        driver.feed({"paid": [payment(5)]})
        assert [
            (p.window.start_us // S, p.window.end_us // S, p["n"], str(p.kind)) for p in driver.panes()
        ] == [
            (1, 6, 1, "INSERT"),
            (9, 14, 1, "INSERT"),
            (1, 6, 1, "RETRACT"),
            (9, 14, 1, "RETRACT"),
            (1, 14, 3, "INSERT"),
        ]
        driver.check(dead_letters=True)


@pytest.mark.parametrize("spent", [wr.sum("amount"), wr.median("amount")], ids=["incremental", "messages"])
def test_a_session_is_explained_by_the_message_of_the_input_that_joined_it(
    spent: wr.Aggregation, tmp_path: Path
) -> None:
    definition = accounts(window=wr.session("5 seconds"), agg={"n": wr.count(), "spent": spent.of("orders")})
    with definition.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_message(wr.Message(order(1), wr.Position("o", 0, 0)), "orders")
        op.add_message(wr.Message(order(9), wr.Position("o", 0, 1)), "orders")
        op.add_message(wr.Message(payment(5), wr.Position("p", 0, 7)), "paid")
        op.next_offsets()
        with wr.read_state(str(tmp_path)) as state:
            [why] = state.explain(1 * S)
            assert why.window is not None and why.window.messages == 3
            assert why.joined_by == wr.Position("p", 0, 7)


def test_windows_of_messages_count_those_of_all_inputs(tmp_path: Path) -> None:
    definition = accounts(window=wr.tuples(3), retention=wr.forever)
    with TestDriver(definition, tmp_path) as driver:
        driver.feed({"orders": [order(1), order(2)], "paid": [payment(3), payment(4)]})
        assert [(p.window.first, p["n"], p["spent"], p["paid"]) for p in driver.panes()] == [(1, 3, 20, 4)]
        driver.check(dead_letters=True)


def test_messages_are_asked_for_by_input_and_explained_by_input(tmp_path: Path) -> None:
    agg = {
        "n": wr.count(),
        "spent": wr.median("amount").of("orders"),
        "paid": wr.collect_list("sum").of("paid"),
    }
    definition = accounts(agg=agg)
    with definition.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages({"orders": [order(1), order(2)], "paid": [payment(3)]})
        op.next_offsets()
        assert [m.payload for m in op.get_messages(input="orders")] == [
            {"t": wr.core.time.to_datetime(s * S), "id": 1, "amount": 10} for s in (1, 2)
        ]
        [kept] = op.get_messages(input="paid", key={"id": 1})
        assert (
            kept.position == wr.Position("", 0, 0) and kept.payload["order"] == 1 and kept.payload["sum"] == 4
        )
        assert op.get_messages(input="paid", key=2) == []
        [window] = op.get_windows()
        assert (window.first, window.last) == (wr.Position("", 0, 0), wr.Position("", 0, 0))
    with wr.read_state(str(tmp_path)) as state:
        assert state.get_windows() == [window]
        assert state.messages_table(input="paid").column("sum").to_pylist() == [4]
        assert state.windows_table().column("first").to_pylist()[0]["source"] == ""
        [why] = state.explain(0)
        assert {name: len(positions) for name, positions in why.inputs.items()} == {"orders": 2, "paid": 1}
        assert [touch.messages for touch in why.commits] == [3] and why.complete


def test_a_table_function_of_an_input_gets_its_messages_with_all_of_their_columns(tmp_path: Path) -> None:
    @wr.aggregate_function(name="columns", returns=pa.string())
    def columns(messages: pa.Table) -> str:
        return f"{sorted(messages.column_names)} {messages.num_rows}"

    agg = {"n": wr.count(), "spent": columns().of("orders"), "paid": columns().of("paid")}
    with TestDriver(accounts(agg=agg), tmp_path) as driver:
        driver.feed({"orders": [{**order(1), "note": "x"}], "paid": [payment(3), payment(3)]})
        driver.drain()
        [pane] = driver.panes()
        assert (
            pane["spent"] == "['amount', 'id', 'note', 't'] 1" and pane["paid"] == "['at', 'order', 'sum'] 2"
        )
        driver.check(dead_letters=True)


def test_an_aggregation_of_every_input_needs_its_column_in_each(tmp_path: Path) -> None:
    definition = accounts(agg={"n": wr.sum("amount")})
    with definition.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_message(order(1), "orders")
        with pytest.raises(e.UnknownColumn, match="'amount'"):
            op.add_message(payment(1), "paid")
        op.add_message({**payment(2), "amount": 0.5}, "paid")
        op.drain()
        assert [p["n"] for p in op.get_result()] == [10.5]


def test_equal_keys_of_different_types_are_one_key_and_what_has_no_common_type_is_reported(
    tmp_path: Path,
) -> None:
    schema = {"orders": pa.schema([("t", pa.int64()), ("id", pa.int32()), ("amount", pa.int64())])}
    with accounts().open(str(tmp_path / "a"), clock=ManualClock(), schema=schema) as op:
        op.add_messages({"orders": [order(1)], "paid": [payment(3, 1.0)]})
        op.drain()
        assert brief(op.get_result()) == [(0, 1.0, 2, 10, 4)]
    both = schema | {"paid": pa.schema([("at", pa.int64()), ("order", pa.string()), ("sum", pa.int64())])}
    with pytest.raises(
        e.TypeClash, match=r"'order' of input 'paid' .* is string, and int32 in input 'orders'"
    ):
        accounts().open(str(tmp_path / "b"), schema=both)
    with accounts().open(str(tmp_path / "c"), clock=ManualClock()) as op:
        op.add_message(order(1), "orders")
        op.add_message(payment(2, "one"), "paid")
        op.next_offsets()
        [letter] = op.dead_letters()
        assert (letter.reason, letter.input) == ("malformed", "paid")


def test_inputs_are_rows_of_other_operators_and_its_rows_go_on(tmp_path: Path) -> None:
    def part(name: str, source: str) -> wr.Aggregate:
        return wr.Aggregate(
            name=name, input=source, by="id", event_time="t", window=wr.tumbling("5 seconds"), agg={"n": wr.count()},
            retention="1 minute", emit=wr.Emit.append(),
        )  # fmt: skip

    both = wr.CoGroup(
        name="both",
        inputs=(wr.Input("left", event_time="window_time"), wr.Input("right", event_time="window_time")),
        by="id",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.sum("n"), "l": wr.sum("n").of("left"), "r": wr.max("n").of("right")},
        retention="1 minute",
        emit=wr.Emit.append(),
    )
    last = wr.Aggregate(
        name="last", event_time="window_time", window=wr.tumbling("20 seconds"), agg={"all": wr.sum("n")},
        retention="1 hour",
    )  # fmt: skip
    with TestDriver(wr.chain(part("left", "a"), part("right", "b"), both, last), tmp_path) as driver:
        for second in range(0, 40, 3):
            driver.feed({"a": [order(second), order(second, 2)], "b": [order(second + 1)]})
        driver.next_offsets()
        assert [pane["all"] for pane in driver.committed_panes()] == [
            21
        ]  # as far as both of its inputs have come
        driver.restart()
        driver.drain()
        assert [pane["all"] for pane in driver.check(dead_letters=True).panes] == [21, 20, 1]


def test_next_to_another_operator_they_share_an_input(tmp_path: Path) -> None:
    alone = wr.Aggregate(
        name="alone", input="paid", by="order", event_time="at", window=wr.tumbling("10 seconds"),
        agg={"n": wr.count()}, retention="1 minute",
    )  # fmt: skip
    with wr.open([accounts(), alone], str(tmp_path), clock=ManualClock()) as op:
        op.add_messages({"orders": [order(1)], "paid": [payment(3), payment(4)]})
        op.drain()
        assert brief(op.get_result("cogroup")) == [(0, 1, 3, 10, 8)]
        assert [p["n"] for p in op.get_result("alone")] == [2]


def test_an_aggregation_comes_to_a_state_that_there_is(tmp_path: Path) -> None:
    with accounts().open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages({"orders": [order(1)], "paid": [payment(3)]})
    more = accounts(agg={**accounts().agg, "largest": wr.max(wr.col("sum") * 2).of("paid")})
    with more.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages({"orders": [order(11)], "paid": [payment(12)]})
        op.drain()
        assert [p["largest"] for p in op.get_result()] == [None, 8]


def test_its_text_builds_it_again() -> None:
    definition = accounts(
        window=wr.session("5 seconds"),
        emit=wr.Emit(early=wr.every(3)),
        null_keys="dead_letter",
        ids="no",
    )
    assert eval(repr(definition), {"wr": wr}) == definition
    assert (
        accounts().fingerprint
        != accounts(inputs=(ORDERS, wr.Input("paid", event_time="at", by="id"))).fingerprint
    )
    assert accounts().fingerprint == accounts(inputs=(PAID, ORDERS)).fingerprint
    assert len({definition.fingerprint, accounts(ids="no").fingerprint, accounts().fingerprint}) == 3


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: accounts(inputs=()), e.ConfigurationError, "no inputs"),
        (lambda: accounts(inputs=ORDERS), e.ConfigurationError, "no inputs"),
        (lambda: accounts(inputs=("orders",)), e.ConfigurationError, "is no input"),
        (lambda: accounts(inputs=(ORDERS, ORDERS)), e.ConfigurationError, "name of its own"),
        (
            lambda: accounts(agg={"n": wr.count().of("parcels")}),
            e.BadAggregate,
            "there are \\['orders', 'paid'\\]",
        ),
        (
            lambda: accounts(agg={"n": wr.count().of("orders")}),
            e.BadAggregate,
            "no aggregation is of input 'paid'",
        ),
        (lambda: accounts(by=("id", "site")), e.ConfigurationError, "as many columns"),
        (lambda: accounts(by={"id": wr.col("x")}), e.ConfigurationError, "wr.Input\\(..., by=...\\)"),
        (lambda: accounts(by="of orders"), e.ReservedColumn, "call it otherwise"),
        (lambda: accounts(window=wr.session(wr.col("x"))), e.BadWindow, "use one gap"),
        (
            lambda: accounts(
                inputs=(ORDERS, wr.Input("paid", event_time="at", by=("a", "a"))), by=("i", "j")
            ),
            e.ConfigurationError,
            "twice",
        ),
        (
            lambda: accounts(inputs=(ORDERS, wr.Input("paid", event_time="at", window=wr.sliding("1 day")))),
            e.BadWindow,
            "is for joins",
        ),
        (lambda: accounts(ids=("no", "no")), e.ConfigurationError, "name a column twice"),
        (
            lambda: accounts(inputs=(ORDERS, wr.Input("paid", event_time="at", static=True))),
            e.ConfigurationError,
            "static=True",
        ),
        (
            lambda: accounts(inputs=(ORDERS, wr.Input("paid", event_time="at", watermark=wr.explicit()))),
            e.BadWatermark,
            "use it on all of them",
        ),
        (
            lambda: wr.Aggregate(
                event_time="t", window=wr.tuples(2), retention=wr.forever, agg={"n": wr.count().of("x")}
            ),
            e.BadAggregate,
            "leave .of",
        ),
        (
            lambda: wr.Over(
                event_time="t", frame=wr.rows_between(-1, 0), agg={"n": wr.count().of("x")}, ttl="1 hour"
            ),
            e.BadAggregate,
            "one input",
        ),
        (
            lambda: wr.Join(left=PAID, right=ORDERS, on="id", within=("0 seconds", "1 second")),
            e.ConfigurationError,
            "on=",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(
    make: Callable[[], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make()


@wr.aggregate_function(name="owed", returns=pa.int64())
class Owed:
    """Return the orders less the payments, and the fees."""

    def initial(self) -> int:
        return 0

    def add_orders(self, owed: int, amount: int) -> int:
        return owed + amount

    def add_paid(self, owed: int, sum: int, fee: int | None) -> int:
        return owed - sum + (fee or 0)

    def merge(self, older: int, newer: int) -> int:
        return older + newer

    def finish(self, owed: int) -> int:
        return owed


OWED = Owed(orders="amount", paid=("sum", wr.col("fee") * 2))  # type: ignore[call-arg]


@pytest.mark.parametrize("mode", ["accumulating", "discarding"])
def test_a_class_of_the_users_makes_one_state_of_several_inputs(tmp_path: Path, mode: Any) -> None:
    definition = accounts(agg={"owed": OWED, "n": wr.count()}, emit=wr.Emit(early=wr.every_batch, mode=mode))
    with TestDriver(definition, tmp_path) as driver:
        driver.feed({"orders": [order(1), order(2)], "paid": [{**payment(3), "fee": 1}]})
        driver.timeout()  # commits
        driver.restart()
        driver.feed({"paid": [payment(4), {**payment(2, 7), "fee": 3}], "orders": [order(5)]})
        driver.drain()
        panes = [(p.key["id"], p.timing, p["owed"]) for p in driver.panes()]
        later = [(1, "EARLY", 24), (7, "EARLY", 2), (1, "ON_TIME", 24), (7, "ON_TIME", 2)]
        if mode == "discarding":
            later = [(1, "EARLY", 6), (7, "EARLY", 2), (1, "ON_TIME", 0), (7, "ON_TIME", 0)]
        assert panes == [(1, "EARLY", 18), *later]
        driver.check(dead_letters=True)


def test_a_message_on_which_a_method_raises_is_a_letter_of_its_input(tmp_path: Path) -> None:
    definition = accounts(agg={"owed": OWED})
    with TestDriver(definition, tmp_path) as driver:
        driver.feed({"orders": [order(1), order(2, 2)], "paid": [{**payment(1), "fee": 1}]})
        driver.feed({"paid": [{**payment(1, 2, None), "fee": 1}, {**payment(2), "fee": 0}]})
        driver.drain()
        assert [(p.key["id"], p["owed"]) for p in driver.panes()] == [(1, 4), (2, 10)]
        [letter] = driver.check(dead_letters=True).dead_letters
        assert letter.reason == "aggregate_failed"


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Owed("amount"), r"owed\('amount'\): give orders=..., paid=..."),
        (lambda: Owed(orders="amount"), "give orders=..., paid=..."),
        (lambda: Owed(orders="amount", paid=3), "3 is not a column"),
        (lambda: OWED.of("paid"), "which input"),
        (lambda: OWED.where(wr.col("amount") > 1), "in its add_... methods"),
        (lambda: accounts(inputs=(ORDERS, wr.Input("bills", event_time="t")), agg={"o": OWED}), "'bills'"),
        (lambda: accounts(inputs=(ORDERS, PAID, wr.Input("x", event_time="t", by="i")), agg={"o": OWED}), "'x'"),
        (lambda: wr.Over(event_time="t", frame=(-1, 0), ttl="1 s", agg={"o": OWED}), "with `add`"),
        (
            lambda: wr.Aggregate(
                event_time="t", window=wr.tumbling("1 s"), retention="1 s", agg={"o": OWED}
            ),
            "with `add`",
        ),
        (lambda: wr.aggregate_function(name="x", returns=pa.int64())(type("X", (), {"add_a": len})), "lacks initial, merge"),
    ],
)  # fmt: skip
def test_what_a_class_over_several_inputs_is_not_given_is_refused(
    build: Callable[[], Any], says: str
) -> None:
    with pytest.raises(e.BadAggregate, match=says):
        build()
