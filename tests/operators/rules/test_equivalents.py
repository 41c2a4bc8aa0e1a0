"""Other engines of the library agree with rules: a pair is a join, an absence an anti join, an accumulate an OVER."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from tests.operators.rules.feeding import emitted, second

TEN = ("0 seconds", "10 seconds")


def orders(n: int, seed: int) -> tuple[pa.Table, pa.Table, set[int]]:
    """Orders, one a millisecond; acknowledgements of nine in ten of them after up to nine seconds; those without one."""
    draw = np.random.default_rng(seed)
    at, missed = np.arange(n) * 1000, draw.random(n) < 0.1
    late = at + draw.integers(1_000_000, 9_000_000, n)
    order = np.argsort(late[~missed], kind="stable")
    placed = pa.table({"id": np.arange(n) % 97 * 1000 + np.arange(n) // 97, "at": at, "n": np.arange(n)})
    acks = placed.filter(pa.array(~missed)).set_column(1, "at", pa.array(late[~missed])).take(pa.array(order))
    return placed, acks, set(np.flatnonzero(missed).tolist())


def over(**when: Any) -> wr.Rules:
    inputs = [wr.Input("orders", event_time="at"), wr.Input("acks", event_time="at")]
    then = {name: wr.col(f"{name}.n") for name, pattern in when.items() if pattern.binds}
    return wr.Rules(by="id", inputs=inputs, rules={"r": wr.Rule(when=when, then=then)})


def join(how: Any) -> wr.Join:
    sides = {"left": wr.Input("orders", event_time="at"), "right": wr.Input("acks", event_time="at")}
    return wr.Join(**sides, on="id", within=TEN, how=how)


PAIRS = over(bo=wr.event("orders"), ae=wr.event("acks", time=wr.after("bo", *TEN)))
MISSED = over(bo=wr.event("orders"), no=wr.absent("acks", time=wr.after("bo", *TEN)))


def test_a_rule_of_two_patterns_is_a_join() -> None:
    placed, acks, missed = orders(2000, 7)
    rows = PAIRS.apply(orders=placed, acks=acks)
    joined = join("inner").apply(orders=placed, acks=acks)
    pairs = set(zip(rows["bo"].to_pylist(), rows["ae"].to_pylist(), strict=True))
    assert pairs == set(zip(joined["orders_n"].to_pylist(), joined["acks_n"].to_pylist(), strict=True))
    assert len(pairs) == len(rows) == 2000 - len(missed)


def test_an_absence_is_an_anti_join() -> None:
    placed, acks, missed = orders(2000, 7)
    rows = MISSED.apply(orders=placed, acks=acks)["bo"].to_pylist()
    assert (
        sorted(rows)
        == sorted(join("anti").apply(orders=placed, acks=acks)["n"].to_pylist())
        == sorted(missed)
    )


@pytest.mark.parametrize("cut", [10, 1000, 20_000])
def test_absences_do_not_depend_on_the_cut(cut: int) -> None:
    placed, acks, missed = orders(usually(1000, deep=20_000), 7)
    both = sorted(
        [(m["at"], "orders", m) for m in placed.to_pylist()]
        + [(m["at"], "acks", m) for m in acks.to_pylist()],
        key=lambda one: one[:2],
    )
    steps = []
    for i in range(0, len(both), cut):
        step: dict[str, list[dict[str, Any]]] = {}
        for _, name, message in both[i : i + cut]:
            step.setdefault(name, []).append(message)
        steps.append(step)
    assert sorted(row["bo"] for row in emitted(MISSED, steps, "orders", "at")) == sorted(missed)


def test_an_accumulate_near_an_event_is_an_over_around_it() -> None:
    draw = np.random.default_rng(3)
    readings = pa.table(
        {"at": np.sort(draw.integers(0, 60, 80)), "id": draw.integers(0, 2, 80), "x": draw.integers(0, 9, 80)}
    )
    anchors = pa.table({"at": np.arange(60), "id": np.arange(60) % 2, "n": np.arange(60)})
    agg = {"count": wr.count(), "sum": wr.sum("x")}
    around = wr.Over(
        by="id", event_time="at", input="acks", anchors=wr.Input("orders", event_time="at"), agg=agg, select=("n",),
        frame=wr.range_between("-5 us", "3 us"),
    )  # fmt: skip
    near = over(a=wr.event("orders"), r=wr.accumulate("acks", agg=agg, time=wr.after("a", "-5 us", "3 us")))
    rules = near.of_rules({"r": wr.Rule(when=near.rules["r"].when)})
    found = {
        r["a_n"]: (r["r_count"], r["r_sum"]) for r in rules.apply(orders=anchors, acks=readings).to_pylist()
    }
    assert found == {
        r["n"]: (r["count"], r["sum"]) for r in around.apply(orders=anchors, acks=readings).to_pylist()
    }
    assert len(found) == 60


def test_many_rules_emit_what_a_job_of_each_emits() -> None:
    placed, acks, _ = orders(300, 5)
    rules = {}
    for i in range(usually(8, deep=100)):
        when = PAIRS.rules["r"].when if i % 2 else MISSED.rules["r"].when
        binding = "ae" if i % 2 else "no"
        pattern = (wr.event if i % 2 else wr.absent)("acks", time=wr.after("bo", 0, f"{i + 1} seconds"))
        rules[f"r{i}"] = wr.Rule(when={"bo": when["bo"], binding: pattern}, then={"n": wr.col("bo.n")})
    inputs = list(PAIRS.inputs)
    one = wr.Rules(by="id", inputs=inputs, rules=rules).apply(orders=placed, acks=acks)
    each = [
        wr.Rules(by="id", inputs=inputs, rules={n: r}).apply(orders=placed, acks=acks)
        for n, r in rules.items()
    ]
    found = sorted(zip(one["rule"].to_pylist(), one["match_id"].to_pylist(), strict=True))
    assert found == sorted(
        pair
        for rows in each
        for pair in zip(rows["rule"].to_pylist(), rows["match_id"].to_pylist(), strict=True)
    )
    assert len(found) > 300


def test_a_backtest_emits_absences_when_their_deadline_is_over() -> None:
    alarm = over(bo=wr.event("orders"), no=wr.absent("acks", time=wr.after("bo", *TEN)))
    fires = [{"id": 1, "at": 0, "n": 1}, {"id": 2, "at": second(30), "n": 2}]
    rows = alarm.backtest(
        orders=fires, acks=[{"id": 3, "at": second(t), "n": 0} for t in range(0, 40, 3)], drain=False
    )
    assert [(row["bo"], row["emitted_at"].timestamp()) for row in rows.to_pylist()] == [(1, 31)]
