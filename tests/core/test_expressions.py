"""Expressions over columns that have no type yet, and those that cannot be evaluated."""

import pyarrow as pa
import pytest

import windrow as wr
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
