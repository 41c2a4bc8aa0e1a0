"""Seed 003 "Case 2: windowed join": Orders and Shipments give exactly the outputs that the seed lists, update by update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.testing.clock import ManualClock

S = 1_000_000


def at(hour: int, minute: int, second: int) -> int:
    return ((hour * 60 + minute) * 60 + second) * S


def order(offset: int, value: int, key: int, time_us: int) -> wr.Message:
    payload = {"id": key, "value": value, "time": time_us}
    return wr.Message(payload, wr.Position("Orders", 0, offset))


def shipment(offset: int, cost: int, key: int, time_us: int) -> wr.Message:
    payload = {"id": key, "cost": cost, "time": time_us}
    return wr.Message(payload, wr.Position("Shipments", 0, offset))


#: (wall clock of the arrival of the last, messages by input), then what the next update gives as (id, value, cost).
UPDATES: list[tuple[int, dict[str, list[wr.Message]], list[tuple[int, int, int]]]] = [
    (
        at(9, 0, 59),
        {
            "orders": [order(1, 0, 1, at(8, 59, 10)), order(2, 5, 3, at(9, 0, 0))],
            "shipments": [shipment(1000, 0, 3, at(9, 0, 10)), shipment(1001, 2, 1, at(9, 0, 10))],
        },
        [(3, 5, 0), (1, 0, 2)],
    ),
    (
        at(9, 1, 1),
        {"shipments": [shipment(1002, 3, 1, at(9, 1, 10)), shipment(1003, 1, 9, at(9, 1, 20))]},
        [(1, 0, 3)],
    ),
    (at(9, 2, 1), {"orders": [order(3, 9, 9, at(8, 59, 30))]}, [(9, 9, 1)]),
]


@pytest.mark.parametrize(
    "window", [wr.rows(3, per="input"), wr.sliding("2 minutes")], ids=["tuple window", "time window"]
)
@pytest.mark.parametrize("restarts", [False, True])
def test_orders_and_shipments_give_what_the_seed_lists(tmp_path: Path, window: Any, restarts: bool) -> None:
    """SELECT id, value, cost FROM Shipments JOIN Orders OVER (...) ON Orders.id = Shipments.id, an update every minute."""
    every_minute = wr.every("1 minute")
    join = wr.Join(
        left=wr.Input("shipments", event_time="time"),
        right=wr.Input("orders", event_time="time", window=window),
        on="id",
        retention="1 hour",
        emit=wr.Emit(early=every_minute, late=every_minute),
    )
    clock = ManualClock(at(9, 0, 0))
    op = join.open(str(tmp_path), clock=clock)
    for wall_us, messages, expected in UPDATES:
        clock.set(wall_us)
        op.add_messages(messages)
        assert op.get_result() == []
        if restarts:
            op.close()
            op = join.open(str(tmp_path), clock=clock)
        clock.set(wall_us // (60 * S) * 60 * S + 60 * S)
        op.timeout()
        assert [(row["id"], row["value"], row["cost"]) for row in op.get_result()] == expected
        op.flush()
    op.drain()
    assert op.get_result() == []
    op.close()
