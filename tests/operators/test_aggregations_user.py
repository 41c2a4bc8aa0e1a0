"""Aggregates of the user's: folded once per message, failing alone, and functions of the window's messages."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from windrow.core import aggregations as wr
from windrow.core.aggregation import UserFunction
from windrow.core.errors import BadAggregate
from windrow.operators.aggregations import (
    Arguments,
    Failure,
    Parts,
    concat_parts,
    evaluate_table_functions,
    lift_where,
    make_kernel,
)
from windrow.operators.steps.groups import Groups


class Mean:
    """Counts its calls, and refuses 13."""

    calls: list[str] = []  # noqa: RUF012 - shared on purpose, so that the test sees it

    def initial(self) -> dict[str, float]:
        self.calls.append("initial")
        return {"n": 0, "total": 0.0}

    def add(self, state: dict[str, float], x: float) -> dict[str, float]:
        self.calls.append("add")
        if x == 13:
            raise ValueError("thirteen")
        return {"n": state["n"] + 1, "total": state["total"] + x}

    def merge(self, older: dict[str, float], newer: dict[str, float]) -> dict[str, float]:
        self.calls.append("merge")
        return {"n": older["n"] + newer["n"], "total": older["total"] + newer["total"]}

    def finish(self, state: dict[str, float]) -> float:
        return state["total"] / state["n"]


mean = wr.aggregate_function(name="mean", returns=pa.float64())(Mean)
KERNEL = make_kernel(mean("x"), [pa.int64()])


def lifted(*values: int | None) -> Parts:
    return KERNEL.lift(
        Arguments(pa.array([0] * len(values), pa.int64()), None, (pa.array(values, pa.int64()),))
    )


def merged(parts: Parts, codes: list[int]) -> tuple[Parts, list[Failure]]:
    failures: list[Failure] = []
    return KERNEL.merge(parts, Groups([pa.array(codes)], len(codes)), failures), failures


def test_add_is_called_once_a_message_and_merge_where_states_meet() -> None:
    Mean.calls.clear()
    first, _ = merged(lifted(1, 2, 6), [0, 0, 1])
    assert sorted(Mean.calls) == ["add", "add", "add", "initial", "initial"]
    second, _ = merged(lifted(9), [0])
    Mean.calls.clear()
    both, failures = merged(concat_parts([(first, 2), (second, 1)]), [0, 1, 0])
    assert Mean.calls == ["merge"]
    assert failures == []
    assert KERNEL.finish(both, 2).to_pylist() == [4.0, 6.0]


def test_rows_are_added_to_the_state_before_them_without_a_merge() -> None:
    state, _ = merged(lifted(1), [0])
    Mean.calls.clear()
    both, _ = merged(concat_parts([(state, 1), (lifted(3, 5), 2)]), [0, 0, 0])
    assert Mean.calls == ["add", "add"]
    assert KERNEL.finish(both, 1).to_pylist() == [3.0]


def test_an_exception_fails_its_own_group_and_no_other() -> None:
    parts, failures = merged(lifted(1, 13, 2, 3), [0, 1, 1, 0])
    assert [(f.group, str(f.error)) for f in failures] == [(1, "thirteen")]
    assert failures[0].error.__traceback__ is not None
    assert parts["s"].is_null().to_pylist() == [False, True]
    assert KERNEL.finish(parts.copy() | {"s": parts["s"].slice(0, 1)}, 1).to_pylist() == [2.0]


def test_finish_lists_its_failures_or_raises_them() -> None:
    nothing = {"s": pa.nulls(1, pa.binary())}  # the mean of no message divides by zero
    failures: list[Failure] = []
    assert KERNEL.finish(nothing, 1, failures).to_pylist() == [None]
    assert [(f.group, type(f.error)) for f in failures] == [(0, ZeroDivisionError)]
    with pytest.raises(ZeroDivisionError):
        KERNEL.finish(nothing, 1)


def test_a_filtered_row_is_not_added() -> None:
    rows = Arguments(pa.array([0, 0]), None, (pa.array([1, 13]),))
    parts, failures = merged(lift_where(KERNEL, rows, pa.array([True, False])), [0, 0])
    assert failures == []
    assert KERNEL.finish(parts, 1).to_pylist() == [1.0]


class Fixed:
    """A state and a value of choice; takes no columns."""

    def __init__(self, state: Any = 0, value: Any = 0) -> None:
        self.state, self.value = state, value

    def initial(self) -> Any:
        return self.state

    def add(self, state: Any) -> Any:
        return state

    def merge(self, older: Any, newer: Any) -> Any:
        return older

    def finish(self, state: Any) -> Any:
        return self.value if self.value is not None else state


def fixed(state: Any, value: Any, returns: pa.DataType) -> Any:
    function = UserFunction("fixed", 1, returns, Fixed(state, value), False)
    kernel = make_kernel(function(), [])
    failures: list[Failure] = []
    parts = kernel.merge(kernel.lift(Arguments(pa.array([0]), None, ())), Groups([], 1), failures)
    return kernel.finish(parts, 1, failures), failures


class RowCount(Fixed):
    def add(self, state: int) -> int:
        return state + 1


def test_a_function_of_no_columns_sees_every_row() -> None:
    function = UserFunction("rows", 1, pa.int64(), RowCount(0, None), False)
    kernel = make_kernel(function(), [])
    rows = kernel.lift(Arguments(pa.array([0, 0, 0]), None, ()))
    merged = kernel.merge(rows, Groups([pa.array([0, 1, 0])], 3), [])
    assert kernel.finish(merged, 2).to_pylist() == [2, 1]


def test_a_state_that_msgpack_cannot_hold_is_a_failure() -> None:
    _, failures = fixed({1, 2}, 0, pa.int64())
    assert [(f.group, type(f.error)) for f in failures] == [(0, TypeError)]


def test_a_value_of_another_type_than_declared_is_a_failure() -> None:
    column, failures = fixed(0, "seven", pa.int64())
    assert column.to_pylist() == [None]
    assert column.type == pa.int64()
    assert [f.group for f in failures] == [0]


def test_numpy_and_arrow_scalars_are_values() -> None:
    assert fixed(0, np.float64(2.5), pa.float64())[0].to_pylist() == [2.5]
    assert fixed(0, pa.scalar(4), pa.int64())[0].to_pylist() == [4]


def test_states_keep_keys_that_are_no_text() -> None:
    assert fixed({1: "a"}, None, pa.map_(pa.int64(), pa.string()))[0].to_pylist() == [[(1, "a")]]


def test_a_function_of_the_table_is_no_incremental_kernel() -> None:
    whole = wr.aggregate_function(name="rows", returns=pa.int64())(len)
    with pytest.raises(BadAggregate, match="no class with initial, add, merge and finish"):
        make_kernel(wr.Aggregation("user", (), (), None, whole), [])


# -- functions of the window's messages -------------------------------------------------------------------------------


def joined_text(messages: pa.Table) -> str:
    return "".join(messages["x"].to_pylist())


joined = wr.aggregate_function(name="letters", returns=pa.string())(joined_text)


def test_messages_come_in_event_time_order_with_ties_by_position() -> None:
    table = pa.table({"x": ["c", "b", "z", "a"]})
    times, groups = pa.array([2, 1, 5, 1]), Groups([pa.array([0, 0, 1, 0])], 4)
    by_row, failures = evaluate_table_functions(joined, table, groups, times)
    assert (by_row.to_pylist(), failures) == (["bac", "z"], [])
    order = pa.array([b"3", b"4", b"9", b"1"])
    assert evaluate_table_functions(joined, table, groups, times, order)[0].to_pylist() == ["abc", "z"]


def test_a_function_that_raises_fails_its_own_window() -> None:
    @wr.aggregate_function(name="strict", returns=pa.int64())
    def strict(messages: pa.Table) -> Any:
        if len(messages) > 1:
            raise RuntimeError("crowded")
        return "no number" if messages["x"][0].as_py() == "b" else 1

    groups = Groups([pa.array([0, 1, 1, 2])], 4)
    column, failures = evaluate_table_functions(
        strict, pa.table({"x": list("acdb")}), groups, pa.array([0] * 4)
    )
    assert column.to_pylist() == [1, None, None]
    assert column.type == pa.int64()
    assert [(f.group, type(f.error)) for f in failures] == [(1, RuntimeError), (2, ValueError)]


def test_a_window_without_messages_is_null_and_the_function_is_not_called() -> None:
    groups = Groups.of_codes(np.array([1]), 3)
    column, failures = evaluate_table_functions(joined, pa.table({"x": ["a"]}), groups, pa.array([0]))
    assert (column.to_pylist(), failures) == ([None, "a", None], [])


def test_all_columns_of_the_input_are_passed() -> None:
    seen: list[pa.Schema] = []

    def keep(messages: pa.Table) -> int:
        seen.append(messages.schema)
        return len(messages)

    function = wr.aggregate_function(name="keep", returns=pa.int64())(keep)
    table = pa.table({"x": [1, 2], "at": [dt.datetime(2013, 7, 1)] * 2})
    assert evaluate_table_functions(function, table, Groups([], 2), pa.array([0, 0]))[0].to_pylist() == [2]
    assert seen == [table.schema]


def test_a_function_of_the_users_has_its_own_name_where_it_is_given_none() -> None:
    @wr.aggregate_function(returns=pa.int64())
    def messages_of(messages: pa.Table) -> int:
        return messages.num_rows

    assert repr(messages_of()) == "messages_of()"
    with pytest.raises(
        BadAggregate, match=r"aggregate_function: returns=<class 'int'>, use a type of pyarrow"
    ):
        wr.aggregate_function(returns=int)  # type: ignore[arg-type]
    with pytest.raises(BadAggregate, match="has no name, give one as name="):
        wr.aggregate_function(returns=pa.int64())(lambda messages: 0)
