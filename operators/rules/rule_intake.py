"""Intake of rules: messages of a step that count, their intervals, and the patterns that take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.inputs import STAMPED, Input
from windrow.core.keys import encode_equal
from windrow.core.positions import Ids, Partition
from windrow.core.time import TIME_UNITS
from windrow.operators.one_input import conformed
from windrow.operators.rules.definition import RulesDefinition
from windrow.operators.steps.columns import POSITION_COLUMNS
from windrow.operators.steps.dead_letters import MALFORMED, TOO_LATE, DeadLetters
from windrow.operators.steps.groups import combine
from windrow.operators.steps.input_filter import divided, further
from windrow.operators.steps.intake import (
    Slice,
    countable_rows,
    event_time_marks,
    event_times,
    in_known_times,
)
from windrow.operators.steps.message_rows import with_positions
from windrow.stores.keyed_event_store import Hashes, hashes_of


class RuleReading:
    """An input of rules, as `take_in` reads it."""

    ids: Ids | None = None

    def __init__(self, definition: RulesDefinition, input: Input, *, group_null: bool = False) -> None:
        self.name, self.event_time = input.name, input.event_time
        self.by = definition.keys(input)
        self.time_zone, self.event_time_unit = input.time_zone, input.event_time_unit
        self.max_ahead_us = input.max_ahead_us
        self.null_keys = "group" if group_null else definition.null_keys


@dataclass(frozen=True)
class Arrived:
    """The messages of an input in one step, in position order, with both ends of each."""

    rows: Slice
    starts: IntArray
    ends: IntArray

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Intake:
    """The intake of one input's messages in one step. closed_us: an earlier message is too late."""

    definition: RulesDefinition
    input: Input
    step: int
    now_us: int
    closed_us: int
    dead: DeadLetters

    def take(
        self, table: pa.Table, schema: pa.Schema, columns: list[str]
    ) -> tuple[Arrived, Mapping[Partition, int]]:
        """Give the messages that count, in the types of `schema`, and how far partitions have come."""
        self.dead.input = self.input.name
        table = with_positions(table, self.step, self.input.source_prefix)
        heard: Mapping[Partition, int] = {}
        if self.input.where is not None:
            table, others = divided(self.input.where, table)
            silent = countable_rows(
                RuleReading(self.definition, self.input, group_null=True), others, self.now_us, self.dead
            )
            heard = event_time_marks(silent.take(np.flatnonzero(silent.times >= self._closed_us)))
        rows = self._on_time(
            countable_rows(RuleReading(self.definition, self.input), table, self.now_us, self.dead)
        )
        arrived = self._intervals(rows)
        kept = arrived.rows.table.select([*columns, *POSITION_COLUMNS])
        filed = pa.schema([schema.field(name) for name in columns])
        made = Arrived(Slice(conformed(kept, filed), arrived.rows.times), arrived.starts, arrived.ends)
        return made, further(event_time_marks(arrived.rows), heard)

    @property
    def _closed_us(self) -> int:
        return -(1 << 63) if self.input.static else self.closed_us

    def _on_time(self, rows: Slice) -> Slice:
        late = rows.times < self._closed_us
        if not late.any():
            return rows
        detail = f"the watermark of {self.definition.name!r} has passed it"
        self.dead.add_rows(TOO_LATE, detail, rows.table, np.flatnonzero(late), pa.array(rows.times))
        return rows.take(np.flatnonzero(~late))

    def _intervals(self, rows: Slice) -> Arrived:
        """Read the other ends of messages; those without a right one are dead letters."""
        interval = self.input.interval
        if interval is None or not len(rows):
            return Arrived(rows, rows.times, rows.times)
        column = interval.columns[0]
        if interval.duration is not None:
            lengths, wrong = _durations(combine(rows.table.column(column)), interval.duration_unit or "us")
        else:
            read = event_times(
                rows.table.column(column), column, self.input.time_zone, self.input.event_time_unit
            )
            other = read.fill_null(0).to_numpy(zero_copy_only=False)
            lengths = (rows.times - other) if interval.start is not None else (other - rows.times)
            wrong = read.is_null().to_numpy(zero_copy_only=False)
        details = {
            f"{column!r} is no time or duration": wrong,
            f"{column!r} makes it end before it starts": ~wrong & (lengths < 0),
        }
        if interval.longest_us is not None:
            details[f"{column!r} makes it longer than longest="] = ~wrong & (lengths > interval.longest_us)
        bad = np.zeros(len(rows), dtype=bool)
        for detail, mask in details.items():
            self.dead.add_rows(MALFORMED, detail, rows.table, np.flatnonzero(mask), pa.array(rows.times))
            bad |= mask
        rows, lengths = rows.take(np.flatnonzero(~bad)), lengths[~bad]
        if interval.start is not None:
            return Arrived(rows, rows.times - lengths, rows.times)
        return Arrived(rows, rows.times, rows.times + lengths)


def _durations(values: pa.Array, unit: str) -> tuple[IntArray, np.ndarray]:
    """Read durations as (microseconds, which are none); a null is 0."""
    if pa.types.is_duration(values.type):
        values, unit = values.cast(pa.int64()), values.type.unit
    n, null = len(values), values.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_null(values.type):
        return np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool)
    numeric = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    if not numeric:
        return np.zeros(n, dtype=np.int64), ~null
    many, each_us = TIME_UNITS[unit]
    numbers = values.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
    wrong = ~np.isfinite(numbers) | (np.abs(numbers) * each_us / many >= 2.0**61)
    if pa.types.is_integer(values.type):
        whole = np.where(
            wrong, 0, values.cast(pa.int64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False)
        )
        return whole // many * each_us, wrong
    return np.rint(np.where(wrong, 0, numbers) * each_us / many).astype(np.int64), wrong


def stamped(table: pa.Table, input: Input, now_us: int) -> pa.Table:
    """Give messages the recorded `now` as their event time, where the input has none."""
    if not input.stamped:
        return table
    return table.append_column(STAMPED, pa.array(np.full(len(table), now_us, dtype=np.int64)))


def in_times(table: pa.Table, input: Input, known: pa.Schema | None) -> pa.Table:
    """Write event times in the type that is known."""
    kind = (
        known.field(input.event_time).type if known is not None and input.event_time in known.names else None
    )
    return in_known_times(table, input.event_time, input.time_zone, kind, input.event_time_unit)


def hashes(table: pa.Table, by: tuple[str, ...]) -> Hashes:
    """Hash the partitions of messages; equal numbers alike, whatever their type."""
    if not by:
        return np.zeros(len(table), dtype=np.uint32)
    return hashes_of(encode_equal([combine(table.column(name)) for name in by]))
