"""`kill -9` of a running Spark job, ten times: published panes equal the oracle's, none lost, none twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DRILL = Path(__file__).resolve().parents[2] / "examples" / "kill_drill.py"


@pytest.mark.proves("Coming back: process killed anywhere")
def test_ten_kills_lose_nothing_and_double_nothing() -> None:
    done = subprocess.run(
        [sys.executable, str(DRILL), "--kills", "10", "--files", "30"], capture_output=True, text=True
    )
    assert "kills: 10" in done.stdout, done.stdout + done.stderr
    assert "panes lost: 0, published twice or wrong: 0" in done.stdout
    assert done.returncode == 0
