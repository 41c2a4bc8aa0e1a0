"""Jobs of an archive open as their writer left them, and go on as they would have."""

from __future__ import annotations

import json
import lzma
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.golden.jobs import ARCHIVE, ARCHIVED, KINDS, go_on, known
from tests.operators.folders import FOLDERS


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jobs of the archive, and what its writer answered of each."""
    folder = tmp_path_factory.mktemp("golden")
    with lzma.open(ARCHIVE) as packed, tarfile.open(fileobj=packed) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        tar.extractall(folder)
    return folder


def same(actual: Any, wanted: Any, where: str) -> None:
    """Raise unless these are equal, floats to their last digits."""
    if isinstance(wanted, dict):
        assert actual.keys() == wanted.keys(), where
        for key in wanted:
            same(actual[key], wanted[key], f"{where}: {key}")
    elif isinstance(wanted, list):
        assert len(actual) == len(wanted), where
        for i, (one, other) in enumerate(zip(actual, wanted, strict=True)):
            same(one, other, f"{where}: {i}")
    elif isinstance(wanted, float):
        assert actual == pytest.approx(wanted, rel=1e-12), where
    else:
        assert actual == wanted, where


@pytest.mark.parametrize("name", ARCHIVED)
def test_a_job_of_an_archive_continues_as_it_would_have(name: str, written: Path, tmp_path: Path) -> None:
    kind, job = KINDS[name], written / name / "job"
    wanted: dict[str, Any] = json.loads((written / f"{name}.json").read_text())
    lost = shutil.copytree(job, tmp_path / "lost")
    for folder in ("local", "snapshots"):  # so that the state comes from all segments
        shutil.rmtree(lost / folder)
    same(known(kind, str(lost)), wanted["state"], "from segments")
    state = go_on(kind, str(job))
    same(state, {what: wanted[what] for what in state}, "goes on")
    assert state["told"]


def test_no_operator_is_without_a_job() -> None:
    covered = {type(part) for name in ARCHIVED for part in KINDS[name].make().parts}
    assert {kind.__name__.lower() for kind in covered} == {name.replace("_", "") for name in FOLDERS}
