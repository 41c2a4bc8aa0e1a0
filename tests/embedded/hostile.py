"""Any message whatever for a definition of every operator, and how many messages a job of it has counted."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

import windrow as wr
from windrow.core.errors import WindrowError
from windrow.testing.clock import ManualClock

S = 1_000_000
NOON = 1_577_880_000 * S

VALUES: list[Any] = [
    *(None, True, 0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64, 10**40),
    *(0.5, -0.0, 1.0, math.nan, math.inf, 1e300, np.float16(0.5), np.int8(3), np.uint64(2**63 + 5)),
    *("", "text", "1", "noon", "2020-01-01T12:00:00Z", "9999-12-31T23:59:59Z", "\ud800", "\x00", "ä" * 300),
    *(b"", b"\xff\xfe", decimal.Decimal("1.50"), decimal.Decimal("NaN"), decimal.Decimal(10) ** 70),
    *(dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 12), dt.datetime(9999, 12, 31, tzinfo=dt.UTC), dt.time(1)),
    *(dt.timedelta(1), dt.timedelta.max, np.datetime64("2020-01-01"), np.datetime64("NaT"), pd.NaT, pd.NA),
    *({}, {"a": {}}, {"a": 1}, {"a": "x"}, {1: 2}, {"": None}, [], [{}], [1], ["x"], [None], [[1]], [1, "x"]),
    *((1, 2), {1}, object(), uuid.UUID(int=1), Ellipsis, np.array([1, 2]), 1j, range(3), lambda: None),
]
NAMES: list[Any] = [
    "t",
    "k",
    "v",
    "w",
    "u",
    "x",
    "y",
    "n",
    "kind",
    "timing",
    "__x",
    "",
    "a b",
    "\ud800",
    5,
    None,
]


def message(chance: Random) -> dict[Any, Any]:
    """A message, of which mostly something is wrong."""
    row: dict[Any, Any] = {
        "t": NOON + chance.randrange(5) * S,
        "k": chance.choice("ab"),
        "v": chance.randrange(5),
        "w": chance.randrange(5),
        "u": chance.randrange(50),
    }
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        name = chance.choice([*row, *NAMES]) if chance.random() < 0.8 else f"c{chance.randrange(40)}"
        if chance.random() < 0.3:
            row.pop(name, None)
        else:
            row[name] = chance.choice(VALUES)
    return {} if chance.random() < 0.03 else row


class Hostile(NamedTuple):
    """A definition, its inputs, and how many messages an open job of it has counted by itself."""

    definition: Any
    inputs: tuple[str | None, ...]
    counted: Callable[[Any], int]


def _windows(op: Any) -> int:
    return sum(window.messages for window in op.get_windows())


def _rows(op: Any) -> int:
    op.drain()
    return len(op.get_result()) + sum(op.counters.get(n, 0) for n in ("duplicates", "skipped"))


def _kept(op: Any) -> int:
    return sum(len(op.get_messages(input=name)) for name in ("a", "b"))


def _kept_alone(op: Any) -> int:
    return len(op.get_messages())


class Each:
    """One row for each message, the last of which is remembered."""

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> Any:
        state["last"] = message
        return {"one": 1}

    def on_timer(self, key: Any, at: Any, state: Any, timers: Any) -> None:
        return None


ONE: dict[str, Any] = {"by": "k", "event_time": "t", "watermark": "1 day"}
IN_TIME: dict[str, Any] = {**ONE, "window": wr.tumbling("1 hour"), "retention": "2 days"}
SIDES: dict[str, Any] = {
    "left": wr.Input("a", event_time="t", watermark="1 day"),
    "right": wr.Input("b", event_time="t", watermark="1 day"),
    "on": "k",
    "retention": "2 days",
}
GOOD = ((wr.col("v") + 1) > wr.col("w")) | wr.col("v").is_null() | wr.col("v").is_valid()
BASIC: dict[str, Any] = {
    "n": wr.count(),
    "s": wr.sum("v"),
    "hi": wr.max("w"),
    "set": wr.count_distinct("w"),
    "list": wr.collect_list("x"),
    "some": wr.sum(wr.col("v") * 2).where(wr.col("w") > 1),
    "first": wr.first("y"),
}
OPERATORS: dict[str, Hostile] = {
    "aggregate": Hostile(wr.Aggregate(agg=BASIC, **IN_TIME), (None,), _windows),
    "plain aggregate": Hostile(wr.Aggregate(agg={"s": wr.sum("v")}, **IN_TIME), (None,), _windows),
    "medians": Hostile(wr.Aggregate(agg={**BASIC, "m": wr.median("v")}, **IN_TIME), (None,), _windows),
    "sessions": Hostile(
        wr.Aggregate(agg=BASIC, **{**IN_TIME, "window": wr.session("1 second")}), (None,), _windows
    ),
    "tuples": Hostile(
        wr.Aggregate(agg=BASIC, **{**IN_TIME, "window": wr.tuples(100), "retention": wr.forever}),
        (None,),
        _windows,
    ),
    "emitting": Hostile(
        wr.Aggregate(
            agg=BASIC,
            emit=wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting", only_if_changed=True),
            **IN_TIME,
        ),
        (None,),
        _windows,
    ),
    "ids": Hostile(
        wr.Aggregate(agg=BASIC, ids="u", **IN_TIME),
        (None,),
        lambda op: _windows(op) + op.counters.get("duplicates", 0),
    ),
    "made keys": Hostile(
        wr.Aggregate(agg={"n": wr.count()}, **{**IN_TIME, "by": {"z": wr.col("v") + wr.col("w")}}),
        (None,),
        _windows,
    ),
    "over": Hostile(
        wr.Over(agg={"s": wr.sum("v")}, frame=wr.rows_between(-2, 0, partial="emit"), ttl="2 days", **ONE),
        (None,),
        _rows,
    ),
    "over as they come": Hostile(
        wr.Over(
            agg={"s": wr.sum("v"), "m": wr.max("w")},
            frame=wr.rows_between(-2, 0, partial="emit", order="position"),
            ttl="2 days",
            **ONE,
        ),
        (None,),
        _rows,
    ),
    "over time": Hostile(
        wr.Over(
            agg={"s": wr.sum("v"), "n": wr.count().where(wr.col("w") > 1)},
            frame=wr.range_between("-2 seconds", "1 second"),
            select=("u",),
            deliver=wr.deliver.within("10 days").guarantee(wr.col("w") > 2),
            **ONE,
        ),
        (None,),
        _rows,
    ),
    "deduplicate": Hostile(wr.Deduplicate(ids="u", within="2 days", where=GOOD, **ONE), (None,), _rows),
    "delivery": Hostile(wr.Delivery(policy=wr.deliver.latest(), **ONE), (None,), _rows),
    "process": Hostile(
        wr.Process(function=Each, emits={"one": pa.int64()}, ttl="2 days", **ONE), (None,), _rows
    ),
    "join window": Hostile(wr.JoinWindow(join_keys="v", **IN_TIME), (None,), _kept_alone),
    "join": Hostile(
        wr.Join(within=("-1 second", "1 second"), where=wr.col("a_v") <= wr.col("b_v"), how="full", **SIDES),
        ("a", "b"),
        _kept,
    ),
    "join as of": Hostile(wr.Join(within=("-1 second", "0 seconds"), how="asof", **SIDES), ("a", "b"), _kept),
    "cogroup": Hostile(
        wr.CoGroup(
            inputs=[SIDES["left"], SIDES["right"]],
            by="k",
            window=wr.tumbling("1 hour"),
            retention="2 days",
            agg={"n": wr.count(), "s": wr.sum("v").of("a"), "m": wr.max("v").of("b"), "all": wr.max("w")},
        ),
        ("a", "b"),
        _windows,
    ),
}


def play(
    name: str, seed: int, location: str, *, messages: int, store: str = "memory"
) -> tuple[int, int, int]:
    """Give a job messages in any way, a commit after each, opened anew at times. Returns how many it was given, how many it
    counted, and how many dead letters it has."""
    definition, inputs, counted = OPERATORS[name]
    chance, clock = Random(f"{name} {seed}"), ManualClock(NOON + 10 * S)
    op, sent = definition.open(location, clock=clock, store=store), len(inputs)
    for input in inputs:  # of all columns
        op.add_messages(
            [{"t": NOON, "k": "a", "v": 1, "w": 1, "u": 1000, "x": None, "y": None}], *filter(None, [input])
        )
    for _ in range(messages):
        rows, to = (
            [message(chance) for _ in range(chance.choice([1, 1, 2]))],
            filter(None, [chance.choice(inputs)]),
        )
        how, taken = chance.choice(["one", "many", "table"]), True
        if how == "table":
            try:
                table = pa.table({n: [value] for n, value in rows[0].items() if isinstance(n, str)})
            except Exception:
                how = "many"  # Arrow has no such table
        if how == "table":
            rows = rows[: len(table)]
            try:
                op.add_messages(table, *to)
            except WindrowError:  # the table as a whole is refused, by name
                taken = False
        elif how == "many":
            op.add_messages(rows, *to)
        else:
            rows = rows[:1]
            op.add_message(rows[0], *to)
        sent += len(rows) * taken
        op.next_offsets()  # a commit
        if chance.random() < 0.1:
            op.close()
            op = definition.open(location, clock=clock, store=store)
    with op:
        alone = counted(op)  # it may drain the job
        return sent, alone, len(op.dead_letters())
