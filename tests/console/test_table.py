"""`windrow table`: what operators have beside windows and messages."""

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.console.small_jobs import Said
from windrow.testing.clock import ManualClock

S = 1_000_000
JOB = """
from tests.console.test_table import chain
JOB = chain()
"""


class Visits:
    """Counts, and waits for two seconds."""

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> Any:
        state["n"] = state.get("n", 0) + 1
        timers.set(timers.time + timedelta(seconds=2))
        return {"n": state["n"]}

    def on_timer(self, key: Any, at: Any, state: Any, timers: Any) -> None: ...


def chain() -> wr.Chain:
    once = wr.Deduplicate(by="user", event_time="t", ids="page", within="1 minute", name="once")
    return once.then(
        wr.Process(
            by="user", event_time="t", function=Visits, emits={"n": pa.int64()}, ttl="1 hour", name="visits"
        )
    )


def test_the_state_and_the_timers_of_a_function_that_follows_another_operator(
    windrow: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "job"
    with chain().open(str(place), clock=ManualClock()) as op:
        for second, user, page in ((0, "ann", 1), (1, "ann", 1), (1, "bob", 1), (2, "ann", 2)):
            op.add_message({"t": second * S, "user": user, "page": page})
    (tmp_path / "its_job.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    defined = ("--definition", "its_job:JOB", "--operator", "visits")
    try:
        assert windrow("table", place, "state", *defined, "--json").lines == [
            {"user": "ann", "state": "n", "value": "2"},
            {"user": "bob", "state": "n", "value": "1"},
        ]
        assert windrow("table", place, "timers", "--key", "bob", *defined).out.split()[-4:] == [
            "bob", "1970-01-01", "00:00:03", "event",
        ]  # fmt: skip
        after = windrow("table", place, "timers", "--start", 4 * S, *defined, "--json").lines
        assert [(r["user"], r["of"]) for r in after] == [("ann", "event")]
        code, _, err = windrow("windows", place, *defined)
        assert code == 1 and "['state', 'timers']" in err
        code, _, err = windrow("table", place, "state", "--operator", "visits")
        assert code == 1 and "definition" in err
    finally:
        sys.modules.pop("its_job", None)


def test_alerts_now_and_as_of_a_commit_and_the_samples_of_the_one_that_opened(
    windrow: Callable[..., Said], tmp_path: Path
) -> None:
    """Run an alert of five commits, a sample each: it opens in the second, and is cancelled in the fourth."""
    job = tmp_path / "job"
    hot = wr.Alert(
        by="k",
        event_time="t",
        frame="10 seconds",
        agg={"mean": wr.avg("x")},
        when=wr.col("mean") > 75,
        actions={"mail": wr.Action(repeat=wr.every("1 hour"))},
    )
    with hot.open(str(job), clock=ManualClock(10 * S)) as op:
        for second, x in enumerate((70, 99, 90, 10, 20)):
            op.add_messages([{"t": second * S, "k": "a", "x": x}])
            op.next_offsets()
        tables = {}
        for commit in (1, 3, None):
            asked = () if commit is None else ("--as-of", commit)
            [row] = windrow("table", job, "alerts", "--key", "k=a", *asked, "--json").lines
            tables[commit] = [row[n] for n in ("status", "count", "samples", "mean", "due")]
        [why] = windrow("explain", job, 1 * S, "--key", "k=a", "--as-of", 2, "--json").lines
    assert tables == {
        1: ["CANCEL", 0, 1, 70.0, None],
        3: ["REPEAT", 1, 3, 259 / 3, "mail repeat 1970-01-01 01:00:10"],
        None: ["CANCEL", 0, 5, 57.8, None],
    }
    assert [place["offset"] for place in why["positions"]] == [0, 1] and why["complete"]
