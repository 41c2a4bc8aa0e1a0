"""`kill -9` of a running Spark job, again and again: published panes equal the oracle's, none lost, none twice."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.deep import usually

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DRILL = Path(__file__).resolve().parents[2] / "examples" / "kill_drill.py"
FILES, ROWS = 6, 200


@pytest.fixture
def drill(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # the module sets it; this puts it back
    spec = importlib.util.spec_from_file_location("kill_drill", DRILL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one_kill(drill: ModuleType, folder: Path) -> None:
    """The life that is killed is a process with a JVM of its own, the next one has the session of the tests."""
    rng = random.Random(1)
    drill.make_input(folder / "input", FILES, ROWS, seed=1)
    assert drill.killed_after(folder, rng.randrange(1, FILES), rng)
    drill.run_job(folder)
    assert drill.check(folder, 1) == 0


def ten_kills(drill: ModuleType, folder: Path) -> None:
    """Each life is a process of its own."""
    assert drill.main(["--kills", "10"]) == 0


@pytest.mark.parametrize("kills", usually([one_kill], deep=[one_kill, ten_kills]))
def test_kills_lose_nothing_and_double_nothing(
    kills: Callable[[ModuleType, Path], None],
    drill: ModuleType,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    kills(drill, tmp_path)
    said = capsys.readouterr().out
    for name in ("windows", "sessions"):
        assert f"{name}: panes lost: 0, published twice or wrong: 0" in said, said
