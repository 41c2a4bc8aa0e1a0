"""What runs on an executor: one shard of one commit (step 3 of docs/explanation/commit-protocol.md). It imports no pyspark."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.checkpoint.records import Commit, ShardResult
from windrow.checkpoint.replay import KEPT_OF, ROWS_OF, STEP_OF
from windrow.checkpoint.shard import Commits, MessagesLost, Replay, Shard, ShardSpec
from windrow.connectors.kafka.stream import KafkaStream
from windrow.core.errors import BadLocation
from windrow.core.location import local_path
from windrow.core.positions import Partition
from windrow.core.sql import as_given
from windrow.operators.operator import Definition, Logic
from windrow.operators.steps.columns import (
    OFFSET,
    ORDINAL,
    PARTITION,
    POSITION_COLUMNS,
    REPLAYED,
    SOURCE,
)
from windrow.operators.steps.dead import of_operator
from windrow.operators.steps.groups import combine, without
from windrow.operators.steps.progress import only_time_passed
from windrow.operators.steps.sifting import sifted
from windrow.operators.steps.step import StepResult
from windrow.runners import ranges
from windrow.runners.answers import Answer
from windrow.stores.kv import KV, Overlay

#: Accumulators travel as `__part<i>`, in the order of `TaskPlan.parts`.
PART = "__part"
SHARD, OPERATOR, CONTROL, OLD = "__shard", "__operator", "__control", "__old"
#: Whose row it is, where two inputs travel as one frame; a struct of the input's name holds its columns.
INPUT = "__input"
OUTPUT = "shard int, payload binary"
SNAPSHOT_EVERY = 32
#: Shards take theirs in different commits: so many apart.
APART = 7


@dataclass(frozen=True)
class TaskPlan:
    """One commit, as a task sees it. Picklable. parts: the accumulators that Spark pre-aggregated; None: rows come."""

    spec: ShardSpec
    definitions: tuple[Definition, ...]
    commit: int
    now_us: int
    watermarks_us: dict[str, int]
    schema: bytes
    parts: tuple[str, ...] | None
    recent: tuple[Commit, ...]
    lock_wait_s: float = 10.0
    #: Messages that are lost can be read again: a shard that has lost its own says so, and does not fail.
    can_replay: bool = False
    #: Operators inside chains whose panes are wanted too.
    tell: tuple[str, ...] = ()
    #: Rows are ranges of offsets, which the task reads for itself, but what lies below `taken`; topic -> its partitions.
    reads: KafkaStream | None = None
    taken: Mapping[Partition, int] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    #: A shard takes a snapshot every so many commits.
    snapshot_every: int = SNAPSHOT_EVERY
    #: Reads the commits that the log keeps; None: from the job's folder.
    commits: Commits | None = None
    #: A file that the driver has just made in the job's folder; "": nobody asks whether it is the same folder here.
    nonce: str = ""

    def open(self, number: int, replay: Replay | None = None) -> Shard:
        """The shard, as of the commit before this one."""
        if self.nonce and not os.path.exists(os.path.join(self.spec.folders.location, self.nonce)):
            raise BadLocation(
                f"{self.spec.folders.location} on {socket.gethostname()} is not the folder that the driver sees: it lacks "
                f"{self.nonce}. Executors and driver have to share it (NFS, for instance), or keep the log elsewhere: "
                "log=wr.kafka_log(...)"
            )
        local = self.spec.local
        local = None if local is None else local_path(os.path.expandvars(local), "local_dir")
        spec = replace(self.spec, shard=number, local=local)

        if not os.path.isdir(spec.folders.snapshots):
            spec.folders.make()  # on another machine than the driver's, where the log is elsewhere

        def commits() -> Iterator[Commit]:
            log = spec.transport.log(spec.folders)
            log.tail()
            return log.commits()

        return Shard.open(
            spec,
            self.commit - 1,
            self.commits or commits,
            self.recent,
            lock_wait_s=self.lock_wait_s,
            replay=replay,
        )


def run(
    plan: TaskPlan, batches: Iterator[pa.RecordBatch], expected: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Run one shard: `mapInArrow` over the rows of one partition.

    `expected`: the shard that will probably be asked for; its store is opened while Spark still computes the rows.
    """
    shard = None if expected is None else _open(plan, expected)
    try:
        received = rows_of_shard(batches)
        if received is None:
            return
        number, table = received
        if shard is None or number != expected:
            if isinstance(shard, Shard):
                shard.close()
            shard = _open(plan, number)
        answer = run_shard(plan, shard, table) if isinstance(shard, Shard) else _lost(number, shard)
    finally:
        if isinstance(shard, Shard):
            shard.close()
    yield reply(number, answer)


