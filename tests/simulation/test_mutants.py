"""The simulator finds what it should: each way of breaking the protocol fails within a few hundred seeds."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaException

import windrow as wr
from windrow.checkpoint import batches, files
from windrow.checkpoint import job as jobs
from windrow.checkpoint import log as logs
from windrow.checkpoint.compaction import Changelog
from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.log import LostRace, RecordLog
from windrow.checkpoint.marker import Marker
from windrow.checkpoint.records import Commit
from windrow.checkpoint.shard import Shard
from windrow.connectors.kafka.sink import KafkaSink, _Session
from windrow.connectors.pane_files import PaneFiles
from windrow.core.errors import StateError
from windrow.core.messages import Token
from windrow.operators.graph.logic import ChainOperator
from windrow.runners.protocol import BatchProtocol
from windrow.runners.publishing import Publisher
from windrow.runners.task_result import Answer
from windrow.stores.files import digest_of
from windrow.stores.incremental_work import Slices
from windrow.stores.kv import Batch, Overlay
from windrow.testing.generated_jobs import drawn, replayed
from windrow.testing.generators import BASE_US, SCHEMA, Draw
from windrow.testing.scenario import ONLY, Feed
from windrow.testing.seeds import Report
from windrow.testing.simulated_kafka import SimulatedKafka
from windrow.testing.simulation import play, spark
from windrow.testing.simulation.sinks import KafkaOutlet, OutletOf

#: A mutant that is still alive after so many seeds is not found.
SEEDS = 400
#: A mutant that raises one of these where it should do something else finds itself.
MISTAKES = {TypeError, AttributeError, NameError, UnboundLocalError}
Mutate = Callable[[pytest.MonkeyPatch], OutletOf | None]


def opening(*steps: str) -> Callable[..., _Session]:
    """`KafkaSink._open` with these of its steps, in this order."""

    def opened(self: KafkaSink, job: str, panes: PaneFiles) -> _Session:
        self._make_topics()
        producer = self.kafka.producer(transactional_id=f"windrow-{job}-{panes.operator}-{self.topic}")
        commit = 0
        for step in steps:
            if step == "fence":
                producer.init_transactions(30)
            elif step == "owner":
                panes.check_epoch()
            else:
                commit = self._read_token(job, panes.operator)
        return _Session(producer, panes.epoch, commit)

    return opened


def token_not_read(patch: pytest.MonkeyPatch) -> OutletOf:
    patch.setattr(KafkaSink, "_open", opening("fence", "owner"))
    return KafkaOutlet


def token_read_before_the_fence(patch: pytest.MonkeyPatch) -> OutletOf:
    patch.setattr(KafkaSink, "_open", opening("token", "fence", "owner"))
    return KafkaOutlet


def token_read_once(patch: pytest.MonkeyPatch) -> OutletOf:
    """A session that follows another believes what that one has read."""
    read = KafkaSink._read_token
    known: dict[int, tuple[KafkaSink, int]] = {}

    def once(self: KafkaSink, job: str, operator: str) -> int:
        return known.setdefault(id(self), (self, read(self, job, operator)))[1]

    patch.setattr(KafkaSink, "_read_token", once)
    return KafkaOutlet


def owner_not_asked(patch: pytest.MonkeyPatch) -> OutletOf:
    patch.setattr(KafkaSink, "_open", opening("fence", "token"))
    return KafkaOutlet


def owner_asked_before_the_fence(patch: pytest.MonkeyPatch) -> OutletOf:
    patch.setattr(KafkaSink, "_open", opening("owner", "fence", "token"))
    return KafkaOutlet


def session_kept_after_a_failure(patch: pytest.MonkeyPatch) -> OutletOf:
    publish = KafkaSink.publish

    def keeping(self: KafkaSink, token: Token, panes: PaneFiles) -> None:
        whose = (token.job, panes.operator)
        before = self._sessions.get(whose)
        try:
            publish(self, token, panes)
        except Exception:
            if before is not None:
                self._sessions[whose] = before
            raise

    patch.setattr(KafkaSink, "publish", keeping)
    return KafkaOutlet


def unknown_outcome_of_a_transaction_taken_for_success(patch: pytest.MonkeyPatch) -> OutletOf:
    send = _Session.send

    def hopeful(self: _Session, *what: Any) -> None:
        with contextlib.suppress(KafkaException):
            send(self, *what)

    patch.setattr(_Session, "send", hopeful)
    return KafkaOutlet


def token_outside_of_the_transaction(patch: pytest.MonkeyPatch) -> OutletOf:
    def send(self: _Session, topic: str, portions: Any, tokens: str, token: dict[str, Any]) -> None:
        self.producer.begin_transaction()
        for portion in portions:
            self._produce(topic, portion)
        self.producer.commit_transaction(30)
        self.producer.begin_transaction()
        self._produce(tokens, [token])
        self.producer.commit_transaction(30)

    patch.setattr(_Session, "send", send)
    return KafkaOutlet


def transactional_id_of_each_driver(patch: pytest.MonkeyPatch) -> OutletOf:
    producer = SimulatedKafka.producer
    made = itertools.count()

    def unnamed(self: SimulatedKafka, **config: Any) -> Any:
        if "transactional_id" in config:
            config["transactional_id"] = f"driver-{next(made)}"
        return producer(self, **config)

    patch.setattr(SimulatedKafka, "producer", unnamed)
    return KafkaOutlet


def segment_named_before_it_is_synced(patch: pytest.MonkeyPatch) -> None:
    from windrow.stores import segment
    from windrow.stores.files import write_whole

    def unsynced(path: str, parts: Sequence[bytes], **_: Any) -> None:
        write_whole(path, parts, fsync=False)

    patch.setattr(segment, "write_whole", unsynced)


def intent_redone_with_another_now(patch: pytest.MonkeyPatch) -> None:
    pending = Job.pending_plan

    def moved(self: Job) -> Plan | None:
        plan = pending(self)
        return None if plan is None else replace(plan, now_us=max(plan.now_us, self.clock.now_us()))

    patch.setattr(Job, "pending_plan", moved)


def applied_marker_ahead_of_the_data(patch: pytest.MonkeyPatch) -> None:
    def catch_up(self: Shard, records: Any) -> None:
        for record in records:
            commit = self.applied + 1
            mark, batch = Batch(), Batch()
            mark.put("marker", b"applied", Marker.of(self.spec.job, self.spec.shard, commit).pack())
            self.kv.write(mark)
            for part in self.spec.files.read(record):
                batch.extend(part)
            self.kv.write(batch)
            self.applied = commit

    patch.setattr(Shard, "catch_up", catch_up)


def epoch_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Who has lost a record takes the epoch of who has won, and goes on with the next number."""
    append = RecordLog.append

    def again(self: RecordLog, record: Any) -> Any:
        assert self._own is not None
        while True:
            try:
                return append(self, replace(record, epoch=self._own.epoch))
            except logs.Fenced as lost:
                last = self.tail().epoch
                if isinstance(lost, LostRace) or last is None or last.epoch == self._own.epoch:
                    raise
                self._stopped, self._own = None, last
                if self.state.commit_number >= record.commit:
                    record = replace(record, commit=self.state.commit_number + 1)

    patch.setattr(RecordLog, "append", again)
    patch.setattr(Job, "check_epoch", lambda self: None)


