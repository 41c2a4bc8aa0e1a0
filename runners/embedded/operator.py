"""Seed 003's standalone API in Python clothes: add_message, timeout, get_result, flush, get_windows, get_messages.

Every `add_message` is a step of its own: an `ingest` of one, then an `advance`. Steps are staged in memory and committed
together, by `timeout`, `get_result`, `flush` or when enough are staged; the log records every step. After a crash the job
continues from its last commit, and whoever feeds it from `next_offsets()`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.checkpoint.records import Step
from windrow.checkpoint.transport import FILES, Transport
from windrow.core.clock import Clock
from windrow.core.definition import AggregateDefinition
from windrow.core.errors import (
    OperatorClosed,
    OperatorPaused,
    SinkFailed,
    StateLost,
)
from windrow.core.messages import DeadLetter, Message, Pane, Position, StoredMessage, WindowInfo
from windrow.core.time import END_OF_TIME_US, Instant, instant_us
from windrow.core.types import concat
from windrow.operators.aggregate import WindowAggregator
from windrow.operators.intake import user_columns
from windrow.operators.output import to_infos, to_panes
from windrow.operators.step import StepResult
from windrow.runners.embedded.engine import Engine
from windrow.runners.embedded.positions import Placed, extent, place, with_positions
from windrow.runners.embedded.queries import letters_of, messages_between, windows_between
from windrow.runners.embedded.replay import ReadAgain
from windrow.runners.embedded.runs import Run, Runner, runs
from windrow.runners.rows import table_of
from windrow.stores.kv import KV

#: Staged steps are committed when there are this many of them, or of rows.
COMMIT_STEPS = 1_000
COMMIT_ROWS = 200_000


class EmbeddedOperator(Engine):
    """One windowed operator on one directory. Use it as a context manager, from one thread."""

    def __init__(
        self,
        definition: AggregateDefinition,
        location: str,
        *,
        clock: Clock | None = None,
        sink: Any = None,
        schema: pa.Schema | None = None,
        replay: ReadAgain | None = None,
        dead_letters: Any = None,
        log: Transport = FILES,
    ) -> None:
        super().__init__(
            definition,
            location,
            clock=clock,
            sink=sink,
            schema=schema,
            replay=replay,
            dead_letters=dead_letters,
            log=log,
        )
        self._in_runs = isinstance(definition, AggregateDefinition) and runs(definition)
        self._buffer: list[tuple[Message, int]] = []

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
        placed = self._place([m for m, _ in fed], in_position_order=False)
        assert isinstance(self._operator, WindowAggregator)
        runner = Runner(self._operator, self._marks, self._watermark_us, self._last_advance_us)
        done = 0
        for run in runner.cut(
            [
                (m, p, fed[i][1])
                for m, p, i in zip(placed.messages, placed.positions, placed.indices, strict=True)
            ]
        ):
            done += len(run.messages)
            try:
                self._run_of_ones(self._table_of(run.messages, run.positions), run)
            except BaseException:
                # The messages after this run were not looked at: they stay to be.
                self._buffer = [fed[i] for i in placed.indices[done:]]
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
            nows = np.array(run.nows_us, dtype=np.int64)
            first = operator.ingest(kv, table, run.nows_us[0], watermarks, nows)
            second = operator.advance(kv, after_us, now_us)
            return first.then(second)

        first, following = extent(table)
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
            table = self._placed(messages)
        else:
            listed = list(messages)
            if not listed:
                return
            table = self._table(listed)
        if len(table) == 0:
            return
        first, following = extent(table)
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
        placed = self._place(messages, in_position_order=True)
        return self._table_of(placed.messages, placed.positions)

    def _place(self, messages: Sequence[Message], *, in_position_order: bool) -> Placed:
        placed = place(messages, self._offsets, self._ordinals, in_position_order=in_position_order)
        self._ordinals = placed.ordinals
        self._replayed(len(messages) - len(placed.messages))
        return placed

    def _placed(self, table: pa.Table) -> pa.Table:
        placed = with_positions(table, self.definition.positions, self._offsets)
        self._replayed(len(table) - len(placed))
        return placed

    def _replayed(self, n: int) -> None:
        if n:
            self._counters["replayed"] = self._counters.get("replayed", 0) + n

    def _table_of(self, messages: Sequence[Message], positions: Sequence[Position]) -> pa.Table:
        definition = self.definition
        return table_of(
            messages,
            positions,
            event_time=definition.event_time,
            time_zone=definition.time_zone,
            schema=self._schema,
            needs=self._operator.needs,
            counts=self._counters,
        )

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
        return concat(self._outputs)

    def flush(self) -> None:
        """Save everything and clear the results: they are acknowledged, and not given again after a crash."""
        self._ready()
        self._commit()
        if self._paused is not None:
            return  # a sink refuses, and only it acknowledges
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
        from windrow.connectors.kafka.cluster import topic_partitions

        return topic_partitions(topic, offsets)

    def dead_letters(self, commit: int | None = None) -> list[DeadLetter]:
        """What could not be counted, with the reason; all that is kept, or of one commit."""
        self._ready()
        self._commit()
        letters = []
        for record in self._job.commits():
            if commit is not None and record.commit != commit:
                continue
            gone = [f for f in self._job.dead_files(record) if not os.path.exists(f)]
            if gone and commit is not None:
                raise StateLost(
                    f"the dead letters of commit {commit} are not kept any more: {gone[0]} is gone"
                )
            for result in record.shards if not gone else ():
                letters += letters_of(self._job.folders.dead, result, record.commit)
        return letters

    @property
    def counters(self) -> Mapping[str, int]:
        """Totals since the job began: rows, replayed, duplicates, dead.<reason>."""
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
    def paused(self) -> bool:
        """True while the sink refuses what is pending."""
        return self._paused is not None

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
