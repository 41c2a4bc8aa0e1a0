"""The sessions demo, quick: every working day is what pandas computes, whatever was told of it before."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deep import usually

#: January and February, as a rule every 25th flight.
EVERY, DAYS = usually((25, 1_998), deep=(1, 44_824))


@pytest.mark.slow
def test_every_working_day_is_what_pandas_computes(play: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = play("aircraft", "--quick", "--every", str(EVERY), "--out", str(out))
    assert "pandas equality: EQUAL\n" in said
    match = re.search(r"([\d,]+) of ([\d,]+) working days matched, 0 unmatched\n  0 unequal values", said)
    assert match is not None, said
    assert match[1] == match[2] == f"{DAYS:,}"
    sessions = {
        kind: [int(n.replace(",", "")) for n in re.findall(r"[\d,]+", line)]
        for kind, line in re.findall(r"^(INSERT|RETRACT) +(.*)$", said, re.MULTILINE)
    }
    assert all(n > 0 for n in (*sessions["INSERT"], sessions["RETRACT"][0]))
    assert (out / "days.png").read_bytes().startswith(b"\x89PNG")
