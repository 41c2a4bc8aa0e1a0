"""A log that is gone beside files of its commits: nothing begins anew silently."""

import shutil
from pathlib import Path

import pytest

import windrow as wr
from tests.state.jobs import aggregate, begun
from windrow.checkpoint import job_admin
from windrow.core.errors import JobMismatch, StateLost

LOST = r"log has no record, and .* is of a job that had one: its log is lost. Restore the log folder"


@pytest.mark.parametrize("gone", ["the records", "the folder"])
@pytest.mark.parametrize("left", ["changelog", "snapshots", "panes"])
def test_a_job_whose_log_is_gone_is_refused(
    tmp_path: Path, gone: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    job = tmp_path / "job"
    begun(aggregate(), job, range(30))
    shutil.copytree(job, tmp_path / "kept")
    shutil.rmtree(job / "log")
    if gone == "the records":
        (job / "log").mkdir()
    for folder in {"changelog", "snapshots", "panes"} - {left}:
        shutil.rmtree(job / folder)
    before = sorted(job.rglob("*"))
    for _ in range(2):
        with pytest.raises(StateLost, match=LOST):
            aggregate().open(str(job), sink=wr.sinks.memory())
    for read in (wr.read_state, job_admin.look):
        with pytest.raises(StateLost, match=LOST):
            read(str(job))
    assert sorted(job.rglob("*")) == before  # no new log folder, above all
    shutil.copytree(tmp_path / "kept", job, dirs_exist_ok=True)
    with aggregate().open(str(job), sink=wr.sinks.memory()) as op:
        assert op.last_commit == 3


def test_a_location_that_only_has_folders_begins(tmp_path: Path) -> None:
    begun(aggregate(), tmp_path / "job", range(10))
    job_admin.reset(str(tmp_path / "job"), now_us=0, driver="test")
    begun(aggregate(), tmp_path / "job", range(10))
    for folder in ("log", "changelog", "panes"):
        shutil.rmtree(tmp_path / "job" / folder)
        (tmp_path / "job" / folder).mkdir()
    with pytest.raises(JobMismatch, match="no driver has ever opened it"):
        job_admin.look(str(tmp_path / "job"))
    begun(aggregate(), tmp_path / "job", range(10))
