"""Steps of any size: absences and pairs do not depend on them, nor does memory on the number of pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from tests.operators.rules.feeding import emitted, placed, second
from windrow.stores.kv import MemoryKV

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


MISSED = over(bo=wr.event("orders"), no=wr.absent("acks", time=wr.after("bo", *TEN)))


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


def test_a_backtest_emits_absences_when_their_deadline_is_over() -> None:
    alarm = over(bo=wr.event("orders"), no=wr.absent("acks", time=wr.after("bo", *TEN)))
    fires = [{"id": 1, "at": 0, "n": 1}, {"id": 2, "at": second(30), "n": 2}]
    rows = alarm.backtest(
        orders=fires, acks=[{"id": 3, "at": second(t), "n": 0} for t in range(0, 40, 3)], drain=False
    )
    assert [(row["bo"], row["emitted_at"].timestamp()) for row in rows.to_pylist()] == [(1, 31)]


def test_many_pairs_of_one_key_need_little_memory() -> None:
    n = usually(800, deep=20_000)
    pair = over(o=wr.event("orders"), a=wr.event("acks", time=wr.after("o", "-1 day", "1 day")))
    both = pa.table({"id": np.zeros(n, dtype=np.int64), "at": np.arange(n), "n": np.arange(n)})
    logic, before = pair.logic(), pa.total_allocated_bytes()
    tables = {name: placed(name, both, 0) for name in ("orders", "acks")}
    made = logic.ingest(MemoryKV(logic.cfs()), tables, 0)
    rows = logic.rows(made.panes, 1)
    assert len(rows) == n * n and len(made.panes) < 20  # each has a file descriptor
    assert pa.total_allocated_bytes() - before < 64 << 20 < rows.nbytes
