"""`windrow backup`: a copy that is taken while the job runs opens, is whole, and goes on."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.console.small_jobs import Said, counts, messages, run_job
from windrow.checkpoint import backup as backups
from windrow.checkpoint.backup import backup
from windrow.checkpoint.verify import verify
from windrow.core.errors import JobMismatch, SinkFailed, StateLost
from windrow.testing.clock import ManualClock

Run = Callable[..., Said]
KINDS = {
    "incremental": counts(retention="30 seconds"),
    "full state": counts(agg={"n": wr.count(), "middle": wr.median("x")}, retention="30 seconds"),
}


class Running:
    """A job that commits as fast as it can, in a thread, and remembers what it held after each commit."""

    def __init__(self, definition: wr.Aggregate, location: Path, panes: Path) -> None:
        self.definition, self.location, self.panes = definition, location, panes
        self.history: dict[int, Any] = {}
        self._over, self._begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: BaseException | None = None

    def __enter__(self) -> "Running":
        self._thread.start()
        assert self._begun.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        clock, at = ManualClock(), 0
        try:
            with self.definition.open(
                str(self.location), clock=clock, sink=wr.sinks.parquet(str(self.panes))
            ) as op:
                while not self._over.is_set():
                    op.add_messages(messages(range(at, at + 10)))
                    clock.advance("10 seconds")
                    op.timeout()
                    self.history[op.last_commit] = answers_of(op)
                    at += 10
                    if at == 30:
                        self._begun.set()
        except BaseException as failure:
            self._failure = failure
        finally:
            self._begun.set()


def answers_of(operator: Any) -> Any:
    stored = operator.get_messages() if operator.definition.full_state else []
    return operator.get_windows(), stored, operator.next_offsets(), operator.watermark


@pytest.mark.parametrize("kind", KINDS)
def test_every_copy_of_a_running_job_opens_as_of_its_commit(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1)  # files go almost at once
    definition = KINDS[kind]
    with Running(definition, tmp_path / "job", tmp_path / "panes") as running:
        made: list[Any] = []
        while len(made) < 15 or made[-1].commit == made[0].commit:  # the job may wait for its turn
            made.append(backup(str(tmp_path / "job"), str(tmp_path / f"copy-{len(made)}")))
    for n, said in enumerate(made):
        copy, clock = tmp_path / f"copy-{n}", ManualClock()
        assert verify(str(copy)).wrong == []
        clock.advance("10 days")
        with definition.open(str(copy), clock=clock, sink=wr.sinks.memory()) as op:
            assert op.last_commit == said.commit
            assert answers_of(op) == running.history[said.commit]
            at = said.commit * 10
            op.add_messages(messages(range(at, at + 10)))
            op.timeout()
            if said.commit + 1 in running.history:
                assert answers_of(op) == running.history[said.commit + 1]


def test_panes_that_may_not_be_out_come_with_the_copy(tmp_path: Path) -> None:
    def refusing(panes: Any, token: Any) -> None:
        raise OSError("the sink is down")

    definition, clock = counts(), ManualClock()
    with pytest.raises(SinkFailed), definition.open(str(tmp_path / "job"), clock=clock, sink=refusing) as op:
        op.add_messages(messages(range(30)))
        op.timeout()
    backup(str(tmp_path / "job"), str(tmp_path / "copy"))
    sink = wr.sinks.memory()
    with definition.open(str(tmp_path / "copy"), clock=clock, sink=sink):
        assert [(p.key["k"], p.values["n"]) for p in sink.panes][:3] == [("a", 4), ("b", 3), ("c", 3)]
    for lost in (tmp_path / "job" / "panes").iterdir():
        lost.unlink()
    with pytest.raises(StateLost, match="panes of commit 1, which may not be published yet, are gone"):
        backup(str(tmp_path / "job"), str(tmp_path / "another"))


def test_a_copy_is_begun_again_where_files_went_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading the log and copying, the job goes on, takes a snapshot and sweeps."""
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 1)
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 0)
    run_job(counts(), tmp_path / "job", range(30))
    copy, calls = backups._copy, []

    def commit_of(manifest: Path) -> int:
        return int(manifest.name.split("-")[1])

    def late(seen: Any, staging: Any) -> Any:
        calls.append(seen.state.commit_number)
        if len(calls) < 3:
            at = 30 * len(calls)
            run_job(counts(), tmp_path / "job", range(at, at + 30))
            manifests = sorted((tmp_path / "job" / "snapshots" / "manifests").iterdir(), key=commit_of)
            for older in manifests[:-1]:
                older.unlink()
        return copy(seen, staging)

    monkeypatch.setattr(backups, "_copy", late)
    made = backup(str(tmp_path / "job"), str(tmp_path / "copy"))
    assert len(calls) == 3 and made.commit == calls[-1] > calls[0]
    assert verify(str(tmp_path / "copy")).wrong == []
    assert sorted(os.listdir(tmp_path)) == ["copy", "job"]


def test_what_cannot_be_rebuilt_is_not_called_a_backup(tmp_path: Path) -> None:
    run_job(counts(), tmp_path / "job", range(30))
    shutil.rmtree(tmp_path / "job" / "changelog")
    with pytest.raises(StateLost, match=r"shard 0 of .*job cannot be rebuilt as of commit 5 from"):
        backup(str(tmp_path / "job"), str(tmp_path / "copy"))
    assert os.listdir(tmp_path) == ["job"]


def test_the_command_says_what_it_copied(tmp_path: Path, windrow: Run) -> None:
    run_job(counts(), tmp_path / "job", range(30))
    said = windrow("backup", tmp_path / "job", tmp_path / "copy")
    assert said.code == 0 and "as of commit 5" in said.out
    report = windrow("backup", tmp_path / "job", tmp_path / "second", "--json").lines[0]
    files = [p for p in (tmp_path / "second").rglob("*") if p.is_file()]
    assert report == {
        "location": str(tmp_path / "second"),
        "job": report["job"],
        "commit": 5,
        "files": len(files),
        "bytes": sum(p.stat().st_size for p in files),
    }
    again = windrow("backup", tmp_path / "job", tmp_path / "copy")
    assert again.code == 1 and "is not empty: back up to a location that does not exist yet" in again.err
    with pytest.raises(JobMismatch, match="is no windrow location"):
        backup(str(tmp_path / "nowhere"), str(tmp_path / "third"))


def test_a_job_without_a_commit_and_a_fork_can_be_copied_too(tmp_path: Path, windrow: Run) -> None:
    with counts().open(str(tmp_path / "new"), clock=ManualClock()):
        pass
    assert backup(str(tmp_path / "new"), str(tmp_path / "new copy")).commit == 0
    run_job(counts(), tmp_path / "new copy", range(30))
    windrow("fork", tmp_path / "new copy", tmp_path / "fork")
    assert backup(str(tmp_path / "fork"), str(tmp_path / "fork copy")).commit == 5
    for n in range(30, 60, 10):
        run_job(counts(), tmp_path / "fork copy", range(n, n + 10))
    assert verify(str(tmp_path / "fork copy")).wrong == []
