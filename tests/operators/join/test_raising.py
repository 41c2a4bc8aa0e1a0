"""Conditions that raise on some pairs: the message of a pair that came last is a dead letter, as the oracle says."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow as wr
from tests.deep import usually
from tests.operators.join.cases import ALL, unlike
from windrow.testing import ManualClock, TestDriver

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
            driver.feed({name: messages for name, messages in sent.items() if messages})
        driver.drain()
        expected = driver.check(dead_letters=True)
        assert len(expected.dead_letters) > 4 and {one.reason for one in expected.dead_letters} == {
            "malformed"
        }


RAISING = wr.deliver.newest(1).guarantee(wr.lit(6) / wr.col("v") > 2)


@pytest.mark.parametrize("policy", [wr.deliver.within("4 seconds"), RAISING], ids=["skipped", "dead letter"])
@pytest.mark.parametrize(
    "reference",
    [{"window": wr.session("2 seconds")}, {"within": ("-2 seconds", "2 seconds")}, {"right": wr.rows(2)}],
    ids=["sessions", "time", "rows"],
)
def test_a_message_that_a_policy_does_not_pass_emits_the_columns_of_its_input(
    reference: Any, policy: Any
) -> None:
    left = wr.Input("l", event_time="t", max_ahead=wr.forever)
    right = replace(left, name="r", deliver=policy, window=reference.get("right"))
    rest = {name: value for name, value in reference.items() if name != "right"}
    join = wr.Join(left=left, right=right, on="k", how="left", retention="1 hour", **rest)
    with TestDriver(join, clock=ManualClock(100 * S), store="memory") as driver:
        for offset, (name, v) in enumerate((("l", 3), ("r", 0))):
            driver.add(wr.Message({"t": 2 * S, "k": "ab"[offset], "v": v}, wr.Position("s", 0, offset)), name)
        driver.drain()
        [row] = driver.check(dead_letters=True).rows
    assert (row["l_v"], row["r_v"]) == (3, None)


#: What a step may hold of each input of the random jobs below, and the numbers of those jobs.
KINDS = {"l": "v", "r": "w", "clicks": "g", "sales": "price"}


def fed(job: Any, seed: int, names: str, times: list[int]) -> list[Any]:
    """The dead letters of a job that was fed at random, and did what its oracle says."""
    draw, t = random.Random(seed), 0
    with TestDriver(job, store="memory") as driver:
        for _ in range(8):
            sent: dict[str, list[Any]] = {name: [] for name in dict.fromkeys(names.split())}
            for _ in range(draw.randint(1, 5)):
                name, t = draw.choice(names.split()), max(t + draw.choice(times), 0)
                sent[name].append({"t": t * S, "k": draw.choice("ab"), KINDS[name]: draw.randint(0, 4)})
            driver.feed({name: messages for name, messages in sent.items() if messages})
        driver.drain()
        return driver.check(dead_letters=True).dead_letters


@pytest.mark.parametrize("seed", range(usually(5, deep=200)))
def test_in_sessions_the_message_that_came_last_is_one_too(seed: int) -> None:
    """It is in no session then, and holds none together."""
    draw = random.Random(seed)
    window, options = wr.session(f"{1 + seed % 3} seconds"), {"event_time": "t", "watermark": "2 seconds"}
    left, right = wr.Input("l", **options), wr.Input("r", **options)
    of_one = seed % 4 == 0
    join = wr.Join(
        left=replace(left, window=window) if of_one else left,
        right=right,
        on="k",
        window=None if of_one else window,
        how=draw.choice(["inner", "left", "full", "semi", "anti"]),
        where=wr.lit(6) / (wr.col("v") - wr.col("w")) > -4,
        retention="1 minute",
        allowed_lateness=draw.choice(["0 seconds", "3 seconds"]),
    )
    letters = fed(join, seed, "l r", [0, 1, 1, 2, -2])
    assert "malformed" in {letter.reason for letter in letters}


@pytest.mark.parametrize("seed", [2, 9, *range(100, usually(102, deep=400))])
def test_a_row_of_another_operator_is_one_and_what_is_taken_back_raises_with_nobody(seed: int) -> None:
    """Messages come before rows that are made in their step; who meets a row that goes in it is not to blame."""
    draw = random.Random(seed)
    counts = wr.Aggregate(
        by=draw.choice(["k", ("k", "g")]), event_time="t", window=wr.tumbling("4 seconds"), agg={"n": wr.count()},
        emit=wr.Emit(early=wr.every_batch, mode=draw.choice(["retracting", "accumulating"])), retention="1 hour",
        input="clicks", watermark="2 seconds", name="counts",
    )  # fmt: skip
    how = draw.choice(ALL)
    rows = [
        wr.Input("counts", event_time="window_time"),
        wr.Input("sales", event_time="t", watermark="2 seconds"),
    ]
    left, right = draw.sample(rows, 2)
    join = wr.Join(
        left=left, right=right, on="k", how=how, within=("-6 seconds", "0 seconds" if how == "asof" else "6 seconds"),
        where=wr.lit(6) / (wr.col("n") - wr.col("price")) > -4, retention="1 hour", name="joined",
        allowed_lateness=draw.choice(["0 seconds", "1 hour"]),
    )  # fmt: skip
    assert fed(counts.then(join), seed, "clicks clicks sales", [0, 0, 1, -1])


class Switched:
    """A condition that raises where 0 is divided by, once it is on: another function of the same name, as the job finds it."""

    def __init__(self) -> None:
        self.on = False

    def __call__(self, left: pa.Table, right: pa.Table) -> Any:
        cost = right.column("cost")
        return pc.greater(pc.divide(left.column("value"), cost if self.on else pc.add(cost, 7)), -9)


@pytest.mark.parametrize("scale", ["small", "large"])
@pytest.mark.parametrize("retention", ["1 hour", wr.Retain("1 hour", messages=3)])
def test_a_pair_that_waits_already_and_on_which_the_condition_raises_costs_its_left_message_the_row(
    tmp_path: Path, scale: str, retention: Any
) -> None:
    """Before, each call from then on raised, and the job could not go on. The oracle goes beside."""
    where, clock, location = Switched(), ManualClock(), str(tmp_path / "job")
    join = wr.Join(
        left=wr.Input("l", event_time="t"),
        right=wr.Input("r", event_time="t"),
        on="k",
        within=("-1 minute", "0 seconds"),
        how="asof",
        where=wr.pairs(where, name="quotient"),
        retention=retention,
        scale=scale,
        allowed_lateness="0 seconds",
    )
    steps: list[tuple[str, list[dict[str, Any]]]] = [
        ("r", [{"t": 1 * S, "k": "a", "cost": 0}, {"t": 2 * S, "k": "b", "cost": 2}]),
        ("l", [{"t": (3 + i) * S, "k": k, "value": 6 + i} for i, k in enumerate("abab")]),
        ("r", [{"t": 9 * S, "k": "c", "cost": 1}]),
        ("l", [{"t": 9 * S, "k": "c", "value": 1}]),
        ("r", [{"t": 30 * S, "k": "b", "cost": 3}]),
        ("l", [{"t": 30 * S, "k": "b", "value": 4}]),
    ]
    oracle, emitted, buried = join.oracle(), list[Any](), list[Any]()
    panes, letters = list[Any](), list[Any]()
    for number, (name, rows) in enumerate(steps):
        where.on = number > 1
        with join.open(location, clock=clock) as op:
            op.add_messages(
                [wr.Message(m, wr.Position("s", 0, 10 * number + i)) for i, m in enumerate(rows)], name
            )
            panes += op.get_result()
            letters = op.dead_letters()
            op.flush()
            watermark_us, now_us = op.watermark, clock.now_us()
        messages = [wr.Message(m, wr.Position(f"{name}:s", 0, 10 * number + i)) for i, m in enumerate(rows)]
        for outcome in (
            oracle.ingest({name: messages}, now_us, oracle.watermark_us),
            oracle.advance(watermark_us, now_us),
        ):
            emitted += outcome.rows
            buried += outcome.dead
    assert [(r["l_t"], r["value"], r["cost"]) for r in panes] == [
        (r["l_t"], r["value"], r["cost"]) for r in emitted
    ]
    assert [row["value"] for row in panes] == [7, 9, 1]
    assert [(x.reason, x.input, x.position.offset) for x in letters] == [
        ("malformed", "l", 10),
        ("malformed", "l", 12),
    ]
    assert [(x.reason, x.position.offset) for x in buried] == [("malformed", 10), ("malformed", 12)]
    assert all("divide by zero" in x.detail for x in letters)
    with wr.read_state(location, definition=join) as state:  # who looks at rows does not meet the pair either
        assert [len(state.explain(row)) for row in panes] == [1, 1, 1]
        assert len(state.explain(4 * S)) == 1 and not state.explain(5 * S)
