"""Job of a driver: the log, the state after the last commit, the next commit, and publishing.

Both runners drive this: the embedded one in its own process, the Spark one in `foreachBatch`. Step numbers are those of
docs/explanation/commit-protocol.md.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from windrow.checkpoint import warnings
from windrow.checkpoint.compaction import Changelog, covered
from windrow.checkpoint.definition_check import growth_of, noted
from windrow.checkpoint.files import bring_letters, bring_panes, pane_files
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.log import Log, LogState
from windrow.checkpoint.offsets import merge
from windrow.checkpoint.read_only_shard import TAKES_IN_EVERY
from windrow.checkpoint.records import Commit, Intent, Mark, ShardResult, Step
from windrow.checkpoint.recovery import PublishFacts, on_startup
from windrow.checkpoint.replay import largest_time
from windrow.checkpoint.transport import FILES, Transport
from windrow.checkpoint.truncation_summary import LETTERS_FROM, DeadLetterFile, Kept, letters_in
from windrow.core.clock import Clock
from windrow.core.errors import DefinitionChanged, Fenced, JobMismatch, StateError
from windrow.core.logs import get_logger
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.evolution import Growth
from windrow.operators.operator import Definition
from windrow.operators.steps.watermarks import watermark_of
from windrow.stores.incremental_work import Slices, in_batches

logger = get_logger()

#: Files of commits are kept at least this many commits, for readers that look back.
KEEP_COMMITS = 32
#: A task receives so many commits: those that a store may not have applied, and the one that it holds.
RECENT = TAKES_IN_EVERY + 1


@dataclass(frozen=True)
class Plan:
    """Input of the next commit (step 2): recorded as an intent, and the same after a crash."""

    commit: int
    now_us: int
    watermarks_us: Mapping[str, int]
    next_offsets: Mapping[Partition, int]
    idle: tuple[Partition, ...] = ()
    query_id: str | None = None
    batch_id: int | None = None


@dataclass
class Reached:
    """Progress of a job as of its last commit."""

    commit: int = 0
    now_us: int | None = None
    marks: dict[Partition, Mark] = field(default_factory=dict)
    watermarks_us: dict[str, int] = field(default_factory=dict)
    next_offsets: dict[Partition, int] = field(default_factory=dict)
    published: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    #: Dead letters of commits below this one are not kept: what the next commit records.
    letters_from: int = 0


class Job:
    """One opening of a job by one driver."""

    def __init__(
        self,
        location: str,
        definitions: Sequence[Definition],
        *,
        shards: int,
        clock: Clock,
        driver: str | None = None,
        log: Log | None = None,
        sharding: Mapping[str, int] | None = None,
        transport: Transport = FILES,
    ) -> None:
        """sharding: topic -> partitions, where shards are made of those, not of keys."""
        names = [p.name for d in definitions for p in d.parts]
        if len(set(names)) != len(names):
            raise JobMismatch(f"operators of one job need different names, these are {names}: give name=...")
        self.definitions = {d.name: d for d in definitions}
        self.sharding = dict(sharding or {})
        self.clock = clock
        self.folders = JobFolders(location)
        self.transport = transport
        self.log: Log = log or transport.log(self.folders)
        state = self.log.tail() if log else transport.read(self.folders, self.log)  # before a folder is made
        self.folders.make()
        known = state.epoch
        self.job = known.job if known is not None else f"job-{uuid.uuid4().hex[:12]}"
        self.shards = known.shards if known is not None and shards == 0 else max(shards, 1)
        #: Differences of the state from the definitions, by operator.
        self._growth: dict[str, Growth] = {}
        self._accept(state)
        transport.prepare(self.folders, self.job, self.shards)
        self.epoch = self.log.open_epoch(
            opened_us=clock.now_us(),
            driver=driver or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}",
            fingerprints={n: d.fingerprint for n, d in self.definitions.items()},
            shards=self.shards,
            job=self.job,
            meta=noted(self.definitions, self._growth, self.sharding),
            accept=self._accept,
        )
        self.definitions = {n: d.grown(self._growth.get(n, Growth())) for n, d in self.definitions.items()}
        self.progress = _progress(self.log.state)
        #: The last commit of this driver in which only time passed; 0 where there is none.
        self.still = 0
        #: Periods that have ended in it, and in such commits right before it: nothing waits for them.
        self.still_periods: frozenset[int] = frozenset()
        self.recent: list[Commit] = [] if self.log.last_commit is None else [self.log.last_commit]
        self._read: dict[str | None, frozenset[Partition]] = {}
        self.seen = Seen(list(self.log.state.summary.dead_letters))
        #: Shards that write a compact changelog with their next snapshot.
        self.changelog, self.compacts = Changelog(self.folders), frozenset[int]()
        self._kept = Kept(self.log.state.summary)
        self.logger = logger.bind(job=self.job, location=self.folders.location)
        warnings.warn_on_opening(self.logger, self.progress.now_us, clock.now_us(), known)
        warnings.warn_of_growth(self.logger, known, self._growth)
        self._unit_warned = False
        self.logger.info("opened", epoch=self.epoch.epoch, commit=self.progress.commit, shards=self.shards)

    def read_recent(self) -> None:
        """Read the newest commits, which stores may not have applied."""
        first = next((record.commit for record in self.log.commits()), 1)
        self.recent = list(self.log.commits(max(first, self.progress.commit - RECENT + 1)))

    @staticmethod
    def shards_at(location: str, transport: Transport = FILES) -> int | None:
        """Return the number of shards that the job at `location` was begun with; None where nothing was committed."""
        state = transport.log(JobFolders(location)).tail()
        return None if state.epoch is None or state.last_commit is None else state.epoch.shards

    def _accept(self, state: LogState) -> None:
        """Refuse to open state that another definition shaped, or a job that another driver has begun meanwhile."""
        epoch = state.epoch
        if epoch is not None and epoch.job != self.job:
            # A claim under a name of our own would make another job of it, whose panes no token of the first one knows.
            raise Fenced(
                f"driver {epoch.driver!r} has begun the job at {self.folders.location} while this one was about to: "
                "open it again"
            )
        if epoch is None or state.last_commit is None:
            return
        if epoch.shards != self.shards:
            raise JobMismatch(
                f"{self.folders.location} was begun with {epoch.shards} shards, this driver asks for {self.shards}: "
                f"open it with shards={epoch.shards} (shards are fixed at the first commit)"
            )
        before = epoch.meta.get("sharding", {})
        if before != self.sharding:
            ways = [f"the partitions of {s}" if s else "their keys" for s in (before, self.sharding)]
            raise JobMismatch(
                f"{self.folders.location} puts messages into shards by {ways[0]}, this driver would by {ways[1]}: open "
                "it as it was begun (keyed=, the topics and their partitions), or begin at another location"
            )
        for name in epoch.fingerprints:
            if name not in self.definitions:
                raise DefinitionChanged(
                    f"{self.folders.location} holds the state of operator {name!r}, this job has {sorted(self.definitions)}: "
                    "open it with the same operators, or begin at another location"
                )
            marks = _progress(state).marks.values()
            reached_us = max(
                (m.max_time_us for m in marks if m.max_time_us is not None), default=START_OF_TIME_US
            )
            grown = growth_of(self.definitions[name], epoch, reached_us, self.folders.location)
            if grown:
                self._growth[name] = grown

    # -- step 2 -----------------------------------------------------------------------------------------------------

    def plan(
        self,
        *,
        query_id: str | None = None,
        batch_id: int | None = None,
        unread: Collection[Partition] = (),
    ) -> Plan:
        """Plan the next commit, from the clock and the state after earlier commits.

        unread: partitions of which the source has more than was read; they are not idle.
        """
        progress = self.progress
        now_us = self.clock.now_us() if progress.now_us is None else max(self.clock.now_us(), progress.now_us)
        seen = {p: m.seen_us for p, m in progress.marks.items() if m.seen_us is not None}
        largest = {p: m.max_time_us for p, m in progress.marks.items() if m.max_time_us is not None}
        idle: set[Partition] = set()
        watermarks = {}
        for name, definition in self.definitions.items():
            before = progress.watermarks_us.get(name, START_OF_TIME_US)
            watermarks[name], verdict = watermark_of(definition, largest, seen, now_us, before, unread)
            idle |= verdict
        return Plan(
            progress.commit + 1,
            now_us,
            watermarks,
            dict(progress.next_offsets),
            tuple(sorted(idle)),
            query_id,
            batch_id,
        )

    def record_intent(self, plan: Plan) -> None:
        """Record the intent of the next commit (step 2)."""
        self.log.append(
            Intent(
                epoch=self.epoch.epoch,
                commit=plan.commit,
                now_us=plan.now_us,
                watermark_us=min(plan.watermarks_us.values()),
                next_offsets=plan.next_offsets,
                query_id=plan.query_id,
                batch_id=plan.batch_id,
                idle=plan.idle,
                meta={"watermarks": dict(plan.watermarks_us)},
            )
        )

    def pending_plan(self) -> Plan | None:
        """Return the plan that a driver before us recorded and did not commit; None too where it was for other operators."""
        intent = self.log.last_intent
        watermarks = {} if intent is None else intent.meta.get("watermarks", {})
        if intent is None or watermarks.keys() != self.definitions.keys():
            return None
        return Plan(
            intent.commit,
            intent.now_us,
            dict(watermarks),
            dict(intent.next_offsets),
            intent.idle,
            intent.query_id,
            intent.batch_id,
        )

    # -- step 4 -----------------------------------------------------------------------------------------------------

    def commit(
        self,
        commit: int,
        steps: Sequence[Step],
        results: Sequence[ShardResult],
        *,
        marks: Mapping[Partition, int],
        next_offsets: Mapping[Partition, int],
        watermarks_us: Mapping[str, int],
        now_us: int,
        seen_us: Mapping[Partition, int] | None = None,
        counters: Mapping[str, int] | None = None,
        query_id: str | None = None,
        batch_id: int | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Commit:
        """Create the commit record. That it exists is the commit.

        `marks`: the largest event time of each partition that had rows; `seen_us`: `now` of its newest row, where that is
        not `now_us`.
        """
        progress = self.progress
        totals = dict(progress.counters)
        for name, n in (counters or {}).items():
            totals[name] = totals.get(name, 0) + n
        record = self.log.append(
            Commit(
                epoch=self.epoch.epoch,
                commit=commit,
                steps=tuple(steps),
                next_offsets=merge(progress.next_offsets, next_offsets),
                shards=tuple(results),
                published=progress.published,
                watermark_us=min(watermarks_us.values()),
                marks=self._with_marks(marks, now_us, seen_us),
                query_id=query_id,
                batch_id=batch_id,
                floors={LETTERS_FROM: progress.letters_from} if progress.letters_from else {},
                counters=totals,
                meta={
                    **(meta or {}),
                    "watermarks": dict(watermarks_us),
                },
            )
        )
        self.progress = _left_by(record, now_us)
        self.recent = [*self.recent[1 - RECENT :], record]
        if query_id in self._read:
            self._read[query_id] |= _partitions(record)
        self.logger.debug("committed", commit=commit, rows=sum(s.rows for s in steps))
        here = self.folders.location if self.transport.shares_location else None
        warnings.warn_of_letters(self.logger, commit, counters or {}, here)
        self._unit_warned = self._unit_warned or warnings.warn_of_unit(self.logger, commit, marks.values())
        mark_us = min(progress.watermarks_us.values(), default=START_OF_TIME_US)
        warnings.warn_of_jump(
            self.logger, commit, list(self.definitions.values()), mark_us, progress.now_us, steps
        )
        return record

    def _with_marks(
        self, marks: Mapping[Partition, int], now_us: int, seen_us: Mapping[Partition, int] | None
    ) -> dict[Partition, Mark]:
        """Return the marks of all partitions, advanced for those that had rows."""
        merged = dict(self.progress.marks)
        for partition, largest in marks.items():
            known = merged.get(partition)
            highest = (
                largest if known is None or known.max_time_us is None else max(largest, known.max_time_us)
            )
            seen = now_us if seen_us is None else seen_us.get(partition, now_us)
            merged[partition] = Mark(max_time_us=highest, seen_us=seen)
        return merged

    # -- step 5 -----------------------------------------------------------------------------------------------------

    def unpublished(self, sink_has: int | None = None) -> list[Commit]:
        """Commits whose panes may not be out yet, oldest first. Raises where their panes are lost."""
        progress = self.progress
        if progress.published >= progress.commit:
            return []
        out = max(progress.published, min(sink_has or 0, progress.commit))
        candidates = [c for c in self.recent if c.commit > out]
        if out < progress.commit and (not candidates or candidates[0].commit > out + 1):
            candidates = [c for c in self.log.commits() if c.commit > out]
        panes_from = progress.commit + 1
        for record in reversed(candidates):
            bring_panes(self.folders, self.transport, record, check=False)
            if not all(
                os.path.exists(p) for files in pane_files(self.folders, record).values() for p in files
            ):
                break
            panes_from = record.commit
        decision = on_startup(
            PublishFacts(
                commit=progress.commit, recorded=progress.published, sink=sink_has, panes_from=panes_from
            )
        )
        try:
            decision.raise_if_refused()
        except StateError as error:
            # More likely than a loss: another driver has gone on, and has swept what it has published.
            try:
                self.check_epoch()
            except Fenced as over:
                raise over from error
            raise
        return [c for c in candidates if c.commit in decision.publish]

    def check_epoch(self) -> None:
        """Read the log on. Raises `Fenced` if another driver has opened the job since."""
        last = self.log.tail().epoch
        if last is not None and last.epoch != self.epoch.epoch:
            raise Fenced(
                f"driver {last.driver!r} has opened this job with epoch {last.epoch}, which ends epoch "
                f"{self.epoch.epoch} of this driver: stop one of the two"
            )

    def pane_files(self, record: Commit) -> dict[str, list[str]]:
        """Return the pane files of a commit, by operator, shards in order; fetched if they are not on this machine."""
        bring_panes(self.folders, self.transport, record)
        return pane_files(self.folders, record)

    def files_taken(self, query_id: str) -> list[str]:
        """Return the files whose rows other queries counted; those of this query Spark itself does not deliver again."""
        return sorted(
            {source for query, read in self._taken().items() if query != query_id for source, _ in read}
        )

    def partitions_of(self, query_id: str) -> frozenset[Partition]:
        """Return the partitions that commits of this query have read."""
        if query_id not in self._read:
            self._read[query_id] = self._taken().get(query_id, frozenset())
        return self._read[query_id]

    def _taken(self) -> Mapping[str | None, frozenset[Partition]]:
        """Return, by query, what the steps of all commits have read."""
        commits = self.log.commits()
        return self.log.state.summary.after(commits).taken

    def dead_letters(self) -> list[DeadLetterFile]:
        """List the files of dead letters that are kept, oldest first."""
        summary = self.log.tail().summary
        if (
            self._kept.next_commit or 0
        ) <= summary.commit:  # the log has dropped commits that were not followed
            self._kept = Kept(summary)
        self._kept.follow(self.log.commits(self._kept.next_commit))
        return list(self._kept.dead_letters)

    def letter_file(self, file: DeadLetterFile) -> str:
        """Return the path of a dead-letter file. The file is fetched if it is not on this machine."""
        return bring_letters(self.folders, self.transport, file)

    def mark_published(self, commit: int) -> None:
        self.progress.published = max(self.progress.published, commit)

    # -- step 6 -----------------------------------------------------------------------------------------------------

    def tidy(
        self,
        *,
        keep: int | None = None,
        keeps_messages: bool = True,
        replays_from_us: int = END_OF_TIME_US,
    ) -> Slices[None]:
        """Delete files and records that nothing needs, in slices shorter than a commit: see `checkpoint.garbage_collection`.

        keep: commits that stay for readers that look back (default: `KEEP_COMMITS`). keeps_messages: operators keep messages.
        replays_from_us: messages from this event time on can be replayed, so the log must keep the steps that took them.
        """
        return tidy(self, KEEP_COMMITS if keep is None else keep, keeps_messages, replays_from_us)

    def commits(self, first: int | None = None) -> Iterator[Commit]:
        """Yield the commits that the log has, from one on. The newest are not read again."""
        first = first or self.log.first_commit
        newest = [record for record in self.recent if record.commit >= first]
        older = self.log.commits(first)
        return chain(islice(older, newest[0].commit - first), newest) if newest else older

    def close(self) -> None:
        self.log.close()


def _partitions(record: Commit) -> frozenset[Partition]:
    return frozenset(partition for step in record.steps for partition in step.next_offsets)


def _progress(state: LogState) -> Reached:
    last = state.last_commit
    if last is None:
        return Reached()
    return _left_by(last, last.now_us if last.now_us is not None else last.meta.get("now_us"))


def _left_by(last: Commit, now_us: int | None) -> Reached:
    return Reached(
        last.commit,
        now_us,
        dict(last.marks),
        dict(last.meta.get("watermarks", {})),
        dict(last.next_offsets),
        last.published,
        dict(last.counters),
        last.floors.get(LETTERS_FROM, 0),
    )


# -- garbage collection (step 6) --------------------------------------------------------------------------------------
#
# It deletes files that nothing needs, so that a job's size does not grow with its age. It runs in slices, each shorter than a
# commit, between which the driver continues its work. A slice deletes files or truncates the log. Each is safe alone, and none
# depends on the next: a crash between two of them leaves files that are deleted the next time. Numbers of commits, never ages
# of files, decide what is deleted:
#
#     changelog, segments    below the older of the two newest whole snapshots of each shard; changelog also below its base
#     panes, dead letters    published; dead letters when their retention is over, and a commit has said so
#     records of the log     below all of these
#
# and nothing of the newest `keep` commits, for readers that look back.

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
    # A file may have the changes of several shards. Before its first compact changelog a shard may need all; elsewhere than in
    # files the transport has one.
    segments = changelog = min([horizon, *snapshots.values()])
    if job.transport.shares_location:
        changelog = min([segments, *map(job.changelog.newest_base, snapshots)])
    job.compacts = frozenset(s for s in range(job.shards) if job.changelog.is_due(s, before.commit))
    yield from _delete(job, "segments", segments)
    yield from _delete(job, "changelog", changelog)
    yield from _delete(job, "panes", horizon)
    yield from _dead_letters(job, horizon)
    if job.transport.shares_location:
        needed = changelog
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


def _delete(job: Job, folder: str, upto: int) -> Slices[None]:
    """Delete the files of commits up to one, those that no commit names among them."""
    directory = os.path.join(job.folders.location, folder)
    files = sorted((_commit_of(name), name) for name in os.listdir(directory))
    yield from _unlink(os.path.join(directory, name) for commit, name in files if 0 < commit <= upto)


def _commit_of(name: str) -> int:
    """Return the commit of a file; 0 of one that has another name."""
    commit, _, rest = name.partition("-")
    return int(commit) if commit.isdecimal() and rest.partition("-")[0].isdecimal() else 0


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
    for batch in in_batches(job.commits(seen.next_commit), SLICE_COMMITS):
        seen.dead_letters += [file for record in batch for file in letters_in(record)]
        seen.times += [(record.commit, largest_time(record)) for record in batch]
        seen.next_commit = batch[-1].commit + 1
        yield
    kept = seen.dead_letters = [file for file in seen.dead_letters if file.commit >= recorded]
    names = {file.name for file in kept}
    directory = os.path.join(job.folders.location, "dead")
    files = [(_commit_of(name), name) for name in os.listdir(directory)]
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
