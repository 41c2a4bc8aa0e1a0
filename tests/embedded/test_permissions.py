"""Who may read the state of a job."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import windrow as wr
from tests.state.jobs import KINDS, begun
from windrow.core.errors import ConfigurationError
from windrow.stores.files import FOLDER_MODE


@pytest.fixture
def no_umask() -> Iterator[None]:
    was = os.umask(0)
    try:
        yield
    finally:
        os.umask(was)


def modes(location: Path) -> tuple[set[str], set[str]]:
    """(modes of the folders that windrow makes, modes of the files that it writes itself)."""
    folders = {oct(p.stat().st_mode & 0o7777) for p in (location, *location.rglob("*")) if p.is_dir()}
    own = [
        p
        for p in location.rglob("*")
        if p.suffix in (".wrl", ".seg", ".manifest") or p.parent.name == "blobs"
    ]
    assert {p.relative_to(location).parts[0] for p in own} >= {"log", "changelog"}
    return folders, {oct(p.stat().st_mode & 0o7777) for p in own}


@pytest.mark.usefixtures("no_umask")
def test_others_may_not_look_into_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    begun(KINDS["full state"], tmp_path / "jobs" / "job", range(40))
    assert modes(tmp_path / "jobs" / "job") == ({"0o750"}, {"0o640"})
    assert oct((tmp_path / "jobs").stat().st_mode & 0o7777) == "0o750"


def test_a_narrower_umask_holds(tmp_path: Path) -> None:
    was = os.umask(0o077)
    try:
        begun(KINDS["full state"], tmp_path / "job", range(20))
    finally:
        os.umask(was)
    assert modes(tmp_path / "job") == ({"0o700"}, {"0o600"})


def test_a_group_may_share_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_MODE, "2770")
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    begun(KINDS["full state"], tmp_path / "job", range(40))
    assert modes(tmp_path / "job")[0] == {"0o2770"}


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir(mode=0o755)
    begun(KINDS["incremental"], tmp_path / "job", range(20))
    assert oct((tmp_path / "job").stat().st_mode & 0o777) == "0o755"
    assert modes(tmp_path / "job")[0] == {"0o755", "0o750"}


@pytest.mark.parametrize("mode", ["rwxr-x---", "0", "999", "0o750", "070", ""])
def test_what_is_no_mode_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv(FOLDER_MODE, mode)
    with pytest.raises(ConfigurationError, match=r"WINDROW_FOLDER_MODE=.*: give an octal mode"):
        KINDS["incremental"].open(str(tmp_path / "job"), sink=wr.sinks.memory())
