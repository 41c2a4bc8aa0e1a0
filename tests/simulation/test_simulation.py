"""Schedules of faults, each from one seed: the real protocol keeps what it promises, and what is printed plays again."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.deep import usually
from tests.operators.folders import FOLDERS
from tests.simulation import losing
from windrow.checkpoint.job import Job
from windrow.core.errors import ConfigurationError
from windrow.testing import SeedFailed, simulate
from windrow.testing.generated_jobs import drawn, replayed
from windrow.testing.seeds import Report
from windrow.testing.simulation import play, shrink
from windrow.testing.simulation.__main__ import main
from windrow.testing.simulation.sinks import OUTLETS

BLOCK = usually(4, deep=24)
#: Each outlet has seeds of its own.
BLOCKS = {
    (outlet, block): range((3 * n + block) * BLOCK, (3 * n + block + 1) * BLOCK)
    for n, outlet in enumerate(sorted(OUTLETS))
    for block in range(3)
}


@functools.cache
def played(outlet: str, seed: int) -> Report:
    """Outcome of a seed; each is played once."""
    return play(seed, outlet=OUTLETS[outlet])


def lose_what_is_published(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Job, "unpublished", lambda self, sink_has=None: [])


@pytest.mark.parametrize("block", range(3))
@pytest.mark.parametrize("outlet", sorted(OUTLETS))
def test_whatever_fails_every_row_counts_once(outlet: str, block: int) -> None:
    """A failure names its seed: python -m windrow.testing.simulation --seed N --sink ... --shrink"""
    for seed in BLOCKS[outlet, block]:
        report = played(outlet, seed)
        if report.failure is not None:
            story = "\n".join(report.story)
            raise AssertionError(f"seed {seed} with {outlet}:\n{story}") from report.failure


def test_a_store_that_is_moved_aside_stops_nobody() -> None:
    assert play(31).failure is None


def test_whatever_is_lost_messages_come_back_from_the_source() -> None:
    """Several shards, owners that change, late writers of former owners: a shard that one executor has is lost to another.

    The first seeds found faults: no snapshot for others, join windows, steps without rows of a shard, late static rows, inputs
    without rows.
    """
    seen: Counter[str] = Counter()
    for seed in (1, 2, 18, 127, 207, *range(200, usually(200, deep=300))):
        report = play(seed, job=replayed)
        seen += report.counts
        if report.failure is not None:
            raise AssertionError(f"seed {seed}:\n" + "\n".join(report.story)) from report.failure
    assert {
        "messages lost",
        "shards that got their messages back",
        "shards that changed owner",
    } <= seen.keys()


def test_the_schedules_do_what_they_are_for() -> None:
    """Every step of the protocol is struck, and every kind of fault happens, within a few dozen seeds."""
    seen: Counter[str] = Counter()
    for (outlet, _), seeds in BLOCKS.items():
        for seed in seeds:
            seen += played(outlet, seed).counts
    seen += played("kafka", 53).counts  # of the jobs with alerts, one whose status changes often
    steps = {kind.removeprefix("dies: ") for kind in seen if kind.startswith("dies: ")}
    assert steps >= {"0.2 claim", "1 Spark", "2 intent", "3.1 store", "3.2 files", "3.3 answer", "4.2 commit"}
    assert steps >= {"5 broker", "5 publish", "6 snapshot", "6 sweep"}
    assert set(seen) >= {"unknown outcome", "zombie drivers", "attempts doubled", "power lost", "lost: names"}
    assert seen["records truncated"] > 30
    assert set(seen) >= {
        "plans lost",
        "checkpoints lost",
        "clock stepped back",
        "stores lost",
        "stores damaged",
    }
    assert set(seen) >= {"shards that changed owner", "late writers of former owners", "evicted stores"}
    assert "tasks of several shards" in seen
    rows = {kind: n for kind, n in seen.items() if kind.startswith("rows of ")}
    few = {"alert": 0}  # most evaluations change no status
    assert [kind for kind in FOLDERS if rows.get(f"rows of {kind}", 0) <= few.get(kind, 10)] == []
    assert seen["dead letters"] > 50


@pytest.mark.parametrize("hashes", usually(["1"], deep=["1", "2"]))
def test_a_seed_is_the_same_schedule_in_any_process(hashes: str) -> None:
    command = [sys.executable, "-m", "windrow.testing.simulation", "--seed", "11"]
    again = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": hashes}, capture_output=True, text=True, check=True
    )
    stories = [
        re.sub(r"windrow-\w+", "FOLDER", line) for line in (*again.stdout.splitlines(), *play(11).story)
    ]
    half = len(stories) // 2
    assert stories[: half + 1] == [*stories[half + 1 :], "all is as promised"]


def test_without_its_faults_a_schedule_is_undisturbed() -> None:
    report = play(11, faults=())
    assert (report.failure, report.faults) == (None, ())
    assert not any(line[:3].strip() for line in report.story)


def test_a_failing_schedule_loses_its_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    lose_what_is_published(monkeypatch)
    whole = next(r for seed in range(20) if (r := play(seed)).failure is not None and len(r.faults) > 2)
    short = shrink(whole.seed)
    assert short.failure is not None
    assert len(short.faults) < len(whole.faults)
    again = play(whole.seed, faults=short.faults)
    assert (str(again.failure), again.story) == (str(short.failure), short.story)


def test_the_command_counts_and_says_how_to_see_a_failure_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--seeds", "3", "--sink", "windrow.testing.simulation.sinks:KafkaOutlet"]) == 0
    assert "3 seeds, 0 failed" in capsys.readouterr().out
    lose_what_is_published(monkeypatch)
    assert main(["--seeds", "2", "--sink", "memory"]) == 2
    out = capsys.readouterr()
    assert "--sink memory --seed 0 --shrink" in out.out + out.err
    assert main(["--seed", "0", "--sink", "memory", "--shrink"]) == 1
    assert "the oracle has" in capsys.readouterr().out


def test_two_processes_find_what_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    """`tests.simulation.losing:Outlet` loses panes."""
    reports = []
    for jobs in ("1", "2"):
        failed = main(["--seeds", "6", "--sink", "tests.simulation.losing:Outlet", "--jobs", jobs])
        out = capsys.readouterr()
        reports.append((failed, [line for line in (out.out + out.err).splitlines() if "seed/s" not in line]))
    assert reports[0] == reports[1]
    assert reports[0][0] > 0


def test_any_job_is_drawn() -> None:
    """Windows of every kind, joins of every kind, policies, graphs, and operators side by side."""
    jobs = [drawn(Random(seed)) for seed in range(400)]
    definitions = [part for job in jobs for part in job.parts.values()]
    assert {part.describe()["operator"] for part in definitions} == FOLDERS
    over = [part for part in definitions if part.describe()["operator"] == "over"]
    told_again = {(bool(part.anchors), part.emits_updates) for part in over}
    assert told_again == {(False, False), (False, True), (True, False), (True, True)}
    shown = " ".join(repr(definition) for job in jobs for definition in job.definitions)
    windows = ("tumbling", "hopping", "calendar", "tuples", "global_window", "sliding", "rows")
    assert [name for name in windows if f"wr.{name}(" not in shown] == []
    hows = ("left", "right", "full", "semi", "anti", "asof")
    assert [how for how in hows if f"how='{how}'" not in shown] == []
    said = (
        "gaps=True",
        "'retracting'",
        "static=True",
        "max_length=",
        "cut=",
        "session(messages=",
        "obsolete=",
        "history=",
        "clock(",
    )
    assert [text for text in said if text not in shown] == []
    policies = ("newest", "latest", "throttle", "within")
    assert [policy for policy in policies if f"deliver=wr.deliver.{policy}(" not in shown] == []
    sessions = ("window=wr.session(", "event_time='t', window=wr.session(")
    joins = " ".join(repr(part) for part in definitions if part.describe()["operator"] == "join")
    assert [text for text in sessions if text not in joins] == []
    assert {len(job.definitions) for job in jobs} == {1, 2, 3}
    assert {len(definition.parts) for job in jobs for definition in job.definitions} == {1, 2, 3, 4}
    assert {len(job.inputs) for job in jobs} == {1, 2}


def test_a_job_of_ones_own_is_played() -> None:
    summary = simulate(losing.pairs, seeds=4)
    assert (summary.seeds, summary.failed) == (4, 0)
    assert min(summary.counts["rows of join"], summary.counts["rows of aggregate"]) > 10


def test_a_function_that_keeps_something_in_itself_is_found_and_the_schedule_reported() -> None:
    with pytest.raises(SeedFailed, match="which the oracle has not") as failed:
        simulate(losing.VISITS, losing.messages, seeds=20, sink="memory")
    report = failed.value.report
    assert f"simulate(..., first={report.seed}, seeds=1)" in str(failed.value)
    assert "\n".join(report.story) in str(failed.value)
    with pytest.raises(SeedFailed, match=f"seed {report.seed} "):
        simulate(losing.VISITS, losing.messages, first=report.seed, seeds=1, sink="memory")


def test_the_command_plays_a_job_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["--job", "tests.simulation.losing:numbers"]
    assert main([*job, "--seeds", "4", "--jobs", "2"]) > 0
    output = "".join(capsys.readouterr())
    assert "python -m windrow.testing.simulation --job tests.simulation.losing:numbers --seed" in output
    assert main(["--job", "tests.simulation.losing:pairs", "--seeds", "2"]) == 0


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: simulate(losing.VISITS, [{"t": "2013-07-01 05:10Z"}]), "'user' of 'visits' is not in"),
        (lambda: simulate(losing.VISITS, [{"user": 1}, {"user": "ann"}]), "no types in common"),
        (lambda: simulate(losing.VISITS), "Scenario"),
        (lambda: simulate([], [{}]), "give a definition"),
        (lambda: simulate([losing.VISITS, *losing.pairs.definitions], [{}]), "input='name'"),
        (lambda: simulate(losing.pairs.operators, [{}]), "the inputs \\['ins', 'outs'\\]"),
        (lambda: main(["--job", "tests.simulation.losing"]), "module:name"),
    ],
)
def test_what_cannot_be_played_is_refused(build: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        build()
