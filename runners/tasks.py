"""Task of an executor: one shard of one commit (step 3 of docs/explanation/commit-protocol.md). It imports no pyspark."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from windrow.checkpoint.definition_check import name_a_zone
from windrow.checkpoint.files import CommitFiles
from windrow.checkpoint.read_only_shard import KeptStores, open_resting
from windrow.checkpoint.records import Commit, ShardResult
from windrow.checkpoint.replay import GROUPS_OF, KEPT_OF, PIECES_OF, ROWS_OF, STEP_OF, STORE_BYTES
from windrow.checkpoint.shard import Commits, MessagesLost, Replay, Shard, ShardSpec
from windrow.checkpoint.shard_commits import CommitOfShards, Packed, of_shard
from windrow.connectors.kafka.stream import KafkaStream
from windrow.core.errors import BadLocation, ConfigurationError, CorruptState, StateError
from windrow.core.zones import DATABASE
from windrow.operators.operator import Definition, Logic
from windrow.operators.steps.columns import (
    OFFSET,
    PARTITION,
    REPLAYED,
    SOURCE,
)
from windrow.operators.steps.dead_letters import of_operator
from windrow.operators.steps.groups import combine, without
from windrow.operators.steps.poison_rows import sifted
from windrow.operators.steps.progress import only_time_passed
from windrow.operators.steps.step import StepResult
from windrow.runners import ranges
from windrow.runners.batch_splitting import CHUNK_ROWS, Spool, buckets_of, whole_rows
from windrow.runners.local_stores import bytes_of, evict, folder_of, note_use
from windrow.runners.task_result import Answer
from windrow.runners.wire import (
    OLD,
    OPERATOR,
    PART,
    by_shard,
    chunks,
    reply,
    rows_that_came,
    tables_of_inputs,
    tables_of_shard,
)
from windrow.stores import spill
from windrow.stores.files import on_disk
from windrow.stores.kv import KV, Overlay
from windrow.stores.spill import SLICE_BYTES, Gathered, Spill
from windrow.stores.spilling_overlay import Spilling

HOST = socket.gethostname()
SNAPSHOT_EVERY = 32
#: Shards take theirs in different commits: so many apart.
APART = 7


@dataclass(frozen=True)
class TaskPlan:
    """The task plan of one commit. Picklable. parts: the accumulators that Spark pre-aggregated; None: rows come."""

    spec: ShardSpec
    definitions: tuple[Definition, ...]
    commit: int
    now_us: int
    watermarks_us: dict[str, int]
    schema: bytes
    parts: tuple[str, ...] | None
    #: Commits that a store may not have applied, and the one that it holds.
    recent: tuple[CommitOfShards, ...]
    lock_wait_s: float = 10.0
    #: True if lost messages can be read again: a shard that has lost its own then reports it, and does not fail.
    can_replay: bool = False
    #: Operators inside chains whose panes are wanted too.
    outputs: tuple[str, ...] = ()
    #: Rows are ranges of offsets, which the task reads for itself, but what lies below `taken`: by shard, lists of (source,
    #: partition, next offset). partitions: topic -> its partitions.
    reads: KafkaStream | None = None
    taken: Packed | None = None
    partitions: Mapping[str, int] = field(default_factory=dict)
    #: A shard takes a snapshot every so many commits.
    snapshot_every: int = SNAPSHOT_EVERY
    #: Shards that write a compact changelog with a snapshot that they take now.
    compacts: frozenset[int] = frozenset()
    #: Reads the commits that the log keeps; None: from the job's folder.
    commits: Commits | None = None
    #: The columns in which rows come, for a shard to which none come. b"": there is a row of control for each shard.
    columns: bytes = b""
    #: A file that the driver has just made in the job's folder; "": no check that it is the same folder here.
    nonce: str = ""
    #: False: the store is opened, whatever the commit. A damaged one that was only read, and that somebody else has open, is
    #: still there at the next attempt.
    rests: bool = True
    #: The release of the time zone database that the driver has.
    time_zones: str = DATABASE

    def open(self, number: int, replay: Replay | None = None, kept: KeptStores | None = None) -> Shard:
        """Open the shard, as of the commit before this one. kept: the stores that this process has open"""
        if self.nonce and not os.path.exists(os.path.join(self.spec.folders.location, self.nonce)):
            raise BadLocation(
                f"{self.spec.folders.location} on {HOST} is not the folder that the driver sees: it lacks "
                f"{self.nonce}. Executors and driver have to share it (NFS, for instance), or keep the log elsewhere: "
                "log=wr.kafka_log(...)"
            )
        if self.time_zones != DATABASE and name_a_zone(self.definitions):
            raise ConfigurationError(
                f"{HOST} has the time zone database {DATABASE}, the driver {self.time_zones}: shards would "
                "read local times by other rules; install one version of tzdata on all machines"
            )
        local = None if self.spec.local is None else folder_of(self.spec.local, number)
        spec = replace(self.spec, shard=number, local=local)
        note_use(spec.path, self.commit)

        if not os.path.isdir(spec.folders.snapshots):
            spec.folders.make()  # on another machine than the driver's, where the log is elsewhere

        recent = of_shard(self.recent, number)
        if replay is None and self._leaves_store(number):
            shard = open_resting(spec, self.commit - 1, recent, kept)
            if shard is not None:
                return shard
        if kept is not None:
            kept.drop(spec.path)

        def commits() -> Iterator[Commit]:
            log = spec.transport.log(spec.folders)
            log.tail()
            return log.commits()

        shard = Shard.open(
            spec,
            self.commit - 1,
            self.commits or commits,
            recent,
            lock_wait_s=self.lock_wait_s,
            replay=replay,
        )
        note_use(spec.path, self.commit)
        return shard

    def evict(self, number: int) -> list[str]:
        """Remove the stores of shards that have moved elsewhere, in the commits in which stores take in what was committed."""
        if self.spec.local is not None and not self._leaves_store(number):
            with contextlib.suppress(OSError):  # no commit fails by it
                return evict(folder_of(self.spec.local, number), self.commit)
        return []

    def takes_snapshot(self, number: int) -> bool:
        """True if the shard's turn has come to take a snapshot of the commit before this one."""
        return self.commit > 1 and (self.commit - 1 + APART * number) % self.snapshot_every == 0

    def _leaves_store(self, number: int) -> bool:
        """True if the shard's store need not be written in this commit."""
        return self.rests and self.commit > 1 and not self.takes_snapshot(number)


