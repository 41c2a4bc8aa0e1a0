"""What drives an operator on one directory: steps are staged, committed, published; a damaged store is built anew."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from windrow.checkpoint.compaction import snapshot_at, snapshots_from
from windrow.checkpoint.health import Health, alive_at, health_of, note_alive
from windrow.checkpoint.job import Job
from windrow.checkpoint.offsets import Partition
from windrow.checkpoint.records import Commit, Mark, Step
from windrow.checkpoint.replay import FILING, STEP_OF
from windrow.checkpoint.shard import PANES_OF, Replay, Shard, ShardSpec
from windrow.checkpoint.summary import DEAD_FILE
from windrow.checkpoint.transport import FILES, Transport
from windrow.connectors.sinks import PaneFiles, Sink, as_sink
from windrow.core.clock import Clock, SystemClock
from windrow.core.errors import CorruptState, Fenced, StateError
from windrow.core.logs import get_logger
from windrow.core.messages import Message, Token
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.steps.dead import of_operator
from windrow.operators.steps.progress import Progress, only_time_passed
from windrow.operators.steps.step import StepResult
from windrow.operators.steps.watermarks import watermark_of
from windrow.runners.embedded.attempt import Attempt, Whole
from windrow.runners.embedded.positions import NOTHING, Passed
from windrow.runners.embedded.replay import ReadAgain, ReadInputsAgain, replay_of
from windrow.runners.publishing import Publisher, sinks_of
from windrow.stores.files import on_disk
from windrow.stores.kv import Overlay

logger = get_logger()
T = TypeVar("T")

#: A snapshot every so many commits, and then the rest of step 6.
SNAPSHOT_EVERY = 256
#: Tidying may take so much of the time of a commit. Without, it goes on by one slice a commit, whatever the machine does.
TIDY_SHARE = 0.5
#: A job that has nothing to commit says so as often, for probes.
ALIVE_US = 1_000_000


class Engine:
    """The machinery under `EmbeddedOperator`: from a step to published panes."""

    def __init__(
        self,
        definition: Any,
        location: str,
        *,
        clock: Clock | None = None,
        sink: Any = None,
        schema: pa.Schema | None = None,
        replay: ReadAgain | ReadInputsAgain | None = None,
        dead_letters: Any = None,
        log: Transport = FILES,
    ) -> None:
        self.definition = definition
        self._closed = False
        self._turn = threading.RLock()
        self._whole_or_broken = Whole(self._break)
        self._broken_by: BaseException | None = None
        #: Messages that were added one by one and not looked at yet, with the `now` of each, and what is wrong with it.
        self._buffer: list[tuple[Message, int, str | None]] = []
        self._clock = clock or SystemClock()
        self._schema = schema
        self._sinks = sinks_of([self._whole], sink, dead_letters)
        letters = None if dead_letters is None else as_sink(dead_letters)
        self._operator = self._logic()
        #: Partitions that hold the watermark until they were seen: whoever reads knows that they hold messages.
        self.awaited: set[Partition] = set()
        self._paused: BaseException | None = None
        self._told_alive_us = START_OF_TIME_US
        self._owes = False  # the sinks lack something, or may lack it
        self._outputs: list[pa.Table] = []
        self._taken: str | None = None
        self._chores: Generator[None, None, None] | None = None
        self._replay = None if replay is None else self._read_again(replay)
        with on_disk(location):
            self._job = Job(location, [self._whole], shards=1, clock=self._clock, transport=log)
        self._publisher = Publisher(self._job, [self._whole], self._sinks, letters)
        self._gives = bool(self._sinks) or letters is not None
        self._spec = ShardSpec(
            self._job.folders,
            self._job.job,
            0,
            self._operator.metadata_cfs,
            self._operator.message_cfs,
            replayable=self._replayable,
            transport=log,
        )
        try:
            with on_disk(location):
                self._shard = self._open_shard()
        except BaseException:
            self._job.close()
            raise
        try:
            self._begin(schema)
        except BaseException:
            self._abandon()  # or nobody else could open it as long as this process lives
            raise

    def _begin(self, schema: pa.Schema | None) -> None:
        """What was told last is brought out; steps may come."""
        self._last_snapshot = snapshot_at(self._job.folders, 0)
        self._overlay: Overlay = self._shard.overlay()
        self._stage()
        progress = self._read(lambda: Progress.load(self._shard.kv, self._operator.aux_cf))
        self._last_advance_us = self._idle_since_us = progress.now_us
        if schema is None:
            self._schema = progress.schema
        self._bring_back()

    # -- what a chain does otherwise ----------------------------------------------------------------------------------

    @property
    def _whole(self) -> Any:
        """What the job is of: the definition, or the chain that it begins."""
        return self.definition

    def _logic(self) -> Any:
        return self.definition.logic()

    @property
    def _replayable(self) -> bool:
        """True if lost messages can be read from the source again."""
        return True

    def _read_again(self, read: Any) -> Replay:
        return replay_of(self.definition, read)

    def _open_shard(self) -> Shard:
        """The store at the last commit, built anew where it is not there."""
        job = self._job
        return Shard.open(self._spec, job.progress.commit, job.commits, job.recent, replay=self._replay)

    def _read(self, read: Callable[[], T]) -> T:
        """`read()`; damage that it finds in the store is repaired, once: the store is a cache of committed segments."""
        try:
            return read()
        except CorruptState as error:
            damage = error.with_traceback(None)
        path = self._shard.kv.path
        logger.warning("the store is damaged and built anew", path=path, error=str(damage))
        with self._whole_or_broken:
            with contextlib.suppress(StateError):  # it may fail as much as it likes, as long as it lets go
                self._shard.kv.close()
            os.rename(path, f"{path}.aside-{time.time_ns()}")
            staged = self._overlay.batch
            self._shard = self._open_shard()
            self._overlay = self._shard.overlay()
            self._overlay.batch = staged
        return read()

    def _stage(self) -> None:
        """Begin a new commit."""
        progress = self._job.progress
        self._overlay = self._shard.overlay()
        self._steps: list[Step] = []
        self._idle = False  # what is staged is an advance that changes nothing
        self._panes: list[pa.Table] = []
        self._inner: dict[str, list[pa.Table]] = {}
        self._dead: list[pa.Table] = []
        self._counters: dict[str, int] = {}
        self._rows = 0
        self._marks: dict[Partition, Mark] = dict(progress.marks)
        self._fresh_marks: dict[Partition, int] = {}
        self._offsets: dict[Partition, int] = dict(progress.next_offsets)
        self._now_us = progress.now_us
        self._watermark_us = progress.watermarks_us.get(self._whole.name, START_OF_TIME_US)
        last = self._job.log.last_commit
        ordinals = last.meta.get("ordinals", []) if last is not None else []
        self._ordinals: dict[Partition, int] = {(s, p): o for s, p, o in ordinals}

    def _bring_back(self) -> None:
        """Panes of commits that nobody has acknowledged: published first, or given again by `get_result`."""
        for record in [] if self._sinks else self._job.unpublished():
            files = self._job.pane_files(record).get(self._whole.name, [])
            self._outputs += [pq.read_table(f) for f in files]
        if self._gives:
            self._publish()

    # -- steps ------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        now_us = self._clock.now_us()
        return now_us if self._now_us is None else max(now_us, self._now_us)

    def _watermark(self, now_us: int, marks: Mapping[Partition, Mark] | None = None) -> int:
        marks = self._marks if marks is None else marks
        if any(p not in marks for p in self.awaited):
            return self._watermark_us
        seen = {p: m.seen_us for p, m in marks.items() if m.seen_us is not None}
        largest = {p: m.max_time_us for p, m in marks.items() if m.max_time_us is not None}
        return watermark_of(self._whole, largest, seen, now_us, self._watermark_us)[0]

    def _advance_to(self, watermark: int, now_us: int) -> Attempt:
        """A step: event time comes to `watermark`."""
        operator = self._operator
        attempt = self._try(
            now_us,
            lambda tried: tried.advance(lambda kv: operator.advance(kv, watermark, now_us), watermark),
        )
        self._take_over(attempt)
        return attempt

    def _let_time_pass(self, now_us: int) -> None:
        """An advance, committed if anything came before it or comes of it.

        Else it stays staged: it goes with the next step that matters, so that periods tick from where it stands, and the
        next advance takes its place.
        """
        if self._idle:
            with self._whole_or_broken:
                now_before_us = self._now_us
                self._stage()
                self._now_us = now_before_us  # it never goes back, though nobody has recorded it
                self._last_advance_us = self._idle_since_us
        fresh = not self._steps and not self._counters
        before_us, self._idle_since_us = self._watermark_us, self._last_advance_us
        attempt = self._advance_to(self._watermark(now_us), now_us)
        silent = all(r.silent for r in attempt.results) and attempt.watermark_us == before_us
        # That its panes are out only a later commit says; else a sink that cannot tell would be given them again.
        told = self._gives and _tells(self._job.log.last_commit)
        if fresh and silent and not told and only_time_passed(self._shard.kv, attempt.kv.batch):
            self._idle = True
            if now_us - self._told_alive_us >= ALIVE_US:
                self._told_alive_us = now_us
                note_alive(self._job.folders.alive, now_us)
            self._tidy()
        else:
            self._commit()

    def _take_in(
        self,
        ingest: Callable[[Overlay, int], StepResult],
        first: dict[Partition, int],
        following: dict[Partition, int],
        rows: int,
        passed: Passed,
    ) -> None:
        """Two steps: `ingest(kv, now)` of rows that stand at these offsets, and the advance to where they lead."""
        operator, now_us = self._operator, self._now()

        def both(tried: Attempt) -> None:
            tried.ingest(lambda kv: ingest(kv, now_us), first, following, rows)
            watermark = self._watermark(now_us, tried.marks)
            tried.advance(lambda kv: operator.advance(kv, watermark, now_us), watermark)

        self._take_over(self._try(now_us, both), passed)

    def _try(self, now_us: int, steps: Callable[[Attempt], None]) -> Attempt:
        """Steps beside what is staged, which stays as it is whatever they raise."""

        def tried() -> Attempt:
            attempt = Attempt(self._overlay, self._marks, self._watermark_us, now_us)
            steps(attempt)
            return attempt

        return self._read(tried)

    def _take_over(self, attempt: Attempt, passed: Passed = NOTHING) -> None:
        """Stage steps that came through, and leave behind what they took in."""
        with self._whole_or_broken:
            self._overlay.write(attempt.kv.batch)
            self._pass(passed)
            self._now_us = attempt.now_us if self._now_us is None else max(attempt.now_us, self._now_us)
            self._watermark_us = attempt.watermark_us
            if attempt.advanced:
                self._last_advance_us = attempt.now_us
            self._learn_schema()
            for result in attempt.results:
                self._panes += result.panes
                for name, panes in result.inner.items():
                    self._inner.setdefault(name, []).extend(panes)
                if result.dead is not None:
                    self._dead.append(result.dead)
                for name, n in result.counts.items():
                    self._count(name, n)
            self._idle = False
            self._marks = attempt.marks
            self._fresh_marks.update(attempt.fresh_marks)
            self._offsets.update(attempt.following)
            self._rows += attempt.rows
            self._count("rows", attempt.rows)
            self._steps += attempt.steps

    def _leave(self, passed: Passed) -> None:
        """What was fed is done with, and no step was needed."""
        with self._whole_or_broken:
            self._pass(passed)

    def _pass(self, passed: Passed) -> None:
        """What was fed is done with: taken in, or known already."""
        for name, n in passed.counts.items():
            self._count(name, n)
        self._ordinals.update(passed.ordinals)
        del self._buffer[: passed.buffered]

    def _count(self, name: str, n: int) -> None:
        if n:
            self._counters[name] = self._counters.get(name, 0) + n

    def _learn_schema(self) -> None:
        """What is known of the columns of the one input."""
        known = self._operator.schema_of(self._overlay, self._whole.inputs[0].name)
        self._schema = self._schema if known is None else known

    def health(self) -> Health:
        """How the job is, as of its last commit: age, watermark and what holds it, what is not published yet."""
        job = self._job
        alive_us = alive_at(job.folders.alive)
        return health_of(
            job.log.last_commit,
            [self._whole],
            job.progress.published,
            self._clock.now_us(),
            alive_us,
            snapshots_from(job.folders, 1),
        )

    # -- commit -----------------------------------------------------------------------------------------------------

    def _commit(self, *, empty_ok: bool = False) -> Commit | None:
        """Make the staged steps durable, then their panes visible."""
        if (not self._steps or self._idle) and not self._counters and not empty_ok:
            return None
        began = time.perf_counter()
        with on_disk(self._job.folders.location):
            record = self._make_durable()
        if self._gives:
            self._publish()
        self._tidy((time.perf_counter() - began) * TIDY_SHARE)
        return record

    def _make_durable(self) -> Commit:
        job, number = self._job, self._job.progress.commit + 1
        panes = self._operator.told(StepResult(self._panes, inner=self._inner), number)
        dead = pa.concat_tables(self._dead) if self._dead else None
        if dead is not None:
            dead = of_operator(dead, self.definition.name)
        changes = self._overlay.batch
        counters, meta = dict(self._counters), {}
        if self._operator.refiling() is not None:
            # What a replay of the messages needs to know of this commit.
            counters[STEP_OF + self.definition.name] = Progress.load(
                self._overlay, self._operator.aux_cf
            ).step
            meta[FILING] = {self.definition.name: self.definition.filing()}
        result = self._shard.write(number, changes, panes, dead, counters, snapshot=self._taken)
        now_us = self._now() if self._now_us is None else self._now_us
        with self._whole_or_broken:  # the commit may stand, and its steps must not be committed again
            record = job.commit(
                number,
                self._steps,
                [result],
                marks=self._fresh_marks,
                seen_us={p: m.seen_us for p, m in self._marks.items() if m.seen_us is not None},
                next_offsets=self._offsets,
                watermarks_us={self._whole.name: self._watermark_us},
                now_us=now_us,
                counters=self._counters,
                meta={
                    "ordinals": [[s, p, o] for (s, p), o in sorted(self._ordinals.items())],
                    "now_us": now_us,
                    **meta,
                },
            )
            self._shard.apply(number, changes, record)
            if self._whole.name in panes and not self._sinks:
                self._outputs.append(panes[self._whole.name])
            self._owes = self._gives
            self._taken = None
            self._stage()
        return record

    # -- step 6 -----------------------------------------------------------------------------------------------------

    def _tidy(self, most_s: float = 0.0) -> None:
        """A slice of what a job does between two commits to stay small, and others while less than `most_s` went by. What fails
        is done the next time.
        """
        if self._chores is None and self._tidying_due:
            self._last_snapshot = self._shard.applied
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
            self._chores = None  # the next commit says so
        except Exception as error:
            self._chores = None
            logger.warning("the job could not be tidied, it will be later", error=repr(error))

    def _slices(self) -> Generator[None, None, None]:
        self._taken = yield from self._shard.preserve(alone=True)
        yield from self._job.tidy(
            keeps_messages=bool(self._spec.message_cfs), replays_from_us=self._replays_from_us()
        )

    def _replays_from_us(self) -> int:
        """The event time from which on messages could have to be replayed: the log keeps what says how they were taken."""
        logic = self._operator.refiling()
        if self._replay is None or logic is None:
            return END_OF_TIME_US
        return START_OF_TIME_US - 1 if logic.every_step else int(logic.kept_from(self._shard.kv))

    def _finish_tidying(self) -> None:
        """All that is left of it: the job is about to be closed, perhaps for long."""
        while self._chores is not None or self._tidying_due:
            self._tidy()

    @property
    def _tidying_due(self) -> bool:
        return self._shard.applied - self._last_snapshot >= SNAPSHOT_EVERY

    def _publish(self) -> None:
        """Give the sinks what is not out yet; where one refuses, intake stops until it takes it."""
        self._paused, self._owes = None, True
        self._owes = not self._publisher.publish(self._give, acknowledge=bool(self._sinks))

    def _give(self, sink: Sink, token: Token, panes: PaneFiles) -> bool:
        try:
            sink.publish(token, panes)
        except Fenced:
            raise
        except Exception as error:
            self._paused = error
            logger.warning("sink refused", commit=token.commit, error=repr(error))
        return self._paused is None

    # -- the end ----------------------------------------------------------------------------------------------------

    def _break(self, error: BaseException) -> None:
        """What is staged may be half of something: none of it is committed, here and ever."""
        self._broken_by = error
        logger.warning("operator abandoned", operator=self._whole.name, error=repr(error))
        with contextlib.suppress(Exception):
            self._abandon()

    def _abandon(self) -> None:
        self._closed = True
        try:
            if self._chores is not None:
                self._chores.close()
        finally:
            try:
                self._shard.close()
            finally:
                self._job.close()


def _tells(record: Commit | None) -> bool:
    """True if a commit has panes or dead letters."""
    names = [name for result in (record.shards if record is not None else ()) for name in result.counters]
    return any(name == DEAD_FILE or name.startswith(PANES_OF) for name in names)
