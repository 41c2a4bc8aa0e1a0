"""A class of the user's whose `finish` raises costs the pane, not the messages: the next pane tries again."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from windrow.testing import TestDriver

S = 1_000_000
GIVEN: dict[str, Any] = {"by": "k", "event_time": "t"}


@wr.aggregate_function(name="picky", returns=pa.int64())
class Picky:
    """A sum that cannot be told where it leaves nothing when divided by 3, and is no number where it leaves one at 5."""

    def initial(self) -> int:
        return 0

    def add(self, state: int, value: int | None) -> int:
        return state + (value or 0)

    def merge(self, left: int, right: int) -> int:
        return left + right

    def finish(self, state: int) -> Any:
        if state and state % 3 == 0:
            raise ValueError("three")
        return "none" if state % 5 == 1 else state


def random_aggregation(kind: str, draw: random.Random) -> Any:
    agg = {"x": Picky("v"), "n": wr.count()}  # type: ignore[arg-type, call-arg]
    if kind == "over":
        return wr.Over(
            **GIVEN, frame=wr.range_between("-4 seconds", "0 seconds"), agg=agg, watermark="2 seconds"
        )
    if draw.random() < 0.4:
        agg["middle"] = wr.median("v")
    if kind == "tuples":
        window, size = wr.tuples(draw.choice([2, 3]), step=draw.choice([1, 2])), wr.Retain(windows=50)
        return wr.Aggregate(**GIVEN, window=window, agg=agg, retention=size)
    window = wr.tumbling("5 seconds") if kind == "time" else wr.session("2 seconds")
    emit = wr.Emit(
        early=draw.choice([wr.never, wr.every_batch, wr.every(2)]),
        mode=draw.choice(["accumulating", "retracting", "discarding"]),
    )
    return wr.Aggregate(
        **GIVEN, window=window, agg=agg, emit=emit, retention="1 hour", watermark="2 seconds",
        max_ahead=wr.forever,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(usually(3, deep=300)))
@pytest.mark.parametrize("kind", ["time", "session", "tuples", "over"])
def test_where_finish_raises_the_pane_is_a_dead_letter_and_its_messages_count(kind: str, seed: int) -> None:
    draw, t = random.Random(f"{kind} {seed}"), 0
    with TestDriver(random_aggregation(kind, draw), store="memory") as driver:
        for step in range(10):
            sent = []
            for i in range(draw.randint(1, 4)):
                t = max(t + draw.choice([0, 1, 1, 2, -1]), 0)
                payload = {"t": t * S, "k": draw.choice("aab"), "v": draw.randint(0, 4)}
                sent.append(wr.Message(payload, wr.Position("s", 0, 4 * step + i)))
            driver.feed(sent)
        driver.drain()
        letters = driver.check(dead_letters=True).dead_letters
    failed = [letter for letter in letters if letter.reason == "aggregate_failed"]
    assert failed or seed > 2  # by chance nothing raises in some of the others
    assert all((letter.position is None) == (kind != "over") for letter in failed)
