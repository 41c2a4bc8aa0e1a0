"""Temporary folders: gone when they are done with, at the end of the process, and by the next one after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import windrow as wr
from windrow.stores import temp_dirs

CHILD = """
import sys, windrow as wr
from windrow.stores.temp_dirs import make_scratch
state = wr.read_state(sys.argv[1])
print(make_scratch("apply"), state._scratch, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary folders, and a process that has none."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(temp_dirs, "_held", {})
    return folder


@pytest.fixture
def job(tmp_path: Path) -> str:
    definition = wr.Aggregate(
        event_time="t", window=wr.tumbling("1 hour"), agg={"n": wr.count()}, retention="1 day"
    )
    with definition.open(str(tmp_path / "job")) as op:
        op.add_message(wr.Message({"t": 0}))
    return str(tmp_path / "job")


@pytest.mark.parametrize("killed", [True, False])
def test_nothing_stays_of_a_process_that_read_and_applied(place: Path, job: str, killed: bool) -> None:
    command = [sys.executable, "-c", CHILD, job]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        folders = child.stdout.readline().split()
        assert all(os.path.isdir(folder) and Path(folder).parent == place for folder in folders)
        temp_dirs.sweep()
        assert all(os.path.isdir(folder) for folder in folders), "its process lives"
        if killed:
            child.send_signal(signal.SIGKILL)
        else:
            child.communicate("\n")
    if killed:
        assert all(os.path.isdir(folder) for folder in folders)
        with wr.read_state(job) as state:
            assert len(state.get_windows()) == 1
    assert list(place.iterdir()) == []


def test_folders_of_others_are_left_alone(place: Path) -> None:
    for name in ("windrow-notes", "mine-read-1"):
        (place / name).mkdir()
    (place / "mine-read-1" / temp_dirs.LOCK).touch()
    being_made = place / "windrow-read-2"
    being_made.mkdir()
    (being_made / f"{temp_dirs.LOCK}.tmp").touch()
    with temp_dirs.scratch("read") as folder:
        temp_dirs.sweep()
        assert os.path.isdir(folder)
        assert len(list(place.iterdir())) == 4
    assert len(list(place.iterdir())) == 3
