"""Examples: as a rule in the process of the tests, or in its session of Spark, for to begin costs more than what they do.

WINDROW_DEEP=1 runs each as the program that it is; `kafka_delays.py --alone` always is one (tests/kafka/test_example.py).
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import READY
from tests.deep import usually

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: Modules of examples that others import.
SHARED = ("aircraft_plot", "features_plot", "flights", "flights_data", "flights_plot", "weather")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Gives an example as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, sys.executable)  # modules set them; this puts them back
    for name in SHARED:
        sys.modules.pop(name, None)
    yield importlib.import_module
    for name in SHARED:
        sys.modules.pop(name, None)


@pytest.fixture
def play(
    module: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """Runs an example with arguments, which must end with 0; gives what it prints."""

    def here(name: str, *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        code = module(name).main(arguments)
        said = capsys.readouterr().out
        assert code == 0, said
        return said

    def alone(name: str, *arguments: str) -> str:
        # PYSPARK_PYTHON is the example's own business.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")}
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
            cwd=tmp_path,
            env={**environment, "PYSPARK_SUBMIT_ARGS": READY},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    return usually(here, deep=alone)


@pytest.fixture
def run(play: Callable[..., str], spark: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The same of an example that uses Spark, in the session of the tests."""
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    return play
