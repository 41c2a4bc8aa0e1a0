"""`windrow reset`: the state goes, a live driver is stopped, and the location can be used again."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import windrow as wr
from tests.console.small_jobs import Said, counts, messages, run_job
from windrow.checkpoint import job_admin
from windrow.checkpoint.job import Job
from windrow.checkpoint.log import FileLog
from windrow.core.errors import Fenced, StateLocked
from windrow.testing.clock import ManualClock

Run = Callable[..., Said]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = tmp_path_factory.mktemp("made") / "job"
    run_job(counts(), job, range(60))
    return job


@pytest.fixture
def job(template: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(template, tmp_path / "job"))


def data_of(job: Path) -> list[Path]:
    """Every file that is no record of the log."""
    return [p for p in job.rglob("*") if p.is_file() and p.parent.name != "log"]


def test_reset_deletes_everything_but_the_claim_that_begins_anew(windrow: Run, job: Path) -> None:
    with counts().open(str(job)) as operator:
        operator.engine.shard.snapshot()
    assert {p.relative_to(job).parts[0] for p in data_of(job)} == {"changelog", "panes", "snapshots", "local"}
    code, out, err = windrow("reset", job, "--yes")
    assert (code, err) == (0, "") and "is empty" in out
    assert data_of(job) == []
    assert len(list((job / "log").glob("*.wrl"))) == 1


def test_a_job_that_was_reset_begins_anew_under_a_new_identity(windrow: Run, job: Path) -> None:
    first = run_job(counts(), job.parent / "other", range(60))
    [said] = windrow("reset", job, "--yes", "--json").lines
    again = run_job(counts(), job, range(60))
    assert [(p, p.commit) for p in again] == [(p, p.commit) for p in first]
    assert {p.token.job for p in again if p.token} == {said["job"]}
    assert said["was"] != said["job"]


def test_another_definition_may_follow_a_reset(windrow: Run, job: Path) -> None:
    other = counts(by=("k", "x"))
    with pytest.raises(wr.WindrowError, match="windrow reset"):
        other.open(str(job))
    windrow("reset", job, "--yes")
    other.open(str(job)).close()


def test_another_number_of_shards_may_follow_a_reset(windrow: Run, job: Path) -> None:
    windrow("reset", job, "--yes")
    assert Job.shards_at(str(job)) is None
    Job(str(job), [counts()], shards=3, clock=ManualClock()).close()


def test_the_stores_of_the_next_job_never_come_from_snapshots_of_the_last(
    windrow: Run, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    run_job(counts(), job, range(60, 120))
    assert list((job / "snapshots").rglob("*.manifest")) != []
    windrow("reset", job, "--yes")
    first = run_job(counts(), job, range(30))
    os.rename(job / "local", job / "gone")
    second = run_job(counts(), job, range(30, 60))
    assert first + second == run_job(counts(), job.parent / "whole", range(60))


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "no\n", "yess\n"])
def test_reset_asks_and_takes_only_yes_for_an_answer(windrow: Run, job: Path, answer: str) -> None:
    before = data_of(job)
    code, out, err = windrow("reset", job, answer=answer)
    assert (code, out) == (1, "") and "[y/N]" in err and "nothing was deleted" in err
    assert data_of(job) == before


@pytest.mark.parametrize("answer", ["y\n", "yes\n", "Y\n"])
def test_reset_does_it_after_a_yes(windrow: Run, job: Path, answer: str) -> None:
    assert windrow("reset", job, answer=answer).code == 0
    assert data_of(job) == []


def test_a_job_that_another_process_has_open_is_refused_and_continues(windrow: Run, tmp_path: Path) -> None:
    with counts().open(str(tmp_path / "job"), clock=ManualClock()) as operator:
        operator.add_messages(messages(range(30)))
        code, _, err = windrow("reset", tmp_path / "job", "--yes")
        assert code == 1 and "[WR203]" in err and "stop it first" in err
        assert [p["n"] for p in operator.get_result()] != []


def test_a_driver_that_holds_no_store_is_fenced(job: Path) -> None:
    driver = Job(str(job), [counts()], shards=1, clock=ManualClock())
    job_admin.reset(str(job), now_us=0, driver="test")
    with pytest.raises(Fenced):
        driver.record_intent(driver.plan())


def test_a_driver_that_slept_through_a_reset_and_a_new_job_can_create_nothing(job: Path) -> None:
    sleeper = Job(str(job), [counts()], shards=1, clock=ManualClock())
    job_admin.reset(str(job), now_us=0, driver="test")
    run_job(counts(), job, range(30))
    before = FileLog(job / "log").tail()
    with pytest.raises(Fenced):
        sleeper.record_intent(sleeper.plan())
    assert FileLog(job / "log").tail() == before


def test_a_reset_that_dies_before_its_end_leaves_a_job_that_refuses_and_can_be_reset(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("windrow.checkpoint.job_admin.encode", die)
        with pytest.raises(KeyboardInterrupt):
            job_admin.reset(str(job), now_us=0, driver="test")
    with pytest.raises(wr.WindrowError, match="WR207"):
        counts().open(str(job))
    job_admin.reset(str(job), now_us=0, driver="test")
    assert run_job(counts(), job, range(60)) == run_job(counts(), job.parent / "whole", range(60))


def test_a_driver_that_comes_in_between_is_reported(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.checkpoint.storage.FolderRecords.create", _second_call_loses())
    with pytest.raises(Fenced, match="while it was being reset"):
        job_admin.reset(str(job), now_us=0, driver="test")


def _second_call_loses() -> Callable[..., bool]:
    from windrow.checkpoint.storage import FolderRecords

    create, calls = FolderRecords.create, [0]

    def losing(self: FolderRecords, seq: int, data: bytes) -> bool:
        calls[0] += 1
        return create(self, seq, data) if calls[0] == 1 else False

    return losing


def test_reset_of_what_was_opened_and_never_committed(windrow: Run, tmp_path: Path) -> None:
    counts().open(str(tmp_path / "job")).close()
    assert windrow("reset", tmp_path / "job", "--yes").code == 0
    assert windrow("reset", tmp_path / "job", "--yes").code == 0


def test_a_store_that_is_locked_is_found_in_any_shard(job: Path) -> None:
    from windrow.stores.rocks import RocksKV

    other = RocksKV(job / "local" / "shard-0007", ("a",))
    try:
        with pytest.raises(StateLocked, match="shard-0007"):
            job_admin.reset(str(job), now_us=0, driver="test")
    finally:
        other.close()
