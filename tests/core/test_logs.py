"""Log output of windrow: nothing on standard output, nothing below a warning by default, never a failed commit."""

import errno
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

import windrow as wr
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.shard import ShardSpec
from windrow.core.logs import get_logger
from windrow.testing import ManualClock

COUNTS = wr.Aggregate(
    by="k", event_time="t", window=wr.tumbling("1 hour"), agg={"n": wr.count()}, retention="1 day"
)
PROGRAM = """
import windrow as wr
counts = wr.Aggregate(by="k", event_time="tt", window=wr.tumbling("1 hour"), agg={"n": wr.count()}, retention="1 day")
with counts.open("job") as op:
    op.add_messages([wr.Message({"tt": 0, "k": "a"})] + [wr.Message({"t": i, "k": "a"}) for i in range(1000)])
"""


@contextmanager
def structlog_as(**configuration: Any) -> Iterator[None]:
    """A program that has configured structlog."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(**configuration)
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


@pytest.fixture
def configured() -> Iterator[list[dict[str, Any]]]:
    """A program that has configured structlog gets the events."""
    events: list[dict[str, Any]] = []

    def keep(_: Any, level: str, event: dict[str, Any]) -> str:
        events.append({"level": level, **event})
        return ""

    with structlog_as(processors=[keep], logger_factory=lambda *_: structlog.PrintLogger(io.StringIO())):
        yield events


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def misspelt(place: Path) -> None:
    with COUNTS.open(str(place)) as op:
        op.add_messages([wr.Message({"t": "soon", "k": "a"})] * 3)
        op.add_messages([wr.Message({"t": 1, "k": "a"})])


def test_a_thousand_messages_with_a_misspelt_time_are_one_warning_and_nothing_on_standard_output(
    tmp_path: Path,
) -> None:
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path, capture_output=True, text=True, check=True, env={**os.environ},
    )  # fmt: skip
    assert said.stdout == ""
    [line] = said.stderr.splitlines()
    assert "dead letters" in line and "1000 malformed" in line and "commit=1" in line


def test_a_configuration_that_exists_decides_and_is_left_as_it_is(
    configured: list[dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = structlog.get_config()
    misspelt(tmp_path / "job")
    assert structlog.get_config() == before
    [warning] = [e for e in configured if e["level"] == "warning"]
    assert (warning["reasons"], warning["commit"]) == ("3 malformed", 1)
    assert {"opened", "committed"} <= {e["event"] for e in configured}
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("seconds", "warned"), [(3_599, 0), (3_611, 1)])
def test_a_watermark_that_jumps_by_more_than_the_retention_is_a_warning(
    configured: list[dict[str, Any]], tmp_path: Path, seconds: int, warned: int
) -> None:
    hour = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("1 hour"), agg={"n": wr.count()}, retention="1 hour"
    )
    clock = ManualClock()
    begin_us = clock.now_us()
    with hour.open(str(tmp_path / "job"), clock=clock) as op:
        for t in (0, 10, 10 + seconds):
            op.add_message(wr.Message({"t": begin_us + t * 1_000_000, "k": "a"}))
            clock.advance("1 second")
        op.timeout()
        clock.advance("2 days")  # what comes then may be as much later
        op.add_message(wr.Message({"t": begin_us + (86_400 * 2 + seconds) * 1_000_000, "k": "a"}))
    warnings = [e for e in configured if e["level"] == "warning"]
    assert len(warnings) == warned
    if warned:
        assert "jumped by more than the retention" in warnings[0]["event"]
        assert (warnings[0]["before"], warnings[0]["retention"]) == ("2100-01-01 00:00:10", "1 hour")


@pytest.mark.parametrize("seconds", [0, 1])
def test_what_keeps_nothing_to_speak_of_is_not_jumped_over(
    configured: list[dict[str, Any]], tmp_path: Path, seconds: int
) -> None:
    """A join of equal times keeps nothing: each step would be a jump."""
    within = (f"-{seconds} seconds", f"{seconds} seconds")
    left, right = (wr.Input(name, event_time="t") for name in ("l", "r"))
    equal = wr.Join(left=left, right=right, on="k", within=within, allowed_lateness="0 seconds")
    assert equal.retention.time_us == seconds * 1_000_000
    clock = ManualClock()
    with equal.open(str(tmp_path / "job"), clock=clock) as op:
        for t in range(0, 300, 50):
            op.add_messages({n: [{"t": clock.now_us() + t * 1_000_000, "k": "a"}] for n in ("l", "r")})
            op.timeout()
        assert len(op.get_result()) == 6
    assert not [e for e in configured if e["level"] == "warning"]


@pytest.mark.parametrize(("per_second", "unit"), [(1, "seconds"), (1000, "milliseconds")])
def test_times_in_another_unit_are_one_warning_that_names_it(
    configured: list[dict[str, Any]], tmp_path: Path, per_second: int, unit: str
) -> None:
    with COUNTS.open(str(tmp_path / "job")) as op:
        for i in range(3):
            op.add_message(wr.Message({"t": (1_700_000_000 + i) * per_second, "k": "a"}))
            op.timeout()
    [warning] = [e for e in configured if e["level"] == "warning"]
    assert f"look like {unit} since the epoch" in warning["event"]
    assert warning["likely"] == "2023-11-14 22:13:20" and warning["time"].startswith("1970-01-")


def test_a_job_whose_now_is_ahead_of_the_clock_says_so_when_it_is_opened(
    configured: list[dict[str, Any]], tmp_path: Path
) -> None:
    for now_us in (10**15, 10**15 - 60_000_000, 10**15 - 60_000_001):
        with COUNTS.open(str(tmp_path / "job"), clock=ManualClock(now_us)) as op:
            op.add_message(wr.Message({"t": 10**15, "k": "a"}))
    [warning] = [e for e in configured if e["level"] == "warning"]
    assert "windrow watermark LOCATION --set-now" in warning["event"]


def test_a_log_that_cannot_be_written_costs_no_commit(tmp_path: Path) -> None:
    with structlog_as(logger_factory=structlog.WriteLoggerFactory(FullDisk())):
        misspelt(tmp_path / "job")
    with wr.read_state(str(tmp_path / "job")) as state:
        assert [w.messages for w in state.get_windows()] == [1]


def test_the_lines_of_a_client_of_kafka_are_taken_as_it_reports_them(
    configured: list[dict[str, Any]],
) -> None:
    get_logger("windrow.kafka").log(30, "%s [%s]", "FAIL", "rdkafka#1")
    assert configured == [{"level": "warning", "event": "FAIL [rdkafka#1]"}]


def test_lines_name_job_shard_commit_and_operator(configured: list[dict[str, Any]], tmp_path: Path) -> None:
    spec = ShardSpec(JobFolders(str(tmp_path / "job")), "job-1", 3, ())
    spec.logger.warning("snapshot is damaged", commit=7)
    assert configured == [
        {"level": "warning", "event": "snapshot is damaged", "job": "job-1", "shard": 3, "commit": 7}
    ]


def test_importing_windrow_configures_no_logging() -> None:
    program = (
        "import logging, sys; import windrow, windrow.checkpoint.job; s = sys.modules.get('structlog'); "
        "print(s is None or not s.is_configured(), logging.getLogger().handlers)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "[]"]
