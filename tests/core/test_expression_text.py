"""Expressions are read from their text, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

import windrow as wr
from windrow.core.expression_text import expression_of

READ: list[Any] = [
    wr.col("mean") > 80,
    (wr.col("mean") > 80) & (wr.col("jump") <= -2.5) | ~(wr.col("status") == "OPEN"),
    wr.col("a") * 2 - wr.col("b") / wr.lit(3),
    wr.col("x").is_null() | wr.col("y").is_valid(),
    wr.col("leaving"),
    wr.col("text") != 'a "quoted", (one)',
    wr.lit(True),
]


@pytest.mark.parametrize("expression", READ, ids=str)
def test_what_is_read_is_what_was_written(expression: Any) -> None:
    read = expression_of(str(expression))
    assert read is None or read.equals(expression)
    assert read is not None or "quoted" in str(expression)


@pytest.mark.parametrize(
    "text", ["", "(a >", "a b", "f(x)", "(a > b) c", "1 + 2", "(a, b)", "'a'", "(" * 90 + "a"]
)
def test_other_text_is_no_expression(text: str) -> None:
    assert expression_of(text) is None
