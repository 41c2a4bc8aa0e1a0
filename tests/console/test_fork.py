"""`windrow fork`: the copy goes on as the original would have, and neither touches the other."""

import hashlib
import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.console.small_jobs import Said, counts, messages, run_job
from tests.deep import usually
from windrow.checkpoint import job_admin
from windrow.core.errors import JobMismatch, StateLost
from windrow.testing.clock import ManualClock

Run = Callable[..., Said]

DEFINITIONS = {
    "incremental": counts(),
    "hopping": counts(window=wr.hopping("20 seconds", "5 seconds")),
    "retracting": counts(emit=wr.Emit(early=wr.every_batch, mode="retracting")),
    "discarding": counts(emit=wr.Emit(early=wr.every(2), mode="discarding")),
    "full state": counts(agg={"n": wr.count(), "middle": wr.median("x")}, retention="30 seconds"),
    "tuples": counts(window=wr.tuples(4, step=2), retention=wr.Retain(windows=3)),
    "tuples, full state": counts(
        window=wr.tuples(4), retention=wr.Retain(windows=3), agg={"middle": wr.median("x")}
    ),
    "global": counts(window=wr.global_window(), retention=wr.forever, emit=wr.Emit(early=wr.every_batch)),
}


def files_of(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_file()
    }


def state_of(definition: wr.Aggregate, location: Path) -> tuple[Any, ...]:
    clock = ManualClock("2020-01-01 00:00Z")
    clock.advance("1 hour")
    with definition.open(str(location), clock=clock) as operator:
        stored = operator.get_messages() if definition.full_state else []
        return (
            operator.get_windows(),
            stored,
            operator.next_offsets(),
            operator.watermark,
            dict(operator.counters),
            operator.last_commit,
        )


#: Of each, from segments and from a snapshot.
FORKED = list(product(DEFINITIONS, (False, True)))
EVERY_OTHER = [one for n, one in enumerate(FORKED) if n % 4 in (1, 2)]


@pytest.mark.parametrize(("name", "snapshots"), usually(EVERY_OTHER, deep=FORKED))
def test_a_fork_continues_as_the_original(
    tmp_path: Path, name: str, snapshots: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if snapshots:
        monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
        monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1)
    definition = DEFINITIONS[name]
    run_job(definition, tmp_path / "job", range(60))
    job_admin.fork(str(tmp_path / "job"), str(tmp_path / "fork"), now_us=0, driver="test")
    original = run_job(definition, tmp_path / "job", range(60, 130))
    forked = run_job(definition, tmp_path / "fork", range(60, 130))
    assert original != []
    assert [(p, p.commit) for p in forked] == [(p, p.commit) for p in original]
    assert state_of(definition, tmp_path / "fork") == state_of(definition, tmp_path / "job")


def test_a_fork_has_the_original_s_windows_offsets_and_watermark_at_once(tmp_path: Path) -> None:
    run_job(counts(), tmp_path / "job", range(60))
    job_admin.fork(str(tmp_path / "job"), str(tmp_path / "fork"), now_us=0, driver="test")
    before = state_of(counts(), tmp_path / "job")
    assert state_of(counts(), tmp_path / "fork") == before
    assert before[0] != [] and before[2] == {("topic", 0): 60}


def test_the_store_of_a_fork_is_taken_as_it_is(tmp_path: Path) -> None:
    run_job(counts(), tmp_path / "job", range(60))
    job_admin.fork(str(tmp_path / "job"), str(tmp_path / "fork"), now_us=0, driver="test")
    state_of(counts(), tmp_path / "fork")
    assert os.listdir(tmp_path / "fork" / "local") == ["shard-0000"]


def test_now_does_not_go_back_in_a_fork(windrow: Run, tmp_path: Path) -> None:
    run_job(counts(), tmp_path / "job", range(60), sink=wr.sinks.memory())
    windrow("fork", tmp_path / "job", tmp_path / "fork")
    with counts().open(str(tmp_path / "fork"), clock=ManualClock("2020-01-01 00:00Z")) as operator:
        operator.timeout()
    [line] = windrow("commits", tmp_path / "fork", "--last", 1, "--json").lines
    assert line["now"] == "2020-01-01T00:01:00+00:00"


def test_a_fork_survives_the_loss_of_its_local_store(tmp_path: Path) -> None:
    definition = DEFINITIONS["full state"]
    run_job(definition, tmp_path / "job", range(60))
    job_admin.fork(str(tmp_path / "job"), str(tmp_path / "fork"), now_us=0, driver="test")
    shutil.rmtree(tmp_path / "fork" / "local")
    assert run_job(definition, tmp_path / "fork", range(60, 90)) == run_job(
        definition, tmp_path / "job", range(60, 90)
    )
    shutil.rmtree(tmp_path / "fork" / "local")
    assert state_of(definition, tmp_path / "fork") == state_of(definition, tmp_path / "job")


def test_incremental_windows_survive_the_loss_of_the_snapshots_too(tmp_path: Path) -> None:
    run_job(counts(), tmp_path / "job", range(60))
    job_admin.fork(str(tmp_path / "job"), str(tmp_path / "fork"), now_us=0, driver="test")
    shutil.rmtree(tmp_path / "fork" / "local")
    shutil.rmtree(tmp_path / "fork" / "snapshots")
    assert state_of(counts(), tmp_path / "fork") == state_of(counts(), tmp_path / "job")


