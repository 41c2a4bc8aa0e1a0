"""Intervals of messages: both ends of each, from a duration or a second time column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.inputs import Input
from windrow.core.keys import encode_equal
from windrow.core.time import TIME_UNITS
from windrow.operators.steps.dead_letters import MALFORMED, DeadLetters
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import (
    Slice,
    event_times,
)
from windrow.stores.keyed_event_store import Hashes, hashes_of


@dataclass(frozen=True)
class Arrived:
    """The messages of an input in one step, in position order, with both ends of each."""

    rows: Slice
    starts: IntArray
    ends: IntArray

    def __len__(self) -> int:
        return len(self.rows)


class Intervals:
    """The intervals of one input's messages. Messages without a right one are dead letters."""

    def __init__(self, input: Input) -> None:
        self.input = input

    def of(self, rows: Slice, dead: DeadLetters) -> Arrived:
        """Read the other ends of messages."""
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
            dead.add_rows(MALFORMED, detail, rows.table, np.flatnonzero(mask), pa.array(rows.times))
            bad |= mask
        rows, lengths = rows.take(np.flatnonzero(~bad)), lengths[~bad]
        if interval.start is not None:
            return Arrived(rows, rows.times - lengths, rows.times)
        return Arrived(rows, rows.times, rows.times + lengths)


def without_doubt(input: Input, rows: Slice, dead: DeadLetters) -> Slice:
    """Leave out the rows of a table of which it cannot be said whether they are deleted: these are dead letters."""
    name = None if input.facts is None else input.facts.deleted
    if name is None or not (n := len(rows)):
        return rows
    column = rows.table.column(name)
    if truth_of(column) is not None:
        return rows
    wrong = np.array([truth_of(column.slice(i, 1)) is None for i in range(n)])
    dead.add_rows(
        MALFORMED,
        f"{name!r} is neither true nor false",
        rows.table,
        np.flatnonzero(wrong),
        pa.array(rows.times),
    )
    return rows.take(np.flatnonzero(~wrong))


def truth_of(column: pa.ChunkedArray) -> BoolArray | None:
    """Read truth values, of which a null is false; None where some are none."""
    try:
        truth = pc.fill_null(combine(column).cast(pa.bool_()), False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return np.asarray(truth.to_numpy(zero_copy_only=False), dtype=bool)


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


def hashes(table: pa.Table, by: tuple[str, ...]) -> Hashes:
    """Hash the partitions of messages; equal numbers alike, whatever their type."""
    if not by:
        return np.zeros(len(table), dtype=np.uint32)
    return hashes_of(encode_equal([combine(table.column(name)) for name in by]))
