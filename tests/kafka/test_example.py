"""The example that README shows, on Spark and alone: every window is what pandas makes of the flights."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.deep import usually
from tests.examples.conftest import module as module
from tests.examples.conftest import play as play
from tests.examples.conftest import run as run

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "kafka_delays.py"
EVERY, SENT, WINDOWS = usually(("10", "2,701", "2,237"), deep=("1", "27,004", "9,833"))


@pytest.fixture
def arguments(kafka: wr.Kafka, tmp_path: Path) -> list[str]:
    name = uuid.uuid4().hex[:8]
    topics = ("--topic", f"flights-{name}", "--panes", f"delays-{name}")
    return ["--servers", kafka.servers, "--out", str(tmp_path), *topics, "--every", EVERY]


def sent_and_panes(said: str) -> tuple[str, str]:
    """Return the numbers of a run whose windows are equal."""
    match = re.search(
        rf"^([\d,]+) flights sent.*^([\d,]+) panes of {WINDOWS} windows.*EQUAL$", said, re.M | re.S
    )
    assert match is not None and "NOT EQUAL" not in said, said
    return match[1], match[2]


@pytest.mark.slow
def test_on_spark_every_window_is_what_pandas_makes_of_the_flights(
    run: Callable[..., str], arguments: list[str], monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    """As a rule in the session of the tests; the workers of its own would be of the Python that runs it."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    outcomes = [sent_and_panes(run("kafka_delays", *arguments)) for _ in range(usually(1, deep=2))]
    assert [sent for sent, _ in outcomes] == [SENT, "0"][: len(outcomes)]
    assert len({panes for _, panes in outcomes}) == 1
    assert usually(os.environ.get("PYSPARK_PYTHON"), deep=sys.executable) == sys.executable


@pytest.mark.slow
def test_alone_every_window_is_what_pandas_makes_of_the_flights(arguments: list[str], tmp_path: Path) -> None:
    """As a program. Again: nothing is sent, nothing is counted, nothing is published."""
    outcomes = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), *arguments, "--alone"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        outcomes.append(sent_and_panes(done.stdout))
    assert [sent for sent, _ in outcomes] == [SENT, "0"]
    assert outcomes[0][1] == outcomes[1][1]
