"""Summary of commits that a log no longer has, and intents of other operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.checkpoint.job import Job
from windrow.checkpoint.records import ShardResult, Step
from windrow.checkpoint.truncation_summary import DeadLetterFile
from windrow.testing.clock import ManualClock


def define(name: str) -> wr.Aggregate:
    return wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("1 hour"),
        agg={"n": wr.count()},
        retention="1 day",
        name=name,
    )


def opened(location: Path, *names: str) -> Job:
    return Job(str(location), [define(name) for name in names or ("a",)], shards=1, clock=ManualClock())


def make(job: Job, query: str | None, *sources: str) -> None:
    """A commit of a query that has read some files, or partitions, of which one row could not be counted."""
    number = job.progress.commit + 1
    taken = {(source, 0): number for source in sources}
    job.commit(
        number,
        [
            Step(
                kind="ingest",
                now_us=number,
                watermark_us=None,
                first_offsets={p: 0 for p in taken},
                next_offsets=taken,
            )
        ],
        [
            ShardResult(
                shard=0, segment=f"file-{number}", counters={"dead_file": 1}, kept={"dead": (number, number)}
            )
        ],
        marks={},
        next_offsets={},
        watermarks_us=dict.fromkeys(job.definitions, 0),
        now_us=number,
        query_id=query,
        batch_id=None if query is None else number,
    )
    job.mark_published(number)


def asked(job: Job) -> Any:
    answers = [(job.files_taken(q), job.partitions_of(q)) for q in ("q1", "q2", "another")]
    return answers, job.dead_letters(), job.progress.counters


def test_what_is_asked_of_commits_is_the_same_when_they_are_gone(tmp_path: Path) -> None:
    job = opened(tmp_path)
    for query, *sources in [
        ("q1", "f1", "f2"),
        ("q1", "f3"),
        (None, "s"),
        ("q2", "f4"),
        ("q2", "f5"),
        ("q2", "f6"),
    ]:
        make(job, query, *sources)
    said = asked(job)
    assert said[0][1][0] == ["f1", "f2", "f3", "s"]
    assert [x.commit for x in said[1]] == [1, 2, 3, 4, 5, 6]
    for before in (2, 4, 4, 6):
        job.log.truncate(before)
        assert next(job.log.commits()).commit == before
        job._read.clear()
        assert asked(job) == said
        job.close()
        job = opened(tmp_path)
        assert asked(job) == said
    assert job.log.state.summary.dead_letters[0] == DeadLetterFile(1, 1, 0, "file-1", 1, (1, 1))


def test_letters_of_which_a_commit_says_that_they_are_not_kept_leave_the_summary(tmp_path: Path) -> None:
    job = opened(tmp_path)
    for _ in range(4):
        make(job, "q", "s")
    job.progress.letters_from = 3
    make(job, "q", "s")
    assert [x.commit for x in job.dead_letters()] == [3, 4, 5]
    make(job, "q", "s")
    job.log.truncate(6)
    assert [x.commit for x in job.log.state.summary.dead_letters] == [3, 4, 5]
    job.close()
    assert opened(tmp_path).progress.letters_from == 3


def test_dead_letters_are_asked_for_again_and_again_and_each_commit_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, read = opened(tmp_path), []
    monkeypatch.setattr(job.log, "read", lambda seq, whole=job.log.read: read.append(seq) or whole(seq))
    for number in range(1, 7):
        make(job, None, "s")
        assert [one.commit for one in job.dead_letters()] == list(range(1, number + 1))
    assert len(read) == len(set(read)) == 6
    for _ in range(3):
        make(job, None, "s")
    job.log.truncate(9)  # also of what was not asked for yet
    assert [one.commit for one in job.dead_letters()] == list(range(1, 10))
    job.progress.letters_from = 3
    make(job, None, "s")
    assert [one.commit for one in job.dead_letters()] == list(range(3, 11))
    assert opened(tmp_path).dead_letters() == job.dead_letters()


def test_an_intent_of_other_operators_is_not_taken_up(tmp_path: Path) -> None:
    job = opened(tmp_path, "a")
    make(job, "q", "s")
    job.record_intent(job.plan(query_id="q", batch_id=2))
    assert opened(tmp_path, "a").pending_plan() is not None
    assert opened(tmp_path, "a", "b").pending_plan() is None
