"""The flights and their weather, quick: every row of both joins is what pandas joins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import READY
from tests.deep import usually

ROOT = Path(__file__).resolve().parents[2]
#: January and February, as a rule every tenth flight: that left, of an hour without an observation, that was cancelled.
EVERY, FLOWN, WITHOUT, CANCELLED = usually((10, 5_021, 9, 175), deep=(1, 50_173, 68, 1_782))


@pytest.mark.proves("Joins: inner, left, right, full, semi, anti, as-of")
@pytest.mark.spark
@pytest.mark.slow
def test_every_row_of_both_joins_is_what_pandas_joins(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "examples" / "weather.py"),
        "--quick",
        "--every",
        str(EVERY),
        "--out",
        str(tmp_path / "out"),
    ]
    # PYSPARK_PYTHON is the example's own business.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")} | {
        "PYSPARK_SUBMIT_ARGS": READY
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name, without in (("as_of", 0), ("by_hour", WITHOUT)):
        rows = FLOWN - (without if name == "by_hour" else 0)
        assert re.search(
            rf"{name} +{rows:,} rows, {rows:,} by pandas: {FLOWN - without:,} of {FLOWN:,} flights with weather, "
            rf"{without:,} without; 0 values differ: EQUAL\n",
            done.stdout,
        ), done.stdout
    assert done.stdout.count(f"{CANCELLED:,} dead letters of {CANCELLED:,} cancelled flights") == 2
