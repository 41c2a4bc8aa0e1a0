"""Joins of three and more inputs in one process: a later join takes the rows of the operator before it, and an input of its own."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core.errors import ConfigurationError, InputError
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
    wanted = plain(fed)
    assert len(wanted) > 100
    times = ("orders_t", "shipments_t", "t")
    assert Counter((*(us(r[n]) for n in times), r["shipments_v"], r["v"]) for r in sink.panes) == Counter(
        (o["t"], s["t"], p["t"], s["v"], p["v"]) for o, s, p in wanted
    )
