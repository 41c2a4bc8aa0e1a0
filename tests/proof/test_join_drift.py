"""Joins whose columns come and go and whose types drift, opened anew between steps, against the oracle. Seeds, not a search:
one that fails is told by its number, and gives the same job again.
"""

from __future__ import annotations

import random
from decimal import Decimal as D
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.deep import usually
from windrow.core.errors import ConfigurationError
from windrow.testing import ManualClock, TestDriver

S = 1_000_000
NUMBERS = (None, 0, 1, 2, 1.5, 2.0, D("1.5"), D("2.25"), -1)
KEYS = (1, 1, 2, 2.0, 1.0, float("nan"), None, D("1"), D("2.0"), -0.0, 0)
#: What may not be, or is called as something else already is.
ODD = ("commit", "pane", "window", "right_v", "left_v", "orders_v", "shipments_w", "left_k", "right_t")


def drawn(r: random.Random) -> wr.Join:
    """Some join; what is refused is drawn again."""
    rows, names = r.random() < 0.3, r.choice([("left", "right"), ("orders", "shipments")])
    windows = [
        None,
        *([wr.rows(2), wr.rows(3, per="input")] if rows else [wr.sliding("4 s"), wr.tumbling("5 s")]),
    ]
    watermark = r.choice([wr.explicit(), wr.bounded("0 s"), wr.bounded("3 s")])
    left, right = (
        wr.Input(name, event_time=t, window=r.choice(windows), watermark=watermark)
        for name, t in zip(names, ("t", r.choice("tu")), strict=True)
    )
    itself = r.random() < 0.15
    prefixes = ("left", "right") if itself else names
    options: dict[str, Any] = {
        "left": left,
        "right": left if itself else right,
        "on": r.choice(["k", ("k", "g"), {"k": "g"}, ()]),
        "how": r.choice(["inner", "left", "right", "full", "semi", "anti", "asof"]),
        "within": r.choice([None, ("-3 s", "4 s"), ("-5 s", "0 s")]),
        "allowed_lateness": r.choice([None, "0 s", "2 s"]),
        "retention": r.choice([None, "20 s"]),
        "scale": r.choice([None, "small", "large"]),
    }
    if r.random() < 0.25:
        options["emit"] = wr.Emit(early=wr.every("2 s"), late=wr.every_batch)
    if r.random() < 0.25:
        a, b = (wr.col(f"{p}_v") for p in prefixes)
        options["where"] = r.choice([a > b, a > 1])
    try:
        return wr.Join(**options)
    except ConfigurationError:
        return drawn(r)


def payload(r: random.Random, definition: wr.Join, one: wr.Input, t: int) -> dict[str, Any]:
    keys = {c for pair in definition.on for c in pair}
    made: dict[str, Any] = {one.event_time: t * S, **{c: r.choice(KEYS) for c in sorted(keys)}}
    for column in "kgvwxtu":
        if column not in made and r.random() < 0.35:
            made[column] = r.choice(NUMBERS)
    if definition.where is not None:
        made.setdefault("v", None)
    if r.random() < 0.06:
        made[r.choice(ODD)] = r.choice([1, None])
    if r.random() < 0.03:
        made[one.event_time] = r.choice([None, "soon", float("nan")])
    return made


@pytest.mark.parametrize("seed", range(usually(9, deep=300)))
def test_a_join_of_columns_that_drift_gives_what_the_oracle_gives(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    definition, clock, t = drawn(r), ManualClock(), 0
    driver = TestDriver(definition, tmp_path, clock=clock)
    for _ in range(r.randint(6, 20)):
        t += r.choice([0, 0, 1, 1, 2, 5])
        kind = r.random()
        if kind < 0.75:
            driver.feed(
                {
                    one.name: [
                        payload(r, definition, one, max(0, t - r.choice([0, 0, 1, 4, 8])))
                        for _ in range(r.randint(0, 3))
                    ]
                    for one in definition.inputs
                }
            )
        elif kind < 0.85 and definition.left.watermark == wr.explicit():
            driver.advance_watermark(t * S)
        else:
            clock.advance("1 second")
            driver.timeout()
        if r.random() < 0.5:
            driver.timeout()
            driver.restart()
    driver.drain()
    driver.check(dead_letters=True)
    driver.assert_state_zero()
    driver.close()
