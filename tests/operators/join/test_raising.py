"""Conditions that raise on some pairs: the message of a pair that came last is a dead letter, as the oracle says."""

from __future__ import annotations

from typing import Any

import pytest

import windrow as wr
from tests.operators.join.cases import ALL, unlike
from windrow.testing import TestDriver

S = 1_000_000
CASES = [
    (how, alone, function)
    for n, how in enumerate(ALL)
    for alone in (False, True)
    for function in [n % 2 == 0]
]


@pytest.mark.parametrize(("how", "alone", "function"), CASES)
def test_of_pairs_on_which_a_condition_raises_the_message_that_came_last_is_a_dead_letter(
    how: Any, alone: bool, function: bool
) -> None:
    left = wr.Input("l", event_time="t", watermark="0 seconds", max_ahead=wr.forever)
    right = left if alone else wr.Input("r", event_time="t", watermark="0 seconds", max_ahead=wr.forever)
    one, other = ("left_v", "right_v") if alone else ("l_v", "r_v")
    quotient = wr.lit(6) / (wr.col(one) + wr.col(other) - 4) < 4
    join = wr.Join(
        left=left,
        right=right,
        on="k",
        within=("-1 minute", "0 seconds"),
        how=how,
        where=wr.pairs(unlike, name="unlike") if function else quotient,
        retention="1 hour",
        allowed_lateness="3 seconds",
    )
    with TestDriver(join, store="memory") as driver:
        for step in range(6):
            sent: dict[str, list[wr.Message]] = {"r": [], "l": []}
            for i in range(3):
                name = "l" if alone or (i + step) % 2 else "r"
                payload = {"t": (2 * step + i) * S, "k": "a", "v": (step * 3 + i * 2) % 5}
                sent[name].append(wr.Message(payload, wr.Position(f"{name}:s", 0, 3 * step + i)))
            driver.feed({name: some for name, some in sent.items() if some})
        driver.drain()
        expected = driver.check()
        assert len(expected.dead_letters) > 4 and {one.reason for one in expected.dead_letters} == {
            "malformed"
        }
