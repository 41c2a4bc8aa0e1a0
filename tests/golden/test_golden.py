"""Jobs that former versions wrote open as they did, and go on as they would have."""

from __future__ import annotations

import json
import lzma
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.golden.jobs import KINDS, go_on, known
from tests.golden.on_spark import SPARK, go_on_on_spark, state_of
from tests.operators.folders import FOLDERS

HERE = Path(__file__).parent
#: What is gone of a job that opens all the same: its store is at hand, or comes from snapshots, or from all segments.
GONE: dict[str, tuple[str, ...]] = {"nothing": (), "store": ("local",), "snapshots": ("local", "snapshots")}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jobs of all archives, and what was said of each by who wrote it."""
    folder = tmp_path_factory.mktemp("golden")
    for archive in HERE.glob("*.tar.xz"):
        with lzma.open(archive) as packed, tarfile.open(fileobj=packed) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
            tar.extractall(folder)
    return folder


def said(written: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((written / f"{name}.json").read_text())
    return found


def copied(written: Path, name: str, to: Path, gone: str = "nothing") -> str:
    """A copy of a job, without what is gone of it."""
    shutil.copytree(written / name / "job", to)
    for folder in GONE[gone]:
        shutil.rmtree(to / folder)
    return str(to)


def same(found: Any, wanted: Any, where: str) -> None:
    """Raise unless these are equal, floats to their last digits."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key in wanted:
            same(found[key], wanted[key], f"{where}: {key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            same(one, other, f"{where}: {i}")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-12), where
    else:
        assert found == wanted, where


@pytest.mark.proves("Coming back: state that former versions wrote, of every kind")
@pytest.mark.parametrize("name", KINDS)
def test_a_job_of_a_former_version_goes_on_as_it_would_have(name: str, written: Path, tmp_path: Path) -> None:
    wanted, kind = said(written, name), KINDS[name]
    for gone in GONE:
        location = copied(written, name, tmp_path / gone, gone)
        same(known(kind, location), wanted["state"], gone)
    found = go_on(kind, str(tmp_path / "store"))
    same(found, {what: wanted[what] for what in found}, "what it tells")
    assert found["told"]


@pytest.mark.proves("Coming back: state that former versions wrote, of every kind")
def test_a_job_that_a_former_version_wrote_on_spark_goes_on(
    spark: Any, written: Path, tmp_path: Path
) -> None:
    wanted, location = said(written, SPARK), copied(written, SPARK, tmp_path / "job")
    same(state_of(location), wanted["state"], "state")
    found = go_on_on_spark(spark, location)
    same(found, {what: wanted[what] for what in found}, "what it tells")
    assert found["told"]


def test_no_kind_of_operator_is_without_a_job(written: Path) -> None:
    from windrow.operators.operator import Definition

    made = [kind.make() for kind in KINDS.values()]
    found = {type(part) for definition in made for part in definition.parts}
    assert {kind.__name__.lower() for kind in found} == {name.replace("_", "") for name in FOLDERS}
    assert all(isinstance(definition, Definition) for definition in made)
