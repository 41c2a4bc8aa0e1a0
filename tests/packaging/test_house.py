"""Shape rules of the library: length, complexity, inheritance, import circles (docs/explanation/adr/0013)."""

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.packaging.test_layout import FOLDERS, ROOT, run

FILE_LINES, FUNCTION_LINES, COMPLEXITY, DEPTH = 800, 60, 12, 3
OPERATOR = "windrow.operators.operator.Logic"
#: Offenders that were there before the rule. The lists may only shrink: remove what no longer offends.
TOO_COMPLEX = {
    "windrow.checkpoint.shard._carry_out",
    "windrow.checkpoint.shard.open",
    "windrow.core.border._is_same",
    "windrow.core.types.plain_type",
    "windrow.operators.steps.poison_rows.culprits",
    "windrow.runners.rows.event_time_us",
}
#: Classes with exactly one subclass, which is in the same package.
ONE_SUBCLASS = {
    "windrow.checkpoint.job_paths.JobFolders",
    "windrow.operators.aggregate.views.SessionView",
    "windrow.operators.aggregations.basic.Avg",
    "windrow.operators.aggregations.basic.Count",
    "windrow.operators.aggregations.basic.Extreme",
    "windrow.operators.aggregations.basic.Sum",
    "windrow.operators.aggregations.collections.CollectSet",
    "windrow.operators.aggregations.exact.Percentile",
    "windrow.operators.aggregations.moments.Variance",
    "windrow.operators.aggregations.ordered.TopK",
    "windrow.operators.join.time_layout.BlockJoinOperator",
    "windrow.operators.join_window.oracle.SessionJoinWindowOracle",
    "windrow.operators.oracle.arrow.Arguments",
    "windrow.operators.oracle.cells.Cell",
    "windrow.operators.over.anchors.logic.AnchoredOvers",
    "windrow.operators.over.oracle.OverOracle",
    "windrow.operators.over.required_columns.OverNeeds",
    "windrow.runners.spark.kafka.KafkaDataSource",
    "windrow.runners.spark.kafka.KafkaStreamReader",
    "windrow.runners.spark.source.StateReader",
    "windrow.stores.rocks.RocksKV",
}
#: Operators more than three classes below `Logic`.
TOO_DEEP = {
    "windrow.operators.join_window.windows.TupleSessionWindows",
}
#: Functions of a definition, or of its logic, that make its parts: they import modules of higher layers, which registers kinds.
REGISTRY = {"logic", "view", "oracle", "runs"}


def modules() -> dict[str, Path]:
    """Every module of the library, by its name."""
    paths = {"windrow": ROOT / "src" / "windrow" / "__init__.py"}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            paths[".".join(("windrow", *parts)).removesuffix(".__init__")] = path
    return paths


@cache
def parsed(text: str) -> ast.Module:
    """Parse a module, once."""
    return ast.parse(text)


def too_long(text: str) -> Iterator[str]:
    """Yield what is too long: the module itself, or functions, counted with decorators and docstrings."""
    lines = text.count("\n")
    if lines > FILE_LINES:
        yield f"{lines} lines, at most {FILE_LINES} are fine"
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            lines = (node.end_lineno or first) - first + 1
            if lines > FUNCTION_LINES:
                yield f"{node.name}: {lines} lines, at most {FUNCTION_LINES} are fine"


def imports(text: str, types: bool = False) -> Iterator[str]:
    """Yield the modules of ours that a module imports, inside functions too; by the registry never, for types if asked."""

    def below(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef) and child.name in REGISTRY:
                continue
            if not types and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                yield from (f"{child.module}.{alias.name}" for alias in child.names)
            yield from below(child)

    return below(parsed(text))


