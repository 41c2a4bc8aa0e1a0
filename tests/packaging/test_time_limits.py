"""Every test ends: one that waits for ever is stopped, and names itself."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_test_that_waits_for_ever_is_stopped_and_named(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import threading\n\ndef test_waits():\n    threading.Barrier(2).wait()\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--timeout=0.5",
        "test_it.py",
    ]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "test_waits - Failed: Timeout" in ended.stdout


def test_slow_tests_have_longer(request: pytest.FixtureRequest) -> None:
    assert request.config.getini("timeout") == "300"
    assert request.node.get_closest_marker("timeout") is None


@pytest.mark.slow
def test_this_one_is_slow(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("timeout").args == (1200,)
