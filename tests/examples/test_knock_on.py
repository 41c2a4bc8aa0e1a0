"""The rules demo, quick: every match is one that pandas finds, though the job is killed on the way."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deep import usually

#: As a rule every 20th flight.
EVERY = 20 // usually(1, deep=20)


@pytest.mark.slow
def test_every_match_is_one_that_pandas_finds(play: Callable[..., str], tmp_path: Path) -> None:
    said = play("knock_on", "--quick", "--every", str(EVERY), "--out", str(tmp_path / "out"))
    assert "killed after 20 days: SIGKILL" in said
    assert "pandas equality: EQUAL\n" in said
    counts = {
        name: int(n.replace(",", ""))
        for name, n in re.findall(r"^(\w[\w ]+?) +([\d,]+) +[\d,]+$", said, re.MULTILINE)
    }
    assert counts["knock on"] > 0 and counts["not seen"] > 0
    assert "next.start - landing.end is" in said