def test_the_copy_is_a_job_of_its_own(windrow: Run, tmp_path: Path) -> None:
    run_job(counts(), tmp_path / "job", range(60))
    [original] = windrow("describe", tmp_path / "job", "--json").lines
    [said] = windrow("fork", tmp_path / "job", tmp_path / "fork", "--json").lines
    assert said["job"] != original["job"]
    assert (said["forked_from"], said["forked_at"]) == (original["job"], original["commit"])
    assert said["fingerprints"] == original["fingerprints"]
    panes = run_job(counts(), tmp_path / "fork", range(60, 90))
    assert {p.token.job for p in panes if p.token} == {said["job"]}


def test_both_may_publish_to_one_directory(tmp_path: Path) -> None:
    out = wr.sinks.parquet(str(tmp_path / "out"))
    run_job(counts(), tmp_path / "job", range(60), sink=out)
    once = len(wr.read_panes(out.path))
    job_admin.fork(str(tmp_path / "job"), str(tmp_path / "fork"), now_us=0, driver="test")
    run_job(counts(), tmp_path / "job", range(60, 90), sink=out)
    more = len(wr.read_panes(out.path)) - once
    run_job(counts(), tmp_path / "fork", range(60, 90), sink=out)
    assert more > 0
    assert len(wr.read_panes(out.path)) == once + 2 * more


def test_panes_up_to_the_last_commit_are_the_original_s(tmp_path: Path) -> None:
    clock = ManualClock("2020-01-01 00:00Z")
    with counts().open(str(tmp_path / "job"), clock=clock) as operator:
        operator.add_messages(messages(range(30)))
        assert operator.get_result() != []  # and never acknowledged
    job_admin.fork(str(tmp_path / "job"), str(tmp_path / "fork"), now_us=0, driver="test")
    with counts().open(str(tmp_path / "job"), clock=clock) as original:
        assert original.get_result() != []
    with counts().open(str(tmp_path / "fork"), clock=clock) as fork:
        assert fork.get_result() == []


def test_the_original_is_only_read(tmp_path: Path) -> None:
    run_job(counts(), tmp_path / "job", range(60))
    before = files_of(tmp_path / "job")
    job_admin.fork(str(tmp_path / "job"), str(tmp_path / "fork"), now_us=0, driver="test")
    run_job(counts(), tmp_path / "fork", range(60, 90))
    assert files_of(tmp_path / "job") == before


def test_a_running_job_is_forked_as_of_its_last_commit(tmp_path: Path) -> None:
    clock = ManualClock("2020-01-01 00:00Z")
    with counts().open(str(tmp_path / "job"), clock=clock) as operator:
        operator.add_messages(messages(range(30)))
        operator.timeout()
        operator.add_messages(messages(range(30, 40)))  # staged, not committed
        last = job_admin.fork(str(tmp_path / "job"), str(tmp_path / "fork"), now_us=0, driver="test")
        assert last.commit == operator.last_commit == 1
        operator.timeout()
    assert state_of(counts(), tmp_path / "fork")[2] == {("topic", 0): 30}


def test_a_fork_can_be_forked_and_reset(windrow: Run, tmp_path: Path) -> None:
    run_job(counts(), tmp_path / "job", range(60))
    assert windrow("fork", tmp_path / "job", tmp_path / "fork").code == 0
    assert windrow("fork", tmp_path / "fork", tmp_path / "again").code == 0
    assert windrow("reset", tmp_path / "fork", "--yes").code == 0
    assert run_job(counts(), tmp_path / "again", range(60, 90)) == run_job(
        counts(), tmp_path / "job", range(60, 90)
    )


def test_files_swept_while_they_are_copied_begin_the_copy_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job(counts(), tmp_path / "job", range(60))
    copy, calls = job_admin._copy, [0]

    def swept_once(seen: job_admin.Look, *rest: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            run_job(counts(), tmp_path / "job", range(60, 70))
            raise StateLost("gone")
        return copy(seen, *rest)

    monkeypatch.setattr(job_admin, "_copy", swept_once)
    job_admin.fork(str(tmp_path / "job"), str(tmp_path / "fork"), now_us=0, driver="test")
    assert calls == [2]
    assert state_of(counts(), tmp_path / "fork") == state_of(counts(), tmp_path / "job")


def test_what_is_lost_is_refused_and_leaves_nothing(windrow: Run, tmp_path: Path) -> None:
    run_job(DEFINITIONS["full state"], tmp_path / "job", range(60))
    shutil.rmtree(tmp_path / "job" / "segments")
    code, out, err = windrow("fork", tmp_path / "job", tmp_path / "fork")
    assert (code, out) == (1, "") and "[WR207]" in err
    assert sorted(os.listdir(tmp_path)) == ["job"]


def test_a_location_that_is_taken_is_refused(windrow: Run, tmp_path: Path) -> None:
    run_job(counts(), tmp_path / "job", range(30))
    run_job(counts(), tmp_path / "other", range(30))
    before = files_of(tmp_path / "other")
    code, _, err = windrow("fork", tmp_path / "job", tmp_path / "other")
    assert code == 1 and "is not empty" in err
    assert files_of(tmp_path / "other") == before


def test_an_empty_folder_is_no_obstacle(windrow: Run, tmp_path: Path) -> None:
    run_job(counts(), tmp_path / "job", range(30))
    (tmp_path / "fork").mkdir()
    assert windrow("fork", tmp_path / "job", tmp_path / "fork").code == 0


def test_nothing_committed_is_nothing_to_fork(tmp_path: Path) -> None:
    counts().open(str(tmp_path / "job")).close()
    with pytest.raises(JobMismatch, match="no commit yet"):
        job_admin.fork(str(tmp_path / "job"), str(tmp_path / "fork"), now_us=0, driver="test")
