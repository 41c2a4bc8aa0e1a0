"""Idle jobs: nothing came and nothing is due, so no commit is made, and the panes are the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.runners.embedded import engine
from windrow.testing import ManualClock


def definition(**more: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("30 seconds"),
        "agg": {"n": wr.count()},
        "retention": "1 day",
        "name": "n",
    }
    return wr.Aggregate(**(settings | more))


def message(second: int) -> wr.Message:
    return wr.Message({"k": "a", "t": second * 1_000_000})


def test_an_idle_job_makes_no_commits_and_no_files(tmp_path: Path) -> None:
    clock = ManualClock(0)
    with definition().open(str(tmp_path), clock=clock) as op:
        op.add_message(message(1))
        op.timeout()
        clock.advance("1 second")
        op.timeout()
        commits, files = op.last_commit, sum(len(names) for _, _, names in os.walk(tmp_path))
        for _ in range(50):
            clock.advance("7 seconds")
            op.timeout()
            op.get_result()
            op.next_offsets()
        assert op.last_commit == commits
        assert sum(len(names) for _, _, names in os.walk(tmp_path)) == files
        op.add_message(message(2))
        op.timeout()
        assert op.last_commit == commits + 1
    with definition().open(str(tmp_path), clock=clock) as op:
        assert op.last_commit == commits + 1


class Batches:
    """A sink that cannot say what it has."""

    def __init__(self) -> None:
        self.commits: list[int] = []

    def __call__(self, panes: Any, token: wr.Token) -> None:
        self.commits.append(token.commit)


def test_what_a_sink_was_given_is_noted_by_the_next_tick(tmp_path: Path) -> None:
    clock, sink = ManualClock(0), Batches()
    for _ in range(3):
        with definition(emit=wr.Emit(early=wr.every_batch)).open(str(tmp_path), clock=clock, sink=sink) as op:
            if not op.last_commit:
                op.add_message(message(1))
            for _ in range(3):
                op.timeout()
            assert op.last_commit == 2
    assert sink.commits == [1]


def panes_of(folder: Path, **more: Any) -> list[str]:
    """Run a job with a heartbeat each second, and return its panes with their times."""
    clock = ManualClock(0)
    with definition(**more).open(str(folder), clock=clock) as op:
        panes = []
        for second in range(90):
            clock.advance("1 second")
            if second % 37 in (3, 4, 5):
                op.add_message(message(second))
            op.timeout()
            panes += [repr((second, p.window, p.timing, p.index, p.values, p.kind)) for p in op.get_result()]
            op.flush()
    return panes


@pytest.mark.parametrize(
    "more",
    [
        {"emit": wr.Emit(early=wr.every("10 seconds"))},
        {"emit": wr.Emit(early=wr.every("10 seconds"), mode="retracting", late=wr.every("20 seconds"))},
        {"watermark": wr.fixed("5 seconds")},
        {"watermark": wr.bounded("2 seconds", idle="9 seconds")},
        {"allowed_lateness": "30 seconds", "emit": wr.Emit(closing_pane=True)},
    ],
    ids=repr,
)
def test_nobody_sees_by_the_panes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    idle = panes_of(tmp_path / "idle", **more)
    monkeypatch.setattr(engine, "only_time_passed", lambda before, changes: False)
    assert idle == panes_of(tmp_path / "busy", **more)  # committed at each of them
    assert len(idle) > 1


def test_what_the_watermark_does_while_nothing_comes_is_committed(tmp_path: Path) -> None:
    clock = ManualClock(0)
    with definition(watermark=wr.bounded("0 seconds", idle="5 seconds")).open(
        str(tmp_path), clock=clock
    ) as op:
        op.add_message(wr.Message({"k": "a", "t": 1_000_000}, wr.Position("s", 0, 0)))
        op.add_message(wr.Message({"k": "a", "t": 40_000_000}, wr.Position("s", 1, 0)))
        op.timeout()
        before = op.last_commit
        clock.advance("10 seconds")
        op.add_message(wr.Message({"k": "a", "t": 41_000_000}, wr.Position("s", 1, 1)))
        op.timeout()
        assert [p.timing for p in op.get_result()] == ["ON_TIME"]
        assert op.last_commit == before + 1