def record_replaces_another(patch: pytest.MonkeyPatch) -> None:
    from windrow.testing.simulation.environment import SimulatedRecords

    create = SimulatedRecords.create

    def over(self: SimulatedRecords, seq: int, data: bytes) -> bool:
        self.records.pop(seq, None)
        return create(self, seq, data)

    patch.setattr(SimulatedRecords, "create", over)


def torn_record_accepted(patch: pytest.MonkeyPatch) -> None:
    """A torn record is taken for one that says nothing new: it is neither void nor refused."""
    decode = logs._decode
    whole: dict[int, Any] = {}

    def lenient(seq: int, data: bytes) -> Any:
        record = decode(seq, data)
        if record is None and seq in whole:
            return whole[seq]
        whole[seq] = record
        return record

    create = RecordLog._create

    def remembered(self: RecordLog, record: Any, data: bytes) -> bool:
        whole[record.seq] = record
        return create(self, record, data)

    patch.setattr(logs, "_decode", lenient)
    patch.setattr(RecordLog, "_create", remembered)


def unknown_outcome_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    create = RecordLog._create

    def hopeful(self: RecordLog, record: Any, data: bytes) -> bool:
        try:
            return create(self, record, data)
        except OSError:
            self._apply(record, data)
            return True

    patch.setattr(RecordLog, "_create", hopeful)


def offsets_of_the_second_attempt(patch: pytest.MonkeyPatch) -> None:
    """Segments of the first attempt at a commit count, with the offsets of the last."""
    commit = BatchProtocol.commit
    first: dict[tuple[str, int, int], Answer] = {}

    def mixed(self: BatchProtocol, plan: Plan, answers: Sequence[Answer], *more: Any) -> Commit:
        kept = []
        for answer in answers:
            key = (self.job.job, plan.commit, answer.result.shard)
            kept.append(replace(answer, result=first.setdefault(key, answer).result))
        return commit(self, plan, kept, *more)

    patch.setattr(BatchProtocol, "commit", mixed)


