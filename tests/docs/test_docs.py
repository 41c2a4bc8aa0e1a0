"""README and docs are programs: every ```python block runs, and prints what the ```text block after it says.

The blocks of a page share a namespace and an empty folder. Blocks that use Spark run only under the marker `spark`.
`<!-- not run -->` on the line before a block skips it: only for what needs a cluster.
"""

import ast
import doctest
import importlib
import io
import re
import sys
import tomllib
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(
    r"^(<!-- not run -->\n+)?```python\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
SKIPPABLE = re.compile(r"kafka|yarn|k8s|spark-submit|cluster", re.IGNORECASE)


@dataclass(frozen=True)
class Block:
    """One block of a page; `line` is that of its first line of code.

    said: what it prints, if the page tells. spark: it, or a block before it on the page, uses Spark.
    """

    page: Path
    line: int
    code: str
    skipped: bool
    said: str | None
    spark: bool

    @property
    def dialogue(self) -> bool:
        """True if the block is written as at the prompt."""
        return self.code.lstrip().startswith(">>> ")

    def run(self, namespace: dict[str, Any]) -> None:
        if self.dialogue:
            test = doctest.DocTestParser().get_doctest(
                self.code, namespace, self.page.name, str(self.page), self.line - 1
            )
            failed, _ = doctest.DocTestRunner().run(test, clear_globs=False)
            namespace.update(test.globs)
            assert failed == 0, f"{self.page.name}:{self.line} says something else"
            return
        code = compile("\n" * (self.line - 1) + self.code, str(self.page), "exec")
        out = io.StringIO()
        with redirect_stdout(out):
            exec(code, namespace)
        if self.said is not None:
            assert out.getvalue() == self.said, f"{self.page.name}:{self.line} prints something else"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    examples = []
    spark = False
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        spark = spark or re.search(r"\bspark\b|\bpyspark\b", match[2]) is not None
        examples.append(Block(page, line, match[2], match[1] is not None, match[3], spark))
    return examples


def pages(spark: bool) -> list[Any]:
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)))
        for page in PAGES
        if any(b.spark == spark and not b.skipped for b in blocks(page))
    ]


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *, spark: bool) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for block in blocks(page):
        if not block.skipped and (spark or not block.spark):
            block.run(namespace)


@pytest.mark.parametrize("page", pages(spark=False))
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, tmp_path, monkeypatch, spark=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(spark=True))
def test_every_block_of_a_page_runs_with_spark(
    page: Path, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the session of the tests, which pages get that ask for one. Its relative paths are the page's: Spark asks for them in
    two ways."""
    hadoop, system = spark._jvm.org.apache.hadoop.fs, spark._jvm.java.lang.System
    files = hadoop.FileSystem.get(spark._jsc.hadoopConfiguration())
    before, began = files.getWorkingDirectory(), system.getProperty("user.dir")
    files.setWorkingDirectory(hadoop.Path(str(tmp_path)))
    system.setProperty("user.dir", str(tmp_path))
    try:
        run_page(page, tmp_path, monkeypatch, spark=True)
    finally:
        files.setWorkingDirectory(before)
        system.setProperty("user.dir", began)


def test_there_are_blocks_to_run() -> None:
    assert len(pages(spark=False)) >= 2 and len(pages(spark=True)) >= 1


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_of_python_is_found_and_skipped_only_for_a_cluster(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    examples = blocks(page)
    assert len(examples) == len(re.findall(r"^```(?:python|py)\b", text, re.MULTILINE))
    assert text.count("<!-- not run -->") == sum(b.skipped for b in examples)
    for block in examples:
        if not block.dialogue:
            ast.parse(block.code)
        assert not block.skipped or SKIPPABLE.search(block.code), f"{page.name}:{block.line} could run"


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> frozenset[str]:
    """List what a link may name after `#`: the headings of a page, as GitHub spells them, or the tests of a module."""
    if page.suffix == ".py":
        return frozenset(re.findall(r"^def (test_\w+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings)


def dead_links(page: Path) -> list[str]:
    """Links to a file or a heading that is not there."""
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)", prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    return dead


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted(ROOT.glob("C*.md"))], ids=lambda p: str(p.relative_to(ROOT))
)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert dead_links(page) == []


def pages_of(nav: Any) -> set[str]:
    """The pages that a navigation names: a page, or a list or a table of these."""
    if isinstance(nav, str):
        return {nav}
    return {page for below in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(below)}


def test_the_site_leads_to_every_page() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    docs = ROOT / "docs"
    index = (docs / "reference" / "api" / "README.md").read_text(encoding="utf-8")
    names = {f"reference/api/{page}" for page in re.findall(r"\]\(([\w-]+\.md)", index)}
    assert pages_of(nav) | names == {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 190


def test_every_page_that_code_names_is_there() -> None:
    named = {
        (str(file.relative_to(ROOT)), mention)
        for file in ROOT.rglob("*")
        if file.suffix in (".py", ".toml", ".md", ".sh", ".yml") or file.name == "Makefile"
        if not any(
            part.startswith(".") or part in ("src", "build", "out") for part in file.parts[len(ROOT.parts) :]
        )
        for mention in re.findall(r"(?<![\w/.])docs/[\w./-]*\w", file.read_text(encoding="utf-8"))
    }
    assert sorted(n for n in named if not any(ROOT.glob(f"{n[1]}*"))) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_page_names_a_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.])/(?:work|home|root|Users)/\S+", text) == []


#: Those in whose text a prompt stands: to look through all that others define takes seconds, and finds nothing.
MODULES = sorted(
    f"windrow.{'.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')}"
    for folder in ("drawing", "core", "stores", "operators", "checkpoint", "connectors", "runners", "testing")
    for path in (ROOT / folder).rglob("*.py")
    if "spark" not in path.parts and ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", ["windrow", *MODULES])
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_some_docstrings_have_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    counted = [
        len(t.examples) for n in ["windrow", *MODULES] for t in finder.find(importlib.import_module(n))
    ]
    assert sum(counted) > 10
