"""The standalone API in Python clothes: add_message, timeout, get_result, flush, get_windows, get_messages.

Every `add_message` is a step of its own: an `ingest` of one, then an `advance`. Steps are staged in memory and committed
together, by `timeout`, `get_result`, `flush` or when enough are staged; the log records every step. After a crash the job
continues from its last commit, and whoever feeds it from `next_offsets()`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.checkpoint.offsets import Partition
from windrow.checkpoint.records import Mark
from windrow.checkpoint.transport import FILES, Transport
from windrow.core.clock import Clock
from windrow.core.errors import (
    OperatorClosed,
    OperatorPaused,
    SinkFailed,
    StateLost,
)
from windrow.core.messages import DeadLetter, Message, Pane, Position, StoredMessage, WindowInfo
from windrow.core.time import END_OF_TIME_US, Instant, instant_us
from windrow.core.types import concat
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.logic import WindowAggregator
from windrow.operators.operator import Logic
from windrow.operators.steps.intake import user_columns
from windrow.operators.steps.learning import check_keys
from windrow.operators.steps.sifting import culprits, is_of_data, sifted
from windrow.operators.steps.step import StepResult
from windrow.operators.view import View, stored
from windrow.runners.embedded.attempt import Attempt, one_at_a_time
from windrow.runners.embedded.engine import Engine
from windrow.runners.embedded.given import Given, Many, check_columns, many_of, message_of
from windrow.runners.embedded.positions import Passed, extent, place, reached_ordinals, with_positions
from windrow.runners.embedded.replay import ReadAgain
from windrow.runners.embedded.runs import Run, Runner
from windrow.runners.letters import letters_of
from windrow.runners.rows import table_of
from windrow.stores.kv import KV, Overlay

#: Staged steps are committed when there are this many of them, or of rows.
COMMIT_STEPS = 1_000
COMMIT_ROWS = 200_000


class EmbeddedOperator(Engine):
    """One windowed operator on one directory. Use it as a context manager; threads that share it take turns."""

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
        self._in_runs = definition.in_runs
        self._columns_known = False

    # -- feeding ----------------------------------------------------------------------------------------------------

    @one_at_a_time
    def add_message(self, message: Given) -> None:
        """Take in one message, a `wr.Message` or a dict: a step of its own, `ingest` then `advance`.

        A message at or below `next_offsets()` is a replay and does nothing. What cannot be counted becomes a dead letter. Where
        this raises, the message was not taken: `OperatorPaused` while the sink refuses what is pending (call `timeout()` until
        it takes it), `UnknownColumn` and `InputError` where the program is wrong, and what earlier messages left to be raised.
        """
        self._check_open()
        one = message_of(message)
        self._make_room()
        if not self._columns_known:
            check_columns(self.definition, self._schema, one.payload)
            self._columns_known = True
        if not self._in_runs:
            self._take_list([one])
            return
        self._now_us = now_us = self._now()
        self._buffer.append((one, now_us, None))

    @one_at_a_time
    def add_messages(self, messages: Many) -> None:
        """Take in many messages as one step: `wr.Message`s or dicts, an Arrow table or batch, a data frame.

        A table needs the input's columns; see `positions` for where rows stand. Where it raises, none was taken.
        """
        self._check_open()
        many = many_of(messages)
        self._make_room()
        self._settle()
        if isinstance(many, pa.Table):
            self._take_table(many)
        else:
            self._take_list(many)

    def _make_room(self) -> None:
        """Commit what is staged where it is enough, before more is taken."""
        if len(self._buffer) < COMMIT_STEPS and len(self._steps) < COMMIT_STEPS and self._rows < COMMIT_ROWS:
            return
        self._settle()
        self._commit()
        self._check_open()  # the sink may have refused

    def _take_table(self, table: pa.Table) -> None:
        ids = () if self.definition.ids is None else self.definition.ids.columns
        check_keys((*self.definition.by, *ids), table.schema)
        placed = with_positions(table, self.definition.positions, self._offsets)
        self._take_slice(placed, Passed({"replayed": len(table) - len(placed)}))

    def _take_list(self, messages: Sequence[Message]) -> None:
        """Inside a step messages are taken in position order, however they came."""
        if messages and not self._columns_known:
            check_columns(self.definition, self._schema, {name for m in messages for name in m.payload})
            self._columns_known = True
        placed = place(messages, self._offsets, self._ordinals, in_position_order=True)
        counts = {"replayed": len(messages) - len(placed.messages)}
        table = self._table_of(placed.messages, placed.positions, counts)
        self._take_slice(table, Passed(counts, placed.ordinals))

    def _take_slice(self, table: pa.Table, passed: Passed) -> None:
        if len(table) == 0:
            self._leave(passed)
            return
        first, following = extent(table)

        def ingest(kv: Overlay, now_us: int) -> StepResult:
            def step(kv: KV, tables: Mapping[str, pa.Table]) -> StepResult:
                result: StepResult = self._operator.ingest(kv, tables, now_us)
                return result

            return sifted(step, kv, {self.definition.inputs[0].name: table})

        self._take_in(ingest, first, following, len(table), passed)

    def _settle(self) -> None:
        """Run the steps of the messages that were added one by one."""
        while self._buffer and not self._closed:
            self._settle_what_counts()

    def _settle_what_counts(self) -> None:
        """Until a message is found that cannot be counted: it is known in the buffer, and the rest has to be cut anew."""
        fed = list(self._buffer)
        placed = place([m for m, _, _ in fed], self._offsets, self._ordinals, in_position_order=False)
        assert isinstance(self._operator, WindowAggregator)
        counts: dict[str, int] = {}
        wrong = [fed[i][2] for i in placed.indices]
        table = self._table_of(placed.messages, placed.positions, counts, wrong)
        runner = Runner(self._operator, self._marks, self._watermark_us, self._last_advance_us)
        done = 0
        for run in runner.cut(table, placed.positions, [fed[i][1] for i in placed.indices]):
            upto = placed.indices[run.stop] if run.stop < len(placed.indices) else len(fed)
            rows = table.slice(run.start, len(run))
            known = {"replayed": upto - done - len(run)}
            passed = Passed(
                known if upto < len(fed) else {**counts, **known},
                reached_ordinals(run.positions),
                upto - done,
            )
            try:
                attempt = self._try(
                    run.nows_us[-1], partial(self._run_of_ones, rows, run, dict(runner.marks))
                )
            except Exception as error:
                if not is_of_data(error):
                    raise
                self._find_wrong(rows, run, error, placed.indices[run.start : run.stop], done)
                return
            self._take_over(attempt, passed)
            done = upto
        if done < len(fed):
            self._leave(Passed({"replayed": len(fed) - done}, buffered=len(fed) - done))

    def _run_of_ones(
        self, table: pa.Table, run: Run, marks: Mapping[Partition, Mark], tried: Attempt
    ) -> None:
        """One ingest and one advance that stand for as many steps as there are messages, and are recorded as such."""
        operator = self._operator
        assert isinstance(operator, WindowAggregator)
        watermarks = np.array(run.watermarks_us, dtype=np.int64)
        nows = np.array(run.nows_us, dtype=np.int64)
        after_us = run.after_us[-1]
        first, following = extent(table)
        tried.ingest(
            lambda kv: operator.take(kv, table, run.nows_us[0], watermarks, nows),
            first,
            following,
            len(table),
        )
        tried.advance(lambda kv: operator.advance(kv, after_us, tried.now_us), after_us)
        tried.ones(run.steps(), marks)

    def _find_wrong(
        self, rows: pa.Table, run: Run, error: Exception, indices: Sequence[int], done: int
    ) -> None:
        """Note in the buffer which messages of a run cannot be counted."""
        marks: dict[Partition, Mark] = {}

        def ingest(kv: KV, tables: Mapping[str, pa.Table]) -> None:
            self._run_of_ones(
                tables[""], run, marks, Attempt(kv, self._marks, self._watermark_us, run.nows_us[-1])
            )

        for (_, row), why in culprits(ingest, self._overlay, {"": rows}, error).items():
            message, now_us, _ = self._buffer[indices[row] - done]
            self._buffer[indices[row] - done] = (message, now_us, why)

    @one_at_a_time
    def timeout(self) -> None:
        """Let time pass: publish what is pending, fire what `now` and the watermark make due; commit, unless nothing came
        and nothing was due.
        """
        self._check_open(paused_ok=True)
        if self._owes:
            self._publish()
        self._ready()
        self._let_time_pass(self._now())

    @one_at_a_time
    def advance_watermark(self, to: Instant) -> None:
        """Say that input is complete up to `to` (for `wr.explicit()` watermarks; others may be pushed ahead by it)."""
        self._check_open()
        to_us = instant_us(to, "watermark")
        self._ready()
        now_us = self._now()
        self._advance_to(max(self._watermark(now_us), to_us), now_us)

    @one_at_a_time
    def drain(self) -> None:
        """Advance the watermark to the end of time: fires everything. All later data will be late."""
        self._ready()
        self._advance_to(END_OF_TIME_US, self._now())
        self._commit()

    def _table_of(
        self,
        messages: Sequence[Message],
        positions: Sequence[Position],
        counts: dict[str, int],
        known_wrong: Sequence[str | None] = (),
    ) -> pa.Table:
        definition = self.definition
        return table_of(
            messages,
            positions,
            event_time=definition.event_time,
            time_zone=definition.time_zone,
            event_time_unit=definition.event_time_unit,
            schema=self._schema,
            needs=self._operator.needs_of(self._overlay, definition.inputs[0].name, {}),
            counts=counts,
            known_wrong=known_wrong,
        )

    # -- results ----------------------------------------------------------------------------------------------------

    @one_at_a_time
    def get_result(self) -> list[Pane]:
        """The panes of committed steps since the last `flush`, each with its token. Commits what is staged first."""
        self._ready()
        self._commit()
        return [p for table in self._outputs for p in self.definition.values(table, self._job.job)]

    @one_at_a_time
    def result_table(self) -> pa.Table:
        """`get_result` as rows."""
        self._ready()
        self._commit()
        if not self._outputs:
            return pa.table({})
        return concat(self._outputs)

    @one_at_a_time
    def flush(self) -> None:
        """Save everything and clear the results: they are acknowledged, and not given again after a crash."""
        self._ready()
        self._commit()
        if self._owes and self._paused is None:
            self._publish()  # which was interrupted
        if self._owes:
            return  # a sink refuses, and only it acknowledges
        if self._outputs:
            self._outputs = []
            self._job.mark_published(self._job.progress.commit)
            self._commit(empty_ok=True)
        self._job.mark_published(self._job.progress.commit)

    @one_at_a_time
    def get_windows(
        self,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        key: Any = None,
        input: str | None = None,
        operator: str | None = None,
    ) -> list[WindowInfo]:
        """Window metadata, sorted, of every retained window that overlaps the closed range `[start, end]`.

        `key`: the key fields' values (one value, a tuple, or a mapping). Tuple windows take sequence numbers. `operator`: of a
        job with several, which; by default the one that has `input`, or the last. Of a join, `input` says of which side: its
        tumbling and hopping windows are those that cover a kept message, a sliding one ends where one stands, an unbounded one
        holds all, one of rows the newest.
        """
        self._ready()
        return self._read(lambda: self._view("windows", operator, input).windows(start, end, key, input))

    @one_at_a_time
    def get_messages(
        self,
        start: tuple[Instant, int] | Instant | None = None,
        end: tuple[Instant, int] | Instant | None = None,
        *,
        key: Any = None,
        input: str | None = None,
        operator: str | None = None,
    ) -> list[StoredMessage]:
        """Kept messages from `(time, offset)` to `(time, offset)`, both inclusive, in key order.

        Joins keep messages, by `input`, and aggregates of the full-state design. `operator`: of a job with several, which; by
        default the one that has `input`, or the last that keeps messages. `key`: by that input's names.
        """
        self._ready()
        view = self._view("messages", operator, input)
        return self._read(lambda: [m for rows in view.messages(start, end, key, input) for m in stored(rows)])

    def _view(self, table: str, operator: str | None, input: str | None) -> View:
        """What may be asked of an operator of the job."""
        name = self._whole.asked(table, operator, input).name
        watermark_us = self._whole.watermark_of(name, self._watermark_us)
        logic: Logic = self._operator.part(name)
        return logic.view([self._overlay], watermark_us, self._whole.part_prefix(name))

    @one_at_a_time
    def next_offsets(self, topic: str | None = None) -> Any:
        """Where to go on reading: {(source, partition): next offset}; with `topic`, what `Consumer.assign` takes."""
        self._ready()
        self._commit()
        offsets = dict(self._offsets)
        if topic is None:
            return offsets
        from windrow.connectors.kafka.cluster import topic_partitions

        return topic_partitions(topic, offsets)

    @one_at_a_time
    def dead_letters(self, commit: int | None = None) -> list[DeadLetter]:
        """What could not be counted, with the reason; all that is kept, or of one commit."""
        self._ready()
        self._commit()
        letters = []
        kept_from = self._job.progress.letters_from
        for kept in self._job.letters():
            if commit not in (None, kept.commit):
                continue
            path = self._job.letter_file(kept)
            if commit is not None and not os.path.exists(path):
                raise StateLost(f"the dead letters of commit {commit} are not kept any more: {path} is gone")
            letters += letters_of(path, kept)
        if commit is not None and commit < kept_from:
            raise StateLost(
                f"the dead letters of commit {commit} are not kept any more: those from commit {kept_from} on are"
            )
        return letters

    @property
    @one_at_a_time
    def counters(self) -> Mapping[str, int]:
        """Totals since the job began: rows, replayed, duplicates, dead.<reason>."""
        self._settle()
        totals = dict(self._job.progress.counters)
        for name, n in self._counters.items():
            totals[name] = totals.get(name, 0) + n
        return totals

    @property
    @one_at_a_time
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
        if self._whole_or_broken.torn:
            raise OperatorClosed(
                f"{self._whole.name!r} was abandoned when {self._broken_by!r} struck inside a step or a commit: open it again, "
                "and read on from next_offsets(); what was committed is there"
            )
        if self._closed:
            raise OperatorClosed(f"{self._whole.name!r} is closed: open it again")
        if self._paused is not None and not paused_ok:
            raise OperatorPaused(
                f"the sink refused the panes of commit {self._job.progress.published + 1} ({self._paused!r}): "
                "call timeout() until it takes them"
            )

    @one_at_a_time
    def close(self) -> None:
        """Commit what is staged and release the directory. What was abandoned commits nothing."""
        if self._closed or self._whole_or_broken.torn:
            self._abandon()
            return
        try:
            if self._paused is None:
                self._settle()
                self._commit()
                if self._owes and self._paused is None:
                    self._publish()
                self._finish_tidying()
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
