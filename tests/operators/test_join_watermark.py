"""The watermark of a join: the least of its inputs, which each have their own."""

from __future__ import annotations

import tempfile
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from windrow.core.errors import BadWatermark, InputError
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


INPUTS = [wr.Input(name, event_time="t", watermark=wr.explicit()) for name in "abc"]
OPERATORS: list[Any] = [
    wr.Join(left=INPUTS[0], right=INPUTS[1], within=("0 s", "1 s")),
    wr.CoGroup(inputs=INPUTS, by="k", window=wr.tumbling("1 s"), agg={"n": wr.count()}, retention="1 s"),
]


@pytest.mark.parametrize("definition", OPERATORS, ids=["join", "cogroup"])
@given(data=st.data())
@examples(10, deep=500)
def test_it_is_the_least_that_was_said_of_the_inputs_also_after_reopening(definition: Any, data: Any) -> None:
    names = [i.name for i in definition.inputs]
    said, due = dict.fromkeys(names, START_OF_TIME_US), START_OF_TIME_US
    with tempfile.TemporaryDirectory() as folder:
        op = definition.open(folder)
        for name, to in data.draw(st.lists(st.tuples(st.sampled_from([*names, None]), st.integers(1, 30)))):
            if name is None:
                due = max(due, to * S)
            else:
                said[name] = max(said[name], to * S)
                due = max(due, *[min(said.values())])
            op.advance_watermark(to * S, input=name)
            assert op.watermark == due
            if to % 4 == 0:
                op.close()
                op = definition.open(folder)
                assert op.watermark == due
        op.close()


def test_only_an_explicit_one_is_moved_by_input(tmp_path: Any) -> None:
    with define({}, {}).open(str(tmp_path)) as op:
        with pytest.raises(BadWatermark, match=r"input='a'\): its watermark is wr.bounded\('0 seconds'\)"):
            op.advance_watermark(1, input="a")
        with pytest.raises(InputError, match="'z'"):
            op.advance_watermark(1, input="z")
