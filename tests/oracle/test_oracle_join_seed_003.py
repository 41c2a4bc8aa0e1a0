"""Seed 003 "Case 2: windowed join": Orders and Shipments, update by update."""

from typing import Any

import pytest

import windrow as wr
from windrow.core.messages import Message, Position
from windrow.core.time import START_OF_TIME_US
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.oracle import JoinOracle

S = 1_000_000


def clock(text: str) -> int:
    hours, minutes, seconds = text.split(":")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * S


def order(offset: int, value: int, key: int, time: str) -> tuple[str, Message]:
    payload = {"value": value, "id": key, "time": clock(time)}
    return "orders", Message(payload, Position("orders:topic", 0, offset))


def shipment(offset: int, cost: int, key: int, time: str) -> tuple[str, Message]:
    payload = {"cost": cost, "id": key, "time": clock(time)}
    return "shipments", Message(payload, Position("shipments:topic", 0, offset))


#: (system wall clock time, message), as the seed lists them.
ARRIVALS = [
    ("9:00:00", order(1, 0, 1, "8:59:10")),
    ("9:00:00", shipment(1000, 0, 3, "9:00:10")),
    ("9:00:10", shipment(1001, 2, 1, "9:00:10")),
    ("9:00:59", order(2, 5, 3, "9:00:00")),
    ("9:01:01", shipment(1002, 3, 1, "9:01:10")),
    ("9:01:01", shipment(1003, 1, 9, "9:01:20")),
    ("9:02:01", order(3, 9, 9, "8:59:30")),
]
#: (id, value, cost) of each of the three updates.
UPDATES = [[(3, 5, 0), (1, 0, 2)], [(1, 0, 3)], [(9, 9, 1)]]
WINDOWS = {"rows": wr.rows(3), "range": wr.sliding("2 minutes")}
EVERY_MINUTE = wr.Emit(early=wr.every("1 minute"), late=wr.every("1 minute"))


def define(kind: str, **options: Any) -> JoinDefinition:
    """SELECT id, value, cost FROM Shipments JOIN Orders OVER (...) ON Orders.id = Shipments.id"""
    return wr.Join(
        left=wr.Input("shipments", event_time="time", window=options.pop("shipments", None)),
        right=wr.Input("orders", event_time="time", window=WINDOWS[kind]),
        on="id",
        retention="1 hour",
        **options,
    )


def selected(rows: list[wr.JoinedRow]) -> list[tuple[int, int, int]]:
    return [(row["id"], row["value"], row["cost"]) for row in rows]


@pytest.mark.parametrize("shipments", [None, wr.unbounded()])
@pytest.mark.parametrize("kind", ["rows", "range"])
def test_every_minute_gives_the_seeds_updates(kind: str, shipments: Any) -> None:
    """Message by message, each at the wall clock time that the seed gives it; updates at 9:01:00, 9:02:00, 9:03:00.

    (The seed's time-based updates are one second earlier.) Within the first the seed has Shipments' order, and we that of
    the steps.
    """
    oracle = JoinOracle(define(kind, emit=EVERY_MINUTE, shipments=shipments))
    updates, left = [], list(ARRIVALS)
    for tick in ("9:01:00", "9:02:00", "9:03:00"):
        while left and clock(left[0][0]) < clock(tick):
            at, (name, message) = left.pop(0)
            assert oracle.ingest({name: [message]}, clock(at), START_OF_TIME_US).rows == []
        updates.append(selected(oracle.advance(START_OF_TIME_US, clock(tick)).rows))
    assert updates == [UPDATES[0][::-1], *UPDATES[1:]]
    assert oracle.advance(START_OF_TIME_US, clock("10:00:00")).rows == []


@pytest.mark.parametrize("kind", ["rows", "range"])
def test_a_step_for_each_update_gives_the_seeds_rows_in_its_order(kind: str) -> None:
    oracle = JoinOracle(define(kind))
    updates = []
    for arrivals in (ARRIVALS[:4], ARRIVALS[4:6], ARRIVALS[6:]):
        step = {
            side: [message for _, (name, message) in arrivals if name == side]
            for side in ("orders", "shipments")
        }
        updates.append(selected(oracle.ingest(step, clock(arrivals[-1][0]), START_OF_TIME_US).rows))
    assert updates == UPDATES


def test_message_by_message_rows_come_with_the_message_that_completes_them() -> None:
    oracle = JoinOracle(define("range"))
    rows = [
        selected(oracle.ingest({name: [message]}, clock(at), START_OF_TIME_US).rows)
        for at, (name, message) in ARRIVALS
    ]
    assert rows == [[], [], [(1, 0, 2)], [(3, 5, 0)], [(1, 0, 3)], [], [(9, 9, 1)]]