def circles_in(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one module."""
    left = dict(graph)
    while ends := {name for name in left if not left.keys() & left[name]}:
        left = {name: left[name] - ends for name in left.keys() - ends}
    reached = {name: reach(left, name) for name in left}
    circles = {frozenset(other for other in reached[name] if name in reached[other]) for name in left}
    return sorted((set(circle) for circle in circles if circle), key=sorted)


def reach(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return the modules that a walk from `start` comes to."""
    reached: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        if (name := ahead.pop()) not in reached and name in graph:
            reached.add(name)
            ahead += graph[name]
    return reached


def graph_of(texts: dict[str, str], types: bool = False) -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    graph: dict[str, set[str]] = {name: set() for name in texts}
    for name, text in texts.items():
        for target in imports(text, types):
            while target and target not in texts:
                target = target.rpartition(".")[0]
            if target and target != name:
                graph[name].add(target)
    return graph


def bases_of(texts: dict[str, str]) -> dict[str, list[str]]:
    """Return the bases of each class at the top of a module, both by their full names."""
    classes = {}
    for module, text in texts.items():
        tree = parsed(text)
        imported = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                heads = [re.split(r"[.[(]", ast.unparse(base), maxsplit=1)[0] for base in node.bases]
                classes[f"{module}.{node.name}"] = [imported.get(head, f"{module}.{head}") for head in heads]
    return classes


def one_subclass(bases: dict[str, list[str]]) -> set[str]:
    """Return the classes with exactly one subclass that is in the same package, but for protocols."""
    subclasses = defaultdict(list)
    for name, above in bases.items():
        for base in above:
            subclasses[base].append(name)
    return {
        base
        for base, below in subclasses.items()
        if base in bases and "typing.Protocol" not in bases[base]
        if [package_of(name) for name in below] == [package_of(base)]
    }


def package_of(name: str) -> str:
    """Return the package of a class."""
    return name.rsplit(".", 2)[0]


def depth(name: str, bases: dict[str, list[str]]) -> int:
    """Return the number of steps from a class up to that of all operators; -1 where it is no operator."""
    if name == OPERATOR:
        return 0
    above = max((depth(base, bases) for base in bases.get(name, [])), default=-1)
    return above + 1 if above >= 0 else -1


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The library's modules as they are written."""
    return {name: path.read_text() for name, path in modules().items()}


def test_no_import_runs_in_a_circle(texts: dict[str, str]) -> None:
    assert circles_in(graph_of(texts, types=True)) == []


def test_functions_are_simple() -> None:
    checked = run(
        *(sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--output-format=json"),
        *("--select=C901", f"--config=lint.mccabe.max-complexity={COMPLEXITY}", *FOLDERS, "src"),
        cwd=ROOT,
    )
    names = {str(path.resolve()): name for name, path in modules().items()}
    offenders = {
        f"{names[one['filename']]}.{one['message'].split('`')[1]}" for one in json.loads(checked.stdout)
    }
    assert offenders == TOO_COMPLEX


def test_no_further_class_has_one_subclass_in_its_package(texts: dict[str, str]) -> None:
    assert one_subclass(bases_of(texts)) == ONE_SUBCLASS


def test_operators_are_shallow(texts: dict[str, str]) -> None:
    bases = bases_of(texts)
    assert {name for name in bases if depth(name, bases) > DEPTH} == TOO_DEEP


def test_files_and_functions_fit() -> None:
    offenders = {
        path.relative_to(ROOT).as_posix(): list(too_long(path.read_text())) for path in modules().values()
    }
    assert {name: why for name, why in offenders.items() if why} == {}
    assert len(offenders) > 200


@pytest.mark.parametrize(
    ("written", "circle"),
    [
        ("import windrow.b", ["windrow.a", "windrow.b"]),
        ("def later():\n    from windrow.b import x", ["windrow.a", "windrow.b"]),
        ("def logic():\n    from windrow.b import x", []),
        ("if TYPE_CHECKING:\n    from windrow.b import x", []),
    ],
)
def test_a_circle_is_found(written: str, circle: list[str]) -> None:
    texts = {"windrow.a": written, "windrow.b": "from windrow.a import y", "windrow.c": "import windrow.a"}
    assert [sorted(names) for names in circles_in(graph_of(texts))] == ([circle] if circle else [])
    with_types = [*circle, *(["windrow.a", "windrow.b"] if "TYPE_CHECKING" in written else [])]
    assert [sorted(names) for names in circles_in(graph_of(texts, True))] == (
        [with_types] if with_types else []
    )


@pytest.mark.parametrize(
    ("module", "base", "subclasses", "offends"),
    [
        ("windrow.p.a", "Base", ["windrow.p.b"], True),
        ("windrow.p.a", "Base", ["windrow.p.a"], True),
        ("windrow.p.a", "Base", ["windrow.q.b"], False),
        ("windrow.p.a", "Base", ["windrow.p.b", "windrow.q.b"], False),
        ("windrow.p.a", "Base(Protocol[T])", ["windrow.p.b"], False),
    ],
)
def test_a_single_subclass_is_found(module: str, base: str, subclasses: list[str], offends: bool) -> None:
    texts = defaultdict(str, {module: f"from typing import Protocol\nclass {base}: ...\n"})
    for name in subclasses:
        texts[name] += f"from {module} import Base\nclass Sub(Base[int]): ...\n"
    assert one_subclass(bases_of(texts)) == ({f"{module}.Base"} if offends else set())


def test_depth_is_counted_from_operator() -> None:
    bases = {OPERATOR: [], "a": [OPERATOR], "b": ["other", "a"], "other": []}
    assert [depth(name, bases) for name in bases] == [0, 1, 2, -1]


def test_what_is_too_long_is_found() -> None:
    body = "    pass\n" * 30
    assert list(too_long(f"@mark\ndef f():\n{body}{body[:-9]}")) == ["f: 61 lines, at most 60 are fine"]
    assert list(too_long("x = 1\n" * 801)) == ["801 lines, at most 800 are fine"]
