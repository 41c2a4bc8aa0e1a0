"""README's table of features: a row that says "yes" names tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


class Row(NamedTuple):
    """One line of the table."""

    feature: str
    state: str
    proof: str


def rows() -> list[Row]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    _, _, table = text.partition("| feature | there | proved by |\n|---|---|---|\n")
    lines = table.split("\n\n", 1)[0].splitlines()
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines if line]


@cache
def functions_in(path: str) -> frozenset[str]:
    """The test functions of a file, as pytest would collect them: of the module, and of its Test classes."""
    file = ROOT / path
    if not file.exists():
        return frozenset()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    bodies = [
        tree.body,
        *(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name.startswith("Test")),
    ]
    return frozenset(
        n.name
        for body in bodies
        for n in body
        if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")
    )


def test_the_table_is_found_and_no_feature_is_listed_twice() -> None:
    features = [row.feature for row in rows()]
    assert len(features) > 50 and len(set(features)) == len(features)


@pytest.mark.parametrize("row", rows(), ids=lambda r: r.feature)
def test_a_row_says_yes_no_or_what_is_missing(row: Row) -> None:
    assert row.state in ("yes", "no") or row.state.startswith("partly: ")


@pytest.mark.parametrize("row", rows(), ids=lambda r: r.feature)
def test_a_feature_that_is_there_names_tests_that_exist(row: Row) -> None:
    named = TEST.findall(row.proof)
    assert bool(named) is (row.state != "no"), "yes and partly name a test, no names none"
    assert [f"{path}::{name}" for path, name in named if name not in functions_in(path)] == []
    assert TEST.sub("", row.proof).strip(" ,") == "" or row.state != "yes"
