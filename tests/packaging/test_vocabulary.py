"""The vocabulary of names and of the heads of docstrings (docs/reference/glossary.md, "Words that are not used")."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.packaging.test_house import modules, parsed
from tests.packaging.test_layout import ROOT

HEADS = {"What", "Which", "Those", "Of", "Where", "How"}
#: Names of the public API, which are checked by hand.
PUBLIC = {"SourceBehind"}
#: Package -> names that offended before the rule. The numbers may only shrink. No docstring has such a head.
KNOWN = {
    "core": 1,
    "operators": 1,
    "operators.aggregate": 2,
    "operators.cogroup": 2,
    "operators.graph": 1,
    "operators.join": 1,
    "operators.rules": 2,
    "runners": 1,
    "testing": 2,
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


def offends(name: str, parts: set[str], alone: set[str]) -> bool:
    """True if a name has a word that is not used."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")
    return bool(parts & set(words)) or (len(words) == 1 and words[0] in alone)


def heads_in(tree: ast.Module) -> Iterator[str]:
    """Yield the first words of docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield (ast.get_docstring(node) or " ").split(" ")[0]


def package_of(module: str) -> str:
    """Return the package that a module counts for: a folder of the root, or one inside `operators`."""
    parts = module.split(".")[1:]
    return ".".join(parts[: 2 if parts[:1] == ["operators"] and len(parts) > 2 else 1]) or "windrow"


def test_packages_have_no_further_words_that_are_not_used() -> None:
    parts, alone = banned()
    assert {"told", "stands"} <= parts and alone == {"letters", "made", "given"}
    names, heads = Counter[str](), list[str]()
    for module, path in modules().items():
        tree = parsed(path.read_text())
        defined = {module.rpartition(".")[2], *names_in(tree)} - PUBLIC
        names[package_of(module)] += sum(offends(name, parts, alone) for name in defined)
        heads += [f"{module}: {head}" for head in heads_in(tree) if head in HEADS]
    assert heads == []
    assert {package: count for package, count in names.items() if count} == KNOWN


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
        ("given_inputs", False),
        ("Made", True),
        ("determine", False),
    ],
)
def test_a_name_that_offends_is_found(name: str, offending: bool) -> None:
    assert offends(name, *banned()) == offending
