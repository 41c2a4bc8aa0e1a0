"""A sink that was restored to an older state than the log gets the rows that the job still has; a loss is logged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core import logs
from windrow.testing.clock import ManualClock

COMMITS = 5


def define() -> wr.Aggregate:
    return wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("1 second"), agg={"n": wr.count()}, retention="0 seconds"
    )


def opened(folder: Path) -> Any:
    out = wr.sinks.parquet(str(folder / "out"))
    letters = wr.sinks.parquet(str(folder / "letters"))
    return define().open(str(folder / "job"), clock=ManualClock(0), sink=out, dead_letters=letters)


def commits(op: Any, numbers: range) -> None:
    """Each commit emits a window, and has a dead letter."""
    for i in numbers:
        op.add_message(wr.Message({"k": "a", "t": i * 1_000_000}, wr.Position("s", 0, 2 * i)))
        op.add_message(wr.Message({"k": "a", "t": None}, wr.Position("s", 0, 2 * i + 1)))
        op.flush()


def emitted(folder: Path) -> tuple[list[Any], list[Any]]:
    panes = [(r["window"]["start"], r["n"]) for r in wr.read_panes(str(folder / "out")).to_pylist()]
    return panes, wr.read_panes(str(folder / "letters")).to_pylist()


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(
        logs.Logger, "warning", lambda self, event, **facts: events.append({"event": event, **facts})
    )
    return events


@pytest.mark.parametrize("lost", [False, True], ids=["panes are kept", "some panes are gone"])
def test_a_sink_that_was_restored_gets_what_it_lacks(
    tmp_path: Path, warned: list[dict[str, Any]], lost: bool
) -> None:
    with opened(tmp_path) as op:
        commits(op, range(2))
        for name in ("out", "letters"):
            shutil.copytree(tmp_path / name, tmp_path / f"old-{name}")
        commits(op, range(2, COMMITS))
    whole = emitted(tmp_path)
    for name in ("out", "letters"):
        shutil.rmtree(tmp_path / name)
        shutil.copytree(tmp_path / f"old-{name}", tmp_path / name)
    if lost:
        os.unlink(sorted((tmp_path / "job" / "panes").glob("*4-0000-*"))[0])
    warned.clear()
    with opened(tmp_path):
        pass
    panes, letters = emitted(tmp_path)
    assert letters == whole[1]
    assert panes == [pane for i, pane in enumerate(whole[0]) if not lost or i != 2]
    behind = {e["operator"]: e for e in warned if "behind the log" in e["event"]}
    assert behind.keys() == {"aggregate", "dead_letters"}
    assert behind["aggregate"]["missing"] == int(lost)
    assert behind["aggregate"]["sent_again"] > 0 < behind["dead_letters"]["sent_again"]
    warned.clear()
    with opened(tmp_path) as op:
        commits(op, range(COMMITS, COMMITS + 1))
    assert not any("behind the log" in e["event"] for e in warned)


def test_a_sink_without_a_commit_gets_no_history(tmp_path: Path, warned: list[dict[str, Any]]) -> None:
    with opened(tmp_path) as op:
        commits(op, range(COMMITS))
    for name in ("out", "letters"):
        shutil.rmtree(tmp_path / name)
    with opened(tmp_path):
        pass
    assert [e for e in warned if "behind the log" in e["event"]] == []
