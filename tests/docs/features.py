"""docs/features.md: what there is, and which tests prove it, as the marks on tests say.

    @pytest.mark.proves("Windows: tumbling, with an offset")

`make pages` writes the page; a test fails where it says something else. Marks are read from the source of the tests,
which imports nothing. A feature is "Group: name"; a new group is added to GROUPS, a misspelt one is refused.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.docs import statements

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "features.md"
GROUPS = (
    "Definitions",
    "Windows",
    "Joins",
    "Operators",
    "Aggregations",
    "Emission",
    "Watermarks",
    "Lateness and retention",
    "Ids",
    "Embedded",
    "Spark",
    "Kafka",
    "Sinks",
    "Queries",
    "Coming back",
    "Security",
    "Tools",
)
#: Features that lack something, and what.
PARTLY: dict[str, str] = {
    "Definitions: a value: equal, hashed, pickled, printed as what builds it": (
        "expressions print in Arrow's notation, functions of yours by name"
    ),
    "Ids: on Spark, a new query without positions": "what it leaves out is not noticed",
    "Kafka: log, segments and changelog in topics; the location is a cache": "fork, reset and verify work on files",
    'Spark: state as DataFrames, `spark.read.format("windrow")`': (
        "PySpark does not tell a Python source the columns"
    ),
}
#: What people look for and will not find.
MISSING: tuple[str, ...] = (
    "Joins: sessions by messages of others and of a longest length, and of a stream with itself retention by size",
    "Windows: corrections of an operator before as input of windows and sessions of messages, and of joins of sessions",
    "Operators: delivery policies that pass over records of Kafka unread on Spark",
    "Windows: temporal operators",
    "Coming back: resharding",
    "Tools: a web page",
)
HEAD = """# What there is, and what proves it

<!-- Written by `make pages` from the marks `@pytest.mark.proves(...)` on tests. -->

Each line is a feature and the tests that prove it, whose names are sentences: "a thing is so" is `test_a_thing_is_so`.
`make test` runs these tests, and checks that this page is what they say.
Three designs follow, [statement by statement](#three-designs-statement-by-statement), and [cases that must
hold](#cases-that-must-hold) with their numbers.
What is not there yet is [at the end](#not-there-yet).
"""
STATEMENTS = """
## Three designs, statement by statement

What windrow is made after, in the order of each text. Names are those of the design ([what things are called
here](howto/migrating.md)), and what is otherwise here is said in brackets. A line is proved by scenarios, which are named as
in their file, or by tests as above. In the cases at the end, where nothing else is said, times are seconds, W is the watermark,
and sessions have a gap of ten seconds.
"""


class BadMark(Exception):
    """A mark that says nothing that the page could show."""


def marked(path: Path) -> Iterator[tuple[str, str]]:
    """Each feature that a test of the file proves, and the name of the test as pytest takes it."""
    name, source = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    if "mark.proves" not in source:
        return
    module = ast.parse(source)
    scopes = [("", module.body)]
    scopes += [(f"{c.name}::", c.body) for c in module.body if isinstance(c, ast.ClassDef)]
    for scope, body in scopes:
        for node in body:
            for call in getattr(node, "decorator_list", ()):
                if not isinstance(call, ast.Call) or ast.unparse(call.func) != "pytest.mark.proves":
                    continue
                if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                    raise BadMark(f"{name}:{node.lineno}: a mark is on a test function")
                for feature in call.args:
                    if not isinstance(feature, ast.Constant) or not isinstance(feature.value, str):
                        raise BadMark(
                            f"{name}:{feature.lineno}: a feature is a literal, or the page cannot show it"
                        )
                    yield feature.value, f"{name}::{scope}{node.name}"


def proofs() -> dict[str, list[str]]:
    """Tests by the feature that they prove, both in order."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for feature, test in marked(path):
            group, colon, rest = feature.partition(": ")
            if group not in GROUPS or not colon or not rest or "|" in rest:
                raise BadMark(f"{test}: {feature!r} does not begin with a group of {GROUPS}")
            found[feature].add(test)
    return {feature: sorted(found[feature]) for feature in sorted(found, key=lambda f: (f.casefold(), f))}


def shown(test: str) -> str:
    """A test as a sentence, which its name is, and its file."""
    file, *scope, name = test.split("::")
    return f"{' '.join([*scope, name.removeprefix('test_').replace('_', ' ')])} (`{file}`)"


def page() -> str:
    """What docs/features.md has to say."""
    by_feature = proofs()
    unknown = [f for f in PARTLY if f not in by_feature] + [f for f in MISSING if f in by_feature]
    if unknown:
        raise BadMark(f"PARTLY names what no test proves, or MISSING what one does: {unknown}")
    if without := statements.missing():
        raise BadMark(f"statements of a design without a proof that is there: {without}")
    text = [HEAD]
    for group in GROUPS:
        text.append(f"\n## {group}\n\n| feature | proved by |\n|---|---|\n")
        for feature, tests in by_feature.items():
            if feature.startswith(f"{group}: "):
                lacks = f" (partly: {PARTLY[feature]})" if feature in PARTLY else ""
                named = "<br>".join(map(shown, tests))
                text.append(f"| {feature.removeprefix(f'{group}: ')}{lacks} | {named} |\n")
    text.append(STATEMENTS)
    for design, rows in statements.sections():
        text.append(f"\n### {design}\n\n| statement | proved by |\n|---|---|\n")
        text += [f"| {said} | {proofs} |\n" for said, proofs in rows.items()]
    text.append("\n## Not there yet\n\n" + "".join(f"- {feature}\n" for feature in MISSING))
    return "".join(text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
