"""A batch of Spark's that brings nothing while nothing is due leaves no record; and nobody can tell by the panes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.checkpoint.health import alive_at
from windrow.core.errors import Fenced, JobMismatch, OffsetGap
from windrow.runners.protocol import IDLE_BATCHES, BatchProtocol
from windrow.runners.spark.checkpoint import SparkCheckpoint

from .idle_query import Killed, Query


def define(**more: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("30 seconds"),
        "agg": {"n": wr.count()},
        "retention": "1 day",
        "name": "n",
    }
    return wr.Aggregate(**(settings | more))


def test_a_batch_that_brings_nothing_while_nothing_is_due_leaves_no_record(tmp_path: Path) -> None:
    query = Query(tmp_path, define())
    protocol = query.open()
    query.input += [1, 2]
    made = [query.batch() for _ in range(10)]
    # The rows; what the watermark that they moved does; that only time passed; and then no more.
    assert [None if m is None else m.commit for m in made] == [1, 2, 3] + [None] * 7 and query.acted == 3
    for _ in range(40):
        query.clock.advance("7 seconds")
        query.batch()
    # A period of late panes has ended once, and nothing has waited for it.
    assert protocol.job.progress.commit == 4
    assert alive_at(protocol.job.folders.alive) == query.clock.now_us()  # probes see that it lives
    query.input += [3]
    assert query.batch() is not None
    query.drain()
    assert [(p.timing.value, p["n"]) for panes in query.emitted.values() for p in panes] == [("ON_TIME", 3)]


def run(folder: Path, **more: Any) -> list[str]:
    """Run a query with a batch each second, and return its panes with their times."""
    query = Query(folder, define(**more), positioned=True, keeps=True)
    query.open()
    for second in range(90):
        query.clock.advance("1 second")
        if second % 37 in (3, 4, 5):
            query.input.append(second)
        if second == 50:
            query.open()  # another driver
        query.batch()
    log = {c.commit: c.steps[0].now_us for c in query.protocol.job.commits()}
    return [
        repr((log[n], p.window, p.timing, p.index, p.values, p.kind))
        for n, panes in query.emitted.items()
        for p in panes
    ] + [f"{len(log)} commits"]


@pytest.mark.parametrize(
    "more",
    [
        {"emit": wr.Emit(early=wr.every("10 seconds"))},
        {"emit": wr.Emit(early=wr.every("10 seconds"), mode="retracting", late=wr.every("20 seconds"))},
        {"watermark": wr.fixed("5 seconds"), "window": wr.tumbling("10 seconds")},
        {"watermark": wr.bounded("2 seconds", idle="9 seconds")},
        {"watermark": wr.custom(lambda marks, now: now // 25_000_000 * 25_000_000, name="steps")},
        {"allowed_lateness": "30 seconds", "emit": wr.Emit(closing_pane=True)},
        {"window": wr.tuples(2), "retention": wr.forever, "emit": wr.Emit(early=wr.every("10 seconds"))},
    ],
    ids=repr,
)
def test_nobody_sees_by_the_panes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    *idle, few = run(tmp_path / "idle", **more)
    monkeypatch.setattr(BatchProtocol, "rests", lambda *batch: False)
    *busy, many = run(tmp_path / "busy", **more)
    assert idle == busy and idle
    assert many == "90 commits" and (few < many or more["watermark"].kind == "fixed")


def test_sixty_four_batches_at_most_leave_no_record_and_none_where_a_driver_begins(tmp_path: Path) -> None:
    query = Query(tmp_path, define())
    query.open()
    query.input += [1]
    made = [n for n in range(3 + 2 * (IDLE_BATCHES + 1)) if query.batch() is not None]
    assert made == [0, 1, 2, 3 + IDLE_BATCHES, 4 + 2 * IDLE_BATCHES]
    query.open()
    assert [query.batch() is not None for _ in range(2)] == [True, False]


@pytest.mark.parametrize("positioned", [True, False])
def test_killed_at_any_point_it_loses_nothing_and_doubles_nothing(tmp_path: Path, positioned: bool) -> None:
    """Between two records there are batches of which the log knows nothing: Spark's plans say that they brought nothing."""
    script, kill_at, gaps = [2, 0, 0, 0, 0, 4], 0, 0
    while True:
        query = Query(
            tmp_path / str(kill_at), define(emit=wr.Emit(early=wr.every_batch)), positioned=positioned
        )
        query.open()
        query.points, query.kill_at, came, killed = 0, kill_at, 0, False
        while query.noted < len(script) - 1:
            while came <= query.noted + 1:
                query.input += range(script[came])
                came += 1
            try:
                query.batch()
            except Killed:
                killed = True
                query.open()
        commits = list(query.protocol.job.commits())
        gaps += sum(b.batch_id - a.batch_id > 1 for a, b in pairwise(commits))
        query.kill_at = 0
        query.drain()
        last = [p for _, panes in sorted(query.emitted.items()) for p in panes][-1]
        assert (last.timing.value, last["n"]) == ("ON_TIME", 6), f"killed at point {kill_at}"
        assert sum(c.steps[-1].rows for c in commits) == 6
        if not killed and kill_at:
            break
        kill_at += 1
    assert kill_at > 30 and gaps > kill_at / 2


