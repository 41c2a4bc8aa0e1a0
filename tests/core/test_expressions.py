"""Expressions over columns that have no type yet, and those that cannot be evaluated."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow as wr
from windrow.core import expressions
from windrow.core.errors import UnknownColumn
from windrow.core.expressions import Expr

UNTYPED = pa.table({"a": pa.nulls(2), "b": pa.nulls(2), "n": [1, 2]})


@pytest.mark.parametrize(
    "expression",
    [wr.col("a") < wr.col("b"), wr.col("a") > wr.col("n"), wr.col("a") == "text", wr.col("a") + 1 > 2],
    ids=str,
)
def test_a_comparison_with_a_column_that_had_no_value_yet_is_null(expression: object) -> None:
    assert Expr(expression).evaluate(UNTYPED).to_pylist() == [None, None]  # type: ignore[arg-type]


def test_what_holds_whatever_the_type_holds() -> None:
    assert (
        Expr(wr.col("a").is_null() | (wr.col("a") < wr.col("b"))).evaluate(UNTYPED).to_pylist() == [True] * 2
    )


def test_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UnknownColumn, match=r"gone.*\['a', 'b', 'n'\]"):
        Expr(wr.col("gone") > 1).evaluate(UNTYPED)


def test_types_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(UnknownColumn, match="cannot be evaluated"):
        Expr(wr.col("n") + "text").evaluate(UNTYPED)


@pytest.mark.parametrize("n", [0, 1, expressions.FEW, expressions.FEW + 1])
def test_many_rows_have_the_values_of_few_in_their_order(n: int) -> None:
    table = pa.table({"a": pa.array(range(n), pa.int64()), "b": ["x", None] * (n // 2) + ["x"] * (n % 2)})
    mask = Expr((wr.col("a") * 2 > 10) & (wr.col("b") == "x")).evaluate(table)
    assert mask.to_pylist() == [
        (a * 2 > 10 and b) if b is not None or a * 2 <= 10 else None
        for a, b in zip(range(n), [True if b else None for b in table["b"].to_pylist()], strict=True)
    ]
    assert Expr(wr.col("a") + 0.5).evaluate(table).to_pylist() == [a + 0.5 for a in range(n)]
    assert len(Expr(expressions.col("a").is_null()).evaluate(table)) == n


def test_columns_of_state_that_lie_where_they_were_read_are_judged_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Arrow says on standard error that buffers are poorly aligned."""
    values = pa.py_buffer(b"\0" + np.arange(4).tobytes()).slice(1)
    table = pa.table({"n": pa.Array.from_buffers(pa.int64(), 4, [None, values])})
    assert Expr(pc.field("n") >= 2).evaluate(table).to_pylist() == [False, False, True, True]
    assert capfd.readouterr() == ("", "")
