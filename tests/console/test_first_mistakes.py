"""Mistakes of the first hour: errors that say what to write instead, and changes that are logged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

import windrow as wr
from tests.console.small_jobs import Said, counts, messages, run_job
from windrow.testing import ManualClock

Run = Callable[..., Said]
CALLS: dict[str, tuple[Callable[[str], Any], list[str]]] = {
    "a source that is text": (
        lambda at: counts().run(at, "topic"),
        ["source='topic'", "wr.sources.kafka("],
    ),
    "a window around each message": (
        lambda at: counts(window=wr.sliding("1 minute")),
        ["wr.sliding('1 minute')", "wr.Over(frame=wr.range_between("],
    ),
    "windows of a join's rows": (lambda at: counts(window=wr.rows(3)), ["wr.Over(frame="]),
    "dead letters by operator": (
        lambda at: counts().open(at, dead_letters={"aggregate": print}),
        ["is a dict", "Dead letters of all operators go to one sink"],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_people_try_first_is_refused_with_what_to_write(name: str, tmp_path: Path) -> None:
    call, said = CALLS[name]
    with pytest.raises(wr.ConfigurationError) as caught:
        call(str(tmp_path))
    assert [part for part in said if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [("mean", "wr.avg"), ("std", "wr.stddev"), ("Agregate", "wr.Aggregate"), ("tumble", "wr.tumbling")],
)
def test_a_name_of_another_library_names_ours(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}': did you mean {meant}\?"):
        getattr(wr, name)
    assert not hasattr(wr, "__nothing__") and not hasattr(wr, "xyzzy")


@pytest.mark.parametrize("kind", [wr.Aggregate, wr.Join, wr.Over, wr.Chain, counts()])
def test_completion_offers_what_users_call(kind: Any) -> None:
    assert {"open", "run", "apply", "writeStream", "then", "name"} <= {*dir(kind)} and len(dir(kind)) <= 12


def test_an_aggregation_under_another_name_is_logged_with_what_it_means(tmp_path: Path) -> None:
    job = str(tmp_path / "job")
    run_job(counts(), job, range(10))
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            with counts(agg={"n": wr.count(), "sum_x": wr.sum("x")}).open(job, clock=ManualClock()) as op:
                op.add_messages(messages(range(10, 12)))
    said = [e for e in logs if "have come or gone" in e["event"]]
    assert [(e["operator"], e["came"], e["gone"]) for e in said] == [("aggregate", ["sum_x"], ["total"])]
    assert "null in windows that were open before" in said[0]["event"]


def test_the_command_line_names_its_own_options(windrow: Run, tmp_path: Path) -> None:
    with wr.open([counts(name="a"), counts(name="b")], str(tmp_path)) as op:
        op.add_messages(messages(range(3)))
    said = windrow("windows", tmp_path)
    assert said.code == 1 and "say which, with --operator" in said.err and "operator=" not in said.err


def test_a_reader_that_has_enough_ends_the_command_without_a_word(tmp_path: Path) -> None:
    job = str(tmp_path / "job")
    run_job(counts(by="x"), job, range(400))
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "windrow.console.main", "windows", job]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_panes_prints_dead_letters_and_rows_of_joins_of_a_parquet_sink(windrow: Run, tmp_path: Path) -> None:
    dead, rows = str(tmp_path / "dead"), str(tmp_path / "rows")
    with counts().open(str(tmp_path / "a"), dead_letters=wr.sinks.parquet(dead)) as op:
        op.add_message({"k": "a", "t": "no time", "x": 1})
    head, row = windrow("panes", dead).out.splitlines()
    assert head.split()[:2] == ["reason", "detail"] and row.startswith("malformed") and '"no time"' in row
    sides = [wr.Input(name, event_time="t") for name in ("l", "r")]
    pairs = wr.Join(left=sides[0], right=sides[1], on="k", within=("0 s", "5 s"))
    with pairs.open(str(tmp_path / "b"), sink=wr.sinks.parquet(rows)) as op:
        for name in ("l", "r"):
            op.add_message({"k": "a", "t": 0}, name)
    head, row = windrow("panes", rows).out.splitlines()
    assert "l_t" in head.split() and row.split()[0] == "a"