def run(
    plan: TaskPlan,
    batches: Iterable[pa.RecordBatch],
    expected: int | None = None,
    kept: KeptStores | None = None,
) -> Iterator[pa.RecordBatch]:
    """Run one shard: `mapInArrow` over the rows of one partition.

    `expected`: the shard that will probably be asked for; its store is opened while Spark still computes the rows. kept: the
    stores that this process has open.
    """
    for answer in _answers(plan, batches, expected, kept):
        yield reply(answer.result.shard, answer)


def _answers(
    plan: TaskPlan,
    batches: Iterable[pa.RecordBatch],
    expected: int | None,
    kept: KeptStores | None,
    shared: CommitFiles | None = None,
) -> Iterator[Answer]:
    """Yield the answer of the shard whose rows these are; nothing where they are of none."""
    shard, widths = None if expected is None else _open(plan, expected, kept), [0]
    close = Shard.close if kept is None else kept.keep
    try:
        came = tables_of_shard(_measured(batches, widths), CHUNK_ROWS)
        first = next(came, None)
        if first is None:
            if expected is None or not plan.columns:
                return
            first = expected, pa.ipc.read_schema(pa.py_buffer(plan.columns)).empty_table()
        number, held = first[0], [first[1]]
        del first  # or it would be in memory for as long as this takes
        if shard is None or number != expected:
            if isinstance(shard, Shard):
                shard.close()
            shard = _open(plan, number, kept)
        if isinstance(shard, Shard):
            try:
                answer = run_shard(plan, shard, _all(held, came), shared)
            except CorruptState:  # rows have gone by: the next attempt finds no store, and builds one
                shard.set_aside()
                shard = None
                raise
            answer.width = max(widths)
        else:
            answer = _lost(number, shard)
            deque(came, maxlen=0)  # Spark's worker continues only after all of them
    finally:
        if isinstance(shard, Shard):
            close(shard)
    plan.evict(number)
    yield answer


