"""The features of the flights, quick: live, as a backfill and by pandas they are the same numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deep import usually

#: January and February, as a rule every 25th flight.
EVERY, FLOWN = usually((25, 2_004), deep=(1, 50_173))


@pytest.mark.slow
def test_features_are_the_same_live_as_a_backfill_and_by_pandas(
    play: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    said = play("features", "--quick", "--every", str(EVERY), "--out", str(out))
    assert said.count(f"{FLOWN:,} flights, ") == 4 and said.count(": EQUAL") == 4, said
    assert all(int(n.replace(",", "")) > 0 for n in re.findall(r"([\d,]+) rows corrected", said))
    assert (out / "features.png").stat().st_size > 10_000