def test_a_gap_of_batches_that_sparks_plans_do_not_explain_is_refused(tmp_path: Path) -> None:
    """An older log was restored, or plans are gone: what was between cannot be known."""
    for change in ("a row", "no plan", "another version", "state of Spark's own"):
        query = Query(tmp_path / change, define())
        query.open()
        query.input += [1]
        for _ in range(8):
            query.batch()
        plan = tmp_path / change / "spark" / "offsets" / "5"
        if change == "a row":
            plan.write_text(plan.read_text().replace('"logOffset":1', '"logOffset":2'))
        elif change == "no plan":
            plan.unlink()
        elif change == "another version":
            plan.write_text(plan.read_text().replace("v1", "v2"))
        else:
            (tmp_path / change / "spark" / "state").mkdir()
        query.input += [2]
        query.open()
        with pytest.raises(
            OffsetGap, match="up to batch 2, Spark goes on with 8: the batches between are in no state"
        ):
            query.batch()


def test_where_spark_keeps_state_of_its_own_every_batch_is_looked_at(tmp_path: Path) -> None:
    """Its operators tell rows when its watermark moves, though nothing has come."""
    query = Query(tmp_path, define())
    query.open()
    (tmp_path / "spark" / "state").mkdir()
    query.input += [1]
    assert None not in [query.batch() for _ in range(6)]


def test_an_idle_driver_that_is_over_learns_it(tmp_path: Path) -> None:
    query = Query(tmp_path, define())
    over = query.open()
    query.input += [1]
    for _ in range(5):
        query.batch()
    query.open()
    query.protocol = over
    with pytest.raises(Fenced):
        query.batch()


def test_plans_are_compared_but_for_the_heartbeat_and_a_checkpoint_without_them_says_nothing(
    tmp_path: Path,
) -> None:
    checkpoint = SparkCheckpoint(str(tmp_path), beats=True)
    assert not checkpoint.nothing_came(9, 10)
    (tmp_path / "offsets").mkdir()
    for batch in (9, 10):
        (tmp_path / "offsets" / str(batch)).write_text('v1\n{}\n{"logOffset":1}\n-\n' + str(batch))
    (tmp_path / "offsets" / ".10.crc").write_text("")
    assert checkpoint.nothing_came(9, 10) and not checkpoint.nothing_came(8, 10)
    assert not SparkCheckpoint(str(tmp_path), beats=False).nothing_came(9, 10)


def test_a_checkpoint_says_whether_the_heartbeat_is_among_its_sources(tmp_path: Path) -> None:
    checkpoint = SparkCheckpoint(str(tmp_path))
    assert [checkpoint.with_beats(wanted, now) for wanted in (True, False) for now in (True, False)] == [
        True,
        True,
        False,
        False,
    ]
    (tmp_path / "offsets").mkdir()
    (tmp_path / "sources" / "1").mkdir(parents=True)
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"logOffset":1}\n7')
    (tmp_path / "sources" / "1" / "0").write_text("v1\n1700000000000")
    assert checkpoint.with_beats(True, False) and checkpoint.with_beats(False, True)
    with pytest.raises(
        JobMismatch, match=r"was begun with a heartbeat, this one is started without.*: leave that out, or"
    ):
        checkpoint.with_beats(False, False)
    (tmp_path / "sources" / "1" / "0").write_text('v1\n{"path":"in"}')
    assert not checkpoint.with_beats(True, True) and not checkpoint.with_beats(False, False)
    with pytest.raises(
        JobMismatch, match=r'begun without a heartbeat.*: use .option\("heartbeat", "none"\), or'
    ):
        checkpoint.with_beats(True, False)