def run_several(
    plan: TaskPlan,
    batches: Iterable[pa.RecordBatch],
    expected: Iterable[int],
    kept: KeptStores | None = None,
) -> Iterator[pa.RecordBatch]:
    """Run the shards of one task, one after the other. Their rows are buffered first: they come in any order.

    expected: the shards of the task, those without rows too.
    """
    spill, held, nbytes = Spill(), defaultdict[int, list[pa.RecordBatch]](list), 0
    for batch in batches:
        for number, rows in by_shard(batch):
            held[number].append(rows)
            nbytes += rows.nbytes
        if nbytes > SLICE_BYTES:
            for number in list(held):
                spill.add(pa.Table.from_batches(held.pop(number)), number)
            nbytes = 0
    numbers = sorted({*expected, *held, *spill.numbers})
    with files_of_task(plan, numbers) as shared:
        answers = list[Answer]()
        for number in numbers:
            spilled = (batch for table in spill.read([number]) for batch in table.to_batches())
            came = chain(spilled, held.pop(number, []))
            answers += _answers(plan, came, number, kept, shared)
        complete(answers, shared)
    for answer in answers:
        yield reply(answer.result.shard, answer)


def files_of_task(
    plan: TaskPlan, numbers: Sequence[int]
) -> contextlib.AbstractContextManager[CommitFiles | None]:
    """Return the files that the shards of a task share; none where a transport keeps those of each shard apart."""
    if len(numbers) < 2 or not plan.spec.transport.shares_location:
        return contextlib.nullcontext()
    return CommitFiles(plan.spec.folders, plan.commit, numbers[0])


def complete(answers: Sequence[Answer], shared: CommitFiles | None) -> None:
    """Finish the files of a task, and name them in the answers of its shards. None counts before."""
    if shared is not None:
        for answer, whole in zip(answers, shared.finished([a.result for a in answers]), strict=True):
            answer.result = whole


