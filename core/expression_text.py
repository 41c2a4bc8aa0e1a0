"""Expressions read from their text, as `str` of a `pyarrow.compute` expression writes it.

Only what is written back as the same text counts: columns with plain names, numbers, texts, comparisons, arithmetic and logic.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow.compute as pc

_TOKEN = re.compile(r'\s*(?:(?P<word>-?[\w.]+)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<mark>[<>=!]=|[<>(),{}=]))')
_BINARY: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "and": operator.and_,
    "or": operator.or_,
    "add_checked": operator.add,
    "subtract_checked": operator.sub,
    "multiply_checked": operator.mul,
    "divide_checked": operator.truediv,
}
_UNARY: Final[Mapping[str, Callable[[Any], Any]]] = {
    "invert": operator.invert,
    "is_null": lambda of: of.is_null(),
    "is_valid": lambda of: of.is_valid(),
}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
#: No expression of a definition comes near.
_DEEPEST = 50


def expression_of(text: str) -> pc.Expression | None:
    """Return the expression that is written so; None where it is none of those that can be read."""
    tokens: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return None
        tokens.append(found[0].strip())
        at = found.end()
    try:
        expression, end = _read(tokens, 0, 0)
    except (IndexError, ValueError, TypeError):
        return None
    same = end == len(tokens) and isinstance(expression, pc.Expression) and str(expression) == text
    return expression if same else None


def _read(tokens: list[str], at: int, depth: int) -> tuple[Any, int]:
    """Parse the expression at a token; returns it and the index of the next token."""
    if depth > _DEEPEST:
        raise ValueError("too deep")
    token = tokens[at]
    if token == "(":
        left, at = _read(tokens, at + 1, depth + 1)
        name = tokens[at]
        right, at = _read(tokens, at + 1, depth + 1)
        return _BINARY[_known(name, _BINARY)](left, right), _after(tokens, at, ")")
    if at + 1 < len(tokens) and tokens[at + 1] == "(":
        first, at = _read(tokens, at + 2, depth + 1)
        if token in _UNARY:
            while tokens[at] != ")":  # options of a function
                at += 1
            return _UNARY[token](first), at + 1
        second, at = _read(tokens, _after(tokens, at, ","), depth + 1)
        return _BINARY[_known(token, _BINARY)](first, second), _after(tokens, at, ")")
    if token.startswith('"'):
        return pc.scalar(token[1:-1]), at + 1
    if _NUMBER.fullmatch(token):
        return pc.scalar(int(token) if token.lstrip("-").isdigit() else float(token)), at + 1
    if token in ("true", "false"):
        return pc.scalar(token == "true"), at + 1
    if not re.fullmatch(r"[^\W\d][\w.]*", token):
        raise ValueError(token)
    return pc.field(token), at + 1


def _after(tokens: list[str], at: int, mark: str) -> int:
    if tokens[at] != mark:
        raise ValueError(tokens[at])
    return at + 1


def _known(name: str, names: Mapping[str, Any]) -> str:
    if name not in names:
        raise ValueError(name)
    return name