def published_before_it_is(patch: pytest.MonkeyPatch) -> None:
    commit = Job.commit

    def hasty(self: Job, number: int, *steps: Any, **more: Any) -> Commit:
        record = commit(self, number, *steps, **more)
        self.progress.published = number
        return record

    patch.setattr(Job, "commit", hasty)


def old_rows_not_dropped(patch: pytest.MonkeyPatch) -> None:
    decide = BatchProtocol.decide

    def careless(self: BatchProtocol, *facts: Any) -> Any:
        return replace(decide(self, *facts), drop_old_rows=False)

    patch.setattr(BatchProtocol, "decide", careless)


def recorded_batch_skipped_by_its_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batches, "_may_have_new_rows", lambda facts: False)


def swept_as_far_as_the_newest_commit(patch: pytest.MonkeyPatch) -> None:
    """Files go, and records, that no snapshot covers."""

    def all_covered(folders: JobFolders, shards: int) -> Slices[dict[int, int]]:
        yield
        return dict.fromkeys(range(shards), 1 << 40)

    patch.setattr(jobs, "covered", all_covered)
    patch.setattr(Changelog, "newest_base", lambda self, shard: 1 << 40)


def records_removed_before_the_claim_that_says_so(patch: pytest.MonkeyPatch) -> None:
    truncate = RecordLog.truncate

    def hasty(self: RecordLog, before_commit: int) -> int:
        gone = [c.seq for c in self.commits() if c.commit < min(before_commit, self.state.commit_number)]
        self.files.remove_all(gone)
        return truncate(self, before_commit)

    patch.setattr(RecordLog, "truncate", hasty)


def published_before_the_record(patch: pytest.MonkeyPatch) -> None:
    """Publish a commit's rows before another driver can no longer replace it, with other rows."""
    commit = BatchProtocol.commit

    def hasty(self: BatchProtocol, plan: Plan, answers: Sequence[Answer], *more: Any) -> Commit | None:
        results = sorted((a.result for a in answers), key=lambda one: one.shard)
        record = Commit(
            epoch=0,
            commit=plan.commit,
            steps=(),
            next_offsets={},
            shards=tuple(results),
            published=0,
            watermark_us=None,
        )
        with contextlib.suppress(Exception):
            for sink, panes in self.publisher._outputs(record):
                sink.publish(Token(self.job.job, plan.commit), panes)
        return commit(self, plan, answers, *more)

    patch.setattr(BatchProtocol, "commit", hasty)


def dead_letters_do_not_go_out(patch: pytest.MonkeyPatch) -> None:
    outputs = Publisher._outputs

    def without(self: Publisher, record: Commit) -> Any:
        return (one for one in outputs(self, record) if one[1].letters_of is None)

    patch.setattr(Publisher, "_outputs", without)


def one_dead_letter_is_not_written(patch: pytest.MonkeyPatch) -> None:
    write = Shard.write

    def forgetful(
        self: Shard, commit: int, changes: Any, panes: Any, dead: Any, *more: Any, **rest: Any
    ) -> Any:
        return write(self, commit, changes, panes, None if dead is None else dead.slice(1), *more, **rest)

    patch.setattr(Shard, "write", forgetful)


def panes_named_before_they_are_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "write_parquet", lambda rows, path: (pq.write_table(rows, path), digest_of(path))[1])


def an_inner_step_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """Emit the rows of an operator inside a graph, and do not keep its state."""
    take = ChainOperator._ingest

    def forgetful(self: ChainOperator, kv: Any, i: int, *more: Any) -> Any:
        return take(self, Overlay(kv) if i else kv, i, *more)

    patch.setattr(ChainOperator, "_ingest", forgetful)


def the_offset_of_an_input_is_one_too_low(patch: pytest.MonkeyPatch) -> None:
    """Lower the next offset of the second input by one."""

    def seen(self: Answer, partition: Any, lowest: int, highest: int) -> None:
        following = highest + (not partition[0].startswith("parcels:"))
        self.first_offsets[partition] = min(lowest, self.first_offsets.get(partition, lowest))
        self.next_offsets[partition] = max(following, self.next_offsets.get(partition, following))

    patch.setattr(Answer, "seen", seen)


def one_watermark_for_all(patch: pytest.MonkeyPatch) -> None:
    """Operators side by side go by the watermark of the first of them."""
    planned = Job.plan

    def alike(self: Job, **more: Any) -> Plan:
        plan = planned(self, **more)
        first = next(iter(plan.watermarks_us.values()))
        return replace(plan, watermarks_us=dict.fromkeys(plan.watermarks_us, first))

    patch.setattr(Job, "plan", alike)


