"""The vocabulary of names and of the heads of docstrings (docs/reference/glossary.md, "Words that are not used")."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.test_house import modules, parsed
from tests.packaging.test_layout import ROOT

HEADS = {"What", "Which", "Those", "Of", "Where", "How"}
#: Names of the public API, which are checked by hand.
PUBLIC = {"SourceBehind"}
#: Names of local variables that hide what the value is.
LOCAL = {"told", "heard", "mine", "some", "given", "found", "result"}
#: Local variables called `found` or `result` by package, from before the rule. The numbers may only shrink.
LOCALS_LEFT = {
    "tests.spark": 2,
    "checkpoint": 10,
    "connectors": 13,
    "connectors.kafka": 25,
    "console": 9,
    "console.ui": 4,
    "core": 20,
    "operators": 1,
    "operators.aggregate": 8,
    "operators.aggregate.sessions": 4,
    "operators.aggregations": 3,
    "operators.alert": 12,
    "operators.cogroup": 12,
    "operators.graph": 13,
    "operators.join": 1,
    "operators.join.sessions": 2,
    "operators.oracle": 2,
    "operators.rules": 30,
    "operators.steps": 2,
    "runners": 1,
    "runners.embedded": 7,
    "stores": 1,
    "testing": 9,
    "testing.interruptions": 1,
    "testing.simulated_kafka": 2,
    "testing.simulation": 7,
}


def others() -> dict[str, Path]:
    """Every module outside the library, by its name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for folder in ("benchmarks", "examples", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def banned() -> tuple[set[str], set[str]]:
    """Read the glossary: words that no name has as a part, and words that are no name alone."""
    table = (
        (ROOT / "docs" / "reference" / "glossary.md").read_text().partition("## Words that are not used")[2]
    )
    parts, alone = set(), set()
    for line in re.findall(r"^\| ([a-z][^|]*) \|", table, re.M):
        for word in line.replace(" (alone)", "").split(", "):
            (alone if "(alone)" in line else parts).add(word)
    return parts - {"not"}, alone


def names_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of classes, functions, parameters, fields and attributes that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from (
                child.target.id
                for child in node.body
                if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def locals_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names that functions and comprehensions assign, once for each place."""
    places = set()
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.comprehension):
            for node in ast.walk(scope.target if isinstance(scope, ast.comprehension) else scope):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    places.add((node.lineno, node.col_offset, node.id))
    return (name for _, _, name in places)


def offends(name: str, parts: set[str], alone: set[str]) -> bool:
    """True if a name has a word that is not used."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")
    return bool(parts & set(words)) or (len(words) == 1 and words[0] in alone)


def heads_in(tree: ast.Module) -> Iterator[str]:
    """Yield the first words of docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield (ast.get_docstring(node) or " ").split(" ")[0]


def test_no_docstring_begins_with_a_noun_clause() -> None:
    heads = [
        f"{module}: {head}"
        for module, path in {**modules(), **others()}.items()
        for head in heads_in(parsed(path.read_text()))
        if head in HEADS
    ]
    assert heads == []


def test_no_name_has_a_word_that_is_not_used() -> None:
    parts, alone = banned()
    assert {"told", "stands"} <= parts and alone == {"letters", "made", "given"}
    names = [
        f"{module}: {name}"
        for module, path in {**modules(), **others()}.items()
        for name in sorted({module.rpartition(".")[2], *names_in(parsed(path.read_text()))} - PUBLIC)
        if offends(name, parts, alone)
    ]
    assert names == []


def test_no_new_local_variable_has_a_name_that_hides_what_it_is() -> None:
    left = Counter[str]()
    for module, path in {**modules(), **others()}.items():
        package = module.removeprefix("windrow.").rpartition(".")[0]
        left[package] += sum(name in LOCAL for name in locals_in(parsed(path.read_text())))
    assert {package: n for package, n in sorted(left.items()) if n > LOCALS_LEFT.get(package, 0)} == {}


def test_local_variables_are_found() -> None:
    tree = ast.parse(
        "told = 1\n"
        "def f(heard):\n"
        "    some, (mine, _) = heard\n"
        "    for given in some: pass\n"
        "    return [told for told in mine if (x := told)]\n"
    )
    assert sorted(locals_in(tree)) == ["_", "given", "mine", "some", "told", "x"]


@pytest.mark.parametrize(
    ("name", "offending"),
    [
        ("told_rows", True),
        ("_told", True),
        ("HandedOn", True),
        ("handed", True),
        ("ToldRows", True),
        ("letters", True),
        ("dead_letters", False),
        ("user_inputs", False),
        ("Made", True),
        ("determine", False),
    ],
)
def test_a_name_that_offends_is_found(name: str, offending: bool) -> None:
    assert offends(name, *banned()) == offending
