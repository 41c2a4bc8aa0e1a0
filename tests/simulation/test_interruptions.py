"""Errors and interrupts at any line and any call: nothing is lost, doubled or wrong, and a library that loses is caught."""

from __future__ import annotations

import functools
import gc
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deep import usually
from tests.simulation import losing
from windrow.checkpoint.job import Job
from windrow.connectors.pane_files import DEAD_LETTERS
from windrow.core.errors import ConfigurationError
from windrow.runners.publishing import Publisher
from windrow.stores.rocks import RocksKV
from windrow.testing import SeedFailed, interrupt
from windrow.testing.error_injection import Hit, disk_full
from windrow.testing.interruptions import play, shrink
from windrow.testing.interruptions.__main__ import main
from windrow.testing.seeds import Report

SEEDS = range(110, 110 + usually(24, deep=90))


@pytest.fixture(scope="module")
def played() -> Callable[[int], Report]:
    """Outcome of a seed; each is played once."""
    return functools.cache(play)


@pytest.mark.parametrize("block", range(3))
def test_whatever_is_raised_every_message_counts_once(block: int, played: Callable[[int], Report]) -> None:
    """A failure names its seed: python -m windrow.testing.interruptions --seed N --shrink"""
    for seed in SEEDS[block::3]:
        report = played(seed)
        if report.failure is not None:
            story = "\n".join(report.story)
            raise AssertionError(f"seed {seed}:\n{story}") from report.failure


@pytest.mark.parametrize("seed", [5020, 5049])
def test_an_input_with_a_policy_has_no_columns_before_its_first_message(seed: int) -> None:
    """The oracle named the columns of a join as if it had been seen."""
    assert play(seed, faults=()).failure is None


def test_the_seeds_do_what_they_are_for(played: Callable[[int], Report]) -> None:
    seen: Counter[str] = Counter()
    operators, places = "", set()
    for report in map(played, SEEDS):
        seen += report.counts
        operators += report.story[0]
        places |= {
            line.split(" at ")[1].split(":")[0] for line in report.story if " hit " in line and " at " in line
        }
    kinds = ("Aggregate", "Join", "Deduplicate", "Process", "chain")
    assert [kind for kind in kinds if f"wr.{kind}(" not in operators] == []
    assert set(seen) >= {
        "raised KeyboardInterrupt",
        "raised MemoryError",
        "raised OSError",
        "refused",
        "messages lost",
    }
    assert places >= {
        "checkpoint/storage.py",
        "runners/embedded/engine.py",
        "runners/embedded/operator.py",
        "stores/files.py",
    }
    assert min(seen["hits"], seen["rows"], seen["dead letters"]) > 60


def _no_letters(self: Any, record: Any, outputs: Any = Publisher._outputs) -> Iterator[Any]:
    return (one for one in outputs(self, record) if one[1].operator != DEAD_LETTERS)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Job, "unpublished", lambda self, sink_has=None: []),
        (Publisher, "_outputs", _no_letters),
    ],
    ids=["what is not out is forgotten", "dead letters are forgotten"],
)
def test_a_library_that_loses_something_is_caught(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Any
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert any(play(seed).failure is not None for seed in range(20))


def test_a_failing_seed_loses_its_tail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Job, "unpublished", lambda self, sink_has=None: [])
    whole = next(r for seed in range(40) if (r := play(seed)).failure is not None and len(r.faults) > 2)
    short = shrink(whole.seed)
    assert short.failure is not None
    assert len(short.faults) < len(whole.faults)
    again = play(whole.seed, faults=short.faults)
    assert (str(again.failure), again.story) == (str(short.failure), short.story)
    assert main(["--seed", "4", "--shrink"]) == 1  # which fails without any fault, as is soon found
    assert "--seed 4 --faults" in capsys.readouterr().out


def test_a_seed_is_the_same_story_in_another_process() -> None:
    command = [sys.executable, "-m", "windrow.testing.interruptions", "--seed", "11"]
    again = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    story = [re.sub(r"windrow-\w+", "", line) for line in again]
    assert story == [*(re.sub(r"windrow-\w+", "", line) for line in play(11).story), "all is as promised"]


@pytest.mark.parametrize("calls", [False, True])
def test_a_hit_strikes_once_and_only_the_library(calls: bool) -> None:
    hit = Hit(disk_full, 1, calls=calls)
    with hit:
        assert sorted(range(3)) == [0, 1, 2]
    assert hit.at is None


def test_what_earlier_jobs_left_to_be_collected_is_not_struck(tmp_path: Path) -> None:
    left: list[Any] = [RocksKV(tmp_path, ("k",))]
    left.append(left)
    del left
    with Hit(disk_full, 1) as hit:
        kept: list[list[int]] = [[] for _ in range(2 * gc.get_threshold()[0])]
    assert hit.at is None and kept
    gc.collect()


def test_a_job_of_ones_own_is_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    stays, _ = losing.pairs.definitions
    summary = interrupt(stays, losing.pairs.messages, seeds=4)
    assert (summary.seeds, summary.failed) == (4, 0) and summary.counts["rows"] > 20
    with pytest.raises(SeedFailed, match="which the oracle has not"):
        interrupt(losing.VISITS, losing.messages, seeds=10)
    assert main(["--job", "tests.simulation.losing:numbers", "--seeds", "3"]) > 0
    assert "interruptions --job tests.simulation.losing:numbers --seed" in "".join(capsys.readouterr())
    with pytest.raises(ConfigurationError, match="2 operators side by side"):
        interrupt(losing.pairs, seeds=1)
