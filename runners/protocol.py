"""Driver protocol: one batch of a query as one commit, around the action over all shards.

The numbers are those of docs/explanation/commit-protocol.md. Nothing here imports Spark: `foreachBatch` and the simulator
(`windrow.testing.simulation`) both call it. They supply the action: a function of the plan and the decision that runs
every shard and returns the results of one attempt.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from windrow.checkpoint.batches import BatchAction, BatchDecision, BatchFacts, on_batch
from windrow.checkpoint.health import note_alive
from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.offsets import SliceRelation, relation
from windrow.checkpoint.records import Commit, Step
from windrow.checkpoint.replay import FILING, KEPT_OF
from windrow.connectors.pane_files import PaneFiles, Sink
from windrow.core.errors import Fenced, PositionsMissing, SinkFailed, StateError
from windrow.core.messages import Token
from windrow.core.positions import Partition, shown_source, topic_of, under_another_name
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.operator import Definition
from windrow.runners.publishing import Publisher
from windrow.runners.task_result import Answer, Gathered, gathered
from windrow.runners.tasks import SNAPSHOT_EVERY
from windrow.runners.telemetry import Stages
from windrow.stores.files import on_disk
from windrow.stores.incremental_work import whole
from windrow.stores.snapshots import SnapshotStore

PUBLISH_ATTEMPTS = 5
#: So many batches at most go by without a record.
IDLE_BATCHES = 64

#: Runs every shard over the batch (3); the decision says if rows below the job's offsets may be in it.
Act = Callable[[Plan, BatchDecision], Sequence[Answer]]
Give = Callable[[Sink, Token, PaneFiles], None]


def hand_over(sink: Sink, token: Token, panes: PaneFiles) -> None:
    """Publish panes to a sink: the default of `give`."""
    sink.publish(token, panes)


def itself(partition: Partition) -> Partition:
    """Return the partition: every partition of the source is one of the watermark."""
    return partition


def unexplained(first: Mapping[Partition, int], batch_id: int) -> set[Partition]:
    """Return no partition: no skipped offset is known to hold no record."""
    return set()


def never_empty(after: int, until: int) -> bool:
    """Return False: no batch is known to bring nothing."""
    return False


@dataclass(frozen=True)
class BatchProtocol:
    """The commit protocol of batches. It holds no state of its own: that is the job's.

    publisher: the sinks. of_files: positions are (file, row), and files are taken whole. watermark_partition: the partition of
    the watermark that a partition of the source belongs to. unread: partitions of which the source has more than was read.
    explained: given the first offsets of a batch, partitions in which what was left out holds no record. give: publishes panes
    to a sink. keep_commits: see `Job.tidy`, which is asked for every `tidy_every` commits. nothing_came: whether Spark's own
    plans show that its batches after one, up to another, bring nothing. idle_batches: how many may pass without a commit.
    """

    job: Job
    definitions: tuple[Definition, ...]
    publisher: Publisher
    fresh_start: bool = False
    of_files: bool = False
    watermark_partition: Callable[[Partition], Partition] = itself
    unread: Callable[[], Collection[Partition]] = set
    explained: Callable[[Mapping[Partition, int], int], Collection[Partition]] = unexplained
    nothing_came: Callable[[int, int], bool] = never_empty
    idle_batches: int = IDLE_BATCHES
    give: Give = hand_over
    sleep: Callable[[float], None] = time.sleep
    keep_commits: int | None = None
    tidy_every: int = SNAPSHOT_EVERY
    #: Messages that are lost can be read again.
    replays: bool = False
    #: The times of the commit, for telemetry.
    stages: Stages = field(default_factory=Stages)

    def batch(self, query_id: str, batch_id: int, positioned: bool, act: Act) -> Commit | None:
        """Run steps 1 to 5 for one batch. None if all of it was committed before; its panes are then published all the same."""
        with self._unless_over():
            decision = self.decide(query_id, batch_id, positioned, SliceRelation.UNKNOWN)
            decision.raise_if_refused()
            self.publish()
            if decision.action is BatchAction.SKIP_AND_PUBLISH:
                return None
            plan = self.job.pending_plan() if decision.reuse_intent else None
            if plan is None:
                plan = self.job.plan(query_id=query_id, batch_id=batch_id, unread=self.unread())
                with self._on_disk():
                    self.job.record_intent(plan)
            record = self._recorded(plan, lambda: act(plan, decision), query_id, batch_id, positioned)
            if record is not None:
                self.stages.begin("publish")
                self.publish()
                self.stages.begin("tidy")
                self.tidy(record.commit)
            return record

    def _recorded(
        self,
        plan: Plan,
        act: Callable[[], Sequence[Answer]],
        query_id: str | None,
        batch_id: int | None,
        positioned: bool,
    ) -> Commit | None:
        """Run the shards and commit their answers, and note when each stage begins."""
        self.stages.begin("run")
        answers = act()
        self.stages.begin("record")
        self.stages.shards = [(a.result.shard, a.began_ns, a.ended_ns) for a in answers]
        return self.commit(plan, answers, query_id, batch_id, positioned)

    def rests(self, query_id: str, batch_id: int) -> bool:
        """True if nothing has come and nothing is due: then the batch leaves no record (1.3).

        After a commit in which only time passed, an advance can do no more than that again, unless a watermark moves, or a
        period ends that has not ended since something changed. Of commits of drivers before us we do not know it: the
        first batch of a driver is always run.
        """
        job = self.job
        last, periods = job.log.last_commit, self._periods
        if (
            last is None
            or periods is None
            or last.commit != job.still
            or job.progress.published < last.commit
        ):
            return False
        if last.query_id != query_id or last.batch_id is None:
            return False
        new = batch_id > last.batch_id and batch_id - last.batch_id <= self.idle_batches
        if not new or not self.nothing_came(batch_id - 1, batch_id):
            return False
        job.check_epoch()
        plan = job.plan(query_id=query_id, batch_id=batch_id, unread=self.unread())
        due = _ended(periods - job.still_periods, job.progress.now_us, plan.now_us)
        if due or plan.watermarks_us != job.progress.watermarks_us:
            return False
        note_alive(job.folders.alive, plan.now_us)
        return True

    def tidy(self, commit: int) -> None:
        """Step 6, where it is due: between two batches, and a batch does not fail by it."""
        if commit % self.tidy_every:
            return
        keeps = any(d.logic().message_cfs for d in self.definitions)
        try:
            from_us = self._replays_from_us()
            whole(self.job.tidy(keep=self.keep_commits, keeps_messages=keeps, replays_from_us=from_us))
            if self.job.transport.shares_location:
                whole(SnapshotStore(self.job.folders.snapshots).sweep())
        except Fenced:
            raise
        except Exception as error:
            self.job.logger.warning(
                "the job could not be tidied, it will be later", commit=commit, error=repr(error)
            )

    def _replays_from_us(self) -> int:
        """Return the event time from which messages may have to be replayed, over all shards."""
        kept = [again for d in self.definitions if (again := d.logic().refiling()) is not None]
        last = self.job.log.last_commit
        if not self.replays or not kept or last is None:
            return END_OF_TIME_US
        if any(again.every_step for again in kept):
            return START_OF_TIME_US - 1
        names = [KEPT_OF + again.logic.definition.name for again in kept]
        return min(r.counters.get(name, START_OF_TIME_US - 1) for r in last.shards for name in names)

    def advance(self, act: Callable[[Plan], Sequence[Answer]]) -> Commit | None:
        """Make one more commit, without input, for what the last batch closed. None if it emits nothing and moves no
        watermark.

        Spark's own append mode ends a run with `availableNow` so.
        """
        job = self.job
        self.publish()
        last = job.log.last_commit
        if last is None or self.drained:
            return None
        job.check_epoch()
        plan = job.pending_plan()
        if plan is not None and plan.batch_id is None and plan.watermarks_us != self._end_of_time:
            return self._without_batch(plan, act)
        plan = job.plan(unread=self.unread())
        # Late messages may wait for the next advance, though no watermark moves.
        if plan.watermarks_us == job.progress.watermarks_us and not any(step.rows for step in last.steps):
            return None
        with self._on_disk():
            job.record_intent(plan)
        return self._without_batch(plan, act)

    def drain(self, act: Callable[[Plan], Sequence[Answer]]) -> Commit | None:
        """Make one more commit, with the watermark at the end of time. None if it exists already."""
        self.publish()
        if self.drained:
            return None
        plan = replace(self.job.plan(), watermarks_us=self._end_of_time)
        with self._unless_over(), self._on_disk():
            self.job.record_intent(plan)
        return self._without_batch(plan, act)

    def _without_batch(self, plan: Plan, act: Callable[[Plan], Sequence[Answer]]) -> Commit:
        """Commit a plan that belongs to no batch: its intent names none, so that no batch redoes it.

        The commit names the last batch, so that the next one follows it.
        """
        last = self.job.log.last_commit
        query_id, batch_id = (None, None) if last is None else (last.query_id, last.batch_id)
        with self._unless_over():
            record = self._recorded(plan, lambda: act(plan), query_id, batch_id, False)
            assert record is not None  # only the rows of a batch may all be old
            self.stages.begin("publish")
            self.publish()
            return record

    @property
    def _end_of_time(self) -> dict[str, int]:
        return {d.name: END_OF_TIME_US for d in self.definitions}

    def _on_disk(self) -> contextlib.AbstractContextManager[None]:
        return on_disk(self.job.folders.location)

    @contextlib.contextmanager
    def _unless_over(self) -> Iterator[None]:
        """Raise `Fenced` in a driver that is fenced, not the missing files that the next driver has swept."""
        try:
            yield
        except Fenced:
            raise
        except Exception as error:
            try:
                self.job.check_epoch()
            except Fenced as over:
                raise over from error
            raise

    @property
    def drained(self) -> bool:
        """True if the watermark is at the end of time."""
        reached = self.job.progress.watermarks_us
        return all(reached.get(d.name) == END_OF_TIME_US for d in self.definitions)

    def decide(
        self, query_id: str, batch_id: int, positioned: bool, slice_relation: SliceRelation
    ) -> BatchDecision:
        """Decide what to do with this batch, given the log's current tail (1.2, 4.1)."""
        state = self.job.log.tail()
        last, intent = state.last_commit, state.last_intent
        return on_batch(
            BatchFacts(
                own_epoch=self.job.epoch.epoch,
                log_epoch=state.epoch_number,
                commit=0 if last is None else last.commit,
                query_id=None if last is None else last.query_id,
                batch_id=None if last is None else last.batch_id,
                intent_query_id=None if intent is None else intent.query_id,
                intent_batch_id=None if intent is None else intent.batch_id,
                published=self.job.progress.published,
                new_query_id=query_id,
                new_batch_id=batch_id,
                has_positions=positioned,
                has_ids=all(d.ids is not None for d in self.definitions),
                relation=slice_relation,
                fresh_start=self.fresh_start,
                whole_files=self.of_files,
                nothing_between=self._nothing_between(last, query_id, batch_id),
            )
        )

    def _nothing_between(self, last: Commit | None, query_id: str, batch_id: int) -> bool:
        if (
            last is None
            or last.query_id != query_id
            or last.batch_id is None
            or batch_id <= last.batch_id + 1
        ):
            return False
        return self.nothing_came(last.batch_id, batch_id - 1)

    # -- step 4 -----------------------------------------------------------------------------------------------------

    def commit(
        self,
        plan: Plan,
        answers: Sequence[Answer],
        query_id: str | None,
        batch_id: int | None,
        positioned: bool,
    ) -> Commit | None:
        """Decide again now that the slice is known (4.1), and create the commit record (4.2). None if nothing in it is new."""
        job = self.job
        check_answers(plan, answers, job.shards)
        taken = gathered(answers, self.watermark_partition)
        if positioned and not self.of_files and query_id is not None and batch_id is not None:
            decision = self.decide(query_id, batch_id, positioned, self._relation(taken, query_id, batch_id))
            decision.raise_if_refused()
            if decision.action is BatchAction.SKIP_AND_PUBLISH:
                return None
        _check_names(job, taken.next_offsets)
        now_before_us = job.progress.now_us
        with self._on_disk():
            record = job.commit(
                plan.commit,
                _steps(plan, taken),
                [a.result for a in sorted(answers, key=lambda a: a.result.shard)],
                marks=taken.marks,
                next_offsets={} if self.of_files else taken.next_offsets,
                watermarks_us=plan.watermarks_us,
                now_us=plan.now_us,
                counters=taken.counters,
                query_id=query_id,
                batch_id=batch_id,
                meta={FILING: {d.name: d.filing() for d in self.definitions if d.logic().refiling()}},
            )
        if all(a.still for a in answers):
            ended = _ended(self._periods or (), now_before_us, plan.now_us)
            job.still_periods = ended | (job.still_periods if job.still == record.commit - 1 else frozenset())
            job.still = record.commit
        return record

    def _relation(self, taken: Gathered, query_id: str, batch_id: int) -> SliceRelation:
        """Compare the offsets of a batch with those that the job has read.

        Spark's own checkpoint carries a query on without gaps (Kafka spends offsets on markers), once it has read a partition;
        in any other it may begin anywhere.
        """
        last, before = self.job.log.last_commit, self.job.progress.next_offsets
        another = last is not None and last.query_id != query_id
        explained = frozenset[Partition]() if another else self.job.partitions_of(query_id)
        compared = relation(before, taken.first_offsets, taken.next_offsets, explained)
        if compared is SliceRelation.GAP:
            explained |= set(self.explained(taken.first_offsets, batch_id))
            compared = relation(before, taken.first_offsets, taken.next_offsets, explained)
        return compared

    @property
    def _periods(self) -> frozenset[int] | None:
        """The periods of `now` that an operator may wait for; None if one may do something at any time."""
        each = [d.periods for d in self.definitions]
        return None if None in each else frozenset(us for periods in each for us in periods or ())

    # -- step 5 -----------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish the panes and dead letters of every commit that may be unpublished, and retry refused ones."""
        self.publisher.publish(self._give)

    def _give(self, sink: Sink, token: Token, panes: PaneFiles) -> bool:
        wait = 0.2
        for attempt in range(1, PUBLISH_ATTEMPTS + 1):
            try:
                self.give(sink, token, panes)
                return True
            except Fenced:
                raise
            except Exception as error:
                if attempt == PUBLISH_ATTEMPTS:
                    raise SinkFailed(
                        f"the sink {sink!r} refused {_what(panes)} of commit {token.commit} {attempt} times: {error!r}. The "
                        "commit is durable; its results are published first when the query is started again"
                    ) from error
                self.job.logger.warning(
                    "sink refused, retrying",
                    operator=panes.operator,
                    commit=token.commit,
                    error=repr(error),
                    wait_s=wait,
                )
                self.sleep(wait)
                wait *= 2
        return False


