"""What a user of the installed package sees: types."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.consumer_job import delays, run

JOB = Path(__file__).parent / "consumer_job.py"


def check(file: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """mypy over one file as a user would run it: strict, without this repository's configuration."""
    config = folder / "mypy.ini"
    config.write_text("[mypy]\n[mypy-pyarrow.*]\nignore_missing_imports = True\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        str(config),
        "--cache-dir",
        str(folder / "c"),
    ]
    return subprocess.run([*command, str(file)], capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.proves("Definitions: typed: a user's job passes `mypy --strict`")
@pytest.mark.slow
def test_a_user_s_job_passes_strict_type_checking(tmp_path: Path) -> None:
    done = check(JOB, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('event_time="departure"', "event_time=3"),
        ("window=wr.hopping(", "window=str("),
        ("op.get_windows(moment, moment", 'op.get_windows("noon", moment'),
        ("letters: list[wr.DeadLetter]", "letters: list[str]"),
    ],
)
def test_a_mistake_in_a_user_s_job_is_found(tmp_path: Path, right: str, wrong: str) -> None:
    text = JOB.read_text(encoding="utf-8")
    assert right in text
    broken = tmp_path / "broken_job.py"
    broken.write_text(text.replace(right, wrong))
    done = check(broken, tmp_path)
    assert done.returncode == 1 and "broken_job.py" in done.stdout


def test_the_job_runs(tmp_path: Path) -> None:
    lines = run(str(tmp_path / "job"))
    assert delays.full_state is False
    assert lines[-2:] == ["0 {('f', 0): 1}", "WR105"]
    assert [line.split()[1] for line in lines[:-2] if "TIME" in line] == ["ON_TIME"] * 4
