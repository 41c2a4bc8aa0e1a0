"""The watermark of a join: the least of its inputs, which each have their own."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.time import START_OF_TIME_US
from windrow.operators.steps.watermarks import watermark_of
from windrow.stores.kv import MemoryKV

S = 1_000_000


def define(left: dict[str, Any], right: dict[str, Any]) -> wr.Join:
    return wr.Join(
        left=wr.Input("a", event_time="t", **left),
        right=wr.Input("b", event_time="t", **right),
        within=("0 s", "1 s"),
    )


def at(join: wr.Join, marks: dict[str, int], seen: dict[str, int] | None = None, now: int = 100) -> Any:
    largest = {(source, 0): second * S for source, second in marks.items()}
    seen_us = {(source, 0): second * S for source, second in (seen or marks).items()}
    return watermark_of(join, largest, seen_us, now * S, START_OF_TIME_US)


def test_it_is_the_minimum_of_the_inputs_less_their_own_delays() -> None:
    join = define({"watermark": "5 s"}, {"watermark": "20 s"})
    assert at(join, {"a:x": 50, "b:y": 60})[0] == 40 * S
    assert at(join, {"a:x": 50, "b:y": 90})[0] == 45 * S


def test_an_input_that_was_never_seen_holds_it_back() -> None:
    assert at(define({}, {}), {"a:x": 50})[0] == START_OF_TIME_US


def test_an_idle_input_does_not_and_is_named() -> None:
    join = define({}, {"watermark": wr.bounded(idle="10 s")})
    watermark, idle = at(join, {"a:x": 50, "b:y": 10}, {"a:x": 99, "b:y": 89})
    assert (watermark, idle) == (50 * S, {("b:y", 0)})


@pytest.mark.proves("Joins: a static input, or one that changes slowly: never late, holds nobody back")
def test_a_static_input_neither_holds_it_back_nor_moves_it() -> None:
    join = define({}, {"static": True})
    assert at(join, {"a:x": 50, "b:y": 10})[0] == 50 * S
    assert at(join, {"a:x": 50})[0] == 50 * S
    assert at(join, {"b:y": 10})[0] == START_OF_TIME_US


def test_sources_of_one_name_are_of_their_own_input() -> None:
    assert at(define({}, {}), {"a:topic": 50, "b:topic": 30})[0] == 30 * S


def test_rows_without_positions_move_that_of_their_input() -> None:
    join = define({}, {})
    operator = join.logic()
    kv = MemoryKV(operator.cfs())
    tables = {name: pa.table({"t": pa.array([second * S])}) for name, second in (("a", 50), ("b", 60))}
    marks = operator.ingest(kv, tables, 0).marks
    assert marks == {("a:", 0): 50 * S, ("b:", 0): 60 * S}
    assert watermark_of(join, marks, {}, 0, START_OF_TIME_US)[0] == 50 * S
