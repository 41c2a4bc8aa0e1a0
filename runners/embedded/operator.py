"""Seed 003's standalone API in Python clothes: add_message, timeout, get_result, flush, get_windows, get_messages.

Every `add_message` is a step of its own: an `ingest` of one, then an `advance`. Steps are staged in memory and committed
together, by `timeout`, `get_result`, `flush` or when enough are staged; the log records every step. After a crash the job
continues from its last commit, and whoever feeds it from `next_offsets()`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from windrow.checkpoint.job import Job
from windrow.checkpoint.offsets import Partition
from windrow.checkpoint.records import Commit, Mark, ShardResult, Step
from windrow.checkpoint.shard import DEAD_FILE, MARKER, MARKER_CF, Replay, Shard, ShardSpec
from windrow.connectors.sinks import PaneFiles, Sink, as_sink
from windrow.core.clock import Clock, SystemClock
from windrow.core.definition import AggregateDefinition
from windrow.core.errors import (
    CorruptState,
    InputError,
    OperatorClosed,
    OperatorPaused,
    SinkFailed,
    StateError,
)
from windrow.core.messages import DeadLetter, Message, Pane, Position, StoredMessage, Token, WindowInfo
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, Instant, instant_us
from windrow.operators.aggregate import StepResult, WindowAggregator
from windrow.operators.calculation import Calculation
from windrow.operators.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.operators.intake import user_columns
from windrow.operators.output import pane_rows, pane_schema, to_infos, to_panes
from windrow.operators.progress import Progress
from windrow.operators.tuples import TupleAggregator
from windrow.operators.watermarks import idle_partitions, watermark_us
from windrow.runners.embedded.queries import messages_between, windows_between
from windrow.runners.embedded.runs import Run, Runner, runs
from windrow.runners.rows import table_of
from windrow.stores.kv import KV, Batch, Overlay

logger = structlog.get_logger("windrow")
T = TypeVar("T")

#: Staged steps are committed when there are this many of them, or of rows.
COMMIT_STEPS = 1_000
COMMIT_ROWS = 200_000
#: A snapshot and a compacted changelog every so many commits.
SNAPSHOT_EVERY = 256


def operator_of(definition: AggregateDefinition) -> WindowAggregator | TupleAggregator:
    """The logic of a definition."""
    return TupleAggregator(definition) if definition.tuple_window else WindowAggregator(definition)


class EmbeddedOperator:
    """One windowed operator on one directory. Use it as a context manager, from one thread."""

    def __init__(
        self,
        definition: AggregateDefinition,
        location: str,
        *,
        clock: Clock | None = None,
        sink: Any = None,
        schema: pa.Schema | None = None,
        replay: Replay | None = None,
    ) -> None:
        self.definition = definition
        self._clock = clock or SystemClock()
        self._schema = schema
        self._operator = operator_of(definition)
        self._job = Job(location, [definition], shards=1, clock=self._clock)
        cfs = self._operator.cfs()
        kept = tuple(c for c in cfs if c.endswith((".messages", ".message_index")))
        metadata = tuple(c for c in cfs if c not in kept)
        self._spec = ShardSpec(self._job.folders, self._job.job, 0, metadata, kept)
        self._replay = replay
        try:
            self._shard = self._open_shard()
        except BaseException:
            self._job.close()
            raise
        self._sink: Sink | None = None if sink is None else as_sink(sink)
        self._closed = False
        self._paused: BaseException | None = None
        self._outputs: list[pa.Table] = []
        self._last_snapshot = self._job.progress.commit
        self._in_runs = runs(definition)
        self._buffer: list[tuple[Message, int]] = []
        self._overlay: Overlay = self._shard.overlay()
        self._stage()
        progress = self._read(lambda: Progress.load(self._shard.kv, self._operator.aux_cf))
        self._last_advance_us = progress.now_us
        if schema is None:
            self._schema = progress.schema
        self._bring_back()

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
        self._panes: list[pa.Table] = []
        self._dead: list[pa.Table] = []
        self._counters: dict[str, int] = {}
        self._rows = 0
        self._marks: dict[Partition, Mark] = dict(progress.marks)
        self._fresh_marks: dict[Partition, int] = {}
        self._offsets: dict[Partition, int] = dict(progress.next_offsets)
        self._now_us = progress.now_us
        self._watermark_us = progress.watermarks_us.get(self.definition.name, START_OF_TIME_US)
        last = self._job.log.last_commit
        ordinals = last.meta.get("ordinals", []) if last is not None else []
        self._ordinals: dict[Partition, int] = {(s, p): o for s, p, o in ordinals}

    def _bring_back(self) -> None:
        """Panes of commits that nobody has acknowledged: published first, or given again by `get_result`."""
        if self._sink is not None:
            self._publish()
            return
        for record in self._job.unpublished():
            for files in self._job.pane_files(record).values():
                self._outputs += [pq.read_table(f) for f in files]

    # -- feeding ----------------------------------------------------------------------------------------------------

    def add_message(self, message: Message) -> None:
        """Take in one message: a step of its own, `ingest` then `advance`.

        A message at or below `next_offsets()` is a replay and does nothing. Raises `OperatorPaused` while the sink refuses
        what is pending: call `timeout()` until it takes it.
        """
        self._check_open()
        if not self._in_runs:
            self.add_messages([message])
            return
        self._buffer.append((message, self._now()))
        self._now_us = self._buffer[-1][1]
        if len(self._buffer) >= COMMIT_STEPS:
            self._settle()
            self._commit()

    def _settle(self) -> None:
        """Run the steps of the messages that were added one by one."""
        if not self._buffer:
            return
        fed, self._buffer = self._buffer, []
        kept, positions, indices = self._new_ones([m for m, _ in fed], in_position_order=False)
        assert isinstance(self._operator, WindowAggregator)
        runner = Runner(self._operator, self._marks, self._watermark_us, self._last_advance_us)
        done = 0
        for run in runner.cut([(m, p, fed[i][1]) for m, p, i in zip(kept, positions, indices, strict=True)]):
            done += len(run.messages)
            try:
                self._run_of_ones(self._table_of(run.messages, run.positions), run)
            except BaseException:
                # The messages after this run were not looked at: they stay to be.
                self._buffer = [fed[i] for i in indices[done:]]
                raise
            self._marks = dict(runner.marks)

    def _run_of_ones(self, table: pa.Table, run: Run) -> None:
        """One ingest and one advance that stand for as many steps as there are messages, and are recorded as such."""
        operator = self._operator
        assert isinstance(operator, WindowAggregator)
        watermarks = np.array(run.watermarks_us, dtype=np.int64)
        now_us, after_us = run.nows_us[-1], run.after_us[-1]
        n = len(self._steps)

        def both(kv: KV) -> StepResult:
            first = operator.ingest(kv, table, run.nows_us[0], watermarks)
            second = operator.advance(kv, after_us, now_us)
            return first.then(second)

        first, following = self._extent(table)
        self._watermark_us = after_us
        self._run("ingest", now_us, both, first, following, len(table))
        del self._steps[n:]
        for position, before, after, now in zip(
            run.positions, run.watermarks_us, run.after_us, run.nows_us, strict=True
        ):
            partition = (position.source, position.partition)
            self._steps.append(
                Step(
                    kind="ingest",
                    now_us=now,
                    watermark_us=before,
                    first_offsets={partition: position.offset},
                    next_offsets={partition: position.offset + 1},
                    rows=1,
                )
            )
            self._steps.append(Step(kind="advance", now_us=now, watermark_us=after))
        self._last_advance_us = now_us

    def add_messages(self, messages: Iterable[Message] | pa.Table | pa.RecordBatch) -> None:
        """Take in many messages as one step. A table needs the input's columns; see `positions` for where rows stand."""
        self._ready()
        if isinstance(messages, pa.RecordBatch):
            messages = pa.Table.from_batches([messages])
        if isinstance(messages, pa.Table):
            table = self._with_positions(messages)
        else:
            listed = list(messages)
            if not listed:
                return
            table = self._table(listed)
        if len(table) == 0:
            return
        first, following = self._extent(table)
        now_us = self._now()
        self._run(
            "ingest",
            now_us,
            lambda kv: self._operator.ingest(kv, table, now_us),
            first,
            following,
            len(table),
        )
        self._advance_to(self._watermark(now_us), now_us)
        if len(self._steps) >= COMMIT_STEPS or self._rows >= COMMIT_ROWS:
            self._commit()

    def timeout(self) -> None:
        """Let time pass: publish what is pending, fire what `now` and the watermark make due, commit."""
        self._check_open(paused_ok=True)
        if self._paused is not None:
            self._publish()
        self._ready()
        now_us = self._now()
        self._advance_to(self._watermark(now_us), now_us, always=True)
        self._commit()

    def advance_watermark(self, to: Instant) -> None:
        """Say that input is complete up to `to` (for `wr.explicit()` watermarks; others may be pushed ahead by it)."""
        self._ready()
        now_us = self._now()
        self._advance_to(max(self._watermark(now_us), instant_us(to, "watermark")), now_us)

    def drain(self) -> None:
        """Advance the watermark to the end of time: fires everything. All later data will be late."""
        self._ready()
        self._advance_to(END_OF_TIME_US, self._now(), always=True)
        self._commit()

    def _table(self, messages: Sequence[Message]) -> pa.Table:
        """Messages that are not replays, as a slice. Inside a step they are taken in position order, however they came."""
        kept, positions, _ = self._new_ones(messages, in_position_order=True)
        return self._table_of(kept, positions)

    def _table_of(self, messages: Sequence[Message], positions: Sequence[Position]) -> pa.Table:
        definition = self.definition
        return table_of(
            messages,
            positions,
            event_time=definition.event_time,
            time_zone=definition.time_zone,
            schema=self._schema,
        )

    def _new_ones(
        self, messages: Sequence[Message], *, in_position_order: bool
    ) -> tuple[list[Message], list[Position], list[int]]:
        """Messages that are not replays, their positions (numbers where they had none), and which of `messages` they are."""
        kept: list[Message] = []
        positions: list[Position] = []
        indices: list[int] = []
        offsets, ordinals = dict(self._offsets), dict(self._ordinals)
        number = offsets.get(("", 0), 0)
        placed = []
        for i, message in enumerate(messages):
            position = message.position
            if position is None:
                position, number = Position("", 0, number), number + 1
            placed.append((Position(*position), i, message))
        if in_position_order:
            placed.sort(key=lambda one: one[0])
        for position, i, message in placed:
            partition = (position.source, position.partition)
            reached = offsets.get(partition, 0)
            if position.offset < reached and not (
                position.offset == reached - 1 and position.ordinal > ordinals.get(partition, 0)
            ):
                self._counters["replayed"] = self._counters.get("replayed", 0) + 1
                continue
            offsets[partition] = position.offset + 1
            ordinals[partition] = position.ordinal
            kept.append(message)
            positions.append(position)
            indices.append(i)
        self._ordinals = ordinals
        return kept, positions, indices

    def _with_positions(self, table: pa.Table) -> pa.Table:
        """Position columns by the definition's names; a table without is numbered on arrival."""
        named = self.definition.positions
        n = len(table)
        if named is None:
            start = self._offsets.get(("", 0), 0)
            offsets = pa.array(range(start, start + n), pa.int64())
            source, partition = pa.array([""] * n, pa.string()), pa.array([0] * n, pa.int64())
        else:
            offsets = table.column(named.offset).cast(pa.int64())
            source = (
                pa.array([""] * n, pa.string())
                if named.source is None
                else table.column(named.source).cast(pa.string())
            )
            partition = (
                pa.array([0] * n, pa.int64())
                if named.partition is None
                else table.column(named.partition).cast(pa.int64())
            )
        for name, column in ((SOURCE, source), (PARTITION, partition), (OFFSET, offsets)):
            table = table.append_column(name, column)
        table = table.append_column(ORDINAL, pa.array([0] * n, pa.int64()))
        if named is None:
            return table
        keep = [
            o >= self._offsets.get((s, p), 0)
            for s, p, o in zip(
                *(table.column(c).to_pylist() for c in (SOURCE, PARTITION, OFFSET)), strict=True
            )
        ]
        if not all(keep):
            self._counters["replayed"] = self._counters.get("replayed", 0) + keep.count(False)
            table = table.filter(pa.array(keep))
        return table

    @staticmethod
    def _extent(table: pa.Table) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """First and following offset of each partition in a slice."""
        grouped = table.group_by([SOURCE, PARTITION], use_threads=False).aggregate(
            [(OFFSET, "min"), (OFFSET, "max")]
        )
        rows = grouped.to_pylist()
        first = {(r[SOURCE], r[PARTITION]): r[f"{OFFSET}_min"] for r in rows}
        return first, {(r[SOURCE], r[PARTITION]): r[f"{OFFSET}_max"] + 1 for r in rows}

    # -- steps ------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        now_us = self._clock.now_us()
        return now_us if self._now_us is None else max(now_us, self._now_us)

    def _watermark(self, now_us: int) -> int:
        definition = self.definition
        seen = {p: m.seen_us for p, m in self._marks.items() if m.seen_us is not None}
        largest = {p: m.max_time_us for p, m in self._marks.items() if m.max_time_us is not None}
        idle = idle_partitions(definition.watermark, seen, now_us)
        return watermark_us(definition.watermark, largest, now_us, self._watermark_us, idle)

    def _advance_to(self, watermark: int, now_us: int, *, always: bool = False) -> None:
        self._watermark_us, self._last_advance_us = watermark, now_us
        self._run("advance", now_us, lambda kv: self._operator.advance(kv, watermark, now_us), {}, {}, 0)

    def _run(
        self,
        kind: Any,
        now_us: int,
        step: Any,
        first: dict[Partition, int],
        following: dict[Partition, int],
        rows: int,
    ) -> None:
        """One step; a step that raises leaves nothing behind."""

        def tried() -> tuple[StepResult, Batch]:
            attempt = Overlay(self._overlay)
            return step(attempt), attempt.batch

        result, changes = self._read(tried)
        self._overlay.write(changes)
        self._now_us = now_us
        if self._calculation_known():
            self._schema = self._calculation.schema
        self._panes += result.panes
        if result.dead is not None:
            self._dead.append(result.dead)
        for name, n in result.counts.items():
            self._counters[name] = self._counters.get(name, 0) + n
        for partition, largest in result.marks.items():
            known = self._marks.get(partition)
            highest = (
                largest if known is None or known.max_time_us is None else max(largest, known.max_time_us)
            )
            self._marks[partition] = Mark(max_time_us=highest, seen_us=now_us)
            self._fresh_marks[partition] = highest
        self._offsets.update(following)
        self._rows += rows
        if rows:
            self._counters["rows"] = self._counters.get("rows", 0) + rows
        self._steps.append(
            Step(
                kind=kind,
                now_us=now_us,
                watermark_us=self._watermark_us,
                first_offsets=first,
                next_offsets=following,
                rows=rows,
            )
        )

    @property
    def _calculation(self) -> Calculation:
        return self._operator.calculation

    # -- commit -----------------------------------------------------------------------------------------------------

    def _commit(self, *, empty_ok: bool = False) -> Commit | None:
        """Make the staged steps durable, then their panes visible."""
        if not self._steps and not self._counters and not empty_ok:
            return None
        job, number = self._job, self._job.progress.commit + 1
        panes: dict[str, pa.Table] = {}
        if self._panes:
            schema = pane_schema(self.definition, self._calculation)
            panes[self.definition.name] = pane_rows(self.definition, schema, self._panes, number)
        dead = pa.concat_tables(self._dead) if self._dead else None
        if dead is not None:
            dead = dead.append_column("operator", pa.array([self.definition.name] * len(dead)))
        snapshot = self._snapshot_due()
        changes = self._overlay.batch
        result = self._shard.write(number, changes, panes, dead, self._counters, snapshot=snapshot)
        now_us = self._now() if self._now_us is None else self._now_us
        record = job.commit(
            number,
            self._steps,
            [result],
            marks=self._fresh_marks,
            seen_us={p: m.seen_us for p, m in self._marks.items() if m.seen_us is not None},
            next_offsets=self._offsets,
            watermarks_us={self.definition.name: self._watermark_us},
            now_us=now_us,
            counters=self._counters,
            meta={"ordinals": [[s, p, o] for (s, p), o in sorted(self._ordinals.items())], "now_us": now_us},
        )
        applied = Batch()
        applied.extend(changes)
        applied.put(MARKER_CF, MARKER, self._shard.marker(number))
        self._shard.kv.write(applied)
        self._shard.applied = number
        if panes and self._sink is None:
            self._outputs.append(panes[self.definition.name])
        self._stage()
        if snapshot is not None:
            job.sweep({0: number - 1})
        if self._sink is not None:
            self._publish()
        return record

    def _calculation_known(self) -> bool:
        return self._operator._calculation is not None

    def _snapshot_due(self) -> str | None:
        applied = self._shard.applied
        if applied - self._last_snapshot < SNAPSHOT_EVERY:
            return None
        self._last_snapshot = applied
        self._read(lambda: self._shard.write_base())
        return self._shard.snapshot()

    def _publish(self) -> None:
        """Give the sink the panes of every commit that is not out yet, in order."""
        assert self._sink is not None
        self._paused = None
        for record in self._job.unpublished(self._sink.last_commit(self._job.job, self.definition.name)):
            for operator, files in self._job.pane_files(record).items():
                rows = sum(pq.read_metadata(f).num_rows for f in files)
                panes = PaneFiles(tuple(files), rows, operator, self.definition, self._job.job)
                try:
                    self._sink.publish(Token(self._job.job, record.commit), panes)
                except Exception as error:
                    self._paused = error
                    logger.warning("sink refused", commit=record.commit, error=repr(error))
                    return
            self._job.mark_published(record.commit)
        self._job.mark_published(self._job.progress.commit)

    # -- results ----------------------------------------------------------------------------------------------------

    def get_result(self) -> list[Pane]:
        """The panes of committed steps since the last `flush`, each with its token. Commits what is staged first."""
        self._ready()
        self._commit()
        return [p for table in self._outputs for p in to_panes(self.definition, table, self._job.job)]

    def result_table(self) -> pa.Table:
        """`get_result` as rows."""
        self._ready()
        self._commit()
        if not self._outputs:
            return pa.table({})
        return pa.concat_tables(self._outputs, promote_options="permissive")

    def flush(self) -> None:
        """Save everything and clear the results: they are acknowledged, and not given again after a crash."""
        self._ready()
        self._commit()
        if self._outputs:
            self._outputs = []
            self._job.mark_published(self._job.progress.commit)
            self._commit(empty_ok=True)
        self._job.mark_published(self._job.progress.commit)

    def get_windows(
        self, start: Instant | None = None, end: Instant | None = None, *, key: Any = None
    ) -> list[WindowInfo]:
        """Window metadata, sorted, of every retained window that overlaps the closed range `[start, end]`.

        `key`: the key fields' values (one value, a tuple, or a mapping). Tuple windows take sequence numbers.
        Seed 003 "Get Windows".
        """
        self._ready()
        rows, values = self._read(lambda: windows_between(self._operator, self._overlay, start, end, key))
        return to_infos(self.definition, rows, values, self._watermark_us)

    def get_messages(
        self,
        start: tuple[Instant, int] | Instant | None = None,
        end: tuple[Instant, int] | Instant | None = None,
        *,
        key: Any = None,
    ) -> list[StoredMessage]:
        """Messages from `(time, offset)` to `(time, offset)`, both inclusive, in key order. Seed 003 "Get Messages".

        Only operators of the full-state design keep messages.
        """
        self._ready()
        return self._read(lambda: messages_between(self._operator, self._overlay, start, end, key))

    def next_offsets(self, topic: str | None = None) -> Any:
        """Where to go on reading: {(source, partition): next offset}; with `topic`, what `Consumer.assign` takes."""
        self._ready()
        self._commit()
        offsets = dict(self._offsets)
        if topic is None:
            return offsets
        from windrow.connectors.kafka import topic_partitions

        return topic_partitions(topic, offsets)

    def dead_letters(self, commit: int | None = None) -> list[DeadLetter]:
        """What could not be counted, with the reason; all that is kept, or of one commit."""
        self._ready()
        self._commit()
        letters = []
        for record in self._job.commits():
            if commit is not None and record.commit != commit:
                continue
            for result in record.shards:
                letters += _letters(self._job.folders.dead, result, record.commit)
        return letters

    @property
    def counters(self) -> Mapping[str, int]:
        """Totals since the job began: rows, replayed, dead.<reason>."""
        self._settle()
        totals = dict(self._job.progress.counters)
        for name, n in self._counters.items():
            totals[name] = totals.get(name, 0) + n
        return totals

    @property
    def watermark(self) -> int:
        """Microseconds since the epoch."""
        self._settle()
        return self._watermark_us

    @property
    def job(self) -> str:
        return self._job.job

    @property
    def last_commit(self) -> int:
        return self._job.progress.commit

    @property
    def columns(self) -> list[str]:
        """The input's columns as known so far."""
        return [] if self._schema is None else user_columns(self._schema.empty_table())

    # -- life -------------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        """Every call sees the messages that were added before it."""
        self._check_open()
        self._settle()

    def _check_open(self, *, paused_ok: bool = False) -> None:
        if self._closed:
            raise OperatorClosed(f"{self.definition.name!r} is closed: open it again")
        if self._paused is not None and not paused_ok:
            raise OperatorPaused(
                f"the sink refused the panes of commit {self._job.progress.published + 1} ({self._paused!r}): "
                "call timeout() until it takes them"
            )

    def close(self) -> None:
        """Commit what is staged and release the directory."""
        if self._closed:
            return
        try:
            if self._paused is None:
                self._settle()
                self._commit()
            if self._paused is not None:
                raise SinkFailed(
                    f"closed with panes that the sink refused: {self._paused!r}; they go out at the next open"
                )
        finally:
            self._abandon()

    def _abandon(self) -> None:
        self._closed = True
        self._shard.close()
        self._job.close()

    def __enter__(self) -> EmbeddedOperator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"commit {self._job.progress.commit}"
        return f"<{self.definition!r} at {self._job.folders.location}, {state}>"


def _letters(path_of: Any, result: ShardResult, commit: int) -> list[DeadLetter]:
    if not result.counters.get(DEAD_FILE):
        return []
    name = result.segment or result.panes
    if name is None:
        raise InputError(f"commit {commit} counts dead letters and names no file")
    letters = []
    for row in pq.read_table(path_of(name)).to_pylist():
        position = None
        if row["offset"] is not None:
            position = Position(row["source"], row["partition"], row["offset"], row["ordinal"] or 0)
        letters.append(
            DeadLetter(row["reason"], row["detail"], position, row["event_time_us"], row["payload"], commit)
        )
    return letters
