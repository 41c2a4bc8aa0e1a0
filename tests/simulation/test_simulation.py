"""Schedules of faults, each from one seed: the real protocol keeps what it promises, and what is printed plays again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.deep import usually
from windrow.checkpoint.job import Job
from windrow.testing.simulated_sinks import OUTLETS, KafkaOutlet
from windrow.testing.simulation import main, play, shrink

BLOCK = usually(8, deep=24)


def lose_what_is_published(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Job, "unpublished", lambda self, sink_has=None: [])


@pytest.mark.proves("Tools: a seeded simulator of the commit protocol: drivers, shards, broker, disk, clock")
@pytest.mark.parametrize("block", range(3))
@pytest.mark.parametrize("outlet", sorted(OUTLETS))
def test_whatever_goes_wrong_every_row_counts_once(outlet: str, block: int) -> None:
    """A failure names its seed: python -m windrow.testing.simulation --seed N --sink ... --shrink"""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        report = play(seed, outlet=OUTLETS[outlet])
        if report.failure is not None:
            story = "\n".join(report.trace)
            raise AssertionError(f"seed {seed} with {outlet}:\n{story}") from report.failure


def test_the_schedules_do_what_they_are_for() -> None:
    """Every step of the protocol is struck, and every kind of fault happens, within a few dozen seeds."""
    seen: Counter[str] = Counter()
    for seed in range(500, 560):
        seen += play(seed, outlet=KafkaOutlet).counts
    steps = {kind.removeprefix("dies: ") for kind in seen if kind.startswith("dies: ")}
    assert steps >= {"0.2 claim", "1 Spark", "2 intent", "3.1 store", "3.2 files", "3.3 answer", "4.2 commit"}
    assert steps >= {"5 broker", "5 publish", "6 snapshot", "6 sweep"}
    assert set(seen) >= {"unknown outcome", "zombie drivers", "attempts doubled", "power lost", "lost: names"}
    assert seen["records truncated"] > 50
    assert set(seen) >= {
        "plans lost",
        "checkpoints lost",
        "clock stepped back",
        "stores lost",
        "stores damaged",
    }
    assert seen["panes checked"] > 500


@pytest.mark.parametrize("hashes", ["1", "2"])
def test_a_seed_is_the_same_schedule_in_any_process(hashes: str) -> None:
    command = [sys.executable, "-m", "windrow.testing.simulation", "--seed", "11"]
    again = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": hashes}, capture_output=True, text=True, check=True
    )
    assert again.stdout.splitlines() == [*play(11).trace, "all is as promised"]


def test_without_its_faults_a_schedule_is_undisturbed() -> None:
    report = play(11, faults=0)
    assert (report.failure, report.faults) == (None, 0)
    assert not any(line[:3].strip() for line in report.trace)


def test_a_failing_schedule_loses_its_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    lose_what_is_published(monkeypatch)
    whole = next(r for seed in range(20) if (r := play(seed)).failure is not None and r.faults > 2)
    short = shrink(whole.seed)
    assert short.failure is not None
    assert short.faults < whole.faults


def test_the_command_counts_and_says_how_to_see_a_failure_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--seeds", "3", "--sink", "windrow.testing.simulated_sinks:KafkaOutlet"]) == 0
    assert "3 schedules, 0 failed" in capsys.readouterr().out
    lose_what_is_published(monkeypatch)
    assert main(["--seeds", "2", "--sink", "memory"]) == 2
    out = capsys.readouterr()
    assert "--seed 1 --sink memory --shrink" in out.out + out.err
    assert main(["--seed", "1", "--sink", "memory", "--shrink"]) == 1
    assert "panes in the sink" in capsys.readouterr().out


def test_two_processes_find_what_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    """`tests.simulation.losing:Outlet` loses panes."""
    told = []
    for jobs in ("1", "2"):
        failed = main(["--seeds", "10", "--sink", "tests.simulation.losing:Outlet", "--jobs", jobs])
        out = capsys.readouterr()
        told.append((failed, [line for line in (out.out + out.err).splitlines() if "schedule/s" not in line]))
    assert told[0] == told[1]
    assert told[0][0] > 0
