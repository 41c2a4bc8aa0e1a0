"""Types of the installed package, as a user's checker sees them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.consumer_job import delays, run

JOB = Path(__file__).parent / "consumer_job.py"
#: What `make lint` has found out about the library, under the same flags: most of the work.
CHECKED = Path(__file__).parents[2] / ".mypy_cache"
MISTAKES = [
    ('event_time="departure"', "event_time=3"),
    ("window=wr.hopping(", "window=str("),
    ("op.get_windows(moment, moment", "op.get_windows(12.0, moment"),
    ("letters: list[wr.DeadLetter]", "letters: list[str]"),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run mypy over the job with all mistakes as a user would: strict, without this repository's configuration."""
    folder, text = tmp_path_factory.mktemp("jobs"), JOB.read_text(encoding="utf-8")
    files = [folder / "right.py", *(folder / f"wrong_{n}.py" for n in range(len(MISTAKES)))]
    for file, (right, wrong) in zip(files, [("", ""), *MISTAKES], strict=True):
        assert right in text
        file.write_text(text.replace(right, wrong) if right else text)
    config = folder / "mypy.ini"
    config.write_text("[mypy]\n[mypy-pyarrow.*]\nignore_missing_imports = True\n")
    if CHECKED.exists():
        shutil.copytree(CHECKED, folder / "c")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(config), "--cache-dir", "c"]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_user_s_job_passes_strict_type_checking_and_mistakes_are_found(said: str) -> None:
    files = {line.split(":")[0] for line in said.splitlines() if ": error:" in line}
    assert files == {f"wrong_{n}.py" for n in range(len(MISTAKES))}, said


def test_the_job_runs(tmp_path: Path) -> None:
    lines = run(str(tmp_path / "job"))
    assert delays.full_state is False
    assert lines[-2:] == ["0 {('f', 0): 1}", "WR105"]
    assert [line.split()[1] for line in lines[:-2] if "TIME" in line] == ["ON_TIME"] * 4
