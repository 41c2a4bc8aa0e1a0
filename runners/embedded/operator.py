"""Embedded operator, the standalone API: add_message, timeout, get_result, flush, get_windows, get_messages.

Every `add_message` is a step of its own: an `ingest` of one, then an `advance`. Steps are staged in memory and committed
together, by `timeout`, `get_result`, `flush` or when enough are staged; the log records every step. After a crash the job
resumes from its last commit, and its caller feeds it from `next_offsets()`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from windrow.checkpoint.health import Health
from windrow.checkpoint.transport import FILES, Transport
from windrow.core.clock import Clock
from windrow.core.errors import (
    BadWatermark,
    ConfigurationError,
    OperatorClosed,
    OperatorPaused,
    SinkFailed,
    StateLost,
)
from windrow.core.inputs import Input
from windrow.core.messages import DeadLetter
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, Instant, instant_us
from windrow.operators.operator import Definition
from windrow.operators.view import WINDOWS, Query, View
from windrow.runners.embedded.engine import Engine
from windrow.runners.embedded.intake import Intake, Schemas, declared_of
from windrow.runners.embedded.micro_batching import Ones
from windrow.runners.embedded.replay import Again, replay_of
from windrow.runners.embedded.results import Results
from windrow.runners.embedded.step_transaction import one_at_a_time
from windrow.runners.embedded.user_input import Many, MessageLike, message_of
from windrow.runners.paging import START_ORDER, Page, page_of
from windrow.runners.queries import Queries, T, letters_of

if TYPE_CHECKING:
    from windrow.connectors.kafka.client import TopicPartition

#: Staged steps are committed when there are this many of them, or of rows.
COMMIT_STEPS = 1_000
COMMIT_ROWS = 200_000


class Embedded(Queries):
    """An operator, or a graph of them, on one directory. Use it as a context manager; threads that share it take turns."""

    def __init__(
        self,
        definition: Definition,
        location: str,
        *,
        clock: Clock | None = None,
        sink: Any = None,
        schema: Schemas | None = None,
        replay: Again | None = None,
        dead_letters: Any = None,
        log: Transport = FILES,
        store: str = "rocksdb",
    ) -> None:
        self.definition = definition
        self._turn = threading.RLock()
        definition.check_begins()
        declared = declared_of(definition.inputs, schema, definition.name)
        definition.logic().check_schemas(declared)
        self.engine = Engine(
            definition,
            location,
            clock=clock,
            sink=sink,
            replay=None if replay is None else replay_of(definition, replay),
            dead_letters=dead_letters,
            log=log,
            store=store,
        )
        self.definition = definition = self.engine.definition
        self._intake = Intake(self.engine, declared)
        self._ones = Ones(self.engine, self._intake)
        self._in_runs = definition.in_runs
        policies = [i.deliver for part in definition.parts for i in part.inputs if i.deliver is not None]
        #: True if added messages are committed, and their rows emitted, before the call returns.
        self._synchronous = not all(policy.skips for policy in policies)

    # -- feeding ----------------------------------------------------------------------------------------------------

    @one_at_a_time
    def add_message(self, message: MessageLike, input: str | None = None) -> None:
        """Ingest one message, a `wr.Message` or a dict, as a step of its own: `ingest` then `advance`.

        input: the input of the message, where there are several inputs

        A message at or below `next_offsets()` is a replay and does nothing. A message that cannot be counted is a dead letter.
        If this raises, the message was not ingested: `OperatorPaused` while the sink refuses what is pending (call `timeout()`
        until it accepts), `UnknownColumn` and `InputError` where the program is wrong, and errors that earlier messages left.
        """
        self._check_open()
        parsed, input_spec = message_of(message), self._intake.input(input)
        self._make_room()
        if not self._in_runs:
            self._intake.ingest_messages({input_spec.name: [parsed]})
            self._end_synchronously()
            return
        self._intake.check(input_spec, [parsed], {})
        self.engine.waiting.append((parsed, self.engine.now(), None))

    @one_at_a_time
    def add_messages(self, messages: Many | Mapping[str, Many], input: str | None = None) -> None:
        """Ingest many messages as one step: `wr.Message`s or dicts, an Arrow table or batch, a data frame.

        input: the input of the messages, where there are several inputs; or give {input: messages}

        A table needs the input's columns; see `positions` for the positions of rows. A join accepts a table without rows: it
        declares the columns. A step ingests a join's left messages first; over time their order makes no difference. If it
        raises, no message was ingested.
        """
        self._check_open()
        many = self._intake.many(messages, input)
        self._make_room()
        self._ones.settle()
        self._intake.ingest_messages(many)
        self._end_synchronously()

    def _end_synchronously(self) -> None:
        if self._synchronous:
            self.engine.commit()

    def _make_room(self) -> None:
        """Commit staged steps if they are enough, before more messages are ingested."""
        engine = self.engine
        if (
            len(engine.waiting) < COMMIT_STEPS
            and len(engine.staged.steps) < COMMIT_STEPS
            and engine.staged.rows < COMMIT_ROWS
        ):
            return
        self._ones.settle()
        engine.commit()
        self._check_open()  # the sink may have refused

    @one_at_a_time
    def timeout(self) -> None:
        """Let time pass: publish what is pending, emit what `now` and the watermark make due; commit, unless nothing came
        and nothing was due.
        """
        self._check_open(paused_ok=True)
        if self.engine.owes:
            self.engine.publish()
        self._ready()
        self.engine.let_time_pass(self.engine.now())

    @one_at_a_time
    def advance_watermark(self, to: Instant, input: str | None = None) -> None:
        """Declare input complete up to `to` (for `wr.explicit()` watermarks; it may push others ahead).

        input: this input alone, whose watermark has to be `wr.explicit()`. The operator's watermark is then the least of those
            declared for its inputs; it is never below that of an earlier call without `input`

        Raises `BadInstant` (WR116), `BadWatermark` (WR110) where that input has another watermark, `InputError` where there is
        no such input.
        """
        self._check_open()
        to_us = instant_us(to, "watermark")
        input_spec = None if input is None else self._intake.input(input)
        if input_spec is not None and input_spec.watermark.kind != "explicit":
            raise BadWatermark(
                f"advance_watermark(input={input!r}): its watermark is {input_spec.watermark!r}, moved by messages or the "
                "clock: give it watermark=wr.explicit(), or leave input= out"
            )
        self._ready()
        now_us = self.engine.now()
        if input_spec is None:
            to_us = max(self.engine.watermark(now_us), to_us)
        self.engine.advance_to(to_us, now_us, input_spec)

    @one_at_a_time
    def drain(self) -> None:
        """Advance the watermark to the end of time: fires everything. All later data will be late."""
        self._ready()
        self.engine.advance_to(END_OF_TIME_US, self.engine.now())
        self.engine.commit()

    # -- results ----------------------------------------------------------------------------------------------------

    @one_at_a_time
    def get_result(self, operator: str | None = None) -> Results:
        """Return the panes, or a join's rows, of committed steps since the last `flush`, each with its token.

        Commits staged steps first. Of a chain it returns the rows of its last operator; of operators side by side those of one,
        then those of the next. operator: only this one

        A list, whose panes are made on access. For many rows use `get_result().to_pandas()`, `.to_polars()` or
        `result_table()`.
        """
        self._ready()
        self.engine.commit()
        emitted = [(part, self.engine.unflushed.of(part.name)) for part in self._emitting_operators(operator)]
        if len(emitted) == 1 and not emitted[0][1]:
            emitted = [(emitted[0][0], self._no_rows(emitted[0][0]))]
        return Results(emitted, self.engine.job.job)

    def _no_rows(self, definition: Definition) -> tuple[pa.Table, ...]:
        """Give an empty table with the columns that rows would have; nothing before these are known."""
        known = {i.name: self._intake.known(i) or pa.schema([]) for i in definition.inputs}
        try:
            return (definition.logic().schema(known).empty_table(),)
        except (ConfigurationError, KeyError):  # a column is not known yet
            return ()

    @one_at_a_time
    def result_table(self, operator: str | None = None) -> pa.Table:
        """Return `get_result` as an Arrow table; of operators side by side, one has to be named."""
        return self.get_result(operator).to_arrow()

    def _emitting_operators(self, operator: str | None) -> list[Definition]:
        """Return the operators whose rows are asked for."""
        selected = [part for part in self.engine.definitions if operator in (None, part.name)]
        if not selected:
            names = [part.name for part in self.engine.definitions]
            raise ConfigurationError(f"operator {operator!r} has no results here: name one of {names}")
        return selected

    @one_at_a_time
    def flush(self) -> None:
        """Save everything and clear the results: they are acknowledged, and not returned again after a crash."""
        self._ready()
        self.engine.commit()
        if self.engine.owes and self.engine.paused is None:
            self.engine.publish()  # which was interrupted
        if self.engine.owes:
            return  # a sink refuses, and only it acknowledges
        if self.engine.unflushed:
            self.engine.unflushed.clear()
            self.engine.job.mark_published(self.engine.job.progress.commit)
            self.engine.commit(empty_ok=True)
        self.engine.job.mark_published(self.engine.job.progress.commit)

    @one_at_a_time
    def _ask(self, table: str, operator: str | None, input: str | None, ask: Callable[[View], T]) -> T:
        self._ready()
        return self.engine.read(lambda: ask(self._view(table, operator, input)))

    def page(
        self,
        table: str = WINDOWS,
        *,
        order: str = START_ORDER,
        descending: bool = False,
        after: int = 0,
        limit: int = 50,
        contains: str | None = None,
        key: Any = None,
        input: str | None = None,
        operator: str | None = None,
    ) -> Page:
        """Return some rows of a table, as `page` of `wr.read_state` does: `rows`, and the number of all in `total`.

        order: "start", "key" or a column
        after: so many rows are left out before the page
        contains: only rows of which some value contains this text

        Windows are read once, and kept: after that those that changed are read. Other tables are read each time.
        """

        def read(view: View) -> Page:
            if table == WINDOWS and key is None:
                engine = self.engine
                staged = [engine.staged.overlay.batch]
                engine.kept.keep(view.definition.name, view, engine.job.progress.commit, staged)
            return page_of(
                view.stored_table(table, Query(key=key, input=input)),
                view.definition.by,
                order=order,
                descending=descending,
                after=after,
                limit=limit,
                contains=contains,
            )

        return self._ask(table, operator, input, read)

    def _view(self, table: str, operator: str | None, input: str | None) -> View:
        """Return the view of an operator of the job."""
        staged, definition = self.engine.staged, self.definition
        name = definition.asked(table, operator, input).name
        watermark_us = definition.watermark_of(name, staged.watermark_us)
        return self.engine.logic.part(name).view([staged.overlay], watermark_us)

    @one_at_a_time
    def next_offsets(
        self, partitions: Sequence[TopicPartition] | None = None, *, input: str | None = None
    ) -> Any:
        """Return where to resume reading: {(source, partition): next offset}, of the partitions that messages have come from.

        partitions: of a consumer, as `on_assign` gets them or `[TopicPartition("orders", 0), ...]`. Each comes back with its
            offset, for `Consumer.assign`: one that no message has come from with the offset that it has, or from its beginning
        input: of that one alone

        Where messages name their input it is {input: {(source, partition): next offset}}. A topic that feeds several inputs is
        read from the lowest of their offsets where none is named.
        """
        self._ready()
        self.engine.commit()
        asked = self._intake.inputs if input is None else (self._intake.input(input),)
        by_input = {input.name: self._offsets_of(input) for input in asked}
        if partitions is None:
            return by_input if input is None and self.definition.by_input else by_input[asked[0].name]
        from windrow.connectors.kafka.cluster import assigned

        return assigned(partitions, list(by_input.values()))

    def _offsets_of(self, input: Input) -> dict[Partition, int]:
        prefix, offsets = input.source_prefix, self.engine.staged.offsets
        return {(s.removeprefix(prefix), p): n for (s, p), n in offsets.items() if s.startswith(prefix)}

    @one_at_a_time
    def dead_letters(self, commit: int | None = None) -> list[DeadLetter]:
        """Return the dead letters with their reasons: all that are kept, or those of one commit."""
        self._ready()
        self.engine.commit()
        dead = []
        kept_from = self.engine.job.progress.letters_from
        for kept in self.engine.job.dead_letters():
            if commit not in (None, kept.commit):
                continue
            path = self.engine.job.letter_file(kept)
            if commit is not None and not os.path.exists(path):
                raise StateLost(f"the dead letters of commit {commit} are not kept any more: {path} is gone")
            dead += letters_of(path, kept)
        if commit is not None and commit < kept_from:
            raise StateLost(
                f"the dead letters of commit {commit} are not kept any more: those from commit {kept_from} on are"
            )
        return dead

    @property
    @one_at_a_time
    def counters(self) -> Mapping[str, int]:
        """Totals since the job began: rows, replayed, duplicates, dead.<reason>."""
        self._ones.settle()
        totals = dict(self.engine.job.progress.counters)
        for name, n in self.engine.staged.counters.items():
            totals[name] = totals.get(name, 0) + n
        return totals

    @property
    @one_at_a_time
    def watermark(self) -> int:
        """Microseconds since the epoch."""
        self._ones.settle()
        return self.engine.staged.watermark_us

    @property
    def paused(self) -> bool:
        """True while the sink refuses what is pending."""
        return self.engine.paused is not None

    @property
    def job(self) -> str:
        return self.engine.job.job

    @property
    def last_commit(self) -> int:
        return self.engine.job.progress.commit

    @property
    @one_at_a_time
    def columns(self) -> list[str]:
        """The input's columns as known so far; of a join those of its rows."""
        return self._intake.columns()

    def health(self) -> Health:
        """Return the job's health as of its last commit: age, watermark and what holds it back, commits not published yet."""
        return self.engine.health()

    # -- life -------------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        """Settle pending messages: every call sees the messages that were added before it."""
        self._check_open()
        self._ones.settle()

    def _check_open(self, *, paused_ok: bool = False) -> None:
        if self.engine.whole.torn:
            raise OperatorClosed(
                f"{self.definition.name!r} was abandoned when {self.engine.broken_by!r} struck inside a step or a commit: "
                "open it again, and read on from next_offsets(); what was committed is there"
            )
        if self.engine.closed:
            raise OperatorClosed(f"{self.definition.name!r} is closed: open it again")
        if self.engine.paused is not None and not paused_ok:
            raise OperatorPaused(
                f"the sink refused the panes of commit {self.engine.job.progress.published + 1} ({self.engine.paused!r}): "
                "call timeout() until it takes them"
            )

    @one_at_a_time
    def close(self) -> None:
        """Commit staged steps and release the directory. An abandoned operator commits nothing."""
        if self.engine.closed or self.engine.whole.torn:
            self.abandon()
            return
        try:
            if self.engine.paused is None:
                self._ones.settle()
                self.engine.commit()
                if self.engine.owes and self.engine.paused is None:
                    self.engine.publish()
                self.engine.finish_tidying()
            if self.engine.paused is not None:
                raise SinkFailed(
                    f"closed with panes that the sink refused: {self.engine.paused!r}; they go out at the next open"
                )
        finally:
            self.engine.release()

    def abandon(self) -> None:
        """Release the directory as it is: staged steps are lost, as in a crash. A `with` that an error leaves does the same."""
        self.engine.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def __repr__(self) -> str:
        state = "closed" if self.engine.closed else f"commit {self.engine.job.progress.commit}"
        return f"<{self.definition!r} at {self.engine.job.folders.location}, {state}>"

    @one_at_a_time
    def _repr_html_(self) -> str:
        """Return the job with its windows, for a notebook; one that is closed has only its name."""
        open_ = not self.engine.closed and not self.engine.whole.torn and self.engine.paused is None
        if open_:
            self._ones.settle()
        staged = self.engine.staged
        progress = {
            "job": self.job,
            "commit": self.last_commit,
            "paused by": self.engine.paused and repr(self.engine.paused),
        }
        parts = self.definition.parts if open_ else ()
        watermarks = {p.name: self.definition.watermark_of(p.name, staged.watermark_us) for p in parts}
        title = f"{self.definition.name} at {self.engine.job.folders.location}"
        return self._html(title, progress, watermarks, parts)