def rows_of_shard(batches: Iterator[pa.RecordBatch]) -> tuple[int, pa.Table] | None:
    """The shard whose partition this is, and its rows; None where it is of none."""
    received = [b for b in batches if b.num_rows]
    if not received:
        return None
    table = pa.Table.from_batches(received)
    table = table.rename_columns([as_given(c) for c in table.column_names])
    shards = table.column(SHARD).unique().to_pylist()
    if len(shards) != 1:
        raise RuntimeError(f"a partition holds the rows of shards {shards}: it must hold those of one")
    control = combine(table.column(CONTROL)).is_valid()
    return shards[0], with_ordinals(table.filter(pc.invert(control)).drop_columns([SHARD, CONTROL]))


def with_ordinals(table: pa.Table) -> pa.Table:
    """Rows without an ordinal get one: their number among the rows of their record, in the order they came in."""
    if ORDINAL not in table.column_names or not table.column(ORDINAL).null_count:
        return table
    n = len(table)
    records = [c for c in (OPERATOR, SOURCE, PARTITION, OFFSET) if c in table.column_names]
    ordinals = np.zeros(n, dtype=np.int64)
    if len(table.group_by(records).aggregate([])) < n:
        where = table.select(records)
        order = pc.sort_indices(where, sort_keys=[(c, "ascending") for c in records]).to_numpy()  # stable
        begins = np.zeros(n, dtype=bool)
        begins[0] = True
        for column in where.take(order).columns:
            values = combine(column)
            begins[1:] |= pc.not_equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False)
        numbers = np.arange(n)
        ordinals[order] = numbers - np.maximum.accumulate(np.where(begins, numbers, 0))
    filled = pc.coalesce(table.column(ORDINAL), pa.chunked_array([ordinals]))
    return table.set_column(table.column_names.index(ORDINAL), ORDINAL, filled)


def reply(number: int, answer: Any) -> pa.RecordBatch:
    """What a task gives Spark."""
    return pa.record_batch(
        [pa.array([number], pa.int32()), pa.array([pickle.dumps(answer)], pa.binary())],
        names=["shard", "payload"],
    )


def _open(plan: TaskPlan, number: int) -> Shard | MessagesLost:
    """The store of a shard, caught up with the commits before this one; or why that takes a replay first."""
    try:
        return plan.open(number)
    except MessagesLost as error:
        if not plan.can_replay:
            raise
        return error.with_traceback(None)


def _lost(number: int, why: MessagesLost) -> Answer:
    return Answer(ShardResult(shard=number), lost=str(why))


def run_shard(plan: TaskPlan, shard: Shard, table: pa.Table) -> Answer:
    """The steps of one commit on an open shard, over its rows, and the files that say what they changed (3.2)."""
    schema = pa.ipc.read_schema(pa.py_buffer(plan.schema))
    overlay = shard.overlay()
    panes: dict[str, pa.Table] = {}
    dead: list[pa.Table] = []
    counters: dict[str, int] = {}
    answer = Answer(ShardResult(shard=shard.spec.shard))
    if plan.reads is not None:
        table = _read(plan, plan.reads, table, answer, counters)
    if OLD in table.column_names:
        _extent(table, answer)
        new = pc.invert(table.column(OLD))
        counters[REPLAYED] = len(table) - int(pc.sum(new).as_py() or 0)
        table = table.filter(new).drop_columns([OLD])
    operators = combine(table.column(OPERATOR)).to_numpy() if OPERATOR in table.column_names else np.zeros(0)
    for i, definition in enumerate(plan.definitions):
        mine = table.filter(pa.array(operators == i)) if OPERATOR in table.column_names else table
        mine = without(mine, OPERATOR)
        panes.update(_steps(plan, definition, overlay, mine, schema, answer, dead, counters))
    if plan.parts is None and len(table):
        if plan.reads is None:
            _extent(table, answer)
        answer.rows = _counted(plan.definitions, table)
    counters["rows"] = answer.rows
    snapshot = None
    if shard.applied and (shard.applied + APART * shard.spec.shard) % plan.snapshot_every == 0:
        snapshot = shard.snapshot()
    letters = pa.concat_tables(dead) if dead else None
    answer.still = not panes and letters is None and only_time_passed(shard.kv, overlay.batch)
    answer.result = shard.write(plan.commit, overlay.batch, panes, letters, counters, snapshot=snapshot)
    return answer


