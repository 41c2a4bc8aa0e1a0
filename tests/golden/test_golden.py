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


@pytest.mark.parametrize("name", ARCHIVED)
def test_a_job_of_an_archive_continues_as_it_would_have(name: str, written: Path, tmp_path: Path) -> None:
    kind, job = KINDS[name], written / name / "job"
    wanted: dict[str, Any] = json.loads((written / f"{name}.json").read_text())
    lost = shutil.copytree(job, tmp_path / "lost")
    for folder in ("local", "snapshots"):  # so that the state comes from all segments
        shutil.rmtree(lost / folder)
    same(known(kind, str(lost)), wanted["state"], "from segments")
    found = go_on(kind, str(job))
    same(found, {what: wanted[what] for what in found}, "goes on")
    assert found["told"]


def test_no_operator_is_without_a_job() -> None:
    found = {type(part) for name in ARCHIVED for part in KINDS[name].make().parts}
    assert {kind.__name__.lower() for kind in found} == {name.replace("_", "") for name in FOLDERS}
