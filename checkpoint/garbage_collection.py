"""Garbage collection (step 6): deletes files that nothing needs, so that a job's size does not grow with its age.

It runs in slices, each shorter than a commit, between which the driver continues its work. A slice deletes files or truncates
the log. Each is safe alone, and none depends on the next: a crash between two of them leaves files that are deleted
the next time. Numbers of commits, never ages of files, decide what is deleted:

    changelog, segments    below the older of the two newest whole snapshots of their shard; changelog also below a base
    panes, dead letters    published; dead letters when their retention is over, and a commit has said so
    records of the log     below all of these

and nothing of the newest `keep` commits, for readers that look back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windrow.checkpoint.compaction import covered
from windrow.checkpoint.replay import largest_time
from windrow.checkpoint.truncation_summary import LETTERS_FROM, DeadLetterFile, letters_in
from windrow.core.time import END_OF_TIME_US
from windrow.stores.incremental_work import Slices, in_batches

if TYPE_CHECKING:
    from windrow.checkpoint.job import Job

#: Unless an operator says otherwise, dead letters are kept so long, by `now`, and of no more files.
LETTERS_US = 7 * 24 * 3600 * 1_000_000
LETTER_FILES = 4096
#: Files that are deleted, and commits that are read or dropped, in one slice.
SLICE_FILES, SLICE_COMMITS = 16, 16
#: Names of files that a claim may restate for each commit whose record it drops: a constant, however many there are.
NAMES_A_COMMIT = 500


@dataclass
class Seen:
    """Facts about the commits below `next_commit`, kept so that each is read once. times: (commit, the largest event
    time until then).
    """

    dead_letters: list[DeadLetterFile]
    next_commit: int | None = None
    times: list[tuple[int, int]] = field(default_factory=list)


def tidy(job: Job, keep: int, keeps_messages: bool, replays_from_us: int) -> Slices[None]:
    """Run one collection; a yield ends a slice. Raises `Fenced` where another driver has the job."""
    job.check_epoch()
    before = job.progress
    horizon = min(before.published, before.commit - keep)
    if horizon < 1:
        return
    snapshots = yield from covered(job.folders, job.shards)
    yield from job.changelog.look(before.commit)
    # Before its first compact changelog a shard may need all; elsewhere than in files the transport has one.
    bases = {
        s: job.changelog.newest_base(s) if job.transport.shares_location else n for s, n in snapshots.items()
    }
    changelog = {s: min(n, bases[s]) for s, n in snapshots.items()}
    job.compacts = frozenset(s for s in range(job.shards) if job.changelog.is_due(s, before.commit))
    yield from _delete(job, "segments", {s: min(n, horizon) for s, n in snapshots.items()})
    yield from _delete(job, "changelog", {s: min(n, horizon) for s, n in changelog.items()})
    yield from _delete(job, "panes", dict.fromkeys(snapshots, horizon))
    yield from _dead_letters(job, horizon)
    if job.transport.shares_location:
        needed = min([horizon, *snapshots.values(), *changelog.values()])
    else:
        # Snapshots are a cache of one machine there; nothing needs what the transport's changelog has.
        copied = [0 if keeps_messages else job.transport.copied(job.job, s) for s in range(job.shards)]
        needed = min([horizon, *copied])
        if needed > 0:
            _forget(job, needed)
    yield
    if replays_from_us < END_OF_TIME_US:
        # And of the commit before them, which says how far it had read.
        first = next((c for c, time_us in job.seen.times if time_us >= replays_from_us), before.commit)
        needed = min(needed, first - 2)
    yield from _truncate(job, needed + 1)


def _delete(job: Job, folder: str, upto: dict[int, int]) -> Slices[None]:
    """Delete the files of commits up to `upto` of their shard, those that no commit names among them."""
    directory = os.path.join(job.folders.location, folder)
    files = sorted((*_parsed(name), name) for name in os.listdir(directory))
    old = [name for commit, shard, name in files if 0 < commit <= upto.get(shard, 0)]
    yield from _unlink(os.path.join(directory, name) for name in old)


def _parsed(name: str) -> tuple[int, int]:
    """Return (commit, shard) of a file; (0, 0) of one that has another name."""
    commit, _, rest = name.partition("-")
    shard = rest.partition("-")[0]
    return (int(commit), int(shard)) if commit.isdecimal() and shard.isdecimal() else (0, 0)


def _unlink(paths: Iterable[str]) -> Slices[None]:
    for batch in in_batches(paths, SLICE_FILES):
        for path in batch:
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue  # another driver, which is over, has the same aim
        yield


def _dead_letters(job: Job, horizon: int) -> Slices[None]:
    """Delete dead letters below the commit from which the last commit keeps them, and those that no commit names."""
    last = job.log.last_commit
    assert last is not None
    recorded = last.floors.get(LETTERS_FROM, 0)
    seen = job.seen
    for batch in in_batches(job.log.commits(seen.next_commit), SLICE_COMMITS):
        seen.dead_letters += [file for record in batch for file in letters_in(record)]
        seen.times += [(record.commit, largest_time(record)) for record in batch]
        seen.next_commit = batch[-1].commit + 1
        yield
    kept = seen.dead_letters = [file for file in seen.dead_letters if file.commit >= recorded]
    names = {file.name for file in kept}
    directory = os.path.join(job.folders.location, "dead")
    files = [(_parsed(name)[0], name) for name in os.listdir(directory)]
    gone = [
        name for commit, name in files if 0 < commit <= horizon and name.removesuffix(".parquet") not in names
    ]
    yield from _unlink(os.path.join(directory, name) for name in sorted(gone))
    asked = [part.dead_letter_retention_us for d in job.definitions.values() for part in d.parts]
    oldest_us = (job.progress.now_us or 0) - max(LETTERS_US if us is None else us for us in asked)
    settled = [file for file in kept if file.commit <= horizon]
    spare = len(settled) - LETTER_FILES if asked == [None] * len(asked) else 0
    over = [x for i, x in enumerate(settled) if x.now_us < oldest_us or i < spare]
    if over:
        job.progress.letters_from = max(job.progress.letters_from, max(x.commit for x in over) + 1)


def _forget(job: Job, upto: int) -> None:
    """Let the transport drop the files of commits up to `upto`."""
    first = next(job.log.commits()).commit
    for shard in range(job.shards):
        for number in range(upto, first - 1, -1):
            record = next(job.log.commits(number))
            kept = [last for r in record.shards if r.shard == shard for _, last in r.kept.values()]
            if kept:
                job.transport.forget(shard, max(kept) + 1)
                break


def _truncate(job: Job, before: int) -> Slices[None]:
    """Drop the records below commit `before`, a few at a time.

    Each time the claim restates the summary, so that one with many names of files is restated in fewer commits.
    """
    first = next(job.log.commits()).commit
    restates = job.log.state.summary.size // NAMES_A_COMMIT
    if before - first < restates:
        return
    step = max(SLICE_COMMITS, restates)
    for commit in [*range(first + step, before, step), before]:
        job.log.truncate(commit)
        yield
    job.seen.times = [(commit, time_us) for commit, time_us in job.seen.times if commit >= before]
