"""The example that README shows, on Spark and alone: every window is what pandas makes of the flights."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import windrow as wr
from tests.conftest import READY
from tests.deep import usually

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "alone", [pytest.param(False, id="on Spark", marks=pytest.mark.spark), pytest.param(True, id="alone")]
)
def test_every_window_is_what_pandas_makes_of_the_flights(
    kafka: wr.Kafka, tmp_path: Path, alone: bool
) -> None:
    """And again, as a rule alone: nothing is sent, nothing is counted, nothing is published."""
    every, sent, windows = usually(("10", "2,701", "2,237"), deep=("1", "27,004", "9,833"))
    name = uuid.uuid4().hex[:8]
    command = [
        *(sys.executable, str(ROOT / "examples" / "kafka_delays.py"), "--servers", kafka.servers),
        *("--out", str(tmp_path), "--topic", f"flights-{name}", "--panes", f"delays-{name}"),
        *(["--alone"] if alone else []),
        *("--every", every),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")} | {
        "PYSPARK_SUBMIT_ARGS": READY
    }
    told = []
    times = 2 if alone else usually(1, deep=2)
    for _ in range(times):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told.append(
            re.search(
                rf"^([\d,]+) flights sent.*^([\d,]+) panes of {windows} windows.*EQUAL$",
                done.stdout,
                re.M | re.S,
            )
        )
    found = [t.groups() for t in told if t is not None]
    assert [sent for sent, _ in found] == [sent, "0"][:times]
    assert len({panes for _, panes in found}) == 1
