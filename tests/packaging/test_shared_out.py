"""Distribution of tests by `make test` (tests/conftest.py): tests that wait run beside tests that compute."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import AT_ONCE, RUN, pytest_xdist_make_scheduler, waits


class Process:
    """One of pytest's processes: it runs what it is given, in this order."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="a process")
        self.assigned: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.assigned += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_two_processes_wait_while_there_is_something_to_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN, str(tmp_path))
    (tmp_path / "rooms.json").write_text(json.dumps({"tests/kafka/test_a.py::test_spark": "spark"}))
    tests = ["tests/kafka/test_a.py::test_spark"]
    tests += [f"tests/drills/test_drills.py::test_drill[{n}]" for n in range(6)]
    tests += [f"tests/kafka/test_{n}.py::test_{m}" for n in range(3) for m in range(4)]
    tests += [f"tests/core/test_{n}.py::test_{m}" for n in range(8) for m in range(4)]
    option = SimpleNamespace(tx=["4*popen"], px=[], loadscopereorder=False)
    config = SimpleNamespace(option=option, getvalue=lambda name: getattr(option, name))
    log: Any = SimpleNamespace(loadscopesched=lambda *events: None)
    shares = pytest_xdist_make_scheduler(config, log)  # type: ignore[arg-type]
    processes = [Process() for _ in range(4)]
    for process in processes:
        shares.add_node(process)
    for process in processes:
        shares.add_node_collection(process, tests)
    shares.schedule()
    ran, turns = [], 0
    while any(process.assigned for process in processes):
        now = [tests[process.assigned[0]] for process in processes if process.assigned]
        ran += now
        alone = [name for name in now[1:] if waits(name)]  # the first has Spark's
        if turns < 7:
            assert len(alone) == AT_ONCE, f"turn {turns}: {now}"
        for process in processes:
            if process.assigned:
                shares.mark_test_complete(process, process.assigned.pop(0))
        turns += 1
    assert sorted(ran) == sorted(tests)