def _steps(plan: Plan, taken: Gathered) -> list[Step]:
    """Return the two steps of a batch: time passes, then its rows are ingested."""
    watermark_us = min(plan.watermarks_us.values())
    return [
        Step(kind="advance", now_us=plan.now_us, watermark_us=watermark_us),
        Step(
            kind="ingest",
            now_us=plan.now_us,
            watermark_us=watermark_us,
            first_offsets=taken.first_offsets,
            next_offsets=taken.next_offsets,
            rows=taken.rows,
        ),
    ]


def _ended(periods: Collection[int], before_us: int | None, now_us: int) -> frozenset[int]:
    """Return the periods of which `now` has crossed an end."""
    return frozenset(p for p in periods if before_us is not None and now_us // p > before_us // p)


def _what(panes: PaneFiles) -> str:
    return "the dead letters" if panes.letters_of is not None else f"the panes of {panes.operator!r}"


def _check_names(job: Job, following: Mapping[Partition, int]) -> None:
    """Refuse rows of a topic that the job knows under another name: with its id, or without."""
    named_twice = under_another_name({s for s, _ in job.progress.next_offsets}, {s for s, _ in following})
    if named_twice is not None:
        known, fresh = map(shown_source, named_twice)
        raise PositionsMissing(
            f"the job knows source {known!r}, these rows come from {fresh!r}: one topic, with its id and "
            "without, would be counted twice. "
            + (
                'Drop the column topicId, or set option("includeTopicId", "false")'
                if topic_of(known)[1] is None
                else "Keep the column topicId in the frame (a source that has none can be given it as a literal)"
            )
        )


def check_answers(plan: Plan, answers: Sequence[Answer], shards: int) -> None:
    """Raise unless every shard has answered exactly once (3.3)."""
    answered = sorted(a.result.shard for a in answers)
    if answered != list(range(shards)):
        raise StateError(
            f"commit {plan.commit}: shards {answered} answered, {shards} are expected, each once"
        )
