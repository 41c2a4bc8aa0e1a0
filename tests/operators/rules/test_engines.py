"""Rules against engines that share nothing with them: joins, windows around anchors, and single rules against many."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow as wr
from tests.deep import usually

S = 1_000_000
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("id", pa.int64()), ("v", pa.int64())])
ORDERS, ACKS = wr.Input("orders", event_time="at"), wr.Input("acks", event_time="at")


def tables(seed: int, n: int, keys: int) -> dict[str, pa.Table]:
    """Orders and acknowledgements of about the same times, in order."""
    draw = np.random.default_rng(seed)
    made = {}
    for name in ("orders", "acks"):
        at = np.sort(draw.integers(0, n, n)) * S // 4
        columns = [
            pa.array(at).cast(SCHEMA.field("at").type),
            draw.integers(0, keys, n),
            draw.integers(0, 9, n),
        ]
        made[name] = pa.table(columns, schema=SCHEMA)
    return made


def emitted(definition: Any, inputs: dict[str, pa.Table], location: Path, size: int) -> list[dict[str, Any]]:
    """The rows of a job that gets so many messages of each input a commit."""
    with definition.open(str(location), schema=dict.fromkeys(inputs, SCHEMA)) as op:
        longest = max(map(len, inputs.values()))
        for first in range(0, longest, size):
            op.add_messages({name: table.slice(first, size) for name, table in inputs.items()})
            op.next_offsets()
        op.drain()
        rows: list[dict[str, Any]] = op.result_table().to_pylist()
        return rows


def pairs(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[c] for c in columns) for row in rows), key=repr)


def rules(**one: Any) -> Any:
    return wr.Rules(by="id", inputs=[ORDERS, ACKS], rules={"one": wr.Rule(**one)})


TEN = wr.after("o", 0, "10 seconds")


@pytest.mark.parametrize("size", [9, 1_000])
def test_a_rule_of_two_patterns_is_an_inner_join(size: int, tmp_path: Path) -> None:
    inputs = tables(1, 60, 8)
    pair = rules(
        when={"o": wr.event("orders"), "a": wr.event("acks", time=TEN)},
        then={"at": wr.col("o.at"), "v": wr.col("o.v"), "then": wr.col("a.at"), "w": wr.col("a.v")},
    )
    join = wr.Join(left=ORDERS, right=ACKS, on="id", within=("0 seconds", "10 seconds"), retention="1 minute")
    one = pairs(emitted(pair, inputs, tmp_path / "rules", size), "id", "at", "v", "then", "w")
    other = emitted(join, inputs, tmp_path / "join", size)
    assert one and one == pairs(other, "id", "orders_at", "orders_v", "acks_at", "acks_v")


@pytest.mark.parametrize("size", [9, 1_000])
def test_an_absence_is_an_anti_join(size: int, tmp_path: Path) -> None:
    inputs = tables(2, 60, 20)
    alone = rules(
        when={"o": wr.event("orders"), "no": wr.absent("acks", time=TEN)},
        then={"at": wr.col("o.at"), "v": wr.col("o.v")},
    )
    join = wr.Join(
        left=ORDERS, right=ACKS, on="id", within=("0 seconds", "10 seconds"), how="anti", retention="1 minute"
    )
    one = pairs(emitted(alone, inputs, tmp_path / "rules", size), "id", "at", "v")
    assert one and one == pairs(emitted(join, inputs, tmp_path / "join", size), "id", "at", "v")


def test_an_accumulate_is_a_window_around_anchors(tmp_path: Path) -> None:
    inputs = tables(3, 60, 6)
    agg = {"n": wr.count(), "total": wr.sum("v"), "mean": wr.avg("v"), "last": wr.last("v")}
    near = rules(
        when={
            "o": wr.event("orders"),
            "r": wr.accumulate("acks", time=wr.after("o", "-5 seconds", "3 seconds"), agg=agg),
        },
        then={"at": wr.col("o.at"), "v": wr.col("o.v"), **{name: wr.col(f"r.{name}") for name in agg}},
    )
    over = wr.Over(
        by="id",
        event_time="at",
        agg=agg,
        input="acks",
        anchors=ORDERS,
        frame=wr.range_between("-5 seconds", "3 seconds"),
    )
    columns = ("id", "at", "v", *agg)
    one = pairs(emitted(near, inputs, tmp_path / "rules", 9), *columns)
    assert one == pairs(emitted(over, inputs, tmp_path / "over", 9), *columns)


def test_many_rules_are_as_many_jobs_of_one(tmp_path: Path) -> None:
    draw, inputs = random.Random(4), tables(4, 60, 8)
    made = {}
    for n in range(usually(12, deep=100)):
        least, seconds = draw.randint(0, 6), draw.randint(1, 12)
        time = wr.after("o", 0, f"{seconds} seconds")
        second = draw.choice(
            [wr.event("acks", time=time, where=wr.col("v") >= wr.col("o.v")), wr.absent("acks", time=time)]
        )
        made[f"rule {n}"] = wr.Rule(
            when={"o": wr.event("orders", where=wr.col("v") > least), "second": second},
            then={"v": wr.col("o.v")},
        )
    together = wr.Rules(by="id", inputs=[ORDERS, ACKS], rules=made)
    one = pairs(emitted(together, inputs, tmp_path / "all", 20), "rule", "match_id", "match_time", "v")
    apart = []
    for name, rule in list(made.items())[:: 4 // usually(1, deep=4)]:
        single = wr.Rules(by="id", inputs=[ORDERS, ACKS], rules={name: rule})
        apart += emitted(single, inputs, tmp_path / name, 20)
    named = {row["rule"] for row in apart}
    assert apart and [row for row in one if row[0] in named] == pairs(
        apart, "rule", "match_id", "match_time", "v"
    )


@pytest.mark.timeout(usually(300, deep=14_400))
@pytest.mark.parametrize("cut", usually((20, None), deep=(1, 10, 1_000, None)))
def test_absences_do_not_depend_on_the_cut(cut: int | None, tmp_path: Path) -> None:
    n = usually(400, deep=100_000)
    draw = np.random.default_rng(7)
    at, answered = np.arange(n) * 1_000, draw.random(n) < 0.9
    later = at[answered] + draw.integers(1_000, 9_000, int(answered.sum())) * 1_000
    ids = np.flatnonzero(answered)
    moments = np.r_[at, later]
    order = np.argsort(moments, kind="stable")
    times = pa.array(moments[order]).cast(SCHEMA.field("at").type)
    both = pa.table([times, np.r_[np.arange(n), ids][order], np.zeros(len(order), np.int64)], schema=SCHEMA)
    is_order = order < n
    alone = rules(when={"o": wr.event("orders"), "no": wr.absent("acks", time=TEN)}, then={})
    size = len(order) if cut is None else cut
    with alone.open(str(tmp_path), schema=dict.fromkeys(("orders", "acks"), SCHEMA)) as op:
        for first in range(0, len(order), size):
            batch, own = both.slice(first, size), pa.array(is_order[first : first + size])
            op.add_messages({"orders": batch.filter(own), "acks": batch.filter(pc.invert(own))})
            op.next_offsets()
        op.drain()
        assert sorted(op.result_table()["id"].to_pylist()) == np.flatnonzero(~answered).tolist()
