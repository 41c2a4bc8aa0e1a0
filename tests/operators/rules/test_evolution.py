"""Rules that come and go while their state lives on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core.errors import DefinitionChanged

S = 1_000_000
ALONE = {"o": wr.event("orders"), "no": wr.absent("acks", time=wr.after("o", 0, "10 seconds"))}
PAIR = {"o": wr.event("orders"), "a": wr.event("acks", time=wr.after("o", 0, "20 seconds"))}
SMALL = {
    "o": wr.event("orders", where=wr.col("v") < 5),
    "a": wr.event("acks", time=wr.after("o", 0, "20 seconds")),
}


def rules(**when: Any) -> Any:
    inputs = [
        wr.Input(name, event_time="at", watermark=wr.explicit(), expires=wr.at_least("1 minute"))
        for name in ("orders", "acks")
    ]
    made = {name: wr.Rule(when=patterns, then={"v": wr.col("o.v")}) for name, patterns in when.items()}
    return wr.Rules(by="id", inputs=inputs, rules=made)


def names(op: Any) -> list[str]:
    return [row["rule"] for row in op.result_table().to_pylist()]


def test_rules_come_and_go(tmp_path: Path) -> None:
    location = str(tmp_path)
    with rules(pair=PAIR, alone=ALONE).open(location) as op:
        op.add_message({"id": 1, "at": 1 * S, "v": 1}, "orders")
        op.add_message({"id": 2, "at": 2 * S, "v": 9}, "orders")
        op.next_offsets()
    with rules(pair=PAIR, small=SMALL).open(
        location
    ) as op:  # it sees what is kept; what waited of the other one is gone
        op.add_message({"id": 1, "at": 3 * S, "v": 0}, "acks")
        op.add_message({"id": 2, "at": 4 * S, "v": 0}, "acks")
        op.next_offsets()
        assert sorted(names(op)) == ["pair", "pair", "small"]
    with rules(alone=ALONE).open(location) as op:  # under the same name it is another one
        op.add_message({"id": 3, "at": 5 * S, "v": 0}, "orders")
        op.drain()
        assert names(op).count("alone") == 1


def test_a_rule_that_changes_needs_another_name(tmp_path: Path) -> None:
    with rules(pair=PAIR).open(str(tmp_path)) as op:
        op.add_message({"id": 1, "at": 1 * S, "v": 1}, "orders")
    with pytest.raises(DefinitionChanged, match="rule 'pair' has other patterns"):
        rules(pair=SMALL).open(str(tmp_path))
