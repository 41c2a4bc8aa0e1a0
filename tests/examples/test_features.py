"""The features of the flights, quick: live, as a backfill and by pandas they are the same numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deep import usually

ROOT = Path(__file__).resolve().parents[2]
#: January and February, as a rule every tenth flight.
EVERY, FLOWN = usually((10, 5_021), deep=(1, 50_173))


@pytest.mark.proves("Windows: features of flights, live and as a backfill, the same and those of pandas")
@pytest.mark.slow
def test_features_are_the_same_live_as_a_backfill_and_by_pandas(tmp_path: Path) -> None:
    script, out = ROOT / "examples" / "features.py", tmp_path / "out"
    command = [sys.executable, str(script), "--quick", "--every", str(EVERY), "--out", str(out)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"{FLOWN:,} flights, ") == 4 and done.stdout.count(": EQUAL") == 4, done.stdout
    assert all(int(n.replace(",", "")) > 0 for n in re.findall(r"([\d,]+) rows corrected", done.stdout))
    assert (out / "features.png").stat().st_size > 10_000