def a_run_ends_with_its_last_batch(patch: pytest.MonkeyPatch) -> None:
    """The windows that the last batch closed wait for the next run."""
    patch.setattr(BatchProtocol, "advance", lambda self, act: None)


def only_the_first_attempt_finds_shards_lost(patch: pytest.MonkeyPatch) -> None:
    """A shard whose store the first attempt's executor had, and that of the second has not, is refused."""

    def until_none_is_lost(
        commit: int, act: Callable[[], list[Answer]], replay: Callable[[list[int]], None]
    ) -> list[Answer]:
        for attempt in range(2):
            answers = act()
            lost = sorted(a.result.shard for a in answers if a.lost is not None)
            if not lost:
                return answers
            if attempt == 0:
                replay(lost)
        raise StateError(f"commit {commit}: shards {lost} are lost")

    patch.setattr(spark, "until_none_is_lost", until_none_is_lost)


def a_store_that_is_there_leaves_no_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A replay that runs where the shard's store is gives other executors nothing."""
    patch.setattr(spark, "rebuild", lambda plan, number, replay: plan.open(number, replay).close())


COUNTS = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tuples(2),
    agg={"n": wr.count()},
    retention=wr.forever,
    emit=wr.Emit(early=wr.every_batch),
    name="panes",
)


def small(chance: Random) -> Feed:
    """A job in which something happens at every message."""
    messages = Draw(chance).messages([ONLY], chance.randint(14, 36))
    return Feed((COUNTS,), {ONLY: SCHEMA}, messages, BASE_US, 1_000_000)


#: What takes a rare schedule, and no operator in particular, is looked for in a small job.
RARE = (
    owner_not_asked,
    owner_asked_before_the_fence,
    torn_record_accepted,
    recorded_batch_skipped_by_its_number,
)
#: What takes lost messages is looked for in jobs that read them again.
LOST = (only_the_first_attempt_finds_shards_lost, a_store_that_is_there_leaves_no_snapshot)
#: Each with the first seed that found it when that was last looked up: the search begins there.
MUTANTS: list[tuple[Mutate, int]] = [
    (token_not_read, 8),
    (token_read_before_the_fence, 13),
    (token_read_once, 10),
    (owner_not_asked, 9),
    (owner_asked_before_the_fence, 5),
    (session_kept_after_a_failure, 57),
    (unknown_outcome_of_a_transaction_taken_for_success, 53),
    (token_outside_of_the_transaction, 8),
    (transactional_id_of_each_driver, 20),
    (recorded_batch_skipped_by_its_number, 14),
    (segment_named_before_it_is_synced, 458),
    (intent_redone_with_another_now, 2),
    (applied_marker_ahead_of_the_data, 104),
    (epoch_not_checked, 43),
    (record_replaces_another, 65),
    (torn_record_accepted, 29),
    (unknown_outcome_taken_for_success, 14),
    (offsets_of_the_second_attempt, 3),
    (published_before_it_is, 0),
    (old_rows_not_dropped, 14),
    (swept_as_far_as_the_newest_commit, 3),
    (records_removed_before_the_claim_that_says_so, 1),
    (published_before_the_record, 8),
    (dead_letters_do_not_go_out, 0),
    (one_dead_letter_is_not_written, 0),
    (panes_named_before_they_are_synced, 2),
    (an_inner_step_is_not_recorded, 8),
    (the_offset_of_an_input_is_one_too_low, 0),
    (one_watermark_for_all, 12),
    (a_run_ends_with_its_last_batch, 1),
    (only_the_first_attempt_finds_shards_lost, 11),
    (a_store_that_is_there_leaves_no_snapshot, 12),
]


@pytest.mark.parametrize(
    ("mutate", "first"), MUTANTS, ids=[mutate.__name__.replace("_", " ") for mutate, _ in MUTANTS]
)
def test_a_broken_protocol_is_found(mutate: Mutate, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    outlet = mutate(monkeypatch)
    job = small if mutate in RARE else replayed if mutate in LOST else drawn
    found_by(play(seed, job=job, outlet=outlet) for seed in range(first, first + SEEDS))


def found_by(reports: Iterator[Report]) -> int:
    """The first seed that finds a mutant, by what it does and not by how it was written."""
    failed = next(report for report in reports if report.failure is not None)
    assert not (set(map(type, _causes(failed.failure))) & MISTAKES), "the mutant is broken, not the library"
    return failed.seed


def _causes(failure: BaseException | None) -> Iterator[BaseException]:
    """Raised error, and its cause."""
    while failure is not None:
        yield failure
        failure = failure.__cause__ or failure.__context__
