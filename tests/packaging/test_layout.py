"""The folders at the root are one package: links, wheel, imports, layers and pins (docs/explanation/adr/0001)."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from windrow.runners.spark import jvm_calls

ROOT = Path(__file__).resolve().parents[2]
NOT_PACKAGED = {"tests", "examples", "benchmarks"}
FOLDERS = sorted(
    path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name not in NOT_PACKAGED
)
SHIPPED_SUFFIXES = {".py", ".css", ".html", ".js", ".svg"}


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with standard error joined to its output."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """Check the import contracts of the package in `tree`, which is not the installed one."""
    command = str(Path(sys.executable).parent / "lint-imports")
    return run(command, "--no-cache", cwd=tree, PYTHONPATH=str(tree / "src"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the build reads, links kept as links."""
    copy = tmp_path / "tree"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ["src", *FOLDERS]:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    for name in ["pyproject.toml", "setup.py", "LICENSE", "README.md"]:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    return copy


def test_every_folder_of_the_root_is_linked_into_the_package() -> None:
    links = [path for path in (ROOT / "src" / "windrow").iterdir() if path.is_symlink()]
    assert sorted(path.name for path in links) == FOLDERS
    for link in links:
        assert link.is_dir()
        assert link.readlink() == Path("..", "..", link.name)


def test_a_clone_without_symbolic_links_does_not_build(tree: Path) -> None:
    link = tree / "src" / "windrow" / "stores"
    link.unlink()
    link.write_text("../../stores")  # what git writes where core.symlinks is false
    ran = run(sys.executable, "setup.py", "--version", cwd=tree)
    assert ran.returncode != 0
    assert "not a folder: stores." in ran.stdout


def test_the_wheel_built_from_the_sdist_holds_every_module(tree: Path, tmp_path: Path) -> None:
    expected = {"windrow/__init__.py", "windrow/py.typed"}
    expected |= {"pyspark_windrow/__init__.py", "pyspark_windrow_kafka/__init__.py"}
    for folder in FOLDERS:
        files = (path for path in (tree / folder).rglob("*") if path.suffix in SHIPPED_SUFFIXES)
        expected |= {f"windrow/{path.relative_to(tree).as_posix()}" for path in files}
    # Without --wheel or --sdist, build makes the wheel from the sdist; without isolation it needs no network.
    ran = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), cwd=tree)
    assert ran.returncode == 0, ran.stdout
    [wheel] = (tmp_path / "dist").glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == expected


def test_importing_windrow_loads_neither_spark_nor_kafka_nor_what_few_want() -> None:
    unwanted = {
        "pyspark",
        "confluent_kafka",
        "pandas",
        "structlog",
        "rich",
        "tqdm",
        "asyncio",
        "starlette",
        "uvicorn",
        "jinja2",
        "textual",
        "opentelemetry",
        "prometheus_client",
    }
    code = (
        f"import sys, windrow; print(*({unwanted} & set(sys.modules)));"
        f"import windrow.testing; print(*sorted({unwanted} & set(sys.modules)))"
    )
    ran = run(sys.executable, "-c", code, cwd=ROOT)
    assert (ran.returncode, ran.stdout.split("\n")) == (0, ["", "asyncio tqdm", ""])


def test_imports_that_point_up_are_found_and_there_are_no_others(tree: Path) -> None:
    planted = [
        ("core", "import windrow.stores"),
        ("stores", "import windrow.operators"),
        ("operators", "import windrow.checkpoint"),
        ("checkpoint", "import windrow.connectors"),
        ("connectors", "import windrow.runners"),
        ("runners", "import windrow.console"),
        ("runners", "import windrow.testing"),
        ("testing", "import windrow.console"),
        ("testing", "import windrow.runners.spark"),
        ("operators", "import rocksdict"),
        ("runners", "import confluent_kafka"),
        ("connectors", "import pyspark"),
        ("console", "import windrow.operators.join.definition"),
        ("runners", "import windrow.operators.graph.logic"),
    ]
    for n, (module, line) in enumerate(planted):
        (tree / module / f"planted_{n}.py").write_text(f"{line}\n")
    ran = lint_imports(tree)
    assert ran.returncode == 1
    assert set(re.findall(r"windrow\.\S+ -> \S+", ran.stdout)) == {
        f"windrow.{module}.planted_{n} -> {line.removeprefix('import ')}"
        for n, (module, line) in enumerate(planted)
    }


def test_the_lock_pins_all_that_the_project_asks_for() -> None:
    lines = [
        line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")
    ]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.!]+", line)] == []
    pinned = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(text for extra in project["optional-dependencies"].values() for text in extra),
    ]
    for requirement in map(Requirement, wanted):
        if requirement.name != "windrow":
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement


def test_no_pyspark_is_asked_for_whose_inside_nobody_has_looked_at() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [asked] = [r for r in map(Requirement, project["optional-dependencies"]["spark"]) if r.name == "pyspark"]
    major, minor = jvm_calls.NEWEST
    assert asked.specifier.contains(f"{major}.{minor}.9") and not asked.specifier.contains(
        f"{major}.{minor + 1}.0"
    )
