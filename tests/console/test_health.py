"""`windrow health`: what a probe asks, from the end of the log."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import windrow as wr
from tests.console.small_jobs import SECOND, Said, counts, run_job
from windrow.checkpoint import log as logs
from windrow.core.clock import SystemClock
from windrow.testing import ManualClock

Run = Callable[..., Said]


def test_health_says_how_a_job_is_in_times_with_their_zone(windrow: Run, tmp_path: Path) -> None:
    run_job(counts(), tmp_path, range(30), sink=wr.sinks.memory())
    code, out, err = windrow("health", tmp_path)
    assert (code, err) == (0, "")
    assert "aggregate: 1970-01-01T00:00:24+00:00" in out and "topic 0\n" in out
    assert re.search(
        r"^lag +\d+ (day|hour|minute|second)s? \(\d+ days( \d+ (hour|minute|second)s?)?\)$", out, re.M
    )
    [facts] = windrow("health", tmp_path, "--json", "--size").lines
    assert facts["commit"] == 3 and facts["watermark"] == "1970-01-01T00:00:24+00:00"
    assert facts["watermarks"] == {"aggregate": "1970-01-01T00:00:24+00:00"}
    assert facts["heldBy"] == {"source": "topic", "partition": 0}
    assert facts["unpublished"] == 0 and facts["stateBytes"] > 0
    assert facts["ageMs"] > 5 * 365 * 86_400_000 and facts["lagMs"] > 50 * 365 * 86_400_000


@pytest.mark.parametrize(
    ("bounds", "wrong"),
    [
        (("--max-age", "5m"), "the last sign of life is older than 5m"),
        (("--max-lag", "1 hour"), "the watermark is farther behind than 1 hour"),
        (("--max-unpublished", "-1"), "0 commits are not known to be published, -1 are allowed"),
        (("--max-age", "1000 weeks", "--max-unpublished", "0"), None),
    ],
)
def test_what_is_worse_than_asked_for_is_said_with_1(
    windrow: Run, tmp_path: Path, bounds: tuple[str, ...], wrong: str | None
) -> None:
    run_job(counts(), tmp_path, range(30))
    code, out, _ = windrow("health", tmp_path, *bounds)
    assert code == (0 if wrong is None else 1)
    assert wrong is None or wrong in out


def test_a_job_without_a_commit_is_not_well_where_an_age_is_asked_for(windrow: Run, tmp_path: Path) -> None:
    counts().open(str(tmp_path)).close()
    assert windrow("health", tmp_path).code == 0
    code, out, _ = windrow("health", tmp_path, "--max-age", "5m")
    assert code == 1 and "no commit yet, 5m are allowed" in out


def test_only_the_end_of_the_log_is_read(
    windrow: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job(counts(), tmp_path, range(30))

    def whole(*_: object) -> None:
        raise AssertionError("all commits were read")

    monkeypatch.setattr(logs.RecordLog, "commits", whole)
    assert windrow("health", tmp_path).code == 0


def test_an_open_operator_reports_its_health(tmp_path: Path) -> None:
    clock = ManualClock("2020-01-01 00:00Z")
    with counts().open(str(tmp_path), clock=clock) as op:
        assert op.health().commit == 0 and op.health().age_us is None
        op.add_message(wr.Message({"k": "a", "t": clock.now_us(), "x": 1}, wr.Position("topic", 3, 0)))
        op.timeout()
        clock.advance("10 seconds")
        well = op.health()
        assert (well.commit, well.age_us, well.lag_us) == (1, 10 * SECOND, 15 * SECOND)
        assert well.held_by == ("topic", 3)


def test_a_job_that_has_nothing_to_commit_is_well_as_long_as_it_says_so(windrow: Run, tmp_path: Path) -> None:
    clock = ManualClock("2020-01-01 00:00Z")
    clock.advance(timedelta(microseconds=SystemClock().now_us() - clock.now_us(), hours=-1))
    with counts().open(str(tmp_path), clock=clock) as op:
        op.add_message(wr.Message({"k": "a", "t": clock.now_us(), "x": 1}, wr.Position("topic", 3, 0)))
        op.timeout()
        assert windrow("health", tmp_path, "--max-age", "5m").code == 1
        clock.advance("59 minutes")
        op.timeout()
        assert op.last_commit == 1 and op.health().age_us == 0
        assert windrow("health", tmp_path, "--max-age", "5m").code == 0
    (tmp_path / "alive").write_text("")  # being written
    assert windrow("health", tmp_path, "--max-age", "5m").code == 1
