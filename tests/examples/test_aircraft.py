"""The sessions demo, quick: every working day is what pandas computes, whatever was told of it before."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "aircraft.py"


@pytest.mark.proves("Windows: sessions: told windows that are no more are taken back, the others never touch")
@pytest.mark.slow
def test_every_working_day_is_what_pandas_computes(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--quick", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pandas equality: EQUAL\n" in done.stdout
    found = re.search(
        r"([\d,]+) of ([\d,]+) working days matched, 0 unmatched\n  0 unequal values", done.stdout
    )
    assert found is not None, done.stdout
    assert found[1] == found[2]
    told = {
        kind: [int(n.replace(",", "")) for n in re.findall(r"[\d,]+", line)]
        for kind, line in re.findall(r"^(INSERT|RETRACT) +(.*)$", done.stdout, re.MULTILINE)
    }
    assert all(n > 0 for n in (*told["INSERT"], told["RETRACT"][0]))
    assert (tmp_path / "out" / "days.png").read_bytes().startswith(b"\x89PNG")