def _measured(batches: Iterable[pa.RecordBatch], widths: list[int]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and note how many bytes a row of each of them takes."""
    for batch in batches:
        if batch.num_rows:
            widths.append(batch.nbytes // batch.num_rows)
        yield batch


def _all(held: list[pa.Table], came: Iterator[tuple[int, pa.Table]]) -> Iterator[pa.Table]:
    yield held.pop()
    for _, table in came:
        yield table


def _open(plan: TaskPlan, number: int, kept: KeptStores | None) -> Shard | MessagesLost:
    """Open the store of a shard, caught up with the commits before this one; or return the reason why a replay comes first."""
    try:
        with on_disk(plan.spec.folders.location):
            return plan.open(number, kept=kept)
    except MessagesLost as error:
        if not plan.can_replay:
            raise
        return error.with_traceback(None)


def _lost(number: int, why: MessagesLost) -> Answer:
    return Answer(ShardResult(shard=number), lost=str(why))


def run_shard(
    plan: TaskPlan, shard: Shard, tables: Iterable[pa.Table], shared: CommitFiles | None = None
) -> Answer:
    """Run the steps of one commit on an open shard, over its rows, and write the files of their changes (3.2).

    shared: the files of the task's shards, which the task finishes
    """
    began_ns = time.time_ns()
    with contextlib.closing(Work(plan, shard)) as work:
        work.gather(tables if plan.reads is None else work.read(plan.reads, tables))
        for definition, spool in zip(plan.definitions, work.spools, strict=True):
            work.steps(definition, spool)
        answer = work.written(shared)
    answer.began_ns, answer.ended_ns = began_ns, time.time_ns()
    return answer


def by_definition(
    definitions: Sequence[Definition], table: pa.Table
) -> Iterator[tuple[Definition, pa.Table]]:
    """Yield the rows that each definition takes."""
    if OPERATOR not in table.column_names:
        yield from ((definition, table) for definition in definitions)
        return
    whose = combine(table.column(OPERATOR)).to_numpy()
    for i, definition in enumerate(definitions):
        yield definition, without(table.filter(pa.array(whose == i)), OPERATOR)


class Work:
    """The combined result of the steps of one shard's part of a commit."""

    def __init__(self, plan: TaskPlan, shard: Shard) -> None:
        self.plan, self.shard = plan, shard
        self.overlay = Spilling(shard.kv, shard.spec.path)
        self.schema = pa.ipc.read_schema(pa.py_buffer(plan.schema))
        self.spools = [
            Spool(buckets_of(d, partial(self._columns, d)), whole_rows(d), self.overlay.folder)
            for d in plan.definitions
        ]
        self.answer = Answer(ShardResult(shard=shard.spec.shard), place=f"{HOST}:{shard.spec.path}")
        self.panes: dict[str, Gathered] = {}
        self.dead: list[pa.Table] = []
        self.counters: dict[str, int] = {}

    def _columns(self, definition: Definition) -> dict[str, pa.Schema]:
        """Return the columns of the inputs of a definition."""
        if not definition.by_input:
            return {definition.inputs[0].name: self.schema}
        return {i.name: pa.schema(list(self.schema.field(i.name).type)) for i in definition.inputs}

    def close(self) -> None:
        self.overlay.close()

    def read(self, stream: KafkaStream, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Read the rows of the shard's ranges. The slice reaches to their ends, whether they hold records or not."""
        wanted = [part for table in tables for part in ranges.from_table(table)]
        ranges.check_partitions(wanted, self.plan.partitions)
        for part in wanted:
            self.answer.seen(ranges.partition_of(part), part.start, part.end - 1)
        packed = self.plan.taken
        taken = [] if packed is None else packed[self.shard.spec.shard]
        rows, counts = ranges.read_rows(stream, wanted, {(s, p): offset for s, p, offset in taken})
        self.counters.update(counts)
        yield from chunks(rows, CHUNK_ROWS)

    def gather(self, tables: Iterable[pa.Table]) -> None:
        """Buffer rows for the steps of the definitions that take them."""
        plan = self.plan
        for table in tables:
            if OLD in table.column_names:
                table = self.leave_out_old(table)
            for spool, (_, rows) in zip(self.spools, by_definition(plan.definitions, table), strict=True):
                spool.add(rows)
            if plan.parts is None and len(table):
                if plan.reads is None:
                    self.extent(table)
                self.answer.rows += rows_that_came(plan.definitions, table, self.shard.spec.shard)

    def leave_out_old(self, table: pa.Table) -> pa.Table:
        """Return the rows that were not counted before."""
        self.extent(table)
        new = pc.invert(table.column(OLD))
        old = len(table) - int(pc.sum(new).as_py() or 0)
        self.counters[REPLAYED] = self.counters.get(REPLAYED, 0) + old
        return table.filter(new).drop_columns([OLD])

    def extent(self, table: pa.Table) -> None:
        """First and following offsets of the slice, from rows that carry positions."""
        if OFFSET not in table.column_names:
            return
        grouped = table.group_by([SOURCE, PARTITION], use_threads=False).aggregate(
            [(OFFSET, "min"), (OFFSET, "max")]
        )
        for row in grouped.to_pylist():
            self.answer.seen((row[SOURCE], row[PARTITION]), row[f"{OFFSET}_min"], row[f"{OFFSET}_max"])

    def steps(self, definition: Definition, spool: Spool) -> None:
        """Run the steps of one definition over its rows, a step for each piece."""
        plan, logic, name = self.plan, definition.logic(self.plan.outputs), definition.name
        watermark_us, rows = plan.watermarks_us[name], 0
        if self.shard.spec.shard:
            logic.silence(definition.copied)
        step = self._collect(logic, logic.advance(self.overlay, watermark_us, plan.now_us))
        keeping = logic.refiling()
        before = 0 if keeping is None else logic.progress(self.overlay).step
        if spool.is_divided:
            logic = logic.apart(self.overlay.so_far())
        for piece in spool.pieces():
            if spool.is_divided:
                self.overlay.relieve()
            if plan.parts is None:
                taken = ingest_rows(logic, self.overlay, piece, plan.now_us)
            else:
                taken = self._ingest_grouped(logic, plan.parts, piece, watermark_us)
            step, rows = step.then(self._collect(logic, taken)), rows + len(piece)
        self._note(step, definition)
        if step.groups:
            self.counters[GROUPS_OF + name] = step.groups
        if keeping is not None:
            after = logic.progress(self.overlay).step
            self.counters[STEP_OF + name] = after
            self.counters[KEPT_OF + name] = keeping.kept_from(self.overlay)
            self.counters[ROWS_OF + name] = rows
            if spool.is_divided:
                self.counters[PIECES_OF + name] = max(after - before, 1)

    def _collect(self, logic: Logic, step: StepResult) -> StepResult:
        """Add a step's emitted rows to the commit's, a table at a time where they are many; return the step without them."""
        parts = [step]
        if sum(table.nbytes for table in step.panes) > spill.SLICE_BYTES:
            parts = [StepResult(inner=step.inner), *(StepResult([table]) for table in step.panes)]
        quiet = replace(step, panes=[], inner={})
        del step
        parts.reverse()
        while parts:
            for name, rows in logic.emitted(parts.pop(), self.plan.commit).items():
                self.panes.setdefault(name, Gathered()).add(rows)
        return quiet

    def _ingest_grouped(
        self, logic: Logic, parts: Sequence[str], rows: pa.Table, watermark_us: int
    ) -> StepResult:
        """Ingest rows that Spark has pre-aggregated."""
        grouping, [schema] = logic.grouping(), self._columns(logic.definition).values()
        assert grouping is not None
        names = {f"{PART}{i}": name for i, name in enumerate(parts)}
        groups = rows.rename_columns([names.get(c, c) for c in rows.column_names])
        grouped = grouping.ingest_groups(self.overlay, groups, schema, watermark_us, self.plan.now_us)
        self.answer.rows += grouped.rows
        self.answer.uncounted_rows += grouped.uncounted
        self.answer.faulty_rows += grouped.faulty
        for partition, (lowest, highest) in grouped.extent.items():
            self.answer.seen(partition, lowest, highest)
        return grouped.step

    def _note(self, step: StepResult, definition: Definition) -> None:
        if step.dead is not None:
            most = sum(part.dead_letter_limit for part in definition.parts)
            self.dead.append(of_operator(step.dead.slice(0, most), definition.name))
        for counter, n in step.counts.items():
            self.counters[counter] = self.counters.get(counter, 0) + n
        for partition, largest in step.marks.items():
            self.answer.mark(partition, largest)

    def written(self, shared: CommitFiles | None) -> Answer:
        """Write the files of the result and return it; where one is due, with a snapshot of the previous commit."""
        plan, shard, answer = self.plan, self.shard, self.answer
        self.counters["rows"] = answer.rows
        if shard.spec.local is not None:
            self.counters[STORE_BYTES] = bytes_of(shard.spec.path)
        snapshot = self._snapshot() if plan.takes_snapshot(shard.spec.shard) else None
        dead = pa.concat_tables(self.dead) if self.dead else None
        silent = not self.panes and dead is None and not self.overlay.spilled
        answer.still = silent and only_time_passed(shard.kv, self.overlay.batch)
        panes = {name: rows if (held := rows.held) is None else held for name, rows in self.panes.items()}
        with on_disk(plan.spec.folders.location):
            answer.result = shard.write(
                plan.commit,
                self.overlay.changes,
                panes,
                dead,
                self.counters,
                snapshot=snapshot,
                shared=shared,
            )
        return answer

    def _snapshot(self) -> str | None:
        """Take a snapshot of the previous commit; None if it fails. A failure stops no commit: the next one due is tried."""
        try:
            return self.shard.snapshot(self.shard.spec.shard in self.plan.compacts)
        except CorruptState:
            raise
        except (StateError, OSError) as error:
            spec = self.shard.spec
            spec.logger.warning(
                "no snapshot could be taken", commit=self.plan.commit, path=spec.path, error=str(error)
            )
            return None


def both_steps(logic: Logic, overlay: Overlay, rows: pa.Table, watermark_us: int, now_us: int) -> StepResult:
    """Run `advance`, and `ingest` of wire rows."""
    step = logic.advance(overlay, watermark_us, now_us)
    return step.then(ingest_rows(logic, overlay, rows, now_us))


def ingest_rows(logic: Logic, overlay: Overlay, rows: pa.Table, now_us: int) -> StepResult:
    """Run `ingest` of wire rows; those that make it raise are dead letters, and the others count."""
    tables = tables_of_inputs(logic.definition, rows)
    # Inputs without rows too, where columns of all of them have to be known.
    if not logic.takes_columns and not any(len(t) for t in tables.values()):
        return StepResult()
    attempt = Overlay(overlay)
    definition = logic.definition
    for name, table in tables.items():
        others = {other: columns for other, columns in tables.items() if other != name}
        tables = {**tables, name: logic.admit(overlay, definition.input(name), table, others)}

    def step(kv: KV, tables: Mapping[str, pa.Table]) -> StepResult:
        return logic.ingest(kv, tables, now_us)

    result: StepResult = sifted(step, attempt, tables)
    overlay.write(attempt.batch)
    return result
