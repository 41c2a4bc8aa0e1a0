"""Outside `operators/` nobody knows a kind of operator: what a job asks of one stands in `operators/operator.py`, what may be
asked of its state in `operators/view.py`. Who imports an operator's folder is an import contract (`pyproject.toml`).
"""

import re
import tomllib

import pytest

from tests.packaging.test_layout import FOLDERS, ROOT

#: Questions after the kind of an operator, and names of what only its folder knows.
KIND = re.compile(
    r"isinstance\([^)]*\b[A-Z]\w+Definition\b|\btuple_window\b|\b(Window|Tuple)Aggregator\b|\b(Rows)?JoinOperator\b"
    r"|\bChainOperator\b"
)


def kinds_in(text: str) -> list[str]:
    """The lines of a module that know a kind of operator."""
    return [line.strip() for line in text.splitlines() if KIND.search(line)]


def test_outside_operators_nobody_knows_a_kind_of_operator() -> None:
    offenders = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if folder != "operators":
                offenders[name] = kinds_in(path.read_text())
    assert {name: lines for name, lines in offenders.items() if lines} == {}
    assert len(offenders) > 100


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("if isinstance(definition, JoinDefinition):", True),
        ("numbers = getattr(definition, 'tuple_window', False)", True),
        ("operator = WindowAggregator(definition)", True),
        ("if isinstance(definition, Definition):", False),
    ],
)
def test_a_question_after_the_kind_is_found(line: str, known: bool) -> None:
    assert bool(kinds_in(f"def planted(definition):\n    {line}\n")) == known


def test_import_contracts_name_every_operator_and_every_oracle() -> None:
    """They are lists: what is not in them may be imported by anybody, and import anything."""
    contracts = {
        one["id"]: one
        for one in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    }
    folders = {path.parent.name for path in (ROOT / "operators").glob("*/definition.py")}
    assert {f"windrow.operators.{name}" for name in folders} == set(
        contracts["operators"]["forbidden_modules"]
    )
    layers = {name for layer in contracts["operators-layers"]["layers"] for name in layer.split(" | ")}
    assert folders <= layers
    plain = {
        ".".join(("windrow", *path.relative_to(ROOT).with_suffix("").parts))
        for pattern in ("*/*_oracle.py", "*/oracle_*.py", "*/*/*oracle.py")
        for path in (ROOT / "operators").glob(pattern)
    }
    assert plain <= set(contracts["oracles"]["source_modules"])
    assert len(folders) > 8 and len(plain) > 5


def test_nobody_asks_for_the_kind_of_a_transport() -> None:
    asks = re.compile(r"(==|!=|\bis|\bis not) FILES\b|isinstance\([^)]*(KafkaLog|FileTransport)")
    offenders = [
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if asks.search(path.read_text())
    ]
    assert offenders == []
