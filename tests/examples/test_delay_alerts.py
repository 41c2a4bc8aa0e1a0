"""The alerts of the flights, quick: the job is killed within an incident, and its incidents are those of pandas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deep import usually


@pytest.mark.slow
def test_incidents_are_those_of_pandas_though_the_job_is_killed_within_one(
    play: Callable[..., str], tmp_path: Path
) -> None:
    said = play("delay_alerts", "--days", str(usually(4, deep=60)), "--folder", str(tmp_path / "out"))
    assert "killed within one (-9) and went on (0)" in said and "incidents equal those of pandas" in said
    assert (tmp_path / "out" / "incidents.png").stat().st_size > 10_000
