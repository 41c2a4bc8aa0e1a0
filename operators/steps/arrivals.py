"""Arrivals of one input: its countable rows of a step, and the event times that its partitions reach."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray
from windrow.core.errors import InputError
from windrow.core.inputs import Input
from windrow.core.positions import Ids, Partition
from windrow.core.time import TimeUnit
from windrow.operators.steps.dead_letters import TOO_LATE, DeadLetters
from windrow.operators.steps.input_filter import divided
from windrow.operators.steps.intake import Slice, countable_rows, event_time_marks, in_known_times

#: Drops the rows that are too late, which become dead letters.
OnTime: TypeAlias = Callable[[Slice, DeadLetters], Slice]


@dataclass(frozen=True)
class InputReading:
    """The reading options of an input. name: the operator's, or the input's where that has several."""

    name: str
    input: Input
    by: tuple[str, ...]
    null_keys: str = "group"
    ids: Ids | None = None

    @classmethod
    def of(cls, definition: Any, input: Input) -> InputReading:
        """Return how a definition reads one of its inputs."""
        null_keys = getattr(definition, "null_keys", "group")
        return cls(definition.name, input, definition.keys(input), null_keys, definition.ids)

    @property
    def event_time(self) -> str:
        return self.input.event_time

    @property
    def time_zone(self) -> str | None:
        return self.input.time_zone

    @property
    def event_time_unit(self) -> TimeUnit | None:
        return self.input.event_time_unit

    @property
    def max_ahead_us(self) -> int | None:
        return self.input.max_ahead_us

    def in_known_times(self, table: pa.Table, known: pa.Schema | None) -> pa.Table:
        """Return the table with event times written as in the known columns."""
        kind = None
        if known is not None and self.event_time in known.names:
            kind = known.field(self.event_time).type
        return in_known_times(table, self.event_time, self.time_zone, kind, self.event_time_unit)

    def arrivals(
        self, table: pa.Table, now_us: int, dead: DeadLetters, on_time: OnTime
    ) -> tuple[Slice, Mapping[Partition, int]]:
        """Return the rows that count, and how far the rows that do not pass the filter bring partitions."""
        marks: Mapping[Partition, int] = {}
        if self.input.where is not None:
            table, others = divided(self.input.where, table)
            silent = countable_rows(replace(self, null_keys="group", ids=None), others, now_us, dead)
            marks = event_time_marks(on_time(silent, DeadLetters(0)))
        return on_time(countable_rows(self, table, now_us, dead), dead), marks


def without_late(
    rows: Slice, late: BoolArray, dead: DeadLetters, detail: str, reason: str = TOO_LATE
) -> Slice:
    """Drop late rows, which become dead letters."""
    if not late.any():
        return rows
    dead.add_rows(reason, detail, rows.table, np.flatnonzero(late), pa.array(rows.times))
    return rows.take(np.flatnonzero(~late))


def check_inputs(names: Collection[str], operator: str, inputs: Collection[str]) -> None:
    """Raise `InputError` where a name is of no input of the operator."""
    unknown = sorted(set(names) - set(inputs))
    if unknown:
        raise InputError(f"{unknown[0]!r} is no input of {operator!r}, which has {list(inputs)}")
