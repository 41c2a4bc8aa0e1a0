"""The flights and their weather, quick: every row of both joins is what pandas joins."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deep import usually

#: January and February, as a rule every 25th flight: that left, of an hour without an observation, that was cancelled.
EVERY, FLOWN, WITHOUT, CANCELLED = usually((25, 2_004, 2, 75), deep=(1, 50_173, 68, 1_782))


@pytest.mark.slow
def test_every_row_of_both_joins_is_what_pandas_joins(run: Callable[..., str], tmp_path: Path) -> None:
    said = run("weather", "--quick", "--every", str(EVERY), "--out", str(tmp_path / "out"))
    for name, without in (("as_of", 0), ("by_hour", WITHOUT)):
        rows = FLOWN - (without if name == "by_hour" else 0)
        assert re.search(
            rf"{name} +{rows:,} rows, {rows:,} by pandas: {FLOWN - without:,} of {FLOWN:,} flights with weather, "
            rf"{without:,} without; 0 values differ: EQUAL\n",
            said,
        ), said
    assert said.count(f"{CANCELLED:,} dead letters of {CANCELLED:,} cancelled flights") == 2