def _counted(definitions: Sequence[Definition], table: pa.Table) -> int:
    """How many rows came: each is there once for every definition that takes it."""
    if OPERATOR not in table.column_names:
        return len(table)
    whose = combine(table.column(OPERATOR)).to_numpy()
    if INPUT not in table.column_names:
        return int((whose == 0).sum())
    first: dict[str, int] = {}
    for i, definition in enumerate(definitions):
        for given in definition.inputs:
            first.setdefault(given.name, i)
    inputs = combine(table.column(INPUT))
    named = pc.index_in(inputs, pa.array(list(first))).to_numpy(zero_copy_only=False)
    return int((whose == np.array(list(first.values()))[named]).sum())


def _read(
    plan: TaskPlan, stream: KafkaStream, table: pa.Table, answer: Answer, counters: dict[str, int]
) -> pa.Table:
    """The rows of the shard's ranges. The slice reaches to their ends, whether records lie there or not."""
    wanted = ranges.from_table(table)
    ranges.check_partitions(wanted, plan.partitions)
    for one in wanted:
        answer.seen(ranges.partition_of(one), one.start, one.end - 1)
    rows, counts = ranges.read_rows(stream, wanted, plan.taken)
    counters.update(counts)
    return rows


def _steps(
    plan: TaskPlan,
    definition: Definition,
    overlay: Overlay,
    mine: pa.Table,
    schema: pa.Schema,
    answer: Answer,
    dead: list[pa.Table],
    counters: dict[str, int],
) -> dict[str, pa.Table]:
    """The steps of one definition, and what they told, as rows, by operator."""
    logic = definition.logic(plan.tell)
    watermark_us = plan.watermarks_us[definition.name]
    step = logic.advance(overlay, watermark_us, plan.now_us)
    if plan.parts is not None:
        grouping = logic.grouping()
        assert grouping is not None
        names = {f"{PART}{i}": name for i, name in enumerate(plan.parts)}
        groups = mine.rename_columns([names.get(c, c) for c in mine.column_names])
        grouped = grouping.ingest_groups(overlay, groups, schema, watermark_us, plan.now_us)
        answer.rows += grouped.rows
        answer.uncounted_rows += grouped.uncounted
        for partition, (lowest, highest) in grouped.extent.items():
            answer.seen(partition, lowest, highest)
        step = step.then(grouped.step)
    else:
        tables = tables_of_inputs(definition, mine)
        # Inputs without rows too, where columns of all of them have to be known.
        if logic.takes_columns or any(len(t) for t in tables.values()):
            step = step.then(_ingest(logic, overlay, tables, plan.now_us))
    _note(step, answer, dead, counters, definition.name)
    if (keeping := logic.refiling()) is not None:
        counters[STEP_OF + definition.name] = logic.progress(overlay).step
        counters[KEPT_OF + definition.name] = keeping.kept_from(overlay)
        counters[ROWS_OF + definition.name] = len(mine)
    return logic.told(step, plan.commit)


def _ingest(logic: Logic, overlay: Overlay, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
    """An `ingest` in which rows that make it raise are dead letters, and the others count."""
    attempt = Overlay(overlay)

    def step(kv: KV, tables: Mapping[str, pa.Table]) -> StepResult:
        return logic.ingest(kv, tables, now_us)

    result: StepResult = sifted(step, attempt, tables)
    overlay.write(attempt.batch)
    return result


def tables_of_inputs(definition: Definition, table: pa.Table) -> dict[str, pa.Table]:
    """The rows of a shard by input, with the columns of each."""
    if INPUT not in table.column_names:
        return {} if definition.by_input else {definition.inputs[0].name: table}
    found = {}
    whose = combine(table.column(INPUT))
    where = [c for c in POSITION_COLUMNS if c in table.column_names]
    for given in definition.inputs:
        mine = table.filter(pc.fill_null(pc.equal(whose, given.name), False))
        struct = combine(mine.column(given.name))
        columns = dict(zip([f.name for f in struct.type], struct.flatten(), strict=True))
        found[given.name] = pa.table({**columns, **{c: combine(mine.column(c)) for c in where}})
    return found


def _note(
    step: StepResult, answer: Answer, dead: list[pa.Table], counters: dict[str, int], name: str
) -> None:
    if step.dead is not None:
        dead.append(of_operator(step.dead, name))
    for counter, n in step.counts.items():
        counters[counter] = counters.get(counter, 0) + n
    for partition, largest in step.marks.items():
        answer.mark(partition, largest)


def _extent(table: pa.Table, answer: Answer) -> None:
    """First and following offsets of the slice, from rows that carry positions."""
    if OFFSET not in table.column_names:
        return
    grouped = table.group_by([SOURCE, PARTITION], use_threads=False).aggregate(
        [(OFFSET, "min"), (OFFSET, "max")]
    )
    for row in grouped.to_pylist():
        answer.seen((row[SOURCE], row[PARTITION]), row[f"{OFFSET}_min"], row[f"{OFFSET}_max"])
