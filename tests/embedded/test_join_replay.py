"""Messages of a join that are lost with their snapshots and segments come back from the sources, and no row is told again."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.checkpoint.shard import MessagesLost
from windrow.core import errors as e
from windrow.operators.join.time_layout import BlockJoinOperator
from windrow.runners.embedded import Embedded
from windrow.testing.clock import ManualClock

S = 1_000_000
LOST = ("local", "snapshots", "segments")


def define(**changes: Any) -> wr.Join:
    window = changes.pop("window", None)
    left = wr.Input("orders", event_time="t", watermark="5 seconds", window=window, max_ahead="20 seconds")
    right = changes.pop("right", wr.Input("shipments", event_time="t", window=window))
    settings: dict[str, Any] = {"on": "k", "within": ("-4 seconds", "6 seconds"), "how": "full"}
    return wr.Join(left=left, right=right, **{**settings, "allowed_lateness": "2 seconds", **changes})


DEFINITIONS = {
    "keys first": define(scale="large"),
    "time first": define(),
    "windows": define(within=None, window=wr.tumbling("10 seconds")),
    "as-of": define(how="asof", within=("-6 seconds", "0 seconds")),
    "with itself": define(right=define().left, how="inner"),
    "kept for queries": define(retention="30 seconds"),
    "a period": define(emit=wr.Emit(early=wr.every("3 seconds"), late=wr.every_batch)),
    "newest rows": define(window=wr.rows(2), within=None, retention="30 seconds"),
    "newest rows of a large input": define(
        window=wr.rows(3, per="input"), within=None, retention="30 seconds", scale="large"
    ),
    "newest rows of an input": define(window=wr.rows(3, per="input"), within=None, retention="30 seconds"),
}
ALL = [pytest.param(d, id=name) for name, d in DEFINITIONS.items()]


def message(name: str, i: int) -> wr.Message:
    """Out of order, some too late or too far ahead, of types that widen, some with a column that cannot be."""
    late = {7: 9, 23: 17, 30: -40, 41: 60, 53: 7}.get(i, (i * 7) % 4)
    payload: dict[str, Any] = {"k": i % 5, "t": max(i - late, 0) * S, "v": i / 2 if i > 31 else i}
    if i in (13, 37):
        payload["commit"] = "x"
    return wr.Message(payload, wr.Position("s", i % 2, i))


def again(asked: Mapping[str, Mapping[Any, tuple[int, int]]]) -> dict[str, list[wr.Message]]:
    """More than is asked for, in no order."""
    return {name: [message(name, i) for i in range(70)][::-1] for name in asked}


def fed(op: Embedded, clock: ManualClock, numbers: range) -> None:
    for at in range(numbers.start, numbers.stop, 10):
        clock.advance("10 seconds")
        for name in [i.name for i in op.definition.inputs]:
            batch = [message(name, i) for i in range(at, min(at + 10, numbers.stop))]
            for one in batch[:4]:
                op.add_message(one, name)
            op.add_messages(batch[4:], name)
        op.timeout()


def kept(op: Embedded) -> dict[str, list[Any]]:
    state: dict[str, list[Any]] = {
        c: list(op.engine.shard.kv.scan(c)) for c in op.engine.logic.cfs() if c != "join.aux"
    }
    for cf in [c for c in state if c.endswith(".messages")]:
        state[cf] = [key for key, _ in state[cf]]  # values may be of later types
        if isinstance(op.engine.logic, BlockJoinOperator):
            state[cf] = []  # those of several steps lie together
    for i in op.definition.inputs:
        state[i.name] = [(m.position, dict(m.payload)) for m in op.get_messages(input=i.name)]
    return state


def lose(location: Path) -> None:
    for folder in LOST:
        shutil.rmtree(location / folder, ignore_errors=True)


@pytest.mark.parametrize("definition", ALL)
def test_what_comes_back_is_what_was_there_and_continues_alike(definition: wr.Join, tmp_path: Path) -> None:
    clock, emitted = ManualClock(), []
    with definition.open(str(tmp_path / "whole"), clock=clock) as op:
        fed(op, clock, range(45))
        before = kept(op)
        op.flush()
    shutil.copytree(tmp_path / "whole", tmp_path / "lost")
    begun_us = clock.now_us()
    for folder in ("lost", "whole"):
        clock = ManualClock(begun_us)
        if folder == "lost":
            lose(tmp_path / folder)
            with pytest.raises(MessagesLost, match="replay="):
                definition.open(str(tmp_path / folder), clock=clock)
        with definition.open(str(tmp_path / folder), clock=clock, replay=again) as op:
            assert kept(op) == before
            fed(op, clock, range(45, 60))
            op.drain()
            emitted.append([(row.values, row.timing) for row in op.get_result()])
    assert emitted[0] == emitted[1] and emitted[0]


def test_a_source_that_lost_messages_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    definition, clock = DEFINITIONS["time first"], ManualClock()
    with definition.open(str(tmp_path), clock=clock) as op:
        fed(op, clock, range(45))
        before = kept(op)
    lose(tmp_path)
    with pytest.raises(e.StateLost, match="the source gives"):
        definition.open(str(tmp_path), clock=clock, replay=lambda asked: {"orders": again(asked)["orders"]})
    with pytest.raises(e.StateLost, match="allowed_lateness_us=2000000, now 3000000"):
        define(allowed_lateness="3 seconds").open(str(tmp_path), clock=clock, replay=again)
    with definition.open(str(tmp_path), clock=clock, replay=again) as op:
        assert kept(op) == before


def test_tables_come_back_by_the_columns_that_are_positions(tmp_path: Path) -> None:
    def table(first: int) -> pa.Table:
        numbers = range(first, first + 5)
        return pa.table({"t": pa.array([i * S for i in numbers]), "k": [1] * 5, "n": list(numbers)})

    positions = wr.positions(offset="n")
    left, right = (wr.Input(n, event_time="t", positions=positions) for n in ("orders", "shipments"))
    definition = wr.Join(left=left, right=right, on="k", within=("0 seconds", "1 minute"))
    with definition.open(str(tmp_path)) as op:
        op.add_messages({"orders": table(0), "shipments": table(3)})
        op.timeout()
        before = kept(op)
    lose(tmp_path)
    with definition.open(
        str(tmp_path), replay=lambda asked: {n: table(0 if n == "orders" else 3) for n in asked}
    ) as op:
        assert kept(op) == before


@pytest.mark.parametrize("rows", [False, True], ids=["time first", "newest rows"])
def test_where_a_condition_raised_what_comes_back_is_exact_or_refused(rows: bool, tmp_path: Path) -> None:
    """It depends on the partners of then, which only newest rows meet again, as their steps are run again."""
    window = {"window": wr.rows(2), "within": None, "retention": "30 seconds"} if rows else {}
    definition = define(where=wr.lit(7) / wr.col("rest") < 5, **window)

    def of(input: str) -> list[wr.Message]:
        rest = (lambda i: {"rest": i % 4}) if input == "orders" else (lambda i: {})
        return [wr.Message({"k": 1, "t": i * S, **rest(i)}, wr.Position("s", 0, i)) for i in range(12)]

    def again(asked: Mapping[str, Any]) -> dict[str, list[wr.Message]]:
        return {name: of(name) for name in asked}

    clock = ManualClock()
    with definition.open(str(tmp_path), clock=clock) as op:
        for pair in zip(of("orders"), of("shipments"), strict=True):
            for one, input in zip(pair, ("orders", "shipments"), strict=True):
                op.add_message(one, input)
        assert {x.detail for x in op.dead_letters()} == {
            "ArrowInvalid: divide by zero, in where=(divide_checked(7, rest) < 5)"
        }
        before = kept(op)
    lose(tmp_path)
    if not rows:
        with pytest.raises(e.StateLost, match=r"where=.* raised on \d+ of them"):
            definition.open(str(tmp_path), clock=clock, replay=again)
        return
    with definition.open(str(tmp_path), clock=clock, replay=again) as op:
        assert kept(op) == before
