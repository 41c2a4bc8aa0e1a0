"""Facts: current rows of tables, joined with events as of a step, or waited for; and rules in which no time passes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

import windrow as wr
from tests.deep import usually
from tests.operators.rules.feeding import Steps, emitted, second
from windrow.testing import TestDriver

WITHDRAWALS = wr.Rules(
    by="account",
    inputs=[
        wr.Input("atm", event_time="at"),
        wr.Input("branch", event_time="at"),
        wr.Table("accounts", key="account", deleted="closed"),
    ],
    rules={
        "authorize": wr.Rule(
            when={
                "w": wr.event("atm"),
                "a": wr.fact("accounts", where=wr.col("balance") > wr.col("w.amount")),
            },
            then={"amount": wr.col("w.amount")},
        ),
        "fee": wr.Rule(
            when={"w": wr.event("branch", where=wr.col("processed")), "a": wr.fact("accounts")},
            then={"fee": wr.lit(2)},
        ),
    },
)


def rows(driver: TestDriver, *columns: str) -> list[Any]:
    return [tuple(row[c] for c in columns) for row in driver.op.get_result()]


def test_an_event_meets_the_row_that_is_current() -> None:
    with TestDriver(WITHDRAWALS) as driver:
        op = driver.op
        op.add_message({"account": 7, "balance": 100, "closed": False}, "accounts")
        op.add_message({"account": 7, "amount": 50, "at": second(1)}, "atm")
        op.add_message({"account": 7, "amount": 150, "at": second(2)}, "atm")
        op.add_message({"account": 8, "amount": 50, "at": second(2)}, "atm")
        op.add_message({"account": 7, "balance": 200, "closed": None}, "accounts")
        op.add_message({"account": 7, "amount": 150, "at": second(3)}, "atm")
        op.add_message({"account": 7, "amount": 1, "at": second(3), "processed": True}, "branch")
        op.add_message({"account": 7, "balance": 200, "closed": True}, "accounts")
        op.add_message({"account": 7, "amount": 50, "at": second(4)}, "atm")
        assert rows(driver, "rule", "amount", "fee") == [
            ("authorize", 50, None),
            ("authorize", 150, None),
            ("fee", None, 2),
        ]


def test_rows_that_are_deleted_before_they_come_are_not_there() -> None:
    with TestDriver(WITHDRAWALS) as driver:
        driver.op.add_messages(
            {
                "accounts": [
                    {"account": 7, "balance": 9, "closed": True},
                    {"account": 8, "balance": 9, "closed": False},
                ],
                "atm": [{"account": a, "amount": 1, "at": second(1)} for a in (7, 8)],
            }
        )
        assert rows(driver, "account") == [(8,)]


@pytest.mark.parametrize(("late", "matches"), [(59, 1), (60, 1), (61, 0)])
def test_a_fact_is_waited_for(late: int, matches: int) -> None:
    rule = wr.Rule(when={"w": wr.event("w"), "a": wr.fact("a", wait="1 minute")})
    waits = wr.Rules(
        by="k", inputs=[wr.Input("w", event_time="at"), wr.Table("a", key="k")], rules={"waits": rule}
    )
    with TestDriver(waits) as driver:
        driver.op.add_message({"k": 1, "at": 0}, "w")
        driver.op.add_message({"k": 2, "at": second(late)}, "w")
        driver.op.add_message({"k": 1}, "a")
        assert len(driver.op.get_result()) == matches
        driver.drain()
        overlay = driver.op.engine.staged.overlay
        assert [
            cf for cf in driver.op.engine.logic.cfs() if cf != "rules.aux" and list(overlay.scan(cf))
        ] == []


def test_a_fact_that_does_not_wait_takes_no_later_row() -> None:
    """Another fact of its rule waits, and messages may be late."""
    when = {"w": wr.event("w"), "a": wr.fact("a"), "b": wr.fact("b", wait="1 minute")}
    tables = [wr.Table("a", key="k"), wr.Table("b", key="k")]
    inputs = [wr.Input("w", event_time="at"), *tables]
    rules = wr.Rules(by="k", inputs=inputs, rules={"r": wr.Rule(when=when)}, allowed_lateness="1 minute")
    with TestDriver(rules) as driver:
        driver.op.add_message({"k": 1, "at": 0}, "w")
        driver.op.add_message({"k": 1}, "b")
        driver.op.add_message({"k": 1}, "a")
        assert not driver.op.get_result()
        driver.op.add_message({"k": 1}, "b")
        assert len(driver.op.get_result()) == 1


# -- against nested loops ----------------------------------------------------------------------------------------------


def drawn(seed: int) -> tuple[wr.Rules, list[dict[str, list[dict[str, Any]]]], tuple[bool, bool, int]]:
    draw = np.random.default_rng(seed)
    keyed, by_table, wait = bool(draw.integers(2)), bool(draw.integers(2)), int(draw.integers(0, 3)) * 3
    by = "k" if draw.integers(2) else ()
    rules = wr.Rules(
        by=by,
        inputs=[
            wr.Input("e", event_time="at"),
            wr.Table(
                "f",
                key="id" if keyed else None,
                deleted="gone" if keyed else None,
                by=None if by_table else (),
            ),
            wr.Table("g", key="k", by=()),
        ],
        rules={
            "r": wr.Rule(
                when={
                    "e": wr.event("e"),
                    "f": wr.fact(
                        "f",
                        on={"id": "e.fid"} if draw.integers(2) else (),
                        where=wr.col("v") > wr.col("e.v"),
                        wait=f"{wait} seconds",
                    ),
                    "g": wr.fact("g", on={"v": "f.v"}, wait="3 seconds"),
                },
                then={"e": wr.col("e.n"), "f": wr.col("f.n"), "g": wr.col("g.n")},
            )
        },
    )
    steps, n = [], 0
    for at in range(12):
        step: dict[str, list[dict[str, Any]]] = {}
        for name in "efg":
            for _ in range(int(draw.integers(0, 3))):
                k, i, v = draw.integers(0, 2, 3).tolist()
                row = {"k": k, "v": v + (name == "f"), "n": n}
                row |= {
                    "e": {"at": second(at), "fid": i},
                    "f": {"id": i, "gone": i == k == v},
                    "g": {"v": v + 1},
                }[name]
                step.setdefault(name, []).append(row)
                n += 1
        steps.append(step)
    return rules, steps, (keyed, bool(by), wait)


def by_loops(rules: wr.Rules, steps: Steps, wait: int) -> list[tuple[int, ...]]:
    """The matches of each step: of events that still wait with rows that are new, of new events with all rows."""
    pattern, tables = rules.rules["r"].when["f"], {"f": rules.input("f"), "g": rules.input("g")}
    current: dict[str, dict[Any, Mapping[str, Any]]] = {"f": {}, "g": {}}
    events: list[Mapping[str, Any]] = []
    matches: list[tuple[int, ...]] = []
    watermark = -1
    for step in steps:
        new: dict[str, set[int]] = {"f": set(), "g": set()}
        for name, table in tables.items():
            assert table.facts is not None
            for row in step.get(name, ()):
                head = tuple(row[c] for c in rules.keys(table))
                key = (head, *(row[c] for c in table.facts.key)) if table.facts.key else (head, row["n"])
                current[name].pop(key, None)
                if not (table.facts.deleted and row["gone"]):
                    current[name][key] = row
                    new[name].add(row["n"])
        fresh = list(step.get("e", ()))
        for e, f, g in product([*events, *fresh], current["f"].values(), current["g"].values()):
            if e not in fresh and not (
                (wait and f["n"] in new["f"] and e["at"] + second(wait) >= watermark)
                or (g["n"] in new["g"] and e["at"] + second(3) >= watermark)
            ):
                continue
            same = not rules.keys(tables["f"]) or f["k"] == e["k"]
            joins = f["id"] == e["fid"] if pattern.on else True
            if same and joins and f["v"] > e["v"] and g["v"] == f["v"]:
                matches.append((e["n"], f["n"], g["n"]))
        events += fresh
        watermark = max([watermark, *(e["at"] for e in fresh)])
    return sorted(matches)


@pytest.mark.parametrize("seed", range(usually(8, deep=300)))
def test_facts_are_joined_as_nested_loops_join_them(seed: int) -> None:
    rules, steps, (_, _, wait) = drawn(seed)
    matches = [(row["e"], row["f"], row["g"]) for row in emitted(rules, steps, "e", "at")]
    assert sorted(matches) == by_loops(rules, steps, wait)


# -- cloud -------------------------------------------------------------------------------------------------------------


def alarms(mode: Any) -> wr.Rules:
    return wr.Rules(
        by="room",
        mode=mode,
        inputs=[wr.Input("fires", event_time="at"), wr.Input("sprinklers", event_time="at")],
        rules={
            "no water": wr.Rule(
                when={
                    "f": wr.event("fires"),
                    "no": wr.absent("sprinklers", time=wr.after("f", 0, "10 seconds")),
                },
                then={"since": wr.col("f.at")},
            )
        },
    )


def test_in_cloud_mode_a_negative_is_decided_in_its_step() -> None:
    with TestDriver(alarms("cloud")) as driver:
        op = driver.op
        op.add_messages({"fires": [{"room": 1, "at": 0}], "sprinklers": [{"room": 1, "at": second(5)}]})
        op.add_message({"room": 2, "at": second(100)}, "fires")
        op.add_message({"room": 2, "at": second(105)}, "sprinklers")
        op.add_message({"room": 3, "at": second(200)}, "sprinklers")
        op.add_message({"room": 3, "at": second(195)}, "fires")
        op.add_message({"room": 4, "at": second(1)}, "fires")
        assert [row["room"] for row in op.get_result()] == [2, 4]
        assert op.counters.get("dead.too_late", 0) == 0


def test_in_cloud_mode_facts_meet_events_that_came_before_them() -> None:
    rules = wr.Rules(
        by="k", mode="cloud", inputs=[wr.Input("e", event_time="at"), wr.Table("f", key="k")],
        rules={"r": wr.Rule(when={"e": wr.event("e"), "f": wr.fact("f")})},
    )  # fmt: skip
    with TestDriver(rules) as driver:
        driver.op.add_message({"k": 1, "at": 0}, "e")
        driver.op.add_message({"k": 2, "at": second(10_000)}, "e")
        driver.op.add_message({"k": 1}, "f")
        assert rows(driver, "e_k") == [(1,)]
