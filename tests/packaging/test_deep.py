"""Tests that `make test` omits for time are omitted through `tests.deep`, and WINDROW_DEEP=1 runs them all."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = "from tests.deep import *; print(usually(2, deep=10), examples(3, deep=400).max_examples)"


@pytest.mark.parametrize(("variable", "said"), [("0", "2 3"), ("1", "10 400")])
def test_the_variable_brings_back_what_is_left_out(variable: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOWN],
        cwd=ROOT,
        env={**os.environ, "WINDROW_DEEP": variable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == said.split()


def sources() -> list[Path]:
    return [p for p in sorted((ROOT / "tests").rglob("*.py")) if p.name != "deep.py"]


def reductions() -> Iterator[tuple[str, ast.Call]]:
    """Every call of `usually` and `examples` in the tests."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("usually", "examples"):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def numbers(node: ast.expr) -> list[int]:
    said = [str(n.value).replace(",", "") for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return [int(text) for text in said if text.isdigit()]


def test_deep_is_never_less_than_usual_and_nobody_else_asks_for_the_variable() -> None:
    depths = dict(reductions())
    assert len(depths) > 10
    for where, call in depths.items():
        [usual], [deep] = call.args, call.keywords
        assert deep.arg == "deep", where
        less, more = numbers(usual), numbers(deep.value)
        of_all = isinstance(deep.value, ast.Constant) and deep.value.value is None
        assert not less or of_all or sum(less) < sum(more), where
    assert [
        p for p in sources() if p != Path(__file__) and re.search(r"\benviron.*WINDROW_DEEP", p.read_text())
    ] == []
