"""Driver of an operator on one directory: it stages, commits and publishes steps, and rebuilds a damaged store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from windrow.checkpoint.compaction import snapshot_at, snapshots_from
from windrow.checkpoint.health import Health, alive_at, health_of, note_alive
from windrow.checkpoint.job import Job
from windrow.checkpoint.records import PANES_OF, Commit, Mark
from windrow.checkpoint.replay import STEP_OF
from windrow.checkpoint.shard import OpenStore, Replay, Shard, ShardSpec, StoreDamaged, open_rocks
from windrow.checkpoint.transport import FILES, Transport
from windrow.checkpoint.truncation_summary import DEAD_FILE
from windrow.connectors.pane_files import PaneFiles, Sink, mapped_rows
from windrow.connectors.sinks import as_sink
from windrow.core.clock import Clock, clock_of
from windrow.core.errors import ConfigurationError, CorruptState, Fenced
from windrow.core.inputs import Input
from windrow.core.messages import Message, Token
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.operator import Definition
from windrow.operators.steps.dead_letters import of_operator
from windrow.operators.steps.progress import only_time_passed
from windrow.operators.steps.watermarks import advanced, watermark_of
from windrow.runners.embedded.positions import NOTHING, Passed, extent
from windrow.runners.embedded.results import Unflushed
from windrow.runners.embedded.step_transaction import Attempt, Staged, Whole, ingested
from windrow.runners.paging import KeptWindows
from windrow.runners.publishing import Publisher, sinks_of
from windrow.runners.replay import replayable
from windrow.runners.telemetry import Stages, Telemetry
from windrow.stores.files import on_disk
from windrow.stores.in_memory import MemoryStore


def opener(store: str) -> OpenStore:
    """Return the function that opens the store of that name."""
    if store not in ("rocksdb", "memory"):
        raise ConfigurationError(f"store={store!r}: use 'rocksdb', on disk, or 'memory'")
    return MemoryStore if store == "memory" else open_rocks


T = TypeVar("T")
#: A message, the `now` of its step, and its error if it has one.
Waiting: TypeAlias = tuple[Message, int, str | None]

#: A snapshot every so many commits, and then the rest of step 6.
SNAPSHOT_EVERY = 256
#: Tidying may take so much of the time of a commit. At 0 it still does one slice a commit, on any machine.
TIDY_SHARE = 0.5
#: A job without commits notes that it is alive this often, for probes.
ALIVE_US = 1_000_000


class Engine:
    """The engine of one opened job on one directory, in this process: from a step to published panes.

    It is not thread-safe: callers take turns.
    """

    def __init__(
        self,
        definition: Definition,
        location: str,
        *,
        clock: Clock | None = None,
        sink: Any = None,
        replay: Replay | None = None,
        dead_letters: Any = None,
        log: Transport = FILES,
        store: str = "rocksdb",
    ) -> None:
        self.definition = definition
        self.closed = False
        self.whole = Whole(self._break)
        self.broken_by: BaseException | None = None
        #: Messages that were added one by one and are not validated yet, each with its `now` and its error.
        self.waiting: list[Waiting] = []
        self.clock = clock_of(clock)
        self.definitions = definition.apart
        self.sinks = sinks_of(self.definitions, sink, dead_letters)
        dead_sink = None if dead_letters is None else as_sink(dead_letters)
        wanted = _wanted(definition, sink)
        #: Partitions that hold the watermark until their first message: their reader knows that they hold messages.
        self.awaited: set[Partition] = set()
        #: Returns the records that are not read yet, by source and partition: their reader knows them.
        self.lag: Callable[[], Mapping[str, Mapping[str, int]]] = dict
        self.paused: BaseException | None = None
        self._reported_alive_us = START_OF_TIME_US
        self.owes = False  # the sinks lack something, or may lack it
        self.unflushed = Unflushed(d.name for d in self.definitions)  # empty where there are sinks
        self._taken: str | None = None
        self._chores: Generator[None, None, None] | None = None
        self._replay = replay
        with on_disk(location):
            self.job = Job(location, self.definitions, shards=1, clock=self.clock, transport=log)
        self.definitions = (*self.job.definitions.values(),)
        self.definition = definition = definition.of_apart(self.definitions)
        self.logic = definition.logic(wanted)
        self._logics = {d.name: d.logic() for d in self.definitions}
        self._publisher = Publisher(self.job, self.definitions, self.sinks, dead_sink)
        self._telemetry = Telemetry(self.job, self.definitions)
        self._gives = bool(self.sinks) or dead_sink is not None
        self.spec = self._spec(store)
        try:
            with on_disk(location):
                self.shard = self._open_shard()
        except BaseException:
            self.job.close()
            raise
        try:
            self._begin()
        except BaseException:
            self.abandon()  # or no other process could open it as long as this one lives
            raise

    def _spec(self, store: str) -> ShardSpec:
        job = self.job
        return ShardSpec(
            *(job.folders, job.job, 0),
            self.logic.metadata_cfs,
            self.logic.message_cfs,
            replayable=all(map(replayable, self.definitions)),
            open_store=opener(store),
            transport=self.job.transport,
        )

    def _begin(self) -> None:
        """Publish what was emitted last; then the engine accepts steps."""
        self._last_snapshot = snapshot_at(self.job.folders, 0)
        self.kept = KeptWindows()
        self.staged = self.stage(None)
        self.staged.advanced_us = self.read(lambda: self.logic.progress(self.shard.kv)).now_us
        self._bring_back()

    def _open_shard(self) -> Shard:
        """Open the store at the last commit; rebuild it where it is missing."""
        job = self.job
        return Shard.open(self.spec, job.progress.commit, job.commits, job.recent, replay=self._replay)

    def read(self, read: Callable[[], T]) -> T:
        """Run `read()`, and repair a damaged store once: the store is a cache of committed segments."""
        try:
            return read()
        except CorruptState as error:
            damage = error.with_traceback(None)
        self.job.logger.warning(
            "the store is damaged and built anew", path=self.shard.kv.path, error=str(damage)
        )
        with self.whole:
            self.shard.set_aside()
            self.shard = self._open_shard()
            overlay = self.shard.overlay()
            overlay.batch = self.staged.overlay.batch
            self.staged.overlay = overlay
        return read()

    def stage(self, advanced_us: int | None) -> Staged:
        """Begin a new commit. advanced_us: `now` of the last advance."""
        progress = self.job.progress
        last = self.job.log.last_commit
        ordinals = last.meta.get("ordinals", []) if last is not None else []
        return Staged(
            self.shard.overlay(),
            dict(progress.marks),
            dict(progress.next_offsets),
            {(s, p): o for s, p, o in ordinals},
            progress.watermarks_us.get(self.definitions[0].name, START_OF_TIME_US),
            progress.now_us,
            advanced_us,
        )

    def _bring_back(self) -> None:
        """Restore panes of unacknowledged commits: they are published first, or returned again by `get_result`."""
        for record in [] if self.sinks else self.job.unpublished():
            for name, files in self.job.pane_files(record).items():
                self.unflushed.add(name, map(mapped_rows, files))
        if self._gives:
            self.publish()

    # -- steps ------------------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Return the time of the next step: it never decreases."""
        now_us = self.clock.now_us()
        before_us = self.waiting[-1][1] if self.waiting else self.staged.now_us
        return now_us if before_us is None else max(now_us, before_us)

    def watermark(self, now_us: int, marks: Mapping[Partition, Mark] | None = None) -> int:
        """Return the watermark by these marks, or by those of the staged commit."""
        staged = self.staged
        marks = staged.marks if marks is None else marks
        if any(p not in marks for p in self.awaited):
            return staged.watermark_us
        largest, seen = staged.largest_us(marks), staged.seen_us(marks)
        return watermark_of(self.definition, largest, seen, now_us, staged.watermark_us)[0]

    def advance_to(self, watermark: int, now_us: int, input: Input | None = None) -> Attempt:
        """Run a step that advances event time to `watermark`. input: only this one; the others may hold the operator back."""

        def step(tried: Attempt) -> None:
            reached = watermark
            if input is not None:
                tried.mark(advanced(input), watermark)
                reached = self.watermark(now_us, tried.marks)
            tried.advance(lambda kv: self.logic.advance(kv, reached, now_us), reached)

        attempt = self.attempt(now_us, step)
        self.stage_steps(attempt)
        return attempt

    def let_time_pass(self, now_us: int) -> None:
        """Advance, and commit if anything came before the advance or comes of it.

        Otherwise the advance stays staged. The next step that matters commits it, so periods tick from its time; the next
        advance replaces it.
        """
        if self.staged.idle and not self.staged.counters:
            with self.whole:
                idle = self.staged
                self.staged = self.stage(idle.advanced_before_us)
                self.staged.now_us = idle.now_us  # it never decreases, though nothing has recorded it
        fresh, before_us = self.staged.fresh, self.staged.watermark_us
        attempt = self.advance_to(self.watermark(now_us), now_us)
        silent = all(r.silent for r in attempt.results) and attempt.watermark_us == before_us
        # A later commit records that its panes are published; otherwise a sink that cannot say so would get them again.
        emitted = self._gives and _has_output(self.job.log.last_commit)
        if fresh and silent and not emitted and only_time_passed(self.shard.kv, attempt.kv.batch):
            self.staged.idle = True
            if now_us - self._reported_alive_us >= ALIVE_US:
                self._reported_alive_us = now_us
                note_alive(self.job.folders.alive, now_us)
            self._tidy()
        else:
            self.commit()

    def ingest_and_advance(
        self,
        tables: Mapping[str, pa.Table],
        passed: Passed,
        *,
        prepared: Mapping[str, pa.Table] | None = None,
    ) -> None:
        """Stage two steps: the ingest of messages, by input, with position columns, and the advance to their watermark.

        prepared: ingested in place of `tables`.
        """
        logic, now_us = self.logic, self.now()
        first: dict[Partition, int] = {}
        following: dict[Partition, int] = {}
        for table in tables.values():
            low, high = extent(table)
            first.update(low)
            following.update(high)
        step_tables = tables if prepared is None else prepared

        def both(tried: Attempt) -> None:
            rows = sum(len(t) for t in tables.values())
            tried.ingest(lambda kv: ingested(logic, kv, step_tables, now_us), first, following, rows)
            watermark = self.watermark(now_us, tried.marks)
            tried.advance(lambda kv: logic.advance(kv, watermark, now_us), watermark)

        self.stage_steps(self.attempt(now_us, both), passed)

    def attempt(self, now_us: int, steps: Callable[[Attempt], None]) -> Attempt:
        """Run steps on a copy of the staged commit, which does not change if they raise."""

        def tried() -> Attempt:
            staged = self.staged
            attempt = Attempt(staged.overlay, staged.marks, staged.watermark_us, now_us)
            steps(attempt)
            return attempt

        return self.read(tried)

    def stage_steps(self, attempt: Attempt, passed: Passed = NOTHING) -> None:
        """Stage the steps of a successful attempt, and note the messages they ingested."""
        with self.whole:
            self.staged.overlay.write(attempt.kv.batch)
            self._pass(passed)
            self.staged.stage(attempt)

    def leave(self, passed: Passed) -> None:
        """Note input that is done with and needed no step."""
        with self.whole:
            self._pass(passed)

    def pass_over(self, unread: Mapping[Partition, tuple[int, int]], now_us: int) -> None:
        """Skip the offsets `[from, to)` of these partitions, which a delivery policy would skip. now_us: as of then."""
        with self.whole:
            self.staged.pass_over(unread, now_us)

    def _pass(self, passed: Passed) -> None:
        self.staged.leave(passed)
        del self.waiting[: passed.waited]

    def health(self) -> Health:
        """Return the job's health as of its last commit: age, watermark and what holds it back, commits not published yet."""
        job = self.job
        alive_us = alive_at(job.folders.alive)
        return health_of(
            job.log.last_commit,
            self.definitions,
            job.progress.published,
            self.clock.now_us(),
            alive_us,
            snapshots_from(job.folders, 1),
        )

    # -- commit -----------------------------------------------------------------------------------------------------

    def commit(self, *, empty_ok: bool = False) -> None:
        """Make the staged steps durable, then their panes visible."""
        if not self.staged.matters and not empty_ok:
            return
        began, stages = time.perf_counter(), Stages()
        with on_disk(self.job.folders.location):
            record = self._make_durable(stages)
        if self._gives:
            stages.begin("publish")
            self.publish()
        stages.begin("tidy")
        self._tidy((time.perf_counter() - began) * TIDY_SHARE)
        self._telemetry.committed(record, stages, self.lag)

    def _make_durable(self, stages: Stages) -> Commit:
        job, number, staged = self.job, self.job.progress.commit + 1, self.staged
        panes = self.logic.emitted(staged.result, number)
        dead = of_operator(pa.concat_tables(staged.dead), self.definition.name) if staged.dead else None
        changes = staged.overlay.batch
        counters, filing = dict(staged.counters), {}
        for definition in self.definitions:
            # Metadata of this commit for a replay of its messages.
            if (logic := self._logics[definition.name]).refiling() is not None:
                counters[STEP_OF + definition.name] = logic.progress(staged.overlay).step
                filing[definition.name] = definition.filing()
        stages.begin("run")
        result = self.shard.write(number, changes, panes, dead, counters, snapshot=self._taken)
        stages.begin("record")
        now_us = self.now() if staged.now_us is None else staged.now_us
        with self.whole:  # the commit may be in the log, and its steps must not be committed again
            record = job.commit(
                number,
                staged.steps,
                [result],
                marks=staged.fresh_marks,
                seen_us=staged.seen_us(),
                next_offsets=staged.offsets,
                watermarks_us={d.name: staged.watermark_us for d in self.definitions},
                now_us=now_us,
                counters=staged.counters,
                meta=staged.meta(now_us, filing),
            )
            self.kept.note(number - 1, [changes])
            try:
                self.shard.apply(number, changes, record)
            except StoreDamaged:
                self.shard = self._open_shard()
            for name, rows in () if self.sinks else panes.items():
                self.unflushed.add(name, [rows])
            self.owes = self._gives
            self._taken = None
            self.staged = self.stage(staged.advanced_us)
        return record

    # -- step 6 -----------------------------------------------------------------------------------------------------

    def _tidy(self, most_s: float = 0.0) -> None:
        """Tidy the job by a slice, and by further ones while less than `most_s` has passed. A slice that fails is done the next
        time.
        """
        if self._chores is None and self._tidying_due:
            self._last_snapshot = self.shard.applied
            self._chores = self._slices()
        if self._chores is None:
            return
        began = time.perf_counter()
        try:
            next(self._chores)
            while time.perf_counter() - began < most_s:
                next(self._chores)
        except StopIteration:
            self._chores = None
        except Fenced:
            self._chores = None  # the next commit raises it
        except Exception as error:
            self._chores = None
            self.job.logger.warning("the job could not be tidied, it will be later", error=repr(error))

    def _slices(self) -> Generator[None, None, None]:
        self._taken = yield from self.shard.preserve(alone=True)
        yield from self.job.tidy(
            keeps_messages=bool(self.spec.message_cfs), replays_from_us=self._replays_from_us()
        )

    def _replays_from_us(self) -> int:
        """Return the event time from which messages may have to be replayed; the log keeps the steps from there on."""
        replays = [logic.refiling() for logic in self._logics.values()] if self._replay is not None else []
        kept = [again for again in replays if again is not None]
        if any(again.every_step for again in kept):
            return START_OF_TIME_US - 1
        return min((again.kept_from(self.shard.kv) for again in kept), default=END_OF_TIME_US)

    def finish_tidying(self) -> None:
        """Finish all tidying: the job is about to be closed, perhaps for long."""
        while self._chores is not None or self._tidying_due:
            self._tidy()

    @property
    def _tidying_due(self) -> bool:
        return self.shard.applied - self._last_snapshot >= SNAPSHOT_EVERY

    def publish(self) -> None:
        """Publish what is not published yet; a sink that refuses pauses the intake until it accepts."""
        self.paused, self.owes = None, True
        self.owes = not self._publisher.publish(self._give, acknowledge=bool(self.sinks))

    def _give(self, sink: Sink, token: Token, panes: PaneFiles) -> bool:
        try:
            sink.publish(token, panes)
        except Fenced:
            raise
        except Exception as error:
            self.paused = error
            self.job.logger.warning("sink refused", commit=token.commit, error=repr(error))
        return self.paused is None

    # -- the end ----------------------------------------------------------------------------------------------------

    def _break(self, error: BaseException) -> None:
        """Abandon the operator: the staged commit may be half of something, so none of it is ever committed."""
        self.broken_by = error
        self.job.logger.warning("operator abandoned", operator=self.definition.name, error=repr(error))
        self.abandon()

    def abandon(self) -> None:
        """Release the directory as it is. A store that is incomplete on disk is rebuilt from the log."""
        try:
            self.release()
        except Exception as error:
            self.job.logger.warning(
                "a store was left as it is", operator=self.definition.name, error=repr(error)
            )

    def release(self) -> None:
        """Release the job as `abandon` does, and raise any error of the disk."""
        self.closed = True
        with contextlib.ExitStack() as stack:
            stack.callback(self.job.close)
            stack.callback(self.shard.close)
            if self._chores is not None:
                self._chores.close()


def _wanted(definition: Definition, sink: Any) -> tuple[str, ...]:
    """Return the operators inside a graph whose rows a `sink` by operator asks for."""
    if not isinstance(sink, Mapping):
        return ()
    return tuple(p.name for p in definition.parts[:-1] if p.name in sink)


def _has_output(record: Commit | None) -> bool:
    """True if a commit has panes or dead letters."""
    names = [name for result in (record.shards if record is not None else ()) for name in result.counters]
    return any(name == DEAD_FILE or name.startswith(PANES_OF) for name in names)
