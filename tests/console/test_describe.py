"""`windrow describe` and `windrow commits`: what they say is what the job did."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import windrow as wr
from tests.console.small_jobs import Said, counts, messages, run_job

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


def test_describe_says_definition_progress_and_offsets(windrow: Run, job: Path) -> None:
    code, _, err = said = windrow("describe", job, "--json")
    [facts] = said.lines
    assert (code, err) == (0, "")
    assert facts["operators"] == {"aggregate": repr(counts())}
    assert facts["fingerprints"] == {"aggregate": counts().fingerprint}
    assert facts["next_offsets"] == [["topic", 0, 60]]
    assert facts["watermarks"] == {"aggregate": "1970-01-01T00:00:54+00:00"}
    assert facts["counters"] == {"rows": 60}
    assert (facts["epoch"], facts["shards"]) == (1, 1)
    with counts().open(str(job)) as operator:
        assert (facts["job"], facts["commit"]) == (operator.job, operator.last_commit)


def test_describe_for_people_has_the_same_facts_a_line_each(windrow: Run, job: Path) -> None:
    lines = windrow("describe", job).out.splitlines()
    named = dict(line.split(maxsplit=1) for line in lines)
    assert named["operators"] == f"aggregate: {counts()!r}"
    assert named["next_offsets"] == "topic 0: 60"
    assert named["counters"] == "rows: 60"


def test_describe_sums_the_bytes_of_all_files(windrow: Run, job: Path) -> None:
    [facts] = windrow("describe", job, "--json").lines
    assert facts["bytes"] == sum(os.lstat(p).st_size for p in job.rglob("*") if p.is_file())


def test_describe_only_reads(windrow: Run, job: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in job.rglob("*")}
    windrow("describe", job)
    windrow("commits", job)
    assert {p: p.stat().st_mtime_ns for p in job.rglob("*")} == before


def test_describe_works_while_the_job_runs(windrow: Run, tmp_path: Path) -> None:
    with counts().open(str(tmp_path / "job")) as operator:
        operator.add_messages(messages(range(3)))
        operator.timeout()
        [facts] = windrow("describe", tmp_path / "job", "--json").lines
        assert facts["commit"] == operator.last_commit == 1


def test_commits_lists_every_commit_with_its_rows_and_panes(windrow: Run, tmp_path: Path) -> None:
    run_job(counts(), tmp_path / "job", range(40), sink=wr.sinks.memory())
    lines = windrow("commits", tmp_path / "job", "--json").lines
    assert [line["commit"] for line in lines] == [1, 2, 3, 4]
    assert [line["rows"] for line in lines] == [10, 10, 10, 10]
    assert [line["panes"] for line in lines] == [0, 3, 3, 3]
    assert [line["watermark"] for line in lines][-1] == "1970-01-01T00:00:34+00:00"
    assert [line["now"] for line in lines][-1] == "2020-01-01T00:00:40+00:00"


def test_commits_for_people_are_a_table(windrow: Run, tmp_path: Path) -> None:
    run_job(counts(), tmp_path / "job", range(20), sink=wr.sinks.memory())
    head, *rows = windrow("commits", tmp_path / "job").out.splitlines()
    assert head.split() == ["commit", "now", "steps", "rows", "panes", "watermark", "query", "batch"]
    assert [row.split()[0] for row in rows] == ["1", "2"]


def test_last_keeps_the_newest_commits(windrow: Run, tmp_path: Path) -> None:
    run_job(counts(), tmp_path / "job", range(40), sink=wr.sinks.memory())
    assert [line["commit"] for line in windrow("commits", tmp_path / "job", "--last", 2, "--json").lines] == [
        3,
        4,
    ]


@pytest.mark.parametrize("command", ["describe", "commits", "reset"])
def test_a_folder_that_is_no_job_is_refused_with_1(windrow: Run, tmp_path: Path, command: str) -> None:
    code, out, err = windrow(command, tmp_path, *(["--yes"] if command == "reset" else []))
    assert (code, out) == (1, "")
    assert "[WR208]" in err and str(tmp_path) in err and "no windrow location" in err


def test_a_log_without_any_claim_is_no_job(windrow: Run, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    code, _, err = windrow("describe", tmp_path)
    assert code == 1 and "no driver has ever opened it" in err


@pytest.mark.parametrize(
    "arguments", [(), ("describe",), ("frobnicate",), ("commits", "x", "--last", "0"), ("fork", "x")]
)
def test_wrong_usage_is_2(windrow: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = windrow(*arguments)
    assert (code, out) == (2, "") and "usage: windrow" in err


def test_version_is_the_package_s(windrow: Run) -> None:
    assert windrow("--version") == (0, f"windrow {wr.__version__}\n", "")


def test_the_installed_command_gives_the_exit_code_to_the_shell(job: Path, tmp_path: Path) -> None:
    command = str(Path(sys.executable).parent / "windrow")
    good = subprocess.run([command, "describe", str(job)], capture_output=True, check=False)
    bad = subprocess.run([command, "describe", str(tmp_path)], capture_output=True, check=False)
    assert (good.returncode, bad.returncode) == (0, 1)
