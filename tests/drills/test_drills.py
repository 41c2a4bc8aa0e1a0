"""Drills with one fault each: whatever breaks, every record is counted once. Twenty: `python -m tests.drills`.

The quick ones, and an executor that is killed; WINDROW_DEEP=1 runs all. (tests/spark/test_kill.py kills drivers of Spark jobs.)
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import windrow as wr
from tests.deep import usually
from tests.drills.drills import DRILLS, Drill, run

pytestmark = [pytest.mark.slow, pytest.mark.kafka]

QUICK = {
    "kill-sessions",
    "kill-over",
    "second-embedded",
    "store-damaged",
    "disk-full",
    "broker-kill",
    "kill-executor",
}


def params() -> list[Any]:
    return [
        pytest.param(drill, id=drill.name, marks=[] if drill.runner == "embedded" else [pytest.mark.spark])
        for drill in DRILLS.values()
        if drill.name in usually(QUICK, deep=set(DRILLS))
    ]


@pytest.mark.parametrize("drill", params())
def test_nothing_is_lost_and_nothing_comes_twice(drill: Drill, request: pytest.FixtureRequest) -> None:
    kafka: wr.Kafka | None = None
    image: str | None = None
    if drill.own_broker:
        image = request.getfixturevalue("kafka_image")
    else:
        kafka = request.getfixturevalue("kafka")
    outcome = run(drill, range(1, 2), kafka, image)
    assert outcome.ok, str(outcome)
    assert outcome.faults == 1
    assert outcome.report is not None
    assert outcome.report.records_in > 0
    assert outcome.report.windows > 0


if usually(False, deep=True):

    @pytest.mark.spark
    def test_a_job_whose_executors_are_killed_in_turn_is_equal_to_pandas() -> None:
        command = [sys.executable, "-m", "tests.drills.executors", "--batches", "200"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
