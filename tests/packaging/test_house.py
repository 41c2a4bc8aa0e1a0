"""The library stays in rooms that fit a screen, and no import runs in a circle (docs/explanation/adr/0013)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.test_layout import FOLDERS, ROOT

FILE_LINES, FUNCTION_LINES = 450, 60
#: What a definition makes when it is asked to: these look up what stands above it, and are how kinds are registered.
REGISTRY = {"logic", "view", "oracle"}


def modules() -> dict[str, Path]:
    """Every module of the library, by its name."""
    found = {"windrow": ROOT / "src" / "windrow" / "__init__.py"}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(("windrow", *parts)).removesuffix(".__init__")] = path
    return found


def too_long(text: str) -> Iterator[str]:
    """What of a module does not fit: the module itself, or functions, counted with decorators and docstrings."""
    lines = text.count("\n")
    if lines > FILE_LINES:
        yield f"{lines} lines, at most {FILE_LINES} are fine"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            lines = (node.end_lineno or first) - first + 1
            if lines > FUNCTION_LINES:
                yield f"{node.name}: {lines} lines, at most {FUNCTION_LINES} are fine"


def imports(text: str) -> Iterator[str]:
    """What a module imports of ours whenever it runs, inside functions too; not for types alone, and not by the registry."""

    def below(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef) and child.name in REGISTRY:
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                yield from (f"{child.module}.{alias.name}" for alias in child.names)
            yield from below(child)

    return below(ast.parse(text))


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """Some circle of a graph; nothing where it has none."""
    done: set[str] = set()

    def search(path: list[str]) -> list[str]:
        for after in sorted(graph[path[-1]] - done):
            if after in path:
                return path[path.index(after) :]
            if found := search([*path, after]):
                return found
        done.add(path[-1])
        return []

    return next((found for name in sorted(graph) if name not in done and (found := search([name]))), [])


def graph_of(texts: dict[str, str]) -> dict[str, set[str]]:
    """Which module imports which."""
    graph: dict[str, set[str]] = {name: set() for name in texts}
    for name, text in texts.items():
        for target in imports(text):
            while target and target not in texts:
                target = target.rpartition(".")[0]
            if target and target != name:
                graph[name].add(target)
    return graph


def test_no_import_runs_in_a_circle() -> None:
    assert circle_in(graph_of({name: path.read_text() for name, path in modules().items()})) == []


def test_files_and_functions_fit() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): list(too_long(path.read_text())) for path in modules().values()
    }
    assert {name: why for name, why in found.items() if why} == {}
    assert len(found) > 200


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
    assert circle_in(graph_of({"windrow.a": written, "windrow.b": "from windrow.a import y"})) == circle


def test_what_is_too_long_is_found() -> None:
    body = "    pass\n" * 30
    assert list(too_long(f"@mark\ndef f():\n{body}{body[:-9]}")) == ["f: 61 lines, at most 60 are fine"]
    assert list(too_long("x = 1\n" * 451)) == ["451 lines, at most 450 are fine"]
