"""Replay for a shard that has lost its messages: the log's steps are read from the source, checked and filed again.

Time windows file it again under the numbers and watermarks of then, from the first commit on whose messages are retained.
Tuple windows number messages by all that came before, so their steps are run again, all of them, on a store of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.checkpoint.compaction import snapshot_at
from windrow.checkpoint.records import REPAIR, Commit
from windrow.checkpoint.replay import REMEDY, Ranges, Redo, extent, owners, steps_again
from windrow.checkpoint.shard import Replay, ShardSpec
from windrow.core.arrays import IntArray
from windrow.core.errors import StateError, StateLost
from windrow.core.positions import Partition
from windrow.operators.operator import Definition, FileAgain, Logic, RunAgain
from windrow.operators.steps.columns import OFFSET, PARTITION, SOURCE, STEP
from windrow.operators.steps.dead_letters import MALFORMED
from windrow.operators.steps.groups import combine, without
from windrow.operators.steps.intake import in_position_order
from windrow.operators.steps.poison_rows import sifted_into
from windrow.operators.steps.step import Redone
from windrow.runners.batch_splitting import divided
from windrow.runners.task_result import Answer
from windrow.runners.tasks import TaskPlan
from windrow.runners.wire import OPERATOR, tables_of_inputs
from windrow.stores.kv import KV, Batch
from windrow.stores.quarantine import destroy
from windrow.stores.rocks import RocksKV

#: Messages are copied from store to store so many at a time.
COPIED_AT_ONCE = 10_000


class SourceRows(Protocol):
    """Rows from the source. offsets: by partition, in the order of partition, offset and ordinal, which counts the rows."""

    @property
    def offsets(self) -> Mapping[Partition, IntArray]: ...

    def rows(self, chosen: IntArray) -> pa.Table:
        """Return the chosen rows, with position columns."""
        ...


class GivenTable:
    """A table of rows with position columns."""

    def __init__(self, table: pa.Table) -> None:
        self.table = in_position_order(table).combine_chunks()
        self.offsets = split_offsets(*(combine(self.table.column(c)) for c in (SOURCE, PARTITION, OFFSET)))

    def rows(self, chosen: IntArray) -> pa.Table:
        return self.table.take(pa.array(chosen))


def split_offsets(sources: pa.Array, partitions: pa.Array, offsets: pa.Array) -> dict[Partition, IntArray]:
    """Split the offsets of rows in position order by partition."""
    names, codes = _names(sources)
    numbers, flat = partitions.to_numpy(), offsets.to_numpy()
    edges = np.flatnonzero((np.diff(codes) != 0) | (np.diff(numbers) != 0)) + 1
    firsts = [0, *edges.tolist()] if len(flat) else []
    return {
        (names[codes[first]], int(numbers[first])): chunk
        for first, chunk in zip(firsts, np.split(flat, edges), strict=False)
    }


def _names(sources: pa.Array) -> tuple[list[str], IntArray]:
    coded = pc.dictionary_encode(sources, null_encoding="encode")
    return coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def inside(table: pa.Table, ranges: Ranges) -> pa.Table:
    """Return the rows inside the ranges."""
    names, codes = _names(combine(table.column(SOURCE)))
    partitions, offsets = (combine(table.column(c)).to_numpy() for c in (PARTITION, OFFSET))
    wanted = np.zeros(len(table), dtype=bool)
    for (source, partition), (first, following) in ranges.items():
        if source in names:
            of_partition = (codes == names.index(source)) & (partitions == partition)
            wanted |= of_partition & (offsets >= first) & (offsets < following)
    return table if wanted.all() else table.filter(pa.array(wanted))


class GivenByInput:
    """Rows from the sources of all inputs."""

    def __init__(self, inputs: Mapping[str, SourceRows]) -> None:
        self._inputs = inputs
        self.offsets = {p: o for source_rows in inputs.values() for p, o in source_rows.offsets.items()}

    def by_input(
        self, chosen: IntArray, *, every_input: bool = False
    ) -> dict[str, tuple[pa.Table, IntArray]]:
        """Return the chosen rows by input, each with its indexes in `chosen`. every_input: those without rows too."""
        parts, first = {}, 0
        for name, source_rows in self._inputs.items():
            following = first + sum(map(len, source_rows.offsets.values()))
            places = np.flatnonzero((chosen >= first) & (chosen < following))
            if every_input or len(places):
                parts[name] = source_rows.rows(chosen[places] - first), places
            first = following
        return parts


def replayable(definition: Definition) -> bool:
    """True if its lost messages can be read again."""
    logic = definition.logic()
    return not logic.message_cfs or logic.refiling() is not None


def read_unasked(definition: Definition) -> bool:
    """True if windrow itself reads lost messages again where it reads the source: not where it would have to keep the log of a
    graph from its first commit on.
    """
    again = definition.logic().refiling()
    return len(definition.parts) == 1 or again is None or not again.every_step


def until_none_is_lost(
    commit: int, act: Callable[[], list[Answer]], replay: Callable[[list[int]], None]
) -> list[Answer]:
    """Run attempts at a commit until no shard has lost its messages, and return the answers of the last.

    replay: gives such shards their messages back. Nothing of an attempt with a lost shard counts. Each attempt may find others
    lost: a shard whose store one executor has is lost to another.
    """
    back: set[int] = set()
    while True:
        answers = act()
        lost = {a.result.shard: a.lost for a in answers if a.lost is not None}
        if not lost:
            return answers
        again = sorted(back & lost.keys())
        if again:
            raise StateError(
                f"commit {commit}: shards {again} have lost their messages again: {lost[again[0]]}"
            )
        replay(sorted(lost))
        back |= lost.keys()


def rebuild(task: TaskPlan, number: int, replay: Replay) -> None:
    """Build a shard anew whose messages are lost elsewhere, or find its store here; and leave a snapshot, which every executor
    finds.

    An attempt before this one may have built the store, and ended before it left one.
    """
    shard = task.open(number, replay)
    try:
        if snapshot_at(shard.spec.folders, number) < shard.applied:
            shard.snapshot()
    finally:
        shard.close()


def replay_of(definitions: Sequence[Definition], rows: pa.Table) -> Replay:
    """Return the replay of a shard, whose rows these are, as they travel."""

    def replay(spec: ShardSpec, kv: KV, commits: Sequence[Commit]) -> None:
        for i, definition in enumerate(definitions):
            own = rows
            if len(definitions) > 1:
                own = without(rows.filter(pc.equal(rows.column(OPERATOR), i)), OPERATOR)
            tables = tables_of_inputs(definition, own)
            bring_back(definition, spec, kv, commits, partial(rows_inside, tables), every_input=True)

    return replay


def rows_inside(tables: Mapping[str, pa.Table], ranges: Ranges) -> GivenByInput:
    """Return the rows of each input that lie in the ranges."""
    return GivenByInput({name: GivenTable(inside(table, ranges)) for name, table in tables.items()})


def bring_back(
    definition: Definition,
    spec: ShardSpec,
    kv: KV,
    commits: Sequence[Commit],
    read: Callable[[Ranges], GivenByInput],
    *,
    ones_together: bool = False,
    every_input: bool = False,
) -> None:
    """File the messages of one operator again into `kv`, which has its metadata: the retained ones, or by running all steps
    again where that depends on them. `StateLost` where the source lacks messages of the steps.

    ones_together: steps of one message each were ingested as one slice. every_input: each step had the columns of all inputs,
    as tasks have them.
    """
    logic = definition.logic()
    again = logic.refiling()
    if again is None or not again.begun(kv):
        return
    kept_from_us = None if again.every_step else again.kept_from(kv)
    redo = steps_again(commits, definition, spec.shard, kept_from_us, again.why)
    ranges = extent(redo)
    if not ranges:
        if any(step.rows for step in redo):
            raise StateLost(
                f"messages of shard {spec.shard} cannot be replayed: the log counts messages of {definition.name!r}, of no "
                f"source of its inputs. {REMEDY[0].upper()}{REMEDY[1:]}"
            )
        return
    _check_lowered(definition, spec, commits)
    _log(definition.name, spec, redo)
    source_rows = read(ranges)
    taken = _Taken(redo, source_rows.offsets)
    if isinstance(again, RunAgain):
        _run_again(again, spec, kv, source_rows, taken, every_input)
        return
    assert isinstance(again, FileAgain)
    redone = Redone(*(np.array([getattr(s, n) for s in redo]) for n in ("now_us", "watermark_us", "number")))
    uncounted = 0
    for first, last in _at_once(redo, ones_together, again.steps_at_once):
        chosen = taken.chosen(first, last)
        if not len(chosen):
            continue
        tables = {
            name: logic.admit(kv, definition.input(name), table).append_column(
                STEP, pa.array(taken.owner[chosen[places]])
            )
            for name, (table, places) in source_rows.by_input(chosen).items()
        }
        uncounted += again.file(kv, tables, redone)
    if again.checks_uncounted:
        _check_uncounted(definition, spec, commits, {s.commit for s in redo}, uncounted)
    again.drop_expired(kv)


def _check_lowered(definition: Definition, spec: ShardSpec, commits: Sequence[Commit]) -> None:
    """Refuse where the watermark was set back, and messages were forgotten that would come back."""
    lowered = [c.commit for c in commits if "watermark_us" in c.meta.get(REPAIR, {})]
    if lowered and (definition.by_input or len(definition.parts) > 1):
        raise StateLost(
            f"messages of shard {spec.shard} cannot be replayed: commit {lowered[-1]} lowered the watermark, and what was "
            f"forgotten by then would come back. {REMEDY[0].upper()}{REMEDY[1:]}"
        )


def _check_uncounted(
    definition: Definition, spec: ShardSpec, commits: Sequence[Commit], redone: Set[int], found: int
) -> None:
    """Refuse where a condition raised: on which message depends on those that were there then."""
    answers = [r for c in commits if c.commit in redone for r in c.shards if r.shard == spec.shard]
    raised = sum(r.counters.get(f"dead.{MALFORMED}", 0) for r in answers) - found
    if raised > 0:
        raise StateLost(
            f"messages of shard {spec.shard} cannot be replayed: the condition of {definition!r} raised on {raised} of them, "
            f"which did not count, and which these were the log does not say. {REMEDY[0].upper()}{REMEDY[1:]}"
        )


class _Taken:
    """The rows that each step ingested."""

    def __init__(self, redo: Sequence[Redo], offsets: Mapping[Partition, IntArray]) -> None:
        self.redo = redo
        owner_of = owners(redo, offsets)
        parts = [owner_of[p] for p in offsets]
        #: The index of each row's step.
        self.owner = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        self._by_step = np.argsort(self.owner, kind="stable")
        self._bounds = np.searchsorted(self.owner[self._by_step], np.arange(len(redo) + 1))

    def chosen(self, first: int, last: int) -> IntArray:
        """Return the rows of the steps `[first, last)`, in position order."""
        last = min(last, len(self.redo))
        return np.sort(self._by_step[self._bounds[first] : self._bounds[last]])


def _at_once(redo: Sequence[Redo], ones: bool, most: int) -> Iterator[tuple[int, int]]:
    """Yield [first, last) of steps that are filed as one slice."""
    first = 0
    for k in range(1, len(redo) + 1):
        if k < len(redo):
            one_more = redo[k].commit == redo[k - 1].commit and redo[k].rows == redo[k - 1].rows == 1
            if k - first < most or (ones and one_more):
                continue
        yield first, k
        first = k


def _log(name: str, spec: ShardSpec, redo: Sequence[Redo]) -> None:
    spec.logger.warning(
        "messages are lost, and read from the source again",
        operator=name,
        steps=len(redo),
        rows=sum(s.rows for s in redo),
    )


def _run_again(
    again: RunAgain, spec: ShardSpec, kv: KV, rows_by_input: GivenByInput, taken: _Taken, every_input: bool
) -> None:
    """Run all steps again on a scratch store; then copy its messages to the shard."""
    logic = again.logic
    with _empty_store(logic, spec) as scratch:
        again.prepare(kv, scratch)
        for k, step in enumerate(taken.redo):
            if step.kind == "advance":
                logic.advance(scratch, step.watermark_us, step.now_us)
            else:
                parts = rows_by_input.by_input(taken.chosen(k, k + 1), every_input=every_input)
                tables = {
                    name: logic.admit(scratch, logic.definition.input(name), table)
                    for name, (table, _) in parts.items()
                }
                for piece in _pieces(logic, scratch, tables) if step.divided else (tables,):
                    sifted_into(partial(_ingested, logic, step.now_us), scratch, piece)
        _adopt(again, scratch, kv, spec)


def _pieces(logic: Logic, kv: KV, tables: Mapping[str, pa.Table]) -> Iterator[dict[str, pa.Table]]:
    """Yield rows in the pieces of the original step."""
    definition: Definition = logic.definition
    known = {i.name: logic.schema_of(kv, i.name) or pa.schema([]) for i in definition.inputs}
    return divided(definition, tables, {**known, **{name: t.schema for name, t in tables.items()}})


def _ingested(logic: Logic, now_us: int, kv: KV, tables: Mapping[str, pa.Table]) -> None:
    logic.ingest(kv, tables, now_us)


@contextmanager
def _empty_store(logic: Logic, spec: ShardSpec) -> Iterator[RocksKV]:
    """Open an empty scratch store next to the shard's."""
    path = f"{spec.path}.replay-{os.getpid()}-{time.monotonic_ns()}"
    scratch = RocksKV(path, logic.cfs())
    try:
        yield scratch
    finally:
        scratch.close()
        destroy(path)


def _adopt(again: RunAgain, scratch: KV, kv: KV, spec: ShardSpec) -> None:
    """Copy the messages of `scratch` to the shard, if both have reached the same state."""
    logic = again.logic
    if again.reached(scratch) != again.reached(kv):
        raise StateLost(
            f"the source does not give shard {spec.shard} the messages of then: with those that it gives now, "
            f"{logic.definition.name!r} comes to other steps, or other numbers for its keys, than it had. Give replay= the "
            f"source and the transform that the job has; or {REMEDY}"
        )
    for cf in logic.message_cfs:
        _copy(scratch.scan(cf), cf, kv)
    for part in logic.definition.parts:
        aux_cf = logic.part(part.name).aux_cf
        _copy(scratch.scan(aux_cf, b"h", b"i"), aux_cf, kv)


def _copy(pairs: Iterable[tuple[bytes, bytes]], cf: str, kv: KV) -> None:
    batch = Batch()
    for n, (key, value) in enumerate(pairs, 1):
        batch.put(cf, key, value)
        if n % COPIED_AT_ONCE == 0:
            kv.write(batch)
            batch = Batch()
    kv.write(batch)
