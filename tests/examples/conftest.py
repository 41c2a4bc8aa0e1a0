"""Examples that use Spark: as a rule in the session of the tests, for one of its own costs more than all that they do.

WINDROW_DEEP=1 runs each as the program that it is; `examples/kafka_delays.py` always is one (tests/kafka/test_example.py).
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
SHARED = ("flights", "flights_data", "flights_plot", "weather")


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
def run(
    module: Callable[[str], ModuleType],
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """Runs an example with arguments, which must end with 0; gives what it prints."""

    def here(name: str, *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(type(spark), "stop", lambda self: None)
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
