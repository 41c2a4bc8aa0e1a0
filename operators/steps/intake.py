"""Intake: turns columns as they come into countable rows, with event times as integers, positions, and malformed ones marked.

Semantics "Too late, out of retention, malformed", "Time zones", "Positions".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray, is_one
from windrow.core.errors import TypeClash, UnknownColumn
from windrow.core.faults import FIRST_US, LAST_US
from windrow.core.message_keys import position_keys
from windrow.core.positions import Ids
from windrow.core.time import (
    END_OF_TIME_US,
    TIME_UNITS,
    TimeUnit,
    instant_us,
    read_iso,
    show_duration,
    to_datetime,
)
from windrow.core.types import as_type, is_text, plain_type, widened
from windrow.core.zones import zone_of
from windrow.operators.steps.columns import (
    MALFORMED_ROW,
    OFFSET,
    ORDINAL,
    PARTITION,
    PASSED_OVER,
    POSITION_COLUMNS,
    RAW,
    SIGN,
    SOURCE,
)
from windrow.operators.steps.dead_letters import MALFORMED, NULL_KEY, DeadLetters
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.poison_rows import marked

#: The detail of event times that are floats.
NO_FLOAT = "no time: cast it to a whole number, of microseconds or what event_time_unit= says"


class Reading(Protocol):
    """The reading options of an input, from a definition."""

    @property
    def name(self) -> str: ...
    @property
    def event_time(self) -> str: ...
    @property
    def by(self) -> tuple[str, ...]: ...
    @property
    def time_zone(self) -> str | None: ...
    @property
    def event_time_unit(self) -> TimeUnit | None: ...
    @property
    def max_ahead_us(self) -> int | None: ...
    @property
    def null_keys(self) -> str: ...
    @property
    def ids(self) -> Ids | None: ...


@dataclass(frozen=True)
class Slice:
    """Rows that can be counted, in position order. `times` are int64 microseconds, no nulls."""

    table: pa.Table
    times: IntArray

    def __len__(self) -> int:
        return len(self.times)

    def take(self, rows: IntArray) -> Slice:
        return Slice(self.table.take(pa.array(rows)), self.times[rows])

    @property
    def has_positions(self) -> bool:
        return OFFSET in self.table.column_names

    @property
    def sign(self) -> IntArray | None:
        """1 for each row, -1 for a retraction; None without retractions."""
        there = SIGN in self.table.column_names
        return np.asarray(combine(self.table.column(SIGN)).to_numpy()) if there else None

    @cached_property
    def order(self) -> pa.Array | None:
        """Encoded positions, sortable as bytes; None where rows have none."""
        return encoded_positions(self.table)


def encoded_positions(table: pa.Table, rows: IntArray | None = None) -> pa.Array | None:
    """Return the position columns of `table` as order-preserving bytes; of some of its rows."""
    if OFFSET not in table.column_names:
        return None
    source = combine(table.column(SOURCE))
    present = [c for c in (PARTITION, OFFSET, ORDINAL) if c in table.column_names]
    numbers = [combine(table.column(c)).to_numpy(zero_copy_only=False) for c in present]
    if rows is not None:
        numbers = [column[rows] for column in numbers]
        if is_one(source):
            none = pa.array(np.zeros(len(rows), dtype=np.int32))
            source = pa.DictionaryArray.from_arrays(none, source.slice(0, 1))
        else:
            source = source.take(pa.array(rows))
    return position_keys(source, *numbers, *([0] if len(numbers) < 3 else []))


def in_position_order(table: pa.Table) -> pa.Table:
    """Return rows sorted by (source, partition, offset, ordinal); a table without positions is unchanged."""
    present = [c for c in POSITION_COLUMNS if c in table.column_names]
    if OFFSET not in present or _ascending([combine(table.column(c)) for c in present]):
        return table
    return table.take(pc.sort_indices(table, sort_keys=[(c, "ascending") for c in present]))


def _ascending(columns: Sequence[pa.Array]) -> bool:
    """True if rows are in the order of these columns already, as those of a partition mostly come."""
    tied = np.ones(max(len(columns[0]) - 1, 0), dtype=bool)
    for column in columns:
        if column.null_count:
            return False
        if is_one(column):
            continue
        if not tied.any():
            return True
        before, after = column[:-1], column[1:]
        if (pc.less(after, before).to_numpy(zero_copy_only=False) & tied).any():
            return False
        tied &= pc.equal(after, before).to_numpy(zero_copy_only=False)
    return True


def event_times(
    column: pa.ChunkedArray, name: str, time_zone: str | None, unit: TimeUnit | None = None
) -> pa.Array:
    """Return int64 microseconds; null where the value is no time. Raises `TypeClash` if the type can never be one."""
    values = combine(column)
    values = as_type(values, plain_type(values.type))
    kind = values.type
    if pa.types.is_null(kind):
        return pa.nulls(len(values), pa.int64())
    if pa.types.is_timestamp(kind):
        times = _counted(values, kind.unit)
        return _localised(times, kind, name, time_zone) if kind.tz is None else times
    if pa.types.is_integer(kind):
        return _counted(values, unit or "us")
    if pa.types.is_date(kind):
        return _localised(_counted(values.cast(pa.date64()), "ms"), kind, name, time_zone)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _parsed(values, time_zone)
    if pa.types.is_floating(kind):
        return pa.nulls(len(values), pa.int64())
    raise TypeClash(
        f"event time {name!r} is of type {kind}: use a timestamp, text in ISO 8601, or an integer since the epoch"
    )


def in_known_times(
    table: pa.Table,
    name: str,
    time_zone: str | None,
    known: pa.DataType | None,
    unit: TimeUnit | None = None,
    called: str = "event time",
) -> pa.Table:
    """Cast times of a new type, such as integers, to the known one. A row whose time that type does not hold
    exactly becomes malformed."""
    if known is None or name not in table.column_names:
        return table
    values = combine(table.column(name))
    as_floats = pa.types.is_floating(values.type)
    if pa.types.is_null(known) or pa.types.is_floating(known):  # no message with such a time counted
        return table
    if values.type == known or (not as_floats and widened(known, values.type) is not None):
        return table
    times = event_times(table.column(name), name, time_zone, unit)
    written = _written_as(known, times, time_zone, unit)
    same = pc.equal(event_times(pa.chunked_array([written]), name, time_zone, unit), times)
    exact = pc.fill_null(same, False)
    wrong = np.flatnonzero(pc.and_(values.is_valid(), pc.invert(exact)).to_numpy(zero_copy_only=False))
    at = pa.array(wrong)
    read = zip(wrong.tolist(), values.take(at).to_pylist(), times.take(at).to_pylist(), strict=True)
    unheld = f"which its column, of {known} before, cannot hold"
    why = {
        ("", row): f"{called} {name!r} is {value!r:.100}, {'no time' if time_us is None else unheld}"
        for row, value, time_us in read
    }
    written = pc.if_else(exact, written, pa.scalar(None, written.type))
    table = table.set_column(table.column_names.index(name), pa.field(name, written.type), written)
    return marked({"": table}, why)[""]


def _written_as(kind: pa.DataType, times: pa.Array, time_zone: str | None, unit: TimeUnit | None) -> pa.Array:
    """Return event times as values of the type, or of one that it widens to; those that do not fit change."""
    if pa.types.is_integer(kind):
        many, each_us = TIME_UNITS[unit or "us"]
        numbers = pc.multiply(pc.divide(times, each_us), many)
        if pa.types.is_signed_integer(kind):
            return numbers
        return pc.if_else(pc.less(numbers, 0), pa.scalar(None, pa.int64()), numbers).cast(kind, safe=False)
    zone = kind.tz if pa.types.is_timestamp(kind) and kind.tz is not None else None
    stamps = times.cast(pa.timestamp("us", zone or "UTC"))
    if zone is None and is_text(kind):
        return pc.strftime(stamps, "%Y-%m-%dT%H:%M:%SZ").cast(kind)
    if zone is None and time_zone is not None:
        # A local time that clocks show twice can only be written as the first.
        local = zone_of(time_zone).furthest(times.fill_null(0).to_numpy(zero_copy_only=False))
        stamps = pa.array(local, mask=times.is_null().to_numpy(zero_copy_only=False)).cast(pa.timestamp("us"))
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return stamps
    return stamps.cast(kind, safe=False)


def _counted(values: pa.Array, unit: TimeUnit) -> pa.Array:
    """Return integers of a unit as microseconds; those that do not fit stay beyond all valid years."""
    whole = values if values.type == pa.uint64() else values.cast(pa.int64())
    many, each_us = TIME_UNITS[unit]
    if many == each_us and whole is not values:
        return whole
    numbers = whole.fill_null(0).to_numpy(zero_copy_only=False) // many
    furthest = END_OF_TIME_US // each_us
    times = np.maximum(np.minimum(numbers, furthest).astype(np.int64), -furthest) * each_us
    return pa.array(times, mask=values.is_null().to_numpy(zero_copy_only=False))


def _localised(local: pa.Array, kind: pa.DataType, name: str, time_zone: str | None) -> pa.Array:
    """Convert local times in microseconds to instants. kind: as they came."""
    if time_zone is None:
        raise TypeClash(
            f"event time {name!r} has no time zone (type {kind}): declare it with time_zone='Europe/Berlin', or 'UTC'"
        )
    instants = zone_of(time_zone).instants(local.fill_null(0).to_numpy(zero_copy_only=False))
    return pa.array(instants, mask=local.is_null().to_numpy(zero_copy_only=False))


def _parsed(values: pa.Array, time_zone: str | None) -> pa.Array:
    zone = None if time_zone is None else zone_of(time_zone)
    distinct = values.dictionary_encode()

    def parse(text: str | None) -> int | None:
        if text is None:
            return None
        try:
            moment = read_iso(text)
        except ValueError:
            return None
        if moment.tzinfo is not None:
            return instant_us(moment)
        return None if zone is None else zone.instant(moment)

    return pa.array([parse(t) for t in distinct.dictionary.to_pylist()], pa.int64()).take(distinct.indices)


def countable(times: pa.Array, now_us: int | IntArray, max_ahead_us: int | None) -> pa.Array:
    """True where an event time can be counted; `now_us`: of all, or of each."""
    last = last_times(max_ahead_us, now_us)
    return pc.fill_null(pc.and_(pc.greater_equal(times, FIRST_US), pc.less_equal(times, last)), False)


def last_times(max_ahead_us: int | None, now_us: int | IntArray) -> Any:
    """Return the latest time that can be counted at `now_us`, or at each of them."""
    if max_ahead_us is None:
        return LAST_US
    if isinstance(now_us, int):
        return min(LAST_US, now_us + max_ahead_us)
    return pa.array(np.minimum(now_us, LAST_US - max_ahead_us) + max_ahead_us)


def countable_rows(
    definition: Reading, table: pa.Table, now_us: int | IntArray, dead: DeadLetters, *, sort: bool = True
) -> Slice:
    """Return the rows of `table` that can be counted; the others go to `dead`. `sort`: into position order.

    now_us: of the step, or, unsorted, of each row.
    """
    ids = () if definition.ids is None else definition.ids.columns
    missing = [c for c in (definition.event_time, *definition.by, *ids) if c not in table.column_names]
    if missing:
        raise UnknownColumn.lacking(missing[0], repr(definition.name), user_columns(table))
    table = in_position_order(table) if sort else table
    times = event_times(
        table.column(definition.event_time),
        definition.event_time,
        definition.time_zone,
        definition.event_time_unit,
    )
    keep = countable(times, now_us, definition.max_ahead_us).to_numpy(zero_copy_only=False)
    if MALFORMED_ROW in table.column_names:
        details = combine(table.column(MALFORMED_ROW))
        emitted = details.is_valid().to_numpy(zero_copy_only=False)
        buried = np.flatnonzero(pc.fill_null(pc.not_equal(details, PASSED_OVER), False))
        dead.add_rows(MALFORMED, details.take(pa.array(buried)).to_pylist(), table, buried, times)
        if emitted.any():
            rows = np.flatnonzero(~emitted)
            table, times, keep = table.take(pa.array(rows)), times.take(pa.array(rows)), keep[rows]
        table = table.drop_columns([MALFORMED_ROW, RAW])
    if not keep.all():
        bad = ~keep
        null = times.is_null().to_numpy(zero_copy_only=False)
        dead.add_rows(MALFORMED, partial(_no_time, definition), table, np.flatnonzero(bad & null), None)
        dead.add_rows(MALFORMED, partial(_too_far, definition), table, np.flatnonzero(bad & ~null), times)
    for name in ids:
        no_id = keep & combine(table.column(name)).is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        dead.add_rows(MALFORMED, f"id {name!r} is null", table, np.flatnonzero(no_id), times)
        keep = keep & ~no_id
    if definition.null_keys == "dead_letter" and definition.by:
        for name in definition.by:
            null = keep & combine(table.column(name)).is_null().to_numpy(zero_copy_only=False)
            detail = f"key {name!r} is null, null_keys='dead_letter'"
            dead.add_rows(NULL_KEY, detail, table, np.flatnonzero(null), times)
            keep = keep & ~null
    if not keep.all():
        rows = np.flatnonzero(keep)
        table, times = table.take(pa.array(rows)), times.take(pa.array(rows))
    return Slice(table, np.asarray(times.to_numpy(zero_copy_only=False), dtype=np.int64))


def _no_time(definition: Reading, some: pa.Table, _: Sequence[int | None]) -> list[str]:
    """Return the reason why the event time of each of these rows is invalid, with a remedy."""
    name = definition.event_time

    def why(value: Any) -> str:
        if value is None:
            return f"event time {name!r} is null"
        problem = f"event time {name!r} is {value!r:.100}"
        if isinstance(value, float):
            return f"{problem}, {NO_FLOAT}"
        if isinstance(value, str) and definition.time_zone is None and _is_moment(value):
            return f"{problem}, without a time zone: declare time_zone='UTC', or another"
        return f"{problem}, no time"

    return [why(value) for value in some.column(name).to_pylist()]


def _is_moment(text: str) -> bool:
    try:
        read_iso(text)
    except ValueError:
        return False
    return True


def _too_far(definition: Reading, _: pa.Table, times: Sequence[int | None]) -> list[str]:
    """Return the reason why these times cannot be counted."""
    name, ahead_us = definition.event_time, definition.max_ahead_us

    def why(time_us: int) -> str:
        if ahead_us is None or not FIRST_US <= time_us <= LAST_US:
            return f"event time {name!r} is outside the years 1 to 9999"
        shown = to_datetime(time_us).isoformat(" ")
        return f"event time {name!r} is {shown}, more than max_ahead={show_duration(ahead_us)!r} ahead of now"

    return [why(time_us) for time_us in times if time_us is not None]


def user_columns(table: pa.Table) -> list[str]:
    return [c for c in table.column_names if not c.startswith("__")]


def event_time_marks(rows: Slice) -> Mapping[tuple[str, int], int]:
    """Return per (source, partition) the largest event time; rows without positions are one partition, ("", 0)."""
    if len(rows) == 0:
        return {}
    if not rows.has_positions:
        return {("", 0): int(rows.times.max())}
    groups = Groups([rows.table.column(SOURCE), rows.table.column(PARTITION)], len(rows))
    [largest] = groups.aggregate([(pa.array(rows.times), "max")])
    first = rows.table.select([SOURCE, PARTITION]).take(pa.array(groups.first_rows))
    return {
        (s, p): m
        for s, p, m in zip(
            first.column(SOURCE).to_pylist(),
            first.column(PARTITION).to_pylist(),
            largest.to_pylist(),
            strict=True,
        )
    }
