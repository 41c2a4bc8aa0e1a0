"""Health of a job, by its last commit record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import windrow as wr
from windrow.checkpoint.compaction import snapshots_from
from windrow.checkpoint.health import Health, health_of
from windrow.checkpoint.job import Job
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.replay import STORE_BYTES
from windrow.operators.steps.watermarks import holder_of
from windrow.testing.clock import ManualClock

SECOND = 1_000_000
DEFINITION = wr.Aggregate(
    event_time="t",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count()},
    retention="1 hour",
    watermark=wr.bounded("5 seconds", idle="1 minute"),
)


def test_a_job_reports_its_age_its_watermark_who_holds_it_and_what_is_not_out(tmp_path: Path) -> None:
    clock = ManualClock()
    with DEFINITION.open(str(tmp_path), clock=clock) as op:
        assert health_of(None, [DEFINITION], 0, clock.now_us()) == Health()
        start = clock.now_us()
        op.add_messages(
            wr.Message({"t": second * SECOND}, wr.Position("s", partition, 0))
            for partition, second in ((0, 100), (1, 40), (2, 70))
        )
        op.timeout()
        op.add_message(wr.Message({"t": 101 * SECOND}, wr.Position("s", 0, 1)))
        op.timeout()
    job = Job(str(tmp_path), [DEFINITION], shards=1, clock=clock)
    last = job.log.last_commit
    clock.advance("3 seconds")
    health = health_of(last, [DEFINITION], 1, clock.now_us())
    job.close()
    assert health == Health(
        2, clock.now_us() - start, 35 * SECOND, ("s", 1), 1, clock.now_us() - 35 * SECOND, 2
    )
    assert health.as_json() == {
        "commit": 2,
        "ageMs": 3_000,
        "watermark": "1970-01-01T00:00:35+00:00",
        "lagMs": (clock.now_us() - 35 * SECOND) // 1_000,
        "heldBy": {"source": "s", "partition": 1},
        "unpublished": 1,
        "snapshotCommits": 2,
        "storeBytes": None,
    }
    assert last is not None
    elsewhere = replace(last, shards=tuple(replace(r, counters={STORE_BYTES: 5}) for r in last.shards * 3))
    assert health_of(elsewhere, [DEFINITION], 1, clock.now_us()).store_bytes == 15


def test_a_job_reports_how_many_commits_are_newer_than_its_oldest_shards_snapshot(tmp_path: Path) -> None:
    folder = str(tmp_path)
    with DEFINITION.open(folder) as op:
        op.add_message(wr.Message({"t": SECOND}))
        op.timeout()
        assert op.health().since_snapshot == 1
        op.engine.shard.snapshot()
        assert op.health().since_snapshot == 0
        op.add_message(wr.Message({"t": SECOND}))
        op.timeout()
        assert op.health().as_json()["snapshotCommits"] == 1
    assert snapshots_from(JobFolders(folder), 2) == 0  # one shard has none


def test_idle_partitions_hold_nobody_and_an_input_of_which_nothing_came_holds_all() -> None:
    now = 1_704_067_320 * SECOND
    marks = {(":s", 0): 9, (":s", 1): 4}
    assert holder_of(DEFINITION, marks, {(":s", 1): now - 60 * SECOND, (":s", 0): now}, now) == (":s", 0)
    declared = wr.bounded("5 seconds", partitions=[("s", 0), ("s", 7)])
    assert holder_of(DEFINITION.with_watermarks({"": declared}), marks, {}, now) == (":s", 7)
    assert holder_of(DEFINITION.with_watermarks({"": wr.fixed("1 second")}), marks, {}, now) is None
    join = wr.Join(
        left=wr.Input("a", event_time="t", watermark="8 microseconds"),
        right=wr.Input("b", event_time="t"),
        on="k",
        retention="1 hour",
    )
    both: dict[Any, int] = {("a:s", 0): 10, ("b:s", 0): 5}
    assert holder_of(join, both, {}, now) == ("a:s", 0)
    assert holder_of(join, {("a:s", 0): 10}, {}, now) == ("b:", -1)
