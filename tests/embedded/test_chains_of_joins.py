"""Joins of three and more inputs in one process: a later join takes the rows before it, and an input of its own."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core.errors import ConfigurationError, InputError, UnknownColumn
from windrow.core.time import instant_us
from windrow.testing import ManualClock

S = 1_000_000


def us(time: Any) -> int:
    return instant_us(time, "time")


def at(second: float, **fields: Any) -> wr.Message:
    return wr.Message({"t": int(second * S), "k": "a", **fields})


def shipped(how: str = "inner", **changes: Any) -> wr.Join:
    """Orders and their shipments, at most five seconds later."""
    settings: dict[str, Any] = {"on": "k", "within": ("0 seconds", "5 seconds"), "name": "shipped", **changes}
    orders, shipments = (wr.Input(n, event_time="t") for n in ("orders", "shipments"))
    return wr.Join(left=orders, right=shipments, how=how, **settings)


def paid(how: str = "inner", **changes: Any) -> wr.Join:
    """With payments, up to four seconds around the order."""
    settings: dict[str, Any] = {"on": "k", "within": ("-4 seconds", "4 seconds"), "name": "paid", **changes}
    rows = wr.Input("shipped", event_time="orders_t")
    payments = wr.Input("payments", event_time="t", static=settings.pop("static", False))
    return wr.Join(left=rows, right=payments, how=how, **settings)


CHAIN = shipped().then(paid())
PER_TEN = wr.Aggregate(
    by="k", event_time="orders_t", window=wr.tumbling("10 seconds"), agg={"n": wr.count(), "paid": wr.sum("v")},
    retention="1 minute", name="tens",
)  # fmt: skip
INPUTS = ("orders", "shipments", "payments")


def random_messages(n: int = 240) -> list[tuple[str, wr.Message]]:
    """Three inputs of a minute, each up to two seconds out of order."""
    draw = random.Random(7)
    times = [(draw.uniform(0, 60), draw.choice(INPUTS)) for _ in range(n)]
    fed, seen = [], Counter[str]()
    for time, name in sorted(times, key=lambda one: one[0] + draw.uniform(0, 2)):
        payload = {"t": int(time * S), "k": draw.choice("abc"), "v": draw.randrange(9)}
        fed.append((name, wr.Message(payload, wr.Position("x", 0, seen[name]))))
        seen[name] += 1
    return fed


def plain(fed: list[tuple[str, wr.Message]]) -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """All triples, by three loops."""
    orders, shipments, payments = ([m.payload for name, m in fed if name == n] for n in INPUTS)
    return [
        (o, s, p)
        for o in orders
        for s in shipments
        for p in payments
        if o["k"] == s["k"] == p["k"] and 0 <= s["t"] - o["t"] <= 5 * S and abs(p["t"] - o["t"]) <= 4 * S
    ]


def test_a_join_of_three_inputs_gives_every_triple_once(tmp_path: Path) -> None:
    """Messages two seconds out of order, one by one, over three runs that are fed everything again."""
    fed = random_messages()
    watermarks = {"allowed_lateness": "10 seconds", "retention": "20 seconds"}
    chain = shipped(**watermarks).then(paid(**watermarks))
    sink = wr.sinks.memory()
    for upto in (80, 160, 240):
        with chain.open(str(tmp_path), clock=ManualClock(0), sink=sink) as op:
            for name, message in fed[:upto]:
                op.add_message(message, name)
            assert {n: o["x", 0] for n, o in op.next_offsets().items()} == Counter(n for n, _ in fed[:upto])
            assert set(op.engine.staged.marks) == {(f"{n}:x", 0) for n in INPUTS}, (
                "only what comes from outside moves the watermark"
            )
    wanted = plain(fed)
    assert len(wanted) > 100
    times = ("orders_t", "shipments_t", "t")
    assert Counter((*(us(r[n]) for n in times), r["shipments_v"], r["v"]) for r in sink.panes) == Counter(
        (o["t"], s["t"], p["t"], s["v"], p["v"]) for o, s, p in wanted
    )


def rows(op: Any, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(us(r[n]) // S if n.endswith("t") else r[n] for n in names) for r in op.get_result()]


def test_an_unmatched_row_waits_until_no_payment_can_come(tmp_path: Path) -> None:
    """The watermark of the second join stays five seconds behind, so long may a shipment be awaited."""
    chain = shipped(allowed_lateness="0 seconds").then(paid("left", allowed_lateness="0 seconds"))
    with chain.open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages({n: [at(1)] for n in ("orders", "shipments")})
        for second in (9, 10, 10.5):
            op.add_messages({n: [at(second, k="b")] for n in INPUTS})
            unmatched = [r for r in rows(op, "k", "orders_t") if r[0] == "a"]
            assert unmatched == ([("a", 1)] if second == 10.5 else [])
        assert op.dead_letters() == []


def test_late_messages_of_any_input_are_judged_by_the_join_that_takes_them(tmp_path: Path) -> None:
    """A dead letter names the operator and the input; the source is as it was given."""
    strict = {"allowed_lateness": "0 seconds", "retention": "1 minute"}
    chain = shipped(**strict).then(paid(**strict))
    with chain.open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages({n: [at(30)] for n in INPUTS})
        op.add_message(
            wr.Message(at(26).payload, wr.Position("p", 3, 7)), "payments"
        )  # 30 - 5 are still awaited
        assert op.dead_letters() == []
        for name in INPUTS:
            op.add_message(wr.Message(at(20).payload, wr.Position("y", 0, 0)), name)
        reasons = [(d.reason, d.input, d.position.source) for d in op.dead_letters() if d.position]
        assert reasons == [("too_late", name, "y") for name in INPUTS]


def test_the_watermark_is_the_minimum_over_all_inputs_that_are_not_static(tmp_path: Path) -> None:
    for static, reached in ((False, 0), (True, 20)):
        with (
            shipped().then(paid(static=static)).open(str(tmp_path / str(static)), clock=ManualClock(0)) as op
        ):
            for name in ("orders", "shipments"):
                op.add_message(at(20), name)
            assert (op.watermark == reached * S) == static
            op.add_message(at(18), "payments")
            assert op.watermark == (20 if static else 18) * S
    delayed = wr.Join(
        left=wr.Input("shipped", event_time="orders_t"), right=wr.Input("payments", event_time="t", watermark="6 seconds"),
        on="k", within=("0 seconds", "1 second"), name="paid",
    )  # fmt: skip
    with shipped().then(delayed).open(str(tmp_path / "delayed"), clock=ManualClock(0)) as op:
        op.add_messages({n: [at(20)] for n in INPUTS})
        assert op.watermark == 14 * S


def test_a_table_can_be_looked_up_by_the_rows_of_a_join(tmp_path: Path) -> None:
    rates = wr.Join(
        left=wr.Input("shipped", event_time="orders_t"), right=wr.Input("rates", event_time="t", static=True),
        on="k", within=("-1 day", "0 seconds"), how="left", name="rated",
    )  # fmt: skip
    with shipped().then(rates).open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages({"rates": [at(0, rate=7)], "orders": [at(1000)], "shipments": [at(1001)]})
        op.add_messages({"orders": [at(1002, k="b")], "shipments": [at(1003, k="b")]})
        op.drain()
        assert rows(op, "k", "rate") == [("a", 7), ("b", None)]


def test_panes_of_an_aggregate_meet_messages_and_are_counted_again(tmp_path: Path) -> None:
    """The windows of the aggregate say where messages stood for whoever fed them."""
    counts = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("1 second"), agg={"n": wr.count(), "m": wr.median("v")},
        retention="1 minute", emit=wr.Emit.append(), input="readings", name="counts",
    )  # fmt: skip
    alarms = wr.Join(
        left=wr.Input("limits", event_time="t"), right=wr.Input("counts", event_time="window_time"),
        on="k", within=("0 seconds", "10 seconds"), where=wr.col("n") > wr.col("most"), name="alarms",
    )  # fmt: skip
    last = wr.Aggregate(
        by="k", event_time="window_time", window=wr.tumbling("10 seconds"), agg={"n": wr.sum("n"), "alarms": wr.count()},
        retention="1 minute", name="last",
    )  # fmt: skip
    with counts.then(alarms).then(last).open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_message(at(0.5, most=2), "limits")
        fed = [at(s, v=1) for s in (1, 1.1, 1.2, 2, 3, 3.1, 3.2, 3.3)]
        op.add_messages(
            [wr.Message(m.payload, wr.Position("x", 1, i)) for i, m in enumerate(fed)], "readings"
        )
        assert op.next_offsets() == {"readings": {("x", 1): 8}, "limits": {("", 0): 1}}
        assert op.next_offsets(input="readings") == {("x", 1): 8}
        assert {w.first.source for w in op.get_windows(operator="counts")} == {"x"}
        assert [m.position.source for m in op.get_messages(operator="counts")] == ["x"] * 8
        op.add_message(wr.Message({"t": "never", "k": "a", "v": 1}, wr.Position("x", 1, 8)), "readings")
        assert [(d.reason, d.input, d.position) for d in op.dead_letters()] == [
            ("malformed", "readings", wr.Position("x", 1, 8))
        ]
        op.drain()
        assert [(p.key["k"], p["n"], p["alarms"]) for p in op.get_result()] == [("a", 7, 2)]


def test_columns_of_the_same_name_are_distinguished_as_in_any_join(tmp_path: Path) -> None:
    chain = shipped().then(paid())
    with chain.open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages(
            {n: [at(1, v=i, orders_t=9)] if n == "payments" else [at(1, v=i)] for i, n in enumerate(INPUTS)}
        )
        [row] = op.get_result()
        assert set(row.values) == {
            "k", "shipped_orders_t", "orders_v", "shipments_t", "shipments_v", "payments_orders_t", "t", "v",
        }  # fmt: skip


def test_windows_and_messages_of_every_input_can_be_asked_for(tmp_path: Path) -> None:
    """`input=` finds the join; the rows that one hands on are an input of the next."""
    with CHAIN.then(PER_TEN).open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages({n: [at(i + 1, v=i)] for i, n in enumerate(INPUTS)})
        for name in (*INPUTS, "shipped"):
            assert [m.position.source for m in op.get_messages(input=name)] == [
                "shipped" * (name == "shipped")
            ]
            assert [w.messages for w in op.get_windows(input=name)] == [1]
        assert [w.values for w in op.get_windows()] == [{"n": 1, "paid": 2}]
        with pytest.raises(ConfigurationError, match=r"'paid' has several inputs.*\['shipped', 'payments'\]"):
            op.get_messages(operator="paid")
        with pytest.raises(
            InputError, match=r"input 'shipped' is none of 'tens'.*\['orders', 'shipments', 'payments'\]"
        ):
            op.add_message(at(1), "shipped")
        with pytest.raises(InputError, match=r"'tens' has several inputs.*'payments'"):
            op.add_message(at(1))


def test_an_input_without_the_columns_of_a_later_join_is_refused_when_rows_come(tmp_path: Path) -> None:
    chain = shipped().then(paid(on={"price": "k"}))
    with (
        chain.open(str(tmp_path), clock=ManualClock(0)) as op,
        pytest.raises(UnknownColumn, match="'price' of 'shipped'"),
    ):
        op.add_messages({n: [at(1)] for n in INPUTS})
