"""`kill -9` of a running Spark job, again and again: published panes equal the oracle's, none lost, none twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.deep import usually

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DRILL = Path(__file__).resolve().parents[2] / "examples" / "kill_drill.py"


@pytest.mark.proves("Coming back: process killed anywhere")
def test_kills_lose_nothing_and_double_nothing() -> None:
    kills, files = usually(("1", "6"), deep=("10", "30"))
    done = subprocess.run(
        [sys.executable, str(DRILL), "--kills", kills, "--files", files], capture_output=True, text=True
    )
    assert f"kills: {kills}" in done.stdout, done.stdout + done.stderr
    for name in ("windows", "sessions"):
        assert f"{name}: panes lost: 0, published twice or wrong: 0" in done.stdout, done.stdout
    assert done.returncode == 0
