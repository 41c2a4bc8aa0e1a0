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
