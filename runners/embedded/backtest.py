"""A backtest: bounded frames replayed through the live operator, in commits of a period, with the time of each row.

Steps are those of an open job: an ingest, an advance to where its messages lead, a commit. State and rows are in memory, and
`now` is the end of the period that is committed: rows are emitted when they would have been.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.connectors.sinks import as_sink
from windrow.core.arrays import IntArray
from windrow.core.errors import BadDuration, ConfigurationError, ReservedColumn
from windrow.core.inputs import Input
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, Duration, duration_us
from windrow.core.types import concat
from windrow.operators.operator import Definition
from windrow.operators.steps.columns import OFFSET, PARTITION, POSITION_COLUMNS, SOURCE
from windrow.operators.steps.dead_letters import of_operator
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import event_times
from windrow.operators.steps.step import StepResult
from windrow.operators.steps.watermarks import watermark_of
from windrow.runners.embedded.bounded import bury, no_rows
from windrow.runners.embedded.intake import Intake
from windrow.runners.embedded.positions import Passed, extent, with_positions
from windrow.runners.embedded.step_transaction import Attempt, Staged, ingested
from windrow.runners.embedded.user_input import many_of
from windrow.stores.kv import MemoryKV, Overlay

EMITTED_AT = "emitted_at"


class InMemoryJob:
    """A job in memory, as far as an intake needs one, and its emitted rows."""

    def __init__(self, definition: Definition) -> None:
        self.definition, self.logic = definition, definition.logic()
        self.kv = MemoryKV(self.logic.cfs())
        self.staged = Staged(Overlay(self.kv), {}, {}, {}, START_OF_TIME_US, None, None)
        self.now_us, self.commits = START_OF_TIME_US, 0
        self.rows: list[pa.Table] = []
        self.result = StepResult()

    def ingest_and_advance(
        self, tables: Mapping[str, pa.Table], passed: Passed, *, prepared: Mapping[str, pa.Table]
    ) -> None:
        first: dict[Partition, int] = {}
        following: dict[Partition, int] = {}
        for table in tables.values():
            low, high = extent(table)
            first.update(low)
            following.update(high)
        attempt = self._attempt()
        count = sum(map(len, tables.values()))
        attempt.ingest(lambda kv: ingested(self.logic, kv, prepared, self.now_us), first, following, count)
        self.advance(attempt)
        self.leave(passed)

    def leave(self, passed: Passed) -> None:
        self.staged.leave(passed)

    def _attempt(self) -> Attempt:
        return Attempt(self.staged.overlay, self.staged.marks, self.staged.watermark_us, self.now_us)

    def advance(self, attempt: Attempt | None = None, to_us: int | None = None) -> bool:
        """Let event time come to where messages and `now` lead; True if anything came of it."""
        tried, staged = attempt or self._attempt(), self.staged
        largest, seen = staged.largest_us(tried.marks), staged.seen_us(tried.marks)
        reached = watermark_of(self.definition, largest, seen, self.now_us, staged.watermark_us)[0]
        watermark, before_us = reached if to_us is None else to_us, staged.watermark_us
        tried.advance(lambda kv: self.logic.advance(kv, watermark, self.now_us), watermark)
        staged.overlay.write(tried.kv.batch)
        staged.stage(tried)
        return watermark != before_us or not all(result.silent for result in tried.results)

    def commit(self, *, drained: bool = False) -> None:
        """Emit the rows of staged steps, with `now`. drained: only the end of event time emits them, at no time"""
        self.commits += 1
        staged, name = self.staged, self.definition.parts[-1].name
        rows = self.logic.emitted(staged.result, self.commits).get(name)
        if rows is not None:
            self.rows.append(stamped(rows, None if drained else self.now_us))
        dead = pa.concat_tables(staged.dead) if staged.dead else None
        self.result = self.result.then(StepResult(dead=dead, counts=staged.counters))
        self.kv.write(staged.overlay.batch)
        kept = (staged.marks, staged.offsets, staged.ordinals, staged.watermark_us)
        self.staged = Staged(Overlay(self.kv), *kept, self.now_us, staged.advanced_us)


def stamped(rows: pa.Table, at_us: int | None) -> pa.Table:
    """Append the time at which rows are emitted; null for none."""
    if EMITTED_AT in rows.column_names:
        raise ReservedColumn(
            f"rows have a column {EMITTED_AT!r}, the name of the one that a backtest adds: rename it"
        )
    return rows.append_column(EMITTED_AT, pa.repeat(pa.scalar(at_us, pa.timestamp("us", "UTC")), len(rows)))


def backtest(
    definition: Definition,
    frames: Mapping[str, Any],
    *,
    commits: Duration,
    arrived: str | None,
    drain: bool,
    dead_letters: Any,
) -> pa.Table:
    """Replay frames by input; see `Verbs.backtest`."""
    period_us = duration_us(commits, "commits")
    if period_us <= 0:
        raise BadDuration(f"commits={commits!r}: use a period of more than 0, e.g. '1 second'")
    inputs = {i.name: i for i in definition.inputs}
    read = {name: _table_of(frame) for name, frame in frames.items()}
    if arrived is not None and not any(arrived in table.column_names for table in read.values()):
        raise ConfigurationError(
            f"arrived={arrived!r}: no frame has this column, their columns are "
            f"{sorted({c for table in read.values() for c in table.column_names})}: name the time at which messages arrive"
        )
    tables = {name: _arrivals(inputs[name], table, arrived) for name, table in read.items()}
    job = InMemoryJob(definition)
    intake = Intake(job, {})
    for number, messages in _periods(tables, period_us, every=_acts_by_now(definition)):
        job.now_us = (number + 1) * period_us
        if messages:
            intake.ingest_messages(messages)
        if messages or job.advance():
            job.commit()
    if drain:
        job.advance(to_us=END_OF_TIME_US)
        job.commit(drained=True)
    if job.result.dead is not None:
        sink = None if dead_letters is None else as_sink(dead_letters)
        bury(definition, of_operator(job.result.dead, definition.name), job.result.counts, sink)
    if job.rows:
        return concat(job.rows)
    return stamped(no_rows(job, intake, {name: table for name, (table, _) in tables.items()}), None)


def _table_of(frame: Any) -> pa.Table:
    many = many_of(frame, "backtest")
    return many if isinstance(many, pa.Table) else pa.Table.from_pylist([dict(m.payload) for m in many])


def _arrivals(input: Input, table: pa.Table, arrived: str | None) -> tuple[pa.Table, IntArray]:
    """Give the messages of an input in the order in which they arrive, and when each does."""
    column = input.event_time if arrived is None or arrived not in table.column_names else arrived
    if input.static and column != arrived:
        return table, np.full(len(table), START_OF_TIME_US, dtype=np.int64)
    if not table.column_names:
        return table, np.zeros(0, dtype=np.int64)
    if column not in table.column_names:
        raise ConfigurationError(
            f"{input.called} has no column {column!r} that says when its messages arrive: name one, "
            f"arrived='received_at', of {table.column_names}"
        )
    read = event_times(table.column(column), column, input.time_zone, input.event_time_unit)
    times = read.fill_null(0).to_numpy()
    times = np.where(read.is_null(), times.min(initial=END_OF_TIME_US, where=read.is_valid()), times)
    if input.positions is None and OFFSET not in table.column_names:
        order = np.argsort(times, kind="stable")
        return table.take(pa.array(order)), times[order]
    placed = with_positions(table.append_column(_ROW, pa.array(np.arange(len(table)))), input.positions, {})
    placed = placed.sort_by([(c, "ascending") for c in POSITION_COLUMNS])
    times = times[combine(placed.column(_ROW)).to_numpy()]
    for start, end in _partitions(placed):
        times[start:end] = np.maximum.accumulate(times[start:end])
    order = np.argsort(times, kind="stable")
    return placed.drop_columns([_ROW]).take(pa.array(order)), times[order]


#: The index of a row before the sort by position.
_ROW = "__row"


def _partitions(placed: pa.Table) -> Iterator[tuple[int, int]]:
    """Yield where each partition begins and ends in rows that are in the order of positions."""
    names = zip(placed.column(SOURCE).to_pylist(), placed.column(PARTITION).to_pylist(), strict=True)
    start, before = 0, None
    for row, name in enumerate(names):
        if name != before and before is not None:
            yield start, row
            start = row
        before = name
    yield start, len(placed)


def _acts_by_now(definition: Definition) -> bool:
    """True if something may be due because `now` passes, without a message."""
    watermarks = [i.watermark for part in definition.parts for i in part.inputs]
    by_now = any(w.kind in ("fixed", "custom") or w.idle_us is not None for w in watermarks)
    return by_now or any(part.periods != frozenset() for part in definition.parts)


def _periods(
    tables: Mapping[str, tuple[pa.Table, IntArray]], period_us: int, *, every: bool
) -> Iterator[tuple[int, dict[str, pa.Table]]]:
    """Yield the number of each period that has messages, with these by input. every: those between them, too, without any."""
    begins = [times[times > START_OF_TIME_US] for _, times in tables.values()]
    first = min((int(times[0]) // period_us for times in begins if len(times)), default=0)
    numbers = {name: np.maximum(times // period_us, first) for name, (_, times) in tables.items()}
    present = np.unique(np.concatenate([n for n in numbers.values()])).tolist()
    before = first
    for number in present:
        if every:
            for empty in range(before + 1, number):
                yield empty, {}
        messages = {}
        for name, (table, _) in tables.items():
            low, high = np.searchsorted(numbers[name], [number, number + 1]).tolist()
            if high > low:
                messages[name] = table.slice(low, high - low)
        yield number, messages
        before = number
